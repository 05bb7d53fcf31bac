# SPDX-License-Identifier: Apache-2.0
"""Random bytes against the WebSocket frame reader, as tests/fuzzing.py says.

The invariant in one sentence: whatever a client sends, and however the network cuts it, the reader gives the events
that the `websockets` library gives, keeps no more than a frame and a message, and reads nothing after a fault.
"""

import random

import pytest
from fuzzing import LIMIT_S, seeded, steps
from peers.websocket_frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    Event,
    FrameReader,
    Oracle,
    masked,
    may_differ,
    without_words,
)

pytest.importorskip("websockets", reason="websockets is not installed")
pytestmark = [pytest.mark.fuzz]

MESSAGE_MAX = 3000
HEADER_BYTES_MAX = 14
TEXTS = ("plain text ", "κόσμε ", "€", "𝄞", "\x1e", '{"type":6}\x1e')


def payload_of(opcode: int, random_: random.Random) -> bytes:
    if opcode == CLOSE:
        code = random_.choice((1000, 1001, 1003, 1005, 1011, 1015, 3000, 4999, random_.randrange(1 << 16)))
        return code.to_bytes(2, "big") + random_.choice((b"", "fin €".encode(), b"\xff"))
    if opcode in (PING, PONG):
        return random_.randbytes(random_.choice((0, 1, 7, 125)))
    size = random_.choice((0, 1, 3, 8, 60, 125, 126, 900, random_.randrange(MESSAGE_MAX + 20)))
    if random_.random() < 0.2:
        return random_.randbytes(size)
    return "".join(random_.choice(TEXTS) for _ in range(size // 3)).encode()


def conversation(random_: random.Random) -> bytes:
    """Frames of a client: mostly right, its texts cut anywhere, and now and then broken."""
    frames: list[bytes] = []
    for _ in range(random_.randint(1, 12)):
        opcode = random_.choices((TEXT, BINARY, PING, PONG, CLOSE), (40, 20, 10, 5, 1))[0]
        payload = payload_of(opcode, random_)
        if opcode in (TEXT, BINARY) and random_.random() < 0.5:
            cuts = sorted(random_.randrange(len(payload) + 1) for _ in range(random_.randint(1, 5)))
            pieces = [payload[a:b] for a, b in zip([0, *cuts], [*cuts, len(payload)], strict=True)]
        else:
            pieces = [payload]
        for number, piece in enumerate(pieces):
            kind, is_last = CONTINUATION if number else opcode, number == len(pieces) - 1
            frames.append(masked(kind, piece, fin=is_last, mask=random_.randbytes(4)))
            if not is_last and random_.random() < 0.2:
                frames.append(masked(PING, b"between"))
    if random_.random() < 0.3:
        at = random_.randrange(len(frames))
        broken = bytearray(frames[at])
        match random_.randrange(4):
            case 0:  # the first byte: FIN, reserved bits, opcode
                broken[0] ^= 1 << random_.randrange(8)
            case 1:
                broken[random_.randrange(len(broken))] ^= 1 << random_.randrange(8)
            case 2:
                frames.insert(at, frames[random_.randrange(len(frames))])
            case _:
                del broken[random_.randrange(len(broken))]
        frames[at] = bytes(broken)
    return b"".join(frames) if random_.random() < 0.95 else random_.randbytes(random_.randint(1, 300))


def pieces_of(data: bytes, random_: random.Random) -> list[bytes]:
    cuts = sorted(random_.randrange(len(data) + 1) for _ in range(random_.choice((0, 1, 5, 100))))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def read(pieces: list[bytes]) -> list[Event]:
    reader, events = FrameReader(MESSAGE_MAX), []
    for piece in pieces:
        events += reader.feed(piece)
        assert len(reader.kept) < HEADER_BYTES_MAX + MESSAGE_MAX
        assert reader.reader.begun_capacity <= MESSAGE_MAX
        assert not (reader.wanted and reader.wanted <= len(reader.kept)), "a whole frame was not taken"
    assert [event.kind in ("close", "fault") for event in events[:-1]].count(True) == 0, "something after the end"
    return events


@pytest.mark.timeout(LIMIT_S)
def test_whatever_a_client_sends_is_read_as_others_read_it():
    random_ = seeded()
    kinds = set()
    for _ in steps(5_000):
        data = conversation(random_)
        events = read([data])
        assert read(pieces_of(data, random_)) == events
        is_fault = bool(events) and events[-1].kind == "fault"  # at a header; the library waits for the frame behind it
        oracle = Oracle(MESSAGE_MAX).feed(data + bytes(HEADER_BYTES_MAX + MESSAGE_MAX) * is_fault)
        assert without_words(events) == oracle or may_differ(events, oracle)
        kinds.update(event.kind for event in events)
    assert kinds == {"message", "ping", "pong", "close", "fault"}
