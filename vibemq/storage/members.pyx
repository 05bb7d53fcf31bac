# SPDX-License-Identifier: Apache-2.0
"""The members of a fan-out queue with their positions: a file beside the queue's ledger.

csrc/ledger/FORMAT.md draws the file.  The worker of a consumer adds its record before the home (the queue's coordinator)
hears of it; from then on only the home changes the record.  Both sides map the file, so a kill -9 loses no store.  An
older position only makes a message come again, so a change is not synced, and a damaged record counts as "owes more".
The file is synced before the ledger (ledger_sync): a power cut that keeps an acknowledgement keeps the other members.
"""

import errno
import fcntl
import heapq
import logging
import os
import struct
import zlib
from typing import NamedTuple

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap

from vibemq.errors import LimitExceeded, StorageError
from vibemq.storage import clock

logger = logging.getLogger(__name__)

FILE_NAME = "members"
MAGIC = 0x564D514D
VERSION = 1
#: Members of one queue that have a record: 16 MiB. A further unnamed member is served without one.
MEMBERS_MAX = 16_384
#: Names with a time to live of one queue: each may keep segments until its time to live ends.
NAMES_MAX = 4096
NAME_BYTES_MAX = 255
#: Ranges in a record; beyond that the nearest are joined, so some messages are redelivered.
RANGES_MAX = 40
RECORDS_PER_STEP = 64  # the file grows by 64 KiB: all of it is allocated, because a hole on a full disk is SIGBUS

cdef enum:
    RECORD_BYTES = 1024
    NAME_AT = 128
    RANGES_AT = 384
    # Words of a record.
    STATE = 0
    OWNER = 1
    TTL_S = 2
    START = 3
    SKIP_BELOW = 4
    RANGE_COUNT = 5
    NAME_BYTES = 6
    SINCE_MS = 7
    CHECK = 8
    LOW = 9
    LOW_INVERSE = 10
    CURSOR = 11
    CURSOR_INVERSE = 12
    ADMITTED = 13
    ALONE_FROM = 14
    ALONE_END = 15

#: States of a record.  The file has such a number in each byte of the word, so one flipped bit is corrected.
FREE, SUBSCRIBED, AWAY, LEFT = 0, 1, 2, 3
cdef uint64_t IN_EACH_BYTE = 0x0101010101010101
cdef uint64_t LOW_HALF = 0xFFFFFFFF
#: The highest time to live that a member can have (SUBSCRIBER_TTL_S_MAX): a damaged record keeps copies no longer.
TTL_S_MAX = 2_592_000
LENIENT = 1 << 63  # in the end of a range: messages that a member has acknowledged are no copies of this one


class MemberRecord(NamedTuple):
    """One member in the file."""

    index: int
    state: int
    worker: int
    life: int
    name: str
    ttl_s: int
    since_ms: int  # when it went away, since 1970
    since_stamp: int  # the same for clock.age_ms; 0: not known
    is_admitted: bool  # the home has given it a place
    is_whole: bool  # its check fits
    start: int
    skip_below: int
    low: int
    cursor: int
    copies: list  # ranges of its own copies
    shared: list  # ranges in which messages that no member has acknowledged are its copies
    alone: tuple  # in [first, end) no other member got a copy of its messages


cdef class MemberTable:
    """One process's handle of a queue's members, without a descriptor.  Raises StorageError and, for a full table,
    LimitExceeded."""

    def __init__(self, str directory, bint create):
        """`create`: make the file where there is none; else FileNotFoundError."""
        self.path = os.path.join(directory, FILE_NAME)
        with self._locked(os.O_CREAT if create else 0) as file:
            if os.fstat(file).st_size < RECORD_BYTES:
                self._grow(file, 0, _header())
            head = os.pread(file, len(_header()), 0)
            magic, version = struct.unpack_from("=II", head)
            if magic == MAGIC and version > VERSION and head == _header(version):
                raise StorageError("ERR_VERSION", f"{self.path} is of version {version}, known is version {VERSION}")
            if head != _header():
                logger.error("%s: the header is damaged and written again; the members are kept", self.path)
                if os.pwrite(file, _header(), 0) != len(head):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._map(file)

    def __dealloc__(self):
        if self.memory != NULL:
            munmap(self.memory, self.mapped * RECORD_BYTES)

    def _locked(self, int flags=0):
        return _Locked(self.path, flags)

    def _grow(self, int file, Py_ssize_t position, bytes begin=b""):
        """Write one step of zeros, with `begin` in front."""
        size = RECORDS_PER_STEP * RECORD_BYTES
        if os.pwrite(file, begin + bytes(size - len(begin)), position) != size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _map(self, int file):
        """Map all records that the file has now."""
        cdef size_t count = os.fstat(file).st_size // RECORD_BYTES
        cdef void *memory
        if count == self.mapped:
            return
        memory = mmap(NULL, count * RECORD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
        if memory == MAP_FAILED:
            raise MemoryError
        if self.memory != NULL:
            munmap(self.memory, self.mapped * RECORD_BYTES)
        self.memory, self.mapped = <uint8_t *> memory, count

    cdef uint64_t *_record(self, uint32_t index) except NULL:
        """Record `index`, from 1 on; the header is number 0."""
        if index >= self.mapped:
            with self._locked() as file:
                self._map(file)
            if index >= self.mapped:
                raise StorageError("ERR_CORRUPT", f"{self.path} has no record {index}")
        return <uint64_t *> (self.memory + <size_t> index * RECORD_BYTES)

    # ---- the worker of a consumer ----

    def add(self, uint32_t worker, uint32_t life, str name, uint32_t ttl_s) -> int:
        """Create a record of a new member.  0: the table is full, and the member has no name that needs one."""
        cdef uint64_t *w
        cdef uint32_t index
        cdef uint32_t free = 0
        names = 0
        encoded = name.encode()
        with self._locked() as file:
            self._map(file)
            for index in range(1, self.mapped):
                w = self._record(index)
                if _state_of(w[STATE]) == FREE:
                    free = free or index
                    if not ttl_s:
                        break
                elif w[TTL_S]:
                    names += 1
            if ttl_s and names >= NAMES_MAX:
                raise LimitExceeded("subscriber names of one queue", names + 1, NAMES_MAX)
            if not free:
                if self.mapped >= MEMBERS_MAX:
                    if ttl_s:
                        raise LimitExceeded("members of one queue with a record", MEMBERS_MAX + 1, MEMBERS_MAX)
                    return 0
                free = <uint32_t> self.mapped
                self._grow(file, <Py_ssize_t> free * RECORD_BYTES)
                self._map(file)
            w = self._record(free)
            w[OWNER] = <uint64_t> life << 32 | worker
            w[TTL_S], w[NAME_BYTES], w[RANGE_COUNT], w[START], w[SKIP_BELOW], w[SINCE_MS] = ttl_s, len(encoded), 0, 0, 0, 0
            w[ADMITTED] = w[ALONE_FROM] = w[ALONE_END] = 0
            self._bytes(free, NAME_AT, encoded.ljust(RANGES_AT - NAME_AT, b"\0"))
            self.place(free, 0, 0)  # not the positions of an earlier member
            self._seal(free)
            w[STATE] = SUBSCRIBED * IN_EACH_BYTE
            return free

    def leave(self, uint32_t index):
        """The member has unsubscribed; should the home die before it hears of that, its successor reads it here."""
        cdef uint64_t *w = self._record(index)
        if _state_of(w[STATE]) == SUBSCRIBED:
            w[STATE] = LEFT * IN_EACH_BYTE

    # ---- the home ----

    def free(self, uint32_t index):
        self._record(index)[STATE] = FREE

    cdef int place(self, uint32_t index, uint64_t low, uint64_t cursor) except -1:
        """Store that the member owes no acknowledgement below `low`, and gets `cursor` next."""
        cdef uint64_t *w = self._record(index)
        w[LOW], w[LOW_INVERSE], w[CURSOR], w[CURSOR_INVERSE] = low, ~low, cursor, ~cursor
        return 0

    def keep_alone(self, uint32_t index, uint64_t first, uint64_t end):
        """Store that in [first, end) no other member gets a copy of the member's messages."""
        cdef uint64_t *w = self._record(index)
        w[ALONE_FROM], w[ALONE_END] = first, end
        self._seal(index)

    def keep(self, uint32_t index, uint64_t start, uint64_t skip_below, copies, shared, is_away=False):
        """Store the member's copies besides its messages from `start` on; `is_away`: it vanished."""
        cdef uint64_t *w = self._record(index)
        cdef uint64_t stamp = w[NAME_BYTES] & ~LOW_HALF | w[RANGE_COUNT] >> 32
        ranges = [(first, end, 0) for first, end in copies] + [(first, end, LENIENT) for first, end in shared]
        ranges = _fewer(sorted(ranges), RANGES_MAX)
        if is_away:
            w[SINCE_MS], stamp = clock.wall_ms(), clock.stamp()
        w[START], w[SKIP_BELOW] = start, skip_below
        w[RANGE_COUNT], w[NAME_BYTES] = stamp << 32 | <uint64_t> len(ranges), stamp & ~LOW_HALF | w[NAME_BYTES] & LOW_HALF
        self._bytes(index, RANGES_AT, b"".join(struct.pack("=QQ", first, end | flag) for first, end, flag in ranges))
        w[ADMITTED] = 1
        self._seal(index)
        w[STATE] = (AWAY if is_away else SUBSCRIBED) * IN_EACH_BYTE

    def read(self, uint32_t index) -> MemberRecord:
        """Read a record.  One flipped bit is corrected; with more damage the member is owed all messages."""
        cdef uint64_t *w = self._record(index)
        cdef uint64_t count, size, stamp
        cdef char *at = <char *> w
        state = _state_of(w[STATE])
        is_whole = self._correct(index) and state >= 0
        if state < 0:
            state = AWAY
        # Of two copies that differ, by a kill or by damage, the lower one loses nothing.
        low, cursor = min(w[LOW], ~w[LOW_INVERSE]), min(w[CURSOR], ~w[CURSOR_INVERSE])
        count, size = min(w[RANGE_COUNT] & LOW_HALF, <uint64_t> RANGES_MAX), min(w[NAME_BYTES] & LOW_HALF, <uint64_t> NAME_BYTES_MAX)
        stamp = w[NAME_BYTES] & ~LOW_HALF | w[RANGE_COUNT] >> 32
        name = (<bytes> at[NAME_AT:NAME_AT + size]).decode("utf-8", "replace")
        ttl_s = min(w[TTL_S], TTL_S_MAX)
        if not is_whole:
            return MemberRecord(index, state, w[OWNER] & 0xFFFFFFFF, w[OWNER] >> 32, name, ttl_s, clock.wall_ms(), 0,
                                True, False, 0, 0, 0, cursor, [], [], (0, 0))
        pairs = list(struct.iter_unpack("=QQ", <bytes> at[RANGES_AT:RANGES_AT + count * 16]))
        copies = [(first, end) for first, end in pairs if not end & LENIENT]
        shared = [(first, end & ~LENIENT) for first, end in pairs if end & LENIENT]
        return MemberRecord(index, state, w[OWNER] & 0xFFFFFFFF, w[OWNER] >> 32, name, ttl_s, w[SINCE_MS], stamp,
                            w[ADMITTED] != 0, True, w[START], w[SKIP_BELOW], low, cursor, copies, shared,
                            (w[ALONE_FROM], w[ALONE_END]))

    def all(self) -> list:
        """Return every record that is not free."""
        cdef uint32_t index
        with self._locked() as file:
            self._map(file)
        return [self.read(index) for index in range(1, self.mapped) if _state_of(self._record(index)[STATE]) != FREE]

    def _bytes(self, uint32_t index, int at, bytes content):
        memcpy(<char *> self._record(index) + at, <const char *> content, len(content))

    def _seal(self, uint32_t index):
        self._record(index)[CHECK] = self._check(index)

    def _check(self, uint32_t index):
        return _check_of((<char *> self._record(index))[:RECORD_BYTES])

    def _correct(self, uint32_t index) -> bool:
        """Correct one flipped bit of the check or of the words that it covers; False where more is damaged."""
        cdef uint64_t *w = self._record(index)
        cdef uint64_t differing = w[CHECK] ^ <uint64_t> self._check(index)
        cdef int number
        if not differing:
            return True
        if differing & (differing - 1):
            if not _flips:
                _find_flips()
            number = _flips.get(differing, -1)
            if number < 0:
                return False
            (<uint8_t *> w)[number >> 3] ^= 1 << (number & 7)
        self._seal(index)
        return True


def _check_of(record):
    """Return the check of all that has no other protection: all but the state, itself, `low` and `cursor`."""
    whole = memoryview(record)
    return zlib.crc32(whole[ADMITTED * 8:], zlib.crc32(whole[OWNER * 8:CHECK * 8]))


#: How the check of a record changes -> the flipped bit that changes it so; empty until a record is damaged.
_flips = {}


def _find_flips():
    cdef int number
    record = bytearray(RECORD_BYTES)
    zeros = _check_of(record)
    for number in range(RECORD_BYTES * 8):
        if OWNER * 64 <= number < CHECK * 64 or number >= ADMITTED * 64:
            record[number >> 3] = 1 << (number & 7)
            _flips[_check_of(record) ^ zeros] = number
            record[number >> 3] = 0


cdef int _state_of(uint64_t word):
    """Return the state, also where one bit of the word is wrong; -1: it is damaged."""
    cdef uint64_t differing
    cdef int state
    for state in range(4):
        differing = word ^ <uint64_t> state * IN_EACH_BYTE
        if not differing & (differing - 1):
            return state
    return -1


def _header(version=VERSION) -> bytes:
    """Return magic, version and their check (file_page_check in csrc/base/file.h)."""
    return struct.pack("=III", MAGIC, version, zlib.crc32(struct.pack(">II", MAGIC, version)) or 1)


class _Locked:
    """The file, open and locked against other processes.  OSError becomes StorageError, but for a file that is missing."""

    def __init__(self, path, flags):
        self.path, self.flags = path, flags

    def __enter__(self):
        try:
            self.file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | self.flags, 0o600)
            fcntl.flock(self.file, fcntl.LOCK_EX)
        except FileNotFoundError:
            raise
        except OSError as problem:
            raise self._failed(problem) from problem
        return self.file

    def __exit__(self, kind, problem, trace):
        fcntl.flock(self.file, fcntl.LOCK_UN)  # a mapping made of it would hold the lock beyond close
        os.close(self.file)
        if isinstance(problem, OSError):
            raise self._failed(problem) from problem

    def _failed(self, problem):
        return StorageError("ERR_DISK_FULL" if problem.errno == errno.ENOSPC else "ERR_IO", f"{self.path}: {problem.strerror}")


def _fewer(list ranges, int most) -> list:
    """Join the neighbours with the smallest gaps, until there are at most `most` ranges: (first, end, kind)."""
    cdef Py_ssize_t i
    if len(ranges) <= most:
        return ranges
    gaps = [(ranges[i][0] - ranges[i - 1][1], i) for i in range(1, len(ranges))]
    joins = {i for _, i in heapq.nsmallest(len(ranges) - most, gaps)}
    found = []
    for i in range(len(ranges)):
        first, end, kind = ranges[i]
        if i in joins:
            # Of two kinds the stricter one holds: an own copy is delivered also if other members have acknowledged it.
            before = found.pop()
            first, end, kind = before[0], max(before[1], end), min(before[2], kind)
        found.append((first, end, kind))
    return found


# ---- for a copy of it elsewhere ----

READINGS_MAX = 3  # of a file in which the home is changing a record


def packed(str directory) -> tuple[int, bytes]:
    """Return a number that changes with each record's state and ranges, and all records, compressed; (0, b"") without the
    file.

    The positions alone do not change the number: an older one only makes messages come again.  Raises StorageError.
    """
    for _ in range(READINGS_MAX):
        try:
            with open(os.path.join(directory, FILE_NAME), "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return 0, b""
        except OSError as problem:
            raise StorageError("ERR_IO", f"{directory}/{FILE_NAME}: {problem.strerror}") from problem
        records, number, is_whole = [], 0, True
        for at in range(RECORD_BYTES, len(content) - RECORD_BYTES + 1, RECORD_BYTES):
            state, check = struct.unpack_from("=Q56xQ", content, at)
            if _state_of(state) != FREE:
                record = content[at:at + RECORD_BYTES]
                records.append(record)
                number = zlib.crc32(struct.pack("=QQ", state, check), number)
                is_whole = is_whole and check == _check_of(record)
        if is_whole:
            break
    return number, zlib.compress(b"".join(records), 1)


def restore(str directory, content):
    """Make the file of `packed` records, before the broker starts.  Raises StorageError."""
    try:
        records = zlib.decompressobj().decompress(content, MEMBERS_MAX * RECORD_BYTES)
    except zlib.error as problem:
        raise StorageError("ERR_CORRUPT", f"{directory}: its members in the bucket cannot be unpacked: {problem}") from None
    whole = _header().ljust(RECORD_BYTES, b"\0") + records[:len(records) - len(records) % RECORD_BYTES]
    step = RECORDS_PER_STEP * RECORD_BYTES
    try:
        path = os.path.join(directory, FILE_NAME)
        with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(whole.ljust(-(-len(whole) // step) * step, b"\0"))
    except OSError as problem:
        raise StorageError("ERR_IO", f"{directory}/{FILE_NAME}: {problem.strerror}") from problem


def prepare(str directory, end):
    """Free the records of members that no home has admitted; only before the first worker starts.

    `end`: the next offset of a log that was recovered after a power cut, which bounds all positions; else None.
    Raises StorageError.
    """
    cdef uint32_t index
    try:
        table = MemberTable(directory, False)
    except FileNotFoundError:
        return
    for record in table.all():
        index = record.index
        if record.state == LEFT or (record.state == SUBSCRIBED and not record.is_admitted):
            table.free(index)
            continue
        if end is not None:
            (<MemberTable> table).place(index, min(record.low, end), min(record.cursor, end))
