# SPDX-License-Identifier: Apache-2.0
"""Columns to a column of JSON objects, one for each row, as Spark's `to_json` words them.

A null field is left out, a null in a list or a map is `null`. Numbers are numbers, decimals too; a number that JSON has
not is a string ("NaN", "Infinity"). Timestamps are ISO 8601 with six digits of a second, with Z where they have a zone;
dates are 2026-01-31, bytes base64. Keys of maps are strings.

Arrow's own casts make text of numbers, dates and times, a column at a time; what is left to do here is to put
the pieces together.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

import pyarrow as pa
import pyarrow.compute as pc

from vibemq.spark._columns cimport Growing, address
from vibemq.storage.core cimport (
    JSON_BASE64_SIZE, JSON_STRING_SIZE_MAX, OK, bytes_writer, json_base64_write, json_string_write, writer_bytes,
)

from vibemq.errors import ConfigError


cdef enum kind:
    RAW           # text that is JSON already
    REAL          # a number that may be none of JSON's
    QUOTED        # text that needs no escapes
    STRING
    BASE64
    STRUCT
    LIST
    MAP


cdef class Text(Growing):
    """Bytes that grow, until somebody has them as a buffer."""

    cdef uint8_t *place(self, size_t more) except NULL:
        if not self.room(more):
            raise MemoryError(f"no memory for {more} bytes of JSON")
        return self.data + self.size

    cdef int add(self, const void *bytes, size_t size) except -1:
        memcpy(self.place(size), bytes, size)
        self.size += size
        return 0

    cdef int byte(self, uint8_t byte) except -1:
        self.place(1)[0] = byte
        self.size += 1
        return 0

    cdef int string(self, const uint8_t *at, size_t size) except -1:
        """In quotes, with the escapes that JSON wants; what is no UTF-8 becomes U+FFFD."""
        cdef uint64_t most = JSON_STRING_SIZE_MAX(size)
        cdef writer_bytes writer = bytes_writer(self.place(most), most)
        cdef bytes mended
        if json_string_write(&writer, at, size) != OK:
            mended = (<const char *>at)[:size].decode(errors="replace").encode()
            return self.string(<const uint8_t *>PyBytes_AS_STRING(mended), len(mended))
        self.size = writer.at - self.data
        return 0

    cdef int base64(self, const uint8_t *at, size_t size) except -1:
        cdef uint64_t most = JSON_BASE64_SIZE(size)
        cdef writer_bytes writer = bytes_writer(self.place(most), most)
        json_base64_write(&writer, at, size)
        self.size += most
        return 0


cdef class Column:
    """One column, or a part of a nested one. Invariant: what it points into is in `kept`."""

    cdef kind what
    cdef const uint8_t *valid
    cdef const uint8_t *ends
    cdef const uint8_t *bytes
    cdef int64_t first
    cdef bint wide
    cdef list names, parts         # a struct's fields with their JSON names; a list's items; a map's keys and values
    cdef object kept

    def __init__(self, str where, array):
        """`where` is the column's name, for errors."""
        kind = array.type
        if pa.types.is_struct(kind):
            self._nested(STRUCT, array)
            self.names = [_name(kind.field(i).name) for i in range(kind.num_fields)]
            self.parts = [Column(f"{where}.{kind.field(i).name}", part) for i, part in enumerate(array.flatten())]
        elif pa.types.is_map(kind):
            keys = array.keys if pa.types.is_string(array.keys.type) else array.keys.cast(pa.string())
            self._nested(MAP, array)
            self.parts = [Column(f"{where}, its keys", keys), Column(f"{where}, its values", array.items)]
        elif pa.types.is_list(kind):
            self._nested(LIST, array)
            self.parts = [Column(f"{where}, its items", array.values)]
        else:
            self._leaf(where, array, kind)

    cdef _nested(self, kind what, array):
        buffers = array.buffers()
        self.what, self.kept, self.first = what, array, array.offset
        self.valid = address(buffers[0])
        self.ends = address(buffers[1]) if what != STRUCT else NULL

    cdef _leaf(self, where, array, kind):
        types = pa.types
        if types.is_string(kind) or types.is_large_string(kind):
            self.what = STRING
        elif types.is_binary(kind) or types.is_large_binary(kind):
            self.what = BASE64
        elif types.is_integer(kind) or types.is_boolean(kind) or types.is_decimal(kind) or types.is_null(kind):
            self.what, array = RAW, array.cast(pa.string())
        elif types.is_floating(kind):
            self.what, array = REAL, array.cast(pa.string())
        elif types.is_date(kind):
            self.what, array = QUOTED, array.cast(pa.string())
        elif types.is_timestamp(kind):
            array = array if kind.tz is None else array.cast(pa.timestamp(kind.unit, "UTC"))
            self.what, array = QUOTED, pc.strftime(array, format="%Y-%m-%dT%H:%M:%S" + ("Z" if kind.tz else ""))
        else:
            raise ConfigError(f"column {where}: valueFormat=json has no form for {kind}; cast it to a string")
        valid, ends, data = array.buffers()
        self.valid, self.ends, self.bytes = address(valid), address(ends), address(data)
        self.wide = types.is_large_string(array.type) or types.is_large_binary(array.type)
        self.first, self.kept = array.offset, array

    cdef inline bint has(self, int64_t row) noexcept:
        row += self.first
        return self.valid == NULL or self.valid[row >> 3] >> (row & 7) & 1

    cdef inline int64_t end(self, int64_t row) noexcept:
        """Where the row before `row` ends and `row` begins."""
        row += self.first
        return (<const int64_t *>self.ends)[row] if self.wide else (<const int32_t *>self.ends)[row]

    cdef int write(self, int64_t row, Text out) except -1:
        """A value that is not null."""
        cdef int64_t at = 0, end = 0
        cdef size_t size
        cdef const uint8_t *text
        if self.what == STRUCT:
            return self._write_struct(row, out)
        at, end = self.end(row), self.end(row + 1)
        if self.what == LIST:
            return self._write_items(at, end, out)
        if self.what == MAP:
            return self._write_map(at, end, out)
        text, size = self.bytes + at, <size_t>(end - at)
        if self.what == STRING:
            return out.string(text, size)
        if self.what == BASE64:
            return out.base64(text, size)
        if self.what == QUOTED:
            out.byte(b'"')
            out.add(text, size)
            return out.byte(b'"')
        if self.what == REAL and (text[0] == b"n" or text[0] == b"i" or size > 1 and text[1] == b"i"):
            if text[0] == b"n":
                return out.add(b'"NaN"', 5)
            return out.add(b'"-Infinity"', 11) if text[0] == b"-" else out.add(b'"Infinity"', 10)
        return out.add(text, size)

    cdef int _write_struct(self, int64_t row, Text out) except -1:
        cdef Column part
        cdef Py_ssize_t index
        cdef bint first = True
        cdef bytes name
        out.byte(b"{")
        for index in range(len(self.parts)):
            part = <Column>self.parts[index]
            if part.has(row):
                if not first:
                    out.byte(b",")
                first = False
                name = <bytes>self.names[index]
                out.add(PyBytes_AS_STRING(name), len(name))
                part.write(row, out)
        return out.byte(b"}")

    cdef int write_or_null(self, int64_t row, Text out) except -1:
        return self.write(row, out) if self.has(row) else out.add(b"null", 4)

    cdef int _write_items(self, int64_t at, int64_t end, Text out) except -1:
        cdef Column items = <Column>self.parts[0]
        cdef int64_t row
        out.byte(b"[")
        for row in range(at, end):
            if row != at:
                out.byte(b",")
            items.write_or_null(row, out)
        return out.byte(b"]")

    cdef int _write_map(self, int64_t at, int64_t end, Text out) except -1:
        cdef Column keys = <Column>self.parts[0]
        cdef Column values = <Column>self.parts[1]
        cdef int64_t row, begin
        out.byte(b"{")
        for row in range(at, end):
            if row != at:
                out.byte(b",")
            begin = keys.end(row)
            out.string(keys.bytes + begin, keys.end(row + 1) - begin)
            out.byte(b":")
            values.write_or_null(row, out)
        return out.byte(b"}")


cdef bytes _name(str name):
    cdef Text text = Text()
    cdef bytes raw = name.encode()
    text.string(<const uint8_t *>PyBytes_AS_STRING(raw), len(raw))
    return (<const char *>text.data)[:text.size] + b":"


def objects(columns, Py_ssize_t rows):
    """A large_binary array of one JSON object for each row of `columns`, arrays by name."""
    cdef Column all_of_it = Column.__new__(Column)
    cdef Text out = Text()
    cdef bytes ends = PyBytes_FromStringAndSize(NULL, 8 * (rows + 1))
    cdef int64_t *end = <int64_t *>PyBytes_AS_STRING(ends)
    cdef int64_t row
    all_of_it.names = [_name(name) for name in columns]
    all_of_it.parts = [Column(name, array) for name, array in columns.items()]
    end[0] = 0
    for row in range(rows):
        all_of_it._write_struct(row, out)
        end[row + 1] = <int64_t>out.size
    return pa.Array.from_buffers(pa.large_binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(out)], null_count=0)
