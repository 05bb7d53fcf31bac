# SPDX-License-Identifier: Apache-2.0
"""Messages that kill their consumers: the held message counts as failed, and none is redelivered for ever."""

import pytest
from peers.queues import Command, attempts, payload, payloads, wait_until

FEATURES = {"features": "nack,purge,holding"}
UNCOUNTED_RETURNS = 10


def hold(peer, *messages):
    for message in messages:
        peer.send(Command.HOLDING, message.id, queue=message.queue)


def dead_of(peer, queue):
    return (peer.info(queue + ".dlq") or {}).get("messageCount", 0)


def leave(peer, queue, how):
    if how == "unsubscribe":
        peer.unsubscribe(queue)
    elif how == "goodbye":
        peer.send(Command.DISCONNECT, peer.fresh())
        assert peer.ended()
    peer.close()


@pytest.mark.parametrize("how", ["close", "unsubscribe", "goodbye"])
def test_only_the_message_held_by_the_program_counts_as_failed(connect, name, how):
    publisher = connect()
    publisher.create(name, maxRetryAttempts=1, enableDeadLetterQueue=True)
    publisher.publish_all(name, range(5))
    consumer = connect(**FEATURES)
    consumer.subscribe(name)
    messages = consumer.take(5)
    hold(consumer, messages[3])
    consumer.ping()
    leave(consumer, name, how)
    wait_until(lambda: dead_of(publisher, name) == 1, "one is dead")
    publisher.await_counts(name, 4)
    reader = connect()
    reader.subscribe(name + ".dlq")
    assert payload(reader.delivery()) == 3


def test_a_held_message_that_was_settled_does_not_count(connect, name):
    publisher = connect()
    publisher.create(name, maxRetryAttempts=1, enableDeadLetterQueue=True)
    publisher.publish_all(name, range(3))
    consumer = connect(**FEATURES)
    consumer.subscribe(name)
    messages = consumer.take(3)
    hold(consumer, messages[0])
    consumer.ack(messages[0])
    consumer.ping()
    consumer.unsubscribe(name)
    publisher.await_counts(name, 2)
    assert dead_of(publisher, name) == 0


def test_holding_is_unknown_without_its_feature(connect, name):
    publisher, consumer = connect(), connect()
    publisher.publish(name, 1)
    consumer.subscribe(name)
    message = consumer.delivery()
    consumer.send(Command.HOLDING, message.id)
    with pytest.raises(Exception, match="UNKNOWN_COMMAND"):
        consumer.answer(message.id)


def test_a_message_that_kills_its_consumer_behind_the_oldest_is_counted_after_ten_returns(connect, name):
    publisher = connect()
    limit = 2
    publisher.create(name, maxRetryAttempts=limit, enableDeadLetterQueue=True)
    publisher.publish_all(name, ["oldest", "poison"])
    deliveries = 0
    while dead_of(publisher, name) == 0:
        with connect() as consumer:
            consumer.subscribe(name)
            deliveries = attempts(consumer.take(2)[1])
            consumer.unsubscribe(name)  # in good order: the oldest does not count either
        publisher.await_subscribers(name, 0)
    assert deliveries == UNCOUNTED_RETURNS + limit
    wait_until(lambda: dead_of(publisher, name) == 2, "each counts, at any place")


def test_of_three_in_hand_none_is_delivered_more_often_than_the_limit_and_once(connect, name):
    publisher = connect()
    limit = 2
    publisher.create(name, maxRetryAttempts=limit, enableDeadLetterQueue=True)
    publisher.publish_all(name, range(3))
    counts = {}
    for kill, there in enumerate((3, 3, 2)):  # the oldest was the oldest, and then in hand with the others
        consumer = connect(**FEATURES)
        consumer.subscribe(name)
        messages = consumer.take(there)
        counts |= {payload(message): attempts(message) for message in messages}
        if kill:  # VibeMQ's clients report redelivered messages
            hold(consumer, *messages)
            consumer.ping()
        consumer.close()
        publisher.await_subscribers(name, 0)
    publisher.await_counts(name, 0)
    assert counts == {0: 2, 1: 3, 2: 3}
    reader = connect()
    reader.subscribe(name + ".dlq")
    assert sorted(payloads(reader.take(3))) == [0, 1, 2]
