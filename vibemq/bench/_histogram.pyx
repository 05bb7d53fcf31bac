# SPDX-License-Identifier: Apache-2.0
"""Latencies in the layout of HdrHistogram: 1 us to 60 s with three significant digits, one addition for a record.

The layout is the published one (buckets whose resolution doubles, 2,048 sub-buckets in each), so what is recorded
here can be handed to any tool of that family without loss; `encode` does so where the hdrhistogram package is there.
"""

from libc.string cimport memset


cdef class Histogram:
    """One thread records; merge afterwards. Percentiles are upper bounds of the sub-bucket, as is usual."""

    def __cinit__(self):
        memset(self.counts, 0, sizeof(self.counts))
        self.total, self.clamped, self.min_us, self.max_us = 0, 0, VALUE_US_MAX, 0

    def record_us(self, int64_t value_us, uint64_t count=1):
        self.record_ns(value_us * 1000, count)

    def merge(self, Histogram other):
        cdef int i
        for i in range(COUNTS_COUNT):
            self.counts[i] += other.counts[i]
        self.total += other.total
        self.clamped += other.clamped
        self.min_us = min(self.min_us, other.min_us)
        self.max_us = max(self.max_us, other.max_us)

    cdef int64_t highest_us(self, int index) noexcept:
        """The highest value that is counted at this index."""
        cdef int bucket = (index >> SUB_BUCKET_HALF_COUNT_MAGNITUDE) - 1
        cdef int64_t sub_bucket = (index & (SUB_BUCKET_HALF_COUNT - 1)) + SUB_BUCKET_HALF_COUNT
        if bucket < 0:
            return index
        return ((sub_bucket + 1) << bucket) - 1

    def percentile_us(self, double percent):
        """The value that `percent` of what was recorded does not exceed; 0 where nothing was."""
        cdef uint64_t wanted = max(<uint64_t>1, <uint64_t>(percent / 100 * self.total + 0.5)), seen = 0
        cdef int i
        if self.total == 0:
            return 0
        for i in range(COUNTS_COUNT):
            seen += self.counts[i]
            if seen >= wanted:
                return min(self.highest_us(i), self.max_us)
        return self.max_us

    def buckets(self):
        """Yields (highest value in us, count) where something was counted."""
        cdef int i
        for i in range(COUNTS_COUNT):
            if self.counts[i]:
                yield self.highest_us(i), self.counts[i]

    def encode(self):
        """The compressed base64 form that HdrHistogram's tools read, or None without the hdrhistogram package."""
        try:
            from hdrh.histogram import HdrHistogram
        except ImportError:
            return None
        encoded = HdrHistogram(1, VALUE_US_MAX, 3)
        for value_us, count in self.buckets():
            encoded.record_value(min(value_us, VALUE_US_MAX), count)
        return encoded.encode().decode("ascii")
