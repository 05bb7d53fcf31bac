# SPDX-License-Identifier: Apache-2.0
"""Stored offsets (csrc/log/offsets.h): what consumers of a stream ask the broker to remember, in a file beside its log."""

import logging
import os
import time
from collections import OrderedDict
from contextlib import suppress

from libc.stdint cimport uint32_t, uint64_t

from vibemq.storage cimport core
from vibemq.storage.core cimport OK, ERR_NOT_FOUND, boolean, err, fault, offsets, offsets_record
from vibemq.storage.log cimport check, storage_error
from vibemq.storage.meters cimport METER_OFFSETS_EVICTED, Meters

from vibemq.errors import LimitExceeded
from vibemq.storage.log import require_usable

logger = logging.getLogger(__name__)

#: How many references a stream keeps, and how long they are.
REFERENCES_MAX = core.OFFSETS_REFERENCES_MAX
REFERENCE_BYTES_MAX = core.OFFSETS_REFERENCE_BYTES_MAX
#: Handles that a worker keeps, with a descriptor each; opening one again costs some microseconds.
OPEN_MAX = 256
#: An empty file beside `offsets`: offsets were stored, so a start that finds no `offsets` logs the loss.
KEPT = "offsets.kept"
EVICTIONS_TOLD_EVERY_S = 60.0  # of one stream: consumers with ever new names do not fill the disk with lines


cdef void _collect(void *context, const offsets_record *r) noexcept with gil:
    (<list> context).append((r.written_ms, <bytes> r.reference[:r.bytes], r.offset))


cdef class StoredOffsets:
    """The stored offsets of one stream, by its directory.  A handle belongs to one thread.

    Nothing is synced; of two stores of one name the last counts, also when it goes backwards."""

    cdef offsets *raw
    cdef readonly str directory
    cdef uint32_t damaged           # what was logged already
    cdef boolean is_marked           # KEPT is there
    cdef double tell_evictions_s    # not before
    cdef Meters meters              # counts evicted references; None: not counted

    def __cinit__(self, str directory, Meters meters=None):
        cdef fault f
        self.meters = meters
        require_usable(directory)
        cdef bytes path = os.fsencode(directory)
        cdef err e = core.offsets_open(path, &self.raw, &f)
        if e != OK:
            self.raw = NULL
            raise storage_error(e, &f)
        self.directory = directory

    def __dealloc__(self):
        core.offsets_close(self.raw)

    def close(self):
        core.offsets_close(self.raw)
        self.raw = NULL

    cdef int _open(self) except -1:
        if self.raw == NULL:
            raise ValueError(f"{self.directory}: closed")
        return 0

    cdef object _report(self):
        cdef uint32_t damaged = core.offsets_damaged(self.raw)
        if damaged > self.damaged:
            logger.error("%s: %d stored offsets are damaged and count as not stored", self.directory, damaged)
        self.damaged = damaged

    def store(self, bytes reference, uint64_t offset):
        """Remember ``offset`` for ``reference``.  LimitExceeded: it is too long; StorageError."""
        cdef boolean evicted = False
        cdef uint32_t size = <uint32_t> len(reference)
        cdef const char *name = reference
        cdef fault f
        cdef err e
        self._open()
        if len(reference) > core.OFFSETS_REFERENCE_BYTES_MAX:
            raise LimitExceeded("size in bytes of an offset reference", len(reference), core.OFFSETS_REFERENCE_BYTES_MAX)
        with nogil:
            e = core.offsets_store(self.raw, name, size, offset, &evicted, &f)
        self._report()
        check(e, &f)
        if not self.is_marked:  # once for each handle
            self.is_marked = True
            # The offset is stored. Without this file only the loss of `offsets` stays unnoticed.
            with suppress(OSError):
                open(os.path.join(self.directory, KEPT), "ab").close()
        if evicted and self.meters is not None:
            self.meters.count(METER_OFFSETS_EVICTED, 1)
        if evicted and time.monotonic() >= self.tell_evictions_s:
            self.tell_evictions_s = time.monotonic() + EVICTIONS_TOLD_EVERY_S
            logger.warning("%s: more than %d offset references: the one stored longest ago made room for %r",
                           self.directory, REFERENCES_MAX, reference)

    def get(self, bytes reference) -> int | None:
        """The offset stored last for ``reference``; None when there is none."""
        cdef uint64_t offset = 0
        cdef uint32_t size = <uint32_t> len(reference)
        cdef const char *name = reference
        cdef fault f
        cdef err e
        self._open()
        with nogil:  # another process may hold its lock in a slow write
            e = core.offsets_get(self.raw, name, size, &offset, &f)
        self._report()
        if e == ERR_NOT_FOUND:
            return None
        check(e, &f)
        return offset

    def all(self) -> dict[bytes, int]:
        """Every reference and its offset."""
        cdef list found = []
        cdef fault f
        cdef err e
        self._open()
        e = core.offsets_each(self.raw, _collect, <void *> found, &f)
        self._report()
        check(e, &f)
        found.sort()  # by when they were written
        return {reference: offset for _, reference, offset in found}


class OffsetFiles:
    """The handles one worker keeps, of streams that somebody there has a use for: those used last, at most OPEN_MAX."""

    def __init__(self, most: int = OPEN_MAX, Meters meters=None):
        self.most, self.meters = most, meters
        self.held = OrderedDict()
        self.users = {}  # directory -> how many have a use for it

    def attach(self, directory: str):
        """Somebody stores or asks for offsets there from now on, and holds the stream open meanwhile."""
        self.users[directory] = self.users.get(directory, 0) + 1

    def of(self, directory: str) -> StoredOffsets:
        """The handle for a stream's directory, by somebody who is attached; to be used at once, not kept."""
        held = self.held.get(directory)
        if held is None:
            if len(self.held) >= self.most:
                self.held.popitem(last=False)[1].close()
            held = self.held[directory] = StoredOffsets(directory, self.meters)
        else:
            self.held.move_to_end(directory)
        return held

    def detach(self, directory: str):
        """Whoever was attached has gone, or the stream has: with the last one goes the descriptor.

        So none is left of a stream that is deleted later, of which a worker that has it open no more hears nothing.
        """
        left = self.users.pop(directory) - 1
        if left:
            self.users[directory] = left
            return
        held = self.held.pop(directory, None)
        if held is not None:
            held.close()
