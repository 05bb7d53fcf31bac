# SPDX-License-Identifier: Apache-2.0
"""Single messages over the management API, for people: look at what lies in a log, and publish one.

Looking reads the log's files, as Spark does on this machine, so no worker is asked and nothing is taken from a queue.
A message that is published goes to a worker, where it is refused or confirmed like any door's.
"""

from __future__ import annotations

import base64
import binascii
import os
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from vibemq.admin.api.calls import Answer, Call, Refused, bad_request, mapping, not_found, optional_text, text, too_many
from vibemq.admin.api.service import Api
from vibemq.admin.api.streams import find
from vibemq.admin.workers import NoAnswer
from vibemq.errors import LimitExceeded, ProtocolError, StorageError
from vibemq.storage.records import StreamRecord

MESSAGES_SHOWN_MAX = 100  # of one answer
MESSAGES_SHOWN_DEFAULT = 20
BODY_BYTES_SHOWN_MAX = 16 * 1024  # of one message; what is longer is cut, and its size said
ANSWER_BYTES_MAX = 1 << 20  # of bodies and headers in one answer: then there are fewer of them
BODY_BYTES_MAX = 32 * 1024  # of a message that is published here; programs have clients
HEADERS_BYTES_MAX = (
    4096  # of its headers and content type together: with the body they fit into one question to a worker
)
HEADERS_MAX = 64
#: Of AMQP 0.9.1, as RabbitMQ's tools name them.
PROPERTIES_OF_TEXT = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type", "app_id", "user_id",
)  # fmt: skip
PROPERTIES_OF_NUMBERS = {"delivery_mode": range(1, 3), "priority": range(256), "timestamp": range(2**40)}
CONFIRM_WAIT_S = 10.0  # longer than a sync, or an interval and a PUT of the object store
_LOOK_AGAIN_S = 0.005
DEFAULT_EXCHANGE = "amq.default"  # RabbitMQ's: its routing keys are the names of queues


# ---- looking ----


def look(api: Api, call: Call) -> Any:
    """Messages from ``offset`` (a number, first, last) or ``time`` (ms since 1970) on, at most ``count`` of them.

    ``next`` is the offset to go on from. Times are those of chunks, so ``time`` may begin with some that are older.
    """
    record = find(api, call)
    api.require_rights(call, record.vhost, read=[record.name])
    count = _number(call, "count", MESSAGES_SHOWN_DEFAULT, MESSAGES_SHOWN_MAX)
    try:
        return _looked(record, call, count)
    except StorageError as problem:
        if problem.code in ("ERR_NOT_FOUND", "ERR_DELETED"):
            raise not_found() from None
        raise


def _looked(record: StreamRecord, call: Call, count: int) -> dict[str, Any]:
    from vibemq.storage.log import Log
    from vibemq.storage.reading import ChunkReader  # compiled

    with closing(Log(record.directory)) as log:
        ends = log.stats()
    reader = ChunkReader(os.open(record.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), record.directory)
    if "time" in call.query:
        start, after = ends.first_offset, ends.confirmed_offset
        reader.attach_time(_number(call, "time", 0, 2**53))
    else:
        start = after = _start(call, ends.first_offset, ends.confirmed_offset, count)
        reader.attach(start)
    found: list[dict[str, Any]] = []
    size = 0
    for message in _messages(reader, record.name):
        if message["offset"] < start:
            continue  # what its chunk holds before it
        headers = message.get("headers", {})
        size += len(message.get("body", "")) + sum(len(word or "") for word in (*headers, *headers.values()))
        if len(found) == count or (found and size > ANSWER_BYTES_MAX):
            break
        found.append(message)
        after = message["offset"] + message.get("records", 1)
    return {"first_offset": ends.first_offset, "next_offset": ends.confirmed_offset, "messages": found, "next": after}


def _start(call: Call, first: int, end: int, count: int) -> int:
    """Where to begin; ``last`` is so that the answer ends with the last message."""
    said = call.query.get("offset", "last")
    if said == "first":
        return first
    if said == "last":
        return max(first, end - count)
    return max(first, _number(call, "offset", 0, 2**63 - 1, least=0))


def _number(call: Call, name: str, otherwise: int, most: int, least: int = 1) -> int:
    said = call.query.get(name, str(otherwise))
    if not (said.isascii() and said.isdigit() and len(said) < 20 and least <= int(said) <= most):
        raise bad_request(f"{name} is {said!r}: a whole number from {least} to {most} is needed")
    return int(said)


def _messages(reader: Any, name: str) -> Iterator[dict[str, Any]]:
    """From the reader's place on, as they are shown; of entries that cannot be opened here one row says why."""
    from vibemq.client._streams import open_chunk  # compiled

    while (delivered := reader.take()) is not None:
        chunk = open_chunk(b"\0" + delivered, 1, name)
        at = chunk.chunk_id
        try:
            for offset, message in chunk.messages():
                at = offset + 1
                yield _shown(offset, chunk.timestamp_ms, message)
        except (ProtocolError, LimitExceeded) as problem:
            yield {
                "offset": at,
                "timestamp": chunk.timestamp_ms,
                "records": chunk.next_offset - at,
                "problem": str(problem),
            }


def _shown(offset: int, timestamp_ms: int, message: bytes) -> dict[str, Any]:
    """``body`` is text, or base64 where ``encoding`` says so; ``size_bytes`` is the whole body's."""
    from vibemq.client._streams import read_message

    body, identity, headers = read_message(message)
    cut = body[:BODY_BYTES_SHOWN_MAX]
    try:
        # The end may be within a character.
        shown, encoding = cut.decode("utf-8", "strict" if len(cut) == len(body) else "ignore"), "string"
        is_text = "\0" not in shown
    except UnicodeDecodeError:
        is_text = False
    if not is_text:
        shown, encoding = base64.b64encode(cut).decode(), "base64"
    return {
        "offset": offset,
        "timestamp": timestamp_ms,
        "id": identity,
        "headers": headers,
        "encoding": encoding,
        "body": shown,
        "size_bytes": len(body),
        "stored_bytes": len(message),
    }


def get_messages(api: Api, call: Call) -> None:
    """RabbitMQ's takes from a queue, without the acknowledgement that we promise to wait for."""
    record = find(api, call)
    raise bad_request(
        f"messages are not consumed over HTTP; look at them with GET /api/stream/VHOST/NAME/messages, or use a client "
        f"to take them from {record.name}"
    )


# ---- publishing ----


def publish(api: Api, call: Call) -> Answer:
    """As RabbitMQ's, to the default exchange: the routing key names a stream or queue."""
    vhost, exchange = call.path["vhost"], call.path["exchange"]
    api.require_seen(call.caller, vhost)
    if exchange not in (DEFAULT_EXCHANGE, ""):
        raise bad_request(f"messages are published to {DEFAULT_EXCHANGE} over HTTP, with the stream as routing_key")
    properties = mapping(call, "properties")
    name = text(call, "routing_key")
    record = api.metadata.find_stream(vhost, name)
    if record is None:
        return Answer(200, {"routed": False})
    encoding, headers = text(call, "payload_encoding", "string"), properties.pop("headers", None) or {}
    kept = {"exchange": "", "routing_key": name, **_checked(properties, call.caller.name)}
    content_type = kept.get("content_type", "")
    _publish(api, call, record, text(call, "payload"), encoding, headers, content_type, kept)
    return Answer(200, {"routed": True})


def _checked(properties: dict[str, Any], user: str) -> dict[str, Any]:
    """RabbitMQ's properties of a message, without those that are null.  Raises Refused for what cannot be kept."""
    kept = {name: value for name, value in properties.items() if value is not None}
    for name, value in kept.items():
        if name in PROPERTIES_OF_TEXT:
            needed = "" if isinstance(value, str) and value.isprintable() else "printable text"
        elif name == "expiration":
            fits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10
            needed = "" if fits and int(value) < 2**32 else "text of milliseconds, at most 4294967295,"
        elif name in PROPERTIES_OF_NUMBERS:
            numbers = PROPERTIES_OF_NUMBERS[name]
            is_number = isinstance(value, int) and not isinstance(value, bool)
            needed = "" if is_number and value in numbers else f"a number from {numbers.start} to {numbers.stop - 1}"
        else:
            known = ", ".join((*PROPERTIES_OF_TEXT, *PROPERTIES_OF_NUMBERS, "expiration", "headers"))
            raise bad_request(f"the property {name!r} cannot be kept; these can: {known}")
        if needed:
            raise bad_request(f"the property {name} is {value!r}: {needed} is needed")
    if not kept.get("content_encoding", "").isascii():
        raise bad_request("the property content_encoding must be ASCII")
    if kept.get("user_id", user) != user:
        raise bad_request(f"the property user_id is {kept['user_id']!r}, and this is user {user!r}")
    return kept


def publish_one(api: Api, call: Call) -> Answer:
    """``body``, as text or with ``encoding`` base64; ``headers`` and ``content_type`` where there are any."""
    record = find(api, call)
    encoding, content_type = text(call, "encoding", "string"), optional_text(call, "content_type") or ""
    offset = _publish(api, call, record, text(call, "body"), encoding, mapping(call, "headers"), content_type)
    return Answer(201, {"offset": offset})


def _publish(
    api: Api,
    call: Call,
    record: StreamRecord,
    body: str,
    encoding: str,
    headers: Any,
    content_type: Any,
    properties: dict[str, Any] | None = None,
) -> int | None:
    """The offset, None where nobody knows it: it went to the dead-letter queue. Raises Refused, NoAnswer."""
    api.require_rights(call, record.vhost, write=[record.name])
    content = _content(body, encoding)
    if (
        not isinstance(headers, dict)
        or len(headers) > HEADERS_MAX
        or not all(isinstance(value, str) for value in headers.values())
    ):
        raise bad_request(f"headers must be an object of at most {HEADERS_MAX} texts")
    if not isinstance(content_type, str) or not content_type.isascii() or not content_type.isprintable():
        raise bad_request(f"content_type must be plain text, but is {content_type!r}")
    words = [*headers, *headers.values(), content_type, *(str(value) for value in (properties or {}).values())]
    size = sum(len(word.encode(errors="surrogatepass")) for word in words)
    if size > HEADERS_BYTES_MAX or not all(word.isprintable() for word in words):
        raise bad_request(f"headers have {size} bytes: at most {HEADERS_BYTES_MAX} are needed, that can be printed")
    worker = record.slot % len(api.workers)  # one and no other: asked again elsewhere, it would be there twice
    begun = api.workers.ask(
        worker,
        "publish",
        vhost=record.vhost,
        name=record.name,
        user=call.caller.name,
        body=base64.b64encode(content).decode(),
        headers=headers,
        content_type=content_type,
        properties=properties,
        peer=f"user {call.caller.name} over HTTP",
    )
    if wait_us := begun.get("wait_us"):
        raise too_many("you, or all in the virtual host, publish more than publish-rate allows", wait_us / 1e6)
    until = time.monotonic() + CONFIRM_WAIT_S
    while time.monotonic() < until:
        found = api.workers.ask(worker, "published", **begun)
        if found is None:
            raise NoAnswer(f"the worker ended meanwhile: look whether the message is in '{record.name}'")
        if found["is_done"]:
            if found["why"]:
                raise Refused(400, "not_stored", found["why"])
            offset: int | None = found["offset"]
            return offset
        time.sleep(_LOOK_AGAIN_S)
    raise NoAnswer(f"no confirm within {CONFIRM_WAIT_S:g} s: the message may be in '{record.name}', or come later")


def _content(body: str, encoding: str) -> bytes:
    try:
        content = {"string": str.encode, "base64": lambda given: base64.b64decode(given, validate=True)}[encoding](body)
    except KeyError:
        raise bad_request(f"encoding is {encoding!r}: string or base64 is needed") from None
    except (binascii.Error, UnicodeEncodeError) as problem:
        raise bad_request(f"the body is no {encoding}: {problem}") from None
    if len(content) > BODY_BYTES_MAX:
        raise bad_request(f"the body has {len(content)} bytes: at most {BODY_BYTES_MAX} are published over HTTP")
    return content
