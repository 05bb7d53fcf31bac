# SPDX-License-Identifier: Apache-2.0
"""Who gets which message, by delivery mode: on one worker, so that the order is exact."""

import pytest
from peers.queues import Command, attempts, payload, payloads

ROUND_ROBIN, FAN_OUT_WITH_ACK, FAN_OUT_WITHOUT_ACK, PRIORITY_BASED = range(4)


# ---- round robin ----


def test_round_robin_goes_by_the_order_of_subscription(connect, name):
    publisher, *consumers = [connect() for _ in range(4)]
    publisher.create(name)
    for consumer in consumers:
        consumer.subscribe(name)
    publisher.publish_all(name, range(9))
    assert [payloads(consumer.take(3)) for consumer in consumers] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_round_robin_passes_over_a_full_window(connect, name):
    publisher, narrow, wide = connect(), connect(), connect()
    publisher.create(name)
    narrow.subscribe(name, prefetch=2)
    wide.subscribe(name)
    publisher.publish_all(name, range(8))
    held = narrow.take(2)
    assert payloads(held) == [0, 2]
    assert payloads(wide.take(6)) == [1, 3, 4, 5, 6, 7]
    narrow.ack(held[0])
    narrow.ping()
    publisher.publish_all(name, [8, 9])
    assert sorted([*payloads(narrow.take(1)), *payloads(wide.take(1))]) == [8, 9]


def test_each_message_of_a_round_robin_goes_to_one_consumer_also_across_workers(connect_to, name):
    consumers = [connect_to(number % 2) for number in range(4)]
    consumers[0].create(name)
    for consumer in consumers:
        consumer.subscribe(name)
    consumers[0].await_subscribers(name, 4)
    consumers[0].publish_all(name, range(400))
    shares = [consumer.take(100) for consumer in consumers]
    assert sorted(payload(message) for share in shares for message in share) == list(range(400))
    assert all(payloads(share) == sorted(payloads(share)) for share in shares)
    for consumer, share in zip(consumers, shares, strict=True):
        consumer.ack(*share)
        consumer.ping()
    consumers[0].await_counts(name, 0)


def test_a_publisher_that_is_subscribed_gets_its_own_messages(connect, name):
    peer = connect()
    peer.create(name)
    peer.subscribe(name)
    peer.publish(name, {"mine": True})
    assert payload(peer.delivery()) == {"mine": True}


def test_what_waited_comes_as_soon_as_somebody_subscribes(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name)
    publisher.publish_all(name, range(50))
    assert publisher.counts(name) == (50, 0)
    consumer.subscribe(name)  # the acknowledgement comes first: `answer` would not see it behind 50 Delivers otherwise
    assert payloads(consumer.take(50)) == list(range(50))
    assert publisher.counts(name) == (0, 50)


def test_the_acknowledgement_of_a_subscription_comes_before_its_first_message(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name)
    publisher.publish(name, 1)
    consumer.ask(Command.SUBSCRIBE, b"sub", queue=name)
    assert not consumer.deliveries or consumer.answers == {}
    assert payload(consumer.delivery()) == 1


def test_a_second_subscription_to_the_same_queue_changes_nothing(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name)
    consumer.subscribe(name)
    consumer.subscribe(name)
    publisher.publish(name, 1)
    assert payloads(consumer.rest()) == [1]
    assert publisher.info(name)["subscriberCount"] == 1


def test_a_message_is_delivered_as_it_was_published(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name)
    consumer.subscribe(name)
    body = b'{ "n": 1.0,  "text": "\xc3\xa4 \\u00e4 <&>" }'
    publisher.publish(name, body, "my id", correlationId="c-1", priority="High", own="value")
    message = consumer.delivery()
    assert (message.id, message.queue, message.payload) == (b"my id", name, body)
    headers = {"correlationId": "c-1", "priority": "High", "own": "value", "deliveryAttempts": "1"}
    assert message.headers == headers


def test_a_message_without_payload_is_delivered_without_one(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name)
    consumer.subscribe(name)
    publisher.ask(Command.PUBLISH, b"empty", queue=name)
    message = consumer.delivery()
    assert (message.id, message.payload) == (b"empty", None)


# ---- the window ----


@pytest.mark.parametrize(("prefetch", "window"), [(0, 256), (1, 1), (7, 7), (1000, 1000)])
def test_no_more_is_in_flight_than_the_window_takes(connect, name, prefetch, window):
    publisher, consumer = connect(), connect()
    publisher.create(name)
    publisher.publish_all(name, range(window + 3))
    consumer.subscribe(name, prefetch)
    first = consumer.take(window)
    assert consumer.rest() == []
    assert publisher.counts(name) == (3, window)
    consumer.ack(*first[:2])
    assert payloads(consumer.rest()) == [window, window + 1][:window]


def test_a_queue_may_have_a_window_of_its_own(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, prefetch=3)
    publisher.publish_all(name, range(5))
    consumer.subscribe(name)
    assert payloads(consumer.rest()) == [0, 1, 2]


def test_windows_of_two_subscriptions_of_one_connection_are_apart(connect, name):
    peer, other = connect(), name + ".other"
    for queue in (name, other):
        peer.create(queue)
        peer.publish_all(queue, range(3))
        peer.subscribe(queue, prefetch=1)
    assert sorted(message.queue for message in peer.rest()) == [name, other]


# ---- fan-out with acknowledgement ----


@pytest.mark.parametrize("mode", [FAN_OUT_WITH_ACK, FAN_OUT_WITHOUT_ACK])
def test_a_fan_out_gives_every_consumer_every_message(connect, name, mode):
    publisher, *consumers = [connect() for _ in range(4)]
    publisher.create(name, mode=mode)
    for consumer in consumers:
        consumer.subscribe(name)
    publisher.publish_all(name, range(20))
    assert [payloads(consumer.take(20)) for consumer in consumers] == [list(range(20))] * 3


@pytest.mark.parametrize("mode", [FAN_OUT_WITH_ACK, FAN_OUT_WITHOUT_ACK])
def test_a_fan_out_reaches_consumers_on_all_workers(connect_to, name, mode):
    consumers = [connect_to(number % 2) for number in range(4)]
    consumers[0].create(name, mode=mode)
    for consumer in consumers:
        consumer.subscribe(name)
    consumers[0].await_subscribers(name, 4)
    consumers[1].publish_all(name, range(100))
    for consumer in consumers:
        messages = consumer.take(100)
        assert payloads(messages) == list(range(100))
        if mode == FAN_OUT_WITH_ACK:
            consumer.ack(*messages)
            consumer.ping()
    consumers[0].await_counts(name, 0)


def test_each_copy_of_a_fan_out_is_acknowledged_apart(connect, name):
    publisher, first, second = connect(), connect(), connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK, ackTimeoutMs=300, backoffMs=1, backoffMaxMs=1, maxRetryAttempts=50)
    first.subscribe(name)
    second.subscribe(name)
    publisher.publish(name, "x")
    first.ack(first.delivery())
    assert attempts(second.delivery()) == 1
    assert attempts(second.delivery()) == 2, "the copy that nobody acknowledged comes again"
    assert first.rest() == [], "to the one that owes it only"
    again = second.delivery()
    second.ack(again)
    second.ping()
    assert publisher.counts(name) == (0, 0)


def test_a_consumer_that_comes_late_to_a_fan_out_gets_what_comes_later(connect, name):
    publisher, early, late = connect(), connect(), connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    early.subscribe(name)
    publisher.publish(name, "before")
    early.ping()
    late.subscribe(name)
    publisher.publish(name, "after")
    assert payloads(early.take(2)) == ["before", "after"]
    assert payloads(late.rest()) == ["after"]


@pytest.mark.parametrize("mode", [FAN_OUT_WITH_ACK, FAN_OUT_WITHOUT_ACK])
def test_the_first_consumer_of_a_fan_out_gets_what_waited_for_one(connect, name, mode):
    publisher, first, second = connect(), connect(), connect()
    publisher.create(name, mode=mode)
    publisher.publish_all(name, range(10))
    first.subscribe(name)
    assert payloads(first.rest()) == list(range(10))
    second.subscribe(name)
    assert second.rest() == []


def test_the_copy_of_a_member_that_unsubscribes_is_settled_when_another_was_acknowledged(connect, name):
    publisher, stays, leaves = connect(), connect(), connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    stays.subscribe(name)
    leaves.subscribe(name)
    publisher.publish(name, 1)
    leaves.delivery()
    stays.ack(stays.delivery())
    stays.ping()
    leaves.unsubscribe(name)
    publisher.await_counts(name, 0)
    stays.close()
    newcomer = connect()
    newcomer.subscribe(name)
    assert newcomer.rest() == []


def test_what_all_consumers_of_a_fan_out_took_along_unacknowledged_waits_for_the_next(connect, name):
    publisher, first, second = connect(), connect(), connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    first.subscribe(name)
    second.subscribe(name)
    publisher.publish_all(name, range(4))
    second.take(4)
    first.ack(first.take(4)[2])
    first.ping()
    first.unsubscribe(name)
    second.close()
    publisher.await_counts(name, 4)  # the copy of message 2 is kept for the member that vanished
    newcomer = connect()
    newcomer.subscribe(name)
    messages = newcomer.rest()
    assert payloads(messages) == [0, 1, 2, 3]
    assert all(attempts(message) > 1 for message in messages)


def test_what_only_a_vanished_consumer_of_a_fan_out_was_given_goes_to_those_who_are_there(connect, name):
    publisher, old, new = connect(), connect(), connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    old.subscribe(name)
    publisher.publish_all(name, range(3))
    messages = old.take(3)
    old.ack(messages[1])
    old.ping()
    new.subscribe(name)
    assert new.rest() == []
    old.unsubscribe(name)
    messages = new.rest()
    assert [(payload(message), attempts(message)) for message in messages] == [(0, 2), (2, 2)]
    new.ack(*messages)
    new.ping()
    assert publisher.counts(name) == (0, 0)


def test_a_slow_consumer_of_a_fan_out_gets_all_that_the_quick_one_has_long_settled(connect, name):
    """More messages than one block of the ledger holds: it must not go with the first acknowledgements."""
    count = 40_000
    publisher, slow, quick = connect(), connect(), connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK, maxQueueSize=0)
    slow.subscribe(name, prefetch=3)
    quick.subscribe(name, prefetch=1000)
    publisher.publish_all(name, range(count))
    assert quick.take_acked(count) == list(range(count))
    quick.ping()
    held = slow.take(3)
    slow.nack(*held)
    assert slow.take_acked(count) == list(range(count))
    publisher.await_counts(name, 0)


def test_a_slow_consumer_of_a_fan_out_delays_nobody(connect, name):
    publisher, slow, quick = connect(), connect(), connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    slow.subscribe(name, prefetch=1)
    quick.subscribe(name)
    publisher.publish_all(name, range(100))
    assert payloads(quick.take(100)) == list(range(100))
    assert slow.take_acked(100) == list(range(100))


def test_who_comes_late_to_a_fan_out_does_not_wait_for_who_is_stuck(connect, name):
    publisher, stuck, late = connect(), connect(), connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    stuck.subscribe(name, prefetch=1)
    publisher.publish_all(name, range(5))
    stuck.delivery()
    late.subscribe(name)
    publisher.publish(name, 5)
    assert payloads(late.rest()) == [5]


def test_what_was_in_front_of_a_consumer_of_a_fan_out_that_leaves_goes_to_those_who_came_later(connect, name):
    publisher, leaves, stays = connect(), connect(), connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    publisher.publish_all(name, range(9))
    leaves.subscribe(name, prefetch=3)
    leaves.take(3)
    stays.subscribe(name, prefetch=7)
    leaves.unsubscribe(name)
    assert stays.take_acked(9) == list(range(9))
    publisher.publish(name, 9)
    assert stays.take_acked(1) == [9]
    publisher.await_counts(name, 0)


def test_an_inherited_copy_is_not_given_twice_to_who_has_it(connect, name):
    publisher, *consumers = [connect() for _ in range(4)]
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    publisher.publish(name, 0)
    for consumer in consumers:
        consumer.subscribe(name)
    first, second, third = consumers
    assert payloads(first.rest()) == [0]
    first.unsubscribe(name)
    assert payloads(second.rest()) == payloads(third.rest()) == [0]
    second.unsubscribe(name)
    assert third.rest() == []


# ---- fan-out without acknowledgement ----


def test_a_fan_out_without_acknowledgement_keeps_nothing_once_it_is_written(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, mode=FAN_OUT_WITHOUT_ACK)
    consumer.subscribe(name, prefetch=1)  # no window either
    publisher.publish_all(name, range(30))
    assert payloads(consumer.take(30)) == list(range(30))
    assert publisher.counts(name) == (0, 0)
    consumer.close()
    newcomer = connect()
    newcomer.subscribe(name)
    assert newcomer.rest() == []


# ---- priorities ----


def test_priorities_go_first_and_in_order_of_arrival_among_themselves(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, mode=PRIORITY_BASED)
    for number, priority in enumerate(["low", "Normal", "HIGH", "critical", "Low", "normal", "High", "Critical"]):
        publisher.publish(name, [priority, number], priority=priority)
    consumer.subscribe(name)
    found = [number for _, number in payloads(consumer.take(8))]
    assert found == [3, 7, 2, 6, 1, 5, 0, 4]


def test_priorities_may_be_numbers_and_what_is_none_is_normal(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, mode=PRIORITY_BASED)
    for priority in ["0", "1", "2", "3", "-5", "99", "urgent", ""]:
        publisher.publish(name, priority, priority=priority)
    publisher.publish(name, "none")
    consumer.subscribe(name)
    assert payloads(consumer.take(9)) == ["3", "99", "2", "1", "urgent", "", "none", "0", "-5"]


def test_what_comes_back_keeps_its_priority_and_its_place(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, mode=PRIORITY_BASED)
    for number, priority in enumerate("1313"):
        publisher.publish(name, number, priority=priority)
    consumer.subscribe(name, prefetch=4)
    assert payloads(consumer.take(4)) == [1, 3, 0, 2]
    consumer.unsubscribe(name)
    publisher.publish(name, 4, priority="2")
    consumer.subscribe(name)
    assert payloads(consumer.take(5)) == [1, 3, 4, 0, 2]


def test_a_window_lets_what_is_more_urgent_overtake(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, mode=PRIORITY_BASED)
    consumer.subscribe(name, prefetch=1)
    publisher.publish_all(name, range(3), priority="low")
    publisher.publish(name, "now", priority="critical")
    assert consumer.take_acked(4) == [0, "now", 1, 2]
