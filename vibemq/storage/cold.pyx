# SPDX-License-Identifier: Apache-2.0
"""Segments of a log that lie in the object store (csrc/log/cold.h): stubs, fetched blocks, and reading ahead of a reader.

Stubs and blocks are written by the archiver alone. Everything here may block: helper threads and processes that serve
nobody. Raises StorageError.
"""

import os
import time
from functools import partial
from typing import NamedTuple

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

from vibemq.storage.core cimport OK, ERR_CORRUPT, ERR_NOT_FOUND, ERR_TRUNCATED, err, fault, reader
from vibemq.storage.log cimport check, storage_error

cdef extern from "log/cold.h" nogil:
    enum:
        _BLOCK_BYTES "COLD_BLOCK_BYTES"
        _BLOCKS_MAX "COLD_BLOCKS_MAX"
    struct _stub "stub":
        uint64_t first, next, bytes
        int64_t oldest_ms, newest_ms
        uint32_t seed, epoch, broker_epoch
    struct _cold "cold":
        int fd
        uint64_t bytes
    err stub_write(const char *directory, const _stub *s, fault *f)
    err stub_remove(const char *directory, uint64_t first, fault *f)
    err stub_list(const char *directory, _stub **found, uint32_t *count, fault *f)
    err stub_make(const char *directory, uint64_t first, uint64_t next, uint32_t epoch, _stub *out, fault *f)
    uint32_t cold_blocks(uint64_t size)
    err cold_open(_cold *c, const char *directory, uint64_t segment, fault *f)
    void cold_close(_cold *c)
    err cold_put(_cold *c, uint32_t block, const void *data, uint64_t size, fault *f)
    err cold_drop(const _cold *c, uint32_t block, fault *f)
    err cold_marks(const _cold *c, uint8_t *marks, fault *f)
    err cold_evict(const char *directory, uint64_t segment, fault *f)
    err cold_bring(const char *directory, uint64_t segment, uint64_t position, uint64_t size, fault *f)
    err cold_tell(const char *directory, uint64_t segment, uint64_t position, fault *f)
    err stub_read(const char *directory, uint64_t first, _stub *out, fault *f)

#: All blocks of a segment have this size but the last.
BLOCK_BYTES = _BLOCK_BYTES
#: A reader whose block cannot be had asks again after that, for as long as somebody waits for it.
ASK_AGAIN_S = 1.0

cdef enum:
    PIECE_BYTES = 1 << 20  # of what is read only to be in memory


class Stub(NamedTuple):
    """That a segment is whole in the store: its offsets, its size, when its chunks were written, and its checks' seed."""

    first: int
    next: int
    size_bytes: int
    oldest_ms: int
    newest_ms: int
    seed: int
    epoch: int
    broker_epoch: int = 0  # 0: uploaded by an older version


cdef object _stub_of(const _stub *s):
    return Stub(s.first, s.next, s.bytes, s.oldest_ms, s.newest_ms, s.seed, s.epoch, s.broker_epoch)


def describe(str directory, uint64_t first, uint64_t next_, uint32_t epoch) -> Stub:
    """The stub that a closed segment here would have; ``next_`` is the first offset of the one behind it."""
    cdef bytes path = os.fsencode(directory)
    cdef _stub s
    cdef fault f
    check(stub_make(path, first, next_, epoch, &s, &f), &f)
    return _stub_of(&s)


def write_stub(str directory, stub: Stub):
    """From now on the segment's file may go.  Only when it is whole in the store; durable on return."""
    cdef bytes path = os.fsencode(directory)
    cdef const char *p = path
    cdef _stub s
    cdef fault f
    cdef err e
    s.first, s.next, s.bytes, s.oldest_ms, s.newest_ms, s.seed, s.epoch, s.broker_epoch = stub
    with nogil:
        e = stub_write(p, &s, &f)
    check(e, &f)


def remove_stub(str directory, uint64_t first):
    """The segment is in the store no more."""
    cdef bytes path = os.fsencode(directory)
    cdef fault f
    check(stub_remove(path, first, &f), &f)


def stubs(str directory) -> list[Stub]:
    """All of a log, rising; damaged ones are left out."""
    cdef bytes path = os.fsencode(directory)
    cdef _stub *found = NULL
    cdef uint32_t count = 0, i
    cdef fault f
    check(stub_list(path, &found, &count, &f), &f)
    try:
        return [_stub_of(&found[i]) for i in range(count)]
    finally:
        free(found)


def stub(str directory, uint64_t first) -> Stub | None:
    """Of the segment that begins with that offset; None where there is none, or a damaged one."""
    cdef bytes path = os.fsencode(directory)
    cdef _stub s
    cdef fault f
    cdef err e = stub_read(path, first, &s, &f)
    if e in (ERR_NOT_FOUND, ERR_CORRUPT, ERR_TRUNCATED):
        return None
    check(e, &f)
    return _stub_of(&s)


cdef class Blocks:
    """The blocks of one cold segment that are here, for the archiver.  ERR_NOT_FOUND: it has no stub."""

    cdef _cold raw

    def __cinit__(self, str directory, uint64_t segment):
        cdef bytes path = os.fsencode(directory)
        cdef fault f
        self.raw.fd = -1
        check(cold_open(&self.raw, path, segment, &f), &f)

    def __dealloc__(self):
        cold_close(&self.raw)

    def close(self):
        cold_close(&self.raw)

    @property
    def size_bytes(self) -> int:
        """Of the segment."""
        return self.raw.bytes

    @property
    def count(self) -> int:
        """How many blocks the segment has."""
        return cold_blocks(self.raw.bytes)

    def put(self, uint32_t block, const uint8_t[::1] data not None):
        """Write a block, whole, and then mark it as there."""
        cdef uint64_t size = <uint64_t> data.shape[0]
        cdef const uint8_t *at = &data[0] if size else NULL
        cdef fault f
        cdef err e
        with nogil:
            e = cold_put(&self.raw, block, at, size, &f)
        check(e, &f)

    def drop(self, uint32_t block):
        """It is here no more, and its room is free.  ERR_IO also where a file system gives back no room within a file."""
        cdef fault f
        check(cold_drop(&self.raw, block, &f), &f)

    def marks(self) -> bytes:
        """One byte for each block, not 0 where it is there."""
        cdef uint8_t marks[_BLOCKS_MAX]
        cdef fault f
        check(cold_marks(&self.raw, marks, &f), &f)
        return marks[:cold_blocks(self.raw.bytes)]


def evict(str directory, uint64_t segment):
    """Remove all blocks of a segment; their room is free at once."""
    cdef bytes path = os.fsencode(directory)
    cdef fault f
    check(cold_evict(path, segment, &f), &f)


def bring(str directory, uint64_t segment, uint64_t position, uint64_t size):
    """Have these bytes of a cold segment in memory or, where ``position`` is 0, its index here.  Asks the archiver."""
    cdef bytes path = os.fsencode(directory)
    cdef const char *p = path
    cdef fault f
    cdef err e
    with nogil:
        e = cold_bring(p, segment, position, size, &f)
    if e != OK and e != ERR_NOT_FOUND:  # what retention took the reader finds out by itself
        raise storage_error(e, &f)


def tell(str directory, uint64_t segment, uint64_t position):
    """A reader has come there and reads on: what follows is fetched before he asks for it.  Asks the archiver."""
    cdef bytes path = os.fsencode(directory)
    cdef const char *p = path
    cdef fault f
    cdef err e
    with nogil:
        e = cold_tell(p, segment, position, &f)
    check(e, &f)


def _bring_or_wait(directory, segment, position, size):
    try:
        bring(directory, segment, position, size)
    except Exception:
        time.sleep(ASK_AGAIN_S)  # the reader will want it again at once
        raise


def _read_through(fd, position, size):
    try:
        for at in range(position, position + size, PIECE_BYTES):
            if not os.pread(fd, min(PIECE_BYTES, position + size - at), at):
                break
    finally:
        os.close(fd)


cdef object ahead(reader *r, str directory, uint64_t begin, uint64_t size):
    if r.cold:
        return partial(_bring_or_wait, directory, r.segment, r.position + begin, size)
    return partial(_read_through, os.dup(r.fd), r.position + begin, size)


cdef object telling(reader *r, str directory):
    return partial(tell, directory, r.segment, r.position)
