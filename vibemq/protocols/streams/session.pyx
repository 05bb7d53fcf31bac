# SPDX-License-Identifier: Apache-2.0
"""One streams connection and its publishers: frames in, replies, confirms and chunks out.

Publish and Credit are acted upon in place and make no Python object; every other
command is decoded by the codec and goes to ``commands.handle``, plain Python.  The life of
a message through here: ``_publish`` lays it into its stream's batch and remembers its id;
``StreamsPublisher.confirm`` answers, once it is persisted or synced; ``Subscription.on_news``
wakes its readers, and ``Deliveries.send`` sends them whole chunks straight from the log.

Each id that was published is answered exactly once, by PublishConfirm or PublishError, in frames that hold a
whole batch: when the batch is persisted or, with durability `disk`, when a sync covers it (broker/publisher.pyx).
What was a duplicate has a frame of its own, behind that: there are clients that drop one which names an id twice.
"""

import os

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove

from vibemq.broker.client cimport ClientSession
from vibemq.broker.publisher cimport QUEUE_NOT_FOUND, Publisher
from vibemq.broker.stream cimport Stream, StreamUser
from vibemq.net.connection cimport Connection
from vibemq.net.door cimport PAUSE_ALARM, PAUSE_COMMAND, PAUSE_ENDING
from vibemq.storage cimport core
from vibemq.storage.core cimport ERR_FULL, OK, bytes_load16, bytes_load32, bytes_store16, bytes_store32, err
from vibemq.protocols.streams.deliveries cimport Deliveries, Subscription
from vibemq.protocols.streams.wire cimport (
    FILTER_SIZE_BYTES, KEY_CREDIT, KEY_PUBLISH, KEY_PUBLISH_CONFIRM, KEY_PUBLISH_ERROR, PUBLISHING_ID_BYTES,
    entry_bytes, filter_bytes, publish_walk, sub_batch_is_valid,
)

from vibemq.errors import ConnectionClosed
from vibemq.protocols.streams import commands
from vibemq.protocols.streams.codec import MalformedFrame, encode_server_frame
from vibemq.protocols.streams.endings import expel, frame_too_large, internal_error, refuse, step_begins, stream_gone
from vibemq.protocols.streams.replies import is_stale, rights_changed
from vibemq.protocols.streams.spec import FRAME_SIZE_DEFAULT_BYTES, Code, Key
from vibemq.protocols.streams.tracking import tell_sequence
from vibemq.protocols.streams.transactions import look_at_staged

cdef bytes HEARTBEAT = encode_server_frame(Key.HEARTBEAT)

cdef enum:
    CONTROLS_PER_TURN = 32  # control commands cost tens of microseconds: the loop's millisecond
    CONTROL_BYTES = 16      # a longer one counts as several: its names are looked up one by one
    # QueryPublisherSequence without an answer, of a connection: as many as it can have publishers. More are not read.
    QUESTIONS_MAX = 256
    TRACKED_MAX = 1024      # streams that one connection's offsets hold open: each costs some descriptors
    PUBLISH_ERROR_BYTES = 10  # an id and a code
    STAGED_LOOK_BYTES = 64 << 20  # so much more than it may be staged by each connection
    CODE_STREAM_NOT_AVAILABLE = 6
    CODE_INTERNAL_ERROR = 15
    CODE_PRECONDITION_FAILED = 17
    CODE_PUBLISHER_DOES_NOT_EXIST = 18

cdef class StreamsSession(ClientSession)


cdef inline uint8_t *answer_ids(Connection connection, int key, int publisher_id, size_t count,
                                size_t item_bytes) except NULL:
    """The head of a PublishConfirm or PublishError; its `count` items go where this points."""
    cdef size_t size = count * item_bytes
    cdef uint8_t *out = connection.outbox_reserve(13 + size)
    bytes_store32(out, <uint32_t> (9 + size))
    bytes_store16(out + 4, <uint16_t> key)
    bytes_store16(out + 6, 1)
    out[8] = <uint8_t> publisher_id
    bytes_store32(out + 9, <uint32_t> count)
    return out + 13


# A declared publisher.  Its notes are the ids of this turn's batch, big-endian as they came.
cdef class StreamsPublisher(Publisher):
    cdef StreamsSession session
    cdef Connection connection
    cdef readonly int publisher_id
    cdef readonly bytes reference     # empty: its duplicates are kept
    cdef readonly uint64_t published, confirmed, errored  # entries
    cdef readonly tuple used_names    # what one must be allowed to write
    cdef object held                  # of a transaction that is staged: a descriptor to close with it; None
    cdef uint64_t looked_bytes        # of its connection's input, when what is staged all in all was last looked at
    cdef public bint is_full          # that is too much: it takes no more

    def __init__(self, StreamsSession session not None, Stream stream not None, int publisher_id, bytes reference,
                 tuple targets, held):
        self.session, self.client, self.connection = session, session.client, session.connection
        self.publisher_id, self.reference = publisher_id, reference
        self.used_names = targets or (stream.name,)
        stream.attach(self)
        try:
            if len(reference):
                self.declare(reference)
            self.queue = session.door.queue_of(stream)
        except BaseException:
            Publisher.close(self)
            raise
        if self.queue is not None:
            self.queue.hold(self)  # so that its bounds are kept
        self.held, self.looked_bytes = held, session.connection.bytes_in

    @property
    def is_staging(self) -> bool:
        """Does it stage a transaction, in a stream that nobody shall know?"""
        return self.held is not None

    def close(self):
        Publisher.close(self)
        held, self.held = self.held, None
        if held is not None:
            os.close(held)

    cdef int begin(self) except -1:
        """Before its first entry in a batch."""
        if self.held is not None and self.connection.bytes_in - self.looked_bytes > STAGED_LOOK_BYTES:
            self.looked_bytes = self.connection.bytes_in
            look_at_staged(self.session, self)
        self.join_batch()
        return self.intern(self.reference) if len(self.reference) else 0

    cdef int answer(self, const uint8_t *notes, size_t size, size_t count, bint ok, uint64_t first_offset,
                    uint64_t next_offset) except -1:
        cdef size_t kept = count
        if ok and self.stream.deduplicated != NULL and len(self.reference):
            kept = self._part_duplicates(<uint8_t *> notes, count)  # this publisher's own memory
        if kept:
            Publisher.answer(self, notes, kept * PUBLISHING_ID_BYTES, kept, ok, first_offset, next_offset)
        if kept < count:
            notes += kept * PUBLISHING_ID_BYTES
            count -= kept
            Publisher.answer(self, notes, count * PUBLISHING_ID_BYTES, count, ok, first_offset, next_offset)
        return 0

    cdef size_t _part_duplicates(self, uint8_t *ids, size_t count) except? 0:
        """Put the ids that were duplicates behind the others; how many others there are."""
        cdef uint32_t at = 0, number = 0
        cdef size_t kept = 0, dropped = 0, i
        cdef bint is_dropped = core.batch_dropped(self.stream.deduplicated, self.answered_index, &at, &number)
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
                is_dropped = core.batch_dropped(self.stream.deduplicated, self.answered_index, &at, &number)
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
        cdef size_t count = size // PUBLISHING_ID_BYTES
        cdef uint8_t *out
        if not self.connection.closed:
            self.confirmed += count
            out = answer_ids(self.connection, KEY_PUBLISH_CONFIRM, self.publisher_id, count, PUBLISHING_ID_BYTES)
            memcpy(out, notes, size)
        return 0

    cdef int refuse_notes(self, const uint8_t *notes, size_t size, bytes code, bytes text) except -1:
        cdef size_t i, count = size // PUBLISHING_ID_BYTES
        cdef uint16_t wire_code = CODE_INTERNAL_ERROR
        cdef uint8_t *out
        if self.deleted:
            wire_code = CODE_STREAM_NOT_AVAILABLE
        elif code is QUEUE_NOT_FOUND:  # it was refused because of that
            wire_code = CODE_PUBLISHER_DOES_NOT_EXIST
        if self.connection.closed:
            return 0
        self.errored += count
        out = answer_ids(self.connection, KEY_PUBLISH_ERROR, self.publisher_id, count, PUBLISH_ERROR_BYTES)
        for i in range(count):
            memcpy(out, notes + i * PUBLISHING_ID_BYTES, PUBLISHING_ID_BYTES)
            bytes_store16(out + PUBLISHING_ID_BYTES, wire_code)
            out += PUBLISH_ERROR_BYTES
        return 0


# That a connection has stored or asked for an offset of a stream: held open, and the connection is told of its end.
cdef class Tracking(StreamUser):
    cdef StreamsSession session

    def __init__(self, StreamsSession session, Stream stream):
        self.session = session
        stream.attach(self)
        session.door.offsets.attach(stream.log.directory)

    def end(self):
        self.session.door.offsets.detach(self.stream.log.directory)
        self.stream.detach(self)

    cdef int on_deleted(self) except -1:
        if self.session.tracked.pop(self.stream, None) is not None:
            self.end()
        stream_gone(self.session, self.stream)
        return 0

    cdef int failed(self, object problem) except -1:
        self.session.connection.fail(problem)
        return 0


# A QueryPublisherSequence that is answered later, because its answer counts messages that are not confirmed yet.
cdef class SequenceQuestion(StreamUser):
    cdef StreamsSession session
    cdef object request
    cdef uint64_t chunk
    cdef Py_ssize_t counts             # as so many messages: a question takes a kilobyte, and may wait as long as the store

    def __init__(self, StreamsSession session, object request):
        self.session, self.request = session, request
        self.counts = (session.client.unconfirmed_max + QUESTIONS_MAX - 1) // QUESTIONS_MAX

    cdef bint wait(self, Stream stream, uint64_t sequence, uint64_t chunk) except -1:
        self.chunk = chunk
        if not stream.await_chunk(self, sequence, chunk):
            return False
        stream.attach(self)
        self.session.questions.add(self)
        self.session.client.count_unconfirmed(self.counts)
        return True

    def end(self):
        if self in self.session.questions:
            self.session.questions.remove(self)
            self.session.client.count_unconfirmed(-self.counts)
            self.stream.detach(self)

    cdef int on_synced(self, object what, bint ok) except -1:
        if not ok and self.stream.is_remote and self.stream.await_chunk(self, what, self.chunk):
            return 0  # the store may take it later, and some clients read an error as a sequence of 0
        tell_sequence(self.session, self.request, what if ok or self.stream.is_remote else None)
        self.end()
        return 0

    cdef int on_deleted(self) except -1:
        if not core.control_is_deleted(self.stream.log.control):  # restarted: the client asks again when it is back
            raise ConnectionClosed(f"{self.session.connection.peer}: stream {self.stream.name} was restarted before its answer")
        tell_sequence(self.session, self.request, None, is_gone=True)
        self.end()
        return 0

    cdef int failed(self, object problem) except -1:
        self.session.connection.fail(problem)
        return 0


# Its publishers go by their ids.
cdef class StreamsSession(ClientSession):
    cdef public str virtual_host
    cdef public str mechanism          # by which it has logged in
    cdef public object rights          # access.rights.VhostRights: what it may do here; None: nothing yet
    cdef public int64_t rights_generation  # of the rights, when they were last looked at
    cdef public dict pending           # correlation id -> subscribing.Question: ConsumerUpdates without an answer
    cdef public uint32_t asked         # how many there were
    cdef set questions                 # SequenceQuestions that wait
    cdef dict tracked                  # Stream -> Tracking: those whose offsets it has stored or asked for
    cdef public bint counted           # by the door, as one that has a virtual host
    cdef public dict peer_properties
    cdef readonly uint32_t frame_max   # bytes; 0 is no limit
    cdef public uint32_t negotiated_frame_max  # holds from Open on
    cdef public uint32_t heartbeat_s
    cdef bint parts_kinds              # a sub-batch shares its chunk with nothing
    cdef readonly Deliveries deliveries
    cdef int64_t beat_checked_ms, silence_checked_ms
    cdef uint64_t beat_bytes_out, silence_bytes_in
    cdef int silent_checks
    cdef size_t skip                   # bytes of a refused frame that are still to come

    def __init__(self, Connection connection, door):
        super().__init__(connection, door)
        self.state = "greeting"
        self.frame_max = door.config.initial_frame_max_bytes
        connection.is_trusted = False
        self.parts_kinds = door.config.one_sub_batch_per_chunk
        self.virtual_host = self.mechanism = ""
        self.rights_generation = 0
        self.pending, self.tracked, self.questions = {}, {}, set()
        self.peer_properties = {}
        self.deliveries = Deliveries(self, connection, door.helpers, door.broker.timers)

    cdef int open(self) except -1:
        step_begins(self)
        return 0

    # ---- receive ----

    cdef Py_ssize_t receive(self, const uint8_t *data, size_t size) except -1:
        cdef size_t at = 0
        cdef uint32_t length
        cdef size_t controls = 0  # what its commands cost so far
        if self.skip:
            at = min(self.skip, size)
            self.skip -= at
        while size - at >= 4:
            length = bytes_load32(data + at)
            if self.frame_max and length > self.frame_max:
                # Read to its end, so that our Close is not lost in a reset.
                self.skip = <size_t> length + 4 - min(<size_t> length + 4, size - at)
                frame_too_large(self, length, (<bytes> (<char *> data)[at:min(size, at + 8)]))
                return size
            if length < 4:
                refuse(self, MalformedFrame("frame size", "4 bytes or more", length))
                return size
            if size - at - 4 < length:
                self.wanted = <size_t> length + 4
                break
            try:
                controls += self._frame(data + at + 4, length)
            except Exception as problem:
                internal_error(self, problem)
            at += <size_t> length + 4
            if self.connection.closing or self.connection.closed or self.connection.problem is not None:
                return size
            if controls >= CONTROLS_PER_TURN:
                self.yield_turn()
            if self.busy:
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
        return 1 + <int> (size // CONTROL_BYTES)

    cdef int _publish(self, const uint8_t *p, const uint8_t *end, int version) except -1:
        """Take the whole entries of a frame, and close if bytes follow that are none.

        The count before them is not used, as in RabbitMQ: the .NET client writes a wrong one when an application's
        filter function throws.
        """
        cdef const uint8_t *whole = p + 5
        cdef uint32_t count
        if end - p < 5:
            refuse(self, MalformedFrame("Publish", "5 bytes or more", end - p))
            return 0
        count = publish_walk(&whole, end, version)
        if count:
            self._take_entries(p, whole, version, count)
        if whole != end:
            self.persist()  # the confirms go before the Close
            refuse(self, MalformedFrame("Publish", "whole entries up to its end", f"{end - whole} other bytes"))
        return 0

    cdef int _take_entries(self, const uint8_t *p, const uint8_t *end, int version, uint32_t count) except -1:
        cdef StreamsPublisher publisher = <StreamsPublisher> self.publisher_cached
        cdef Stream stream
        cdef uint32_t left, records
        cdef uint64_t more = 0         # messages of sub-batches beyond one each
        cdef Py_ssize_t size
        cdef const uint8_t *entry
        cdef const uint8_t *value      # of its filter, after a u16 size
        cdef err e
        if publisher is None or publisher.publisher_id != p[0]:
            publisher = self.publishers.get(p[0])
            if publisher is None:
                return self._refuse_from(p[0], CODE_PUBLISHER_DOES_NOT_EXIST, p + 5, end, version, count)
            self.publisher_cached = publisher
        if publisher.is_full:
            publisher.errored += count
            return self._refuse_from(publisher.publisher_id, CODE_PRECONDITION_FAILED, p + 5, end, version, count)
        stream = publisher.stream
        publisher.reserve(count * PUBLISHING_ID_BYTES)
        publisher.published += count
        p += 5
        left = count
        while left:
            value = entry = p + PUBLISHING_ID_BYTES
            if version == 2:
                entry += filter_bytes(entry, end)
            size = entry_bytes(entry, end)
            records = 1
            if entry[0] & 0x80:
                if not sub_batch_is_valid(entry, self.door.sub_batch_uncompressed_max):
                    # This entry and all that follow: no gap may open in the ids that are stored.
                    publisher.errored += left
                    return self._refuse_from(publisher.publisher_id, CODE_PRECONDITION_FAILED, p, end, version, left)
                records = bytes_load16(entry + 1)
                more += records - 1
            if publisher.count == 0:
                publisher.begin()
            if self.parts_kinds:
                core.batch_part_kinds(stream.batch, entry[0] & 0x80)
            if publisher.interned:
                e = core.batch_add_tracked(stream.batch, entry, <uint32_t> size, records, publisher.reference_index,
                                           core.bytes_load64(p))
            else:
                e = core.batch_add(stream.batch, entry, <uint32_t> size, records)
            if e == ERR_FULL:
                stream.next_batch()
                publisher.reserve(left * PUBLISHING_ID_BYTES)
                continue
            if e != OK:
                publisher.errored += left
                return self._refuse_from(publisher.publisher_id, CODE_INTERNAL_ERROR, p, end, version, left)
            if entry > value + FILTER_SIZE_BYTES:
                value += FILTER_SIZE_BYTES
                core.batch_filter(stream.batch, value, <uint32_t> (entry - value))
            memcpy(publisher.notes + publisher.notes_size, p, PUBLISHING_ID_BYTES)
            publisher.notes_size += PUBLISHING_ID_BYTES
            publisher.count += 1
            p = entry + size
            left -= 1
        if self.client.meters:
            self.client.spend(count + more)
        return 0

    cdef int _refuse_from(self, int publisher_id, int code, const uint8_t *p, const uint8_t *end, int version,
                          uint32_t count) except -1:
        """Write a PublishError for the ids of the `count` whole entries from `p` to `end`."""
        cdef uint8_t *out = answer_ids(self.connection, KEY_PUBLISH_ERROR, publisher_id, count, PUBLISH_ERROR_BYTES)
        while p < end:
            memcpy(out, p, PUBLISHING_ID_BYTES)
            bytes_store16(out + PUBLISHING_ID_BYTES, <uint16_t> code)
            out += PUBLISH_ERROR_BYTES
            p += PUBLISHING_ID_BYTES
            if version == 2:
                p += filter_bytes(p, end)
            p += entry_bytes(p, end)
        return 0

    cdef int _credit(self, const uint8_t *p, const uint8_t *end) except -1:
        cdef Subscription subscription
        if end - p != 3:
            refuse(self, MalformedFrame("Credit", "3 bytes", end - p))
            return 0
        subscription = <Subscription> self.deliveries.by_id.get(p[0])
        if subscription is not None:
            subscription.credit += <short> bytes_load16(p + 1)
            if subscription.reading:
                if subscription.credit > 0:
                    self.deliveries.want(subscription)
                return 0
        # What is not active yet keeps its credit all the same.
        code = Code.SUBSCRIPTION_ID_DOES_NOT_EXIST if subscription is None else Code.PRECONDITION_FAILED
        self.connection.write_bytes(encode_server_frame(Key.CREDIT, code=code, subscription_id=p[0]))
        return 1  # an answer costs as much as a command's

    # ---- what commands do to this session ----

    def add_publisher(self, Stream stream, int publisher_id, bytes reference, tuple targets=(), held=None):
        """`targets`: of a transaction that is staged, whose `held` is a descriptor that goes with the publisher."""
        self.publishers[publisher_id] = StreamsPublisher(self, stream, publisher_id, reference, targets, held)
        self.door.publishing.add(self)
        if self.door.broker.alarms.in_effect:  # the memory alarm, during which publishers are declared
            self.set_alarmed(True)

    def remove_publisher(self, int publisher_id) -> bool:
        publisher = self.publishers.get(publisher_id)
        if publisher is None:
            return False
        self.forget_publisher(publisher_id, publisher)
        publisher.close()
        return True

    def drop_all(self):
        """All publishers and subscriptions, without a word: the connection is about to end."""
        for publisher_id in list(self.publishers):
            self.remove_publisher(publisher_id)
        for subscription_id in list(self.deliveries.by_id):
            self.deliveries.remove(subscription_id)

    def forget_publisher(self, key, publisher):
        ClientSession.forget_publisher(self, key, publisher)
        if not self.publishers:
            self.door.publishing.discard(self)
            self.set_alarmed(False)

    def persist(self):
        """Persist what this connection has published in this turn, so that its confirms go first."""
        for publisher in list(self.publishers.values()):
            (<StreamsPublisher> publisher).stream.persist()

    def track(self, Stream stream):
        """It has stored or asked for an offset there: it is told when the stream goes, and finds it open meanwhile."""
        cdef Tracking oldest
        if stream in self.tracked:
            return
        if len(self.tracked) >= TRACKED_MAX:
            oldest = self.tracked.pop(next(iter(self.tracked)))
            oldest.end()
        self.tracked[stream] = Tracking(self, stream)

    def tell_sequence_later(self, object request, Stream stream, uint64_t sequence, uint64_t chunk) -> bool:
        """Answer a QueryPublisherSequence when the chunk is durable.  False: it is durable now, and there is no answer."""
        if stream.is_disk_durable and core.log_sync_failed(stream.log.raw, chunk, chunk + 1):
            tell_sequence(self, request, None)
            return True
        return SequenceQuestion(self, request).wait(stream, sequence, chunk)

    def uses(self, Stream stream) -> bool:
        """Does this connection publish to, read from or keep offsets on the stream?"""
        for user in (*self.publishers.values(), *self.deliveries.by_id.values(), *self.tracked.values()):
            if (<StreamUser> user).stream is stream:
                return True
        return False

    def publishes_as(self, Stream stream, bytes reference) -> bool:
        return any([one.stream is stream and one.reference == reference for one in self.publishers.values()])

    def set_alarmed(self, bint alarmed):
        """A disk or memory alarm: read nothing more from who publishes; or it is over."""
        if alarmed:
            self.pause(PAUSE_ALARM)
        elif self.pauses & PAUSE_ALARM:
            self.go_on(PAUSE_ALARM)

    def opened(self):
        """It has logged in and has a virtual host."""
        # What a client answers by default is no promise (rstream does not keep it); what bounds memory is ours.
        kept = self.negotiated_frame_max < FRAME_SIZE_DEFAULT_BYTES
        self.frame_max = self.negotiated_frame_max if kept else self.door.config.frame_max_bytes
        self.connection.is_trusted = True
        self.beat_checked_ms = self.silence_checked_ms = self.door.now_ms()
        self.beat_bytes_out = <uint64_t> -1  # the first check always sends one
        self.silence_bytes_in = self.connection.bytes_in

    @property
    def local_address(self) -> tuple:
        return self.connection.local_host, self.connection.local_port

    def describe(self) -> dict:
        """This connection as the admin side shows it."""
        return self.described(
            name=self.connection.peer,
            vhost=self.virtual_host,
            mechanism=self.mechanism,
            frame_max=self.negotiated_frame_max,
            heartbeat=self.heartbeat_s,
            client_properties=self.peer_properties,
            publishers=[
                {
                    "publisher_id": publisher.publisher_id,
                    "reference": publisher.reference.decode(),
                    "stream": publisher.stream.name,
                    "published": publisher.published,
                    "confirmed": publisher.confirmed,
                    "errored": publisher.errored,
                }
                for publisher in self.publishers.values() if not publisher.is_staging
            ],
            subscriptions=[(<Subscription> found).describe() for found in self.deliveries.by_id.values()],
        )

    # ---- deliver ----

    cdef bint deliver(self) except -1:
        if self.pauses:
            self.go_on_after_turn()
            if self.pauses & PAUSE_ENDING and not self.client.unconfirmed:
                self.finish()
        return self.deliveries.send()

    # ---- time ----

    cdef int tick(self, int64_t now_ms) except -1:
        if self.look_at_deadline(now_ms):
            pass
        elif self.state == "open":
            # A command in a helper thread is answered first; one that renews the secret says what became of the rights.
            if not self.pauses & PAUSE_COMMAND and is_stale(self) and not rights_changed(self, expel):
                return 0
            self.beat(now_ms)
            if self.heartbeat_s:
                self._check_silence(now_ms)
        # While it is not read, its answer may lie in the socket.
        if self.pending and not self.busy and now_ms >= next(iter(self.pending.values())).deadline_ms:
            raise ConnectionClosed(f"{self.connection.peer}: no answer to a ConsumerUpdate in time")
        return 0

    cdef int beat(self, int64_t now_ms) except -1:
        if self.state != "open" or not self.heartbeat_s:
            return 0
        if now_ms - self.beat_checked_ms >= <int64_t> self.heartbeat_s * 500:
            if self.connection.bytes_out == self.beat_bytes_out or self.beat_bytes_out == <uint64_t> -1:
                if self.connection.outbox_head == self.connection.outbox_size and self.deliveries.half_sent is None:
                    self.connection.write_bytes(HEARTBEAT)
            self.beat_bytes_out = self.connection.bytes_out
            self.beat_checked_ms = now_ms
        return 0

    cdef int _check_silence(self, int64_t now_ms) except -1:
        """End a connection whose peer sent nothing, no heartbeat either, during two heartbeat intervals."""
        if now_ms - self.silence_checked_ms >= <int64_t> self.heartbeat_s * 1000:
            if self.connection.bytes_in != self.silence_bytes_in or self.busy or self.connection.waits:
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
        """The broker ends: take no more, and end the connection once nothing of it waits for a sync any more.

        Without a Close, which is final for most clients (README.md).  Called at every tick until the connection is gone.
        """
        if not self.pauses & PAUSE_ENDING:
            self.pause(PAUSE_ENDING)
            self.persist()
        if not self.client.unconfirmed and self.has_confirmed_all():
            self.finish()
        return 0

    def command_failed(self, problem):
        internal_error(self, problem)

    cdef int close(self) except -1:
        self.state = "closed"
        self.client.broker.limits.leave(self.client)
        if self.counted:
            self.counted = False
            self.door.leave()
        self.drop_all()
        while self.tracked:
            _, tracking = self.tracked.popitem()
            tracking.end()
        for question in list(self.questions):
            question.end()
        return 0
