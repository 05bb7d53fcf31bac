# SPDX-License-Identifier: Apache-2.0
"""What the native client does when its connection is lost: nothing is lost with it but time."""

import json
import threading
from random import Random

import pytest
from peers.native import error_frame, publish_ack_frame
from peers.native_server import NativeServer

from vibemq.client import QueueOptions, connect
from vibemq.client._native import Batch, Core, Fields, Flow
from vibemq.errors import ConnectionClosed, LimitExceeded, ProtocolError, VibeMQError
from vibemq.protocols.native import codec
from vibemq.protocols.native.spec import Command, DeliveryMode, ErrorCode

QUICK = {"reconnect_initial_delay_s": 0.01, "reconnect_max_delay_s": 0.02}


@pytest.fixture
def server():
    with NativeServer() as running:
        yield running


class States:
    """Records on_connection; `await_state` waits for the Nth time of a state."""

    def __init__(self):
        self.seen, self.news = [], threading.Condition()

    def __call__(self, state, error):
        with self.news:
            self.seen.append((state.value, error))
            self.news.notify_all()

    def names(self):
        return [name for name, _ in self.seen]

    def await_state(self, name, count=1):
        with self.news:
            assert self.news.wait_for(lambda: self.names().count(name) >= count, 20), self.seen


def ids(frames):
    return [frame.id for frame in frames]


def test_unacknowledged_messages_go_out_again_with_the_same_ids(server):
    lost = []

    def lose(connection, frame):
        lost.append(frame)
        if len(lost) == 10:
            del server.replies[Command.PUBLISH]
            connection.transport.abort()
        return [publish_ack_frame(frame.id, b"q")] if len(lost) <= 3 else []

    server.replies[Command.PUBLISH] = lose
    with connect(server.url, **QUICK) as client:
        summary = client.publish_many("q", range(10), headers={"k": "v"})
    assert summary.published == 10
    again = server.of(Command.PUBLISH)[10:]
    assert [frame.id for frame in again if "vibemq-resend" in frame.headers] == ids(again)
    assert set(ids(lost)[9:]) <= set(ids(again)) <= set(ids(lost))
    assert {frame.headers["k"] for frame in again} == {"v"}
    assert [json.loads(frame.payload) for frame in again][-1] == 9
    assert {frame.headers.get("vibemq-resend") for frame in lost} == {None}


def test_nothing_is_published_twice_by_a_lost_connection(server):
    def store_and_lose(connection, frame):
        connection.on_publish(frame)
        if json.loads(frame.payload) == 77:
            del server.replies[Command.PUBLISH]
            connection.transport.abort()
        return []

    server.replies[Command.PUBLISH] = store_and_lose
    with connect(server.url, **QUICK) as client:
        assert client.publish_many("q", range(100)).published == 100
    assert sorted(json.loads(m[1]) for m in server.queues["q"].waiting) == list(range(100))


def test_publishing_without_a_connection_waits_for_the_next(server):
    states = States()
    with connect(server.url, on_connection=states, **QUICK) as client:
        server.accepting = False
        server.drop()
        states.await_state("reconnecting")
        publisher = client.publisher("q")
        publisher.publish(1, id="kept")
        server.accepting = True
        assert publisher.flush().published == 1
        (frame,) = server.of(Command.PUBLISH)
        assert frame.id == b"kept"
        assert "vibemq-resend" not in frame.headers  # it never went out before


def test_subscriptions_and_declarations_are_made_again(server):
    states = States()
    with connect(f"{server.url}?queues=b", on_connection=states, **QUICK) as client:
        client.declare_queue("a", QueueOptions(mode=DeliveryMode.PRIORITY_BASED), on_conflict="fail")
        consumer = client.consume("q", prefetch=3)
        consumer.open()
        server.queues.clear()
        server.drop()
        states.await_state("connected", 2)
        client.publish("q", 5)
        assert next(consumer).payload == 5
        assert server.queues["a"].options.mode == DeliveryMode.PRIORITY_BASED
        assert "b" in server.queues
        assert [frame.headers for frame in server.of(Command.SUBSCRIBE)] == [
            {"prefetch": "3", "vibemq-create": "false"}
        ] * 2
    assert states.names() == ["connecting", "connected", "reconnecting", "connected", "closed"]


def test_a_conflict_while_reconnecting_is_ignored(server):
    states = States()
    with connect(server.url, on_connection=states, **QUICK) as client:
        client.declare_queue("a", mode="round_robin", on_conflict="override")
        client.delete_queue("b", missing_ok=True)
        server.queues["a"].options = QueueOptions(mode=DeliveryMode.FAN_OUT_WITH_ACK)
        server.drop()
        states.await_state("connected", 2)
        assert len(server.of(Command.DELETE_QUEUE)) == 1


def test_a_message_of_a_lost_connection_is_neither_handed_out_nor_acknowledged(server):
    states = States()
    with connect(server.url, on_connection=states, **QUICK) as client:
        client.publish_many("q", range(2))
        consumer = client.consume("q")
        first = next(consumer)
        server.drop()
        states.await_state("connected", 2)
        first.ack()
        assert not first.settled
        got = [next(consumer), next(consumer)]
        assert [(message.payload, message.attempts) for message in got] == [(0, 2), (1, 2)]
        for message in got:
            message.ack()
        assert len(server.await_frames(Command.ACK, 2)) == 2


def test_a_goodbye_of_the_server_means_reconnecting(server):
    states = States()
    with connect(server.url, on_connection=states, **QUICK):
        server.send(codec.encode_frame(Command.DISCONNECT, "x", headers={"reason": "server_shutdown"}))
        states.await_state("connected", 2)
    reasons = [str(error) for name, error in states.seen if name == "reconnecting"]
    assert reasons == [f"127.0.0.1:{server.port}: the broker said goodbye: server_shutdown"]


def test_a_subscription_that_is_refused_while_reconnecting_is_tried_again(server):
    states = States()
    refusals = []

    def refuse(connection, frame):
        refusals.append(frame)
        if len(refusals) == 2:
            del server.replies[Command.SUBSCRIBE]
        return connection.refuse(frame, ErrorCode.SERVER_ERROR)

    with connect(server.url, on_connection=states, **QUICK) as client:
        consumer = client.consume("q")
        consumer.open()
        server.replies[Command.SUBSCRIBE] = refuse
        server.drop()
        states.await_state("connected", 2)
        client.publish("q", 1)
        assert next(consumer).payload == 1
    assert len(refusals) == 2


def test_a_silent_server_is_left(server):
    states = States()
    with connect(server.url, on_connection=states, keep_alive_s=0.05, **QUICK):
        assert len(server.await_frames(Command.PING, 2)) >= 2
        server.replies[Command.PING] = lambda connection, frame: []
        states.await_state("connected", 2)
    assert "not even the answer to a ping" in str(states.seen[2][1])


def test_giving_up_is_told_to_all_who_wait(server, caplog):
    states = States()
    client = connect(server.url, on_connection=states, reconnect_max_attempts=2, **QUICK)
    consumer = client.consume("q")
    consumer.open()
    server.replies[Command.PUBLISH] = lambda connection, frame: connection.transport.abort() or []
    server.accepting = False
    with pytest.raises(ConnectionClosed, match="given up after 2 attempts") as told:
        client.publish("q", 1)
    assert str(told.value).count(server.url.removeprefix("vibemq://")) == 1, "the address, once"
    assert [line.getMessage().count(server.url.removeprefix("vibemq://")) for line in caplog.records] == [1, 1]
    with pytest.raises(ConnectionClosed, match="given up"):
        next(consumer)
    with pytest.raises(ConnectionClosed, match="given up"):
        client.list_queues()
    client.close()
    assert states.names().count("closed") == 1


def test_without_reconnect_the_first_loss_is_the_end(server):
    client = connect(server.url, reconnect=False)
    server.replies[Command.LIST_QUEUES] = lambda connection, frame: connection.transport.abort() or []
    with pytest.raises(ConnectionClosed):
        client.list_queues()
    assert client.state.value == "closed"
    client.close()


def test_a_request_fails_with_its_connection_and_can_be_made_again(server):
    def lose(connection, frame):
        del server.replies[Command.LIST_QUEUES]
        connection.transport.abort()
        return []

    server.replies[Command.LIST_QUEUES] = lose
    with connect(server.url, **QUICK) as client:
        with pytest.raises(ConnectionClosed):
            client.list_queues()
        assert client.list_queues() == []


def test_closing_while_reconnecting_ends(server):
    states = States()
    client = connect(server.url, on_connection=states, reconnect_initial_delay_s=300)
    server.drop()
    states.await_state("reconnecting")
    client.close()
    assert states.names()[-1] == "closed"


def test_a_callback_that_fails_changes_nothing(server, caplog):
    def broken(state, error):
        raise ValueError("mine")

    with caplog.at_level("CRITICAL", "vibemq.client"), connect(server.url, on_connection=broken) as client:
        assert client.list_queues() == []


# ---- the core by itself ----


@pytest.mark.parametrize("text_layout", [False, True])
def test_what_is_sent_again_is_the_same_frame_with_one_header_more(text_layout):
    core, flow = Core(text_layout=text_layout, prefix=b"0123456789abcdef"), Flow()
    batch = Batch(core, "q")
    batch.add({"a": 1}, Fields({"k": "v"}))
    batch.add(2, id="mine")
    batch.add(3)
    core.submit(batch, flow)
    before = [codec.decode_body(body) for _, body in codec.split_frames(core.wire(batch))[0]]
    assert core.feed(publish_ack_frame(before[1].id, b"q", text_layout)) == []
    core.restart()
    again = [codec.decode_body(body) for _, body in codec.split_frames(core.unacknowledged())[0]]
    assert ids(before) == [b"0123456789abcdef%016x" % 0, b"mine", b"0123456789abcdef%016x" % 2]
    assert again == [
        frame._replace(headers={**frame.headers, "vibemq-resend": "1"}) for frame in (before[0], before[2])
    ]
    assert {frame.text_layout for frame in [*before, *again]} == {text_layout}
    assert (flow.submitted, flow.in_flight, flow.acked) == (3, 2, 1)


def test_frames_are_read_whole_byte_by_byte_and_with_a_tail():
    def run(cut):
        core, flow = Core(prefix=b"0123456789abcdef"), Flow()
        batch = Batch(core, "q")
        batch.extend(iter(range(5)), 10)
        core.submit(batch, flow)
        acks = [publish_ack_frame(b"0123456789abcdef%016x" % n, b"q") for n in range(5)]
        deliver = codec.encode_frame(Command.DELIVER, "m", queue="q", payload=b"1")
        data = b"".join([*acks[:3], deliver, *acks[3:]])
        events = [event for part in cut(data) for event in core.feed(part)]
        return [event.id for event in events], flow.acked

    def bytewise(data):
        return [data[i : i + 1] for i in range(len(data))]

    assert run(lambda data: [data]) == run(bytewise) == run(lambda data: [data + b"\0", b"\0"]) == (["m"], 5)


def test_ids_rise_from_message_to_message_and_from_batch_to_batch():
    core, flow = Core(prefix=b"0123456789abcdef"), Flow()
    batches = [Batch(core, "q") for _ in range(3)]
    for batch in batches:
        batch.extend(iter(range(2)), 2)
        core.submit(batch, flow)
    ids = [batch.id_of(place) for batch in batches for place in range(2)]
    assert ids == [f"0123456789abcdef{batch << 20 | place:016x}" for batch in range(3) for place in range(2)]
    for id in reversed(ids):
        core.feed(publish_ack_frame(id.encode(), b"q"))
    assert (flow.in_flight, flow.acked) == (0, 6)


def test_a_batch_has_no_more_messages_than_its_ids_have_places():
    batch = Batch(Core(), "q")
    for _ in range(1 << 20):
        batch.add(0)
    with pytest.raises(LimitExceeded, match="messages of a batch"):
        batch.add(0)


def test_an_acknowledgement_of_something_unknown_is_nothing():
    core = Core(prefix=b"0123456789abcdef")
    for id in (b"x", b"0123456789abcdef" + b"f" * 16, b"0123456789abcdef" + b"0" * 16, b"0123456789abcdef" + b"g" * 16):
        assert core.feed(publish_ack_frame(id, b"q")) == []


def test_damaged_bytes_are_an_error_of_the_protocol_and_nothing_else():
    """For each seed a run of frames with some bytes changed; what comes of it is told by class."""
    good = b"".join(
        [
            codec.encode_frame(Command.DELIVER, "m", queue="q", payload=b"[1]", headers={"k": "v"}),
            publish_ack_frame(b"0123456789abcdef" + b"0" * 16, b"q"),
            error_frame(b"0123456789abcdef" + b"0" * 15 + b"1", b"q", "QUEUE_FULL", "No."),
            codec.encode_frame(Command.QUEUE_INFO, "i", queue="q", payload=b"{}"),
        ]
    )
    for seed in range(2_000):
        random = Random(seed)
        core, flow = Core(prefix=b"0123456789abcdef"), Flow()
        batch = Batch(core, "q")
        batch.extend(iter(range(2)), 2)
        core.submit(batch, flow)
        data = bytearray(good)
        for _ in range(random.randrange(1, 4)):
            data[random.randrange(len(data))] = random.randrange(256)
        try:
            for event in core.feed(bytes(data)):
                repr(event)
        except VibeMQError as error:
            assert isinstance(error, ProtocolError | LimitExceeded), f"seed {seed}: {error!r}"
        assert flow.submitted == flow.in_flight + flow.acked + len(flow.refused), f"seed {seed}"
