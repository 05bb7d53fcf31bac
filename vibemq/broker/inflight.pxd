# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    ID_BYTES_INLINE = 40  # ids are mostly 32 or 36 characters; a longer one gets memory of its own
    NO_SLOT = -1


# One message that was handed to a consumer of this connection and is not settled.
cdef struct delivery:
    uint64_t offset
    int64_t sent_ms
    uint32_t hash, id_size
    uint8_t *id_long               # NULL: the id stands in `id`
    uint8_t id[ID_BYTES_INLINE]
    uint32_t attempts, strikes
    uint32_t sequence              # counts what this connection was handed: tells the slot's owners apart; never 0
    int32_t consumer               # its consumer's number in this connection; NO_SLOT: the slot is free
    int32_t next, previous         # of the same consumer, in the order they were handed out
    int32_t bucket_next, bucket_previous


# A consumer's deliveries, oldest first.
cdef struct delivery_list:
    int32_t first, last
    uint32_t count


cdef class InFlight:
    cdef delivery *slots
    cdef int32_t *heads              # of buckets, oldest first
    cdef int32_t *tails
    cdef uint32_t capacity, bucket_mask
    cdef int32_t free_slot
    cdef readonly uint32_t count
    cdef uint32_t sequence           # of the last one
    cdef uint64_t key

    cdef int32_t add(self, delivery_list *own, int32_t consumer, uint64_t offset, const uint8_t *id, uint32_t id_size,
                     uint32_t attempts, uint32_t strikes, int64_t now_ms) except -2
    cdef int32_t find(self, const uint8_t *id, uint32_t id_size) noexcept
    cdef int32_t next_same(self, int32_t slot) noexcept
    cdef void remove(self, delivery_list *own, int32_t slot) noexcept
    cdef int _grow(self) except -1
    cdef bint _is(self, int32_t slot, uint32_t hash, const uint8_t *id, uint32_t id_size) noexcept
