# SPDX-License-Identifier: Apache-2.0
"""Super streams: made and deleted as a whole, partitions in order, routes by exact key, refusals with their codes."""

import pytest
from peers.streams import connected

from vibemq.protocols.streams.spec import RESPONSE_BIT, Code, Key


def make(peer, name, count=3, **fields):
    fields = {
        "partitions": [f"{name}-{at}" for at in range(count)],
        "binding_keys": [str(at) for at in range(count)],
        "arguments": {},
        **fields,
    }
    return peer.code(Key.CREATE_SUPER_STREAM, name=name, **fields)


def exists(peer, *streams):
    return [row.code == Code.OK for row in peer.ask(Key.METADATA, streams=list(streams)).streams]


def test_partitions_come_in_the_order_in_which_they_were_given(peer, name):
    streams = [f"{name}-{at}" for at in (2, 10, 1, 0)]
    assert make(peer, name, partitions=streams, binding_keys=["d", "c", "b", "a"]) == Code.OK
    assert tuple(peer.ask(Key.PARTITIONS, super_stream=name)[1:]) == (Code.OK, streams)
    assert exists(peer, *streams) == [True] * 4
    peer.store(streams[0], [b"a partition is a stream"])


def test_a_route_is_by_exactly_this_key(peer, name):
    streams = [f"{name}-{at}" for at in range(4)]
    assert make(peer, name, partitions=streams, binding_keys=["eu", "us", "eu", ""]) == Code.OK

    def route(key):
        answer = peer.ask(Key.ROUTE, routing_key=key, super_stream=name)
        return answer.code, answer.streams

    assert route("eu") == (Code.OK, [streams[0], streams[2]])
    assert route("us") == (Code.OK, [streams[1]])
    assert route("") == (Code.OK, [streams[3]])
    assert route("EU") == route("e") == (Code.OK, [])


def test_the_answers_are_these_bytes(peer, name):
    assert make(peer, name, 2) == Code.OK
    first, second = (f"{name}-{at}".encode() for at in range(2))
    peer.correlation_id = 8
    peer.send(peer.command(Key.PARTITIONS, super_stream=name))
    frame = peer.next_frame()
    parts = b"".join(len(part).to_bytes(2, "big") + part for part in (first, second))
    assert (frame.key, frame.body) == (0x8019, bytes.fromhex("00000009 0001 00000002") + parts)
    peer.send(peer.command(Key.ROUTE, routing_key="none", super_stream=name))
    frame = peer.next_frame()
    assert (frame.key, frame.body) == (0x8018, bytes.fromhex("0000000a 0001 00000000"))
    peer.send(peer.command(Key.ROUTE, routing_key="none", super_stream="no " + name))
    assert peer.next_frame().body == bytes.fromhex("0000000b 0002 00000000")
    peer.send(peer.command(Key.PARTITIONS, super_stream="no " + name))
    assert peer.next_frame().body == bytes.fromhex("0000000c 0002 00000000")


def test_a_stream_is_no_super_stream(peer, stream):
    assert tuple(peer.ask(Key.PARTITIONS, super_stream=stream)[1:]) == (Code.STREAM_DOES_NOT_EXIST, [])
    assert peer.code(Key.DELETE_SUPER_STREAM, name=stream) == Code.STREAM_DOES_NOT_EXIST


def test_what_exists_is_5_and_nothing_else_is_made(peer, name):
    assert make(peer, name) == Code.OK
    assert make(peer, name) == Code.STREAM_ALREADY_EXISTS
    other = name + "-other"
    mixed = {"partitions": [other + "-0", f"{name}-1"], "binding_keys": ["0", "1"]}
    assert make(peer, other, **mixed) == Code.STREAM_ALREADY_EXISTS
    assert exists(peer, other + "-0") == [False]
    assert peer.ask(Key.PARTITIONS, super_stream=other).code == Code.STREAM_DOES_NOT_EXIST


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "amq.super"},
        {"name": "x" * 256},
        {"partitions": []},
        {"partitions": ["one"]},
        {"partitions": ["one", "one"]},
        {"partitions": ["one", ""]},
        {"partitions": ["one", "amq.two"]},
        {"binding_keys": ["0"]},
        {"arguments": {"max-age": "soon"}},
        {"partitions": [f"p{at}" for at in range(1001)], "binding_keys": [str(at) for at in range(1001)]},
    ],
    ids=lambda wrong: next(iter(wrong)) + ("-many" if len(str(wrong)) > 300 else ""),
)
def test_what_cannot_be_is_17_and_makes_nothing(peer, name, wrong):
    if wrong.get("partitions") == ["one"]:
        wrong = {"partitions": [name + "-one"]}
    fields = {"name": name, "partitions": [name + "-0", name + "-1"], "binding_keys": ["0", "1"], "arguments": {}}
    assert peer.code(Key.CREATE_SUPER_STREAM, **{**fields, **wrong}) == Code.PRECONDITION_FAILED
    assert exists(peer, name + "-0", name + "-1", name + "-one") == [False] * 3
    assert peer.ask(Key.PARTITIONS, super_stream=name).code == Code.STREAM_DOES_NOT_EXIST


def test_arguments_are_for_every_partition(peer, name):
    assert make(peer, name, 2, arguments={"max-length-bytes": "1000000"}) == Code.OK
    for at in range(2):
        same, other = {"max-length-bytes": "1000000"}, {"max-length-bytes": "2000000"}
        stream = f"{name}-{at}"
        assert peer.code(Key.CREATE, stream=stream, arguments=same) == Code.STREAM_ALREADY_EXISTS
        assert peer.code(Key.CREATE, stream=stream, arguments=other) == Code.PRECONDITION_FAILED


def test_deleting_one_is_answered_and_tells_of_every_partition(served, peer, name):
    """A worker may notice the deletion of a partition before the last one is deleted, and the answer follows then."""
    streams = [f"{name}-{at}" for at in range(3)]
    assert make(peer, name) == Code.OK
    with connected(served) as other:
        for at, stream in enumerate(streams):
            other.subscribe(stream, at)
            peer.declare(stream, at)
        peer.send(peer.command(Key.DELETE_SUPER_STREAM, name=name))
        early, answer = peer.until(Key.DELETE_SUPER_STREAM | RESPONSE_BIT)
        assert answer.code == Code.OK
        for told, frames in ((peer, early), (other, [])):
            updates = [frame.decoded() for frame in frames]
            updates += [told.expect(Key.METADATA_UPDATE) for _ in range(len(streams) - len(updates))]
            assert sorted(update.stream for update in updates) == streams
            assert {update.code for update in updates} == {Code.STREAM_NOT_AVAILABLE}
    assert exists(peer, *streams) == [False] * 3
    assert peer.code(Key.DELETE_SUPER_STREAM, name=name) == Code.STREAM_DOES_NOT_EXIST
    assert make(peer, name) == Code.OK, "the name is free again"


def test_a_partition_that_is_deleted_is_no_route_any_more(peer, name):
    assert make(peer, name) == Code.OK
    assert peer.code(Key.DELETE, stream=f"{name}-1") == Code.OK
    assert peer.ask(Key.PARTITIONS, super_stream=name).streams == [f"{name}-0", f"{name}-2"]
    assert tuple(peer.ask(Key.ROUTE, routing_key="1", super_stream=name)[1:]) == (Code.OK, [])
