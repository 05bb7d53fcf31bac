# SPDX-License-Identifier: Apache-2.0
"""One connection's way into one queue: messages into its log, PublishAcks back when they are kept.

A Publish becomes an AMQP 1.0 message (id, headers as application properties, payload as data) in its
stream's batch, and its PublishAck is written at once, but to the side: it leaves when the batch is
persisted or, with durability `disk`, when a sync covers it.  If that fails, each of these acks becomes an Error.

A full queue answers by its overflow strategy.  BlockPublisher parks the frame, in order, until the home has
made room or `queues.block_timeout_ms` is over; other frames of the connection are read meanwhile, because
the acknowledgements that make room may be among them.
"""

import logging

from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memset

from vibemq.broker.deadletters cimport DeadLetters
from vibemq.broker.messages cimport message_view
from vibemq.storage cimport core
from vibemq.storage.core cimport ERR_FULL, OK, amqp_map, bytes_load32, bytes_store32, err, writer_bytes
from vibemq.protocols.native.wire cimport (
    FRAME_HEADER_BYTES, FRAME_OK, HEADERS_MAX, deliver_fits, frame_parse, header_next, is_resend,
    publish_ack_size, publish_ack_write,
)

from vibemq.broker.policy import FailureReason, Overflow
from vibemq.errors import LimitExceeded, StreamNotFound
from vibemq.protocols.native.spec import ErrorCode

logger = logging.getLogger(__name__)

cdef enum:
    ACK_BYTES_KEPT = 1 << 20          # a larger burst's buffer is given back after use
    # The four headers of a dead letter, without the name of its queue: their names, a reason, a time, a number.
    LETTER_ADDED_BYTES = 160
    DEDUP_CLIENT_BYTES = 16
    DEDUP_ID_BYTES = 32

cdef int OVERFLOW_DROP_OLDEST = int(Overflow.DROP_OLDEST)
cdef int OVERFLOW_BLOCK = int(Overflow.BLOCK_PUBLISHER)
cdef int OVERFLOW_REDIRECT = int(Overflow.REDIRECT_TO_DLQ)
cdef bytes INVALID_MESSAGE = ErrorCode.INVALID_MESSAGE.value.encode()
cdef bytes QUEUE_FULL = ErrorCode.QUEUE_FULL.value.encode()
cdef bytes QUEUE_NOT_FOUND = ErrorCode.QUEUE_NOT_FOUND.value.encode()
cdef bytes SERVER_ERROR = ErrorCode.SERVER_ERROR.value.encode()

# One message being written, shared by all publishers of the worker.
cdef uint8_t *scratch = NULL
cdef size_t scratch_size = 0


cdef uint8_t *scratch_room(size_t size) except NULL:
    global scratch, scratch_size
    if size > scratch_size:
        grown = <uint8_t *> realloc(scratch, size)
        if grown == NULL:
            raise MemoryError
        scratch, scratch_size = grown, size
    return scratch


cdef int write_headers(writer_bytes *w, amqp_map *map, const native_frame *frame) except -1:
    """Each header once, with its last value: a map in which a key is twice is no AMQP."""
    cdef const uint8_t *at = frame.headers
    cdef const uint8_t *end = frame.headers + frame.headers_size
    cdef const uint8_t *key
    cdef const uint8_t *value
    cdef uint32_t key_size = 0, value_size = 0
    cdef bytes name, text
    cdef dict last
    if frame.header_count <= HEADERS_MAX:
        while header_next(&at, end, &key, &key_size, &value, &value_size):
            if is_resend(key, key_size) or comes_again(at, end, key, key_size):
                continue
            core.amqp_map_add(w, map, key, key_size, value, value_size)
        return 0
    last = {}  # thousands of headers, most of them the same: comparing each with each would take seconds
    while header_next(&at, end, &key, &key_size, &value, &value_size):
        if not is_resend(key, key_size):
            last[(<char *> key)[:key_size]] = (<char *> value)[:value_size]
    for name, text in last.items():
        core.amqp_map_add(w, map, <const uint8_t *> <char *> name, <uint32_t> len(name),
                          <const uint8_t *> <char *> text, <uint32_t> len(text))
    return 0


cdef bint comes_again(const uint8_t *at, const uint8_t *end, const uint8_t *name, uint32_t name_size) noexcept:
    cdef const uint8_t *key
    cdef const uint8_t *value
    cdef uint32_t key_size = 0, value_size = 0
    while header_next(&at, end, &key, &key_size, &value, &value_size):
        if key_size == name_size and memcmp(key, name, name_size) == 0:
            return True
    return False


cdef size_t message_write(const native_frame *frame, uint8_t **out) except 0:
    """The entry of a Publish, with its four bytes of length, in the scratch memory; its size."""
    cdef writer_bytes w
    cdef amqp_map map
    cdef size_t room = 4 + core.amqp_size_max(frame.header_count, <uint64_t> frame.id_size + frame.headers_size
                                              + frame.payload_size)
    cdef uint8_t *data = scratch_room(room)
    w = core.bytes_writer(data + 4, room - 4)
    core.amqp_write_properties(&w, frame.id, frame.id_size, frame.payload_size != 0)
    if frame.header_count:
        core.amqp_map_begin(&w, &map)
        write_headers(&w, &map, frame)
        core.amqp_map_end(&w, &map)
    if frame.payload_size:
        core.amqp_write_data(&w, frame.payload, frame.payload_size)
    else:
        core.amqp_write_null(&w)
    if w.failed:
        raise AssertionError("amqp_size_max was too small")
    bytes_store32(data, <uint32_t> (w.at - data - 4))
    out[0] = data
    return w.at - data


cdef class Publisher(StreamUser):
    def __init__(self, session, Connection connection, Queue queue, bytes name):
        self.session, self.connection, self.queue, self.name = session, connection, queue, name
        self.overflow = int(queue.policy.overflow)
        if queue.policy.dead_letter:
            letters = queue.policy.dead_letter_name(queue.name).encode()
            self.letter_bytes = LETTER_ADDED_BYTES + max(len(letters), len(name))
        self.unsynced, self.parked = [], []
        queue.stream.attach(self)
        queue.hold(self)

    def __dealloc__(self):
        free(self.acks)

    def close(self):
        """The connection is gone.  What is in this turn's batch is still persisted, and confirmed to nobody."""
        if self.closed:
            return
        self.closed = True
        self._stop_parking()
        if self.redirect is not None:
            self.redirect.close()
        self.session.count_unconfirmed(-self._drop_unsynced())
        if self.stream.log.raw != NULL:
            self.stream.detach(self)
        self.queue.release(self)

    # ---- in ----

    cdef int publish(self, const native_frame *frame, const uint8_t *body, size_t body_size) except -1:
        if self.letter_bytes and not deliver_fits(frame, self.letter_bytes, self.session.frame_max):
            self.session.refuse_frame((<char *> frame.id)[:frame.id_size], INVALID_MESSAGE,
                                      b"With the headers of a dead letter the message would be larger than the %d bytes "
                                      b"that clients read." % self.session.frame_max)
            return 0
        if self.queue.max_messages and self.overflow != OVERFLOW_DROP_OLDEST:
            if self.parked:
                return self._park(body, body_size)
            if self.queue.waiting() >= self.queue.max_messages and not self.queue.make_room():
                if self.overflow == OVERFLOW_BLOCK:
                    return self._park(body, body_size)
                if self.overflow == OVERFLOW_REDIRECT and self.queue.policy.dead_letter:
                    return self._redirect(frame, body, body_size)
                return self._full(frame)
        return self._append(frame)

    cdef int _append(self, const native_frame *frame) except -1:
        cdef uint8_t *entry = NULL
        cdef size_t size
        cdef uint64_t number = 0
        cdef bint tracked = self.session.dedup and self._number_of(frame, &number)
        cdef err e
        size = message_write(frame, &entry)
        while True:
            if self.count == 0:
                self.stream.add_waiting(self)
                self.interned = False
            if not tracked:
                e = core.batch_add(self.stream.batch, entry, <uint32_t> size, 1)
            else:
                if not self.interned:
                    if core.batch_reference_intern(self.stream.batch, self.reference, <uint32_t> len(self.reference),
                                                   &self.reference_index) != OK:
                        raise MemoryError
                    self.interned = True
                e = core.batch_add_tracked(self.stream.batch, entry, <uint32_t> size, 1, self.reference_index, number)
            if e != ERR_FULL:
                break
            self.stream.persist()
        if e != OK:
            self.session.refuse_frame((<char *> frame.id)[:frame.id_size], SERVER_ERROR, b"Out of memory.")
            return 0
        self.count += 1
        size = publish_ack_size(frame.id_size, len(self.name), self.session.text_layout)
        publish_ack_write(self._ack_room(size), frame.id, frame.id_size, <char *> self.name, len(self.name),
                          self.session.text_layout)
        return 0

    cdef bint _number_of(self, const native_frame *frame, uint64_t *number) except -1:
        """The number in an id of a client that has its duplicates dropped; False where the id is another kind."""
        cdef uint32_t i
        cdef uint8_t c
        cdef uint64_t value = 0
        if frame.id_size != DEDUP_ID_BYTES:
            return False
        for i in range(<uint32_t> DEDUP_CLIENT_BYTES, <uint32_t> DEDUP_ID_BYTES):
            c = frame.id[i]
            if c"0" <= c <= c"9":
                value = value << 4 | <uint64_t> (c - c"0")
            elif c"a" <= c <= c"f":
                value = value << 4 | <uint64_t> (c - c"a" + 10)
            else:
                return False
        if self.reference is None:
            self.reference = (<char *> frame.id)[:DEDUP_CLIENT_BYTES]
        number[0] = value
        return memcmp(<char *> self.reference, frame.id, DEDUP_CLIENT_BYTES) == 0

    cdef uint8_t *_ack_room(self, size_t size) except NULL:
        cdef uint8_t *grown
        cdef size_t need = self.ack_bytes + size
        if need > self.ack_capacity:
            need += need // 2 + 256
            grown = <uint8_t *> realloc(self.acks, need)
            if grown == NULL:
                raise MemoryError
            self.acks, self.ack_capacity = grown, need
        self.ack_bytes += size
        return self.acks + self.ack_bytes - size

    # ---- what became of it ----

    cdef int on_persisted(self, bint ok, uint64_t first_offset, uint64_t next_offset) except -1:
        cdef size_t size = self.ack_bytes
        cdef size_t count = self.count
        self.ack_bytes = self.count = 0
        if self.closed:
            return 0
        if not ok:
            if core.control_is_deleted(self.stream.log.control):
                self._refuse_acks(self.acks, size, QUEUE_NOT_FOUND, b"The queue was deleted.")
            else:
                self._refuse_acks(self.acks, size, SERVER_ERROR, b"The message could not be stored.")
        elif self.stream.is_disk_durable:
            self.unsynced.append(((<char *> self.acks)[:size], count, first_offset, next_offset))
            self.session.count_unconfirmed(count)
        elif not self.connection.closed:
            self.connection.write(self.acks, size)
        if self.ack_capacity > ACK_BYTES_KEPT:
            free(self.acks)
            self.acks, self.ack_capacity = NULL, 0
        return 0

    cdef int on_durable(self, uint64_t durable) except -1:
        cdef bytes acks
        cdef list waiting = []
        cdef Py_ssize_t answered = 0
        for batch in self.unsynced:
            acks, count, first_offset, next_offset = batch
            if core.log_sync_failed(self.stream.log.raw, first_offset, next_offset):
                self._refuse_acks(<const uint8_t *> <char *> acks, len(acks), SERVER_ERROR, b"The disk refused a sync.")
            elif next_offset <= durable:
                self.connection.write_bytes(acks)
            else:
                waiting.append(batch)
                continue
            answered += count
        self.unsynced = waiting
        self.session.count_unconfirmed(-answered)
        return 1 if waiting else 0

    cdef int on_deleted(self) except -1:
        cdef bytes acks
        for acks, _, _, _ in self.unsynced:
            self._refuse_acks(<const uint8_t *> <char *> acks, len(acks), QUEUE_NOT_FOUND, b"The queue was deleted.")
        parked = self.parked
        self._stop_parking()
        for body, _ in parked:
            self._refuse_body(body, QUEUE_NOT_FOUND, b"The queue was deleted.")
        self.session.forget_publisher(self.name, self)
        self.close()
        return 0

    cdef int failed(self, object problem) except -1:
        self.connection.fail(problem)
        return 0

    def _drop_unsynced(self) -> int:
        batches, self.unsynced = self.unsynced, []
        return sum(count for _, count, _, _ in batches)

    cdef int _refuse_acks(self, const uint8_t *acks, size_t size, bytes code, bytes text) except -1:
        """Each of these PublishAcks was not to be: an Error with its id instead."""
        cdef native_frame frame
        cdef size_t at = 0, body
        while at < size:
            body = bytes_load32(acks + at)
            if frame_parse(acks + at + FRAME_HEADER_BYTES, body, &frame) == FRAME_OK:
                self.session.refuse_frame((<char *> frame.id)[:frame.id_size], code, text)
            at += FRAME_HEADER_BYTES + body
        return 0

    # ---- a full queue ----

    cdef int _full(self, const native_frame *frame) except -1:
        self.session.refuse_frame((<char *> frame.id)[:frame.id_size], QUEUE_FULL,
                                  b"The queue holds its maximum of %d messages." % self.queue.max_messages)
        return 0

    def _refuse_body(self, bytes body, bytes code, bytes text):
        cdef native_frame frame
        if frame_parse(<const uint8_t *> <char *> body, len(body), &frame) == FRAME_OK:
            self.session.refuse_frame((<char *> frame.id)[:frame.id_size], code, text)

    cdef int _park(self, const uint8_t *body, size_t body_size) except -1:
        """Keep a Publish until there is room; its acknowledgement waits with it."""
        if not self.parked:
            self.queue.wait_for_room(self)
            if self.timer is None:
                self.timer = self.queue.table.timers.timer(self._parked_too_long)
            self.timer.at_most(self.queue.table.now_ms + self.queue.table.defaults.block_timeout_ms)
        self.parked.append(((<char *> body)[:body_size], self.queue.table.now_ms))
        self.session.count_parked(body_size)
        return 0

    def retry(self) -> bool:
        """There may be room: publish what was parked.  False while some of it still waits."""
        cdef native_frame frame
        cdef bytes body
        cdef size_t done = 0
        if self.queue.closed:  # deleted: on_deleted refuses them
            return True
        for body, _ in self.parked:
            if self.queue.waiting() >= self.queue.max_messages:
                break
            done += 1
            if frame_parse(<const uint8_t *> <char *> body, len(body), &frame) == FRAME_OK:
                self._append(&frame)
        self._unpark(done)
        return not self.parked

    def _unpark(self, size_t count):
        self.session.count_parked(-sum([len(body) for body, _ in self.parked[:count]]))
        self.parked = self.parked[count:]

    def _parked_too_long(self, now_ms):
        timeout_ms = self.queue.table.defaults.block_timeout_ms
        count = 0
        for body, came_ms in self.parked:
            if came_ms + timeout_ms > now_ms:
                self.timer.set(came_ms + timeout_ms)
                break
            count += 1
            try:
                self._refuse_body(body, QUEUE_FULL, b"The queue stayed full for %d ms." % timeout_ms)
            except LimitExceeded as problem:  # a peer that does not read its errors
                self.connection.fail(problem)
                break
        self._unpark(count)
        if not self.parked:
            self.queue.stop_waiting(self)

    def _stop_parking(self):
        self._unpark(len(self.parked))
        if self.timer is not None:
            self.timer.cancel()
        self.queue.stop_waiting(self)

    cdef int _redirect(self, const native_frame *frame, const uint8_t *body, size_t body_size) except -1:
        """The message goes to the dead-letter queue instead."""
        cdef message_view m
        cdef uint8_t *entry = NULL
        cdef size_t size
        if not self._has_letters():
            # It comes back, as if just received, when that queue has been made.
            self.session.make_dead_letter_queue(self.queue.policy.dead_letter_name(self.queue.name), self.queue.policy,
                                                (<char *> body)[:body_size])
            return 0
        size = message_write(frame, &entry)
        memset(&m, 0, sizeof(m))
        m.data, m.size = entry + 4, <uint32_t> (size - 4)
        m.is_amqp = core.amqp_parse(m.data, m.size, &m.amqp) == OK
        (<DeadLetters> self.redirect).add(&m, (<char *> frame.id)[:frame.id_size], self.name,
                                          FailureReason.QUEUE_FULL.value.encode(), 0)
        self.redirected += 1
        return 0

    def _has_letters(self) -> bool:
        """Is the way into the dead-letter queue open?  False: there is no such queue."""
        if self.redirect is not None and not self.redirect.closed:
            return True
        name = self.queue.policy.dead_letter_name(self.queue.name)
        try:
            self.redirect = DeadLetters(self, self.queue.table.find(self.queue.stream.virtual_host, name))
        except StreamNotFound:
            self.redirect = None
            return False
        return True

    def letters_kept(self, ids, bint ok):
        """Redirected messages are in the dead-letter queue (or, not `ok`, are not)."""
        cdef bytes id
        cdef size_t size
        self.redirected -= len(ids)
        if self.closed or self.connection.closed:
            return
        self.connection.want_turn()
        for id in ids:
            if ok:
                size = publish_ack_size(len(id), len(self.name), self.session.text_layout)
                publish_ack_write(self.connection.outbox_reserve(size), <char *> id, len(id), <char *> self.name,
                                  len(self.name), self.session.text_layout)
            else:
                self.session.refuse_frame(id, SERVER_ERROR, b"The message could not be stored.")

    def letters_failed(self, problem):
        self.connection.fail(problem)
