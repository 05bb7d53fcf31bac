# SPDX-License-Identifier: Apache-2.0
"""Workers that were paused: they read all waiting input before a timeout that it answers."""

import os
import signal
import time
from contextlib import ExitStack, contextmanager

import pytest
from peers.queues import Command, QueuePeer, on_worker, payloads, wait_until, worker_pid
from running import Running, broker, written

CONNECTIONS, MESSAGES = 700, 200
TIMEOUT_MS = 1000
PAUSE_S = 2.5  # longer than each timeout here
LATER_S = 1.5
LATE_TURN_S = 0.7
ALWAYS_LATE_S = 60  # twice what is allowed
TICK_S = 0.6
FAN_OUT_WITH_ACK = 1
NEVER_HANGS = ("--set", "server.worker_hang_s=0")


@contextmanager
def paused(*pids: int):
    """The processes do nothing meanwhile, at least for PAUSE_S."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    yield
    time.sleep(max(began + PAUSE_S - time.monotonic(), 0))  # the pause itself
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def consumers_of(running: Running, stack: ExitStack, queue: str, **options) -> list[QueuePeer]:
    """CONNECTIONS peers, of which the last MESSAGES have a message of the queue each."""
    peers = [stack.enter_context(QueuePeer(running, features="nack,purge,alter")) for _ in range(CONNECTIONS)]
    peers[0].create(queue, ackTimeoutMs=TIMEOUT_MS * 60, enableDeadLetterQueue=True, backoffMs=0, **options)
    for peer in peers[-MESSAGES:]:
        peer.subscribe(queue, prefetch=1)
    peers[0].await_subscribers(queue, MESSAGES)
    peers[0].publish_all(queue, range(MESSAGES))
    return peers


def alter(peer: QueuePeer, queue: str, **options: int) -> None:
    peer.ask(Command.ALTER_QUEUE, queue=queue, payload=repr(options).replace("'", '"').encode())


def dead_letters(peer: QueuePeer) -> int:
    found = peer.info("q.dlq")
    return found["messageCount"] + found["inFlightCount"] if found else 0


@pytest.mark.parametrize("attempts_max", [1, 2])
def test_acknowledgements_that_came_during_a_pause_hold(tmp_path, stack, attempts_max):
    with broker(tmp_path, *NEVER_HANGS) as running:
        peers = consumers_of(running, stack, "q", maxRetryAttempts=attempts_max)
        messages = [peer.take(1)[0] for peer in peers[-MESSAGES:]]
        alter(peers[0], "q", ackTimeoutMs=TIMEOUT_MS)
        with paused(*running.worker_pids()):
            for peer in peers[:-MESSAGES]:
                peer.send(Command.PING, peer.fresh())
            for peer, message in zip(peers[-MESSAGES:], messages, strict=True):
                peer.ack(message)
        peers[0].await_counts("q", 0)
        assert sorted(payloads(messages)) == list(range(MESSAGES))
        assert [message for peer in peers for message in peer.rest()] == [], "delivered twice"
        assert dead_letters(peers[0]) == 0


def test_a_member_that_returned_during_a_pause_has_its_copies_though_its_worker_goes_on_later(tmp_path, stack):
    """The grace of a member is ended by the coordinator, and the member's socket belongs to another worker."""
    with broker(tmp_path, *NEVER_HANGS, "--set", "queues.member_grace_s=1") as running:
        stays = on_worker(running, 0, stack, features="nack,purge,alter")
        returns = on_worker(running, 1, stack)
        gone = on_worker(running, 1, stack)
        stays.create("q", mode=FAN_OUT_WITH_ACK, ackTimeoutMs=TIMEOUT_MS * 60)
        stays.subscribe("q")
        gone.subscribe("q")
        stays.await_subscribers("q", 2)
        stays.publish_all("q", range(20))
        stays.ack(*stays.take(20))
        gone.take(20)
        coordinator, other = worker_pid(running, 0), worker_pid(running, 1)
        gone.close()
        stays.await_subscribers("q", 1)
        with paused(other):
            with paused(coordinator):
                returns.send(Command.SUBSCRIBE, b"s", queue="q")
            time.sleep(LATER_S)  # in which the coordinator waits for the other worker
            stays.ping()
        copies = returns.take(20)
        assert payloads(copies) == list(range(20))
        returns.ack(*copies)
        returns.answer(b"s")


def test_a_client_that_pinged_during_a_pause_was_not_silent(tmp_path, stack):
    with broker(tmp_path, *NEVER_HANGS, "--set", "native.keepalive_timeout_s=2") as running:
        peers = [stack.enter_context(QueuePeer(running)) for _ in range(CONNECTIONS)]
        for peer in peers:
            peer.ping()
        time.sleep(TICK_S)  # the workers note that the pings came
        with paused(*running.worker_pids()):
            for peer in peers:
                peer.send(Command.PING, b"during")
        for peer in peers:
            peer.answer(b"during")
            peer.ping()


def test_timeouts_go_on_in_a_worker_whose_turns_are_always_late(tmp_path, stack, capfd):
    with broker(tmp_path, *NEVER_HANGS, workers=1) as running:
        peer = stack.enter_context(QueuePeer(running))
        peer.create("q", ackTimeoutMs=TIMEOUT_MS, maxRetryAttempts=1, enableDeadLetterQueue=True, backoffMs=0)
        peer.subscribe("q")
        peer.publish("q", 1)
        peer.take(1)
        (pid,) = running.worker_pids()
        began = time.monotonic()
        while "timeouts go on" not in written(capfd):
            assert time.monotonic() < began + ALWAYS_LATE_S
            os.kill(pid, signal.SIGSTOP)
            time.sleep(LATE_TURN_S)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.03)
        wait_until(lambda: dead_letters(peer) == 1, "a dead letter")


def test_a_silent_client_and_an_unacknowledged_message_are_found_after_a_pause_as_before(tmp_path, stack, capfd):
    with broker(tmp_path, *NEVER_HANGS, "--set", "native.keepalive_timeout_s=2") as running:
        silent, works = on_worker(running, 0, stack), on_worker(running, 1, stack)
        works.create("q", ackTimeoutMs=TIMEOUT_MS, maxRetryAttempts=1, enableDeadLetterQueue=True, backoffMs=0)
        silent.subscribe("q")
        works.publish("q", 1)
        silent.take(1)
        with paused(*running.worker_pids()):
            works.send(Command.PING, b"during")
        works.answer(b"during")
        wait_until(lambda: dead_letters(works) == 1, "a dead letter")
        assert silent.ended()
        assert "was paused for" in written(capfd)
