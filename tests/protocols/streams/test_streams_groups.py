# SPDX-License-Identifier: Apache-2.0
"""Single active consumers: who is asked, who gets messages, and what happens when one of them is gone.

Members of one group sit on every worker; which worker a connection lands on is up to the kernel.
"""

import contextlib
import itertools
import os
import signal

import pytest
from peers.streams import Killed, connected, kill, managed, on_every_worker, readable, server_of
from running import broker

from vibemq.protocols.streams import codec, spec
from vibemq.protocols.streams.spec import Code, Key, OffsetType

SERVER_CORRELATION_ID_FIRST = 0x4000_0000
FIRST, NEXT, NONE = OffsetType.FIRST, OffsetType.NEXT, OffsetType.NONE
CONSUMER_UPDATE_ANSWER = Key.CONSUMER_UPDATE | spec.RESPONSE_BIT


def properties(name="group", **more):
    return {"single-active-consumer": "true", "name": name, **more}


def join(peer, stream, subscription_id=0, *, name="group", credit=10, at=FIRST, **more):
    peer.subscribe(stream, subscription_id, at=at, credit=credit, properties=properties(name, **more))


def asked(peer, active=True, subscription_id=0):
    """The correlation id of the next frame, which must be that ConsumerUpdate."""
    question = peer.expect(Key.CONSUMER_UPDATE)
    assert (question.subscription_id, question.active) == (subscription_id, active)
    assert question.correlation_id >= SERVER_CORRELATION_ID_FIRST
    return question.correlation_id


def answer(peer, correlation_id, offset_type=NONE, offset_value=0, code=Code.OK, tail=b""):
    fields = {"offset_type": offset_type}
    if offset_type in (OffsetType.OFFSET, OffsetType.TIMESTAMP):
        fields["offset_value"] = offset_value
    frame = codec.encode_response(Key.CONSUMER_UPDATE, correlation_id, code, **fields)
    peer.send((len(frame) - 4 + len(tail)).to_bytes(4, "big") + frame[4:] + tail)


def activated(peer, subscription_id=0, **where):
    answer(peer, asked(peer, True, subscription_id), **where)


def nothing_more(*peers):
    """The answer to a command comes after whatever there was to say or to deliver."""
    for peer in peers:
        peer.ask(Key.METADATA, streams=[])


@pytest.fixture
def members(served):
    """As many connections as one asks for; over all workers, as far as the kernel spreads them."""
    peers = []
    with contextlib.ExitStack() as stack:

        def more(count=1):
            made = [stack.enter_context(connected(served)) for _ in range(count)]
            peers.extend(made)
            return made

        yield more


# ---- one group ----


def test_the_first_member_is_asked_after_ok_and_gets_nothing_before_its_answer(peer, stream):
    peer.store(stream, [b"m"] * 3)
    join(peer, stream)
    correlation_id = asked(peer)
    nothing_more(peer)
    answer(peer, correlation_id)
    assert peer.chunk().chunk_id == 0


@pytest.mark.parametrize(
    ("offset_type", "value", "first"),
    [(NONE, 0, 0), (FIRST, 0, 0), (OffsetType.LAST, 0, 2), (OffsetType.OFFSET, 1, 1), (OffsetType.TIMESTAMP, 0, 0)],
)
@pytest.mark.parametrize("tail", [b"", bytes(8)])
def test_the_answer_says_where_to_begin_whatever_its_tail_and_its_code(peer, stream, offset_type, value, first, tail):
    for _ in range(3):
        peer.store(stream, [b"m"])
    for subscription_id, code in enumerate((Code.OK, Code.PRECONDITION_FAILED)):
        join(peer, stream, subscription_id, name=f"group-{code}")
        tail = b"" if value or offset_type == OffsetType.TIMESTAMP else tail
        answer(peer, asked(peer, True, subscription_id), offset_type, value, code, tail)
        assert peer.chunk(subscription_id).chunk_id == first
        peer.send(peer.command(Key.UNSUBSCRIBE, subscription_id=subscription_id))
        peer.until(Key.UNSUBSCRIBE | spec.RESPONSE_BIT)


def test_next_as_answer_means_what_comes_from_now_on(peer, stream):
    peer.store(stream, [b"old"])
    join(peer, stream)
    activated(peer, offset_type=NEXT)
    nothing_more(peer)
    peer.declare(stream)
    peer.publish([(1, b"new")])
    assert peer.until(Key.DELIVER)[1].chunk.chunk_id == 1


def test_the_others_wait_and_take_over_in_the_order_in_which_they_came(peer, stream, members):
    peer.store(stream, [b"m"])
    first, second, third = members(3)
    for member in (first, second, third):
        join(member, stream)
    activated(first)
    assert first.chunk().chunk_id == 0
    nothing_more(second, third)
    assert first.code(Key.UNSUBSCRIBE, subscription_id=0) == Code.OK
    activated(second)
    assert second.chunk().chunk_id == 0
    second.socket.close()
    activated(third)
    assert third.chunk().chunk_id == 0
    nothing_more(first)


def test_the_active_member_stays_when_others_come_and_go(peer, stream, members):
    first, second, third = members(3)
    join(first, stream)
    activated(first)
    join(second, stream)
    join(third, stream)
    assert second.code(Key.UNSUBSCRIBE, subscription_id=0) == Code.OK
    peer.store(stream, [b"m"])
    assert first.chunk().chunk_id == 0
    nothing_more(first, second, third)


def test_who_leaves_before_it_answers_is_not_waited_for(stream, members):
    first, second = members(2)
    join(first, stream)
    join(second, stream)
    asked(first)
    assert first.code(Key.UNSUBSCRIBE, subscription_id=0) == Code.OK
    activated(second)


def test_members_may_share_a_connection_and_groups_a_stream(peer, stream):
    peer.store(stream, [b"m"])
    join(peer, stream, 1, name="one")
    activated(peer, 1)
    assert peer.chunk(1).chunk_id == 0
    join(peer, stream, 2, name="one")
    join(peer, stream, 3, name="other")
    activated(peer, 3)
    assert peer.chunk(3).chunk_id == 0
    peer.send(peer.command(Key.UNSUBSCRIBE, subscription_id=1))
    frames, _ = peer.until(Key.CONSUMER_UPDATE)
    assert [frame.key for frame in frames] == [Key.UNSUBSCRIBE | spec.RESPONSE_BIT]


# ---- credit ----


def test_credit_of_a_waiting_member_is_refused_and_kept(peer, stream, members):
    for _ in range(3):
        peer.store(stream, [b"m"])
    first, second = members(2)
    join(first, stream, credit=0)
    join(second, stream, credit=1)
    for member in (first, second):
        member.credit(0, 2)
    question = asked(first)
    for member in (first, second):
        refusal = member.expect(Key.CREDIT | spec.RESPONSE_BIT)
        assert (refusal.code, refusal.subscription_id) == (Code.PRECONDITION_FAILED, 0)
    answer(first, question)
    assert [first.chunk().chunk_id for _ in range(2)] == [0, 1]
    nothing_more(first)
    first.socket.close()
    activated(second)
    assert [second.chunk().chunk_id for _ in range(3)] == [0, 1, 2]


# ---- partitions of super streams ----


@pytest.fixture
def partitions(peer, name):
    """Two partitions of a super stream."""
    streams = [f"{name}-{number}" for number in range(2)]
    fields = {"partitions": streams, "binding_keys": ["0", "1"], "arguments": {}}
    assert peer.code(Key.CREATE_SUPER_STREAM, name=name, **fields) == Code.OK
    return streams


def test_partitions_are_spread_over_the_members_of_their_groups(name, partitions, members):
    first, second = members(2)
    more = {"super-stream": name}
    for number, stream in enumerate(partitions):
        join(first, stream, number, **more)
        activated(first, number)
    join(second, partitions[0], 0, **more)  # of two members, partition 0 stays with the first
    nothing_more(first, second)
    join(second, partitions[1], 1, **more)
    stop = asked(first, False, 1)
    nothing_more(second)
    answer(first, stop)
    activated(second, 1)
    nothing_more(first)


def test_the_old_member_gets_nothing_more_and_the_new_one_nothing_before_it_has_answered(
    peer, name, partitions, members
):
    first, second = members(2)
    more = {"super-stream": name}
    join(first, partitions[1], credit=100, **more)
    activated(first)
    peer.store(partitions[1], [b"before"])
    assert first.chunk().chunk_id == 0
    join(second, partitions[1], credit=100, **more)
    stop = asked(first, False)
    peer.store(partitions[1], [b"between"])
    nothing_more(first, second)
    answer(first, stop)
    activated(second, offset_type=OffsetType.OFFSET, offset_value=1)
    assert second.chunk().chunk_id == 1
    peer.store(partitions[1], [b"after"])
    assert second.chunk().chunk_id == 2
    nothing_more(first)
    second.socket.close()
    activated(first, offset_type=OffsetType.OFFSET, offset_value=2)
    assert first.chunk().chunk_id == 2


def test_a_deliver_that_is_half_out_ends_before_its_consumer_is_told_to_stop(peer, served, name, partitions, members):
    more = {"super-stream": name}
    message = bytes(range(256)) * 3500
    for _ in range(4):
        peer.store(partitions[1], [message])
    with connected(served, receive_buffer_bytes=4096) as slow:
        join(slow, partitions[1], credit=10, **more)
        activated(slow)
        readable(slow)
        (heir,) = members()
        join(heir, partitions[1], **more)
        chunks = 0
        while (frame := slow.next_frame()).key == Key.DELIVER:
            chunk = frame.decoded().chunk
            assert (chunk.chunk_id, chunk.data[4:]) == (chunks, message)
            chunks += 1
        assert 0 < chunks <= 4
        assert (frame.key, frame.decoded().active) == (Key.CONSUMER_UPDATE, False)
        answer(slow, frame.decoded().correlation_id)
        activated(heir, offset_type=OffsetType.OFFSET, offset_value=3)
        assert heir.chunk().chunk_id == 3


def test_who_is_to_stop_and_goes_without_an_answer_is_not_waited_for(name, partitions, members):
    first, second = members(2)
    more = {"super-stream": name}
    join(first, partitions[1], **more)
    activated(first)
    join(second, partitions[1], **more)
    asked(first, False)
    first.socket.close()
    activated(second)


def test_another_partition_index_in_one_group_is_17(peer, name, partitions, members):
    join(peer, partitions[1], 0, **{"super-stream": name})
    (other,) = members()
    fields = {"subscription_id": 1, "stream": partitions[1], "offset_type": FIRST, "credit": 1}
    assert other.code(Key.SUBSCRIBE, properties=properties(), **fields) == Code.PRECONDITION_FAILED
    assert other.code(Key.UNSUBSCRIBE, subscription_id=1) == Code.SUBSCRIPTION_ID_DOES_NOT_EXIST


def test_a_group_needs_a_name_and_only_true_makes_one(peer, stream):
    fields = {"stream": stream, "offset_type": FIRST, "credit": 0}
    nameless = {"single-active-consumer": "true"}
    assert peer.code(Key.SUBSCRIBE, subscription_id=0, properties=nameless, **fields) == Code.PRECONDITION_FAILED
    for subscription_id, word in enumerate(("True", "1", "yes", "")):
        plain = {"single-active-consumer": word, "name": "group"}
        assert peer.code(Key.SUBSCRIBE, subscription_id=subscription_id, properties=plain, **fields) == Code.OK
    nothing_more(peer)


# ---- the end of streams, and answers that do not come ----


def test_a_deleted_stream_ends_its_groups(peer, stream, members):
    first, second = members(2)
    join(first, stream)
    activated(first)
    join(second, stream)
    assert peer.code(Key.DELETE, stream=stream) == Code.OK
    for member in (first, second):
        assert member.until(Key.METADATA_UPDATE)[1].stream == stream
    peer.create(stream)
    join(second, stream)
    activated(second)


def test_who_does_not_answer_in_time_is_closed_and_the_next_takes_over(tmp_path):
    short = ("--set", "streams.request_timeout_s=1")
    with broker(tmp_path, *short) as running, connected(running) as first, connected(running) as second:
        first.create("s")
        join(first, "s")
        join(second, "s")
        asked(first)
        second.store("s", [b"m"])
        assert first.rest() == b""
        activated(second)
        assert second.chunk().chunk_id == 0


# ---- several workers ----


@pytest.mark.parametrize("workers", [2, 3])
def test_a_killed_worker_makes_the_next_member_active(tmp_path, workers):
    peers = []
    with contextlib.suppress(Killed), broker(tmp_path, workers=workers) as running:
        members = list(on_every_worker(running, peers))
        members[0].create("s")
        members[0].store("s", [b"m"] * 5)
        for member in members:
            join(member, "s")
        activated(members[0])
        assert members[0].chunk().chunk_id == 0
        for active, heir in itertools.pairwise(members):
            kill(server_of(active, set(running.worker_pids())))
            assert active.rest() == b""
            activated(heir)
            assert heir.chunk().chunk_id == 0
        with connected(running) as late:
            join(late, "s")
            nothing_more(late, members[-1])
            members[-1].socket.close()
            activated(late)
            assert late.chunk().chunk_id == 0
    for peer in peers:
        peer.socket.close()


@pytest.mark.parametrize("how", ["deleted", "restarted"])
def test_nobody_is_made_active_when_its_stream_goes_on_another_worker_first(tmp_path, how):
    peers = []
    with broker(tmp_path, workers=2) as running:
        active, waiting = on_every_worker(running, peers)
        active.create("s")
        join(active, "s")
        activated(active)
        join(waiting, "s")
        nothing_more(active, waiting)
        late = server_of(waiting, set(running.worker_pids()))
        os.kill(late, signal.SIGSTOP)
        try:
            if how == "deleted":
                assert active.code(Key.DELETE, stream="s") == Code.OK
            else:
                managed(running, "stream/%2F/s/restart", "POST")
            assert active.expect(Key.METADATA_UPDATE).stream == "s"
        finally:
            os.kill(late, signal.SIGCONT)
        assert waiting.expect(Key.METADATA_UPDATE).stream == "s"  # the next frame that it is sent
    for peer in peers:
        peer.socket.close()


def test_members_of_a_partition_on_several_workers_hand_over_in_turn(tmp_path):
    peers = []
    with broker(tmp_path, workers=3) as running:
        members = list(on_every_worker(running, peers))
        fields = {"partitions": ["x-0", "x-1", "x-2"], "binding_keys": ["0", "1", "2"], "arguments": {}}
        assert members[0].code(Key.CREATE_SUPER_STREAM, name="x", **fields) == Code.OK
        more = {"super-stream": "x"}
        join(members[0], "x-2", **more)
        activated(members[0])
        join(members[1], "x-2", **more)  # 2 mod 2: stays
        nothing_more(members[0], members[1])
        join(members[2], "x-2", **more)  # 2 mod 3: moves to the last
        answer(members[0], asked(members[0], False))
        activated(members[2])
        kill(server_of(members[2], set(running.worker_pids())))
        activated(members[0])  # of the two that are left
        members[1].store("x-2", [b"m"])
        assert members[0].chunk().chunk_id == 0
        nothing_more(members[1])
    for peer in peers:
        peer.socket.close()
