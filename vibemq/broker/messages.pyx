# SPDX-License-Identifier: Apache-2.0
"""Single messages out of the log, for those who hand them out one by one.

A chunk is read and checked once and kept while messages of it are asked for; all queues of a
worker share one cache of CHUNKS chunks and CACHE_BYTES_MAX bytes, so a queue that waits
holds no memory.  Nothing here waits for the disk: what is not in the page cache is
ERR_NOT_CACHED, and ``read_ahead`` lets a helper thread fetch it.

A sub-batch is unpacked once and kept until another is asked for; a large one by a helper thread too.

A ``LogReader`` goes over a log from a place on, for doors whose peers get messages and no chunks.  It is paced by
the door's room, and writes when there is some, when the log has grown, and when a helper thread has brought what was
only on disk.  What is passed over needs no room, and is bounded by turns.  Nothing is settled.
"""

import logging
import zlib

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from vibemq.broker.client cimport UNDELIVERABLE, WRITTEN
from vibemq.broker.queue_table cimport QueueTable
from vibemq.broker.stream cimport Stream
from vibemq.grow cimport grow
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    CHUNK_HEADER_BYTES, ERR_CORRUPT, ERR_END, ERR_NO_MEMORY, ERR_NOT_CACHED, ERR_NOT_FOUND, ERR_TRUNCATED, OK,
    bytes_load32, chunk_entry, commit, writer_bytes,
)
from vibemq.storage.cold cimport ahead
from vibemq.storage.log cimport storage_error
from vibemq.storage.meters cimport METER_DELIVER_STREAM, Meters

from vibemq.errors import StreamNotFound
from vibemq.once_a_minute import OnceAMinute

logger = logging.getLogger(__name__)
malformed = OnceAMinute(logger)
unreadable = OnceAMinute(logger, logging.ERROR)

cdef enum:
    CHUNKS = 64                    # looked through one by one: a few tens of nanoseconds
    CACHE_BYTES_MAX = 64 << 20     # of one worker; a single larger chunk is kept until the next one comes
    FIRST_READ_BYTES = 16 * 1024   # most chunks at a moderate rate; a larger one is read a second time, whole
    READ_AHEAD_BYTES = 1 << 20
    OPEN_MAX = 1024                # descriptors of cursors and probes, of those that a worker has besides its connections
    UNPACKED_AT_ONCE_BYTES_MAX = 128 << 10  # a third of a millisecond with gzip; more is a helper thread's work
    UNPACKED_BYTES_MAX = 64 << 20  # a sub-batch that says it unpacks to more is not unpacked
    CHUNK_USER = 0
    PASSED_OVER_BYTES_PER_TURN = 256 * 1024   # of messages that are not written: half a millisecond
    PASSED_OVER_BYTES_MIN = 256    # what a small one costs
    PACKED_NONE = 0
    PACKED_GZIP = 1
    PACKED_ZSTD = 4


cdef class Messages:
    def __cinit__(self, helpers):
        self.helpers, self.open = helpers, {}
        self.chunks = <cached_chunk *> calloc(CHUNKS, sizeof(cached_chunk))
        if self.chunks == NULL:
            raise MemoryError
        self.newest = self.chunks

    def __dealloc__(self):
        for i in range(CHUNKS):
            free(self.chunks[i].data)
        free(self.chunks)

    cdef int opened(self, object place) except -1:
        """A cursor or probe holds a descriptor now; the one that has held its own for longest gives it back."""
        if len(self.open) >= OPEN_MAX:
            (<Place> next(iter(self.open))).close()
        self.open[place] = None
        return 0

    cdef cached_chunk *load(self, uint64_t key, reader *at, err *e, fault *f) noexcept:
        """The whole, checked chunk at the reader's place, or NULL and the reason."""
        cdef cached_chunk *c = self.newest
        cdef cached_chunk *oldest = self.chunks
        cdef uint64_t got = 0
        cdef size_t want
        cdef chunk header
        cdef int i
        e[0] = OK
        if c.key == key and c.position == at.position and c.segment == at.segment:
            return c
        self.looks += 1
        for i in range(CHUNKS):
            c = &self.chunks[i]
            if c.key == key and c.position == at.position and c.segment == at.segment:
                c.used = self.looks
                self.newest = c
                return c
            if c.used < oldest.used:
                oldest = c
        c = oldest
        c.key = c.position = 0
        want = max(c.capacity, <size_t> FIRST_READ_BYTES)
        while True:
            if not self._room(c, want):
                e[0] = ERR_NO_MEMORY
                return NULL
            e[0] = core.reader_fetch(at, c.data, c.capacity, True, &got, f)
            if e[0] == OK:
                e[0] = core.reader_chunk(at, c.data, got, True, &header, f)
            if e[0] == ERR_TRUNCATED and core.chunk_bytes(&header) > c.capacity:
                want = core.chunk_bytes(&header)
                continue
            break
        if e[0] == ERR_TRUNCATED:  # whole in the file, or reader_chunk would have called it damaged
            e[0] = ERR_NOT_CACHED
        if e[0] != OK:
            c.used = 0
            return NULL
        c.key, c.segment, c.position, c.header, c.used = key, at.segment, at.position, header, self.looks
        self.newest = c
        return c

    cdef bint _room(self, cached_chunk *c, size_t size) noexcept:
        """Make `c` that large, at the cost of whatever was used least recently."""
        cdef uint8_t *grown
        cdef cached_chunk *victim
        cdef int i
        if size <= c.capacity:
            return True
        while self.bytes - c.capacity + size > CACHE_BYTES_MAX:
            victim = NULL
            for i in range(CHUNKS):
                if &self.chunks[i] != c and self.chunks[i].capacity and (
                        victim == NULL or self.chunks[i].used < victim.used):
                    victim = &self.chunks[i]
            if victim == NULL:
                break
            self.bytes -= victim.capacity
            free(victim.data)
            victim.data, victim.capacity, victim.key, victim.position, victim.used = NULL, 0, 0, 0, 0
        grown = <uint8_t *> realloc(c.data, size)
        if grown == NULL:
            return False
        self.bytes += size - c.capacity
        c.data, c.capacity = grown, size
        return True

    cdef err message(self, cached_chunk *c, uint64_t segment, uint64_t position, uint32_t entry_position, uint16_t index,
                     message_view *out, uint32_t *entry_bytes, uint32_t *records, fault *f) noexcept:
        """Message `index` of the entry at `entry_position`; ERR_CORRUPT when it cannot be read.

        `entry_bytes` and `records` say how far the next entry is, also when this one cannot be read
        (0 when not even that is known).
        """
        cdef const uint8_t *start = c.data + CHUNK_HEADER_BYTES + c.header.bloom_bytes
        cdef const uint8_t *at = start + entry_position
        cdef const uint8_t *end = start + c.header.data_bytes
        cdef chunk_entry entry
        cdef err e
        entry_bytes[0] = records[0] = 0
        if entry_position >= c.header.data_bytes or core.chunk_entry_next(&at, end, &entry) != OK:
            return core.fault_set(f, ERR_CORRUPT, 0, "an entry of its chunk", entry_position, 0, 0)
        entry_bytes[0], records[0] = <uint32_t> (at - start) - entry_position, entry.records
        out.segment, out.index = segment, index
        out.place = (position << 32) | entry_position
        out.timestamp_ms = c.header.timestamp_ms
        if index >= entry.records:
            return core.fault_set(f, ERR_CORRUPT, 0, "an entry of its chunk", entry_position, index + <uint64_t> 1, entry.records)
        if not entry.is_sub_batch:
            out.data, out.size = entry.body, entry.body_bytes
        else:
            e = self._sub_batch(c, out.place, entry.body, entry.body_bytes, entry.uncompressed_bytes, entry.compression,
                                index, out)
            if e != OK:
                return core.fault_set(f, e, 0, "a sub-batch of its chunk", entry_position, 0, 0)
        out.is_amqp = core.amqp_parse(out.data, out.size, &out.amqp) == OK
        return OK

    cdef err _sub_batch(self, cached_chunk *c, uint64_t place, const uint8_t *body, uint32_t body_bytes,
                        uint32_t uncompressed_bytes, uint8_t compression, uint16_t index, message_view *out) noexcept:
        cdef const uint8_t *start
        cdef uint32_t size, at, i, n
        if self.unpacked is None or self.unpacked_key != c.key or self.unpacked_segment != c.segment \
                or self.unpacked_place != place:
            if compression != PACKED_NONE and uncompressed_bytes > UNPACKED_AT_ONCE_BYTES_MAX:
                self.to_unpack = ((c.key, c.segment, place), compression, (<char *> body)[:body_bytes], uncompressed_bytes)
                return ERR_NOT_CACHED
            self._keep_unpacked(c.key, c.segment, place, _unpack(compression, (<char *> body)[:body_bytes],
                                                                 uncompressed_bytes))
        if self.unpacked is UNREADABLE:
            return ERR_CORRUPT
        start = <const uint8_t *> <char *> self.unpacked
        size = <uint32_t> len(self.unpacked)
        if index < self.unpacked_index:
            self.unpacked_index = self.unpacked_at = 0
        at = self.unpacked_at
        for i in range(self.unpacked_index, <uint32_t> index + 1):
            if size - at < 4 or bytes_load32(start + at) > size - at - 4:
                return ERR_CORRUPT
            if i == index:
                break
            at += 4 + bytes_load32(start + at)
        self.unpacked_index, self.unpacked_at = index, at
        out.data, out.size = start + at + 4, bytes_load32(start + at)
        return OK

    def _keep_unpacked(self, uint64_t key, uint64_t segment, uint64_t place, bytes content):
        self.unpacked_key, self.unpacked_segment, self.unpacked_place = key, segment, place
        self.unpacked = content
        self.unpacked_index = self.unpacked_at = 0

    cdef int read_ahead(self, Place place, then) except -1:
        """Let a helper thread fetch what was ERR_NOT_CACHED; then call ``then()`` in the loop."""
        if self.to_unpack is not None:
            self._unpack_ahead(then)
            return 0

        def done(result, error):
            if error is not None:
                unreadable.say("ahead", "while reading ahead: %s", error)
            then()

        self.helpers.submit_read(ahead(&place.raw, place.log.directory, 0, READ_AHEAD_BYTES), done)
        return 0

    def _unpack_ahead(self, then):
        (place, compression, body, size), self.to_unpack = self.to_unpack, None

        def done(result, error):
            if error is not None:
                unreadable.say("sub-batch", "while unpacking a sub-batch: %s", type(error).__name__)
            self._keep_unpacked(*place, UNREADABLE if error is not None else result)
            then()

        self.helpers.submit(lambda: _unpack(compression, body, size), done)


cdef bytes UNREADABLE = b""  # stands for what cannot be unpacked: no sub-batch with a message is empty


def _unpack(int compression, bytes body, uint32_t size) -> bytes:
    """What a sub-batch holds, or UNREADABLE."""
    try:
        return _unpacked(compression, body, size)
    except Exception as problem:  # whatever a codec raises for bytes that a peer has written
        malformed.say("sub-batch", "a sub-batch cannot be unpacked: %s", type(problem).__name__)
        return UNREADABLE


def _unpacked(int compression, bytes body, uint32_t size) -> bytes:
    """Exactly `size` bytes.  ValueError."""
    if size > UNPACKED_BYTES_MAX:
        raise ValueError(f"{size} bytes were announced, at most {UNPACKED_BYTES_MAX} are unpacked")
    if compression == PACKED_NONE:
        content = body
    elif compression == PACKED_GZIP:
        content = zlib.decompressobj(31).decompress(body, size + 1)
    elif compression == PACKED_ZSTD:
        import zstandard

        content = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(body).read(size + 1)
    else:
        raise ValueError(f"compression {compression} cannot be read for queues; none, gzip and zstd can")
    if len(content) != size:
        raise ValueError(f"{size} bytes were announced, there are {len(content)} or more")
    return content


cdef class Place:
    def __cinit__(self, Messages messages, Log log, uint64_t key):
        self.messages, self.log, self.key = messages, log, key

    def __dealloc__(self):
        if self.open:
            core.reader_close(&self.raw)

    cdef void close(self) noexcept:
        """Give back the descriptor; the next message is looked up anew."""
        if self.open:
            core.reader_close(&self.raw)
            self.open = False
            self.messages.open.pop(self, None)

    cdef err _open(self, uint64_t offset, fault *f) noexcept:
        cdef err e = core.reader_open(&self.raw, self.log.raw, core.READER_OFFSET, <int64_t> offset, f)
        if e == OK:
            self.open = True
            self.messages.opened(self)
        return e


cdef class Cursor(Place):
    cdef void seek(self, uint64_t offset) noexcept:
        if offset != self.offset:
            self.close()
            self.offset = offset

    cdef err next(self, message_view *out, fault *f) noexcept:
        """The message at `offset` (or the next there is: then `offset` has moved), and move past it.

        ERR_END: none yet.  ERR_NOT_CACHED: read ahead from `raw`.  ERR_CORRUPT with `out.offset` set: this message
        cannot be read and is passed over; with NOWHERE the chunk cannot: ``pass_damage`` goes on.
        ERR_NOT_FOUND: retention took it.  ERR_IO, ERR_NO_MEMORY.
        """
        cdef cached_chunk *c
        cdef err e
        cdef uint32_t entry_bytes, records
        out.offset = NOWHERE
        if not self.open:
            if self.offset >= core.control_confirmed_offset(self.log.control):
                return ERR_END  # no descriptor for an empty queue
            e = self._open(self.offset, f)
            if e != OK:
                return e
            self.entry_position = 0
        while True:
            if not core.reader_has_more(&self.raw):
                return ERR_END
            c = self.messages.load(self.key, &self.raw, &e, f)
            if c == NULL:
                return e
            if self.entry_position == 0:
                self.entry_first = c.header.chunk_id
                if self.offset < self.entry_first:
                    self.offset = self.entry_first  # damage or retention made a gap
            if self.entry_position >= c.header.data_bytes or c.header.type != CHUNK_USER \
                    or self.offset >= c.header.chunk_id + c.header.records:
                core.reader_advance(&self.raw, &c.header)
                self.entry_position = 0
                continue
            e = self.messages.message(c, self.raw.segment, self.raw.position, self.entry_position,
                                      <uint16_t> min(self.offset - self.entry_first if self.offset > self.entry_first else 0, <uint64_t> 65535), out,
                                      &entry_bytes, &records, f)
            if entry_bytes == 0:
                core.reader_advance(&self.raw, &c.header)  # a good checksum over entries that make no sense
                self.entry_position = 0
                continue
            if e == ERR_NOT_CACHED:
                return e
            if self.entry_first + records <= self.offset:
                self.entry_position += entry_bytes
                self.entry_first += records
                continue
            out.offset = self.offset
            self.offset += 1
            if self.offset == self.entry_first + records:
                self.entry_position += entry_bytes
                self.entry_first += records
            return e

    cdef err pass_damage(self, fault *f) noexcept:
        """Move past the chunk at which ``next`` found damage.  ERR_IO and the like: it stands where it stood."""
        cdef err e = core.reader_skip_damaged(&self.raw, f) if self.open else ERR_CORRUPT  # of `next`, with its fault
        if e == OK:
            self.entry_position = 0
            self.offset = max(self.offset, self.raw.next_offset)
        return e


cdef class Probe(Place):
    cdef err look(self, uint64_t offset, uint64_t segment, uint64_t place, uint16_t index, message_view *out,
                  fault *f) noexcept:
        """The message at a place, or by its offset where the place is 0.  Errors as Cursor.next."""
        cdef cached_chunk *c
        cdef err e
        cdef uint32_t entry_bytes, records, entry_position = 0
        cdef uint64_t first
        out.offset = offset
        if not self.open or place == 0 or self.raw.segment != segment:
            self.close()
            e = self._open(offset, f)
            if e != OK:
                return e
        if place:
            self.raw.position = place >> 32
            self.raw.next_offset = 0
        c = self.messages.load(self.key, &self.raw, &e, f)
        if c == NULL:
            return e
        if offset < c.header.chunk_id or offset >= c.header.chunk_id + c.header.records:
            return core.ERR_NOT_FOUND
        if place:
            return self.messages.message(c, self.raw.segment, self.raw.position, <uint32_t> place, index, out,
                                         &entry_bytes, &records, f)
        first = c.header.chunk_id
        while True:
            e = self.messages.message(c, self.raw.segment, self.raw.position, entry_position,
                                      <uint16_t> min(offset - first, <uint64_t> 65535), out, &entry_bytes, &records, f)
            if e == ERR_NOT_CACHED or entry_bytes == 0 or first + records > offset:
                return e
            entry_position += entry_bytes
            first += records


# ---- going over a log ----

NO_MAX = 0


def offset_of_word(Stream stream, str word) -> int | None:
    """Return the present offset of "first", "last" or "next"; None: it is none of these.

        "next" is the first message that is not confirmed yet, so messages confirmed from now on follow.
    """
    cdef uint64_t end = core.control_confirmed_offset(stream.log.control)
    if word == "next":
        return end
    if word == "first":
        return 0
    if word == "last":
        return end - 1 if end else 0
    return None


def offset_of_time(Stream stream, int64_t ms) -> int:
    """That of the first chunk that is not older than `ms` since 1970.  Raises StorageError."""
    return stream.log.attach_offset(core.READER_TIMESTAMP, ms)


cdef class LogReader(StreamUser):
    def __init__(self, QueueTable queues, Stream stream not None, uint64_t offset, uint64_t most=NO_MAX,
                 bint follows=True):
        """``ended(problem)`` is called once when it ends by itself, with None after the last of `most` messages.

        Call ``pump`` when it is known to those who may end it."""
        self.follows = follows
        self.left = most if most else <uint64_t> -1
        self.unreadable_end = NOWHERE
        self.key = <uint64_t> stream.slot << 32 | <uint64_t> int(stream.incarnation[:8], 16)
        self.queues = queues
        self.cursor = Cursor(queues.messages, stream.log, self.key)
        self.cursor.seek(offset)
        stream.attach(self)
        stream.attach_reader(self)

    def close(self):
        """It is not wanted any more."""
        if not self.closed:
            self.closed = True
            self.cursor.close()
            if self.next_turn is not None:
                self.next_turn.cancel()
            if self.stream.log.raw != NULL:
                self.stream.detach(self)

    def _end(self, problem=None):
        if not self.closed:
            self.close()
            self.ended(problem)

    @property
    def next_offset(self) -> int:
        return self.cursor.offset

    cpdef pump(self):
        if self.closed or self.waiting or self.writing:
            return
        self.writing = True
        try:
            self._write()
        finally:
            self.writing = False

    cdef int _write(self) except -1:
        cdef message_view m
        cdef fault f
        cdef err e
        cdef uint8_t made[MESSAGE_ID_BYTES_MAX]
        cdef uint32_t id_size = 0
        cdef const uint8_t *id
        cdef bint looked_again = False
        cdef size_t passed_over = 0
        cdef int what
        cdef Meters meters = self.stream.table.meters
        self.stalled = False
        while not self.closed:
            if not self.room():
                self.stalled = True
                return 0
            if passed_over >= PASSED_OVER_BYTES_PER_TURN:
                return self._wait_a_turn()
            e = self.cursor.next(&m, &f)
            if e == OK:
                looked_again = False
                id = id_of(&m, made, &id_size)
                what = self.write(&m, id, id_size)
                if what == WRITTEN:
                    meters.add(METER_DELIVER_STREAM, (meters.turn_wall_ms - m.timestamp_ms) * 1000, 1)
                    self.stream.table.delivered += 1
                else:
                    passed_over += max(m.size, <uint32_t> PASSED_OVER_BYTES_MIN)
                if what == UNDELIVERABLE and not self.told:
                    self.told = True
                    malformed.say(self.stream.name, "message %d of %s is larger than what %s is sent, and passed over, "
                                  "as all such will be", m.offset, self.stream.name, self)
                self.left -= 1
                if self.left == 0:
                    self._end()
            elif e == ERR_END:
                if not self.follows:
                    self._end()
                return 0
            elif e == ERR_NOT_CACHED:
                self.waiting = True
                self.cursor.messages.read_ahead(self.cursor, self._go_on)
                return 0
            elif e == ERR_CORRUPT and m.offset != NOWHERE:
                # A sub-batch that cannot be unpacked may say that it has 65,535 of them.
                if m.offset != self.unreadable_end:
                    unreadable.say((self.stream.name, m.offset), "stream %s: passed over: message %d and those behind it "
                                   "that cannot be read either", self.stream.name, m.offset)
                self.unreadable_end = m.offset + 1
                passed_over += PASSED_OVER_BYTES_MIN
            elif e == ERR_CORRUPT:
                problem = storage_error(e, &f)
                unreadable.say((self.stream.name, str(problem)), "stream %s: passed over: %s", self.stream.name, problem)
                passed_over = PASSED_OVER_BYTES_PER_TURN
                e = self.cursor.pass_damage(&f)
                if e != OK:
                    self._end_unread(e, &f)
            elif e == ERR_NOT_FOUND and not looked_again:
                looked_again = True  # retention took the segment: what is left begins behind it
                self.cursor.close()
            else:
                self._end_unread(e, &f)
        return 0

    cdef int _end_unread(self, err e, fault *f) except -1:
        problem = storage_error(e, f)
        unreadable.say((self.stream.name, str(problem)), "stream %s: cannot be read: %s", self.stream.name, problem)
        self._end(problem)
        return 0

    cdef int _wait_a_turn(self) except -1:
        self.waiting = True
        if self.next_turn is None:
            self.next_turn = self.queues.timers.timer(self._go_on)
        self.next_turn.set(self.queues.now_ms)
        return 0

    def _go_on(self, now_ms=None):
        self.waiting = False
        try:
            self.pump()
        except Exception as problem:
            self.failed(problem)

    cdef int on_news(self) except -1:
        self.pump()
        return 0

    cdef int on_deleted(self) except -1:
        self._end(StreamNotFound(self.stream.name))
        return 0

    # ---- the door's ----

    cdef bint room(self) noexcept:
        return True

    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size) except -1:
        raise TypeError(f"{type(self).__name__} does not say how to write")

    def ended(self, problem):
        """StreamNotFound: the stream was deleted; StorageError: it cannot be read here, as the log says."""


# ---- what a message says ----

cdef uint8_t *scratch = NULL
cdef size_t scratch_size = 0


cdef uint8_t *scratch_room(size_t size) except NULL:
    grow(&scratch, &scratch_size, size, 1)
    return scratch


cdef tuple as_json(const uint8_t *payload, uint32_t size, bint of_messagepack):
    cdef writer_bytes w
    cdef size_t most = core.MSGPACK_JSON_SIZE_MAX(size) if of_messagepack else core.JSON_STRING_SIZE_MAX(size)
    cdef uint8_t *out = <uint8_t *> malloc(most)  # several times the payload; unwritten memory costs nothing
    cdef bint is_base64 = False
    if out == NULL:
        raise MemoryError
    try:
        w = core.bytes_writer(out, most)
        if of_messagepack:
            if core.msgpack_json_write(&w, payload, size) != OK:
                raise AssertionError("MSGPACK_JSON_SIZE_MAX was too small")
        elif core.json_string_write(&w, payload, size) != OK:
            is_base64, w = True, core.bytes_writer(out, most)
            core.json_base64_write(&w, payload, size)
        return (<char *> out)[:w.at - out], is_base64
    finally:
        free(out)
