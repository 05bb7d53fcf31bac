# SPDX-License-Identifier: Apache-2.0
"""Records on the wire: a separator ends one in JSON, a length stands before one in MessagePack, and text groups are
around these where an early peer's MessagePack goes over a transport of text.  Below that, what is written in place.
"""

import binascii

from libc.string cimport memchr
from vibemq.protocols.signalr.codec cimport ENCODING_JSON, VARINT_MAX, bytes_of
from vibemq.storage cimport core
from vibemq.storage.core cimport bytes_store16, bytes_store32, bytes_store64, writer_bytes

from vibemq.errors import LimitExceeded
from vibemq.protocols.signalr import spec
from vibemq.protocols.signalr.records import MalformedFrame


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


def split_records(bytes data not None, int encoding, size_t record_max=spec.RECORD_BYTES_MAX_DEFAULT):
    """The whole records at the beginning of `data`, without their framing, and the bytes that they took."""
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


# ---- writing in place ----


cdef uint8_t *mp_text_put(uint8_t *p, span text) noexcept:
    if text.size < 32:
        p[0] = <uint8_t> (0xA0 | text.size)
        p += 1
    elif text.size < 0x100:
        p[0] = 0xD9
        p[1] = <uint8_t> text.size
        p += 2
    elif text.size < 0x10000:
        p[0] = 0xDA
        bytes_store16(p + 1, <unsigned int> text.size)
        p += 3
    else:
        p[0] = 0xDB
        bytes_store32(p + 1, text.size)
        p += 5
    return put(p, text.data, text.size)


cdef uint8_t *mp_unsigned_put(uint8_t *p, uint64_t value) noexcept:
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
        bytes_store16(p + 1, <unsigned int> value)
        return p + 3
    if value <= 0xFFFFFFFFu:
        p[0] = 0xCE
        bytes_store32(p + 1, <uint32_t> value)
        return p + 5
    p[0] = 0xCF
    bytes_store64(p + 1, value)
    return p + 9


cdef uint8_t *json_text_put(uint8_t *p, span text) noexcept:
    cdef writer_bytes w = core.bytes_writer(p, core.JSON_STRING_SIZE_MAX(text.size))
    core.json_string_write(&w, text.data, text.size)
    return w.at
