# SPDX-License-Identifier: Apache-2.0
"""kill -9 of one worker while queues are busy: nothing confirmed is lost, nothing settled comes again.

Each round publishes on both workers, consumes on both, and kills one worker (the home or the other) in the
middle of handing out, of acknowledging, or of dead-lettering.  What a consumer acknowledged counts as
settled once a later Ping was answered.  VIBEMQ_KILL_ROUNDS says how many rounds, VIBEMQ_KILL_SEED repeats them as
far as a race can be repeated.
"""

import contextlib
import os
import random
import select
import time

import pytest
from peers.queues import Command, QueuePeer, Refused, attempts, kill, on_worker, payload, wait_until, worker_pid
from running import broker

ROUNDS = int(os.environ.get("VIBEMQ_KILL_ROUNDS", "10"))
SEED = int(os.environ.get("VIBEMQ_KILL_SEED", time.time_ns() % 2**32))
CONSUMERS = 4
MESSAGES = 300
QUIET_S = 0.05  # a poll, not a wait: rounds end by counts
BROKEN = (ConnectionError, TimeoutError)
DISPATCH, ACKS, DEAD_LETTERS = "dispatch", "acks", "dead letters"


class Consuming:
    """One consumer, over as many connections as it takes, and what it knows to be settled."""

    def __init__(self, round_, worker):
        self.round, self.worker = round_, worker
        self.unsettled = []  # acknowledged, and no Ping answered since
        self.peer = None
        self.connect()

    def connect(self):
        self.peer = on_worker(self.round.running, self.worker, self.round.stack)
        self.peer.subscribe("q", prefetch=self.round.random.choice([5, 20, 100]))
        self.last = -1

    def step(self):
        """Take what is there, acknowledge some of it."""
        try:
            while select.select([self.peer.socket], [], [], 0)[0]:
                self.peer._read()
            while self.peer.deliveries:
                self.take(self.peer.deliveries.popleft())
            self.settle()
        except BROKEN:
            self.unsettled = []  # may have been read, or not
            self.connect()

    def take(self, message):
        round_, number, count = self.round, payload(message), attempts(message)
        assert number not in round_.settled, f"{number} was settled and came again"
        assert count > round_.seen.get(number, 0), f"{number}: attempt {count} after {round_.seen[number]}"
        if count == 1:
            assert number > self.last, f"{number} after {self.last}: first deliveries to one consumer are in order"
            self.last = number
        round_.seen[number] = count
        if round_.poisoned(number):
            self.peer.nack(message)
            return
        self.peer.ack(message)
        self.unsettled.append(number)

    def settle(self):
        if self.unsettled:
            self.peer.ping()
            self.round.settled.update(self.unsettled)
            self.unsettled = []


class Round:
    def __init__(self, running, stack, random_, phase):
        self.running, self.stack, self.random, self.phase = running, stack, random_, phase
        self.seen, self.settled = {}, set()
        self.confirmed = set()

    def poisoned(self, number):
        return self.phase == DEAD_LETTERS and number % 3 == 0

    def publish(self, first):
        """From `first` on; numbers whose confirm did not come may be there or not."""
        publisher = QueuePeer(self.running)
        ids = {b"%d-%d" % (first, number): number for number in range(first, first + MESSAGES)}
        try:
            for id, number in ids.items():
                publisher.start_publish("q", number, id)
            for id, number in ids.items():
                publisher.answer(id)
                self.confirmed.add(number)
        except BROKEN:
            self.confirmed |= {ids[id] for id, answer in publisher.answers.items() if answer.type != Command.ERROR}
        publisher.close()

    def until(self, holds, consumers, what):
        deadline = time.monotonic() + 30
        while not holds():
            assert time.monotonic() < deadline, f"{what}: {self.missing()}"
            for consumer in consumers:
                consumer.step()
            select.select([consumer.peer.socket for consumer in consumers], [], [], QUIET_S)

    def missing(self):
        return sorted(number for number in self.confirmed - self.settled if not self.poisoned(number))


@pytest.mark.parametrize("phase", [DISPATCH, ACKS, DEAD_LETTERS])
@pytest.mark.parametrize("victim", ["home", "other"])
def test_a_worker_killed_in_the_middle_loses_nothing_and_repeats_nothing(tmp_path, phase, victim):
    print(f"VIBEMQ_KILL_SEED={SEED}")  # pytest shows it when the test fails
    random_ = random.Random(f"{SEED}/{phase}/{victim}")
    with broker(tmp_path, "--set", "server.shutdown_timeout_s=2") as running:
        for number in range(-(-ROUNDS // 6)):  # six kinds of them
            with contextlib.ExitStack() as stack:
                one_round(Round(running, stack, random_, phase), victim, number)


def one_round(round_, victim, number):
    running, random_ = round_.running, round_.random
    admin = QueuePeer(running)
    home = random_.randrange(2)
    attempts_max = 2 if round_.phase == DEAD_LETTERS else 1000
    admin.create("q", maxQueueSize=0, maxRetryAttempts=attempts_max, enableDeadLetterQueue=True)
    consumers = [Consuming(round_, home)]  # the first one's worker is the home
    admin.await_subscribers("q", 1)
    consumers += [Consuming(round_, at % 2) for at in range(1, CONSUMERS)]
    admin.await_subscribers("q", CONSUMERS)
    round_.publish(0)
    if round_.phase != DISPATCH:
        goal = random_.randrange(1, 200)
        round_.until(lambda: len(round_.settled) >= goal, consumers, "before the kill")
    worker = home if victim == "home" else 1 - home
    pid = worker_pid(running, worker)
    kill(pid)
    wait_until(lambda: worker_pid(running, worker) not in (0, pid), "a new worker")
    for consumer in consumers:
        consumer.step()
    round_.publish(MESSAGES)
    round_.until(lambda: not round_.missing(), consumers, "lost")
    admin.close()
    admin = QueuePeer(running)
    round_.until(lambda: admin.counts("q") == (0, 0), consumers, "counts")
    compare_dead(round_, admin)
    for queue in ("q", "q.dlq"):
        admin.delete(queue)
    admin.close()


def compare_dead(round_, admin):
    """Every poisoned message is in the dead-letter queue: once, or twice if the kill came between copy and settling."""
    poisoned = {number for number in round_.confirmed if round_.poisoned(number)}
    if not poisoned:
        with contextlib.suppress(Refused):
            info = admin.info("q.dlq")
            assert info is None or info["messageCount"] == 0
        return
    found = []
    admin.subscribe("q.dlq", prefetch=10_000)
    while not poisoned <= set(found):
        message = admin.delivery()
        assert message.headers["x-original-queue"] == "q"
        found.append(payload(message))
        admin.ack(message)
    admin.ping()
    assert all(round_.poisoned(number) for number in found)
