# SPDX-License-Identifier: Apache-2.0
"""The workers as the admin process sees them: questions out, answers back (the other end is server/inquiry.py).

The supervisor keeps one socket for each worker, so it outlives both ends: what a worker that was killed had not read is
answered by its successor, and an answer to an earlier admin process is known by its number and thrown away.  Who does
not answer in time is left out, and the log says so: an overview with a part missing is better than none.  A worker
whose loop is in a slow file system call is not asked; its last status counts for it meanwhile.
"""

from __future__ import annotations

import itertools
import json
import logging
import mmap
import os
import secrets
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vibemq.errors import VibeMQError
from vibemq.once_a_minute import OnceAMinute

ANSWER_TIMEOUT_S = 2.0  # a worker answers within a turn; a new one is there after some tens of milliseconds
_PACKET_BYTES_MAX = 4096
_FIRST_NUMBERS = 1 << 48  # room for questions after each random start

unanswered = OnceAMinute(logging.getLogger("vibemq.admin"))  # of one that hangs, each look would say so


#: The status of a worker that has not answered since this process began.
_UNKNOWN = {"pid": 0, "connections": 0, "is_drained": False, "delivered": 0, "limits_refused": 0}


class NoAnswer(VibeMQError):
    """A worker did not answer in time: it hangs, or is being replaced."""


class Workers:
    """May be used from several threads; one question at a time goes to each worker."""

    def __init__(
        self, channels: list[socket.socket], stalled_in: Callable[[int], object | None] = lambda _: None
    ) -> None:
        """``stalled_in``: the slow file system call that a worker's loop is in, or None."""
        self._channels, self._stalled_in = channels, stalled_in
        self._statuses: dict[int, dict[str, Any]] = {}
        self._locks = [threading.Lock() for _ in channels]
        self._numbers = itertools.count(secrets.randbelow(_FIRST_NUMBERS))

    def __len__(self) -> int:
        return len(self._channels)

    def ask(self, worker: int, what: str, *, fds: Sequence[int] = (), **details: object) -> Any:
        """``fds``: descriptors that the worker gets with the question.  Raises NoAnswer."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        if (call := self._stalled_in(worker)) is not None:
            raise NoAnswer(f"worker {worker} waits for the disk: {call}")
        if not self._locks[worker].acquire(timeout=ANSWER_TIMEOUT_S):
            raise NoAnswer(f"worker {worker} is busy with earlier questions")
        try:
            number = next(self._numbers)
            channel = self._channels[worker]
            question = json.dumps({"id": number, "ask": what, **details}).encode()
            self._await(worker, channel, select.POLLOUT, deadline)
            if fds:
                socket.send_fds(channel, [question], fds)
            else:
                channel.send(question)
            while True:
                self._await(worker, channel, select.POLLIN, deadline)
                packet, fds, _, _ = socket.recv_fds(channel, _PACKET_BYTES_MAX, 1)
                answer = [_read(fd) for fd in fds]
                if not packet:
                    raise NoAnswer(f"worker {worker} cannot be asked: the broker is ending")
                head = json.loads(packet)
                if head.get("id") != number:
                    continue
                if "error" in head:
                    raise NoAnswer(f"worker {worker} cannot do that: {head['error']}")
                if "answer" in head:
                    return head["answer"]
                if not answer:
                    raise NoAnswer(f"the answer of worker {worker} was lost: this process has too many files open")
                return json.loads(answer[0])
        except OSError as problem:
            raise NoAnswer(f"worker {worker} cannot be asked: {problem.strerror}") from problem
        finally:
            self._locks[worker].release()

    def ask_any(self, what: str, **details: Any) -> Any:
        """The first answer, of whichever worker.  Raises NoAnswer."""
        for worker in range(len(self._channels)):
            if (answer := self._ask_one(worker, what, **details)) is not None:
                return answer
        raise NoAnswer("no worker answers")

    def _ask_one(self, worker: int, what: str, **details: Any) -> Any:
        """None, with a line in the log, where it does not answer."""
        try:
            return self.ask(worker, what, **details)
        except NoAnswer as problem:
            unanswered.say(worker, "a worker is left out: %s", problem)
            return None

    def statuses(self) -> list[dict[str, Any]]:
        """Return the status of each worker that answers; of one that waits for the disk its last, with ``is_stale``."""
        found = []
        for worker in range(len(self._channels)):
            is_stalled = self._stalled_in(worker) is not None
            answer = None if is_stalled else self._ask_one(worker, "status")
            if answer is not None:
                self._statuses[worker] = answer
                found.append(answer)
            elif is_stalled or self._stalled_in(worker) is not None:
                known = self._statuses.get(worker, _UNKNOWN)
                found.append({**known, "worker": worker, "is_stale": True})
        return found

    def sessions(self) -> Iterator[dict[str, Any]]:
        """Every connection of every worker, as its worker describes it."""
        return self._pieces("sessions")

    def readers(self) -> Counter[tuple[str, str]]:
        """How many read each stream, by virtual host and name; a queue's home reads its stream, too."""
        counts: Counter[tuple[str, str]] = Counter()
        for vhost, name, count in self._pieces("readers"):
            counts[vhost, name] += count
        return counts

    def _pieces(self, what: str) -> Iterator[Any]:
        for worker in range(len(self._channels)):
            after: int | None = -1
            while after is not None:
                piece = self._ask_one(worker, what, after=after) or {"found": (), "next": None}
                yield from piece["found"]
                after = piece["next"]

    def close(self, session: dict[str, Any], reason: str) -> bool:
        """Drop a connection that ``sessions`` gave; False: it has ended meanwhile.  Raises NoAnswer."""
        closed: bool = self.ask(session["worker"], "close", fd=session["fd"], name=session["name"], reason=reason)
        return closed

    def _await(self, worker: int, channel: socket.socket, event: int, deadline: float) -> None:
        poller = select.poll()
        poller.register(channel, event)
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise NoAnswer(f"worker {worker} did not answer within {ANSWER_TIMEOUT_S:g} s")


def _read(fd: int) -> bytes:
    try:
        size = os.fstat(fd).st_size
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as memory:
            return bytes(memory)
    finally:
        os.close(fd)
