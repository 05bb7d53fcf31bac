# SPDX-License-Identifier: Apache-2.0
"""A connection of MicroMsg2 below what its user does: the handshake, and frames as they come, sorted into messages,
acknowledgements, answers and refusals."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import re
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from vibemq.addresses import host_port
from vibemq.client._transport import Deadline, Transport
from vibemq.errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionClosed,
    ProtocolError,
    RequestFailed,
    TimeoutExceeded,
    VibeMQError,
)
from vibemq.protocols.micromsg2 import codec, extensions, spec
from vibemq.protocols.micromsg2.codec import Command, ErrorFrame, ExtensionFrame, Handshake, MalformedFrame
from vibemq.protocols.micromsg2.spec import ErrorCode, ExtensionName

# What this client knows how to keep. A heartbeat would need a thread.
SUPPORTED = frozenset(ExtensionName) - {ExtensionName.HEARTBEAT}
RECEIVE_BYTES = 65_536  # of one call
PASSWORD_ROUNDS_MAX = 10_000_000  # of a challenge: a broker that asks for more wants our processor
ERROR_TEXT = re.compile(r"([A-Z_]+): (.*)", re.S)
REFUSED_NUMBER = re.compile(r"message ([0-9]{1,5}): ")


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


class Conversation:
    """Reading never writes, but for the last words to a peer that broke the protocol."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self.peer = host_port(host, port)
        self.timeout_s = timeout_s
        self.refused: list[Refused] = []
        self._unacknowledged: deque[int] = deque()  # sent; consecutive numbers
        self._sequence = 0
        self._refused_numbers: set[int] = set()  # of those
        self._sent_type: str | None = None
        self._messages: deque[tuple[Message, list[int]]] = deque()  # received, not yet handed out; and their frames
        self._handed: list[int] = []  # the unacknowledged frames of messages that were
        self._queues: set[str] = set()  # subscribed to; the end of the connection leaves topics
        self._last_count = 0  # deliveries of the last one among them
        self._part: codec.Message | None = None  # the first fragment of a message that goes on
        self._part_payload = bytearray()
        self._part_numbers: list[int] = []  # its unacknowledged frames
        self._received_type: str | None = None
        self._answers: dict[str, Command] = {}
        self._ids = itertools.count(1)
        self._input = bytearray()  # what came and was not yet understood
        self._ended = ""  # why nothing goes any more
        self._link = Transport(host, port, tls, timeout_s, "MicroMsg2", self._receive)

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
        self._link.take_input()
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

    def _drop_refused(self) -> None:
        """No acknowledgement comes for what was refused and everything before it has one."""
        while self._unacknowledged and self._unacknowledged[0] in self._refused_numbers:
            self._refused_numbers.discard(self._unacknowledged.popleft())


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


def lists_of(require: Iterable[str], offer: Iterable[str]) -> extensions.Lists:
    """What C1 has, of items of extension lists."""
    lists = extensions.first(*(extensions.parse_list(";".join(items)) for items in (require, offer)))
    if unknown := [item.name for item in lists if item.name not in SUPPORTED]:
        raise ConfigError(f"extensions: needed {', '.join(sorted(SUPPORTED))}, had {', '.join(unknown)}")
    return lists
