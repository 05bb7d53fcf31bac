# SPDX-License-Identifier: Apache-2.0
"""One hub connection's way into one queue or stream: messages into its log, completions back when they are kept.

A Publish becomes an AMQP 1.0 message in its stream's batch (bodies.pyx), and a note beside it says whom to answer.
When the batch is persisted or, with durability `disk`, when a sync covers it, each note becomes a Completion
``{id, offset}``; if that fails, an error (broker/publisher.pyx).  The offset of a message is the first one of its batch
plus its place in it, unless the log has dropped somebody's duplicates from the same batch: then nobody knows it, and
the result has none.

A PublishBatch of several messages is one uncompressed sub-batch of the log: one entry, which is there as a whole or not
at all.  Items of an upload have no answers; ``Uploaded`` counts what became of them.
"""

from itertools import count as numbers

from libc.string cimport memcpy
from vibemq.broker.publisher cimport ROOM, ROOM_NONE
from vibemq.broker.queue cimport Queue
from vibemq.broker.stream cimport Stream
from vibemq.protocols.signalr.bodies cimport entry_write
from vibemq.protocols.signalr.codec cimport ENCODING_JSON, span_of
from vibemq.protocols.signalr.framing cimport decimal_put, json_text_put, mp_text_put, mp_unsigned_put, put
from vibemq.storage cimport core
from vibemq.storage.core cimport OK, bytes_load32, bytes_store16, bytes_store32

from vibemq.protocols.signalr.errors import HubError
from vibemq.protocols.signalr.options import message_options
from vibemq.protocols.signalr.spec import ErrorCode

cdef enum:
    SUB_BATCH_HEADER_BYTES = 11
    MESSAGES_PER_BATCH_MAX = 10_000    # each is more than a microsecond of the loop's time
    BATCH_BYTES_MAX = 8 << 20          # of one entry, which lies in one chunk and is read as one
    DELIVERY_ADDS_BYTES = 1024         # names, numbers, the queue's name and the invocation's id
    GIVEN_ID_BYTES_MAX = 1024          # of a message, as in spec
    RESULT_BYTES_MAX = 128 + 6 * GIVEN_ID_BYTES_MAX  # of a completion's result; each byte of an id may become an escape


class Uploaded:
    """What became of the messages of one upload; `call` is answered when its end has come and all are kept.

    Its number is what publishers know it by.  The first message that is refused ends it with that error."""

    known: dict[int, Uploaded] = {}
    _numbers = numbers(1)

    def __init__(self, call):
        self.call, self.number = call, next(self._numbers)
        self.given = self.kept = 0
        self.last_offset = None
        self.is_over = False
        self.known[self.number] = self

    def keep(self, count, last_offset):
        self.kept += count
        if last_offset is not None:
            self.last_offset = last_offset

    def progress(self):
        """Once for each batch of which something was kept."""
        if self.is_over and self.kept == self.given:
            self.forget()
            self.call.complete(self._result("count"))
        elif self.call.is_stream:
            self.call.item(self._result("accepted"))

    def _result(self, name):
        result = {name: self.kept}
        if self.last_offset is not None:
            result["lastOffset"] = self.last_offset
        return result

    def refuse(self, code, text):
        self.forget()
        self.call.refuse(code, text)

    def end(self):
        """There are no more items."""
        self.is_over = True
        if self.kept == self.given:
            self.progress()

    def forget(self):
        """Nobody waits for it any more: it was answered, or its connection is over."""
        self.known.pop(self.number, None)


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


cdef class HubPublisher(QueuePublisher):
    def __init__(self, HubConnection hub, Stream stream, Queue queue, bytes name):
        """`queue`: None where the stream is none."""
        self.hub, self.client, self.progressed = hub, hub.client, set()
        self.record_max = hub.door.config.message_max_bytes
        self.begin(stream, queue, name)

    # ---- in ----

    cdef int publish(self, const uint8_t *id, uint32_t id_size, bint has_id, span body, int encoding, bint has_escapes,
                     object options, int64_t upload) except -1:
        cdef uint8_t *entry = NULL
        cdef size_t size
        cdef bytes message_id = None
        try:
            if options is not None:
                options = self._read(options)
                message_id = None if options is None else options.id
            size = self._entry(body, encoding, has_escapes, options, &entry)
        except HubError as problem:
            return self._refuse((<char *> id)[:id_size] if has_id else None, upload, 0, problem.code, problem.text)
        if upload:
            uploaded = Uploaded.known.get(upload)
            if uploaded is None:
                return 0  # an item before it was refused, and its peer has heard so
            uploaded.given += 1
        if self.queue is None or not self.queue.max_messages and not self.has_parked:
            return self._lay(id, id_size, has_id, upload, entry, size, 1, message_id)
        return self._take((<char *> id)[:id_size] if has_id else None, upload, entry, size, 1, message_id)

    def publish_bytes(self, bytes id, bytes body, options, int64_t upload):
        """As ``publish``, for Python.  `id`: None when nobody waits for an answer."""
        cdef span raw = span_of(<char *> body, len(body))
        if id is None:
            self.publish(NULL, 0, False, raw, self.hub.encoding, True, options, upload)
        else:
            self.publish(<const uint8_t *> <char *> id, <uint32_t> len(id), True, raw, self.hub.encoding, True, options,
                         upload)
        self.hub.has_published = True

    def publish_batch(self, id, list messages, int encoding, int64_t upload=0):
        """[(raw body, options or None)], of which all are kept or none.  `id`: None when nobody waits for an answer."""
        cdef bytes body, pieces, head
        cdef uint8_t *entry = NULL
        cdef size_t size
        cdef list parts = []
        cdef size_t total = 0
        try:
            if not 0 < len(messages) <= MESSAGES_PER_BATCH_MAX:
                raise HubError(ErrorCode.INVALID_ARGUMENT,
                               f"A batch has 1 to {MESSAGES_PER_BATCH_MAX} messages, had {len(messages)}.")
            for body, options in messages:
                size = self._entry(span_of(<char *> body, len(body)), encoding, True, self._read(options), &entry)
                total += size
                if total > BATCH_BYTES_MAX:
                    raise HubError(ErrorCode.LIMIT_EXCEEDED,
                                   f"A batch has at most {BATCH_BYTES_MAX} bytes; send it in parts.")
                parts.append((<char *> entry)[:size])
        except HubError as problem:
            return self._refuse(id, upload, <uint32_t> max(len(messages), 2), problem.code, problem.text)
        if upload:
            uploaded = Uploaded.known.get(upload)
            if uploaded is None:
                return 0
            uploaded.given += len(parts)
        pieces = b"".join(parts)
        if len(parts) > 1:
            made = bytearray(SUB_BATCH_HEADER_BYTES)
            entry = <uint8_t *> <char *> made
            entry[0] = 0x80  # and no compression
            bytes_store16(entry + 1, <unsigned int> len(parts))
            bytes_store32(entry + 3, <uint32_t> total)
            bytes_store32(entry + 7, <uint32_t> total)
            pieces = bytes(made) + pieces
        self._take(id, upload, <const uint8_t *> <char *> pieces, len(pieces), <uint32_t> len(parts), None)

    cdef size_t _entry(self, span body, int encoding, bint has_escapes, object options, uint8_t **out) except 0:
        cdef size_t size = entry_write(body, encoding, has_escapes, options, out)
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

    cdef int _take(self, bytes id, int64_t upload, const uint8_t *entry, size_t size, uint32_t records,
                   bytes message_id) except -1:
        """Messages for a queue that may be full."""
        cdef int room = self.room_for(records)
        if room == ROOM:
            return self._lay(<const uint8_t *> <char *> id if id is not None else NULL,
                             <uint32_t> len(id) if id is not None else 0, id is not None, upload, entry, size, records,
                             message_id)
        if records > self.queue.max_messages > 0:
            if room != ROOM_NONE:
                self.count_refused(records)
            return self._refuse(id, upload, records, ErrorCode.QUEUE_FULL,
                                f"The queue holds {self.queue.max_messages} messages, so the batch never fits.")
        return self.put_off((id, upload, (<const char *> entry)[:size], records, message_id), size, room)

    cdef int _lay(self, const uint8_t *id, uint32_t id_size, bint has_id, int64_t upload, const uint8_t *entry,
                  size_t size, uint32_t records, bytes message_id) except -1:
        cdef note_head head
        cdef uint8_t *p
        if self.add(entry, <uint32_t> size, records, None, 0) != OK:
            return self._refuse((<char *> id)[:id_size] if has_id else None, upload, records, ErrorCode.SERVER_ERROR,
                                "Out of memory.")
        if not has_id and not upload:
            return 0
        head.upload, head.records = upload, records
        head.place = <uint32_t> (self.stream.batch.records - records)
        head.has_id, head.id_size = has_id, id_size if has_id else 0
        head.message_id_size = <uint32_t> len(message_id) if message_id is not None else 0
        p = self.note(sizeof(head) + head.id_size + head.message_id_size)
        p = put(p, &head, sizeof(head))
        p = put(p, id, head.id_size)
        if head.message_id_size:
            put(p, <char *> message_id, head.message_id_size)
        return 0

    cdef int _refuse(self, bytes id, int64_t upload, uint32_t records, object code, str text) except -1:
        if upload:
            uploaded = Uploaded.known.get(upload)
            if uploaded is not None:
                uploaded.refuse(code, text)
        elif id is not None:
            self.hub.refuse(id, "PublishBatch" if records > 1 else "Publish", str(code), text)
        return 0

    # ---- what became of it ----

    cdef int confirm(self, const uint8_t *notes, size_t size, uint64_t first_offset, bint offsets_known) except -1:
        cdef note_head head
        cdef const uint8_t *p = notes
        cdef const uint8_t *end = notes + size
        cdef const uint8_t *id
        if self.hub.closed:
            return 0
        while p < end:
            memcpy(&head, p, sizeof(head))
            id = p + sizeof(head)
            p = id + head.id_size + head.message_id_size
            if head.upload:
                self._keep_upload(head.upload, head.records,
                                  first_offset + head.place + head.records - 1 if offsets_known else None)
            else:
                self._complete(id, &head, first_offset + head.place, offsets_known)
        if self.progressed:
            progressed, self.progressed = self.progressed, set()
            for uploaded in progressed:
                uploaded.progress()
        return 0

    def _keep_upload(self, int64_t upload, count, last_offset):
        uploaded = Uploaded.known.get(upload)
        if uploaded is not None:
            uploaded.keep(count, last_offset)
            self.progressed.add(uploaded)

    cdef int _complete(self, const uint8_t *id, const note_head *head, uint64_t offset, bint offset_known) except -1:
        """A message without an id of its own is known by its offset, here as in deliveries.

        The result is not made in the worker's scratch memory: the message that made the batch full may lie there."""
        cdef span message_id = span_of(id + head.id_size, head.message_id_size)
        cdef uint8_t number[24]
        cdef uint8_t out[RESULT_BYTES_MAX]
        cdef uint8_t *p = out
        if head.records == 1 and not message_id.size and offset_known:
            message_id = span_of(number, decimal_put(number, offset) - number)
        if self.hub.encoding == ENCODING_JSON:
            if head.records > 1:
                p = decimal_put(put(p, b'{"count":', 9), head.records)
                if offset_known:
                    p = decimal_put(put(p, b',"firstOffset":', 15), offset)
                    p = decimal_put(put(p, b',"lastOffset":', 14), offset + head.records - 1)
            else:
                p = put(p, b'{', 1)
                if message_id.size:
                    p = json_text_put(put(p, b'"id":', 5), message_id)
                if offset_known:
                    p = decimal_put(put(p, b',"offset":', 10), offset)
            p = put(p, b'}', 1)
        elif head.records > 1:
            p[0] = 0x83 if offset_known else 0x81
            p = mp_unsigned_put(put(p + 1, b'\xa5count', 6), head.records)
            if offset_known:
                p = mp_unsigned_put(put(p, b'\xabfirstOffset', 12), offset)
                p = mp_unsigned_put(put(p, b'\xaalastOffset', 11), offset + head.records - 1)
        else:
            p[0] = <uint8_t> (0x80 + (message_id.size > 0) + offset_known)
            p += 1
            if message_id.size:
                p = mp_text_put(put(p, b'\xa2id', 3), message_id)
            if offset_known:
                p = mp_unsigned_put(put(p, b'\xa6offset', 7), offset)
        return self.hub.confirm(span_of(id, head.id_size), span_of(out, p - out))

    cdef int refuse_notes(self, const uint8_t *notes, size_t size, bytes code, bytes text) except -1:
        cdef note_head head
        cdef const uint8_t *p = notes
        cdef const uint8_t *end = notes + size
        while p < end:
            memcpy(&head, p, sizeof(head))
            p += sizeof(head)
            self._refuse((<const char *> p)[:head.id_size] if head.has_id else None, head.upload, head.records,
                         code.decode(), text.decode())
            p += head.id_size + head.message_id_size
        return 0

    cdef int forget(self) except -1:
        self.hub.forget_publisher(self.name, self)
        return 0

    # ---- a full queue ----

    cdef uint64_t records_of(self, object what) except? 0:
        return (<tuple> what)[3]

    cdef int publish_parked(self, object what) except -1:
        cdef bytes id, entry, message_id
        id, upload, entry, records, message_id = what
        return self._lay(<const uint8_t *> <char *> id if id is not None else NULL,
                         <uint32_t> len(id) if id is not None else 0, id is not None, upload,
                         <const uint8_t *> <char *> entry, len(entry), records, message_id)

    cdef int refuse_parked(self, object what, bytes code, bytes text) except -1:
        id, upload, _, records, _ = what
        return self._refuse(id, upload, records, code.decode(), text.decode())

    cdef int redirect_parked(self, object what) except -1:
        cdef bytes entry = what[2]
        cdef const uint8_t *p = <const uint8_t *> <char *> entry
        cdef const uint8_t *end = p + len(entry)
        cdef size_t size
        if what[3] > 1:
            p += SUB_BATCH_HEADER_BYTES
        token = [what[3], what]
        while p < end:
            size = 4 + bytes_load32(p)
            self.redirect(p, size, token)
            p += size
        return 0

    def answer_redirected(self, tokens, bint ok):
        cdef note_head head
        cdef bytes id
        for token in tokens:
            token[0] -= 1
            id, upload, _, records, message_id = token[1]
            if not ok:
                self._refuse(id, upload, records, ErrorCode.SERVER_ERROR, "The message could not be stored.")
                token[1] = (None, 0, None, 0, None)
            elif token[0] == 0 and upload:
                self._keep_upload(upload, records, None)
            elif token[0] == 0 and id is not None:
                # It has no offset in this queue.
                head.records, head.id_size = records, <uint32_t> len(id)
                head.message_id_size = <uint32_t> len(message_id) if message_id is not None else 0
                id += message_id or b""
                self._complete(<const uint8_t *> <char *> id, &head, 0, False)
        for uploaded in self.progressed:
            uploaded.progress()
        self.progressed.clear()
