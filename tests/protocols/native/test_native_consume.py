# SPDX-License-Identifier: Apache-2.0
"""Subscribe, Deliver, Ack and nack, as the frames show them; the policies of queues have tests of their own."""

import pytest
from peers.native import NativePeer, connected
from running import wait_until

from vibemq.protocols.native.spec import Command

# ---- subscribing ----


@pytest.mark.parametrize("text", [False, True], ids=["dotnet", "text"])
def test_subscribe_ack_comes_before_the_backlog(served, peer, name, text):
    for at in range(10):
        peer.publish(name, b"%d" % at, b"m%d" % at)
    with connected(served, text=text) as reader:
        answer = reader.ask(Command.SUBSCRIBE, b"sub_123", queue=name)
        assert (answer.type, answer.queue) == (Command.SUBSCRIBE_ACK, name)
        assert answer.headers == {"queueName": name, "subscriptionId": "sub_123"}
        assert reader.delivers(10) == [b"m%d" % at for at in range(10)]


def test_subscribing_twice_is_acknowledged_and_changes_nothing(peer, other, name):
    peer.subscribe(name)
    peer.subscribe(name)
    assert peer.info(name)["subscriberCount"] == 1
    other.publish(name, b"1", b"m")
    assert peer.deliver().id == b"m"
    peer.ping()


def test_who_publishes_and_subscribes_gets_its_own_messages(peer, name):
    peer.subscribe(name)
    peer.send(Command.PUBLISH, b"m", queue=name, payload=b"1")
    assert {peer.next().type, peer.next().type} == {Command.PUBLISH_ACK, Command.DELIVER}


def test_unsubscribe_is_acknowledged_also_without_subscription_and_gives_messages_back(peer, other, name):
    peer.subscribe(name)
    other.publish(name, b"1", b"m")
    assert peer.deliver(ack=False).headers["deliveryAttempts"] == "1"
    for _ in range(2):
        answer = peer.ask(Command.UNSUBSCRIBE, queue=name)
        assert (answer.type, answer.queue, answer.headers) == (Command.UNSUBSCRIBE_ACK, name, {"queueName": name})
    peer.send(Command.ACK, b"m")  # too late: it is not this connection's any more
    peer.ping()
    other.subscribe(name)
    message = other.deliver()
    assert (message.id, message.headers["deliveryAttempts"]) == (b"m", "2")


def test_a_lost_connection_gives_its_messages_back_in_order(served, peer, name):
    with connected(served) as lost:
        lost.subscribe(name)
        for at in range(5):
            peer.publish(name, b"1", b"m%d" % at)
        lost.delivers(5, ack=False)
        lost.send(Command.ACK, b"m2")
        lost.ping()
    peer.subscribe(name)
    assert peer.delivers(4) == [b"m0", b"m1", b"m3", b"m4"]


@pytest.mark.parametrize("leaves", [Command.DISCONNECT, None], ids=["disconnect", "eof"])
def test_who_leaves_keeps_nothing(served, peer, name, leaves):
    with connected(served) as lost:
        lost.subscribe(name)
        peer.publish(name, b"1", b"m")
        lost.deliver(ack=False)
        if leaves is not None:
            lost.send(leaves)
            assert lost.rest() == []
    wait_until(lambda: peer.info(name)["subscriberCount"] == 0, "the subscription is gone")
    assert peer.info(name)["messageCount"] == 1


# ---- prefetch ----


def test_prefetch_bounds_what_is_in_flight_and_acks_refill_it(peer, other, name):
    peer.subscribe(name, prefetch="2")
    for at in range(6):
        other.publish(name, b"1", b"m%d" % at)
    assert peer.delivers(2, ack=False) == [b"m0", b"m1"]
    peer.ping()
    assert other.info(name)["messageCount"] == 4
    peer.send(Command.ACK, b"m0")
    assert peer.delivers(1, ack=False) == [b"m2"]
    peer.ping()
    for id in (b"m1", b"m2"):
        peer.send(Command.ACK, id)
    assert peer.delivers(2) == [b"m3", b"m4"]


@pytest.mark.parametrize("prefetch", ["-1", "many", "1.5", "99999999999999999999", "2000001"])
def test_a_prefetch_that_cannot_be_is_refused(peer, name, prefetch):
    assert peer.refused(Command.SUBSCRIBE, queue=name, headers={"prefetch": prefetch}) == "INVALID_MESSAGE"
    assert peer.refused(Command.UNSUBSCRIBE) == "INVALID_QUEUE"


def test_a_queue_that_declares_no_prefetch_at_all_still_delivers(peer, name):
    peer.create(name, prefetch=0)
    peer.subscribe(name)
    peer.send(Command.PUBLISH, b"m", queue=name, payload=b"1")
    assert {peer.next().type, peer.next().type} == {Command.PUBLISH_ACK, Command.DELIVER}


# ---- acknowledging ----


def settled(peer, name):
    peer.ping()
    return peer.info(name)["inFlightCount"] == 0


@pytest.mark.parametrize(
    ("id", "fields"),
    [
        (b"m", {}),
        (b"ack_123", {"headers": {"messageId": "m"}}),
        (b"m", {"headers": {"messageId": "unknown here"}}),
        (b"m", {"headers": {"messageId": ""}}),
        (b"ack_123", {"headers": {"messageId": "m", "other": "x"}, "queue": "QUEUE"}),
        (b"m", {"queue": "QUEUE"}),
        (b"m", {"payload": b"not json", "text_layout": True}),
    ],
    ids=["frame id", "header", "unknown header", "empty header", "header and queue", "id and queue", "odd frame"],
)
def test_an_ack_names_its_message_by_header_or_by_frame_id(peer, name, id, fields):
    peer.subscribe(name)
    peer.send(Command.PUBLISH, b"m", queue=name, payload=b"1")
    assert {peer.next().type, peer.next().type} == {Command.PUBLISH_ACK, Command.DELIVER}
    if "queue" in fields:
        fields = {**fields, "queue": name}
    peer.send(Command.ACK, id, **fields)
    assert settled(peer, name)


def test_acks_of_nothing_are_ignored(peer, other, name):
    peer.send(Command.ACK, b"m")
    peer.subscribe(name)
    other.publish(name, b"1", b"m")
    peer.deliver(ack=False)
    other.send(Command.ACK, b"m")  # not its delivery
    other.ping()
    peer.send(Command.ACK, b"m", queue="another-queue")
    peer.send(Command.ACK, b"M")
    peer.ping()
    assert peer.info(name)["inFlightCount"] == 1
    peer.send(Command.ACK, b"m")
    peer.send(Command.ACK, b"m")
    assert settled(peer, name)


def test_of_deliveries_with_one_id_an_ack_settles_the_oldest(peer, other, name):
    peer.subscribe(name)
    for at in range(3):
        other.publish(name, b"%d" % at, b"same")
    assert [peer.deliver(ack=False).payload for _ in range(3)] == [b"0", b"1", b"2"]
    peer.send(Command.ACK, b"same")
    peer.ping()
    assert peer.info(name)["inFlightCount"] == 2
    peer.ask(Command.UNSUBSCRIBE, queue=name)
    other.subscribe(name)
    assert [other.deliver().payload for _ in range(2)] == [b"1", b"2"]


def test_a_queue_field_tells_deliveries_with_one_id_apart(peer, other, name):
    queues = [f"{name}-a", f"{name}-b"]
    for queue in queues:
        peer.subscribe(queue)
        other.publish(queue, b"1", b"same")
        peer.deliver(ack=False)
    peer.send(Command.ACK, b"x", queue=queues[1], headers={"messageId": "same"})
    assert settled(peer, queues[1])
    assert peer.info(queues[0])["inFlightCount"] == 1
    peer.send(Command.ACK, b"same", queue=queues[1])  # nothing is left there
    peer.ping()
    assert peer.info(queues[0])["inFlightCount"] == 1
    peer.send(Command.ACK, b"same")
    assert settled(peer, queues[0])


def test_the_header_may_be_of_another_queue_than_the_ack_and_then_the_frame_id_counts(peer, other, name):
    first, second = f"{name}-a", f"{name}-b"
    for queue, id in ((first, b"one"), (second, b"two")):
        peer.subscribe(queue)
        other.publish(queue, b"1", id)
        peer.deliver(ack=False)
    peer.send(Command.ACK, b"two", queue=second, headers={"messageId": "one"})
    assert settled(peer, second)
    assert peer.info(first)["inFlightCount"] == 1


def test_nack_gives_a_message_back_at_once_and_counts(served, other, name):
    other.create(name, maxRetryAttempts=3, backoffMs=0)
    with connected(served, features="nack") as peer:
        peer.subscribe(name)
        other.publish(name, b"1", b"m")
        for attempts in ("1", "2"):
            message = peer.deliver(ack=False)
            assert (message.id, message.headers["deliveryAttempts"]) == (b"m", attempts)
            peer.send(Command.NACK, b"x", headers={"messageId": "m"})
        assert peer.deliver().headers["deliveryAttempts"] == "3"
        peer.send(Command.NACK, b"unknown")
        assert settled(peer, name)


def test_a_nack_that_nobody_asked_for_is_unknown_and_settles_nothing(peer, other, name):
    peer.subscribe(name)
    other.publish(name, b"1", b"m")
    peer.deliver(ack=False)
    assert peer.refused(Command.NACK, b"m") == "UNKNOWN_COMMAND"
    assert peer.info(name)["inFlightCount"] == 1


# ---- what lives on ----


def test_a_subscription_survives_deletion_and_recreation_of_its_queue(peer, other, name):
    peer.subscribe(name)
    other.publish(name, b"1", b"old")
    assert peer.deliver(ack=False).id == b"old"
    for at in range(3):
        assert other.ask(Command.DELETE_QUEUE, queue=name).type == Command.DELETE_QUEUE
        peer.send(Command.ACK, b"old")  # late, and ignored
        other.create(name)
        other.publish(name, b"1", b"new%d" % at)
        assert peer.delivers(1) == [b"new%d" % at]
    assert peer.ask(Command.UNSUBSCRIBE, queue=name).type == Command.UNSUBSCRIBE_ACK
    wait_until(lambda: other.info(name)["subscriberCount"] == 0, "the subscription has ended")


def test_it_may_be_ended_or_asked_for_again_while_its_queue_does_not_exist(peer, other, name):
    peer.subscribe(name)
    other.ask(Command.DELETE_QUEUE, queue=name)
    peer.subscribe(name)  # makes the queue
    other.publish(name, b"1", b"m")
    assert peer.delivers(1) == [b"m"]
    other.ask(Command.DELETE_QUEUE, queue=name)
    wait_until(lambda: not other.ask(Command.QUEUE_INFO, queue=name).payload, "it is gone")
    peer.ask(Command.UNSUBSCRIBE, queue=name)
    other.create(name)
    other.publish(name, b"1", b"m")
    peer.ping()
    assert other.info(name)["subscriberCount"] == 0


def test_publishing_goes_on_after_the_queue_was_deleted_by_somebody_else(peer, other, name):
    peer.publish(name)
    for _ in range(3):
        other.ask(Command.DELETE_QUEUE, queue=name)
        peer.publish(name)
        assert other.info(name)["messageCount"] == 1


def test_a_hundred_subscriptions_of_one_connection_are_told_apart(peer, other, name):
    queues = [f"{name}-{at}" for at in range(100)]
    for queue in queues:
        peer.subscribe(queue)
    for queue in queues[::2]:
        peer.ask(Command.UNSUBSCRIBE, queue=queue)
    for queue in queues:
        other.publish(queue, b"1", queue.encode())
    got = [peer.deliver() for _ in queues[1::2]]
    assert sorted(message.queue for message in got) == sorted(queues[1::2])
    assert all(message.id.decode() == message.queue for message in got)
    peer.ping()


# ---- a peer that does not read ----


def test_a_consumer_that_never_reads_holds_neither_publishers_nor_consumers_up(served, peer, other, name):
    count, size = 400, 20_000
    payload = b'"' + b"x" * size + b'"'
    with NativePeer(served, receive_buffer_bytes=4096) as deaf:
        deaf.connect()
        deaf.subscribe(name)
        peer.subscribe(name)
        sent = [b"m%d" % at for at in range(count)]
        other.write(*(other.frame(Command.PUBLISH, id, queue=name, payload=payload) for id in sent))
        for _ in sent:
            other.expect(Command.PUBLISH_ACK)
        got = set()

        def shared_out() -> bool:
            while peer.has_frame():
                got.add(peer.deliver().id)
            info = other.info(name)
            return info["messageCount"] == 0 and len(got) + info["inFlightCount"] == count

        wait_until(shared_out, "the one that reads has settled its part")
        assert 0 < len(got) < count
    while len(got) < count:
        got.add(peer.deliver().id)
    assert got == set(sent)
