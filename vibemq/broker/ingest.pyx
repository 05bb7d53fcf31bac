# SPDX-License-Identifier: Apache-2.0
"""Many messages of one HTTP request into a stream or queue: one job for each request and stream.

The admin process puts the lines into a memfd, which the worker maps.  A job adds a part of them in each turn, through
the batch of that turn as any protocol does, and sends one answer when every line is confirmed or refused.  It is held
by the same limits as a connection: rate limits, a full queue, a slow disk, unconfirmed messages.

After the first message that is refused for a reason that passes, the job adds no more: the refused lines are the end of
the request.  A job with a publisher's name adds a part only after the part before is in the log, because a later number
in the log makes all earlier ones duplicates.
"""

import json
import mmap

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcpy, memset
from vibemq.broker.client cimport Client
from vibemq.broker.publisher cimport ROOM, QueuePublisher
from vibemq.broker.queue cimport Queue
from vibemq.broker.stream cimport Stream
from vibemq.net.door cimport PAUSE_RATE
from vibemq.storage cimport core
from vibemq.storage.core cimport OK, amqp_properties, bytes_store32, writer_bytes

from vibemq.broker.admission import refusal_now, what_failed
from vibemq.errors import StreamNotFound

#: Below the frame of 1 MiB that clients of all protocols read by default.
LINE_BYTES_MAX = 1_000_000
JOB_MS = 30_000  # the job adds nothing after this time; agents wait 10 to 60 s for an answer
RANGES_MAX = 1000  # of refused lines in an answer; it then says how many more there are

cdef enum:
    LINE_MAX = 1_000_000
    # Of one turn: a quarter of a millisecond.
    LINES_PER_TURN = 4096
    METERED_LINES_PER_TURN = 512  # each is paid for by itself
    BYTES_PER_TURN = 512 << 10
    FRAME_BYTES = 8               # before a framed line: its number and its size
    NOTE_BYTES = 4                # the number of a line
    TO_THE_END = 0
    FRAMES_BYTES = 256 << 10      # that frame_array writes at once
    FRAMES_COUNT = 2000

cdef extern from "base/murmur3.h" nogil:
    uint32_t murmur3_partition(const void *key, uint32_t size, uint32_t partitions)

# What a refusal means for the sender of the request.
BAD, FULL, RATE, LATER, GONE = "bad", "full", "rate", "later", "gone"
cdef dict KINDS = {b"QUEUE_FULL": FULL, b"QUEUE_NOT_FOUND": GONE}


def frame_array(const uint8_t[:] body not None, write):
    """Call ``write(frames)`` with the elements of a JSON array, each with its number, from 1, and its size before it.

    The body is valid JSON, which somebody has checked.
    """
    cdef const uint8_t *p = &body[0]
    cdef const uint8_t *end = p + body.shape[0]
    cdef const uint8_t *start
    cdef const uint8_t *last
    cdef uint8_t head[8]
    cdef uint32_t number = 0
    cdef size_t size = 0
    cdef int depth
    cdef list frames = []
    p = <const uint8_t *> memchr(p, 0x5B, body.shape[0]) + 1
    while True:
        while p < end and _is_space(p[0]):
            p += 1
        if p >= end or p[0] == 0x5D:
            break
        start, depth = p, 0
        while p < end:
            if p[0] == 0x22:
                p += 1
                while p < end and p[0] != 0x22:
                    p += 2 if p[0] == 0x5C else 1
            elif p[0] == 0x5B or p[0] == 0x7B:
                depth += 1
            elif depth and (p[0] == 0x5D or p[0] == 0x7D):
                depth -= 1
            elif not depth and (p[0] == 0x2C or p[0] == 0x5D):
                break
            p += 1
        if p >= end:
            raise ValueError("a JSON array is cut short")
        last = p
        while last > start and _is_space((last - 1)[0]):
            last -= 1
        number += 1
        bytes_store32(head, number)
        bytes_store32(head + 4, <uint32_t> (last - start))
        frames.append((<const char *> head)[:8])
        frames.append((<const char *> start)[:last - start])
        size += last - start
        if size > FRAMES_BYTES or len(frames) > FRAMES_COUNT:
            write(b"".join(frames))
            frames.clear()
            size = 0
        p += p[0] == 0x2C
    write(b"".join(frames))


cdef inline bint _is_space(uint8_t c) noexcept:
    return c == 0x20 or c == 0x0A or c == 0x0D or c == 0x09


def partition_of(bytes key, uint32_t partitions) -> int:
    """Return the partition that clients of the streams protocol choose for a routing key."""
    return murmur3_partition(<const char *> key, <uint32_t> len(key), partitions)


def publish_lines(broker, dict request, int lines_fd, results, done):
    """Begin a job and return it; ``done(job)`` is called once, when it has answered through the socket `results`.

    Raises StreamNotFound, LimitExceeded, StorageError; the descriptor and the socket stay the caller's then.
    """
    cdef LinesJob job
    virtual_host, name = request["vhost"], request["name"]
    record = broker.streams.metadata.find_stream(virtual_host, name)
    if record is None:
        raise StreamNotFound(name)
    queue = None if record.queue is None else broker.queues.find(virtual_host, name)
    stream = broker.streams.find(virtual_host, name) if queue is None else queue.stream
    job = LinesJob(broker, request, results, done)
    job.map(lines_fd, request["start"], request["end"])
    job.begin_in(stream, queue)
    return job


class _Requester:
    """The owner of a job's Client."""

    ending = False

    def __init__(self, peer, job):
        self.peer, self._job = peer, job

    def hold(self, reason, holds):
        if not holds:
            self._job.wake()

    def fail(self, problem):
        self._job.stop(LATER, what_failed(self.peer, problem))


cdef class LinesJob(QueuePublisher):
    cdef object broker, results, done, next_turn, late
    cdef object memory                # the mapped lines
    cdef Py_buffer view
    cdef bint is_mapped
    cdef size_t at, size              # of the lines, in bytes
    cdef bint framed                  # each line has its number and size before it, instead of a line end behind it
    cdef uint32_t line                # the number of the line that was read last, from 1
    cdef readonly bytes reference     # of the publisher; b"": duplicates are not looked for
    cdef uint64_t sequence            # the number of the first line for that publisher
    cdef bytes head                   # of each message: its properties
    cdef uint8_t *entry
    cdef uint64_t stored, duplicates
    cdef list refused                 # [first line, last line or TO_THE_END, kind, why]
    cdef uint64_t more_refused        # ranges that are not in `refused`
    cdef bint stopped, answered
    cdef bint adding                  # a line is read and not added yet: a full batch may be persisted and answered meanwhile

    def __init__(self, broker, dict request, results, done):
        self.broker, self.results, self.done = broker, results, done
        self.refused = []
        self.framed = request["framed"]
        self.reference, self.sequence = request["publisher"].encode(), request["sequence"]
        self.client = Client(_Requester(request["peer"], self), broker, broker.catalog.config.streams.unconfirmed_max)
        self.client.user = request["user"]
        self.head = _head(request["content_type"])
        self.entry = <uint8_t *> malloc(4 + len(self.head) + core.amqp_size_max(0, LINE_MAX))
        if self.entry == NULL:
            raise MemoryError
        memcpy(self.entry + 4, <const char *> self.head, len(self.head))

    def __dealloc__(self):
        free(self.entry)
        if self.is_mapped:
            PyBuffer_Release(&self.view)

    cdef int map(self, int fd, size_t start, size_t end) except -1:
        self.memory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        PyObject_GetBuffer(self.memory, &self.view, PyBUF_SIMPLE)
        self.is_mapped = True
        if end > <size_t> self.view.len:
            raise ValueError("lines end behind their memory")  # by a mistake of the admin process
        self.at, self.size = start, end
        return 0

    cdef int begin_in(self, Stream stream, Queue queue) except -1:
        self.begin(stream, queue, stream.name.encode())
        try:
            if self.reference:
                self.declare(self.reference)
            self.broker.limits.meter(self.client, self.client.user, stream.virtual_host)
        except BaseException:
            self.close()
            raise
        timers = self.broker.timers
        self.next_turn, self.late = timers.timer(self._go_on), timers.timer(self._too_late)
        now_ms = self.broker.queues.now_ms
        self.late.set(now_ms + JOB_MS)
        self._go_on(now_ms)
        return 0

    def close(self):
        if not self.closed:
            self.client.stop_metering()
            QueuePublisher.close(self)

    # ---- adding ----

    def wake(self):
        """Go on in the next turn."""
        if self.next_turn is not None:
            self.next_turn.at_most(0)

    def _go_on(self, now_ms):
        if self.answered:
            self._finish()
            return
        self.adding = True
        try:
            if not self.stopped:
                self._add_some()
        except Exception as problem:
            self._add_failed(self.line, problem)
        self.adding = False
        self._answer_if_done()

    def _too_late(self, now_ms):
        if self.client.held & PAUSE_RATE:
            self._give_up(RATE, "publish-rate did not allow more within %d s" % (JOB_MS // 1000))
        else:
            self._give_up(LATER, "there was no room for it within %d s" % (JOB_MS // 1000))

    def end(self):
        """This worker ends: what is added already is still confirmed."""
        self._give_up(LATER, "the broker or a worker of it is restarted")

    cdef int _give_up(self, str kind, str why) except -1:
        if self.has_parked:
            self._stop_parking()
            self.refuse_line(self.line, kind, why)  # the parked line was the last one that was read
        self.stop(kind, why)
        return 0

    def stop(self, kind, why):
        """Add no more: refuse all lines that were not read yet."""
        if not self.stopped:
            self.stopped = True
            if self.at < self.size:
                self.refused.append([self.line + 1, TO_THE_END, kind, why])
            self.wake()

    cdef int _add_some(self) except -1:
        cdef size_t left = BYTES_PER_TURN
        cdef int lines = METERED_LINES_PER_TURN if self.client.meters else LINES_PER_TURN
        cdef const uint8_t *text
        cdef size_t size
        cdef int room
        if self.reference and (self.count or self.handed):
            return 0  # `answer` wakes it
        why = refusal_now(self.broker, self.client.owner.peer)
        if why:
            self.stop(LATER, why)
            return 0
        while self.at < self.size and not self.stopped and not self.closed:
            if self.client.held or self.has_parked:
                return 0
            if lines == 0 or left == 0:
                self.wake()
                return 0
            size = self._next(&text)
            lines -= 1
            left -= min(left, size)
            if size == 0:
                continue
            if size > LINE_MAX:
                self.refuse_line(self.line, BAD, "it has %d bytes, and a message may have %d" % (size, LINE_MAX))
                continue
            room = ROOM if self.queue is None else self.room_for(1)
            size = self._write(text, size)
            if room == ROOM:
                self._lay(self.line, self.entry, size)
            else:
                self.put_off((self.line, (<const char *> self.entry)[:size]), size, room)
        return 0

    cdef size_t _next(self, const uint8_t **text) except? 0:
        """Read a line; 0: it is empty."""
        cdef const uint8_t *p = <const uint8_t *> self.view.buf + self.at
        cdef const uint8_t *end
        cdef size_t size = self.size - self.at
        if self.framed:
            if size < FRAME_BYTES or core.bytes_load32(p + 4) > size - FRAME_BYTES:
                raise ValueError("a frame of lines is cut short")  # by a mistake of the admin process
            self.line, size = core.bytes_load32(p), core.bytes_load32(p + 4)
            text[0] = p + FRAME_BYTES
            self.at += FRAME_BYTES + size
            return size
        self.line += 1
        text[0] = p
        end = <const uint8_t *> memchr(p, 10, size)
        if end != NULL:
            size = end - p
            self.at += 1
        self.at += size
        if size and p[size - 1] == 13:
            size -= 1
        return size

    cdef size_t _write(self, const uint8_t *text, size_t size) except? 0:
        """Write the entry of a message; its size."""
        cdef size_t head = 4 + len(self.head)
        cdef writer_bytes w = core.bytes_writer(self.entry + head, core.amqp_size_max(0, LINE_MAX))
        core.amqp_write_data(&w, text, <uint32_t> size)
        bytes_store32(self.entry, <uint32_t> (w.at - self.entry - 4))
        return w.at - self.entry

    cdef int _lay(self, uint32_t line, const uint8_t *entry, size_t size) except -1:
        cdef bytes reference = self.reference if self.reference else None
        if self.add(entry, <uint32_t> size, 1, reference, self.sequence + line - 1) != OK:
            raise MemoryError
        bytes_store32(self.note(NOTE_BYTES), line)
        return 0

    cdef int _add_failed(self, uint32_t line, problem) except -1:
        why = what_failed(self.client.owner.peer, problem)
        self.refuse_line(line, LATER, why)
        self.stop(LATER, why)
        return 0

    # ---- what became of it ----

    cdef int refuse_line(self, uint32_t line, str kind, str why) except -1:
        last = self.refused[len(self.refused) - 1] if self.refused else None
        if last is not None and last[1] == line - 1 and last[2] == kind and last[3] == why:
            last[1] = line
        elif len(self.refused) < RANGES_MAX:
            self.refused.append([line, line, kind, why])
        else:
            self.more_refused += 1
        return 0

    cdef int answer(self, const uint8_t *notes, size_t size, size_t count, bint ok, uint64_t first_offset,
                    uint64_t next_offset) except -1:
        cdef uint32_t at = 0, number = 0
        if ok and self.reference and self.stream.deduplicated != NULL:
            while core.batch_dropped(self.stream.deduplicated, self.answered_index, &at, &number):
                self.duplicates += 1
        QueuePublisher.answer(self, notes, size, count, ok, first_offset, next_offset)
        if not self.answered and not self.stopped:
            self.wake()
        return self._answer_if_done()

    cdef int confirm(self, const uint8_t *notes, size_t size, uint64_t first_offset, bint offsets_known) except -1:
        self.stored += size // NOTE_BYTES
        return 0

    cdef int on_synced(self, object what, bint ok) except -1:
        QueuePublisher.on_synced(self, what, ok)
        self.wake()
        return 0

    cdef int refuse_notes(self, const uint8_t *notes, size_t size, bytes code, bytes text) except -1:
        cdef size_t i
        kind, why = KINDS.get(code, LATER), text.decode()
        for i in range(0, size, NOTE_BYTES):
            self.refuse_line(core.bytes_load32(notes + i), kind, why)
        self.stop(kind, "a line before it was not stored")
        return 0

    cdef int publish_parked(self, object what) except -1:
        cdef bytes entry
        line, entry = what
        self.adding = True
        try:
            self._lay(line, <const uint8_t *> <char *> entry, len(entry))
        except Exception as problem:
            self._add_failed(line, problem)
        self.adding = False
        self.wake()
        return 0

    cdef int refuse_parked(self, object what, bytes code, bytes text) except -1:
        kind, why = KINDS.get(code, LATER), text.decode()
        self.refuse_line(what[0], kind, why)
        self.stop(kind, why)
        return 0

    cdef int redirect_parked(self, object what) except -1:
        cdef bytes entry
        line, entry = what
        return self.redirect(<const uint8_t *> <char *> entry, len(entry), line)

    def answer_redirected(self, tokens, bint ok):
        for line in tokens:
            if ok:
                self.stored += 1
            else:
                self.refuse_line(line, LATER, "it could not be stored in the dead-letter queue")
        if not ok:
            self.stop(LATER, "a line before it was not stored")
        self.wake()

    cdef int forget(self) except -1:
        self.stop(GONE, "the stream or queue was deleted or restarted")
        return self._answer_if_done()

    cdef int _answer_if_done(self) except -1:
        if self.answered or self.adding or (self.at < self.size and not self.stopped) or self.has_parked:
            return 0
        if self.closed or self.is_idle:
            self.answered = True
            self.late.end()
            self._send()
            self.wake()  # closes it; not from within the stream's own turn, which goes on with its users
        return 0

    cdef int _send(self) except -1:
        found = {"stored": self.stored, "duplicates": self.duplicates, "refused": self.refused, "more": self.more_refused}
        try:
            self.results.send(json.dumps(found).encode())
        except OSError:
            pass  # the admin process has ended, or has answered already that nothing is known
        return 0

    cdef int _finish(self) except -1:
        """Give everything back."""
        self.next_turn.end()
        self.close()
        PyBuffer_Release(&self.view)
        self.is_mapped = False
        self.memory.close()
        self.results.close()
        self.done(self)
        return 0


cdef bytes _head(str content_type):
    """The properties section of a message with this content type; b"" for none."""
    cdef amqp_properties properties
    cdef writer_bytes w
    cdef bytes kind = content_type.encode("ascii")
    cdef size_t room = core.amqp_size_max(0, len(kind))
    cdef uint8_t *out
    if not kind:
        return b""
    out = <uint8_t *> malloc(room)
    if out == NULL:
        raise MemoryError
    try:
        w = core.bytes_writer(out, room)
        memset(&properties, 0, sizeof(properties))
        properties.content_type, properties.content_type_bytes = kind, <uint32_t> len(kind)
        core.amqp_write_properties(&w, &properties)
        return (<const char *> out)[:w.at - out]
    finally:
        free(out)
