# SPDX-License-Identifier: Apache-2.0
"""What a member of a fan-out leaves behind when there is much of it, and who gets it."""

from peers.queues import Command, attempts, kill, on_worker, payload, payloads, wait_until, worker_pid
from running import broker

from vibemq.protocols.native.codec import encode_frame

FAN_OUT_WITH_ACK, FAN_OUT_WITHOUT_ACK = 1, 2
SHORT = ("--set", "server.shutdown_timeout_s=2")


def own_bytes(pid):
    """Memory that a process has for itself: neither files nor what is shared."""
    with open(f"/proc/{pid}/status") as lines:
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def stuck(peer, publisher, name, count):
    """The peer has taken the first of so many messages, and has no room for more."""
    peer.subscribe(name, prefetch=1)
    publisher.publish_all(name, range(count))
    assert payload(peer.delivery()) == 0


def heir(peer, publisher, name, prefetch):
    """The peer came later, and was given what came then: so all that was before has entries."""
    peer.subscribe(name, prefetch=prefetch)
    publisher.await_subscribers(name, 2)
    publisher.publish(name, "last")
    assert payload(peer.delivery()) == "last"


def test_a_long_backlog_is_passed_on_and_waits_again_without_being_listed(single, connect, name):
    count = 100_000
    memory_bytes_max = 8 << 20  # a set, a heap or a dictionary of so many offsets takes more
    publisher, leaves, inherits = connect(), connect(), connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK, maxQueueSize=0)
    stuck(leaves, publisher, name, count)
    heir(inherits, publisher, name, 5)
    pid = worker_pid(single, 0)
    before = own_bytes(pid)
    leaves.unsubscribe(name)
    messages = inherits.take(4)
    assert [(payload(message), attempts(message)) for message in messages] == [(0, 2), (1, 1), (2, 1), (3, 1)]
    assert publisher.counts(name) == (count - 4, 5)
    assert own_bytes(pid) - before < memory_bytes_max
    inherits.ack(messages[1])
    assert payload(inherits.delivery()) == 4
    inherits.unsubscribe(name)
    publisher.await_counts(name, count)
    assert own_bytes(pid) - before < memory_bytes_max
    leaves.subscribe(name, prefetch=6)
    assert [(payload(each), attempts(each)) for each in leaves.take(5)] == [(0, 3), (2, 2), (3, 2), (4, 2), (5, 1)]
    leaves.close()
    publisher.delete(name)


def test_what_an_heir_owes_is_cut_by_drop_oldest_too(connect, name):
    publisher, leaves, inherits = connect(features="nack,purge,alter"), connect(), connect()
    publisher.create(name, mode=FAN_OUT_WITH_ACK, maxQueueSize=0)
    stuck(leaves, publisher, name, 20)
    heir(inherits, publisher, name, 2)
    leaves.unsubscribe(name)
    assert payload(inherits.delivery()) == 0
    limit = b'{"maxQueueSize": 5, "overflowStrategy": 0}'
    publisher.ask(Command.ALTER_QUEUE, queue=name, payload=limit)
    publisher.publish(name, "newest")  # the 22nd: five are kept, and what is with the consumer
    wait_until(lambda: publisher.info(name)["droppedCount"] == 16, "1 to 16 are dropped")
    publisher.await_counts(name, 4, 2)
    inherits.unsubscribe(name)
    leaves.subscribe(name, prefetch=10)
    assert payloads(leaves.take(5)) == [17, 18, 19, "last", "newest"]


def test_heirs_that_came_at_different_times_each_get_everything_once(connect, name):
    publisher, first, second, third = [connect() for _ in range(4)]
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    stuck(first, publisher, name, 20)
    heir(second, publisher, name, 3)
    third.subscribe(name, prefetch=3)
    first.unsubscribe(name)
    assert payloads(second.take(2)) == [0, 1]
    assert payloads(third.take(3)) == [0, 1, 2]
    second.unsubscribe(name)
    first.subscribe(name)
    publisher.publish(name, "newest")
    third.unsubscribe(name)
    found = first.rest()
    assert payloads(found) == ["newest", *range(20), "last"]
    first.ack(*found)
    publisher.await_counts(name, 0)


def test_what_one_heir_has_acknowledged_no_other_is_given(connect, name):
    publisher, leaves, quick, slow = [connect() for _ in range(4)]
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    stuck(leaves, publisher, name, 9)
    heir(quick, publisher, name, 100)
    slow.subscribe(name, prefetch=1)
    publisher.publish(name, "newest")
    held = slow.delivery()
    leaves.unsubscribe(name)
    quick.ack(*quick.take(10))
    quick.ping()
    slow.ack(held)
    assert slow.rest() == []


def test_what_an_heir_on_another_worker_has_in_flight_is_still_owed_to_the_next(connect_to, name):
    """Nobody was given it before: the heir begins further in front than where it came in."""
    publisher, leaves, inherits, newcomer = [connect_to(worker) for worker in (0, 0, 1, 1)]
    publisher.create(name, mode=FAN_OUT_WITH_ACK)
    publisher.publish_all(name, range(10))
    leaves.subscribe(name, prefetch=1)
    first = leaves.delivery()
    inherits.subscribe(name, prefetch=5)
    publisher.await_subscribers(name, 2)
    leaves.send_all(  # in one turn, so that it is given nothing more
        encode_frame(Command.ACK, first.id, queue=name), encode_frame(Command.UNSUBSCRIBE, leaves.fresh(), queue=name)
    )
    assert payloads(inherits.take(5)) == [1, 2, 3, 4, 5]
    inherits.close()
    publisher.await_counts(name, 9)
    newcomer.subscribe(name)
    assert payloads(newcomer.take(9)) == list(range(1, 10))


def test_an_inherited_backlog_outlives_the_home(tmp_path, stack):
    """Nobody was given it yet, so no entry shows who has a claim to it."""
    with broker(tmp_path, *SHORT) as running:
        leaves, inherits = on_worker(running, 1, stack), on_worker(running, 0, stack)
        inherits.create("q", mode=FAN_OUT_WITH_ACK)
        stuck(leaves, inherits, "q", 50)
        heir(inherits, inherits, "q", 5)
        leaves.unsubscribe("q")
        held = inherits.take(4)
        assert payloads(held) == [0, 1, 2, 3]
        pid = worker_pid(running, 1)
        kill(pid)
        inherits.ack(*held)
        assert inherits.take_acked(46) == list(range(4, 50))
        inherits.await_counts("q", 0, 1)
        wait_until(lambda: worker_pid(running, 1) not in (0, pid), "a new worker")


def test_what_a_fan_out_without_acknowledgement_has_given_to_an_heir_is_given_to_nobody_else(connect, name):
    """The heir was given what is newest, and a part of what is oldest, when it leaves too."""
    count, body = 1500, "x" * 16_384
    publisher, newcomer = connect(), connect()
    leaves, inherits = [connect(receive_buffer_bytes=4096) for _ in range(2)]
    publisher.create(name, mode=FAN_OUT_WITHOUT_ACK, maxQueueSize=0)
    leaves.subscribe(name)
    publisher.publish_all(name, [[number, body] for number in range(count)])
    inherits.subscribe(name)
    publisher.publish(name, [count, ""])
    assert payload(inherits.delivery())[0] == count
    waited, _ = publisher.counts(name)
    leaves.close()
    inherits.take(20)
    inherits.close()
    publisher.await_subscribers(name, 0)
    left, _ = publisher.counts(name)
    assert 20 <= waited - left < waited, "a part of it was given to the heir"
    newcomer.subscribe(name)
    found = [number for number, _ in payloads(newcomer.take(left))]
    assert found == list(range(count - left, count))
    assert newcomer.rest() == []
