# SPDX-License-Identifier: Apache-2.0
"""A segment that comes in pieces of any size, as from the object store: each chunk's checks, in constant memory."""

from typing import NamedTuple

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from vibemq.storage cimport core
from vibemq.storage.core cimport OK, err, fault
from vibemq.storage.log cimport check

from vibemq.errors import StorageError

cdef extern from "base/crc32.h" nogil:
    uint32_t crc32_update(uint32_t crc, const void *data, size_t size)
cdef extern from "log/chunk.h" nogil:
    struct chunk:
        uint8_t bloom_bytes
        uint32_t records, trailer_crc, crc, data_bytes, trailer_bytes
        int64_t timestamp_ms
        uint64_t chunk_id
    err chunk_header_read(const uint8_t *data, uint64_t size, uint32_t seed, chunk *out)
    uint64_t chunk_bytes(const chunk *c)
cdef extern from "log/segment.h" nogil:
    enum:
        SEGMENT_HEADER_BYTES
    struct segment_header:
        uint64_t first_offset, suspect_position
        uint32_t seed
    err segment_header_read(const char *path, const uint8_t *data, uint64_t size, segment_header *out, fault *f)

CHUNK_HEADER_BYTES = core.CHUNK_HEADER_BYTES


class ChunkSeen(NamedTuple):
    """Bytes of a chunk, the offsets [first, next) of its messages, and whether all of it is there as it was written."""

    size: int
    first: int
    next: int
    is_whole: bool


def chunk_at(const uint8_t[::1] data not None, uint32_t seed) -> ChunkSeen | None:
    """What ``data`` begins with, in a segment of that seed; its header may be all that is there.  None: no chunk."""
    cdef uint64_t size = data.shape[0], at
    cdef chunk c
    cdef bint is_whole = False
    if size < core.CHUNK_HEADER_BYTES or chunk_header_read(&data[0], size, seed, &c) != OK:
        return None
    if size >= chunk_bytes(&c):
        at = core.CHUNK_HEADER_BYTES + c.bloom_bytes
        with nogil:
            is_whole = crc32_update(0, &data[0] + at, c.data_bytes) == c.crc and (
                c.trailer_bytes == 0 or crc32_update(0, &data[0] + at + c.data_bytes, c.trailer_bytes) == c.trailer_crc)
    return ChunkSeen(chunk_bytes(&c), c.chunk_id, c.chunk_id + c.records, is_whole)


cdef enum:
    FILE_HEADER, HEADER, FILTER, ENTRIES, TRAILER, LOST


cdef class Walk:
    """Of the segment of a log that begins at ``first``; ``where`` names it in what is raised.

    Checked are both headers, the order of the chunks, and the CRCs of their entries and trailers. A filter has a check that
    only costs a chunk too much to be sent, so it is not looked at.
    """

    cdef readonly uint64_t first, next, chunks, suspect_position
    cdef readonly uint32_t seed
    #: What is wrong with chunks whose entries or trailers are damaged, and how many these are: those behind them are walked.
    cdef readonly uint64_t damaged
    cdef readonly str first_damage
    cdef uint64_t position, left  # of the file; of what is being passed
    cdef int phase
    cdef uint32_t seen, held
    cdef uint8_t head[64]
    cdef chunk current
    cdef bytes where

    def __cinit__(self, uint64_t first, str where):
        self.first = self.next = first
        self.where = where.encode()
        self.first_damage = ""
        self._await(FILE_HEADER, 0)

    cdef void _await(self, int phase, uint64_t left) noexcept:
        self.phase, self.left, self.held, self.seen = phase, left, 0, 0

    def take(self, const uint8_t[::1] data not None):
        """What comes next.  Raises StorageError where nothing behind can be told apart any more."""
        cdef const uint8_t *at = &data[0] if data.shape[0] else NULL
        cdef const uint8_t *end = at + data.shape[0]
        cdef uint64_t n
        while at < end:
            if self.phase == LOST:
                return
            if self.phase == FILE_HEADER or self.phase == HEADER:
                n = (SEGMENT_HEADER_BYTES if self.phase == FILE_HEADER else core.CHUNK_HEADER_BYTES) - self.held
                n = min(n, <uint64_t> (end - at))
                memcpy(self.head + self.held, at, n)
                self.held += n
                at += n
                self.position += n
                if self.phase == FILE_HEADER and self.held == SEGMENT_HEADER_BYTES:
                    self._file_header()
                elif self.phase == HEADER and self.held == core.CHUNK_HEADER_BYTES:
                    self._header()
                continue
            n = min(self.left, <uint64_t> (end - at))
            if self.phase != FILTER:
                with nogil:
                    self.seen = crc32_update(self.seen, at, n)
            at += n
            self.position += n
            self.left -= n
            self._passed()

    def end(self):
        """Nothing comes any more.  Raises StorageError where a chunk is cut."""
        if self.phase != LOST and (self.phase != HEADER or self.held):
            self._lost("it ends within a chunk")

    cdef int _file_header(self) except -1:
        cdef segment_header header
        cdef fault f
        self.phase = LOST
        check(segment_header_read(self.where, self.head, SEGMENT_HEADER_BYTES, &header, &f), &f)
        if header.first_offset != self.first:
            self._lost(f"its header says that it begins at offset {header.first_offset}")
        self.seed, self.suspect_position = header.seed, header.suspect_position
        self._await(HEADER, 0)

    cdef int _header(self) except -1:
        cdef uint64_t at = self.position - core.CHUNK_HEADER_BYTES
        if chunk_header_read(self.head, core.CHUNK_HEADER_BYTES, self.seed, &self.current) != OK:
            self._lost(f"no chunk begins at byte {at}, where one should")
        if self.current.chunk_id < self.next:
            self._lost(f"the chunk at byte {at} has offset {self.current.chunk_id}, those before it end at {self.next}")
        self.next = self.current.chunk_id + self.current.records
        self.chunks += 1
        self._await(FILTER, self.current.bloom_bytes)
        self._passed()

    cdef int _passed(self) except -1:
        """On to the next part that is not empty."""
        while self.left == 0 and self.phase != HEADER:
            if self.phase == FILTER:
                self._await(ENTRIES, self.current.data_bytes)
            elif self.phase == ENTRIES:
                if self.seen != self.current.crc:
                    self._damage("entries")
                self._await(TRAILER, self.current.trailer_bytes)
            else:
                if self.current.trailer_bytes and self.seen != self.current.trailer_crc:
                    self._damage("trailer")
                self._await(HEADER, 0)

    cdef int _damage(self, str part) except -1:
        self.damaged += 1
        if self.damaged == 1:
            self.first_damage = (
                f"the {part} of the chunk with offset {self.current.chunk_id}, before byte {self.position}, are not what was "
                "written (CRC)"
            )

    cdef int _lost(self, str why) except -1:
        self.phase = LOST
        raise StorageError("ERR_CORRUPT", f"{self.where.decode()}: {why}")
