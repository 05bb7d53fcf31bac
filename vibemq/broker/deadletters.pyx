# SPDX-License-Identifier: Apache-2.0
"""Messages on their way into a dead-letter queue: written anew with the reason in their headers.

Whoever buries a message settles it only after ``letters_kept`` has said that its copy is kept, so
a crash in between leaves two copies and never none.  Id, content type, key, headers and body are the
original's; x-original-queue, x-failure-reason, x-failed-at and x-attempts are added, and those that an
earlier burial had added are replaced.
"""

from datetime import UTC, datetime

from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memset

from vibemq.storage cimport core
from vibemq.storage.core cimport (
    AMQP_BODY_DATA, AMQP_BODY_VALUE, AMQP_CONTENT_TYPE, AMQP_GROUP_ID, AMQP_STRING, AMQP_SYMBOL, ERR_FULL, OK,
    amqp_map, amqp_pair, amqp_pairs, amqp_properties, amqp_value, bytes_store32, err, writer_bytes,
)

from vibemq.errors import LimitExceeded

cdef enum:
    ADDED_BYTES_MAX = 1024      # of our headers; the queue's name is at most 1 KiB of UTF-8 and counted apart
    ADDED_PAIRS = 4

cdef list ADDED = [b"x-original-queue", b"x-failure-reason", b"x-failed-at", b"x-attempts"]


cdef bint is_added(const uint8_t *key, uint32_t size) noexcept:
    cdef bytes name
    for name in ADDED:
        if size == <uint32_t> len(name) and memcmp(key, <char *> name, size) == 0:
            return True
    return False


cdef class DeadLetters(StreamUser):
    """One burier's way into one dead-letter queue, which it keeps open: its bounds hold, whoever uses it."""

    def __init__(self, owner, queue):
        self.owner, self.queue, self.name = owner, queue, queue.name
        self.tokens = []
        (<Stream> queue.stream_of()).attach(self)
        queue.hold(self)

    def close(self):
        if not self.closed:
            self.closed = True
            if self.stream.log.raw != NULL:
                self.stream.detach(self)
            self.queue.release(self)

    def retire(self):
        """Nothing more is added; it closes when all that was added is answered."""
        self.timer = self.queue.table.timers.timer(self._close_if_done)
        self._look_if_done()

    cdef int _look_if_done(self) except -1:
        if self.timer is not None and not self.tokens and not self.unsynced:
            self.timer.at_most(0)  # not from within the stream's own turn, which goes on with its log
        return 0

    def _close_if_done(self, now_ms):
        if not self.tokens and not self.unsynced:
            self.close()

    cdef int add(self, message_view *m, object token, bytes queue, bytes reason, uint32_t attempts) except -1:
        """Lay a copy of the message into this turn's batch; with m NULL there is no body to be had."""
        cdef amqp_pairs it
        cdef amqp_pair pair
        cdef amqp_value id, field
        cdef amqp_map map
        cdef amqp_properties properties
        cdef writer_bytes w
        cdef uint32_t count = ADDED_PAIRS
        cdef uint64_t room
        cdef uint8_t *out
        cdef err e
        cdef bint has_id = False
        if m != NULL and m.is_amqp:
            core.amqp_pairs_begin(&it, m.amqp.application_properties, m.amqp.application_properties_size)
            count += it.left
            has_id = core.amqp_message_id(&m.amqp, &id)
        room = 4 + core.amqp_size_max(count, <uint64_t> (m.size if m != NULL else 0) + <uint64_t> len(queue) + ADDED_BYTES_MAX)
        if room > core.CHUNK_DATA_MAX_BYTES:
            raise LimitExceeded("message for a dead-letter queue", room, core.CHUNK_DATA_MAX_BYTES)
        out = <uint8_t *> malloc(room)
        if out == NULL:
            raise MemoryError
        try:
            w = core.bytes_writer(out + 4, room - 4)
            memset(&properties, 0, sizeof(properties))
            if has_id:
                properties.id_value = &id
            if m != NULL and m.is_amqp and core.amqp_property(&m.amqp, AMQP_CONTENT_TYPE, &field) \
                    and (field.kind == AMQP_SYMBOL or field.kind == AMQP_STRING):
                properties.content_type, properties.content_type_bytes = <const char *> field.data, field.bytes
            if m != NULL and m.is_amqp and core.amqp_property(&m.amqp, AMQP_GROUP_ID, &field) and field.kind == AMQP_STRING:
                properties.key, properties.key_bytes = field.data, field.bytes
            core.amqp_write_properties(&w, &properties)
            core.amqp_map_begin(&w, &map)
            if m != NULL and m.is_amqp:
                while core.amqp_pairs_next(&it, &pair):
                    if is_added(pair.key, pair.key_bytes):
                        continue
                    core.amqp_map_add_value(&w, &map, pair.key, pair.key_bytes, &pair.value)
            failed_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()
            for name, value in zip(ADDED, (queue, reason, failed_at, b"%d" % attempts), strict=True):
                core.amqp_map_add(&w, &map, <const uint8_t *> <char *> name, <uint32_t> len(name),
                                  <const uint8_t *> <char *> value, <uint32_t> len(value))
            core.amqp_map_end(&w, &map)
            if m == NULL:
                core.amqp_write_null(&w)
            elif not m.is_amqp:
                core.amqp_write_data(&w, m.data, m.size)
            elif m.amqp.body_kind == AMQP_BODY_DATA:
                core.amqp_write_data(&w, m.amqp.body, m.amqp.body_size)
            elif m.amqp.body_kind == AMQP_BODY_VALUE and m.amqp.body_size:
                core.amqp_write_value(&w, m.amqp.body, m.amqp.body_size)
            else:
                core.amqp_write_null(&w)
            if w.failed:
                raise LimitExceeded("message for a dead-letter queue: its headers", count, ADDED_PAIRS)
            size = w.at - out
            bytes_store32(out, <uint32_t> (size - 4))
            while True:
                if not self.tokens:
                    self.stream.add_waiting(self)
                e = core.batch_add(self.stream.batch, out, <uint32_t> size, 1)
                if e != ERR_FULL:
                    break
                self.stream.persist()
            if e != OK:
                raise MemoryError
        finally:
            free(out)
        self.tokens.append(token)
        return 0

    cdef int on_persisted(self, bint ok, uint64_t first_offset, uint64_t next_offset) except -1:
        tokens, self.tokens = self.tokens, []
        if ok and self.stream.is_disk_durable:
            self.stream.await_sync(self, tokens, first_offset, next_offset)
        else:
            self.owner.letters_kept(tokens, ok)
        return self._look_if_done()

    cdef int on_synced(self, object what, bint ok) except -1:
        self.owner.letters_kept(what, ok)
        return self._look_if_done()

    cdef int on_deleted(self) except -1:
        self.closed = True
        batches, self.unsynced = self.unsynced, None
        for tokens, _, _ in batches or ():
            self.owner.letters_kept(tokens, False)
        return 0

    cdef int failed(self, object problem) except -1:
        self.owner.letters_failed(problem)
        return 0
