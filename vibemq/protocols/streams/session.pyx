# SPDX-License-Identifier: Apache-2.0
"""One streams connection: frames in, chunks and confirms out.

Publish and Credit are acted upon in place and make no Python object; every other
command is decoded by the codec and goes to ``commands.handle``, plain Python.  The life of
a message through here: ``_publish`` lays it into its stream's batch and remembers its id;
``Publisher.on_persisted`` (or ``on_durable``) writes the confirm; ``Subscription.on_news``
wakes its readers, and ``deliver`` sends them whole chunks straight from the log.

A Deliver is never queued: the log is the queue.  What the socket does not take is read
again when it does, so a slow consumer costs no memory.  Only how much of a frame is out
already (``Subscription.partial``) is remembered, and nothing else is sent before its end.
"""

import logging
import os

from libc.stdint cimport uint16_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from vibemq.net.connection cimport Connection
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    CHUNK_HEADER_BYTES, ERR_CORRUPT, ERR_END, ERR_FULL, ERR_NOT_CACHED, ERR_NOT_FOUND, ERR_TRUNCATED, OK,
    bytes_load16, bytes_load32, bytes_store16, bytes_store32, bytes_store64, chunk, commit, err, fault, reader,
)
from vibemq.storage.log cimport storage_error
from vibemq.protocols.streams.wire cimport (
    KEY_CREDIT, KEY_DELIVER, KEY_PUBLISH, KEY_PUBLISH_CONFIRM, KEY_PUBLISH_ERROR, PUBLISHING_ID_BYTES, entry_bytes,
    filter_bytes, publish_is_whole, sub_batch_is_valid,
)

from vibemq.errors import ConnectionClosed
from vibemq.protocols.streams import commands
from vibemq.protocols.streams.codec import MalformedFrame, encode_server_frame
from vibemq.protocols.streams.spec import Code, Key

logger = logging.getLogger(__name__)

cdef enum:
    FRAMES_PER_SEND = 256              # two pieces each: within the kernel's limit of 1,024
    FETCH_BYTES = 256 * 1024           # one read of the log: stays in the second-level cache until it is sent
    DELIVER_BYTES_PER_TURN = 1 << 20   # of one connection, so that one backlog does not hold up the others
    PREFIX_BYTES_MAX = 17              # size, key, version, subscription, committed chunk id (Deliver 2)
    HEADER_ROOM_BYTES = 72             # a prefix and a chunk's header, rounded up to 8
    READ_AHEAD_BYTES = 1 << 20         # what a helper thread brings into the page cache at once
    SCRATCH_BYTES_KEPT = 4 << 20       # a larger chunk's buffer is given back after use
    NOTHING = -1


# What all streams sessions of a worker use to gather one send; only valid within one call.
cdef struct frame_out:
    chunk header
    size_t bytes       # of the whole Deliver frame

cdef struct gather:
    uint8_t *data
    size_t size
    iovec pieces[1 + 2 * 256]
    frame_out frames[256]
    uint8_t headers[256][72]

cdef gather scratch
scratch.data = NULL
scratch.size = 0


cdef int scratch_reserve(size_t size) except -1:
    cdef uint8_t *grown
    if size > scratch.size:
        grown = <uint8_t *> realloc(scratch.data, size)
        if grown == NULL:
            raise MemoryError
        scratch.data, scratch.size = grown, size
    return 0


cdef void scratch_trim() noexcept:
    if scratch.size > SCRATCH_BYTES_KEPT:
        free(scratch.data)
        scratch.data, scratch.size = NULL, 0


cdef class Publisher(StreamUser):
    def __init__(self, StreamsSession session, int publisher_id, bytes reference):
        self.session, self.publisher_id, self.reference = session, publisher_id, reference
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
            if core.batch_reference_intern(self.stream.batch, self.reference, <uint32_t> len(self.reference),
                                           &self.reference_index) != OK:
                raise MemoryError
        return 0

    cdef int on_persisted(self, bint ok, uint64_t first_offset, uint64_t next_offset) except -1:
        cdef size_t count = self.id_count
        self.id_count = 0
        self.session.unconfirmed += count
        if not ok:
            self._refuse(self.ids, count, Code.INTERNAL_ERROR)
        elif self.stream.is_disk_durable:
            self.unsynced.append(((<char *> self.ids)[:count * PUBLISHING_ID_BYTES], first_offset, next_offset))
            self.session._throttle()
        else:
            self._confirm(self.ids, count)
        if self.id_capacity > 65536:  # a burst is over
            free(self.ids)
            self.ids, self.id_capacity = NULL, 0
        return 0

    cdef int on_durable(self, uint64_t durable) except -1:
        cdef list waiting = []
        cdef bytes ids
        for batch in self.unsynced:
            ids, first_offset, next_offset = batch
            if core.log_sync_failed(self.stream.log.raw, first_offset, next_offset):
                self._refuse(<const uint8_t *> <char *> ids, len(ids) // PUBLISHING_ID_BYTES, Code.INTERNAL_ERROR)
            elif next_offset <= durable:
                self._confirm(<const uint8_t *> <char *> ids, len(ids) // PUBLISHING_ID_BYTES)
            else:
                waiting.append(batch)
        self.unsynced = waiting
        self.session._throttle()
        return 1 if waiting else 0

    cdef int on_deleted(self) except -1:
        for ids, _, _ in self.unsynced:
            self._refuse(<const uint8_t *> <char *> ids, len(ids) // PUBLISHING_ID_BYTES, Code.STREAM_NOT_AVAILABLE)
        self.unsynced = []
        self.session.forget_publisher(self)
        commands.stream_gone(self.session, self.stream)
        return 0

    cdef int _confirm(self, const uint8_t *ids, size_t count) except -1:
        cdef uint8_t *out
        self.session.unconfirmed -= count
        self.confirmed += count
        if self.deleted or not count or self.session.connection.closed:
            return 0
        out = self.session.connection.outbox_reserve(13 + count * PUBLISHING_ID_BYTES)
        bytes_store32(out, <uint32_t> (9 + count * PUBLISHING_ID_BYTES))
        bytes_store16(out + 4, KEY_PUBLISH_CONFIRM)
        bytes_store16(out + 6, 1)
        out[8] = <uint8_t> self.publisher_id
        bytes_store32(out + 9, <uint32_t> count)
        memcpy(out + 13, ids, count * PUBLISHING_ID_BYTES)
        return 0

    cdef int _refuse(self, const uint8_t *ids, size_t count, int code) except -1:
        self.session.unconfirmed -= count
        self.errored += count
        if self.deleted or not count or self.session.connection.closed:
            return 0
        publish_error(self.session.connection, self.publisher_id, ids, count, code)
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


cdef class Subscription(StreamUser):
    def __init__(self, StreamsSession session, Stream stream, int subscription_id, int offset_type, long long value,
                 long long credit, dict properties):
        cdef fault f
        cdef err e
        self.session, self.subscription_id, self.properties = session, subscription_id, properties
        self.credit = credit
        stream.attach(self)
        stream.attach_reader(self)
        e = core.reader_open(&self.reader, stream.log.raw, <core.reader_from> offset_type, value, &f)
        if e != OK:
            stream.detach(self)
            raise storage_error(e, &f)
        self.attached = True

    def __dealloc__(self):
        if self.attached:
            core.reader_close(&self.reader)

    cdef bint wants(self) noexcept:
        """Is there something to do for it now?"""
        if not self.attached or self.cold:
            return False
        return self.partial or (self.credit > 0 and core.reader_has_more(&self.reader))

    cdef int on_news(self) except -1:
        if self.credit > 0:
            self.session._want(self)
        return 0

    cdef int on_deleted(self) except -1:
        self.session.forget_subscription(self)
        commands.stream_gone(self.session, self.stream)
        return 0

    cdef int close_reader(self) except -1:
        if self.attached:
            self.attached = False
            core.reader_close(&self.reader)
        return 0


cdef class StreamsSession(Session):
    def __init__(self, Connection connection, door):
        super().__init__(connection)
        self.door = door
        self.state = commands.FIRST_STATE
        self.frame_max = door.config.initial_frame_max_bytes
        self.virtual_host = self.user = ""
        self.peer_properties = {}
        self.publishers, self.subscriptions, self.ready = {}, {}, []

    cdef int open(self) except -1:
        commands.step_begins(self)
        return 0

    # ---- receive ----

    cdef Py_ssize_t receive(self, const uint8_t *data, size_t size) except -1:
        cdef size_t at = 0
        cdef uint32_t length
        while size - at >= 4:
            length = bytes_load32(data + at)
            if self.frame_max and length > self.frame_max:
                commands.frame_too_large(self, length, (<bytes> (<char *> data)[at:min(size, at + 8)]))
                return size
            if length < 4:
                commands.malformed(self, MalformedFrame("frame size", "4 bytes or more", length))
                return size
            if size - at - 4 < length:
                self.wanted = <size_t> length + 4
                break
            self._frame(data + at + 4, length)
            at += <size_t> length + 4
            if self.connection.closing or self.connection.closed:
                return size
            if self.busy or self.throttled:
                break
        return at

    cdef int _frame(self, const uint8_t *p, size_t size) except -1:
        cdef int key = bytes_load16(p)
        cdef int version = bytes_load16(p + 2)
        if key == KEY_PUBLISH and self.state == "open" and 1 <= version <= 2:
            return self._publish(p + 4, p + size, version)
        if key == KEY_CREDIT and self.state == "open" and version == 1:
            return self._credit(p + 4, p + size)
        commands.handle(self, key, version, (<char *> p)[4:size])
        return 0

    cdef int _publish(self, const uint8_t *p, const uint8_t *end, int version) except -1:
        cdef Publisher publisher = self.publisher_cached
        cdef Stream stream
        cdef uint32_t count, left, records
        cdef Py_ssize_t size
        cdef const uint8_t *entry
        cdef err e
        if end - p < 5 or not publish_is_whole(p + 5, end, bytes_load32(p + 1), version):
            commands.malformed(self, MalformedFrame("Publish", "a count of whole entries that fill the frame", "other bytes"))
            return 0
        count = bytes_load32(p + 1)
        if publisher is None or publisher.publisher_id != p[0]:
            publisher = self.publishers.get(p[0])
            if publisher is None:
                return self._refuse_from(p[0], Code.PUBLISHER_DOES_NOT_EXIST, p + 5, end, version)
            self.publisher_cached = publisher
        stream = publisher.stream
        publisher.reserve(count)
        publisher.published += count
        p += 5
        left = count
        while left:
            entry = p + PUBLISHING_ID_BYTES
            if version == 2:
                entry += filter_bytes(entry, end)
            size = entry_bytes(entry, end)
            records = 1
            if entry[0] & 0x80:
                if not sub_batch_is_valid(entry, self.door.sub_batch_uncompressed_max):
                    # This entry and all that follow: no gap may open in the ids that are stored.
                    publisher.errored += left
                    return self._refuse_from(publisher.publisher_id, Code.PRECONDITION_FAILED, p, end, version)
                records = bytes_load16(entry + 1)
            if publisher.id_count == 0:
                publisher.begin()
            if publisher.reference:
                e = core.batch_add_tracked(stream.batch, entry, <uint32_t> size, records, publisher.reference_index,
                                           core.bytes_load64(p))
            else:
                e = core.batch_add(stream.batch, entry, <uint32_t> size, records)
            if e == ERR_FULL:
                stream.persist()
                publisher.reserve(left)
                continue
            if e != OK:
                publisher.errored += left
                return self._refuse_from(publisher.publisher_id, Code.INTERNAL_ERROR, p, end, version)
            memcpy(publisher.ids + publisher.id_count * PUBLISHING_ID_BYTES, p, PUBLISHING_ID_BYTES)
            publisher.id_count += 1
            p = entry + size
            left -= 1
        return 0

    cdef int _refuse_from(self, int publisher_id, int code, const uint8_t *p, const uint8_t *end,
                          int version) except -1:
        """PublishError for every id from p to the end of a frame that is known to be whole."""
        cdef const uint8_t *at = p
        cdef size_t count = 0
        cdef uint8_t *ids
        while at < end:
            at += PUBLISHING_ID_BYTES
            if version == 2:
                at += filter_bytes(at, end)
            at += entry_bytes(at, end)
            count += 1
        ids = <uint8_t *> malloc(count * PUBLISHING_ID_BYTES + 1)
        if ids == NULL:
            raise MemoryError
        at, count = p, 0
        while at < end:
            memcpy(ids + count * PUBLISHING_ID_BYTES, at, PUBLISHING_ID_BYTES)
            at += PUBLISHING_ID_BYTES
            if version == 2:
                at += filter_bytes(at, end)
            at += entry_bytes(at, end)
            count += 1
        try:
            publish_error(self.connection, publisher_id, ids, count, code)
        finally:
            free(ids)
        return 0

    cdef int _credit(self, const uint8_t *p, const uint8_t *end) except -1:
        cdef Subscription subscription
        if end - p != 3:
            commands.malformed(self, MalformedFrame("Credit", "3 bytes", end - p))
            return 0
        found = self.subscriptions.get(p[0])
        if found is None:
            self.connection.write_bytes(encode_server_frame(
                Key.CREDIT, code=Code.SUBSCRIPTION_ID_DOES_NOT_EXIST, subscription_id=p[0]))
            return 0
        subscription = <Subscription> found
        subscription.credit += <short> bytes_load16(p + 1)
        if subscription.credit > 0:
            self._want(subscription)
        return 0

    cdef int _throttle(self) except -1:
        """Stop reading while too much waits for a sync; go on at three quarters of the limit."""
        if not self.throttled and self.unconfirmed >= <size_t> self.door.unconfirmed_max:
            self.throttled = True
            self.connection.pause()
        elif self.throttled and self.unconfirmed * 4 <= <size_t> self.door.unconfirmed_max * 3:
            self.throttled = False
            self.connection.resume()
        return 0

    # ---- what commands do to this session ----

    def add_publisher(self, Stream stream, int publisher_id, bytes reference):
        publisher = Publisher(self, publisher_id, reference)
        stream.attach(publisher)
        self.publishers[publisher_id] = publisher

    def remove_publisher(self, int publisher_id) -> bool:
        cdef Publisher publisher = self.publishers.get(publisher_id)
        if publisher is None:
            return False
        self.forget_publisher(publisher)
        publisher.deleted = True
        publisher.stream.detach(publisher)
        return True

    def forget_publisher(self, Publisher publisher):
        self.publishers.pop(publisher.publisher_id, None)
        if self.publisher_cached is publisher:
            self.publisher_cached = None

    def add_subscription(self, Stream stream, int subscription_id, int offset_type, long long value, long long credit,
                         dict properties):
        """Attach a reader; its first chunk leaves after the reply that the caller writes."""
        subscription = Subscription(self, stream, subscription_id, offset_type, value, credit, properties)
        self.subscriptions[subscription_id] = subscription
        self._want(subscription)

    def remove_subscription(self, int subscription_id) -> bool:
        cdef Subscription subscription = self.subscriptions.get(subscription_id)
        if subscription is None:
            return False
        self.forget_subscription(subscription)
        subscription.stream.detach(subscription)
        return True

    def forget_subscription(self, Subscription subscription):
        if subscription.partial and not self.connection.closed:
            self._finish_partial(subscription)
        self.subscriptions.pop(subscription.subscription_id, None)
        if subscription.queued:
            subscription.queued = False
            self.ready.remove(subscription)
        subscription.close_reader()

    def uses(self, Stream stream) -> bool:
        """Does this connection publish to or read from the stream?"""
        for user in (*self.publishers.values(), *self.subscriptions.values()):
            if (<StreamUser> user).stream is stream:
                return True
        return False

    def publishes_as(self, Stream stream, bytes reference) -> bool:
        for publisher in self.publishers.values():
            if (<Publisher> publisher).stream is stream and (<Publisher> publisher).reference == reference:
                return True
        return False

    def resume(self):
        """A helper thread has finished this session's command."""
        self.busy = False
        self.connection.resume()

    def set_busy(self):
        self.busy = True

    def write(self, bytes frame):
        """Queue a whole frame."""
        self.connection.write_bytes(frame)

    def finish(self):
        """Send what is queued, then close the connection."""
        self.connection.close_after_flush()

    @property
    def peer(self) -> str:
        return self.connection.peer

    @property
    def is_loopback(self) -> bool:
        return self.connection.is_loopback

    @property
    def local_host(self) -> str:
        return self.connection.local_host

    @property
    def local_port(self) -> int:
        return self.connection.local_port

    # ---- deliver ----

    cdef int _want(self, Subscription subscription) except -1:
        if not subscription.queued:
            subscription.queued = True
            self.ready.append(subscription)
        self.connection.want_turn()
        return 0

    cdef bint deliver(self) except -1:
        """Send the outbox and what consumers have credit for; True when there is more to send at once."""
        cdef Subscription subscription
        cdef Py_ssize_t budget = DELIVER_BYTES_PER_TURN
        cdef Py_ssize_t sent
        while budget > 0 and not self.connection.blocked:
            subscription = self.partial
            if subscription is None:
                if not self.ready:
                    self.connection.flush()
                    return False
                subscription = <Subscription> self.ready[0]
                if not subscription.wants():
                    self._unqueue(subscription)
                    continue
            sent = self._deliver_from(subscription)
            if sent == NOTHING:
                if subscription.queued:
                    self._unqueue(subscription)
                if subscription.partial:
                    return False
                continue
            budget -= sent
            if self.partial is None and len(self.ready) > 1 and self.ready[0] is subscription:
                self.ready.append(self.ready.pop(0))  # every subscription in its turn
        if self.connection.blocked:
            return False  # the poller says when to go on
        if self.partial is None:
            self.connection.flush()
        return bool(self.ready) and not self.connection.blocked

    def _unqueue(self, Subscription subscription):
        subscription.queued = False
        self.ready.remove(subscription)

    cdef Py_ssize_t _deliver_from(self, Subscription subscription) except -2:
        """One gathering send of whole chunks; bytes sent, or NOTHING when there is nothing to send now."""
        cdef reader *at = &subscription.reader
        cdef reader walk
        cdef fault f
        cdef err e = OK
        cdef uint64_t got = 0, offset = 0, committed_chunk = 0
        cdef size_t want = FETCH_BYTES
        cdef chunk header
        cdef commit committed
        cdef size_t prefix = PREFIX_BYTES_MAX if self.deliver_v2 else 9
        cdef size_t skip = subscription.partial
        cdef size_t head = prefix + CHUNK_HEADER_BYTES
        cdef uint8_t *room
        cdef int frames = 0, pieces = 0, i
        cdef Py_ssize_t sent, left, rest
        if self.deliver_v2:
            if skip:
                committed_chunk = subscription.partial_committed
            else:
                core.control_committed(subscription.stream.log.control, &committed)
                committed_chunk = committed.last_chunk
        while True:
            scratch_reserve(want)
            with nogil:
                e = core.reader_fetch(at, scratch.data, want, True, &got, &f)
                if e == OK:
                    e = core.reader_chunk(at, scratch.data, got, True, &header, &f)
            if e == ERR_TRUNCATED and core.chunk_bytes(&header) > want:
                want = core.chunk_bytes(&header)
                continue
            if e != OK:
                return self._read_failed(subscription, e, &f)
            break
        walk = at[0]
        while True:
            room = scratch.headers[frames]
            bytes_store32(room, <uint32_t> (head + header.data_bytes - 4))
            bytes_store16(room + 4, KEY_DELIVER)
            bytes_store16(room + 6, 2 if self.deliver_v2 else 1)
            room[8] = <uint8_t> subscription.subscription_id
            if self.deliver_v2:
                bytes_store64(room + 9, committed_chunk)
            core.chunk_header_to_wire(scratch.data + offset, room + prefix)
            if skip < head:
                pieces += 1
                scratch.pieces[pieces].iov_base = room + skip
                scratch.pieces[pieces].iov_len = head - skip
                skip = 0
            else:
                skip -= head
            pieces += 1
            scratch.pieces[pieces].iov_base = scratch.data + offset + CHUNK_HEADER_BYTES + header.bloom_bytes + skip
            scratch.pieces[pieces].iov_len = header.data_bytes - skip
            skip = 0
            scratch.frames[frames].header = header
            scratch.frames[frames].bytes = head + header.data_bytes
            frames += 1
            offset += core.chunk_bytes(&header)
            core.reader_advance(&walk, &header)
            if offset >= got or frames == FRAMES_PER_SEND or frames >= subscription.credit:
                break
            if core.reader_chunk(&walk, scratch.data + offset, got - offset, True, &header, &f) != OK:
                break  # not whole in the buffer, or damaged: the next call meets it first
        sent = self.connection.send(scratch.pieces, pieces, subscription.partial == 0)
        left = sent if sent > 0 else 0
        for i in range(frames):
            rest = <Py_ssize_t> (scratch.frames[i].bytes - subscription.partial)
            if left < rest:
                subscription.partial += left
                break
            left -= rest
            subscription.partial = 0
            core.reader_advance(at, &scratch.frames[i].header)
            subscription.credit -= 1
            subscription.delivered_chunks += 1
            subscription.delivered_records += scratch.frames[i].header.records
        subscription.partial_committed = committed_chunk
        self.partial = subscription if subscription.partial else None
        scratch_trim()
        return sent if sent > 0 else 0

    cdef Py_ssize_t _read_failed(self, Subscription subscription, err error, const fault *f) except -2:
        """There is no chunk to send: find out what to do.  0 to try again, NOTHING to wait."""
        cdef fault later
        cdef err e
        if error == ERR_END:
            return NOTHING
        if error == ERR_NOT_CACHED:
            return self._read_ahead(subscription)
        problem = storage_error(error, f)
        if subscription.partial:
            raise ConnectionClosed(f"{self.connection.peer}: a chunk that is half sent cannot be read again: {problem}")
        if error == ERR_NOT_FOUND:  # retention was quicker than this reader
            subscription.close_reader()
            e = core.reader_open(&subscription.reader, subscription.stream.log.raw, core.READER_FIRST, 0, &later)
            if e == OK:
                subscription.attached = True
                return 0
            problem = storage_error(e, &later)
        elif error == ERR_CORRUPT:
            logger.error("stream %s: a damaged chunk is passed over: %s", subscription.stream.name, problem)
            e = core.reader_skip_damaged(&subscription.reader, &later)
            if e == OK:
                return 0
            if e == ERR_END:
                return NOTHING
            problem = storage_error(e, &later)
        logger.error("stream %s: cannot be read, its consumer on %s is told: %s", subscription.stream.name,
                     self.connection.peer, problem)
        self.remove_subscription(subscription.subscription_id)
        commands.stream_unavailable(self, subscription.stream.name)
        return NOTHING

    def _read_ahead(self, Subscription subscription):
        """Let a helper thread bring the reader's next bytes into the page cache."""
        cdef int fd = os.dup(subscription.reader.fd)
        cdef uint64_t position = subscription.reader.position
        subscription.cold = True

        def read():
            try:
                os.pread(fd, READ_AHEAD_BYTES, position)
            finally:
                os.close(fd)

        def done(result, error):
            subscription.cold = False
            if error is not None:
                logger.error("stream %s: %s", (<Subscription> subscription).stream.name, error)
            if subscription.attached and not self.connection.closed:
                self._want(subscription)

        self.door.helpers.submit(read, done)
        return NOTHING

    cdef int _finish_partial(self, Subscription subscription) except -1:
        """The subscription ends while a frame is half out: its rest goes before everything queued."""
        cdef fault f
        cdef err e
        cdef uint64_t got = 0
        cdef chunk header
        cdef size_t want = FETCH_BYTES
        cdef size_t prefix = PREFIX_BYTES_MAX if self.deliver_v2 else 9
        cdef uint8_t *room = scratch.headers[0]
        cdef size_t out = subscription.partial
        cdef const uint8_t *data
        while True:
            scratch_reserve(want)
            e = core.reader_fetch(&subscription.reader, scratch.data, want, False, &got, &f)
            if e == OK:
                e = core.reader_chunk(&subscription.reader, scratch.data, got, True, &header, &f)
            if e == ERR_TRUNCATED and core.chunk_bytes(&header) > want:
                want = core.chunk_bytes(&header)
                continue
            break
        self.partial = None
        subscription.partial = 0
        if e != OK:
            raise ConnectionClosed(f"{self.connection.peer}: a chunk that is half sent cannot be read again: "
                                   f"{storage_error(e, &f)}")
        data = scratch.data + CHUNK_HEADER_BYTES + header.bloom_bytes
        if out >= prefix + CHUNK_HEADER_BYTES:
            out -= prefix + CHUNK_HEADER_BYTES
            self.connection.prepend(data + out, header.data_bytes - out)
            return 0
        bytes_store32(room, <uint32_t> (prefix + CHUNK_HEADER_BYTES + header.data_bytes - 4))
        bytes_store16(room + 4, KEY_DELIVER)
        bytes_store16(room + 6, 2 if self.deliver_v2 else 1)
        room[8] = <uint8_t> subscription.subscription_id
        if self.deliver_v2:
            bytes_store64(room + 9, subscription.partial_committed)
        core.chunk_header_to_wire(scratch.data, room + prefix)
        self.connection.prepend(data, header.data_bytes)
        self.connection.prepend(room + out, prefix + CHUNK_HEADER_BYTES - out)
        return 0

    # ---- time ----

    cdef int tick(self, int64_t now_ms) except -1:
        if self.deadline_ms and now_ms >= self.deadline_ms:
            self.deadline_ms = 0
            self.at_deadline(self)
        elif self.heartbeat_s and self.state == "open":
            self._beat(now_ms)
        return 0

    def start_heartbeats(self, int64_t now_ms):
        self.beat_checked_ms = self.silence_checked_ms = now_ms
        self.beat_bytes_out = <uint64_t> -1  # the first check always sends one
        self.silence_bytes_in = self.connection.bytes_in
        self.silent_checks = 0

    cdef int _beat(self, int64_t now_ms) except -1:
        """Heartbeats both ways: rabbitmq-streams.md section 6.4."""
        if now_ms - self.beat_checked_ms >= self.heartbeat_s * 500:
            if self.connection.bytes_out == self.beat_bytes_out or self.beat_bytes_out == <uint64_t> -1:
                if self.connection.outbox_head == self.connection.outbox_size and self.partial is None:
                    self.connection.write_bytes(commands.HEARTBEAT)
            self.beat_bytes_out = self.connection.bytes_out
            self.beat_checked_ms = now_ms
        if now_ms - self.silence_checked_ms >= self.heartbeat_s * 1000:
            if self.connection.bytes_in != self.silence_bytes_in or self.throttled or self.busy:
                self.silent_checks = 0
            else:
                self.silent_checks += 1
                if self.silent_checks >= 2:
                    raise ConnectionClosed(f"{self.connection.peer}: silent for two heartbeats of {self.heartbeat_s} s")
            self.silence_bytes_in = self.connection.bytes_in
            self.silence_checked_ms = now_ms
        return 0

    # ---- the end ----

    cdef int shutdown(self) except -1:
        """Say goodbye once nothing of this connection waits for a sync any more; called again until then."""
        if not self.shutting_down and not self.unconfirmed:
            self.shutting_down = True
            commands.say_goodbye(self)
        return 0

    cdef int close(self) except -1:
        for publisher_id in list(self.publishers):
            self.remove_publisher(publisher_id)
        for subscription_id in list(self.subscriptions):
            self.remove_subscription(subscription_id)
        return 0
