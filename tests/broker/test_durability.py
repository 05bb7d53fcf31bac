# SPDX-License-Identifier: Apache-2.0
"""What a confirm is worth: syncs, full disks, damaged and cold files, and a shutdown in the midst of work."""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from peers.streams import DEADLINE_S, Peer, connected, publish_frame
from running import broker, wait_until, written

from vibemq.client.streams import StreamsConnection
from vibemq.protocols.streams import spec
from vibemq.protocols.streams.spec import Code, Key, OffsetType

MIB = 1 << 20
TMPFS_BYTES = 24 * MIB
MESSAGE = bytes(range(250)) * 4
GRACEFUL_S_MAX = 15.0  # 30 are promised, and nobody here makes it wait


def segments(folder):
    return sorted(Path(folder).glob("streams/*/*.segment"))


def payloads(running, stream, start=0):
    with StreamsConnection.connect(running.host, running.port) as client:
        return [data for chunk in client.read_chunks(stream, start) for _, data in chunk.messages()]


# ---- disk durability ----


def test_with_durability_disk_everything_is_confirmed_in_order(tmp_path):
    with broker(tmp_path, "--durability", "disk") as running, connected(running) as peer:
        peer.create("s")
        peer.declare("s")
        for at in range(200):
            peer.publish([(10 * at + i, MESSAGE) for i in range(10)])
        assert peer.confirmed(2000) == list(range(2000))


def test_a_publisher_that_leaves_before_its_sync_takes_its_count_along(tmp_path):
    """Else too much would seem unconfirmed in the end, and the connection would not be read any more."""
    flags = ("--durability", "disk", "--set", "streams.unconfirmed_max=20")
    with broker(tmp_path, *flags, workers=1) as running, connected(running) as peer:
        peer.create("s")
        for at in range(100):
            peer.declare("s", 1)
            peer.publish([(at, b"x")], 1)
            for command in (peer.command(Key.METADATA, streams=[]), peer.command(Key.DELETE_PUBLISHER, publisher_id=1)):
                peer.send(command)
                key = int.from_bytes(command[4:6], "big") | spec.RESPONSE_BIT
                before, _ = peer.until(key)
                assert {frame.key for frame in before} <= {Key.PUBLISH_CONFIRM}
        peer.declare("s", 1)
        peer.publish([(1, b"last")], 1)
        assert peer.until(Key.PUBLISH_CONFIRM)[1].publishing_ids == [1]


def test_more_than_may_wait_for_a_sync_is_read_later_and_confirmed(tmp_path):
    flags = ("--durability", "disk", "--set", "streams.unconfirmed_max=100")
    with broker(tmp_path, *flags, workers=1) as running, connected(running) as peer:
        peer.create("s")
        peer.create("t")
        peer.declare("s", 1)
        peer.declare("t", 2)
        count = 20_000
        peer.socket.setblocking(True)
        sent = b"".join(
            publish_frame([(10 * at + i, bytes(50)) for i in range(10)], publisher_id)
            for at in range(count // 10)
            for publisher_id in (1, 2)
        )
        ids = {1: [], 2: []}
        peer.socket.settimeout(DEADLINE_S)
        view = memoryview(sent)
        while view or min(map(len, ids.values())) < count:
            if view:
                peer.socket.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    view = view[peer.socket.send(view) :]
                peer.socket.settimeout(DEADLINE_S)
            while (not view and min(map(len, ids.values())) < count) or peer.has_frame():
                confirm = peer.expect(Key.PUBLISH_CONFIRM)
                ids[confirm.publisher_id] += confirm.publishing_ids
        assert ids == {1: list(range(count)), 2: list(range(count))}


# ---- a full disk ----


@pytest.fixture
def small_disk(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("a small file system of its own needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "vibemq-test", str(folder)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def publish_until_refused(peer):
    """The ids that were confirmed."""
    confirmed, refused, publishing_id = [], [], 0
    while not refused:
        assert publishing_id * len(MESSAGE) < 2 * TMPFS_BYTES, "more was taken than there is room for"
        peer.publish([(publishing_id + i, MESSAGE) for i in range(100)])
        publishing_id += 100
        while len(confirmed) + len(refused) < publishing_id:
            frame = peer.next_frame()
            if frame.key == Key.PUBLISH_ERROR:
                refused += [error.publishing_id for error in frame.decoded().errors]
                assert {error.code for error in frame.decoded().errors} == {Code.INTERNAL_ERROR}
            else:
                confirmed += frame.decoded().publishing_ids
    return confirmed


@pytest.mark.parametrize("durability", ["os", "disk"])
def test_a_full_disk_refuses_publishers_serves_readers_and_recovers_once_there_is_room(small_disk, capfd, durability):
    ballast = small_disk / "ballast"
    to_the_end = ("--set", "store.disk_free_min_bytes=0")  # or publishers would have to wait before it is full
    with broker(small_disk / "data", "--durability", durability, *to_the_end) as running, connected(running) as peer:
        peer.create("s")
        peer.declare("s")
        ballast.write_bytes(bytes(8 * MIB))
        confirmed = publish_until_refused(peer)
        assert payloads(running, "s") == [MESSAGE] * len(confirmed)
        peer.publish([(10**6, MESSAGE * 100)])
        assert peer.expect(Key.PUBLISH_ERROR).errors == [(10**6, Code.INTERNAL_ERROR)]
        with connected(running) as other:
            assert other.code(Key.CREATE, stream="no room", arguments={}) in (Code.OK, Code.INTERNAL_ERROR)
        ballast.unlink()
        peer.publish([(10**6 + 1, b"room again")])
        assert peer.confirmed(1) == [10**6 + 1]
        assert payloads(running, "s") == [MESSAGE] * len(confirmed) + [b"room again"]
        with connected(running) as other:
            other.create("room for more")
            other.store("room for more", [b"x"])
        assert len(running.worker_pids()) == 2
    assert "No space left on device" in capfd.readouterr().err or "DISK_FULL" in capfd.readouterr().err
    with broker(small_disk / "data") as running:
        assert payloads(running, "s") == [MESSAGE] * len(confirmed) + [b"room again"]


# ---- a graceful end ----


def is_refused(running) -> bool:
    try:
        Peer(running).socket.close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("durability", ["os", "disk"])
def test_a_shutdown_confirms_what_it_stored_ends_connections_and_exits_with_0(tmp_path, durability):
    with contextlib.ExitStack() as stack:
        confirmed = []
        with broker(tmp_path, "--durability", durability) as running:
            silent = stack.enter_context(connected(running))
            unread = stack.enter_context(connected(running, receive_buffer_bytes=4096))
            half = stack.enter_context(Peer(running))
            peer = stack.enter_context(connected(running))
            peer.create("s")
            peer.declare("s")
            unread.subscribe("s", credit=1000)
            frame = publish_frame([(at, MESSAGE) for at in range(100)])
            for _ in range(50):
                peer.send(frame)
            confirmed += peer.confirmed(100)
            running.process.send_signal(signal.SIGTERM)
            with pytest.raises(
                ConnectionError, match=", 0 bytes of a frame before"
            ):  # no Close: that is final for clients
                while True:
                    confirmed += peer.expect(Key.PUBLISH_CONFIRM).publishing_ids
            peer.socket.close()
            assert silent.rest() == half.rest() == b""
            silent.socket.close()
            # A process that was forked a moment ago lets go of its copies of the listeners in its own time.
            wait_until(lambda: is_refused(running), "newcomers are refused")
            unread.socket.close()
            assert running.process.wait(GRACEFUL_S_MAX) == 0
    with broker(tmp_path) as running:
        assert len(payloads(running, "s")) == len(confirmed), "stored, but not confirmed before the end"


@pytest.mark.parametrize("sending", [False, True])
def test_clients_that_do_not_end_their_side_do_not_keep_the_broker(tmp_path, sending):
    with broker(tmp_path, "--shutdown-timeout", "3600") as running, connected(running) as peer:
        peer.create("s")
        peer.declare("s")
        running.process.send_signal(signal.SIGTERM)
        assert peer.rest() == b""
        with contextlib.suppress(ConnectionError):
            while sending:
                peer.publish([(1, MESSAGE)])
        assert running.process.wait(GRACEFUL_S_MAX) == 0


# ---- damage ----


def damage(path, position):
    """One bit, in place, as a disk or a memory would."""
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 0x10]))


def marked(running, stream, count):
    """Chunks whose messages say which one they are."""
    with connected(running) as peer:
        peer.create(stream)
        for at in range(count):
            peer.store(stream, [b"chunk %03d, message %d " % (at, i) + bytes(100) for i in range(10)])


@pytest.mark.parametrize("while_running", [False, True], ids=["stopped", "running"])
@pytest.mark.parametrize("where", ["message", "length", "header"])
def test_a_flipped_bit_is_reported_with_its_place_and_costs_that_chunk_only(tmp_path, capfd, while_running, where):
    with broker(tmp_path) as running:
        marked(running, "s", 20)
        [path] = segments(tmp_path)
        content = path.read_bytes()
        first = content.index(b"chunk 007, message 0")
        if while_running:
            damage(path, {"message": first + 50, "length": first - 3, "header": first - 4 - 48 + 37}[where])
            left = payloads(running, "s")
    if not while_running:
        damage(path, {"message": first + 50, "length": first - 3, "header": first - 4 - 48 + 37}[where])
        with broker(tmp_path) as running:
            left = payloads(running, "s")
    assert left == [b"chunk %03d, message %d " % (at, i) + bytes(100) for at in range(20) if at != 7 for i in range(10)]
    said = [line for line in capfd.readouterr().err.splitlines() if "damaged" in line]
    assert said, "nothing was reported"
    assert all(str(path) in line for line in said), said
    assert any(re.search(rf"\b{first - 4 - 48}\b", line) for line in said), f"not at {first - 52}: {said}"


def test_publishing_goes_on_behind_a_damaged_end(tmp_path):
    with broker(tmp_path) as running:
        marked(running, "s", 3)
        [path] = segments(tmp_path)
        damage(path, path.read_bytes().index(b"chunk 002, message 5"))
        with connected(running) as peer:
            peer.store("s", [b"behind"])
        left = payloads(running, "s")
        assert [data[:9] for data in left] == [b"chunk 000"] * 10 + [b"chunk 001"] * 10 + [b"behind"]
    with broker(tmp_path) as running:
        assert payloads(running, "s") == left


# ---- cold files ----


def forget(path, start, size):
    """Drop these bytes of a file from memory; only what is on the disk can be dropped."""
    with open(path, "rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), start, size, os.POSIX_FADV_DONTNEED)


@pytest.mark.parametrize("size", [100, 20_000, 900_000])
@pytest.mark.parametrize("holes", ["whole file", "every second page", "tails"])
def test_a_backlog_is_delivered_though_it_or_parts_of_it_are_not_in_memory(tmp_path, size, holes):
    count = 4 * MIB // size
    messages = [bytes([at & 255]) * size for at in range(count)]
    with broker(tmp_path) as running:
        with StreamsConnection.connect(running.host, running.port) as client:
            client.create("s")
            with client.publisher("s") as publisher:
                publisher.publish(messages)
        [path] = segments(tmp_path)
        end = path.stat().st_size
        page = os.sysconf("SC_PAGESIZE")
        match holes:
            case "whole file":
                forget(path, 0, 0)
            case "every second page":
                for start in range(page, end, 2 * page):
                    forget(path, start, page)
            case "tails":
                for start in range(0, end, MIB):
                    forget(path, start + MIB // 2, MIB // 2)
        assert payloads(running, "s") == messages
        with connected(running) as peer:
            peer.subscribe("s", at=OffsetType.LAST)
            assert peer.chunk().data.endswith(messages[-1])


def test_a_file_that_ends_too_early_costs_its_last_chunk(tmp_path, capfd):
    with broker(tmp_path) as running:
        marked(running, "s", 5)
        [path] = segments(tmp_path)
        os.truncate(path, path.stat().st_size - 100)
        with connected(running) as peer:
            peer.subscribe("s", credit=100)
            assert [peer.chunk().chunk_id for _ in range(4)] == [0, 10, 20, 30]
            wait_until(lambda: "damaged" in written(capfd), "a report")
            assert len(running.worker_pids()) == 2
            peer.ask(Key.METADATA, streams=[])
