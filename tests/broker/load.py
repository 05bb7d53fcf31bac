# SPDX-License-Identifier: Apache-2.0
"""Publishers and a reader that work while processes are killed, and what must be true afterwards.

Every message says who published it and with which number; its length and bytes follow from
the two, so a message that was torn or mixed up is noticed.  A publisher without a reference
never sends a number again: each is there at most once, and once if it was confirmed.  One
with a reference sends again whatever was not confirmed, and relies on deduplication: each is
there exactly once up to the last.
"""

from __future__ import annotations

import itertools
import random
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from peers.streams import DEADLINE_S, Peer, publish_frame
from running import Running, wait_until

from vibemq.client.streams import StreamsConnection
from vibemq.errors import VibeMQError
from vibemq.protocols.streams.spec import Key

HEAD = struct.Struct(">IQ")
FRAME_MESSAGES_MAX = 100
UNCONFIRMED_MAX = 1500
BROKEN = (ConnectionError, TimeoutError)


def message(publisher: int, number: int) -> bytes:
    size = (number * 2654435761 + publisher * 97) % 300
    return HEAD.pack(publisher, number) + bytes([(publisher + number + size) & 255]) * size


def parsed(data: bytes) -> tuple[int, int]:
    """(publisher, number) of a message that is undamaged."""
    publisher, number = HEAD.unpack_from(data)
    assert data == message(publisher, number), f"message {number} of publisher {publisher} is damaged"
    return publisher, number


def confirmed_next(peer: Peer) -> list[int]:
    frame = peer.next_frame()
    assert frame.key == Key.PUBLISH_CONFIRM, f"not a confirm but {frame.key:#06x}: {frame.body[:60].hex()}"
    return frame.decoded().publishing_ids


@dataclass
class Publishing:
    """One publisher's thread, over as many connections as it takes."""

    load: Load
    number: int  # of the publisher
    reference: str
    seed: int
    declared: bool = False
    sent: int = 0  # the highest number that was ever sent
    confirmed: set[int] = field(default_factory=set)
    error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.load.enough.is_set():
                try:
                    with Peer(self.load.running) as peer:
                        self.publish(peer.open())
                except BROKEN:
                    if not self.load.reconnects:
                        return
        except BaseException as error:  # shown by Load.stop, in the test's own thread
            self.error = error

    def publish(self, peer: Peer) -> None:
        random_ = random.Random(self.seed + self.sent)
        peer.declare(self.load.stream, self.number, self.reference)
        self.declared = True
        following = self.lowest_unconfirmed() if self.reference else self.sent + 1
        waiting: set[int] = set()
        while not self.load.enough.is_set() or waiting:
            if not self.load.enough.is_set() and len(waiting) < UNCONFIRMED_MAX:
                numbers = range(following, following + random_.randint(1, FRAME_MESSAGES_MAX))
                self.sent = max(self.sent, numbers[-1])  # before sending: what is torn off may be stored
                peer.send(publish_frame([(n, message(self.number, n)) for n in numbers], self.number))
                waiting.update(numbers)
                following = numbers[-1] + 1
                if not peer.has_frame():
                    continue
            for number in confirmed_next(peer):
                waiting.remove(number)  # KeyError: confirmed twice, or never sent
                self.confirmed.add(number)

    def lowest_unconfirmed(self) -> int:
        return next(n for n in range(1, self.sent + 2) if n not in self.confirmed)


class Load:
    """Publishers (one in three with a reference) and one reader on one stream."""

    def __init__(
        self, running: Running, stream: str, seed: int, publishers: int = 4, *, reconnects: bool = True
    ) -> None:
        self.running, self.stream, self.reconnects = running, stream, reconnects
        self.enough = threading.Event()
        self.publishings = [
            Publishing(self, at, f"reference {at}" if at % 3 == 0 else "", seed + at) for at in range(publishers)
        ]
        self.seen: list[tuple[int, int]] = []  # by the reader, in order
        self.reader_error: BaseException | None = None
        self.threads = [threading.Thread(target=publishing.run) for publishing in self.publishings]
        self.threads.append(threading.Thread(target=self.read))

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        wait_until(self.all_publish, "every publisher is declared")  # whoever dies then dies under load
        return self

    def all_publish(self) -> bool:
        self.check()
        return all(publishing.declared for publishing in self.publishings)

    def __exit__(self, *_: object) -> None:
        self.stop()

    def await_confirmed(self, count: int) -> None:
        """Until `count` more messages are confirmed than now."""
        target = self.confirmed_count() + count

        def reached() -> bool:
            self.check()
            return self.confirmed_count() >= target

        wait_until(reached, f"{count} more confirms")

    def confirmed_count(self) -> int:
        return sum(len(publishing.confirmed) for publishing in self.publishings)

    def check(self) -> None:
        for publishing in self.publishings:
            if publishing.error is not None:
                raise publishing.error
        if self.reader_error is not None:
            raise self.reader_error

    def stop(self) -> None:
        self.enough.set()
        deadline = time.monotonic() + DEADLINE_S
        for thread in self.threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), f"{thread.name} does not end"

    # ---- the reader ----

    def read(self) -> None:
        try:
            while not self.enough.is_set():
                try:
                    with StreamsConnection.connect(self.running.host, self.running.port) as client:
                        self.follow(client)
                except (VibeMQError, OSError) as problem:
                    if "CRC" in str(problem) or "needed" in str(problem):
                        raise
                    if not self.reconnects:
                        return
        except BaseException as error:
            self.reader_error = error

    def follow(self, client: StreamsConnection) -> None:
        with client.subscribe(self.stream, 4, len(self.seen)) as subscription:  # 4: by offset
            while not self.enough.is_set():
                chunk = subscription.next_chunk(0.2, default=None)
                if chunk is None:
                    continue
                for offset, data in chunk.messages():
                    if offset >= len(self.seen):
                        assert offset == len(self.seen), "a gap between offsets"
                        self.seen.append(parsed(data))


def everything(running: Running, stream: str) -> Iterator[tuple[int, int]]:
    """(publisher, number) of each message of a stream; the client verifies every CRC."""
    expected = 0
    with StreamsConnection.connect(running.host, running.port) as client:
        for chunk in client.read_chunks(stream, 0):
            for offset, data in chunk.messages():
                assert offset == expected, "a gap between offsets"
                expected += 1
                yield parsed(data)


def verify(load: Load, running: Running) -> None:
    """What was confirmed is there, in order, once for each time it was published; what was read stays."""
    load.check()
    stored = list(everything(running, load.stream))
    assert load.seen == stored[: len(load.seen)], "the reader was given what is not there any more"
    for publishing in load.publishings:
        numbers = [number for publisher, number in stored if publisher == publishing.number]
        lost = publishing.confirmed - set(numbers)
        who = f"publisher {publishing.number} ({publishing.reference or 'no reference'})"
        assert not lost, f"{who}: confirmed and lost: {sorted(lost)[:10]} of {len(lost)}"
        assert all(a < b for a, b in itertools.pairwise(numbers)), f"{who}: out of order, or twice"
        assert not numbers or numbers[-1] <= publishing.sent, f"{who}: stored what was never published"
        if publishing.reference:
            assert numbers == list(range(1, len(numbers) + 1)), f"{who}: a gap, though it published again"
