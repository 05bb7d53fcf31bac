# SPDX-License-Identifier: Apache-2.0
"""Both ends of a load over our protocols: what is patched into what is published, and what is made of what comes.

Native frames are skipped by their length and told apart by their type; an id is only read where acks are verified or
timed. A message of the streams protocol that has 24 bytes or more begins with what the other end needs to judge it, in
the machine's own byte order since both ends are this process:

    0..7 when it was sent, or in an open loop should have been sent (CLOCK_MONOTONIC, ns)
    8..15 its number among its producer's messages     16..23 its producer
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from vibemq.bench._flow cimport (
    Consumer, Flow, Publisher, fail_with, get_hex8, get_u16, get_u32, get_u64, now_ns, put_u32, put_u64, store,
)
from vibemq.protocols.native.wire cimport (
    BODY_FIXED_BYTES, FRAME_HEADER_BYTES, FRAME_OK, TYPE_ACK, TYPE_DELIVER, TYPE_ERROR, TYPE_PONG, TYPE_PUBLISH_ACK,
    frame_begin, frame_end, frame_parse, frame_payload, native_frame, pong_size,
)
from vibemq.protocols.streams.wire cimport (
    KEY_DELIVER, KEY_PUBLISH, KEY_PUBLISH_CONFIRM, KEY_PUBLISH_ERROR, MESSAGE_HEADER_BYTES, PUBLISHING_ID_BYTES,
    SUB_BATCH_HEADER_BYTES,
)

from vibemq.protocols.streams import spec

cdef enum:
    FRAME_SIZE_MAX = 1 << 30    # beyond any server's limit: what is larger is no frame
    ID_AT = 9                   # header, version, type, length
    NUMBER_SIZE = 8
    KEY_CREDIT_ERROR = 0x8009
    KEY_METADATA_UPDATE = 0x0010
    KEY_CLOSE = 0x0016
    KEY_SUBSCRIBE_RESPONSE = 0x8007
    CODE_OK = 1
    KEY_AT = 4                  # in a frame, behind its size
    COUNT_AT = 9                # of what a Publish, a PublishConfirm or a PublishError has
    LIST_AT = 13
    CODE_AT = 12                # in a Close or an answer
    CHUNK_HEADER_SIZE = 48
    STAMP_SIZE = 24
    # Credits for the chunks of one read leave in one write, a frame each, as clients do whose read is about so long:
    # a write for each small chunk measures the kernel, and one for a whole inbox would let the broker wait.
    CREDITED_SIZE = 1 << 16

STAMP_SIZE_BYTES = STAMP_SIZE  # sending time, number, producer: smaller messages cannot be verified or timed
assert spec.CHUNK_HEADER_SIZE_BYTES == CHUNK_HEADER_SIZE


cdef size_t no_frame(Flow flow) noexcept nogil:
    fail_with(flow, NULL, b"needed a frame, had other bytes")
    return 0


cdef size_t whole_frame(Flow flow, const uint8_t *p, const uint8_t *end, size_t head, size_t least) noexcept nogil:
    """The size of the frame at p, or 0 where it is not whole yet or is no frame, which ends the flow.

    head: what stands before the bytes that its first field counts; least: the fewest of these.
    """
    cdef size_t size
    if <size_t>(end - p) < head:
        return 0
    size = get_u32(p)
    if size < least or size > FRAME_SIZE_MAX:
        return no_frame(flow)
    return head + size if <size_t>(end - p) >= head + size else 0


# ---- the native protocol ----


cdef size_t native_whole(Flow flow, const uint8_t *p, const uint8_t *end) noexcept nogil:
    cdef size_t size = whole_frame(flow, p, end, FRAME_HEADER_BYTES, BODY_FIXED_BYTES)
    return size if size == 0 or not p[4] else no_frame(flow)  # compressed, which nobody has asked for


cdef int native_fault(Flow flow, const uint8_t *p, size_t size, const char *other) noexcept nogil:
    """Ends the flow with what an Error says, or with `other`."""
    cdef native_frame frame
    if p[6] == TYPE_ERROR and frame_parse(p + FRAME_HEADER_BYTES, size - FRAME_HEADER_BYTES, &frame) == FRAME_OK:
        # The message lies behind the code, and its length between them is no text.
        flow.fail(p, frame.error_code, frame.error_code_size + 2 + frame.error_message_size)
    else:
        fail_with(flow, p, other)
    return 0


cdef class NativePublisher(Publisher):
    """The last eight characters of a message's id are its number."""

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef size_t size, id_size, count = 0
        while size := native_whole(self, p, end):
            if p[6] == TYPE_PUBLISH_ACK:
                if self.named:
                    id_size = get_u16(p + 7)
                    if id_size < NUMBER_SIZE or ID_AT + id_size > size:
                        self.strange += 1
                    else:
                        self.settle_number(get_hex8(p + ID_AT + id_size - NUMBER_SIZE))
                else:
                    count += 1
            elif p[6] != TYPE_PONG:
                native_fault(self, p, size, b"needed a PublishAck, had another frame")
                return p
            p += size
        self.settle(count)
        return p


cdef class NativeConsumer(Consumer):
    """Each Deliver is answered with an Ack whose id is the message's, as .NET clients do it."""

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef size_t size, id_size, queue_size, body_size, ack_size, head
        cdef uint8_t *out
        cdef long long count = 0
        while size := native_whole(self, p, end):
            if p[6] == TYPE_DELIVER:
                id_size = get_u16(p + 7)
                head = ID_AT + id_size + 6
                if head > size:
                    return fail_with(self, p, b"a Deliver ends inside its id")
                queue_size = get_u16(p + ID_AT + id_size)
                head += queue_size
                if head > size:
                    return fail_with(self, p, b"a Deliver ends inside its queue")
                body_size = get_u32(p + head - 4)
                if body_size > size - head:
                    return fail_with(self, p, b"a Deliver ends inside its payload")
                if self.observes:
                    self.observe(p + head, body_size)
                ack_size = pong_size(id_size, False)
                out = self.room(ack_size)
                if out is NULL:
                    return p
                frame_end(frame_payload(frame_begin(out, ack_size, TYPE_ACK, p + ID_AT, id_size, NULL, 0), NULL, 0, 0), False)
                self.outbox.end += ack_size
                count += 1
            elif p[6] != TYPE_PONG:
                native_fault(self, p, size, b"needed a Deliver, had another frame")
                return p
            p += size
        self.gain(count)
        return p


# ---- the streams protocol ----


def publish_frame(int64_t batch, int64_t size, int64_t sub_batch=0, bytes filter_value=b""):
    """A Publish of so many messages of so many letters; numbers and stamps are written when it is sent."""
    cdef int64_t entry = max(<int64_t>1, sub_batch), i
    messages = [size.to_bytes(MESSAGE_HEADER_BYTES, "big") + bytes([c'a' + i % 26]) * size for i in range(batch)]
    frame = [KEY_PUBLISH.to_bytes(2, "big"), b"\0\2" if filter_value else b"\0\1", b"\0", (batch // entry).to_bytes(4, "big")]
    for i in range(0, batch, entry):
        body = b"".join(messages[i : i + entry])
        frame.append(bytes(PUBLISHING_ID_BYTES))
        if sub_batch:
            frame += [b"\x80", entry.to_bytes(2, "big"), 2 * len(body).to_bytes(4, "big")]
        elif filter_value:
            frame += [len(filter_value).to_bytes(2, "big"), filter_value]
        frame.append(body)
    whole = b"".join(frame)
    return len(whole).to_bytes(KEY_AT, "big") + whole


cdef bint streams_fault(Flow flow, const uint8_t *p, size_t size, uint32_t key) noexcept nogil:
    """Ends the flow where its connection or its stream has ended; False where it has not."""
    if key == KEY_CLOSE and size >= CODE_AT + 2:
        flow.code = get_u16(p + CODE_AT)
        fail_with(flow, p, b"the broker closed the connection")
    elif key == KEY_METADATA_UPDATE or key == KEY_CREDIT_ERROR:
        fail_with(flow, p, b"the stream is not available any more")
    else:
        return False
    return True


cdef class StreamsPublisher(Publisher):
    """`frame`: as publish_frame makes it of the same `size`, `sub_batch` and `filter_value`."""

    cdef int64_t number, size, entry    # its own, a message's, the messages under one publishing id
    cdef size_t prefix, entry_size      # what lies between a publishing id and its first message; all of it

    def __cinit__(self, *, int64_t number, int64_t size, int64_t sub_batch=0, bytes filter_value=b"", **_):
        self.number, self.size, self.entry = number, size, max(<int64_t>1, sub_batch)
        self.prefix = SUB_BATCH_HEADER_BYTES if sub_batch else 2 + len(filter_value) if filter_value else 0
        self.entry_size = PUBLISHING_ID_BYTES + self.prefix + self.entry * (MESSAGE_HEADER_BYTES + size)

    cdef void fill(self, int64_t count) noexcept nogil:
        cdef int64_t number = self.sent, last = self.sent + count, stamp = now_ns(), frame, entries, i, j
        cdef bint stamped = self.size >= STAMP_SIZE
        cdef uint8_t *p = self.outbox.data
        while number < last:
            frame, entries = number // self.batch, min(self.batch, last - number) // self.entry
            if self.interval_ns:
                stamp = self.start_ns + (frame + 1) * self.interval_ns
            self.stamps[<uint64_t>frame & self.stamps_mask] = stamp
            put_u32(p, <uint32_t>(LIST_AT - KEY_AT + entries * self.entry_size))
            put_u32(p + COUNT_AT, <uint32_t>entries)
            p += LIST_AT
            for i in range(entries):
                put_u64(p, <uint64_t>(number // self.entry + 1))
                p += PUBLISHING_ID_BYTES + self.prefix
                for j in range(self.entry):
                    p += MESSAGE_HEADER_BYTES
                    if stamped:
                        memcpy(p, &stamp, 8)
                        memcpy(p + 8, &number, 8)
                        memcpy(p + 16, &self.number, 8)
                    p += self.size
                    number += 1
        self.outbox.end = p - self.outbox.data
        store(&self.sent, last)

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef size_t size, count, i
        cdef uint32_t key
        cdef uint64_t frame
        while size := whole_frame(self, p, end, KEY_AT, 4):
            key = get_u16(p + KEY_AT)
            if key == KEY_PUBLISH_CONFIRM and size >= LIST_AT:
                count = min(<size_t>get_u32(p + COUNT_AT), (size - LIST_AT) // PUBLISHING_ID_BYTES)
                if self.timed:
                    for i in range(count):
                        frame = (get_u64(p + LIST_AT + PUBLISHING_ID_BYTES * i) - 1) * self.entry // self.batch
                        self.confirms.record_ns(self.now - self.stamps[frame & self.stamps_mask], 1)
                self.advance(count * self.entry)
            elif key == KEY_PUBLISH_ERROR and size >= LIST_AT:
                count = min(<size_t>get_u32(p + COUNT_AT), (size - LIST_AT) // (PUBLISHING_ID_BYTES + 2))
                if count:
                    self.code = get_u16(p + LIST_AT + PUBLISHING_ID_BYTES)
                store(&self.refused, self.refused + <int64_t>count * self.entry)
                self.advance(count * self.entry)
            elif streams_fault(self, p, size, key):
                return p
            p += size
        return p


cdef class StreamsConsumer(Consumer):
    """`opening` subscribes; each chunk is answered with `credit`, a whole frame."""

    cdef bytes credit
    cdef const uint8_t *credit_frame
    cdef size_t credit_size
    cdef bint verify
    cdef int64_t producers
    cdef int64_t *expected              # of each producer the number that is to come
    cdef readonly int64_t chunks

    def __cinit__(self, *, bytes credit, int64_t producers, bint verify, **_):
        """verify: each producer's numbers must be unbroken; what is not, or makes no sense, is disordered."""
        self.credit, self.producers, self.verify = credit, producers, verify
        self.credit_frame, self.credit_size = self.credit, len(credit)
        self.expected = <int64_t *>calloc(max(<int64_t>1, producers), sizeof(int64_t))
        if self.expected is NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.expected)

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef size_t size, head, owed = 0    # owed: the bytes of the chunks whose credits wait to be sent
        cdef uint32_t key
        cdef uint8_t *out
        while size := whole_frame(self, p, end, KEY_AT, 4):
            key = get_u16(p + KEY_AT)
            if key == KEY_DELIVER:
                head = 9 if p[KEY_AT + 3] == 1 else 17  # behind the subscription's id; v2: the last committed chunk's
                if size < head + CHUNK_HEADER_SIZE:
                    return fail_with(self, p, b"a Deliver ends inside its chunk's header")
                out = self.room(self.credit_size)
                if out is NULL:
                    return p
                memcpy(out, self.credit_frame, self.credit_size)
                self.outbox.end += self.credit_size
                owed += size
                if self.verify or self.timed:
                    self.walk(p + head, p + size)
                self.chunks += 1
                self.gain(get_u32(p + head + 4))
                if owed >= CREDITED_SIZE:
                    self.push()  # the loop sends the others, and sees what fails
                    owed = 0
            elif key == KEY_SUBSCRIBE_RESPONSE and size >= CODE_AT + 2 and get_u16(p + CODE_AT) != CODE_OK:
                self.code = get_u16(p + CODE_AT)
                return fail_with(self, p, b"the broker refused the subscription")
            elif streams_fault(self, p, size, key):
                return p
            p += size
        return p

    cdef void walk(self, const uint8_t *chunk, const uint8_t *end) noexcept nogil:
        """Each message of a chunk."""
        cdef uint32_t entries = get_u16(chunk + 2), i, messages
        cdef const uint8_t *p = chunk + CHUNK_HEADER_SIZE
        for i in range(entries):
            messages = 1
            if end - p >= SUB_BATCH_HEADER_BYTES and p[0] >> 4 == 8:  # a sub-batch that is not compressed
                messages = get_u16(p + 1)
                p += SUB_BATCH_HEADER_BYTES
            p = self.walk_messages(p, end, messages)
            if p is NULL:
                self.disordered += entries - i
                return

    cdef const uint8_t *walk_messages(self, const uint8_t *p, const uint8_t *end, uint32_t messages) noexcept nogil:
        """So many messages of an entry: where they end, NULL if they make no sense."""
        cdef uint32_t i, length
        cdef int64_t stamp[3]
        for i in range(messages):
            if end - p < MESSAGE_HEADER_BYTES:
                return NULL
            length = get_u32(p)
            if length >> 31 or <size_t>(end - p) < MESSAGE_HEADER_BYTES + <size_t>length:
                return NULL
            if length >= STAMP_SIZE:
                memcpy(stamp, p + MESSAGE_HEADER_BYTES, STAMP_SIZE)
                if self.timed:
                    self.latencies.record_ns(self.now - stamp[0], 1)
                if self.verify:
                    if <uint64_t>stamp[2] >= <uint64_t>self.producers or self.expected[stamp[2]] != stamp[1]:
                        self.disordered += 1
                    if <uint64_t>stamp[2] < <uint64_t>self.producers:
                        self.expected[stamp[2]] = stamp[1] + 1
            p += MESSAGE_HEADER_BYTES + length
        return p
