# SPDX-License-Identifier: Apache-2.0
"""What one connection has been handed and has not settled, found by message id or in order.

Clients name messages by ids that publishers chose, so ids repeat: an acknowledgement means the
oldest delivery that bears it.  Each bucket of the hash table is therefore a list in order of delivery.
The hash is keyed, so nobody can choose ids that all fall into one bucket.  Memory grows with
what is in flight, which each consumer's prefetch bounds; an idle connection has none.

Invariant: a slot with consumer != NO_SLOT lies in exactly one bucket and in exactly one consumer's list.
"""

import os

from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

cdef enum:
    CAPACITY_FIRST = 64


cdef inline uint32_t _hash(uint64_t key, const uint8_t *p, uint32_t size) noexcept:
    """Multiply and fold eight bytes at a time, with a secret to begin with."""
    cdef uint64_t h = key ^ (<uint64_t> size * <uint64_t> 0x9E3779B97F4A7C15)
    cdef uint64_t word
    cdef uint32_t left = size
    while left >= 8:
        memcpy(&word, p, 8)
        h = (h ^ word) * <uint64_t> 0xD6E8FEB86659FD93
        h ^= h >> 32
        p += 8
        left -= 8
    word = 0
    memcpy(&word, p, left)
    h = (h ^ word ^ (key >> 7)) * <uint64_t> 0xD6E8FEB86659FD93
    h ^= h >> 29
    h *= <uint64_t> 0xA0761D6478BD642F
    return <uint32_t> (h >> 32)


cdef inline const uint8_t *_id_of(const delivery *d) noexcept:
    return <const uint8_t *> d.id_long if d.id_long != NULL else <const uint8_t *> &d.id[0]


cdef class InFlight:
    def __cinit__(self):
        self.free_slot = NO_SLOT
        self.key = int.from_bytes(os.urandom(8), "little") | 1

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.capacity):
            if self.slots[i].consumer != NO_SLOT:
                free(self.slots[i].id_long)
        free(self.slots)
        free(self.heads)
        free(self.tails)

    cdef int _grow(self) except -1:
        """Twice the slots, and buckets to match; everything in flight is hung in anew."""
        cdef uint32_t capacity = max(<uint32_t> CAPACITY_FIRST, self.capacity * 2)
        cdef int32_t i, bucket, at, following
        cdef int32_t *heads = <int32_t *> malloc(capacity * sizeof(int32_t))
        cdef int32_t *tails = <int32_t *> malloc(capacity * sizeof(int32_t))
        cdef delivery *slots = <delivery *> realloc(self.slots, capacity * sizeof(delivery))
        if slots != NULL:
            self.slots = slots
        if slots == NULL or heads == NULL or tails == NULL:
            free(heads)
            free(tails)
            raise MemoryError
        for i in range(<int32_t> capacity):
            heads[i] = tails[i] = NO_SLOT
        old_mask = self.bucket_mask
        # Bucket by bucket, each in its order: deliveries that share an id share a bucket before and after.
        for bucket in range(<int32_t> self.capacity):
            at = self.heads[bucket]
            while at != NO_SLOT:
                following = slots[at].bucket_next
                i = <int32_t> (slots[at].hash & (capacity - 1))
                slots[at].bucket_previous = tails[i]
                slots[at].bucket_next = NO_SLOT
                if tails[i] == NO_SLOT:
                    heads[i] = at
                else:
                    slots[tails[i]].bucket_next = at
                tails[i] = at
                at = following
        for i in range(<int32_t> capacity - 1, <int32_t> self.capacity - 1, -1):
            slots[i].consumer = NO_SLOT
            slots[i].next = self.free_slot
            self.free_slot = i
        free(self.heads)
        free(self.tails)
        self.heads, self.tails, self.capacity, self.bucket_mask = heads, tails, capacity, capacity - 1
        return 0

    cdef int32_t add(self, delivery_list *own, int32_t consumer, uint64_t offset, const uint8_t *id, uint32_t id_size,
                     uint32_t attempts, uint32_t strikes, int64_t now_ms) except -2:
        cdef int32_t slot
        cdef delivery *d
        cdef uint32_t bucket
        if self.free_slot == NO_SLOT:
            self._grow()
        slot = self.free_slot
        d = &self.slots[slot]
        d.id_long = NULL
        if id_size <= ID_BYTES_INLINE:
            memcpy(d.id, id, id_size)
        else:
            d.id_long = <uint8_t *> malloc(id_size)
            if d.id_long == NULL:
                raise MemoryError
            memcpy(d.id_long, id, id_size)
        self.free_slot = d.next
        d.offset, d.sent_ms, d.attempts, d.strikes, d.consumer = offset, now_ms, attempts, strikes, consumer
        self.sequence += 1 + (self.sequence == <uint32_t> -1)
        d.sequence = self.sequence
        d.hash, d.id_size = _hash(self.key, id, id_size), id_size
        bucket = d.hash & self.bucket_mask
        d.bucket_next, d.bucket_previous = NO_SLOT, self.tails[bucket]
        if d.bucket_previous == NO_SLOT:
            self.heads[bucket] = slot
        else:
            self.slots[d.bucket_previous].bucket_next = slot
        self.tails[bucket] = slot
        d.next, d.previous = NO_SLOT, own.last
        if own.last == NO_SLOT:
            own.first = slot
        else:
            self.slots[own.last].next = slot
        own.last = slot
        own.count += 1
        self.count += 1
        return slot

    cdef int32_t find(self, const uint8_t *id, uint32_t id_size) noexcept:
        """The oldest delivery with this id, or NO_SLOT."""
        cdef uint32_t h
        cdef int32_t at
        if self.count == 0:
            return NO_SLOT
        h = _hash(self.key, id, id_size)
        at = self.heads[h & self.bucket_mask]
        while at != NO_SLOT and not self._is(at, h, id, id_size):
            at = self.slots[at].bucket_next
        return at

    cdef int32_t next_same(self, int32_t slot) noexcept:
        """The next younger delivery with the same id, or NO_SLOT."""
        cdef delivery *d = &self.slots[slot]
        cdef const uint8_t *id = _id_of(d)
        cdef int32_t at = d.bucket_next
        while at != NO_SLOT and not self._is(at, d.hash, id, d.id_size):
            at = self.slots[at].bucket_next
        return at

    cdef bint _is(self, int32_t slot, uint32_t hash, const uint8_t *id, uint32_t id_size) noexcept:
        cdef delivery *d = &self.slots[slot]
        if d.hash != hash or d.id_size != id_size:
            return False
        return memcmp(_id_of(d), id, id_size) == 0

    cdef void remove(self, delivery_list *own, int32_t slot) noexcept:
        cdef delivery *d = &self.slots[slot]
        cdef uint32_t bucket = d.hash & self.bucket_mask
        if d.bucket_previous == NO_SLOT:
            self.heads[bucket] = d.bucket_next
        else:
            self.slots[d.bucket_previous].bucket_next = d.bucket_next
        if d.bucket_next == NO_SLOT:
            self.tails[bucket] = d.bucket_previous
        else:
            self.slots[d.bucket_next].bucket_previous = d.bucket_previous
        if d.previous == NO_SLOT:
            own.first = d.next
        else:
            self.slots[d.previous].next = d.next
        if d.next == NO_SLOT:
            own.last = d.previous
        else:
            self.slots[d.next].previous = d.previous
        own.count -= 1
        self.count -= 1
        free(d.id_long)
        d.id_long = NULL
        d.consumer = NO_SLOT
        d.next = self.free_slot
        self.free_slot = slot
