# SPDX-License-Identifier: Apache-2.0
"""Read SQLite's write-ahead log and wal-index, to tell damage from the end of the log.

SQLite reads a log up to the first frame with a wrong checksum and silently drops the rest.  This module finds that
frame, and transactions behind it.  Formats: https://www.sqlite.org/fileformat2.html#walformat
and https://www.sqlite.org/walformat.html.
"""

from typing import NamedTuple

from libc.stdint cimport uint8_t, uint32_t

INDEX_BYTES = 2 * 48 + 4  # of the wal-index, for `read_index`

cdef enum:
    HEADER_BYTES = 32
    FRAME_HEADER_BYTES = 24
    MAGIC = 0x377F0682       # the lowest bit: checksums are over big-endian words
    VERSION = 3007000
    INDEX_HEADER_BYTES = 48  # of the wal-index: stored twice, then the number of frames that were checkpointed
    INDEX_VERSION = 3007000
    PAGE_MIN_BYTES = 512
    PAGE_MAX_BYTES = 65536


class Log(NamedTuple):
    """The state of a write-ahead log by its bytes."""

    is_header_whole: bool
    salts: bytes
    committed: int  # frames up to the last whole transaction, which SQLite uses
    bad_at: int  # byte of the first frame with a wrong checksum, or of the end
    bad_frame: int  # its number, from 1
    commits_behind: int  # transactions that end behind that frame and continue the checksums
    is_one_bit: bool  # one flipped bit explains that frame


class Index(NamedTuple):
    """The commits of this boot's processes by the wal-index."""

    frames: int
    checkpointed: int  # the number of these in the database file
    salts: bytes


def read_log(bytes log not None) -> Log:
    """Return the state of the log; an empty one, or one of zeros, has no frame."""
    cdef const uint8_t *p = log
    cdef Py_ssize_t size = len(log), at = HEADER_BYTES, frame_bytes
    cdef uint32_t page_bytes, number = 0, committed = 0, bad = 0, behind = 0
    cdef uint32_t sums[2]
    cdef bint big
    if size < HEADER_BYTES or log[:HEADER_BYTES] == bytes(HEADER_BYTES):
        return Log(True, b"", 0, 0, 1, 0, False)
    page_bytes, big = _word(p + 8), _word(p) & 1
    sums[0] = sums[1] = 0
    if _word(p) & ~1U == MAGIC:
        _add(p, 24, big, sums)
    if (_word(p) & ~1U != MAGIC or _word(p + 4) != VERSION or page_bytes < PAGE_MIN_BYTES
            or page_bytes > PAGE_MAX_BYTES or page_bytes & (page_bytes - 1)
            or sums[0] != _word(p + 24) or sums[1] != _word(p + 28)):
        return Log(False, b"", 0, 0, 1, 0, False)
    frame_bytes = FRAME_HEADER_BYTES + page_bytes
    is_one_bit = False
    bad_at = size
    while at + frame_bytes <= size:
        number += 1
        _add(p + at, 8, big, sums)
        _add(p + at + FRAME_HEADER_BYTES, page_bytes, big, sums)
        fits = _has_salts(p, at) and sums[0] == _word(p + at + 16) and sums[1] == _word(p + at + 20) and _word(p + at)
        if bad:
            if fits and _word(p + at + 4):
                behind += 1
        elif fits:
            if _word(p + at + 4):
                committed = number
        else:
            bad, bad_at = number, at
            is_one_bit = _is_one_bit(p, at, page_bytes, big, sums)
        if bad:  # test whether the next one continues this one's checksum
            sums[0], sums[1] = _word(p + at + 16), _word(p + at + 20)
        at += frame_bytes
    return Log(True, log[16:24], committed, bad_at, bad or number + 1, behind, is_one_bit)


def read_index(bytes index not None) -> Index | None:
    """Return the wal-index; None: it is incomplete, as after a power cut or a kill during its write."""
    cdef const uint8_t *p = index
    cdef uint32_t sums[2]
    cdef Py_ssize_t size = INDEX_HEADER_BYTES
    if len(index) < 2 * size + 4 or index[:size] != index[size:2 * size]:
        return None
    sums[0] = sums[1] = 0
    _add(p, 40, _IS_BIG, sums)
    if (<const uint32_t *> p)[0] != INDEX_VERSION or not p[12] or \
            sums[0] != (<const uint32_t *> p)[10] or sums[1] != (<const uint32_t *> p)[11]:
        return None
    return Index((<const uint32_t *> p)[4], (<const uint32_t *> p)[2 * INDEX_HEADER_BYTES // 4], index[32:40])


cdef uint32_t _ONE = 1
cdef bint _IS_BIG = (<uint8_t *> &_ONE)[0] == 0


cdef inline uint32_t _word(const uint8_t *p) noexcept nogil:
    """A big-endian word, as all fields are."""
    return <uint32_t> p[0] << 24 | <uint32_t> p[1] << 16 | <uint32_t> p[2] << 8 | p[3]


cdef inline uint32_t _summed(const uint8_t *p, bint big) noexcept nogil:
    """A word in the byte order of the checksum."""
    return _word(p) if big else <uint32_t> p[3] << 24 | <uint32_t> p[2] << 16 | <uint32_t> p[1] << 8 | p[0]


cdef void _add(const uint8_t *p, Py_ssize_t size, bint big, uint32_t *sums) noexcept nogil:
    """Carry the cumulative checksum over these bytes."""
    cdef Py_ssize_t i = 0
    cdef uint32_t s0 = sums[0], s1 = sums[1]
    while i < size:
        s0 += _summed(p + i, big) + s1
        s1 += _summed(p + i + 4, big) + s0
        i += 8
    sums[0], sums[1] = s0, s1


cdef bint _has_salts(const uint8_t *log, Py_ssize_t at) noexcept nogil:
    return _word(log + at + 8) == _word(log + 16) and _word(log + at + 12) == _word(log + 20)


cdef bint _is_one_bit(const uint8_t *log, Py_ssize_t at, uint32_t page_bytes, bint big, uint32_t *sums) noexcept nogil:
    """True if one flipped bit explains the frame at ``at``.  ``sums``: of the frame as it is.

    The checksum is linear modulo 2^32: a change of one word changes both sums by that word's two coefficients times it.
    Counted from the end, these are Fibonacci numbers.  A change of a high bit has the same effect in many words, so the
    bit itself is not determined.
    """
    cdef uint32_t d0 = sums[0] - _word(log + at + 16), d1 = sums[1] - _word(log + at + 20)
    cdef uint32_t a[2]
    cdef uint32_t b[2]
    cdef Py_ssize_t i = page_bytes, place
    cdef int which
    if d0 == 0 and d1 == 0:
        return _differ_by_one_bit(log + at + 8, _word(log + 16), _word(log + 20))
    if not _has_salts(log, at):
        return False
    if _differ_by_one_bit(log + at + 16, sums[0], sums[1]):
        return True
    a[0], b[0], a[1], b[1] = 1, 1, 0, 1  # a change of a pair's first word affects both sums, of its second word one
    while i >= 0:
        for which in range(2):
            place = at + i + 4 * which + (0 if i == 0 else FRAME_HEADER_BYTES - 8)
            if _has_bit_with(_summed(log + place, big), a[which], b[which], d0, d1):
                return True
            a[which], b[which] = a[which] + b[which], a[which] + 2 * b[which]
        i -= 8
    return False


cdef bint _has_bit_with(uint32_t word, uint32_t a, uint32_t b, uint32_t d0, uint32_t d1) noexcept nogil:
    """True if the flip of a bit in a word of these coefficients changes the sums by that much."""
    cdef uint32_t delta
    cdef int bit
    for bit in range(32):
        delta = (<uint32_t> 1) << bit
        if not word & delta:
            delta = 0 - delta
        if a * delta == d0 and b * delta == d1:
            return True
    return False


cdef bint _differ_by_one_bit(const uint8_t *p, uint32_t first, uint32_t second) noexcept nogil:
    """True if two stored words differ from these by one bit."""
    cdef uint32_t x = _word(p) ^ first, y = _word(p + 4) ^ second
    cdef uint32_t either = x | y
    return either and not (x and y) and not either & (either - 1)
