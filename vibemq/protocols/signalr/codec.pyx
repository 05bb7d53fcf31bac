# SPDX-License-Identifier: Apache-2.0
"""Records on the wire, and the hub messages of both dialects in them, in JSON and in MessagePack; no I/O.

A separator ends a record in JSON, a length stands before one in MessagePack, and text groups are around these where an
early peer's MessagePack goes over a transport of text.

A parse checks the whole record first: whoever holds its parts may walk them without another look at their form.  Then
its members are found, by their names in JSON and by their places in MessagePack, raw.  What these must be is one table
for both, in `interpret`.  What a peer gets wrong is a MalformedFrame, and its connection closes; a field that is
unknown, and one that means nothing on its type of message, is ignored.
"""

import msgspec
from libc.stdint cimport int8_t, uint64_t
from libc.string cimport memchr, memcmp, memset, strlen
from vibemq.protocols.signalr.wire cimport (
    ENCODING_JSON, ENCODING_MESSAGEPACK, KIND_ARRAY, KIND_INTEGER, KIND_MAP, KIND_NONE, KIND_NULL, KIND_TEXT, KIND_TRUE,
    RECORD_DEPTH_MAX, bytes_of, json_end, kind_of, mp_end, mp_head, space_skip, span, span_of, string_end,
    vibemq_mp_forms,
)
from vibemq.storage.core cimport ERR_LIMIT, OK, err, json_check, json_check_escapes, utf8_is_valid

from vibemq.errors import LimitExceeded
from vibemq.protocols.signalr import spec
from vibemq.protocols.signalr.spec import MalformedFrame

cdef enum:
    MEMBER_TYPE = 0, MEMBER_TARGET, MEMBER_ARGUMENTS, MEMBER_ID, MEMBER_ITEM, MEMBER_RESULT, MEMBER_ERROR
    MEMBER_STREAM_IDS, MEMBER_HEADERS, MEMBER_SEQUENCE, MEMBER_ALLOW_RECONNECT, MEMBER_NONBLOCKING
    MEMBERS
    NAME_BYTES_MAX = 14
    INTEGER_DIGITS_MAX = 18  # all of them fit into 63 bits
    ELEMENTS_MAX = 6         # of a MessagePack record; those behind are ignored
    VARINT_BYTES_MAX = 5

# Of JSON and of MessagePack, as Encoding numbers them.
TEXTS = (msgspec.json.Decoder(list[str]), msgspec.msgpack.Decoder(list[str]))
# Texts of JSON that had escapes, until the next parse.
cdef list decoded = []


cdef int wrong(where, needed, had="another value or none") except -1:
    raise MalformedFrame(where, needed, had)


cdef int cut_short() except -1:
    return wrong("record", "one MessagePack value as long as its length says",
                 "a value that is cut short or goes on behind it")


cdef int too_few() except -1:
    return wrong("record", "all elements of its message type", "fewer")


cdef int too_deep() except -1:
    return wrong("record", f"arrays and maps at most {RECORD_DEPTH_MAX} deep", "more")


# ---- framing ----


cdef size_t length_read(const uint8_t *data, size_t size, size_t *length) noexcept:
    cdef size_t at
    length[0] = 0
    for at in range(min(size, <size_t> VARINT_BYTES_MAX)):
        length[0] |= <size_t> (data[at] & 0x7F) << 7 * at
        if data[at] < 0x80:
            return at + 1
    return 0 if size < VARINT_BYTES_MAX else VARINT_BYTES_MAX + 1


cdef Py_ssize_t next_record(const uint8_t *data, size_t size, int encoding, size_t record_max, span *body) except -2:
    cdef const uint8_t *end
    cdef size_t length, at
    if encoding == ENCODING_JSON:
        end = <const uint8_t *> memchr(data, RECORD_SEPARATOR, min(size, record_max + 1)) if size else NULL
        if end != NULL:
            body[0] = span_of(data, end - data)
            return end - data + 1
        if size > record_max:
            raise LimitExceeded("bytes of a record", size, record_max)
        return 0
    at = length_read(data, size, &length)
    if at == 0:
        return 0
    if at > VARINT_BYTES_MAX or length > VARINT_MAX:
        raise MalformedFrame("record length", f"at most {VARINT_MAX}",
                             "more" if at > VARINT_BYTES_MAX else f"{length}")
    if length > record_max:
        raise LimitExceeded("bytes of a record", length, record_max)
    if size - at < length:
        return 0
    body[0] = span_of(data + at, length)
    return at + length


def split_records(bytes data not None, int encoding, size_t record_max=spec.RECORD_BYTES_MAX_DEFAULT):
    """The whole records at the beginning of `data`, without their framing, and the bytes that they took; for tests."""
    cdef list records = []
    cdef span body
    cdef size_t at = 0
    cdef Py_ssize_t used
    while True:
        used = next_record(<const uint8_t *> <const char *> data + at, len(data) - at, encoding, record_max, &body)
        if used == 0:
            return records, at
        records.append(bytes_of(body))
        at += used


# ---- JSON ----


cdef inline bint is_named(const uint8_t *name, size_t size, const char *wanted) noexcept nogil:
    return size == strlen(wanted) and memcmp(name, wanted, strlen(wanted)) == 0


cdef inline int member_named(const uint8_t *name, size_t size) noexcept nogil:
    """MEMBERS: none that is known."""
    return MEMBER_TYPE if is_named(name, size, b"type") else \
        MEMBER_TARGET if is_named(name, size, b"target") else \
        MEMBER_ARGUMENTS if is_named(name, size, b"arguments") else \
        MEMBER_ID if is_named(name, size, b"invocationId") else \
        MEMBER_ITEM if is_named(name, size, b"item") else \
        MEMBER_RESULT if is_named(name, size, b"result") else \
        MEMBER_ERROR if is_named(name, size, b"error") else \
        MEMBER_STREAM_IDS if is_named(name, size, b"streamIds") else \
        MEMBER_HEADERS if is_named(name, size, b"headers") else \
        MEMBER_SEQUENCE if is_named(name, size, b"sequenceId") else \
        MEMBER_ALLOW_RECONNECT if is_named(name, size, b"allowReconnect") else \
        MEMBER_NONBLOCKING if is_named(name, size, b"nonblocking") or is_named(name, size, b"nonBlocking") else MEMBERS


cdef int member_of(const uint8_t *name, size_t size) except -1:
    """Which member has the name between two quotes, escaped or not."""
    cdef bytes text
    cdef int member = member_named(name, size)
    if member != MEMBERS or size > 6 * NAME_BYTES_MAX or memchr(name, c'\\', size) == NULL:
        return member
    try:
        text = msgspec.json.decode((<const char *> name - 1)[:size + 2]).encode()
    except ValueError:  # half a surrogate pair
        return MEMBERS
    return member_named(<const uint8_t *> <const char *> text, len(text))


cdef inline const uint8_t *json_arguments(const uint8_t *p, const uint8_t *end, hub_message *out) noexcept nogil:
    """Behind the array that begins at p, whose first values are noted."""
    cdef const uint8_t *value
    out.argument_count = 0
    p = space_skip(p + 1, end)
    while p < end and p[0] != c']':
        value = p
        p = json_end(value, end)
        if out.argument_count < FIRST:
            out.first[out.argument_count] = span_of(value, p - value)
        out.argument_count += 1
        p = space_skip(p, end)
        if p < end and p[0] == c',':
            p = space_skip(p + 1, end)
    return p + 1 if p < end else end


cdef int json_members(const uint8_t *record, size_t size, span *members, hub_message *out) except -1:
    """Of those that come twice the last."""
    cdef const uint8_t *end = record + size
    cdef const uint8_t *p
    cdef const uint8_t *name
    cdef const uint8_t *value
    cdef uint64_t position = 0
    cdef int member
    cdef err checked = json_check_escapes(record, size, RECORD_DEPTH_MAX, &position, &out.has_escapes)
    if checked != OK:
        return too_deep() if checked == ERR_LIMIT else wrong("record", "one JSON value in UTF-8", "something else")
    p = space_skip(record, end)
    if p[0] != c'{':
        return wrong("record", "a JSON object", "another value")
    p += 1
    while True:
        p = space_skip(p, end)
        if p < end and p[0] == c',':
            p = space_skip(p + 1, end)
        if p >= end or p[0] != c'"':
            return 0
        name = p + 1
        p = string_end(name, end)
        member = member_of(name, p - name)
        value = space_skip(space_skip(p + 1, end) + 1, end)  # over the colon
        if member == MEMBER_ARGUMENTS and value < end and value[0] == c'[':
            p = json_arguments(value, end, out)
        else:
            p = json_end(value, end)
        if member != MEMBERS:
            members[member] = span_of(value, p - value)


# ---- MessagePack ----


cdef int mp_members(const uint8_t *record, size_t size, int dialect, span *members, hub_message *out) except -1:
    cdef span elements[ELEMENTS_MAX]
    cdef const uint8_t *end = record + size
    cdef const uint8_t *begin
    cdef int kind = 0
    cdef bint is_deep = False
    cdef uint64_t count = 0, i
    cdef int64_t type = 0
    cdef const uint8_t *p = mp_head(record, end, &kind, &count)
    if p == NULL:
        return cut_short()
    if kind != KIND_ARRAY:
        return wrong("record", "a MessagePack array", "another value")
    memset(elements, 0, sizeof(elements))
    for i in range(count):
        begin, p = p, mp_end(p, end, &is_deep)
        if p == NULL:
            return too_deep() if is_deep else cut_short()
        if i < ELEMENTS_MAX:
            elements[i] = span_of(begin, p - begin)
    if p != end:
        return cut_short()
    members[MEMBER_TYPE] = elements[0]
    if integer_of(elements[0], ENCODING_MESSAGEPACK, &type) and TYPE_INVOCATION <= type <= TYPE_SEQUENCE:
        mp_places(<int> type, dialect, count, elements, members)
    if kind_of(members[MEMBER_ARGUMENTS], ENCODING_MESSAGEPACK) == KIND_ARRAY:
        end = members[MEMBER_ARGUMENTS].data + members[MEMBER_ARGUMENTS].size
        p = mp_head(members[MEMBER_ARGUMENTS].data, end, &kind, &count)
        out.argument_count = <uint32_t> count
        for i in range(min(count, <uint64_t> FIRST)):
            begin, p = p, end if i + 1 == count else mp_end(p, end, &is_deep)
            out.first[i] = span_of(begin, p - begin)
    return 0


cdef int mp_places(int type, int dialect, uint64_t count, const span *elements, span *members) except -1:
    """Which element is which member: a table, and what clients were seen to do otherwise."""
    cdef const span *at = elements + 1
    cdef int64_t kind = RESULT_VOID
    if type == TYPE_CLOSE:
        members[MEMBER_ERROR], members[MEMBER_ALLOW_RECONNECT] = at[0], at[1]
        return 0
    if type >= TYPE_PING:
        members[MEMBER_SEQUENCE] = at[0]
        return 0
    if dialect == DIALECT_V1:
        members[MEMBER_HEADERS] = at[0]
        at += 1
    members[MEMBER_ID] = at[0]
    at += 1
    if type == TYPE_STREAM_ITEM:
        members[MEMBER_ITEM] = at[0]
    elif type == TYPE_COMPLETION:
        if at[0].size and not integer_of(at[0], ENCODING_MESSAGEPACK, &kind) \
                or not RESULT_ERROR <= kind <= RESULT_VALUE:
            return wrong("result kind", "1, 2 or 3", "another value")
        if kind != RESULT_VOID:
            members[MEMBER_ERROR if kind == RESULT_ERROR else MEMBER_RESULT] = at[1]
            if at[1].size == 0:
                return too_few()
    elif type == TYPE_STREAM_INVOCATION and dialect != DIALECT_V1 and count < 4:
        members[MEMBER_ERROR] = at[0]  # the end of a stream
    elif type != TYPE_CANCEL_INVOCATION:
        if dialect != DIALECT_V1:
            if type == TYPE_INVOCATION and kind_of(at[0], ENCODING_MESSAGEPACK) != KIND_TEXT:  # preview1 has no flag
                members[MEMBER_NONBLOCKING] = at[0]
                at += 1
        elif type == TYPE_INVOCATION and count > 4 and kind_of(at[0], ENCODING_MESSAGEPACK) == KIND_ARRAY \
                and kind_of((at - 1)[0], ENCODING_MESSAGEPACK) == KIND_TEXT:
            # One client leaves the id of an upload's call out: a target, then an array.
            members[MEMBER_ID] = span_of(b"\xc0", 1)
            at -= 1
        members[MEMBER_TARGET], members[MEMBER_ARGUMENTS] = at[0], at[1]
        if dialect == DIALECT_V1:
            members[MEMBER_STREAM_IDS] = at[2]
    return 0


# ---- values ----


cdef bint text_of(span raw, int encoding, span *out) except -1:
    cdef int head = 1
    if kind_of(raw, encoding) != KIND_TEXT:
        return False
    if encoding == ENCODING_MESSAGEPACK:
        if raw.data[0] >= 0xC0:
            head += vibemq_mp_forms[raw.data[0] - 0xC0].width
        out[0] = span_of(raw.data + head, raw.size - head)
        return utf8_is_valid(out.data, out.size)
    if memchr(raw.data, c'\\', raw.size) == NULL:
        out[0] = span_of(raw.data + 1, raw.size - 2)
        return True
    try:
        text = (<str> msgspec.json.decode(bytes_of(raw))).encode()
    except ValueError:  # half a surrogate pair
        return False
    decoded.append(text)
    out[0] = span_of(<const char *> text, len(text))
    return True


cdef bint integer_of(span raw, int encoding, int64_t *out) noexcept:
    cdef const uint8_t *p = raw.data
    cdef const uint8_t *end = raw.data + raw.size
    cdef bint is_negative
    cdef uint64_t value = 0
    cdef int unused
    if kind_of(raw, encoding) != KIND_INTEGER:
        return False
    if encoding == ENCODING_MESSAGEPACK:
        if raw.size == 1:
            out[0] = <int8_t> p[0]
            return True
        unused = 72 - 8 * raw.size  # bits of the 64; the head is a byte of the value's
        while end - p > 1:
            p += 1
            value = value << 8 | p[0]
        if raw.data[0] >= 0xD0:
            out[0] = <int64_t> (value << unused) >> unused
            return True
        out[0] = <int64_t> value
        return out[0] >= 0
    is_negative = p[0] == c'-'
    p += is_negative
    if end - p > INTEGER_DIGITS_MAX:
        return False
    while p < end:
        if <uint8_t> (p[0] - c'0') > 9:
            return False
        value = 10 * value + (p[0] - c'0')
        p += 1
    out[0] = -<int64_t> value if is_negative else <int64_t> value
    return True


cdef int flag_take(span raw, int encoding, where, bint *out) except -1:
    """true, false, or nothing, which is false; as null is in JSON."""
    cdef int kind = kind_of(raw, encoding)
    out[0] = kind == KIND_TRUE
    if kind > KIND_TRUE or kind == KIND_NULL and encoding == ENCODING_MESSAGEPACK:
        return wrong(where, "true or false", "another value")
    return 0


cdef int text_take(span raw, int encoding, where, uint32_t bytes_max, span *out) except -1:
    """A text that has to be there."""
    if raw.size == 0 and encoding == ENCODING_MESSAGEPACK:
        return too_few()
    if not text_of(raw, encoding, out):
        return wrong(where, "a string")
    return 0 if out.size <= bytes_max else wrong(where, f"at most {bytes_max} bytes", "more")


# ---- messages ----


cdef int id_take(span raw, int encoding, int dialect, bint needed, hub_message *out) except -1:
    """An empty one is none, except to early peers, which number nothing without it."""
    if needed or kind_of(raw, encoding) > KIND_NULL or raw.size == 0 and encoding == ENCODING_MESSAGEPACK:
        text_take(raw, encoding, "invocationId", ID_BYTES_MAX, &out.id)
        out.has_id = out.id.size > 0 or dialect != DIALECT_V1
    return 0 if out.has_id or not needed else wrong("invocationId", "a string")


cdef int stream_ids_take(span raw, int encoding, hub_message *out) except -1:
    ids = texts_of(bytes_of(raw), encoding)
    if ids is None or len(ids) > STREAM_IDS_MAX or any([len(id) > ID_BYTES_MAX for id in ids]):
        return wrong("streamIds", f"an array of at most {STREAM_IDS_MAX} strings of at most {ID_BYTES_MAX} bytes",
                     "another value")
    if ids:
        out.stream_ids = raw
    return 0


cdef int error_take(span raw, int encoding, hub_message *out) except -1:
    out.has_error = True
    return 0 if text_of(raw, encoding, &out.error) else wrong("error", "a string", "another value")


cdef int interpret(const span *members, int encoding, int dialect, hub_message *out) except -1:
    """What each type of message must have."""
    cdef bint is_json = encoding == ENCODING_JSON
    cdef bint is_early = dialect != DIALECT_V1
    cdef uint32_t argument_count = out.argument_count
    cdef span raw = members[MEMBER_TYPE]
    cdef int64_t type = 0
    cdef int kind = kind_of(members[MEMBER_HEADERS], encoding)
    out.argument_count = 0  # of calls only
    if not integer_of(raw, encoding, &type):
        return 0 if not is_json and kind_of(raw, encoding) == KIND_INTEGER else wrong("type", "an integer")
    if type < TYPE_INVOCATION or type > TYPE_SEQUENCE:
        return 0
    out.type = <int> type
    if not is_early and (is_json or type < TYPE_PING) and kind != KIND_MAP:
        if not is_json and kind == KIND_NONE:
            return too_few()
        # One client has a number there, which is what the byte of an empty map looks like, in all but its calls.
        if kind > KIND_NULL if is_json else kind != KIND_INTEGER:
            return wrong("headers", "a map", "another value")

    if type == TYPE_PING:
        return 0
    if type == TYPE_CLOSE:
        raw = members[MEMBER_ERROR]
        if not is_json and raw.size == 0:
            return too_few()
        flag_take(members[MEMBER_ALLOW_RECONNECT], encoding, "allowReconnect", &out.allow_reconnect)
        return 0 if kind_of(raw, encoding) <= KIND_NULL else error_take(raw, encoding, out)
    if type >= TYPE_ACK:
        raw = members[MEMBER_SEQUENCE]
        if integer_of(raw, encoding, &out.sequence) and out.sequence >= 0:
            return 0
        if raw.size == 0 and not is_json:
            return too_few()
        return wrong("sequenceId", "an integer that is not negative", "another value")

    raw = members[MEMBER_TARGET]
    if type == TYPE_STREAM_INVOCATION and is_early \
            and (raw.size == 0 or is_json and kind_of(raw, encoding) == KIND_NULL):
        out.type = TYPE_STREAM_COMPLETION
    id_take(members[MEMBER_ID], encoding, dialect, out.type != TYPE_INVOCATION, out)
    if out.type == TYPE_INVOCATION or out.type == TYPE_STREAM_INVOCATION:
        text_take(raw, encoding, "target", TARGET_BYTES_MAX, &out.target)
        out.arguments, out.argument_count = members[MEMBER_ARGUMENTS], argument_count
        if out.arguments.size == 0 and not is_json:
            return too_few()
        if kind_of(out.arguments, encoding) != KIND_ARRAY:
            return wrong("arguments", "an array")
        raw = members[MEMBER_STREAM_IDS]
        if is_early:
            flag_take(members[MEMBER_NONBLOCKING], encoding, "nonblocking", &out.nonblocking)
        elif kind_of(raw, encoding) > KIND_NULL and not (raw.size == 1 and raw.data[0] == 0x90):
            stream_ids_take(raw, encoding, out)
        out.nonblocking = type == TYPE_INVOCATION and (out.nonblocking or not out.has_id)
    elif type == TYPE_STREAM_ITEM:
        out.payload, out.has_payload = members[MEMBER_ITEM], True
        if out.payload.size == 0:
            return wrong("item", "a value", "none") if is_json else too_few()
    elif type != TYPE_CANCEL_INVOCATION:
        # In MessagePack a kind of result has said that there is an error; the early server wrote null for void.
        if out.type == TYPE_COMPLETION:
            out.payload = members[MEMBER_RESULT]
        kind, raw = kind_of(out.payload, encoding), members[MEMBER_ERROR]
        out.has_payload = kind > KIND_NULL or kind == KIND_NULL and not (is_early and is_json)
        if kind_of(raw, encoding) > KIND_NULL or raw.size and type == TYPE_COMPLETION and not is_json:
            if kind > KIND_NULL:
                return wrong("error", "either a result or an error", "both")
            out.has_payload = False
            return error_take(raw, encoding, out)
    return 0


cdef int parse(const uint8_t *record, size_t size, int encoding, int dialect, hub_message *out) except -1:
    cdef span members[MEMBERS]
    if decoded:
        decoded.clear()
    memset(out, 0, sizeof(hub_message))
    memset(members, 0, sizeof(members))
    if size > VARINT_MAX:
        return cut_short()
    if encoding == ENCODING_JSON:
        json_members(record, size, members, out)
    else:
        mp_members(record, size, dialect, members, out)
    return interpret(members, encoding, dialect, out)


# ---- for Python ----


def elements_of(bytes raw not None, int encoding, bint of_map=False) -> list:
    """The raw values in an array, or names and values in a map, from a record: undecoded, whatever is in them.

    None: it is neither, or the other one."""
    cdef list found = []
    cdef span value = span_of(<const char *> raw, len(raw))
    cdef const uint8_t *p = value.data
    cdef const uint8_t *end = p + value.size
    cdef uint64_t count = 0
    cdef bint is_deep
    cdef int kind = kind_of(value, encoding)
    if kind != (KIND_MAP if of_map else KIND_ARRAY):
        return None
    p = space_skip(p + 1, end) if encoding == ENCODING_JSON else mp_head(p, end, &kind, &count)
    while p < end - (encoding == ENCODING_JSON):  # whose last byte closes it
        value.data, p = p, json_end(p, end) if encoding == ENCODING_JSON else mp_end(p, end, &is_deep)
        found.append(bytes_of(span_of(value.data, p - value.data)))
        if encoding == ENCODING_JSON:
            p = space_skip(space_skip(p, end) + 1, end)  # over comma or colon
    return found


def texts_of(bytes raw not None, int encoding):
    """The texts in an array; None: it is none, or has something else in it."""
    try:
        return [text.encode() for text in TEXTS[encoding].decode(raw)]
    except ValueError:
        return None


def is_json(bytes text not None) -> bool:
    """One value in UTF-8, and no deeper than a record."""
    cdef uint64_t position = 0
    return json_check(<const uint8_t *> <const char *> text, len(text), RECORD_DEPTH_MAX, &position) == OK


def parts_of(bytes record not None, int encoding, int dialect=DIALECT_V1) -> tuple:
    """What a parse finds in a record that comes without its framing, in hub_message's order, for tests."""
    cdef hub_message m
    parse(<const uint8_t *> <const char *> record, len(record), encoding, dialect, &m)
    return (
        m.type, bytes_of(m.id) if m.has_id else None, bytes_of(m.target) if m.target.data != NULL else None,
        bytes_of(m.arguments), m.argument_count, bytes_of(m.stream_ids), bool(m.nonblocking),
        bytes_of(m.payload) if m.has_payload else None, bytes_of(m.error) if m.has_error else None,
        bool(m.allow_reconnect), m.sequence,
    )
