# SPDX-License-Identifier: Apache-2.0
"""Streams: made and removed with the right codes, all their users told, and an answer to what is not offered."""

import pytest
from peers.streams import connected, on_every_worker, publish_frame

from vibemq.protocols.streams import codec, spec
from vibemq.protocols.streams.spec import Code, Key

GONE_UPDATE = Code.STREAM_NOT_AVAILABLE


# ---- create and delete ----


def test_a_name_is_taken_once_and_arguments_must_agree(peer, name):
    def create(**arguments):
        return peer.code(Key.CREATE, stream=name, arguments=arguments)

    assert create(**{"max-length-bytes": "1000000", "max-age": "24h"}) == Code.OK
    assert create(**{"max-length-bytes": "1000000", "max-age": "1D", "unknown": "x"}) == Code.STREAM_ALREADY_EXISTS
    assert create(**{"max-length-bytes": "1000001", "max-age": "24h"}) == Code.PRECONDITION_FAILED
    assert create() == Code.PRECONDITION_FAILED


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("max-length-bytes", "-1"),
        ("max-length-bytes", "1MB"),
        ("max-age", "12"),
        ("max-age", "0s"),
        ("max-age", "soon"),
        ("stream-max-segment-size-bytes", "3000000001"),
        ("initial-cluster-size", "0"),
        ("queue-leader-locator", "nearest"),
        ("stream-filter-size-bytes", "15"),
        ("stream-filter-size-bytes", "256"),
        ("stream-max-chunk-messages", "0"),
        ("stream-max-chunk-messages", "2049"),
    ],
)
def test_an_argument_that_is_not_valid_is_17_and_makes_nothing(peer, name, argument, value):
    assert peer.code(Key.CREATE, stream=name, arguments={argument: value}) == Code.PRECONDITION_FAILED
    assert peer.ask(Key.METADATA, streams=[name]).streams[0].code == Code.STREAM_DOES_NOT_EXIST


@pytest.mark.parametrize("bad", ["", "\r\n", "amq.stream", "x" * 256, "ż" * 128])
def test_a_name_that_is_not_valid_is_17(peer, bad):
    assert peer.code(Key.CREATE, stream=bad, arguments={}) == Code.PRECONDITION_FAILED


def test_names_are_up_to_255_bytes_of_any_text_without_line_ends(peer):
    for name in ("x" * 255, "żółw/../:%00 ☃", "...", "tail"):
        peer.create(name)
        assert peer.ask(Key.METADATA, streams=[name]).streams[0].code == Code.OK
    assert peer.code(Key.CREATE, stream="ta\r\nil", arguments={}) == Code.STREAM_ALREADY_EXISTS
    for name in (".", ".."):  # no address of the management API can hold them
        assert peer.code(Key.CREATE, stream=name, arguments={}) == Code.PRECONDITION_FAILED
    for name in ("x" * 255, "żółw/../:%00 ☃", "...", "tail"):
        assert peer.code(Key.DELETE, stream=name) == Code.OK


def test_what_does_not_exist_cannot_be_deleted(peer, name):
    assert peer.code(Key.DELETE, stream=name) == Code.STREAM_DOES_NOT_EXIST


def test_a_stream_that_is_made_again_begins_at_0(peer, stream):
    peer.store(stream, [b"old"] * 5)
    assert peer.code(Key.DELETE, stream=stream) == Code.OK
    peer.create(stream)
    peer.store(stream, [b"new"])
    peer.subscribe(stream, credit=10)
    chunk = peer.chunk()
    assert (chunk.chunk_id, chunk.epoch, chunk.data) == (0, 1, b"\0\0\0\3new")


def test_whoever_deletes_gets_ok_before_the_update_and_one_update_only(peer, stream):
    for at in range(3):
        peer.declare(stream, at)
        peer.subscribe(stream, at)
    assert peer.code(Key.DELETE, stream=stream) == Code.OK
    update = peer.expect(Key.METADATA_UPDATE)
    assert (update.code, update.stream) == (GONE_UPDATE, stream)
    peer.publish([(1, b"late")])
    assert peer.expect(Key.PUBLISH_ERROR).errors == [(1, Code.PUBLISHER_DOES_NOT_EXIST)]
    peer.credit(0, 1)
    assert peer.expect(Key.CREDIT | spec.RESPONSE_BIT).code == Code.SUBSCRIPTION_ID_DOES_NOT_EXIST
    assert peer.code(Key.UNSUBSCRIBE, subscription_id=1) == Code.SUBSCRIPTION_ID_DOES_NOT_EXIST
    assert peer.code(Key.DELETE_PUBLISHER, publisher_id=1) == Code.PUBLISHER_DOES_NOT_EXIST
    assert peer.ask(Key.METADATA, streams=[stream]).streams[0].code == Code.STREAM_DOES_NOT_EXIST


def test_whoever_does_not_use_the_stream_any_more_is_not_told(peer, stream):
    peer.declare(stream)
    peer.subscribe(stream)
    assert peer.code(Key.DELETE_PUBLISHER, publisher_id=0) == Code.OK
    assert peer.code(Key.UNSUBSCRIBE, subscription_id=0) == Code.OK
    assert peer.code(Key.DELETE, stream=stream) == Code.OK
    peer.send(peer.command(Key.METADATA, streams=[]))
    assert peer.next_frame().key == Key.METADATA | spec.RESPONSE_BIT


def test_users_on_every_worker_are_told_that_a_stream_is_gone(served, peer, stream, name):
    opened = []
    try:
        users = list(on_every_worker(served, opened))
        assert len(users) == 2
        for user in users:
            user.declare(stream, 1)
            user.subscribe(stream, 1, credit=10)
        peer.store(stream, [b"x"])
        bystander = connected(served)
        opened.append(bystander)
        assert peer.code(Key.DELETE, stream=stream) == Code.OK
        for user in users:
            before, update = user.until(Key.METADATA_UPDATE)
            assert (update.code, update.stream) == (GONE_UPDATE, stream)
            assert {frame.key for frame in before} <= {Key.DELIVER}
            user.publish([(1, b"late")], 1)
            assert user.expect(Key.PUBLISH_ERROR).errors == [(1, Code.PUBLISHER_DOES_NOT_EXIST)]
        bystander.send(bystander.command(Key.METADATA, streams=[]))
        assert bystander.next_frame().key == Key.METADATA | spec.RESPONSE_BIT
        peer.create(stream)
        for user in users:  # the new one is another stream, and all workers know
            user.declare(stream, 1)
            user.subscribe(stream, 1, credit=10)
        users[0].publish([(1, b"new")], 1)
        for user in users:
            assert user.until(Key.DELIVER)[1].chunk.chunk_id == 0
    finally:
        for other in opened:
            other.socket.close()


def test_what_one_worker_stores_consumers_of_every_worker_get(served, peer, stream):
    opened = []
    try:
        users = list(on_every_worker(served, opened))
        for user in users:
            user.declare(stream, 1)
            user.subscribe(stream, credit=1000)
        for user in users:
            user.send(publish_frame([(at, b"%d" % at) for at in range(100)], 1))
        data = []
        for user in users:
            got = 0
            mine = []
            while got < 200:
                frame = user.next_frame()
                if frame.key == Key.DELIVER:
                    chunk = frame.decoded().chunk
                    assert chunk.chunk_id == got
                    got += chunk.records
                    mine.append(chunk.data)
            data.append(b"".join(mine))
        assert data[0] == data[1]
    finally:
        for other in opened:
            other.socket.close()


# ---- what is asked about streams ----


def test_metadata_names_the_address_that_open_advertised(peer, stream, served, name):
    answer = peer.ask(Key.METADATA, streams=[stream, "no " + name, stream])
    assert [tuple(broker) for broker in answer.brokers] == [(0, "localhost", served.port)]
    found = [(row.stream, row.code, row.leader_ref, tuple(row.replica_refs)) for row in answer.streams]
    assert found == [(stream, Code.OK, 0, ()), ("no " + name, Code.STREAM_DOES_NOT_EXIST, spec.LEADER_NONE, ())]


def test_stream_stats_count_chunks_and_messages(peer, stream, name):
    keys = ["first_chunk_id", "last_chunk_id", "committed_chunk_id", "committed_offset"]
    assert peer.ask(Key.STREAM_STATS, stream=stream).statistics == dict.fromkeys(keys, -1)
    peer.store(stream, [b"a"] * 3)
    assert peer.ask(Key.STREAM_STATS, stream=stream).statistics == dict(zip(keys, (0, 0, 0, 2), strict=True))
    peer.store(stream, [b"b"] * 4)
    assert peer.ask(Key.STREAM_STATS, stream=stream).statistics == dict(zip(keys, (0, 3, 3, 6), strict=True))
    missing = peer.ask(Key.STREAM_STATS, stream="no " + name)
    assert (missing.code, missing.statistics) == (Code.STREAM_DOES_NOT_EXIST, {})


def test_stream_stats_move_on_when_retention_drops_segments(peer, name):
    peer.create(name, **{"max-length-bytes": "100000", "stream-max-segment-size-bytes": "50000"})
    for _ in range(20):
        peer.store(name, [b"x" * 1000] * 100)
    frame = peer.command(Key.STREAM_STATS, stream=name)
    for _ in range(2000):  # a helper thread drops them: soon, not at once
        peer.send(frame)
        statistics = peer.expect(Key.STREAM_STATS | spec.RESPONSE_BIT).statistics
        if statistics["first_chunk_id"] > 0:
            break
    assert 0 < statistics["first_chunk_id"] < statistics["committed_chunk_id"]
    assert statistics["committed_offset"] == 1999
    peer.subscribe(name, at=spec.OffsetType.OFFSET, offset_value=5)
    assert peer.chunk().chunk_id >= statistics["first_chunk_id"]


def test_the_list_of_commands_is_the_servers_whatever_was_asked(peer):
    answer = peer.ask(Key.EXCHANGE_COMMAND_VERSIONS, versions=[])
    rows = [tuple(row) for row in answer.versions]
    assert rows[1] == (Key.PUBLISH, 1, 2), "one client looks it up by its place"
    assert [row[0] for row in rows] == [1, 2, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 22, 23, 24, 25, 28, 29, 30, 31]
    assert all(row[1:] == (1, 1) for row in rows if row[0] != Key.PUBLISH)


def test_an_answer_to_a_question_that_nobody_asked_is_ignored(peer):
    answer = codec.encode_response(Key.CONSUMER_UPDATE, 7, Code.OK, offset_type=0)
    peer.send(answer, (len(answer) + 4).to_bytes(4, "big") + answer[4:] + b"\0" * 8)
    peer.ask(Key.METADATA, streams=[])
