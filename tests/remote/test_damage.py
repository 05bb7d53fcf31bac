# SPDX-License-Identifier: Apache-2.0
"""Objects that were deleted or damaged by hand, answers that are cut, and a disk that has lost its tail.

Who restores or reads is told which object it is, gets everything else, and never bytes that nobody wrote.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import pytest
from other_boot import write_in_another_boot
from power_cut import log_directories
from running import wait_until, written
from test_failures import bodies, connected, event, lost, serving, whole

from vibemq.errors import VibeMQError
from vibemq.remote.indexes import IndexMaker
from vibemq.remote.objects import Kind, opened, read_place, sealed, to_json
from vibemq.remote.restoring import HARMED

pytest.importorskip("obstore", reason="needs the extra remote")
pytestmark = pytest.mark.timeout(300)

COUNT = 1200
PADDING = b" " * 500


def padded(number: int) -> bytes:
    return event(number) + PADDING


@pytest.fixture
def history(tmp_path, faulty):
    """A bucket with three closed segments of a stream, a stream that is in write-ahead objects, and no broker."""
    with (
        lost(tmp_path / "data", faulty, store__segment_size_bytes=150_000) as running,
        connected(running) as connection,
    ):
        connection.create("events")
        with connection.publisher("events", "ref") as publisher:
            for at in range(0, COUNT, 50):
                publisher.publish([padded(number) for number in range(at, at + 50)])
                publisher.flush()
        for number in range(3):
            connection.create(f"other{number}")
            with connection.publisher(f"other{number}", "ref") as publisher:
                publisher.publish([event(at) for at in range(10)])
        wait_until(lambda: len(segments(faulty)) >= 3, "closed segments are in the store")
    return faulty


def segments(store, suffix="segment"):
    return [key for key in store.keys("streams/") if key.endswith(suffix)]


def flip(store, key):
    body = bytearray(store.read(key))
    body[len(body) // 3] ^= 0xFF
    store.overwrite(key, bytes(body))


def test_an_index_made_of_a_segments_bytes_is_the_one_that_was_written(history):
    for key in segments(history):
        place, _ = read_place(key)
        body = opened(key, Kind.SEGMENT, history.read(key))
        index = opened(place.key("index"), Kind.INDEX, history.read(place.key("index")))
        for step in (len(body), 1000):
            maker = IndexMaker(place)
            assert all(maker.take(at, body[at : at + step]) for at in range(0, len(body), step))
            assert maker.body == index


def read_what_can_be(connection, wanted=frozenset(range(COUNT))):
    """From every place on; each is what was written. Only what is wanted is waited for longer than a moment."""
    found: set[int] = set()
    for first in range(0, COUNT, 50):
        patience_s = 1.5 if wanted.isdisjoint(range(first, first + 50)) else None
        with contextlib.suppress(VibeMQError):
            for chunk in connection.read_chunks("events", first, first + 50, timeout_s=patience_s):
                for offset, body in chunk.messages():
                    assert body == padded(offset)
                    found.add(offset)
    return found


@pytest.mark.parametrize("suffix", ["segment", "index"])
@pytest.mark.parametrize("harm", ["deleted", "damaged", "cut"])
def test_what_is_left_is_served_and_what_is_harmed_is_named(tmp_path, history, capfd, suffix, harm):
    key = segments(history, suffix)[1]
    if harm == "deleted":
        history.delete(key)
    elif harm == "damaged":
        flip(history, key)
    else:
        body = history.read(key)
        history.overwrite(key, body[: len(body) * 2 // 3])
    first, after = (int(word) for word in key.rpartition("/")[2].split("-")[:2])
    with serving(tmp_path / "other", history) as running, connected(running, 10) as connection:
        for number in range(3):
            assert whole(connection, 10, f"other{number}") == 10
        # A log has no holes: where nothing says that a segment ever was, it begins behind it.
        lost_from = 0 if (suffix, harm) == ("segment", "deleted") else first
        lost = set(range(lost_from, after)) if suffix == "segment" else set()
        if (suffix, harm) == ("segment", "cut"):
            lost = set(range(first + (after - first) * 2 // 3 - 50, after))  # the chunks behind the cut
        wanted = set(range(COUNT)) - lost
        assert wanted <= read_what_can_be(connection, wanted), "nothing else is missing"
        with connection.publisher("events", "ref") as publisher:
            assert publisher.next_id == COUNT + 1
            publisher.publish([b"more"])
    said = written(capfd)
    if (suffix, harm) == ("segment", "deleted"):
        assert f"offsets {first} to {after - 1} are missing in the bucket" in said
    else:
        incarnation = key.split("/")[1]
        assert key in said or f"{incarnation}/{first:020}.segment" in said


@pytest.mark.parametrize("harm", ["damaged", "cut", "version"])
def test_a_damaged_format_object_is_named_at_once_and_the_bucket_is_not_changed(tmp_path, history, capfd, harm):
    body = bytearray(history.read("format"))
    if harm == "version":
        body[-12] ^= 1  # its check does not say so: no newer vibemq wrote it
    elif harm == "damaged":
        body[3] ^= 1
    before = {key: history.read(key) for key in history.keys("")}
    history.overwrite("format", bytes(body[:-5] if harm == "cut" else body))
    with pytest.raises(AssertionError, match="no ready line"), serving(tmp_path / "other", history):
        pass
    said = written(capfd)
    assert "object format in the bucket is damaged" in said and "put the object `format` back" in said
    assert "does not answer yet" not in said and "newer" not in said
    history.overwrite("format", before["format"])
    assert {key: history.read(key) for key in history.keys("")} == before
    with serving(tmp_path / "third", history) as running, connected(running) as connection:
        assert whole(connection, 10, "other2") == 10


def test_a_damaged_write_ahead_object_is_named_and_takes_nothing_else_with_it(tmp_path, history, capfd):
    with serving(tmp_path / "other", history) as running, connected(running) as connection:
        assert whole(connection, 10, "other2") == 10
    key = max((key for key in history.keys("wal/") if b"event 9" in history.read(key)), key=len)
    flip(history, key)
    with serving(tmp_path / "third", history) as running, connected(running) as connection:
        there = [bodies(connection, f"other{number}") for number in range(3)]
        assert all(found == [event(at) for at in range(len(found))] for found in there)
        assert read_what_can_be(connection) == set(range(COUNT))
    assert key in written(capfd)


def test_what_lies_behind_a_damaged_object_is_told_of_and_can_be_had_back_with_it(tmp_path, history, capfd):
    with (
        lost(tmp_path / "other", history) as running,
        connected(running) as connection,
        connection.publisher("other0", "ref") as publisher,
    ):
        for number in range(10, 14):
            publisher.publish([event(number)])
            publisher.flush()
    key = max(key for key in history.keys("wal/") if event(11) in history.read(key))
    whole_object = history.read(key)
    flip(history, key)
    with lost(tmp_path / "third", history) as running, connected(running) as connection:
        assert bodies(connection, "other0") == [event(number) for number in range(11)]
        said = written(capfd)
        assert key in said and "stream 'other0' ends at offset 11:" in said
    assert "other0" in (tmp_path / "third" / HARMED).read_text()
    history.overwrite(key, whole_object)
    with serving(tmp_path / "fourth", history) as running, connected(running) as connection:
        assert whole(connection, 14, "other0") == 14


def test_objects_behind_one_that_was_never_created_take_nothing_from_what_came_after_them(tmp_path, faulty, capfd):
    """The machine is lost twice: before an object arrived whose followers had, and again soon after."""
    small = {"store__segment_size_bytes": 150_000, "remote__batch_size_bytes": 65_536}
    with lost(tmp_path / "first", faulty, **small) as running, connected(running) as connection:
        connection.create("events")
        publisher = connection.publisher("events", "ref")
        publisher.publish([padded(number) for number in range(50)])
        publisher.flush()
        before = len(faulty.keys("wal/"))
        late = faulty.hang("PUT", "wal/", times=1)
        publisher.publish([padded(number) for number in range(50, 60)])
        wait_until(lambda: late.met == 1, "an object that does not arrive")
        for at in range(60, 3060, 50):
            publisher.publish([padded(number) for number in range(at, at + 50)])
        wait_until(lambda: len(faulty.keys("wal/")) >= before + 4, "others arrive")
    faulty.up()
    with lost(tmp_path / "second", faulty, **small) as running, connected(running) as connection:
        assert bodies(connection) == [padded(number) for number in range(50)]
        assert "and were not confirmed: an object before them was never created" in written(capfd)
        assert not (tmp_path / "second" / HARMED).exists()
        publisher = connection.publisher("events", "ref")
        for at in range(50, 800, 30):
            publisher.publish([padded(number) + b" again" for number in range(at, at + 30)])
        publisher.flush()
    with serving(tmp_path / "third", faulty, **small) as running, connected(running) as connection:
        there = bodies(connection)
        assert there == [padded(number) + b" again" * (number >= 50) for number in range(800)]
        with connection.publisher("events", "ref") as publisher:
            assert publisher.next_id == len(there) + 1


def test_a_missing_change_of_the_metadata_is_named_and_nothing_is_served_without_it(tmp_path, history, capfd):
    changes = [key for key in history.keys("meta/") if "snapshot" not in key]
    history.delete(changes[-2])
    with pytest.raises(AssertionError, match="no ready line"), serving(tmp_path / "other", history):
        pass
    assert changes[-2] in written(capfd)


EACH = pytest.mark.skipif(os.environ.get("VIBEMQ_DAMAGE") != "all", reason="`make damage` starts these brokers")
HARM = pytest.mark.parametrize("harm", ["damaged", "deleted"])


def harmed(store, key, harm):
    if harm == "deleted":
        store.delete(key)
    else:
        flip(store, key)


@EACH
@HARM
def test_without_its_only_snapshot_nothing_of_the_metadata_is_made_up(tmp_path, history, capfd, harm):
    [key] = [key for key in history.keys("meta/") if "snapshot" in key]
    harmed(history, key, harm)
    with pytest.raises(AssertionError, match="no ready line"), serving(tmp_path / "other", history):
        pass
    assert (key if harm == "damaged" else "no snapshot of the metadata") in written(capfd)


@EACH
@HARM
def test_an_epochs_object_keeps_no_other_disk_from_a_restore(tmp_path, history, capfd, harm):
    key = max(key for key in history.keys("brokers/") if key.endswith(".sealed"))
    harmed(history, key, harm)
    if harm == "damaged":
        with pytest.raises(AssertionError, match="no ready line"), serving(tmp_path / "data", history):
            pass
        assert key in written(capfd)
    with serving(tmp_path / "other", history) as running, connected(running) as connection:
        assert read_what_can_be(connection) == set(range(COUNT))


@EACH
def test_a_damaged_list_of_retired_objects_is_named_and_deletes_nothing(tmp_path, history, capfd):
    key = "retired/vibemq/00000001-0123456789abcdef"
    history.overwrite(key, sealed(key, Kind.RETIRED, to_json(keys=segments(history))))
    flip(history, key)
    before = segments(history)
    with serving(tmp_path / "other", history) as running, connected(running) as connection:
        assert read_what_can_be(connection) == set(range(COUNT))
    assert key in written(capfd) and set(before) <= set(segments(history))


@EACH
@HARM
def test_a_table_of_publishing_ids_costs_no_message(tmp_path, history, capfd, harm):
    key = max(segments(history, "tracking"))
    harmed(history, key, harm)
    with serving(tmp_path / "other", history) as running, connected(running) as connection:
        assert read_what_can_be(connection) == set(range(COUNT))
        with connection.publisher("events", "ref") as publisher:
            assert publisher.next_id == COUNT + 1, "its last message lies behind the table"
    assert key in written(capfd)


def test_answers_that_are_cut_are_read_again_by_who_reads_what_is_cold(tmp_path, history):
    with serving(tmp_path / "other", history, remote__local_size_max_bytes=1) as running, connected(running) as reader:
        for size in (0, 1, 1000, 100_000):
            history.truncate(size, path="streams/", times=2)
        assert bodies(reader) == [padded(number) for number in range(COUNT)]


def test_a_closed_segment_that_is_damaged_before_it_goes_up_is_made_whole_while_the_broker_runs(
    tmp_path, faulty, capfd
):
    data = tmp_path / "data"
    away = faulty.answer(503, "PUT", "streams/")
    with serving(data, faulty, store__segment_size_bytes=150_000) as running, connected(running) as connection:
        connection.create("events")
        with connection.publisher("events", "ref") as publisher:
            for at in range(0, COUNT, 50):
                publisher.publish([padded(number) for number in range(at, at + 50)])
                publisher.flush()
        [directory] = log_directories(data)
        wait_until(lambda: away.met > 0, "closed segments would go up")
        segment = sorted(directory.glob("*.segment"))[1]
        whole_segment = segment.read_bytes()
        harmed = bytearray(whole_segment)
        harmed[len(harmed) // 2] ^= 1
        with segment.open("r+b") as file:  # in place: it is open elsewhere
            file.write(harmed)
        faulty.up()
        wait_until(lambda: len(segments(faulty)) >= 3, "closed segments are in the store")
        assert segment.read_bytes() == whole_segment
        assert bodies(connection) == [padded(number) for number in range(COUNT)]
    assert "stream 'events': damage on this disk is repaired" in written(capfd)


def other_boot(data: Path) -> list[Path]:
    """As if the machine had been started since; the streams' directories."""
    found = log_directories(data)
    for directory in found:
        write_in_another_boot(directory)
    return found


@pytest.mark.parametrize("harm", ["cut", "zeros", "gone", "no stubs"])
def test_what_a_power_cut_takes_of_the_disk_comes_back_from_the_store(tmp_path, history, harm):
    data = tmp_path / "data"
    for directory in other_boot(data):
        files = sorted(directory.glob("*.segment"))
        if harm == "cut":
            os.truncate(files[-1], 64)
        elif harm == "zeros":
            size = files[-1].stat().st_size
            os.truncate(files[-1], size // 2)
            os.truncate(files[-1], size)
        elif harm == "gone":
            shutil.rmtree(directory)
        else:
            for stub in directory.glob("*.remote"):
                stub.unlink()
            for file in files[:2]:
                file.unlink()
    with serving(data, history) as running, connected(running) as connection:
        assert read_what_can_be(connection) == set(range(COUNT))
        for number in range(3):
            assert whole(connection, 10, f"other{number}") == 10
        with connection.publisher("events", "ref") as publisher:
            assert publisher.next_id == COUNT + 1
            publisher.publish([padded(COUNT)])
        assert bodies(connection, "events", COUNT) == [padded(COUNT)]


def test_who_is_killed_while_it_restores_begins_again(tmp_path, history):
    data = tmp_path / "other"
    late = history.hang("GET", "wal/")
    running = serving(data, history)
    started = _start_in_vain(running, lambda: late.met > 0)
    assert started, "it was killed in the middle"
    history.up()
    with serving(data, history) as running, connected(running) as connection:
        assert read_what_can_be(connection) == set(range(COUNT))
        for number in range(3):
            assert whole(connection, 10, f"other{number}") == 10


def _start_in_vain(context, is_enough) -> bool:
    """Start a broker and kill its supervisor once that is so; its other processes end by themselves."""
    import threading

    from running import Server

    made: list[Server] = []
    plain = Server.__init__

    def init(self, *args, **kwargs):
        plain(self, *args, **kwargs)
        made.append(self)

    def kill() -> None:
        wait_until(is_enough, "it restores")
        made[0].kill()

    Server.__init__ = init  # type: ignore[method-assign]
    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with pytest.raises(AssertionError, match="no ready line"), context:
            pass
    finally:
        Server.__init__ = plain  # type: ignore[method-assign]
        thread.join()
    return bool(made)
