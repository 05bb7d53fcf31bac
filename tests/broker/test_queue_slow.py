# SPDX-License-Identifier: Apache-2.0
"""Slow and stuck consumers: the acknowledgement clock runs for the oldest message, and no default drops a message."""

import pytest
from peers.queues import Command, QueuePeer, attempts, payload, payloads, wait_until
from peers.signalr import HubPeer
from running import broker, written

from vibemq.client import connect as connect_client
from vibemq.client.micromsg2 import Micromsg2Client
from vibemq.client.streams import StreamsConnection

SOON_MS = 60
LATER_MS = 600_000
FAN_OUT_WITH_ACK = 1


def limit_of(peer, queue):
    return peer.info(queue)["maxRetryAttempts"]


# ---- the clock ----


def test_of_a_stuck_consumers_messages_only_the_oldest_has_failed(connect, name):
    publisher, stuck, works = connect(), connect(), connect()
    publisher.create(name, ackTimeoutMs=SOON_MS, maxRetryAttempts=1, enableDeadLetterQueue=True)
    publisher.publish_all(name, range(200))
    stuck.subscribe(name)
    assert payloads(stuck.take(200)) == list(range(200))
    stuck._until(lambda: bool(stuck.deliveries), "two at a time from now on")
    stuck.unsubscribe(name)
    once_more = payloads(stuck.rest())
    dead = 0

    def is_settled():
        nonlocal dead
        dead = sum(publisher.counts(name + ".dlq"))
        return len(once_more) <= 2 * dead and publisher.counts(name) == (200 - dead, 0)

    wait_until(is_settled, "the dead ones are counted")
    assert 2 * (dead - 1) <= len(once_more), "one more is dead after each timeout"
    works.subscribe(name, prefetch=1000)
    assert payloads(works.take(200 - dead)) == list(range(dead, 200)), "in their old order"


def test_a_consumer_that_is_stuck_for_ever_loses_nothing_by_default(connect, name):
    publisher, stuck, works = connect(), connect(), connect()
    publisher.create(name, ackTimeoutMs=SOON_MS, backoffMs=0)
    publisher.publish_all(name, range(200))
    stuck.subscribe(name)
    stuck.take(200)
    # Each is one more timeout; with .NET clients' three attempts the first message would be lost by the third.
    for _ in range(6):
        stuck.delivery()
    stuck.close()
    publisher.await_counts(name, 200)
    works.subscribe(name, prefetch=1000)
    assert payloads(works.take(200)) == list(range(200))


@pytest.mark.parametrize("worker", [0, 1])
def test_a_stuck_consumers_messages_go_to_another_and_it_has_two_at_a_time(connect_to, name, worker):
    """Also where the consumer is on another worker than the home."""
    publisher, works, stuck = connect_to(0), connect_to(0), connect_to(worker)
    publisher.create(name, ackTimeoutMs=SOON_MS, backoffMs=LATER_MS, backoffMaxMs=LATER_MS)
    works.subscribe(name, prefetch=1)
    publisher.publish(name, "busy")
    busy = works.delivery()  # so that the home is on its worker
    stuck.subscribe(name, prefetch=100)
    publisher.await_subscribers(name, 2)
    publisher.publish_all(name, range(50))
    held = stuck.take(50)
    works.unsubscribe(name)
    works.subscribe(name, prefetch=1000)
    seen = set()
    while len(seen) < 49:  # all but the one that failed, and but those that the stuck one has in its turn
        message = works.delivery()
        seen.add(payload(message))
        works.ack(message)
    assert payload(held[0]) not in seen
    assert busy is not None


def test_a_consumer_that_works_on_keeps_its_messages_however_long_all_of_them_take(connect, name):
    publisher, ticking, works = connect(), connect(), connect()
    ticks = name + ".ticks"  # the broker's own clock: this one comes again after each timeout
    publisher.create(ticks, ackTimeoutMs=250, backoffMs=0)
    publisher.create(name, ackTimeoutMs=3000, backoffMs=0)
    publisher.publish_all(name, range(30))
    works.subscribe(name)
    waiting = works.take(30)
    ticking.subscribe(ticks)
    publisher.publish(ticks, "tick")
    for _ in range(16):  # 4 s in all
        ticking.delivery()
        works.ack(waiting.pop(0))
        works.ping()
    works.ack(*waiting)
    assert works.rest() == []
    publisher.await_counts(name, 0)


def test_a_consumer_that_settles_later_ones_keeps_them_and_loses_only_the_oldest(connect, name):
    publisher, ticking, works = connect(), connect(), connect()
    ticks = name + ".ticks"
    publisher.create(ticks, ackTimeoutMs=100, backoffMs=0)
    publisher.create(name, ackTimeoutMs=1500, backoffMs=0)
    publisher.publish_all(name, range(40))
    works.subscribe(name)
    skipped, *waiting = works.take(40)
    ticking.subscribe(ticks)
    publisher.publish(ticks, "tick")
    while not works.deliveries:
        ticking.delivery()
        works.ack(waiting.pop(0))
        works.ping()
    again = works.delivery()
    assert (payload(again), attempts(again)) == (payload(skipped), 2)
    works.ack(again, *waiting)
    assert works.rest() == [], "the others were left with it"
    publisher.await_counts(name, 0)


def test_a_consumer_that_settles_again_gets_its_whole_window(connect, name):
    publisher, stuck = connect(features="nack,purge,alter"), connect()
    publisher.create(name, ackTimeoutMs=SOON_MS, backoffMs=0)
    publisher.publish_all(name, range(20))
    stuck.subscribe(name)
    stuck.take(20)
    again = stuck.delivery()
    publisher.ask(Command.ALTER_QUEUE, queue=name, payload=b'{"ackTimeoutMs": 600000}')
    again = [again, *stuck.rest()][-1]  # another one, if it was taken back before the timeout was changed
    assert publisher.counts(name) == (18, 2)
    stuck.ack(again)
    publisher.await_counts(name, 0, 19)


def test_a_copy_of_a_fan_out_that_its_consumer_does_not_settle_comes_again_to_it(connect, name):
    publisher, stuck, works = connect(), connect(), connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK, ackTimeoutMs=SOON_MS, backoffMs=LATER_MS, backoffMaxMs=LATER_MS)
    stuck.subscribe(name)
    works.subscribe(name)
    publisher.publish_all(name, range(5))
    assert payloads(works.take(5)) == list(range(5))
    assert payloads(stuck.take(5)) == list(range(5))
    again = stuck.delivery()
    assert (payload(again), attempts(again)) == (1, 2)


# ---- undeclared limits ----


def test_only_a_declared_limit_or_a_dead_letter_queue_ends_a_message(connect, name):
    publisher = connect()
    unlimited = 2**31 - 1
    publisher.publish(name + ".used", 1)
    publisher.create(name + ".plain")
    publisher.create(name + ".net", maxRetryAttempts=3)
    publisher.create(name + ".dead", enableDeadLetterQueue=True)
    found = [limit_of(publisher, f"{name}.{kind}") for kind in ("used", "plain", "net", "dead")]
    assert found == [unlimited, unlimited, 3, 3]


def test_undeclared_options_follow_the_configuration_by_every_way_to_make_a_queue(tmp_path):
    with broker(tmp_path / "data", "--set", "queues.attempts_max=7", workers=1) as running, QueuePeer(running) as peer:
        with connect_client(f"vibemq://{running.host}:{running.native_port}") as client:
            client.create_queue("created", dead_letter=True)
            client.declare_queue("declared", prefetch=5)
            client.publish("published", 1)
            client.create_queue("named", attempts_max=2)
        peer.create("payload", prefetch=5)
        peer.ask(Command.CREATE_QUEUE, queue="headers", headers={"prefetch": "5"})
        with Micromsg2Client(port=running.ports["micromsg2"]) as small:
            small.command("create", destination="micromsg2")
        with HubPeer(running) as hub:
            hub.ask("CreateQueue", "signalr")
        with StreamsConnection.connect(running.host, running.port) as streams:
            streams.create("stream")
        peer.publish("stream", 1)  # makes a queue of it
        names = ("created", "declared", "published", "payload", "headers", "micromsg2", "signalr", "stream")
        assert [limit_of(peer, queue) for queue in (*names, "named")] == [7] * len(names) + [2]


def test_without_a_limit_the_third_refusal_and_each_after_it_waits(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, backoffMs=LATER_MS, backoffMaxMs=LATER_MS)
    consumer.subscribe(name)
    publisher.publish(name, "x")
    for number in (1, 2, 3):
        message = consumer.delivery()
        assert attempts(message) == number
        consumer.nack(message)
    assert consumer.rest() == []
    assert publisher.counts(name) == (1, 0)


def test_a_message_without_a_limit_waits_longer_each_time_and_is_named(tmp_path, capfd):
    with (
        broker(tmp_path / "data", "--set", "queues.backoff_ms=1", workers=1) as running,
        QueuePeer(running) as publisher,
        QueuePeer(running) as consumer,
    ):
        publisher.publish_all("q", ["good", "poison"])
        consumer.subscribe("q")
        good, poison = consumer.take(2)
        for number in range(2, 14):
            consumer.nack(poison)
            poison = consumer.delivery()
            assert (payload(poison), attempts(poison)) == ("poison", number)
        wait_until(lambda: "deliveries of message 1 failed" in written(capfd), "it is logged")
        consumer.ack(good)
        publisher.await_counts("q", 0, 1)
        assert publisher.info("q")["droppedCount"] == 0


def test_attempts_are_counted_up_to_their_maximum_and_the_message_stays(tmp_path):
    with (
        broker(tmp_path / "data", "--set", "queues.backoff_ms=0", workers=1) as running,
        QueuePeer(running) as publisher,
        QueuePeer(running) as consumer,
    ):
        publisher.publish("q", "kept")
        consumer.subscribe("q")
        message = consumer.delivery()
        for _ in range(1100):  # more than the ledger's ten bits can count
            consumer.nack(message)
            message = consumer.delivery()
        assert (payload(message), attempts(message)) == ("kept", 1024)
        consumer.close()
        publisher.await_counts("q", 1)
        with QueuePeer(running) as last:
            last.subscribe("q")
            last.ack(last.delivery())
            publisher.await_counts("q", 0)
