# SPDX-License-Identifier: Apache-2.0
"""The parts of the streams client that are walked for each message or frame, without a Python object for each.

Four things only: an inbox that finds frames in what the socket gave, Chunk, which checks and opens a delivered chunk,
the encoder of Publish frames, and AMQP 1.0 messages one by one. Policy (what to wait for, when to give credit) is in
streams.py and _flows.py.
"""

import zlib

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memmove

from vibemq.client._core cimport (
    AMQP_NULL, AMQP_OTHER, AMQP_TEXT_MAX_BYTES, amqp_message, amqp_message_id, amqp_pair, amqp_pairs, amqp_pairs_begin,
    amqp_pairs_next, amqp_parse, amqp_value, amqp_value_text, bytes_load16, bytes_load32, bytes_load64, bytes_store32,
    bytes_store64, chunk_entry, chunk_entry_next, crc32_update, message_body,
)
from vibemq.grow cimport grow

from vibemq.errors import LimitExceeded, ProtocolError
from vibemq.protocols.streams import spec
from vibemq.protocols.streams.codec import MalformedFrame

cdef Py_ssize_t FRAME_HEADER_SIZE = spec.FRAME_HEADER_SIZE_BYTES
cdef Py_ssize_t CHUNK_HEADER_SIZE = spec.CHUNK_HEADER_SIZE_BYTES
cdef int KEY_PUBLISH = spec.Key.PUBLISH
cdef int KEY_DELIVER = spec.Key.DELIVER
cdef Py_ssize_t PUBLISH_HEADER_SIZE = 13  # frame header, publisher id u8, count i32
cdef Py_ssize_t PUBLISHED_HEADER_SIZE = 12  # publishing id u64, size i32
cdef Py_ssize_t RECEIVE_SIZE_MIN = 262_144  # room for one receive, but for the rest of a large frame
cdef Py_ssize_t BUFFER_SIZE = 4 * RECEIVE_SIZE_MIN  # or that of one frame, if that is larger
cdef Py_ssize_t BUFFERS_KEPT_MAX = 4
cdef Py_ssize_t BUFFER_KEPT_SIZE_MAX = 8 * BUFFER_SIZE  # a larger one goes with its chunks, once less is needed
cdef Py_ssize_t VIEWED_SIZE_MIN = 131_072  # of a chunk that is not copied; a smaller one would keep too much alive
cdef Py_ssize_t FRAME_SIZE_MAX = 1 << 30  # a Deliver is not bound by frame_max; beyond this the peer is mad


cdef class Buffer:
    """Memory for received bytes. Who holds a view keeps it alive; an Inbox writes nothing over what has views."""

    cdef uint8_t *data
    cdef size_t size
    cdef Py_ssize_t views

    def __cinit__(self, size_t size):
        grow(&self.data, &self.size, size, 1)

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, True, flags)
        self.views += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.views -= 1


cdef class Inbox:
    """Received bytes that are not yet frames. Invariant: begin <= end <= buffer.size.

    A large chunk is not copied out: its frame's body is a view of the buffer. A buffer with views is only written
    behind its `end`; when it is full another takes its place: a used one without views, or else a new one.
    """

    cdef Buffer buffer
    cdef list before        # at most BUFFERS_KEPT_MAX buffers that were full, none larger than BUFFER_KEPT_SIZE_MAX
    cdef Py_ssize_t begin, end
    cdef Py_ssize_t usual   # size of the last frame, if that was a large chunk: the next one most likely has the same

    def __cinit__(self):
        self.buffer = Buffer(BUFFER_SIZE)
        self.before = []

    def first_bytes(self):
        """Of what is no frame yet, for who wants to know what speaks there."""
        return (<char *>self.buffer.data)[self.begin:self.begin + min(self.end - self.begin, 16)]

    cdef Py_ssize_t frame_size(self) except -1:
        """Size of the first frame with its size field, or 0 while that field is incomplete."""
        cdef Py_ssize_t size
        if self.end - self.begin < 4:
            return 0
        size = bytes_load32(self.buffer.data + self.begin)
        if size < spec.FRAME_SIZE_MIN_BYTES or size > FRAME_SIZE_MAX:
            raise ProtocolError(
                f"frame: needed a size of {spec.FRAME_SIZE_MIN_BYTES} to {FRAME_SIZE_MAX}, had {size}",
                hint="Is this the streams port of a broker?",
            )
        return size + 4

    def receive(self, receive_into):
        """Gives `receive_into` the free room, once, and keeps what it says that it wrote; gives that number.

        Of a large frame it asks for no more than the rest: then the next one begins with nothing to move.
        """
        cdef Py_ssize_t held = self.end - self.begin
        cdef Py_ssize_t frame = self.frame_size() if held else self.usual
        cdef Py_ssize_t rest = frame - held if frame >= VIEWED_SIZE_MIN and frame > held else 0
        cdef Py_ssize_t more = rest or RECEIVE_SIZE_MIN
        if held == 0 and self.buffer.views == 0:
            self.begin = self.end = 0
        if <Py_ssize_t>self.buffer.size - self.end < more or self._is_huge(held + more):
            self._make_room(held, more)
        with PyMemoryView_FromMemory(
                <char *>self.buffer.data + self.end, rest or self.buffer.size - self.end, PyBUF_WRITE) as view:
            got = receive_into(view)
        self.end += got
        return got

    cdef bint _is_huge(self, Py_ssize_t needed) noexcept:
        """The buffer was made for a large frame, and `needed` is what a new one has."""
        return self.buffer.size > <size_t>BUFFER_KEPT_SIZE_MAX and needed <= BUFFER_SIZE

    cdef int _make_room(self, Py_ssize_t held, Py_ssize_t more) except -1:
        """Behind what is `held`, which begins the buffer from now on."""
        cdef Buffer old = self.buffer
        cdef Buffer buffer = old
        if old.views or self._is_huge(held + more):
            buffer = next((each for each in self.before if not (<Buffer>each).views), None)
            if buffer is not None:
                self.before.remove(buffer)
            else:
                buffer = Buffer(max(BUFFER_SIZE, held + more))
            if len(self.before) < BUFFERS_KEPT_MAX and old.size <= <size_t>BUFFER_KEPT_SIZE_MAX:
                self.before.append(old)
        grow(&buffer.data, &buffer.size, held + more, 1)
        memmove(buffer.data, old.data + self.begin, held)
        self.buffer, self.begin, self.end = buffer, 0, held
        return 0

    def next_frame(self):
        """(key, version, body) of the next whole frame, or None. The body is bytes, of a large chunk a memoryview."""
        cdef Py_ssize_t size = self.frame_size()
        cdef Py_ssize_t at = self.begin + FRAME_HEADER_SIZE
        cdef uint8_t *p = self.buffer.data + self.begin
        if size == 0 or self.end - self.begin < size:
            return None
        self.begin += size
        key, version = bytes_load16(p + 4), bytes_load16(p + 6)
        if key == KEY_DELIVER:
            self.usual = size if size >= VIEWED_SIZE_MIN else 0
            if self.usual:
                return key, version, memoryview(self.buffer)[at:self.begin]
        return key, version, PyBytes_FromStringAndSize(<char *>p + FRAME_HEADER_SIZE, size - FRAME_HEADER_SIZE)


cdef class Chunk:
    """One delivered chunk, its CRC verified. `data` is a memoryview of its entries, which keeps them alive: with a large
    chunk all of the memory that it was received into, BUFFER_SIZE or what the largest frame has taken.

    The offset of a record is chunk_id plus the number of records before it.
    """

    cdef readonly int subscription_id, chunk_type
    cdef readonly uint32_t entries, records
    cdef readonly int64_t timestamp_ms
    cdef readonly uint64_t epoch, chunk_id
    cdef readonly object data

    @property
    def next_offset(self):
        """The offset after the last record."""
        return self.chunk_id + self.records

    def __repr__(self):
        return f"Chunk(chunk_id={self.chunk_id}, records={self.records}, entries={self.entries}, data={len(self.data)} B)"

    def messages(self):
        """Yields (offset, bytes) for each record, opening sub-batches that are plain or gzip."""
        cdef const uint8_t[::1] data = self.data
        cdef const uint8_t *at = &data[0] if data.shape[0] else NULL
        cdef const uint8_t *end = at + data.shape[0]
        cdef uint64_t offset = self.chunk_id
        cdef chunk_entry entry
        for _ in range(self.entries):
            next_entry(&at, end, &entry)
            for message in sub_batch(&entry) if entry.is_sub_batch else (entry_body(&entry),):
                yield offset, message
                offset += 1


cdef int next_entry(const uint8_t **at, const uint8_t *end, chunk_entry *out) except -1:
    if chunk_entry_next(at, end, out):
        needed = "a whole entry, of one message or more, in a known compression"
        raise MalformedFrame("chunk.entry", needed, f"{end - at[0]} bytes")
    return 0


cdef bytes entry_body(const chunk_entry *entry):
    return PyBytes_FromStringAndSize(<const char *>entry.body, entry.body_bytes)


cdef list sub_batch(const chunk_entry *entry):
    cdef bytes body = entry_body(entry)
    cdef uint32_t size = entry.uncompressed_bytes
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef chunk_entry inner
    cdef list messages = []
    if entry.compression == spec.Compression.GZIP:
        if size > spec.SUB_BATCH_UNCOMPRESSED_SIZE_MAX_BYTES:
            raise LimitExceeded("uncompressed sub-batch in bytes", size, spec.SUB_BATCH_UNCOMPRESSED_SIZE_MAX_BYTES)
        try:
            body = zlib.decompressobj(wbits=31).decompress(body, size + 1)
        except zlib.error as error:
            raise MalformedFrame("chunk.sub_batch", "gzip data", f"{error}") from None
        if len(body) != size:
            raise MalformedFrame("chunk.sub_batch", f"{size} bytes uncompressed", f"{len(body)}")
    elif entry.compression != spec.Compression.NONE:
        raise ProtocolError(
            f"chunk.sub_batch: needed compression NONE or GZIP, had {entry.compression}",
            hint="Publish with gzip or without compression, or read this stream with a client that knows the codec.",
        )
    at = <const uint8_t *>PyBytes_AS_STRING(body)
    end = at + PyBytes_GET_SIZE(body)
    for _ in range(entry.records):
        next_entry(&at, end, &inner)
        if inner.is_sub_batch:
            raise MalformedFrame("chunk.sub_batch", "messages", "a sub-batch")
        messages.append(entry_body(&inner))
    return messages


def open_chunk(body, int version, str where):
    """The Chunk in the body of a Deliver frame; `where` names the stream in errors."""
    cdef const uint8_t[::1] data = body
    cdef Py_ssize_t head = 1 if version == 1 else 9  # subscription id u8, from version 2 on committed chunk id u64
    cdef Py_ssize_t size = data.shape[0]
    cdef const uint8_t *p = &data[0] + head if size else NULL
    cdef Chunk chunk = Chunk.__new__(Chunk)
    if size < head + CHUNK_HEADER_SIZE:
        raise MalformedFrame(where, f"a chunk header of {CHUNK_HEADER_SIZE} bytes", f"{size - head}")
    if p[0] != spec.CHUNK_MAGIC_VERSION:
        raise MalformedFrame(where, f"chunk magic and version {spec.CHUNK_MAGIC_VERSION:#x}", f"{p[0]:#x}")
    chunk.subscription_id = data[0]
    chunk.chunk_type = p[1]
    chunk.entries, chunk.records = bytes_load16(p + 2), bytes_load32(p + 4)
    chunk.timestamp_ms, chunk.epoch = <int64_t>bytes_load64(p + 8), bytes_load64(p + 16)
    chunk.chunk_id = bytes_load64(p + 24)
    cdef uint32_t crc = bytes_load32(p + 32)
    cdef Py_ssize_t data_size = bytes_load32(p + 36)
    if data_size > size - head - CHUNK_HEADER_SIZE:
        raise MalformedFrame(where, f"{data_size} bytes of entries", f"{size - head - CHUNK_HEADER_SIZE}")
    chunk.data = memoryview(body)[head + CHUNK_HEADER_SIZE:head + CHUNK_HEADER_SIZE + data_size]
    cdef uint32_t computed
    with nogil:
        computed = crc32_update(0, p + CHUNK_HEADER_SIZE, data_size)
    if computed != crc:
        raise ProtocolError(
            f"{where}, chunk {chunk.chunk_id}: needed CRC {crc:#010x} as in its header, had {computed:#010x}",
            hint="The chunk was damaged on the disk or on the way; read it again, and verify the broker's log.",
        )
    return chunk


def confirm_count(bytes body):
    """How many ids a PublishConfirm carries, after a check that they are all there."""
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(body)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
    cdef uint64_t count
    if size < 5:
        raise MalformedFrame("PublishConfirm", "5 bytes or more", f"{size}")
    count = bytes_load32(p + 1)
    if <uint64_t>(size - 5) != 8 * count:
        raise MalformedFrame("PublishConfirm.publishing_ids", f"{8 * count} bytes", f"{size - 5}")
    return count


def encode_publish(int publisher_id, list messages, Py_ssize_t start, uint64_t first_id, Py_ssize_t size_max,
                   Py_ssize_t count_max):
    """One Publish frame of messages[start:], as many as fit: (frame, count). Ids go up by one from first_id."""
    cdef Py_ssize_t index, total = PUBLISH_HEADER_SIZE, count = 0, size
    cdef Py_ssize_t stop = min(len(messages), start + count_max)
    cdef Py_buffer view
    cdef bytes frame
    cdef uint8_t *p
    for index in range(start, stop):
        message = messages[index]
        size = PyBytes_GET_SIZE(message) if PyBytes_Check(message) else memoryview(message).nbytes
        if size_max - PUBLISH_HEADER_SIZE - PUBLISHED_HEADER_SIZE < size:
            if count:
                break
            raise LimitExceeded(
                "message size in bytes", size, size_max - PUBLISH_HEADER_SIZE - PUBLISHED_HEADER_SIZE,
                hint="Raise the broker's and the client's frame_max, or send smaller messages.",
            )
        if total + PUBLISHED_HEADER_SIZE + size > size_max:
            break
        total += PUBLISHED_HEADER_SIZE + size
        count += 1
    frame = PyBytes_FromStringAndSize(NULL, total)
    p = <uint8_t *>PyBytes_AS_STRING(frame)
    bytes_store32(p, <uint32_t>(total - 4))
    bytes_store32(p + 4, (<uint32_t>KEY_PUBLISH << 16) | 1)
    p[8] = <uint8_t>publisher_id
    bytes_store32(p + 9, <uint32_t>count)
    p += PUBLISH_HEADER_SIZE
    for index in range(start, start + count):
        message = messages[index]
        bytes_store64(p, first_id + <uint64_t>(index - start))
        if PyBytes_Check(message):
            size = PyBytes_GET_SIZE(message)
            memcpy(p + PUBLISHED_HEADER_SIZE, PyBytes_AS_STRING(message), size)
        else:
            PyObject_GetBuffer(message, &view, PyBUF_SIMPLE)
            size = view.len
            memcpy(p + PUBLISHED_HEADER_SIZE, view.buf, size)
            PyBuffer_Release(&view)
        bytes_store32(p + 8, <uint32_t>size)
        p += PUBLISHED_HEADER_SIZE + size
    return frame, count


# ---- single messages, for people; data in bulk goes neither way ----

cdef Py_ssize_t SIZE_MAX = 0xffff_ffff - 8  # what a 32-bit size can say, with what is before it


cdef str _text(const amqp_value *value):
    """As text, as the doors that know only text hand it on; None for what has no text."""
    cdef char room[AMQP_TEXT_MAX_BYTES]  # enough for what is no text itself
    cdef size_t size
    if value.kind == AMQP_NULL or value.kind == AMQP_OTHER:
        return None
    size = amqp_value_text(value, room, AMQP_TEXT_MAX_BYTES)
    if size <= AMQP_TEXT_MAX_BYTES:
        return room[:size].decode("utf-8", "replace")
    return (<const char *>value.data)[:value.bytes].decode("utf-8", "replace")


def read_message(bytes message not None):
    """(body, id or None, headers) of a stored message; what is no AMQP 1.0 message is all body, without either.

    Of several data sections the first is the body. A body that is no bytes and no text (a list, a map) is given as it
    is encoded.
    """
    cdef amqp_message parts
    cdef amqp_pairs pairs
    cdef amqp_pair pair
    cdef amqp_value value
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(message)
    cdef const uint8_t *body
    cdef uint32_t body_size
    cdef Py_ssize_t size = PyBytes_GET_SIZE(message)
    if size == 0 or size > SIZE_MAX or data[0] != 0 or amqp_parse(data, <uint32_t>size, &parts) != 0:
        return message, None, {}
    headers = {}
    amqp_pairs_begin(&pairs, parts.application_properties, parts.application_properties_size)
    while amqp_pairs_next(&pairs, &pair):
        headers[(<const char *>pair.key)[:pair.key_bytes].decode("utf-8", "replace")] = _text(&pair.value)
    identity = _text(&value) if amqp_message_id(&parts, &value) else None
    body, body_size = parts.body, parts.body_size
    message_body(&parts, &body, &body_size)
    return PyBytes_FromStringAndSize(<const char *>body, body_size), identity, headers


def write_message(bytes body not None):
    """A message of one data section, which is what most clients send."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
    if size > SIZE_MAX:
        raise LimitExceeded("size of a message in bytes", size, SIZE_MAX)
    if size < 256:
        return b"\x00\x53\x75\xa0" + size.to_bytes(1, "big") + body
    return b"\x00\x53\x75\xb0" + size.to_bytes(4, "big") + body
