# SPDX-License-Identifier: Apache-2.0
"""One raw connection to the native door, for tests that must see every frame and its order.

What comes is sorted into Delivers (``deliveries``, in order) and answers, which are found by their
request's id.  Every wait has a deadline.  That nothing more comes is shown by round trips and never by
waiting: what a worker does because of a frame is in the outbox before it answers the next one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import running
from running import Running

from vibemq.protocols.native.codec import Message, decode_body, encode_frame, split_frames
from vibemq.protocols.native.spec import Command

DEADLINE_S = 60.0
wait_until = partial(running.wait_until, seconds=DEADLINE_S)
PINGS_TO_SETTLE = 2  # the first may share a turn with what it should come after


class Refused(Exception):
    """The broker answered with an Error."""

    def __init__(self, answer: Message) -> None:
        super().__init__(f"{answer.error_code}: {answer.error_message}")
        self.code = answer.error_code


class QueuePeer:
    """A connection that has been accepted; ``worker`` is the index of the worker that serves it."""

    numbers = itertools.count()

    def __init__(self, running: Running, *, receive_buffer_bytes: int = 0, **headers: str) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes:  # before connect, or the window has been offered already
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect((running.host, running.native_port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.inbox = b""
        self.deliveries: deque[Message] = deque()
        self.answers: dict[bytes, Message] = {}
        self.goodbye: Message | None = None  # the broker's Disconnect
        connected = self.ask(Command.CONNECT, headers={"features": "nack,purge", **headers})
        self.worker = int(connected.headers["connectionId"].split("_")[1])

    def __enter__(self) -> QueuePeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def fresh(self) -> bytes:
        return b"p%d" % next(self.numbers)

    # ---- frames ----

    def send(self, command: int, id: bytes | str, **fields: Any) -> None:
        self.socket.sendall(encode_frame(command, id, **fields))

    def send_all(self, *frames: bytes) -> None:
        """In one packet."""
        self.socket.sendall(b"".join(frames))

    def _read(self) -> None:
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self.inbox += data
        frames, used = split_frames(self.inbox, 1 << 26)
        self.inbox = self.inbox[used:]
        for flags, body in frames:
            assert flags == 0, "a compressed frame that nobody had asked for"
            message = decode_body(body)
            if message.type == Command.DELIVER:
                self.deliveries.append(message)
            elif message.type == Command.DISCONNECT:
                self.goodbye = message
            else:
                self.answers[message.id] = message

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            left_s = deadline - time.monotonic()
            assert left_s > 0 and select.select([self.socket], [], [], left_s)[0], f"not within {DEADLINE_S} s: {what}"
            self._read()

    def answer(self, id: bytes) -> Message:
        """The answer to the frame `id`; Refused when it is an Error."""
        self._until(lambda: id in self.answers, f"an answer to {id!r}")
        answer = self.answers.pop(id)
        if answer.type == Command.ERROR:
            raise Refused(answer)
        return answer

    def ask(self, command: int, id: bytes | None = None, **fields: Any) -> Message:
        id = id or self.fresh()
        self.send(command, id, **fields)
        return self.answer(id)

    def ping(self) -> None:
        """Everything sent so far has been read and acted upon."""
        self.ask(Command.PING)

    def ended(self) -> bool:
        """Until the broker closes the connection."""
        with contextlib.suppress(ConnectionError):
            while True:
                self._read()
        return True

    # ---- publishing ----

    def start_publish(self, queue: str, payload: Any, id: bytes | str | None = None, **headers: str) -> bytes:
        """Send it; ``answer(id)`` says what became of it."""
        id = id.encode() if isinstance(id, str) else id or self.fresh()
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.send(Command.PUBLISH, id, queue=queue, payload=body, headers=headers)
        return id

    def publish(self, queue: str, payload: Any, id: bytes | str | None = None, **headers: str) -> bytes:
        """Until it is confirmed."""
        id = self.start_publish(queue, payload, id, **headers)
        self.answer(id)
        return id

    def publish_all(self, queue: str, payloads: Iterable[Any], **headers: str) -> list[bytes]:
        """Many on their way at once; until all are confirmed."""
        frames, ids = [], []
        for payload in payloads:
            ids.append(self.fresh())
            body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
            frames.append(encode_frame(Command.PUBLISH, ids[-1], queue=queue, payload=body, headers=headers))
        for at in range(0, len(frames), 500):
            self.socket.sendall(b"".join(frames[at : at + 500]))
            while self.socket in select.select([self.socket], [], [], 0)[0]:
                self._read()
        for id in ids:
            self.answer(id)
        return ids

    # ---- consuming ----

    def subscribe(self, queue: str, prefetch: int = 0) -> None:
        headers = {"prefetch": str(prefetch)} if prefetch else {}
        self.ask(Command.SUBSCRIBE, queue=queue, headers=headers)

    def unsubscribe(self, queue: str) -> None:
        self.ask(Command.UNSUBSCRIBE, queue=queue)

    def delivery(self) -> Message:
        self._until(lambda: bool(self.deliveries), "a delivery")
        return self.deliveries.popleft()

    def take(self, count: int) -> list[Message]:
        """The next `count` deliveries."""
        self._until(lambda: len(self.deliveries) >= count, f"{count} deliveries")
        return [self.deliveries.popleft() for _ in range(count)]

    def take_acked(self, count: int) -> list[Any]:
        """The payloads of the next `count` deliveries, each acknowledged before the next is looked at."""
        payloads = []
        for _ in range(count):
            message = self.delivery()
            self.ack(message)
            payloads.append(payload(message))
        return payloads

    def ack(self, *messages: Message) -> None:
        self._settle(Command.ACK, messages)

    def nack(self, *messages: Message) -> None:
        self._settle(Command.NACK, messages)

    def _settle(self, command: int, messages: Iterable[Message]) -> None:
        frames = [encode_frame(command, message.id, queue=message.queue) for message in messages]
        for at in range(0, len(frames), 1000):
            self.socket.sendall(b"".join(frames[at : at + 1000]))

    def rest(self) -> list[Message]:
        """What has come, and what comes because of all that was sent: on a broker of one worker, all there is."""
        for _ in range(PINGS_TO_SETTLE):
            self.ping()
        found, self.deliveries = list(self.deliveries), deque()
        return found

    # ---- queues ----

    def create(self, queue: str, **options: Any) -> str:
        """Options as members of a JSON payload, by their names on the wire."""
        self.ask(Command.CREATE_QUEUE, queue=queue, payload=json.dumps(options).encode())
        return queue

    def delete(self, queue: str) -> None:
        self.ask(Command.DELETE_QUEUE, queue=queue)

    def info(self, queue: str) -> dict[str, Any] | None:
        found = self.ask(Command.QUEUE_INFO, queue=queue).payload
        return json.loads(found) if found else None

    def counts(self, queue: str) -> tuple[int, int]:
        """(waiting, in flight) as the broker last published them."""
        found = self.info(queue)
        assert found is not None
        return found["messageCount"], found["inFlightCount"]

    def await_counts(self, queue: str, waiting: int, in_flight: int = 0) -> None:
        """Counts are the home's, and it may be on another worker: they come true soon."""
        try:
            wait_until(lambda: self.counts(queue) == (waiting, in_flight), "counts")
        except AssertionError:
            had = self.counts(queue)
            raise AssertionError(f"(waiting, in flight): needed {waiting, in_flight}, had {had}") from None

    def await_subscribers(self, queue: str, count: int) -> None:
        """Until the home knows all of them."""
        wait_until(lambda: (self.info(queue) or {}).get("subscriberCount") == count, f"{count} subscribers")

    def purge(self, queue: str) -> int:
        found = self.ask(Command.PURGE_QUEUE, queue=queue).payload
        assert found is not None
        return int(json.loads(found)["purged"])


def payload(message: Message) -> Any:
    return None if message.payload is None else json.loads(message.payload)


def payloads(messages: Iterable[Message]) -> list[Any]:
    return [payload(message) for message in messages]


def attempts(message: Message) -> int:
    return int(message.headers["deliveryAttempts"])


def on_worker(running: Running, worker: int, stack: contextlib.ExitStack, **options: Any) -> QueuePeer:
    """A connection that this worker serves: the kernel chooses, so it may take some."""
    for _ in range(200):
        peer = QueuePeer(running, **options)
        if peer.worker == worker:
            stack.callback(peer.close)
            return peer
        peer.close()
    raise AssertionError(f"200 connections, and none at worker {worker}")


def worker_pid(running: Running, worker: int) -> int:
    """Of the process with this index, by the title it gives itself."""
    for pid in running.worker_pids():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"vibemq: worker %d" % worker):
                return pid
    return 0


# ---- processes ----


class Killed(Exception):
    """Leaves a ``with broker(...)`` whose broker the test itself has killed, without asking it to stop cleanly."""


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have ended with its supervisor
        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def stopped(pid: int):
    """The process does nothing meanwhile, as if its machine were very busy."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def kill_all(running: Running) -> None:
    for pid in [running.process.pid, *running.worker_pids()]:
        kill(pid)


@contextlib.contextmanager
def killed_at_the_end() -> Iterator[None]:
    """Around a ``with broker(...)`` that ends by ``raise Killed``."""
    with contextlib.suppress(Killed):
        yield
