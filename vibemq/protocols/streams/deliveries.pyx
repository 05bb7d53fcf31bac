# SPDX-License-Identifier: Apache-2.0
"""What one connection is subscribed to, and the sending of it.

A Deliver is never queued: the log is the queue.  What the socket does not take is read
again when it does, so a slow consumer costs no memory.  Only which frame is out in part, and
how much of it (``Subscription.frame_sent``), is remembered, and nothing else is sent before its end.
Specification: the RabbitMQ Streams protocol.
"""

import logging
import time

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from vibemq.grow cimport grow
from vibemq.net.connection cimport iovec
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    CHUNK_HEADER_BYTES, ERR_CORRUPT, ERR_END, ERR_NOT_CACHED, ERR_NOT_FOUND, ERR_TRUNCATED, OK,
    bytes_store16, bytes_store32, bytes_store64, chunk, commit, err, fault, filter_t, reader,
)
from vibemq.storage.cold cimport ahead, telling
from vibemq.storage.log cimport Log, storage_error
from vibemq.storage.meters cimport METER_DELIVER_STREAM, Meters
from vibemq.protocols.streams.wire cimport KEY_DELIVER

from vibemq.errors import ConnectionClosed, LimitExceeded, StorageError
from vibemq.protocols.streams.endings import stream_gone, stream_unavailable
from vibemq.protocols.streams.subscribing import ask_consumer, consumer_left
from vibemq.storage.cold import ASK_AGAIN_S
from vibemq.once_a_minute import OnceAMinute

logger = logging.getLogger(__name__)
unreadable = OnceAMinute(logger, logging.ERROR)

cdef enum:
    FRAMES_PER_SEND = 256              # two pieces each: within the kernel's limit of 1,024
    FETCH_BYTES = 256 * 1024           # one read of the log: stays in the second-level cache until it is sent
    FETCH_BYTES_MIN = 16 * 1024        # while nothing is known of the size of chunks
    DELIVER_BYTES_PER_TURN = 1 << 20   # of one connection, so that one backlog does not hold up the others
    PREFIX_BYTES = 9                   # size, key, version, subscription
    COMMITTED_BYTES = 8                # the committed chunk id behind them, in version 2
    HEAD_BYTES_MAX = 72                # these two and CHUNK_HEADER_BYTES, rounded up to 8
    READ_AHEAD_BYTES = 1 << 20         # what a helper thread brings into the page cache at once
    SKIPS_PER_TURN = 512               # chunks that a filter passes over: about a microsecond each
    SKIP_BYTES = DELIVER_BYTES_PER_TURN // SKIPS_PER_TURN  # what each of them takes from the turn's share
    SKIPS_AHEAD = 8192                 # the same in a helper thread, where their headers are not in memory
    SCRATCH_BYTES_KEPT = 4 << 20       # a larger chunk's buffer is given back after use
    NOTHING = -1
    OFFSET_NONE = 0                    # as offset type: where its Subscribe said
    FIRST_DELIVER_MS = 2               # after the answer: a client that is not busy has read that by then


# What all streams sessions of a worker use to gather one send; only valid within one call.
cdef struct frame_out:
    uint64_t position, next_offset  # where its chunk begins, for the reader
    chunk header
    size_t bytes                    # of the whole Deliver frame

cdef struct gather:
    uint8_t *data
    size_t size
    iovec pieces[1 + 2 * FRAMES_PER_SEND]  # the first is the outbox's
    frame_out frames[FRAMES_PER_SEND]
    uint8_t headers[FRAMES_PER_SEND][HEAD_BYTES_MAX]

cdef gather scratch


cdef void give_back() noexcept:
    if scratch.size > SCRATCH_BYTES_KEPT:
        free(scratch.data)
        scratch.data, scratch.size = NULL, 0


cdef err fetch(Subscription subscription, size_t want, bint cached, uint64_t *got, chunk *header,
               fault *f) except? ERR_CORRUPT:
    """Read the next chunk into the scratch, and as many behind it as `want` bytes hold; `cached`: without waiting."""
    cdef uint64_t more, size
    cdef err e
    grow(&scratch.data, &scratch.size, want, 1)
    with nogil:
        e = core.reader_fetch(&subscription.reader, scratch.data, want, cached, got, f)
        if e == OK:
            e = core.reader_chunk(&subscription.reader, scratch.data, got[0], True, header, f)
    if e != ERR_TRUNCATED or core.chunk_bytes(header) <= want:
        return e
    size = core.chunk_bytes(header)
    grow(&scratch.data, &scratch.size, size, 1)
    with nogil:
        e = core.reader_fetch_rest(&subscription.reader, got[0], scratch.data + got[0], size - got[0], cached, &more, f)
        if e == OK:
            got[0] += more
            e = core.reader_chunk(&subscription.reader, scratch.data, got[0], True, header, f)
    return ERR_TRUNCATED if e == ERR_NOT_CACHED else e


def _told(result, error):
    if error is not None:  # who then misses a block says it louder
        logger.debug("the archiver could not be told where a reader is: %s", error)


cdef inline size_t head_bytes(bint v2) noexcept:
    return PREFIX_BYTES + CHUNK_HEADER_BYTES + (COMMITTED_BYTES if v2 else 0)


cdef void write_head(uint8_t *room, bint v2, int subscription_id, uint64_t committed_chunk, const uint8_t *stored,
                     size_t payload) noexcept:
    """What stands in a Deliver frame before its payload: prefix and chunk header."""
    bytes_store32(room, <uint32_t> (head_bytes(v2) + payload - 4))
    bytes_store16(room + 4, KEY_DELIVER)
    bytes_store16(room + 6, 2 if v2 else 1)
    room[8] = <uint8_t> subscription_id
    room += PREFIX_BYTES
    if v2:
        bytes_store64(room, committed_chunk)
        room += COMMITTED_BYTES
    core.chunk_header_to_wire(stored, room)


cdef size_t payload_bytes(Subscription subscription, const chunk *header) noexcept:
    """What follows a chunk's header in its Deliver frame: the entries and, if asked for, the trailer behind them."""
    return header.data_bytes + (header.trailer_bytes if subscription.with_trailers else 0)


cdef size_t fetch_bytes(Subscription subscription) noexcept:
    """As much as one send can use, in whole chunks, judged by the last one."""
    cdef uint64_t frames = <uint64_t> min(max(subscription.credit, <int64_t> 1), <int64_t> FRAMES_PER_SEND)
    cdef uint64_t fit = FETCH_BYTES // max(subscription.chunk_bytes, <uint64_t> 1)
    cdef uint64_t wanted = min(frames, max(fit, <uint64_t> 1)) * subscription.chunk_bytes
    return <size_t> min(max(wanted, <uint64_t> FETCH_BYTES_MIN), <uint64_t> FETCH_BYTES)


cdef bint is_going(Stream stream) noexcept:
    """Was it deleted or restarted, and its users on this worker have not been told yet?"""
    return (core.control_is_deleted(stream.log.control)
            or core.doorbell_restarts(stream.table.board.raw, stream.slot) != stream.restarts)


cdef class Subscription(StreamUser):
    def __init__(self, Deliveries owner, Stream stream, int subscription_id, int offset_type, long long value,
                 long long credit, dict properties, bint grouped):
        self.owner, self.subscription_id, self.credit = owner, subscription_id, credit
        self.offset_type, self.offset_value = offset_type, value
        self.properties, self.offset, self.grouped = properties, -1, grouped
        self.with_trailers = properties.get("chunk_selector") == "all"
        self._take_filter()
        stream.attach(self)
        stream.attach_reader(self)
        if not grouped:
            try:
                self.begin(OFFSET_NONE, 0)
            except StorageError:
                stream.detach(self)
                raise

    @property
    def used_names(self) -> tuple:
        """What one must be allowed to read."""
        return (self.stream.name,)

    def __dealloc__(self):
        if self.reading:
            core.reader_close(&self.reader)
        free(self.filter)

    cdef int _take_filter(self) except -1:
        cdef bytes value
        cdef list values = [text.encode() for key, text in self.properties.items() if key.startswith("filter.")]
        if not values:
            return 0
        self.filter = <filter_t *> malloc(sizeof(filter_t))
        if self.filter == NULL:
            raise MemoryError
        core.filter_init(self.filter, self.properties.get("match-unfiltered") == "true")
        for value in values:
            if core.filter_add(self.filter, value, <uint32_t> len(value)) != OK:
                raise LimitExceeded("filter values of a subscription", len(values), core.FILTER_VALUES_MAX)
        return 0

    def begin(self, int offset_type, long long value):
        """Read from there on, or (OFFSET_NONE) from where its Subscribe said.  Raises StorageError."""
        cdef fault f
        cdef err e
        if offset_type == OFFSET_NONE:
            offset_type, value = self.offset_type, self.offset_value
        self.close_reader()
        e = core.reader_open(&self.reader, self.stream.log.raw, <core.reader_from> offset_type, value, &f)
        if e != OK:
            raise storage_error(e, &f)
        self.reading = True

    def become(self, active: bool):
        """Its group has made it the active consumer, or wants another one (broker.groups)."""
        if is_going(self.stream):
            return  # the active member has left because its worker heard of it first; this consumer leaves in a moment
        try:
            if not active:
                self.owner.stop(self)
            ask_consumer(self.owner.session, self, active)
        except (ConnectionClosed, LimitExceeded) as problem:
            self.owner.connection.fail(problem)

    cdef bint wants(self) noexcept:
        """Is there something to do for it now?"""
        if not self.reading or self.cold:
            return False
        return self.frame_sent or (self.credit > 0 and core.reader_has_more(&self.reader))

    cdef int on_news(self) except -1:
        if self.wants():
            self.owner.want(self)
        return 0

    cdef int failed(self, object problem) except -1:
        self.owner.connection.fail(problem)
        return 0

    cdef int on_deleted(self) except -1:
        try:
            self.owner.forget(self)
        except (ConnectionClosed, LimitExceeded) as problem:  # half a frame is out, and its rest cannot follow
            self.owner.connection.fail(problem)  # not closed at once: it may be in the middle of a command
        stream_gone(self.owner.session, self.stream)
        return 0

    def describe(self) -> dict:
        """This subscription as the admin side shows it."""
        cdef commit committed
        core.control_committed(self.stream.log.control, &committed)
        # Against the written end: an unreachable store, or a slow disk, shows as lag.
        behind = committed.next_offset - self.reader.next_offset if self.reading else 0
        return {
            "subscription_id": self.subscription_id,
            "stream": self.stream.name,
            "credits": self.credit,
            "consumed": self.consumed,
            "offset": self.offset,
            "offset_lag": behind,  # messages that it has not been sent
            "next_offset": self.reader.next_offset if self.reading else None,  # of the first of these
            "active": self.reading,
            "activity_status": "up" if not self.grouped else "single_active" if self.reading else "waiting",
            "properties": self.properties,
        }

    cdef int close_reader(self) except -1:
        if self.reading:
            self.reading = False
            core.reader_close(&self.reader)
        return 0


cdef class Deliveries:
    """The subscriptions of one connection."""

    def __init__(self, session, Connection connection, helpers, timers):
        self.session, self.connection, self.helpers, self.timers = session, connection, helpers, timers
        self.by_id, self.ready = {}, []

    def add(self, Stream stream, int subscription_id, int offset_type, long long value, long long credit,
            dict properties, bint grouped) -> Subscription:
        """Attach a reader.  Its first chunk leaves by itself, FIRST_DELIVER_MS after the reply that the caller writes.

        Where it is `grouped` it waits until its group makes it active.  Raises StorageError, LimitExceeded.
        """
        cdef Subscription subscription = Subscription(
            self, stream, subscription_id, offset_type, value, credit, properties, grouped)

        self.by_id[subscription_id] = subscription
        if not grouped:
            subscription.cold = True
            answered = self.timers.timer(lambda now_ms: self.go_on(subscription))
            answered.set(time.monotonic_ns() // 1_000_000 + FIRST_DELIVER_MS)
        return subscription

    def begin(self, Subscription subscription, int offset_type, long long value):
        """It is its group's active consumer, and its client has said where it goes on.  Raises StorageError."""
        subscription.begin(offset_type, value)
        self.want(subscription)

    def remove(self, int subscription_id) -> bool:
        cdef Subscription subscription = self.by_id.get(subscription_id)
        if subscription is None:
            return False
        try:
            self.forget(subscription)
        finally:
            subscription.stream.detach(subscription)
        return True

    cdef int forget(self, Subscription subscription) except -1:
        self.by_id.pop(subscription.subscription_id, None)
        if subscription.grouped:
            consumer_left(self.session, subscription)
        return self.stop(subscription)

    cdef int stop(self, Subscription subscription) except -1:
        try:
            if subscription.frame_sent and not self.connection.closed:
                self._finish_frame(subscription)
        finally:
            if subscription.queued:
                self._unqueue(subscription)
            subscription.close_reader()
        return 0

    cdef int go_on(self, Subscription subscription) except -1:
        subscription.cold = False
        if subscription.reading and not self.connection.closed:
            self.want(subscription)
        return 0

    cdef int want(self, Subscription subscription) except -1:
        if not subscription.queued:
            subscription.queued = True
            self.ready.append(subscription)
        self.connection.want_turn()
        return 0

    cdef bint send(self) except -1:
        cdef Subscription subscription
        cdef Py_ssize_t sent
        self.share = DELIVER_BYTES_PER_TURN
        while self.share > 0 and not self.connection.socket_full:
            subscription = self.half_sent
            if subscription is not None and subscription.cold:
                return False
            if subscription is None:
                if not self.ready or self.connection.closing:
                    self.connection.flush()
                    return False
                subscription = <Subscription> self.ready[0]
                if not subscription.wants():
                    self._unqueue(subscription)
                    continue
            sent = self._send_chunks(subscription)
            if sent == NOTHING:
                if subscription.queued:
                    self._unqueue(subscription)
                if subscription.frame_sent:
                    return False
                continue
            self.share -= sent
            if self.half_sent is None and len(self.ready) > 1 and self.ready[0] is subscription:
                self.ready.append(self.ready.pop(0))  # every subscription in its turn
        if self.connection.socket_full:
            return False  # the poller says when to go on
        if self.half_sent is None:
            self.connection.flush()
        return bool(self.ready) and not self.connection.socket_full

    def _unqueue(self, Subscription subscription):
        subscription.queued = False
        self.ready.remove(subscription)

    cdef Py_ssize_t _send_chunks(self, Subscription subscription) except -2:
        """One gathering send of whole chunks; bytes sent, or NOTHING when there is nothing to send now."""
        cdef reader *at = &subscription.reader
        cdef reader walk
        cdef fault f
        cdef err e = OK
        cdef uint64_t got = 0, offset = 0, committed_chunk = 0
        cdef size_t payload
        cdef chunk header
        cdef commit committed
        cdef size_t skip = subscription.frame_sent
        cdef bint v2 = subscription.frame_v2 if skip else self.deliver_v2
        cdef size_t head = head_bytes(v2)
        cdef uint8_t *room
        cdef int frames = 0, pieces = 0, i
        cdef uint32_t skipped = 0
        cdef Py_ssize_t sent, left, rest
        if skip >= head:
            return self._send_rest(subscription, head)
        if v2:
            if skip:
                committed_chunk = subscription.frame_committed
            else:
                core.control_confirmed(subscription.stream.log.control, &committed)
                committed_chunk = committed.last_chunk
        if subscription.filter != NULL and not skip:
            with nogil:
                e = core.reader_skip(at, subscription.filter, SKIPS_PER_TURN, True, &skipped, &f)
            self.share -= <Py_ssize_t> skipped * SKIP_BYTES
            if e == ERR_NOT_CACHED:
                return self._skip_ahead(subscription)
            if e != OK:
                return self._read_failed(subscription, e, &f, 0)
            if skipped == SKIPS_PER_TURN:
                return 0
        e = fetch(subscription, fetch_bytes(subscription), True, &got, &header, &f)
        if e != OK:
            give_back()
            return self._read_failed(subscription, e, &f, core.chunk_bytes(&header) if e == ERR_TRUNCATED else 0)
        if core.reader_enters(at):
            self.helpers.submit_read(telling(at, subscription.stream.log.directory), _told)
        walk = at[0]
        subscription.chunk_bytes = 0
        while True:
            subscription.chunk_bytes = max(subscription.chunk_bytes, core.chunk_bytes(&header))
            payload = payload_bytes(subscription, &header)
            room = scratch.headers[frames]
            write_head(room, v2, subscription.subscription_id, committed_chunk, scratch.data + offset, payload)
            pieces += 1
            scratch.pieces[pieces].iov_base = room + skip
            scratch.pieces[pieces].iov_len = head - skip
            skip = 0
            pieces += 1
            scratch.pieces[pieces].iov_base = scratch.data + offset + CHUNK_HEADER_BYTES + header.bloom_bytes
            scratch.pieces[pieces].iov_len = payload
            scratch.frames[frames] = frame_out(walk.position, walk.next_offset, header, head + payload)
            frames += 1
            offset += core.chunk_bytes(&header)
            core.reader_advance(&walk, &header)
            if frames == FRAMES_PER_SEND or frames >= subscription.credit:
                break
            while (subscription.filter != NULL and offset < got
                   and core.reader_header(&walk, scratch.data + offset, got - offset, &header, &f) == OK
                   and not core.filter_matches(subscription.filter, scratch.data + offset, &header)):
                offset += core.chunk_bytes(&header)
                self.share -= <Py_ssize_t> core.chunk_bytes(&header)
                core.reader_advance(&walk, &header)
            if offset >= got or core.reader_chunk(&walk, scratch.data + offset, got - offset, True, &header, &f) != OK:
                break  # not whole in the buffer, or damaged: the next call meets it first
        sent = self.connection.send(scratch.pieces, pieces, subscription.frame_sent == 0)
        left = sent if sent > 0 else 0
        for i in range(frames):
            rest = <Py_ssize_t> (scratch.frames[i].bytes - subscription.frame_sent)
            if left < rest:
                subscription.frame_sent += left
                subscription.frame_chunk = scratch.frames[i].header
                at.position, at.next_offset = scratch.frames[i].position, scratch.frames[i].next_offset
                break
            left -= rest
            self._sent(subscription, &scratch.frames[i].header)
        else:
            at.position, at.next_offset = walk.position, walk.next_offset
        subscription.frame_v2, subscription.frame_committed = v2, committed_chunk
        self.half_sent = subscription if subscription.frame_sent else None
        give_back()
        return sent if sent > 0 else 0

    cdef Py_ssize_t _send_rest(self, Subscription subscription, size_t head) except -2:
        """Of a frame whose head is out, what the socket takes of the next FETCH_BYTES; as _send_chunks."""
        cdef chunk *header = &subscription.frame_chunk
        cdef size_t out = subscription.frame_sent - head
        cdef size_t left = payload_bytes(subscription, header) - out
        cdef size_t want = min(left, <size_t> FETCH_BYTES)
        cdef uint64_t got = 0, begin = CHUNK_HEADER_BYTES + header.bloom_bytes + out
        cdef Py_ssize_t sent
        cdef fault f
        cdef err e
        grow(&scratch.data, &scratch.size, want, 1)
        with nogil:
            e = core.reader_fetch_rest(&subscription.reader, begin, scratch.data, want, True, &got, &f)
        if e == ERR_NOT_CACHED:
            return self._read_ahead(subscription, begin, left)
        if e != OK:
            return self._read_failed(subscription, e, &f, 0)
        scratch.pieces[1].iov_base, scratch.pieces[1].iov_len = scratch.data, got
        sent = self.connection.send(scratch.pieces, 1, False)
        subscription.frame_sent += sent
        if <size_t> sent == left:
            core.reader_advance(&subscription.reader, header)
            self._sent(subscription, header)
            self.half_sent = None
        return sent

    cdef void _sent(self, Subscription subscription, const chunk *header) noexcept:
        """A whole frame is out."""
        cdef Meters meters = subscription.stream.table.meters
        subscription.frame_sent = 0
        subscription.credit -= 1
        subscription.consumed += header.records
        meters.add(METER_DELIVER_STREAM, (meters.turn_wall_ms - header.timestamp_ms) * 1000, header.records)
        subscription.stream.table.delivered += header.records
        subscription.offset = <int64_t> header.chunk_id

    cdef Py_ssize_t _read_failed(self, Subscription subscription, err error, const fault *f, uint64_t wanted) except -2:
        """There is no chunk to send: find out what to do.  0 to try again, NOTHING to wait.

        ERR_TRUNCATED says that of the chunk's `wanted` bytes only the first could be had without waiting.
        """
        cdef fault later
        cdef err e
        if error == ERR_END:
            return NOTHING
        if error == ERR_TRUNCATED:
            error = ERR_NOT_CACHED if core.reader_in_segment(&subscription.reader, wanted) else ERR_CORRUPT
        if error == ERR_NOT_CACHED:
            return self._read_ahead(subscription, 0, max(wanted, <uint64_t> READ_AHEAD_BYTES))
        problem = storage_error(error, f)
        if subscription.frame_sent:
            raise ConnectionClosed(f"{self.connection.peer}: a chunk that is half sent cannot be read again: {problem}")
        if error == ERR_NOT_FOUND:  # retention was quicker than this reader
            subscription.close_reader()
            e = core.reader_open(&subscription.reader, subscription.stream.log.raw, core.READER_FIRST, 0, &later)
            if e == OK:
                subscription.reading = True
                return 0
            problem = storage_error(e, &later)
        elif error == ERR_CORRUPT:
            where = subscription.stream.name, str(problem)
            unreadable.say(where, "stream %s: a damaged chunk is passed over: %s", *where)
            e = core.reader_skip_damaged(&subscription.reader, &later)
            if e == OK:
                return 0
            if e == ERR_END:
                return NOTHING
            problem = storage_error(e, &later)
        unreadable.say(subscription.stream.name, "stream %s: cannot be read, its consumer on %s is told: %s",
                       subscription.stream.name, self.connection.peer, problem)
        self.remove(subscription.subscription_id)
        stream_unavailable(self.session, subscription.stream.name)
        return NOTHING

    def _read_ahead(self, Subscription subscription, begin, size):
        """Let a helper thread bring `size` bytes into the page cache, `begin` bytes behind the reader's place."""
        return self._in_helper(
            subscription, ahead(&subscription.reader, subscription.stream.log.directory, begin, size))

    def _skip_ahead(self, Subscription subscription):
        """Let a helper thread bring the headers that a filter looks at next into the page cache."""
        cdef str directory = subscription.stream.log.directory

        def skip():
            cdef Log log = Log(directory)  # of its own: ours may be closed meanwhile
            cdef reader scout
            cdef uint32_t skipped
            cdef fault f
            cdef err e = core.reader_open(&scout, log.raw, core.READER_OFFSET, from_offset, &f)
            if e == OK:
                with nogil:
                    e = core.reader_skip(&scout, subscription.filter, SKIPS_AHEAD, False, &skipped, &f)
                core.reader_close(&scout)
            if is_cold and e != OK and e != ERR_END and e != ERR_NOT_FOUND and e != ERR_CORRUPT:
                time.sleep(ASK_AGAIN_S)  # the object store's affair: the subscription wants it again at once
                raise storage_error(e, &f)

        from_offset, is_cold = subscription.reader.next_offset, subscription.reader.cold
        return self._in_helper(subscription, skip)

    def _in_helper(self, Subscription subscription, read):
        """Until a helper thread has done `read`, nothing is sent for this subscription."""
        def done(result, error):
            if error is not None:
                name = (<Subscription> subscription).stream.name
                unreadable.say(name, "stream %s: while reading ahead: %s", name, error)
            self.go_on(subscription)

        subscription.cold = True
        self.helpers.submit_read(read, done)
        return NOTHING

    cdef int _finish_frame(self, Subscription subscription) except -1:
        """The subscription ends while a frame is half out: its rest goes before everything queued."""
        cdef fault f
        cdef err e
        cdef uint64_t got = 0
        cdef chunk header
        cdef bint v2 = subscription.frame_v2
        cdef size_t head = head_bytes(v2)
        cdef uint8_t *room = scratch.headers[0]
        cdef size_t out = subscription.frame_sent
        cdef size_t payload
        cdef const uint8_t *data
        e = fetch(subscription, FETCH_BYTES, False, &got, &header, &f)
        self.half_sent = None
        subscription.frame_sent = 0
        if e != OK:
            give_back()
            raise ConnectionClosed(f"{self.connection.peer}: a chunk that is half sent cannot be read again: "
                                   f"{storage_error(e, &f)}")
        data = scratch.data + CHUNK_HEADER_BYTES + header.bloom_bytes
        payload = payload_bytes(subscription, &header)
        if out >= head:
            self.connection.prepend(data + out - head, payload + head - out)
        else:
            write_head(room, v2, subscription.subscription_id, subscription.frame_committed, scratch.data, payload)
            self.connection.prepend(data, payload)
            self.connection.prepend(room + out, head - out)
        give_back()
        return 0
