# SPDX-License-Identifier: Apache-2.0
"""Queues over restarts: clean stops, kill -9 of everything, kill -9 of one worker.

The rounds under load are in test_queue_kill.py; here each fact has a test of its own.
"""

import contextlib
import os
import signal

import pytest
from peers.queues import (
    Command,
    Killed,
    QueuePeer,
    attempts,
    kill,
    kill_all,
    killed_at_the_end,
    on_worker,
    payload,
    payloads,
    stopped,
    wait_until,
    worker_pid,
)
from running import broker

from vibemq.protocols.native.codec import encode_frame
from vibemq.storage.ledger import queue_stats

SHORT = ("--set", "server.shutdown_timeout_s=2")
ROUND_ROBIN, FAN_OUT_WITH_ACK, FAN_OUT_WITHOUT_ACK, PRIORITY_BASED = range(4)
STOPS = ["clean", "killed"]


@contextlib.contextmanager
def served_until(stop, folder, workers=2):
    """A broker that is stopped, or killed with all its processes, when the block ends."""
    with killed_at_the_end(), broker(folder, *SHORT, workers=workers) as running:
        yield running
        if stop == "killed":
            kill_all(running)
            raise Killed


def new_worker(running, worker, old_pid):
    """Until the supervisor has replaced it."""
    wait_until(lambda: worker_pid(running, worker) not in (0, old_pid), "a new worker")


def directory_of(data):
    """Of the only queue there is."""
    (ledger,) = (data / "streams").glob("*/ledger")
    return str(ledger.parent)


# ---- all processes ----


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("mode", [ROUND_ROBIN, FAN_OUT_WITH_ACK])
def test_acknowledged_messages_do_not_come_back_and_the_others_do(tmp_path, stop, mode):
    with served_until(stop, tmp_path) as running, QueuePeer(running) as peer:
        peer.create("q", mode=mode)
        peer.subscribe("q", prefetch=6)
        peer.publish_all("q", range(10))
        held = peer.take(6)
        peer.ack(held[0], held[2], held[3])
        peer.ping()
    with served_until("clean", tmp_path) as running, QueuePeer(running) as peer:
        peer.subscribe("q")
        found = {payload(message): attempts(message) for message in peer.take(7)}
        assert list(found) == [1, 4, 5, 6, 7, 8, 9], "in their old order"
        assert all(found[number] >= 2 for number in (1, 4, 5)), "counts go on"
        assert found[9] == 1
        peer.ping()
        assert not peer.deliveries


@pytest.mark.parametrize("stop", STOPS)
def test_counts_are_right_after_a_restart_before_anybody_uses_the_queue(tmp_path, stop):
    with served_until(stop, tmp_path) as running, QueuePeer(running) as peer:
        peer.create("q")
        peer.subscribe("q", prefetch=4)
        peer.publish_all("q", range(6))
        peer.take(4)
        peer.await_counts("q", 2, 4)
    with served_until("clean", tmp_path) as running:
        shown = queue_stats(directory_of(tmp_path), 6)
        assert (shown.waiting, shown.in_flight, shown.consumers) == (6, 0, 0), "nobody has asked a worker yet"
        with QueuePeer(running) as peer:
            assert peer.info("q")["subscriberCount"] == 0
            assert peer.counts("q") == (6, 0)


def test_what_a_killed_worker_had_is_shown_as_waiting_though_nobody_uses_the_queue(tmp_path):
    with broker(tmp_path, workers=1) as running:
        with QueuePeer(running) as peer:
            peer.create("q")
            peer.subscribe("q", prefetch=4)
            peer.publish_all("q", range(6))
            peer.take(4)
            peer.await_counts("q", 2, 4)
            directory = directory_of(tmp_path)
            old = worker_pid(running, 0)
            kill(old)
        new_worker(running, 0, old)
        wait_until(lambda: queue_stats(directory, 6)[:3] == (6, 0, 0), "the figures of its successor")


@pytest.mark.parametrize("stop", STOPS)
def test_a_broker_that_ends_is_no_failed_attempt(tmp_path, stop):
    """However often: the message has done nothing, and nor has its consumer."""
    for number in range(4):
        with contextlib.ExitStack() as stays, served_until(stop, tmp_path) as running:
            peer = stays.enter_context(QueuePeer(running))
            if number == 0:
                peer.create("q", maxRetryAttempts=2)
                peer.publish("q", "precious")
            peer.subscribe("q")
            assert attempts(peer.delivery()) == number + 1
    with broker(tmp_path) as running, QueuePeer(running) as peer:
        peer.subscribe("q")
        assert payload(peer.delivery()) == "precious"


@pytest.mark.parametrize("stop", STOPS)
def test_what_waits_keeps_its_order_and_its_bytes(tmp_path, stop):
    with served_until(stop, tmp_path) as running, QueuePeer(running) as peer:
        peer.create("q")
        ids = peer.publish_all("q", range(5000), own="kept")
    with served_until("clean", tmp_path) as running, QueuePeer(running) as peer:
        assert peer.counts("q") == (5000, 0)
        peer.subscribe("q")
        for number, id in enumerate(ids):
            message = peer.delivery()
            assert (payload(message), message.id, message.headers["own"]) == (number, id, "kept")
            peer.ack(message)
        peer.await_counts("q", 0)


@pytest.mark.parametrize("stop", STOPS)
def test_priorities_outlive_a_restart(tmp_path, stop):
    with served_until(stop, tmp_path) as running, QueuePeer(running) as peer:
        peer.create("q", mode=PRIORITY_BASED)
        for number, priority in enumerate("021321"):
            peer.publish("q", number, priority=priority)
    with served_until("clean", tmp_path) as running, QueuePeer(running) as peer:
        peer.subscribe("q")
        assert payloads(peer.take(6)) == [3, 1, 4, 2, 5, 0]


@pytest.mark.parametrize("stop", STOPS)
def test_options_outlive_a_restart(tmp_path, stop):
    options = {"mode": 1, "maxQueueSize": 77, "maxRetryAttempts": 9, "enableDeadLetterQueue": True}
    with served_until(stop, tmp_path) as running, QueuePeer(running) as peer:
        peer.create("q", **options, overflowStrategy=2, messageTtl="01:00:00", ackTimeoutMs=1234, prefetch=5)
        before = peer.info("q")
    with served_until("clean", tmp_path) as running, QueuePeer(running) as peer:
        assert peer.info("q") == before


@pytest.mark.parametrize("stop", STOPS)
def test_messages_expire_after_a_restart_though_nobody_asks_for_them(tmp_path, stop):
    with served_until(stop, tmp_path) as running, QueuePeer(running) as peer:
        peer.create("q", messageTtl=300, enableDeadLetterQueue=True)
        peer.create("q.dlq")
        peer.publish_all("q", range(3))
    with served_until("clean", tmp_path) as running, QueuePeer(running) as peer:
        peer.await_counts("q.dlq", 3)


@pytest.mark.parametrize("stop", STOPS)
def test_dead_letters_outlive_a_restart(tmp_path, stop):
    with served_until(stop, tmp_path) as running, QueuePeer(running) as peer:
        peer.create("q", maxRetryAttempts=1, enableDeadLetterQueue=True)
        peer.subscribe("q")
        peer.publish_all("q", range(5))
        peer.nack(*peer.take(5))
        wait_until(lambda: (peer.info("q.dlq") or {}).get("messageCount") == 5, "dead letters")
    with served_until("clean", tmp_path) as running, QueuePeer(running) as peer:
        peer.await_counts("q", 0)
        peer.subscribe("q.dlq")
        messages = peer.take(5)
        assert sorted(payloads(messages)) == list(range(5))
        assert {message.headers["x-original-queue"] for message in messages} == {"q"}


@pytest.mark.parametrize("stop", STOPS)
def test_what_was_purged_does_not_come_back_and_what_was_in_flight_does(tmp_path, stop):
    with served_until(stop, tmp_path) as running, QueuePeer(running) as peer:
        peer.create("q")
        peer.subscribe("q", prefetch=3)
        peer.publish_all("q", range(8))
        peer.take(3)
        assert peer.purge("q") == 5
        peer.await_counts("q", 0, 3)
    with served_until("clean", tmp_path) as running, QueuePeer(running) as peer:
        peer.subscribe("q")
        assert payloads(peer.take(3)) == [0, 1, 2]
        peer.publish("q", "last")
        assert payload(peer.delivery()) == "last"


@pytest.mark.parametrize("stop", STOPS)
def test_a_deleted_queue_stays_deleted(tmp_path, stop):
    with served_until(stop, tmp_path) as running, QueuePeer(running) as peer:
        peer.create("q")
        peer.publish_all("q", range(5))
        peer.delete("q")
        peer.create("other")
    with served_until("clean", tmp_path) as running, QueuePeer(running) as peer:
        assert peer.info("q") is None
        peer.create("q")
        assert peer.counts("q") == (0, 0)


def test_acknowledgements_are_read_while_the_broker_stops(tmp_path):
    with broker(tmp_path, "--set", "server.shutdown_timeout_s=30") as running:
        peer = QueuePeer(running)
        peer.create("q")
        peer.subscribe("q")
        peer.publish_all("q", range(3))
        held = peer.take(3)
        running.process.terminate()
        wait_until(lambda: goodbye(peer), "the broker says that it stops")
        assert peer.goodbye.headers["reason"] == "server_shutdown"
        peer.ack(*held)
        assert peer.ended()
        peer.close()
        running.process.wait(20)  # with nothing in flight any more it ends, long before its deadline
    with served_until("clean", tmp_path) as running, QueuePeer(running) as peer:
        assert peer.counts("q") == (0, 0)


def arrived(peer):
    peer.ping()
    return len(peer.deliveries)


def goodbye(peer):
    peer._read()
    return peer.goodbye is not None


# ---- one worker ----


@pytest.mark.parametrize("mode", [ROUND_ROBIN, PRIORITY_BASED, FAN_OUT_WITH_ACK])
@pytest.mark.parametrize("home", [0, 1])
def test_a_killed_worker_gives_back_what_its_consumers_had(tmp_path, stack, mode, home):
    """The victim is worker 1; the home is the worker that subscribes first."""
    with broker(tmp_path, *SHORT) as running:
        first = on_worker(running, home, stack)
        first.create("q", mode=mode)
        first.subscribe("q", prefetch=10)
        second = on_worker(running, 1 - home, stack)
        second.subscribe("q", prefetch=10)
        publisher = on_worker(running, 0, stack)
        publisher.await_subscribers("q", 2)
        publisher.publish_all("q", range(20))
        survivor, victim = (first, second) if home == 0 else (second, first)
        mine, lost = survivor.take(10), victim.take(10)
        survivor.ack(*mine[:5])
        survivor.ping()
        pid = worker_pid(running, 1)
        kill(pid)
        if mode == FAN_OUT_WITH_ACK:
            survivor.ack(*mine[5:])
            assert payloads(survivor.take(10)) == list(range(10, 20)), "its own copies, and nobody's twice"
        else:
            survivor.unsubscribe("q")
            survivor.subscribe("q")
            again = survivor.take(15)
            assert sorted(payloads(again)) == sorted(payloads(mine[5:]) + payloads(lost))
            assert all(attempts(message) == 2 for message in again)
            survivor.ack(*again)
            publisher.await_counts("q", 0)
        new_worker(running, 1, pid)


def test_consumers_of_a_killed_home_go_on_with_what_they_have_in_flight(tmp_path, stack):
    with broker(tmp_path, *SHORT) as running:
        victim, stays = on_worker(running, 1, stack), on_worker(running, 0, stack)
        victim.create("q")
        victim.subscribe("q", prefetch=1)
        stays.subscribe("q", prefetch=50)
        stays.await_subscribers("q", 2)
        stays.publish_all("q", range(30))
        held = stays.take(29)
        pid = worker_pid(running, 1)
        kill(pid)
        again = stays.delivery()
        assert (payload(again), attempts(again)) == (payload(victim.deliveries[0]) if victim.deliveries else 0, 2)
        stays.ack(*held, again)
        stays.await_counts("q", 0)
        assert stays.rest() == []
        new_worker(running, 1, pid)
        newcomer = on_worker(running, 1, stack)
        newcomer.subscribe("q")
        stays.await_subscribers("q", 2)
        newcomer.publish_all("q", range(100, 110))
        assert sorted(payloads(stays.take(5)) + payloads(newcomer.take(5))) == list(range(100, 110))


def test_what_only_a_killed_consumer_of_a_fan_out_was_given_goes_to_those_who_came_later(tmp_path, stack):
    """Its worker is not the home, which learns of the death by its seat alone."""
    with broker(tmp_path, *SHORT) as running:
        first, victim, stays = (on_worker(running, worker, stack) for worker in (0, 1, 0))
        first.create("q", mode=FAN_OUT_WITH_ACK)
        first.subscribe("q")
        victim.subscribe("q")
        first.await_subscribers("q", 2)
        first.unsubscribe("q")
        first.await_subscribers("q", 1)
        first.publish_all("q", range(5))
        victim.take(5)
        stays.subscribe("q")
        first.await_subscribers("q", 2)
        kill(worker_pid(running, 1))
        found = stays.take(5)
        assert [(payload(message), attempts(message)) for message in found] == [(number, 2) for number in range(5)]
        stays.ack(*found)
        stays.await_counts("q", 0)


@pytest.mark.parametrize("mode", [ROUND_ROBIN, FAN_OUT_WITH_ACK])
def test_what_the_survivors_of_a_killed_home_hold_is_not_lost_when_they_leave(tmp_path, stack, mode):
    """Three workers: the new home has consumers elsewhere, whose messages it knows by letters only."""
    with broker(tmp_path, *SHORT, workers=3) as running:
        peers = [on_worker(running, worker, stack) for worker in (1, 0, 2)]
        publisher = on_worker(running, 0, stack)
        publisher.create("q", mode=mode)
        for count, peer in enumerate(peers, 1):
            peer.subscribe("q")
            publisher.await_subscribers("q", count)
        publisher.publish_all("q", range(9))
        for peer in peers:
            peer.take(9 if mode == FAN_OUT_WITH_ACK else 3)
        pid = worker_pid(running, 1)
        kill(pid)
        publisher.await_subscribers("q", 2)
        if mode == ROUND_ROBIN:
            wait_until(lambda: sum(arrived(peer) for peer in peers[1:]) == 3, "what the victim had")
        else:
            publisher.publish("q", 9)  # makes the new home look at what is settled
            assert [payloads(peer.take(1)) for peer in peers[1:]] == [[9], [9]]
        for peer in peers[1:]:
            peer.unsubscribe("q")
        newcomer = on_worker(running, 2, stack)
        newcomer.subscribe("q")
        found = newcomer.take(10 if mode == FAN_OUT_WITH_ACK else 9)
        assert sorted(payloads(found)) == list(range(len(found)))
        assert all(attempts(message) >= 2 for message in found)


@pytest.mark.parametrize("successor", [0, 1], ids=["elsewhere", "beside the nacker"])
def test_a_copy_that_was_given_back_outlives_the_home(tmp_path, stack, successor):
    """The others have acknowledged theirs, so the ledger alone does not show that anybody still owes it."""
    with broker(tmp_path, *SHORT, workers=3) as running:
        home = on_worker(running, 2, stack)
        home.create("q", mode=FAN_OUT_WITH_ACK, maxRetryAttempts=5)
        home.subscribe("q")
        nacks = on_worker(running, 1, stack)
        nacks.subscribe("q", prefetch=3)
        acks = on_worker(running, successor, stack)
        acks.subscribe("q")
        home.await_subscribers("q", 3)
        home.publish_all("q", range(4))
        acks.ack(*acks.take(4))
        home.ack(*home.take(4))
        acks.ping()
        held = nacks.take(3)
        with stopped(worker_pid(running, 2)):  # it hears of nothing any more
            nacks.nack(held[0], held[2])
            nacks.ping()
            kill(worker_pid(running, 2))
        again = nacks.take(2)
        assert payloads(again) == [0, 2]
        nacks.ack(held[1], *again)
        assert nacks.take_acked(1) == [3]
        acks.await_counts("q", 0)


def test_a_consumer_that_leaves_while_messages_are_on_their_way_to_it_takes_none_along(tmp_path, stack):
    with broker(tmp_path, *SHORT) as running:
        stays = on_worker(running, 0, stack)
        stays.create("q", maxRetryAttempts=1000)
        stays.subscribe("q", prefetch=1000)
        published = 0
        for _ in range(30):
            leaves = on_worker(running, 1, stack)
            leaves.subscribe("q")
            stays.publish_all("q", range(published, published + 20))
            leaves.close()
            published += 20
        seen = set()
        while len(seen) < published:
            message = stays.delivery()
            seen.add(payload(message))
            stays.ack(message)
        stays.await_counts("q", 0)


def test_a_queue_that_was_handed_to_a_worker_that_forgot_it_is_found_again(tmp_path, stack):
    """Somebody subscribes and leaves in one breath on the other worker, which is made the home meanwhile."""
    with broker(tmp_path, *SHORT) as running:
        publisher = on_worker(running, 0, stack)
        publisher.create("q", maxQueueSize=2)
        for number in range(20):
            publisher.publish_all("q", range(3))
            publisher.await_counts("q", 2)  # so there is a home: it drops the oldest
            passing = on_worker(running, 1, stack)
            passing.send_all(encode_frame(Command.SUBSCRIBE, b"s", queue="q"), encode_frame(Command.DISCONNECT, b"d"))
            assert passing.ended()
            stays = on_worker(running, number % 2, stack)
            stays.subscribe("q")
            assert stays.take_acked(2) == [1, 2]
            stays.close()
            publisher.await_subscribers("q", 0)


def test_what_comes_while_nobody_is_home_pushes_out_the_oldest(tmp_path, stack):
    with broker(tmp_path, *SHORT) as running:
        publisher = on_worker(running, 0, stack)
        publisher.create("q", maxQueueSize=2)
        consumer = on_worker(running, 1, stack)
        consumer.subscribe("q", prefetch=1)  # the home is on its worker
        publisher.publish("q", 0)
        consumer.take(1)
        home = worker_pid(running, 1)
        os.kill(home, signal.SIGSTOP)
        publisher.publish_all("q", range(1, 4))
        kill(home)
        publisher.await_counts("q", 2)
        publisher.subscribe("q")
        assert payloads(publisher.take(2)) == [2, 3]
