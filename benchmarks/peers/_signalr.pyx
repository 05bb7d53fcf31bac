# SPDX-License-Identifier: Apache-2.0
"""SignalR hubs under load over WebSockets, in JSON and in MessagePack: frames, records, and both ends of a load.

An invocation is a WebSocket message of its own, as every client sends them. What we send is masked with a key of the
connection. A publisher's frames are masked once, and what is patched into them is masked where it lies: the mask
costs an exclusive-or for each patch, and none for a body.

A hub may put many records into one message, each of them whole, and no message into several frames. Of a record only
what the load needs is read: its type, its id, and where the rest begins. The known writing is tried first, any other
is searched for members, so a hub that writes blanks or another order is read too, only slower.

Nothing of our own door is used here: a mistake in it must not be made twice.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memmove

from benchmarks.peers._audience cimport Audience, listener
from vibemq.bench._flow cimport PATCH_STAMP, PATCHES_MAX, Consumer, Flow, Publisher, fail_with, get_hex8, get_u16, get_u64

cdef enum:
    NUMBER_SIZE = 8
    HEADER_SIZE_MAX = 8         # of an Ack's frame: two bytes, a length of 16 bits, the mask
    TAGS_MAX = 2048             # in one Ack
    TAG_SIZE_MAX = 21           # with its comma
    ACK_SIZE_MAX = HEADER_SIZE_MAX + 64 + TAGS_MAX * TAG_SIZE_MAX
    ERROR_KIND = 1              # of a MessagePack Completion
    JSON_HEAD_SIZE = 26         # {"type":3,"invocationId":"
    SMALL_SIZE_MAX = 125        # the longest payload whose length is in the second byte


# ---- frames ----


cdef uint64_t mask_of(uint32_t key, size_t place) noexcept nogil:
    """For eight bytes that lie `place` bytes into a payload; the key as it lies in memory."""
    cdef uint64_t twice = <uint64_t>key << 32 | key
    cdef int shift = 8 * <int>(place & 3)
    return twice >> shift | twice << (64 - shift) if shift else twice


cdef int frame_at(const uint8_t *p, const uint8_t *end, frame *out) noexcept nogil:
    """FOUND: the whole frame at p; NEEDS_MORE; WRONG: what no hub sends."""
    cdef size_t size, head = 2
    if end - p < 2:
        return NEEDS_MORE
    if not p[0] & WS_FIN or p[0] & 0x70:
        return WRONG
    size = p[1] & 0x7F
    if size == 126:
        if end - p < 4:
            return NEEDS_MORE
        size, head = get_u16(p + 2), 4
    elif size == 127:
        if end - p < 10:
            return NEEDS_MORE
        size, head = get_u64(p + 2), 10
    if size > FRAME_SIZE_MAX:
        return WRONG
    out.key, out.is_masked = 0, p[1] & WS_MASKED
    if out.is_masked:
        if <size_t>(end - p) < head + 4:
            return NEEDS_MORE
        memcpy(&out.key, p + head, 4)
        head += 4
    if <size_t>(end - p) < head + size:
        return NEEDS_MORE
    out.opcode, out.payload, out.size = p[0] & 15, <uint8_t *>p + head, size
    out.next = out.payload + size
    return FOUND


cdef size_t header_put(uint8_t *out, int opcode, size_t payload, bint is_masked, uint32_t key) noexcept nogil:
    """A header with the shortest length, which is all that is legal; returns its size, 14 at most."""
    cdef size_t size = 2
    cdef int i
    out[0] = <uint8_t>(WS_FIN | opcode)
    out[1] = WS_MASKED if is_masked else 0
    if payload <= SMALL_SIZE_MAX:
        out[1] |= <uint8_t>payload
    else:
        size = 4 if payload <= 0xFFFF else 10
        out[1] |= 126 if size == 4 else 127
        for i in range(<int>size - 2):
            out[size - 1 - i] = <uint8_t>(payload >> 8 * i)
    if is_masked:
        memcpy(out + size, &key, 4)
        size += 4
    return size


# ---- MessagePack ----


cdef const uint8_t *skip(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Behind the value at p; NULL where it is not whole."""
    cdef uint64_t left = 1, number
    cdef unsigned int width
    cdef uint8_t c
    while left:
        if p >= end:
            return NULL
        c = p[0]
        p += 1
        left -= 1
        if c < 0x80 or c >= 0xE0:
            continue
        if c < 0x90:
            left += 2 * (c & 15)
        elif c < 0xA0:
            left += c & 15
        elif c < 0xC0:
            p += c & 31
        else:
            width = hub_width(c)
            if end - p < <Py_ssize_t>width or width == 9:
                return NULL
            number = hub_number(p, width)
            p += width
            if number > FRAME_SIZE_MAX and (c <= 0xC6 or c >= 0xD9):
                return NULL
            if 0xC4 <= c <= 0xC6 or 0xD9 <= c <= 0xDB:
                p += number
            elif 0xDC <= c <= 0xDD:
                left += number
            elif c >= 0xDE:
                left += 2 * number
    return p if p <= end else NULL


cdef const uint8_t *text_at(const uint8_t *p, const uint8_t *end, const uint8_t **out, size_t *size) noexcept nogil:
    """The string or bytes at p, and what is behind; NULL where there is neither."""
    cdef const uint8_t *next = skip(p, end)
    cdef uint8_t c
    if next is NULL:
        return NULL
    c = p[0]
    if 0xA0 <= c < 0xC0:
        out[0] = p + 1
    elif 0xC4 <= c <= 0xC6 or 0xD9 <= c <= 0xDB:
        out[0] = p + 1 + hub_width(c)
    else:
        return NULL
    size[0] = next - out[0]
    return next


cdef bint messagepack_record(const uint8_t *p, const uint8_t *end, record *out) noexcept nogil:
    """The array in [p, end): [type, headers, id, ...]; Ping and Close have no more than they need."""
    cdef int count
    if p == end or not 0x91 <= p[0] <= 0x9F:
        return False
    count = p[0] & 15
    if end - p < 2:
        return False
    out.type, out.rest, out.end = p[1], p + 2, end
    out.is_error = out.type == CLOSE_MESSAGE
    if out.type not in (STREAM_ITEM, COMPLETION):
        return True
    p = skip(p + 2, end) if count >= 4 else NULL
    p = text_at(p, end, &out.id, &out.id_size) if p is not NULL else NULL
    if p is NULL or p == end:
        return False
    if out.type == COMPLETION:
        out.is_error = p[0] == ERROR_KIND
        p += 1
    out.rest = p
    return True


# ---- JSON ----


cdef const uint8_t *member(const uint8_t *p, const uint8_t *end, const char *name, size_t size) noexcept nogil:
    """Where the value of the first member of that name begins; `name` has its quotes."""
    p = <const uint8_t *>memmem(p, end - p, name, size)
    if p is NULL:
        return NULL
    p += size
    while p < end and (p[0] == c' ' or p[0] == c':'):
        p += 1
    return p if p < end else NULL


cdef bint json_record(const uint8_t *p, const uint8_t *end, record *out) noexcept nogil:
    """The object in [p, end), without its separator."""
    cdef const uint8_t *at
    out.end = end
    if end - p > JSON_HEAD_SIZE and memcmp(p, b'{"type":', 8) == 0 and memcmp(p + 9, b',"invocationId":"', 17) == 0:
        out.type, out.id = p[8] - c'0', p + JSON_HEAD_SIZE
        at = <const uint8_t *>memchr(out.id, c'"', end - out.id)
        if at is NULL:
            return False
        out.id_size, out.rest = at - out.id, at + 1
        out.is_error = out.type == COMPLETION and end - at > 9 and memcmp(at + 1, b',"error"', 8) == 0
        return True
    at = member(p, end, b'"type"', 6)
    if at is NULL:
        return False
    out.type, out.rest = at[0] - c'0', p
    out.is_error = out.type == CLOSE_MESSAGE or (out.type == COMPLETION and member(p, end, b'"error"', 7) is not NULL)
    if out.type != STREAM_ITEM and out.type != COMPLETION:
        return True
    at = member(p, end, b'"invocationId"', 14)
    if at is NULL or at[0] != c'"':
        return False
    out.id = at + 1
    at = <const uint8_t *>memchr(out.id, c'"', end - out.id)
    if at is NULL:
        return False
    out.id_size = at - out.id
    return True


# ---- records in frames ----


cdef int next_record(cursor *c, record *out) noexcept nogil:
    """FOUND; NEEDS_MORE: all whole frames before `p` are done with; WRONG: see `fault`."""
    cdef frame f
    cdef int found
    cdef const uint8_t *end
    cdef uint64_t size
    cdef int shift
    while c.at == c.message_end:
        found = frame_at(c.p, c.end, &f)
        if found == FOUND and f.is_masked:
            found = WRONG
        if found != FOUND:
            if found == WRONG:
                c.fault = b"needed whole unmasked messages, had another frame"
            return found
        c.p = f.next
        if f.opcode == WS_TEXT or f.opcode == WS_BINARY:
            c.at, c.message_end = f.payload, f.next
        elif f.opcode == WS_CLOSE:
            out.type, out.is_error, out.id_size = CLOSE_MESSAGE, True, 0
            out.rest, out.end = f.payload + min(f.size, <size_t>2), f.next
            return FOUND
    if c.is_messagepack:
        size, shift = 0, 0
        while c.at < c.message_end and c.at[0] & 0x80 and shift < 28:
            size |= <uint64_t>(c.at[0] & 0x7F) << shift
            shift += 7
            c.at += 1
        if c.at < c.message_end:
            size |= <uint64_t>c.at[0] << shift
            c.at += 1
        end = c.at + size if size <= <uint64_t>(c.message_end - c.at) else NULL
    else:
        end = <const uint8_t *>memchr(c.at, SEPARATOR, c.message_end - c.at)
    if end is NULL or not (
        messagepack_record(c.at, end, out) if c.is_messagepack else json_record(c.at, end, out)
    ):
        c.fault = b"needed whole records of a hub, had other bytes"
        return WRONG
    c.at = end if c.is_messagepack else end + 1
    return FOUND


cdef void cursor_set(cursor *c, const uint8_t *p, const uint8_t *end, bint is_messagepack) noexcept nogil:
    c.p, c.end = p, end
    c.at = c.message_end = p
    c.is_messagepack, c.fault = is_messagepack, b""


# ---- deliveries ----


cdef bint json_delivery(const record *r, delivery *out) noexcept nogil:
    cdef const uint8_t *p = member(r.rest, r.end, b'"tag"', 5)
    if p is NULL:
        return False
    out.tag = 0
    while p < r.end and <uint8_t>(p[0] - c'0') <= 9:
        out.tag = out.tag * 10 + (p[0] - c'0')
        p += 1
    out.body = member(p, r.end, b'"body"', 6)
    if out.body is NULL:
        return False
    out.size = r.end - out.body
    return True


cdef bint messagepack_delivery(const record *r, delivery *out) noexcept nogil:
    cdef const uint8_t *p = r.rest
    cdef const uint8_t *name = NULL
    cdef size_t size = 0
    cdef int left
    if not 0x80 <= p[0] <= 0x8F:
        return False
    left = p[0] & 15
    p += 1
    out.tag, out.body, out.size = 0, NULL, 0
    while left:
        left -= 1
        p = text_at(p, r.end, &name, &size)
        if p is NULL or p == r.end:
            return False
        if size == 3 and memcmp(name, b"tag", 3) == 0:
            if p[0] < 0x80:
                out.tag = p[0]
            elif 0xCC <= p[0] <= 0xCF and <size_t>(r.end - p) > hub_width(p[0]):
                out.tag = hub_number(p + 1, hub_width(p[0]))
            else:
                return False
        elif size == 4 and memcmp(name, b"body", 4) == 0:
            if text_at(p, r.end, &out.body, &out.size) is NULL:
                return False
        p = skip(p, r.end)
        if p is NULL:
            return False
    return out.body is not NULL


cdef bint delivery_of(const record *r, bint is_messagepack, delivery *out) noexcept nogil:
    return messagepack_delivery(r, out) if is_messagepack else json_delivery(r, out)


cdef int next_delivery(cursor *c, record *r, delivery *out) noexcept nogil:
    """As next_record, up to the next item; WRONG, with `fault` or an error's words in `r`, also at what ends all."""
    cdef int found = FOUND
    while found == FOUND:
        found = next_record(c, r)
        if found != FOUND:
            r.is_error = False
        elif r.is_error:
            found = WRONG
        elif r.type == COMPLETION:
            c.fault, found = b"the hub ended a subscription", WRONG
        elif r.type == STREAM_ITEM:
            if delivery_of(r, c.is_messagepack, out):
                break
            c.fault, found = b"needed a delivery with a tag and a body, had another item", WRONG
    return found


cdef const uint8_t *fail_at(Flow flow, const cursor *c, const record *r, const uint8_t *p) noexcept nogil:
    return flow.fail(p, r.rest, r.end - r.rest) if r.is_error else fail_with(flow, p, c.fault)


# ---- both ends of a load ----


cdef class SignalRPublisher(Publisher):
    """`frame` is a whole WebSocket frame with its mask `key` in the header and a payload, from `payload_at` on, that
    is not masked yet. The invocation's id is its number."""

    cdef uint64_t masks[PATCHES_MAX]
    cdef bint is_messagepack

    def __cinit__(self, *, bytes key, int payload_at, bint is_messagepack=False, **_):
        cdef uint32_t mask = 0
        cdef int64_t i
        cdef int j
        if len(key) != sizeof(mask):
            raise ValueError("needed a mask of 4 bytes")
        memcpy(&mask, <const char *>key, sizeof(mask))
        self.is_messagepack = is_messagepack
        for i in range(self.group):
            hub_mask(
                self.outbox.data + i * self.frame_size + payload_at, self.frame_size - payload_at, mask_of(mask, 0)
            )
        for j in range(self.patches_count):
            self.masks[j] = mask_of(mask, self.patches[j].at - payload_at)

    cdef void fill(self, int64_t count) noexcept nogil:
        cdef uint8_t *frame = self.outbox.data
        cdef int64_t i
        cdef int j
        Publisher.fill(self, count)
        for i in range(count):
            for j in range(self.patches_count):
                hub_xor8(frame + self.patches[j].at, self.masks[j])
                if self.patches[j].kind == PATCH_STAMP:
                    hub_xor8(frame + self.patches[j].at + 8, self.masks[j])
            frame += self.frame_size

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef cursor c
        cdef record r
        cdef int found
        cdef int64_t count = 0
        cursor_set(&c, p, end, self.is_messagepack)
        while True:
            found = next_record(&c, &r)
            if found != FOUND:
                break
            if r.is_error:
                return self.fail(p, r.rest, r.end - r.rest)
            if r.type != COMPLETION:
                continue
            if not self.named:
                count += 1
            elif r.id_size != NUMBER_SIZE:
                self.strange += 1
            else:
                self.settle_number(get_hex8(r.id))
        self.settle(count)
        return fail_with(self, p, c.fault) if found == WRONG else c.p


cdef class SignalRConsumer(Consumer):
    """Items of a Subscribe. The tags that one receive brought go back in one Ack, which is not answered."""

    cdef uint32_t key
    cdef bint is_messagepack
    cdef uint64_t tags[TAGS_MAX]
    cdef int tags_count

    def __cinit__(self, *, bytes key, bint is_messagepack=False, **_):
        memcpy(&self.key, <const char *>key, sizeof(self.key))
        self.is_messagepack = is_messagepack

    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef cursor c
        cdef record r
        cdef delivery d
        cdef int found
        cdef int64_t count = 0
        cursor_set(&c, p, end, self.is_messagepack)
        while True:
            found = next_delivery(&c, &r, &d)
            if found != FOUND:
                break
            if self.observes:
                self.observe(d.body, d.size)
            self.tags[self.tags_count] = d.tag
            self.tags_count += 1
            count += 1
            if self.tags_count == TAGS_MAX and not self.acknowledge():
                return p
        if self.tags_count and not self.acknowledge():
            return p
        self.gain(count)
        return fail_at(self, &c, &r, p) if found == WRONG else c.p

    cdef bint acknowledge(self) noexcept nogil:
        cdef uint8_t *out = self.room(ACK_SIZE_MAX)
        cdef uint8_t *payload
        cdef uint8_t *at
        cdef size_t head, size
        if out is NULL:
            return False
        payload = out + HEADER_SIZE_MAX
        at = self.messagepack_ack(payload) if self.is_messagepack else self.json_ack(payload)
        size = at - payload
        head = header_put(out, WS_BINARY if self.is_messagepack else WS_TEXT, size, True, self.key)
        hub_mask(payload, size, mask_of(self.key, 0))
        memmove(out + head, payload, size)
        self.outbox.end += head + size
        self.tags_count = 0
        return True

    cdef uint8_t *json_ack(self, uint8_t *p) noexcept nogil:
        cdef uint8_t digits[TAG_SIZE_MAX]
        cdef uint64_t tag
        cdef int i, count
        memcpy(p, b'{"type":1,"target":"Ack","arguments":[[', 39)
        p += 39
        for i in range(self.tags_count):
            tag, count = self.tags[i], 0
            while tag or not count:
                digits[count] = <uint8_t>(c'0' + tag % 10)
                tag //= 10
                count += 1
            while count:
                count -= 1
                p[0] = digits[count]
                p += 1
            p[0] = c','
            p += 1
        memcpy(p - 1, b"]]}\x1e", 4)
        return p + 3

    cdef uint8_t *messagepack_ack(self, uint8_t *p) noexcept nogil:
        """Each tag as a number of 64 bits, so that the size is known before."""
        cdef size_t size = 13 + 9 * <size_t>self.tags_count
        cdef int i, j
        while size >= 0x80:
            p[0] = <uint8_t>(size | 0x80)
            size >>= 7
            p += 1
        p[0] = <uint8_t>size
        memcpy(p + 1, b"\x96\x01\x80\xc0\xa3Ack\x91\xdc", 10)
        p[11], p[12] = <uint8_t>(self.tags_count >> 8), <uint8_t>self.tags_count
        p += 13
        for i in range(self.tags_count):
            p[0] = 0xCF
            for j in range(8):
                p[1 + j] = <uint8_t>(self.tags[i] >> (56 - 8 * j))
            p += 9
        p[0] = 0x90
        return p + 1


cdef class SignalRAudience(Audience):
    cdef bint is_messagepack

    def __cinit__(self, *, bint is_messagepack=False, **_):
        self.is_messagepack = is_messagepack

    cdef const uint8_t *take(self, listener *each, const uint8_t *p, const uint8_t *end) noexcept nogil:
        cdef cursor c
        cdef record r
        cdef delivery d
        cdef int found
        cursor_set(&c, p, end, self.is_messagepack)
        while True:
            found = next_delivery(&c, &r, &d)
            if found != FOUND:
                break
            if not self.note(each, d.body, d.size):
                return fail_with(self.failure, NULL, b"needed a delivery with a body, had another item")
        return fail_at(self.failure, &c, &r, NULL) if found == WRONG else c.p
