# SPDX-License-Identifier: Apache-2.0
"""Programs at every door, which publish numbers until they lose the broker, and know what must be there afterwards.

Numbers of a flow rise and none is published twice, so what is stored must rise as well.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from peers.signalr_data import DataPeer
from running import Running, wait_until
from websockets.exceptions import ConnectionClosed

import vibemq.client
from vibemq.client.micromsg2 import Micromsg2Client
from vibemq.client.streams import StreamsConnection
from vibemq.errors import VibeMQError

BATCH = 50
PREFETCH = 20
ANSWER_S = 60
#: Who waits for messages looks so often whether it is to stop.
SOON_S = 0.5
#: Of a stream that was looked at before, so much is read again.
AGAIN = 200
#: How a client says that its broker is gone.
GONE = (VibeMQError, OSError, ConnectionClosed)

Publish = Callable[[list[int]], None]


class Stored(NamedTuple):
    """A message of a stream, as its door gives it."""

    offset: int
    number: int


def kind_of(number: int) -> str:
    """What the header "kind" says."""
    return f"kind {number % 7}; ä"


class Work(threading.Thread):
    """Runs until it is told to stop, or loses the broker."""

    def __init__(self, turn: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.turn, self.stopping = turn, threading.Event()
        self.problem: Exception | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.turn()
        except Exception as problem:  # whether that may be is for the test to say
            self.problem = problem

    def ended(self) -> Exception | None:
        """Wait for the end; what ended it, None: it was told to."""
        self.join(ANSWER_S)
        assert not self.is_alive(), "it neither goes on nor ends"
        assert self.problem is None or isinstance(self.problem, GONE), repr(self.problem)
        return self.problem


class Flow(ABC):
    def __init__(self, target: str) -> None:
        self.target, self.next = target, 0
        self.confirmed: set[int] = set()

    @abstractmethod
    def open(self, running: Running) -> AbstractContextManager[Publish]:
        """A client that publishes, until it is confirmed."""

    def publishing(self, publish: Publish) -> Work:
        return Work(lambda: self.publish(publish))

    def publish(self, publish: Publish) -> None:
        numbers = list(range(self.next, self.next + BATCH))
        self.next += BATCH  # whatever becomes of them
        publish(numbers)
        self.confirmed.update(numbers)

    @abstractmethod
    def consuming(self, running: Running, chance: Random) -> Work: ...

    @abstractmethod
    def check(self, running: Running, chance: Random, is_thorough: bool) -> None:
        """What was confirmed is there."""


# ---- streams ----


class StreamFlow(Flow):
    """Invariant: `stable` are the numbers up to the last one that was confirmed when it was checked, by offset."""

    has_gaps = True  # what was not confirmed need not be there

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.stable: list[int] = []
        self.offsets: dict[int, int] = {}  # number -> where a confirm said that it is

    @abstractmethod
    def read(self, running: Running, first: int, end: int) -> list[Stored]:
        """The messages with these offsets; what is in them beside the number is checked."""

    def check(self, running: Running, chance: Random, is_thorough: bool) -> None:
        with connected(running) as connection:
            if not connection.exists(self.target):
                assert not self.confirmed
                return
            end = connection.next_offset(self.target)
            stored = connection.query_offset("reader", self.target)
            assert stored is None or stored < end, f"{self.target}: offset {stored} is stored, and the end is {end}"
        first = 0 if is_thorough else max(0, len(self.stable) - AGAIN)
        found = self.read(running, first, end)
        assert [one.offset for one in found] == list(range(first, end)), f"{self.target}: offsets have no gaps"
        numbers = self.stable[:first] + [one.number for one in found]
        assert numbers[: len(self.stable)] == self.stable, f"{self.target}: what was confirmed is as it was"
        assert all(a < b for a, b in pairwise(numbers)), f"{self.target}: once, in order"
        assert self.has_gaps or numbers == list(range(len(numbers)))
        lost = sorted(self.confirmed - set(numbers))
        assert not lost, f"{self.target}: {len(lost)} were confirmed and are lost, {lost[:3]} to {lost[-1]}"
        for number, offset in self.offsets.items():
            assert numbers[offset] == number, f"{self.target}: {number} is at the offset that was confirmed, {offset}"
        self.offsets.clear()
        newest = max(self.confirmed, default=-1)
        self.stable = [number for number in numbers if number <= newest]
        at = chance.randrange(len(self.stable) + 1)
        some = self.read(running, at, min(at + AGAIN, len(self.stable)))
        assert [one.number for one in some] == self.stable[at : at + AGAIN]

    def consuming(self, running: Running, chance: Random) -> Work:
        """Stores how far it has come, whatever the store has of that."""
        connection = connected(running)
        at = 0

        def turn() -> None:
            nonlocal at
            for chunk in connection.read_chunks(self.target, at, timeout_s=ANSWER_S):
                at = chunk.next_offset
                connection.store_offset("reader", self.target, at - 1)

        at = connection.next_offset(self.target)
        return Work(turn)


class Streams(StreamFlow):
    """By a publisher with a reference, which goes on behind what is stored."""

    has_gaps = False

    @contextmanager
    def open(self, running: Running) -> Iterator[Publish]:
        with connected(running) as connection:
            connection.create(self.target, exist_ok=True)
            publisher = connection.publisher(self.target, "load")
            end = connection.query_publisher_sequence("load", self.target)
            # `end` counts confirmed messages, `next_offset` written ones.
            wait_until(lambda: connection.next_offset(self.target) == end, "publishing ids are the messages'")
            self.next = end

            def publish(numbers: list[int]) -> None:
                publisher.publish([b"event %d" % number for number in numbers])
                publisher.flush(timeout_s=ANSWER_S)

            yield publish

    def read(self, running: Running, first: int, end: int) -> list[Stored]:
        with connected(running) as connection:
            chunks = connection.read_chunks(self.target, first, end)
            found = [one for chunk in chunks for one in chunk.messages()]
        return [Stored(offset, int(body.split()[1])) for offset, body in found if first <= offset < end]


class SignalrStream(StreamFlow):
    @contextmanager
    def open(self, running: Running) -> Iterator[Publish]:
        with DataPeer(running) as peer:
            peer.ask("CreateQueue", self.target, {"type": "stream"})
            yield lambda numbers: self._publish(peer, numbers)

    def _publish(self, peer: DataPeer, numbers: list[int]) -> None:
        answer = signalr_publish(peer, self.target, numbers)
        assert (answer["count"], answer["lastOffset"] - answer["firstOffset"]) == (BATCH, BATCH - 1)
        self.offsets[numbers[0]], self.offsets[numbers[-1]] = answer["firstOffset"], answer["lastOffset"]

    def read(self, running: Running, first: int, end: int) -> list[Stored]:
        if first >= end:
            return []
        with DataPeer(running) as peer:
            id = peer.stream("ReadStream", self.target, {"from": first, "max": end - first, "follow": False})
            found = peer.rest(id)
        for one in found:
            assert one["headers"] == {"kind": kind_of(one["body"])}, one
        return [Stored(one["offset"], one["body"]) for one in found]


class Micromsg2Stream(StreamFlow):
    @contextmanager
    def open(self, running: Running) -> Iterator[Publish]:
        with connected(running) as connection:
            connection.create(self.target, exist_ok=True)
        with micromsg2(running) as client:
            yield lambda numbers: micromsg2_publish(client, self.target, numbers)

    def read(self, running: Running, first: int, end: int) -> list[Stored]:
        """This door tells no offsets: they are counted."""
        found: list[Stored] = []
        with micromsg2(running, auto_ack=True) as client:
            if first < end:
                client.subscribe(self.target, **{"from": first})
            while len(found) < end - first:
                message = client.receive(ANSWER_S)
                assert message is not None, f"{self.target}: message {first + len(found)} of {end} does not come"
                found.append(Stored(first + len(found), micromsg2_number(message)))
        return found


# ---- queues ----

Ack = Callable[[], object]
Take = Callable[[], Iterator[tuple[int, Ack]]]


class QueueFlow(Flow):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.seen: set[int] = set()
        self.session: list[int] = []  # what came to the one consumer, in order
        self.may_come_again = False  # in this session, because a worker was killed

    @abstractmethod
    def taking(self, running: Running) -> AbstractContextManager[Take]:
        """A client's function that gives the messages which come soon, each with what acknowledges it."""

    def came(self, number: int) -> None:
        assert number < self.next, f"{self.target}: nobody has published {number}"
        is_later = not self.session or number > self.session[-1]
        assert is_later or self.may_come_again, f"{self.target}: {number} came after {self.session[-1]}"
        self.session.append(number)
        self.seen.add(number)

    def consuming(self, running: Running, chance: Random) -> Work:
        """Some are not acknowledged, fewer than a prefetch."""
        self.session.clear()
        self.may_come_again = False

        def turn() -> None:
            with self.taking(running) as take:
                left = PREFETCH // 2
                while not work.stopping.is_set():
                    for number, ack in take():
                        self.came(number)
                        if left and chance.random() < 0.1:
                            left -= 1
                        else:
                            ack()

        work = Work(turn)
        return work

    def check(self, running: Running, chance: Random, is_thorough: bool) -> None:
        if not is_thorough:
            return
        self.session.clear()
        self.may_come_again = False
        with native(running) as client, self.taking(running) as take:
            came, deadline_s = -1, 0.0
            while True:
                if len(self.session) > came:
                    came, deadline_s = len(self.session), time.monotonic() + ANSWER_S
                for number, ack in take():
                    self.came(number)
                    ack()
                info = client.queue_info(self.target)
                if info is not None and (info.messages, info.in_flight) == (0, 0):
                    break
                assert time.monotonic() < deadline_s, f"{self.target}: nothing comes any more, and there is {info}"
        lost = sorted(self.confirmed - self.seen)
        assert not lost, f"{self.target}: {len(lost)} were confirmed and never came, {lost[:3]} to {lost[-1]}"


class NativeQueue(QueueFlow):
    @contextmanager
    def open(self, running: Running) -> Iterator[Publish]:
        with native(running) as client:

            def publish(numbers: list[int]) -> None:
                with client.publisher(self.target) as publisher:
                    for number in numbers:
                        publisher.publish({"number": number}, headers={"kind": kind_of(number)})

            yield publish

    @contextmanager
    def taking(self, running: Running) -> Iterator[Take]:
        with (
            native(running) as client,
            client.consume(self.target, prefetch=PREFETCH, create=True, timeout_s=SOON_S) as consumer,
        ):

            def take() -> Iterator[tuple[int, Ack]]:
                for message in consumer:
                    assert message.headers["kind"] == kind_of(message.payload["number"])
                    yield message.payload["number"], message.ack

            yield take


class SignalrQueue(QueueFlow):
    @contextmanager
    def open(self, running: Running) -> Iterator[Publish]:
        with DataPeer(running) as peer:
            yield lambda numbers: self._publish(peer, numbers)

    def _publish(self, peer: DataPeer, numbers: list[int]) -> None:
        signalr_publish(peer, self.target, numbers[:-1])
        headers = {"kind": kind_of(numbers[-1])}
        peer.ask("Publish", self.target, numbers[-1], {"messageId": str(numbers[-1]), "headers": headers})

    @contextmanager
    def taking(self, running: Running) -> Iterator[Take]:
        with DataPeer(running) as peer:

            def take() -> Iterator[tuple[int, Ack]]:
                options = {"max": PREFETCH // 2, "waitMs": SOON_S * 1000, "ack": "manual"}
                for one in peer.ask("Receive", self.target, options):
                    assert one["headers"] == {"kind": kind_of(one["body"])}, one
                    assert one["id"] == str(one["body"]), one
                    yield one["body"], partial(peer.ask, "Ack", one["tag"])

            yield take


class Micromsg2Queue(QueueFlow):
    @contextmanager
    def open(self, running: Running) -> Iterator[Publish]:
        with micromsg2(running) as client:
            yield lambda numbers: micromsg2_publish(client, f"queue/{self.target}", numbers)

    @contextmanager
    def taking(self, running: Running) -> Iterator[Take]:
        with micromsg2(running) as client:
            client.subscribe(f"queue/{self.target}", prefetch=PREFETCH)

            def take() -> Iterator[tuple[int, Ack]]:
                while (message := client.receive(SOON_S)) is not None:
                    yield micromsg2_number(message), partial(client.ack, message)

            yield take


# ---- clients ----


def connected(running: Running) -> StreamsConnection:
    return StreamsConnection.connect(running.host, running.port, timeout_s=ANSWER_S)


def native(running: Running) -> vibemq.client.Client:
    return vibemq.client.connect(f"vibemq://{running.host}:{running.native_port}", reconnect=False)


def micromsg2(running: Running, *, auto_ack: bool = False) -> Micromsg2Client:
    return Micromsg2Client(running.host, running.ports["micromsg2"], auto_ack=auto_ack, timeout_s=ANSWER_S)


def micromsg2_publish(client: Micromsg2Client, destination: str, numbers: list[int]) -> None:
    for number in numbers:
        client.send(destination, b"%d" % number, {"kind": kind_of(number), "number": number})
    client.flush()


def micromsg2_number(message: Any) -> int:
    number = int(message.payload)
    assert dict(message.properties) == {"kind": kind_of(number), "number": number}, message
    return number


def signalr_publish(peer: DataPeer, target: str, numbers: list[int]) -> Any:
    messages = [{"body": number, "messageId": str(number), "headers": {"kind": kind_of(number)}} for number in numbers]
    return peer.ask("PublishBatch", target, messages)


def everywhere() -> list[Flow]:
    """A queue and a stream at each door that has them."""
    return [
        Streams("events"),
        NativeQueue("tasks"),
        SignalrQueue("hub-tasks"),
        SignalrStream("hub-events"),
        Micromsg2Queue("msg-tasks"),
        Micromsg2Stream("msg-events"),
    ]
