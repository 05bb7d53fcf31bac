# SPDX-License-Identifier: Apache-2.0
"""Hub messages of both dialects, in JSON and in MessagePack, from bytes to their parts; no I/O.

A parse checks the whole record first: whoever holds its parts may walk them without another look at their form.  Then
its members are found, by their names in JSON and by their places in MessagePack, raw.  What these must be is one table
for both, in `interpret`.  What a peer gets wrong is a MalformedFrame, and its connection closes; a field that is
unknown, and one that means nothing on its type of message, is ignored.
"""

import msgspec
from libc.stdint cimport int8_t, int16_t, int32_t, uint64_t
from libc.string cimport memchr, memcmp, memset
from vibemq.storage.core cimport (
    ERR_LIMIT, OK, bytes_load16, bytes_load32, bytes_load64, err, json_check, json_check_escapes, utf8_is_valid,
)

from vibemq.protocols.signalr.records import MalformedFrame, texts_of

cdef enum:
    MEMBER_TYPE = 0, MEMBER_TARGET, MEMBER_ARGUMENTS, MEMBER_ID, MEMBER_ITEM, MEMBER_RESULT, MEMBER_ERROR
    MEMBER_STREAM_IDS, MEMBER_HEADERS, MEMBER_SEQUENCE, MEMBER_ALLOW_RECONNECT, MEMBER_NONBLOCKING
    MEMBER_KIND              # of a result, in MessagePack alone
    MEMBERS
    NAMES = MEMBER_KIND + 1  # nonblocking has two
    NAME_BYTES_MAX = 14
    INTEGER_DIGITS_MAX = 18  # all of them fit into 63 bits
    ELEMENTS_MAX = 6         # of a MessagePack record; those behind are ignored

cdef extern from *:
    """
    /* In the order of the members, the most frequent ones first. */
    static const struct { const char *text; size_t size; } vibemq_members[] = {
        {"type", 4}, {"target", 6}, {"arguments", 9}, {"invocationId", 12}, {"item", 4}, {"result", 6}, {"error", 5},
        {"streamIds", 9}, {"headers", 7}, {"sequenceId", 10}, {"allowReconnect", 14}, {"nonblocking", 11},
        {"nonBlocking", 11},
    };
    /* 0xc0 to 0xdf of MessagePack: what it is, and how many bytes of a number follow; fixext and floats have none. */
    enum { MP_NIL, MP_FALSE, MP_TRUE, MP_INTEGER, MP_FLOAT, MP_STR, MP_BIN, MP_EXT, MP_ARRAY, MP_MAP };
    static const unsigned char vibemq_mp_kinds[32] = {
        MP_NIL, MP_NIL, MP_FALSE, MP_TRUE, MP_BIN, MP_BIN, MP_BIN, MP_EXT, MP_EXT, MP_EXT, MP_FLOAT, MP_FLOAT,
        MP_INTEGER, MP_INTEGER, MP_INTEGER, MP_INTEGER, MP_INTEGER, MP_INTEGER, MP_INTEGER, MP_INTEGER,
        MP_EXT, MP_EXT, MP_EXT, MP_EXT, MP_EXT, MP_STR, MP_STR, MP_STR, MP_ARRAY, MP_ARRAY, MP_MAP, MP_MAP,
    };
    static const unsigned char vibemq_mp_widths[32] = {
        0, 0, 0, 0, 1, 2, 4, 1, 2, 4, 0, 0, 1, 2, 4, 8, 1, 2, 4, 8, 0, 0, 0, 0, 0, 1, 2, 4, 2, 4, 2, 4,
    };
    """
    struct member_name:
        const char *text
        size_t size

    const member_name vibemq_members[NAMES]
    const uint8_t vibemq_mp_kinds[32]
    const uint8_t vibemq_mp_widths[32]
    enum:
        MP_NIL, MP_FALSE, MP_TRUE, MP_INTEGER, MP_FLOAT, MP_STR, MP_BIN, MP_EXT, MP_ARRAY, MP_MAP

# Texts of JSON that had escapes, until the next parse.
cdef list decoded = []


cdef int wrong(where, needed, had="another value or none") except -1:
    raise MalformedFrame(where, needed, had)


cdef int cut_short() except -1:
    return wrong("record", "one MessagePack value as long as its length says",
                 "a value that is cut short or goes on behind it")


cdef int too_few() except -1:
    return wrong("record", "all elements of its message type", "fewer")


# ---- JSON that was checked: strings end at the next quote, brackets at their partners ----


cdef inline const uint8_t *space_skip(const uint8_t *p, const uint8_t *end) noexcept nogil:
    while p < end and (p[0] == c' ' or p[0] == c'\n' or p[0] == c'\r' or p[0] == c'\t'):
        p += 1
    return p


cdef inline const uint8_t *string_end(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """The closing quote of the string whose opening quote lies before p."""
    cdef const uint8_t *quote
    cdef const uint8_t *run
    while True:
        quote = <const uint8_t *> memchr(p, c'"', end - p)
        if quote == NULL:
            return end
        run = quote
        while (run - 1)[0] == c'\\':  # the opening quote ends it at the latest
            run -= 1
        if (quote - run) % 2 == 0:
            return quote
        p = quote + 1


cdef const uint8_t *json_end(const uint8_t *p, const uint8_t *end, uint32_t *count) noexcept nogil:
    """Behind the value that begins at p. `count`: of the values in an array."""
    cdef uint32_t depth = 0, commas = 0
    cdef const uint8_t *opened = p
    if p < end and p[0] != c'"' and p[0] != c'[' and p[0] != c'{':
        while p < end and not (p[0] == c',' or p[0] == c'}' or p[0] == c']' or p[0] <= c' '):
            p += 1
        return p
    while p < end:
        if p[0] == c'"':
            p = string_end(p + 1, end)
        elif p[0] == c'[' or p[0] == c'{':
            depth += 1
        elif p[0] == c']' or p[0] == c'}':
            depth -= 1
        elif p[0] == c',' and depth == 1:
            commas += 1
        if depth == 0:
            break
        p += 1
    count[0] = commas + 1 if commas or space_skip(opened + 1, end) < p else 0
    return p + 1 if p < end else end


cdef int member_of(const uint8_t *name, size_t size) except -1:
    """Which member has the name between two quotes, escaped or not; MEMBERS: none that is known."""
    cdef int i
    cdef bytes text
    for i in range(NAMES):
        if vibemq_members[i].size == size and memcmp(vibemq_members[i].text, name, size) == 0:
            return min(i, <int> MEMBER_NONBLOCKING)
    if size > 6 * NAME_BYTES_MAX or memchr(name, c'\\', size) == NULL:
        return MEMBERS
    try:
        text = msgspec.json.decode((<const char *> name - 1)[:size + 2]).encode()
    except ValueError:  # half a surrogate pair
        return MEMBERS
    return MEMBERS if b"\\" in text else member_of(<const uint8_t *> <const char *> text, len(text))


cdef int json_members(const uint8_t *record, size_t size, span *members, hub_message *out) except -1:
    """Of those that come twice the last."""
    cdef const uint8_t *end = record + size
    cdef const uint8_t *p
    cdef const uint8_t *name
    cdef const uint8_t *value
    cdef uint64_t position = 0
    cdef uint32_t count
    cdef int member
    cdef err checked = json_check_escapes(record, size, RECORD_DEPTH_MAX, &position, &out.has_escapes)
    if checked == ERR_LIMIT:
        return wrong("record", f"arrays and maps at most {RECORD_DEPTH_MAX} deep", "more")
    if checked != OK:
        return wrong("record", "one JSON value in UTF-8", "something else")
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
        p = json_end(value, end, &count)
        if member != MEMBERS:
            members[member] = span_of(value, p - value)
            if member == MEMBER_ARGUMENTS:
                out.argument_count = count


# ---- MessagePack ----


# One value's head.
cdef struct mp_head:
    int kind
    uint64_t size             # MP_FLOAT, STR, BIN, EXT: bytes behind the head; ARRAY, MAP: values in it, keys included
    int64_t integer
    bint too_large            # an unsigned integer above 63 bits


cdef inline const uint8_t *mp_head_read(const uint8_t *p, const uint8_t *end, mp_head *out) noexcept nogil:
    """Behind the head of the value at p, with all of its bytes there, or NULL: cut short, or no value."""
    cdef uint8_t first
    cdef int width
    cdef uint64_t number = 0
    out.size, out.too_large = 0, False
    if p >= end:
        return NULL
    first = p[0]
    p += 1
    if first < 0x80 or first >= 0xE0:
        out.kind, out.integer = MP_INTEGER, <int8_t> first
        return p
    if first < 0xC0:
        out.kind = MP_MAP if first < 0x90 else MP_ARRAY if first < 0xA0 else MP_STR
        out.size = first & 0x1F if first >= 0xA0 else first & 0xF if first >= 0x90 else 2 * (first & 0xF)
        return p if out.size <= <uint64_t> (end - p) else NULL
    if first == 0xC1:
        return NULL
    width = vibemq_mp_widths[first - 0xC0]
    if end - p < width:
        return NULL
    if width:
        number = p[0] if width == 1 else bytes_load16(p) if width == 2 else bytes_load32(p) if width == 4 \
            else bytes_load64(p)
    p += width
    out.kind = vibemq_mp_kinds[first - 0xC0]
    if out.kind == MP_INTEGER:
        out.integer = <int64_t> number
        if first <= 0xCF:
            out.too_large = out.integer < 0
        elif width < 8:
            out.integer = <int8_t> number if width == 1 else <int16_t> number if width == 2 else <int32_t> number
        return p
    if out.kind == MP_FLOAT:
        out.size = 4 if first == 0xCA else 8
    elif out.kind == MP_EXT:
        out.size = 1 + (number if width else <uint64_t> 1 << (first - 0xD4))  # with its type
    else:
        out.size = 2 * number if out.kind == MP_MAP else number  # 0 of nil, true and false
    return p if out.size <= <uint64_t> (end - p) else NULL


cdef const uint8_t *mp_end(const uint8_t *p, const uint8_t *end, bint *too_deep) noexcept nogil:
    """Behind the value that begins at p in a record's array, or NULL: it is cut short, or too deep."""
    cdef uint64_t left[RECORD_DEPTH_MAX]
    cdef int depth = 0
    cdef mp_head head
    while True:
        p = mp_head_read(p, end, &head)
        if p == NULL:
            return NULL
        if head.kind < MP_ARRAY:
            p += head.size
        elif depth == RECORD_DEPTH_MAX - 1:
            too_deep[0] = True
            return NULL
        else:
            depth += 1
            left[depth] = head.size
        while depth and left[depth] == 0:
            depth -= 1
        if depth == 0:
            return p
        left[depth] -= 1


cdef inline int mp_kind(span raw) noexcept nogil:
    """Of a value that was walked over; -1: there is none."""
    cdef uint8_t first
    if raw.size == 0:
        return -1
    first = raw.data[0]
    if 0x80 <= first < 0xC0:
        return MP_MAP if first < 0x90 else MP_ARRAY if first < 0xA0 else MP_STR
    if first < 0x80 or first >= 0xE0:
        return MP_INTEGER
    return vibemq_mp_kinds[first - 0xC0]


cdef int mp_members(const uint8_t *record, size_t size, int dialect, span *members, hub_message *out) except -1:
    cdef span elements[ELEMENTS_MAX]
    cdef mp_head head
    cdef const uint8_t *end = record + size
    cdef const uint8_t *begin
    cdef const uint8_t *p = mp_head_read(record, end, &head)
    cdef bint too_deep = False
    cdef uint64_t count, i
    cdef int64_t type = 0
    if p == NULL:
        return cut_short()
    if head.kind != MP_ARRAY:
        return wrong("record", "a MessagePack array", "another value")
    memset(elements, 0, sizeof(elements))
    count = head.size
    for i in range(count):
        begin, p = p, mp_end(p, end, &too_deep)
        if too_deep:
            return wrong("record", f"arrays and maps at most {RECORD_DEPTH_MAX} deep", "more")
        if p == NULL:
            return cut_short()
        if i < ELEMENTS_MAX:
            elements[i] = span_of(begin, p - begin)
    if p != end:
        return cut_short()
    members[MEMBER_TYPE] = elements[0]
    if integer_of(elements[0], ENCODING_MESSAGEPACK, &type) and TYPE_INVOCATION <= type <= TYPE_SEQUENCE:
        mp_places(<int> type, dialect, count, elements, members)
    if members[MEMBER_ARGUMENTS].size and mp_head_read(members[MEMBER_ARGUMENTS].data, end, &head) != NULL:
        out.argument_count = <uint32_t> head.size
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
        members[MEMBER_KIND] = at[0]
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
            if type == TYPE_INVOCATION and mp_kind(at[0]) != MP_STR:  # preview1 has no flag
                members[MEMBER_NONBLOCKING] = at[0]
                at += 1
        elif type == TYPE_INVOCATION and count > 4 and mp_kind(at[0]) == MP_ARRAY and mp_kind((at - 1)[0]) == MP_STR:
            # One client leaves the id of an upload's call out: a target, then an array.
            members[MEMBER_ID] = span_of(b"\xc0", 1)
            at -= 1
        members[MEMBER_TARGET], members[MEMBER_ARGUMENTS] = at[0], at[1]
        if dialect == DIALECT_V1:
            members[MEMBER_STREAM_IDS] = at[2]
    return 0


# ---- values ----


cdef bint text_of(span raw, int encoding, span *out) except -1:
    cdef mp_head head
    if encoding == ENCODING_MESSAGEPACK:
        out.data = mp_head_read(raw.data, raw.data + raw.size, &head)
        if out.data == NULL or head.kind != MP_STR or not utf8_is_valid(out.data, head.size):
            return False
        out.size = <uint32_t> head.size
        return True
    if raw.size < 2 or raw.data[0] != c'"':
        return False
    if memchr(raw.data, c'\\', raw.size) == NULL:
        out.data, out.size = raw.data + 1, raw.size - 2
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
    cdef bint negative
    cdef int64_t value = 0
    cdef mp_head head
    if encoding == ENCODING_MESSAGEPACK:
        if mp_head_read(p, end, &head) == NULL or head.kind != MP_INTEGER or head.too_large:
            return False
        out[0] = head.integer
        return True
    negative = raw.size and p[0] == c'-'
    p += negative
    if p == end or end - p > INTEGER_DIGITS_MAX:
        return False
    while p < end:
        if <uint8_t> (p[0] - c'0') > 9:
            return False
        value = 10 * value + (p[0] - c'0')
        p += 1
    out[0] = -value if negative else value
    return True


cdef bint is_none(span raw, int encoding) noexcept:
    """Nothing, or null."""
    return raw.size == 0 or raw.data[0] == (c'n' if encoding == ENCODING_JSON else 0xC0)


cdef int flag_take(span raw, int encoding, where, bint *out) except -1:
    """true, false, or nothing, which is false; as null is in JSON."""
    cdef bint is_json = encoding == ENCODING_JSON
    out[0] = raw.size and raw.data[0] == (c't' if is_json else 0xC3)
    if not out[0] and raw.size and raw.data[0] != (c'f' if is_json else 0xC2) and not (is_json and raw.data[0] == c'n'):
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
    if needed or raw.size == 0 and encoding == ENCODING_MESSAGEPACK or not is_none(raw, encoding):
        text_take(raw, encoding, "invocationId", ID_BYTES_MAX, &out.id)
        out.has_id = out.id.size > 0 or dialect != DIALECT_V1
    return 0 if out.has_id or not needed else wrong("invocationId", "a string")


cdef int stream_ids_take(span raw, int encoding, hub_message *out) except -1:
    cdef uint32_t count = 0
    cdef mp_head head
    if raw.size == 1 and raw.data[0] == 0x90:
        return 0  # as calls in MessagePack end
    if encoding == ENCODING_MESSAGEPACK:
        mp_head_read(raw.data, raw.data + raw.size, &head)
        count = <uint32_t> min(head.size, <uint64_t> STREAM_IDS_MAX + 1)
    else:
        json_end(raw.data, raw.data + raw.size, &count)
    try:
        ids = texts_of(bytes_of(raw), encoding) if count <= STREAM_IDS_MAX else None
    except ValueError:
        ids = None
    if ids is None or any([len(id) > ID_BYTES_MAX for id in ids]):
        return wrong("streamIds", f"an array of at most {STREAM_IDS_MAX} strings of at most {ID_BYTES_MAX} bytes",
                     "another value")
    if ids:
        out.stream_ids = raw
    return 0


cdef int error_take(span raw, int encoding, hub_message *out) except -1:
    out.has_error = True
    if not text_of(raw, encoding, &out.error):
        return wrong("error", "a string", "another value")
    return 0


cdef int interpret(const span *members, int encoding, int dialect, hub_message *out) except -1:
    """What each type of message must have."""
    cdef bint is_json = encoding == ENCODING_JSON
    cdef uint32_t argument_count = out.argument_count
    cdef span raw = members[MEMBER_HEADERS]
    cdef int64_t type = 0
    cdef int kind
    out.argument_count = 0  # of calls only
    if not integer_of(members[MEMBER_TYPE], encoding, &type):
        return 0 if not is_json and mp_kind(members[MEMBER_TYPE]) == MP_INTEGER else wrong("type", "an integer")
    if type < TYPE_INVOCATION or type > TYPE_SEQUENCE:
        return 0
    out.type = <int> type
    if dialect == DIALECT_V1 and is_json:
        if not is_none(raw, encoding) and raw.data[0] != c'{':
            return wrong("headers", "a map", "another value")
    elif dialect == DIALECT_V1 and type < TYPE_PING:
        # One client has a number there, which is what the byte of an empty map looks like, in all but its calls.
        kind = mp_kind(raw)
        if kind != MP_MAP and kind != MP_INTEGER:
            return too_few() if raw.size == 0 else wrong("headers", "a map", "another value")

    if type == TYPE_PING:
        return 0
    if type == TYPE_CLOSE:
        if not is_json and members[MEMBER_ERROR].size == 0:
            return too_few()
        flag_take(members[MEMBER_ALLOW_RECONNECT], encoding, "allowReconnect", &out.allow_reconnect)
        return 0 if is_none(members[MEMBER_ERROR], encoding) else error_take(members[MEMBER_ERROR], encoding, out)
    if type >= TYPE_ACK:
        raw = members[MEMBER_SEQUENCE]
        if integer_of(raw, encoding, &out.sequence) and out.sequence >= 0:
            return 0
        if raw.size == 0 and not is_json:
            return too_few()
        return wrong("sequenceId", "an integer that is not negative", "another value")

    raw = members[MEMBER_TARGET]
    if type == TYPE_STREAM_INVOCATION and dialect != DIALECT_V1 \
            and (raw.size == 0 or is_json and is_none(raw, encoding)):
        out.type = TYPE_STREAM_COMPLETION
    id_take(members[MEMBER_ID], encoding, dialect, out.type != TYPE_INVOCATION, out)
    if out.type == TYPE_INVOCATION or out.type == TYPE_STREAM_INVOCATION:
        text_take(raw, encoding, "target", TARGET_BYTES_MAX, &out.target)
        out.arguments, out.argument_count = members[MEMBER_ARGUMENTS], argument_count
        if out.arguments.size == 0 and not is_json:
            return too_few()
        if is_json and (not out.arguments.size or out.arguments.data[0] != c'[') \
                or not is_json and mp_kind(out.arguments) != MP_ARRAY:
            return wrong("arguments", "an array")
        if dialect != DIALECT_V1:
            flag_take(members[MEMBER_NONBLOCKING], encoding, "nonblocking", &out.nonblocking)
        elif not is_none(members[MEMBER_STREAM_IDS], encoding):
            stream_ids_take(members[MEMBER_STREAM_IDS], encoding, out)
        out.nonblocking = type == TYPE_INVOCATION and (out.nonblocking or not out.has_id)
    elif type == TYPE_STREAM_ITEM:
        out.payload, out.has_payload = members[MEMBER_ITEM], True
        if out.payload.size == 0:
            return wrong("item", "a value", "none") if is_json else too_few()
    elif type != TYPE_CANCEL_INVOCATION:
        # In MessagePack a kind of result has said that there is an error; the early server wrote null for void.
        if out.type == TYPE_COMPLETION:
            out.payload = members[MEMBER_RESULT]
        out.has_payload = out.payload.size and (dialect == DIALECT_V1 or not is_json or out.payload.data[0] != c'n')
        raw = members[MEMBER_ERROR]
        if raw.size and (type == TYPE_COMPLETION and not is_json or not is_none(raw, encoding)):
            if not is_none(out.payload, encoding):
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


cdef const uint8_t *contents(span raw, int encoding, const uint8_t **end) noexcept:
    """Where the values in an array or object begin, and where they end."""
    cdef const uint8_t *p = raw.data
    cdef mp_head head
    end[0] = p + raw.size
    if encoding == ENCODING_MESSAGEPACK:
        return mp_head_read(p, end[0], &head)
    end[0] -= 1
    while (end[0] - 1)[0] <= c' ':
        end[0] -= 1
    return space_skip(p + 1, end[0])


cdef const uint8_t *next_value(const uint8_t *p, const uint8_t *end, int encoding, span *out) noexcept:
    """Take the value at p; where the one behind it begins."""
    cdef const uint8_t *value = p
    cdef uint32_t count
    cdef bint too_deep
    p = json_end(p, end, &count) if encoding == ENCODING_JSON else mp_end(p, end, &too_deep)
    out[0] = span_of(value, p - value)
    return p if encoding == ENCODING_MESSAGEPACK else space_skip(space_skip(p, end) + 1, end)  # over comma or colon


cdef bint arguments_take(const hub_message *m, int encoding, uint32_t count, span *out) noexcept:
    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef uint32_t i
    if m.argument_count != count:
        return False
    p = contents(m.arguments, encoding, &end)
    for i in range(count - 1):
        p = next_value(p, end, encoding, &out[i])
    out[count - 1] = span_of(p, end - p)
    return True


# ---- for Python ----


def elements_of(bytes raw not None, int encoding) -> list:
    """The raw values in an array, or names and values in an object, from a record: undecoded, whatever is in them."""
    cdef list found = []
    cdef span value
    cdef const uint8_t *end
    cdef const uint8_t *p = contents(span_of(<const char *> raw, len(raw)), encoding, &end)
    while p < end:
        p = next_value(p, end, encoding, &value)
        found.append(bytes_of(value))
    return found


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
