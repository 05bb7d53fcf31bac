# SPDX-License-Identifier: Apache-2.0
"""Frames that have not come whole: what a worker keeps of them is bounded, and whoever goes on gets through."""

import contextlib
import select
import threading
import time

import pytest
from full_disk import ToldFree
from peers.streams import DEADLINE_S, Peer, connected, publish_frame
from running import broker, resident_bytes

from vibemq.client import connect
from vibemq.errors import ServerFailed
from vibemq.protocols.streams import codec
from vibemq.protocols.streams.spec import Code, Key

MIB = 1 << 20
LIMIT_BYTES = 16 * MIB
FRAME_BYTES = 8 * MIB  # the largest by default: only one finds room at a time
SHARE_BYTES = 16 * 1024 + 4096  # of a connection, and what it reads at least beside it
MANY = 200


@pytest.fixture
def calm(tmp_path):
    """One worker, whose memory can be looked at."""
    with broker(tmp_path / "calm", "--set", f"server.unfinished_input_max_bytes={LIMIT_BYTES}", workers=1) as running:
        yield running


def resident(running):
    (pid,) = running.worker_pids()
    return resident_bytes(pid)


def frame(size):
    """Publish of one message, so many bytes in all."""
    whole = publish_frame([(1, bytes(size - 25))])
    assert len(whole) == size
    return whole


def send_what_is_taken(peer, data):
    """Until neither side's socket takes more for a while; gives what was not sent."""
    peer.socket.setblocking(False)
    while data and select.select([], [peer.socket], [], 0.05)[1]:
        with contextlib.suppress(BlockingIOError):
            data = data[peer.socket.send(data) :]
    peer.socket.settimeout(DEADLINE_S)
    return data


@pytest.fixture
def crowd(calm):
    """Connections that each begin a frame, send as much of it as is taken but for its end, and then nothing more."""
    peers = [connected(calm) for _ in range(MANY)]
    peers[0].create("s")
    begun = frame(FRAME_BYTES)[:-1]
    for peer in peers:
        send_what_is_taken(peer, begun)
    yield peers
    for peer in peers:
        peer.socket.close()


def test_what_many_begun_frames_take_is_bounded(calm, crowd, tmp_path):
    """Were all read that peers have sent, it would be more than a gigabyte."""
    most = LIMIT_BYTES + FRAME_BYTES + MIB + MANY * SHARE_BYTES
    with broker(tmp_path / "idle", workers=1) as idle:  # to which nobody has come
        grown = resident(calm) - resident(idle)
    print(f"the worker has {grown / MIB:.1f} MiB more, {most / MIB:.1f} MiB allowed")
    assert grown < most


def test_others_go_on_while_many_hold_begun_frames(calm, crowd):
    """Small frames need no room, and those that clients make by default have room of their own."""
    with connected(calm) as peer:
        peer.store("s", [b"small"] * 100)
        peer.declare("s")
        for _ in range(20):
            peer.send(frame(MIB))
            assert peer.confirmed(1) == [1]


def test_who_keeps_room_and_does_not_go_on_is_closed_when_somebody_waits(calm):
    with connected(calm) as large, connected(calm) as first, connected(calm) as second:
        large.create("s")
        large.declare("s")
        for peer in (first, second):
            send_what_is_taken(peer, frame(FRAME_BYTES)[:-1])
        large.send(frame(FRAME_BYTES))
        assert large.confirmed(1) == [1]
        assert first.rest() == b"" or second.rest() == b""


def test_who_is_not_read_during_an_alarm_does_not_keep_the_room_of_others(tmp_path, monkeypatch):
    told = ToldFree(tmp_path, monkeypatch, "1000000")
    flags = ("--set", f"server.unfinished_input_max_bytes={LIMIT_BYTES}", "--set", "store.disk_free_min_bytes=1000000")
    with broker(tmp_path / "data", *flags, workers=1) as running, contextlib.ExitStack() as stack:
        peers = [stack.enter_context(connected(running)) for _ in range(6)]
        peers[0].create("s")
        for peer in peers:
            peer.declare("s")
            send_what_is_taken(peer, frame(MIB)[:-1000])
        client = stack.enter_context(connect(f"vibemq://{running.host}:{running.native_port}"))
        told.say("999999")
        deadline = time.monotonic() + DEADLINE_S
        with pytest.raises(ServerFailed, match="disk alarm"):
            while time.monotonic() < deadline:
                client.publish("q", 1)
        with pytest.raises(ServerFailed, match="disk alarm"):  # which it hears when its frame has been read
            client.publish("q", "x" * 900_000, timeout_s=DEADLINE_S)
        told.say("1000000")
        for peer in peers:
            peer.send(frame(MIB)[-1000:])
            assert peer.confirmed(1) == [1]


def test_large_frames_of_many_at_once_all_come_through(calm):
    """Together they are many times the limit; each waits for its turn, and nobody is closed."""
    with connected(calm) as maker:
        maker.create("s")
    whole = frame(2 * MIB)
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(connected(calm)) for _ in range(40)]
        for peer in peers:
            peer.declare("s")
        threads = [threading.Thread(target=peer.send, args=(whole, whole)) for peer in peers]
        for thread in threads:
            thread.start()
        for peer in peers:
            assert len(peer.confirmed(2)) == 2
        for thread in threads:
            thread.join()


def test_a_frame_larger_than_the_limit_comes_through_alone(tmp_path):
    options = ("--set", f"server.unfinished_input_max_bytes={LIMIT_BYTES}", "--set", "streams.frame_max_bytes=50000000")
    with broker(tmp_path, *options, workers=1) as running, connected(running, frame_max=0) as peer:
        peer.create("s")
        peer.declare("s")
        for _ in range(2):
            peer.send(frame(40_000_000))
            assert peer.confirmed(1) == [1]


def test_room_comes_back_from_connections_that_end(calm):
    with connected(calm) as maker:
        maker.create("s")
    for _ in range(3):
        peers = [connected(calm) for _ in range(4)]
        for peer in peers:
            send_what_is_taken(peer, frame(FRAME_BYTES)[:-1])
        for peer in peers:  # two hold promises, two wait for one
            peer.socket.close()
    with connected(calm) as peer:
        peer.declare("s")
        peer.send(frame(FRAME_BYTES))
        assert peer.confirmed(1) == [1]


def test_a_frame_that_comes_in_drops_is_put_together(calm):
    whole = frame(3 * MIB)
    with connected(calm) as peer:
        peer.create("s")
        peer.declare("s")
        for at in range(0, len(whole), 50_000):
            peer.send(whole[at : at + 50_000])
            if at % 1_000_000 == 0:  # a little later, so that it is read in parts
                with connected(calm) as other:
                    other.ask(Key.METADATA, streams=[])
        assert peer.confirmed(1) == [1]
        peer.subscribe("s")
        assert peer.chunk().data_size == len(whole) - 21


def log_in_badly(running, stack, junk=b""):
    """A wrong password, and `junk` behind it, which comes while the password is checked."""
    peer = stack.enter_context(Peer(running))
    assert peer.code(Key.PEER_PROPERTIES, properties={}) == Code.OK
    peer.ask(Key.SASL_HANDSHAKE)
    login = codec.encode_request(Key.SASL_AUTHENTICATE, 3, mechanism="PLAIN", data=b"\0nobody\0wrong")
    send_what_is_taken(peer, login + junk)
    return peer


def test_before_login_a_connection_keeps_no_more_than_its_share(tmp_path):
    """What comes behind a password that is being checked is hardly read."""
    with broker(tmp_path, workers=1) as running, contextlib.ExitStack() as stack:
        for peer in [log_in_badly(running, stack) for _ in range(8)]:
            peer.rest()  # the memory that checking passwords takes is there now
        before = resident(running)
        for _ in range(MANY):
            log_in_badly(running, stack, bytes(MIB))
        assert resident(running) - before < MANY * SHARE_BYTES + 16 * MIB


def test_the_size_of_a_frame_that_a_client_asked_for_holds_below_one_mib_only(calm):
    with connected(calm, frame_max=MIB) as peer:  # as clients ask by default, and some do not keep to it
        peer.create("s")
        peer.declare("s")
        peer.send(frame(2 * MIB))
        assert peer.confirmed(1) == [1]
        peer.send((FRAME_BYTES + 1).to_bytes(4, "big"))
        assert peer.expect(Key.CLOSE).code == Code.FRAME_TOO_LARGE
    with connected(calm, frame_max=MIB - 1) as peer:
        peer.send((MIB).to_bytes(4, "big"))
        assert peer.expect(Key.CLOSE).code == Code.FRAME_TOO_LARGE
