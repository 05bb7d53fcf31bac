# SPDX-License-Identifier: Apache-2.0
"""The copies of a fan-out's member that vanished: they are kept, taken over, and removed after the grace."""

import os
import signal
import struct
import subprocess
import sys

import pytest
from peers import micromsg2, signalr_data
from peers.queues import (
    Command,
    Killed,
    QueuePeer,
    Refused,
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
from running import broker, written

import vibemq.client
from vibemq.storage.ledger import queue_stats
from vibemq.storage.members import NAMES_MAX, SUBSCRIBED, MemberTable

FAN_OUT_WITH_ACK, FAN_OUT_WITHOUT_ACK = 1, 2
SHORT = ("--set", "server.shutdown_timeout_s=2")
HASTY = (*SHORT, "--set", "queues.member_grace_s=1")


def subscribe(peer, queue, name="", ttl_s=0, prefetch=0):
    headers = {"vibemq-subscriber": name} if name else {}
    if ttl_s:
        headers["vibemq-subscriber-ttl"] = str(ttl_s)
    if prefetch:
        headers["prefetch"] = str(prefetch)
    peer.ask(Command.SUBSCRIBE, queue=queue, headers=headers)


def acknowledged_by_one(publisher, first, second, queue, bodies=("a", "b")):
    """Both members have all messages, and only the first has acknowledged them."""
    subscribe(first, queue)
    subscribe(second, queue)
    publisher.await_subscribers(queue, 2)
    publisher.publish_all(queue, bodies)
    assert payloads(second.take(len(bodies))) == list(bodies)
    first.ack(*first.take(len(bodies)))
    first.ping()


def test_a_member_that_vanished_gets_its_copies_when_it_is_back(connect, name):
    publisher, first, second = connect(), connect(), connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    acknowledged_by_one(publisher, first, second, name)
    second.close()
    publisher.await_counts(name, 2)
    back = connect()
    subscribe(back, name)
    found = back.take(2)
    assert payloads(found) == ["a", "b"]
    assert [attempts(message) for message in found] == [2, 2]
    publisher.publish(name, "c")
    assert payload(back.delivery()) == "c"
    assert payload(first.delivery()) == "c"
    assert first.rest() == []
    back.ack(*found)
    back.ping()
    third = connect()
    subscribe(third, name)
    assert third.rest() == [], "the copies went to one member"


def test_a_member_that_unsubscribes_owes_no_acknowledgement(connect, name):
    publisher, first, second = connect(), connect(), connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    acknowledged_by_one(publisher, first, second, name)
    second.unsubscribe(name)
    second.subscribe(name)
    assert second.rest() == []
    publisher.await_counts(name, 0)


def test_a_name_gets_its_own_copies_and_not_those_of_another(connect, name):
    publisher, first, second, third = [connect() for _ in range(4)]
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    for peer, who in ((first, "one"), (second, "two"), (third, "three")):
        subscribe(peer, name, who)
    publisher.await_subscribers(name, 3)
    publisher.publish_all(name, range(3))
    for peer, kept in ((second, 1), (third, 2)):
        messages = peer.take(3)
        peer.ack(*[message for message in messages if payload(message) != kept])
        peer.ping()
    first.ack(*first.take(3))
    first.ping()
    second.close()
    third.close()
    publisher.await_subscribers(name, 1)
    late, early = connect(), connect()
    subscribe(late, name, "three")
    subscribe(early, name, "two")
    assert payloads(late.rest()) == [2]
    assert payloads(early.rest()) == [1]


def test_a_name_with_a_time_to_live_collects_while_it_is_away(connect, name):
    publisher, first, second = connect(), connect(), connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    subscribe(first, name)
    subscribe(second, name, "audit", ttl_s=600)
    publisher.publish_all(name, range(3))
    held = second.take(3)
    second.ack(held[1])
    second.ping()
    second.close()
    first.ack(*first.take(3))
    publisher.await_subscribers(name, 1)
    publisher.publish_all(name, range(3, 2000))
    assert first.take_acked(1997) == list(range(3, 2000))
    publisher.await_counts(name, 1999)
    back = connect()
    subscribe(back, name, "audit", ttl_s=600)
    assert back.take_acked(1999) == [0, *range(2, 2000)]
    publisher.await_counts(name, 0)


@pytest.mark.parametrize("mode", [FAN_OUT_WITH_ACK, FAN_OUT_WITHOUT_ACK])
def test_a_name_collects_copies_without_any_subscriber(connect, name, mode):
    publisher, only = connect(), connect()
    publisher.create(name, mode=mode)
    subscribe(only, name, "audit", ttl_s=600)
    only.unsubscribe(name)
    publisher.publish_all(name, range(10))
    publisher.await_counts(name, 10)
    subscribe(only, name, "audit", ttl_s=600)
    assert payloads(only.rest()) == list(range(10))
    if mode == FAN_OUT_WITH_ACK:
        only.close()
        publisher.await_counts(name, 10)


def given_to_a_late_member(connect, name, subscriber=""):
    """The only member had five messages when another came, and vanished; the late member has been given them."""
    publisher, gone, late = connect(), connect(), connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    subscribe(gone, name, subscriber)
    publisher.publish_all(name, range(5))
    gone.take(5)
    late.subscribe(name)
    gone.close()
    found = late.take(5)
    assert payloads(found) == list(range(5))
    return publisher, late, found


def test_copies_that_a_late_member_got_and_acknowledged_are_not_owed_to_an_unnamed_one(connect, name):
    publisher, late, found = given_to_a_late_member(connect, name)
    late.ack(*found[:3])
    publisher.await_counts(name, 0, 2)
    late.ack(*found[3:])
    publisher.await_counts(name, 0)
    back = connect()
    subscribe(back, name)
    assert back.rest() == []


def test_copies_that_a_late_member_got_and_acknowledged_are_still_owed_to_a_name(connect, name):
    publisher, late, found = given_to_a_late_member(connect, name, "audit")
    late.ack(*found)
    publisher.await_counts(name, 5)
    back = connect()
    subscribe(back, name, "audit")
    assert payloads(back.take(5)) == list(range(5))


def test_copies_that_a_late_member_got_and_left_come_once_to_the_next(connect, name):
    publisher, late, found = given_to_a_late_member(connect, name)
    late.ack(found[1])
    late.ping()
    late.unsubscribe(name)
    publisher.await_subscribers(name, 0)
    back = connect()
    subscribe(back, name)
    assert payloads(back.rest()) == [0, 2, 3, 4]


def test_a_copy_that_another_had_acknowledged_before_stays_owed_where_a_late_member_gets_the_rest(connect, name):
    publisher, first, second, late = [connect() for _ in range(4)]
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    subscribe(first, name)
    subscribe(second, name)
    publisher.publish_all(name, range(3))
    first.ack(*first.take(3)[:2])
    second.take(3)
    first.ping()
    late.subscribe(name)
    first.unsubscribe(name)
    second.close()
    late.ack(late.delivery())
    publisher.await_counts(name, 2)
    back = connect()
    subscribe(back, name)
    assert payloads(back.rest()) == [0, 1]


def test_a_name_that_is_back_before_its_connection_is_known_to_be_lost_gets_its_copies(connect, name):
    publisher, first, second, again = [connect() for _ in range(4)]
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    subscribe(first, name)
    subscribe(second, name, "audit")
    publisher.publish(name, "a")
    second.delivery()
    first.ack(first.delivery())
    first.ping()
    subscribe(again, name, "audit")
    assert again.rest() == []
    second.close()
    assert payload(again.delivery()) == "a"


@pytest.mark.parametrize("dead_letter", [False, True])
def test_copies_are_dead_lettered_or_counted_after_the_grace(tmp_path, stack, capfd, dead_letter):
    with broker(tmp_path, *HASTY, workers=1) as running:
        publisher, first, second = [stack.enter_context(QueuePeer(running)) for _ in range(3)]
        publisher.create("q", mode=FAN_OUT_WITH_ACK, enableDeadLetterQueue=dead_letter)
        acknowledged_by_one(publisher, first, second, "q", range(5))
        second.close()
        if dead_letter:
            publisher.subscribe("q.dlq")
            letters = publisher.take(5)
            assert payloads(letters) == list(range(5))
            assert {letter.headers["x-failure-reason"] for letter in letters} == {"MemberGone"}
        else:
            wait_until(lambda: publisher.info("q")["droppedCount"] == 5, "the copies are counted")
        first.ping()
        publisher.await_counts("q", 0)
    assert written(capfd).count("did not return in time") == 1


def test_messages_that_no_member_has_acknowledged_stay_after_the_grace(tmp_path, stack):
    with broker(tmp_path, *HASTY, workers=1) as running:
        publisher, only = [stack.enter_context(QueuePeer(running)) for _ in range(2)]
        publisher.create("q", mode=FAN_OUT_WITH_ACK)
        subscribe(only, "q")
        publisher.publish_all("q", range(3))
        held = only.take(3)
        only.ack(held[0])
        only.ping()
        only.close()
        wait_until(lambda: away(tmp_path) == 0 and publisher.counts("q") == (2, 0), "the grace has ended")
        assert publisher.info("q")["droppedCount"] == 0
        newcomer = stack.enter_context(QueuePeer(running))
        subscribe(newcomer, "q")
        assert payloads(newcomer.take(2)) == [1, 2]


def away(data):
    (ledger,) = (data / "streams").glob("*/ledger")
    return queue_stats(str(ledger.parent), 0).away


@pytest.mark.parametrize("home", [0, 1])
def test_a_member_gets_its_copies_though_its_worker_was_killed(tmp_path, stack, home):
    with broker(tmp_path, *SHORT) as running:
        publisher = on_worker(running, 0, stack)
        publisher.create("q", mode=FAN_OUT_WITH_ACK)
        first, second = on_worker(running, 0, stack), on_worker(running, 1, stack)
        if home:
            subscribe(second, "q")  # the first subscriber's worker becomes the home
            subscribe(first, "q")
        else:
            subscribe(first, "q")
            subscribe(second, "q")
        publisher.await_subscribers("q", 2)
        publisher.publish_all("q", range(4))
        held = second.take(4)
        second.ack(held[0])
        first.ack(*first.take(4))
        first.ping()
        second.ping()
        publisher.await_counts("q", 0, 3)
        pid = worker_pid(running, 1)
        kill(pid)
        wait_until(lambda: worker_pid(running, 1) not in (0, pid), "a new worker")
        publisher.await_subscribers("q", 1)
        back = on_worker(running, 0, stack)
        subscribe(back, "q")
        assert payloads(back.take(3)) == [1, 2, 3]
        publisher.publish("q", "new")
        assert payload(back.delivery()) == "new"
        assert payload(first.delivery()) == "new"


def test_a_member_that_is_back_before_its_workers_death_is_known_gets_its_copies_before_the_grace_ends(tmp_path, stack):
    """The supervisor is stopped, so the dead worker's seat is not taken before the member is back."""
    with broker(tmp_path, *SHORT) as running:
        first, second, back = (on_worker(running, worker, stack) for worker in (0, 1, 0))
        first.create("q", mode=FAN_OUT_WITH_ACK)
        subscribe(first, "q")
        subscribe(second, "q")
        first.await_subscribers("q", 2)
        first.publish_all("q", range(3))
        second.take(3)
        first.ack(*first.take(3))
        first.await_counts("q", 0, 3)
        with stopped(running.process.pid):
            kill(worker_pid(running, 1))
            subscribe(back, "q")
        assert back.take_acked(3) == [0, 1, 2]


@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_members_get_their_copies_after_a_restart_of_the_broker(tmp_path, stop, stack):
    with killed_at_the_end(), broker(tmp_path, *SHORT) as running:
        publisher, first, second, third = [stack.enter_context(QueuePeer(running)) for _ in range(4)]
        publisher.create("q", mode=FAN_OUT_WITH_ACK)
        subscribe(first, "q", "one", ttl_s=600)
        subscribe(second, "q", "two", ttl_s=600)
        subscribe(third, "q")
        publisher.await_subscribers("q", 3)
        publisher.publish_all("q", range(6))
        held = second.take(6)
        second.ack(*held[:3])
        first.ack(*first.take(6))
        third.ack(*third.take(6)[:5])
        for peer in (first, second, third):
            peer.ping()
        publisher.await_counts("q", 0, 4)
        if stop == "killed":
            kill_all(running)
            raise Killed
    with broker(tmp_path, *SHORT) as running:
        publisher = stack.enter_context(QueuePeer(running))
        publisher.publish("q", "new")
        second, third, first = [stack.enter_context(QueuePeer(running)) for _ in range(3)]
        subscribe(second, "q", "two", ttl_s=600)
        assert payloads(second.take(4)) == [3, 4, 5, "new"]
        subscribe(third, "q")
        assert 5 in payloads(third.take(1))
        subscribe(first, "q", "one", ttl_s=600)
        assert payloads(first.take(1)) == ["new"]


def test_a_fan_out_that_an_older_broker_left_without_records_of_members_goes_on(tmp_path, stack):
    with killed_at_the_end(), broker(tmp_path, *SHORT, workers=1) as running:
        first, second = [stack.enter_context(QueuePeer(running)) for _ in range(2)]
        first.create("q", mode=FAN_OUT_WITH_ACK)
        subscribe(first, "q", prefetch=4)
        subscribe(second, "q", prefetch=4)
        first.publish_all("q", range(6))
        first.ack(*first.take(4)[:1])
        second.take(4)
        first.take(1)
        kill_all(running)
        raise Killed
    (members,) = tmp_path.glob("streams/*/members")
    members.unlink()
    with broker(tmp_path, *SHORT, workers=1) as running:
        first, second = [stack.enter_context(QueuePeer(running)) for _ in range(2)]
        subscribe(first, "q")
        found = first.take(5)
        assert payloads(found) == [1, 2, 3, 4, 5]
        subscribe(second, "q")
        first.publish("q", "new")
        assert first.take_acked(1) == second.take_acked(1) == ["new"]
        first.ack(*found)
        first.await_counts("q", 0)
    assert members.exists()


def test_members_get_their_copies_after_a_restart_of_all_workers(tmp_path, stack):
    with broker(tmp_path, *SHORT) as running:
        publisher, first, second = [stack.enter_context(QueuePeer(running)) for _ in range(3)]
        publisher.create("q", mode=FAN_OUT_WITH_ACK)
        subscribe(first, "q", "one")
        subscribe(second, "q", "two")
        publisher.await_subscribers("q", 2)
        publisher.publish_all("q", range(3))
        second.take(3)
        first.ack(*first.take(3))
        first.ping()
        publisher.await_counts("q", 0, 3)
        before = {worker: worker_pid(running, worker) for worker in (0, 1)}
        words = [sys.executable, "-m", "vibemq.cli", "ctl", "restart_workers", "--data-dir", str(tmp_path)]
        assert subprocess.run(words, check=False).returncode == 0
        wait_until(lambda: all(worker_pid(running, at) not in (0, pid) for at, pid in before.items()), "new workers")
        back = stack.enter_context(QueuePeer(running))
        subscribe(back, "q", "one")
        other = stack.enter_context(QueuePeer(running))
        subscribe(other, "q", "two")
        assert payloads(other.take(3)) == [0, 1, 2]


def test_drop_oldest_and_purge_remove_copies_that_a_name_collects(connect, name):
    publisher, first = connect(features="nack,purge,alter"), connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK, maxQueueSize=5)
    subscribe(first, name, "audit", ttl_s=600)
    first.unsubscribe(name)
    publisher.publish_all(name, range(12))
    publisher.await_counts(name, 5)
    subscribe(first, name, "audit", ttl_s=600)
    assert payloads(first.rest()) == list(range(7, 12))
    first.close()
    publisher.await_counts(name, 5)
    publisher.purge(name)
    publisher.await_counts(name, 0)


def test_a_time_to_live_without_a_name_is_refused(connect, name):
    publisher = connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    with pytest.raises(Refused, match="needs the subscriber's name"):
        subscribe(publisher, name, ttl_s=5)
    with pytest.raises(Refused, match="time to live needs 0 to 2592000 seconds"):
        subscribe(publisher, name, "a", ttl_s=2_592_001)


def test_a_name_beyond_the_limit_is_refused_and_not_acknowledged_before(tmp_path, stack):
    with broker(tmp_path, *SHORT, workers=1) as running:
        peer = stack.enter_context(QueuePeer(running))
        peer.create("q", mode=FAN_OUT_WITH_ACK)
        subscribe(peer, "q", "first", ttl_s=600)
        (ledger,) = (tmp_path / "streams").glob("*/ledger")
        record = struct.pack("=3Q", SUBSCRIBED * 0x0101010101010101, 0, 600).ljust(1024, b"\0")
        with open(ledger.parent / "members", "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), record * (NAMES_MAX - 1), 2 * len(record))  # behind the header and the first
        late = stack.enter_context(QueuePeer(running))
        topic = stack.enter_context(micromsg2.connected(running))
        hub = stack.enter_context(signalr_data.DataPeer(running))
        for _ in range(2):  # a refused subscription is not remembered
            with pytest.raises(Refused, match="subscriber names of one queue"):
                subscribe(late, "q", "late", ttl_s=600)
            topic.denied("subscribe", destination="topic/q", subscriber="late", **{"subscriber-ttl": 600})
            with pytest.raises(signalr_data.Refused):
                hub.ask("SubscribePush", "q", {"subscriber": "late", "subscriberTtlSeconds": 600})
        MemberTable(str(ledger.parent), False).free(NAMES_MAX)
        subscribe(late, "q", "late", ttl_s=600)
        peer.publish("q", "a")
        for member in (peer, late):
            assert member.take_acked(1) == ["a"]
            member.ping()


def test_workers_that_end_in_order_keep_their_members_copies(tmp_path, stack):
    """SIGTERM to one worker, as a rolling restart sends it."""
    with broker(tmp_path, *SHORT) as running:
        publisher = on_worker(running, 0, stack)
        publisher.create("q", mode=FAN_OUT_WITH_ACK)
        first, second = on_worker(running, 0, stack), on_worker(running, 1, stack)
        subscribe(first, "q")
        subscribe(second, "q")
        publisher.await_subscribers("q", 2)
        publisher.publish("q", "a")
        second.delivery()
        first.ack(first.delivery())
        first.ping()
        pid = worker_pid(running, 1)
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: worker_pid(running, 1) not in (0, pid), "a new worker")
        publisher.await_subscribers("q", 1)
        back = on_worker(running, 0, stack)
        subscribe(back, "q")
        assert payload(back.delivery()) == "a"


def test_the_python_client_names_its_consumer(single, connect, name):
    publisher = connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    with vibemq.client.connect(f"vibemq://{single.host}:{single.native_port}") as client:
        for bodies in ([], ["a", "b"]):
            publisher.publish_all(name, bodies)
            options = {"subscriber": "audit", "subscriber_ttl_s": 600, "timeout_s": 30 if bodies else 0.2}
            with client.consume(name, **options) as consumer:
                for body in bodies:
                    message = next(consumer)
                    assert message.payload == body
                    message.ack()
                if not bodies:
                    assert list(consumer) == []
            publisher.await_subscribers(name, 0)


def test_a_micromsg2_peer_names_its_subscription(single, connect, name):
    publisher = connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    names = {"subscriber": "audit", "subscriber-ttl": 600}
    with micromsg2.connected(single) as peer:
        peer.subscribe(f"topic/{name}", **names)
    publisher.await_subscribers(name, 0)
    publisher.publish(name, "a")
    with micromsg2.connected(single) as peer:
        peer.subscribe(f"topic/{name}", **names)
        assert peer.deliver().payload == b'"a"'


def acknowledged_out_of_order(peer, acknowledged):
    """The peer takes six messages and acknowledges some."""
    held = peer.take(6)
    peer.ack(*[message for message in held if payload(message) in acknowledged])
    peer.ping()


def test_acknowledgements_of_the_only_member_survive_kill_after_kill(tmp_path, stack):
    with killed_at_the_end(), broker(tmp_path, *SHORT) as running:
        peer = stack.enter_context(QueuePeer(running))
        peer.create("q", mode=FAN_OUT_WITH_ACK)
        peer.subscribe("q", prefetch=6)
        peer.publish_all("q", range(6))
        acknowledged_out_of_order(peer, (0, 2, 3))
        kill_all(running)
        raise Killed
    with killed_at_the_end(), broker(tmp_path, *SHORT) as running:
        peer = stack.enter_context(QueuePeer(running))
        peer.subscribe("q", prefetch=6)
        peer.publish_all("q", range(6, 9))
        held = peer.take(6)
        assert payloads(held) == [1, 4, 5, 6, 7, 8]
        peer.ack(held[1], held[3])
        peer.ping()
        kill_all(running)
        raise Killed
    with broker(tmp_path, *SHORT) as running:
        peer = stack.enter_context(QueuePeer(running))
        peer.subscribe("q")
        assert payloads(peer.take(4)) == [1, 5, 7, 8]
        peer.await_counts("q", 0, 4)


def test_acknowledgements_of_the_only_member_survive_its_worker(tmp_path, stack):
    with broker(tmp_path, *SHORT) as running:
        publisher = on_worker(running, 0, stack)
        publisher.create("q", mode=FAN_OUT_WITH_ACK)
        only = on_worker(running, 1, stack)
        only.subscribe("q", prefetch=6)
        publisher.await_subscribers("q", 1)
        publisher.publish_all("q", range(6))
        acknowledged_out_of_order(only, (1, 2, 4))
        pid = worker_pid(running, 1)
        kill(pid)
        wait_until(lambda: worker_pid(running, 1) not in (0, pid), "a new worker")
        publisher.await_subscribers("q", 0)
        back = on_worker(running, 0, stack)
        back.subscribe("q")
        assert sorted(payloads(back.take(3))) == [0, 3, 5]
        back.await_counts("q", 0, 3)


def test_copies_that_another_member_acknowledged_are_still_delivered_after_a_kill(tmp_path, stack):
    """The first member was alone for three messages, shares the next three, and is alone again for the last."""
    with killed_at_the_end(), broker(tmp_path, *SHORT) as running:
        publisher, first, second = [stack.enter_context(QueuePeer(running)) for _ in range(3)]
        publisher.create("q", mode=FAN_OUT_WITH_ACK)
        subscribe(first, "q", prefetch=9)
        publisher.await_subscribers("q", 1)
        publisher.publish_all("q", range(3))
        held = first.take(3)
        subscribe(second, "q")
        publisher.await_subscribers("q", 2)
        publisher.publish_all("q", range(3, 6))
        second.ack(*second.take(3))
        second.ping()
        held += first.take(3)
        second.unsubscribe("q")
        publisher.await_subscribers("q", 1)
        publisher.publish_all("q", range(6, 9))
        held += first.take(3)
        first.ack(held[7])
        first.ping()
        kill_all(running)
        raise Killed
    with broker(tmp_path, *SHORT) as running:
        back = stack.enter_context(QueuePeer(running))
        subscribe(back, "q")
        assert sorted(payloads(back.take(8))) == [0, 1, 2, 3, 4, 5, 6, 8]
        back.await_counts("q", 0, 8)
