# SPDX-License-Identifier: Apache-2.0
"""Compressed sub-batches: made, and unpacked with the unpacked size as a bound that is never passed.

The stream says how large the content is; exactly that much is asked for and one byte more, so a bomb costs no more than
it declared, and a content of another length is an error instead of half a batch. All of it is done by the codecs that
pyarrow carries (they let go of the GIL), so no library is needed that the Arrow path does not have.
"""

from __future__ import annotations

import struct

import pyarrow as pa

# rabbitmq-streams protocol, sub-entry batches; 5 to 7 are not assigned.
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = {GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}

CODES = {name: code for code, name in NAMES.items()}
SUB_BATCH = struct.Struct(">BHII")  # kind and compression, records, size of the content, size of what follows

SNAPPY_STREAM_START = b"\xff\x06\x00\x00sNaPpY"
SNAPPY_BLOCK_BYTES_MAX = 65536  # the framing format allows no larger block


def sub_batch(name: str, records: int, content: bytes | memoryview) -> bytes:
    """An entry of `records` messages, each with its length before it, as a publisher sends it."""
    if name == "snappy":
        body = _snappy_framed(content)
    else:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, name) as stream:
            stream.write(content)
        body = sink.getvalue().to_pybytes()
    return SUB_BATCH.pack(0x80 | CODES[name] << 4, records, len(content), len(body)) + body


def decompress(compression: int, body: bytes, size: int) -> bytes:
    """The `size` bytes that `body` unpacks to. ValueError when it does not, or the compression is unknown."""
    name = NAMES.get(compression)
    if name is None:
        raise ValueError(f"compression {compression} is not known; gzip, snappy, lz4 and zstd are")
    try:
        if compression == SNAPPY:
            content = _snappy_frames(body, size)
        else:
            with pa.CompressedInputStream(pa.BufferReader(body), name) as stream:
                content = stream.read(size + 1)
    except (pa.ArrowException, OSError) as failed:
        raise ValueError(f"not valid {name}: {failed}") from failed
    if len(content) != size:
        least = "at least " if len(content) > size else ""
        raise ValueError(f"{size} bytes were announced, there are {least}{len(content)}")
    return content


def _snappy_framed(content: bytes | memoryview) -> bytes:
    """What `_snappy_frames` reads. Other clients check the CRC, so it is there."""
    from vibemq.spark._rows import crc32c  # compiled, and it imports this module

    codec = pa.Codec("snappy")
    framed = bytearray(SNAPPY_STREAM_START)
    for at in range(0, len(content), SNAPPY_BLOCK_BYTES_MAX):
        block = content[at : at + SNAPPY_BLOCK_BYTES_MAX]
        crc = crc32c(block)
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        data = codec.compress(block, asbytes=True)
        framed += b"\x00" + (4 + len(data)).to_bytes(3, "little") + masked.to_bytes(4, "little") + data
    return bytes(framed)


def _snappy_frames(body: bytes, size: int) -> bytes:
    """Snappy's framing format, which is what stream clients write; stops once `size` is passed."""
    if not body.startswith(SNAPPY_STREAM_START):
        raise ValueError("not in snappy's framing format")
    codec = pa.Codec("snappy")
    content = bytearray()
    at = len(SNAPPY_STREAM_START)
    while at < len(body) and len(content) <= size:
        kind = body[at]
        end = at + 4 + int.from_bytes(body[at + 1 : at + 4], "little")
        if at + 4 > len(body) or end > len(body):
            raise ValueError("a snappy frame is cut off")
        # The 4 bytes of masked CRC-32C go unread: the chunk's own checksum covers these bytes.
        data = body[at + 8 : end]
        if kind == 0x00:
            content += codec.decompress(data, _snappy_block_size(data), asbytes=True)
        elif kind == 0x01:
            content += data
        elif kind < 0x80:
            raise ValueError(f"snappy frame type {kind:#04x} is reserved")
        at = end
    return bytes(content)


def _snappy_block_size(block: bytes) -> int:
    """The length that a snappy block begins with, a little-endian base-128 number."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if size > SNAPPY_BLOCK_BYTES_MAX:
                raise ValueError(f"a snappy block says {size} bytes, more than {SNAPPY_BLOCK_BYTES_MAX}")
            return size
    raise ValueError("a snappy block has no length")
