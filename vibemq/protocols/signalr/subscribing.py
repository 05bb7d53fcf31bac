# SPDX-License-Identifier: Apache-2.0
"""The hub methods that bring messages out, and settle them.

A subscription answers a stream invocation with its deliveries, or calls a method of the peer's.  It is found by its id,
ends with its call, its queue or its right, and gives back what its peer had not acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from vibemq.access.permissions import Operation
from vibemq.broker.admission import SUBSCRIPTIONS_MAX
from vibemq.broker.arguments import BadArgument
from vibemq.broker.catalog import NAME_SIZE_MAX_BYTES
from vibemq.broker.messages import offset_of_time, offset_of_word
from vibemq.broker.options import SUBSCRIBER_TTL_S_MAX, subscriber_of
from vibemq.errors import StreamNotFound
from vibemq.protocols.signalr.commands import (
    METHODS,
    anything,
    asking,
    find,
    find_for,
    is_stream,
    needed,
    not_found,
    open_queue,
    require,
    tags,
)
from vibemq.protocols.signalr.invocations import LATER, Call, HubError
from vibemq.protocols.signalr.options import flag, one_of, text_of, type_of, whole_from
from vibemq.protocols.signalr.spec import NUMBER_MAX, Dialect, ErrorCode
from vibemq.protocols.signalr.subscriptions import (
    HubReader,
    HubSubscription,
    PullConsumer,
    PullSubscription,
    Subscription,
)
from vibemq.storage.vhosts import DEFAULT_VHOST

if TYPE_CHECKING:
    from vibemq.protocols.signalr.hub import HubConnection
    from vibemq.storage.records import StreamRecord

PREFETCH_MANUAL = 100
PREFETCH_AUTO = 1000  # settled as soon as they are sent, so this is only what one turn may write
DELAY_MS_MAX = 86_400_000
PULLED_MAX = 256  # messages of one Receive: each has a consumer, of some microseconds
PULL_WAIT_MS_MAX = 600_000
PULL_LOOK_MS = 10
PULL_GRACE_MS = 250  # for a home on another worker to hand over what there is
RESULT_ADDS_BYTES = 64  # around the deliveries of an answer, without the invocation's id


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
    try:
        subscriber, ttl_s = subscriber_of(wanted.get("subscriber"), wanted.get("subscriberTtlSeconds"))
    except BadArgument as problem:
        raise HubError(ErrorCode.INVALID_ARGUMENT, f"{problem}.") from None
    if wanted.get("from") is not None:
        raise HubError(
            ErrorCode.NOT_SUPPORTED,
            f"'{name}' is a queue, which hands out what waits; read it from a place by ReadStream.",
        )

    def opened(queue: Any) -> None:
        consumer = HubSubscription(way, is_auto)
        try:
            queue.add_consumer(consumer, min(prefetch, hub.queues.defaults.prefetch_max), subscriber, ttl_s, answer)
        except BaseException:
            way.close()
            raise

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


SUBSCRIBE_OPTIONS = {
    "prefetch": whole_from(1, NUMBER_MAX),
    "from": anything,
    "subscriber": text_of(NAME_SIZE_MAX_BYTES, "text"),
    "subscriberTtlSeconds": whole_from(0, SUBSCRIBER_TTL_S_MAX),
}


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
