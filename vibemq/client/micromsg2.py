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
import hashlib
import hmac
import itertools
import math
import re
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from vibemq.client._failures import wrong_door
from vibemq.client._transport import Deadline, Transport
from vibemq.errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionClosed,
    LimitExceeded,
    ProtocolError,
    PublishTimeout,
    RequestFailed,
    TimeoutExceeded,
    VibeMQError,
)
from vibemq.protocols.micromsg2 import codec, extensions, spec
from vibemq.protocols.micromsg2.codec import Command, ErrorFrame, ExtensionFrame, Handshake, MalformedFrame
from vibemq.protocols.micromsg2.spec import ErrorCode, ExtensionName

__all__ = ["Message", "Micromsg2Client", "Refused"]

OFFERS = ("batch-ack:max-count=1000", "dotnet", "pub-sub", "x-reply")
# What this client knows how to keep. A heartbeat would need a thread.
SUPPORTED = frozenset(ExtensionName) - {ExtensionName.HEARTBEAT}
RECEIVE_BYTES = 65_536  # a Transport asks for so much several times, and no more than that until it is understood
GOODBYE_S = 2.0  # for the broker to close its half
PASSWORD_ROUNDS_MAX = 10_000_000  # of a challenge: a broker that asks for more wants our processor
ERROR_TEXT = re.compile(r"([A-Z_]+): (.*)", re.S)
REFUSED_NUMBER = re.compile(r"message ([0-9]{1,5}): ")
SUBSCRIPTION_OVER = "the subscription to "


class Refused(RequestFailed):
    """An ERROR of the peer, or its answer to a command: `code` (empty where the text has none) and `text`.

    `others` are refusals that came together with this one.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}" if code else text, code=code)
        self.text = text
        self.others: tuple[Refused, ...] = ()


class Message(NamedTuple):
    """What was delivered; of a property that is there twice the last."""

    destination: str
    payload: bytes
    properties: dict[str, codec.PropertyValue]
    dotnet_type: str | None
    sequence: int


class Micromsg2Client(contextlib.AbstractContextManager["Micromsg2Client"]):
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
        self.peer = f"{host}:{port}"
        self.timeout_s, self.auto_ack = timeout_s, auto_ack
        self.refused: list[Refused] = []
        self._unacknowledged: deque[int] = deque()  # sent; consecutive numbers
        self._sequence = 0
        self._refused_numbers: set[int] = set()  # of those
        self._sent_type: str | None = None
        self._messages: deque[tuple[Message, list[int]]] = deque()  # received, not yet handed out; and their frames
        self._handed: list[int] = []  # the unacknowledged frames of messages that were
        self._part: codec.Message | None = None  # the first fragment of a message that goes on
        self._part_payload = bytearray()
        self._part_numbers: list[int] = []  # its unacknowledged frames
        self._received_type: str | None = None
        self._answers: dict[str, Command] = {}
        self._ids = itertools.count(1)
        self._input = bytearray()  # what came and was not yet understood
        self._ended = ""  # why nothing goes any more
        c1 = extensions.first(_list_of(require), _list_of(offer))
        self._link = Transport(host, port, tls, timeout_s, "MicroMsg2", self._receive)
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

    # ---- the handshake ----

    def _handshake(self, identity: bytes, c1: extensions.Lists, user: str | None, password: str) -> None:
        if user is not None:
            login = extensions.Extension(ExtensionName.MICROAUTH, {"user": user})
            c1 = extensions.Lists((*c1.required, login), c1.optional)
        deadline = self._deadline()
        self._write(codec.encode_handshake(extensions.handshake_of(c1, identity=identity)), deadline)
        self._s1 = self._read_handshake(deadline)
        try:
            answers = {} if user is None else {str(ExtensionName.MICROAUTH): self._login(user, password)}
            lists = extensions.answer(c1, self._s1, supported=SUPPORTED, answers=answers)
            c2 = extensions.handshake_of(lists, identity=identity)
            self.agreed = extensions.agree(c2)
        except extensions.Refusal as problem:
            self._say_last(problem.text)
            raise
        self._window = self.agreed.window
        is_sharp = self._s1.minor == spec.MINOR_SHARP_MESSAGING
        self._ack_count = self._window if is_sharp else max(1, self._window // 2)
        self._write(codec.encode_handshake(c2), deadline)

    @property
    def server(self) -> str:
        """What the server calls itself."""
        return self._s1.identity.decode("ascii", "replace")

    def _read_handshake(self, deadline: Deadline) -> Handshake:
        while True:
            try:
                found = codec.decode_handshake(self._input)
            except MalformedFrame as problem:
                self._check_last_error()
                self._say_last(f"{problem.error_code}: {problem}")
                raise
            if found is not None:
                message, used = found
                del self._input[:used]
                if isinstance(message, ErrorFrame):
                    raise refusal_of(message.text)
                return message
            self._wait_input(deadline, "the handshake")

    def _login(self, user: str, password: str) -> dict[str, str]:
        """The properties of microauth in C2."""
        if self._link.is_private:
            return {"user": user, "password": password}
        item = next((item for item in extensions.lists_of(self._s1) if item.name == ExtensionName.MICROAUTH), None)
        asked = [item and item.property(key) for key in ("mechanism", "salt", "rounds", "nonce")]
        mechanism, salt, rounds, nonce = (value or "" for value in asked)
        try:
            if mechanism != "hmac-sha256" or not 0 < int(rounds) <= PASSWORD_ROUNDS_MAX:
                raise ValueError
            proof = client_proof(user, password, bytes.fromhex(salt), int(rounds), bytes.fromhex(nonce))
        except ValueError:
            raise AuthenticationFailed(
                f"{self.peer}: microauth: needed a challenge of hmac-sha256, had {item or 'none'}",
                hint="Without one the password would go over the network for all to read; connect with TLS.",
            ) from None
        return {"user": user, "proof": proof.hex()}

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

    def _drop_refused(self) -> None:
        """No acknowledgement comes for what was refused and everything before it has one."""
        while self._unacknowledged and self._unacknowledged[0] in self._refused_numbers:
            self._refused_numbers.discard(self._unacknowledged.popleft())

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
        self._pub_sub("subscribe", timeout_s, destination=destination, **wanted, **more)

    def unsubscribe(self, destination: str, *, timeout_s: float | None = None) -> None:
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

    # ---- bytes ----

    def _deadline(self, timeout_s: float | None = None) -> Deadline:
        return Deadline(self.timeout_s if timeout_s is None else timeout_s, f"{self.peer}: waiting for the broker")

    def _write(self, data: bytes, deadline: Deadline) -> None:
        try:
            self._link.send(data, deadline)
        except TimeoutExceeded:
            self._end("the broker did not read on in time")
            raise
        except ConnectionClosed as lost:
            self._take_frames()  # it may have said why
            self._lost(lost.message.removeprefix(f"{self.peer}: "))

    def _receive(self, receive_into: Callable[[bytearray], int]) -> int:
        room = bytearray(RECEIVE_BYTES)
        got = receive_into(room)
        self._input += room[:got]
        return got

    def _say_last(self, text: str) -> None:
        """As much of an ERROR as the socket takes, and the end."""
        with contextlib.suppress(VibeMQError):
            self._link.send(codec.encode_error(text), Deadline(0.0, "the last words"))
        self._link.close()

    def _wait_input(self, deadline: Deadline, what: str) -> None:
        deadline.what = f"{self.peer}: waiting for {what}"
        try:
            self._link.wait_input(deadline)
        except ConnectionClosed:
            self._check_last_error()
            self._lost("the broker closed the connection")

    def _check_last_error(self) -> None:
        """What an early release of the .NET implementation says last has a form of its own."""
        if (error := codec.last_error(self._input)) is not None:
            raise refusal_of(error.text)

    def _read_more(self, deadline: Deadline, what: str) -> None:
        self._wait_input(deadline, what)
        self._take_frames()

    def _take_input(self) -> None:
        """What is there already, without waiting; who waits hears of an end."""
        with contextlib.suppress(ConnectionClosed):
            self._link.poll_input()
        self._take_frames()

    def _end(self, why: str) -> None:
        """The first reason is the one to tell."""
        self._ended = self._ended or why
        self._link.close()

    def _lost(self, why: str) -> None:
        self._end(why)
        if self.refused:  # its last words
            raise self.refused.pop()
        hint = "What is unacknowledged may or may not be accepted. Connect again with another client."
        raise ConnectionClosed(f"{self.peer}: {self._ended}", hint=hint)

    def _take_frames(self) -> None:
        at = 0
        try:
            with memoryview(self._input) as data:
                while (found := codec.decode_frame(data[at:])) is not None:
                    at += found[1]
                    self._take(found[0])
        except ProtocolError as problem:
            code = getattr(problem, "error_code", ErrorCode.PROTOCOL_ERROR)
            self._input.clear()
            self._say_last(f"{code}: {problem}")
            raise
        del self._input[:at]

    def _take(self, frame: codec.Frame) -> None:
        match frame:
            case codec.Message():
                self._take_message(frame)
            case ExtensionFrame(number, payload):
                self._take_extension(number, payload)
            case ErrorFrame(text):
                self.refused.append(refusal_of(text))
                said = REFUSED_NUMBER.match(self.refused[-1].text)
                if said is not None and int(said[1]) in self._unacknowledged:
                    self._refused_numbers.add(int(said[1]))
                    self._drop_refused()
            case Command(name, pairs) if name in ("ok", "error"):
                self._answers[dict(pairs).get("id", "")] = frame

    def _take_message(self, frame: codec.Message) -> None:
        if self._window:
            self._part_numbers.append(frame.sequence)
        first = self._part or frame
        if self._part is not None and frame.destination not in (b"", first.destination):
            raise ProtocolError("a message to another destination in the middle of a continued one")
        if len(self._part_payload) + len(frame.payload) > spec.PAYLOAD_BYTES_MAX_DEFAULT:
            raise ProtocolError(f"a continued message of more than {spec.PAYLOAD_BYTES_MAX_DEFAULT} bytes")
        if frame.continued:
            self._part = first
            self._part_payload += frame.payload
            return
        payload = bytes(self._part_payload) + frame.payload if self._part else frame.payload
        self._part = None
        self._part_payload.clear()
        where, properties = first.destination.decode("utf-8", "replace"), dict(codec.parse_properties(first.properties))
        message = Message(where, payload, properties, self._received_type, frame.sequence)
        self._messages.append((message, self._part_numbers))
        self._part_numbers = []

    def _take_extension(self, number: int, payload: bytes) -> None:
        if not 1 <= number <= len(self.agreed.ids):
            raise ProtocolError(f"extension id: needed 1 to {len(self.agreed.ids)}, had {number}")
        if number == self.agreed.dotnet_id:
            text = payload.decode("utf-8", "replace")
            self._received_type = None if text == spec.DOTNET_TYPE_NONE else text
        elif number == self.agreed.ack_id and self._unacknowledged:
            # All up to this number; one that nobody waits for is late, and means nothing.
            last = codec.ack_sequence(payload)
            position = (last - self._unacknowledged[0]) % spec.SEQUENCE_MAX
            if 1 <= last <= spec.SEQUENCE_MAX and position < len(self._unacknowledged):
                for _ in range(position + 1):
                    self._refused_numbers.discard(self._unacknowledged.popleft())
                self._drop_refused()

    # ---- the end ----

    def close(self, timeout_s: float = GOODBYE_S) -> None:
        """Acknowledges what was handed out, and goes when the broker has read everything, or after timeout_s."""
        try:
            if self.auto_ack and not self._link.closed:
                self.ack(timeout_s=timeout_s)
        except VibeMQError:
            pass  # it is gone already
        finally:
            self._ended = self._ended or "this client was closed"
            self._leave(timeout_s)

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
        """Without an error it waits until everything is accepted; with one the last message comes again."""
        if kind is not None:
            self._leave(GOODBYE_S)
            return
        try:
            if not self._link.closed:
                self.flush()
        finally:
            self.close()


# ---- helpers ----


def refusal_of(text: str) -> Refused:
    found = ERROR_TEXT.fullmatch(text)
    return Refused(found[1], found[2]) if found else Refused("", text)


def client_proof(user: str, password: str, salt: bytes, rounds: int, nonce: bytes) -> bytes:
    """That we know the password: nobody who hears it can say it again, since the nonce is another one each time."""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, rounds)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    mask = hmac.digest(stored_key, user.encode() + b"," + nonce, "sha256")
    return bytes(a ^ b for a, b in zip(client_key, mask, strict=True))


def _list_of(items: Iterable[str]) -> tuple[extensions.Extension, ...]:
    found = extensions.parse_list(";".join(items))
    if unknown := [item.name for item in found if item.name not in SUPPORTED]:
        raise ConfigError(f"extensions: needed {', '.join(sorted(SUPPORTED))}, had {', '.join(unknown)}")
    return found


def _pairs_of(pairs: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (key.rstrip("_").replace("_", "-"), str(value).lower() if isinstance(value, bool) else str(value))
        for key, values in pairs.items()
        for value in (values if isinstance(values, (list, tuple)) else [values])
    ]
