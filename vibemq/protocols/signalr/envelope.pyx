# SPDX-License-Identifier: Apache-2.0
"""The envelopes of hub messages: both dialects, in JSON and in MessagePack; no I/O.

A parse looks at a whole record first (json_check, or a walk over every MessagePack value), so whoever holds its parts
may walk them without another check. What a peer may get wrong is a FAULT, never an exception: its connection closes. A
field that is unknown, and one that means nothing on its type of message, is ignored.

Below the parse functions lies the face for Python: values, handshakes and the text groups of the early dialect.
messages.pyx has whole messages as Python sees them.
"""

import binascii
from typing import NamedTuple

import msgspec
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memset

from vibemq.errors import LimitExceeded, ProtocolError
from vibemq.protocols.signalr.json_reader cimport (
    MEMBER_ALLOW_RECONNECT, MEMBER_ARGUMENTS, MEMBER_ERROR, MEMBER_HEADERS, MEMBER_ID, MEMBER_ITEM, MEMBER_NONBLOCKING,
    MEMBER_RESULT, MEMBER_SEQUENCE, MEMBER_STREAM_IDS, MEMBER_TARGET, MEMBER_TYPE, MEMBERS, integer_of, is_null,
    members_find, space_skip, text_decode, value_end,
)
from vibemq.protocols.signalr.messagepack_reader cimport (
    MP_ARRAY, MP_INTEGER, MP_STR, body_skip, head_read, head_take, mp_control, mp_cursor, mp_early, mp_head, mp_v1,
    value_skip,
)
from vibemq.storage.core cimport ERR_LIMIT, OK, err, json_check, json_check_escapes, utf8_is_valid

from vibemq.protocols.signalr import spec

# ---- scratch: decoded texts, until the next parse ----

cdef enum:
    SCRATCH_BLOCK_BYTES = 4096    # of a block, unless one text is longer
    SCRATCH_KEPT_BYTES = 65536    # a larger block goes back at once


# The newest block first.  Together they are never larger than the texts that were asked for.
cdef struct scratch_block:
    scratch_block *older
    size_t size
    size_t used

cdef scratch_block *scratch = NULL


cdef void scratch_reset() noexcept:
    global scratch
    cdef scratch_block *older
    while scratch != NULL and (scratch.older != NULL or scratch.size > SCRATCH_KEPT_BYTES):
        older = scratch.older
        free(scratch)
        scratch = older
    if scratch != NULL:
        scratch.used = 0


cdef uint8_t *scratch_room(size_t size) noexcept:
    """Room for `size` bytes, of which the caller takes what it needs by adding to `scratch.used`; NULL: no memory."""
    global scratch
    cdef scratch_block *block = scratch
    cdef size_t wanted = max(size, <size_t> SCRATCH_BLOCK_BYTES)
    if block == NULL or block.size - block.used < size:
        block = <scratch_block *> malloc(sizeof(scratch_block) + wanted)
        if block == NULL:
            return NULL
        block.older, block.size, block.used = scratch, wanted, 0
        scratch = block
    return <uint8_t *> (block + 1) + block.used


# ---- JSON ----


cdef bint json_text(span raw, span *out) noexcept:
    """The text of a raw string; False when it is none."""
    cdef const uint8_t *begin
    cdef const uint8_t *end
    cdef uint8_t *room
    cdef uint8_t *decoded
    if raw.size < 2 or raw.data[0] != c'"':
        return False
    begin, end = raw.data + 1, raw.data + raw.size - 1
    if memchr(begin, c'\\', end - begin) == NULL:
        out.data, out.size = begin, <uint32_t> (end - begin)
        return True
    room = scratch_room(end - begin)
    decoded = text_decode(begin, end, room) if room != NULL else NULL
    if decoded == NULL:
        return False
    out.data, out.size = room, <uint32_t> (decoded - room)
    scratch.used += out.size
    return True


cdef int json_id(span raw, int dialect, bint needed, hub_message *out) noexcept:
    if is_null(raw):
        return FAULT_ID if needed else FAULT_NONE
    if not json_text(raw, &out.id):
        return FAULT_ID
    return id_check(dialect, needed, out)


cdef bint json_bool(span raw, bint *out) noexcept:
    """true, false, or nothing, which is false."""
    out[0] = raw.size and raw.data[0] == c't'
    return out[0] or is_null(raw) or raw.data[0] == c'f'


cdef int json_error(span raw, hub_message *out) noexcept:
    if is_null(raw):
        return FAULT_NONE
    out.has_error = json_text(raw, &out.error)
    return FAULT_NONE if out.has_error else FAULT_ERROR


cdef int json_call(const span *members, int dialect, hub_message *out) noexcept:
    """Target, arguments and uploads of an Invocation or StreamInvocation."""
    cdef bint flagged = False
    cdef int fault
    if not json_text(members[MEMBER_TARGET], &out.target):
        return FAULT_TARGET
    if out.target.size > TARGET_BYTES_MAX:
        return FAULT_TARGET_LONG
    out.arguments = members[MEMBER_ARGUMENTS]
    if out.arguments.size == 0 or out.arguments.data[0] != c'[':
        return FAULT_ARGUMENTS
    fault = json_id(members[MEMBER_ID], dialect, out.type == TYPE_STREAM_INVOCATION, out)
    if fault:
        return fault
    if dialect != DIALECT_V1:
        if not json_bool(members[MEMBER_NONBLOCKING], &flagged):
            return FAULT_NONBLOCKING
    elif not is_null(members[MEMBER_STREAM_IDS]):
        fault = json_stream_ids(members[MEMBER_STREAM_IDS], out)
    out.nonblocking = out.type == TYPE_INVOCATION and (flagged or not out.has_id)
    return fault


cdef int json_stream_ids(span raw, hub_message *out) noexcept:
    cdef span each, text
    out.stream_ids = raw
    if raw.data[0] != c'[':
        return FAULT_STREAM_IDS
    while json_element(raw, out.stream_id_count, &each):
        if out.stream_id_count == STREAM_IDS_MAX or not json_text(each, &text) or text.size > ID_BYTES_MAX:
            return FAULT_STREAM_IDS
        out.stream_id_count += 1
    return FAULT_NONE


cdef int json_completion(const span *members, int dialect, hub_message *out) noexcept:
    cdef span result = members[MEMBER_RESULT]
    cdef int fault = json_error(members[MEMBER_ERROR], out)
    if fault:
        return fault
    if out.has_error:
        return FAULT_NONE if is_null(result) else FAULT_BOTH
    out.payload = result
    # The early server wrote null for void.
    out.has_payload = result.size != 0 if dialect == DIALECT_V1 else not is_null(result)
    return FAULT_NONE


cdef int json_interpret(const span *members, int dialect, hub_message *out) noexcept:
    cdef int64_t type = 0
    cdef int fault
    cdef uint32_t arguments = out.argument_count
    out.argument_count = 0  # of calls only
    if not integer_of(members[MEMBER_TYPE], &type):
        return FAULT_TYPE
    if type < TYPE_INVOCATION or type > TYPE_SEQUENCE:
        return FAULT_NONE
    out.type = <int> type
    if dialect == DIALECT_V1 and not is_null(members[MEMBER_HEADERS]) and members[MEMBER_HEADERS].data[0] != c'{':
        return FAULT_HEADERS
    if type == TYPE_STREAM_INVOCATION and dialect != DIALECT_V1 and is_null(members[MEMBER_TARGET]):
        out.type = TYPE_STREAM_COMPLETION
    if out.type == TYPE_INVOCATION or out.type == TYPE_STREAM_INVOCATION:
        out.argument_count = arguments
        return json_call(members, dialect, out)
    if out.type == TYPE_PING:
        return FAULT_NONE
    if out.type == TYPE_CLOSE:
        if not json_bool(members[MEMBER_ALLOW_RECONNECT], &out.allow_reconnect):
            return FAULT_ALLOW_RECONNECT
        return json_error(members[MEMBER_ERROR], out)
    if out.type == TYPE_ACK or out.type == TYPE_SEQUENCE:
        return FAULT_NONE if integer_of(members[MEMBER_SEQUENCE], &out.sequence) and out.sequence >= 0 else FAULT_SEQUENCE
    fault = json_id(members[MEMBER_ID], dialect, True, out)
    if fault or out.type == TYPE_CANCEL_INVOCATION:
        return fault
    if out.type == TYPE_COMPLETION:
        return json_completion(members, dialect, out)
    if out.type == TYPE_STREAM_COMPLETION:
        return json_error(members[MEMBER_ERROR], out)
    out.payload = members[MEMBER_ITEM]
    out.has_payload = out.payload.size > 0
    return FAULT_NONE if out.has_payload else FAULT_ITEM


cdef int parse_json(const uint8_t *record, size_t size, int dialect, hub_message *out) except -1:
    cdef span members[MEMBERS]
    cdef uint64_t position = 0
    cdef err checked
    cdef const uint8_t *begin
    scratch_reset()
    memset(out, 0, sizeof(hub_message))
    if size > VARINT_MAX:
        return FAULT_LENGTH
    checked = json_check_escapes(record, size, RECORD_DEPTH_MAX, &position, &out.has_escapes)
    if checked != OK:
        return FAULT_DEPTH if checked == ERR_LIMIT else FAULT_JSON
    begin = space_skip(record, record + size)
    if begin[0] != c'{':
        return FAULT_NOT_OBJECT
    memset(members, 0, sizeof(members))
    members_find(begin, record + size, members, out)
    return json_interpret(members, dialect, out)


cdef bint json_element(span array, uint32_t index, span *out) noexcept:
    """One of a raw array's values."""
    cdef const uint8_t *end = array.data + array.size - 1  # the bracket
    cdef const uint8_t *p = space_skip(array.data + 1, end)
    cdef const uint8_t *begin
    while p < end:
        begin = p
        p = value_end(p, end)
        if index == 0:
            out.data, out.size = begin, <uint32_t> (p - begin)
            return True
        index -= 1
        p = space_skip(space_skip(p, end) + 1, end)  # over the comma
    return False


# ---- MessagePack ----


cdef int parse_messagepack(const uint8_t *body, size_t size, int dialect, hub_message *out) except -1:
    cdef mp_cursor c
    cdef mp_head head
    cdef int64_t type = 0
    scratch_reset()
    memset(out, 0, sizeof(hub_message))
    if size > VARINT_MAX:
        return FAULT_LENGTH
    c.at, c.end, c.left, c.fault = body, body + size, 1, FAULT_NONE
    if not head_take(&c, &head):
        return c.fault
    if head.kind != MP_ARRAY:
        return FAULT_NOT_ARRAY
    c.left = <uint32_t> head.size
    if c.left == 0:
        return FAULT_TYPE
    if not head_take(&c, &head):
        return c.fault
    if head.kind != MP_INTEGER:
        return FAULT_TYPE
    type = head.integer
    if not head.too_large and TYPE_INVOCATION <= type <= TYPE_SEQUENCE:
        out.type = <int> type
        if type >= TYPE_PING:
            mp_control(&c, out)
        elif dialect == DIALECT_V1:
            mp_v1(&c, out)
        else:
            mp_early(&c, dialect, out)
    while c.left and head_take(&c, &head):  # elements that we do not know
        body_skip(&c, &head, 2)
    if not c.fault and c.at != c.end:
        return FAULT_LENGTH
    return c.fault


# ---- what is in both encodings ----


cdef bint mp_element(span array, uint32_t index, span *out) noexcept:
    cdef const uint8_t *end = array.data + array.size
    cdef const uint8_t *p
    cdef mp_head head
    if array.size == 0:
        return False
    p = head_read(array.data, end, &head)
    if p == NULL or index >= head.size:
        return False
    while index:
        p = value_skip(p, end)
        index -= 1
    out.data, out.size = p, <uint32_t> (value_skip(p, end) - p)
    return True


cdef int argument(const hub_message *m, int encoding, uint32_t index, span *out) noexcept:
    cdef const uint8_t *begin
    cdef const uint8_t *end
    if index >= m.argument_count:
        return False
    if index + 1 >= BOUNDS:
        return json_element(m.arguments, index, out) if encoding == ENCODING_JSON else mp_element(m.arguments, index, out)
    begin, end = m.bounds[index], m.bounds[index + 1]
    if encoding == ENCODING_JSON:
        begin = space_skip(begin + 1, end)
        while end > begin and (end - 1)[0] <= c' ':
            end -= 1
    out.data, out.size = begin, <uint32_t> (end - begin)
    return True


cdef int stream_id(const hub_message *m, int encoding, uint32_t index, span *out) noexcept:
    cdef span raw
    if index >= m.stream_id_count:
        return False
    if not (json_element(m.stream_ids, index, &raw) if encoding == ENCODING_JSON else mp_element(m.stream_ids, index, &raw)):
        return False
    return text_of(raw, encoding, out)


cdef int text_of(span raw, int encoding, span *out) noexcept:
    cdef const uint8_t *p
    cdef mp_head head
    if encoding == ENCODING_JSON:
        return json_text(raw, out)
    p = head_read(raw.data, raw.data + raw.size, &head)
    if p == NULL or head.kind != MP_STR or not utf8_is_valid(p, head.size):
        return False
    out.data, out.size = p, <uint32_t> head.size
    return True


# ---- records ----


cdef Py_ssize_t next_record(const uint8_t *data, size_t size, int encoding, size_t record_max, span *body) except -2:
    cdef const uint8_t *end
    cdef size_t length = 0
    cdef size_t at = 0
    if encoding == ENCODING_JSON:
        end = <const uint8_t *> memchr(data, RECORD_SEPARATOR, min(size, record_max + 1)) if size else NULL
        if end != NULL:
            body.data, body.size = data, <uint32_t> (end - data)
            return end - data + 1
        if size > record_max:
            raise LimitExceeded("bytes of a record", size, record_max)
        return 0
    while True:
        if at == size:
            return 0
        length |= <size_t> (data[at] & 0x7F) << 7 * at
        at += 1
        if data[at - 1] < 0x80:
            break
        if at == VARINT_BYTES_MAX:
            raise MalformedFrame("record length", f"at most {VARINT_MAX}", "more")
    if length > VARINT_MAX:
        raise MalformedFrame("record length", f"at most {VARINT_MAX}", f"{length}")
    if length > record_max:
        raise LimitExceeded("bytes of a record", length, record_max)
    if size - at < length:
        return 0
    body.data, body.size = data + at, <uint32_t> length
    return at + length


cdef size_t framed_size(const uint8_t *data, size_t size) noexcept:
    cdef size_t length = 0
    cdef size_t at
    for at in range(min(size, <size_t> VARINT_BYTES_MAX)):
        length |= <size_t> (data[at] & 0x7F) << 7 * at
        if data[at] < 0x80:
            return at + 1 + length
    return 0


# ---- the face for Python ----


class MalformedFrame(ProtocolError, ValueError):
    """The peer's bytes are not the record they claim to be: where, what was needed there, what there was."""

    def __init__(self, where, needed, had):
        super().__init__(f"{where}: needed {needed}, had {had}")
        self.where, self.needed, self.had = where, needed, had


class Handshake(NamedTuple):
    """The first record of a client. Without a version it speaks the early dialect."""

    protocol: str
    version: int | None = None


cdef object malformed(int fault):
    return MalformedFrame(*spec.FAULTS[fault])


cpdef str fault_text(int fault):
    """A fault in words."""
    return str(malformed(fault))


def value_of(bytes raw not None, int encoding):
    """The value of raw JSON or MessagePack. Extension types come as msgspec.msgpack.Ext, timestamps as datetime."""
    try:
        return msgspec.json.decode(raw) if encoding == ENCODING_JSON else msgspec.msgpack.decode(raw)
    except (ValueError, RecursionError, TypeError, OverflowError) as error:  # msgspec's own are ValueErrors
        raise MalformedFrame("value", "one value that can be read", f"{error}") from None


def raw_of(value, int encoding):
    """A value as raw JSON or MessagePack. Bytes are base64 in JSON."""
    return msgspec.json.encode(value) if encoding == ENCODING_JSON else msgspec.msgpack.encode(value)


def parse_handshake(bytes record not None):
    """The Handshake in a client's first record, which comes without its separator."""
    cdef uint64_t position = 0
    cdef const uint8_t *data = <const uint8_t *> PyBytes_AS_STRING(record)
    if len(record) > spec.HANDSHAKE_BYTES_MAX:
        raise LimitExceeded("bytes of a handshake", len(record), spec.HANDSHAKE_BYTES_MAX)
    if json_check(data, len(record), RECORD_DEPTH_MAX, &position) != OK:
        raise MalformedFrame("handshake", "a JSON object in UTF-8", "something else")
    members = value_of(record, ENCODING_JSON)
    if not isinstance(members, dict):
        raise MalformedFrame("handshake", "a JSON object", "another value")
    protocol = members.get("protocol")
    if not isinstance(protocol, str):
        raise MalformedFrame("handshake", "a protocol", "none")
    if "version" not in members:
        return Handshake(protocol)
    if type(members["version"]) is not int:
        raise MalformedFrame("handshake", "an integer as version", "another value")
    return Handshake(protocol, members["version"])


def encode_handshake_answer(error=None):
    """The record that answers a handshake of version 1 or 2; early clients get none."""
    return msgspec.json.encode({} if error is None else {"error": error}) + spec.RECORD_SEPARATOR


def group_encode(bytes records not None):
    """MessagePack records on a text transport of the early dialect: one group, which is one event."""
    text = binascii.b2a_base64(records, newline=False)
    return b"%d:%b;" % (len(text), text)


def group_decode(bytes data not None, size_t record_max=spec.RECORD_BYTES_MAX_DEFAULT):
    """The records in the whole groups at the beginning of `data`, joined, and the bytes that the groups took."""
    cdef list parts = []
    cdef size_t text_max = (record_max + VARINT_BYTES_MAX + 2) // 3 * 4
    cdef size_t at = 0
    while True:
        colon = data.find(b":", at, at + spec.GROUP_DIGITS_MAX + 1)
        digits = data[at:colon] if colon >= 0 else data[at:]
        if colon < 0 and len(digits) <= spec.GROUP_DIGITS_MAX and (digits.isdigit() or not digits):
            return b"".join(parts), at
        if not digits.isdigit() or len(digits) > spec.GROUP_DIGITS_MAX:
            raise MalformedFrame("length of a group", "decimal digits and a colon", f"{digits[:16]!r}")
        if int(digits) > text_max:
            raise LimitExceeded("characters of a group", int(digits), text_max)
        end = colon + 1 + int(digits)
        if len(data) <= end:
            return b"".join(parts), at
        if data[end] != 0x3B:
            raise MalformedFrame("group", f"a semicolon after {int(digits)} characters", f"{data[end:end + 1]!r}")
        try:
            parts.append(binascii.a2b_base64(data[colon + 1:end], strict_mode=True))
        except binascii.Error as error:
            raise MalformedFrame("group", "base64", f"{error}") from None
        at = end + 1
