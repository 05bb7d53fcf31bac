# SPDX-License-Identifier: Apache-2.0
"""What a worker tells the admin process about itself: one question a turn, each answered within about a millisecond.

A question is one packet of JSON, ``{"id": 7, "ask": "sessions", ...}``, and so is the answer, ``{"id": 7}``, perhaps
with an ``error``.  A small answer lies in it as ``answer``; with a larger one comes a memfd that holds it as JSON.  So
an answer of any size goes whole, and the loop never waits for a reader: when the admin process is dead or slow its
socket is full, and the answer is dropped.  What may be long (all connections, all streams) is asked for piece by
piece: each answer says where the next begins.
"""

from __future__ import annotations

import base64
import itertools
import json
import logging
import os
import socket
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vibemq.broker.admission import what_failed
from vibemq.broker.limits import refused_total
from vibemq.errors import LimitExceeded, VibeMQError
from vibemq.once_a_minute import OnceAMinute

if TYPE_CHECKING:
    from vibemq.broker.parts import Broker
    from vibemq.net.certificates import Certificates
    from vibemq.server.turn import Loop

QUESTION_BYTES_MAX = 64 * 1024
ANSWER_INLINE_BYTES_MAX = 2048  # what health checks ask for: answered also where no descriptor is left
PUBLISHES_MAX = 64  # messages of people whose confirm nobody has asked for yet; the oldest answered one is forgotten
JOBS_MAX = 256  # requests with lines, each of which may have thousands of them
FDS_MAX = 2  # with a question: lines, and a socket for their answer
PIECE_NS_MAX = 500_000  # of the loop's time for one answer: half of the millisecond that nothing may exceed

logger = logging.getLogger(__name__)
faults = OnceAMinute(logger, logging.ERROR)
dropping = OnceAMinute(logger)
limiting = OnceAMinute(logger)


class Inquiries:
    """The questions that come through one socket, for one worker."""

    def __init__(
        self, channel: socket.socket, loop: Loop, broker: Broker, certificates: Certificates | None = None
    ) -> None:
        self._channel, self._certificates = channel, certificates
        self._loop, self._broker = loop, broker
        self._published: dict[int, dict[str, object]] = {}  # by ticket: what became of a message
        self._fds: list[int] = []  # that came with the question
        self._jobs: dict[Any, tuple[str, str, str]] = {}  # lines of HTTP requests: for whom and into what
        self._tickets = itertools.count(1)

    def answer_one(self) -> None:
        """The loop calls this when there is a question."""
        try:
            packet, self._fds, _, _ = socket.recv_fds(
                self._channel, QUESTION_BYTES_MAX, FDS_MAX, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except ConnectionResetError:  # it ended before it had read the last answer
            packet = b""
        if not packet:  # supervisor and admin process are gone: nobody will ever ask again
            self._loop.disregard(self._channel.fileno())
            return
        head: dict[str, object] = {}
        answer: object = None
        try:
            question = json.loads(packet)
            head["id"] = question["id"]
            answer = getattr(self, f"_on_{question['ask']}")(question)
        except VibeMQError as problem:
            head["error"] = str(problem)
        except Exception as problem:  # a mistake of ours: no reason for this worker to end
            faults.say_fault(problem, "a question of the admin process could not be answered")
            head["error"] = type(problem).__name__
        finally:
            while self._fds:
                os.close(self._fds.pop())
        self._send(head, answer)

    def _send(self, head: dict[str, object], answer: object) -> None:
        text, fds = json.dumps(answer, default=_shown), []
        try:
            if len(text) <= ANSWER_INLINE_BYTES_MAX:
                head["answer"] = json.loads(text)
            else:
                fds.append(os.memfd_create("vibemq-answer", os.MFD_CLOEXEC))
                os.write(fds[0], text.encode())
        except OSError as problem:  # no descriptor, no memory
            head["error"] = f"an answer of {len(text)} bytes cannot be sent: {problem.strerror}"
        try:
            packet = json.dumps(head).encode()
            socket.send_fds(self._channel, [packet], fds) if fds else self._channel.send(packet)
        except OSError as problem:
            dropping.say("", "an answer for the admin process was dropped: %s", problem.strerror)
        finally:
            for fd in fds:
                os.close(fd)

    # ---- the answers ----

    def _on_status(self, _: dict[str, Any]) -> object:
        ends_s = None if self._certificates is None else self._certificates.ends_s
        return {
            "worker": self._broker.worker,
            "pid": os.getpid(),
            "connections": len(self._loop.connections),
            "is_drained": self._loop.suspended,
            "delivered": self._broker.streams.delivered,
            "certificate_ends_s": ends_s,
            "limits_refused": refused_total(),
        }

    def _on_sessions(self, question: dict[str, Any]) -> object:
        """Connections, by their descriptors."""

        def described(fd: int, connection: Any, session: Any) -> dict[str, object]:
            shown = {
                "fd": fd,
                "name": connection.peer,
                "host": connection.local_host,
                "port": connection.local_port,
                "worker": self._broker.worker,
                "door": getattr(getattr(session, "door", None), "name", ""),
            }
            describe = getattr(session, "describe", None)
            return shown if describe is None else shown | describe()

        return _piece((found[0], described(*found)) for found in self._loop.sessions_after(question["after"]))

    def _on_readers(self, question: dict[str, Any]) -> object:
        """How many read each stream here, by slots: [virtual host, stream, count]."""
        return _piece((slot, found) for slot, *found in self._broker.streams.readers_after(question["after"]))

    def _on_close(self, question: dict[str, Any]) -> object:
        """Drop the socket without a word, as RabbitMQ does; the descriptor may be another connection's by now."""
        connection = self._loop.connections.get(question["fd"])
        if connection is None or connection.peer != question["name"]:
            return False
        logger.info("%s: closed by an administrator: %s", connection.peer, question["reason"])
        self._loop.close(connection)
        return True

    def _on_groups(self, _: dict[str, Any]) -> object:
        return self._broker.groups.listing()

    def _on_tell(self, question: dict[str, Any]) -> object:
        self._broker.streams.tell(question["workers"], question["slot"])
        return True

    def _on_restart(self, question: dict[str, Any]) -> object:
        self._broker.streams.restart(question["vhost"], question["name"])
        return True

    def _on_purge(self, question: dict[str, Any]) -> object:
        """How many messages waited."""
        queue = self._broker.queues.find(question["vhost"], question["name"])
        count = queue.purge()
        queue.close_if_unused()
        return count

    def _on_publish(self, question: dict[str, Any]) -> object:
        """Begin with one message: the ticket by which ``published`` tells what has become of it.

        Or for how long it must wait: there is nobody here who could be read later.  A confirm may wait for a sync, so
        it is not this answer."""
        from vibemq.broker.one_message import publish_one  # rarely needed

        if len(self._published) >= PUBLISHES_MAX:
            answered = next((ticket for ticket, found in self._published.items() if found["is_done"]), None)
            if answered is None:
                raise LimitExceeded("messages that wait for their confirm", len(self._published), PUBLISHES_MAX)
            del self._published[answered]
        if wait_us := self._broker.limits.take_one(question["user"], question["vhost"]):
            return {"wait_us": wait_us}
        ticket = next(self._tickets)
        found: dict[str, object] = {"is_done": False, "offset": None, "why": ""}

        def told(offset: int | None, why: str) -> None:
            found.update(is_done=True, offset=offset, why=why)

        publish_one(
            self._broker, question["vhost"], question["name"], base64.b64decode(question["body"]),
            question["headers"], question["content_type"], question["peer"], told, question.get("properties"),
        )  # fmt: skip
        self._published[ticket] = found
        return {"ticket": ticket, "pid": os.getpid()}

    def _on_published(self, question: dict[str, Any]) -> object:
        """None: this worker knows nothing of it; its predecessor was asked, and ended."""
        found = self._published.get(question["ticket"]) if question["pid"] == os.getpid() else None
        if found is not None and found["is_done"]:
            del self._published[question["ticket"]]
        return found

    def _on_publish_lines(self, question: dict[str, Any]) -> object:
        """Begin with the lines in a memfd, which came with the question: {}, then one answer through the socket that
        came with it.  Or `wait_us`, for how long they must not come; or `why` they cannot be taken now."""
        from vibemq.broker.ingest import publish_lines  # rarely needed

        if len(self._fds) != FDS_MAX:
            return {"why": "this worker has too many files open"}
        if self._broker.queues.ending:
            return {"why": "the broker is being restarted or in maintenance"}
        if len(self._jobs) >= JOBS_MAX:
            limiting.say(
                "", "lines over HTTP were refused: a worker stores those of %d requests, the most that it may", JOBS_MAX
            )
            return {"why": f"{JOBS_MAX} requests are being stored"}
        if wait_us := self._broker.limits.wait_us(question["user"], question["vhost"]):
            return {"wait_us": wait_us}
        into = question["vhost"], question["name"], question["publisher"]
        if question["publisher"] and into in self._jobs.values():
            return {
                "why": f"another request of publisher {question['publisher']!r} is being stored: send one at a time"
            }
        results = socket.socket(fileno=self._fds.pop())
        results.setblocking(False)
        try:
            job = publish_lines(self._broker, question, self._fds[0], results, self._jobs.pop)
        except VibeMQError as problem:  # nothing is stored
            results.close()
            return {"why": what_failed(question["peer"], problem)}
        except BaseException:
            results.close()
            raise
        self._jobs[job] = into
        return {}

    def end_jobs(self) -> None:
        """This worker ends: what rate limits and full queues hold back is refused, so that its sender is told."""
        for job in list(self._jobs):
            job.end()

    @property
    def has_jobs(self) -> bool:
        """Return whether lines are being stored whose sender has no answer yet."""
        return bool(self._jobs)

    def _on_access_changed(self, _: dict[str, Any]) -> object:
        self._broker.tell_access_changed()
        return True


def _piece(items: Iterable[tuple[int, object]]) -> dict[str, object]:
    """As many as there is time for; ``next`` is the place of the last one, from which to ask on; None: that was all."""
    end_ns = time.perf_counter_ns() + PIECE_NS_MAX
    found: list[object] = []
    for place, item in items:
        found.append(item)
        if time.perf_counter_ns() > end_ns:
            return {"found": found, "next": place}
    return {"found": found, "next": None}


def _shown(value: object) -> object:
    """What peers sent may be bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
