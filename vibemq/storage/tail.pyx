# SPDX-License-Identifier: Apache-2.0
"""The committed end of a log as the archiver follows it: whole chunks, as they lie on disk, from segment to segment.

Everything is read through files of its own, so that nothing of the broker's waits for it.
"""

import os
from typing import NamedTuple

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from vibemq.storage cimport core
from vibemq.storage.core cimport OK, chunk, commit, err, fault
from vibemq.storage.log cimport Log, check

from vibemq.errors import StorageError
from vibemq.storage.log import SEGMENT_HEADER_BYTES

cdef extern from "base/crc32.h" nogil:
    uint32_t crc32_update(uint32_t crc, const void *data, size_t size)
cdef extern from "log/chunk.h" nogil:
    err chunk_header_read(const uint8_t *data, uint64_t size, uint32_t seed, chunk *out)
    uint64_t chunk_bytes(const chunk *c)
cdef extern from "log/segment.h" nogil:
    err segment_open(const char *directory, uint64_t first_offset, bint write, int *fd, uint32_t *seed, fault *f)


def crc32(const uint8_t[::1] data not None, uint32_t value=0) -> int:
    """CRC-32 as zlib's, of bytes behind those that gave ``value``."""
    with nogil:
        value = crc32_update(value, &data[0] if data.shape[0] else NULL, <size_t> data.shape[0])
    return value


def local_segments(str directory) -> list[int]:
    """First offsets of the segments whose files are here, rising; never empty.  Raises StorageError."""
    try:
        names = os.listdir(directory)
    except OSError as problem:
        raise StorageError("ERR_NOT_FOUND", f"{directory} cannot be listed: {problem.strerror}") from None
    return sorted(int(name[:20]) for name in names if name[20:] == ".segment" and name[:20].isdigit()) or [0]


class Piece(NamedTuple):
    """Bytes [position, position + size) of a segment: whole chunks with the offsets [first, next)."""

    segment: int
    position: int
    first: int
    next: int
    size: int


cdef class Tail:
    """A place in a log that moves on over what is committed.  Raises StorageError as `storage.log.Log` does."""

    cdef readonly Log log
    cdef readonly uint64_t segment, position, next
    cdef uint64_t last_chunk  # the newest chunk that was taken, UINT64_MAX: none yet
    cdef int fd
    cdef uint32_t seed

    def __cinit__(self, str directory):
        self.fd = -1
        self.last_chunk = <uint64_t> -1
        self.log = Log(directory)

    def __dealloc__(self):
        self._close()

    def close(self):
        self._close()
        self.log.close()

    cdef void _close(self):
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    @property
    def is_remote(self) -> bool:
        """Are publishers told when the object store has it?"""
        return self.log.control.durability == core.DURABILITY_REMOTE

    @property
    def remote_offset(self) -> int:
        return core.word_load(&self.log.control.remote_offset)

    def set_remote_offset(self, uint64_t offset):
        """Offsets below it are in the object store: by the archiver alone, never back."""
        if offset > core.word_load(&self.log.control.remote_offset):
            core.control_remote_set(self.log.control, offset)

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Return its position: segment, position, next offset, and the newest chunk before that."""
        return self.segment, self.position, self.next, self.last_chunk

    def confirm(self, tuple place not None):
        """Confirm messages before a `place` of this log, which the object store has, to publishers and readers."""
        cdef commit c
        c.segment, c.position, c.next_offset, c.last_chunk = place
        c.batch_position, c.chunks, c.timestamp_ms = c.position, <uint64_t> -1, 0
        # Readers first: a worker that confirms by remote_offset must find the confirmed record raised.
        core.control_confirm(self.log.control, &c)
        self.set_remote_offset(c.next_offset)

    def confirm_segments(self, uint64_t next_offset):
        """Confirm the segments before the one that begins at `next_offset`, which the object store has."""
        self.confirm((next_offset, SEGMENT_HEADER_BYTES, next_offset, self.last_chunk))

    @property
    def committed(self) -> tuple[int, int, int]:
        """The active segment, how far it is committed, and the next offset."""
        cdef commit c
        core.control_committed(self.log.control, &c)
        return c.segment, c.position, c.next_offset

    @property
    def first_offset(self) -> int:
        """The first one that retention has left."""
        return core.word_load(&self.log.control.first_offset)

    @property
    def epoch(self) -> int:
        return self.log.control.epoch

    def begin(self, uint64_t segment):
        """Go to the first chunk of a segment that is here."""
        cdef fault f
        cdef bytes directory = os.fsencode(self.log.directory)
        self._close()
        check(segment_open(directory, segment, False, &self.fd, &self.seed, &f), &f)
        self.segment, self.position, self.next = segment, SEGMENT_HEADER_BYTES, segment

    def waiting_bytes(self) -> int:
        """Of this segment, from here on."""
        cdef uint64_t limit = self._limit()
        return limit - self.position if limit > self.position else 0

    cdef uint64_t _limit(self) except? 0:
        cdef commit c
        core.control_committed(self.log.control, &c)
        return c.position if c.segment == self.segment else <uint64_t> os.fstat(self.fd).st_size

    def ended_by(self) -> int | None:
        """The segment after this one, where this one is closed and all of it was taken."""
        cdef commit c
        core.control_committed(self.log.control, &c)
        if c.segment == self.segment or self.position < self._limit():
            return None
        return next(first for first in local_segments(self.log.directory) if first > self.segment)

    def take(self, uint8_t[::1] room not None) -> Piece | None:
        """Copy what comes next, as far as ``room`` reaches, and move on; None: nothing has come, or no chunk fits.

        Raises StorageError where the file is shorter than what was committed.
        A chunk whose header is damaged is not stepped over here: what lies behind it goes with it, as it is on disk.
        """
        cdef commit c
        cdef chunk header
        cdef uint64_t limit, got, at = 0, next_offset = self.next, size = <uint64_t> room.shape[0]
        cdef bint is_damaged = False, is_end
        core.control_committed(self.log.control, &c)
        limit = c.position if c.segment == self.segment else <uint64_t> os.fstat(self.fd).st_size
        if limit <= self.position:
            return None
        size = min(size, limit - self.position)
        got = os.preadv(self.fd, [room[:size]], self.position)
        if got < size:
            path = os.path.join(self.log.directory, f"{self.segment:020}.segment")
            said = f"{path} ends at byte {self.position + got}, and was committed up to byte {limit}"
            raise StorageError("ERR_CORRUPT", said)
        with nogil:
            while got - at >= core.CHUNK_HEADER_BYTES:
                is_damaged = chunk_header_read(&room[at], got - at, self.seed, &header) != OK
                if is_damaged or chunk_bytes(&header) > got - at:
                    break
                at += chunk_bytes(&header)
                next_offset = header.chunk_id + header.records
                self.last_chunk = header.chunk_id
        if is_damaged or (got == limit - self.position and at < got):  # it goes as it is, and what lies behind it
            is_end = got == limit - self.position
            at = got
            if is_end and c.segment == self.segment:
                next_offset = c.next_offset
        if at == 0:
            return None
        piece = Piece(self.segment, self.position, self.next, next_offset, at)
        self.position += at
        self.next = next_offset
        return piece

    def next_bytes(self) -> int:
        """How much room the next chunk needs; 0 where there is none yet, or its header is damaged."""
        cdef chunk header
        cdef bytes head = os.pread(self.fd, core.CHUNK_HEADER_BYTES, self.position)
        if self.waiting_bytes() == 0 or chunk_header_read(head, len(head), self.seed, &header) != OK:
            return 0
        return chunk_bytes(&header)

    def header(self) -> bytes:
        """Of this segment's file."""
        return os.pread(self.fd, SEGMENT_HEADER_BYTES, 0)

    def tracking(self) -> bytes:
        """The deduplication table as it was when this segment began; empty where that is not kept."""
        try:
            with open(os.path.join(self.log.directory, f"{self.segment:020}.tracking"), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""
        except OSError as problem:
            raise StorageError("ERR_IO", f"{problem.filename}: {problem.strerror}") from problem
