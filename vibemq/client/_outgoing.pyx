# SPDX-License-Identifier: Apache-2.0
"""Messages on their way out: frames of Publish, written one behind the other as messages are added.

A Batch is built by whoever has the messages, in any thread, and handed to Core.submit, which numbers them. The id of a
message is its number, after 16 digits that say which client it is, and its place is left blank until then; only ids
that the caller chose are written at once and kept beside. Attributes and their meaning: _outgoing.pxd.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from libc.math cimport isfinite
from libc.stdlib cimport free

import msgspec

from vibemq.errors import InvalidType, InvalidValue, LimitExceeded
from vibemq.grow cimport grow
from vibemq.protocols.native.wire cimport (
    FRAME_HEADER_BYTES, TYPE_PUBLISH, TYPE_PUBLISH_STORED, frame_begin, frame_end, frame_payload, frame_size, put_bytes,
)

from vibemq.protocols.native import codec, spec

cdef Py_ssize_t BATCH_BYTES_FIRST = 4_096
cdef object END = object()

BATCH_BYTES_MAX = 262_144  # a batch that has reached this is sent: more would only wait in a socket buffer

encode_json = msgspec.json.Encoder().encode


def priority_of(given):
    """A spec.Priority, by its name or number."""
    if isinstance(given, str) and given.upper() in spec.Priority.__members__:
        return spec.Priority[given.upper()]
    if isinstance(given, int) and given in list(spec.Priority):
        return spec.Priority(given)
    raise InvalidValue(
        f"priority: needed one of {', '.join(member.name.lower() for member in spec.Priority)}, had {given!r}"
    )


def check_numbers(payload):
    """No float in it is NaN or infinite: readers would find null in its place."""
    cdef list left = [msgspec.to_builtins(payload)]
    while left:
        value = left.pop()
        if isinstance(value, float) and not isfinite(value):
            raise InvalidValue(
                f"payload: needed what JSON can say, had the number {value}",
                hint="Send None for a number that is not known, or a text.",
            )
        if isinstance(value, dict):
            left.extend(value.values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            left.extend(value)


cdef bytes json_of(payload):
    """As JSON text; InvalidValue for what JSON has no word for."""
    try:
        return encode_json(payload)
    except (TypeError, ValueError, OverflowError, RecursionError) as why:
        kind = InvalidType if isinstance(why, TypeError) else InvalidValue
        raise kind(
            f"payload: needed what JSON can say, had {type(payload).__name__}: {why}",
            hint="Send texts, numbers, None, lists and dictionaries of these, dataclasses, or bytes; JSON text with raw=True.",
        ) from None


cdef class Fields:
    """Headers of a Publish as they lie on the wire, so that many messages share the work. Empty ones are left out."""

    def __init__(self, headers=None, priority=None):
        cdef dict given = dict(headers or {})
        cdef bytes body
        if priority is not None:
            given[str(spec.Header.PRIORITY)] = spec.wire_name(priority_of(priority))
        for name, value in given.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InvalidType(f"headers are texts: needed str, had {name!r}: {value!r:.60}")
        body = codec.encode_body(TYPE_PUBLISH, b"i", headers=given)  # 13 bytes, then the headers
        self.data = body[13:]
        self.count = ((<int>body[11] & 0xFF) << 8) | (<int>body[12] & 0xFF)


NO_FIELDS = Fields()
BASE64_FIELDS = Fields({str(spec.Header.PAYLOAD_ENCODING): spec.PAYLOAD_ENCODING_BASE64})


cdef class Flow:
    """Messages of one publisher, counted: submitted == in_flight + acked + len(refused) + forgotten at any time.

    `refused` has (index, id, error code, error message). The engine sets wake_at; once in_flight is no more than that,
    feed gives the Flow as an event, once.
    """

    def __init__(self):
        self.refused = []
        self.waiters = []
        self.wake_at = -1

    def take_refused(self):
        """What was refused since the last time."""
        refused, self.refused = self.refused, []
        return refused


cdef class Batch:
    """Publishes to one queue, built by `add` or `extend`, then handed to Core.submit."""

    def __init__(self, core not None, queue, bint stored=False):
        self.queue = queue.encode() if isinstance(queue, str) else b""
        if not codec.is_queue_name(self.queue):
            raise codec.UnencodableValue(
                "queue", f"a name of 1 to {spec.QUEUE_NAME_UNITS_MAX} letters, digits, '-', '_' and '.'", repr(queue)
            )
        self.blank_id = core.prefix + b"0" * (ID_SIZE - PREFIX_SIZE)
        self.text_layout, self.body_max = core.text_layout, core.body_max
        self.kind = TYPE_PUBLISH
        if stored:  # whole messages, as a queue had them
            self.kind, self.body_max = TYPE_PUBLISH_STORED, self.body_max + <Py_ssize_t>spec.STORED_EXTRA_BYTES

    def __dealloc__(self):
        free(self.buffer)
        free(self.settled)

    @property
    def size_bytes(self):
        return self.size if self.data is None else len(self.data)

    @property
    def unsettled(self):
        return self.pending

    cdef int room(self, Py_ssize_t more) except -1:
        return grow(&self.buffer, &self.capacity, max(self.size + more, BATCH_BYTES_FIRST), 1)

    cdef int append(self, bytes payload, Fields fields, Fields more, bytes name) except -1:
        """One frame; its id is left to submit unless it has a name."""
        cdef Py_ssize_t id_size = ID_SIZE if name is None else PyBytes_GET_SIZE(name)
        cdef Py_ssize_t headers_size = PyBytes_GET_SIZE(fields.data)
        cdef Py_ssize_t header_count = fields.count
        cdef Py_ssize_t size
        cdef uint8_t *p
        if more is not None:
            headers_size += PyBytes_GET_SIZE(more.data)
            header_count += more.count
        size = frame_size(
            id_size, PyBytes_GET_SIZE(self.queue), PyBytes_GET_SIZE(payload), headers_size, self.text_layout
        )
        if size - FRAME_HEADER_BYTES > self.body_max:
            raise LimitExceeded(
                f"message for queue {self.queue.decode()} in bytes", size - FRAME_HEADER_BYTES, self.body_max,
                hint="Send less in one message: other clients cannot read more.",
            )
        self.room(size)
        if name is None:
            name = self.blank_id
        else:
            if self.named is None:
                self.named = {}
            self.named[self.count] = name
        p = frame_begin(
            self.buffer + self.size, size, self.kind, PyBytes_AS_STRING(name), id_size,
            PyBytes_AS_STRING(self.queue), PyBytes_GET_SIZE(self.queue),
        )
        p = frame_payload(p, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload), header_count)
        p = put_bytes(p, PyBytes_AS_STRING(fields.data), PyBytes_GET_SIZE(fields.data))
        if more is not None:
            p = put_bytes(p, PyBytes_AS_STRING(more.data), PyBytes_GET_SIZE(more.data))
        frame_end(p, self.text_layout)
        self.size += size
        self.count += 1
        self.body_largest = max(self.body_largest, size - FRAME_HEADER_BYTES)
        return 0

    cdef int add_one(self, payload, Fields fields, bint raw, bytes name) except -1:
        if raw:
            if isinstance(payload, str):
                payload = payload.encode()
            elif not PyBytes_Check(payload):
                if not isinstance(payload, (bytearray, memoryview)):
                    raise InvalidType(f"payload: needed JSON text with raw, as str or bytes, had {payload!r:.60}")
                payload = bytes(payload)
            self.append(payload, fields, None, name)
        elif isinstance(payload, (bytes, bytearray, memoryview)):  # JSON has no bytes: the reader gets them back by this
            self.append(encode_json(payload), fields, BASE64_FIELDS, name)
        else:
            data = json_of(payload)
            if b"null" in data:  # which is also how the encoder writes what JSON has no word for
                check_numbers(payload)
            self.append(data, fields, None, name)
        return 0

    def id_of(self, Py_ssize_t index):
        """The id of a message, once submitted."""
        if self.named is not None and index in self.named:
            return self.named[index].decode("utf-8", "surrogateescape")
        return f"{self.blank_id[:PREFIX_SIZE].decode()}{self.first + <uint64_t>index:016x}"

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


def batch_first(Batch batch):
    return batch.first
