# SPDX-License-Identifier: Apache-2.0
"""Chunks written by hand for the tests, and a decoder so plain that it can be trusted to judge the fast one."""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass, field

import pyarrow as pa

CODES = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def simple(message: bytes) -> bytes:
    return struct.pack(">I", len(message)) + message


def pack(name: str, content: bytes) -> bytes:
    """Compress as the stream clients of each name do."""
    if name == "none":
        return content
    if name == "gzip":
        return gzip.compress(content)
    if name == "snappy":
        out = bytearray(b"\xff\x06\x00\x00sNaPpY")
        for at in range(0, len(content), 65536):
            block = content[at : at + 65536]
            data = pa.compress(block, codec="snappy", asbytes=True)
            out += b"\x00" + (4 + len(data)).to_bytes(3, "little") + bytes(4) + data
        return bytes(out)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, name) as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


def sub_batch(messages: list[bytes], name: str = "none", announced: int | None = None) -> bytes:
    content = b"".join(simple(message) for message in messages)
    body = pack(name, content)
    size = len(content) if announced is None else announced
    return struct.pack(">BHII", 0x80 | CODES[name] << 4, len(messages), size, len(body)) + body


@dataclass
class Built:
    """A chunk: its messages, and how they lie in it."""

    chunk_id: int
    timestamp_ms: int = 1_700_000_000_000
    messages: list[bytes] = field(default_factory=list)
    data: bytes = b""
    entries: int = 0

    @property
    def records(self) -> int:
        return len(self.messages)

    def add(self, *messages: bytes) -> Built:
        for message in messages:
            self.messages.append(message)
            self.data += simple(message)
            self.entries += 1
        return self

    def add_batch(self, messages: list[bytes], name: str = "none") -> Built:
        self.messages += messages
        self.data += sub_batch(messages, name)
        self.entries += 1
        return self


def data_section(body: bytes) -> bytes:
    if len(body) < 256:
        return b"\x00\x53\x75\xa0" + bytes([len(body)]) + body
    return b"\x00\x53\x75\xb0" + struct.pack(">I", len(body)) + body
