# SPDX-License-Identifier: Apache-2.0
"""WebSocket frames for tests: as a client writes them, right or wrong, and what the `websockets` library makes of them.

The library is the oracle: written by others from the same RFC. It leaves UTF-8 to its caller, for which Python's own
decoder stands here. What it sees otherwise than we do is in `may_differ`.
"""

from typing import NamedTuple

from vibemq.protocols.signalr.websocket import MessageReader

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FIN = 0x80
MASK = bytes.fromhex("37fa213d")

KINDS = ("needs more", "message", "ping", "pong", "close", "fault")


class Event(NamedTuple):
    """What the reader has found; `payload` is a message, the payload of a ping or pong, or the reason of a close."""

    kind: str
    opcode: int = 0
    payload: bytes = b""
    close_code: int = 0
    fault: str = ""


class FrameReader:
    """A MessageReader and the connection in front of it: takes bytes as they come, keeps a frame that is not whole."""

    def __init__(self, message_max: int = 1 << 20) -> None:
        self.reader = MessageReader(message_max)
        self.kept = b""  # as they came, still masked
        self.wanted = 0  # bytes that the first of them needs in all, 0 when that is unknown

    def feed(self, data: bytes) -> list[Event]:
        """The events that are complete with these bytes."""
        given, at = bytearray(self.kept) + data, 0
        events: list[Event] = []
        while True:
            number, opcode, payload, used, wanted, code, fault = self.reader.read(given, at)
            at += used
            kind = KINDS[number]
            if kind == "needs more":
                self.kept, self.wanted = bytes(given[at:]), wanted
                return events
            if kind == "message":
                events.append(Event(kind, opcode, payload))
            elif kind == "close":
                events.append(Event(kind, CLOSE, payload, code))
            elif kind == "fault":
                events.append(Event(kind, 0, b"", code, fault))
            else:
                events.append(Event(kind, PING if kind == "ping" else PONG, payload))


def header(
    opcode: int, size: int, *, fin: bool = True, reserved: int = 0, mask: bytes | None = MASK, length_bytes: int = -1
) -> bytes:
    """A frame's header; `length_bytes` (0, 2 or 8) forces another form of the length than the shortest."""
    if length_bytes < 0:
        length_bytes = 0 if size <= 125 else 2 if size <= 0xFFFF else 8
    length = {0: size, 2: 126, 8: 127}[length_bytes] | (0x80 if mask is not None else 0)
    first = (FIN if fin else 0) | reserved | opcode
    return bytes([first, length]) + (size.to_bytes(length_bytes, "big") if length_bytes else b"") + (mask or b"")


def masked(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    reserved: int = 0,
    mask: bytes = MASK,
    length_bytes: int = -1,
) -> bytes:
    """A frame as a client sends it."""
    size = len(payload)
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    body = (int.from_bytes(payload, "big") ^ key).to_bytes(size, "big")
    return header(opcode, size, fin=fin, reserved=reserved, mask=mask, length_bytes=length_bytes) + body


def closing(code: int | None = None, reason: bytes = b"") -> bytes:
    return masked(CLOSE, (b"" if code is None else code.to_bytes(2, "big")) + reason)


class Oracle:
    """The events of a server, without their words, from the `websockets` library."""

    def __init__(self, message_max: int) -> None:
        from websockets.protocol import OPEN, SERVER, Protocol

        self.protocol = Protocol(SERVER, state=OPEN, max_size=message_max)
        self.opcode = 0
        self.message = b""
        self.over = False

    def feed(self, data: bytes) -> list[Event]:
        self.protocol.receive_data(data)
        events: list[Event] = []
        for received in self.protocol.events_received():
            if not self.over:
                self._received(received, events)
        problem = self.protocol.parser_exc
        if problem is not None and not self.over:
            self.over = True
            code = {"PayloadTooBig": 1009, "UnicodeDecodeError": 1007}.get(type(problem).__name__, 1002)
            events.append(Event("fault", close_code=code))
        return events

    def _received(self, received, events: list[Event]) -> None:
        opcode, payload = int(received.opcode), bytes(received.data)
        if opcode == CLOSE:
            self.over = True
            code = int.from_bytes(payload[:2], "big") if payload else 1005
            events.append(Event("close", CLOSE, payload[2:], code))
        elif opcode in (PING, PONG):
            events.append(Event("ping" if opcode == PING else "pong", opcode, payload))
        else:
            self.opcode = opcode or self.opcode
            self.message += payload
            if self.opcode == TEXT and not self._is_text(received.fin):
                self.over = True
                events.append(Event("fault", close_code=1007))
                return
            if received.fin:
                events.append(Event("message", self.opcode, self.message))
                self.message = b""

    def _is_text(self, is_last: bool) -> bool:
        try:
            self.message.decode()
        except UnicodeDecodeError as error:
            return error.reason == "unexpected end of data" and not is_last
        return True


def without_words(events: list[Event]) -> list[Event]:
    return [event._replace(fault="") for event in events]


def may_differ(events: list[Event], oracle: list[Event]) -> bool:
    """Where our events and the library's part: are both right?"""
    at = next(at for at in range(len(events) + 1) if events[at : at + 1] != oracle[at : at + 1])
    ours, theirs = events[at] if at < len(events) else Event("none"), oracle[at:]
    if ours.kind == "fault":
        # We refuse lengths that are not in their shortest form. Of two faults of one frame either may be told.
        return "length" in ours.fault or [event.kind for event in theirs] == ["fault"]
    # Control frames come between fragments as they like: to the library a close there is a fault, and their payload
    # counts as the message's.
    faults = {"close": (1002, 1009), "ping": (1009,), "pong": (1009,)}.get(ours.kind, ())
    return [event.kind for event in theirs] == ["fault"] and theirs[0].close_code in faults
