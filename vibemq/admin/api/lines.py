# SPDX-License-Identifier: Apache-2.0
"""Lines that agents send over HTTP: each is a message of a stream, queue or super stream.

The body is unpacked into a memfd here, in a thread.  A worker takes messages out of it (vibemq/broker/ingest.pyx), as
it does of any connection, and answers when each is confirmed or refused.  So this process keeps no message after its
answer, and the worker's loop never waits for a sender.

A request is answered with how many messages are stored and which lines are not.  400: some lines are never taken, the
others are stored.  429 and 503: try again later, after Retry-After.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from vibemq.admin.api.calls import Answer, Call, Pending, Refused, bad_request, not_found
from vibemq.admin.api.service import Api
from vibemq.admin.unpacking import RETRY_S, Unpacked, unpack
from vibemq.admin.workers import NoAnswer

PUBLISHER_BYTES_MAX = 255  # the streams protocol's
SEQUENCE_MAX = 2**63 - 1
CONTENT_TYPE_CHARACTERS_MAX = 255
ANSWER_S = 45.0  # a worker stops adding after 30 s; then confirms may be missing
ANSWER_BYTES_MAX = 1 << 20
RANGES_MAX = 1000  # of refused lines in an answer
FRAME = struct.Struct(">II")  # before a line: its number and size; vibemq/broker/ingest.pyx reads them in C
FRAMED_TIMES = 5  # as large: of an array of digits each element of two bytes gets eight more
SPACE_BYTES_MAX = 1024  # before a JSON array
TO_THE_END = 0
UNKNOWN = "nobody knows whether they are stored"
KEYED_LINES_MAX = 100_000  # each is looked into, some tenths of a second in all
#: What curl sends where nobody says what the body is.
FORM = "application/x-www-form-urlencoded"
PLAIN = "text/plain"
#: Besides text/* and +json: what may be cut into lines.  Cutting anything else would damage it.
TEXTS = ("", FORM, "application/json", "application/x-ndjson", "application/ndjson", "application/jsonl",
         "application/json-lines", "application/octet-stream", "application/logplex-1")  # fmt: skip
#: How HTTP says why lines were refused; of several reasons the highest one.
STATUS = {"bad": 400, "gone": 404, "rate": 429, "full": 503, "later": 503}


def publish_lines(api: Api, call: Call) -> Answer:
    """Have workers begin.  Raises Refused."""
    upload = call.upload
    if upload is None:
        raise bad_request("the body is the lines themselves, not an object")
    vhost, name, key = call.path["vhost"], call.path["name"], call.query.get("key", "")
    api.require_seen(call.caller, vhost)
    record = api.metadata.find_stream(vhost, name)
    partitions = None if record is not None else api.metadata.partitions(vhost, name)
    if record is None and not partitions:
        raise not_found(f"there is no stream, queue or super stream {name!r} in vhost {vhost!r}")
    api.require_rights(call, vhost, write=partitions or [name])
    if key and record is not None:
        raise bad_request(f"key is for super streams, and {name!r} is none")
    if not key and record is None:
        raise bad_request(f"{name!r} is a super stream: say the field that chooses the partition, as in ?key=host")
    if api.conditions is not None and api.conditions.is_drained:
        raise later("the broker is in maintenance")
    publisher, sequence = _numbers(upload.publisher, upload.sequence)
    kind = _kind(upload.content_type)
    said = {"vhost": vhost, "user": call.caller.name, "peer": f"user {call.caller.name} over HTTP",
            "content_type": kind, "publisher": publisher, "sequence": sequence}  # fmt: skip
    found = Found()
    with ExitStack() as stack:
        lines = stack.enter_context(closing(Unpacked(api.unpacked, api.config.admin.ingest_body_max_bytes)))
        unpack(upload.body, upload.encoding.strip().lower(), lines)
        if not lines.size:
            return found.answer()
        lines, is_framed = _framed(api, lines, kind, stack)
        if not lines.size:  # an empty array
            return found.answer()
        if record is not None:
            parts = [Part(name, 0, lines.size)]
        else:
            lines, parts = _routed(api, lines, partitions or [], key, is_framed, found, stack)
            is_framed = True
        said["framed"] = is_framed
        begun = [(part, _begin(api, part, lines, said, found)) for part in parts]
        waiting = [(part, results) for part, results in begun if results is not None]
        lines.close_file()
        return Answer(202, pending=Storing(waiting, found, stack.pop_all()))


def later(reason: str) -> Refused:
    return Refused(503, "service_unavailable", f"{reason}: wait {RETRY_S} s, nothing is stored", RETRY_S)


# ---- what is asked ----


def _numbers(publisher: str, sequence: str) -> tuple[str, int]:
    if bool(publisher) != bool(sequence):
        raise bad_request("Publisher and Sequence belong together: the name, and the number of the first line")
    if not publisher:
        return "", 0
    if len(publisher.encode(errors="surrogatepass")) > PUBLISHER_BYTES_MAX or not publisher.isprintable():
        raise bad_request(f"Publisher must be text of at most {PUBLISHER_BYTES_MAX} bytes")
    if not (sequence.isascii() and sequence.isdigit() and len(sequence) < 20 and int(sequence) <= SEQUENCE_MAX):
        raise bad_request(f"Sequence is {sequence!r}: a whole number from 0 to {SEQUENCE_MAX} is needed")
    return publisher, int(sequence)


def _kind(given: str) -> str:
    """The content type of each message."""
    word = given.partition(";")[0].strip().lower()
    if not (word.startswith("text/") or word.endswith("+json") or word in TEXTS):
        raise Refused(415, "unsupported_media_type", f"Content-Type {word!r} does not consist of lines: {TAKEN}")
    if len(given) > CONTENT_TYPE_CHARACTERS_MAX or not given.isascii() or not given.isprintable():
        raise bad_request(f"Content-Type must be plain text of at most {CONTENT_TYPE_CHARACTERS_MAX} characters")
    return PLAIN if word in ("", FORM) else given.strip()


TAKEN = "text/*, application/json, application/x-ndjson and application/octet-stream are taken"


# ---- lines ----


@dataclass(frozen=True, slots=True)
class Part:
    """The lines of one stream or queue, by their place in the memory."""

    name: str
    start: int
    end: int
    numbers: Sequence[int] = ()  # of the lines; (): all


def _framed(api: Api, lines: Unpacked, kind: str, stack: ExitStack) -> tuple[Unpacked, bool]:
    """Lines as they are, or framed: the elements of a JSON array, or one value of JSON that has several lines."""
    from vibemq.broker.ingest import frame_array  # compiled

    word = kind.partition(";")[0].strip().lower()
    if not (word.endswith("+json") or word == "application/json"):
        return lines, False
    with lines.mapped() as view:
        is_array = bytes(view[:SPACE_BYTES_MAX]).lstrip()[:1] == b"["
        try:
            value = msgspec.json.decode(view, type=msgspec.Raw)
            del value
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            if is_array:
                raise bad_request(f"not_json: {problem}") from None
            return lines, False  # a value on each line
        out = stack.enter_context(closing(Unpacked(api.unpacked, FRAMED_TIMES * lines.size + FRAME.size)))
        if is_array:
            frame_array(view, out.write)
        else:
            out.write(FRAME.pack(1, len(view)))
            out.write(view)
    lines.close()
    return out, True


def _each(view: memoryview, is_framed: bool) -> Iterator[tuple[int, bytes]]:
    """Each line with its number, from 1."""
    at = number = 0
    if is_framed:
        while at < len(view):
            number, size = FRAME.unpack_from(view, at)
            at += FRAME.size + size
            yield number, bytes(view[at - size : at])
        return
    memory: Any = view.obj  # an mmap
    while at < len(view):
        end = memory.find(b"\n", at)
        end = len(view) if end < 0 else end
        number += 1
        if line := bytes(view[at:end]).removesuffix(b"\r"):
            yield number, line
        at = end + 1


@lru_cache(64)
def _decoder(key: str) -> msgspec.json.Decoder[Any]:
    """Reads one field of an object, and passes over all others."""
    kinds = str | int | float | bool | None
    return msgspec.json.Decoder(msgspec.defstruct("Keyed", [("key", kinds, None)], rename={"key": key}))


def _routed(
    api: Api, lines: Unpacked, partitions: list[str], key: str, is_framed: bool, found: Found, stack: ExitStack
) -> tuple[Unpacked, list[Part]]:
    """The lines by partition; a line without the field is refused."""
    from vibemq.broker.ingest import partition_of  # compiled

    decoder = _decoder(key)
    texts = [bytearray() for _ in partitions]
    numbers = [array("I") for _ in partitions]
    out = stack.enter_context(closing(Unpacked(api.unpacked, FRAMED_TIMES * lines.size + FRAME.size)))
    with lines.mapped() as view, api.unpacked.taken(FRAMED_TIMES * len(view)):
        for count, (number, line) in enumerate(_each(view, is_framed), 1):
            if count > KEYED_LINES_MAX:
                raise Refused(413, "too_large", f"a request to a super stream has at most {KEYED_LINES_MAX} lines")
            try:
                value = decoder.decode(line).key
            except (msgspec.DecodeError, UnicodeDecodeError):
                value = None
            if value is None:
                found.refuse(number, number, "bad", f"no JSON object whose field {key!r} is a text or a number")
                continue
            word = value if isinstance(value, str) else json.dumps(value)
            chosen = partition_of(word.encode(), len(partitions))
            texts[chosen] += FRAME.pack(number, len(line))
            texts[chosen] += line
            numbers[chosen].append(number)
        parts = []
        for name, text, those in zip(partitions, texts, numbers, strict=True):
            if text:
                parts.append(Part(name, out.size, out.size + len(text), those))
                out.write(text)
    lines.close()
    return out, parts


# ---- what becomes of them ----


class Found:
    """What has become of the lines of a request."""

    def __init__(self) -> None:
        self.stored = self.duplicates = self.not_listed = self.retry_s = 0
        self.refused: list[list[Any]] = []  # first line, last line (0: all from the first on), kind, why

    def refuse(self, first: int, last: int, kind: str, why: str) -> None:
        before = self.refused[-1] if self.refused else None
        if before is not None and before[1] == first - 1 and before[2:] == [kind, why]:
            before[1] = last
        elif len(self.refused) < RANGES_MAX:
            self.refused.append([first, last, kind, why])
        else:
            self.not_listed += 1

    def refuse_part(self, part: Part, kind: str, why: str) -> None:
        if not part.numbers:
            self.refuse(1, TO_THE_END, kind, why)
        for number in part.numbers:
            self.refuse(number, number, kind, why)

    def answer(self) -> Answer:
        body: dict[str, Any] = {"stored": self.stored, "duplicates": self.duplicates}
        if not self.refused:
            return Answer(200, body)
        self.refused.sort(key=lambda each: each[0])
        status = max(STATUS[kind] for _, _, kind, _ in self.refused)
        first, _, _, why = next(each for each in self.refused if STATUS[each[2]] == status)
        body |= {
            "error": {400: "bad_lines", 404: "not_found", 429: "too_many_requests"}.get(status, "service_unavailable"),
            "reason": f"line {first} and perhaps others: {why}",
            "refused": [{"first": each[0], "last": each[1] or None, "reason": each[3]} for each in self.refused],
            "refused_not_listed": self.not_listed,
        }
        return Answer(status, body, (self.retry_s or RETRY_S) if status in (429, 503) else 0)


def _begin(api: Api, part: Part, lines: Unpacked, said: dict[str, Any], found: Found) -> socket.socket | None:
    """Have a worker begin with it: the socket through which it answers.  None: these lines are refused."""
    record = api.metadata.find_stream(said["vhost"], part.name)
    if record is None:
        found.refuse_part(part, "gone", f"{part.name!r} is gone")
        return None
    # One and the same for each request: what a publisher has sent there before may not be stored yet.
    worker = record.slot % len(api.workers)
    question = {"name": part.name, "start": part.start, "end": part.end, **said}
    ours = None
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            begun = api.workers.ask(worker, "publish_lines", fds=(lines.fd, theirs.fileno()), **question)
    except OSError as problem:  # too many open files
        begun = {"why": f"this broker has no descriptor left: {problem.strerror}"}
    except NoAnswer as problem:
        begun = {"why": f"{UNKNOWN}: {problem}"}
    if wait_us := begun.get("wait_us"):
        found.retry_s = max(found.retry_s, math.ceil(wait_us / 1e6))
        found.refuse_part(part, "rate", "you, or all in the virtual host, publish more than publish-rate allows")
    elif why := begun.get("why"):
        found.refuse_part(part, "later", why)
    else:
        return ours
    if ours is not None:
        ours.close()
    return None


class Storing(Pending):
    """A request whose lines workers store."""

    def __init__(self, waiting: list[tuple[Part, socket.socket]], found: Found, held: ExitStack) -> None:
        """``held``: ends with it."""
        self._waiting, self._found, self._held = waiting, found, held

    async def answer(self) -> Answer:
        """Wait for all workers; no thread is held meanwhile."""
        loop = asyncio.get_running_loop()
        with self._held:
            try:
                async with asyncio.timeout(ANSWER_S):
                    while self._waiting:
                        part, results = self._waiting[-1]
                        _note(part, await loop.sock_recv(results, ANSWER_BYTES_MAX), self._found)
                        self._waiting.pop()[1].close()
            except TimeoutError:
                for part, _ in self._waiting:
                    self._found.refuse_part(part, "later", f"{UNKNOWN}: no confirm within {ANSWER_S:g} s")
            finally:
                for _, results in self._waiting:
                    results.close()
        return self._found.answer()


def _note(part: Part, packet: bytes, found: Found) -> None:
    if not packet:
        found.refuse_part(part, "later", f"{UNKNOWN}: the worker ended meanwhile")
        return
    answer = json.loads(packet)
    found.stored += answer["stored"]
    found.duplicates += answer["duplicates"]
    found.not_listed += answer["more"]
    for first, last, kind, why in answer["refused"]:
        if last == TO_THE_END and part.numbers:
            for number in part.numbers[bisect_left(part.numbers, first) :]:
                found.refuse(number, number, kind, why)
        else:
            found.refuse(first, last, kind, why)
