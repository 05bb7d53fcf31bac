# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from vibemq.broker.stream cimport StreamUser
from vibemq.storage.core cimport (
    AMQP_BINARY, AMQP_BODY_DATA, AMQP_BODY_VALUE, AMQP_CONTENT_TYPE, AMQP_STRING, AMQP_SYMBOL, MSGPACK_DEPTH_MAX, OK,
    amqp_message, amqp_message_id, amqp_pair, amqp_property, amqp_value, amqp_value_text, chunk, err, fault,
    msgpack_check, msgpack_is_type, reader,
)
from vibemq.storage.log cimport Log

cdef extern from *:
    """
    #define VIBEMQ_NOWHERE UINT64_MAX
    """
    const uint64_t NOWHERE "VIBEMQ_NOWHERE"  # what Cursor.next gives as the offset where a whole chunk is damaged


# One stored message in place.  The bytes are the cache's: they may change with the next look at another.
cdef struct message_view:
    const uint8_t *data            # as it was stored
    uint32_t size
    bint is_amqp                   # else the whole of it is an opaque body
    amqp_message amqp
    uint64_t offset
    int64_t timestamp_ms
    uint64_t segment, place        # as in csrc/ledger/ledger.h
    uint16_t index


cdef struct cached_chunk:
    uint64_t key, segment, position
    uint8_t *data
    size_t capacity
    chunk header
    uint64_t used                  # when, in looks


cdef class Messages:
    cdef cached_chunk *chunks
    cdef cached_chunk *newest
    cdef uint64_t looks
    cdef size_t bytes
    cdef readonly object helpers
    cdef dict open                 # cursors and probes that hold a descriptor, longest first
    cdef uint64_t unpacked_key, unpacked_segment, unpacked_place
    cdef bytes unpacked
    cdef tuple to_unpack           # what read_ahead() is to have unpacked: (where, compression, bytes, size)
    cdef uint32_t unpacked_index, unpacked_at

    cdef int opened(self, object place) except -1
    # Let a helper thread fetch what was ERR_NOT_CACHED; then call `then()` in the loop.
    cdef int read_ahead(self, Place place, then) except -1
    cdef cached_chunk *load(self, uint64_t key, reader *at, err *e, fault *f) noexcept
    cdef err message(self, cached_chunk *c, uint64_t segment, uint64_t position, uint32_t entry_position, uint16_t index,
                     message_view *out, uint32_t *entry_bytes, uint32_t *records, fault *f) noexcept
    cdef bint _room(self, cached_chunk *c, size_t size) noexcept
    cdef err _sub_batch(self, cached_chunk *c, uint64_t place, const uint8_t *body, uint32_t body_bytes,
                        uint32_t uncompressed_bytes, uint8_t compression, uint16_t index,
                        message_view *out) noexcept


# A place in one stream's log: what a cursor and a probe are both.
cdef class Place:
    cdef Messages messages
    cdef Log log
    cdef uint64_t key
    cdef reader raw
    cdef bint open

    cdef void close(self) noexcept
    cdef err _open(self, uint64_t offset, fault *f) noexcept


# Goes over a stream's messages from an offset on.
cdef class Cursor(Place):
    cdef uint64_t offset           # of the next message
    cdef uint32_t entry_position   # in the chunk's data
    cdef uint64_t entry_first      # offset of that entry's first message

    cdef err next(self, message_view *out, fault *f) noexcept
    cdef err pass_damage(self, fault *f) noexcept
    cdef void seek(self, uint64_t offset) noexcept


# Looks up single messages whose place is known.
cdef class Probe(Place):
    cdef err look(self, uint64_t offset, uint64_t segment, uint64_t place, uint16_t index, message_view *out,
                  fault *f) noexcept


# Goes over a log, a queue's or a stream's, and takes nothing away from anybody.  The last four methods are the door's.
cdef class LogReader(StreamUser):
    cdef object queues                # broker.queue_table.QueueTable
    cdef Cursor cursor
    cdef object next_turn             # the timer, once it was needed
    cdef uint64_t key
    cdef uint64_t left                # messages until it ends
    cdef uint64_t unreadable_end      # of the last messages that cannot be read
    cdef bint follows                 # new messages, once it is at the end
    cdef bint told                    # that something is too large: only once, or the log would be as long as this one
    cdef bint waiting                 # for a helper thread, or for the next turn
    cdef bint writing
    cdef readonly bint stalled        # had no room when there may have been something for it: then pump() it again
    cdef readonly bint closed

    # Write as much as there is room for: after the start, and whenever there is room again.
    cpdef pump(self)
    cdef int _write(self) except -1
    cdef int _end_unread(self, err e, fault *f) except -1
    cdef int _wait_a_turn(self) except -1
    cdef bint room(self) noexcept
    # UNDELIVERABLE: it is passed over.  `id` is what the message is called; the bytes are only valid during the call.
    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size) except -1


# ---- what a message says, for doors whose messages are a payload with headers ----

cdef enum:
    MESSAGE_ID_BYTES_MAX = 64         # of an id that the broker makes up or turns into text
    VALUE_TEXT_BYTES = 64             # of a header that is no text; enough for all of them
    HEADER_TEXT_BYTES_MAX = 65535
    AMQP_BINARY_8 = 0xA0
    AMQP_BINARY_32 = 0xB0
    AMQP_STRING_8 = 0xA1
    AMQP_STRING_32 = 0xB1
    AMQP_NULL_CODE = 0x40


cdef inline const uint8_t *payload_of(const message_view *m, uint32_t *size) noexcept:
    """The message's body as bytes; size 0: it has none."""
    cdef const uint8_t *p
    size[0] = 0
    if not m.is_amqp:
        size[0] = m.size
        return m.data
    if m.amqp.body_kind == AMQP_BODY_DATA:
        size[0] = m.amqp.body_size
        return m.amqp.body
    if m.amqp.body_kind == AMQP_BODY_VALUE and m.amqp.body_size:
        p = m.amqp.body
        if (p[0] == AMQP_STRING_8 or p[0] == AMQP_BINARY_8) and m.amqp.body_size >= 2:
            size[0] = m.amqp.body_size - 2
            return p + 2
        if (p[0] == AMQP_STRING_32 or p[0] == AMQP_BINARY_32) and m.amqp.body_size >= 5:
            size[0] = m.amqp.body_size - 5
            return p + 5
        if p[0] != AMQP_NULL_CODE:
            size[0] = m.amqp.body_size
        return p
    return NULL


cdef inline const uint8_t *value_of(const amqp_pair *pair, char *text, uint32_t *size) noexcept:
    """The value as a header's text, which may stand in `text`; size 0: it has none, and then it is no header."""
    size[0] = 0
    if pair.value.kind == AMQP_STRING or pair.value.kind == AMQP_SYMBOL or pair.value.kind == AMQP_BINARY:
        if pair.value.bytes <= HEADER_TEXT_BYTES_MAX:
            size[0] = pair.value.bytes
        return pair.value.data
    size[0] = <uint32_t> amqp_value_text(&pair.value, text, VALUE_TEXT_BYTES)
    if size[0] > VALUE_TEXT_BYTES:
        size[0] = 0
    return <const uint8_t *> text


cdef inline const uint8_t *id_of(const message_view *m, uint8_t *made, uint32_t *size) noexcept:
    """What a message is called; its offset when its publisher has given it no id.  May stand in `made`."""
    cdef amqp_value value
    cdef uint64_t rest = m.offset
    cdef uint32_t digits = 1
    size[0] = 0
    if m.is_amqp and amqp_message_id(&m.amqp, &value):
        if value.kind == AMQP_STRING or value.kind == AMQP_BINARY:
            if 0 < value.bytes <= 65535:
                size[0] = value.bytes
                return value.data
        else:
            size[0] = <uint32_t> amqp_value_text(&value, <char *> made, MESSAGE_ID_BYTES_MAX)
            if 0 < size[0] <= MESSAGE_ID_BYTES_MAX:
                return made
    while rest >= 10:
        rest //= 10
        digits += 1
    size[0], rest = digits, m.offset
    while digits:
        digits -= 1
        made[digits] = <uint8_t> (c"0" + rest % 10)
        rest //= 10
    return made


# True if its content type is MessagePack and its body is one value.
cdef inline bint is_messagepack(const message_view *m, const uint8_t *payload, uint32_t size) noexcept:
    cdef amqp_value type
    return m.is_amqp and amqp_property(&m.amqp, AMQP_CONTENT_TYPE, &type) \
        and (type.kind == AMQP_SYMBOL or type.kind == AMQP_STRING) and msgpack_is_type(type.data, type.bytes) \
        and msgpack_check(payload, size, MSGPACK_DEPTH_MAX) == OK


# A payload as JSON (of a MessagePack value, or a string), and whether that is base64.
cdef tuple as_json(const uint8_t *payload, uint32_t size, bint of_messagepack)
# Memory for one message that is being written, shared by all publishers of the worker.
cdef uint8_t *scratch_room(size_t size) except NULL
