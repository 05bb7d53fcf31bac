# SPDX-License-Identifier: Apache-2.0
"""A declared publisher: the ids of this turn's batch, and the confirms that come of them.

Each id is answered exactly once, by PublishConfirm or PublishError, in frames that hold a
whole batch: when the batch is persisted or, with durability `disk`, when a sync covers it.
What was a duplicate has a frame of its own, behind that: there are clients that drop one which names an id twice.
Specification: the RabbitMQ Streams protocol.
"""

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

from vibemq.storage cimport core
from vibemq.storage.core cimport OK, bytes_store16, bytes_store32
from vibemq.protocols.streams.wire cimport KEY_PUBLISH_CONFIRM, KEY_PUBLISH_ERROR, PUBLISHING_ID_BYTES

cdef enum:
    IDS_KEPT = 65536  # a larger burst's buffer is given back after use
    CODE_STREAM_NOT_AVAILABLE = 6
    CODE_INTERNAL_ERROR = 15
    CODE_PUBLISHER_DOES_NOT_EXIST = 18


cdef class Publisher(StreamUser):
    def __init__(self, session, Connection connection, int publisher_id, bytes reference):
        self.session, self.connection = session, connection
        self.publisher_id, self.reference = publisher_id, reference
        self.unsynced = []

    def __dealloc__(self):
        free(self.ids)

    cdef int reserve(self, size_t count) except -1:
        cdef size_t need = self.id_count + count
        cdef uint8_t *grown
        if need > self.id_capacity:
            need += need // 2
            grown = <uint8_t *> realloc(self.ids, need * PUBLISHING_ID_BYTES)
            if grown == NULL:
                raise MemoryError
            self.ids, self.id_capacity = grown, need
        return 0

    cdef int begin(self) except -1:
        """Before this publisher's first entry in a batch."""
        self.stream.add_waiting(self)
        if len(self.reference):
            if core.batch_reference_add(self.stream.batch, self.reference, <uint32_t> len(self.reference),
                                        &self.reference_index) != OK:
                raise MemoryError
        return 0

    cdef int on_persisted(self, bint ok, uint64_t first_offset, uint64_t next_offset) except -1:
        cdef size_t count = self.id_count
        cdef size_t kept = count
        self.id_count = 0
        if ok and self.stream.deduplicated != NULL and len(self.reference):
            kept = self._part_duplicates(count)
        if not ok:
            deleted = core.control_is_deleted(self.stream.log.control)
            self._refuse(self.ids, count, CODE_PUBLISHER_DOES_NOT_EXIST if deleted else CODE_INTERNAL_ERROR)
        elif self.stream.is_disk_durable and not self.deleted:
            if kept:
                self._await_sync(self.ids, kept, first_offset, next_offset)
            if kept < count:
                self._await_sync(self.ids + kept * PUBLISHING_ID_BYTES, count - kept, first_offset, next_offset)
            self.session.count_unconfirmed(count)
        else:
            self._confirm(self.ids, kept)
            if kept < count:
                self._confirm(self.ids + kept * PUBLISHING_ID_BYTES, count - kept)
        if self.id_capacity > IDS_KEPT:
            free(self.ids)
            self.ids, self.id_capacity = NULL, 0
        return 0

    cdef size_t _part_duplicates(self, size_t count) except? 0:
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
                memcpy(others + dropped * PUBLISHING_ID_BYTES, self.ids + i * PUBLISHING_ID_BYTES, PUBLISHING_ID_BYTES)
                dropped += 1
                is_dropped = core.batch_dropped(self.stream.deduplicated, self.reference_index, &at, &number)
            else:
                memmove(self.ids + kept * PUBLISHING_ID_BYTES, self.ids + i * PUBLISHING_ID_BYTES, PUBLISHING_ID_BYTES)
                kept += 1
        memcpy(self.ids + kept * PUBLISHING_ID_BYTES, others, dropped * PUBLISHING_ID_BYTES)
        free(others)
        return kept

    cdef int _await_sync(self, const uint8_t *ids, size_t count, uint64_t first_offset, uint64_t next_offset) except -1:
        self.unsynced.append(((<char *> ids)[:count * PUBLISHING_ID_BYTES], first_offset, next_offset))
        return 0

    cdef int on_durable(self, uint64_t durable) except -1:
        cdef list waiting = []
        cdef bytes ids
        cdef Py_ssize_t answered = 0
        for batch in self.unsynced:
            ids, first_offset, next_offset = batch
            answered += len(ids) // PUBLISHING_ID_BYTES
            if core.log_sync_failed(self.stream.log.raw, first_offset, next_offset):
                self._refuse(<const uint8_t *> <char *> ids, len(ids) // PUBLISHING_ID_BYTES, CODE_INTERNAL_ERROR)
            elif next_offset <= durable:
                self._confirm(<const uint8_t *> <char *> ids, len(ids) // PUBLISHING_ID_BYTES)
            else:
                waiting.append(batch)
                answered -= len(ids) // PUBLISHING_ID_BYTES
        self.unsynced = waiting
        self.session.count_unconfirmed(-answered)
        return 1 if waiting else 0

    cdef int on_deleted(self) except -1:
        cdef bytes ids
        for ids, _, _ in self.unsynced:
            self._refuse(<const uint8_t *> <char *> ids, len(ids) // PUBLISHING_ID_BYTES, CODE_STREAM_NOT_AVAILABLE)
        self.session.forget_publisher(self)
        self.session.count_unconfirmed(-self.drop_unsynced())
        self.session.stream_gone(self.stream)
        return 0

    cdef int failed(self, object problem) except -1:
        self.connection.fail(problem)
        return 0

    def drop_unsynced(self) -> int:
        """Deleted: nothing is confirmed any more. Returns how many ids waited for a sync."""
        cdef Py_ssize_t count = 0
        cdef bytes ids
        for ids, _, _ in self.unsynced:
            count += len(ids) // PUBLISHING_ID_BYTES
        self.unsynced = []
        return count

    cdef int _confirm(self, const uint8_t *ids, size_t count) except -1:
        cdef uint8_t *out
        if self.deleted or not count or self.connection.closed:
            return 0
        self.confirmed += count
        out = self.connection.outbox_reserve(13 + count * PUBLISHING_ID_BYTES)
        bytes_store32(out, <uint32_t> (9 + count * PUBLISHING_ID_BYTES))
        bytes_store16(out + 4, KEY_PUBLISH_CONFIRM)
        bytes_store16(out + 6, 1)
        out[8] = <uint8_t> self.publisher_id
        bytes_store32(out + 9, <uint32_t> count)
        memcpy(out + 13, ids, count * PUBLISHING_ID_BYTES)
        return 0

    cdef int _refuse(self, const uint8_t *ids, size_t count, int code) except -1:
        if self.deleted or not count or self.connection.closed:
            return 0
        self.errored += count
        publish_error(self.connection, self.publisher_id, ids, count, code)
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
