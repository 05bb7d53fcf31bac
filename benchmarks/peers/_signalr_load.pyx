# SPDX-License-Identifier: Apache-2.0
"""Load threads for SignalR hubs over WebSockets, in JSON and in MessagePack.

An invocation is a WebSocket message of its own, as every client sends them. What we send is masked with a key of the
connection. A publisher's frames are masked once, and what is patched into them is masked where it lies: the mask
costs an exclusive-or for each patch, and none for a body.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from benchmarks.peers._audience cimport Audience, listener
from vibemq.bench._flow cimport PATCHES_MAX, Consumer, Publisher, fail_with, get_hex8
from benchmarks.peers._signalr cimport (
    COMPLETION, FOUND, STREAM_ITEM, WRONG, WS_BINARY, WS_TEXT, cursor, cursor_set, delivery, delivery_of, header_put,
    hub_mask, hub_xor8, mask_of, next_record, record,
)

cdef enum:
    NUMBER_SIZE = 8
    HEADER_SIZE_MAX = 8         # of an Ack's frame: two bytes, a length of 16 bits, the mask
    TAGS_MAX = 2048             # in one Ack
    TAG_SIZE_MAX = 21           # with its comma
    ACK_SIZE_MAX = HEADER_SIZE_MAX + 64 + TAGS_MAX * TAG_SIZE_MAX


# ---- one connection ----


cdef class SignalRPublisher(Publisher):
    """`frame` is a whole WebSocket frame with its mask `key` in the header and a payload, from `payload_at` on, that
    is not masked yet. The invocation's id is its number."""

    cdef uint64_t number_masks[PATCHES_MAX]
    cdef uint64_t stamp_masks[PATCHES_MAX]
    cdef bint is_messagepack

    def __cinit__(self, *, bytes key, int payload_at, bint is_messagepack=False, **_):
        cdef uint32_t mask = 0
        cdef int64_t i
        cdef int j
        if len(key) != sizeof(mask) or self.queue_marks_count:
            raise ValueError("needed a mask of 4 bytes, and a frame without marks for queues")
        memcpy(&mask, <const char *>key, sizeof(mask))
        self.is_messagepack = is_messagepack
        for i in range(self.group):
            hub_mask(
                self.outbox.data + i * self.frame_size + payload_at, self.frame_size - payload_at, mask_of(mask, 0)
            )
        for j in range(self.numbers_count):
            self.number_masks[j] = mask_of(mask, self.number_at[j] - payload_at)
        for j in range(self.stamps_count):
            self.stamp_masks[j] = mask_of(mask, self.stamp_at[j] - payload_at)

    cdef void fill(self, int64_t count) noexcept nogil:
        cdef uint8_t *frame = self.outbox.data
        cdef int64_t i
        cdef int j
        Publisher.fill(self, count)
        for i in range(count):
            for j in range(self.numbers_count):
                hub_xor8(frame + self.number_at[j], self.number_masks[j])
            for j in range(self.stamps_count):
                hub_xor8(frame + self.stamp_at[j], self.stamp_masks[j])
                hub_xor8(frame + self.stamp_at[j] + 8, self.stamp_masks[j])
            frame += self.frame_size

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef cursor c
        cdef record r
        cdef int found
        cdef int64_t count = 0
        cursor_set(&c, p, end, self.is_messagepack)
        while True:
            found = next_record(&c, &r)
            if found != FOUND:
                break
            if r.is_error:
                return self.fail(p, r.rest, r.end - r.rest)
            if r.type != COMPLETION:
                continue
            if not self.named:
                count += 1
            elif r.id_size != NUMBER_SIZE:
                self.strange += 1
            else:
                self.settle_number(get_hex8(r.id))
        self.settle(count)
        return fail_with(self, p, c.fault) if found == WRONG else c.p


cdef class SignalRConsumer(Consumer):
    """Items of a Subscribe. The tags that one receive brought go back in one Ack, which is not answered."""

    cdef uint32_t key
    cdef bint is_messagepack
    cdef uint64_t tags[TAGS_MAX]
    cdef int tags_count

    def __cinit__(self, *, bytes key, bint is_messagepack=False, **_):
        memcpy(&self.key, <const char *>key, sizeof(self.key))
        self.is_messagepack = is_messagepack

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef cursor c
        cdef record r
        cdef delivery d
        cdef int found
        cdef int64_t count = 0
        cursor_set(&c, p, end, self.is_messagepack)
        while True:
            found = next_record(&c, &r)
            if found != FOUND:
                break
            if r.is_error:
                return self.fail(p, r.rest, r.end - r.rest)
            if r.type == COMPLETION:
                return fail_with(self, p, b"the hub ended the subscription")
            if r.type != STREAM_ITEM:
                continue
            if not delivery_of(&r, self.is_messagepack, &d):
                return fail_with(self, p, b"needed a delivery with a tag and a body, had another item")
            if self.observes:
                self.observe(d.body, d.size)
            self.tags[self.tags_count] = d.tag
            self.tags_count += 1
            count += 1
            if self.tags_count == TAGS_MAX and not self.acknowledge():
                return p
        if self.tags_count and not self.acknowledge():
            return p
        self.gain(count)
        return fail_with(self, p, c.fault) if found == WRONG else c.p

    cdef bint acknowledge(self) noexcept nogil:
        cdef uint8_t *out = self.room(ACK_SIZE_MAX)
        cdef uint8_t *payload
        cdef uint8_t *at
        cdef size_t head, size
        if out is NULL:
            return False
        payload = out + HEADER_SIZE_MAX
        at = self.messagepack_ack(payload) if self.is_messagepack else self.json_ack(payload)
        size = at - payload
        head = header_put(out, WS_BINARY if self.is_messagepack else WS_TEXT, size, True, self.key)
        hub_mask(payload, size, mask_of(self.key, 0))
        memmove(out + head, payload, size)
        self.outbox.end += head + size
        self.tags_count = 0
        return True

    cdef uint8_t *json_ack(self, uint8_t *p) noexcept nogil:
        cdef uint8_t digits[TAG_SIZE_MAX]
        cdef uint64_t tag
        cdef int i, count
        memcpy(p, b'{"type":1,"target":"Ack","arguments":[[', 39)
        p += 39
        for i in range(self.tags_count):
            tag, count = self.tags[i], 0
            while tag or not count:
                digits[count] = <uint8_t>(c'0' + tag % 10)
                tag //= 10
                count += 1
            while count:
                count -= 1
                p[0] = digits[count]
                p += 1
            p[0] = c','
            p += 1
        memcpy(p - 1, b"]]}\x1e", 4)
        return p + 3

    cdef uint8_t *messagepack_ack(self, uint8_t *p) noexcept nogil:
        """Each tag as a number of 64 bits, so that the size is known before."""
        cdef size_t size = 13 + 9 * <size_t>self.tags_count
        cdef int i, j
        while size >= 0x80:
            p[0] = <uint8_t>(size | 0x80)
            size >>= 7
            p += 1
        p[0] = <uint8_t>size
        memcpy(p + 1, b"\x96\x01\x80\xc0\xa3Ack\x91\xdc", 10)
        p[11], p[12] = <uint8_t>(self.tags_count >> 8), <uint8_t>self.tags_count
        p += 13
        for i in range(self.tags_count):
            p[0] = 0xCF
            for j in range(8):
                p[1 + j] = <uint8_t>(self.tags[i] >> (56 - 8 * j))
            p += 9
        p[0] = 0x90
        return p + 1


# ---- many connections ----


cdef class SignalRAudience(Audience):
    cdef bint is_messagepack

    def __cinit__(self, *, bint is_messagepack=False, **_):
        self.is_messagepack = is_messagepack

    cdef const uint8_t *take(self, listener *each, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef cursor c
        cdef record r
        cdef delivery d
        cdef int found
        cursor_set(&c, p, end, self.is_messagepack)
        while True:
            found = next_record(&c, &r)
            if found != FOUND:
                break
            if r.is_error:
                return self.failure.fail(NULL, r.rest, r.end - r.rest)
            if r.type == COMPLETION:
                return fail_with(self.failure, NULL, b"the hub ended a subscription")
            if r.type != STREAM_ITEM:
                continue
            if not delivery_of(&r, self.is_messagepack, &d) or not self.note(each, d.body, d.size):
                return fail_with(self.failure, NULL, b"needed a delivery with a body, had another item")
        return fail_with(self.failure, NULL, c.fault) if found == WRONG else c.p
