# SPDX-License-Identifier: Apache-2.0
"""The native client without its sockets: frames out, bytes in, and what is known in between.

Core.submit numbers the messages of a Batch (_outgoing.pyx), and the number is the id on the wire: 16 hexadecimal digits
of this client, 16 of the number. So a PublishAck is settled by arithmetic and one look into a table, without a Python
object for it. Only ids that the caller chose are in a dict.

Invariants: a message is in the table from submit to its PublishAck or Error, whatever happens to connections meanwhile;
`slots[number & mask]` is its Batch (borrowed: `live` holds it) or NULL; numbers below `oldest` are settled. What is in
the table when a connection is new goes out again with the same id and the header vibemq-resend.

One thread uses a Core, but for settling messages, which any may.
"""

import os

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

import msgspec

from vibemq.client._core cimport bytes_load32, bytes_store32
from vibemq.client._outgoing cimport ID_AT, ID_SIZE, PREFIX_SIZE, Batch, Flow
from vibemq.protocols.native.codec cimport headers_dict, malformed
from vibemq.protocols.native.wire cimport (
    FRAME_HEADER_BYTES, FRAME_NEEDS_MORE, FRAME_OK, FRAME_TOO_LARGE, FRAME_TOO_SMALL, TEXT_TAIL_BYTES, TYPE_DELIVER,
    TYPE_ERROR, TYPE_PONG, TYPE_PUBLISH_ACK, frame_begin, frame_end, frame_header, frame_parse, frame_payload,
    frame_size, header_size, native_frame, put_header,
)

from vibemq.client._outgoing import batch_first
from vibemq.protocols.native import codec, compression, spec

cdef uint64_t SLOTS_FIRST = 4_096
cdef bytes RESEND_NAME = b"vibemq-resend"
cdef bytes RESEND_VALUE = b"1"
cdef object END = object()

decode_json = msgspec.json.Decoder().decode


cdef inline void put_number(uint8_t *p, uint64_t number) noexcept nogil:
    cdef int i
    for i in range(15, -1, -1):
        p[i] = (<const uint8_t *>b"0123456789abcdef")[number & 15]
        number >>= 4


cdef inline bint take_number(const uint8_t *p, uint64_t *number) noexcept nogil:
    """16 lower-case digits, as put_number wrote them."""
    cdef int i
    cdef uint8_t c
    cdef uint64_t value = 0
    for i in range(16):
        c = p[i]
        if 0x30 <= c <= 0x39:
            value = (value << 4) | (c - 0x30)
        elif 0x61 <= c <= 0x66:
            value = (value << 4) | (c - 0x61 + 10)
        else:
            return False
    number[0] = value
    return True


cdef class Message:
    """A message that was delivered: settle it with `ack` once its work is done, or give it back with `nack`.

    Both may be called from any thread, and do nothing once it is settled or its connection is gone: the broker
    delivers it again then, so a message whose ack was lost is seen twice.
    """

    cdef readonly str queue
    cdef readonly bytes raw
    cdef readonly bint settled
    cdef bytes id_bytes, fields
    cdef dict known_headers
    cdef object decoded
    cdef Core core
    cdef uint64_t epoch

    @property
    def id(self):
        """As its publisher gave it; not necessarily unique."""
        return self.id_bytes.decode("utf-8", "surrogateescape")

    @property
    def payload(self):
        """The JSON value, decoded when first asked for; bytes if that is what was published, None if nothing was."""
        if self.decoded is END:
            value = decode_json(self.raw) if self.raw else None
            if isinstance(value, str) and self.headers.get("payload-encoding") == spec.PAYLOAD_ENCODING_BASE64:
                value = msgspec.convert(value, bytes, strict=False)
            self.decoded = value
        return self.decoded

    def decode(self, type):
        """The payload as `type`, checked: a dataclass, a msgspec.Struct, a TypedDict and so on."""
        return msgspec.json.decode(self.raw, type=type)

    cdef dict all_headers(self):
        cdef native_frame frame
        if self.known_headers is None:
            frame.headers = <const uint8_t *>PyBytes_AS_STRING(self.fields)
            frame.headers_size = PyBytes_GET_SIZE(self.fields)
            self.known_headers = headers_dict(&frame)
        return self.known_headers

    @property
    def headers(self):
        """The publisher's headers."""
        return {name: value for name, value in self.all_headers().items() if name != "deliveryAttempts"}

    @property
    def attempts(self):
        """How often it was delivered, this time included; 1 where the broker does not say."""
        text = self.all_headers().get("deliveryAttempts", "")
        return int(text) if text.isascii() and text.isdigit() else 1

    @property
    def stale(self):
        """Was it delivered on a connection that is gone? Then it will be delivered again."""
        return self.epoch != self.core.epoch

    def ack(self):
        """The work is done: the broker forgets the message."""
        self.settle(True)

    def nack(self):
        """The work failed: the broker delivers it again, or dead-letters it after the last attempt.

        A broker that does not know the command is not told; it delivers again when its ack timeout is over.
        """
        self.settle(False)

    cdef int settle(self, bint done) except -1:
        if not self.settled and self.epoch == self.core.epoch:
            self.settled = self.core.on_settle(self, done)
        return 0

    def __repr__(self):
        return f"Message(queue={self.queue!r}, id={self.id!r}, attempts={self.attempts}, raw={len(self.raw)} B)"


cdef class Core:
    """What one client knows, over all of its connections."""

    cdef readonly bytes prefix
    cdef readonly bint text_layout
    cdef readonly Py_ssize_t body_max, read_max
    cdef readonly uint64_t epoch  # counts connections
    cdef readonly Py_ssize_t in_flight
    cdef public object on_settle  # called with (message, done) from any thread
    cdef object packer  # name of the negotiated compression
    cdef Py_ssize_t threshold
    cdef uint8_t flags_max
    cdef bytearray tail
    cdef PyObject **slots
    cdef uint64_t mask, oldest, next_number, requests
    cdef set live
    cdef dict named
    cdef bytes last_queue
    cdef str last_queue_text

    def __init__(self, body_max=spec.FRAME_BODY_BYTES_MAX_DEFAULT, text_layout=False, prefix=None):
        self.prefix = prefix or os.urandom(PREFIX_SIZE // 2).hex().encode()
        self.body_max, self.text_layout = body_max, text_layout
        self.read_max = body_max + <Py_ssize_t>spec.STORED_EXTRA_BYTES
        self.flags_max = spec.FLAGS_MAX_DEFAULT
        self.live, self.named, self.tail = set(), {}, bytearray()
        self.last_queue, self.last_queue_text = b"", ""
        self.slots = <PyObject **>calloc(SLOTS_FIRST, sizeof(PyObject *))
        if self.slots is NULL:
            raise MemoryError
        self.mask = SLOTS_FIRST - 1

    def __dealloc__(self):
        free(self.slots)

    def request_id(self):
        """For a command other than Publish: never the id of a message."""
        self.requests += 1
        return b"%s-%d" % (self.prefix, self.requests)

    # ---- connections ----

    def restart(self):
        """A new connection: nothing is left of the old one but what was not acknowledged."""
        self.epoch += 1
        self.tail = bytearray()
        self.packer, self.flags_max = None, spec.FLAGS_MAX_DEFAULT

    def negotiated(self, name, Py_ssize_t threshold):
        """Both sides compress with `name` from now on; None for not at all."""
        self.packer, self.threshold = name, threshold
        if name is not None:
            self.flags_max = max(<int>spec.FLAGS_MAX_DEFAULT, <int>spec.COMPRESSION_BY_NAME[name])

    # ---- out ----

    def submit(self, Batch batch not None, Flow flow not None):
        """Numbers the messages; from now on they are in flight, sent or not."""
        cdef Py_ssize_t index
        cdef uint8_t *p = batch.buffer
        if batch.data is not None:
            raise ValueError("a batch is submitted once")
        self.make_slots(batch.count)
        batch.settled = <uint8_t *>calloc(max(batch.count, 1), 1)
        if batch.settled is NULL:
            raise MemoryError
        batch.first, batch.pending = self.next_number, batch.count
        batch.flow, batch.flow_first = flow, flow.submitted
        for index in range(batch.count):
            if batch.named is None or index not in batch.named:
                put_number(p + ID_AT + PREFIX_SIZE, batch.first + <uint64_t>index)
            else:
                self.named.setdefault(batch.named[index], []).append(batch.first + <uint64_t>index)
            self.slots[(batch.first + <uint64_t>index) & self.mask] = <PyObject *>batch
            p += FRAME_HEADER_BYTES + bytes_load32(p)
        batch.data = PyBytes_FromStringAndSize(<const char *>batch.buffer, batch.size)
        free(batch.buffer)
        batch.buffer = NULL
        self.next_number += <uint64_t>batch.count
        if batch.count:
            self.live.add(batch)
        flow.submitted += batch.count
        flow.in_flight += batch.count
        self.in_flight += batch.count

    cdef int make_slots(self, Py_ssize_t more) except -1:
        """Room in the table for `more` numbers, so that no two of those in flight share a slot."""
        cdef uint64_t capacity = self.mask + 1, number
        cdef PyObject **slots
        while self.oldest < self.next_number and self.slots[self.oldest & self.mask] is NULL:
            self.oldest += 1
        if self.next_number + <uint64_t>more - self.oldest <= capacity:
            return 0
        while self.next_number + <uint64_t>more - self.oldest > capacity:
            capacity *= 2
        slots = <PyObject **>calloc(capacity, sizeof(PyObject *))
        if slots is NULL:
            raise MemoryError
        number = self.oldest
        while number < self.next_number:
            slots[number & (capacity - 1)] = self.slots[number & self.mask]
            number += 1
        free(self.slots)
        self.slots, self.mask = slots, capacity - 1
        return 0

    def wire(self, Batch batch not None):
        """The bytes of a submitted batch for this connection."""
        batch.sent = True
        if self.packer is None or batch.body_largest < self.threshold:
            return batch.data
        return self.packed(batch.data)

    def packed(self, bytes frames not None):
        """Frames as they go out: compressed where that is agreed on, allowed and shorter."""
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(frames)
        cdef const uint8_t *end = p + PyBytes_GET_SIZE(frames)
        cdef Py_ssize_t size
        cdef list parts
        if self.packer is None:
            return frames
        parts = []
        while p < end:
            size = bytes_load32(p)
            if size >= self.threshold:
                body = PyBytes_FromStringAndSize(<const char *>p + FRAME_HEADER_BYTES, size)
                small = compression.compress(self.packer, body)
                if small is None:
                    parts.append(codec.frame_of(body))
                else:
                    parts.append(codec.frame_of(small, spec.COMPRESSION_BY_NAME[self.packer]))
            else:
                parts.append(PyBytes_FromStringAndSize(<const char *>p, FRAME_HEADER_BYTES + size))
            p += FRAME_HEADER_BYTES + size
        return b"".join(parts)

    def unacknowledged(self):
        """All messages in flight for a new connection, in order; those that went out before say so."""
        cdef Batch batch
        cdef list parts = []
        for batch in sorted(self.live, key=batch_first):
            parts.append(self.wire(batch) if not batch.sent else self.packed(self.again(batch)))
        return b"".join(parts)

    cdef bytes again(self, Batch batch):
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(batch.data)
        cdef Py_ssize_t index, size, extra = header_size(len(RESEND_NAME), len(RESEND_VALUE))
        cdef Py_ssize_t tail = TEXT_TAIL_BYTES if self.text_layout else 0
        cdef Py_ssize_t count_at
        cdef uint32_t headers
        cdef native_frame frame
        cdef list parts = []
        cdef bytes out
        cdef uint8_t *q
        for index in range(batch.count):
            size = FRAME_HEADER_BYTES + bytes_load32(p)
            if not batch.settled[index]:
                frame_parse(p + FRAME_HEADER_BYTES, size - FRAME_HEADER_BYTES, &frame)
                count_at = frame.headers - p - 2
                headers = frame.header_count + 1
                out = PyBytes_FromStringAndSize(NULL, size + extra)
                q = <uint8_t *>PyBytes_AS_STRING(out)
                memcpy(q, p, size - tail)
                bytes_store32(q, <uint32_t>(size + extra - FRAME_HEADER_BYTES))
                q[count_at], q[count_at + 1] = <uint8_t>(headers >> 8), <uint8_t>headers
                q = put_header(
                    q + size - tail, PyBytes_AS_STRING(RESEND_NAME), len(RESEND_NAME),
                    PyBytes_AS_STRING(RESEND_VALUE), len(RESEND_VALUE),
                )
                frame_end(q, self.text_layout)
                parts.append(out)
            p += size
        return b"".join(parts)

    def forget(self, Flow flow not None):
        """Nobody waits for these messages any longer: they are not sent again.

        Gives how many never left for any connection, and how many did: those may have been stored.
        """
        cdef Batch batch
        cdef Py_ssize_t index, unsent = 0, unanswered = 0
        for batch in [b for b in self.live if (<Batch>b).flow is flow]:
            for index in range(batch.count):
                if not batch.settled[index]:
                    self.slots[(batch.first + <uint64_t>index) & self.mask] = NULL
                    self.in_flight -= 1
                    flow.in_flight -= 1
                    flow.forgotten += 1
                    if batch.sent:
                        unanswered += 1
                    else:
                        unsent += 1
                    if batch.named is not None and index in batch.named:
                        self.drop_name(batch.named[index], batch.first + <uint64_t>index)
            self.live.discard(batch)
        return unsent, unanswered

    cdef int drop_name(self, bytes name, uint64_t number) except -1:
        numbers = self.named.get(name, [])
        if number in numbers:
            numbers.remove(number)
        if not numbers:
            self.named.pop(name, None)
        return 0

    def settlements(self, list settled not None):
        """The Ack and Nack frames for (message, type); those of an older connection are left out."""
        cdef Message message
        cdef Py_ssize_t size = 0
        cdef bytes out, queue
        cdef uint8_t *p
        cdef list frames = [pair for pair in settled if (<Message>pair[0]).epoch == self.epoch]
        cdef int kind
        for message, kind in frames:
            size += frame_size(len(message.id_bytes), utf8_size(message.queue), 0, 0, self.text_layout)
        out = PyBytes_FromStringAndSize(NULL, size)
        p = <uint8_t *>PyBytes_AS_STRING(out)
        for message, kind in frames:
            queue = message.queue.encode()
            size = frame_size(len(message.id_bytes), len(queue), 0, 0, self.text_layout)
            p = frame_begin(
                p, size, kind, PyBytes_AS_STRING(message.id_bytes), len(message.id_bytes),
                PyBytes_AS_STRING(queue), len(queue),
            )
            p = frame_end(frame_payload(p, NULL, 0, 0), self.text_layout)
        return out

    # ---- in ----

    def feed(self, bytes data not None):
        """What these bytes bring: Message for a delivery, Flow whose wait is over, codec.Message for all else."""
        cdef list events = []
        cdef bytearray held = self.tail
        cdef const uint8_t *p
        cdef Py_ssize_t size, at = 0
        cdef uint32_t body_size = 0
        cdef uint8_t flags = 0
        cdef int result
        cdef bint fresh = PyByteArray_GET_SIZE(held) == 0
        if not fresh:
            held += data
            p, size = <const uint8_t *>PyByteArray_AS_STRING(held), PyByteArray_GET_SIZE(held)
        else:
            p, size = <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)
        while at < size:
            result = frame_header(p + at, size - at, <uint32_t>self.read_max, self.flags_max, &body_size, &flags)
            if result == FRAME_NEEDS_MORE:
                break
            if result == FRAME_TOO_SMALL or result == FRAME_TOO_LARGE:
                needed = spec.FRAME_FAULTS[result][1] if result == FRAME_TOO_SMALL else f"at most {self.read_max} bytes"
                raise codec.MalformedFrame("body size", needed, f"{bytes_load32(p + at)}")
            if result != FRAME_OK:
                raise malformed(result, 0, p[at + 4])
            at += FRAME_HEADER_BYTES
            if flags:
                body = compression.decompress(
                    flags, PyBytes_FromStringAndSize(<const char *>p + at, body_size),
                    spec.DECOMPRESSED_BYTES_MAX_DEFAULT,
                )
                self.take(<const uint8_t *>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body), events)
            else:
                self.take(p + at, body_size, events)
            at += body_size
        if fresh:
            self.tail = bytearray(data[at:])
        else:
            del held[:at]
        return events

    cdef int take(self, const uint8_t *body, Py_ssize_t size, list events) except -1:
        cdef native_frame frame
        cdef uint64_t number = 0
        cdef int fault = frame_parse(body, size, &frame)
        if fault != FRAME_OK:
            raise malformed(fault, frame.needed, frame.had)
        if frame.type == TYPE_PUBLISH_ACK:
            if self.number_of(&frame, &number):
                self.settled(number, None, None, events)
        elif frame.type == TYPE_DELIVER:
            events.append(self.message(&frame))
        elif frame.type == TYPE_ERROR and self.number_of(&frame, &number):
            answer = codec.decode_body(PyBytes_FromStringAndSize(<const char *>body, size))
            self.settled(number, answer.error_code or "", answer.error_message or "", events)
        elif frame.type != TYPE_PONG:
            events.append(codec.decode_body(PyBytes_FromStringAndSize(<const char *>body, size)))
        return 0

    cdef bint number_of(self, const native_frame *frame, uint64_t *number) except -1:
        """Which message in flight the frame is about; False for none."""
        cdef PyObject *slot
        cdef Batch batch
        if (
            frame.id_size == ID_SIZE
            and memcmp(frame.id, PyBytes_AS_STRING(self.prefix), PREFIX_SIZE) == 0
            and take_number(frame.id + PREFIX_SIZE, number)
            and self.oldest <= number[0] < self.next_number
        ):
            slot = self.slots[number[0] & self.mask]
            if slot is not NULL:
                batch = <Batch>slot
                if batch.named is None or <Py_ssize_t>(number[0] - batch.first) not in batch.named:
                    return True
        if not self.named:
            return False
        name = PyBytes_FromStringAndSize(<const char *>frame.id, frame.id_size)
        numbers = self.named.get(name)
        if not numbers:
            return False
        number[0] = numbers[0]
        return True

    cdef int settled(self, uint64_t number, code, message, list events) except -1:
        cdef Batch batch = <Batch>self.slots[number & self.mask]
        cdef Flow flow = batch.flow
        cdef Py_ssize_t index = <Py_ssize_t>(number - batch.first)
        self.slots[number & self.mask] = NULL
        batch.settled[index] = 1
        batch.pending -= 1
        self.in_flight -= 1
        flow.in_flight -= 1
        if batch.named is not None and index in batch.named:
            self.drop_name(batch.named[index], number)
        if code is None:
            flow.acked += 1
        else:
            flow.refused.append((batch.flow_first + index, batch.id_of(index), code, message))
        if flow.in_flight <= flow.wake_at:
            flow.wake_at = -1
            events.append(flow)
        if batch.pending == 0:
            self.live.discard(batch)
        return 0

    cdef Message message(self, const native_frame *frame):
        cdef Message message = Message.__new__(Message)
        if (
            <Py_ssize_t>frame.queue_size != PyBytes_GET_SIZE(self.last_queue)
            or memcmp(frame.queue, PyBytes_AS_STRING(self.last_queue), frame.queue_size) != 0
        ):
            self.last_queue = PyBytes_FromStringAndSize(<const char *>frame.queue, frame.queue_size)
            self.last_queue_text = PyUnicode_DecodeUTF8(<const char *>frame.queue, frame.queue_size, "surrogateescape")
        message.queue = self.last_queue_text
        message.id_bytes = PyBytes_FromStringAndSize(<const char *>frame.id, frame.id_size)
        message.raw = PyBytes_FromStringAndSize(<const char *>frame.payload, frame.payload_size)
        message.fields = PyBytes_FromStringAndSize(<const char *>frame.headers, frame.headers_size)
        message.decoded = END
        message.core, message.epoch = self, self.epoch
        return message


cdef Py_ssize_t utf8_size(str text) except -1:
    return len(text) if text.isascii() else len(text.encode())
