# SPDX-License-Identifier: Apache-2.0
"""Letters between workers: small descriptors in rings of shared memory, never payload.

For each pair of workers there is one ring (csrc/shm/ring.h), so each has one writer and one
reader.  Who has written rings the receiver's doorbell once, at the end of its turn.  What does
not fit waits in the sender's own memory; it is bounded by what consumers may have in flight.
A worker that takes a seat throws away what was meant for its predecessor.
"""

import mmap
import os

from cpython.buffer cimport PyBuffer_Release, PyObject_GetBuffer, Py_buffer, PyBUF_WRITABLE
from libc.stdlib cimport free, realloc

from vibemq.storage cimport core
from vibemq.storage.core cimport OK, fault
from vibemq.storage.log cimport storage_error

cdef enum:
    # Letters that a ring holds; all rings of 64 workers are then 170 MiB of address space, touched as used.
    CELLS_FEW_WORKERS = 4096
    CELLS_MANY_WORKERS = 512
    FEW_WORKERS_MAX = 8
    STRIDE_BYTES = 4096


cdef uint32_t cells_of(uint32_t workers) noexcept:
    return CELLS_FEW_WORKERS if workers <= FEW_WORKERS_MAX else CELLS_MANY_WORKERS


cdef size_t stride_of(uint32_t workers) noexcept:
    cdef size_t size = core.ring_bytes(sizeof(letter), cells_of(workers))
    return (size + STRIDE_BYTES - 1) // STRIDE_BYTES * STRIDE_BYTES


def mail_init(int fd, uint32_t workers):
    """Size and lay out the rings of `workers` workers in a new memfd; the supervisor does this once."""
    cdef Py_buffer view
    cdef size_t stride = stride_of(workers)
    cdef size_t at
    cdef fault f
    os.ftruncate(fd, stride * workers * workers)
    memory = mmap.mmap(fd, stride * workers * workers)
    PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE)
    try:
        for at in range(workers * workers):
            e = core.ring_init(<core.ring *> (<uint8_t *> view.buf + at * stride), sizeof(letter), cells_of(workers), &f)
            if e != OK:
                raise storage_error(e, &f)
    finally:
        PyBuffer_Release(&view)
    memory.close()


cdef class Mail:
    """The rings as one worker sees them; make it after fork."""

    def __cinit__(self, int fd, Board board, uint32_t workers):
        cdef Py_buffer view
        self.board, self.workers = board, workers
        self.ring_stride = stride_of(workers)
        self.memory = mmap.mmap(fd, self.ring_stride * workers * workers)
        PyObject_GetBuffer(self.memory, &view, PyBUF_WRITABLE)
        self.rings = <uint8_t *> view.buf
        PyBuffer_Release(&view)  # the mapping lives as long as self.memory, which nobody closes

    def __dealloc__(self):
        for i in range(64):
            free(self.unsent[i])

    cdef ring *_ring(self, uint32_t sender, uint32_t receiver) noexcept:
        return <ring *> (self.rings + (<size_t> sender * self.workers + receiver) * self.ring_stride)

    def sit(self):
        """Throw away what was meant for the last one on this seat; before the board is told of the new one."""
        cdef letter old
        cdef uint32_t sender
        for sender in range(self.workers):
            while core.ring_pop(self._ring(sender, self.board.index), &old) == OK:
                pass

    def seated(self):
        """The board knows who sits here now: from here on letters may be sent."""
        self.epoch = core.doorbell_epoch(self.board.raw, self.board.index)

    cdef int send(self, uint32_t receiver, const letter *what) except -1:
        cdef letter *grown
        cdef size_t capacity
        cdef letter stamped = what[0]
        stamped.epoch, stamped.receiver_epoch = self.epoch, core.doorbell_epoch(self.board.raw, receiver)
        self.dirty |= <uint64_t> 1 << receiver
        if self.unsent_head[receiver] == self.unsent_size[receiver]:
            if core.ring_push(self._ring(self.board.index, receiver), &stamped) == OK:
                return 0
            self.unsent_head[receiver] = self.unsent_size[receiver] = 0
        if self.unsent_size[receiver] == self.unsent_capacity[receiver]:
            capacity = max(<size_t> 1024, self.unsent_capacity[receiver] * 2)
            grown = <letter *> realloc(self.unsent[receiver], capacity * sizeof(letter))
            if grown == NULL:
                raise MemoryError
            self.unsent[receiver], self.unsent_capacity[receiver] = grown, capacity
        self.unsent[receiver][self.unsent_size[receiver]] = stamped
        self.unsent_size[receiver] += 1
        return 0

    cdef bint take(self, uint32_t sender, letter *out) noexcept:
        """The next letter from whoever sits on the seat `sender` now; False when there is none."""
        while core.ring_pop(self._ring(sender, self.board.index), out) == OK:
            if out.epoch == core.doorbell_epoch(self.board.raw, sender) and out.receiver_epoch == self.epoch:
                return True
        return False

    cdef int flush(self) except -1:
        """Push what waited, and ring who got something.  At the end of each turn."""
        cdef uint32_t to
        cdef ring *r
        cdef uint64_t again = 0
        if not self.dirty:
            return 0
        for to in range(self.workers):
            if not self.dirty & (<uint64_t> 1 << to):
                continue
            r = self._ring(self.board.index, to)
            while self.unsent_head[to] < self.unsent_size[to]:
                if core.ring_push(r, &self.unsent[to][self.unsent_head[to]]) != OK:
                    again |= <uint64_t> 1 << to
                    break
                self.unsent_head[to] += 1
            core.doorbell_request(self.board.raw, to, core.DOORBELL_REQUEST_MAIL, self.board.fds[to])
        self.dirty = again
        return 0
