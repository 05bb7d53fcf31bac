# SPDX-License-Identifier: Apache-2.0
"""The two directions of data on a connection of the streams protocol: a Publisher has its window, a Subscription its
credit."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vibemq.client._failures import HINTS, cleaning_up
from vibemq.client._streams import Chunk, encode_publish
from vibemq.client._transport import Deadline
from vibemq.errors import PublishTimeout, RequestFailed, TimeoutExceeded, VibeMQError
from vibemq.protocols.streams import codec
from vibemq.protocols.streams.spec import Key, code_name

if TYPE_CHECKING:
    from vibemq.client._frames import Frames

PUBLISH_FRAME_MESSAGES_COUNT_MAX = 4_096  # so that confirms of large batches come back before the batch is out
CREDIT_FIRST_COUNT = 2  # of a ramp: a read of a few messages does not make the broker send megabytes
CREDIT_STEPS_COUNT = 4  # a Credit frame for a quarter of the credit: few frames, long before the broker runs dry
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
            except BaseException as error:
                with cleaning_up(error):
                    self._give_back(timeout_s)
                raise
            self._give_back(timeout_s)
        finally:
            del self._connection._publishers[self.publisher_id]

    def _give_back(self, timeout_s: float | None) -> None:
        """Or the next publisher of this connection would be refused its number."""
        if not self._connection.closed:
            self._connection.request(Key.DELETE_PUBLISHER, publisher_id=self.publisher_id, timeout_s=timeout_s)

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

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with cleaning_up(error):
            self.close()
