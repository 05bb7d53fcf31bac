# SPDX-License-Identifier: Apache-2.0
"""Filters and chunk selection: which chunks of a stream a subscription is sent, and at what price in credit.

A chunk may come though none of its messages matches; one that holds a match must come.
"""

import os
import random
import time
import zlib

import pytest
from peers.streams import connected
from running import broker

from vibemq.protocols.streams import codec
from vibemq.protocols.streams.spec import Code, ExtensionKey, Key, OffsetType

SEED = int(os.environ.get("VIBEMQ_FILTER_SEED", time.time_ns() % 2**32))


def publish(peer, messages, publisher_id=0):
    """One frame of (publishing id, filter value or None, data), confirmed: one chunk."""
    peer.send(codec.encode_request(Key.PUBLISH, version=2, publisher_id=publisher_id, messages=messages))
    assert peer.confirmed(len(messages), publisher_id) == [number for number, _, _ in messages]


def chunks_of(peer, stream, *chunks):
    """Store one chunk for each list of filter values; "" and None are messages without one."""
    peer.declare(stream, 9)
    for values in chunks:
        publish(peer, [(number, value, b"m") for number, value in enumerate(values)], 9)
    assert peer.code(Key.DELETE_PUBLISHER, publisher_id=9) == Code.OK


def wanted(*values, unfiltered=False):
    properties = {f"filter.{number}": value for number, value in enumerate(values)}
    return properties | ({"match-unfiltered": "true"} if unfiltered else {})


def delivered(peer, stream, properties, *, at=OffsetType.FIRST, offset_value=0, credit=1000):
    """The ids of the chunks that a subscription from there to the end is sent."""
    peer.subscribe(stream, 7, at=at, offset_value=offset_value, credit=credit, properties=properties)
    # Its chunks leave some time after the answer, and those of a subscription that is made after it behind them.
    last = {"subscription_id": 8, "stream": stream, "offset_type": OffsetType.LAST, "credit": 1}
    peer.send(peer.command(Key.SUBSCRIBE, **last, properties={}))
    found = []
    while (deliver := peer.until(Key.DELIVER)[1]).subscription_id != 8:
        found.append(deliver.chunk.chunk_id)
    return found + unsubscribed(peer, 8)


def unsubscribed(peer, subscription_id=7):
    peer.send(peer.command(Key.UNSUBSCRIBE, subscription_id=subscription_id))
    before, answer = peer.until(Key.UNSUBSCRIBE | 0x8000)
    assert answer.code == Code.OK
    return [frame.decoded().chunk.chunk_id for frame in before if frame.key == Key.DELIVER]


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, [0, 1, 2, 4, 6]),
        (wanted("eu"), [0, 2]),
        (wanted("us"), [1, 2]),
        (wanted("eu", "us"), [0, 1, 2]),
        (wanted("eu", unfiltered=True), [0, 2, 4, 6]),
        (wanted("nobody", unfiltered=True), [4, 6]),
        ({"match-unfiltered": "true"}, [0, 1, 2, 4, 6]),  # nothing to filter by
    ],
)
def test_a_subscription_gets_the_chunks_that_may_hold_its_values(peer, stream, properties, expected):
    chunks_of(peer, stream, ["eu"], ["us"], ["eu", "us"], ["asia", None], [None])
    found = delivered(peer, stream, properties)
    assert found + unsubscribed(peer) == expected


def test_an_empty_value_is_none_and_publish_1_gives_none(peer, stream):
    chunks_of(peer, stream, [""], ["eu"])
    peer.store(stream, [b"from version 1"])
    found = delivered(peer, stream, wanted("x", unfiltered=True))
    assert found + unsubscribed(peer) == [0, 2]


def test_chunks_that_are_passed_over_cost_no_credit(peer, stream):
    chunks_of(peer, stream, *[["us"]] * 50, ["eu"], *[["us"]] * 700, ["eu"], ["us"])
    peer.subscribe(stream, credit=2, properties=wanted("eu"))
    assert [peer.chunk().chunk_id for _ in range(2)] == [50, 751]
    peer.credit(0, 1)
    peer.declare(stream)
    peer.send(codec.encode_request(Key.PUBLISH, version=2, publisher_id=0, messages=[(1, "eu", b"m")]))
    assert peer.until(Key.DELIVER)[1].chunk.chunk_id == 753


def test_a_filter_begins_where_the_subscription_does(peer, stream):
    chunks_of(peer, stream, ["eu"], ["us"], ["eu"], ["us"])
    found = delivered(peer, stream, wanted("eu"), at=OffsetType.OFFSET, offset_value=1)
    assert found + unsubscribed(peer) == [2]
    found = delivered(peer, stream, wanted("eu"), at=OffsetType.LAST)
    assert found + unsubscribed(peer) == []


def test_more_values_than_are_compared_are_17(peer, stream):
    fields = {"subscription_id": 0, "stream": stream, "offset_type": OffsetType.FIRST, "credit": 1}
    properties = wanted(*[str(number) for number in range(256)])
    assert peer.code(Key.SUBSCRIBE, properties=properties, **fields) == Code.PRECONDITION_FAILED
    assert peer.code(Key.DELETE, stream=stream) == Code.OK  # nobody is left who would be told


def test_a_chunk_with_a_match_is_never_withheld(served, peer, stream):
    print(f"VIBEMQ_FILTER_SEED={SEED}")
    chance = random.Random(SEED)
    names = [f"value {number}" for number in range(40)]
    # Some small, some of a size that one read does not hold with its neighbours.
    holds = [[chance.choice([*names, None]) for _ in range(chance.choice([1, 1, 3, 30]))] for _ in range(200)]
    peer.declare(stream)
    begins, at = [], 0
    for values in holds:
        body = bytes(chance.choice([1, 1, 1, 20_000]))
        publish(peer, [(number, value, body) for number, value in enumerate(values)])
        begins.append(at)
        at += len(values)
    for _ in range(20):
        asked = chance.sample(names, chance.randint(1, 3))
        unfiltered = chance.random() < 0.3
        must = {
            begin
            for begin, values in zip(begins, holds, strict=True)
            if set(values) & set(asked) or (unfiltered and None in values)
        }
        with connected(served) as reader:
            reader.subscribe(
                stream, credit=chance.choice([1, 5, 1000]), properties=wanted(*asked, unfiltered=unfiltered)
            )
            missing = set(must)
            while missing:
                missing.discard(reader.chunk().chunk_id)
                reader.credit(0, 1)


def test_a_slow_reader_gets_each_chunk_whole_however_many_lie_between(served, peer, stream):
    peer.declare(stream)
    kinds = ["eu", "us", "us", "eu", "eu", "us"] * 10
    bodies = [bytes([number]) * (100 if number % 7 else 300_000) for number in range(len(kinds))]
    for number, kind in enumerate(kinds):
        publish(peer, [(number, kind, bodies[number])])
    with connected(served, receive_buffer_bytes=4096) as slow:
        slow.subscribe(stream, credit=1000, properties=wanted("eu"))
        for number, kind in enumerate(kinds):
            if kind == "eu":
                chunk = slow.chunk()
                assert (chunk.chunk_id, chunk.data[4:]) == (number, bodies[number])
                assert zlib.crc32(chunk.data) == chunk.crc


@pytest.mark.parametrize("size", [10, 50_000])
def test_chunks_are_passed_over_though_they_are_not_in_memory(tmp_path, size):
    with broker(tmp_path) as running, connected(running) as peer:
        peer.create("s")
        peer.declare("s")
        for number in range(1000):
            publish(peer, [(number, "eu" if number in (0, 500, 999) else "us", bytes(size))])
        [path] = tmp_path.rglob("*.segment")
        with open(path, "rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with connected(running) as reader:
            reader.subscribe("s", credit=3, properties=wanted("eu"))
            assert [reader.chunk().chunk_id for _ in range(3)] == [0, 500, 999]


# ---- chunk selection ----


def test_all_sends_the_trailer_behind_each_chunk(peer, stream):
    peer.declare(stream, reference="a" * 14)
    peer.publish([(7, b"m")])
    assert peer.confirmed(1) == [7]
    peer.subscribe(stream, 1, properties={"chunk_selector": "user_data"})
    plain = peer.chunk(1)
    peer.subscribe(stream, 2, properties={"chunk_selector": "all"})
    whole = peer.chunk(2)
    assert plain.trailer_size == whole.trailer_size == 24
    assert plain._replace(trailer=whole.trailer) == whole
    assert (plain.trailer, len(whole.trailer)) == (b"", 24)
    assert whole.trailer == bytes([0, 14]) + b"a" * 14 + (7).to_bytes(8, "big")


# ---- ranges of those chunks, for who plans to read them ----


def spans(peer, stream, start, end, *values, unfiltered=False):
    fields = {"stream": stream, "start": start, "end": end, "match_unfiltered": unfiltered, "values": list(values)}
    answer = peer.ask(ExtensionKey.FILTER_RANGE, **fields)
    return answer.until, list(zip(answer.spans[::2], answer.spans[1::2], strict=True))


def test_a_filtered_range_is_the_chunks_that_a_subscription_is_sent(peer, stream):
    chunks_of(peer, stream, ["eu"], ["us"], ["eu", "us"], [None, "us"], ["", ""], ["eu", "eu"])
    assert spans(peer, stream, 0, 100, "eu") == (10, [(0, 1), (2, 4), (8, 10)])
    assert spans(peer, stream, 0, 100, "us") == (10, [(1, 6)])
    assert spans(peer, stream, 3, 9, "eu") == (9, [(3, 4), (8, 9)])
    assert spans(peer, stream, 0, 100, "nobody") == (10, [])
    assert spans(peer, stream, 0, 100, "eu", unfiltered=True) == (10, [(0, 1), (2, 10)])
    assert spans(peer, stream, 50, 100, "eu") == (10, [])
    many = [str(number) for number in range(256)]
    fields = {"stream": stream, "start": 0, "end": 1, "match_unfiltered": 0, "values": many}
    assert peer.code(ExtensionKey.FILTER_RANGE, **fields) == Code.PRECONDITION_FAILED
