# SPDX-License-Identifier: Apache-2.0
"""Consuming: where each offset specification attaches, what a credit buys, and Deliver to the byte."""

import socket
import struct
import zlib

import pytest
from peers.streams import connected, publish_frame

from vibemq.protocols.streams import codec, spec
from vibemq.protocols.streams.spec import Code, Key, OffsetType

FIRST, LAST, NEXT = OffsetType.FIRST, OffsetType.LAST, OffsetType.NEXT


@pytest.fixture
def chunks(peer, stream):
    """A stream of four chunks of ten messages; gives their timestamps."""
    for _ in range(4):
        peer.store(stream, [b"m"] * 10)  # in one frame, confirmed before the next: one chunk
    assert stats(peer, stream)["last_chunk_id"] == 30
    peer.subscribe(stream, 99, credit=4)
    stamps = [peer.chunk(99).timestamp_ms for _ in range(4)]
    assert peer.code(Key.UNSUBSCRIBE, subscription_id=99) == Code.OK
    return stamps


def stats(peer, stream):
    return peer.ask(Key.STREAM_STATS, stream=stream).statistics


def nothing_more(peer):
    """The answer to a command comes after all that was to be delivered: next is that answer."""
    peer.ask(Key.METADATA, streams=[])


# ---- the answer to Subscribe ----


DATA_SEGMENTS_IN = 152  # where tcp_info has tcpi_data_segs_in, u32; each send that is not full makes one segment


def data_segments(peer):
    return struct.unpack_from("=I", peer.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), DATA_SEGMENTS_IN)[
        0
    ]


def test_the_answer_to_subscribe_leaves_before_the_first_chunk(peer, stream):
    """In a send of its own: a handler may use what its client makes of the answer."""
    peer.store(stream, [b"m"])
    for subscription_id in range(10):
        before = data_segments(peer)
        peer.subscribe(stream, subscription_id)
        assert peer.chunk(subscription_id).entries == 1
        assert data_segments(peer) - before == 2


def test_credit_and_unsubscribe_may_come_before_the_first_chunk(peer, stream):
    peer.store(stream, [b"m"])
    asked = {"stream": stream, "offset_type": FIRST, "offset_value": 0, "properties": {}}
    subscribe = [peer.command(Key.SUBSCRIBE, subscription_id=id, credit=0, **asked) for id in range(2)]
    credit = codec.encode_request(Key.CREDIT, subscription_id=0, credit=1)
    peer.send(*subscribe, credit, peer.command(Key.UNSUBSCRIBE, subscription_id=1))
    for key in (Key.SUBSCRIBE, Key.SUBSCRIBE, Key.UNSUBSCRIBE):
        assert peer.expect(key | spec.RESPONSE_BIT).code == Code.OK
    assert peer.chunk(0).entries == 1
    nothing_more(peer)


# ---- where readers attach ----


@pytest.mark.parametrize(
    ("offset_type", "value", "first"),
    [
        (FIRST, 0, 0),
        (LAST, 0, 30),
        (OffsetType.OFFSET, 0, 0),
        (OffsetType.OFFSET, 9, 0),
        (OffsetType.OFFSET, 10, 10),
        (OffsetType.OFFSET, 25, 20),
        (OffsetType.OFFSET, 39, 30),
        (OffsetType.TIMESTAMP, 0, 0),
        (OffsetType.TIMESTAMP, -5, 0),
    ],
)
def test_a_subscription_begins_with_the_chunk_of_its_offset(peer, stream, chunks, offset_type, value, first):
    peer.subscribe(stream, at=offset_type, offset_value=value, credit=10)
    for chunk_id in range(first, 40, 10):
        assert peer.chunk().chunk_id == chunk_id
    nothing_more(peer)


@pytest.mark.parametrize(
    ("offset_type", "value"),
    [(NEXT, 0), (OffsetType.OFFSET, 40), (OffsetType.OFFSET, 2**63 - 1), (OffsetType.TIMESTAMP, 2**62)],
)
def test_beyond_the_end_means_what_comes_next(peer, stream, chunks, offset_type, value):
    peer.subscribe(stream, at=offset_type, offset_value=value, credit=10)
    nothing_more(peer)
    peer.declare(stream)
    peer.publish([(1, b"new")])
    before, deliver = peer.until(Key.DELIVER)
    assert (deliver.chunk.chunk_id, deliver.chunk.data) == (40, b"\0\0\0\3new")
    assert [frame.key for frame in before] in ([], [Key.PUBLISH_CONFIRM])


def test_a_timestamp_begins_with_the_first_chunk_that_is_not_older(peer, stream, chunks):
    assert chunks == sorted(chunks)
    for timestamp in {*chunks, *(stamp + 1 for stamp in chunks)}:
        expected = next((at * 10 for at, stamp in enumerate(chunks) if stamp >= timestamp), None)
        peer.subscribe(stream, at=OffsetType.TIMESTAMP, offset_value=timestamp)
        if expected is None:
            nothing_more(peer)
        else:
            assert peer.chunk().chunk_id == expected
        assert peer.code(Key.UNSUBSCRIBE, subscription_id=0) == Code.OK


@pytest.mark.parametrize("offset_type", [FIRST, LAST, NEXT, OffsetType.OFFSET, OffsetType.TIMESTAMP])
def test_an_empty_stream_gives_its_first_chunk_to_everybody(peer, stream, offset_type):
    peer.subscribe(stream, at=offset_type)
    nothing_more(peer)
    peer.declare(stream)
    peer.publish([(1, b"a")])
    assert peer.until(Key.DELIVER)[1].chunk.chunk_id == 0


def test_resolve_offset_spec_says_where_a_subscription_would_begin(peer, stream, chunks, name):
    def resolved(offset_type, value=0):
        answer = peer.ask(Key.RESOLVE_OFFSET_SPEC, stream=stream, offset_type=offset_type, offset_value=value)
        assert (answer.code, answer.offset_type) == (Code.OK, OffsetType.OFFSET)
        return answer.offset

    assert [resolved(FIRST), resolved(LAST), resolved(NEXT)] == [0, 30, 40]
    assert [resolved(OffsetType.OFFSET, offset) for offset in (5, 29, 40, 1000)] == [0, 20, 40, 40]
    assert resolved(OffsetType.TIMESTAMP, 2**62) == 40
    missing = peer.ask(Key.RESOLVE_OFFSET_SPEC, stream="no " + name, offset_type=FIRST)
    assert (missing.code, missing.offset_type, missing.offset) == (Code.STREAM_DOES_NOT_EXIST, 4, 0)


# ---- subscriptions ----


def test_a_subscription_needs_a_stream_and_an_id_of_its_own(peer, stream, name):
    fields = {"subscription_id": 0, "offset_type": FIRST, "credit": 1, "properties": {}}
    assert peer.code(Key.SUBSCRIBE, stream="no " + name, **fields) == Code.STREAM_DOES_NOT_EXIST
    assert peer.code(Key.SUBSCRIBE, stream=stream, **fields) == Code.OK
    assert peer.code(Key.SUBSCRIBE, stream=stream, **fields) == Code.SUBSCRIPTION_ID_ALREADY_EXISTS
    assert peer.code(Key.UNSUBSCRIBE, subscription_id=0) == Code.OK
    assert peer.code(Key.UNSUBSCRIBE, subscription_id=0) == Code.SUBSCRIPTION_ID_DOES_NOT_EXIST
    assert peer.code(Key.SUBSCRIBE, stream=stream, **fields) == Code.OK


def test_a_connection_has_at_most_256_subscriptions_and_each_gets_its_own(peer, stream):
    for subscription_id in range(256):
        peer.subscribe(stream, subscription_id)
    fields = {"subscription_id": 0, "stream": stream, "offset_type": FIRST, "credit": 1, "properties": {}}
    assert peer.code(Key.SUBSCRIBE, **fields) == Code.PRECONDITION_FAILED
    peer.declare(stream)
    peer.publish([(1, b"to all")])
    delivered = set()
    while len(delivered) < 256:
        frame = peer.next_frame()
        if frame.key == Key.DELIVER:
            assert frame.body[0] not in delivered
            delivered.add(frame.body[0])


def test_properties_may_be_absent_and_unknown_ones_are_ignored(peer, stream):
    absent = bytearray(
        codec.encode_request(Key.SUBSCRIBE, 77, subscription_id=0, stream=stream, offset_type=1, credit=1)
    )
    if absent.endswith(b"\0\1\0\0\0\0"):
        del absent[-4:]
        absent[:4] = (len(absent) - 4).to_bytes(4, "big")
    peer.send(bytes(absent))
    assert peer.expect(Key.SUBSCRIBE | spec.RESPONSE_BIT).code == Code.OK
    peer.subscribe(stream, 1, properties={"identifier": "x", "colour": "green", "filter.0": "eu"})
    long = {
        "subscription_id": 2,
        "stream": stream,
        "offset_type": FIRST,
        "credit": 1,
        "properties": {"name": "n" * 256},
    }
    assert peer.code(Key.SUBSCRIBE, **long) == Code.PRECONDITION_FAILED


def test_after_unsubscribe_nothing_of_that_subscription_comes(peer, stream):
    peer.subscribe(stream, 5, at=NEXT, credit=100)
    assert peer.code(Key.UNSUBSCRIBE, subscription_id=5) == Code.OK
    peer.store(stream, [b"unseen"])
    nothing_more(peer)


# ---- credit ----


def test_one_credit_is_one_chunk(peer, stream, chunks):
    peer.subscribe(stream, credit=1)
    assert peer.chunk().chunk_id == 0
    nothing_more(peer)
    peer.credit(0, 2)
    assert [peer.chunk().chunk_id for _ in range(2)] == [10, 20]
    nothing_more(peer)
    peer.credit(0, 1)
    assert peer.chunk().chunk_id == 30
    peer.credit(0, 0)
    nothing_more(peer)


def test_credit_0_waits_for_more(peer, stream, chunks):
    peer.subscribe(stream, credit=0)
    nothing_more(peer)
    peer.credit(0, 1)
    assert peer.chunk().chunk_id == 0


def test_credit_adds_up_far_beyond_16_bits(served, peer, stream):
    peer.subscribe(stream, at=NEXT, credit=65535)
    for _ in range(10):
        peer.credit(0, 32767)  # in all 393,205: below zero in 16 bits with a sign
    with connected(served) as other:
        other.store(stream, [b"x"])
    assert peer.chunk().data == b"\0\0\0\1x"


def test_credit_for_nobody_gets_an_answer_without_a_correlation_id(peer):
    peer.credit(9, 1)
    frame = peer.next_frame()
    assert (frame.key, frame.version, frame.body) == (0x8009, 1, b"\0\x04\x09")


# ---- bytes ----


def deliver_bytes(peer, version):
    """The whole next frame, as it was on the wire."""
    frame = peer.next_frame()
    assert (frame.key, frame.version) == (Key.DELIVER, version)
    return frame.body


@pytest.mark.parametrize("announced", [[], [(Key.DELIVER, 1, 1)], [(Key.PUBLISH, 1, 2), (999, 1, 9)]])
def test_deliver_1_to_the_byte(peer, stream, announced):
    versions = peer.ask(Key.EXCHANGE_COMMAND_VERSIONS, versions=announced)
    assert versions.code == Code.OK
    assert [tuple(row) for row in versions.versions] == list(spec.COMMAND_VERSIONS)
    peer.store(stream, [b"a", b"bc"])
    peer.subscribe(stream, 2)
    body = deliver_bytes(peer, 1)
    data = b"\0\0\0\1a\0\0\0\2bc"
    timestamp = body[9:17]
    head = b"\x02" + b"\x50\0" + b"\0\2" + b"\0\0\0\2" + timestamp + b"\0" * 7 + b"\1" + b"\0" * 8
    assert body == head + zlib.crc32(data).to_bytes(4, "big") + b"\0\0\0\x0b" + b"\0" * 8 + data


def test_deliver_2_also_says_what_is_committed(peer, stream, chunks):
    assert peer.code(Key.EXCHANGE_COMMAND_VERSIONS, versions=[(Key.DELIVER, 1, 2)]) == Code.OK
    peer.subscribe(stream, 2, credit=2)
    for chunk_id in (0, 10):
        body = deliver_bytes(peer, 2)
        data = b"\0\0\0\1m" * 10
        head = b"\x02" + (30).to_bytes(8, "big") + b"\x50\0" + b"\0\x0a" + b"\0\0\0\x0a" + body[17:25]
        head += (1).to_bytes(8, "big") + chunk_id.to_bytes(8, "big") + zlib.crc32(data).to_bytes(4, "big")
        assert body == head + len(data).to_bytes(4, "big") + b"\0" * 8 + data


def test_the_header_names_the_trailer_that_is_not_sent(peer, stream):
    """Tools compare this size: for each reference in the chunk its length and ten bytes."""
    peer.declare(stream, 0, "fourteen bytes")
    peer.publish([(1, b"a"), (2, b"b")])
    peer.confirmed(2)
    peer.subscribe(stream)
    chunk = peer.chunk()
    assert (chunk.trailer_size, chunk.bloom_size, chunk.reserved, chunk.trailer) == (24, 0, 0, b"")
    assert chunk.data == b"\0\0\0\1a\0\0\0\1b"


def test_every_subscription_of_a_connection_gets_the_same_chunks(peer, stream, chunks):
    frames = [
        peer.command(Key.SUBSCRIBE, subscription_id=at, stream=stream, offset_type=FIRST, credit=4, properties={})
        for at in range(3)
    ]
    peer.send(*frames)
    seen = {0: [], 1: [], 2: []}
    while sum(map(len, seen.values())) < 12:
        frame = peer.next_frame()
        if frame.key == Key.DELIVER:
            seen[frame.body[0]].append(frame.body[1:])
    assert seen[0] == seen[1] == seen[2]


def test_what_one_connection_publishes_another_gets_as_it_comes(served, peer, stream):
    with connected(served) as consumer:
        consumer.subscribe(stream, at=NEXT, credit=1000)
        peer.declare(stream)
        got = b""
        for at in range(200):
            peer.send(publish_frame([(at, at.to_bytes(4, "big"))]))
            peer.confirmed(1)
        while len(got) < 200 * 8:
            got += consumer.chunk().data
        assert got == b"".join(b"\0\0\0\4" + at.to_bytes(4, "big") for at in range(200))
