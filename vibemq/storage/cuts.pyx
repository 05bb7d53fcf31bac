# SPDX-License-Identifier: Apache-2.0
"""What somebody who plans to read a log in parts wants to know of it (csrc/log/cuts.h), in one look."""

import os
from typing import NamedTuple

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from vibemq.storage cimport core
from vibemq.storage.core cimport OK, ERR_CORRUPT, ERR_END, boolean, chunk, err, fault, filter_t, reader
from vibemq.storage.log cimport Log, check

cdef extern from "log/cuts.h" nogil:
    err log_cuts(core.log *l, uint64_t start, uint64_t *end, uint64_t bytes_max, uint64_t records_max, uint64_t *cuts,
                 uint32_t most, uint32_t *count, fault *f)
    err log_extent(core.log *l, uint64_t start, uint64_t bytes_max, uint64_t *limit, uint64_t *bytes, fault *f)

#: What is not durable though it was written so long ago is synced by nobody: whoever wrote it was killed.
SYNC_OVERDUE_MS = 1000
#: One reader's.
FILTER_VALUES_MAX = core.FILTER_VALUES_MAX


class LogLook(NamedTuple):
    """Readers have offsets [first, next); those below ``durable`` survive by the stream's durability; ``cuts`` rise.

    ``limit``: the end of at most so many bytes from the start on; ``waiting_bytes``: how many there are in all;
    ``uncut``: below it nothing was cut yet; ``at_timestamp``: -1 where no time was said.
    """

    first: int
    next: int
    durable: int
    at_timestamp: int
    limit: int
    waiting_bytes: int
    size_bytes: int
    uncut: int
    cuts: list[int]


def look(
    str directory, int64_t start, int64_t end, int64_t timestamp_ms, uint64_t bytes_max, uint64_t split_bytes,
    uint64_t split_records, uint32_t cuts_most, int64_t now_ms,
) -> LogLook:
    """Of a log that is open in this boot; ``start`` and ``end`` -1: its first and its durable offset; sizes 0: no limit.

    May block: helper threads only.  Raises StorageError.
    """
    cdef Log held = Log(directory)
    cdef core.commit committed
    cdef fault f
    cdef err e
    cdef uint64_t limit, waiting, uncut, durable, begin, until
    cdef uint64_t *found
    cdef uint32_t count = 0
    try:
        stats = held.stats()
        at_timestamp = -1 if timestamp_ms < 0 else held.attach_offset(core.READER_TIMESTAMP, timestamp_ms, True)
        durable = stats.confirmed_offset
        if held.is_disk_durable:
            durable = min(durable, core.log_durable_offset(held.raw))
            core.control_committed(held.control, &committed)
            if durable < committed.next_offset and abs(now_ms - committed.timestamp_ms) > SYNC_OVERDUE_MS:
                durable = held.sync()
        elif held.is_remote:  # not below the first: what is gone is no longer waited for
            durable = min(durable, max(core.word_load(&held.control.remote_offset), <uint64_t> stats.first_offset))
        begin = stats.first_offset if start < 0 else start
        until = durable if end < 0 else end
        with nogil:
            e = log_extent(held.raw, begin, bytes_max if bytes_max else <uint64_t> -1, &limit, &waiting, &f)
        check(e, &f)
        uncut = until
        cuts = []
        if (split_bytes or split_records) and begin < until:
            found = <uint64_t *> malloc((cuts_most + 1) * sizeof(uint64_t))
            if found == NULL:
                raise MemoryError
            try:
                with nogil:
                    e = log_cuts(held.raw, begin, &uncut, split_bytes, split_records, found, cuts_most, &count, &f)
                check(e, &f)
                cuts = [found[i] for i in range(count)][::-1]
            finally:
                free(found)
        elif begin < until:
            uncut = begin
        return LogLook(
            stats.first_offset, max(stats.confirmed_offset, durable), durable, at_timestamp, min(limit, until), waiting,
            stats.size_bytes, uncut, cuts,
        )
    finally:
        held.close()


cdef enum:
    SKIP_CHUNKS = 256  # between two looks at how far it has come
    HEAD_BYTES = 512  # of a chunk and its filter, with room

#: Chunks whose filters are looked at for one answer: some microseconds each where the disk has been read before.
LOOKED_AT_MAX = 100_000


def matches(str directory, uint64_t start, uint64_t end, list values, bint match_unfiltered, uint32_t spans_most):
    """Which of the offsets [start, end) lie in chunks that may hold messages of these filter values.

    Returns (up to where it has looked, [first, end, first, end, ...]), as far as LOOKED_AT_MAX and `spans_most` reach.
    May block: helper threads only.  Raises StorageError.
    """
    cdef Log held = Log(directory)
    cdef filter_t wanted
    cdef reader r
    cdef chunk c
    cdef fault f
    cdef err e
    cdef uint8_t head[HEAD_BYTES]
    cdef uint64_t got, first, next_offset, begin = 0, last = 0, looked = 0  # [begin, last): the span under way
    cdef uint32_t skipped = 0
    cdef list spans = []
    core.filter_init(&wanted, match_unfiltered)
    for value in values:
        check(core.filter_add(&wanted, <bytes> value, <uint32_t> len(value)), &f)
    check(core.reader_open(&r, held.raw, core.READER_OFFSET, <int64_t> start, &f), &f)
    try:
        with nogil:
            e = core.reader_settle(&r, False, &f)
        check(e, &f)
        while r.next_offset < end and looked < LOOKED_AT_MAX and len(spans) + 1 < spans_most:
            with nogil:
                e = core.reader_skip(&r, &wanted, SKIP_CHUNKS, False, &skipped, &f)
            looked += skipped + 1
            if e == OK and skipped == SKIP_CHUNKS:
                continue
            first = r.next_offset
            if e == OK:
                e = core.reader_fetch(&r, head, HEAD_BYTES, False, &got, &f)
            if e == OK:
                e = core.reader_header(&r, head, got, &c, &f)
            if e == OK:
                first = c.chunk_id
                core.reader_advance(&r, &c)
            elif e == ERR_CORRUPT:  # whoever reads it will tell
                check(core.reader_skip_damaged(&r, &f), &f)
            elif e == ERR_END:
                break
            else:
                check(e, &f)
            first, next_offset = max(first, start), min(r.next_offset, end)
            if first >= next_offset:
                continue
            if first != last:
                if last:
                    spans.append((begin, last))
                begin = first
            last = next_offset
        if last:
            spans.append((begin, last))
        return min(r.next_offset, end), [offset for span in spans for offset in span]
    finally:
        core.reader_close(&r)
        held.close()
