# SPDX-License-Identifier: Apache-2.0

cdef enum:
    # What each connection keeps of its input without asking: more than a frame before login, and than most frames.
    SHARE_BYTES = 16 * 1024
    # A frame up to here is a small one: as large as clients make them by default.
    SMALL_FRAME_BYTES = 1 << 20
    # While others wait: a peer that holds room has to send or take so much in so long a time.
    HOLD_MS = 5000
    HOLD_BYTES_MIN = 64 * 1024
    # What the room is for, each with a part of its own.
    READ = 0   # whatever one read of a socket brought and could not be used at once: half of all
    SMALL = 1  # small frames that have begun: a quarter
    LARGE = 2  # large ones, and answers that peers do not read: a quarter
    PARTS = 3


# What all connections of a worker keep together of input that is not used yet.
cdef class Room:
    cdef readonly size_t limit          # bytes
    cdef size_t size[PARTS]
    cdef size_t taken[PARTS]            # what connections keep beyond their shares, or are promised
    cdef int promises[PARTS]            # connections that are promised room for the whole of a frame
    cdef tuple waiting                  # for each part: connections that want such a promise, longest first

    cdef size_t readable(self) noexcept
    cdef bint may_promise(self, int part, size_t more) noexcept
    cdef int serve(self, int part) except -1
