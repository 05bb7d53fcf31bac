# SPDX-License-Identifier: Apache-2.0
"""One connection's way into one queue: messages into its log, PublishAcks back when they are kept.

A Publish becomes an AMQP 1.0 message (id, headers as application properties, payload as data) in its stream's batch,
and its PublishAck is written at once, but to the side: it leaves when the batch is persisted or, with durability `disk`,
when a sync covers it.  If that fails, each of these acks becomes an Error (broker/publisher.pyx).
"""

from libc.string cimport memcmp, memcpy, memset

from vibemq.broker.payload cimport scratch_room
from vibemq.broker.publisher cimport ROOM, SERVER_ERROR
from vibemq.broker.queue cimport Queue
from vibemq.storage cimport core
from vibemq.storage.core cimport OK, amqp_map, amqp_properties, bytes_load32, bytes_store32, writer_bytes
from vibemq.protocols.native.wire cimport (
    FRAME_HEADER_BYTES, FRAME_OK, HEADERS_MAX, TYPE_PUBLISH_STORED, deliver_fits, frame_parse, header_next, is_resend,
    publish_ack_size, publish_ack_write,
)

from vibemq.protocols.native.spec import ErrorCode

cdef enum:
    # The four headers of a dead letter, without the name of its queue: their names, a reason, a time, a number.
    LETTER_ADDED_BYTES = 160
    DEDUP_CLIENT_BYTES = 16
    DEDUP_ID_BYTES = 32

cdef bytes INVALID_MESSAGE = ErrorCode.INVALID_MESSAGE.value.encode()


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
    cdef amqp_properties properties
    cdef size_t room = 4 + core.amqp_size_max(frame.header_count, <uint64_t> frame.id_size + frame.headers_size
                                              + frame.payload_size)
    cdef uint8_t *data = scratch_room(room)
    w = core.bytes_writer(data + 4, room - 4)
    memset(&properties, 0, sizeof(properties))
    properties.id, properties.id_bytes = frame.id, frame.id_size
    if frame.payload_size:
        properties.content_type, properties.content_type_bytes = core.AMQP_JSON, core.AMQP_JSON_BYTES
    core.amqp_write_properties(&w, &properties)
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


cdef size_t entry_write(const native_frame *frame, uint8_t **out) except 0:
    """The entry of a Publish or PublishStored, in the scratch memory; its size."""
    if frame.type != TYPE_PUBLISH_STORED:
        return message_write(frame, out)
    out[0] = scratch_room(4 + frame.payload_size)
    bytes_store32(out[0], frame.payload_size)
    memcpy(out[0] + 4, frame.payload, frame.payload_size)
    return 4 + frame.payload_size


cdef int parse_again(const uint8_t *body, size_t size, native_frame *frame) except -1:
    """Of a frame that was read when it came.  A message is never passed over in silence."""
    if frame_parse(body, size, frame) != FRAME_OK:
        raise AssertionError("a frame that was read once cannot be read again")
    return 0


cdef class NativePublisher(QueuePublisher):
    def __init__(self, NativeSession session not None, Queue queue not None, bytes name):
        self.session, self.client, self.reference = session, session.client, session.id_digits
        self.begin(queue.stream, queue, name)
        self._count_letter_bytes()

    def _count_letter_bytes(self):
        self.letter_bytes = 0
        if self.queue.options.dead_letter:
            letters = self.queue.options.dead_letter_name(self.queue.name).encode()
            self.letter_bytes = LETTER_ADDED_BYTES + max(len(letters), len(self.name))

    def altered(self):
        QueuePublisher.altered(self)
        self._count_letter_bytes()

    # ---- in ----

    cdef int publish(self, const native_frame *frame, const uint8_t *body, size_t body_size) except -1:
        cdef int room
        if self.letter_bytes and not deliver_fits(frame, self.letter_bytes, self.session.frame_max):
            return self._refuse(frame, INVALID_MESSAGE,
                                b"With the headers of a dead letter the message would be larger than the %d bytes "
                                b"that clients read." % self.session.frame_max)
        if self.queue.max_messages or self.has_parked:
            room = self.room_for(1)
            if room != ROOM:
                return self.put_off((<char *> body)[:body_size], body_size, room)
        return self._append(frame)

    cdef int _append(self, const native_frame *frame) except -1:
        cdef uint8_t *entry = NULL
        cdef size_t size = entry_write(frame, &entry)
        cdef uint64_t number = 0
        cdef bint tracked = self.session.dedup and self._number_of(frame, &number)
        if self.add(entry, <uint32_t> size, 1, self.reference if tracked else None, number) != OK:
            return self._refuse(frame, SERVER_ERROR, b"Out of memory.")
        size = publish_ack_size(frame.id_size, len(self.name), self.session.text_layout)
        publish_ack_write(self.note(size), frame.id, frame.id_size, <char *> self.name, len(self.name),
                          self.session.text_layout)
        return 0

    def publish_stored(self, bytes body):
        """A PublishStored: its payload is the message as another queue had it."""
        cdef native_frame frame
        cdef int room
        parse_again(<const uint8_t *> <char *> body, len(body), &frame)
        room = self.room_for(1)
        if room == ROOM:
            self._append(&frame)
        else:
            self.put_off(body, len(body), room)

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

    # ---- what became of it ----

    cdef int confirm(self, const uint8_t *notes, size_t size, uint64_t first_offset, bint offsets_known) except -1:
        if not self.session.connection.closed:
            self.session.connection.write(notes, size)
        return 0

    cdef int refuse_notes(self, const uint8_t *notes, size_t size, bytes code, bytes text) except -1:
        """Each of these PublishAcks was not to be: an Error with its id instead."""
        cdef size_t at = 0, body
        while at < size:
            body = bytes_load32(notes + at)
            self._refuse_body(notes + at + FRAME_HEADER_BYTES, body, code, text)
            at += FRAME_HEADER_BYTES + body
        return 0

    cdef int _refuse(self, const native_frame *frame, bytes code, bytes text) except -1:
        self.session.refuse_frame((<char *> frame.id)[:frame.id_size], code, text)
        return 0

    cdef int _refuse_body(self, const uint8_t *body, size_t size, bytes code, bytes text) except -1:
        cdef native_frame frame
        parse_again(body, size, &frame)
        return self._refuse(&frame, code, text)

    cdef int forget(self) except -1:
        self.session.forget_publisher(self.name, self)
        return 0

    # ---- a full queue ----

    cdef int publish_parked(self, object what) except -1:
        cdef native_frame frame
        cdef bytes body = what
        parse_again(<const uint8_t *> <char *> body, len(body), &frame)
        return self._append(&frame)

    cdef int refuse_parked(self, object what, bytes code, bytes text) except -1:
        cdef bytes body = what
        return self._refuse_body(<const uint8_t *> <char *> body, len(body), code, text)

    cdef int redirect_parked(self, object what) except -1:
        cdef native_frame frame
        cdef uint8_t *entry = NULL
        cdef bytes body = what
        parse_again(<const uint8_t *> <char *> body, len(body), &frame)
        size = entry_write(&frame, &entry)
        return self.redirect(entry, size, (<char *> frame.id)[:frame.id_size])

    def answer_redirected(self, ids, bint ok):
        cdef bytes id
        cdef size_t size
        if self.session.connection.closed:
            return
        self.session.connection.want_turn()
        for id in ids:
            if ok:
                size = publish_ack_size(len(id), len(self.name), self.session.text_layout)
                publish_ack_write(self.session.connection.outbox_reserve(size), <char *> id, len(id), <char *> self.name,
                                  len(self.name), self.session.text_layout)
            else:
                self.session.refuse_frame(id, SERVER_ERROR, b"The message could not be stored.")
