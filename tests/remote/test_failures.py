# SPDX-License-Identifier: Apache-2.0
"""What durability `remote` promises to survive, with real brokers on a real S3 server behind a way that fails."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from peers.faulty import FaultyStore
from running import ENVIRONMENT, SERVE, Running, broker, resident_bytes, wait_until, written

from vibemq.client.streams import StreamsConnection
from vibemq.errors import RequestFailed, Superseded, VibeMQError
from vibemq.remote.bucket import PART_BYTES, PARTS_AT_A_TIME
from vibemq.remote.objects import Kind, change_key, from_json, opened
from vibemq.storage.metadata import Metadata

pytest.importorskip("obstore", reason="needs the extra remote")
pytestmark = pytest.mark.timeout(120)

#: What obstore waits for in vain is given up soon, so that a test of a silent store does not take minutes.
CLIENT = ",timeout=2s"
CONFIRM_S_MAX = 40.0
BATCH = 50


def flags(store: FaultyStore, **more: object) -> list[str]:
    """``more``: options, with __ for the point."""
    options = {
        "remote.url": store.url,
        "remote.options": store.options + CLIENT,
        "store.durability": "remote",
        "remote.interval_ms": 10,
        "store.segment_size_bytes": 200_000,
        "server.shutdown_timeout_s": 2,  # whoever waits for a confirm that cannot come
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    return [word for name, value in options.items() for word in ("--set", f"{name}={value}")]


@contextmanager
def serving(folder: Path, store: FaultyStore, workers: int = 1, **more: object) -> Iterator[Running]:
    with broker(folder, *flags(store, **more), workers=workers, through=store.through) as running:
        yield running


class Lost(Exception):
    """So that nobody stops the broker in order."""


@contextmanager
def lost(folder: Path, store: FaultyStore, workers: int = 1, **more: object) -> Iterator[Running]:
    """A broker of which every process is killed at the end."""
    with pytest.raises(Lost), serving(folder, store, workers, **more) as running:
        yield running
        kill(running)
        raise Lost


def kill(running: Running) -> None:
    for pid in (running.process.pid, *running._children("")):
        os.kill(pid, signal.SIGKILL)
    running.process.wait()


@contextmanager
def outlived(folder: Path, store: FaultyStore, **more: object) -> Iterator[Running]:
    """A broker that ends by itself, with an error, before the block does."""
    with pytest.raises(Lost), serving(folder, store, **more) as running:
        yield running
        raise Lost


def archiver(running: Running) -> int:
    wait_until(lambda: bool(running._children("vibemq: archiver")), "an archiver")
    return running._children("vibemq: archiver")[0]


def connected(running: Running, timeout_s: float = CONFIRM_S_MAX) -> StreamsConnection:
    return StreamsConnection.connect(running.host, running.port, heartbeat_s=0, timeout_s=timeout_s)


def bodies(connection: StreamsConnection, stream: str = "events", first: int = 0) -> list[bytes]:
    return [body for chunk in connection.read_chunks(stream, first) for _, body in chunk.messages()]


def changes_in(store: FaultyStore) -> list[list[object]]:
    """The rows of each change of the metadata, in order; a fence has none."""
    keys = [key for key in store.keys("meta/") if "snapshot" not in key]
    return [from_json(key, opened(key, Kind.CHANGE, store.read(key)))["changes"] for key in keys]


def event(number: int) -> bytes:
    return b"event %d" % number


def whole(connection: StreamsConnection, sure: int, stream: str = "events") -> int:
    """All events up to at least the one that was confirmed, once and in order; how many."""
    there = bodies(connection, stream)
    assert there == [event(number) for number in range(len(there))]
    assert len(there) >= sure, f"{sure} were confirmed, {len(there)} are there"
    return len(there)


class Publisher(threading.Thread):
    """Publishes events under a reference until it is told to stop; where it loses its worker it goes on elsewhere."""

    def __init__(self, running: Running, stream: str = "events") -> None:
        super().__init__(daemon=True)
        self.running, self.stream = running, stream
        self.sure = 0  # of the events, so many are confirmed
        self.stopping = threading.Event()
        self.problem: Exception | None = None
        self.start()

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                with connected(self.running) as connection:
                    connection.create(self.stream, exist_ok=True)
                    publisher = connection.publisher(self.stream, "ref")
                    while not self.stopping.is_set():
                        first = publisher.next_id - 1  # the first id is 1
                        publisher.publish([event(first + at) for at in range(BATCH)])
                        publisher.flush()
                        self.sure = first + BATCH
            except (VibeMQError, OSError) as problem:
                self.problem = problem

    def goes_on(self, events: int = 4 * BATCH) -> None:
        wanted = self.sure + events
        try:
            wait_until(lambda: self.sure >= wanted, "confirms", CONFIRM_S_MAX)
        except AssertionError as never:
            raise AssertionError(f"{never}; the last problem was {self.problem!r}") from None

    def stop(self) -> int:
        self.stopping.set()
        self.join(CONFIRM_S_MAX)
        assert not self.is_alive()
        return self.sure


# ---- killed ----


def test_publishers_go_on_when_an_archiver_or_a_worker_is_killed_while_answers_are_late_or_lost(tmp_path, faulty):
    seed = int(os.environ.get("VIBEMQ_SEED", random.randrange(1 << 32)))
    print("VIBEMQ_SEED", seed)
    chance = random.Random(seed)
    folder = tmp_path / "data"
    faulty.delay(0.03, "PUT", "wal/")
    with lost(folder, faulty, workers=2) as running:
        publisher = Publisher(running)
        publisher.goes_on()
        for victim in ("archiver", "worker", "archiver"):
            trouble = chance.choice((faulty.cut_after, faulty.cut_before))("PUT", "wal/", times=chance.randrange(1, 8))
            wait_until(lambda trouble=trouble: trouble.met > 0, "a request is cut")
            os.kill(archiver(running) if victim == "archiver" else running.worker_pids()[0], signal.SIGKILL)
            publisher.goes_on()
        faulty.cut_after("PUT", "wal/")
        sure = publisher.sure
    publisher.stopping.set()
    faulty.up()
    with serving(folder, faulty) as running, connected(running) as connection:
        whole(connection, sure)
        count = connection.query_publisher_sequence("ref", "events")
        wait_until(lambda: len(bodies(connection)) >= count, "the store has all messages", CONFIRM_S_MAX)
        assert whole(connection, sure) == count


def test_everything_killed_while_answers_are_lost_and_the_disk_too_leaves_what_was_confirmed(tmp_path, faulty):
    faulty.delay(0.03, "PUT", "wal/")
    with lost(tmp_path / "data", faulty, workers=2) as running:
        publisher = Publisher(running)
        publisher.goes_on()
        faulty.cut_after("PUT", "wal/")
        sure = publisher.sure
    publisher.stopping.set()
    faulty.up()
    with serving(tmp_path / "other", faulty) as running, connected(running) as connection:
        count = whole(connection, sure)
        with connection.publisher("events", "ref") as again:
            assert again.next_id == count + 1
            again.publish([event(count)])
        whole(connection, count + 1)


# ---- the store is away ----


@pytest.mark.parametrize("how", ["refuses", "is cut off"])
def test_while_the_store_is_away_only_streams_that_need_it_wait_and_no_memory_grows(tmp_path, faulty, how):
    with serving(tmp_path / "data", faulty, workers=1, streams__unconfirmed_max=1000) as running:
        pids = [archiver(running), *running.worker_pids()]
        with connected(running) as connection, connected(running) as held:
            connection.create("local", {"durability": "os"})
            connection.create("disk", {"durability": "disk"})
            connection.create("events")
            first = held.publisher("events", "ref")
            first.publish([event(0)])
            first.flush()
            away = faulty.answer(503) if how == "refuses" else faulty.cut_before()
            sent = _publish_until_held(held, first)
            before = sum(map(resident_bytes, pids))
            for stream in ("local", "disk"):
                with connection.publisher(stream) as publisher:
                    for _ in range(20):
                        publisher.publish([b"x" * 1000] * 100)
                        publisher.flush(10)
            assert len(bodies(connection, "local")) == 2000 and bodies(connection)[0] == event(0)
            wait_until(lambda met=away.met: away.met > met + 8, "the store is asked again and again")
            grown = sum(map(resident_bytes, pids)) - before
            parts = PARTS_AT_A_TIME * PART_BYTES  # of a segment that is on its way
            assert grown < parts + (16 << 20), f"{grown} bytes more"
            assert first.confirmed == 1, "nothing is confirmed that the store does not have"
            faulty.up()
            first.flush()
            assert whole(connection, sent) == sent


def _publish_until_held(connection: StreamsConnection, publisher: object) -> int:
    """Until the broker reads no more of it; how many events were sent."""
    sent = 1
    for _ in range(100):
        publisher.publish([event(sent + at) for at in range(100)], timeout_s=2)  # type: ignore[attr-defined]
        sent += 100
    return sent


def test_publishers_are_refused_after_the_time_that_was_set_and_served_again_afterwards(tmp_path, faulty):
    with serving(tmp_path / "data", faulty, remote__timeout_s=1) as running, connected(running) as connection:
        connection.create("events")
        publisher = connection.publisher("events")
        faulty.answer(503)
        publisher.publish([b"refused"])
        with pytest.raises(RequestFailed):
            publisher.flush()
        faulty.up()

        def is_served() -> bool:
            publisher.publish([b"served"])
            try:
                publisher.flush()
            except RequestFailed:
                return False
            return True

        wait_until(is_served, "the store is asked again")


def test_a_stream_cannot_be_made_while_the_store_is_away_and_can_be_afterwards(tmp_path, faulty, capfd):
    with serving(tmp_path / "data", faulty) as running, connected(running) as connection:
        faulty.hang("PUT", "meta/")
        began_s = time.monotonic()
        with pytest.raises(RequestFailed):
            connection.create("events")
        assert time.monotonic() - began_s < 15
        faulty.up()
        connection.create("events", exist_ok=True)
        with connection.publisher("events", "ref") as publisher:
            publisher.publish([event(0)])
        whole(connection, 1)
    assert "object store" in written(capfd)


def test_a_store_that_denies_for_a_while_and_one_that_is_full_hold_publishers_and_are_read(tmp_path, faulty):
    with serving(tmp_path / "data", faulty) as running, connected(running) as connection:
        connection.create("events")
        publisher, sent = connection.publisher("events", "ref"), 0
        for status, method in ((403, ""), (500, "PUT")):
            trouble = faulty.answer(status, method)
            publisher.publish([event(sent)])
            sent += 1
            wait_until(lambda trouble=trouble: trouble.met > 2, "the store refuses")
            assert publisher.unconfirmed == 1
            assert bodies(connection) == [event(at) for at in range(sent - 1)], "all that is confirmed, and no more"
            faulty.up()
            publisher.flush()
        whole(connection, sent)


@pytest.mark.parametrize("status", [403, 503])
def test_changes_are_refused_and_messages_continue_while_newer_epochs_cannot_be_listed(tmp_path, faulty, capfd, status):
    with serving(tmp_path / "data", faulty) as running, connected(running) as connection:
        streams = {"local": {"durability": "os"}, "disk": {"durability": "disk"}, "events": {}}
        for stream, arguments in streams.items():
            connection.create(stream, arguments)
        denied = faulty.answer(status, "GET", "list-type=2")
        with pytest.raises(RequestFailed):
            connection.create("unsure")
        assert denied.met > 0 and "cannot list brokers/" in written(capfd)
        for stream in streams:
            with connection.publisher(stream, "ref") as publisher:
                publisher.publish([event(0)])
                publisher.flush()
            assert whole(connection, 1, stream) == 1
        faulty.up()
        connection.create("unsure", exist_ok=True)
        assert sorted(one.name for one in connection.list_streams()) == ["disk", "events", "local", "unsure"]


# ---- answers that are lost, and a store that is slow ----


def test_answers_that_are_lost_after_the_write_leave_nothing_twice_and_the_metadata_right(tmp_path, faulty):
    with lost(tmp_path / "data", faulty, workers=2) as running, connected(running) as connection:
        for number in range(3):
            faulty.cut_after("PUT", "meta/", times=number + 2)  # obstore itself tries three times
            for _ in range(2):  # nobody knows whether it was made; then it turns out that it was
                with suppress(RequestFailed):
                    connection.create(f"s{number}", exist_ok=True)
            faulty.up()
            connection.create(f"s{number}", exist_ok=True)
        connection.create("events", exist_ok=True)
        publisher = connection.publisher("events", "ref")
        sent = 0
        for _ in range(6):
            faulty.cut_after("PUT", "wal/", times=4)
            publisher.publish([event(sent + at) for at in range(BATCH)])
            sent += BATCH
            publisher.flush()
        assert whole(connection, sent) == sent
    found = [bool(rows) for rows in changes_in(faulty)]
    assert found == [False, True, True, True, True], "the start's fence, and one change for each stream"
    with serving(tmp_path / "other", faulty) as running, connected(running) as connection:
        assert whole(connection, sent) == sent
        assert [one.name for one in connection.list_streams()] == ["events", "s0", "s1", "s2"]


def test_a_stream_whose_creation_was_not_answered_can_be_used_once_it_turns_out_to_exist(tmp_path, faulty):
    with serving(tmp_path / "data", faulty) as running, connected(running) as connection:
        faulty.cut_after("PUT", "meta/", times=3)
        for _ in range(3):
            with suppress(RequestFailed):
                connection.create("events", exist_ok=True)
        with connection.publisher("events", "ref") as publisher:
            publisher.publish([event(0)])
        assert whole(connection, 1) == 1


def test_a_slow_store_confirms_in_order_and_a_deleted_stream_leaves_it(tmp_path, faulty):
    faulty.delay(0.2)
    with serving(tmp_path / "data", faulty) as running, connected(running) as connection:
        connection.create("events")
        publisher = connection.publisher("events", "ref")
        confirmed = 0
        for number in range(12):
            publisher.publish([event(number * BATCH + at) + b" " * 1000 for at in range(BATCH)])
            assert publisher.confirmed % BATCH == 0 and publisher.confirmed >= confirmed
            confirmed = publisher.confirmed
        publisher.flush()
        assert [body.strip() for body in bodies(connection)] == [event(number) for number in range(12 * BATCH)]
        wait_until(lambda: any(key.endswith(".segment") for key in faulty.keys("streams/")), "a segment goes up")
        connection.delete("events")
        wait_until(lambda: not faulty.keys("streams/"), "its objects are deleted")


def test_the_first_after_a_pause_and_a_whole_batch_go_up_before_the_interval_is_over(tmp_path, faulty):
    long = {"remote__interval_ms": 60_000, "remote__batch_size_bytes": 65_536}
    with serving(tmp_path / "data", faulty, **long) as running, connected(running) as connection:
        connection.create("events")
        publisher = connection.publisher("events", "ref")
        for size in (1, 100_000):  # each confirmed while a minute would be too long
            publisher.publish([b"x" * size])
            publisher.flush()
        publisher.publish([b"waits"])
        assert publisher.confirmed == 2


# ---- two brokers of one name ----


def test_of_two_brokers_of_one_name_the_older_confirms_nothing_more_and_ends_with_an_error(tmp_path, faulty, capfd):
    with outlived(tmp_path / "old", faulty, remote__interval_ms=100) as old:
        publisher = Publisher(old)
        publisher.goes_on()
        with serving(tmp_path / "new", faulty) as new, connected(new) as connection:
            sure = publisher.sure
            count = whole(connection, sure)
            assert old.process.wait(CONFIRM_S_MAX) == Superseded.exit_code
            assert publisher.stop() <= count, "what it confirmed is in the history"
            said = written(capfd)
            assert "another broker has taken this one's place" in said and "Traceback" not in said
            assert "ends with exit code 3 and must not be started again" in said
            again = [*faulty.through, *SERVE, "--data-dir", str(tmp_path / "old")]
            refused = subprocess.run([*again, *flags(faulty)], env=ENVIRONMENT, capture_output=True, text=True)
            assert refused.returncode == Superseded.exit_code, "who supervises it can tell that this is of no use"
            assert "start with an empty data directory" in refused.stderr and "Traceback" not in refused.stderr
            with connection.publisher("events", "ref") as again:
                again.publish([event(count)])
            whole(connection, count + 1)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--streams-port={0.port}", "127.0.0.1:{0.port}"),
        ("--user=no-such-account", "there is no account 'no-such-account'"),
        ("--host=0.0.0.0", "refusing to listen on 0.0.0.0"),
        ("--set=native.superuser_password=short", "the superuser of the configuration: "),
    ],
    ids=["ports", "account", "users", "superuser"],
)
def test_a_start_that_is_refused_does_not_take_the_place_of_who_serves(tmp_path, faulty, word, said):
    with serving(tmp_path / "old", faulty) as old, connected(old) as connection:
        connection.create("events")
        serve = [*SERVE, "--data-dir", str(tmp_path / "new"), word.format(old)]
        again = [*faulty.through, *serve, *flags(faulty)]
        refused = subprocess.run(again, env=ENVIRONMENT, capture_output=True, text=True)
        assert refused.returncode != 0 and said.format(old) in refused.stderr
        assert "epoch" not in refused.stderr
        with connection.publisher("events", "ref") as publisher:
            publisher.publish([event(0)])
        whole(connection, 1)


def test_a_user_whom_no_snapshot_knows_yet_lets_a_restored_broker_listen_to_other_machines(tmp_path, faulty):
    with lost(tmp_path / "old", faulty):
        words = ["ctl", "add_user", "ada", "a-password-of-ada", "--data-dir", str(tmp_path / "old")]
        subprocess.run([sys.executable, "-m", "vibemq.cli", *words], env=ENVIRONMENT, check=True)
    with serving(tmp_path / "new", faulty, server__host="0.0.0.0") as running:
        assert running.worker_pids()


def users_in(folder: Path) -> list[tuple[str, bool]]:
    metadata = Metadata(str(folder / "meta.db"))
    found = [(user.name, user.is_superuser) for user in metadata.users()]
    metadata.close()
    return found


@pytest.mark.parametrize("disk", ["old", "new"])
def test_the_superuser_of_the_configuration_comes_into_a_bucket_that_began_without_one(tmp_path, faulty, disk):
    with serving(tmp_path / "old", faulty):
        pass
    other_machines = {"server__host": "0.0.0.0"}
    with lost(tmp_path / disk, faulty, native__superuser_password="a-password-of-it", **other_machines):
        assert users_in(tmp_path / disk) == [("vibemq", True)]
    with serving(tmp_path / "another", faulty, **other_machines):
        assert users_in(tmp_path / "another") == [("vibemq", True)]


def test_a_superuser_whose_creation_was_not_answered_is_there_once_at_the_next_start(tmp_path, faulty):
    with serving(tmp_path / "data", faulty):
        pass
    assert [bool(rows) for rows in changes_in(faulty)] == [False], "the first start's fence"
    trouble = faulty.cut_after("PUT", change_key(3))  # behind the second start's fence
    password = {"native__superuser_password": "a-password-of-it"}
    serve = [*SERVE, "--data-dir", str(tmp_path / "data")]
    failed = subprocess.run(
        [*faulty.through, *serve, *flags(faulty, **password)], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert failed.returncode == 1 and trouble.met and "Traceback" not in failed.stderr, failed.stderr
    faulty.up()
    with serving(tmp_path / "data", faulty, **password):
        assert users_in(tmp_path / "data") == [("vibemq", True)]
    assert [bool(rows) for rows in changes_in(faulty)] == [False, False, True, False], "three fences, and one superuser"


def test_a_user_who_was_published_by_a_broker_that_could_not_commit_lets_it_listen_to_other_machines(tmp_path, faulty):
    data, before = tmp_path / "data", tmp_path / "before"
    with serving(data, faulty):
        pass
    before.mkdir()
    for file in data.glob("meta.db*"):
        shutil.copy(file, before)
    with lost(data, faulty):
        words = ["ctl", "add_user", "ada", "a-password-of-ada", "--data-dir", str(data)]
        subprocess.run([sys.executable, "-m", "vibemq.cli", *words], env=ENVIRONMENT, check=True)
    for file in data.glob("meta.db*"):
        file.unlink()
    for file in before.iterdir():
        shutil.copy(file, data)
    assert users_in(data) == []
    with serving(data, faulty, server__host="0.0.0.0"):
        assert [name for name, _ in users_in(data)] == ["ada"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host=0.0.0.0"], "listen on 127.0.0.1, make one with `vibemq users add NAME --data-dir {}` while it runs"),
        (["--set=remote.url=", "--set=store.durability=os", "--set=native.superuser_password=a-password-of-it"],
         "set remote.url as it was, or leave native.superuser_password out"),
    ],
    ids=["other machines", "no store"],
)  # fmt: skip
def test_a_start_without_users_says_how_a_broker_with_a_bucket_gets_some(tmp_path, faulty, words, said):
    with serving(tmp_path / "data", faulty):
        pass
    serve = [*SERVE, "--data-dir", str(tmp_path / "data"), *flags(faulty)]
    refused = subprocess.run([*faulty.through, *serve, *words], env=ENVIRONMENT, capture_output=True, text=True)
    assert refused.returncode != 0 and said.format(tmp_path / "data") in refused.stderr, refused.stderr


def test_a_broker_that_was_stopped_while_another_took_over_does_not_confirm_what_it_sends(tmp_path, faulty, capfd):
    with outlived(tmp_path / "old", faulty) as old, connected(old) as paused:
        paused.create("events")
        publisher = paused.publisher("events", "ref")
        publisher.publish([event(at) for at in range(BATCH)])
        publisher.flush()
        stopped = [old.process.pid, archiver(old)]
        late = faulty.delay(0.5, "PUT", "wal/")
        publisher.publish([event(BATCH)])
        wait_until(lambda: late.met > 0, "an object is on its way")
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        late.remove()
        with serving(tmp_path / "new", faulty) as new, connected(new) as connection:
            publisher.publish([event(BATCH + 1)])
            count = whole(connection, BATCH)
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            assert old.process.wait(CONFIRM_S_MAX) == Superseded.exit_code
            with pytest.raises(VibeMQError):
                publisher.flush()
            assert publisher.confirmed <= count
            whole(connection, count)
