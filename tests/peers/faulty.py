# SPDX-License-Identifier: Apache-2.0
"""What stands between a broker and its object store, and does whatever a test says: slow, refusing, cut off, silent.

An HTTP/1.1 proxy on an event loop in a thread, which streams bodies both ways.  Heads go through as they came, Host
too, because S3's signatures cover it.  A rule is for requests of a method and a path (a regular expression, searched
for); it holds for a number of them, or until it is taken away:

    faulty.answer(503, "PUT", "wal/", times=3)
    rule = faulty.cut_after("PUT")     # it takes effect, and nobody is told
    rule.remove(); faulty.up()         # of this rule; of all
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from peers.s3 import Store

HEAD_BYTES_MAX = 64 * 1024
PIECE_BYTES = 64 * 1024
STOP_S_MAX = 10
#: What S3 says with a status.
CODES = {
    403: "AccessDenied",
    409: "ConditionalRequestConflict",
    500: "InternalError",
    501: "NotImplemented",
    503: "SlowDown",
}
REASONS = {
    403: "Forbidden",
    409: "Conflict",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Slow Down",
}
LENGTH = re.compile(rb"(?i)\r\ncontent-length:[^\r]*")
CONDITION = re.compile(rb"(?i)\r\nif-none-match:[^\r]*")
NO_BODY = (204, 304)


@dataclass(eq=False)
class Rule:
    """One kind of trouble for one kind of request."""

    kind: str
    value: float
    method: str  # "": any
    path: re.Pattern[str]
    times: int | None  # None: until it is removed
    proxy: FaultyStore
    met: int = 0  # requests that it was for
    after: int = 0  # so many matching requests pass first
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def remove(self) -> None:
        self.proxy._remove(self)


class Cut(Exception):
    """This connection ends here."""


@dataclass
class Message:
    """A request or an answer, without its body."""

    head: bytes
    first: list[str]
    headers: dict[str, str]

    @property
    def status(self) -> int:
        return int(self.first[1])


class FaultyStore(Store):
    """`with FaultyStore(store) as faulty:`; its options lead through it, its hands (keys, read, ...) past it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.requests: Counter[str] = Counter()  # by method, as they came
        self.sent_bytes = self.received_bytes = 0  # of bodies, as the store's client sees it
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        listening = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
        )
        self._listening = listening
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        super().__init__(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", store.prefix)

    def _opened(self) -> tuple[Any, Any]:
        return self.store._opened()

    def __enter__(self) -> FaultyStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(STOP_S_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S_MAX)
        self._loop.close()

    async def _close(self) -> None:
        self._listening.close()
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    # ---- what a test says ----

    def delay(self, seconds: float, method: str = "", path: str = "", times: int | None = None) -> Rule:
        """Before it is forwarded; other rules hold as well."""
        return self._add("delay", seconds, method, path, times)

    def answer(self, status: int, method: str = "", path: str = "", times: int | None = None) -> Rule:
        """A status of CODES instead of forwarding it."""
        assert status in CODES, status
        return self._add("answer", status, method, path, times)

    def cut_before(self, method: str = "", path: str = "", times: int | None = None) -> Rule:
        """Close the connection instead of forwarding it."""
        return self._add("cut_before", 0, method, path, times)

    def cut_after(self, method: str = "", path: str = "", times: int | None = None) -> Rule:
        """It takes effect, but the connection is closed instead of answering."""
        return self._add("cut_after", 0, method, path, times)

    def truncate(
        self, size: int, method: str = "GET", path: str = "", times: int | None = None, after: int = 0
    ) -> Rule:
        """Close the connection after so many bytes of the answer's body; ``after``: not the first so many requests."""
        rule = self._add("truncate", size, method, path, times)
        rule.after = after
        return rule

    def shorten(self, size: int, method: str = "GET", path: str = "", times: int | None = None, after: int = 0) -> Rule:
        """Answer with so many bytes of the body, as if these were all; ``after``: not the first so many requests."""
        rule = self._add("shorten", size, method, path, times)
        rule.after = after
        return rule

    def hang(self, method: str = "", path: str = "", times: int | None = None) -> Rule:
        """Neither forward it nor answer; once the rule is gone, close the connection."""
        return self._add("hang", 0, method, path, times)

    def ignore_conditions(self) -> Rule:
        """Remove `If-None-Match`, as a store does that ignores it."""
        return self._add("ignore_conditions", 0, "PUT", "", None)

    def watch(self, method: str = "", path: str = "") -> Rule:
        """No trouble: ``met`` counts these requests."""
        return self._add("delay", 0, method, path, None)

    def up(self) -> None:
        """All is well again."""
        for rule in list(self._rules):
            rule.remove()

    def _add(self, kind: str, value: float, method: str, path: str, times: int | None) -> Rule:
        rule = Rule(kind, value, method, re.compile(path), times, self)
        with self._lock:
            self._rules.append(rule)
        return rule

    def _remove(self, rule: Rule) -> None:
        with self._lock, suppress(ValueError):
            self._rules.remove(rule)
        self._loop.call_soon_threadsafe(rule.over.set)

    def _taken(self, method: str, path: str) -> tuple[float, Rule | None]:
        """How long this request waits, and the first rule that decides about it."""
        delay_s = 0.0
        with self._lock:
            for rule in self._rules:
                is_meant = rule.method in ("", method) and rule.path.search(path)
                if not is_meant or (rule.times is not None and rule.met >= rule.after + rule.times):
                    continue
                rule.met += 1
                if rule.met <= rule.after:
                    continue
                if rule.kind != "delay":
                    return delay_s, rule
                delay_s += rule.value
        return delay_s, None

    # ---- one connection ----

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        store = _Upstream(self.store.endpoint)
        try:
            while True:
                await self._request(reader, writer, store)
        except (Cut, OSError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            store.close()
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, store: _Upstream) -> None:
        request = await _read_head(reader)
        method, path = request.first[0], request.first[1]
        self.requests[method] += 1
        delay_s, rule = self._taken(method, path)
        await asyncio.sleep(delay_s)
        kind = rule.kind if rule is not None else ""
        if rule is not None and kind == "hang":
            await rule.over.wait()
            raise Cut
        if kind == "cut_before":
            raise Cut
        if "100-continue" in request.headers.get("expect", ""):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")  # the store says so, too, and that is skipped
        body = _body(reader, request, is_answer=False)
        if rule is not None and kind == "answer":
            async for piece in body:
                self.sent_bytes += len(piece)
            writer.write(_refusal(int(rule.value), has_body=method != "HEAD"))
            await writer.drain()
            return
        upstream = await store.opened()
        upstream.write(CONDITION.sub(b"", request.head) if kind == "ignore_conditions" else request.head)
        async for piece in body:
            self.sent_bytes += len(piece)
            upstream.write(piece)
            await upstream.drain()
        answer = await _read_head(store.reader)
        while answer.status < 200:
            answer = await _read_head(store.reader)
        if kind == "cut_after":
            raise Cut
        left = int(rule.value) if rule is not None and kind in ("truncate", "shorten") else None
        head = answer.head
        if kind == "shorten" and "content-length" in answer.headers:
            left = min(int(answer.headers["content-length"]), int(rule.value) if rule is not None else 0)
            head = LENGTH.sub(b"\r\ncontent-length: %d" % left, head)
        writer.write(head)
        has_body = method != "HEAD" and answer.status not in NO_BODY
        async for piece in _body(store.reader, answer, is_answer=True) if has_body else _nothing():
            if left is not None:
                piece = piece[:left]
                left -= len(piece)
            self.received_bytes += len(piece)  # before whoever waits for it may look
            writer.write(piece)
            await writer.drain()
            if left == 0 and kind != "shorten":
                raise Cut
        await writer.drain()
        if "close" in answer.headers.get("connection", "").lower() or answer.first[0] == "HTTP/1.0":
            raise Cut


class _Upstream:
    """The connection to the store that belongs to a client's, opened again where the store has closed it."""

    def __init__(self, endpoint: str) -> None:
        at = urlsplit(endpoint)
        self._host, self._port = at.hostname, at.port
        self.reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def opened(self) -> asyncio.StreamWriter:
        if self._writer is None or self.reader.at_eof():
            self.close()
            self.reader, self._writer = await asyncio.open_connection(self._host, self._port, limit=HEAD_BYTES_MAX)
        return self._writer

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


async def _read_head(reader: asyncio.StreamReader) -> Message:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Message(head, first.split(" ", 2), {name.strip().lower(): value.strip() for name, _, value in pairs})


async def _body(reader: asyncio.StreamReader, of: Message, is_answer: bool) -> AsyncIterator[bytes]:
    """The bytes behind a head as they come, with the sizes of chunks where it has some."""
    if "chunked" in of.headers.get("transfer-encoding", "").lower():
        size = -1
        while size:
            line = await reader.readuntil(b"\r\n")
            yield line
            size = int(line.partition(b";")[0], 16)
            async for piece in _exactly(reader, size):
                yield piece
            if size:
                yield await reader.readuntil(b"\r\n")
        while line != b"\r\n":  # trailers, and the empty line
            line = await reader.readuntil(b"\r\n")
            yield line
    elif "content-length" in of.headers:
        async for piece in _exactly(reader, int(of.headers["content-length"])):
            yield piece
    elif is_answer:  # until the store closes
        while piece := await reader.read(PIECE_BYTES):
            yield piece
        raise Cut


async def _exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    while size:
        piece = await reader.read(min(size, PIECE_BYTES))
        if not piece:
            raise Cut
        size -= len(piece)
        yield piece


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield


def _refusal(status: int, has_body: bool) -> bytes:
    body = f"<Error><Code>{CODES[status]}</Code><Message>as the test wants it</Message></Error>".encode()
    head = (
        f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + (body if has_body else b"")
