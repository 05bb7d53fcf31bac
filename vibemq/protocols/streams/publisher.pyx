# SPDX-License-Identifier: Apache-2.0
"""A declared publisher: the ids of this turn's batch, and the confirms that come of them (broker/publisher.pyx).

Each id is answered exactly once, by PublishConfirm or PublishError, in frames that hold a
whole batch: when the batch is persisted or, with durability `disk`, when a sync covers it.
What was a duplicate has a frame of its own, behind that: there are clients that drop one which names an id twice.
Specification: the RabbitMQ Streams protocol.
"""

from libc.stdint cimport uint16_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove

from vibemq.broker.publisher cimport QUEUE_NOT_FOUND
from vibemq.broker.stream cimport Stream
from vibemq.storage cimport core
from vibemq.storage.core cimport bytes_store16, bytes_store32
from vibemq.protocols.streams.wire cimport KEY_PUBLISH_CONFIRM, KEY_PUBLISH_ERROR, PUBLISHING_ID_BYTES

from vibemq.protocols.streams.replies import stream_gone

cdef enum:
    CODE_STREAM_NOT_AVAILABLE = 6
    CODE_INTERNAL_ERROR = 15
    CODE_PUBLISHER_DOES_NOT_EXIST = 18


cdef class StreamsPublisher(Publisher):
    def __init__(self, StreamsSession session not None, Stream stream not None, int publisher_id, bytes reference not None):
        self.session, self.client, self.connection = session, session.client, session.connection
        self.publisher_id, self.reference = publisher_id, reference
        stream.attach(self)
        try:
            self.queue = session.door.queue_of(stream)
        except BaseException:
            stream.detach(self)
            raise
        if self.queue is not None:
            self.queue.hold(self)  # so that its bounds are kept

    cdef int begin(self) except -1:
        """Before its first entry in a batch."""
        self.join_batch()
        return self.intern(self.reference) if len(self.reference) else 0

    cdef int answer(self, const uint8_t *notes, size_t size, size_t count, bint ok, uint64_t first_offset,
                    uint64_t next_offset) except -1:
        cdef size_t kept = count
        if ok and self.stream.deduplicated != NULL and len(self.reference):
            kept = self._part_duplicates(self.notes, count)
        if kept:
            Publisher.answer(self, notes, kept * PUBLISHING_ID_BYTES, kept, ok, first_offset, next_offset)
        if kept < count:
            Publisher.answer(self, notes + kept * PUBLISHING_ID_BYTES, (count - kept) * PUBLISHING_ID_BYTES, count - kept,
                             ok, first_offset, next_offset)
        return 0

    cdef size_t _part_duplicates(self, uint8_t *ids, size_t count) except? 0:
        """Put the ids that were duplicates behind the others; how many others there are."""
        cdef uint32_t at = 0, number = 0
        cdef size_t kept = 0, dropped = 0, i
        cdef bint is_dropped = core.batch_dropped(self.stream.deduplicated, self.reference_index, &at, &number)
        cdef uint8_t *others
        if not is_dropped:
            return count
        others = <uint8_t *> malloc(count * PUBLISHING_ID_BYTES)
        if others == NULL:
            raise MemoryError
        for i in range(count):
            if is_dropped and number == i:
                memcpy(others + dropped * PUBLISHING_ID_BYTES, ids + i * PUBLISHING_ID_BYTES, PUBLISHING_ID_BYTES)
                dropped += 1
                is_dropped = core.batch_dropped(self.stream.deduplicated, self.reference_index, &at, &number)
            else:
                memmove(ids + kept * PUBLISHING_ID_BYTES, ids + i * PUBLISHING_ID_BYTES, PUBLISHING_ID_BYTES)
                kept += 1
        memcpy(ids + kept * PUBLISHING_ID_BYTES, others, dropped * PUBLISHING_ID_BYTES)
        free(others)
        return kept

    cdef int forget(self) except -1:
        self.session.forget_publisher(self.publisher_id, self)
        stream_gone(self.session, self.stream)
        return 0

    cdef int confirm(self, const uint8_t *notes, size_t size, uint64_t first_offset, bint offsets_known) except -1:
        cdef uint8_t *out
        cdef size_t count = size // PUBLISHING_ID_BYTES
        if self.connection.closed:
            return 0
        self.confirmed += count
        out = self.connection.outbox_reserve(13 + size)
        bytes_store32(out, <uint32_t> (9 + size))
        bytes_store16(out + 4, KEY_PUBLISH_CONFIRM)
        bytes_store16(out + 6, 1)
        out[8] = <uint8_t> self.publisher_id
        bytes_store32(out + 9, <uint32_t> count)
        memcpy(out + 13, notes, size)
        return 0

    cdef int refuse_notes(self, const uint8_t *notes, size_t size, bytes code, bytes text) except -1:
        cdef int wire_code = CODE_INTERNAL_ERROR
        if self.deleted:
            wire_code = CODE_STREAM_NOT_AVAILABLE
        elif code is QUEUE_NOT_FOUND:  # it was refused because of that
            wire_code = CODE_PUBLISHER_DOES_NOT_EXIST
        if not self.connection.closed:
            self.errored += size // PUBLISHING_ID_BYTES
            publish_error(self.connection, self.publisher_id, notes, size // PUBLISHING_ID_BYTES, wire_code)
        return 0


cdef int publish_error(Connection connection, int publisher_id, const uint8_t *ids, size_t count, int code) except -1:
    """PublishError with one code for `count` big-endian ids."""
    cdef uint8_t *out = connection.outbox_reserve(13 + count * 10)
    cdef size_t i
    bytes_store32(out, <uint32_t> (9 + count * 10))
    bytes_store16(out + 4, KEY_PUBLISH_ERROR)
    bytes_store16(out + 6, 1)
    out[8] = <uint8_t> publisher_id
    bytes_store32(out + 9, <uint32_t> count)
    out += 13
    for i in range(count):
        memcpy(out, ids + i * PUBLISHING_ID_BYTES, PUBLISHING_ID_BYTES)
        bytes_store16(out + PUBLISHING_ID_BYTES, <uint16_t> code)
        out += 10
    return 0
