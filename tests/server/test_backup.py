# SPDX-License-Identifier: Apache-2.0
"""Backups of a data directory, made while a broker serves from it and is published to, and what is restored of them."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from other_boot import write_in_another_boot
from running import ENVIRONMENT, broker, wait_until, written
from staging import rows, staged

import vibemq.client
import vibemq.storage.cold as cold
from vibemq.client.streams import StreamsConnection
from vibemq.errors import SetupError
from vibemq.protocols.streams.spec import TransactionState as State
from vibemq.server import backup as backups
from vibemq.server.datadir import metadata_path
from vibemq.storage.log import Log, create
from vibemq.storage.metadata import Metadata

BATCH = 100
BEFORE = 40  # batches, of which several segments are made
EVENTS_MAX = 20_000
SMALL = ("--set", "store.segment_size_bytes=200000")
BODY = b" " * 100
CLIENT = "vibemq://guest:guest@{0.host}:{0.native_port}"


def vibemq_command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vibemq.cli", *words], capture_output=True, text=True, env=ENVIRONMENT, timeout=60
    )


def numbers(connection: StreamsConnection, first: int = 0) -> list[int]:
    return [int(body) for chunk in connection.read_chunks("events", first) for _, body in chunk.messages()]


def published(publisher, first: int) -> None:
    publisher.publish([b"%d" % number + BODY for number in range(first, first + BATCH)])
    publisher.flush()


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("streams/*/*.segment"), key=lambda path: (path.parent, path.name))


def connect(running) -> StreamsConnection:
    return StreamsConnection.connect(running.host, running.port)


class Load(threading.Thread):
    """Goes on with a stream, batch after batch."""

    def __init__(self, connection: StreamsConnection) -> None:
        super().__init__(daemon=True)
        self.publisher, self.sure, self.over = connection.publisher("events", "load"), 0, threading.Event()

    def run(self) -> None:
        while not self.over.is_set() and self.sure < EVENTS_MAX:
            published(self.publisher, self.sure)
            self.sure += BATCH


def settled(client: vibemq.client.Client, last: int) -> None:
    with client.consume("tasks", prefetch=1) as messages:
        for message in messages:
            message.ack()
            if message.payload == last:
                return


@pytest.fixture(scope="module", params=["linked", "copied"])
def backup(request, tmp_path_factory) -> tuple[Path, int]:
    """Made under load: where it is, and how many events were confirmed before it was begun."""
    folder = tmp_path_factory.mktemp(request.param)
    words = ["--copy"] if request.param == "copied" else []
    with broker(folder / "data", *SMALL) as running, connect(running) as connection:
        assert vibemq_command("ctl", "add_user", "carol", "secret", "--data-dir", str(folder / "data")).returncode == 0
        connection.create("events")
        load = Load(connection)
        for _ in range(BEFORE):
            published(load.publisher, load.sure)
            load.sure += BATCH
        connection.store_offset("reader", "events", 77)
        connection.query_offset("reader", "events")  # which waits for the store, that is not answered
        with vibemq.client.connect(CLIENT.format(running)) as client:
            for number in range(20):
                client.publish("tasks", number)
            settled(client, 9)
        load.start()
        sure = load.sure
        made = vibemq_command("backup", str(folder / "backup"), "--data-dir", str(folder / "data"), *words)
        assert made.returncode == 0, made.stderr
        load.over.set()
        load.join()
        assert numbers(connection) == list(range(load.sure)), "the broker went on"
    return folder / "backup", sure


def test_what_was_confirmed_before_is_there_and_the_rest_up_to_one_moment(backup, tmp_path):
    source, sure = backup
    before = contents(source)
    back = vibemq_command("restore", str(source), "--data-dir", str(tmp_path / "data"))
    assert back.returncode == 0 and "goes on from there" in back.stdout, back.stderr
    with broker(tmp_path / "data", *SMALL) as running:
        with connect(running) as connection:
            there = numbers(connection)
            assert there == list(range(len(there))) and len(there) >= sure
            assert connection.query_offset("reader", "events") == 77
            assert connection.query_publisher_sequence("load", "events") == len(there)
            published(connection.publisher("events", "load"), len(there))
            assert numbers(connection, len(there)) == list(range(len(there), len(there) + BATCH))
        with vibemq.client.connect(CLIENT.format(running)) as client, client.consume("tasks") as messages:
            left = [next(messages).payload for _ in range(10)]
        assert "carol" in vibemq_command("ctl", "list_users", "--data-dir", str(tmp_path / "data")).stdout
    assert contents(source) == before, "whoever goes on from a backup leaves it as it is"
    assert left == list(range(10, 20))


def test_closed_segments_are_linked_unless_all_is_to_be_copied(backup, request):
    source, _ = backup
    of_data = {path.stat().st_ino for path in segments(source.parent / "data")}
    linked = [path for path in segments(source) if path.stat().st_ino in of_data]
    assert len(segments(source)) > 3
    assert bool(linked) is (request.node.callspec.params["backup"] == "linked")
    assert segments(source)[-1] not in linked, "one that is written to is a copy"


def test_a_backup_is_private_and_no_broker_serves_from_it(backup, capfd):
    source, _ = backup
    assert all(path.stat().st_mode & 0o077 == 0 for path in [source, *source.rglob("*")])
    with pytest.raises(AssertionError, match="no ready line"), broker(source):
        pass
    assert "is a backup, which stays as it is" in written(capfd)


def test_each_restored_directory_has_an_identity_of_its_own(backup, tmp_path, capfd):
    source, _ = backup
    made = [tmp_path / "one", tmp_path / "two"]
    for data in made:
        assert vibemq_command("restore", str(source), "--data-dir", str(data)).returncode == 0
    assert not (source / "identity").exists()
    one, two = ((data / "identity").read_text() for data in made)
    with broker(made[0], *SMALL):
        pass
    assert (made[0] / "identity").read_text() == one != two
    assert "identity" not in written(capfd), "nothing is missing"


def hinted(refused: subprocess.CompletedProcess[str]) -> list[str]:
    """The words of the command that a hint says to type."""
    (command,) = re.findall(r"`vibemq ([^`]+)`", refused.stderr.partition("hint: ")[2])
    return shlex.split(command)


def test_damage_is_named_and_restored_only_where_that_is_asked_for(backup, tmp_path):
    source, _ = backup
    copied = tmp_path / "backup"
    assert subprocess.run(["cp", "-r", str(source), str(copied)]).returncode == 0
    victim = [path for path in segments(copied) if path.stat().st_size > 100_000][1]
    with open(victim, "r+b") as file:
        file.seek(50_000)
        file.write(b"damaged")
    words = ("restore", str(copied), "--data-dir", str(tmp_path / "data"))
    refused = vibemq_command(*words)
    assert refused.returncode == 1 and victim.name in refused.stderr
    assert not (tmp_path / "data").exists()
    next_words = hinted(refused)
    assert "--damaged" in next_words and vibemq_command(*next_words).returncode == 0
    with broker(tmp_path / "data", *SMALL) as running, connect(running) as connection:
        behind = int(victim.name[:20]) + 2000
        assert numbers(connection, behind)[0] <= behind


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (None, "is no backup"),
        ({"format": 2, "version": "9.0"}, "restore it with VibeMQ 9.0 or newer"),
        ({"format": 1}, "cannot be read"),
    ],
)
def test_what_is_no_backup_or_a_newer_ones_is_refused(tmp_path, made, said):
    source = tmp_path / "source"
    source.mkdir()
    if made is not None:
        (source / "backup.json").write_text(json.dumps(made))
    refused = vibemq_command("restore", str(source), "--data-dir", str(tmp_path / "data"))
    assert refused.returncode == 1 and said in refused.stderr
    assert not (tmp_path / "data").exists()


def test_nothing_is_written_over(backup, tmp_path):
    source, _ = backup
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("kept")
    data = str(source.parent / "data")
    for words in (
        ("restore", str(source), "--data-dir", str(tmp_path / "full")),
        ("backup", str(tmp_path / "full"), "--data-dir", data),
        ("backup", f"{data}/inside", "--data-dir", data),
    ):
        refused = vibemq_command(*words)
        assert refused.returncode == 1 and ("is not empty" in refused.stderr or "lies in" in refused.stderr)
    assert os.listdir(tmp_path / "full") == ["mine"] and not os.path.exists(f"{data}/inside")
    next_words = hinted(vibemq_command("restore", str(source), "--data-dir", str(tmp_path / "full")))
    assert vibemq_command(*next_words).returncode == 0
    assert (tmp_path / "full-restored" / "meta.db").exists() and os.listdir(tmp_path / "full") == ["mine"]


class Meanwhile(backups.Copy):
    """Something happens while closed segments are copied."""

    def __init__(self, happens: Callable[[str], None]) -> None:
        super().__init__(links=False)
        self.happens = happens

    def file(self, source: str, target: str, *, is_final: bool) -> None:
        if is_final and source.endswith(".segment"):
            self.happens(source)
        super().file(source, target, is_final=is_final)


def test_a_segment_that_goes_to_the_object_store_meanwhile_leaves_its_stub(tmp_path):
    source, closed, active = tmp_path / "log", f"{0:020}", f"{7:020}"
    source.mkdir()
    (tmp_path / "copy").mkdir()
    (source / f"{closed}.segment").write_text("messages")
    (source / f"{active}.segment").write_text("more of them")
    (source / f"{active}.remote").write_text("since then it was closed with what came behind, and sent up")
    record = type("Record", (), {"directory": str(tmp_path / "copy")})
    with open(source / f"{active}.segment", "rb") as file:
        cut = backups._Cut(record, str(source), 7, 4, file.fileno(), True)
        copy = Meanwhile(lambda path: os.rename(path, path.replace(".segment", ".remote")))
        (source / f"{active}.segment").unlink()
        backups._copy_segments(cut, copy)
    assert sorted(os.listdir(tmp_path / "copy")) == [f"{closed}.remote", f"{active}.segment"]
    assert (tmp_path / "copy" / f"{active}.segment").read_text() == "more"


@pytest.mark.parametrize(("boot", "links"), [("this", 2), ("another", 1)])
def test_only_of_a_log_that_is_recovered_closed_segments_are_linked(tmp_path, boot, links):
    """Recovery may cut an older segment where it is, and the log goes on in that file."""
    source, target = tmp_path / "log", tmp_path / "copy"
    create(str(source))
    if boot == "another":
        write_in_another_boot(source)
    cut = backups._cut(type("Record", (), {"directory": str(target)}), str(source), backups.Copy(links=True))
    os.close(cut.file)
    older = f"{0:020}.segment"
    backups._copy_segments(cut._replace(segment=7, file=None), backups.Copy(links=True))
    assert (target / older).stat().st_nlink == links


def test_a_batch_is_committed_while_segments_are_copied_and_none_of_it_is_in_the_backup(tmp_path, monkeypatch):
    data, targets = str(tmp_path / "data"), ("events", "others")
    with broker(tmp_path / "data", *SMALL) as running, connect(running) as connection:
        for name in targets:
            connection.create(name)
        publisher = connection.publisher("events", "load")
        for first in range(0, BEFORE * BATCH, BATCH):
            published(publisher, first)
        before = staged(connection, "job", 0, *((name, [b"0"]) for name in targets))
        assert connection.commit_transactions("job", 0, "run", targets, [before])[0] is State.OK
        waiting = staged(connection, "job", 1, *((name, [b"1"]) for name in targets))
        commits = []

        def commit(path: str) -> None:
            if not commits:
                commits.append(connection.commit_transactions("job", 1, "run", targets, [waiting]))

        monkeypatch.setattr(backups, "Copy", lambda links: Meanwhile(commit))
        metadata = Metadata(metadata_path(data))
        backups.back_up(metadata, data, str(tmp_path / "backup"), links=False)
        metadata.close()
        assert commits == [(State.OK, 2, "")]
        assert rows(connection, "others") == [b"0", b"1"]
    monkeypatch.undo()
    backups.restore(str(tmp_path / "backup"), str(tmp_path / "restored"))
    with broker(tmp_path / "restored", *SMALL) as running, connect(running) as connection:
        assert (numbers(connection)[-1], rows(connection, "others")) == (0, [b"0"])
        state, *_ = connection.commit_transactions("job", 1, "run", targets, [waiting])
        assert state is State.CHANGED, "what was only staged is not in it"
        again = staged(connection, "job", 1, *((name, [b"1"]) for name in targets))
        assert connection.commit_transactions("job", 1, "run", targets, [again]) == (State.OK, 2, "")
        assert (rows(connection, "events")[-2:], rows(connection, "others")) == ([b"0", b"1"], [b"0", b"1"])


def test_what_was_decided_and_waits_to_be_appended_is_appended_by_who_goes_on_from_the_backup(tmp_path):
    data = str(tmp_path / "data")
    with broker(tmp_path / "data") as running, connect(running) as connection:
        connection.create("events")
        name, blocks = staged(connection, "job", 0, ("events", [b"0"]))
    metadata = Metadata(metadata_path(data))
    (waiting,), application = metadata.staging(), metadata.application("/", "job")
    target = metadata.find_stream("/", "events")
    with metadata.writing():  # and then the broker was killed
        metadata.put_application(replace(application, version=0))
        places, parts = [["events", target.incarnation, 1]], [[name, waiting.incarnation, blocks]]
        metadata.add_decision(application, 0, False, places, parts)
    backups.back_up(metadata, data, str(tmp_path / "backup"))
    metadata.close()
    backups.restore(str(tmp_path / "backup"), str(tmp_path / "restored"))
    with broker(tmp_path / "restored") as running, connect(running) as connection:
        wait_until(lambda: rows(connection, "events") == [b"0"], "it is appended")


def test_what_retention_takes_while_it_is_copied_leaves_no_hole(tmp_path, monkeypatch):
    with broker(tmp_path / "data", *SMALL) as running, connect(running) as connection:
        connection.create("events")
        publisher = connection.publisher("events", "load")
        for first in range(0, 2 * BEFORE * BATCH, BATCH):
            published(publisher, first)
    files = segments(tmp_path / "data")
    assert len(files) > 4

    def retention(path: str) -> None:
        if path == str(files[1]):
            for file in files[:2]:
                file.unlink()

    monkeypatch.setattr(backups, "Copy", lambda links: Meanwhile(retention))
    metadata = Metadata(metadata_path(str(tmp_path / "data")))
    backups.back_up(metadata, str(tmp_path / "data"), str(tmp_path / "backup"), links=False)
    metadata.close()
    monkeypatch.undo()
    backups.restore(str(tmp_path / "backup"), str(tmp_path / "restored"))
    with broker(tmp_path / "restored", *SMALL) as running, connect(running) as connection:
        assert numbers(connection) == list(range(int(files[2].name[:20]), 2 * BEFORE * BATCH))


def test_a_log_without_segments_here_has_all_else_in_the_backup(tmp_path):
    with broker(tmp_path / "data", *SMALL) as running, connect(running) as connection:
        connection.create("events")
        publisher = connection.publisher("events", "load")
        for first in range(0, BEFORE * BATCH, BATCH):
            published(publisher, first)
    metadata = Metadata(metadata_path(str(tmp_path / "data")))
    directory = metadata.find_stream("/", "events").directory
    held = Log(directory)
    firsts, end = [int(path.stem) for path in segments(tmp_path / "data")], held.stats().next_offset
    held.close()
    for first, after in pairwise([*firsts, end]):
        cold.write_stub(directory, cold.describe(directory, first, after, 1))
    for path in segments(tmp_path / "data"):
        path.unlink()
    Path(directory, f"{end:020}.tracking").write_bytes(b"the table behind the last stub")
    write_in_another_boot(directory)
    about = backups.back_up(metadata, str(tmp_path / "data"), str(tmp_path / "backup"), links=False)
    metadata.close()
    copied = tmp_path / "backup" / "streams" / os.path.basename(directory)
    kept = {name: found for name, found in contents(Path(directory)).items() if name != "tracking"}  # made anew
    assert about.streams == 1 and contents(copied) == kept
    assert len(cold.stubs(str(copied))) == len(firsts) > 2


def test_where_retention_takes_the_active_segment_before_it_is_held_the_next_one_is_copied(tmp_path, monkeypatch):
    look, ends = backups._make_durable, []
    with broker(tmp_path / "data", *SMALL) as running, connect(running) as connection:
        connection.create("events")
        publisher = connection.publisher("events", "load")
        published(publisher, 0)

        def retention(directory: str) -> tuple[int, int | None]:
            found = look(directory)
            ends.append(found)
            if len(ends) == 2:  # the first look is before logs are cut
                for first in range(BATCH, BEFORE * BATCH, BATCH):
                    published(publisher, first)
                for path in segments(tmp_path / "data")[:-1]:
                    path.unlink()
            return found

        monkeypatch.setattr(backups, "_make_durable", retention)
        metadata = Metadata(metadata_path(str(tmp_path / "data")))
        about = backups.back_up(metadata, str(tmp_path / "data"), str(tmp_path / "backup"))
        metadata.close()
        (left,) = segments(tmp_path / "data")
    assert about.streams == 1 and int(left.stem) > ends[1][0]
    backups.restore(str(tmp_path / "backup"), str(tmp_path / "restored"))
    with broker(tmp_path / "restored", *SMALL) as running, connect(running) as connection:
        assert numbers(connection) == list(range(int(left.stem), BEFORE * BATCH))


@pytest.mark.parametrize("links", [False, True])
def test_no_link_is_followed(tmp_path, links):
    (tmp_path / "secret").write_text("not ours")
    (tmp_path / "link").symlink_to("secret")
    with pytest.raises(OSError, match="symbolic links"):
        backups.Copy(links).file(str(tmp_path / "link"), str(tmp_path / "target"), is_final=True)
    assert os.stat(tmp_path / "secret").st_nlink == 1


def test_a_transaction_that_is_being_appended_is_waited_for_but_not_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(backups, "DECISION_S_MAX", 0.0)
    with open(tmp_path / backups.LOCK, "w", encoding="ascii") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with (
            pytest.raises(SetupError, match="a transaction has been appended for"),
            backups._no_decisions(str(tmp_path)),
        ):
            pass
    with backups._no_decisions(str(tmp_path)):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a backup for another account")
def test_what_root_makes_in_the_data_directory_is_the_accounts(tmp_path):
    os.chown(tmp_path, 12345, 12345)
    with backups._no_decisions(str(tmp_path)):
        assert (tmp_path / backups.LOCK).stat().st_uid == 12345
