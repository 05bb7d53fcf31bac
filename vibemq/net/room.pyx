# SPDX-License-Identifier: Apache-2.0
"""How much a worker keeps of what its connections have sent and it cannot use yet: incomplete frames above all.

Each connection keeps up to SHARE_BYTES without asking, so that nobody can keep others from logging in, from frames of
that size and from heartbeats.  What goes beyond the shares is counted, for all connections together:

- A connection that keeps nothing reads as much as is free of the part for reading.
- One with a frame that has begun and is larger than its share needs a promise for the whole of it before it reads on,
  so that whoever has a promise can be finished; who cannot have one is not read until others are done.  Small frames
  have a part of their own, so large ones do not keep them waiting.
- Whoever is alone with a promise in its part always gets it, so the largest frame that a door allows goes through.

So input takes at most SHARE_BYTES for each connection, `limit`, and one frame of each kind above it.  What a peer is to
read beyond the size at which it is not read any more (net/connection.pyx) is counted as well: it cannot be refused, but
nobody is promised room for a large frame while there is that much.

A peer that holds a promise and hardly goes on, or hardly reads, is closed when somebody waits: Connection.make_way.
"""


cdef class Room:
    def __init__(self, size_t limit):
        self.limit = limit
        self.size[READ], self.size[SMALL], self.size[LARGE] = limit // 2, limit // 4, limit // 4
        self.waiting = ({}, {}, {})

    @property
    def is_wanted(self) -> bool:
        """Does somebody wait?"""
        return any(self.waiting)

    cdef size_t readable(self) noexcept:
        """How many bytes a connection may read that keeps nothing."""
        cdef size_t size = self.size[READ], taken = self.taken[READ]
        return SHARE_BYTES + (size - taken if taken < size else 0)

    cdef bint may_promise(self, int part, size_t more) noexcept:
        return self.promises[part] == 0 or self.taken[part] + more <= self.size[part]

    cdef int serve(self, int part) except -1:
        """Something was given back: promise it to those who wait, in their order."""
        cdef dict waiting = self.waiting[part]
        while waiting:
            first = next(iter(waiting))
            if not first.promised_room():
                return 0
            waiting.pop(first, None)
        return 0
