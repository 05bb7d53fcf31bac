# SPDX-License-Identifier: Apache-2.0
"""What the load threads see of the histogram: recording without the GIL."""

from libc.stdint cimport int64_t, uint64_t

cdef enum:
    SUB_BUCKET_HALF_COUNT_MAGNITUDE = 10
    SUB_BUCKET_HALF_COUNT = 1 << SUB_BUCKET_HALF_COUNT_MAGNITUDE  # 1,024: three significant digits
    SUB_BUCKET_MASK = 2 * SUB_BUCKET_HALF_COUNT - 1
    BUCKET_COUNT = 16  # 2,048 us doubled until it is above 60 s
    COUNTS_COUNT = (BUCKET_COUNT + 1) * SUB_BUCKET_HALF_COUNT
    VALUE_US_MAX = 60000000  # above this a number says only that something is broken


cdef extern from *:
    """
    static inline int vibemq_leading_zeros(uint64_t value) { return __builtin_clzll(value); }
    """
    int vibemq_leading_zeros(uint64_t value) noexcept nogil


cdef class Histogram:
    cdef uint64_t counts[COUNTS_COUNT]
    cdef readonly uint64_t total
    cdef readonly int64_t min_us
    cdef readonly int64_t max_us
    cdef readonly uint64_t clamped  # values that were above VALUE_US_MAX and are counted as that
    cdef int64_t highest_us(self, int index) noexcept

    cdef inline void record_ns(self, int64_t value_ns, uint64_t count) noexcept nogil:
        cdef int64_t value_us = value_ns // 1000
        cdef int bucket
        if value_us < 1:
            value_us = 1
        elif value_us > VALUE_US_MAX:
            value_us = VALUE_US_MAX
            self.clamped += count
        # Bucket b has a resolution of 2^b us, and only the upper half of its sub-buckets, but for bucket 0.
        bucket = 64 - vibemq_leading_zeros(<uint64_t>value_us | SUB_BUCKET_MASK) - (SUB_BUCKET_HALF_COUNT_MAGNITUDE + 1)
        self.counts[bucket * SUB_BUCKET_HALF_COUNT + (value_us >> bucket)] += count
        self.total += count
        if value_us < self.min_us:
            self.min_us = value_us
        if value_us > self.max_us:
            self.max_us = value_us
