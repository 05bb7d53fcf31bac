# SPDX-License-Identifier: Apache-2.0
"""The threads of the load generator: each a blocking loop in C without the GIL and without an allocation.

A message of 24 bytes or more begins with what the other end needs to judge it, in the machine's own byte order
since both ends are this process:

    0..7 when it was sent, or in an open loop should have been sent (CLOCK_MONOTONIC, ns)
    8..15 its number among its producer's messages     16..23 its producer

Closed loop: a producer sends as long as fewer than `window` messages are unconfirmed. Open loop: each frame has its
moment in a schedule that does not wait for the broker, and a latency counts from that moment, sent in time or not;
so a broker that stalls cannot hide it by slowing its clients down (coordinated omission).

The other thread of a connection only reads a few fields of this one, so the fields that both touch are read and
written with relaxed atomics; everything else belongs to one thread until it has ended.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memmove, memset

from vibemq.bench._histogram cimport Histogram
from vibemq.bench._sockets cimport receive, send_all
from vibemq.bench._tunnel cimport Tunnel, TunnelEnds, tunnel_receive, tunnel_send

from vibemq.protocols.streams import spec

cdef extern from *:
    """
    #include <errno.h>
    #include <time.h>
    #define vibemq_load(p) __atomic_load_n((p), __ATOMIC_RELAXED)
    #define vibemq_store(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)

    static int64_t vibemq_now_ns(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }
    static void vibemq_sleep_until_ns(int64_t until_ns) {
        struct timespec t = {until_ns / 1000000000, until_ns % 1000000000};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0) == EINTR) {}
    }
    static uint32_t vibemq_get_u16(const uint8_t *p) { return (uint32_t)p[0] << 8 | p[1]; }
    static uint32_t vibemq_get_u32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
    static uint64_t vibemq_get_u64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
    static void vibemq_put_u32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
    static void vibemq_put_u64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }
    """
    int64_t load "vibemq_load"(int64_t *p) noexcept nogil
    void store "vibemq_store"(int64_t *p, int64_t value) noexcept nogil
    int64_t now_ns "vibemq_now_ns"() noexcept nogil
    void sleep_until_ns "vibemq_sleep_until_ns"(int64_t until_ns) noexcept nogil
    uint32_t get_u16 "vibemq_get_u16"(const uint8_t *p) noexcept nogil
    uint32_t get_u32 "vibemq_get_u32"(const uint8_t *p) noexcept nogil
    uint64_t get_u64 "vibemq_get_u64"(const uint8_t *p) noexcept nogil
    void put_u32 "vibemq_put_u32"(uint8_t *p, uint32_t value) noexcept nogil
    void put_u64 "vibemq_put_u64"(uint8_t *p, uint64_t value) noexcept nogil

cdef enum:
    KEY_PUBLISH = 0x0002
    KEY_PUBLISH_CONFIRM = 0x0003
    KEY_PUBLISH_ERROR = 0x0004
    KEY_DELIVER = 0x0008
    KEY_CREDIT_ERROR = 0x8009
    KEY_METADATA_UPDATE = 0x0010
    KEY_CLOSE = 0x0016
    KEY_SUBSCRIBE_RESPONSE = 0x8007
    PUBLISH_HEADER_SIZE = 13  # size, key, version, publisher id, count
    PUBLISHING_ID_SIZE = 8
    SUB_BATCH_HEADER_SIZE = 11  # kind and compression, count, uncompressed size, size
    LENGTH_SIZE = 4
    CHUNK_HEADER_SIZE = 48
    INBOX_SIZE = 1 << 22
    RECEIVE_SIZE_MIN = 1 << 16
    # Credits for the chunks of one read leave in one write, a frame each, as clients do whose read is about so long:
    # a write for each small chunk measures the kernel, and one for a whole inbox would let the broker wait.
    CREDITED_SIZE = 1 << 16
    FRAME_SIZE_MAX = 1 << 30
    STAMPS_COUNT = 1 << 18  # sending times of frames on the way; load.py keeps every window below it
    WINDOW_SLEEP_NS = 20000  # a full window is looked at again after this, and then after twice as long each time:
    WINDOW_SLEEP_MOST_NS = 1000000  # hundreds of senders that wait must not take the cores from the broker

STAMP_SIZE_BYTES = 24  # sending time, number, producer: smaller messages cannot be verified or timed
assert spec.Key.PUBLISH == KEY_PUBLISH and spec.CHUNK_HEADER_SIZE_BYTES == CHUNK_HEADER_SIZE


cdef struct Inbox:
    int fd
    uint8_t *buffer
    size_t begin
    size_t end
    size_t size
    TunnelEnds *tunnel  # of the owner's Tunnel; NULL: bytes go straight to the socket


cdef int send_out(Inbox *inbox, const uint8_t *p, size_t size) noexcept nogil:
    """As send_all, through the tunnel if there is one."""
    return send_all(inbox.fd, p, size) if inbox.tunnel is NULL else tunnel_send(inbox.tunnel, p, size)


cdef Py_ssize_t receive_in(Inbox *inbox, uint8_t *p, size_t size) noexcept nogil:
    """As receive, through the tunnel if there is one."""
    return receive(inbox.fd, p, size, True) if inbox.tunnel is NULL else tunnel_receive(inbox.tunnel, p, size)


cdef const uint8_t *next_frame(Inbox *inbox, uint32_t *size) noexcept nogil:
    """The next frame behind its size field, which goes to `size`; NULL at the connection's end or on nonsense."""
    cdef size_t needed = 4, held
    cdef Py_ssize_t got
    cdef uint8_t *larger
    while True:
        held = inbox.end - inbox.begin
        if held >= 4:
            needed = 4 + <size_t>get_u32(inbox.buffer + inbox.begin)
            if needed > FRAME_SIZE_MAX or needed < 8:
                return NULL
            if held >= needed:
                size[0] = <uint32_t>(needed - 4)
                inbox.begin += needed
                return inbox.buffer + inbox.begin - needed + 4
        if inbox.begin and (held == 0 or inbox.size - inbox.begin < needed or inbox.size - inbox.end < RECEIVE_SIZE_MIN):
            memmove(inbox.buffer, inbox.buffer + inbox.begin, held)
            inbox.begin, inbox.end = 0, held
        if inbox.size < needed:
            larger = <uint8_t *>malloc(2 * needed)
            if larger is NULL:
                return NULL
            memcpy(larger, inbox.buffer, held)
            free(inbox.buffer)
            inbox.buffer, inbox.size = larger, 2 * needed
        got = receive_in(inbox, inbox.buffer + inbox.end, inbox.size - inbox.end)
        if got <= 0:
            return NULL
        inbox.end += got


cdef bint has_frame(const Inbox *inbox) noexcept nogil:
    """Would next_frame give one without receiving?"""
    cdef size_t held = inbox.end - inbox.begin
    return held >= 4 and held - 4 >= get_u32(inbox.buffer + inbox.begin)


cdef class Producer:
    """One publishing connection; `send` and `read_confirms` are the bodies of its two threads."""

    cdef Inbox inbox
    cdef Tunnel tunnel
    cdef int64_t total, batch, size, group, window, interval_ns, number
    cdef int64_t entry  # messages under one publishing id
    cdef bint sub_batches
    cdef bytes filter_value
    cdef int64_t sent_, settled, refused_, stopped
    cdef int64_t *stamps
    cdef readonly int64_t last_confirm_ns, refused_code, close_code, send_error
    cdef readonly Histogram confirms

    def __cinit__(self, *, int fd, int64_t number, int64_t total, int64_t batch, int64_t size, int64_t group,
                  int64_t window, double rate, bint timed, int64_t sub_batch=0, bytes filter_value=b"", tunnel=None):
        """rate: messages/s of this producer, 0 for a closed loop. timed: confirms are recorded into `confirms`.
        sub_batch: so many messages in each sub-entry batch; `total` and `batch` are multiples of it.
        filter_value: of each message. tunnel: for TLS."""
        self.number, self.total, self.batch, self.size = number, total, batch, size
        self.sub_batches, self.entry, self.filter_value = sub_batch > 0, max(1, sub_batch), filter_value
        self.window, self.group = window, 1 if rate else group
        self.interval_ns = <int64_t>(batch / rate * 1e9) if rate else 0
        self.confirms = Histogram()
        self.inbox = Inbox(fd=fd, buffer=<uint8_t *>malloc(INBOX_SIZE), begin=0, end=0, size=INBOX_SIZE,
                           tunnel=NULL)
        self.tunnel = tunnel
        if tunnel is not None:
            self.inbox.tunnel = &self.tunnel.ends
        if timed:
            self.stamps = <int64_t *>calloc(STAMPS_COUNT, sizeof(int64_t))
        if self.inbox.buffer is NULL or (timed and self.stamps is NULL):
            raise MemoryError

    def __dealloc__(self):
        free(self.inbox.buffer)
        free(self.stamps)

    @property
    def sent(self):
        return load(&self.sent_)

    @property
    def confirmed(self):
        return load(&self.settled) - load(&self.refused_)

    @property
    def refused(self):
        return load(&self.refused_)

    def stop(self):
        store(&self.stopped, 1)

    def send(self):
        """Publishes everything, then returns; earlier after stop() or when the connection ended."""
        cdef const uint8_t *filter_value = self.filter_value
        cdef size_t filter_size = len(self.filter_value)
        # What lies between a publishing id and the first message of its entry.
        cdef size_t prefix = SUB_BATCH_HEADER_SIZE if self.sub_batches else 2 + filter_size if filter_size else 0
        cdef size_t entry_size = PUBLISHING_ID_SIZE + prefix + self.entry * (LENGTH_SIZE + self.size)
        cdef size_t frame_size = PUBLISH_HEADER_SIZE + self.batch // self.entry * entry_size
        cdef uint8_t *frames = <uint8_t *>malloc(frame_size * self.group)
        cdef int64_t j
        if frames is NULL:
            raise MemoryError
        with nogil:
            for j in range(self.group):
                self.fill_template(frames + j * frame_size, filter_value, filter_size)
            self.send_loop(frames, prefix, entry_size)
        free(frames)

    cdef void fill_template(self, uint8_t *p, const uint8_t *filter_value, size_t filter_size) noexcept nogil:
        """All of a frame that never changes: headers, sizes and the letters behind the stamp."""
        cdef int64_t i, j
        cdef uint32_t body = <uint32_t>(self.entry * (LENGTH_SIZE + self.size))
        put_u32(p + 4, (KEY_PUBLISH << 16) | (2 if filter_size else 1))
        p[8] = 0
        p += PUBLISH_HEADER_SIZE
        for i in range(self.batch // self.entry):
            p += PUBLISHING_ID_SIZE
            if self.sub_batches:
                p[0], p[1], p[2] = 0x80, <uint8_t>(self.entry >> 8), <uint8_t>self.entry
                put_u32(p + 3, body)
                put_u32(p + 7, body)
                p += SUB_BATCH_HEADER_SIZE
            elif filter_size:
                p[0], p[1] = <uint8_t>(filter_size >> 8), <uint8_t>filter_size
                memcpy(p + 2, filter_value, filter_size)
                p += 2 + filter_size
            for j in range(self.entry):
                put_u32(p, <uint32_t>self.size)
                memset(p + LENGTH_SIZE, <uint8_t>(c'a' + (i + j) % 26), self.size)
                p += LENGTH_SIZE + self.size

    cdef void send_loop(self, uint8_t *frames, size_t prefix, size_t entry_size) noexcept nogil:
        cdef int64_t sent = 0, count, i, j, stamp, scheduled = now_ns(), entry = self.entry, size = self.size
        cdef bint stamped = self.size >= 24
        cdef uint8_t *end = frames
        cdef uint8_t *p
        cdef int64_t held = 0, pause
        while sent < self.total:
            count = min(self.batch, self.total - sent)
            if self.interval_ns:
                scheduled += self.interval_ns
                if now_ns() < scheduled:
                    sleep_until_ns(scheduled)
            pause = WINDOW_SLEEP_NS
            while sent - load(&self.settled) > self.window:
                if load(&self.stopped):
                    return
                sleep_until_ns(now_ns() + pause)
                pause = min(pause * 2, <int64_t> WINDOW_SLEEP_MOST_NS)
            if load(&self.stopped):
                return
            stamp = scheduled if self.interval_ns else now_ns()
            if self.stamps is not NULL:
                store(&self.stamps[(sent // self.batch) % STAMPS_COUNT], stamp)
            put_u32(end, <uint32_t>(PUBLISH_HEADER_SIZE - 4 + count // entry * entry_size))
            put_u32(end + 9, <uint32_t>(count // entry))
            p = end + PUBLISH_HEADER_SIZE
            for i in range(count // entry):
                put_u64(p, <uint64_t>(sent // entry + i + 1))
                p += PUBLISHING_ID_SIZE + prefix
                for j in range(entry):
                    p += LENGTH_SIZE
                    if stamped:
                        memcpy(p, &stamp, 8)
                        (<int64_t *>(p + 8))[0] = sent + i * entry + j
                        memcpy(p + 16, &self.number, 8)
                    p += size
            end, sent, held = p, sent + count, held + 1
            if held == self.group or sent >= self.total:
                self.send_error = send_out(&self.inbox, frames, end - frames)
                if self.send_error:
                    return
                end, held = frames, 0
            store(&self.sent_, sent)

    def read_confirms(self):
        """Until everything is confirmed or refused, or the connection ends."""
        with nogil:
            self.confirm_loop()
        self.stop()  # a sender that waits for its window must not wait for ever

    cdef void confirm_loop(self) noexcept nogil:
        cdef uint32_t size = 0, key, count, i
        cdef const uint8_t *frame
        cdef int64_t now
        while load(&self.settled) < self.total:
            frame = next_frame(&self.inbox, &size)
            if frame is NULL:
                return
            key = get_u16(frame)
            if key == KEY_PUBLISH_CONFIRM and size >= 9:
                count = min(get_u32(frame + 5), (size - 9) // 8)
                if self.stamps is not NULL:
                    now = now_ns()
                    for i in range(count):
                        self.confirms.record_ns(now - load(&self.stamps[self.stamp_of(frame + 9 + 8 * i)]), 1)
                store(&self.settled, load(&self.settled) + count * self.entry)
            elif key == KEY_PUBLISH_ERROR and size >= 9:
                count = min(get_u32(frame + 5), (size - 9) // 10)
                if count:
                    self.refused_code = get_u16(frame + 17)
                store(&self.refused_, load(&self.refused_) + count * self.entry)
                store(&self.settled, load(&self.settled) + count * self.entry)
            elif key == KEY_CLOSE and size >= 10:
                self.close_code = get_u16(frame + 8)
                return
            elif key == KEY_METADATA_UPDATE:
                return
            self.last_confirm_ns = now_ns()

    cdef inline int64_t stamp_of(self, const uint8_t *publishing_id) noexcept nogil:
        return ((<int64_t>get_u64(publishing_id) - 1) * self.entry // self.batch) % STAMPS_COUNT


cdef class Consumer:
    """One subscribed connection; `read` is the body of its thread."""

    cdef Inbox inbox
    cdef Tunnel tunnel
    cdef bytes subscribe, credit
    cdef int64_t wanted, received_, chunks_, disordered_
    cdef bint verify, timed
    cdef int64_t *expected
    cdef int64_t producers
    cdef readonly int64_t last_chunk_ns, subscribe_code, close_code, send_error
    cdef readonly Histogram latencies

    def __cinit__(self, *, int fd, bytes subscribe, bytes credit, int64_t wanted, int64_t producers, bint verify,
                  bint timed, tunnel=None):
        """subscribe, credit: whole frames. verify: each producer's numbers must be unbroken. timed: record latencies.
        tunnel: for TLS."""
        self.subscribe, self.credit, self.wanted = subscribe, credit, wanted
        self.verify, self.timed, self.producers = verify, timed, producers
        self.latencies = Histogram()
        self.expected = <int64_t *>calloc(max(1, producers), sizeof(int64_t))
        self.inbox = Inbox(fd=fd, buffer=<uint8_t *>malloc(INBOX_SIZE), begin=0, end=0, size=INBOX_SIZE,
                           tunnel=NULL)
        self.tunnel = tunnel
        if tunnel is not None:
            self.inbox.tunnel = &self.tunnel.ends
        if self.inbox.buffer is NULL or self.expected is NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.inbox.buffer)
        free(self.expected)

    @property
    def received(self):
        return load(&self.received_)

    @property
    def chunks(self):
        return self.chunks_

    @property
    def disordered(self):
        """Messages whose number was not the one after its producer's last, or whose bytes made no sense."""
        return self.disordered_

    def read(self):
        """Subscribes, and reads until all that is wanted has come or the connection ends."""
        cdef const uint8_t *subscribe = self.subscribe
        cdef bytes frames = self.credit * (CREDITED_SIZE // CHUNK_HEADER_SIZE + 1)
        cdef const uint8_t *credits = frames
        cdef size_t subscribe_size = len(self.subscribe), credit_size = len(self.credit)
        with nogil:
            self.send_error = send_out(&self.inbox, subscribe, subscribe_size)
            if not self.send_error:
                self.read_loop(credits, credit_size)

    cdef void read_loop(self, const uint8_t *credits, size_t credit_size) noexcept nogil:
        """credits: Credit frames, one for each chunk that CREDITED_SIZE bytes can hold."""
        cdef uint32_t size = 0, key, head
        cdef size_t owed = 0, owed_size = 0  # frames to send, and the bytes of the chunks they are for
        cdef const uint8_t *frame
        while load(&self.received_) < self.wanted:
            if owed and (owed_size >= CREDITED_SIZE or not has_frame(&self.inbox)):
                self.send_error = send_out(&self.inbox, credits, owed)
                if self.send_error:
                    return
                owed = owed_size = 0
            frame = next_frame(&self.inbox, &size)
            if frame is NULL:
                return
            key = get_u16(frame)
            if key == KEY_DELIVER:
                head = 5 if frame[3] == 1 else 13  # key, version, subscription id; v2: last committed chunk id
                if size < head + CHUNK_HEADER_SIZE:
                    return
                owed += credit_size
                owed_size += size
                if self.verify or self.timed:
                    self.walk(frame + head, size - head)
                self.chunks_ += 1
                store(&self.received_, load(&self.received_) + get_u32(frame + head + 4))
                self.last_chunk_ns = now_ns()
            elif key == KEY_SUBSCRIBE_RESPONSE and size >= 10:
                self.subscribe_code = get_u16(frame + 8)
                if self.subscribe_code != 1:
                    return
            elif key == KEY_CLOSE and size >= 10:
                self.close_code = get_u16(frame + 8)
                return
            elif key == KEY_METADATA_UPDATE or key == KEY_CREDIT_ERROR:
                return

    cdef void walk(self, const uint8_t *chunk, size_t size) noexcept nogil:
        """Each message of a chunk. What our producers did not write counts as disordered."""
        cdef uint32_t entries = get_u16(chunk + 2), i, messages
        cdef const uint8_t *p = chunk + CHUNK_HEADER_SIZE
        cdef const uint8_t *end = chunk + size
        cdef int64_t now = now_ns() if self.timed else 0
        for i in range(entries):
            messages = 1
            if end - p >= SUB_BATCH_HEADER_SIZE and p[0] >> 4 == 8:  # a sub-batch that is not compressed
                messages = get_u16(p + 1)
                p += SUB_BATCH_HEADER_SIZE
            p = self.walk_messages(p, end, messages, now)
            if p is NULL:
                self.disordered_ += entries - i
                return

    cdef const uint8_t *walk_messages(self, const uint8_t *p, const uint8_t *end, uint32_t messages,
                                      int64_t now) noexcept nogil:
        """So many messages of an entry: where they end, NULL if they make no sense."""
        cdef uint32_t i, length
        cdef int64_t stamp[3]
        for i in range(messages):
            if end - p < LENGTH_SIZE:
                return NULL
            length = get_u32(p)
            if length >> 31 or <size_t>(end - p) < LENGTH_SIZE + <size_t>length:
                return NULL
            if length >= 24:
                memcpy(stamp, p + LENGTH_SIZE, 24)
                if self.timed:
                    self.latencies.record_ns(now - stamp[0], 1)
                if self.verify:
                    if <uint64_t>stamp[2] >= <uint64_t>self.producers or self.expected[stamp[2]] != stamp[1]:
                        self.disordered_ += 1
                    if <uint64_t>stamp[2] < <uint64_t>self.producers:
                        self.expected[stamp[2]] = stamp[1] + 1
            p += LENGTH_SIZE + length
        return p
