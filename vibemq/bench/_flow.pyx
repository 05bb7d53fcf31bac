# SPDX-License-Identifier: Apache-2.0
"""The loops of the load generator: one thread without the GIL for each publishing or consuming connection.

A protocol is a frame to publish, what `fill` patches into its copies, and a function, `take`, that reads what the
server sent. So every server is put under the very same load, and none pays for a slower client. A publisher holds
`group` copies of its frame and patches numbers and times into them; it sends all of them with one call as soon as its
window has room for a group. A consumer answers all that one receive brought with one send.

Marks: <number> becomes the message's number as 8 hex digits, <moment-of-send> the time (CLOCK_MONOTONIC, ns) as 16,
<-queue> the number of its queue as 8. The body (`body`) is JSON with the first two at fixed places, so that a consumer
can time and check a message that came through any server.

Closed loop: sent as long as fewer than `window` messages are unacknowledged. Open loop: each frame has its moment in a
schedule that does not wait for the server, and a latency counts from that moment, sent in time or not; so a server
that stalls cannot hide it by slowing its clients down (coordinated omission).

Other threads only read counters, each a word, and set `stopped`; these are stored as relaxed atomics. All else belongs
to the loop's thread.
"""

import os
import socket

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc cimport errno
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memmove

from vibemq.grow cimport c_grow
from vibemq.openssl cimport (
    openssl_attach, openssl_decrypt, openssl_encrypt, openssl_feed, openssl_handshake, openssl_take,
)

from vibemq import openssl

NUMBER_MARK = b"<number>"
STAMP_MARK = b"<moment-of-send>"
QUEUE_MARK = b"<-queue>"
SIZE_MIN = BODY_SIZE_MIN

cdef enum:
    INBOX_SIZE = 1 << 18        # stays in the second-level cache
    OUTBOX_SIZE = 1 << 16
    RECEIVE_SIZE_MIN = 1 << 15
    IDLE_NS = 100000000         # how soon stop() is noticed
    RECORD_BYTES = 16 * 1024    # of TLS: encrypted or decrypted at a time
    SEND_BYTES = 128 * 1024     # encrypted for one system call, and still in the cache then
    SEALED_BYTES = SEND_BYTES + SEND_BYTES // 16  # with what the records add
    WIRE_BYTES = 512 * 1024
    LOOKS_IN_A_WINDOW = 8       # a look costs a system call, which few acks are worth


def body(int size):
    """A JSON object of `size` bytes with the marks that a consumer looks for."""
    head = b'{"at":"' + STAMP_MARK + b'","number":"' + NUMBER_MARK + b'","text":"'
    assert head.index(STAMP_MARK) == BODY_STAMP_AT and head.index(NUMBER_MARK) == BODY_NUMBER_AT
    return head + b"x" * (size - len(head) - 2) + b'"}'


cdef bint buffer_reserve(Buffer *buffer, size_t needed) noexcept nogil:
    """Room for `needed` bytes at the end: what is there moves to the front, into more memory if it must."""
    cdef size_t held = buffer.end - buffer.begin
    if buffer.begin:
        memmove(buffer.data, buffer.data + buffer.begin, held)
        buffer.begin, buffer.end = 0, held
    return c_grow(&buffer.data, &buffer.size, held + needed, 1, "a buffer", NULL) == 0


cdef class Histogram:
    """Latencies in the layout of HdrHistogram: 1 us to 60 s with three significant digits, one addition for a record.

    The layout is the published one (buckets whose resolution doubles, 2,048 sub-buckets in each), so what is recorded
    here can be handed to any tool of that family without loss; `encode` does so where the hdrhistogram package is
    there. One thread records; merge afterwards. Percentiles are upper bounds of the sub-bucket, as is usual.
    """

    def __cinit__(self):
        self.min_us = VALUE_US_MAX

    def record_us(self, int64_t value_us, uint64_t count=1):
        self.record_ns(value_us * 1000, count)

    def merge(self, Histogram other):
        cdef int i
        for i in range(COUNTS_COUNT):
            self.counts[i] += other.counts[i]
        self.total += other.total
        self.clamped += other.clamped
        self.min_us = min(self.min_us, other.min_us)
        self.max_us = max(self.max_us, other.max_us)

    def percentile_us(self, double percent):
        """The value that `percent` of what was recorded does not exceed; 0 where nothing was."""
        wanted = max(1, int(percent / 100 * self.total + 0.5))
        for value_us, count in self.buckets():
            wanted -= count
            if wanted <= 0:
                return min(value_us, self.max_us)
        return 0

    def buckets(self):
        """Yields (highest value in us, count) where something was counted."""
        cdef int64_t i, bucket
        for i in range(COUNTS_COUNT):
            if self.counts[i]:
                bucket = max(0, (i >> SUB_BUCKET_HALF_COUNT_MAGNITUDE) - 1)
                yield ((i - bucket * SUB_BUCKET_HALF_COUNT + 1) << bucket) - 1, self.counts[i]

    def encode(self):
        """The compressed base64 form that HdrHistogram's tools read, or None without the hdrhistogram package."""
        try:
            from hdrh.histogram import HdrHistogram
        except ImportError:
            return None
        encoded = HdrHistogram(1, VALUE_US_MAX, 3)
        for value_us, count in self.buckets():
            encoded.record_value(min(value_us, VALUE_US_MAX), count)
        return encoded.encode().decode("ascii")


cdef class Tally:
    """Which of a run's messages came, from whichever consumer: all of them, and each once, is what is hoped for."""

    def __cinit__(self, int64_t total, int64_t queues=1):
        self.total, self.queues = total, queues
        self.seen = <uint8_t *>calloc(max(1, total), 1)
        if self.seen is NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.seen)

    cdef void note(self, int64_t number) noexcept nogil:
        if number < 0 or number >= self.total:
            add(&self.strange, 1)
        elif mark(&self.seen[number]):
            add(&self.repeated, 1)
        else:
            add(&self.distinct, 1)

    @property
    def missing(self):
        return self.total - self.distinct


# ---- TLS ----


cdef Py_ssize_t refused_by_openssl() noexcept nogil:
    errno.errno = errno.EPROTO
    return -2


cdef class Tunnel:
    """An ssl.SSLSocket makes two system calls for each record, and uses the distribution's OpenSSL. Here the ciphertext
    passes through memory, by the OpenSSL that the broker has too, and one system call takes many records.

    It is what a client needs of a socket, too, for which sending always waits.
    """

    def __cinit__(self, *_):
        self.sealed = <uint8_t *>malloc(SEALED_BYTES)
        self.wire = <uint8_t *>malloc(WIRE_BYTES)
        if self.sealed == NULL or self.wire == NULL:
            raise MemoryError

    def __init__(self, plain, connection):
        """Shakes hands. `connection`: an OpenSSL.SSL.Connection without a socket, in its initial state."""
        cdef int finished = 0
        cdef bytes records, got
        self.plain, self.connection = plain, connection
        self.fd, self.waits, self.unread = plain.fileno(), True, True
        openssl_attach(&self.end, connection)
        while not finished:
            finished = openssl_handshake(&self.end)
            said = openssl.reason(connection) if finished < 0 else ""
            records = (<char *>self.sealed)[:openssl_take(&self.end, self.sealed, SEALED_BYTES)]
            if records:
                plain.sendall(records)
            if said:
                raise ConnectionError(said)
            if not finished:
                got = plain.recv(RECORD_BYTES)  # by Python: the socket may still have a timeout
                if not got:
                    raise ConnectionResetError("the server closed the connection in the TLS handshake")
                openssl_feed(&self.end, got, len(got))

    def __dealloc__(self):
        free(self.sealed)
        free(self.wire)

    def setblocking(self, bint flag):
        self.waits = flag
        self.plain.setblocking(True)

    def fileno(self):
        return self.plain.fileno()

    def shutdown(self, how):
        self.plain.shutdown(how)

    def close(self):
        self.fd = -1  # a socket that is opened next has this number
        self.plain.close()

    def send(self, data):
        cdef bytes given = bytes(data)
        cdef const uint8_t *p = given
        cdef size_t left = len(given)
        cdef Py_ssize_t sent = 0
        cdef int error
        with nogil:
            while left and sent >= 0:
                sent = self.write(p, left)
                if sent > 0:
                    p += sent
                    left -= sent
                elif sent == 0:
                    wait_for(self.fd, True, IDLE_NS)
            error = errno.errno if sent < -1 else errno.EPIPE
        if sent < 0:
            raise OSError(error, os.strerror(error))
        return len(given)

    def recv_into(self, room):
        cdef Py_buffer view
        cdef Py_ssize_t got
        cdef int error
        PyObject_GetBuffer(room, &view, PyBUF_WRITABLE)
        with nogil:
            got = self.read(<uint8_t *>view.buf, view.len, self.waits)
            error = errno.errno if got else errno.EAGAIN
        PyBuffer_Release(&view)
        if got == 0 or got < -1:
            raise OSError(error, os.strerror(error))
        return max(got, 0)

    cdef Py_ssize_t write(self, const uint8_t *p, size_t size) noexcept nogil:
        """What is not sent as a whole is given again by the caller, and then is not encrypted again."""
        cdef size_t part
        cdef Py_ssize_t sent
        if self.sealed_begin == self.sealed_end:
            self.sealed_begin = self.sealed_end = 0
            while self.covered < size and self.covered < SEND_BYTES:
                part = min(size - self.covered, <size_t>RECORD_BYTES)
                if openssl_encrypt(&self.end, p + self.covered, part):
                    return refused_by_openssl()
                self.sealed_end += openssl_take(
                    &self.end, self.sealed + self.sealed_end, SEALED_BYTES - self.sealed_end
                )
                self.covered += part
        sent = send_some(self.fd, self.sealed + self.sealed_begin, self.sealed_end - self.sealed_begin)
        if sent < 0:
            return sent
        self.sealed_begin += sent
        if self.sealed_begin < self.sealed_end:
            return 0
        sent, self.covered = self.covered, 0
        return sent

    cdef Py_ssize_t read(self, uint8_t *p, size_t size, bint block) noexcept nogil:
        cdef Py_ssize_t got = openssl_decrypt(&self.end, p, size) if self.unread else 0
        while got == 0 and not self.end.ended:
            got = receive_some(self.fd, self.wire, WIRE_BYTES, block)
            if got <= 0:
                return got
            got = -1 if openssl_feed(&self.end, self.wire, got) else openssl_decrypt(&self.end, p, size)
        if got < 0:
            return refused_by_openssl()
        self.unread = got == <Py_ssize_t>size
        return got if got else -1


# ---- connections and their threads ----


cdef class Flow:
    """A connection, a socket or a Tunnel, and its thread's body. `early` is what came behind the handshake's last answer."""

    def __cinit__(self, *, connection, bytes early=b"", size_t inbox_size=INBOX_SIZE, **_):
        cdef size_t size = len(early)
        self.connection, self.fd = connection, connection.fileno()
        self.tunnel = connection if isinstance(connection, Tunnel) else None
        self.inbox = Buffer(<uint8_t *>malloc(inbox_size + size), 0, size, inbox_size + size)
        self.outbox = Buffer(<uint8_t *>malloc(OUTBOX_SIZE), 0, 0, OUTBOX_SIZE)
        if self.inbox.data is NULL or self.outbox.data is NULL:
            raise MemoryError
        memcpy(self.inbox.data, <const uint8_t *>early, size)

    def __init__(self, **_):
        plain = self.connection if self.tunnel is None else self.tunnel.plain
        plain.setblocking(True)
        if plain.family != socket.AF_UNIX:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A receive that would sleep for ever could not be stopped.
        pause = (0).to_bytes(8, "little") + (IDLE_NS // 1000).to_bytes(8, "little")
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, pause)

    def __dealloc__(self):
        free(self.inbox.data)
        free(self.outbox.data)

    @property
    def fault(self):
        """Why it ended early; empty if it did not."""
        return (<bytes>self.fault_).decode("utf-8", "replace").strip()

    def stop(self):
        store(&self.stopped, 1)

    def run(self):
        with nogil:
            precise_sleep()
            self.loop()

    cdef void loop(self) noexcept nogil:
        pass

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        """Reads whole frames in [p, end) and says how far it came."""
        return end

    cdef const uint8_t *fail(self, const uint8_t *p, const void *text, size_t size) noexcept nogil:
        """Ends the flow, with what the server said of it: any bytes, of which those that are no text become blanks."""
        cdef size_t i
        if not self.failed:
            size = min(size, sizeof(self.fault_) - 1)
            for i in range(size):
                self.fault_[i] = (<const char *>text)[i] if (<const uint8_t *>text)[i] >= c' ' else c' '
            self.fault_[size] = 0
            self.failed = True
        return p

    cdef Py_ssize_t write(self, const uint8_t *p, size_t size) noexcept nogil:
        return send_some(self.fd, p, size) if self.tunnel is None else self.tunnel.write(p, size)

    cdef Py_ssize_t receive(self, bint block) noexcept nogil:
        """Takes what has come: how many bytes, or -1 when the flow is over."""
        cdef Buffer *inbox = &self.inbox
        cdef Py_ssize_t got
        cdef uint8_t *p
        cdef size_t size
        if inbox.size - inbox.end < RECEIVE_SIZE_MIN and not buffer_reserve(inbox, RECEIVE_SIZE_MIN):
            fail_with(self, NULL, b"no memory for the inbox")
            return -1
        p, size = inbox.data + inbox.end, inbox.size - inbox.end
        got = receive_some(self.fd, p, size, block) if self.tunnel is None else self.tunnel.read(p, size, block)
        if got == 0:
            return 0
        if got < 0:
            fail_with(self, NULL, b"the server ended the connection" if got == -1 else b"receiving failed")
            return -1
        inbox.end += got
        return self.taken(got)

    cdef Py_ssize_t taken(self, Py_ssize_t got) noexcept nogil:
        cdef Buffer *inbox = &self.inbox
        self.now = now_ns()
        inbox.begin = self.take(inbox.data + inbox.begin, inbox.data + inbox.end) - inbox.data
        if inbox.begin == inbox.end:
            inbox.begin = inbox.end = 0
        return -1 if self.failed else got

    cdef bint push(self) noexcept nogil:
        """Sends what the socket takes now; False where it fails."""
        cdef Py_ssize_t sent = self.write(self.outbox.data + self.outbox.begin, self.outbox.end - self.outbox.begin)
        self.outbox.begin += max(sent, 0)
        if self.outbox.begin == self.outbox.end:
            self.outbox.begin = self.outbox.end = 0
        return sent >= 0

    cdef bint flush(self) noexcept nogil:
        """The same; a failure is the end of the flow."""
        if self.push():
            return True
        # What the server said before it closed explains more than that it did.
        while not self.failed and self.receive(False) > 0:
            pass
        fail_with(self, NULL, b"sending failed")
        return False


cdef class Publisher(Flow):
    """Sends numbers first to first + total - 1 and counts their acks."""

    def __cinit__(self, *, bytes frame, int64_t total, int64_t window, int64_t group, int64_t batch=1, int64_t first=0,
                  double rate=0.0, int64_t queues=1, bint timed=False, bint verify=False, **_):
        """rate: messages/s, 0 for a closed loop. timed: acks go into `confirms`. verify: each must be awaited.
        batch: messages in the frame, which `fill` must be made for."""
        cdef int64_t i, ring = 1
        cdef size_t size = len(frame)
        self.first, self.total, self.window = first, total, window
        self.batch, self.group = batch, max(<int64_t>1, min(group, window // batch))
        self.interval_ns = <int64_t>(batch / rate * 1e9) if rate else 0
        self.queues, self.timed, self.named = queues, timed, timed or verify
        self.confirms = Histogram()
        self.frame_size = size
        for kind, mark in enumerate((NUMBER_MARK, STAMP_MARK, QUEUE_MARK)):
            at = frame.find(mark)
            while at >= 0:
                if self.patches_count == PATCHES_MAX:
                    raise ValueError(f"a frame: needed {PATCHES_MAX} marks at most, had more")
                self.patches[self.patches_count] = Patch(kind, at)
                self.patches_count += 1
                at = frame.find(mark, at + 1)
        while ring < self.window // batch + self.group:
            ring *= 2
        self.stamps_mask = ring - 1
        self.stamps = <int64_t *>calloc(ring, sizeof(int64_t))
        self.acked = <uint8_t *>calloc(max(1, total), 1) if verify else NULL
        if self.stamps is NULL or (verify and self.acked is NULL) or not buffer_reserve(&self.outbox, self.group * size):
            raise MemoryError
        for i in range(self.group):
            memcpy(self.outbox.data + i * size, <const uint8_t *>frame, size)

    def __dealloc__(self):
        free(self.stamps)
        free(self.acked)

    @property
    def confirmed(self):
        return self.settled - self.refused

    cdef void loop(self) noexcept nogil:
        cdef Py_ssize_t got
        cdef bint pending, block
        cdef int64_t looked = 0     # how many were sent when acks were last looked for
        self.start_ns = now_ns()
        if self.inbox.end and self.taken(0) < 0:
            return
        while self.settled < self.total and not load(&self.stopped):
            if self.outbox.end == 0:
                self.fill(self.due())
            if self.outbox.end and not self.flush():
                return
            pending = self.outbox.end != 0
            block = not pending and not self.interval_ns and not self.due()
            if not (block or pending or self.interval_ns) and self.sent - looked < self.window // LOOKS_IN_A_WINDOW:
                continue
            looked = self.sent
            got = self.receive(block)
            if got < 0:
                return
            if got == 0 and not block and (pending or (self.interval_ns and not self.due())):
                wait_for(self.fd, pending, min(<int64_t>IDLE_NS, self.pause_ns()))

    cdef int64_t due(self) noexcept nogil:
        """How many messages may be sent now: those of whole frames, but for the last one."""
        cdef int64_t left = self.total - self.sent, room = self.window - (self.sent - self.settled)
        cdef int64_t ready = self.group * self.batch
        if self.interval_ns:
            ready = min(ready, (now_ns() - self.start_ns) // self.interval_ns * self.batch - self.sent)
            ready = max(<int64_t>0, min(ready, room))
            return left if ready >= left else ready - ready % self.batch
        left = min(left, ready)
        return left if room >= left else 0

    cdef int64_t pause_ns(self) noexcept nogil:
        """Until the next frame's moment; long where there is none."""
        if not self.interval_ns or self.sent == self.total or self.sent - self.settled + self.batch > self.window:
            return IDLE_NS
        return max(<int64_t>0, self.start_ns + (self.sent // self.batch + 1) * self.interval_ns - now_ns())

    cdef void fill(self, int64_t count) noexcept nogil:
        """Puts so many messages into the outbox, here one in a frame."""
        cdef uint8_t *frame = self.outbox.data
        cdef uint8_t *at
        cdef int64_t i, number = self.first + self.sent, stamp = now_ns()
        cdef int j
        for i in range(count):
            if self.interval_ns:
                stamp = self.start_ns + (self.sent + i + 1) * self.interval_ns
            for j in range(self.patches_count):
                at = frame + self.patches[j].at
                if self.patches[j].kind == PATCH_STAMP:
                    put_hex8(at, <uint32_t>(stamp >> 32))
                    put_hex8(at + 8, <uint32_t>stamp)
                else:
                    put_hex8(at, <uint32_t>(number if self.patches[j].kind == PATCH_NUMBER else number % self.queues))
            self.stamps[<uint64_t>(self.sent + i) & self.stamps_mask] = stamp
            number += 1
            frame += self.frame_size
        self.outbox.end = count * self.frame_size
        store(&self.sent, self.sent + count)

    cdef void settle(self, int64_t count) noexcept nogil:
        """The oldest `count` were acknowledged, or it does not matter which."""
        cdef int64_t i
        if self.timed:
            for i in range(self.settled, min(self.settled + count, self.sent)):
                self.confirms.record_ns(self.now - self.stamps[<uint64_t>i & self.stamps_mask], 1)
        self.advance(count)

    cdef void advance(self, int64_t count) noexcept nogil:
        """So many more are settled."""
        if count <= 0:
            return
        if self.settled + count > self.sent:
            self.strange += self.settled + count - self.sent
            count = self.sent - self.settled
        store(&self.settled, self.settled + count)
        self.last_ns = self.now

    cdef void settle_number(self, int64_t number) noexcept nogil:
        """Message `number` was acknowledged."""
        cdef int64_t index = number - self.first
        if index < 0 or index >= self.sent or (self.acked is not NULL and self.acked[index]):
            self.strange += 1
            return
        if self.acked is not NULL:
            self.acked[index] = 1
        if self.timed:
            self.confirms.record_ns(self.now - self.stamps[<uint64_t>index & self.stamps_mask], 1)
        self.advance(1)


cdef class Consumer(Flow):
    """Takes messages and acknowledges each of them; done when it has had `wanted` of them, or is stopped."""

    def __cinit__(self, *, int64_t wanted, bytes opening=b"", bint timed=False, Tally tally=None, **_):
        """opening: what is sent before all else."""
        self.wanted, self.timed, self.tally = wanted, timed, tally
        self.observes = timed or tally is not None
        self.latencies = Histogram()
        self.next = <int64_t *>calloc(tally.queues if tally is not None else 1, sizeof(int64_t))
        if self.next is NULL or not buffer_reserve(&self.outbox, len(opening)):
            raise MemoryError
        memcpy(self.outbox.data, <const uint8_t *>opening, len(opening))
        self.outbox.end = len(opening)

    def __dealloc__(self):
        free(self.next)

    cdef void loop(self) noexcept nogil:
        cdef Py_ssize_t got
        cdef bint pending
        cdef int64_t before
        if self.inbox.end and self.taken(0) < 0:
            return
        while not load(&self.stopped):
            pending = self.outbox.end != 0
            if pending and not self.flush():
                return
            pending = self.outbox.end != 0
            if self.received >= self.wanted and not pending:
                return
            before = self.received
            got = self.receive(not pending)
            if got < 0:
                return
            if self.received > before:
                self.last_ns = self.now
            if got == 0 and pending:
                wait_for(self.fd, True, IDLE_NS)

    cdef void observe(self, const uint8_t *body, size_t size) noexcept nogil:
        cdef bint is_ours = size >= BODY_SIZE_MIN
        cdef int64_t number
        cdef int64_t *next
        if self.timed and is_ours:
            self.latencies.record_ns(self.now - body_stamp(body), 1)
        if self.tally is None:
            return
        number = get_hex8(body + BODY_NUMBER_AT) if is_ours else -1
        self.tally.note(number)
        if is_ours:
            next = self.next + number % self.tally.queues
            self.disordered += number < next[0]
            next[0] = number + 1
