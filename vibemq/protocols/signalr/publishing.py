# SPDX-License-Identifier: Apache-2.0
"""The hub methods that bring messages in.

The hub connection itself lays a plain Publish into a queue that it knows.  What comes here is the first message for a
queue, messages with options, batches, and the items of uploads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vibemq.access.permissions import Operation
from vibemq.broker.admission import refusal_now
from vibemq.protocols.signalr.codec import elements_of
from vibemq.protocols.signalr.commands import (
    METHODS,
    argument_of,
    find_for,
    is_stream,
    needed,
    open_queue,
    optional,
    raw,
    text,
)
from vibemq.protocols.signalr.invocations import LATER, BadCall, Call, HubError, Upload
from vibemq.protocols.signalr.options import MESSAGE_OPTIONS
from vibemq.protocols.signalr.publisher import open_publisher, ready_publisher
from vibemq.protocols.signalr.records import MalformedFrame, value_of
from vibemq.protocols.signalr.spec import ErrorCode, hub_exception, invoking
from vibemq.storage.vhosts import DEFAULT_VHOST

if TYPE_CHECKING:
    from vibemq.protocols.signalr.publisher import HubPublisher

Message = tuple[bytes, dict[str, Any] | None]


def with_publisher(call: Call, name: str, then: Callable[[HubPublisher], None]) -> Any:
    """Call ``then`` with the way into a queue or stream, for a user that may publish to it, unless an alarm holds."""
    hub, key = call.hub, name.encode()
    if why := refusal_now(hub.door.broker, hub.peer):
        raise HubError(ErrorCode.SERVER_ERROR, f"The message is not stored: {why}.")
    publisher = ready_publisher(hub, key)
    if publisher is not None:
        then(publisher)
        return LATER
    if is_stream(find_for(hub, name, "write", Operation.Publish)):
        then(open_publisher(hub, key, hub.door.broker.streams.find(DEFAULT_VHOST, name), None))
        return LATER
    return open_queue(call, name, lambda queue: then(open_publisher(hub, key, queue.stream, queue)))


@METHODS.add("Publish", needed("queue"), needed("body", raw), optional("options"), only_publishes=True)
def publish(call: Call, queue: str, body: bytes, options: dict[str, Any] | None) -> Any:
    return with_publisher(
        call, queue, lambda publisher: publisher.publish_bytes(call.answered_elsewhere(), body, options, 0)
    )


@METHODS.add("PublishBatch", needed("queue"), needed("messages", raw), optional("options"), only_publishes=True)
def publish_batch(call: Call, queue: str, messages: bytes, options: dict[str, Any] | None) -> Any:
    """All of them are kept, or none."""
    encoding = call.hub.encoding
    elements = elements_of(messages, encoding)
    if elements is None:
        raise BadCall("Argument 'messages' must be an array.")
    batch = [message_of(element, encoding, options) for element in elements]
    return with_publisher(call, queue, lambda publisher: publisher.publish_batch(call.answered_elsewhere(), batch))


def members_of(value: bytes, encoding: int) -> dict[str, bytes] | None:
    """The raw members of an object, by their names; None: it is none, or a name is no text."""
    raws = elements_of(value, encoding, of_map=True)
    if raws is None:
        return None
    try:
        names = [value_of(raw, encoding) for raw in raws[::2]]
    except MalformedFrame:
        return None
    return dict(zip(names, raws[1::2], strict=True)) if all(isinstance(name, str) for name in names) else None


def message_of(element: bytes, encoding: int, options: dict[str, Any] | None) -> Message:
    """A body, or an object of a body and options, which win over those of the batch."""
    found = members_of(element, encoding)
    if found is not None and "body" in found and found.keys() <= MESSAGE_OPTIONS.keys() | {"body"}:
        return envelope(found, encoding, options)
    return element, options


def envelope(found: dict[str, bytes], encoding: int, options: dict[str, Any] | None) -> Message:
    body = found.pop("body")
    own = {name: argument_of(name, member, encoding) for name, member in found.items()}
    return body, ({**(options or {}), **own} if own else options)


class Feed:
    """One PublishStream: takes the items of its upload, as far as their queues are open, and counts what came of them.

    Its number is what publishers know it by.  The first message that is refused ends it with that error; the call is
    answered when the upload's end has come and all are kept.
    """

    def __init__(self, call: Call, queue: str | None) -> None:
        self.call, self.hub, self.queue = call, call.hub, queue
        self.number: int = next(self.hub.calls.numbers)
        self.given = self.kept = 0
        self.last_offset: int | None = None
        self.is_over = self.is_opening = self.is_asking = False
        self.hub.feeds[self.number] = self
        self.upload: Upload = call.uploads[0]
        call.on_over = lambda: self.hub.feeds.pop(self.number, None)
        if queue is not None:
            self.publisher(queue)
        self.upload.feed = self
        self.upload.take_waiting()

    # ---- what publishers tell ----

    def keep(self, count: int, last_offset: int | None) -> None:
        self.kept += count
        if last_offset is not None:
            self.last_offset = last_offset

    def progress(self) -> None:
        """Once for each batch of which something was kept."""
        is_done = self.is_over and self.kept == self.given
        result = {"count" if is_done else "accepted": self.kept}
        if self.last_offset is not None:
            result["lastOffset"] = self.last_offset
        if is_done:
            self.call.complete(result)
        elif self.call.is_stream:
            self.call.item(result)

    # ---- items ----

    def publisher(self, name: str) -> HubPublisher | None:
        """The way into this queue; None: it will be opened, and then the items are taken again."""
        publisher = ready_publisher(self.hub, name.encode())
        if publisher is not None or self.is_opening:
            return publisher
        self.is_opening = self.is_asking = True
        with_publisher(self.call, name, self.opened)
        self.is_asking = False
        return ready_publisher(self.hub, name.encode())

    def opened(self, _: HubPublisher) -> None:
        self.is_opening = False
        if not self.is_asking:
            self.upload.take_waiting()

    def take(self, item: bytes) -> bool:
        try:
            return self._take(item)
        except HubError as problem:
            self.call.refuse(problem.code, problem.text)
            return True

    def _take(self, item: bytes) -> bool:
        encoding = self.hub.encoding
        elements = elements_of(item, encoding)
        if elements is None:
            name, message = self.addressed(item)
            publisher = self.publisher(name)
            if publisher is None:
                return False
            publisher.publish_bytes(None, *message, self.number)
            return True
        batches: dict[str, list[Message]] = {}
        for element in elements:
            name, message = self.addressed(element)
            batches.setdefault(name, []).append(message)
        ways = {name: self.publisher(name) for name in batches}
        if None in ways.values():
            return False
        for name, batch in batches.items():
            ways[name].publish_batch(None, batch, self.number)  # type: ignore[union-attr]
        return True

    def addressed(self, item: bytes) -> tuple[str, Message]:
        """A message and its queue: that of the stream, or the item's own."""
        if self.queue is not None:
            return self.queue, (item, None)
        encoding = self.hub.encoding
        found = members_of(item, encoding)
        if found is None or "queue" not in found or "body" not in found:
            raise HubError(
                ErrorCode.INVALID_ARGUMENT, "An item must be {queue, body}, because the stream names no queue."
            )
        name = argument_of("queue", found.pop("queue"), encoding)
        if not isinstance(name, str):
            raise HubError(ErrorCode.INVALID_ARGUMENT, "An item's queue must be a string.")
        return name, envelope(found, encoding, None)

    def end(self, error: str | None) -> None:
        if error is None:
            self.is_over = True
            if self.kept == self.given:
                self.progress()
        else:
            self.call.fail(hub_exception(invoking(self.call.name), error, self.hub.dialect))


@METHODS.add("PublishStream", optional("queue", text), takes_upload=True, only_publishes=True)
def publish_stream(call: Call, queue: str | None) -> Any:
    """Each item of the upload is a message; an array of them is a batch.  As a stream it tells of the progress."""
    Feed(call, queue)
    return LATER
