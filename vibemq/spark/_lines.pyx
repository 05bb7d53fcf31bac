# SPDX-License-Identifier: Apache-2.0
"""What stands between bodies and columns made of them: are they text, and are they JSON objects?"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy


cdef extern from *:
    """
    #include <stdbool.h>
    """
    ctypedef bint boolean "bool"


cdef extern from "message/text.h" nogil:
    enum:
        JSON_DEPTH_MAX
    int json_check(const uint8_t *data, uint64_t size, uint32_t depth_max, uint64_t *position)
    boolean utf8_is_valid(const uint8_t *p, size_t n)


cdef class _Values:
    """The memory of an array of binary values; an array that is no slice."""

    cdef Py_buffer ends_view, bytes_view
    cdef const int32_t *ends
    cdef const uint8_t *bytes

    def __cinit__(self, values):
        if values.offset:
            raise ValueError("a slice of an array has its values elsewhere")
        _, ends, content = values.buffers()
        PyObject_GetBuffer(ends, &self.ends_view, PyBUF_SIMPLE)
        self.ends = <const int32_t *>self.ends_view.buf
        PyObject_GetBuffer(content, &self.bytes_view, PyBUF_SIMPLE)
        self.bytes = <const uint8_t *>self.bytes_view.buf

    def __dealloc__(self):
        if self.ends != NULL:
            PyBuffer_Release(&self.ends_view)
        if self.bytes != NULL:
            PyBuffer_Release(&self.bytes_view)


def are_text(values):
    """Is every value of a binary array valid UTF-8 by itself?"""
    cdef _Values of = _Values(values)
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
    cdef _Values of = _Values(values)
    cdef Py_ssize_t row, rows = len(values), at = 0, size, skipped
    cdef uint64_t position
    cdef const uint8_t *value
    cdef bytes lines = PyBytes_FromStringAndSize(NULL, of.ends[rows] - of.ends[0] + 3 * rows)
    cdef bytes places = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>sizeof(int64_t) * (rows + 1))
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(lines)
    cdef int64_t *starts = <int64_t *>PyBytes_AS_STRING(places)
    cdef list odd = []
    with nogil:
        for row in range(rows):
            starts[row] = at
            value = of.bytes + of.ends[row]
            size = of.ends[row + 1] - of.ends[row]
            skipped = 0
            while skipped < size and value[skipped] in (0x20, 0x09, 0x0A, 0x0D):
                skipped += 1
            if skipped < size and value[skipped] == 0x7B and json_check(value, size, JSON_DEPTH_MAX, &position) == 0:
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
    return memoryview(lines)[:at], memoryview(places).cast("q"), odd
