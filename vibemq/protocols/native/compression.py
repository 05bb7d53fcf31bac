# SPDX-License-Identifier: Apache-2.0
"""Compressed bodies: who chooses, how small, and never more than was allowed.

The flags byte of each frame says how its body is compressed; there is no state between frames. A peer's few bytes may
claim to be gigabytes, so a decompressor is never asked for more than one byte above the limit, and its window is
bounded: gzip's is 32 KiB and brotli's 16 MiB by their formats, zstd's is WINDOW_ZSTD_BYTES_MAX. A body is exactly one
compressed whole: cut short or with bytes behind it, it is malformed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection

import brotli
import zstandard

from vibemq.errors import LimitExceeded, MalformedFrame
from vibemq.protocols.native.spec import COMPRESSION_BY_NAME, Compression

WINDOW_ZSTD_BYTES_MAX = 8 << 20  # what RFC 8878 asks every decoder to support, and no more
GZIP_MEMBERS_COUNT_MAX = 16  # a peer sends one; thousands of empty ones would cost a copy of the rest for each
GZIP_WBITS = 31  # zlib's word for a gzip header and the largest window
LEVEL = 1  # as fast as possible: a broker compresses for the network's sake, while others wait


def negotiate(client_header: str | None, server_list: Collection[str]) -> str | None:
    """The first of the client's comma-separated names that the server has too; None: nothing is compressed."""
    ours = {name.lower() for name in server_list} & COMPRESSION_BY_NAME.keys()
    wanted = (name.strip().lower() for name in (client_header or "").split(","))
    return next((name for name in wanted if name in ours), None)


def compress(name: str, body: bytes, level: int = LEVEL) -> bytes | None:
    """The body as the negotiated compression `name` makes it, or None when that is no shorter."""
    match COMPRESSION_BY_NAME[name]:
        case Compression.GZIP:
            packed = zlib.compress(body, level, GZIP_WBITS)
        case Compression.BROTLI:
            packed = brotli.compress(body, quality=level)
        case Compression.ZSTD:
            packed = zstandard.ZstdCompressor(level=level).compress(body)
    return packed if len(packed) < len(body) else None


def decompress(flag: int, data: bytes, size_max: int) -> bytes:
    """The body in `data`, compressed as the flags byte says.

    LimitExceeded: it is larger than `size_max`. MalformedFrame (a ValueError): it is not what `flag` says.
    """
    if flag == Compression.NONE:
        if len(data) > size_max:
            raise LimitExceeded("body", len(data), size_max)
        return data
    try:
        return DECOMPRESSORS[Compression(flag)](data, size_max)
    except (zlib.error, brotli.error, zstandard.ZstdError) as error:
        raise MalformedFrame("body", f"one {Compression(flag).name.lower()} stream", str(error)) from None


def _too_large(name: str, size_max: int) -> LimitExceeded:
    return LimitExceeded(f"body: its {name} stream holds more than the {size_max} bytes allowed", most=size_max)


def _cut_short(name: str, size: int) -> MalformedFrame:
    return MalformedFrame("body", f"a whole {name} stream", f"{size} bytes of one that goes on")


def _gunzip(data: bytes, size_max: int) -> bytes:
    """One member or several, as RFC 1952 has it."""
    parts: list[bytes] = []
    size = 0
    rest = data
    for _ in range(GZIP_MEMBERS_COUNT_MAX):
        member = zlib.decompressobj(GZIP_WBITS)
        parts.append(member.decompress(rest, size_max - size + 1))
        size += len(parts[-1])
        if size > size_max:
            raise _too_large("gzip", size_max)
        if not member.eof:
            raise _cut_short("gzip", len(data))
        rest = member.unused_data
        if not rest:
            return b"".join(parts)
    raise MalformedFrame("body", f"at most {GZIP_MEMBERS_COUNT_MAX} gzip members", "more")


def _unbrotli(data: bytes, size_max: int) -> bytes:
    stream = brotli.Decompressor()
    parts: list[bytes] = []
    size = 0
    while not stream.is_finished():
        # The library rounds its buffer up by some KiB, so the sum is compared again.
        part = stream.process(b"" if parts else data, output_buffer_limit=size_max - size + 1)
        parts.append(part)
        size += len(part)
        if size > size_max:
            raise _too_large("brotli", size_max)
        if not part and not stream.is_finished():
            raise _cut_short("brotli", len(data))
    return b"".join(parts)


def _unzstd(data: bytes, size_max: int) -> bytes:
    """One frame that says its size, which zstd's one-shot compressors always write."""
    parameters = zstandard.get_frame_parameters(data)
    if parameters.content_size == zstandard.CONTENTSIZE_UNKNOWN:
        raise MalformedFrame("body", "a zstd frame that says its content size", "none")
    if parameters.content_size > size_max:
        raise _too_large("zstd", size_max)
    # A frame made in one go may say that its window is all of it; that much is allowed to be allocated anyway.
    window_max = max(WINDOW_ZSTD_BYTES_MAX, parameters.content_size)
    if parameters.window_size > window_max:
        raise LimitExceeded("window of a zstd body", parameters.window_size, window_max)
    return zstandard.ZstdDecompressor(max_window_size=window_max).decompress(data, allow_extra_data=False)


DECOMPRESSORS: dict[Compression, Callable[[bytes, int], bytes]] = {
    Compression.GZIP: _gunzip,
    Compression.BROTLI: _unbrotli,
    Compression.ZSTD: _unzstd,
}
