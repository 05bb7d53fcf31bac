# SPDX-License-Identifier: Apache-2.0
"""Loops over the C core for pytest-benchmark: CRC, ring and append, without Python in between."""

import os

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

cdef extern from "base/error.h" nogil:
    ctypedef enum err:
        OK
    struct fault:
        int sys_errno

cdef extern from "base/crc32.h" nogil:
    uint32_t crc32_update(uint32_t crc, const void *data, size_t size)
    const char *crc32_kernel()

cdef extern from "shm/ring.h" nogil:
    struct ring:
        uint32_t cells
    size_t ring_bytes(uint32_t cell_bytes, uint32_t cells)
    err ring_init(ring *r, uint32_t cell_bytes, uint32_t cells, fault *f)
    err ring_push(ring *r, const void *cell)
    err ring_pop(ring *r, void *cell)

cdef extern from "log/batch.h" nogil:
    struct batch:
        uint64_t records
    err batch_init(batch *b, fault *f)
    void batch_free(batch *b)
    void batch_clear(batch *b)
    err batch_add(batch *b, const uint8_t *entry, uint32_t size, uint32_t records)
    err batch_seal(batch *b, fault *f)

cdef extern from "log/log.h" nogil:
    struct log_options:
        uint64_t segment_bytes_max
    struct log "log":
        pass
    struct log_appended:
        uint64_t next_offset
    err log_create(const char *directory, const log_options *options, fault *f)
    err log_open(const char *directory, log **out, fault *f)
    void log_close(log *l)
    err log_append(log *l, batch *b, log_appended *out, fault *f)
    err log_remove(const char *directory, fault *f)

DESCRIPTOR_BYTES = 32
RING_CELLS = 4096


def crc(bytes data, int rounds) -> int:
    """CRC-32 of `data`, `rounds` times in a row; returns the last."""
    cdef const char *p = data
    cdef size_t size = len(data)
    cdef uint32_t value = 0
    cdef int i
    with nogil:
        for i in range(rounds):
            value = crc32_update(0, p, size)
    return value


def crc_kernel() -> str:
    """Which kernel this processor runs."""
    return crc32_kernel().decode()


def ring_pairs(int rounds) -> int:
    """Push and pop `rounds` descriptors of 32 bytes, 64 at a time; returns how many came out."""
    cdef ring *r = <ring *> calloc(1, ring_bytes(DESCRIPTOR_BYTES, RING_CELLS))
    cdef uint8_t cell[32]
    cdef fault f
    cdef int i, j, out = 0
    if r == NULL:
        raise MemoryError
    memset(cell, 7, 32)
    try:
        if ring_init(r, DESCRIPTOR_BYTES, RING_CELLS, &f) != OK:
            raise ValueError("the ring's sizes are refused")
        with nogil:
            for i in range(rounds // 64):
                for j in range(64):
                    ring_push(r, cell)
                for j in range(64):
                    out += ring_pop(r, cell) == OK
    finally:
        free(r)
    return out


cdef class Appender:
    """A log in a folder of its own, and a batch to fill, seal and append again and again."""

    cdef log *raw
    cdef batch batch
    cdef bytes directory

    def __cinit__(self, str directory):
        cdef fault f
        cdef log_options *options = <log_options *> calloc(1, sizeof(log_options))
        cdef err e
        self.directory = os.fsencode(directory)
        e = log_create(self.directory, options, &f)
        free(options)
        if e != OK or log_open(self.directory, &self.raw, &f) != OK or batch_init(&self.batch, &f) != OK:
            raise OSError(f"no log could be made in {directory}")

    def append(self, int messages, uint32_t size_bytes) -> int:
        """Fill, seal and append one batch; returns the log's next offset."""
        cdef uint8_t *entry = <uint8_t *> malloc(size_bytes + 4)
        cdef log_appended out
        cdef fault f
        cdef err e = OK
        cdef int i
        if entry == NULL:
            raise MemoryError
        memset(entry, 0, size_bytes + 4)
        entry[0], entry[1] = <uint8_t> (size_bytes >> 24), <uint8_t> (size_bytes >> 16)
        entry[2], entry[3] = <uint8_t> (size_bytes >> 8), <uint8_t> size_bytes
        with nogil:
            batch_clear(&self.batch)
            for i in range(messages):
                if e == OK:
                    e = batch_add(&self.batch, entry, size_bytes + 4, 1)
            if e == OK:
                e = batch_seal(&self.batch, &f)
            if e == OK:
                e = log_append(self.raw, &self.batch, &out, &f)
        free(entry)
        if e != OK:
            raise OSError(f"append failed with error {<int> e}")
        return out.next_offset

    def close(self):
        """Remove the log and its folder."""
        cdef fault f
        if self.raw != NULL:
            log_close(self.raw)
            self.raw = NULL
            batch_free(&self.batch)
            if log_remove(self.directory, &f) != OK:
                raise OSError(f"{self.directory!r} could not be removed")
