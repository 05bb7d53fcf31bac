# SPDX-License-Identifier: Apache-2.0
"""The native protocol's load threads.

Frames are skipped by their length and told apart by their type; an id is only read where acks are verified or timed.
"""

from vibemq.bench._flow cimport Consumer, Publisher, get_hex8, get_u16, get_u32
from vibemq.protocols.native.wire cimport (
    BODY_FIXED_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_OK,
    TYPE_ACK,
    TYPE_DELIVER,
    TYPE_ERROR,
    TYPE_PONG,
    TYPE_PUBLISH_ACK,
    frame_begin,
    frame_end,
    frame_parse,
    frame_payload,
    native_frame,
    pong_size,
)

from libc.stdint cimport uint8_t

cdef enum:
    FRAME_SIZE_MAX = 1 << 27    # beyond any server's limit: what is larger is no frame
    ID_AT = 9                   # header, version, type, length
    NUMBER_SIZE = 8


cdef size_t whole_frame(const uint8_t *p, const uint8_t *end, bint *wrong) noexcept nogil:
    """The size of the frame at p, or 0 where it is not whole yet or, `wrong`, is no frame."""
    cdef size_t size
    if end - p < FRAME_HEADER_BYTES:
        return 0
    size = FRAME_HEADER_BYTES + <size_t>get_u32(p)
    if size < FRAME_HEADER_BYTES + BODY_FIXED_BYTES or size > FRAME_SIZE_MAX or p[4]:
        wrong[0] = True
        return 0
    return size if <size_t>(end - p) >= size else 0


cdef class NativePublisher(Publisher):
    """The last eight characters of a message's id are its number."""

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef size_t size, id_size, count = 0
        cdef bint wrong = False
        cdef native_frame frame
        while True:
            size = whole_frame(p, end, &wrong)
            if size == 0:
                break
            if p[6] == TYPE_PUBLISH_ACK:
                if self.named:
                    id_size = get_u16(p + 7)
                    if id_size < NUMBER_SIZE or ID_AT + id_size > size:
                        self.strange += 1
                    else:
                        self.settle_number(get_hex8(p + ID_AT + id_size - NUMBER_SIZE))
                else:
                    count += 1
            elif p[6] == TYPE_ERROR and frame_parse(p + FRAME_HEADER_BYTES, size - FRAME_HEADER_BYTES, &frame) == FRAME_OK:
                # The message lies behind the code, and its length between them is no text.
                return self.fail(p, frame.error_code, frame.error_code_size + 2 + frame.error_message_size)
            elif p[6] != TYPE_PONG:
                return self.fail(p, b"needed a PublishAck, had another frame", 38)
            p += size
        self.settle(count)
        return self.fail(p, b"needed a frame, had other bytes", 31) if wrong else p


cdef class NativeConsumer(Consumer):
    """Each Deliver is answered with an Ack whose id is the message's, as .NET clients do it."""

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef size_t size, id_size, queue_size, body_size, ack_size, head
        cdef bint wrong = False
        cdef native_frame frame
        cdef uint8_t *out
        cdef long long count = 0
        while True:
            size = whole_frame(p, end, &wrong)
            if size == 0:
                break
            if p[6] == TYPE_DELIVER:
                id_size = get_u16(p + 7)
                head = ID_AT + id_size + 6
                if head > size:
                    return self.fail(p, b"a Deliver ends inside its id", 28)
                queue_size = get_u16(p + ID_AT + id_size)
                head += queue_size
                if head > size:
                    return self.fail(p, b"a Deliver ends inside its queue", 31)
                body_size = get_u32(p + head - 4)
                if body_size > size - head:
                    return self.fail(p, b"a Deliver ends inside its payload", 33)
                if self.observes:
                    self.observe(p + head, body_size)
                ack_size = pong_size(id_size, False)
                out = self.room(ack_size)
                if out is NULL:
                    return p
                frame_end(frame_payload(frame_begin(out, ack_size, TYPE_ACK, p + ID_AT, id_size, NULL, 0), NULL, 0, 0), False)
                self.outbox.end += ack_size
                count += 1
            elif p[6] == TYPE_ERROR and frame_parse(p + FRAME_HEADER_BYTES, size - FRAME_HEADER_BYTES, &frame) == FRAME_OK:
                # The message lies behind the code, and its length between them is no text.
                return self.fail(p, frame.error_code, frame.error_code_size + 2 + frame.error_message_size)
            elif p[6] != TYPE_PONG:
                return self.fail(p, b"needed a Deliver, had another frame", 35)
            p += size
        self.gain(count)
        return self.fail(p, b"needed a frame, had other bytes", 31) if wrong else p
