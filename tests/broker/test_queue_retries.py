# SPDX-License-Identifier: Apache-2.0
"""What is not acknowledged: timeouts, back-off, refusals, and the dead-letter queue at the end.

Times are lower bounds only, by the broker's own stamps: a slow machine makes nothing fail.
"""

import itertools
import json
import time
from datetime import datetime

import pytest
from peers.queues import Command, attempts, payload, payloads, wait_until

SOON = {"ackTimeoutMs": 60, "backoffMs": 10, "backoffMaxMs": 20}
FAN_OUT_WITH_ACK = 1
ORDERED_MODES = [0, 3]


def await_messages(peer, queue, count):
    """Until so many wait in a queue that may not be made yet."""
    wait_until(
        lambda: (peer.info(queue) or {}).get("messageCount") == count, f"{count} messages in {queue}", seconds=10.0
    )


def collect(peer, queue, count):
    """Take so many from a queue and acknowledge them."""
    await_messages(peer, queue, count)
    peer.subscribe(queue)
    messages = peer.take(count)
    peer.ack(*messages)
    peer.unsubscribe(queue)
    return messages


# ---- the timeout ----


def test_what_is_not_acknowledged_in_time_comes_again_with_a_raised_count(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, **SOON, maxRetryAttempts=10)
    consumer.subscribe(name)
    publisher.publish(name, "x", "id-1")
    found = consumer.take(3)
    assert [(message.id, payload(message), attempts(message)) for message in found] == [
        (b"id-1", "x", number) for number in (1, 2, 3)
    ]
    consumer.ack(consumer.delivery())
    publisher.await_counts(name, 0)


def test_back_off_doubles_up_to_its_maximum(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, ackTimeoutMs=50, backoffMs=100, backoffMaxMs=250, maxRetryAttempts=10)
    consumer.subscribe(name)
    publisher.publish(name, "x")
    came_at = []
    for _ in range(5):
        consumer.delivery()
        came_at.append(time.monotonic())
    gaps_ms = [(later - earlier) * 1000 for earlier, later in itertools.pairwise(came_at)]
    # Each is at least the ack timeout and the back-off; the first and last instants are ours, so a little less counts.
    for gap_ms, needed_ms in zip(gaps_ms, (150, 250, 300, 300), strict=True):
        assert gap_ms > needed_ms - 30, gaps_ms


def test_a_message_in_back_off_waits_while_others_go_on(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, ackTimeoutMs=50, backoffMs=60_000, backoffMaxMs=60_000)
    consumer.subscribe(name, prefetch=1)
    publisher.publish_all(name, range(5))
    assert payload(consumer.delivery()) == 0  # and says nothing about it
    assert consumer.take_acked(4) == [1, 2, 3, 4]
    publisher.await_counts(name, 1)


def test_a_timeout_gives_the_message_to_any_consumer(connect, name):
    publisher, stuck, works = connect(), connect(), connect()
    publisher.create(name, **SOON, maxRetryAttempts=50)
    stuck.subscribe(name, prefetch=1)
    publisher.publish(name, "x")
    stuck.delivery()
    works.subscribe(name)
    message = works.delivery()  # the two take turns, so it comes to this one within two timeouts
    assert attempts(message) > 1
    works.ack(message)
    publisher.await_counts(name, 0)


def test_a_late_acknowledgement_of_what_was_taken_back_settles_the_delivery_that_followed_or_nothing(connect, name):
    publisher, late, other = connect(), connect(), connect()
    publisher.create(name, **SOON, maxRetryAttempts=50)
    late.subscribe(name)
    publisher.publish(name, "x")
    message = late.delivery()
    publisher.await_counts(name, 0, 1)
    late.unsubscribe(name)
    other.subscribe(name)
    again = other.delivery()
    late.ack(message)
    late.ping()
    assert publisher.counts(name) != (0, 0)
    other.ack(again)
    publisher.await_counts(name, 0)


# ---- refusals ----


def test_a_refused_message_is_ready_again_at_once_and_first(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, backoffMs=60_000, backoffMaxMs=60_000)
    consumer.subscribe(name, prefetch=1)
    publisher.publish_all(name, range(3))
    consumer.nack(consumer.delivery())
    again = consumer.delivery()
    assert (payload(again), attempts(again)) == (0, 2)
    consumer.ack(again)
    assert consumer.take_acked(2) == [1, 2]


def test_refusals_count_as_attempts(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, maxRetryAttempts=2, enableDeadLetterQueue=True)
    consumer.subscribe(name)
    publisher.publish(name, "x")
    for number in (1, 2):
        message = consumer.delivery()
        assert attempts(message) == number
        consumer.nack(message)
    (dead,) = collect(publisher, name + ".dlq", 1)
    assert payload(dead) == "x"
    assert consumer.rest() == []


def test_refusing_is_unknown_to_who_did_not_ask_for_it(connect, name):
    publisher, consumer = connect(), connect(features="")
    publisher.create(name)
    publisher.publish(name, 1)
    consumer.subscribe(name)
    message = consumer.delivery()
    consumer.send(Command.NACK, message.id)
    with pytest.raises(Exception, match="UNKNOWN_COMMAND"):
        consumer.answer(message.id)
    assert publisher.counts(name) == (0, 1)


# ---- a connection that ends ----


def test_only_the_oldest_of_what_a_connection_took_along_counts_towards_the_limit(connect, name):
    publisher = connect()
    publisher.create(name, maxRetryAttempts=2, enableDeadLetterQueue=True)
    publisher.publish_all(name, range(3))
    for number, left in ((1, 3), (2, 2)):
        consumer = connect()
        consumer.subscribe(name)
        assert [attempts(message) for message in consumer.take(3)] == [number] * 3
        consumer.close()
        publisher.await_counts(name, left)
    (dead,) = collect(publisher, name + ".dlq", 1)
    assert payload(dead) == 0
    survivor = connect()
    survivor.subscribe(name)
    assert [(payload(message), attempts(message)) for message in survivor.rest()] == [(1, 3), (2, 3)]


@pytest.mark.parametrize("how", ["close", "unsubscribe"])
def test_what_a_consumer_leaves_goes_before_what_waits_in_its_old_order(connect, name, how):
    publisher, leaves, stays = connect(), connect(), connect()
    publisher.create(name)
    publisher.publish_all(name, range(6))
    leaves.subscribe(name, prefetch=4)
    messages = leaves.take(4)
    leaves.ack(messages[1])
    leaves.ping()
    leaves.close() if how == "close" else leaves.unsubscribe(name)
    publisher.await_counts(name, 5)
    stays.subscribe(name)
    found = [(payload(message), attempts(message)) for message in stays.take(5)]
    assert found == [(0, 2), (2, 2), (3, 2), (4, 2), (5, 1)]  # 4 had moved into the window


# ---- the dead-letter queue ----


@pytest.mark.parametrize("mode", [*ORDERED_MODES, FAN_OUT_WITH_ACK])
def test_after_the_last_attempt_a_message_is_in_the_dead_letter_queue(connect, name, mode):
    publisher, consumer, reader = connect(), connect(), connect()
    publisher.create(name, **SOON, mode=mode, maxRetryAttempts=2, enableDeadLetterQueue=True)
    consumer.subscribe(name)
    publisher.publish(name, {"n": 1}, "dead-1", own="kept", priority="High")
    assert [attempts(message) for message in consumer.take(2)] == [1, 2]
    (dead,) = collect(reader, name + ".dlq", 1)
    assert (dead.id, payload(dead)) == (b"dead-1", {"n": 1})
    failed_at = datetime.fromisoformat(dead.headers.pop("x-failed-at"))
    assert failed_at.tzinfo is not None
    assert json.loads(dead.headers.pop("x-death")) == [
        {"queue": name, "reason": "MaxRetriesExceeded", "count": 1, "to": name + ".dlq"}
    ]
    assert dead.headers == {
        "own": "kept",
        "priority": "High",
        "deliveryAttempts": "1",
        "x-original-queue": name,
        "x-failure-reason": "MaxRetriesExceeded",
        "x-attempts": "2",
    }
    assert consumer.rest() == []
    publisher.await_counts(name, 0)


@pytest.mark.parametrize("mode", [*ORDERED_MODES, FAN_OUT_WITH_ACK])
def test_every_exhausted_message_is_in_the_dead_letter_queue_once(connect, name, mode):
    publisher, consumer, reader = connect(), connect(), connect()
    publisher.create(name, mode=mode, maxRetryAttempts=1, enableDeadLetterQueue=True)
    consumer.subscribe(name)
    publisher.publish_all(name, range(50))
    messages = consumer.take(50)
    consumer.nack(*messages)
    assert sorted(payloads(collect(reader, name + ".dlq", 50))) == list(range(50))
    publisher.await_counts(name, 0)


def test_copies_of_one_message_that_are_exhausted_at_once_are_all_settled(connect, name):
    publisher, *consumers = [connect() for _ in range(4)]
    publisher.create(name, mode=FAN_OUT_WITH_ACK, maxRetryAttempts=1, enableDeadLetterQueue=True)
    publisher.create(name + ".dlq")
    for consumer in consumers:
        consumer.subscribe(name)
    for round_ in range(10):
        publisher.publish_all(name, [[round_, number] for number in range(5)])
        for consumer, messages in [(consumer, consumer.take(5)) for consumer in consumers]:
            consumer.nack(*messages)
    publisher.await_counts(name, 0)
    publisher.subscribe(name + ".dlq")
    dead = {tuple(found) for found in payloads(publisher.rest())}
    assert dead == {(round_, number) for round_ in range(10) for number in range(5)}
    consumers[0].publish(name, "after")
    consumers[0].ack(consumers[0].delivery())


def test_what_a_consumer_of_a_fan_out_leaves_with_nobody_there_keeps_its_strikes(connect, name):
    publisher = connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK, maxRetryAttempts=2, enableDeadLetterQueue=True)
    publisher.publish(name, "poison")
    for _ in range(2):
        dies = connect()
        dies.subscribe(name)
        assert payload(dies.delivery()) == "poison"
        dies.close()
        publisher.await_subscribers(name, 0)
    assert payloads(collect(publisher, name + ".dlq", 1)) == ["poison"]


def test_after_the_last_attempt_a_message_is_dropped_where_there_is_no_dead_letter_queue(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, maxRetryAttempts=1)
    consumer.subscribe(name)
    publisher.publish(name, 1)
    consumer.nack(consumer.delivery())
    assert consumer.rest() == []
    assert publisher.counts(name) == (0, 0)
    assert publisher.info(name + ".dlq") is None


def test_no_attempts_are_as_good_as_one(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, maxRetryAttempts=0, enableDeadLetterQueue=True)
    consumer.subscribe(name)
    publisher.publish(name, 1)
    consumer.nack(consumer.delivery())
    assert payloads(collect(publisher, name + ".dlq", 1)) == [1]


def test_a_dead_letter_queue_may_have_a_name_and_serve_several_queues(connect, name):
    publisher, consumer = connect(), connect()
    graves = name + ".graves"
    for queue in (name + ".a", name + ".b"):
        publisher.create(queue, maxRetryAttempts=1, enableDeadLetterQueue=True, deadLetterQueueName=graves)
        consumer.subscribe(queue)
        publisher.publish(queue, queue)
        consumer.nack(consumer.delivery())
    found = collect(publisher, graves, 2)
    assert sorted(message.headers["x-original-queue"] for message in found) == [name + ".a", name + ".b"]
    assert publisher.info(name + ".a")["effectiveDeadLetterQueueName"] == graves


def test_a_dead_letter_queue_is_a_queue_like_any_other(connect, name):
    publisher, consumer = connect(), connect()
    dead = name + ".dlq"
    publisher.create(name, maxRetryAttempts=1, enableDeadLetterQueue=True, maxQueueSize=7)
    consumer.subscribe(name)
    publisher.publish(name, 1)
    consumer.nack(consumer.delivery())
    await_messages(publisher, dead, 1)
    assert publisher.info(dead)["maxSize"] == 0, "nothing is behind it"
    assert dead in payload(publisher.ask(Command.LIST_QUEUES))
    publisher.publish(dead, "mine")
    reader = connect()
    reader.subscribe(dead)
    first, second = reader.take(2)
    assert payloads([first, second]) == [1, "mine"]
    reader.nack(first)
    again = reader.delivery()
    assert attempts(again) == 2
    reader.ack(again, second)
    publisher.await_counts(dead, 0)
    assert publisher.purge(dead) == 0
    publisher.delete(dead)
    assert publisher.info(dead) is None


def test_what_dies_after_its_dead_letter_queue_was_deleted_has_it_made_anew(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, maxRetryAttempts=1, enableDeadLetterQueue=True)
    consumer.subscribe(name)
    for number in range(2):
        publisher.publish(name, number)
        consumer.nack(consumer.delivery())
        await_messages(publisher, name + ".dlq", 1)
        if number == 0:
            publisher.delete(name + ".dlq")
    assert payloads(collect(publisher, name + ".dlq", 1)) == [1]


def test_an_exhausted_message_is_dead_lettered_though_nobody_is_there_for_another(connect, name):
    publisher, dies = connect(), connect()
    publisher.create(name, maxRetryAttempts=1, enableDeadLetterQueue=True)
    publisher.publish(name, 1)
    dies.subscribe(name)
    dies.delivery()
    dies.close()
    await_messages(publisher, name + ".dlq", 1)
    publisher.await_counts(name, 0)


def test_a_queue_cannot_be_its_own_dead_letter_queue(connect, name):
    with pytest.raises(Exception, match="INVALID_PAYLOAD"):
        connect().create(name, enableDeadLetterQueue=True, deadLetterQueueName=name)
