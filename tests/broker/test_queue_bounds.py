# SPDX-License-Identifier: Apache-2.0
"""How old and how many: time to live, the four overflow strategies, purging and deleting."""

import json
from datetime import datetime

import pytest
from peers.queues import (
    Command,
    Killed,
    QueuePeer,
    Refused,
    attempts,
    kill_all,
    killed_at_the_end,
    payload,
    payloads,
    wait_until,
)
from running import broker, written

from vibemq.protocols.native.codec import encode_frame

DROP_OLDEST, DROP_NEWEST, BLOCK_PUBLISHER, REDIRECT_TO_DLQ = range(4)
TTL_MS = 250
MODES = range(4)


def await_messages(peer, queue, count):
    """Until so many wait in a queue that may not be made yet."""
    wait_until(
        lambda: (peer.info(queue) or {}).get("messageCount") == count, f"{count} messages in {queue}", seconds=10.0
    )


# ---- time to live ----


@pytest.mark.parametrize("mode", MODES)
def test_what_nobody_takes_in_time_is_gone(connect, name, mode):
    publisher, late = connect(), connect()
    publisher.create(name, mode=mode, messageTtl=TTL_MS)
    publisher.publish_all(name, range(10))
    await_messages(publisher, name, 0)
    late.subscribe(name)
    assert late.rest() == []
    publisher.publish(name, "fresh")
    assert payloads(late.take(1)) == ["fresh"]


@pytest.mark.parametrize("mode", MODES)
def test_what_has_expired_is_in_the_dead_letter_queue_with_the_reason(connect, name, mode):
    publisher = connect()
    publisher.create(name, mode=mode, messageTtl=TTL_MS, enableDeadLetterQueue=True)
    publisher.publish_all(name, range(20))
    await_messages(publisher, name + ".dlq", 20)
    assert publisher.counts(name) == (0, 0)
    publisher.subscribe(name + ".dlq")
    dead = publisher.take(20)
    assert sorted(payloads(dead)) == list(range(20))
    for message in dead:
        assert message.headers["x-original-queue"] == name
        assert message.headers["x-failure-reason"] == "MessageExpired"
        assert message.headers["x-attempts"] == "0"
    publisher.ack(*dead)


def test_messages_expire_though_their_publisher_left_at_once_and_nobody_subscribed(connect, name):
    watcher = connect()
    watcher.create(name, messageTtl=TTL_MS, enableDeadLetterQueue=True)
    publisher = connect()
    publisher.publish(name, 1)
    publisher.close()
    await_messages(watcher, name + ".dlq", 1)


def test_nothing_expires_before_its_time(connect, name):
    publisher = connect()
    publisher.create(name, messageTtl=TTL_MS, enableDeadLetterQueue=True)
    began = datetime.now().astimezone()
    publisher.publish(name, 1)
    await_messages(publisher, name + ".dlq", 1)
    publisher.subscribe(name + ".dlq")
    dead = publisher.delivery()
    lived_ms = (datetime.fromisoformat(dead.headers["x-failed-at"]) - began).total_seconds() * 1000
    assert lived_ms > TTL_MS - 2  # two clocks of one machine, in whole milliseconds
    publisher.ack(dead)


def test_what_is_in_flight_does_not_expire_but_what_comes_back_too_old_does(connect, name):
    publisher, keeps, gives_back = connect(), connect(), connect()
    publisher.create(name, messageTtl=TTL_MS, enableDeadLetterQueue=True)
    keeps.subscribe(name, prefetch=1)
    gives_back.subscribe(name, prefetch=1)
    publisher.publish_all(name, ["kept", "given back", "waits"])
    kept = keeps.delivery()
    gives_back.delivery()
    await_messages(publisher, name + ".dlq", 1)
    gives_back.unsubscribe(name)
    await_messages(publisher, name + ".dlq", 2)
    keeps.ack(kept)
    publisher.await_counts(name, 0)
    publisher.subscribe(name + ".dlq")
    assert payloads(publisher.rest()) == ["waits", "given back"]


def test_each_message_has_its_own_time(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, messageTtl=5 * TTL_MS, enableDeadLetterQueue=True)
    publisher.publish_all(name, range(5))
    await_messages(publisher, name + ".dlq", 5)
    publisher.publish_all(name, range(5, 8))
    consumer.subscribe(name)
    assert payloads(consumer.take(3)) == [5, 6, 7]
    consumer.ack(*consumer.deliveries)


# ---- overflow ----


@pytest.mark.parametrize("mode", MODES)
def test_drop_oldest_keeps_the_newest(connect, name, mode):
    publisher, consumer = connect(), connect()
    publisher.create(name, mode=mode, maxQueueSize=5, overflowStrategy=DROP_OLDEST)
    publisher.publish_all(name, range(12))
    publisher.await_counts(name, 5)
    consumer.subscribe(name)
    assert payloads(consumer.take(5)) == [7, 8, 9, 10, 11]
    assert consumer.rest() == []


def test_drop_oldest_holds_also_when_publishers_come_and_go(connect, name):
    watcher = connect()
    watcher.create(name, maxQueueSize=3, overflowStrategy=DROP_OLDEST)
    for number in range(6):
        publisher = connect()
        publisher.publish(name, number)
        publisher.close()
    watcher.await_counts(name, 3)


def test_drop_oldest_spares_what_is_in_flight(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, maxQueueSize=2, overflowStrategy=DROP_OLDEST)
    consumer.subscribe(name, prefetch=2)
    publisher.publish_all(name, range(2))
    held = consumer.take(2)
    publisher.publish_all(name, range(2, 8))
    publisher.await_counts(name, 2, 2)
    consumer.ack(*held)
    assert consumer.take_acked(2) == [6, 7]


def test_drop_newest_refuses_and_says_so(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, maxQueueSize=2, overflowStrategy=DROP_NEWEST)
    publisher.publish_all(name, range(2))
    with pytest.raises(Refused, match="QUEUE_FULL"):
        publisher.publish(name, 2)
    assert publisher.counts(name) == (2, 0)
    consumer.subscribe(name)
    assert consumer.take_acked(2) == [0, 1]
    publisher.publish(name, 3)
    assert payload(consumer.delivery()) == 3


def test_the_bound_counts_what_waits_and_not_what_is_in_flight(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, maxQueueSize=2, overflowStrategy=DROP_NEWEST)
    consumer.subscribe(name, prefetch=3)
    for number in range(5):
        publisher.publish(name, number)
    with pytest.raises(Refused, match="QUEUE_FULL"):
        publisher.publish(name, 5)
    assert publisher.counts(name) == (2, 3)


@pytest.mark.parametrize("strategy", range(4))
def test_what_comes_back_is_not_subject_to_the_bound(connect, name, strategy):
    publisher, consumer, second = connect(), connect(), connect()
    publisher.create(name, maxQueueSize=3, overflowStrategy=strategy)
    consumer.subscribe(name, prefetch=3)
    publisher.publish_all(name, range(3))
    consumer.take(3)
    publisher.publish_all(name, range(3, 6))
    consumer.unsubscribe(name)
    publisher.await_counts(name, 6)
    second.subscribe(name)
    assert payloads(second.take(6)) == list(range(6))


def test_many_in_one_packet_are_refused_from_the_bound_on(connect, name):
    publisher = connect()
    publisher.create(name, maxQueueSize=10, overflowStrategy=DROP_NEWEST)
    ids = [publisher.start_publish(name, number) for number in range(25)]
    refused = 0
    for id in ids:
        try:
            publisher.answer(id)
        except Refused as problem:
            assert problem.code == "QUEUE_FULL"
            refused += 1
    assert (refused, publisher.counts(name)) == (15, (10, 0))


def test_a_blocked_publisher_is_answered_when_there_is_room(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, maxQueueSize=2, overflowStrategy=BLOCK_PUBLISHER)
    publisher.publish_all(name, range(2))
    waiting = [publisher.start_publish(name, number) for number in (2, 3)]
    publisher.ping()
    publisher.ping()
    assert not set(waiting) & publisher.answers.keys(), "the acknowledgement waits for room"
    consumer.subscribe(name, prefetch=1)
    assert payload(consumer.delivery()) == 0  # one is in flight: there is room for one
    publisher.answer(waiting[0])
    assert waiting[1] not in publisher.answers
    consumer.unsubscribe(name)
    consumer.subscribe(name)
    publisher.answer(waiting[1])
    assert payloads(consumer.take(4)) == [0, 1, 2, 3]


def test_the_acknowledgements_that_make_room_may_come_on_the_blocked_connection(connect, name):
    peer = connect()
    peer.create(name, maxQueueSize=1, overflowStrategy=BLOCK_PUBLISHER)
    peer.subscribe(name, prefetch=1)
    ids = [peer.start_publish(name, number) for number in range(20)]
    assert peer.take_acked(20) == list(range(20))
    for id in ids:
        peer.answer(id)


def test_a_blocked_publisher_on_another_worker_is_answered_when_there_is_room(connect_to, name):
    consumer, publisher = connect_to(0), connect_to(1)
    publisher.create(name, maxQueueSize=1, overflowStrategy=BLOCK_PUBLISHER)
    consumer.subscribe(name, prefetch=1)
    for number in range(50):
        publisher.start_publish(name, number, b"%d" % number)
    accepted, refused = [], []
    for number in range(50):  # the pace of the consumer decides; 400 ms is the patience of this broker
        if consumer.deliveries or number < 10:
            consumer.ack(consumer.delivery())
        try:
            publisher.answer(b"%d" % number)
            accepted.append(number)
        except Refused as problem:
            assert problem.code == "QUEUE_FULL"
            refused.append(number)
    assert len(accepted) >= 10
    assert accepted == list(range(len(accepted))), "in order"


def test_a_publisher_is_not_blocked_for_ever(connect_to, name):
    publisher = connect_to(0)
    publisher.create(name, maxQueueSize=1, overflowStrategy=BLOCK_PUBLISHER)
    publisher.publish(name, 0)
    waiting = [publisher.start_publish(name, number) for number in (1, 2)]
    for id in waiting:
        with pytest.raises(Refused, match="QUEUE_FULL"):
            publisher.answer(id)
    assert publisher.counts(name) == (1, 0)


def test_a_blocked_publisher_that_leaves_leaves_nothing_behind(connect, name):
    publisher, leaves = connect(), connect()
    publisher.create(name, maxQueueSize=1, overflowStrategy=BLOCK_PUBLISHER)
    publisher.publish(name, "first")
    leaves.start_publish(name, "never")
    leaves.ping()
    leaves.close()
    waiting = publisher.start_publish(name, "second")
    consumer = connect()
    consumer.subscribe(name)
    publisher.answer(waiting)
    assert consumer.take_acked(2) == ["first", "second"]


def test_a_blocked_publisher_hears_that_its_queue_was_deleted(connect, name):
    publishers, other = [connect() for _ in range(5)], connect()
    other.create(name, maxQueueSize=1, overflowStrategy=BLOCK_PUBLISHER)
    other.publish(name, 0)
    waiting = [publisher.start_publish(name, 1) for publisher in publishers]
    for publisher in publishers:
        publisher.ping()
    other.delete(name)
    for publisher, id in zip(publishers, waiting, strict=True):
        with pytest.raises(Refused, match="QUEUE_NOT_FOUND"):
            publisher.answer(id)
        publisher.ping()


def test_redirect_puts_what_is_too_much_into_the_dead_letter_queue(connect, name):
    publisher, reader = connect(), connect()
    publisher.create(name, maxQueueSize=2, overflowStrategy=REDIRECT_TO_DLQ, enableDeadLetterQueue=True)
    publisher.publish_all(name, range(6), own="kept")
    assert publisher.counts(name) == (2, 0)
    await_messages(reader, name + ".dlq", 4)  # however small its source is
    reader.subscribe(name + ".dlq")
    dead = reader.take(4)
    assert payloads(dead) == [2, 3, 4, 5]
    for message in dead:
        assert message.headers["x-original-queue"] == name
        assert message.headers["own"] == "kept"
        assert message.headers["x-attempts"] == "0"


def test_redirect_refuses_where_there_is_no_dead_letter_queue(connect, name):
    publisher = connect()
    publisher.create(name, maxQueueSize=1, overflowStrategy=REDIRECT_TO_DLQ)
    publisher.publish(name, 1)
    with pytest.raises(Refused, match="QUEUE_FULL"):
        publisher.publish(name, 2)


@pytest.mark.parametrize("strategy", range(4))
def test_no_bound_means_none(connect, name, strategy):
    publisher = connect()
    publisher.create(name, maxQueueSize=0, overflowStrategy=strategy, enableDeadLetterQueue=True)
    publisher.publish_all(name, range(300))
    assert publisher.counts(name) == (300, 0)


# ---- purge ----


@pytest.mark.parametrize("mode", MODES)
def test_purging_takes_what_waits(connect, name, mode):
    publisher, consumer = connect(), connect()
    publisher.create(name, mode=mode)
    publisher.publish_all(name, range(30))
    assert publisher.purge(name) == 30
    publisher.await_counts(name, 0)
    consumer.subscribe(name)
    publisher.publish(name, "after")
    assert payloads(consumer.take(1)) == ["after"]
    assert consumer.rest() == []


def test_purging_spares_what_is_in_flight(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name)
    publisher.publish_all(name, range(10))
    consumer.subscribe(name, prefetch=4)
    held = consumer.take(4)
    assert publisher.purge(name) == 6
    publisher.await_counts(name, 0, 4)
    consumer.nack(held[1])
    again = consumer.delivery()
    assert (payload(again), attempts(again)) == (1, 2)
    consumer.ack(again, held[0], *held[2:])
    publisher.await_counts(name, 0)


def test_purging_takes_what_waits_for_its_back_off(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, ackTimeoutMs=50, backoffMs=60_000, backoffMaxMs=60_000)
    consumer.subscribe(name)
    publisher.publish(name, 1)
    consumer.delivery()
    publisher.await_counts(name, 1)
    assert publisher.purge(name) == 1
    publisher.await_counts(name, 0)


def test_purging_from_another_worker_than_the_home(connect_to, name):
    consumer, other = connect_to(0), connect_to(1)
    consumer.create(name)
    consumer.subscribe(name, prefetch=1)
    other.publish_all(name, range(100))
    held = consumer.delivery()
    other.await_counts(name, 99, 1)
    assert other.purge(name) == 99
    other.await_counts(name, 0, 1)
    consumer.ack(held)
    other.await_counts(name, 0)


def test_purging_a_queue_that_does_not_exist_is_an_error(connect, name):
    with pytest.raises(Refused, match="QUEUE_NOT_FOUND"):
        connect().purge(name)


def test_purging_is_unknown_to_who_did_not_ask_for_it(connect, name):
    peer = connect(features="")
    peer.create(name)
    with pytest.raises(Refused, match="UNKNOWN_COMMAND"):
        peer.ask(Command.PURGE_QUEUE, queue=name)


# ---- delete ----


def test_deleting_forgets_what_is_in_flight_and_ignores_late_acknowledgements(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name)
    consumer.subscribe(name, prefetch=3)
    publisher.publish_all(name, range(5), own="x")
    held = consumer.take(3)
    publisher.delete(name)
    assert publisher.info(name) is None
    consumer.ack(*held)
    assert consumer.rest() == []
    publisher.create(name)
    assert publisher.counts(name) == (0, 0)


def test_a_subscription_lives_on_by_name_and_attaches_to_the_queue_made_anew(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name)
    consumer.subscribe(name)
    publisher.publish(name, "old")
    old = consumer.delivery()
    publisher.delete(name)
    publisher.create(name)
    publisher.publish(name, "new", old.id)
    new = consumer.delivery()
    assert (payload(new), attempts(new)) == ("new", 1)
    consumer.ack(new)
    publisher.await_counts(name, 0)


def test_deleting_on_one_worker_ends_deliveries_on_the_other(connect_to, name):
    publisher, consumer = connect_to(0), connect_to(1)
    publisher.create(name)
    consumer.subscribe(name)
    publisher.publish(name, 1)
    consumer.delivery()
    publisher.delete(name)
    publisher.create(name)
    publisher.publish(name, 2)
    assert payload(consumer.delivery()) == 2


def test_deleting_under_load_hurts_no_connection(connect_to, name):
    publishers, consumers = [connect_to(0), connect_to(1)], [connect_to(0), connect_to(1)]
    publishers[0].create(name)
    for consumer in consumers:
        consumer.subscribe(name)
    for round_ in range(10):
        ids = [publisher.start_publish(name, number) for number in range(50) for publisher in publishers]
        publishers[round_ % 2].delete(name)
        for at, id in enumerate(ids):
            try:
                publishers[at % 2].answer(id)
            except Refused as problem:
                assert problem.code == "QUEUE_NOT_FOUND"
        publishers[round_ % 2].create(name)
    for peer in [*publishers, *consumers]:
        peer.ping()


def test_what_is_redirected_is_answered_though_its_queue_is_deleted_meanwhile(connect, name):
    peer = connect()
    peer.create(name + ".dlq", durability="disk")  # a sync lies between the redirecting and its answer
    peer.create(name, maxQueueSize=1, overflowStrategy=REDIRECT_TO_DLQ, enableDeadLetterQueue=True)
    peer.publish(name, 0)
    ids = [peer.fresh() for _ in range(20)]
    frames = [encode_frame(Command.PUBLISH, id, queue=name, payload=b"1") for id in ids]
    deleted = peer.fresh()
    peer.send_all(*frames, encode_frame(Command.DELETE_QUEUE, deleted, queue=name))
    for id in (*ids, deleted):
        peer.answer(id)
    assert peer.info(name) is None
    peer.await_counts(name + ".dlq", 20)


# ---- dead letters that are dead-lettered again ----


def hops(message):
    return [(hop["queue"], hop["reason"], hop["count"], hop["to"]) for hop in json.loads(message.headers["x-death"])]


def test_a_message_that_two_queues_dead_letter_to_each_other_by_age_is_dropped(tmp_path, capfd):
    with broker(tmp_path, workers=1) as running, QueuePeer(running) as peer:
        for queue, other in (("a", "b"), ("b", "a")):
            peer.create(queue, messageTtl=20, enableDeadLetterQueue=True, deadLetterQueueName=other)
        peer.publish_all("a", range(50))
        wait_until(lambda: peer.info("b")["droppedCount"] == 50, "each has passed each queue once")
        assert (peer.counts("a"), peer.counts("b")) == ((0, 0), (0, 0))
        assert peer.info("a")["droppedCount"] == 0
    said = [line for line in written(capfd).splitlines() if "went round through dead-letter queues" in line]
    assert 1 <= len(said) <= 2 and "queue b: message" in said[0]


def test_a_rejection_by_a_consumer_lets_a_message_go_round_again(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name, maxRetryAttempts=1, enableDeadLetterQueue=True, deadLetterQueueName=name + ".wait")
    publisher.create(name + ".wait", messageTtl=10, enableDeadLetterQueue=True, deadLetterQueueName=name)
    consumer.subscribe(name)
    publisher.publish(name, "again")
    for count in range(1, 6):
        message = consumer.delivery()
        if count > 1:
            assert hops(message) == [
                (name + ".wait", "MessageExpired", count - 1, name),
                (name, "MaxRetriesExceeded", count - 1, name + ".wait"),
            ]
        consumer.nack(message)


def test_the_first_queue_and_its_attempts_stay_readable(connect, name):
    publisher, consumer, reader = connect(), connect(), connect()
    publisher.create(name, maxRetryAttempts=3, enableDeadLetterQueue=True, deadLetterQueueName=name + ".wait",
                     retryDelayMs=0, backoffMs=0)  # fmt: skip
    publisher.create(name + ".wait", messageTtl=10, enableDeadLetterQueue=True, deadLetterQueueName=name + ".end")
    consumer.subscribe(name)
    publisher.publish(name, 1)
    for _ in range(3):
        consumer.nack(consumer.delivery())
    reader.subscribe(name + ".end")
    letter = reader.delivery()
    assert letter.headers["x-original-queue"] == name
    assert (letter.headers["x-failure-reason"], letter.headers["x-attempts"]) == ("MessageExpired", "3")
    assert hops(letter) == [
        (name + ".wait", "MessageExpired", 1, name + ".end"), (name, "MaxRetriesExceeded", 1, name + ".wait")
    ]  # fmt: skip


def test_a_dead_letter_that_is_published_again_begins_a_new_path(connect, name):
    publisher, reader = connect(), connect()
    publisher.create(name, messageTtl=10, enableDeadLetterQueue=True)
    publisher.publish(name, 1)
    for count in range(1, 4):
        reader.subscribe(name + ".dlq")
        letter = reader.delivery()
        assert hops(letter) == [(name, "MessageExpired", count, name + ".dlq")]
        publisher.publish(name, 1, **{key: value for key, value in letter.headers.items() if key.startswith("x-")})
        reader.ack(letter)


@pytest.mark.parametrize(
    "header",
    [
        '[{"z":' + "[" * 2000 + "]" * 2000 + "}]",
        '[{"queue":"other","reason":"rejected","count":18446744073709551615,"to":"other"}]',
        '[{"queue":"\\ud800","reason":"rejected","count":1,"to":"other"}]',
        "[" + ",".join(['{"queue":"a","reason":"b","count":1,"to":"c"}'] * 80) + "]",
        "no JSON",
    ],
    ids=["many levels", "a great count", "half a character", "many hops", "no JSON"],
)
def test_no_header_of_a_publisher_keeps_its_message_from_the_dead_letter_queue(connect, name, header):
    peer = connect()
    peer.create(name, maxRetryAttempts=1, enableDeadLetterQueue=True)
    peer.publish(name, "poison", **{"x-death": header})
    peer.subscribe(name)
    peer.nack(peer.delivery())
    peer.subscribe(f"{name}.dlq")
    dead = peer.delivery()
    assert payload(dead) == "poison"
    assert hops(dead) == [(name, "MaxRetriesExceeded", 1, name + ".dlq")]


@pytest.mark.parametrize("mode", MODES)
def test_with_a_dead_letter_queue_drop_oldest_dead_letters_dropped_messages(connect, name, mode):
    publisher, reader = connect(), connect()
    publisher.create(name, mode=mode, maxQueueSize=3, enableDeadLetterQueue=True)
    publisher.publish_all(name, range(10))
    publisher.await_counts(name, 3)
    reader.subscribe(name + ".dlq")
    letters = reader.take(7)
    assert sorted(payloads(letters)) == list(range(7))
    assert {letter.headers["x-failure-reason"] for letter in letters} == {"maxlen"}
    reader.subscribe(name)
    assert payloads(reader.rest()) == [7, 8, 9]
    assert publisher.info(name)["droppedCount"] == 0


def test_a_limit_dead_letters_each_of_many_messages_once(connect, name):
    publisher, reader = connect(), connect()
    publisher.create(name, maxQueueSize=100, enableDeadLetterQueue=True)
    publisher.publish_all(name, range(9100))
    publisher.await_counts(name, 100)
    reader.subscribe(name + ".dlq")
    assert sorted(reader.take_acked(9000)) == list(range(9000))


def test_copies_that_a_slow_member_of_a_fan_out_loses_are_dead_lettered(connect, name):
    publisher, slow, quick = connect(), connect(), connect()
    publisher.create(name, mode=1, maxQueueSize=5, enableDeadLetterQueue=True)
    slow.subscribe(name, prefetch=1)
    quick.subscribe(name)
    publisher.await_subscribers(name, 2)
    for number in range(20):
        publisher.publish(name, number)
        quick.ack(quick.delivery())
    quick.ping()
    held = slow.delivery()
    assert payload(held) == 0
    quick.subscribe(name + ".dlq")
    letters = quick.take(14)
    assert sorted(payloads(letters)) == list(range(1, 15))
    assert {letter.headers["x-failure-reason"] for letter in letters} == {"maxlen"}
    quick.ack(*letters)
    slow.ack(held)
    assert slow.take_acked(5) == list(range(15, 20))
    publisher.await_counts(name, 0)


def test_messages_that_a_limit_drops_survive_a_kill_of_all_processes(tmp_path):
    with killed_at_the_end(), broker(tmp_path) as running, QueuePeer(running) as peer:
        peer.create("q", maxQueueSize=10, enableDeadLetterQueue=True)
        ids = [peer.start_publish("q", number) for number in range(2000)]
        for id in ids[:1500]:
            peer.answer(id)
        kill_all(running)
        raise Killed
    with broker(tmp_path) as running, QueuePeer(running) as peer:
        peer.publish("q", "last")
        peer.await_counts("q", 10)
        letters = peer.counts("q.dlq")[0]
        peer.subscribe("q.dlq", prefetch=5000)
        peer.subscribe("q", prefetch=5000)
        found = {payload(each) for each in peer.take(letters + 10)}
        assert set(range(1500)) <= found


# ---- messages that are given back ----


def test_a_purge_counts_messages_given_back_in_the_same_packet(connect, name):
    peer = connect()
    peer.create(name)
    peer.subscribe(name)
    peer.publish_all(name, range(10))
    taken = peer.take(10)
    nacks = b"".join(encode_frame(Command.NACK, message.id, queue=name) for message in taken)
    id = peer.fresh()
    peer.send_all(nacks + encode_frame(Command.PURGE_QUEUE, id, queue=name))
    assert json.loads(peer.answer(id).payload) == {"purged": 10}
    peer.await_counts(name, 0)
    assert peer.rest() == []


def test_a_purge_at_another_worker_counts_and_removes_messages_given_back_in_the_same_packet(connect_to, name):
    first, second = connect_to(0), connect_to(1)
    first.create(name)
    first.subscribe(name, prefetch=1)
    first.publish(name, "held")
    held = first.delivery()
    second.subscribe(name, prefetch=100)
    first.publish_all(name, range(50))
    taken = second.take(50)
    nacks = b"".join(encode_frame(Command.NACK, message.id, queue=name) for message in taken)
    id = second.fresh()
    second.send_all(nacks + encode_frame(Command.PURGE_QUEUE, id, queue=name))
    assert json.loads(second.answer(id).payload) == {"purged": 50}
    first.ack(held)
    first.await_counts(name, 0)
    assert first.rest() == second.rest() == []


@pytest.mark.parametrize("overflow", [DROP_OLDEST, DROP_NEWEST])
def test_messages_given_back_to_a_full_queue_stay_until_the_next_publish(connect, name, overflow):
    publisher, consumer = connect(), connect()
    publisher.create(name, maxQueueSize=1, overflowStrategy=overflow)
    consumer.subscribe(name)
    for number in range(10):
        publisher.publish(name, number)
        consumer.take(1)
    consumer.close()
    publisher.await_counts(name, 10)  # none was dropped or refused
    if overflow == DROP_NEWEST:
        with pytest.raises(Refused):
            publisher.publish(name, "one more")
        publisher.await_counts(name, 10)
    else:
        publisher.publish(name, "one more")
        publisher.await_counts(name, 1)
