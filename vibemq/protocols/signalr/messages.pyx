# SPDX-License-Identifier: Apache-2.0
"""Hub messages as Python sees them: the raw parts of what methods are given, and whole messages, to records and back,
for tests and whoever wants to look at some.

The work is done by envelope.pyx and writers.pxd, as in the broker; here it only gets Python values.  The parts are not in
envelope.pyx because another user of its small functions would keep the compiler from inlining them there.
"""

from typing import NamedTuple

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t

from vibemq.errors import VibeMQError
from vibemq.protocols.signalr cimport writers
from vibemq.protocols.signalr.envelope cimport (
    DIALECT_V1, ENCODING_JSON, ID_BYTES_MAX, RESULT_ERROR, RESULT_VALUE, RESULT_VOID, TARGET_BYTES_MAX, TYPE_CLOSE,
    TYPE_COMPLETION, TYPE_INVOCATION, TYPE_PING, TYPE_STREAM_COMPLETION, TYPE_STREAM_INVOCATION, TYPE_STREAM_ITEM,
    VARINT_MAX, argument, hub_message, next_record, parse_json, parse_messagepack, span, stream_id, text_of,
)
from vibemq.protocols.signalr.json_reader cimport space_skip, value_end
from vibemq.protocols.signalr.messagepack_reader cimport MP_MAP, head_read, mp_head, value_skip
from vibemq.protocols.signalr.writers cimport span_of_bytes

from vibemq.protocols.signalr import spec
from vibemq.protocols.signalr.envelope import MalformedFrame, raw_of, value_of


class UnencodableValue(VibeMQError, ValueError):
    """Our own caller gave a message that the dialect cannot carry: where, what was needed there, what there was."""

    def __init__(self, where, needed, had):
        super().__init__(f"{where}: needed {needed}, had {had}")
        self.where, self.needed, self.had = where, needed, had


class Message(NamedTuple):
    """One hub message. `payload` is an item or a result; NOTHING where there is none, as None is a value."""

    type: int
    id: str | None = None
    target: str | None = None
    arguments: list = []
    stream_ids: list = []
    nonblocking: bool = False
    payload: object = spec.NOTHING
    error: str | None = None
    allow_reconnect: bool = False
    sequence: int = 0


cdef bytes bytes_of(span data):
    return PyBytes_FromStringAndSize(<const char *> data.data, data.size)


cdef str str_of(span text):
    return bytes_of(text).decode()


def split_records(bytes data not None, int encoding, size_t record_max=spec.RECORD_BYTES_MAX_DEFAULT):
    """The whole records at the beginning of `data`, without their framing, and the bytes that they took."""
    cdef list records = []
    cdef span body
    cdef size_t at = 0
    cdef Py_ssize_t used
    while True:
        used = next_record(<const uint8_t *> PyBytes_AS_STRING(data) + at, len(data) - at, encoding, record_max, &body)
        if used == 0:
            return records, at
        records.append(bytes_of(body))
        at += used


cdef int parse(bytes record, int encoding, int dialect, hub_message *m) except -1:
    cdef const uint8_t *data = <const uint8_t *> PyBytes_AS_STRING(record)
    cdef int fault
    if encoding == ENCODING_JSON:
        fault = parse_json(data, len(record), dialect, m)
    else:
        fault = parse_messagepack(data, len(record), dialect, m)
    if fault:
        raise MalformedFrame(*spec.FAULTS[fault])
    return 0


def type_of(bytes record not None, int encoding, int dialect=DIALECT_V1):
    """The type of a record, which is checked whole, without a look at its values; 0: one that nobody knows."""
    cdef hub_message m
    parse(record, encoding, dialect, &m)
    return m.type


def decode(bytes record not None, int encoding, int dialect=DIALECT_V1):
    """The Message in a record that comes without its framing; None: a type that nobody knows, to be ignored."""
    cdef hub_message m
    cdef span each
    cdef list arguments = [], stream_ids = []
    cdef uint32_t i
    parse(record, encoding, dialect, &m)
    if m.type == 0:
        return None
    for i in range(m.argument_count):
        argument(&m, encoding, i, &each)
        arguments.append(value_of(bytes_of(each), encoding))
    for i in range(m.stream_id_count):
        stream_id(&m, encoding, i, &each)
        stream_ids.append(str_of(each))
    return Message(
        m.type,
        str_of(m.id) if m.has_id else None,
        str_of(m.target) if m.target.data != NULL else None,
        arguments,
        stream_ids,
        bool(m.nonblocking),
        value_of(bytes_of(m.payload), encoding) if m.has_payload else spec.NOTHING,
        str_of(m.error) if m.has_error else None,
        bool(m.allow_reconnect),
        m.sequence,
    )


cdef bytes text_bytes(value, str where, int size_max):
    """A text that has to be there."""
    if not isinstance(value, str):
        raise UnencodableValue(where, "a str", type(value).__name__)
    cdef bytes data = value.encode("utf-8", "replace")
    if len(data) > size_max:
        raise UnencodableValue(where, f"at most {size_max} bytes", f"{len(data)}")
    return data


def encode(message, int encoding, int dialect=DIALECT_V1):
    """A Message as a record with its framing."""
    cdef int type = message.type
    cdef bint is_early = dialect != DIALECT_V1
    if not TYPE_INVOCATION <= type <= TYPE_STREAM_COMPLETION or (
        type >= TYPE_PING and is_early != (type == TYPE_STREAM_COMPLETION)
    ):
        raise UnencodableValue("type", "one of the dialect", f"{type}")
    if type == TYPE_INVOCATION or type == TYPE_STREAM_INVOCATION:
        return encode_call(message, encoding, dialect)
    if type < TYPE_PING or type == TYPE_STREAM_COMPLETION:
        return encode_answer(message, encoding, dialect)
    return encode_control(message, encoding)


cdef bytes whole(bytes out, const uint8_t *end):
    """A writer ended where its size function said, or memory has been written that is not ours."""
    if end != <const uint8_t *> PyBytes_AS_STRING(out) + len(out):
        raise SystemError("a record's writer and its size function disagree")
    return out


cdef bytes encode_call(message, int encoding, int dialect):
    cdef bint has_id = message.id is not None
    if not has_id and (dialect != DIALECT_V1 or message.type == TYPE_STREAM_INVOCATION):
        raise UnencodableValue("invocationId", "a str", "None")
    cdef bytes id = text_bytes(message.id, "invocationId", ID_BYTES_MAX) if has_id else b""
    cdef bytes target = text_bytes(message.target, "target", TARGET_BYTES_MAX)
    cdef bytes arguments = raw_of(message.arguments, encoding)
    cdef bytes ids = raw_of(message.stream_ids, encoding) if message.stream_ids else b""
    cdef bint nonblocking = message.nonblocking
    cdef int type = message.type
    cdef size_t head = writers.invocation_head_size(
        dialect, encoding, has_id, span_of_bytes(id), nonblocking, span_of_bytes(target)
    )
    cdef bytes out = PyBytes_FromStringAndSize(
        NULL, writers.invocation_size(dialect, encoding, head, len(arguments), span_of_bytes(ids))
    )
    cdef uint8_t *p = <uint8_t *> PyBytes_AS_STRING(out)
    p = writers.invocation_begin(p, dialect, encoding, head, len(arguments), span_of_bytes(ids))
    p = writers.invocation_head_write(
        p, dialect, encoding, type, has_id, span_of_bytes(id), nonblocking, span_of_bytes(target)
    )
    p = writers.put(p, PyBytes_AS_STRING(arguments), len(arguments))
    return whole(out, writers.invocation_end(p, dialect, encoding, span_of_bytes(ids)))


cdef bytes encode_answer(message, int encoding, int dialect):
    """What has an id and no target: items, completions, ends of streams, cancellations."""
    cdef int type = message.type
    cdef int kind = RESULT_VOID
    cdef bytes id = text_bytes(message.id, "invocationId", ID_BYTES_MAX)
    cdef bytes content = b""
    cdef bytes out
    cdef size_t head
    cdef uint8_t *p
    if message.error is not None:
        if message.payload is not spec.NOTHING:
            raise UnencodableValue("error", "either a result or an error", "both")
        kind, content = RESULT_ERROR, text_bytes(message.error, "error", VARINT_MAX)
    elif message.payload is not spec.NOTHING:
        kind, content = RESULT_VALUE, raw_of(message.payload, encoding)
    if type == TYPE_STREAM_ITEM:
        if kind != RESULT_VALUE:
            raise UnencodableValue("item", "a value", "none")
        head = writers.stream_item_head_size(dialect, encoding, span_of_bytes(id))
        out = PyBytes_FromStringAndSize(NULL, writers.item_size(encoding, head, len(content)))
        p = writers.item_begin(<uint8_t *> PyBytes_AS_STRING(out), encoding, head, len(content))
        p = writers.stream_item_head_write(p, dialect, encoding, span_of_bytes(id))
        p = writers.item_end(writers.put(p, PyBytes_AS_STRING(content), len(content)), encoding)
    elif type == TYPE_COMPLETION:
        out = PyBytes_FromStringAndSize(
            NULL, writers.completion_size(dialect, encoding, span_of_bytes(id), kind, span_of_bytes(content))
        )
        p = <uint8_t *> PyBytes_AS_STRING(out)
        p = writers.completion_write(p, dialect, encoding, span_of_bytes(id), kind, span_of_bytes(content))
    elif type == TYPE_STREAM_COMPLETION:
        out = PyBytes_FromStringAndSize(
            NULL, writers.stream_end_size(dialect, encoding, span_of_bytes(id), span_of_bytes(content))
        )
        p = <uint8_t *> PyBytes_AS_STRING(out)
        p = writers.stream_end_write(p, dialect, encoding, span_of_bytes(id), span_of_bytes(content))
    else:
        out = PyBytes_FromStringAndSize(NULL, writers.cancel_size(dialect, encoding, span_of_bytes(id)))
        p = writers.cancel_write(<uint8_t *> PyBytes_AS_STRING(out), dialect, encoding, span_of_bytes(id))
    return whole(out, p)


cdef bytes encode_control(message, int encoding):
    cdef int type = message.type
    cdef int64_t sequence = message.sequence
    cdef bytes error = b"" if message.error is None else text_bytes(message.error, "error", VARINT_MAX)
    cdef bint again = message.allow_reconnect
    cdef bytes out
    cdef uint8_t *p
    if type == TYPE_PING:
        out = PyBytes_FromStringAndSize(NULL, writers.ping_size(encoding))
        p = writers.ping_write(<uint8_t *> PyBytes_AS_STRING(out), encoding)
    elif type == TYPE_CLOSE:
        out = PyBytes_FromStringAndSize(NULL, writers.close_size(encoding, span_of_bytes(error), again))
        p = writers.close_write(<uint8_t *> PyBytes_AS_STRING(out), encoding, span_of_bytes(error), again)
    else:
        if sequence < 0:
            raise UnencodableValue("sequenceId", "a number that is not negative", f"{sequence}")
        out = PyBytes_FromStringAndSize(NULL, writers.sequence_size(encoding, sequence))
        p = writers.sequence_write(<uint8_t *> PyBytes_AS_STRING(out), encoding, type, sequence)
    return whole(out, p)


# ---- parts of raw values ----


def elements_of(bytes array not None, int encoding) -> list:
    """The raw elements of a raw array from a record, undecoded, whatever texts and numbers are in them."""
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(array)
    cdef const uint8_t *end = p + len(array)
    cdef const uint8_t *begin
    cdef list found = []
    cdef mp_head head
    if encoding == ENCODING_JSON:
        end -= 1  # the bracket
        p = space_skip(p + 1, end)
        while p < end:
            begin, p = p, value_end(p, end)
            found.append((<const char *> begin)[:p - begin])
            p = space_skip(space_skip(p, end) + 1, end)  # over the comma
        return found
    p = head_read(p, end, &head)
    while head.size:
        begin, p = p, value_skip(p, end)
        found.append((<const char *> begin)[:p - begin])
        head.size -= 1
    return found


def members_of(bytes value not None, int encoding):
    """The raw members of a raw object from a record, by their names; None: it is none, or a name is no text."""
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(value)
    cdef const uint8_t *end = p + len(value)
    cdef const uint8_t *begin
    cdef bint is_json = encoding == ENCODING_JSON
    cdef dict found = {}
    cdef mp_head head
    cdef span raw, name
    head.size = 0
    if is_json:
        end -= 1  # the bracket
        p = space_skip(p + 1, end) if p[0] == c"{" else NULL
    else:
        p = head_read(p, end, &head)
        if head.kind != MP_MAP:
            return None
    if p == NULL:
        return None
    while p < end if is_json else head.size:
        raw.data, begin = p, value_end(p, end) if is_json else value_skip(p, end)
        raw.size = <uint32_t> (begin - p)
        if not text_of(raw, encoding, &name):
            return None
        if is_json:
            begin = space_skip(space_skip(begin, end) + 1, end)  # over the colon
        p = value_end(begin, end) if is_json else value_skip(begin, end)
        found[(<const char *> name.data)[:name.size].decode()] = (<const char *> begin)[:p - begin]
        if is_json:
            p = space_skip(space_skip(p, end) + 1, end)
        head.size -= 2
    return found
