# SPDX-License-Identifier: Apache-2.0
"""One hub connection's way into one queue or stream: messages into its log, completions back when they are kept.

A Publish becomes an entry (entries.pyx) in its stream's batch, and a note beside it says whom to answer.

When the batch is persisted or, with durability `disk`, when a sync covers it, each note becomes a Completion
``{id, offset}``; if that fails, an error (broker/publisher.pyx).  The offset of a message is the first one of its batch
plus its place in it, unless the log has dropped somebody's duplicates from the same batch: then nobody knows it, and
the result has none.

A PublishBatch of several messages is one uncompressed sub-batch of the log: one entry, which is there as a whole or not
at all.  Items of an upload have no answers; its Feed (publishing.py) counts what became of them.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memcpy
from vibemq.broker.publisher cimport ROOM, ROOM_NONE
from vibemq.broker.queue cimport Queue
from vibemq.broker.stream cimport Stream
from vibemq.protocols.signalr.codec cimport DIALECT_V1
from vibemq.protocols.signalr.entries cimport entry_write
from vibemq.protocols.signalr.values cimport add, add_name, add_number, add_text, add_word, output
from vibemq.protocols.signalr.wire cimport (
    ENCODING_JSON, ENCODING_MESSAGEPACK, bytes_of, decimal_put, put, span_of,
)
from vibemq.storage cimport core
from vibemq.storage.core cimport OK, bytes_load32, bytes_store16, bytes_store32

from vibemq.protocols.signalr.options import message_options
from vibemq.protocols.signalr.spec import ErrorCode, HubError

cdef enum:
    SUB_BATCH_HEADER_BYTES = 11
    MESSAGES_PER_BATCH_MAX = 10_000    # each is more than a microsecond of the loop's time
    BATCH_BYTES_MAX = 8 << 20          # of one entry, which lies in one chunk and is read as one
    DELIVERY_ADDS_BYTES = 1024         # names, numbers, the queue's name and the invocation's id

cdef output completions[2]             # one for each encoding
completions[1].encoding = ENCODING_MESSAGEPACK


cdef span id_of(bytes id) noexcept:
    return span_of(NULL, 0) if id is None else span_of(<const char *> id, len(id))


def ready_publisher(HubConnection hub, bytes name):
    """The way into a queue, if it is open and this user's rights are those that opened it."""
    cdef HubPublisher publisher = hub.publishers.get(name)
    if publisher is None or publisher.generation != hub.queues.access_generation \
            or core.control_is_deleted(publisher.stream.log.control):
        return None
    return publisher


def open_publisher(HubConnection hub, bytes name, Stream stream, Queue queue):
    """The way into a queue, for a user that may publish to it; `queue`: None where the stream is none."""
    cdef HubPublisher publisher = hub.publishers.get(name)
    if publisher is not None and publisher.stream is not stream:  # deleted, and its doorbell not heard yet
        hub.forget_publisher(name, publisher)
        publisher.close()
        publisher = None
    if publisher is None:
        publisher = hub.publishers[name] = HubPublisher(hub, stream, queue, name)
    publisher.generation = max(hub.queues.access_generation, -1)  # under an alarm that came meanwhile it asks again
    return publisher


# ---- notes: an origin, and behind it its ids ----


cdef inline size_t note_size(const origin *of) noexcept:
    return sizeof(origin) + of.id.size + of.message_id.size


cdef inline int note_put(uint8_t *p, const origin *of) noexcept:
    p = put(put(p, of, sizeof(origin)), of.id.data, of.id.size)
    put(p, of.message_id.data, of.message_id.size)
    return 0


cdef inline const uint8_t *note_read(const uint8_t *p, origin *out) noexcept:
    """Behind the note at p, into which the ids of its origin point."""
    memcpy(out, p, sizeof(origin))
    p += sizeof(origin)
    if out.id.data != NULL:
        out.id.data = p
    out.message_id.data = p + out.id.size
    return out.message_id.data + out.message_id.size


cdef inline origin origin_of(bytes note) noexcept:
    cdef origin out
    note_read(<const uint8_t *> <char *> note, &out)
    return out


cdef class HubPublisher(QueuePublisher):
    def __init__(self, HubConnection hub, Stream stream, Queue queue, bytes name):
        """`queue`: None where the stream is none."""
        self.hub, self.client, self.progressed = hub, hub.client, set()
        self.record_max = hub.door.config.message_max_bytes
        self.begin(stream, queue, name)

    # ---- in ----

    cdef int publish(self, span id, span body, bint has_escapes, object options, int64_t upload) except -1:
        cdef origin of
        cdef uint8_t *entry = NULL
        cdef size_t size
        of.id, of.message_id, of.upload, of.records = id, span_of(NULL, 0), upload, 1
        try:
            if options is not None:
                options = self._read(options)
                if options is not None:
                    of.message_id = id_of(options.id)
            size = self._entry(body, has_escapes, options, &entry)
        except HubError as problem:
            return self._refuse(&of, problem.code, problem.text)
        self.hub.has_published = True
        if upload and not self._is_counted(&of):
            return 0
        if self.queue is None or not self.queue.max_messages and not self.has_parked:
            return self._lay(&of, entry, size)
        return self._take(&of, entry, size)

    def publish_bytes(self, bytes id, bytes body, options, int64_t upload):
        """As ``publish``, for Python.  `id`: None when nobody waits for an answer."""
        self.publish(id_of(id), span_of(<char *> body, len(body)), True, options, upload)

    def publish_batch(self, bytes id, list messages, int64_t upload=0):
        """[(raw body, options or None)], of which all are kept or none.  `id`: None when nobody waits for an answer."""
        cdef origin of
        cdef bytes body, pieces
        cdef uint8_t *entry = NULL
        cdef size_t size
        cdef list parts = []
        cdef size_t total = 0
        of.id, of.message_id, of.upload = id_of(id), span_of(NULL, 0), upload
        try:
            if not 0 < len(messages) <= MESSAGES_PER_BATCH_MAX:
                raise HubError(ErrorCode.INVALID_ARGUMENT,
                               f"A batch has 1 to {MESSAGES_PER_BATCH_MAX} messages, had {len(messages)}.")
            for body, options in messages:
                size = self._entry(span_of(<char *> body, len(body)), True, self._read(options), &entry)
                total += size
                if total > BATCH_BYTES_MAX:
                    raise HubError(ErrorCode.LIMIT_EXCEEDED,
                                   f"A batch has at most {BATCH_BYTES_MAX} bytes; send it in parts.")
                parts.append((<char *> entry)[:size])
        except HubError as problem:
            of.records = <uint32_t> max(len(messages), 2)
            return self._refuse(&of, problem.code, problem.text)
        self.hub.has_published = True
        of.records = <uint32_t> len(parts)
        if upload and not self._is_counted(&of):
            return
        pieces = b"".join(parts)
        if of.records > 1:
            head = bytearray(SUB_BATCH_HEADER_BYTES)
            entry = <uint8_t *> <char *> head
            entry[0] = 0x80  # and no compression
            bytes_store16(entry + 1, <unsigned int> of.records)
            bytes_store32(entry + 3, <uint32_t> total)
            bytes_store32(entry + 7, <uint32_t> total)
            pieces = bytes(head) + pieces
        self._take(&of, <const uint8_t *> <char *> pieces, len(pieces))

    cdef bint _is_counted(self, const origin *of) except -1:
        """False: an item before it was refused, and its peer has heard so."""
        feed = self.hub.feeds.get(of.upload)
        if feed is not None:
            feed.given += of.records
        return feed is not None

    cdef size_t _entry(self, span body, bint has_escapes, object options, uint8_t **out) except 0:
        cdef size_t size = entry_write(body, self.hub.encoding, has_escapes, options, out)
        if size + DELIVERY_ADDS_BYTES > self.record_max:
            raise HubError(ErrorCode.LIMIT_EXCEEDED,
                           f"A message has at most {self.record_max - DELIVERY_ADDS_BYTES} bytes, or nobody could be "
                           f"given it; this one has {size}.")
        return size

    def _read(self, options):
        """MessageOptions, or None where they say nothing: uploads bear the same for each item."""
        if options is None or options is self.options_seen:
            return None if options is None else self.options_read
        read = message_options(options)
        if read is not None and read.ttl_ms is not None \
                and (self.queue is None or read.ttl_ms != self.queue.options.message_ttl_ms):
            raise HubError(ErrorCode.NOT_SUPPORTED, "Messages expire by the time of their queue: create it with "
                                                    "messageTtlMs, and publish without ttlMs.")
        self.options_seen, self.options_read = options, read
        return read

    cdef int _take(self, origin *of, const uint8_t *entry, size_t size) except -1:
        """Messages for a queue that may be full."""
        cdef int room = self.room_for(of.records)
        if room == ROOM:
            return self._lay(of, entry, size)
        if of.records > self.queue.max_messages > 0:
            if room != ROOM_NONE:
                self.count_refused(of.records)
            return self._refuse(of, ErrorCode.QUEUE_FULL,
                                f"The queue holds {self.queue.max_messages} messages, so the batch never fits.")
        note = PyBytes_FromStringAndSize(NULL, note_size(of))
        note_put(<uint8_t *> <char *> note, of)
        return self.put_off((note, (<const char *> entry)[:size]), size, room)

    cdef int _lay(self, origin *of, const uint8_t *entry, size_t size) except -1:
        if self.add(entry, <uint32_t> size, of.records, None, 0) != OK:
            return self._refuse(of, ErrorCode.SERVER_ERROR, "Out of memory.")
        if of.id.data != NULL or of.upload:
            of.place = <uint32_t> (self.stream.batch.records - of.records)
            note_put(self.note(note_size(of)), of)
        return 0

    cdef int _refuse(self, const origin *of, object code, str text) except -1:
        if of.upload:
            feed = self.hub.feeds.get(of.upload)
            if feed is not None:
                feed.call.refuse(code, text)
        elif of.id.data != NULL:
            self.hub.refuse(bytes_of(of.id), "PublishBatch" if of.records > 1 else "Publish", code, text)
        return 0

    # ---- what became of it ----

    cdef int confirm(self, const uint8_t *notes, size_t size, uint64_t first_offset, bint offsets_known) except -1:
        cdef const uint8_t *p = notes
        cdef const uint8_t *end = notes + size
        cdef origin of
        if self.hub.closed:
            return 0
        while p < end:
            p = note_read(p, &of)
            self._kept(&of, first_offset + of.place, offsets_known)
        if self.progressed:
            self._tell_progress()
        return 0

    cdef int _kept(self, const origin *of, uint64_t offset, bint offset_known) except -1:
        if of.upload:
            feed = self.hub.feeds.get(of.upload)
            if feed is not None:
                feed.keep(of.records, offset + of.records - 1 if offset_known else None)
                self.progressed.add(feed)
        elif of.id.data != NULL:
            self._complete(of, offset, offset_known)
        return 0

    def _tell_progress(self):
        progressed, self.progressed = self.progressed, set()
        for feed in progressed:
            feed.progress()

    cdef int _complete(self, const origin *of, uint64_t offset, bint offset_known) except -1:
        """A message without an id of its own is known by its offset, here as in deliveries.

        The record is not made in the worker's scratch memory: the message that made the batch full may lie there."""
        cdef HubConnection hub = self.hub
        cdef output *out = &completions[hub.encoding]
        cdef span message_id = of.message_id
        cdef uint8_t number[24]
        cdef size_t members_at
        if of.records == 1 and not message_id.size and offset_known:
            message_id = span_of(number, decimal_put(number, offset) - number)
        out.size = out.members = 0
        add_word(out, b'{"type":3,"invocationId":', b"\x95\x03\x80" if hub.dialect == DIALECT_V1 else b"\x94\x03")
        add_text(out, of.id.data, of.id.size)
        add_word(out, b',"result":{', b"\x03\x80")
        members_at = out.size - 1
        if of.records > 1:
            add_name(out, b"count")
            add_number(out, of.records)
        elif message_id.size:
            add_name(out, b"id")
            add_text(out, message_id.data, message_id.size)
        if offset_known:
            add_name(out, b"firstOffset" if of.records > 1 else b"offset")
            add_number(out, offset)
        if offset_known and of.records > 1:
            add_name(out, b"lastOffset")
            add_number(out, offset + of.records - 1)
        if hub.encoding == ENCODING_JSON:
            add(out, b"}}", 2)
        else:
            out.data[members_at] |= <uint8_t> out.members
        put(hub.record(out.size), out.data, out.size)
        return hub.written()

    cdef int refuse_notes(self, const uint8_t *notes, size_t size, bytes code, bytes text) except -1:
        cdef const uint8_t *p = notes
        cdef const uint8_t *end = notes + size
        cdef origin of
        while p < end:
            p = note_read(p, &of)
            self._refuse(&of, code.decode(), text.decode())
        return 0

    cdef int forget(self) except -1:
        self.hub.forget_publisher(self.name, self)
        return 0

    # ---- a full queue: what waits is (note, entry) ----

    cdef uint64_t records_of(self, object what) except? 0:
        return origin_of(what[0]).records

    cdef int publish_parked(self, object what) except -1:
        cdef bytes note, entry
        note, entry = what
        cdef origin of = origin_of(note)
        return self._lay(&of, <const uint8_t *> <char *> entry, len(entry))

    cdef int refuse_parked(self, object what, bytes code, bytes text) except -1:
        cdef bytes note = what[0]
        return self.refuse_notes(<const uint8_t *> <char *> note, len(note), code, text)

    cdef int redirect_parked(self, object what) except -1:
        cdef bytes note, entry
        note, entry = what
        cdef uint32_t left = origin_of(note).records
        cdef const uint8_t *p = <const uint8_t *> <char *> entry
        cdef const uint8_t *end = p + len(entry)
        cdef size_t size
        if left > 1:
            p += SUB_BATCH_HEADER_BYTES
        token = [left, note]
        while p < end:
            size = 4 + bytes_load32(p)
            self.redirect(p, size, token)
            p += size
        return 0

    def answer_redirected(self, tokens, bint ok):
        """Each is [how many of these messages are not kept yet, their note]; None: they were refused."""
        cdef origin of
        for token in tokens:
            token[0] -= 1
            if token[1] is None:
                continue
            of = origin_of(token[1])
            if not ok:
                self._refuse(&of, ErrorCode.SERVER_ERROR, "The message could not be stored.")
                token[1] = None
            elif token[0] == 0:
                self._kept(&of, 0, False)  # it has no offset in this queue
        self._tell_progress()
