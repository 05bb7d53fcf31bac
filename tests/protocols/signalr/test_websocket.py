# SPDX-License-Identifier: Apache-2.0
"""The WebSocket frame reader and writers: a table of what a client may send, fed whole, in pieces, and with a tail."""

from typing import NamedTuple

import pytest
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
    closing,
    header,
    masked,
    without_words,
)

from vibemq.protocols.signalr import websocket

MESSAGE_MAX = 1000  # bytes, of the reader of every case
TAIL = masked(PING, b"tail")


def text(payload: bytes) -> Event:
    return Event("message", TEXT, payload)


def binary(payload: bytes) -> Event:
    return Event("message", BINARY, payload)


def ping(payload: bytes = b"") -> Event:
    return Event("ping", PING, payload)


def pong(payload: bytes = b"") -> Event:
    return Event("pong", PONG, payload)


def closed(code: int, reason: bytes = b"") -> Event:
    return Event("close", CLOSE, reason, code)


def fault(code: int) -> Event:
    return Event("fault", close_code=code)


class Case(NamedTuple):
    name: str
    data: bytes
    events: list[Event]
    oracle: bool = True  # the `websockets` library sees it the same way


def fragments(opcode: int, *pieces: bytes) -> bytes:
    last = len(pieces) - 1
    return b"".join(masked(CONTINUATION if i else opcode, piece, fin=i == last) for i, piece in enumerate(pieces))


HANDSHAKE = bytes.fromhex("81a0010203047a2073766e766c676e6e213e2368706b6f202f2677677177686d6d263b337e1a")
GREEK = "κόσμε 𝄞 €".encode()

CASES = [
    # messages of one frame
    Case("a hub handshake", HANDSHAKE, [text(b'{"protocol":"json","version":1}\x1e')]),
    Case("an empty text", masked(TEXT), [text(b"")]),
    Case("an empty binary message", masked(BINARY), [binary(b"")]),
    *(
        Case(f"a text of {size} bytes", masked(TEXT, b"*" * size), [text(b"*" * size)])
        for size in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 124, 125, 126, 127, 128, MESSAGE_MAX)
    ),
    Case("all values of a byte", masked(BINARY, bytes(range(256))), [binary(bytes(range(256)))]),
    Case("a mask of zeros", masked(TEXT, b"plain", mask=bytes(4)), [text(b"plain")]),
    Case("several messages", masked(TEXT, b"a") + masked(BINARY, b"b") * 2, [text(b"a"), binary(b"b"), binary(b"b")]),
    # too large, known from the header
    Case("a message one byte too large", header(TEXT, MESSAGE_MAX + 1), [fault(1009)]),
    Case("a message of 64 KiB", header(BINARY, 1 << 16), [fault(1009)]),
    Case("a message of all the bytes there are", header(BINARY, (1 << 63) - 1), [fault(1009)]),
    Case("fragments that add up to too much", fragments(BINARY, b"*" * 900, b"*" * 101), [fault(1009)]),
    Case(
        "fragments that add up to just enough",
        fragments(BINARY, b"a" * 900, b"b" * 100),
        [binary(b"a" * 900 + b"b" * 100)],
    ),
    # lengths
    Case("16 bits for 125 bytes", header(TEXT, 125, length_bytes=2), [fault(1002)], oracle=False),
    Case("64 bits for 65535 bytes", header(TEXT, 65535, length_bytes=8), [fault(1002)], oracle=False),
    Case("64 bits for nothing", header(TEXT, 0, length_bytes=8), [fault(1002)], oracle=False),
    Case("the highest bit of 64", header(BINARY, 1 << 63), [fault(1002)], oracle=False),
    # what no frame may say
    *(
        Case(f"reserved bits {bits:#x} on {opcode}", masked(opcode, b"x", reserved=bits), [fault(1002)])
        for bits in (0x10, 0x20, 0x40, 0x70)
        for opcode in (TEXT, PING, CLOSE)
    ),
    *(Case(f"opcode {opcode}", masked(opcode, b"x"), [fault(1002)]) for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)),
    *(
        Case(f"no mask on {opcode}", header(opcode, 1, mask=None) + b"x", [fault(1002)], oracle=False)
        for opcode in (TEXT, BINARY, PING)
    ),
    Case("a good message, then a bad one", masked(TEXT, b"good") + masked(3), [text(b"good"), fault(1002)]),
    # fragments
    Case("two fragments", fragments(TEXT, b"one ", b"two"), [text(b"one two")]),
    Case("many fragments of one byte", fragments(BINARY, *[b"x"] * 300), [binary(b"x" * 300)]),
    Case("empty fragments", fragments(TEXT, b"", b"", b""), [text(b"")]),
    Case("empty fragments around one", fragments(TEXT, b"", b"middle", b""), [text(b"middle")]),
    Case(
        "control frames between fragments",
        masked(TEXT, b"a", fin=False)
        + masked(PING, b"1")
        + masked(CONTINUATION, b"b", fin=False)
        + masked(PONG)
        + masked(CONTINUATION, b"c"),
        [ping(b"1"), pong(), text(b"abc")],
    ),
    Case(
        "fragmented messages behind each other",
        fragments(TEXT, b"a", b"b") + masked(BINARY, b"whole") + fragments(BINARY, b"c", b"d"),
        [text(b"ab"), binary(b"whole"), binary(b"cd")],
    ),
    Case("a continuation of nothing", masked(CONTINUATION, b"x"), [fault(1002)]),
    Case("a first fragment that says continuation", masked(CONTINUATION, b"x", fin=False), [fault(1002)]),
    Case("a continuation of a message that is whole", masked(TEXT) + masked(CONTINUATION), [text(b""), fault(1002)]),
    Case("a message inside another", masked(TEXT, b"a", fin=False) + masked(TEXT, b"b"), [fault(1002)]),
    Case("a fragment inside another message", masked(TEXT, fin=False) + masked(BINARY, fin=False), [fault(1002)]),
    Case("a close inside a message", masked(TEXT, b"a", fin=False) + closing(1001), [closed(1001)], oracle=False),
    # control frames
    Case("an empty ping", masked(PING), [ping()]),
    Case("the longest ping", masked(PING, b"\xff" * 125), [ping(b"\xff" * 125)]),
    Case("the longest pong", masked(PONG, bytes(125)), [pong(bytes(125))]),
    *(Case(f"{opcode} of 126 bytes", masked(opcode, bytes(126)), [fault(1002)]) for opcode in (PING, PONG, CLOSE)),
    *(Case(f"{opcode} in fragments", masked(opcode, fin=False), [fault(1002)]) for opcode in (PING, PONG, CLOSE)),
    # closing
    Case("a close without a code", closing(), [closed(1005)]),
    Case("a close with half a code", masked(CLOSE, b"\x03"), [fault(1002)]),
    Case("a close with a reason", closing(1000, GREEK), [closed(1000, GREEK)]),
    Case("a close with the longest reason", closing(4999, b"r" * 123), [closed(4999, b"r" * 123)]),
    Case("a close with a reason that is not UTF-8", closing(1000, b"\xce\xba\xe1"), [fault(1007)]),
    *(
        Case(f"close code {code}", closing(code), [closed(code)])
        for code in (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999)
    ),
    *(
        Case(f"close code {code}", closing(code), [fault(1002)])
        for code in (0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535)
    ),
    Case("frames after a close", closing(1000) + masked(TEXT, b"late") + masked(3), [closed(1000)]),
    # text
    Case("text in several alphabets", masked(TEXT, GREEK), [text(GREEK)]),
    Case("text cut anywhere", fragments(TEXT, *(bytes([byte]) for byte in GREEK)), [text(GREEK)]),
    Case("the last character there is", masked(TEXT, b"\xf4\x8f\xbf\xbf"), [text(b"\xf4\x8f\xbf\xbf")]),
    Case("bytes that are not UTF-8 as binary", masked(BINARY, b"\xff\xfe\xed\xa0"), [binary(b"\xff\xfe\xed\xa0")]),
    *(
        Case(f"not text: {name}", masked(TEXT, b"fine " * 5 + bad + b" fine" * 5), [fault(1007)])
        for name, bad in {
            "a byte that never occurs": b"\xff",
            "a continuation alone": b"\x80",
            "one continuation too many": b"\xce\xba\x80",
            "a surrogate": b"\xed\xa0\x80",
            "overlong, two bytes": b"\xc0\xaf",
            "overlong, three bytes": b"\xe0\x80\xaf",
            "overlong, four bytes": b"\xf0\x80\x80\xaf",
            "above the last": b"\xf4\x90\x80\x80",
            "cut short": b"\xe2\x82",
        }.items()
    ),
    Case("text that ends inside a character", masked(TEXT, b"\xe2\x82"), [fault(1007)]),
    Case("fragments that end inside a character", fragments(TEXT, b"ab\xe2", b"\x82"), [fault(1007)]),
    Case("an empty last fragment inside a character", fragments(TEXT, b"\xf0\x9d\x84", b""), [fault(1007)]),
    # fail fast: the message is not complete, and cannot become right
    Case("a first fragment that is not text", masked(TEXT, b"a\xffb", fin=False), [fault(1007)]),
    Case("a second fragment that is not text", fragments(TEXT, b"\xe2\x82", b"\xe2", b"")[:-6], [fault(1007)]),
    Case("a beginning of a surrogate", masked(TEXT, b"\xed\xa0", fin=False), [fault(1007)]),
    Case("a beginning above the last", masked(TEXT, b"\xf4\x90", fin=False), [fault(1007)]),
    Case("a beginning of nothing", masked(TEXT, b"abc\xf5", fin=False), [fault(1007)]),
]


def fed(*pieces: bytes) -> list[Event]:
    reader = FrameReader(MESSAGE_MAX)
    return without_words([event for piece in pieces for event in reader.feed(piece)])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_client_may_send(case: Case) -> None:
    over = case.events[-1].kind in ("fault", "close")
    then = [] if over else [ping(b"tail")]
    data = case.data
    assert fed(data) == case.events
    assert fed(*(data[i : i + 1] for i in range(len(data)))) == case.events
    assert fed(data + TAIL) == case.events + then
    assert fed(data, TAIL) == case.events + then
    for cut in range(len(data)):
        assert fed(data[:cut], data[cut:] + TAIL) == case.events + then, f"cut at byte {cut}"


@pytest.mark.parametrize("case", [case for case in CASES if case.oracle], ids=lambda case: case.name)
def test_the_websockets_library_agrees(case: Case) -> None:
    pytest.importorskip("websockets")
    assert Oracle(MESSAGE_MAX).feed(case.data) == case.events


def test_every_size_is_unmasked_wherever_it_lies_and_nothing_beside_it() -> None:
    for size in range(70):
        payload = bytes(range(size))
        for shift in range(9):
            before, after = masked(BINARY, b"<" * shift), masked(BINARY, b">" * 9)
            data = before + masked(BINARY, payload, mask=b"\x80\x41\x22\x13") + after
            assert fed(data) == [binary(b"<" * shift), binary(payload), binary(b">" * 9)], (size, shift)


@pytest.mark.parametrize("size", [1, 125, 126, 65535, 65536, 300_000])
def test_an_incomplete_frame_is_left_as_it_came(size: int) -> None:
    data = masked(BINARY, bytes(i & 0xFF for i in range(size)))
    reader = FrameReader()
    assert reader.feed(data[:-1]) == [] and reader.kept == data[:-1]
    assert reader.wanted == len(data)
    assert reader.feed(data[-1:]) == [binary(bytes(i & 0xFF for i in range(size)))] and reader.kept == b""


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", 0),
        (b"\x82", 0),
        (header(BINARY, 5)[:2], 11),
        (header(BINARY, 300)[:3], 0),
        (header(BINARY, 300)[:4], 308),
        (header(BINARY, 70_000)[:9], 0),
        (header(BINARY, 70_000)[:10], 70_014),
        (masked(TEXT, b"before") + header(PING, 125), 131),
        (masked(TEXT, b"a fragment", fin=False) + header(CONTINUATION, 40)[:2], 46),
    ],
)
def test_an_incomplete_frame_says_how_long_it_will_be_when_that_is_known(data: bytes, wanted: int) -> None:
    reader = FrameReader()
    reader.feed(data)
    assert reader.wanted == wanted


def test_fragments_take_no_more_memory_than_a_message_may_and_give_it_back() -> None:
    reader = FrameReader(100_000)
    for piece in range(100):
        reader.feed(masked(CONTINUATION if piece else BINARY, bytes(999), fin=False))
        assert 999 * (piece + 1) <= reader.reader.begun_capacity <= 100_000
    assert reader.feed(masked(CONTINUATION)) == [binary(bytes(99_900))]
    assert reader.reader.begun_capacity == 0


@pytest.mark.parametrize(
    "end", [closing(1000), masked(3), header(CONTINUATION, 1 << 40)], ids=["close", "bad", "large"]
)
def test_a_connection_that_is_over_keeps_nothing(end: bytes) -> None:
    reader = FrameReader(100_000)
    reader.feed(masked(BINARY, bytes(50_000), fin=False))
    assert len(reader.feed(end)) == 1 and reader.reader.over
    assert reader.reader.begun_capacity == 0
    assert reader.feed(masked(TEXT, b"late")) == [] and reader.kept == b""


def test_the_limit_of_a_message_can_be_changed_between_and_inside_messages() -> None:
    reader = FrameReader(10)
    assert reader.feed(masked(TEXT, b"0123456789")) == [text(b"0123456789")]
    reader.reader.message_max = 20
    assert reader.feed(masked(TEXT, b"0" * 20)) == [text(b"0" * 20)]
    reader.feed(masked(TEXT, b"0" * 15, fin=False))
    reader.reader.message_max = 5
    assert without_words(reader.feed(masked(CONTINUATION))) == [fault(1009)]


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.events[-1].kind == "fault"], ids=lambda case: case.name
)
def test_a_fault_has_words_that_fit_a_close_frame(case: Case) -> None:
    words = FrameReader(MESSAGE_MAX).feed(case.data)[-1].fault
    assert words and websocket.close_frame(1002, words).endswith(words.encode())


# ---- writing ----


@pytest.mark.parametrize(
    ("opcode", "payload", "wire"),
    [
        (TEXT, b"{}\x1e", "81037b7d1e"),
        (BINARY, bytes.fromhex("029106"), "8203029106"),
        (
            TEXT,
            b'{"type":6}\x1e{"type":3,"invocationId":"1"}\x1e',
            "81297b2274797065223a367d1e7b2274797065223a332c22696e766f636174696f6e4964223a2231227d1e",
        ),
        (PONG, b"", "8a00"),
    ],
)
def test_frames_as_real_clients_accepted_them(opcode: int, payload: bytes, wire: str) -> None:
    assert websocket.frame(opcode, payload).hex() == wire


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536])
def test_a_client_reads_what_we_write(size: int) -> None:
    pytest.importorskip("websockets")
    from websockets.protocol import CLIENT, OPEN, Protocol

    client = Protocol(CLIENT, state=OPEN)
    data = websocket.frame(BINARY, bytes(size))
    assert len(data) == size + (2 if size <= 125 else 4 if size <= 65535 else 10)
    client.receive_data(data)
    (received,) = client.events_received()
    assert received.data == bytes(size) and received.fin and client.parser_exc is None


def test_close_frames() -> None:
    assert websocket.close_frame(1000).hex() == "880203e8"
    assert websocket.close_frame(1011).hex() == "880203f3"
    assert websocket.close_frame(1005).hex() == "8800"
    assert websocket.close_frame(1002, "why") == b"\x88\x05\x03\xeawhy"


@pytest.mark.parametrize("reason", ["r" * 123, "r" * 124, "é" * 62, "r" + "é" * 61, "€" * 41, "r" + "€" * 41, "𝄞" * 31])
def test_a_long_reason_is_cut_at_a_character(reason: str) -> None:
    sent = websocket.close_frame(1000, reason)[4:]
    assert 120 <= len(sent) <= 123 and reason.startswith(sent.decode())


def test_a_reason_that_cannot_be_text_is_sent_all_the_same() -> None:
    assert websocket.close_frame(1000, "a\ud800b")[4:] == b"a?b"
