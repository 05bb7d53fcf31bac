# SPDX-License-Identifier: Apache-2.0
"""The hub methods that bring messages in and out.

A subscription answers a stream invocation with its deliveries, or calls a method of the peer's.  It is found by its id,
ends with its call, its queue or its right, and gives back what its peer had not acknowledged.

The hub connection itself lays a plain Publish into a queue that it knows.  What comes here is the first message for a
queue, messages with options, batches, and the items of uploads.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from vibemq.access.permissions import Operation
from vibemq.broker.admission import SUBSCRIPTIONS_MAX, may_make, refusal_now, with_queue
from vibemq.broker.catalog import NAME_SIZE_MAX_BYTES
from vibemq.broker.messages import offset_of_time, offset_of_word
from vibemq.errors import StreamNotFound
from vibemq.protocols.signalr.codec import elements_of
from vibemq.protocols.signalr.deliveries import HubReader, HubSubscription, PullConsumer, PullSubscription, Subscription
from vibemq.protocols.signalr.invocations import LATER, BadCall, Call, HubError, Upload
from vibemq.protocols.signalr.methods import (
    METHODS,
    anything,
    argument_of,
    asking,
    find,
    find_for,
    is_stream,
    needed,
    not_found,
    optional,
    raw,
    require,
    tags,
    text,
)
from vibemq.protocols.signalr.options import MESSAGE_OPTIONS, flag, one_of, queue_name, text_of, type_of, whole_from
from vibemq.protocols.signalr.publisher import open_publisher, ready_publisher
from vibemq.protocols.signalr.records import MalformedFrame, value_of
from vibemq.protocols.signalr.spec import NUMBER_MAX, Dialect, ErrorCode
from vibemq.storage.vhosts import DEFAULT_VHOST

if TYPE_CHECKING:
    from vibemq.protocols.signalr.hub import HubConnection
    from vibemq.protocols.signalr.publisher import HubPublisher
    from vibemq.storage.records import StreamRecord

Message = tuple[bytes, dict[str, Any] | None]

PREFETCH_MANUAL = 100
PREFETCH_AUTO = 1000  # settled as soon as they are sent, so this is only what one turn may write
DELAY_MS_MAX = 86_400_000
PULLED_MAX = 256  # messages of one Receive: each has a consumer, of some microseconds
PULL_WAIT_MS_MAX = 600_000
PULL_LOOK_MS = 10
PULL_GRACE_MS = 250  # for a home on another worker to hand over what there is
RESULT_ADDS_BYTES = 64  # around the deliveries of an answer, without the invocation's id


# ---- in ----


def open_queue(call: Call, name: str, then: Callable[[Any], None]) -> Any:
    """Call ``then(queue)``, now or after a helper thread has made the queue."""
    hub = call.hub

    def failed(problem: Exception) -> None:
        raise not_found(name) if isinstance(problem, StreamNotFound) else problem

    def in_helper(work: Callable[[], Any], made: Callable[[Any, Any], None]) -> None:
        queue_name("queue", name)

        def done(result: Any) -> Any:
            made(result, result if isinstance(result, BaseException) else None)
            return LATER

        call.in_helper(work, done)

    def opened(queue: Any) -> None:
        if call.state == "over":  # a stream that was cancelled meanwhile
            queue.close_if_unused()
        else:
            then(queue)

    may_create = may_make(hub.client, name)
    with_queue(
        hub.door.broker, DEFAULT_VHOST, name, may_create=may_create, then=opened, failed=failed, in_helper=in_helper
    )
    return LATER


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
        self.upload.on_item = self.take
        self.upload.on_end = self.end
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

    def refuse(self, code: str, text: str) -> None:
        self.call.refuse(code, text)

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
        taken = True
        try:
            taken = self._take(item)
        except HubError as problem:
            self.refuse(problem.code, problem.text)
        return taken

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
            prefix = f"An unexpected error occurred invoking '{self.call.name}' on the server. HubException: "
            self.call.fail(prefix + error if self.hub.is_modern else error)


@METHODS.add("PublishStream", optional("queue", text), may_stream=True, takes_upload=True, only_publishes=True)
def publish_stream(call: Call, queue: str | None) -> Any:
    """Each item of the upload is a message; an array of them is a batch.  As a stream it tells of the progress."""
    Feed(call, queue)
    return LATER


# ---- out ----


def check_count(hub: HubConnection) -> None:
    if len(hub.subscriptions.by_id) >= SUBSCRIPTIONS_MAX:
        raise HubError(ErrorCode.LIMIT_EXCEEDED, f"At most {SUBSCRIPTIONS_MAX} subscriptions each; unsubscribe first.")


def subscribe_to(call: Call, way: Subscription, wanted: dict[str, Any], answer: Callable[[], None]) -> Any:
    """Deliver to `way` what a queue hands out, or what a log has; ``answer()`` comes before the first delivery."""
    hub, name = call.hub, way.name
    record = find_for(hub, name, "read", Operation.Subscribe)
    if record is not None and record.queue is None:
        reader = read(way, record, wanted.get("from"))
        answer()
        reader.pump()
        return LATER
    is_auto = wanted.get("ack", "auto") == "auto"
    prefetch = wanted.get("prefetch") or (PREFETCH_AUTO if is_auto else PREFETCH_MANUAL)
    if wanted.get("from") is not None:
        raise HubError(
            ErrorCode.NOT_SUPPORTED,
            f"'{name}' is a queue, which hands out what waits; read it from a place by ReadStream.",
        )

    def opened(queue: Any) -> None:
        consumer = HubSubscription(way, is_auto)
        answer()
        queue.add_consumer(consumer, min(prefetch, hub.queues.defaults.prefetch_max))

    return open_queue(call, name, opened)


def offset_from(stream: Any, place: Any) -> int:
    """The offset that `from` means: "first", "last", "next", an offset, or a time.  Raises HubError, StorageError."""
    if place is None:
        place = "next"
    if isinstance(place, dict) and set(place) == {"timestamp"}:
        time = place["timestamp"]
        if isinstance(time, (int, float)) and not isinstance(time, bool) and 0 <= time < 2**53:
            return offset_of_time(stream, int(time))
    elif isinstance(place, str):
        offset = offset_of_word(stream, place)
        if offset is not None:
            return offset
        with suppress(ValueError, OverflowError, OSError):
            return offset_of_time(stream, int(datetime.fromisoformat(place).astimezone().timestamp() * 1000))
    elif isinstance(place, (int, float)) and not isinstance(place, bool) and 0 <= place < 2**63 and place == int(place):
        return int(place)
    raise HubError(
        ErrorCode.INVALID_ARGUMENT,
        'Option \'from\' must be "first", "last", "next", an offset, an ISO 8601 time, or {timestamp: '
        f"milliseconds since 1970}}, had {place!r:.60}.",
    )


def read(way: Subscription, record: StreamRecord, place: Any, **more: Any) -> HubReader:
    stream = way.hub.door.broker.streams.find(DEFAULT_VHOST, record.name)
    way.is_stream = record.queue is None
    return HubReader(way, stream, offset_from(stream, place), **more)


SUBSCRIBE_OPTIONS = {"prefetch": whole_from(1, NUMBER_MAX), "from": anything}


@METHODS.add(
    "Subscribe", needed("queue"), asking(SUBSCRIBE_OPTIONS | {"ack": one_of("auto", "manual")}), is_stream=True
)
def subscribe(call: Call, queue: str, wanted: dict[str, Any]) -> Any:
    check_count(call.hub)
    return subscribe_to(call, Subscription(call.hub, queue, call), wanted, lambda: None)


PUSH_OPTIONS = SUBSCRIBE_OPTIONS | {
    "ack": one_of("auto", "manual", "result"),
    "method": text_of(NAME_SIZE_MAX_BYTES, "text"),  # in each delivery, which would be too large for the peer
}


@METHODS.add("SubscribePush", needed("queue"), asking(PUSH_OPTIONS))
def subscribe_push(call: Call, queue: str, wanted: dict[str, Any]) -> Any:
    """Deliveries come as calls of a method of the peer's, with the queue's name and the delivery."""
    hub = call.hub
    wants_result = wanted.get("ack") == "result"
    if wants_result and hub.dialect != Dialect.V1:
        raise HubError(ErrorCode.NOT_SUPPORTED, 'Clients of this dialect return no results; use ack: "manual".')
    check_count(hub)
    way = Subscription(hub, queue, None, wanted.get("method", "ReceiveMessage"), wants_result)
    return subscribe_to(call, way, wanted, lambda: call.complete({"subscriptionId": way.id}))


@METHODS.add("Unsubscribe", needed("subscription", anything))
def unsubscribe(call: Call, which: Any) -> bool:
    """By id, or by queue: then all subscriptions to it end, those of streams too."""
    by_name = isinstance(which, str)
    found = [one for one in call.hub.subscriptions.by_id.values() if which == (one.name if by_name else one.id)]
    for subscribed in found:
        subscribed.end()
    return bool(found)


READ_OPTIONS = {"from": anything, "max": whole_from(1, NUMBER_MAX), "follow": flag}


@METHODS.add("ReadStream", needed("name"), asking(READ_OPTIONS), is_stream=True)
def read_stream(call: Call, name: str, wanted: dict[str, Any]) -> Any:
    """Over the log of a stream or queue, taking nothing away from anybody."""
    hub = call.hub
    check_count(hub)
    record = find_for(hub, name, "read", Operation.Subscribe)
    if record is None:
        raise not_found(name)
    way, most, follows = Subscription(hub, name, call), wanted.get("max", 0), wanted.get("follow", True)
    try:
        reader = read(way, record, wanted.get("from", "first"), most=most, follows=follows)
    except StreamNotFound:
        raise not_found(name) from None
    reader.pump()
    return LATER


class Pull:
    """One Receive that waits for messages.

    Each message that is wanted gets a consumer of its own that may have one in flight.  So whatever home the queue has,
    on this worker or on another, hands over no more than was asked for; a consumer that has got nothing leaves when the
    call is answered, the others when their message is settled.
    """

    def __init__(self, call: Call, queue: Any, most: int, wait_ms: int, is_auto: bool) -> None:
        hub = call.hub
        self.call, self.hub, self.queue, self.is_auto = call, hub, queue, is_auto
        self.deliveries: list[bytes] = []
        self.ways: list[PullSubscription] = []
        self.adds = RESULT_ADDS_BYTES + 2 * len(call.id or b"")
        self.bytes, self.bytes_max, self.is_full = self.adds, hub.door.config.message_max_bytes, False
        now_ms = hub.queues.now_ms
        if call.is_cancelled:
            wait_ms = 0
        self.due_ms, self.grace_ms = now_ms + wait_ms, now_ms + max(wait_ms, PULL_GRACE_MS)
        self.timer = hub.queues.timers.timer(self.look)
        call.on_cancel, call.on_over = self.finish, self.close
        for _ in range(most):
            way = PullSubscription(self)
            self.ways.append(way)
            queue.add_consumer(PullConsumer(way, False), 1)
        self.timer.set(0)

    def fits(self, size: int) -> bool:
        """The answer is one record, which must not be larger than what peers read."""
        self.bytes += size + 1
        self.is_full = self.is_full or self.bytes > self.bytes_max
        if self.is_full:
            self.timer.set(0)
        return not self.is_full

    def came(self, delivery: bytes) -> None:
        """In the middle of the queue's work: what follows from it waits for the next turn."""
        self.deliveries.append(delivery)
        self.timer.set(0)

    def look(self, _: int) -> None:
        now_ms = self.hub.queues.now_ms
        if self.deliveries or now_ms >= self.grace_ms or (now_ms >= self.due_ms and not self.queue.counts()[0]):
            self.finish()
        else:
            self.timer.set(min(now_ms + PULL_LOOK_MS, self.grace_ms) if now_ms >= self.due_ms else self.due_ms)

    def deleted(self) -> None:
        self.call.refuse(ErrorCode.QUEUE_NOT_FOUND, f"Queue '{self.queue.name}' was deleted.")

    def finish(self) -> None:
        self.call.complete([Raw(delivery) for delivery in self.deliveries])

    def close(self) -> None:
        """The call is over: consumers with a message stay until that is settled."""
        self.timer.cancel()
        for way in self.ways:
            if self.hub.closed or way.taken is None:
                way.close()
            else:
                self.hub.subscriptions.keep_pull(way, self.is_auto)


PULL_OPTIONS = {
    "max": whole_from(1, PULLED_MAX),
    "waitMs": whole_from(0, PULL_WAIT_MS_MAX),
    "ack": one_of("auto", "manual"),
}


@METHODS.add("Receive", needed("queue"), asking(PULL_OPTIONS))
def receive(call: Call, queue: str, wanted: dict[str, Any]) -> Any:
    """Up to ``max`` messages; with none there it waits for the first one, ``waitMs`` at most."""
    if call.id is None:
        return None  # messages would go to nobody, and count as settled
    check_count(call.hub)
    require(call.hub, Operation.Subscribe, queue)
    if is_stream(find(call.hub, queue)):  # it would become a queue
        raise HubError(ErrorCode.NOT_SUPPORTED, f"'{queue}' is a stream, which nobody takes from; use ReadStream.")

    def opened(found: Any) -> None:
        if type_of(found.options) != "queue":
            found.close_if_unused()
            raise HubError(
                ErrorCode.NOT_SUPPORTED,
                f"'{queue}' is a topic, which keeps nothing for those who are not subscribed; use Subscribe.",
            )
        Pull(call, found, wanted.get("max", 1), wanted.get("waitMs", 0), wanted.get("ack", "auto") == "auto")

    return open_queue(call, queue, opened)


@METHODS.add("Ack", needed("tags", tags), asking({"multiple": flag}))
def ack(call: Call, which: list[int], wanted: dict[str, Any]) -> int:
    return call.hub.subscriptions.settle(which, wanted.get("multiple", False), False, True, 0)  # type: ignore[no-any-return]


NACK_OPTIONS = {"multiple": flag, "requeue": flag, "delayMs": whole_from(0, DELAY_MS_MAX)}


@METHODS.add("Nack", needed("tags", tags), asking(NACK_OPTIONS))
def nack(call: Call, which: list[int], wanted: dict[str, Any]) -> int:
    return call.hub.subscriptions.settle(  # type: ignore[no-any-return]
        which, wanted.get("multiple", False), True, wanted.get("requeue", True), wanted.get("delayMs", 0)
    )
