# SPDX-License-Identifier: Apache-2.0
"""What stands between bodies and columns made of them: are they text, and are they JSON objects?"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from vibemq.spark._columns cimport address
from vibemq.storage.core cimport OK, json_check, utf8_is_valid


cdef extern from "message/text.h" nogil:
    enum:
        JSON_DEPTH_MAX


cdef struct places:
    const int32_t *ends
    const uint8_t *bytes


cdef places places_of(values) except *:
    """The memory of an array of binary values, which is no slice and must stay."""
    if values.offset:
        raise ValueError("a slice of an array has its values elsewhere")
    _, ends, content = values.buffers()
    return places(<const int32_t *>address(ends), address(content))


def are_text(values):
    """Is every value of a binary array valid UTF-8 by itself?"""
    cdef places of = places_of(values)
    cdef Py_ssize_t row, rows = len(values)
    cdef bint well = True
    with nogil:
        for row in range(rows):
            if not utf8_is_valid(of.bytes + of.ends[row], of.ends[row + 1] - of.ends[row]):
                well = False
                break
    return well


def json_objects(values):
    """The values of a binary array, a line each, and the rows that are no JSON object in valid UTF-8: there it is `{}`.

    Gives (lines as bytes, how many bytes the lines before each row and before the end have, the odd rows).
    """
    cdef places of = places_of(values)
    cdef Py_ssize_t row, rows = len(values), at = 0, size, skipped
    cdef uint64_t position
    cdef const uint8_t *value
    cdef bytes lines = PyBytes_FromStringAndSize(NULL, of.ends[rows] - of.ends[0] + 3 * rows)
    cdef bytes line_starts = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>sizeof(int64_t) * (rows + 1))
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(lines)
    cdef int64_t *starts = <int64_t *>PyBytes_AS_STRING(line_starts)
    cdef list odd = []
    with nogil:
        for row in range(rows):
            starts[row] = at
            value = of.bytes + of.ends[row]
            size = of.ends[row + 1] - of.ends[row]
            skipped = 0
            while skipped < size and value[skipped] in (0x20, 0x09, 0x0A, 0x0D):
                skipped += 1
            if skipped < size and value[skipped] == 0x7B and json_check(value, size, JSON_DEPTH_MAX, &position) == OK:
                memcpy(out + at, value, size)
                at += size
            else:
                out[at], out[at + 1] = 0x7B, 0x7D
                at += 2
                with gil:
                    odd.append(row)
            out[at] = 0x0A
            at += 1
        starts[rows] = at
    return memoryview(lines)[:at], memoryview(line_starts).cast("q"), odd
