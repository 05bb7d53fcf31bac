# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint64_t
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec
from vibemq.storage.core cimport shared_word


cdef extern from "shm/meters.h" nogil:
    enum:
        METERS_BUCKETS
        METER_TURN
        METER_CONFIRM_OS
        METER_CONFIRM_DISK
        METER_CONFIRM_REMOTE
        METER_DELIVER_STREAM
        METER_DELIVER_QUEUE
        METER_SYNC
    enum:
        METER_STARTS
        METER_ACCEPTED
        METER_NOT_APPENDED
        METER_LOG_WARNINGS
        METER_LOG_ERRORS
        METER_NAMES_EVICTED
        METER_NAMES_REFUSED
        METER_OFFSETS_EVICTED
        METER_TABLES_REBUILT
    struct meter_histogram:
        shared_word sum_us
        shared_word buckets[33]
    struct meters:
        meter_histogram histograms[7]
        shared_word counters[9]
        shared_word pid
    void meter_count(shared_word *counter, uint64_t count)
    void meter_add(meter_histogram *h, int64_t us, uint64_t count)


cdef inline int64_t now_us() noexcept nogil:
    """By the clock that setting the time does not move."""
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t> t.tv_sec * 1_000_000 + t.tv_nsec // 1000


cdef inline int64_t wall_ms() noexcept nogil:
    """By the clock of chunks' timestamps."""
    cdef timespec t
    clock_gettime(CLOCK_REALTIME, &t)
    return <int64_t> t.tv_sec * 1000 + t.tv_nsec // 1_000_000


cdef class Meters:
    cdef meters *raw
    cdef object memory              # keeps what `raw` points into
    cdef int64_t turn_us            # when this turn of the loop began
    cdef int64_t turn_wall_ms       # the same, by the clock of chunks' timestamps

    cdef inline void add(self, int kind, int64_t us, uint64_t count) noexcept nogil:
        meter_add(&self.raw.histograms[kind], us, count)

    cdef inline void count(self, int kind, uint64_t count) noexcept nogil:
        meter_count(&self.raw.counters[kind], count)

    cdef inline void begin_turn(self) noexcept nogil:
        self.turn_us, self.turn_wall_ms = now_us(), wall_ms()

    cdef inline void end_turn(self) noexcept nogil:
        """Before the loop waits."""
        self.add(METER_TURN, now_us() - self.turn_us, 1)
