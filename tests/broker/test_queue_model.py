# SPDX-License-Identifier: Apache-2.0
"""Random histories of one queue, on the real broker and in the model (model.py), compared after every step.

With one worker everything must be equal: who gets what, in which order, with which count.  With two it
depends on which letter comes first, so there the promises are checked: nothing is lost, nothing that was settled
comes again, counts rise.  The histories are the same in every run; VIBEMQ_MODEL_EXAMPLES makes them more.
"""

import contextlib
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from model import (
    ACCEPTED,
    BLOCK_PUBLISHER,
    DROP_NEWEST,
    DROP_OLDEST,
    FAN_OUT_WITH_ACK,
    FAN_OUT_WITHOUT_ACK,
    PARKED,
    PRIORITY_BASED,
    REDIRECT_TO_DLQ,
    ROUND_ROBIN,
    QueueModel,
)
from peers.queues import (
    Command,
    Killed,
    QueuePeer,
    Refused,
    attempts,
    kill,
    kill_all,
    on_worker,
    payload,
    wait_until,
    worker_pid,
)
from running import broker

from vibemq.protocols.native.codec import Message

EXAMPLES = int(os.environ.get("VIBEMQ_MODEL_EXAMPLES", "25"))
RESTARTS_MAX = 1  # of one history: each costs a second
# A failure that is a hang takes long to make smaller: only on request.
PHASES = [Phase.generate, Phase.shrink] if os.environ.get("VIBEMQ_MODEL_SHRINK") else [Phase.generate]
QUIET = ("--set", "server.shutdown_timeout_s=2", "--set", "queues.ack_timeout_ms=86400000", "--set",
         "queues.backoff_ms=0")  # fmt: skip
FEATURES = "nack,purge,holding"
HISTORIES = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=PHASES,
)
NAMES = st.sampled_from("abc")
MODES = [ROUND_ROBIN, FAN_OUT_WITH_ACK, FAN_OUT_WITHOUT_ACK, PRIORITY_BASED]
STRATEGIES = [DROP_OLDEST, DROP_NEWEST, BLOCK_PUBLISHER, REDIRECT_TO_DLQ]
WINDOWS = st.sampled_from([1, 2, 3, 7])


class Server:
    """A broker that can be started anew on its data, for as long as a test lasts."""

    current: "Server"

    def __init__(self, workers: int) -> None:
        self.workers, self.queues = workers, 0
        self.folder = Path(tempfile.mkdtemp(prefix="vibemq-model-"))
        self.stack = contextlib.ExitStack()
        self.start()

    def start(self) -> None:
        self.running = self.stack.enter_context(broker(self.folder, *QUIET, workers=self.workers))

    def stop(self, killed: bool = False) -> None:
        if killed:
            kill_all(self.running)
            with contextlib.suppress(Killed):
                self.stack.__exit__(Killed, Killed(), None)
            self.stack = contextlib.ExitStack()
        else:
            self.stack.close()


@pytest.fixture
def server(request):
    Server.current = Server(request.param)
    yield Server.current
    Server.current.stop()


class History(RuleBasedStateMachine):
    """What both machines do; the one with one worker overrides how it is checked."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server.current
        self.server.queues += 1
        self.queue = f"q{self.server.queues}"
        self.publisher = QueuePeer(self.server.running)
        self.peers: dict[str, QueuePeer] = {}
        self.published = self.restarts = 0

    @initialize(
        mode=st.sampled_from(MODES),
        bound=st.sampled_from([0, 0, 1, 3, 8]),
        overflow=st.sampled_from(STRATEGIES),
        attempts_max=st.sampled_from([None, 1, 2, 3, 4]),
        dead_letter=st.booleans(),
    )
    def begin(self, mode, bound, overflow, attempts_max, dead_letter):
        if mode in (FAN_OUT_WITH_ACK, FAN_OUT_WITHOUT_ACK):
            bound = 0  # what counts as waiting there has tests of its own
        self.model = QueueModel(
            mode, bound=bound, overflow=overflow, attempts_max=attempts_max, dead_letter=dead_letter
        )
        self.publisher.create(
            self.queue,
            mode=mode,
            maxQueueSize=bound,
            overflowStrategy=overflow,
            **({} if attempts_max is None else {"maxRetryAttempts": attempts_max}),
            enableDeadLetterQueue=dead_letter,
        )
        self.publisher.create(self.queue + ".dlq", maxQueueSize=0)

    # ---- what happens ----

    @rule(priority=st.integers(0, 3), count=st.integers(1, 4))
    def publish(self, priority, count):
        for _ in range(count):
            number, self.published = self.published, self.published + 1
            id = self.publisher.start_publish(self.queue, number, b"m%d" % number, priority=str(priority))
            self.told(id, self.model.publish(number, priority))
            for unparked in self.take_unparked():
                self.told(b"m%d" % unparked, ACCEPTED)
        self.check()

    def told(self, id, outcome):
        if outcome == PARKED:
            self.publisher.ping()
            assert id not in self.publisher.answers
            return
        try:
            self.publisher.answer(id)
            assert outcome == ACCEPTED
        except Refused as problem:
            assert (problem.code, outcome) == ("QUEUE_FULL", "refused")

    def take_unparked(self):
        unparked, self.model.unparked = self.model.unparked, []
        return unparked

    @rule(name=NAMES, window=WINDOWS)
    def subscribe(self, name, window):
        if name in self.peers:
            return
        self.peers[name] = QueuePeer(self.server.running, features=FEATURES)
        self.peers[name].subscribe(self.queue, window)
        self.model.subscribe(name, window)
        self.check()

    @precondition(lambda self: self.peers)
    @rule(data=st.data(), closes=st.booleans())
    def leave(self, data, closes):
        name = data.draw(st.sampled_from(sorted(self.peers)))
        peer = self.peers.pop(name)
        before = self.publisher.info(self.queue)["subscriberCount"]
        if closes:
            peer.close()
            wait_until(lambda: self.publisher.info(self.queue)["subscriberCount"] < before, "it has left")
        else:
            peer.unsubscribe(self.queue)
            peer.close()
        self.model.leave(name, lost=closes)
        self.check()

    @precondition(lambda self: any(consumer.in_flight for consumer in self.model.consumers.values()))
    @rule(data=st.data(), refuse=st.sampled_from([False, False, True]))
    def settle(self, data, refuse):
        holders = sorted(name for name, consumer in self.model.consumers.items() if consumer.in_flight)
        name = data.draw(st.sampled_from(holders))
        at = data.draw(st.integers(0, len(self.model.consumers[name].in_flight) - 1))
        number = self.model.nack(name, at) if refuse else self.model.ack(name, at)
        message = self.holding[name].pop(number)
        (self.peers[name].nack if refuse else self.peers[name].ack)(message)
        self.check()

    @precondition(lambda self: any(consumer.in_flight for consumer in self.model.consumers.values()))
    @rule(data=st.data())
    def take_in_hand(self, data):
        holders = sorted(name for name, consumer in self.model.consumers.items() if consumer.in_flight)
        name = data.draw(st.sampled_from(holders))
        at = data.draw(st.integers(0, len(self.model.consumers[name].in_flight) - 1))
        message = self.holding[name][self.model.hold(name, at)]
        self.peers[name].send(Command.HOLDING, message.id, queue=message.queue)
        self.check()

    @precondition(lambda self: not any(each.pending or each.returned for each in self.model.consumers.values()))
    @rule()
    def purge(self):
        """Not while some consumers of a fan-out are behind others: which copies wait then is nobody's promise."""
        self.publisher.purge(self.queue)
        self.model.purge()
        self.check()

    @precondition(lambda self: self.restarts < RESTARTS_MAX)
    @rule(killed=st.booleans())
    def restart(self, killed):
        self.restarts += 1
        if killed:
            self.server.stop(killed=True)
            self.model.kill()
        for name, peer in self.peers.items():
            if not killed:
                peer.unsubscribe(self.queue)
                self.model.leave(name, lost=False)
            peer.close()
        self.publisher.close()
        self.peers = {}
        if not killed:
            self.model.take()
            self.model.parked = []
            self.server.stop()
        self.server.start()
        self.publisher = QueuePeer(self.server.running)
        self.check()

    # ---- what must be true ----

    @property
    def holding(self):
        """consumer -> number -> the Deliver that it has in flight."""
        if not hasattr(self, "_holding"):
            self._holding: dict[str, dict[int, object]] = {}
        return self._holding

    def check(self):
        for number in self.take_unparked():
            self.told(b"m%d" % number, ACCEPTED)
        self.holding_of_those_here()
        expected = self.model.take()
        for name, peer in self.peers.items():
            messages = peer.rest()
            found = [(payload(message), attempts(message)) for message in messages]
            wanted = expected.get(name, [])
            if self.model.is_fan_out:  # each copy has its own count: compared in other tests
                found, wanted = [number for number, _ in found], [number for number, _ in wanted]
            assert found == wanted, f"consumer {name}"
            self.holding[name] |= {payload(message): message for message in messages}
        if not self.model.is_fan_out:
            in_flight = sum(len(consumer.in_flight) for consumer in self.model.consumers.values())
            self.publisher.await_counts(self.queue, self.model.waiting_count, in_flight)

    def holding_of_those_here(self):
        for name in list(self.holding):
            if name not in self.peers:
                del self.holding[name]
        for name in self.peers:
            self.holding.setdefault(name, {})

    def teardown(self):
        if hasattr(self, "model"):
            self.compare_what_is_left()
        for peer in [self.publisher, *self.peers.values()]:
            peer.close()

    def compare_what_is_left(self):
        for queue, left in ((self.queue + ".dlq", self.model.dead),):
            found = self.drain(queue, len(left))
            if self.model.is_fan_out:  # several copies of one message may have died
                found, left = set(found), set(left)
            assert sorted(found) == sorted(left), "dead letters"

    def drain(self, queue, count):
        reader = QueuePeer(self.server.running)
        reader.subscribe(queue, prefetch=10_000)
        messages = reader.take(count) + reader.rest()
        reader.ack(*messages)
        reader.ping()
        reader.close()
        return [payload(message) for message in messages]


class Apart(RuleBasedStateMachine):
    """Two workers, one of which may be killed: what a history may not break, whatever the order of letters."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server.current
        self.server.queues += 1
        self.queue = f"q{self.server.queues}"
        self.publisher = QueuePeer(self.server.running)
        self.peers: dict[str, QueuePeer] = {}
        self.held: dict[str, dict[int, Message]] = {}
        self.stack = contextlib.ExitStack()
        self.settled: set[int] = set()
        self.count_of: dict[int, int] = {}
        self.published = self.kills = 0

    @initialize(mode=st.sampled_from([ROUND_ROBIN, PRIORITY_BASED]))
    def begin(self, mode):
        self.publisher.create(self.queue, mode=mode, maxQueueSize=0, maxRetryAttempts=1000)

    @rule(count=st.integers(1, 30), priority=st.integers(0, 3))
    def publish(self, count, priority):
        numbers = range(self.published, self.published + count)
        self.published += count
        self.publisher.publish_all(self.queue, numbers, priority=str(priority))

    @rule(name=NAMES, window=WINDOWS, worker=st.integers(0, 1))
    def subscribe(self, name, window, worker):
        if name not in self.peers:
            self.peers[name], self.held[name] = on_worker(self.server.running, worker, self.stack), {}
            self.peers[name].subscribe(self.queue, window)

    @precondition(lambda self: self.peers)
    @rule(data=st.data(), share=st.integers(1, 4), refuse=st.sampled_from([False, False, True]))
    def settle(self, data, share, refuse):
        name = data.draw(st.sampled_from(sorted(self.peers)))
        self.collect(name)
        chosen = dict(list(self.held[name].items())[::share])
        for number in chosen:
            del self.held[name][number]
        (self.peers[name].nack if refuse else self.peers[name].ack)(*chosen.values())
        self.peers[name].ping()
        if not refuse:
            self.settled |= chosen.keys()

    @precondition(lambda self: self.peers)
    @rule(data=st.data(), closes=st.booleans())
    def leave(self, data, closes):
        name = data.draw(st.sampled_from(sorted(self.peers)))
        self.collect(name)
        peer = self.peers.pop(name)
        del self.held[name]
        if not closes:
            peer.unsubscribe(self.queue)
        peer.close()

    @precondition(lambda self: self.kills < RESTARTS_MAX)
    @rule(worker=st.integers(0, 1))
    def kill_a_worker(self, worker):
        self.kills += 1
        pid = worker_pid(self.server.running, worker)
        kill(pid)
        wait_until(lambda: worker_pid(self.server.running, worker) not in (0, pid), "a new worker")
        for name in [name for name, peer in self.peers.items() if peer.worker == worker]:
            assert self.peers[name].ended()
            self.look_at(name)
            self.peers.pop(name).close()
            del self.held[name]
        if self.publisher.worker == worker:
            self.publisher.close()
            self.publisher = QueuePeer(self.server.running)

    def collect(self, name):
        self.peers[name].ping()
        self.look_at(name)

    def look_at(self, name):
        peer = self.peers[name]
        while peer.deliveries:
            message = peer.deliveries.popleft()
            number, count = payload(message), attempts(message)
            assert number not in self.settled, f"{number} was settled and came again"
            assert count > self.count_of.get(number, 0), f"{number}: counts rise"
            self.count_of[number] = count
            self.held[name][number] = message

    def teardown(self):
        for name in list(self.peers):
            self.collect(name)
            self.peers[name].close()
            del self.peers[name]
        last = QueuePeer(self.server.running)
        self.peers["last"], self.held["last"] = last, {}
        last.subscribe(self.queue, 10_000)
        left = set(range(self.published)) - self.settled
        wait_until(lambda: self.collect("last") or self.held["last"].keys() >= left, f"all of {self.queue}")
        assert self.held["last"].keys() == left
        last.ack(*self.held["last"].values())
        self.publisher.await_counts(self.queue, 0)
        self.publisher.delete(self.queue)
        last.close()
        self.publisher.close()
        self.stack.close()


@pytest.mark.parametrize("server", [1], indirect=True)
def test_a_queue_behaves_as_its_model(server):
    run_state_machine_as_test(History, settings=HISTORIES)


@pytest.mark.parametrize("server", [2], indirect=True)
def test_a_queue_on_two_workers_loses_nothing_and_repeats_nothing(server):
    run_state_machine_as_test(Apart, settings=HISTORIES)
