# SPDX-License-Identifier: Apache-2.0
"""AMQP 1.0 messages put together and taken apart by hand, as little of it as these tests need."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

NULL, TRUE, FALSE = b"\x40", b"\x41", b"\x42"
LIST = b"\x45"  # without elements
FIXED = {0x80: ">Q", 0x81: ">q", 0x82: ">d", 0x83: ">q", 0x53: ">B", 0x70: ">I"}
KINDS = {
    0x40: "null", 0x53: "ulong", 0x70: "uint", 0x80: "ulong", 0x81: "long", 0x82: "double", 0x83: "timestamp",
    0xA0: "binary", 0xB0: "binary", 0xA1: "string", 0xB1: "string", 0xA3: "symbol", 0xB3: "symbol",
}  # fmt: skip


def sized(code: int, data: bytes) -> bytes:
    return struct.pack(">BI", code, len(data)) + data


def binary(data: bytes) -> bytes:
    return sized(0xB0, data)


def string(text: str) -> bytes:
    return sized(0xB1, text.encode())


def symbol(text: str) -> bytes:
    return sized(0xB3, text.encode())


def number(code: int, form: str, value: float) -> bytes:
    return bytes([code]) + struct.pack(form, value)


def long(value: int) -> bytes:
    return number(0x81, ">q", value)


def ulong(value: int) -> bytes:
    return number(0x80, ">Q", value)


def double(value: float) -> bytes:
    return number(0x82, ">d", value)


def single(value: float) -> bytes:
    return number(0x72, ">f", value)


def timestamp(ms: int) -> bytes:
    return number(0x83, ">q", ms)


def section(descriptor: int, code: int, elements: list[bytes]) -> bytes:
    content = struct.pack(">I", len(elements)) + b"".join(elements)
    return bytes([0, 0x53, descriptor]) + sized(code, content)


def message(
    application: list[tuple[str, bytes]] | None = None,
    *,
    id: bytes = NULL,
    content_type: bytes = NULL,
    annotations: list[tuple[bytes, bytes]] | None = None,
    body: bytes = b"body",
) -> bytes:
    """All values but the body with their codes, as the functions above make them."""
    out = b""
    if annotations is not None:
        out += section(0x72, 0xD1, [part for pair in annotations for part in pair])
    if (id, content_type) != (NULL, NULL):
        out += section(0x73, 0xD0, [id, NULL, NULL, NULL, NULL, NULL, content_type])
    if application is not None:
        out += section(0x74, 0xD1, [part for key, value in application for part in (string(key), value)])
    return out + bytes([0, 0x53, 0x75]) + binary(body)


class TakenApart(NamedTuple):
    """Values as (kind, value); `sections` in the order in which they stand there."""

    sections: list[int]
    annotations: list[Any]
    properties: list[Any]
    application: list[tuple[Any, Any]]
    body: bytes

    @property
    def headers(self) -> dict[str, tuple[str, Any]]:
        assert len({key for key, _ in self.application}) == len(self.application), "a key is there twice"
        return {key[1]: value for key, value in self.application}

    @property
    def id(self) -> Any:
        return self.properties[0][1] if self.properties else None

    @property
    def content_type(self) -> Any:
        return self.properties[6][1] if len(self.properties) > 6 else None


def take_apart(data: bytes) -> TakenApart:
    at = 0

    def value() -> Any:
        nonlocal at
        code = data[at]
        at += 1
        if code in (0xC0, 0xC1, 0xD0, 0xD1):
            form, width = (">II", 8) if code >= 0xD0 else (">BB", 2)
            size, count = struct.unpack_from(form, data, at)
            end = at + width // 2 + size
            at += width
            found = [value() for _ in range(count)]
            assert at == end
            return found
        if code in FIXED:
            (found,) = struct.unpack_from(FIXED[code], data, at)
            at += struct.calcsize(FIXED[code])
            return KINDS[code], found
        if code == 0x40:
            return "null", None
        size = data[at] if code < 0xB0 else struct.unpack_from(">I", data, at)[0]
        at += 1 if code < 0xB0 else 4
        raw = data[at : at + size]
        at += size
        return KINDS[code], raw if KINDS[code] == "binary" else raw.decode()

    sections = {}
    while at < len(data):
        assert data[at : at + 2] == b"\0\x53"
        descriptor, at = data[at + 2], at + 3
        sections[descriptor] = value()
    pairs = sections.get(0x74, [])
    return TakenApart(
        list(sections), sections.get(0x72, []), sections.get(0x73, []), list(zip(pairs[::2], pairs[1::2], strict=True)),
        sections[0x75][1],
    )  # fmt: skip
