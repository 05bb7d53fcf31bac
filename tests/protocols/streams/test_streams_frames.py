# SPDX-License-Identifier: Apache-2.0
"""After Open: what is wrong gets Close with its code, what is slow or unusual works, and heartbeats go both ways."""

import sqlite3
import time
from contextlib import closing

import pytest
from peers.streams import Peer, connected, publish_frame
from running import broker

from vibemq.protocols.streams import codec, spec
from vibemq.protocols.streams.spec import Code, Key
from vibemq.server.datadir import metadata_path

HEARTBEAT = bytes.fromhex("0000000400170001")
CLOSE_UNKNOWN = bytes.fromhex("000000190016000100000001000d000d756e6b6e6f776e206672616d65")
CLOSE_TOO_LARGE = bytes.fromhex("0000001b0016000100000001000e000f6672616d6520746f6f206c61726765")
CLOSE_ANSWER = codec.encode_response(Key.CLOSE, 1, Code.OK)


def body(key, data, version=1):
    return (len(data) + 4).to_bytes(4, "big") + key.to_bytes(2, "big") + version.to_bytes(2, "big") + data


UNPARSABLE = {
    "unknown command": body(0x1234, b"\0\0\0\1"),
    "a server's command": body(Key.DELIVER, b"\0" * 60),
    "an unexpected response": body(Key.CREATE | spec.RESPONSE_BIT, b"\0\0\0\1\0\1"),
    "unknown version": body(Key.CREATE, b"\0\0\0\1\0\1s\0\0\0\0", version=2),
    "Publish 3": body(Key.PUBLISH, b"\0\0\0\0\0", version=3),
    "truncated Create": body(Key.CREATE, b"\0\0\0\1\0\5ab"),
    "Create with a tail": body(Key.CREATE, b"\0\0\0\1\0\1s\0\0\0\0!"),
    "Publish without a count": body(Key.PUBLISH, b"\0\0\0\0"),
    "Publish with a piece of an entry": body(Key.PUBLISH, b"\0\0\0\0\1" + b"\0" * 11),
    "an entry that is longer than the frame": body(Key.PUBLISH, b"\0\0\0\0\1" + b"\0" * 8 + b"\x7f\xff\xff\xff"),
    "Publish 2 with a sub-batch": body(
        Key.PUBLISH, b"\0\0\0\0\1" + b"\0" * 8 + b"\xff\xff" + b"\x80\0\1\0\0\0\5\0\0\0\5\0\0\0\1a", version=2
    ),
    "Credit of two bytes": body(Key.CREDIT, b"\0\0"),
    "a body of nothing": body(Key.SUBSCRIBE, b""),
    "an offset type that does not exist": body(Key.SUBSCRIBE, b"\0\0\0\1\0\0\1s\0\x09\0\1"),
    "size below 4": b"\0\0\0\2\0\0",
}


@pytest.mark.parametrize("frame", UNPARSABLE.values(), ids=UNPARSABLE.keys())
def test_an_unparsable_frame_gets_close_13(peer, frame):
    peer.send(frame, HEARTBEAT, body(Key.METADATA, b"\0\0\0\7\0\0\0\0"))  # what follows is not looked at
    before = peer.next_frame()
    assert (before.key, before.body) == (Key.CLOSE, CLOSE_UNKNOWN[8:])
    peer.send(HEARTBEAT, CLOSE_ANSWER)
    assert peer.rest() == b""


def test_a_frame_above_the_negotiated_size_gets_close_14_before_it_is_read(served):
    with Peer(served).open(frame_max=10_000) as peer:
        peer.send((10_000).to_bytes(4, "big") + body(Key.ROUTE, b"")[4:])
        peer.send(b"\0" * (10_000 - 4))  # of the allowed size, but no Route
        assert peer.next_frame().body == CLOSE_UNKNOWN[8:]
    with Peer(served).open(frame_max=10_000) as peer:
        peer.send((10_001).to_bytes(4, "big"))
        assert peer.next_frame().body == CLOSE_TOO_LARGE[8:]
        peer.send(b"\0" * 10_001, CLOSE_ANSWER)  # the refused frame is in the way of the answer
        assert peer.rest() == b""


def test_frame_max_0_means_the_brokers_own(served):
    with Peer(served).open(frame_max=0) as peer:
        peer.send((8_388_609).to_bytes(4, "big"))
        assert peer.next_frame().body == CLOSE_TOO_LARGE[8:]


def test_both_at_once_may_close(peer):
    peer.send(UNPARSABLE["unknown command"])
    assert peer.expect(Key.CLOSE).code == Code.UNKNOWN_FRAME
    assert peer.code(Key.CLOSE, code=1, reason="OK") == Code.OK
    assert peer.rest() == b""


@pytest.mark.parametrize(("code", "reason"), [(1, "OK"), (0, "Regular shutdown"), (999, "")])
def test_any_close_is_answered_and_ends_the_connection(peer, code, reason):
    peer.send(peer.command(Key.CLOSE, code=code, reason=reason), peer.command(Key.METADATA, streams=[]))
    assert peer.expect(Key.CLOSE | spec.RESPONSE_BIT).code == Code.OK
    assert peer.rest() == b""


def test_what_was_published_before_close_is_stored_and_confirmed(peer, stream, served):
    peer.declare(stream)
    peer.send(publish_frame([(7, b"last words")]), peer.command(Key.CLOSE, code=1, reason="OK"))
    said = peer.rest()  # the confirm is of the turn's end, so the reply to Close may come before it
    confirm = codec.encode_server_frame(Key.PUBLISH_CONFIRM, publisher_id=0, publishing_ids=[7])
    closed = codec.encode_response(Key.CLOSE, peer.correlation_id, Code.OK)
    assert said in (confirm + closed, closed + confirm)
    with connected(served) as other:
        other.subscribe(stream)
        assert other.chunk().data == b"\0\0\0\x0alast words"


def test_commands_byte_by_byte_work_as_well(peer, stream):
    peer.drip(peer.command(Key.DECLARE_PUBLISHER, publisher_id=3, reference="", stream=stream))
    assert peer.expect(Key.DECLARE_PUBLISHER | spec.RESPONSE_BIT).code == Code.OK
    peer.drip(publish_frame([(1, b"slow"), (2, b"but sure")], 3))
    assert peer.confirmed(2, 3) == [1, 2]
    fields = {"subscription_id": 0, "stream": stream, "offset_type": 1, "credit": 5, "properties": {}}
    peer.drip(peer.command(Key.SUBSCRIBE, **fields))
    assert peer.expect(Key.SUBSCRIBE | spec.RESPONSE_BIT).code == Code.OK
    assert peer.chunk().data == b"\0\0\0\x04slow\0\0\0\x08but sure"


def test_a_large_frame_in_small_pieces_is_read_whole(peer, stream):
    messages = [(i, bytes([i & 255]) * 1000) for i in range(1000)]
    frame = publish_frame(messages)
    peer.declare(stream)
    for at in range(0, len(frame), 7919):
        peer.send(frame[at : at + 7919])
    assert peer.confirmed(1000) == list(range(1000))


def test_pipelined_requests_are_answered_in_their_order(peer, name):
    frames = [
        peer.command(Key.CREATE, stream=name, arguments={}),
        peer.command(Key.DECLARE_PUBLISHER, publisher_id=0, reference="", stream=name),
        publish_frame([(1, b"a")]),
        peer.command(Key.METADATA, streams=[name]),
        peer.command(Key.DELETE, stream=name),
        peer.command(Key.CREATE, stream=name, arguments={}),
        peer.command(Key.STREAM_STATS, stream=name),
    ]
    peer.send(*frames)
    answers = []
    while len(answers) < 6:
        frame = peer.next_frame()
        if frame.key & spec.RESPONSE_BIT:
            answers.append(frame.decoded())
    first = peer.correlation_id - 5
    assert [answer.correlation_id for answer in answers] == list(range(first, first + 6))
    assert all(getattr(answer, "code", Code.OK) == Code.OK for answer in answers)


# ---- heartbeats ----


def test_the_broker_sends_heartbeats_of_its_own(served):
    with Peer(served).open(heartbeat=1) as peer:
        for _ in range(2):
            assert peer.next_frame().key == Key.HEARTBEAT
            peer.send(HEARTBEAT)


def test_a_peer_that_is_silent_for_two_heartbeats_is_let_go_without_close(served):
    with Peer(served).open(heartbeat=1) as peer:
        began = time.monotonic()
        data = peer.rest()
        assert time.monotonic() - began >= 1.5
        assert data == HEARTBEAT * (len(data) // 8)


def test_one_that_sends_anything_at_all_is_kept(served):
    with Peer(served).open(heartbeat=1) as peer, Peer(served).open(heartbeat=1) as silent:
        kept_for = 0
        while kept_for < 5:  # as long as five of the broker's heartbeats, so more than two of ours
            if peer.next_frame().key == Key.HEARTBEAT:
                peer.send(HEARTBEAT)
                kept_for += 1
        assert peer.ask(Key.METADATA, streams=[]).streams == []
        assert set(silent.rest()) <= set(HEARTBEAT)


def test_a_client_that_wants_no_heartbeats_gets_and_owes_none(served):
    with Peer(served).open(heartbeat=0) as peer, Peer(served).open(heartbeat=1) as other:
        other.rest()  # some seconds have passed when it is let go
        peer.send(peer.command(Key.METADATA, streams=[]))
        assert peer.next_frame().key == Key.METADATA | spec.RESPONSE_BIT


# ---- errors of ours ----


def test_an_error_of_ours_closes_the_connection_with_15_and_no_other(tmp_path):
    with broker(tmp_path / "data") as running, connected(running) as peer, connected(running) as other:
        with closing(sqlite3.connect(metadata_path(str(tmp_path / "data")))) as database:
            database.execute("ALTER TABLE exchanges RENAME TO elsewhere")
        peer.send(peer.command(Key.PARTITIONS, super_stream="s"))
        assert peer.next_frame() == (Key.CLOSE, 1, bytes.fromhex("00000001 000f 000e") + b"internal error")
        peer.send(codec.encode_response(Key.CLOSE, 1, Code.OK))
        assert peer.rest() == b""
        assert other.ask(Key.METADATA, streams=["s"]).streams[0].code == Code.STREAM_DOES_NOT_EXIST
