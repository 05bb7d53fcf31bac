# SPDX-License-Identifier: Apache-2.0
"""A connection of the streams protocol below its commands: what comes is sorted among those who wait for an answer and
the publishers and subscriptions."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from vibemq.client._failures import failure
from vibemq.client._streams import Inbox, confirm_count, open_chunk
from vibemq.client._transport import Deadline, Transport
from vibemq.errors import (
    ConnectionClosed,
    LimitExceeded,
    ProtocolError,
    RequestFailed,
    StreamNotFound,
    TimeoutExceeded,
    VibeMQError,
)
from vibemq.protocols.streams import codec, spec
from vibemq.protocols.streams.spec import RESPONSE_BIT, Code, ExtensionKey, Key, OffsetType, code_name

if TYPE_CHECKING:
    from vibemq.client._flows import Publisher, Subscription

#: What one must be allowed to do with a stream for these.
RIGHTS: dict[int, str] = {
    **dict.fromkeys((Key.CREATE, Key.DELETE, Key.CREATE_SUPER_STREAM, Key.DELETE_SUPER_STREAM), "configure"),
    **dict.fromkeys((Key.DECLARE_PUBLISHER, Key.QUERY_PUBLISHER_SEQUENCE), "write"),
    **dict.fromkeys((Key.SUBSCRIBE, Key.QUERY_OFFSET, Key.STREAM_STATS, Key.RESOLVE_OFFSET_SPEC), "read"),
    **dict.fromkeys((ExtensionKey.LIST_OFFSETS, ExtensionKey.PLAN_READS, ExtensionKey.FILTER_RANGE), "read"),
}


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
        self._answers: dict[int, tuple[int, int, bytes] | None] = {}  # of those who wait; None until it comes
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
        self._answers[correlation_id] = None
        fate = "It was not sent as a whole, so it was not done."
        try:
            self._check()
            self._transport.send(codec.encode_request(key, correlation_id, **fields), deadline)
            fate = "It was sent, so it may have been done."
            while (answer := self._answers[correlation_id]) is None:
                self._wait(deadline)
        except TimeoutExceeded as late:
            late.hint = f"{fate} {late.hint}"
            raise
        finally:
            del self._answers[correlation_id]
        answer_key, version, body = answer
        if answer_key != key | RESPONSE_BIT:
            raise self._broken(
                ProtocolError(f"{deadline.what}: needed key {key | RESPONSE_BIT:#06x}, had {answer_key:#06x}")
            )
        return codec.decode_response(answer_key, version, body)

    def _extension(self, key: ExtensionKey, **fields: Any) -> Any:
        if key not in self.commands:
            raise RequestFailed(
                f"{self._transport.peer}: {spec.COMMAND_BY_KEY[key].name} is a command of VibeMQ's, and this broker "
                f"({self.server_properties.get('product', 'unknown')} "
                f"{self.server_properties.get('version', 'unknown')}) does not have it",
                code=Code.UNKNOWN_FRAME,
                hint="Ask it for what you know by name, or use its own tools.",
            )
        return self.request(key, **fields)

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

    def _free_publisher_id(self) -> int:
        return free_number(self._publishers, 0, spec.PUBLISHERS_PER_CONNECTION_COUNT_MAX, "publishers")

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
                    if correlation_id in self._answers:  # else nobody waits for it any longer
                        self._answers[correlation_id] = frame
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


def free_number(taken: Container[int], first: int, count: int, what: str) -> int:
    """Of the numbers below `count` the first that is not taken, from `first` on and round again."""
    for number in range(first, first + count):
        if number % count not in taken:
            return number % count
    raise LimitExceeded(f"{what} on a connection", count + 1, count, hint="Open a second connection.")
