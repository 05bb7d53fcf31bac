# SPDX-License-Identifier: Apache-2.0
"""What a log's control page says, for whoever looks at thousands of logs every few seconds.

The page is read as a file: to map it, and to list a log's segments, takes ten times as long.  So what depends on segments
(how many, how large) is left to `Log.stats`, to be asked again when `segments_generation` is another.
"""

import os
from typing import NamedTuple

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from posix.fcntl cimport O_CLOEXEC, O_RDONLY, open
from posix.unistd cimport close, pread
from vibemq.storage cimport core
from vibemq.storage.core cimport commit

cdef extern from "log/control.h" nogil:
    enum:
        CONTROL_BYTES, CONTROL_MAGIC, CONTROL_VERSION
    struct page "control":
        uint32_t magic, version
        core.shared_word first_offset, segments_generation
    bint page_is_deleted "control_is_deleted" (const page *c)
    void page_committed "control_committed" (const page *c, commit *out)
    uint64_t page_confirmed_offset "control_confirmed_offset" (const page *c)

cdef extern from *:
    """
    /* As large as the page, and aligned as its words need. */
    static _Alignas(128) _Thread_local unsigned char figures_room[4096];
    """
    uint8_t figures_room[4096]

cdef object _new = tuple.__new__


class LogFigures(NamedTuple):
    """Offsets of one instant; times in ms since 1970, sizes in bytes."""

    first_offset: int
    next_offset: int  # of written messages
    confirmed_offset: int  # the end for every reader
    written_ms: int  # when the newest chunk was; 0: there is none
    active_bytes: int  # of the segment that is being written
    segments_generation: int  # another one: segments have come or gone


def log_figures(str directory) -> LogFigures | None:
    """None: it is gone, being deleted, or not to be read; whoever uses it will say why."""
    cdef bytes path = os.fsencode(directory) + b"/control"
    cdef const char *p = path
    cdef page *c = <page *> figures_room
    cdef commit committed
    cdef int fd
    cdef long got = 0
    with nogil:
        fd = open(p, O_RDONLY | O_CLOEXEC)
        if fd >= 0:
            got = pread(fd, figures_room, CONTROL_BYTES, 0)
            close(fd)
    if got < <long> CONTROL_BYTES or c.magic != CONTROL_MAGIC or c.version != CONTROL_VERSION or page_is_deleted(c):
        return None
    page_committed(c, &committed)
    return _new(LogFigures, (core.word_load(&c.first_offset), committed.next_offset, page_confirmed_offset(c),
                             max(<int64_t> 0, committed.timestamp_ms), committed.position,
                             core.word_load(&c.segments_generation)))
