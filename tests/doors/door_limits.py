# SPDX-License-Identifier: Apache-2.0
"""Bodies at the limits of each type of JSON and MessagePack, as door_values.py has ordinary ones.

A value that JSON carries exactly is stored as JSON, also if a client sent it in MessagePack.  Any other value is stored
as the sender's MessagePack.  A MessagePack client of the hub gets these bytes.  A JSON client and a native client get
the JSON in these tables.
"""

from __future__ import annotations

import binascii
from typing import Any

import msgspec
from door_clients import JSON, Message, Packed, Unread, packed
from door_values import BASE64, Row

MSGPACK = "application/msgpack"
TEXT_UTF8 = "text/plain; charset=utf-8"
NAN, INFINITY = float("nan"), float("inf")


def in_json(value: Any, *senders: str, text: str | None = None, messagepack: Any = None) -> Row:
    """A value that JSON carries. `text`: its spelling; `messagepack`: another message for MessagePack clients."""
    stored = msgspec.json.encode(value) if text is None else text.encode()
    words: dict[str, Any] = {
        "native": Message(value),
        "streams": Message(stored, content_type=JSON),
        "signalr": Message(value),
        "micromsg2": Message(stored, content_type=JSON),
        "messagepack": Message(packed(value)) if messagepack is None else messagepack,
    }
    return Row(sent={sender: words[sender] for sender in senders}, got=words | {"spark": Message(stored)})


def only_messagepack(raw: bytes, value: Any) -> Row:
    """A value that JSON cannot carry. `value`: its conversion to JSON."""
    raw = bytes(raw)
    stored = Message(raw, content_type=MSGPACK)
    return Row(
        sent={"messagepack": Message(Packed(raw)), "streams": stored, "micromsg2": stored},
        got={
            "native": Message(value),
            "streams": stored,
            "signalr": Message(value, content_type=MSGPACK),
            "micromsg2": stored,
            "spark": Message(raw),
            "messagepack": Message(Packed(raw), content_type=MSGPACK),
        },
    )


def only_bytes(raw: bytes) -> Row:
    """Bytes with the content type of MessagePack that are not one value of it."""
    stored = Message(raw, content_type=MSGPACK)
    return Row(
        sent={"streams": stored, "micromsg2": stored, "signalr": stored},
        got={
            "native": Message(raw, headers=BASE64),
            "streams": stored,
            "signalr": stored,
            "micromsg2": stored,
            "spark": Message(raw),
        },
    )


def nested(depth: int, *inside: Any) -> Any:
    value: Any = list(inside)
    for _ in range(depth - 1):
        value = [value]
    return value


def text_of(value: str) -> Row:
    """A str of MessagePack, which is stored as a text and not as JSON."""
    stored = Message(value.encode(), content_type=TEXT_UTF8)
    return Row(
        sent={"messagepack": Message(packed(value)), "streams": stored, "micromsg2": stored},
        got={
            "native": Message(value),
            "streams": stored,
            "signalr": Message(value, content_type=TEXT_UTF8),
            "micromsg2": stored,
            "spark": Message(value.encode()),
        },
    )


WRITERS = ("native", "streams", "micromsg2", "messagepack")  # the hub's JSON client writes numbers in its own form
EVERY = (*WRITERS, "signalr")
HUGE = "\N{BEAR FACE}" * 25_000
DAY = "65539780"  # seconds of 2023-11-14T15:51:28Z

LIMITS = {
    "true and false": in_json([True, False], *EVERY),
    "no elements": in_json([], *EVERY),
    "no members": in_json({}, *EVERY),
    "an empty key": in_json({"": 1}, *EVERY),
    "2^53 + 1": in_json(2**53 + 1, *EVERY),
    "2^63 - 1": in_json(2**63 - 1, *EVERY),
    "-2^63": in_json(-(2**63), *EVERY),
    "2^64 - 1": in_json(2**64 - 1, *EVERY),
    "2^64, too large for MessagePack": in_json(
        2**64, "streams", "micromsg2", messagepack=Message(packed(str(2**64)), content_type=JSON)
    ),
    "the largest double": in_json(1.7976931348623157e308, *WRITERS),
    "the smallest double": in_json(5e-324, *WRITERS),
    "-0.0": in_json(-0.0, *EVERY),
    "1.0, a double": in_json([1.0], *EVERY),
    "1e400, too large for a double": Row(
        sent={"streams": Message(b"1e400", content_type=JSON), "micromsg2": Message(b"1e400", content_type=JSON)},
        got={
            "native": Message(Unread(b"1e400")),
            "streams": Message(b"1e400", content_type=JSON),
            "signalr": Message(INFINITY),
            "micromsg2": Message(b"1e400", content_type=JSON),
            "spark": Message(b"1e400"),
            "messagepack": Message(packed("1e400"), content_type=JSON),
        },
    ),
    "a number with more digits than a double": in_json(
        0.1, "streams", "micromsg2", text="0.1000000000000000055511151231257827"
    ),
    "a repeated key: the last counts": in_json({"a": 2}, "streams", "micromsg2", text='{"a":1,"a":2}'),
    "-0, an integer": in_json(0, "streams", "micromsg2", text="-0"),
    "60 levels": in_json(nested(60), *EVERY),
    "61 levels, a text for hub clients": Row(
        sent={"streams": Message(b"[" * 61 + b"]" * 61, content_type=JSON)},
        got={
            "native": Message(nested(61)),
            "streams": Message(b"[" * 61 + b"]" * 61, content_type=JSON),
            "signalr": Message("[" * 61 + "]" * 61, content_type=JSON),
            "micromsg2": Message(b"[" * 61 + b"]" * 61, content_type=JSON),
            "spark": Message(b"[" * 61 + b"]" * 61),
        },
    ),
    "100 kB of four-byte characters": in_json([HUGE], "native", "streams", "micromsg2", "messagepack"),
    "a str": text_of("na\N{LATIN SMALL LETTER I WITH DIAERESIS}ve"),
    "an empty str": Row(
        sent={"messagepack": Message(packed(""))},
        got={
            "native": Message(None),
            "streams": Message(b"", content_type=TEXT_UTF8),
            "signalr": Message("", content_type=TEXT_UTF8),
            "micromsg2": Message(b"", content_type=TEXT_UTF8),
            "spark": Message(b""),
        },
    ),
    "bin": Row(
        sent={"messagepack": Message(Packed(b"\xc4\x02\0\xff"))},
        got={
            "native": Message(b"\0\xff", headers=BASE64),
            "streams": Message(b"\0\xff", content_type="application/octet-stream"),
            "signalr": Message(b"\0\xff", content_type="application/octet-stream"),
            "micromsg2": Message(b"\0\xff", content_type="application/octet-stream"),
            "spark": Message(b"\0\xff"),
            "messagepack": Message(Packed(b"\xc4\x02\0\xff"), content_type="application/octet-stream"),
        },
    ),
    "a float of 32 bits, returned as 64": Row(
        sent={"messagepack": Message(Packed(b"\xca\x3d\xcc\xcc\xcd"))},
        got={
            "native": Message(0.10000000149011612),
            "streams": Message(b"0.10000000149011612", content_type=JSON),
            "signalr": Message(0.10000000149011612),
            "micromsg2": Message(b"0.10000000149011612", content_type=JSON),
            "spark": Message(b"0.10000000149011612"),
        },
    ),
    "an integer in more bytes than necessary": Row(
        sent={"messagepack": Message(Packed(b"\xd3\0\0\0\0\0\0\0\x07"))}, got=in_json(7).got
    ),
    "a repeated key in MessagePack": Row(
        sent={"messagepack": Message(Packed(b"\x82\xa1a\x01\xa1a\x02"))}, got=in_json({"a": 2}).got
    ),
    # ---- values that only MessagePack carries ----
    "bin in a map": only_messagepack(packed({"a": b"\0\xff"}), {"a": "AP8="}),
    "empty bin in an array": only_messagepack(packed([b""]), [""]),
    "100 kB of bin in a map": only_messagepack(
        packed({"a": bytes(range(256)) * 400}),
        {"a": binascii.b2a_base64(bytes(range(256)) * 400, newline=False).decode()},
    ),
    "NaN": only_messagepack(packed(NAN), "NaN"),
    "a NaN of 32 bits": only_messagepack(b"\xca\x7f\xc0\0\0", "NaN"),
    "infinity and minus infinity": only_messagepack(packed([INFINITY, -INFINITY]), ["Infinity", "-Infinity"]),
    "integers as keys": only_messagepack(packed({1: "a", 2**64 - 1: -(2**63)}), {"1": "a", str(2**64 - 1): -(2**63)}),
    "null, true, a double and bin as keys": only_messagepack(
        b"\x84\xc0\x01\xc3\x02\xcb\x3f\xe0\0\0\0\0\0\0\x03\xc4\x01\xff\x04",
        {"null": 1, "true": 2, "0.5": 3, "/w==": 4},
    ),
    "an array and an ext as keys": only_messagepack(b"\x82\x91\x01\x01\xd4\x05x\x02", {"kQE=": 1, "1AV4": 2}),
    "a timestamp of 32 bits": only_messagepack(bytes.fromhex("d6ff" + DAY), "2023-11-14T15:51:28Z"),
    "the largest timestamp of 32 bits": only_messagepack(b"\xd6\xff\xff\xff\xff\xff", "2106-02-07T06:28:15Z"),
    "a tick of 100 ns": only_messagepack(
        b"\x81\xa2at\xd7\xff" + bytes.fromhex("00000190" + DAY), {"at": "2023-11-14T15:51:28.0000001Z"}
    ),
    "a nanosecond": only_messagepack(b"\xd7\xff" + bytes.fromhex("00000004" + DAY), "2023-11-14T15:51:28.000000001Z"),
    "the first date of .NET": only_messagepack(bytes.fromhex("c70cff00000000fffffff1886e0900"), "0001-01-01T00:00:00Z"),
    "the last date of .NET": only_messagepack(
        bytes.fromhex("c70cff3b9ac99c0000003afff4417f"), "9999-12-31T23:59:59.9999999Z"
    ),
    "a timestamp outside of ISO 8601": only_messagepack(
        bytes.fromhex("c70cff000000007fffffffffffffff"), [-1, "AAAAAH//////////"]
    ),
    "another ext": only_messagepack(b"\xd4\x05x", [5, "eA=="]),
    "an empty ext": only_messagepack(b"\xc7\0\x80", [-128, ""]),
    "60 levels around bin": only_messagepack(b"\x91" * 60 + b"\xc4\0", nested(60, "")),
    "bytes with the content type of MessagePack, invalid": only_bytes(b"\x81\xff"),
    "bytes with the content type of MessagePack, two values": only_bytes(b"\xc0\xff"),
}
