# SPDX-License-Identifier: Apache-2.0
"""What a peer has called and is not answered yet.

Invocations of one connection run one after another: while a helper thread works for one, the next ones wait here, and
when too much waits, the transport reads no more.  Streams and whatever waits for a message run in the background, and
are found by their id for a CancelInvocation.  All of it is registered while its record is parsed: an upload's first
item, or a cancel, may be in the same read as the invocation.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from vibemq.broker.admission import what_failed
from vibemq.broker.arguments import BadArgument
from vibemq.protocols.signalr import records, spec
from vibemq.protocols.signalr.spec import NOTHING, Dialect, ErrorCode, HubError

if TYPE_CHECKING:
    from vibemq.protocols.signalr.hub import HubConnection
    from vibemq.protocols.signalr.publishing import Feed

#: What a method returns that answers later.
LATER = object()

UPLOADS_MAX = 1024  # of one connection at once
WAITING_CALL_BYTES = 512  # what a call that waits takes beside its texts
WAITING_ITEM_BYTES = 48  # and an item of an upload beside its own
TURN_NS = 500_000  # of the loop's time for the calls of one connection in a turn: half of what nothing may exceed


class BadCall(Exception):
    """The arguments do not fit the method."""


class Call:
    """One invocation of a method that Python decides."""

    def __init__(
        self, hub: HubConnection, id: bytes | None, name: str, arguments: bytes, count: int, is_stream: bool
    ) -> None:
        self.hub = hub
        self.id = id  # None: nobody waits for an answer
        self.key: bytes | Call = self if id is None else id
        self.name = name
        self.arguments, self.count = arguments, count  # the raw array
        self.uploads: list[Upload] = []
        self.is_stream = is_stream  # it was called as one; the early dialect has one kind of call
        self.ends_with_completion = is_stream
        self.is_cancelled = False
        self.state = "waiting"  # then "running", "over"
        self.on_cancel: Callable[[], None] | None = None
        self.on_over: Callable[[], object] | None = None

    @property
    def size(self) -> int:
        """Bytes of memory, roughly, while it waits."""
        return WAITING_CALL_BYTES + len(self.id or b"") + len(self.name) + len(self.arguments)

    # ---- answers; what comes after the first one is dropped ----

    def complete(self, value: Any = NOTHING) -> None:
        if self.is_stream:  # whose end bears no result
            if value is not NOTHING:
                self.item(value)
            self.end()
        elif self._end_once():
            self.hub.answer(records.completion, self.id, value)

    def answered_elsewhere(self) -> bytes | None:
        """Somebody else answers it, by this id."""
        self._end_once()
        return self.id

    def item(self, value: Any) -> None:
        """One more value of a stream."""
        if self.state != "over":
            self.hub.answer(records.stream_item, self.id, value)

    def end(self, error: str | None = None) -> None:
        """A stream has no more values, because of an error if there is one."""
        if self._end_once():
            self.hub.answer(records.stream_end, self.id, error, self.ends_with_completion)

    def refuse(self, code: str, text: str) -> None:
        self.fail(spec.hub_exception(spec.invoking(self.name), f"{code}: {text}", self.hub.dialect))

    def fail(self, text: str) -> None:
        """As `refuse`, with the text as the peer shall see it."""
        if self.is_stream:
            self.end(text)
        elif self._end_once():
            self.hub.answer(records.completion, self.id, NOTHING, text)

    def _end_once(self) -> bool:
        """It is over from now on.  False: it was already."""
        if self.state == "over":
            return False
        self.state = "over"
        self.hub.calls.forget(self)
        if self.on_over is not None:
            self.on_over()
        return True

    # ---- how they run ----

    def in_helper(self, work: Callable[[], Any], done: Callable[[Any], Any]) -> Any:
        """Run ``work`` in a helper thread; ``done(its result)`` answers, in the loop.  For methods to return.

        ``done`` may raise what methods may raise, and is also called with an error that ``work`` raised.
        """
        return self.busy(partial(self.hub.door.broker.helpers.submit, work), done)

    def busy(self, begin: Callable[[Callable[[Any, Any], None]], None], done: Callable[[Any], Any]) -> Any:
        """For ``begin(finish)``, which has ``finish(result, error)`` called in the loop.  No call runs till then."""
        hub = self.hub

        def finish(result: Any, problem: BaseException | None) -> None:
            if hub.closed:
                return
            hub.calls.working = None  # before `done`, which may need a helper again
            try:
                self.answer(lambda: done(result if problem is None else problem))
                hub.calls.go_on()
            except Exception as later:  # the answer could not be written
                hub.fail(later)

        hub.calls.working = self
        hub.working = True
        begin(finish)
        return LATER

    def answer(self, work: Callable[[], Any]) -> None:
        """Let ``work`` answer: by a value, by an error, or LATER.  One bad call does not cost the connection."""
        try:
            value = work()
            if isinstance(value, BaseException):
                raise value
        except HubError as problem:
            self.refuse(problem.code, problem.text)
        except BadArgument as problem:
            self.refuse(ErrorCode.INVALID_ARGUMENT, f"{problem}.")
        except BadCall as problem:
            text = str(problem)
            self.fail(spec.binding_failed(self.name, text) if self.hub.dialect == Dialect.V1 else text)
        except Exception as problem:
            self.refuse(ErrorCode.SERVER_ERROR, what_failed(self.hub.peer, problem))
        else:
            if value is not LATER:
                self.complete(value)


class Upload:
    """A stream of items from the peer.  They wait here until the method takes them."""

    def __init__(self, call: Call, id: bytes) -> None:
        self.hub, self.id = call.hub, id
        self.items: deque[bytes] = deque()
        self.bytes = 0
        self.is_over = False
        self.error: str | None = None
        #: Whoever takes the items, once the method runs: ``take(raw item)`` says whether it did, or is offered it again
        #: by `take_waiting`; ``end(error text or None)`` comes behind the last one.
        self.feed: Feed | None = None

    def item(self, raw: bytes) -> None:
        if not self.items and self.feed is not None and self.feed.take(raw):
            return
        self.items.append(raw)
        self._count(WAITING_ITEM_BYTES + len(raw))

    def _count(self, more: int) -> None:
        self.bytes += more
        self.hub.count_waiting(more)

    def end(self, error: str | None) -> None:
        """The peer has said the last word on this stream; its id means nothing any more."""
        self.is_over, self.error = True, error
        del self.hub.calls.uploads[self.id]
        self.take_waiting()

    def take_waiting(self) -> None:
        """The method is ready for items, perhaps again."""
        while self.items and self.feed is not None:
            raw = self.items.popleft()
            self._count(-WAITING_ITEM_BYTES - len(raw))  # before it is taken: a refusal drops what is counted
            if not self.feed.take(raw):
                self.items.appendleft(raw)
                self._count(WAITING_ITEM_BYTES + len(raw))
                return
        if self.is_over and not self.items and self.feed is not None:
            feed, self.feed = self.feed, None
            feed.end(self.error)

    def drop(self) -> None:
        """Nobody wants the items any more; those that still come are ignored."""
        self._count(-self.bytes)
        self.items.clear()
        self.feed = None
        if self.hub.calls.uploads.get(self.id) is self:
            del self.hub.calls.uploads[self.id]


class Invocations:
    """All calls of one hub connection, running and waiting."""

    def __init__(self, hub: HubConnection) -> None:
        self.hub = hub
        self.open: dict[bytes | Call, Call] = {}  # by id; those without one by themselves
        self.uploads: dict[bytes, Upload] = {}
        self.waiting: deque[Call] = deque()
        self.working: Call | None = None  # a helper thread is busy with it
        self.going_on = False
        self.numbers = itertools.count(1)
        self.turn_ms = self.turn_ends_ns = 0  # of the turn that last ran a call, and when it has had its share
        self.timer: Any = None

    @property
    def must_wait(self) -> bool:
        return self.working is not None or bool(self.waiting)

    def begin(self, call: Call, upload_ids: list[bytes]) -> None:
        """A record with this call has come."""
        if self.open.setdefault(call.key, call) is not call:
            assert call.id is not None
            text = spec.id_in_use(call.id.decode(errors="replace"))
            if self.hub.dialect == Dialect.V1:
                self.hub.answer(records.completion, call.id, NOTHING, text)
            else:
                self.hub.protocol_error(text)
            return
        if len(self.uploads) + len(upload_ids) > UPLOADS_MAX and upload_ids:
            call.refuse(ErrorCode.LIMIT_EXCEEDED, f"At most {UPLOADS_MAX} uploads at once on one connection.")
            return
        for id in upload_ids:
            if id in self.uploads:
                call.fail(f"Stream ID '{id.decode(errors='replace')}' is already in use.")
                return
            upload = self.uploads[id] = Upload(call, id)
            call.uploads.append(upload)
        if self.must_wait or self.hub.holds_back() or self._has_had_its_turn():
            self.waiting.append(call)
            self.hub.working = True
            self.hub.count_waiting(call.size)
        else:
            self._run(call)

    def _has_had_its_turn(self) -> bool:
        """Has this connection kept the loop long enough?  Then it goes on in the next turn."""
        now_ms, now_ns = self.hub.queues.now_ms, time.perf_counter_ns()
        if now_ms != self.turn_ms:
            self.turn_ms, self.turn_ends_ns = now_ms, now_ns + TURN_NS
        if now_ns < self.turn_ends_ns:
            return False
        if self.timer is None:
            self.timer = self.hub.queues.timers.timer(self._next_turn)
        self.timer.set(now_ms + 1)
        return True

    def _next_turn(self, _: int) -> None:
        try:
            self.go_on()
        except Exception as problem:
            self.hub.fail(problem)

    def _run(self, call: Call) -> None:
        call.state = "running"
        self.hub.door.methods.run(call)

    def go_on(self) -> None:
        """Run what waits, as far as it may."""
        if self.going_on:
            return
        self.going_on = True
        try:
            while self.waiting and self.working is None and not self.hub.closed and not self.hub.holds_back():
                if self._has_had_its_turn():
                    break
                call = self.waiting.popleft()
                self.hub.count_waiting(-call.size)
                if call.state == "waiting":
                    self._run(call)
        finally:
            self.going_on = False
            self.hub.working = self.must_wait

    def forget(self, call: Call) -> None:
        """It is over."""
        if self.open.get(call.key) is call:
            del self.open[call.key]
        for upload in call.uploads:
            upload.drop()

    def cancel(self, id: bytes) -> None:
        """The peer wants no more of this; it may have ended meanwhile."""
        call = self.open.get(id)
        if call is None:
            return
        call.is_cancelled = True
        if call.on_cancel is not None:
            call.on_cancel()
        elif self.hub.door.methods.is_stream(call):  # it waits, or its queue is being made
            call.is_stream = True
            call.end()

    def close(self) -> None:
        """The connection is over: nobody is answered any more."""
        self.waiting.clear()
        if self.timer is not None:
            self.timer.cancel()
        for call in list(self.open.values()):
            call.state = "over"
            if call.on_over is not None:
                call.on_over()
        self.open.clear()
        self.uploads.clear()
