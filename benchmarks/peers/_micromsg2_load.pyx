# SPDX-License-Identifier: Apache-2.0
"""Load threads for the MicroMsg2 door: messages with cumulative acknowledgements in both directions.

A publisher counts what an acknowledgement covers: the numbers of its messages have no gaps, so this is a subtraction. A
consumer acknowledges when half of its window has come, and whenever nothing more is there to be read.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t

from benchmarks.peers._audience cimport Audience, listener
from vibemq.bench._flow cimport Consumer, Publisher, fail_with, load, wait_for
from vibemq.protocols.micromsg2.wire cimport (
    ACK_FRAME_BYTES, FRAGMENT_BYTES, FRAME_ERROR, FRAME_EXTENSION, FRAME_MESSAGE, PARSE_NEEDS_MORE, PARSE_OK,
    SEQUENCE_MAX, ack_frame_write, ack_number, frame_parse, mm_frame,
)

cdef enum:
    SEQUENCE_AT = 1             # in a MESSAGE frame
    SETTLE_NS = 100000000       # how soon stop() is noticed while the socket takes nothing


cdef class Micromsg2Publisher(Publisher):
    """Window and group are in messages; the number in the frame is that of this connection, from 1 on."""

    cdef int64_t numbered       # how many frames have their number
    cdef uint8_t ack_id

    def __cinit__(self, *, int ack_id, **_):
        self.ack_id = ack_id

    cdef void fill(self, int64_t count) noexcept nogil:
        cdef uint8_t *frame = self.outbox.data + SEQUENCE_AT
        cdef int64_t i
        cdef uint16_t sequence = <uint16_t>(self.numbered % SEQUENCE_MAX)
        Publisher.fill(self, count)
        for i in range(count):
            sequence = 1 if sequence == SEQUENCE_MAX else sequence + 1
            frame[0], frame[1] = <uint8_t>(sequence >> 8), <uint8_t>sequence
            frame += self.frame_size
        self.numbered += count

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef mm_frame frame
        cdef int found
        cdef int64_t number
        while True:
            found = frame_parse(p, end - p, FRAGMENT_BYTES, &frame)
            if found != PARSE_OK:
                break
            if frame.kind == FRAME_ERROR:
                return self.fail(p, frame.payload, frame.payload_size)
            if frame.kind == FRAME_EXTENSION and frame.extension == self.ack_id:
                number = ack_number(&frame)
                if not 1 <= number <= SEQUENCE_MAX:
                    return fail_with(self, p, b"an ack has no number of a message")
                # The oldest that waits has the number settled % SEQUENCE_MAX + 1.
                self.settle((number - 1 - self.settled % SEQUENCE_MAX + SEQUENCE_MAX) % SEQUENCE_MAX + 1)
            p += frame.size
        return p if found == PARSE_NEEDS_MORE else fail_with(self, p, b"needed a frame, had other bytes")


cdef class Micromsg2Consumer(Consumer):
    """`window`: as agreed; half of it is acknowledged at once."""

    cdef int64_t unacknowledged, most
    cdef uint16_t last
    cdef uint8_t ack_id

    def __cinit__(self, *, int ack_id, int64_t window, **_):
        self.ack_id, self.most = ack_id, max(<int64_t>1, window // 2)

    cdef void loop(self) noexcept nogil:
        cdef Py_ssize_t got
        cdef bint pending
        if self.inbox.end and self.taken(0) < 0:
            return
        while True:
            if self.outbox.end and not self.flush():
                return
            pending = self.outbox.end != 0
            if not pending and not self.unacknowledged and self.is_done():
                return
            got = self.receive(not pending and not self.unacknowledged)
            if got < 0:
                return
            if got == 0 and self.unacknowledged:
                self.acknowledge()
            elif got == 0 and pending:
                wait_for(self.fd, True, SETTLE_NS)

    cdef bint is_done(self) noexcept nogil:
        return self.received >= self.wanted or load(&self.stopped)

    cdef void acknowledge(self) noexcept nogil:
        cdef uint8_t *out = self.room(ACK_FRAME_BYTES)
        if out is not NULL:
            ack_frame_write(out, self.ack_id, self.last)
            self.outbox.end += ACK_FRAME_BYTES
        self.unacknowledged = 0

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef mm_frame frame
        cdef int found
        cdef int64_t count = 0
        while True:
            found = frame_parse(p, end - p, FRAGMENT_BYTES, &frame)
            if found != PARSE_OK:
                break
            if frame.kind == FRAME_MESSAGE:
                if frame.continued:
                    return fail_with(self, p, b"needed a whole message, had a part")
                if self.observes:
                    self.observe(frame.payload, frame.payload_size)
                self.last = frame.sequence
                self.unacknowledged += 1
                count += 1
                if self.unacknowledged >= self.most:
                    self.acknowledge()
            elif frame.kind == FRAME_ERROR:
                return self.fail(p, frame.payload, frame.payload_size)
            p += frame.size
        if count:
            self.gain(count)
            self.last_ns = self.now
        return p if found == PARSE_NEEDS_MORE else fail_with(self, p, b"needed a frame, had other bytes")


cdef class Micromsg2Audience(Audience):
    """Subscribers without acknowledgements."""

    cdef const uint8_t *take(self, listener *each, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef mm_frame frame
        cdef int found
        while True:
            found = frame_parse(p, end - p, FRAGMENT_BYTES, &frame)
            if found != PARSE_OK:
                break
            if frame.kind == FRAME_ERROR:
                return self.failure.fail(NULL, frame.payload, frame.payload_size)
            if frame.kind == FRAME_MESSAGE and not self.note(each, frame.payload, frame.payload_size):
                return fail_with(self.failure, NULL, b"needed a message of ours, had another")
            p += frame.size
        return p if found == PARSE_NEEDS_MORE else fail_with(self.failure, NULL, b"needed a frame, had other bytes")
