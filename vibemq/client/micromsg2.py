# SPDX-License-Identifier: Apache-2.0
"""A small blocking client of MicroMsg2: one socket, no threads, and nothing on the wire but the strict form.

>>> from vibemq.client.micromsg2 import Micromsg2Client
>>> with Micromsg2Client(port=2928) as client:
...     client.subscribe("queue/docs")
...     client.send("queue/docs", b'{"number":1}', {"kind": "first"})
...     client.flush()
...     client.receive(5).properties["kind"]
1
'first'

Whatever waits reads: frames that come meanwhile are sorted into messages, acknowledgements, answers and refusals, and
reading never writes. A refused message is never acknowledged by its own number; the broker's ERROR names it, and
flush() tells of it. A client is for one thread at a time. It does not connect again: after ConnectionClosed make
another and subscribe anew; what was delivered and not acknowledged comes again.
"""

from __future__ import annotations

import contextlib
import math
import ssl
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vibemq.client._failures import wrong_door
from vibemq.client._micromsg2 import Conversation, Message, Refused, client_proof, lists_of
from vibemq.client._transport import Deadline
from vibemq.errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionClosed,
    LimitExceeded,
    PublishTimeout,
    TimeoutExceeded,
    VibeMQError,
)
from vibemq.protocols.micromsg2 import codec, spec
from vibemq.protocols.micromsg2.codec import MalformedFrame
from vibemq.protocols.micromsg2.spec import ExtensionName

__all__ = ["Message", "Micromsg2Client", "Refused", "client_proof"]

OFFERS = ("batch-ack:max-count=1000", "dotnet", "pub-sub", "x-reply")
GOODBYE_S = 2.0  # for the broker to close its half
SUBSCRIPTION_OVER = "the subscription to "


class Micromsg2Client(Conversation, contextlib.AbstractContextManager["Micromsg2Client"]):
    """A connection whose handshake is done; see the module for an example.

    require, offer: items of extension lists. `agreed` says what came out of them.
    user, password: for microauth. The password itself goes over TLS or to this machine only, else a proof of it.
    auto_ack: acknowledge a message when the next one is asked for; else ack() does.
    timeout_s: of everything that waits for the broker, where a call is not given its own; receive waits for ever.
    refused: what the peer has refused so far; flush() raises it, and receive() that a subscription has ended.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = spec.PORT_DEFAULT,
        *,
        identity: str = "vibemq-client",
        require: Iterable[str] = (),
        offer: Iterable[str] = OFFERS,
        user: str | None = None,
        password: str | None = None,
        auto_ack: bool = True,
        timeout_s: float = 10.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        c1 = lists_of(require, offer)
        super().__init__(host, port, tls, timeout_s)
        self.auto_ack = auto_ack
        try:
            self._handshake(identity.encode(), c1, user, password or "")
            if user is not None and self.agreed.reply:
                self.command("list", pattern=user)  # whatever it says: a login that failed is told now
        except BaseException as problem:
            self._link.close()
            if isinstance(problem, Refused) and user is None and ExtensionName.MICROAUTH in problem.text:
                problem.hint = f"{self.peer} lets nobody in without a login: give `user` and `password`."
            elif isinstance(problem, Refused | AuthenticationFailed):
                problem.hint = problem.hint or f"This is what {self.peer} said to the login or the extensions."
            elif isinstance(problem, ConnectionClosed | TimeoutExceeded | MalformedFrame):
                problem.hint = wrong_door("MicroMsg2", bytes(self._input[:16]))
            raise

    # ---- sending ----

    def send(
        self,
        destination: str,
        payload: bytes | bytearray | memoryview | str,
        properties: Mapping[str, codec.PropertyValue] | None = None,
        dotnet_type: str | None = None,
        *,
        timeout_s: float | None = None,
    ) -> int:
        """Its (last) sequence number. It is on its way, not yet accepted; flush() waits for that.

        Properties: str and bytes are text, int and float numbers, datetime (with a time zone) dates; None is left out.
        A payload above 1 MiB goes in fragments. With a full window this waits for an acknowledgement, and then raises
        PublishTimeout: this message was not sent. Where none comes between fragments, the connection ends.
        """
        where, encoded = destination.encode(), codec.encode_properties(properties or {})
        data = memoryview(payload.encode() if isinstance(payload, str) else payload).cast("B")
        if len(where) > spec.DESTINATION_BYTES_MAX:
            raise LimitExceeded("bytes of a destination", len(where), spec.DESTINATION_BYTES_MAX)
        deadline = self._deadline(timeout_s)
        if dotnet_type is not None and not self.agreed.dotnet_id:
            raise ConfigError(f"{self.peer}: a .NET type needs the extension dotnet, which was not agreed")
        if dotnet_type != self._sent_type:
            text = spec.DOTNET_TYPE_NONE if dotnet_type is None else dotnet_type
            self._write(codec.encode_extension(self.agreed.dotnet_id, text.encode()), deadline)
            self._sent_type = dotnet_type
        cuts = [*range(0, data.nbytes, spec.FRAGMENT_BYTES)] or [0]
        for at in cuts:
            if self._window:
                try:
                    self._settle(self._window - 1, deadline, unsent=1)
                except VibeMQError:
                    if at:  # the next message would be taken for the rest of this one
                        self._end("a message was not finished in time")
                    raise
            self._sequence = self._sequence % spec.SEQUENCE_MAX + 1
            if self._window:
                self._unacknowledged.append(self._sequence)
            fragment = data[at : at + spec.FRAGMENT_BYTES]
            self._write(codec.encode_message(self._sequence, where, fragment, encoded, at != cuts[-1]), deadline)
            where = encoded = b""  # the first fragment has said them
        return self._sequence

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until the peer has accepted everything; raises Refused when it has refused something.

        PublishTimeout when that took too long: what was sent may have been stored, and is never sent again.

        Without an ack extension there is nothing to wait for: it only tells of what has been refused.
        """
        self._settle(0, self._deadline(timeout_s))
        self._take_input()
        refused = self._refusals()
        if refused:
            self.refused = [one for one in self.refused if one not in refused]
            refused[0].others = tuple(refused[1:])
            raise refused[0]

    def _refusals(self) -> list[Refused]:
        """Those that are about what was sent."""
        return [one for one in self.refused if not one.text.startswith(SUBSCRIPTION_OVER)]

    def _settle(self, most: int, deadline: Deadline, unsent: int = 0) -> None:
        """Read until at most this many messages are neither acknowledged nor refused."""
        while len(self._unacknowledged) > most:
            try:
                self._read_more(deadline, f"acknowledgement of {len(self._unacknowledged)} messages")
            except TimeoutExceeded as late:
                for one in self._refusals():  # by a peer that does not say which
                    self.refused.remove(one)
                    raise one from None
                raise PublishTimeout(
                    f"{late}{'; the next one was never sent' if unsent else ''}",
                    unsent=unsent,
                    unanswered=len(self._unacknowledged),
                    hint="What was sent may have been accepted; sending it again may store it twice. Is the broker "
                    "overloaded or out of disk space? A longer timeout_s waits longer.",
                ) from None

    # ---- commands ----

    def command(self, name: str, *, timeout_s: float | None = None, **pairs: Any) -> dict[str, str]:
        """The pairs of the answer; raises Refused. `_` in a key is `-`, and a list is a repeated key."""
        if not self.agreed.reply:
            raise ConfigError(f"{self.peer}: {name} needs the extension x-reply, which was not agreed")
        number = str(next(self._ids))
        deadline = self._deadline(timeout_s)
        self._write(codec.encode_command(name, [*_pairs_of(pairs), ("id", number)]), deadline)
        while number not in self._answers:
            try:
                self._read_more(deadline, f"answer to {name}")
            except TimeoutExceeded as late:
                late.hint = "It was sent, so it may have been done. A longer timeout_s waits longer."
                raise
        answer = dict(self._answers[number].pairs)
        if self._answers.pop(number).name == "error":
            raise Refused(answer.get("code", ""), answer.get("text", ""))
        del answer["id"]
        return answer

    def subscribe(
        self, destination: str, filter: str | None = None, *, timeout_s: float | None = None, **more: Any
    ) -> None:
        """Messages to `destination` come, with a filter (`age>=N18;name<Tto`) only those of which all of it is true."""
        wanted = {} if filter is None else {"filter": filter}
        if not destination.lower().startswith(spec.TOPIC_PREFIX):
            self._queues.add(destination)
        self._pub_sub("subscribe", timeout_s, destination=destination, **wanted, **more)

    def unsubscribe(self, destination: str, *, timeout_s: float | None = None) -> None:
        self._queues.discard(destination)
        self._pub_sub("unsubscribe", timeout_s, destination=destination)

    def _pub_sub(self, name: str, timeout_s: float | None, **pairs: Any) -> None:
        if not self.agreed.pub_sub:
            raise ConfigError(f"{self.peer}: {name} needs the extension pub-sub, which was not agreed")
        if self.agreed.reply:
            self.command(name, timeout_s=timeout_s, **pairs)
        else:
            self._write(codec.encode_command(name, _pairs_of(pairs)), self._deadline(timeout_s))

    # ---- receiving ----

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next message, or None when none came in time; without a timeout this waits for as long as it takes.

        Raises Refused when a subscription has ended: its queue was deleted, or the right to it withdrawn.
        """
        deadline = self._deadline(math.inf if timeout_s is None else timeout_s)
        if not self._messages:  # else they would only become more, as many as the broker can send
            self._take_input()
        if self.auto_ack and (not self._messages or len(self._handed) >= self._ack_count):
            self.ack()
        while not self._messages:
            for one in self.refused:
                if one.text.startswith(SUBSCRIPTION_OVER):
                    self.refused.remove(one)
                    raise one
            # The beginning of a large message, before it is whole: else a small window would never let its end come.
            if not self._handed and len(self._part_numbers) >= self._ack_count:
                self._acknowledge(self._part_numbers)
            try:
                self._read_more(deadline, "a message")
            except TimeoutExceeded:
                return None
        message, numbers = self._messages.popleft()
        self._handed += numbers
        self._last_count = len(numbers)
        return message

    def __iter__(self) -> Iterator[Message]:
        while (message := self.receive()) is not None:
            yield message

    def ack(self, message: Message | None = None, *, timeout_s: float | None = None) -> None:
        """Acknowledge this message and all before it; without one, all that receive() has given."""
        count = len(self._handed)
        if message is not None:
            count = self._handed.index(message.sequence) + 1 if message.sequence in self._handed else 0
        acknowledged, self._handed = self._handed[:count], self._handed[count:]
        self._acknowledge(acknowledged, timeout_s)

    def _acknowledge(self, numbers: list[int], timeout_s: float | None = None) -> None:
        """These frames, which are the oldest."""
        if numbers:
            number = numbers[-1]
            numbers.clear()
            self._write(codec.encode_ack(self.agreed.ack_id, number), self._deadline(timeout_s))

    # ---- the end ----

    def close(self, timeout_s: float = GOODBYE_S) -> None:
        """Acknowledges what was handed out, and goes when the broker has read everything, or after timeout_s."""
        try:
            if self.auto_ack and not self._link.closed:
                self.ack(timeout_s=timeout_s)
            self._say_held(timeout_s)
        except VibeMQError:
            pass  # it is gone already
        finally:
            self._ended = self._ended or "this client was closed"
            self._leave(timeout_s)

    def _say_held(self, timeout_s: float) -> None:
        """Report the message that the program holds, and unsubscribe: it has failed, and earlier ones have not.

        With auto_ack the program was done with the earlier ones, so they are acknowledged. It never saw later ones.
        """
        if self._link.closed or not self._queues or not self.agreed.reply:
            return
        done, held = self._handed[: -self._last_count], self._handed[-1] if self._handed else 0
        if self.auto_ack:
            self._acknowledge(done, timeout_s)
        deadline = self._deadline(timeout_s)
        self._write(codec.encode_command("holding", [("number", str(held))]), deadline)
        while self._queues:  # the end of a connection alone may be a loss
            self._write(codec.encode_command("unsubscribe", [("destination", self._queues.pop())]), deadline)

    def _leave(self, timeout_s: float) -> None:
        """Goes when the peer has closed, too; at once would cost what is still on its way."""
        deadline = self._deadline(min(self.timeout_s, timeout_s))
        with contextlib.suppress(OSError, VibeMQError):
            self._link.end_sending()
            while deadline.left_s():
                self._link.wait_input(deadline)
                self._input.clear()
        self._link.close()

    def __exit__(self, kind: object, *_: object) -> None:
        """Wait until everything is accepted. After an error the last message is redelivered instead, as failed."""
        if kind is not None:
            with contextlib.suppress(VibeMQError):  # the lost connection may be the error
                self._say_held(GOODBYE_S)
            self._leave(GOODBYE_S)
            return
        try:
            if not self._link.closed:
                self.flush()
        finally:
            self.close()


def _pairs_of(pairs: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (key.rstrip("_").replace("_", "-"), str(value).lower() if isinstance(value, bool) else str(value))
        for key, values in pairs.items()
        for value in (values if isinstance(values, (list, tuple)) else [values])
    ]
