# SPDX-License-Identifier: Apache-2.0
"""Load threads for the servers that stand beside ours: NATS JetStream, Redis Streams, and AMQP 0-9-1 (RabbitMQ).

Each does what its server likes best as far as the promise is the same: every message is confirmed to its publisher
and acknowledged by its consumer. What a server says rarely (NATS PING) is not answered: a run is over before it minds.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc
from libc.string cimport memchr, memcmp, memcpy

from vibemq.bench._flow cimport Consumer, Publisher, fail_with, get_hex8, get_u32, get_u64

cdef enum:
    LINE_SIZE_MAX = 1 << 16
    NUMBER_SIZE = 8
    REDIS_FIELD_SIZE = 11       # *2 CR LF $1 CR LF d CR LF
    AMQP_METHOD = 1
    AMQP_HEADER = 2
    AMQP_BODY = 3
    AMQP_HEARTBEAT = 8
    AMQP_FRAME_END = 0xCE
    AMQP_OVERHEAD = 8           # type, channel, size, end
    AMQP_BASIC_ACK = 60 << 16 | 80
    AMQP_BASIC_DELIVER = 60 << 16 | 60
    AMQP_ACK_SIZE = AMQP_OVERHEAD + 13


cdef inline const uint8_t *line_end(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """The CR of the line at p, or NULL where it is not whole."""
    cdef const uint8_t *found = <const uint8_t *>memchr(p, c'\n', end - p)
    return found - 1 if found is not NULL and found > p else NULL


cdef inline int64_t decimal(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """The number written in [p, end); -1 where there is none."""
    cdef int64_t value = 0
    if p == end or end - p > 18:
        return -1
    while p < end:
        if <uint8_t>(p[0] - c'0') > 9:
            return -1
        value = value * 10 + (p[0] - c'0')
        p += 1
    return value


cdef inline uint8_t *put_decimal(uint8_t *p, uint64_t number) noexcept nogil:
    cdef uint8_t digits[20]
    cdef int count = 0
    while True:
        digits[count] = <uint8_t>(c'0' + number % 10)
        count += 1
        number = number // 10
        if number == 0:
            break
    while count:
        count -= 1
        p[0] = digits[count]
        p += 1
    return p


# ---- NATS: MSG <subject> <sid> [reply] <size> CR LF body CR LF ----


cdef struct nats_message:
    const uint8_t *subject
    const uint8_t *subject_end
    const uint8_t *reply
    const uint8_t *reply_end
    const uint8_t *body
    size_t size
    const uint8_t *next


cdef int nats_parse(const uint8_t *p, const uint8_t *end, nats_message *out) noexcept nogil:
    """1: a message; 0: not whole yet; 2: another line, to skip; -1: an error line or nonsense."""
    cdef const uint8_t *cr = line_end(p, end)
    cdef const uint8_t *at
    cdef int64_t size
    if cr is NULL:
        return -1 if end - p > LINE_SIZE_MAX else 0
    out.next = cr + 2
    if p[0] == c'-' or p[0] == c'H':  # H: a message with headers, which only a server that refuses sends us
        return -1
    if p[0] != c'M':
        return 2
    out.subject = p + 4
    out.subject_end = <const uint8_t *>memchr(out.subject, c' ', cr - out.subject)
    if out.subject_end is NULL:
        return -1
    at = <const uint8_t *>memchr(out.subject_end + 1, c' ', cr - out.subject_end - 1)
    if at is NULL:
        return -1
    out.reply = at + 1
    out.reply_end = <const uint8_t *>memchr(out.reply, c' ', cr - out.reply)
    if out.reply_end is NULL:
        size = decimal(out.reply, cr)
        out.reply_end = out.reply
    else:
        size = decimal(out.reply_end + 1, cr)
    if size < 0:
        return -1
    out.body, out.size = cr + 2, size
    if <size_t>(end - out.body) < out.size + 2:
        return 0
    out.next = out.body + size + 2
    return 1


cdef class NatsPublisher(Publisher):
    """Each message names a reply subject that ends with its number; there JetStream's PubAck comes."""

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef nats_message m
        cdef int found
        cdef int64_t count = 0
        while p < end:
            found = nats_parse(p, end, &m)
            if found == 0:
                break
            if found < 0:
                return self.fail(p, p, end - p)
            if found == 1:
                if m.size >= 8 and memcmp(m.body, b'{"error"', 8) == 0:
                    return self.fail(p, m.body, m.size)
                if not self.named:
                    count += 1
                elif m.subject_end - m.subject < NUMBER_SIZE:
                    self.strange += 1
                else:
                    self.settle_number(get_hex8(m.subject_end - NUMBER_SIZE))
            p = m.next
        self.settle(count)
        return p


cdef class NatsConsumer(Consumer):
    """A push consumer with explicit acks."""

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef nats_message m
        cdef int found
        cdef int64_t count = 0
        cdef size_t reply_size
        cdef uint8_t *out
        while p < end:
            found = nats_parse(p, end, &m)
            if found == 0:
                break
            if found < 0:
                return self.fail(p, p, end - p)
            if found == 1:
                if self.observes:
                    self.observe(m.body, m.size)
                reply_size = m.reply_end - m.reply
                out = self.room(reply_size + 14)
                if out is NULL:
                    return p
                memcpy(out, b"PUB ", 4)
                memcpy(out + 4, m.reply, reply_size)
                memcpy(out + 4 + reply_size, b" 4\r\n+ACK\r\n", 10)
                self.outbox.end += reply_size + 14
                count += 1
            p = m.next
        self.gain(count)
        return p


# ---- Redis: RESP ----


cdef class RedisPublisher(Publisher):
    """Answers to XADD: $size CR LF id CR LF, in order."""

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef const uint8_t *cr
        cdef int64_t size, count = 0
        while p < end:
            cr = line_end(p, end)
            if cr is NULL:
                break
            size = decimal(p + 1, cr) if p[0] == c'$' else -1
            if size < 0:
                return self.fail(p, p, cr - p)
            if end - cr < 2 + size + 2:
                break
            p = cr + 2 + size + 2
            count += 1
        self.settle(count)
        return p


cdef class RedisConsumer(Consumer):
    """XREADGROUP again and again, with one XACK for the ids of each answer. `read` and `ack` are those commands,
    `ack` without the array's head, whose count depends on the ids: it has `ack_words` words without them."""

    cdef bytes read_, ack_
    cdef const uint8_t *read_text
    cdef const uint8_t *ack_text
    cdef size_t read_size, ack_size
    cdef int64_t ack_words, entries  # entries: still to come of this answer

    def __cinit__(self, *, bytes read, bytes ack, int64_t ack_words, int ahead=1, **_):
        cdef int i
        self.read_, self.ack_, self.ack_words = read, ack, ack_words
        self.read_text, self.read_size = self.read_, len(read)
        self.ack_text, self.ack_size = self.ack_, len(ack)
        for i in range(ahead):
            self.put(self.read_text, self.read_size)

    cdef void put(self, const uint8_t *text, size_t size) noexcept nogil:
        cdef uint8_t *out = self.room(size)
        if out is not NULL:
            memcpy(out, text, size)
            self.outbox.end += size

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef const uint8_t *next
        while p < end and not self.failed:
            next = self.entry(p, end) if self.entries else self.answer(p, end)
            if next is NULL:
                break
            p = next
        return p

    cdef const uint8_t *answer(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        """The head of an answer to XREADGROUP, up to its first entry, or the whole answer to XACK."""
        cdef const uint8_t *cr = line_end(p, end)
        cdef const uint8_t *at = p
        cdef uint8_t head[32]
        cdef uint8_t *h
        cdef int64_t size
        cdef int i
        if cr is NULL:
            return NULL
        if p[0] == c':':
            return cr + 2
        if p[0] != c'*':
            return self.fail(p, p, cr - p)
        if p[1] == c'-':  # nothing came for as long as it was told to block
            self.put(self.read_text, self.read_size)
            return cr + 2
        for i in range(2):  # one stream; its name and its entries
            at = cr + 2
            cr = line_end(at, end) if at < end else NULL
            if cr is NULL:
                return NULL
        size = decimal(at + 1, cr) if at[0] == c'$' else -1
        if size < 0:
            return fail_with(self, p, b"needed the name of a stream")
        at = cr + 2 + size + 2
        cr = line_end(at, end) if at < end else NULL
        if cr is NULL:
            return NULL
        self.entries = decimal(at + 1, cr) if at[0] == c'*' else -1
        if self.entries < 1:
            self.entries = 0
            return fail_with(self, p, b"needed the number of entries")
        head[0] = c'*'
        h = put_decimal(head + 1, self.ack_words + self.entries)
        h[0], h[1] = c'\r', c'\n'
        self.put(head, h + 2 - head)
        self.put(self.ack_text, self.ack_size)
        return cr + 2

    cdef const uint8_t *entry(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        """*2, $ id, *2, $1, d, $ body."""
        cdef const uint8_t *id_line
        cdef const uint8_t *id_end
        cdef const uint8_t *line
        cdef const uint8_t *cr = line_end(p, end)
        cdef int64_t size
        if cr is NULL or cr + 2 >= end:
            return NULL
        id_line = cr + 2
        cr = line_end(id_line, end)
        if cr is NULL:
            return NULL
        size = decimal(id_line + 1, cr) if id_line[0] == c'$' else -1
        if size < 0:
            return fail_with(self, p, b"needed the id of an entry")
        id_end = cr + 2 + size + 2
        line = id_end + REDIS_FIELD_SIZE
        if end - id_end <= REDIS_FIELD_SIZE:
            return NULL
        cr = line_end(line, end)
        if cr is NULL:
            return NULL
        size = decimal(line + 1, cr) if line[0] == c'$' else -1
        if size < 0:
            return fail_with(self, p, b"needed the body of an entry")
        if end - cr < 2 + size + 2:
            return NULL
        if self.observes:
            self.observe(cr + 2, size)
        self.put(id_line, id_end - id_line)
        self.gain(1)
        self.entries -= 1
        if self.entries == 0:
            self.put(self.read_text, self.read_size)
        return cr + 2 + size + 2


# ---- AMQP 0-9-1: type, channel, size, body, end ----


cdef size_t amqp_frame(const uint8_t *p, const uint8_t *end, bint *wrong) noexcept nogil:
    """The size of the frame at p; 0: not whole yet."""
    cdef size_t size
    if end - p < AMQP_OVERHEAD:
        return 0
    size = AMQP_OVERHEAD + <size_t>get_u32(p + 3)
    if size > 1 << 27:
        wrong[0] = True
        return 0
    if <size_t>(end - p) < size:
        return 0
    if p[size - 1] != AMQP_FRAME_END:
        wrong[0] = True
        return 0
    return size


cdef class AmqpPublisher(Publisher):
    """Publisher confirms: a basic.ack settles one delivery tag, or all up to it."""

    cdef int64_t tag  # all up to here are settled, and perhaps more

    def __cinit__(self, *, int64_t total, **_):
        # An ack of many says nothing of those among them that were acknowledged singly before.
        if self.acked is NULL:
            self.acked = <uint8_t *>calloc(max(1, total), 1)
        if self.acked is NULL:
            raise MemoryError

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef size_t size
        cdef int64_t tag
        cdef bint wrong = False
        while True:
            size = amqp_frame(p, end, &wrong)
            if size == 0:
                break
            if p[0] == AMQP_METHOD and size >= AMQP_ACK_SIZE and get_u32(p + 7) == AMQP_BASIC_ACK:
                tag = <int64_t>get_u64(p + 11)
                if tag > self.sent:
                    self.strange += 1
                elif p[19] & 1:
                    while self.tag < tag:
                        self.settle_next()
                elif tag == self.tag + 1:
                    self.settle_next()
                else:
                    self.settle_number(self.first + tag - 1)
            elif p[0] != AMQP_HEARTBEAT:
                return self.fail(p, p + 7, size - AMQP_OVERHEAD)
            p += size
        return fail_with(self, p, b"needed an AMQP frame, had other bytes") if wrong else p

    cdef void settle_next(self) noexcept nogil:
        if not self.acked[self.tag]:
            self.settle_number(self.first + self.tag)
        self.tag += 1


cdef class AmqpConsumer(Consumer):
    """basic.deliver, header, body; answered with basic.ack of that one tag."""

    cdef uint8_t ack[AMQP_ACK_SIZE]

    def __cinit__(self, *, bytes ack, **_):
        """ack: the whole frame; the tag in it is overwritten."""
        if len(ack) != AMQP_ACK_SIZE:
            raise ValueError(f"ack: needed {AMQP_ACK_SIZE} bytes, had {len(ack)}")
        memcpy(self.ack, <const uint8_t *>ack, AMQP_ACK_SIZE)

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef size_t size
        cdef bint wrong = False
        cdef int64_t count = 0
        cdef uint8_t *out
        while True:
            size = amqp_frame(p, end, &wrong)
            if size == 0:
                break
            if p[0] == AMQP_BODY:
                if self.observes:
                    self.observe(p + 7, size - AMQP_OVERHEAD)
                out = self.room(AMQP_ACK_SIZE)
                if out is NULL:
                    return p
                memcpy(out, self.ack, AMQP_ACK_SIZE)
                self.outbox.end += AMQP_ACK_SIZE
                count += 1
            elif p[0] == AMQP_METHOD and size >= AMQP_OVERHEAD + 14 and get_u32(p + 7) == AMQP_BASIC_DELIVER:
                if <size_t>p[11] + 12 + 8 > size - 1:
                    return fail_with(self, p, b"a basic.deliver ends inside its tag")
                memcpy(self.ack + 11, p + 12 + p[11], 8)
            elif p[0] != AMQP_HEADER and p[0] != AMQP_HEARTBEAT:
                return self.fail(p, p + 7, size - AMQP_OVERHEAD)
            p += size
        self.gain(count)
        return fail_with(self, p, b"needed an AMQP frame, had other bytes") if wrong else p


# ---- a bare round trip ----


cdef class EchoPublisher(Publisher):
    """Counts answers of a fixed size: what a round trip costs without any broker in it."""

    cdef size_t reply_size

    def __cinit__(self, *, int reply_size, **_):
        self.reply_size = reply_size

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef size_t count = <size_t>(end - p) // self.reply_size
        self.settle(count)
        return p + count * self.reply_size
