# SPDX-License-Identifier: Apache-2.0
"""Options of a queue change while it lives: at its home and at every worker, with its messages where they were."""

import contextlib
import json
from pathlib import Path

import pytest
from peers.queues import Command, QueuePeer, Refused, on_worker, payloads, stopped, wait_until, worker_pid
from running import broker

from vibemq.storage.ledger import queue_stats
from vibemq.storage.metadata import Metadata

DROP_OLDEST, DROP_NEWEST, BLOCK_PUBLISHER, REDIRECT_TO_DLQ = range(4)
ALTERED_PER_TURN = 200  # as in vibemq/broker/queue_table.pyx
FEATURES = "nack,purge,alter"
MANY = 10_000


def alter(peer, queue, **members):
    answer = peer.ask(Command.ALTER_QUEUE, queue=queue, payload=json.dumps(members).encode())
    assert (answer.type, answer.queue) == (Command.ALTER_QUEUE, queue)


@pytest.fixture
def peer(connect):
    return connect(features=FEATURES)


def test_a_limit_that_is_raised_lets_more_in_and_one_that_is_lowered_drops_at_once(peer, name):
    peer.create(name, maxQueueSize=2, overflowStrategy=DROP_NEWEST)
    peer.publish_all(name, range(2))
    with pytest.raises(Refused, match="QUEUE_FULL"):
        peer.publish(name, 2)
    alter(peer, name, maxQueueSize=4)
    peer.publish_all(name, range(2, 4))
    peer.await_counts(name, 4)
    alter(peer, name, overflowStrategy=DROP_OLDEST, maxQueueSize=1)
    peer.await_counts(name, 1)
    assert peer.info(name)["droppedCount"] == 3
    peer.subscribe(name)
    assert payloads(peer.take(1)) == [3]


@pytest.mark.parametrize("change", [{"maxQueueSize": 0}, {"maxQueueSize": 3}, {"overflowStrategy": "dropOldest"}])
def test_a_publisher_that_waits_for_room_gets_it_by_a_change(peer, connect, name, change):
    publisher = connect()
    peer.create(name, maxQueueSize=1, overflowStrategy=BLOCK_PUBLISHER)
    publisher.publish(name, 1)
    waiting = publisher.start_publish(name, 2)
    alter(peer, name, **change)
    publisher.answer(waiting)


@pytest.mark.parametrize("change", [{"maxQueueSize": 0}, {"overflowStrategy": "dropOldest"}])
def test_what_waits_for_room_is_not_overtaken_when_the_options_change(served, connect_to, name, change):
    """A number stored after a higher one would be a duplicate, which is confirmed and not stored."""
    numbers = [f"{name:0>16}{number:016x}" for number in range(1, 5)]
    publisher, other = connect_to(0, features="dedup"), connect_to(1, features=FEATURES)
    other.create(name, maxQueueSize=1, overflowStrategy=BLOCK_PUBLISHER)
    publisher.publish(name, 1, id=numbers[0])
    waiting = [publisher.start_publish(name, number + 1, id=numbers[number]) for number in (1, 2)]
    publisher.ask(Command.PING)
    with stopped(worker_pid(served, 0)):  # when it goes on it finds the change and the next publish at once
        alter(other, name, **change)
        waiting.append(publisher.start_publish(name, 4, id=numbers[3]))
    for each in waiting:
        publisher.answer(each)
    kept = [1, 2, 3, 4] if "maxQueueSize" in change else [4]
    wait_until(lambda: other.info(name)["droppedCount"] == len(numbers) - len(kept), "each was stored once")
    other.subscribe(name)
    assert payloads(other.take(len(kept))) == kept


def test_a_time_to_live_holds_for_what_waits_already_and_can_be_taken_away(peer, name):
    peer.create(name)
    peer.publish_all(name, range(3))
    alter(peer, name, messageTtl=1)
    peer.await_counts(name, 0)
    assert peer.info(name)["droppedCount"] == 3
    alter(peer, name, messageTtl=None)
    assert "messageTtl" not in peer.info(name)
    peer.publish(name, "stays")
    peer.await_counts(name, 1)


def test_dead_letters_go_where_the_queue_says_now(peer, name):
    peer.create(name, maxRetryAttempts=1)
    peer.subscribe(name)
    for letters, change in (
        (name + ".dlq", {"enableDeadLetterQueue": True}),
        (name + ".other", {"deadLetterQueueName": name + ".other"}),
    ):
        alter(peer, name, **change)
        peer.publish(name, letters)
        peer.nack(peer.delivery())
        wait_until(lambda letters=letters: (peer.info(letters) or {}).get("messageCount") == 1, letters)
    alter(peer, name, enableDeadLetterQueue=False)
    peer.publish(name, "dropped")
    peer.nack(peer.delivery())
    wait_until(lambda: peer.info(name)["droppedCount"] == 1, "dropped")


def test_attempts_and_times_are_those_of_now_also_for_what_is_in_flight(peer, name):
    peer.create(name, maxRetryAttempts=9, ackTimeoutMs=3_600_000, backoffMs=0)
    peer.subscribe(name, prefetch=1)
    peer.publish(name, 1)
    peer.delivery()
    alter(peer, name, ackTimeoutMs=10, maxRetryAttempts=2)
    again = peer.delivery()
    assert again.headers["deliveryAttempts"] == "2"
    wait_until(lambda: peer.info(name)["droppedCount"] == 1, "given up")


def test_prefetch_counts_at_once_for_consumers_that_said_none(peer, connect, name):
    says, follows = connect(), connect()
    peer.create(name, prefetch=1)
    follows.subscribe(name)
    peer.publish_all(name, range(4))
    follows.take(1)
    alter(peer, name, prefetch=3)
    follows.take(2)
    peer.await_counts(name, 1, 3)
    says.subscribe(name, prefetch=1)
    says.take(1)


def test_every_worker_has_the_change(served, stack, name):
    publishers = [on_worker(served, worker, stack, features=FEATURES) for worker in range(2)]
    publishers[0].create(name, maxQueueSize=1, overflowStrategy=DROP_NEWEST)
    consumer = on_worker(served, 1, stack)
    consumer.subscribe(name, prefetch=1)  # the home is on worker 1
    publishers[0].publish(name, "in flight")
    held = consumer.delivery()
    publishers[0].publish(name, "waits")
    alter(publishers[0], name, maxQueueSize=3)

    def taken(publisher):
        try:
            publisher.publish(name, "more")
        except Refused:
            return False
        return True

    for publisher in publishers:
        wait_until(lambda publisher=publisher: taken(publisher), "a worker takes one more")
    publishers[0].await_counts(name, 3, 1)
    consumer.ack(held)


def test_a_change_whose_author_was_killed_before_it_could_tell_takes_effect(tmp_path):
    data = tmp_path / "data"
    with broker(data, workers=2) as running, QueuePeer(running, features=FEATURES) as peer:
        peer.create("q", maxQueueSize=1, overflowStrategy=DROP_NEWEST)
        peer.publish("q", 1)
        metadata = Metadata(str(data / "meta.db"))
        metadata.alter_queue("/", "q", lambda options: {**options, "max_messages": 2})  # and nobody is told
        metadata.close()

        def is_taken():
            try:
                peer.publish("q", 2)
            except Refused:
                return False
            return True

        wait_until(is_taken, "the worker has looked")


def test_a_lower_limit_takes_effect_on_a_queue_that_nobody_has_open(tmp_path):
    """By its own options and by a policy; whoever drops what is too much lets go of the queue then."""
    data = tmp_path / "data"
    with broker(data, workers=2) as running, contextlib.closing(Metadata(str(data / "meta.db"))) as metadata:
        with QueuePeer(running) as peer:
            peer.create("q")
            peer.publish_all("q", range(MANY))
            peer.subscribe("q", prefetch=MANY)
            peer.take(MANY)  # and gives them back: with an entry in the ledger each, more than a turn's work
        directory = metadata.find_stream("/", "q").directory

        def is_open():
            return any(directory in Path(f"/proc/{pid}/maps").read_text() for pid in running.worker_pids())

        def waiting():
            return queue_stats(directory, MANY).waiting

        wait_until(lambda: not is_open(), "nobody has it open")
        assert waiting() == MANY
        metadata.alter_queue("/", "q", lambda options: {**options, "max_messages": 3})
        wait_until(lambda: waiting() == 3, "as many as its options let")
        wait_until(lambda: not is_open(), "nobody has it open")
        metadata.set_policy("/", "short", "q", {"max-length": 1})
        wait_until(lambda: waiting() == 1, "as many as the policy lets")
        wait_until(lambda: not is_open(), "nobody has it open")
        with QueuePeer(running) as peer:
            assert peer.info("q")["droppedCount"] == MANY - 1
            peer.subscribe("q")
            assert payloads(peer.take(1)) == [MANY - 1]


def test_a_policy_reaches_every_open_queue_however_many_there_are(tmp_path):
    names = [f"q-{number}" for number in range(2 * ALTERED_PER_TURN + 1)]

    def is_full(peer, name):
        try:
            peer.publish(name, 1)
        except Refused:
            return True
        return False

    with broker(tmp_path / "data", workers=1) as running, QueuePeer(running) as peer:
        for name in names:
            peer.create(name, maxQueueSize=0)
            peer.publish(name, 1)
        metadata = Metadata(str(tmp_path / "data" / "meta.db"))
        metadata.set_policy("/", "short", "^q-", {"max-length": 1, "overflow": "reject-publish"})
        wait_until(lambda: all([is_full(peer, name) for name in names]), "every queue is full by it")
        metadata.close()


def test_a_queue_that_cannot_be_opened_does_not_keep_others_from_their_changes(tmp_path):
    data = tmp_path / "data"
    with broker(data, workers=1) as running, QueuePeer(running, features=FEATURES) as peer:
        peer.create("closed")
        peer.create("open", maxQueueSize=1, overflowStrategy=DROP_NEWEST)
    metadata = Metadata(str(data / "meta.db"))
    with open(f"{metadata.find_stream('/', 'closed').directory}/control", "r+b") as file:
        file.seek(4)  # the version, which is not known then
        file.write(b"\xff\xff\xff\xff")
    with broker(data, workers=1) as running, QueuePeer(running, features=FEATURES) as peer:
        peer.publish("open", 1)
        metadata.alter_queue("/", "closed", lambda options: {**options, "message_ttl_ms": 60_000})
        metadata.alter_queue("/", "open", lambda options: {**options, "max_messages": 2})

        def is_taken():
            try:
                peer.publish("open", 2)
            except Refused:
                return False
            return True

        wait_until(is_taken, "the worker has looked at both")
    metadata.close()


def test_a_change_outlives_the_broker(tmp_path):
    data = tmp_path / "data"
    with broker(data, workers=1) as running, QueuePeer(running, features=FEATURES) as peer:
        peer.create("q", maxQueueSize=1)
        alter(peer, "q", maxQueueSize=5, maxRetryAttempts=7)
    with broker(data, workers=1) as running, QueuePeer(running) as peer:
        info = peer.info("q")
        assert (info["maxSize"], info["maxRetryAttempts"]) == (5, 7)


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"mode": 3}, "mode: it cannot change while queue"),
        ({"durability": "disk"}, "durability: it cannot change while queue"),
        ({"ackTimeoutMs": 9}, "ack_timeout_ms: needed milliseconds from 10"),
        ({"maxQueueSize": -1}, "maxQueueSize: needed a whole number"),
        ({"prefetch": 0}, "prefetch: needed a number from 1"),
        ({"maxLength": 5}, "maxLength: needed one of"),
        ({}, "payload: needed an option to change"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_what_can(peer, name, members, said):
    peer.create(name, maxQueueSize=3)
    with pytest.raises(Refused, match="INVALID_PAYLOAD") as refused:
        alter(peer, name, **members)
    assert said in str(refused.value)
    assert peer.info(name)["maxSize"] == 3


def test_a_queue_cannot_become_its_own_dead_letter_queue(peer, name):
    peer.create(name, deadLetterQueueName="elsewhere")
    with pytest.raises(Refused, match="cannot be its own dead-letter queue"):
        alter(peer, name, enableDeadLetterQueue=True, deadLetterQueueName=name)


def test_what_is_no_queue_is_not_found(peer, name):
    with pytest.raises(Refused, match="QUEUE_NOT_FOUND"):
        alter(peer, name, maxQueueSize=3)


def test_who_has_not_asked_for_it_does_not_know_it(connect, name):
    other = connect()
    other.create(name)
    with pytest.raises(Refused, match="UNKNOWN_COMMAND"):
        alter(other, name, maxQueueSize=3)
