# SPDX-License-Identifier: Apache-2.0
"""The table of single-active-consumer groups that all workers share (csrc/shm/groups.h), as Python sees it.

Members come and go once for each subscription, so every row becomes a named tuple here; what a
message costs does not depend on it.
"""

import mmap
import os
from enum import IntEnum
from typing import NamedTuple

from cpython.buffer cimport PyBuffer_Release, PyObject_GetBuffer, Py_buffer, PyBUF_WRITABLE
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from vibemq.storage cimport core
from vibemq.storage.core cimport OK, ERR_FULL, ERR_INVALID, err, fault, groups, groups_row
from vibemq.storage.log cimport Board, storage_error

from vibemq.errors import LimitExceeded, PreconditionFailed

cdef extern from "shm/groups.h":
    size_t _GROUPS_BYTES "sizeof(struct groups)"

#: Size in bytes of the shared memory that holds the table.
GROUPS_BYTES = _GROUPS_BYTES
MEMBERS_MAX = core.GROUPS_ROWS
NAME_BYTES_MAX = core.GROUPS_NAME_BYTES_MAX


class State(IntEnum):
    WAITING = core.GROUPS_WAITING
    ACTIVE = core.GROUPS_ACTIVE
    DEACTIVATING = core.GROUPS_DEACTIVATING  # active until it has answered that it stopped


cdef tuple STATES = (None, State.WAITING, State.ACTIVE, State.DEACTIVATING)  # by number
cdef object _new = tuple.__new__


class Place(NamedTuple):
    """What a decision needs to know of a member: groups may be large, and each change looks at all of one."""

    number: int  # of registration: the order within a group
    row: int
    state: State
    partition: int  # -1: a plain group
    worker: int


class Member(NamedTuple):
    """One row: a consumer in a group."""

    row: int
    number: int  # of registration: the order within a group
    state: State
    slot: int  # of the stream
    incarnation: str  # of the stream
    name: str  # of the group
    partition: int  # -1: a plain group
    worker: int
    member: int  # the worker's own number for it
    label: str  # for people


def groups_init(int fd):
    """Size and lay out the table in a new memfd; the supervisor does this once."""
    cdef Py_buffer view
    cdef fault f
    cdef err e = OK
    os.ftruncate(fd, GROUPS_BYTES)
    with mmap.mmap(fd, GROUPS_BYTES) as memory:
        PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE)
        e = core.groups_init(<groups *> view.buf, &f)
        PyBuffer_Release(&view)
    if e != OK:
        raise storage_error(e, &f)


cdef uint64_t _number(str incarnation) except? 0:
    return int(incarnation, 16)


cdef class GroupTable:
    """The table as one worker sees it; ``with table:`` holds its mutex, which everything but ``state`` needs."""

    cdef Board board
    cdef object memory
    cdef groups *raw
    cdef uint32_t *found            # room for the numbers of all rows

    def __cinit__(self, int fd, Board board):
        cdef Py_buffer view
        self.board = board
        self.memory = mmap.mmap(fd, GROUPS_BYTES)
        PyObject_GetBuffer(self.memory, &view, PyBUF_WRITABLE)
        self.raw = <groups *> view.buf
        PyBuffer_Release(&view)  # the mapping lives as long as self.memory, which nobody closes
        self.found = <uint32_t *> malloc(core.GROUPS_ROWS * sizeof(uint32_t))
        if self.found == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.found)

    def __enter__(self):
        cdef fault f
        cdef err e = core.groups_lock(self.raw, &f)
        if e != OK:
            raise storage_error(e, &f)
        return self

    def __exit__(self, *problem):
        core.groups_unlock(self.raw)

    @property
    def repair_wanted(self) -> bool:
        """A worker died while it changed the table: decide every group, then say ``repaired``."""
        return self.raw.repair_wanted != 0

    def repaired(self):
        self.raw.repair_wanted = 0

    def add(self, uint32_t slot, str incarnation, str name, int32_t partition, uint64_t member, str label="") -> int:
        """Add a member of this worker behind all others, waiting; returns its row.

        PreconditionFailed: the group has another partition.  LimitExceeded: the name, or the table is full.
        """
        cdef groups_row r
        cdef bytes text = name.encode(errors="surrogatepass"), shown = label.encode(errors="replace")
        cdef uint32_t row = 0
        cdef fault f
        cdef err e
        if not 0 < len(text) <= core.GROUPS_NAME_BYTES_MAX:
            raise LimitExceeded("size in bytes of a group's name", len(text), core.GROUPS_NAME_BYTES_MAX)
        shown = shown[:core.GROUPS_LABEL_BYTES_MAX]
        memset(&r, 0, sizeof(r))
        r.incarnation, r.slot, r.partition, r.member = _number(incarnation), slot, partition, member
        r.worker, r.epoch = self.board.index, core.doorbell_epoch(self.board.raw, self.board.index)
        r.name_bytes, r.label_bytes = <uint8_t> len(text), <uint8_t> len(shown)
        memcpy(r.name, <const char *> text, len(text))
        memcpy(r.label, <const char *> shown, len(shown))
        e = core.groups_add(self.raw, &r, &row, &f)
        if e == ERR_FULL:
            raise LimitExceeded("consumers in single-active-consumer groups", core.GROUPS_ROWS, core.GROUPS_ROWS)
        if e == ERR_INVALID:
            raise PreconditionFailed(
                f"the group {name!r} has the partition index {<int32_t> f.needed}, not {partition}",
                hint="all consumers of a group must name the same super stream, or none")
        if e != OK:
            raise storage_error(e, &f)
        return row

    def remove(self, uint32_t row):
        core.groups_remove(self.raw, row)

    def state(self, uint32_t row) -> State:
        """Of a row of this worker's own; needs no mutex."""
        return STATES[<int> core.groups_state(self.raw, row)]

    def set_state(self, uint32_t row, int state):
        core.groups_set_state(self.raw, row, <core.groups_state_t> state)

    cdef object _member(self, uint32_t row):
        cdef groups_row *r = &self.raw.rows[row]
        return Member(row, r.number, STATES[<int> r.state], r.slot, f"{r.incarnation:016x}",
                      r.name[:r.name_bytes].decode(errors="surrogatepass"), r.partition, r.worker, r.member,
                      r.label[:r.label_bytes].decode(errors="replace"))

    cdef list _members(self, uint32_t count):
        """Of what was found, in registration order."""
        cdef list members = [self._member(self.found[i]) for i in range(count)]
        members.sort(key=_by_number)
        return members

    def group(self, str incarnation, str name) -> list[Place]:
        """The members of one group, in registration order."""
        cdef bytes text = name.encode(errors="surrogatepass")
        cdef list places = []
        cdef groups_row *r
        cdef uint32_t i, count
        if len(text) > core.GROUPS_NAME_BYTES_MAX:
            return places
        count = core.groups_of(self.raw, _number(incarnation), text, <uint32_t> len(text), self.found)
        for i in range(count):
            r = &self.raw.rows[self.found[i]]
            places.append(_new(Place, (r.number, self.found[i], STATES[<int> r.state], r.partition, r.worker)))
        places.sort()  # numbers differ
        return places

    def all(self) -> list[Member]:
        return self._members(core.groups_all(self.raw, self.found))

    def dead(self) -> list[Member]:
        """Members whose worker is dead: another process has taken its seat."""
        return self._members(core.groups_dead(self.raw, self.board.raw, self.found))

    def ring(self, workers):
        """Tell each of ``workers`` (this one too, if it is among them) that members of theirs have news.  No mutex."""
        for worker in workers:
            core.doorbell_request(self.board.raw, worker, core.DOORBELL_REQUEST_GROUPS, self.board.fds[<int> worker])


def _by_number(member):
    return member.number
