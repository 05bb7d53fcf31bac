# SPDX-License-Identifier: Apache-2.0
"""A connection of the streams protocol below its commands, and the two directions of data on it.

A Publisher has its window, a Subscription its credit, and Frames sorts what comes among them and those who wait for an
answer.
"""

from __future__ import annotations

import contextlib
import shlex
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vibemq.client._failures import HINTS, failure
from vibemq.client._streams import Chunk, Inbox, confirm_count, encode_publish, open_chunk
from vibemq.client._transport import Deadline, Transport
from vibemq.errors import (
    ConnectionClosed,
    ProtocolError,
    PublishTimeout,
    RequestFailed,
    StreamNotFound,
    TimeoutExceeded,
    VibeMQError,
)
from vibemq.protocols.streams import codec, spec
from vibemq.protocols.streams.spec import RESPONSE_BIT, Code, ExtensionKey, Key, OffsetType, code_name

PUBLISH_FRAME_MESSAGES_COUNT_MAX = 4_096  # so that confirms of large batches come back before the batch is out
CREDIT_FIRST_COUNT = 2  # of a ramp: a read of a few messages does not make the broker send megabytes
CREDIT_STEPS_COUNT = 4  # a Credit frame for a quarter of the credit: few frames, long before the broker runs dry
#: What one must be allowed to do with a stream for these.
RIGHTS: dict[int, str] = {
    **dict.fromkeys((Key.CREATE, Key.DELETE, Key.CREATE_SUPER_STREAM, Key.DELETE_SUPER_STREAM), "configure"),
    **dict.fromkeys((Key.DECLARE_PUBLISHER, Key.QUERY_PUBLISHER_SEQUENCE), "write"),
    **dict.fromkeys((Key.SUBSCRIBE, Key.QUERY_OFFSET, Key.STREAM_STATS, Key.RESOLVE_OFFSET_SPEC), "read"),
    **dict.fromkeys((ExtensionKey.LIST_OFFSETS, ExtensionKey.PLAN_READS, ExtensionKey.FILTER_RANGE), "read"),
}
_RAISE: Any = object()  # as default of next_chunk: no chunk is an error


class Publisher(contextlib.AbstractContextManager["Publisher"]):
    """Publishes to one stream, pipelined: at most `unconfirmed_max` messages are on their way without a confirm.

    What is refused is raised by the next publish, flush or close as RequestFailed.
    """

    def __init__(
        self, connection: Frames, publisher_id: int, stream: str, first_id: int, unconfirmed_max: int, reference: str
    ) -> None:
        self.stream = stream
        self.publisher_id = publisher_id
        self.next_id = first_id
        self.published = 0
        self.confirmed = 0
        self.errored = 0
        self._connection = connection
        self._unconfirmed_max = unconfirmed_max
        self._reference = reference
        self._errors: list[Any] = []
        self._failure: VibeMQError | None = None

    @property
    def _settled(self) -> int:
        return self.confirmed + self.errored

    @property
    def unconfirmed(self) -> int:
        return self.published - self._settled

    def publish(self, messages: Sequence[bytes], timeout_s: float | None = None) -> int:
        """Sends all of them, waiting only for room in the window; gives the publishing id of the first.

        PublishTimeout when there was none for timeout_s: it says how many were sent, and how many were not.
        """
        first_id, start = self.next_id, 0
        pending = messages if isinstance(messages, list) else list(messages)
        connection = self._connection
        deadline = connection._deadline(timeout_s, f"publishing to stream {self.stream}")
        while start < len(pending):
            self._await_room(deadline, len(pending) - start)
            settled = self._settled
            most = min(self._unconfirmed_max - self.unconfirmed, PUBLISH_FRAME_MESSAGES_COUNT_MAX)
            frame, count = encode_publish(self.publisher_id, pending, start, self.next_id, connection.frame_max, most)
            start += count
            try:
                self._send(frame, count, deadline)
            except TimeoutExceeded as late:
                raise self._late(late, len(pending) - start) from None
            self._raise()
            if self._settled != settled:
                deadline.begin()
        if connection._transport.poll_input():
            connection._handle_frames()
        return first_id

    def _await_room(self, deadline: Deadline, unsent: int) -> None:
        """Until one more message may be on its way; whenever some are settled the patience starts anew."""
        while self.unconfirmed >= self._unconfirmed_max:
            settled = self._settled
            try:
                self._connection._wait(deadline)
            except TimeoutExceeded as late:
                raise self._late(late, unsent) from None
            self._raise()
            if self._settled != settled:
                deadline.begin()

    def _send(self, frame: bytes, count: int, deadline: Deadline) -> None:
        self.next_id += count
        self.published += count  # before sending, which may already bring confirms
        self._connection._check()
        self._connection._transport.send(frame, deadline)

    def flush(self, timeout_s: float | None = None) -> None:
        """Until every message is confirmed; raises what was refused, and PublishTimeout when that took too long."""
        what = f"waiting for {self.unconfirmed} confirms of stream {self.stream}"
        deadline = self._connection._deadline(timeout_s, what)
        while self.unconfirmed > 0 and not self._failure:
            try:
                self._connection._wait(deadline)
            except TimeoutExceeded as late:
                raise self._late(late, 0) from None
        self._raise()

    def _late(self, late: TimeoutExceeded, unsent: int) -> PublishTimeout:
        """This client sends nothing twice, and nothing behind the caller's back."""
        again = "Publishing it again may store it twice: a publisher with a reference would not."
        if self._reference:
            again = (
                "Publishing it again is safe with another publisher of this reference: its next_id is the one after "
                "the last message that is stored."
            )
        hint = f"What was sent may have been stored. {again} {late.hint}" if self.unconfirmed else late.hint
        told = f"{late.message}; {unsent} messages were never sent, {self.unconfirmed} were and are not confirmed"
        return PublishTimeout(told, unsent=unsent, unanswered=self.unconfirmed, hint=hint)

    def _raise(self) -> None:
        errors, self._errors = self._errors, []
        if errors:
            first = errors[0]
            raise RequestFailed(
                f"publishing to stream {self.stream}: {len(errors)} messages refused, the first with id "
                f"{first.publishing_id}: {code_name(first.code)}",
                code=first.code,
                hint=HINTS.get(first.code, "The messages that were not refused are stored."),
            )
        if self._failure is not None:
            raise self._failure

    def close(self, timeout_s: float | None = None) -> None:
        """Flushes, then gives the publisher back."""
        if self._connection._publishers.get(self.publisher_id) is not self:
            return
        try:
            try:
                self.flush(timeout_s)
            finally:  # or the next publisher of this connection would be refused its number
                if not self._connection.closed:
                    self._connection.request(Key.DELETE_PUBLISHER, publisher_id=self.publisher_id, timeout_s=timeout_s)
        finally:
            del self._connection._publishers[self.publisher_id]

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()  # after an error the connection is of no more use to this publisher


class Subscription(contextlib.AbstractContextManager["Subscription"]):
    """The chunks of one subscription, in order. Credit is given back as chunks are taken.

    `credit` is the number of chunks that may be on their way. With `until`, an offset, no more is given once the chunks
    at hand reach that, and it begins with few `granted`, which double while chunks are taken.
    """

    def __init__(
        self, connection: Frames, subscription_id: int, stream: str, credit: int, until: int | None = None
    ) -> None:
        self.stream = stream
        self.subscription_id = subscription_id
        self._connection = connection
        self._chunks: deque[Chunk] = deque()
        self._failure: VibeMQError | None = None
        self._credit = credit
        self.granted = credit if until is None else min(credit, CREDIT_FIRST_COUNT)
        self._until = until
        self._owed = 0
        self._open = True

    def next_chunk(self, timeout_s: float, default: Any = _RAISE) -> Any:
        """The next Chunk; after timeout_s gives `default`, or raises TimeoutExceeded if there is none."""
        if not self._chunks:
            self._receive(timeout_s, must=default is _RAISE)
            if not self._chunks:
                return default
        last = self._chunks[-1]
        if self._open and self._failure is None and (self._until is None or last.next_offset < self._until):
            self._owed += 1
            if self.granted < self._credit:
                self.granted += 1
                self._owed += 1
            if self._owed >= self.granted // CREDIT_STEPS_COUNT:
                frame = codec.encode_request(Key.CREDIT, subscription_id=self.subscription_id, credit=self._owed)
                self._owed = 0
                self._connection._send(frame, f"Credit for stream {self.stream}")
        return self._chunks.popleft()

    def _receive(self, timeout_s: float, must: bool) -> None:
        deadline = Deadline(timeout_s, f"waiting for a chunk of stream {self.stream}")
        while self._open and not self._chunks:
            if self._failure is not None:
                raise self._failure
            try:
                self._connection._wait(deadline)
            except TimeoutExceeded:
                if must:
                    raise
                return

    def __iter__(self) -> Iterator[Chunk]:
        """Endless; raises TimeoutExceeded when nothing comes within the connection's timeout_s."""
        while True:
            yield self.next_chunk(self._connection.timeout_s)

    def close(self, *, keep: bool = False, timeout_s: float | None = None) -> None:
        """Unsubscribes; chunks already on their way are dropped, or with `keep` stay to be taken."""
        if not self._open:
            return
        self._open = False
        try:
            if self._failure is None and not self._connection.closed:
                self._connection.request(Key.UNSUBSCRIBE, subscription_id=self.subscription_id, timeout_s=timeout_s)
        finally:
            self._connection._subscriptions.pop(self.subscription_id, None)
            if not keep:
                self._chunks.clear()

    def __exit__(self, *_: object) -> None:
        self.close()


class Frames:
    """What a connection is below its commands: requests and answers, and frames that come by themselves.

    timeout_s of a call is for each of its waits, where it is not the connection's own.
    """

    def __init__(self, transport: Transport, inbox: Inbox, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.user, self.virtual_host = "", ""  # who we are and where, once connected
        self.server_properties: dict[str, str] = {}
        self.open_properties: dict[str, str] = {}
        self.frame_max = spec.FRAME_SIZE_DEFAULT_BYTES
        self.commands: dict[int, int] = {}  # key to highest version, from ExchangeCommandVersions
        self._transport, self._inbox = transport, inbox
        self._correlation_id = 0
        self._responses: dict[int, tuple[int, int, bytes]] = {}
        self._awaited: set[int] = set()
        self._tune: Any = None
        self._failure: VibeMQError | None = None
        self._publishers: dict[int, Publisher] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self._last_subscription_id = 0
        transport.on_input = self._handle_frames
        self._handlers: dict[int, Callable[[Any], None]] = {
            Key.PUBLISH_ERROR: self._on_publish_error,
            Key.METADATA_UPDATE: self._on_metadata_update,
            Key.CONSUMER_UPDATE: self._on_consumer_update,
            Key.CREDIT | RESPONSE_BIT: self._on_credit_error,
            Key.TUNE: self._on_tune,
            Key.CLOSE: self._on_close,
        }

    @property
    def closed(self) -> bool:
        return self._transport.closed

    def request(self, key: int, *, where: str = "", timeout_s: float | None = None, **fields: Any) -> Any:
        """Any command with an answer: the named tuple of the answer, or the error that fits its code."""
        command = spec.COMMAND_BY_KEY[key]
        where = where or " ".join(filter(None, (command.name, repr(fields.get("stream", "")).strip("'\""))))
        where = f"{self._transport.peer}: {where}"
        answer = self._exchange(key, self._deadline(timeout_s, where), **fields)
        if getattr(answer, "code", Code.OK) != Code.OK:
            error = failure(where, answer.code)
            if answer.code == Code.ACCESS_REFUSED and key in RIGHTS:
                quoted = " ".join(map(shlex.quote, (self.virtual_host, self.user)))
                error.hint = (
                    f"User {self.user!r} needs the permission to {RIGHTS[key]} it in virtual host "
                    f"{self.virtual_host!r}: `vibemq ctl set_permissions --vhost {quoted} CONFIGURE WRITE READ`."
                )
            raise error
        return answer

    def _exchange(self, key: int, deadline: Deadline, **fields: Any) -> Any:
        """Sends a request and gives its answer, whatever the code."""
        self._correlation_id = (self._correlation_id + 1) & 0x3FFF_FFFF  # the upper ranges are the server's
        correlation_id = self._correlation_id
        self._awaited.add(correlation_id)
        fate = "It was not sent as a whole, so it was not done."
        try:
            self._check()
            self._transport.send(codec.encode_request(key, correlation_id, **fields), deadline)
            fate = "It was sent, so it may have been done."
            while correlation_id not in self._responses:
                self._wait(deadline)
        except TimeoutExceeded as late:
            late.hint = f"{fate} {late.hint}"
            raise
        finally:
            self._awaited.discard(correlation_id)
        answer_key, version, body = self._responses.pop(correlation_id)
        if answer_key != key | RESPONSE_BIT:
            raise self._broken(
                ProtocolError(f"{deadline.what}: needed key {key | RESPONSE_BIT:#06x}, had {answer_key:#06x}")
            )
        return codec.decode_response(answer_key, version, body)

    def _send(self, frame: bytes, what: str, timeout_s: float | None = None) -> None:
        self._check()
        self._transport.send(frame, self._deadline(timeout_s, f"{self._transport.peer}: {what}"))

    def _deadline(self, timeout_s: float | None, what: str) -> Deadline:
        return Deadline(self.timeout_s if timeout_s is None else timeout_s, what)

    def _wait(self, deadline: Deadline) -> None:
        """One wait for input, and all the frames that came with it."""
        self._check()
        try:
            self._transport.wait_input(deadline)
        finally:
            self._handle_frames()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._transport.closed:
            raise ConnectionClosed(f"{self._transport.peer}: the connection is closed", hint="Connect again.")

    def _broken(self, error: VibeMQError) -> VibeMQError:
        """No later frame can be trusted: every following call gets this error."""
        self._failure = self._failure or error
        self._transport.close()
        return error

    def _handle_frames(self) -> None:
        try:
            while (frame := self._inbox.next_frame()) is not None:
                key, version, body = frame
                if key == Key.DELIVER:
                    subscription = self._subscriptions.get(body[0]) if body else None
                    if subscription is not None:  # else it was on its way while we unsubscribed
                        subscription._chunks.append(open_chunk(body, version, f"stream {subscription.stream}"))
                elif key == Key.PUBLISH_CONFIRM:
                    count = confirm_count(body)
                    if publisher := self._publishers.get(body[0]):
                        publisher.confirmed += count
                elif key in self._handlers:
                    self._handlers[key](codec.decode_response(key & ~RESPONSE_BIT, version, body))
                elif key == Key.HEARTBEAT:
                    continue
                elif key & RESPONSE_BIT and len(body) >= 4:
                    correlation_id = int.from_bytes(body[:4], "big")
                    if correlation_id in self._awaited:  # else nobody waits for it any longer
                        self._responses[correlation_id] = frame
                else:
                    raise ProtocolError(
                        f"{self._transport.peer}: needed a frame of a streams server, had key {key:#06x}"
                    )
        except ProtocolError as error:
            raise self._broken(error) from None

    def _on_publish_error(self, answer: Any) -> None:
        if publisher := self._publishers.get(answer.publisher_id):
            publisher.errored += len(answer.errors)
            publisher._errors.extend(answer.errors)

    def _on_metadata_update(self, update: Any) -> None:
        error = StreamNotFound(
            f"stream {update.stream}: the broker announced {code_name(update.code)}",
            hint="The stream was deleted, or its leader moved: look its metadata up and open it again.",
        )
        users: list[Publisher | Subscription] = [*self._publishers.values(), *self._subscriptions.values()]
        for user in users:
            if user.stream == update.stream:
                user._failure = error

    def _on_consumer_update(self, update: Any) -> None:
        answer = codec.encode_response(Key.CONSUMER_UPDATE, update.correlation_id, Code.OK, offset_type=OffsetType.NONE)
        self._send(answer, "answering ConsumerUpdate")

    def _on_credit_error(self, answer: Any) -> None:
        if subscription := self._subscriptions.get(answer.subscription_id):
            where = f"{self._transport.peer}: Credit for stream {subscription.stream}"
            subscription._failure = failure(where, answer.code)

    def _on_tune(self, tune: Any) -> None:
        self._tune = tune

    def _on_close(self, close: Any) -> None:
        self._send(codec.encode_response(Key.CLOSE, close.correlation_id, Code.OK), "answering Close")
        raise self._broken(
            ConnectionClosed(
                f"{self._transport.peer}: the broker closed the connection: {code_name(close.code)}, {close.reason!r}",
                hint="UNKNOWN_FRAME or FRAME_TOO_LARGE are mistakes of this client; otherwise connect again.",
            )
        )
