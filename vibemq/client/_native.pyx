# SPDX-License-Identifier: Apache-2.0
"""The native client without its sockets: frames out, bytes in, and what is known in between.

Whoever has messages builds a Batch of their frames, in any thread. Core.submit gives it its number, and the id of a
message is 16 hexadecimal digits of this client, 11 of its batch's number and 5 of its place there: it rises from message
to message, for ever, as the feature dedup needs it. So a PublishAck is settled by arithmetic, without a Python object for
it; only ids that the caller chose are in a dict.

Invariants: a message is in flight from submit to its PublishAck or Error, whatever happens to connections meanwhile,
and `batches` has those that hold one. What is in flight when a connection is new goes out again with the same id and
the header vibemq-resend.  One thread uses a Core, but for settling messages, which any may.
"""

import os

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.math cimport isfinite
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp

import msgspec

from vibemq.client._core cimport bytes_load32
from vibemq.errors import InvalidType, InvalidValue, LimitExceeded
from vibemq.grow cimport grow
from vibemq.protocols.native.codec cimport headers_dict, malformed
from vibemq.protocols.native.wire cimport (
    FRAME_HEADER_BYTES, FRAME_NEEDS_MORE, FRAME_OK, FRAME_TOO_LARGE, FRAME_TOO_SMALL, TYPE_DELIVER, TYPE_ERROR,
    TYPE_PONG, TYPE_PUBLISH, TYPE_PUBLISH_ACK, TYPE_PUBLISH_STORED, frame_begin, frame_end, frame_header, frame_parse,
    frame_payload, frame_size, native_frame, put_bytes,
)
from vibemq.protocols.native import codec, compression, spec

cdef enum:
    PREFIX_SIZE = 16  # of an id: who we are; as many digits for the number follow
    ID_SIZE = 32
    ID_AT = 9  # in a frame: behind its header, version, type and the id's length
    PLACE_BITS = 20  # of the number; the other 44 last two years for a batch every 4 us
    BATCH_BYTES_FIRST = 4096
    SHOWN_BYTES = 80  # of a payload, where a message is printed

cdef bytes NOT_IN_HAND = b"false"  # the payload of a Holding: the program had the message, and has it no more
cdef uint32_t NOT_IN_HAND_SIZE = <uint32_t>len(NOT_IN_HAND)

cdef dict RESEND = {"vibemq-resend": "1"}
cdef object END = object()
cdef bytes FIRST = b"\x00\x10deliveryAttempts\x00\x011"  # the last header of a first delivery
cdef Py_ssize_t FIRST_SIZE = len(FIRST)

BATCH_BYTES_MAX = 262_144  # a batch that has reached this is sent: more would only wait in a socket buffer

decode_json = msgspec.json.Decoder().decode
encode_json = msgspec.json.Encoder().encode


cdef inline void put_number(uint8_t *p, uint64_t number) noexcept nogil:
    cdef int i
    for i in range(15, -1, -1):
        p[i] = (<const uint8_t *>b"0123456789abcdef")[number & 15]
        number >>= 4


cdef inline bint take_number(const uint8_t *p, uint64_t *number) noexcept nogil:
    """16 lower-case digits, as put_number wrote them."""
    cdef int i
    cdef uint8_t digit
    number[0] = 0
    for i in range(16):
        digit = p[i] - 0x30 if p[i] <= 0x39 else p[i] - 0x61 + 10 if p[i] >= 0x61 else 16
        if digit > 15:
            return False
        number[0] = number[0] << 4 | digit
    return True


# ---- messages on their way out ----


def check_numbers(payload):
    """No float in it is NaN or infinite: readers would find null in its place."""
    cdef list left = [msgspec.to_builtins(payload)]
    while left:
        value = left.pop()
        if isinstance(value, float) and not isfinite(value):
            told = f"payload: needed what JSON can say, had the number {value}"
            raise InvalidValue(told, hint="Send None for a number that is not known, or a text.")
        if isinstance(value, dict):
            left.extend(value.values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            left.extend(value)


cdef bytes json_of(payload):
    try:
        data = encode_json(payload)
    except (TypeError, ValueError, OverflowError, RecursionError) as why:
        kind = InvalidType if isinstance(why, TypeError) else InvalidValue
        raise kind(
            f"payload: needed what JSON can say, had {type(payload).__name__}: {why}",
            hint="Send texts, numbers, None, lists and dictionaries of these, dataclasses, or bytes; JSON text with raw=True.",
        ) from None
    if b"null" in data:  # which is also how the encoder writes what JSON has no word for
        check_numbers(payload)
    return data


cdef class Fields:
    """Headers of a Publish as they lie on the wire, so that many messages share the work. Empty ones are left out."""

    cdef bytes data
    cdef Py_ssize_t count

    def __init__(self, headers=None):
        cdef bytes body = codec.encode_body(TYPE_PUBLISH, b"i", headers=headers)  # 13 bytes, then the headers
        self.data = body[13:]
        self.count = ((<int>body[11] & 0xFF) << 8) | (<int>body[12] & 0xFF)


NO_FIELDS = Fields()
cdef Fields BASE64_FIELDS = Fields({str(spec.Header.PAYLOAD_ENCODING): spec.PAYLOAD_ENCODING_BASE64})


cdef class Flow:
    """Messages of one publisher, counted: submitted == in_flight + acked + len(refused) + forgotten at any time.

    `refused` has (index, id, error code, error message). The engine sets wake_at; once in_flight is no more than that,
    feed gives the Flow as an event, once.
    """

    cdef readonly Py_ssize_t submitted, in_flight, acked, forgotten
    cdef public list refused, waiters
    cdef public Py_ssize_t wake_at

    def __init__(self):
        self.refused, self.waiters, self.wake_at = [], [], -1


cdef class Batch:
    """Publishes to one queue, built by `add` or `extend`, then handed to Core.submit.

    Invariant: once submitted, `buffer` is NULL, `data` has the frames, and `pending` counts the zeros in `settled`.
    """

    cdef uint8_t *buffer
    cdef uint8_t *settled  # for each message 0 or 1
    cdef size_t capacity
    cdef readonly Py_ssize_t count, size  # size: of the frames, in bytes
    cdef bytes data, queue, blank_id
    cdef bint sent, text_layout
    cdef uint64_t number
    cdef Flow flow
    cdef Py_ssize_t pending, flow_first  # flow_first: the first message's index in the flow
    cdef dict named  # index to the id that the caller chose
    cdef int kind  # which command its frames are
    cdef Py_ssize_t body_max, body_largest

    def __init__(self, Core core not None, queue, bint stored=False):
        """`stored`: of whole messages, as a queue had them."""
        self.queue = queue.encode() if isinstance(queue, str) else b""
        if not codec.is_queue_name(self.queue):
            raise codec.UnencodableValue(
                "queue", f"a name of 1 to {spec.QUEUE_NAME_UNITS_MAX} letters, digits, '-', '_' and '.'", repr(queue)
            )
        self.blank_id, self.named = core.prefix + b"0" * (ID_SIZE - PREFIX_SIZE), {}
        self.kind, self.text_layout = TYPE_PUBLISH_STORED if stored else TYPE_PUBLISH, core.text_layout
        self.body_max = core.body_max + (<Py_ssize_t>spec.STORED_EXTRA_BYTES if stored else 0)

    def __dealloc__(self):
        free(self.buffer)
        free(self.settled)

    def add(self, payload, Fields fields=NO_FIELDS, bint raw=False, id=None):
        """One message: any JSON-serialisable value, or JSON text itself when `raw`."""
        cdef bytes name = None
        if id is not None:
            if not isinstance(id, (str, bytes)):
                raise InvalidType(f"id: needed a text, had {id!r:.60}")
            name = id.encode() if isinstance(id, str) else id
            if not 0 < len(name) <= <Py_ssize_t>spec.STRING_BYTES_MAX:
                raise codec.UnencodableValue("id", f"1 to {spec.STRING_BYTES_MAX} bytes", f"{len(name)}")
        self.add_one(payload, fields, raw, name)

    def extend(self, iterator, Py_ssize_t count_max, Fields fields=NO_FIELDS, bint raw=False):
        """From an iterator, until there are count_max or BATCH_BYTES_MAX; False when the iterator has ended."""
        cdef Py_ssize_t bytes_max = BATCH_BYTES_MAX
        while self.count < count_max and self.size < bytes_max:
            payload = next(iterator, END)
            if payload is END:
                return False
            self.add_one(payload, fields, raw, None)
        return True

    cdef int add_one(self, payload, Fields fields, bint raw, bytes name) except -1:
        if not raw:
            if isinstance(payload, (bytes, bytearray, memoryview)):  # JSON has no bytes: the reader gets them by this
                return self.append(encode_json(payload), fields, BASE64_FIELDS, name)
            return self.append(json_of(payload), fields, NO_FIELDS, name)
        if isinstance(payload, str):
            payload = payload.encode()
        elif not PyBytes_Check(payload):
            if not isinstance(payload, (bytearray, memoryview)):
                raise InvalidType(f"payload: needed JSON text with raw, as str or bytes, had {payload!r:.60}")
            payload = bytes(payload)
        return self.append(payload, fields, NO_FIELDS, name)

    cdef int append(self, bytes payload, Fields fields, Fields more, bytes name) except -1:
        """One frame; its id is left to submit unless it has a name."""
        cdef Py_ssize_t id_size = ID_SIZE if name is None else PyBytes_GET_SIZE(name)
        cdef Py_ssize_t size = frame_size(
            id_size, PyBytes_GET_SIZE(self.queue), PyBytes_GET_SIZE(payload),
            PyBytes_GET_SIZE(fields.data) + PyBytes_GET_SIZE(more.data), self.text_layout,
        )
        cdef uint8_t *p
        if self.count == 1 << PLACE_BITS:
            raise LimitExceeded("messages of a batch", self.count + 1, 1 << PLACE_BITS)
        if size - FRAME_HEADER_BYTES > self.body_max:
            raise LimitExceeded(
                f"message for queue {self.queue.decode()} in bytes", size - FRAME_HEADER_BYTES, self.body_max,
                hint="Send less in one message: other clients cannot read more.",
            )
        grow(&self.buffer, &self.capacity, max(self.size + size, BATCH_BYTES_FIRST), 1)
        if name is None:
            name = self.blank_id
        else:
            self.named[self.count] = name
        p = frame_begin(
            self.buffer + self.size, size, self.kind, PyBytes_AS_STRING(name), id_size,
            PyBytes_AS_STRING(self.queue), PyBytes_GET_SIZE(self.queue),
        )
        p = frame_payload(p, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload), fields.count + more.count)
        p = put_bytes(p, PyBytes_AS_STRING(fields.data), PyBytes_GET_SIZE(fields.data))
        frame_end(put_bytes(p, PyBytes_AS_STRING(more.data), PyBytes_GET_SIZE(more.data)), self.text_layout)
        self.size += size
        self.count += 1
        self.body_largest = max(self.body_largest, size - FRAME_HEADER_BYTES)
        return 0

    def id_of(self, Py_ssize_t index):
        """The id of a message, once submitted."""
        if index in self.named:
            return self.named[index].decode("utf-8", "surrogateescape")
        return f"{self.blank_id[:PREFIX_SIZE].decode()}{self.number << PLACE_BITS | <uint64_t>index:016x}"


# ---- messages that came ----


cdef class Message:
    """A message that was delivered: settle it with `ack` once its work is done, or give it back with `nack`.

    Both may be called from any thread, and do nothing once it is settled or its connection is gone: the broker
    delivers it again then, so a message whose ack was lost is seen twice.
    """

    cdef readonly str queue
    cdef readonly bytes raw
    cdef readonly bint settled
    cdef bytes id_bytes, queue_bytes, fields
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
    def redelivered(self):
        """True if it was delivered before: the broker's last header, deliveryAttempts, is not 1."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self.fields)
        if size >= FIRST_SIZE and memcmp(
            PyBytes_AS_STRING(self.fields) + size - FIRST_SIZE, PyBytes_AS_STRING(FIRST), FIRST_SIZE
        ) == 0:
            return False
        return self.attempts > 1

    @property
    def stale(self):
        """Was it delivered on a connection that is gone? Then it will be delivered again."""
        return self.epoch != self.core.epoch

    def ack(self):
        """The work is done: the broker forgets the message."""
        if not self.settled and self.epoch == self.core.epoch:
            self.settled = self.core.on_settle(self, True)

    def nack(self):
        """The work failed: the broker delivers it again, or dead-letters it after the last attempt.

        A broker that does not know the command is not told; it delivers again when its ack timeout is over.
        """
        if not self.settled and self.epoch == self.core.epoch:
            self.settled = self.core.on_settle(self, False)

    def hold(self, bint in_hand=True):
        """Report that the program holds the message, so that its failure counts if it is not settled.

        Not `in_hand`: the program had it, and continued without settling it. The broker then knows the messages it has seen.
        Nothing is sent to a broker without this command. The consumers call this where it matters.
        """
        if not self.settled and self.epoch == self.core.epoch:
            self.core.on_settle(self, None, in_hand)

    def __repr__(self):
        cdef bytes begin = self.raw[:SHOWN_BYTES]
        cdef str shown = repr(begin)[1:] + (f"... of {len(self.raw)} bytes" if len(self.raw) > SHOWN_BYTES else "")
        return f"Message(queue={self.queue!r}, id={self.id!r}, attempts={self.attempts}, payload={shown})"


# ---- what one client knows ----


cdef class Core:
    """What one client knows, over all of its connections."""

    cdef readonly bytes prefix
    cdef bint text_layout
    cdef Py_ssize_t body_max, read_max, threshold
    cdef readonly uint64_t epoch  # counts connections
    cdef public object on_settle  # called with (message, done[, in_hand]) from any thread
    cdef object packer  # name of the negotiated compression
    cdef uint8_t flags_max
    cdef bytearray tail
    cdef uint64_t next_number, requests
    cdef dict batches  # by number, so in order
    cdef dict named  # what waits under each id that its caller chose: [(batch, index)]
    cdef Batch acked  # the one that was told of last
    cdef bytes last_queue
    cdef str last_queue_text

    def __init__(self, body_max=spec.FRAME_BODY_BYTES_MAX_DEFAULT, text_layout=False, prefix=None):
        self.prefix = prefix or os.urandom(PREFIX_SIZE // 2).hex().encode()
        self.body_max, self.text_layout = body_max, text_layout
        self.read_max = body_max + <Py_ssize_t>spec.STORED_EXTRA_BYTES
        self.batches, self.named, self.last_queue, self.last_queue_text = {}, {}, b"", ""
        self.restart()

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
        batch.settled = <uint8_t *>calloc(max(batch.count, 1), 1)
        if batch.settled is NULL:
            raise MemoryError
        batch.number, batch.pending, batch.flow, batch.flow_first = self.next_number, batch.count, flow, flow.submitted
        for index in range(batch.count):
            if not batch.named or index not in batch.named:
                put_number(p + ID_AT + PREFIX_SIZE, batch.number << PLACE_BITS | <uint64_t>index)
            p += FRAME_HEADER_BYTES + bytes_load32(p)
        for index, name in batch.named.items():
            self.named.setdefault(name, []).append((batch, index))
        batch.data = PyBytes_FromStringAndSize(<const char *>batch.buffer, batch.size)
        free(batch.buffer)
        batch.buffer = NULL
        if batch.count:
            self.batches[batch.number] = batch
            self.next_number += 1
        flow.submitted += batch.count
        flow.in_flight += batch.count

    def wire(self, Batch batch not None):
        """The bytes of a submitted batch for this connection."""
        batch.sent = True
        return batch.data if batch.body_largest < self.threshold else self.packed(batch.data)

    def packed(self, bytes frames not None):
        """Frames as they go out: compressed where that is agreed on, allowed and shorter."""
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(frames)
        cdef const uint8_t *end = p + PyBytes_GET_SIZE(frames)
        cdef Py_ssize_t size
        cdef list parts = []
        if self.packer is None:
            return frames
        while p < end:
            size = bytes_load32(p)
            if size >= self.threshold:
                body = PyBytes_FromStringAndSize(<const char *>p + FRAME_HEADER_BYTES, size)
                small = compression.compress(self.packer, body)
                flag = 0 if small is None else spec.COMPRESSION_BY_NAME[self.packer]
                parts.append(codec.frame_of(small or body, flag))
            else:
                parts.append(PyBytes_FromStringAndSize(<const char *>p, FRAME_HEADER_BYTES + size))
            p += FRAME_HEADER_BYTES + size
        return b"".join(parts)

    def unacknowledged(self):
        """All messages in flight for a new connection, in order; those that went out before say so."""
        cdef Batch batch
        return b"".join([
            self.packed(self.again(batch)) if batch.sent else self.wire(batch) for batch in self.batches.values()
        ])

    cdef bytes again(self, Batch batch):
        cdef Py_ssize_t index, at = 0, size
        cdef list parts = []
        for index in range(batch.count):
            size = FRAME_HEADER_BYTES + bytes_load32(<const uint8_t *>PyBytes_AS_STRING(batch.data) + at)
            if not batch.settled[index]:
                frame = codec.decode_body(batch.data[at + FRAME_HEADER_BYTES:at + size])
                fields = {"queue": frame.queue, "payload": frame.payload, "headers": frame.headers | RESEND}
                parts.append(codec.encode_frame(frame.type, frame.id, text_layout=self.text_layout, **fields))
            at += size
        return b"".join(parts)

    def forget(self, Flow flow not None):
        """Nobody waits for these messages any longer: they are not sent again.

        Gives how many never left for any connection, and how many did: those may have been stored.
        """
        cdef Batch batch
        cdef Py_ssize_t index, unsent = 0, unanswered = 0
        for batch in [each for each in self.batches.values() if (<Batch>each).flow is flow]:
            if batch.sent:
                unanswered += batch.pending
            else:
                unsent += batch.pending
            for index in range(batch.count):
                if not batch.settled[index]:
                    self.take_out(batch, index)
                    flow.forgotten += 1
        return unsent, unanswered

    cdef int take_out(self, Batch batch, Py_ssize_t index) except -1:
        """The message is not in flight any more."""
        batch.settled[index] = 1
        batch.pending -= 1
        batch.flow.in_flight -= 1
        if batch.pending == 0:
            del self.batches[batch.number]
            self.acked = None
        if batch.named and index in batch.named:
            name = batch.named[index]
            self.named[name].remove((batch, index))
            if not self.named[name]:
                del self.named[name]
        return 0

    def settlements(self, list settled not None):
        """Return the Ack, Nack and Holding frames for (message, type, in_hand), without those of an older connection."""
        cdef Message message
        cdef Py_ssize_t size = 0
        cdef bytes out
        cdef uint8_t *p
        cdef list frames = [each for each in settled if (<Message>each[0]).epoch == self.epoch]
        cdef int kind
        cdef bint in_hand
        cdef uint32_t payload_size
        for message, kind, in_hand in frames:
            payload_size = 0 if in_hand else NOT_IN_HAND_SIZE
            size += frame_size(len(message.id_bytes), len(message.queue_bytes), payload_size, 0, self.text_layout)
        out = PyBytes_FromStringAndSize(NULL, size)
        p = <uint8_t *>PyBytes_AS_STRING(out)
        for message, kind, in_hand in frames:
            payload_size = 0 if in_hand else NOT_IN_HAND_SIZE
            size = frame_size(len(message.id_bytes), len(message.queue_bytes), payload_size, 0, self.text_layout)
            p = frame_begin(
                p, size, kind, PyBytes_AS_STRING(message.id_bytes), len(message.id_bytes),
                PyBytes_AS_STRING(message.queue_bytes), len(message.queue_bytes),
            )
            p = frame_end(frame_payload(p, PyBytes_AS_STRING(NOT_IN_HAND), payload_size, 0), self.text_layout)
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
        cdef Batch batch
        cdef Py_ssize_t index = 0
        cdef int fault = frame_parse(body, size, &frame)
        if fault != FRAME_OK:
            raise malformed(fault, frame.needed, frame.had)
        if frame.type == TYPE_DELIVER:
            events.append(self.message(&frame))
            return 0
        batch = self.find(&frame, &index) if frame.type == TYPE_PUBLISH_ACK or frame.type == TYPE_ERROR else None
        if frame.type != TYPE_PUBLISH_ACK and frame.type != TYPE_PONG:
            answer = codec.decode_body(PyBytes_FromStringAndSize(<const char *>body, size))
            if batch is None:
                events.append(answer)
        if batch is None:
            return 0
        self.take_out(batch, index)
        if frame.type == TYPE_PUBLISH_ACK:
            batch.flow.acked += 1
        else:
            batch.flow.refused.append((
                batch.flow_first + index, batch.id_of(index), answer.error_code or "", answer.error_message or "",
            ))
        if batch.flow.in_flight <= batch.flow.wake_at:
            batch.flow.wake_at = -1
            events.append(batch.flow)
        return 0

    cdef Batch find(self, const native_frame *frame, Py_ssize_t *index):
        """Whose message in flight, and which, the frame is about; None for none."""
        cdef uint64_t number = 0
        cdef Batch batch = self.acked
        if (
            frame.id_size == ID_SIZE
            and memcmp(frame.id, PyBytes_AS_STRING(self.prefix), PREFIX_SIZE) == 0
            and take_number(frame.id + PREFIX_SIZE, &number)
        ):
            if batch is None or batch.number != number >> PLACE_BITS:
                batch = self.batches.get(number >> PLACE_BITS)
            index[0] = number & ((1 << PLACE_BITS) - 1)
            if batch is not None and index[0] < batch.count and not batch.settled[index[0]] \
                    and not (batch.named and index[0] in batch.named):
                self.acked = batch
                return batch
        batch = None
        if self.named:
            name = PyBytes_FromStringAndSize(<const char *>frame.id, frame.id_size)
            batch, index[0] = self.named.get(name, [(None, 0)])[0]
        return batch

    cdef Message message(self, const native_frame *frame):
        cdef Message message = Message.__new__(Message)
        if (
            <Py_ssize_t>frame.queue_size != PyBytes_GET_SIZE(self.last_queue)
            or memcmp(frame.queue, PyBytes_AS_STRING(self.last_queue), frame.queue_size) != 0
        ):
            self.last_queue = PyBytes_FromStringAndSize(<const char *>frame.queue, frame.queue_size)
            self.last_queue_text = PyUnicode_DecodeUTF8(<const char *>frame.queue, frame.queue_size, "surrogateescape")
        message.queue, message.queue_bytes = self.last_queue_text, self.last_queue
        message.id_bytes = PyBytes_FromStringAndSize(<const char *>frame.id, frame.id_size)
        message.raw = PyBytes_FromStringAndSize(<const char *>frame.payload, frame.payload_size)
        message.fields = PyBytes_FromStringAndSize(<const char *>frame.headers, frame.headers_size)
        message.decoded = END
        message.core, message.epoch = self, self.epoch
        return message
