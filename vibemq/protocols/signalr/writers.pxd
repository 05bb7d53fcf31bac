# SPDX-License-Identifier: Apache-2.0
"""Records, written in place with their framing: no allocation, no Python object.

Every record is framing, a head, raw bytes of the caller's (arguments, an item), and an end. Sizes come first: NAME_size
says what NAME_write fills, to the byte. Stream items and invocations come in pieces, so that their raw bytes may be
written where they travel, and so that a head which never changes can be kept:

    head = stream_item_head_size(...)
    out = room for item_size(encoding, head, payload)
    p = stream_item_head_write(item_begin(out, encoding, head, payload), ...)   # or memcpy of a head that was kept
    ... payload bytes at p ...
    item_end(p + payload, encoding)

What is written obeys the strictest client: absent members are left out, headers too, an error is never empty nor beside a
result, and a MessagePack call has its array of uploads. Texts are UTF-8; ids and targets come from a parse or a str.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from vibemq.protocols.signalr.envelope cimport (
    DIALECT_EARLY, DIALECT_V1, ENCODING_JSON, RECORD_SEPARATOR, RESULT_ERROR, RESULT_VALUE, RESULT_VOID,
    TYPE_CANCEL_INVOCATION, TYPE_CLOSE, TYPE_COMPLETION, TYPE_INVOCATION, TYPE_PING, TYPE_STREAM_INVOCATION,
    TYPE_STREAM_ITEM, span,
)
from vibemq.storage.core cimport bytes_store16, bytes_store32, bytes_store64

cdef extern from *:
    """
    #ifndef VIBEMQ_SIGNALR_WRITERS
    #define VIBEMQ_SIGNALR_WRITERS
    #include <stdint.h>
    /* Behind the backslash: a letter, 'u' for \\u00xx, or 0 for what needs none. */
    static const uint8_t json_escapes[256] = {
        [0 ... 31] = 'u', ['\\b'] = 'b', ['\\f'] = 'f', ['\\n'] = 'n', ['\\r'] = 'r', ['\\t'] = 't',
        ['"'] = '"', ['\\\\'] = '\\\\',
    };
    #endif
    """
    const uint8_t *json_escapes


cdef inline span span_of(const void *data, size_t size) noexcept nogil:
    cdef span out
    out.data, out.size = <const uint8_t *> data, <uint32_t> size
    return out


cdef inline span span_of_bytes(bytes data) noexcept:
    return span_of(<const char *> data, len(data))


cdef inline uint8_t *put(uint8_t *p, const void *data, size_t size) noexcept nogil:
    if size:
        memcpy(p, data, size)
    return p + size


# ---- numbers and texts ----


cdef inline size_t decimal_size(uint64_t value) noexcept nogil:
    cdef size_t size = 1
    while value >= 10:
        value //= 10
        size += 1
    return size


cdef inline uint8_t *decimal_put(uint8_t *p, uint64_t value) noexcept nogil:
    cdef uint8_t *end = p + decimal_size(value)
    cdef uint8_t *digit = end
    while True:
        digit -= 1
        digit[0] = <uint8_t> (c'0' + value % 10)
        value //= 10
        if value == 0:
            return end


cdef inline size_t json_text_size(span text) noexcept nogil:
    """As a JSON string, with its quotes."""
    cdef size_t size = 2 + <size_t> text.size
    cdef uint32_t i
    cdef uint8_t escape
    for i in range(text.size):
        escape = json_escapes[text.data[i]]
        if escape:
            size += 5 if escape == c'u' else 1
    return size


cdef inline uint8_t *json_text_put(uint8_t *p, span text) noexcept nogil:
    cdef uint32_t i
    cdef uint8_t c, escape
    p[0] = c'"'
    p += 1
    for i in range(text.size):
        c = text.data[i]
        escape = json_escapes[c]
        if escape == 0:
            p[0] = c
            p += 1
            continue
        p[0] = c'\\'
        p[1] = escape
        p += 2
        if escape == c'u':
            p[0] = p[1] = c'0'
            p[2] = c'0' + (c >> 4)
            p[3] = (c & 15) + (c'0' if (c & 15) < 10 else c'a' - 10)
            p += 4
    p[0] = c'"'
    return p + 1


cdef inline size_t mp_text_size(span text) noexcept nogil:
    return text.size + (1 if text.size < 32 else 2 if text.size < 0x100 else 3 if text.size < 0x10000 else 5)


cdef inline uint8_t *mp_text_put(uint8_t *p, span text) noexcept nogil:
    if text.size < 32:
        p[0] = <uint8_t> (0xA0 | text.size)
        p += 1
    elif text.size < 0x100:
        p[0] = 0xD9
        p[1] = <uint8_t> text.size
        p += 2
    elif text.size < 0x10000:
        p[0] = 0xDA
        bytes_store16(p + 1, <uint16_t> text.size)
        p += 3
    else:
        p[0] = 0xDB
        bytes_store32(p + 1, text.size)
        p += 5
    return put(p, text.data, text.size)


cdef inline size_t text_size(int encoding, span text) noexcept nogil:
    return json_text_size(text) if encoding == ENCODING_JSON else mp_text_size(text)


cdef inline size_t mp_unsigned_size(uint64_t value) noexcept nogil:
    return 1 if value < 0x80 else 2 if value < 0x100 else 3 if value < 0x10000 else 5 if value <= 0xFFFFFFFFu else 9


cdef inline uint8_t *mp_unsigned_put(uint8_t *p, uint64_t value) noexcept nogil:
    """The shortest form, as clients write and expect it."""
    if value < 0x80:
        p[0] = <uint8_t> value
        return p + 1
    if value < 0x100:
        p[0] = 0xCC
        p[1] = <uint8_t> value
        return p + 2
    if value < 0x10000:
        p[0] = 0xCD
        bytes_store16(p + 1, <uint16_t> value)
        return p + 3
    if value <= 0xFFFFFFFFu:
        p[0] = 0xCE
        bytes_store32(p + 1, <uint32_t> value)
        return p + 5
    p[0] = 0xCF
    bytes_store64(p + 1, value)
    return p + 9


# ---- framing ----


cdef inline size_t varint_size(size_t value) noexcept nogil:
    return 1 if value < 0x80 else 2 if value < 0x4000 else 3 if value < 0x200000 else 4 if value < 0x10000000 else 5


cdef inline uint8_t *varint_put(uint8_t *p, size_t value) noexcept nogil:
    while value >= 0x80:
        p[0] = <uint8_t> (value | 0x80)
        value >>= 7
        p += 1
    p[0] = <uint8_t> value
    return p + 1


cdef inline size_t record_size(int encoding, size_t body) noexcept nogil:
    """With its framing; a JSON body is counted without its closing brace."""
    return body + 2 if encoding == ENCODING_JSON else varint_size(body) + body


cdef inline uint8_t *record_begin(uint8_t *p, int encoding, size_t body) noexcept nogil:
    return p if encoding == ENCODING_JSON else varint_put(p, body)


cdef inline uint8_t *record_end(uint8_t *p, int encoding) noexcept nogil:
    """Brace and separator; MessagePack has no end."""
    if encoding != ENCODING_JSON:
        return p
    p[0] = c'}'
    p[1] = RECORD_SEPARATOR
    return p + 2


# ---- heads ----


cdef inline size_t head_size(int dialect, int encoding, span id) noexcept nogil:
    """Of all that begin with a type of one digit and an id."""
    if encoding == ENCODING_JSON:
        return 25 + json_text_size(id)
    return 2 + (dialect == DIALECT_V1) + mp_text_size(id)


cdef inline uint8_t *head_write(
    uint8_t *p, int dialect, int encoding, int type, uint32_t elements, span id
) noexcept nogil:
    """`elements`: of a MessagePack array, without the headers."""
    if encoding == ENCODING_JSON:
        p = put(p, b'{"type":0,"invocationId":', 25)
        (p - 17)[0] = <uint8_t> (c'0' + type)
        return json_text_put(p, id)
    p[0] = <uint8_t> (0x90 + elements + (dialect == DIALECT_V1))
    p[1] = <uint8_t> type
    p += 2
    if dialect == DIALECT_V1:
        p[0] = 0x80
        p += 1
    return mp_text_put(p, id)


# ---- completions ----


cdef inline int completion_kind(int dialect, int encoding, int kind, span content) noexcept nogil:
    """An early JSON peer reads null as void, and is written it so."""
    if kind == RESULT_VALUE and dialect != DIALECT_V1 and encoding == ENCODING_JSON and content.data[0] == c'n':
        return RESULT_VOID
    return kind


cdef inline span error_of(span text) noexcept nogil:
    """Never an empty one."""
    return text if text.size else span_of(<const char *> b"Unspecified error", 17)


cdef inline size_t completion_body(int dialect, int encoding, span id, int kind, span content) noexcept nogil:
    cdef size_t size = head_size(dialect, encoding, id) + (encoding != ENCODING_JSON)
    if kind == RESULT_VALUE:
        return size + content.size + (10 if encoding == ENCODING_JSON else 0)
    if kind == RESULT_ERROR:
        return size + text_size(encoding, error_of(content)) + (9 if encoding == ENCODING_JSON else 0)
    return size


cdef inline size_t completion_size(int dialect, int encoding, span id, int kind, span content) noexcept nogil:
    """`content`: the raw result (RESULT_VALUE), the text of the error (RESULT_ERROR), nothing (RESULT_VOID)."""
    kind = completion_kind(dialect, encoding, kind, content)
    return record_size(encoding, completion_body(dialect, encoding, id, kind, content))


cdef inline uint8_t *completion_write(
    uint8_t *p, int dialect, int encoding, span id, int kind, span content
) noexcept nogil:
    kind = completion_kind(dialect, encoding, kind, content)
    p = record_begin(p, encoding, completion_body(dialect, encoding, id, kind, content))
    p = head_write(p, dialect, encoding, TYPE_COMPLETION, 3 + (kind != RESULT_VOID), id)
    if encoding != ENCODING_JSON:
        p[0] = <uint8_t> kind
        p += 1
        if kind == RESULT_ERROR:
            return mp_text_put(p, error_of(content))
        return put(p, content.data, content.size) if kind == RESULT_VALUE else p
    if kind == RESULT_ERROR:
        p = json_text_put(put(p, b',"error":', 9), error_of(content))
    elif kind == RESULT_VALUE:
        p = put(put(p, b',"result":', 10), content.data, content.size)
    return record_end(p, encoding)


# ---- the end of a stream ----


cdef inline size_t stream_end_size(int dialect, int encoding, span id, span error) noexcept nogil:
    """Without an error when that is empty. A Completion, but a StreamCompletion in the early dialect."""
    cdef size_t body
    if dialect != DIALECT_EARLY:
        return completion_size(dialect, encoding, id, RESULT_ERROR if error.size else RESULT_VOID, error)
    body = head_size(dialect, encoding, id)
    if error.size:
        body += text_size(encoding, error) + (9 if encoding == ENCODING_JSON else 0)
    return record_size(encoding, body)


cdef inline uint8_t *stream_end_write(uint8_t *p, int dialect, int encoding, span id, span error) noexcept nogil:
    cdef size_t body
    if dialect != DIALECT_EARLY:
        return completion_write(p, dialect, encoding, id, RESULT_ERROR if error.size else RESULT_VOID, error)
    if encoding != ENCODING_JSON:
        body = head_size(dialect, encoding, id) + (mp_text_size(error) if error.size else 0)
        p = varint_put(p, body)
    p = head_write(p, dialect, encoding, TYPE_STREAM_INVOCATION, 2 + (error.size > 0), id)
    if error.size:
        if encoding == ENCODING_JSON:
            p = json_text_put(put(p, b',"error":', 9), error)
        else:
            p = mp_text_put(p, error)
    return record_end(p, encoding)


# ---- stream items ----


cdef inline size_t stream_item_head_size(int dialect, int encoding, span id) noexcept nogil:
    return head_size(dialect, encoding, id) + (8 if encoding == ENCODING_JSON else 0)


cdef inline uint8_t *stream_item_head_write(uint8_t *p, int dialect, int encoding, span id) noexcept nogil:
    p = head_write(p, dialect, encoding, TYPE_STREAM_ITEM, 3, id)
    return put(p, b',"item":', 8) if encoding == ENCODING_JSON else p


cdef inline size_t item_size(int encoding, size_t head, size_t payload) noexcept nogil:
    return record_size(encoding, head + payload)


cdef inline uint8_t *item_begin(uint8_t *p, int encoding, size_t head, size_t payload) noexcept nogil:
    """Where the head goes, with the payload behind it."""
    return record_begin(p, encoding, head + payload)


cdef inline uint8_t *item_end(uint8_t *p, int encoding) noexcept nogil:
    return record_end(p, encoding)


# ---- invocations ----


cdef inline size_t invocation_head_size(
    int dialect, int encoding, bint has_id, span id, bint nonblocking, span target
) noexcept nogil:
    """`nonblocking`: in the early dialect, where there is always an id."""
    cdef size_t size
    if encoding == ENCODING_JSON:
        size = 9 + (16 + json_text_size(id) if has_id else 0) + 10 + json_text_size(target) + 13
        return size + (19 if nonblocking and dialect != DIALECT_V1 else 0)
    return 3 + (mp_text_size(id) if has_id else 1) + mp_text_size(target)


cdef inline uint8_t *invocation_head_write(
    uint8_t *p, int dialect, int encoding, int type, bint has_id, span id, bint nonblocking, span target
) noexcept nogil:
    """Up to the arguments, which are the raw array. `type`: TYPE_INVOCATION or, from clients, TYPE_STREAM_INVOCATION."""
    if encoding == ENCODING_JSON:
        p = put(p, b'{"type":0', 9)
        (p - 1)[0] = <uint8_t> (c'0' + type)
        if has_id:
            p = json_text_put(put(p, b',"invocationId":', 16), id)
        if nonblocking and dialect != DIALECT_V1:
            p = put(p, b',"nonblocking":true', 19)
        p = json_text_put(put(p, b',"target":', 10), target)
        return put(p, b',"arguments":', 13)
    p[0] = 0x96 if dialect == DIALECT_V1 else 0x95
    p[1] = <uint8_t> type
    p += 2
    if dialect == DIALECT_V1:
        p[0] = 0x80
        p += 1
    if has_id:
        p = mp_text_put(p, id)
    else:
        p[0] = 0xC0
        p += 1
    if dialect != DIALECT_V1:
        p[0] = 0xC3 if nonblocking else 0xC2
        p += 1
    return mp_text_put(p, target)


cdef inline size_t invocation_body(int dialect, int encoding, size_t head, size_t arguments, span uploads) noexcept nogil:
    if encoding == ENCODING_JSON:
        return head + arguments + (13 + uploads.size if uploads.size else 0)
    return head + arguments + (0 if dialect != DIALECT_V1 else uploads.size if uploads.size else 1)


cdef inline size_t invocation_size(int dialect, int encoding, size_t head, size_t arguments, span uploads) noexcept nogil:
    """`uploads`: the raw array of stream ids, or nothing."""
    return record_size(encoding, invocation_body(dialect, encoding, head, arguments, uploads))


cdef inline uint8_t *invocation_begin(
    uint8_t *p, int dialect, int encoding, size_t head, size_t arguments, span uploads
) noexcept nogil:
    """Where the head goes, with the arguments behind it."""
    return record_begin(p, encoding, invocation_body(dialect, encoding, head, arguments, uploads))


cdef inline uint8_t *invocation_end(uint8_t *p, int dialect, int encoding, span uploads) noexcept nogil:
    if encoding == ENCODING_JSON:
        if uploads.size:
            p = put(put(p, b',"streamIds":', 13), uploads.data, uploads.size)
    elif dialect == DIALECT_V1:
        if uploads.size:
            return put(p, uploads.data, uploads.size)
        p[0] = 0x90
        p += 1
    return record_end(p, encoding)


# ---- the rest ----


cdef inline size_t cancel_size(int dialect, int encoding, span id) noexcept nogil:
    return record_size(encoding, head_size(dialect, encoding, id))


cdef inline uint8_t *cancel_write(uint8_t *p, int dialect, int encoding, span id) noexcept nogil:
    p = record_begin(p, encoding, head_size(dialect, encoding, id))
    return record_end(head_write(p, dialect, encoding, TYPE_CANCEL_INVOCATION, 2, id), encoding)


cdef inline size_t ping_size(int encoding) noexcept nogil:
    return 11 if encoding == ENCODING_JSON else 3


cdef inline uint8_t *ping_write(uint8_t *p, int encoding) noexcept nogil:
    return put(p, b'{"type":6}\x1e', 11) if encoding == ENCODING_JSON else put(p, b"\x02\x91\x06", 3)


cdef inline size_t close_body(int encoding, span error, bint allow_reconnect) noexcept nogil:
    if encoding == ENCODING_JSON:
        return 9 + (9 + json_text_size(error) if error.size else 0) + (22 if allow_reconnect else 0)
    return 2 + (mp_text_size(error) if error.size else 1) + allow_reconnect


cdef inline size_t close_size(int encoding, span error, bint allow_reconnect) noexcept nogil:
    """Of a Close, without an error when that is empty. Early peers know none."""
    return record_size(encoding, close_body(encoding, error, allow_reconnect))


cdef inline uint8_t *close_write(uint8_t *p, int encoding, span error, bint allow_reconnect) noexcept nogil:
    p = record_begin(p, encoding, close_body(encoding, error, allow_reconnect))
    if encoding == ENCODING_JSON:
        p = put(p, b'{"type":7', 9)
        if error.size:
            p = json_text_put(put(p, b',"error":', 9), error)
        if allow_reconnect:
            p = put(p, b',"allowReconnect":true', 22)
        return record_end(p, encoding)
    p[0] = 0x93 if allow_reconnect else 0x92
    p[1] = TYPE_CLOSE
    p += 2
    if error.size:
        p = mp_text_put(p, error)
    else:
        p[0] = 0xC0
        p += 1
    if allow_reconnect:
        p[0] = 0xC3
        p += 1
    return p


cdef inline size_t sequence_size(int encoding, uint64_t sequence) noexcept nogil:
    """Of an Ack or a Sequence."""
    if encoding == ENCODING_JSON:
        return record_size(encoding, 23 + decimal_size(sequence))
    return record_size(encoding, 2 + mp_unsigned_size(sequence))


cdef inline uint8_t *sequence_write(uint8_t *p, int encoding, int type, uint64_t sequence) noexcept nogil:
    if encoding == ENCODING_JSON:
        p = put(p, b'{"type":0,"sequenceId":', 23)
        (p - 15)[0] = <uint8_t> (c'0' + type)
        return record_end(decimal_put(p, sequence), encoding)
    p = record_begin(p, encoding, 2 + mp_unsigned_size(sequence))
    p[0] = 0x92
    p[1] = <uint8_t> type
    return mp_unsigned_put(p + 2, sequence)
