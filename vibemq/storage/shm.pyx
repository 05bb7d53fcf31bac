# SPDX-License-Identifier: Apache-2.0
"""What all workers share in memory, as one of them sees it: the board of doorbells, the table of groups, the mail.

Each lies in a memfd that the supervisor makes and lays out once (csrc/shm); a worker maps
it after the fork.  Members of groups come and go once for each subscription, so every row becomes a named tuple here;
what a message costs does not depend on it.
"""

import mmap
import os
from enum import IntEnum
from typing import NamedTuple

from cpython.buffer cimport PyBuffer_Release, PyObject_GetBuffer, Py_buffer, PyBUF_WRITABLE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from vibemq.grow cimport grow
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    ERR_FULL, ERR_INVALID, OK, doorbell_board, err, fault, groups, groups_row, ring, shared_word,
)
from vibemq.storage.log cimport check

from vibemq.errors import LimitExceeded, PreconditionFailed

cdef extern from "shm/doorbell.h":
    size_t _BOARD_BYTES "sizeof(struct doorbell_board)"
cdef extern from "shm/groups.h":
    size_t _GROUPS_BYTES "sizeof(struct groups)"
cdef extern from *:
    """
    static inline unsigned _lowest_bit(unsigned long long v) { return (unsigned) __builtin_ctzll(v); }
    """
    unsigned _lowest_bit(unsigned long long v) nogil
cdef extern from *:
    """
    #include <fcntl.h>
    #include <string.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    /* The ID of the mount of an open file: of all mounts since the boot, or before Linux 6.8 of those that exist.  By the
     * number of the call and of the fields, because C libraries have neither everywhere.  0: unknown. */
    static unsigned long long _mount_id(int fd)
    {
        unsigned char found[256] = {0}; /* struct statx */
        unsigned mask;
        unsigned long long id;
        if (syscall(SYS_statx, fd, "", 0x1000 /* AT_EMPTY_PATH */, 0x5000u /* STATX_MNT_ID_UNIQUE, _MNT_ID */, found) < 0) return 0;
        memcpy(&mask, found, sizeof mask);
        memcpy(&id, found + 144, sizeof id);
        return mask & 0x5000u ? id : 0;
    }
    """
    unsigned long long _mount_id(int fd) nogil

#: Sizes in bytes of the two.
BOARD_BYTES, GROUPS_BYTES = _BOARD_BYTES, _GROUPS_BYTES
#: Streams one broker can hold: one bit each in every worker's bitmap of news.
SLOTS_MAX = core.DOORBELL_SLOTS_MAX
WORKERS_MAX = core.DOORBELL_WORKERS_MAX
MEMBERS_MAX = core.GROUPS_ROWS
NAME_BYTES_MAX = core.GROUPS_NAME_BYTES_MAX


cdef uint8_t *address_of(object memory) except NULL:
    """Of a mapping, which lives as long as the object that nobody closes."""
    cdef Py_buffer view
    PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE)
    PyBuffer_Release(&view)
    return <uint8_t *> view.buf


def mount_id(int fd) -> int:
    """Return the kernel's ID of the mount through which a file is open; 0: unknown."""
    return _mount_id(fd)


# ---- the board ----

def board_init(int fd, uint32_t workers):
    """Size and lay out the board in a new memfd; the supervisor does this once."""
    os.ftruncate(fd, BOARD_BYTES)
    with mmap.mmap(fd, BOARD_BYTES) as memory:
        # From a number that no earlier run used: epochs are written into ledgers, which outlive the board.
        core.doorbell_board_init(<doorbell_board *> address_of(memory), workers, int.from_bytes(os.urandom(4), "little"))


cdef class Board:
    """The doorbells of all workers, seen from one of them (csrc/shm/doorbell.h)."""

    def __cinit__(self, int board_fd, uint32_t index, doorbell_fds):
        if len(doorbell_fds) > core.DOORBELL_WORKERS_MAX:
            raise ValueError(f"{len(doorbell_fds)} workers: at most {core.DOORBELL_WORKERS_MAX}")
        self.memory = mmap.mmap(board_fd, BOARD_BYTES)
        self.raw = <doorbell_board *> address_of(self.memory)
        self.index, self.workers = index, len(doorbell_fds)
        for i, fd in enumerate(doorbell_fds):
            self.fds[i] = fd
        self.doorbell_fd = self.fds[index]

    def sit(self):
        core.doorbell_sit(self.raw, self.index, os.getpid())

    def connections(self, uint32_t own) -> int:
        """How many all workers have together, of which this one has `own`."""
        core.doorbell_connections_set(self.raw, self.index, own)
        return core.doorbell_connections(self.raw)

    cdef void mark(self, uint64_t workers, uint32_t slot) noexcept nogil:
        """Tell every worker in the mask that the stream in ``slot`` has news."""
        cdef uint32_t w
        while workers:
            w = _lowest_bit(workers)
            workers &= workers - 1
            core.doorbell_mark(self.raw, w, slot, self.fds[w])

    # For who has a seat and no loop (the archiver):

    def tell(self, uint64_t workers, uint32_t slot):
        """`mark`, called from Python."""
        self.mark(workers, slot)

    def take(self) -> list[int]:
        """The slots of streams with news for this seat."""
        cdef uint32_t slots[64]
        cdef uint32_t count = 64, i
        cdef list found = []
        while count == 64:
            count = core.doorbell_take(self.raw, self.index, slots, 64)
            found += [slots[i] for i in range(count)]
        return found

    def sleep(self) -> bool:
        """Say that the doorbell must be rung from now on; False: there is news."""
        return core.doorbell_sleep(self.raw, self.index)

    def wake(self):
        core.doorbell_wake(self.raw, self.index)
        core.doorbell_requests_take(self.raw, self.index)  # they are all for workers

    def request_others(self, uint32_t bits):
        """Raise request bits for every other worker."""
        cdef uint32_t w
        for w in range(self.workers):
            if w != self.index:
                core.doorbell_request(self.raw, w, bits, self.fds[w])

    def seat_taken(self):
        """Tell the others that this seat has changed hands."""
        self.request_others(core.DOORBELL_REQUEST_SEATS)

    def access_changed(self):
        """Tell the others that users or permissions have changed."""
        self.request_others(core.DOORBELL_REQUEST_ACCESS)

    def work_done(self):
        """Called by a helper thread: wake the loop so that it takes the result."""
        core.doorbell_request(self.raw, self.index, core.DOORBELL_REQUEST_WORK, self.fds[self.index])


# ---- groups ----

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
    cdef fault f
    os.ftruncate(fd, GROUPS_BYTES)
    with mmap.mmap(fd, GROUPS_BYTES) as memory:
        check(core.groups_init(<groups *> address_of(memory), &f), &f)


cdef uint64_t _number(str incarnation) except? 0:
    return int(incarnation, 16)


cdef class GroupTable:
    """The table as one worker sees it; ``with table:`` holds its mutex, which everything but ``state`` needs."""

    cdef Board board
    cdef object memory
    cdef groups *raw
    cdef uint32_t *found            # room for the numbers of all rows

    def __cinit__(self, int fd, Board board):
        self.board = board
        self.memory = mmap.mmap(fd, GROUPS_BYTES)
        self.raw = <groups *> address_of(self.memory)
        self.found = <uint32_t *> malloc(core.GROUPS_ROWS * sizeof(uint32_t))
        if self.found == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.found)

    def __enter__(self):
        cdef fault f
        check(core.groups_lock(self.raw, &f), &f)
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
        check(e, &f)
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
        return sorted([self._member(self.found[i]) for i in range(count)], key=lambda member: member.number)

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


# ---- letters: small descriptors, never payload ----

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
    cdef size_t stride = stride_of(workers)
    cdef size_t at
    cdef fault f
    os.ftruncate(fd, stride * workers * workers)
    with mmap.mmap(fd, stride * workers * workers) as memory:
        for at in range(workers * workers):
            check(core.ring_init(<ring *> (address_of(memory) + at * stride), sizeof(letter), cells_of(workers), &f), &f)


cdef class Mail:
    """The rings as one worker sees them.

    For each pair of workers there is one (csrc/shm/ring.h), so each has one writer and one reader.  Who has written rings
    the receiver's doorbell once, at the end of its turn.  What does not fit waits in the sender's own memory; it is
    bounded by what consumers may have in flight.  A worker that takes a seat throws away what was meant for its
    predecessor.
    """

    def __cinit__(self, int fd, Board board, uint32_t workers):
        self.board, self.workers = board, workers
        self.ring_stride = stride_of(workers)
        self.memory = mmap.mmap(fd, self.ring_stride * workers * workers)
        self.rings = address_of(self.memory)

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
        cdef letter stamped = what[0]
        stamped.epoch, stamped.receiver_epoch = self.epoch, core.doorbell_epoch(self.board.raw, receiver)
        self.dirty |= <uint64_t> 1 << receiver
        if self.unsent_head[receiver] == self.unsent_size[receiver]:
            if core.ring_push(self._ring(self.board.index, receiver), &stamped) == OK:
                return 0
            self.unsent_head[receiver] = self.unsent_size[receiver] = 0
        grow(&self.unsent[receiver], &self.unsent_capacity[receiver], self.unsent_size[receiver] + 1, sizeof(letter))
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


# ---- what the limited use ----

cdef enum:
    USAGE_SPENT = 0
    USAGE_WORKERS = 1
    USAGE_LINE_WORDS = 8  # of a cache line: rows of different owners share none
    BURST_US = 1000000    # of what was not spent at once, so much may be spent together

#: Of the word: the low bits are the time until which it is paid, 8 years of microseconds; above is the rate's number.
cdef uint64_t PAID_MAX = (<uint64_t> 1 << 48) - 1


cdef class Usage:
    """Connections and messages of users and virtual hosts that have limits, in memory that all workers share.

    The supervisor makes it before the first fork.  A row has a word for each worker, which only that one writes: the
    owner's tag and how many connections it has here.  So adding them up needs no lock, and what a dead worker has left
    there holds only until its successor has written its own.  And a row has one word, changed by compare-and-swap: the
    time until which what was published is paid for, and the number of the rate by which it was.  Numbers rise with each
    change of a rate, modulo 2^16: so a new rate fills the bucket once, whoever comes first, and a worker that does not
    know it yet spends from it.
    """

    def __cinit__(self, uint32_t rows, uint32_t workers):
        cdef size_t words = USAGE_WORKERS + workers
        self.rows, self.workers = rows, workers
        self.stride = (words + USAGE_LINE_WORDS - 1) // USAGE_LINE_WORDS * USAGE_LINE_WORDS
        self.memory = mmap.mmap(-1, rows * self.stride * sizeof(uint64_t))
        self.words = <shared_word *> address_of(self.memory)

    cdef shared_word *_row(self, uint32_t row) except NULL:
        if row >= self.rows:
            raise ValueError(f"row {row}: there are {self.rows}")
        return self.words + row * self.stride

    def count(self, uint32_t row, uint32_t tag, uint32_t worker, uint32_t own) -> int:
        """How many connections all workers have together, of which this one has `own` from now on."""
        cdef shared_word *words = self._row(row)
        cdef uint64_t seen
        cdef uint32_t w
        cdef int64_t sum = 0
        if worker >= self.workers:
            raise ValueError(f"worker {worker}: there are {self.workers}")
        # By an exchange, so that of two workers that count at the same time at least one sees the other's.
        while True:
            seen = core.word_load(&words[USAGE_WORKERS + worker])
            if core.word_swap(&words[USAGE_WORKERS + worker], seen, <uint64_t> tag << 32 | own):
                break
        for w in range(self.workers):
            seen = core.word_bits(&words[USAGE_WORKERS + w])
            if seen >> 32 == tag:
                sum += seen & 0xFFFFFFFF
        return sum

    def spent(self, uint32_t row, uint16_t change, uint64_t cost_us, uint64_t now_us) -> int:
        """`spend`, called from Python."""
        self._row(row)
        return self.spend(row, change, cost_us, now_us)

    cdef uint64_t spend(self, uint32_t row, uint16_t change, uint64_t cost_us, uint64_t now_us) noexcept nogil:
        cdef shared_word *word = self.words + row * self.stride + USAGE_SPENT
        cdef uint64_t seen, held, paid
        cdef uint64_t least = now_us - BURST_US if now_us > BURST_US else 0
        while True:
            seen = core.word_load(word)
            held, paid = seen >> 48, seen & PAID_MAX
            if not seen or <int16_t> (change - <uint16_t> held) > 0:  # the first of all has any number
                held, paid = change, least
            paid = min(max(paid, least) + min(cost_us, PAID_MAX), PAID_MAX)
            if core.word_swap(word, seen, held << 48 | paid):
                return paid - now_us if paid > now_us else 0
