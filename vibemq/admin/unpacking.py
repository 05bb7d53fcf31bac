# SPDX-License-Identifier: Apache-2.0
"""Compressed bodies of requests, unpacked piece by piece into a memfd: never more than a limit, whatever a body claims.

A piece of output is at most some MiB, and the window of a decompressor is bounded: gzip's is 32 KiB and brotli's
16 MiB by their formats, zstd's is WINDOW_ZSTD_BYTES_MAX.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from vibemq.admin.api.calls import Refused, bad_request
from vibemq.broker.limits import count_refused
from vibemq.once_a_minute import OnceAMinute

WINDOW_ZSTD_BYTES_MAX = 8 << 20  # what RFC 8878 asks every decoder to support, and no more
GZIP_MEMBERS_MAX = 16  # an agent sends one; thousands of empty ones would cost a copy of the rest for each
GZIP_WBITS = 31  # zlib's word for a gzip header and the largest window
PIECE_BYTES = 256 << 10
#: What zstd unpacks at once: it cannot be told when to stop, and 4 bytes may hold a block of 128 KiB.
ZSTD_PIECE_BYTES = 256
ROOM_WAIT_S = 1.0  # for other bodies to be answered
RETRY_S = 5


UNPACK_S = 10.0  # of a thread

refusing = OnceAMinute(logging.getLogger("vibemq.admin"))


class Room:
    """Bytes that all unpacked bodies share; may be used from several threads."""

    def __init__(self, size: int) -> None:
        self._free = self.size = size
        self._changed = threading.Condition()

    def take(self, size: int) -> None:
        """Raises Refused where others do not give back enough in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free >= size, ROOM_WAIT_S):
                count_refused()
                refusing.say(
                    "",
                    "lines over HTTP were refused: %d bytes of them are being stored, the most that may be",
                    self.size,
                )
                reason = f"other bodies with lines are being stored, and all together have at most {self.size} bytes"
                raise Refused(503, "service_unavailable", f"{reason}: wait {RETRY_S} s", RETRY_S)
            self._free -= size

    def give(self, size: int) -> None:
        with self._changed:
            self._free += size
            self._changed.notify_all()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Raises Refused."""
        self.take(size)
        try:
            yield
        finally:
            self.give(size)


class Unpacked:
    """A body in a memfd, which workers map."""

    def __init__(self, room: Room, bytes_max: int) -> None:
        self._room, self._bytes_max = room, bytes_max
        self.size = 0
        try:
            self.fd = os.memfd_create("vibemq-lines", os.MFD_CLOEXEC)
        except OSError as problem:  # no descriptor, no memory
            reason = f"the broker cannot take lines now, {problem.strerror}: wait {RETRY_S} s"
            raise Refused(503, "service_unavailable", reason, RETRY_S) from None

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Raises Refused."""
        if self.size + len(piece) > self._bytes_max:
            raise Refused(413, "too_large", f"a body with lines has at most {self._bytes_max} bytes when unpacked")
        self._room.take(len(piece))
        self.size += len(piece)
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(self.fd, rest) :]

    @contextmanager
    def mapped(self) -> Iterator[memoryview]:
        with (
            closing(mmap.mmap(self.fd, self.size, prot=mmap.PROT_READ)) as memory,
            memoryview(memory) as view,
        ):
            yield view

    def close_file(self) -> None:
        """Workers have mapped it, so it takes room still."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """May be called again."""
        self.close_file()
        size, self.size = self.size, 0
        self._room.give(size)


def unpack(body: bytes | bytearray, encoding: str, into: Unpacked) -> None:
    """Write the body in the form that it had before its Content-Encoding.  Raises Refused."""
    unpacker = UNPACKERS.get(encoding)
    if unpacker is None:
        taken = ", ".join(sorted(name for name in UNPACKERS if name))
        raise Refused(415, "unsupported_media_type", f"Content-Encoding {encoding!r} is not taken, but {taken}")
    began_s = time.monotonic()
    for piece in unpacker(memoryview(body)):
        into.write(piece)
        if time.monotonic() - began_s > UNPACK_S:
            raise bad_request(f"the body was not unpacked within {UNPACK_S:g} s")


def _plain(body: memoryview) -> Iterator[memoryview]:
    yield body


def _gunzip(body: memoryview) -> Iterator[bytes]:
    """One member or several, as RFC 1952 has it."""
    at, members = 0, 1
    member = zlib.decompressobj(GZIP_WBITS)
    while not (member.eof and at == len(body)):
        if member.eof:
            members += 1
            if members > GZIP_MEMBERS_MAX:
                raise bad_request(f"the body has more than {GZIP_MEMBERS_MAX} gzip members")
            member = zlib.decompressobj(GZIP_WBITS)
        piece = body[at : at + PIECE_BYTES]
        if not piece:
            raise _cut_short("gzip")
        at += len(piece)
        left: bytes | memoryview = piece
        while left and not member.eof:
            try:
                yield member.decompress(left, PIECE_BYTES)
            except zlib.error as problem:
                raise _malformed("gzip", problem) from None
            left = member.unconsumed_tail
        at -= len(member.unused_data)
        while not member.eof and not left:  # what it has not given yet of what it has read
            if not (more := member.decompress(b"", PIECE_BYTES)):
                break
            yield more


def _unbrotli(body: memoryview) -> Iterator[bytes]:
    import brotli  # rarely needed

    stream = brotli.Decompressor()
    given: bytes | memoryview = bytes(body)
    while not stream.is_finished():
        try:
            piece = stream.process(given, output_buffer_limit=PIECE_BYTES)
        except brotli.error as problem:
            raise _malformed("br", problem) from None
        given = b""
        if not piece and not stream.is_finished():
            raise _cut_short("br")
        yield piece


def _unzstd(body: memoryview) -> Iterator[bytes]:
    """One frame or several; agents that write a stream do not say the size of a frame."""
    import zstandard  # rarely needed

    at = 0
    while at < len(body) or not at:
        frame = zstandard.ZstdDecompressor(max_window_size=WINDOW_ZSTD_BYTES_MAX).decompressobj()
        while not frame.eof:
            piece = body[at : at + ZSTD_PIECE_BYTES]
            if not piece:
                raise _cut_short("zstd")
            at += len(piece)
            try:
                yield frame.decompress(piece)
            except zstandard.ZstdError as problem:
                raise _malformed("zstd", problem) from None
        at -= len(frame.unused_data)


def _cut_short(name: str) -> Refused:
    return bad_request(f"the body is {name} that is cut short: nothing is stored")


def _malformed(name: str, problem: Exception) -> Refused:
    return bad_request(f"the body is no {name}, which its Content-Encoding says: {problem}")


UNPACKERS: dict[str, Callable[[memoryview], Iterator[bytes | memoryview]]] = {
    "": _plain,
    "identity": _plain,
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "zstd": _unzstd,
    "br": _unbrotli,
}
