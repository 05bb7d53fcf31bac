# SPDX-License-Identifier: Apache-2.0
"""The message ids and headers of a batch's rows: AMQP 1.0 properties to Arrow columns, without a Python object for any.

A column of texts is three stretches of memory that grow: where each text ends, the texts, and a
bit for each that says it is not null. Headers are one map for each row: two such columns for all
rows together, and where each row's pairs end. `pyarrow` wraps that memory as it is.

Whatever a publisher wrote becomes text, as the doors that know only text hand it on: numbers in
decimal, booleans as words, UUIDs in their canonical form, timestamps as milliseconds. Lists, maps and
other values that have no text are null. Bytes that are no UTF-8, which Arrow and Spark want,
become U+FFFD. A key that a publisher wrote twice is there twice.

Ends are 32 bits wide and cannot overflow: a batch takes no further message once it is full, at most
64 MiB, and one message, at most 256 MiB, becomes at most 3.5 times as much text (7 bytes of a float with a
one-byte key become 24; a byte that is no UTF-8 becomes three).

Memory is kept and used again, as _arrow.pyx does with its slabs.
"""

from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

import pyarrow as pa


cdef extern from *:
    """
    #include <stdbool.h>
    """
    ctypedef bint boolean "bool"


cdef extern from "message/amqp_read.h" nogil:
    cdef enum amqp_kind:
        AMQP_NULL
        AMQP_OTHER
    cdef struct amqp_value:
        amqp_kind kind
        uint32_t bytes
    cdef struct amqp_pair:
        const uint8_t *key
        uint32_t key_bytes
        amqp_value value
    cdef struct amqp_pairs:
        pass
    void amqp_pairs_begin(amqp_pairs *it, const uint8_t *data, uint32_t size)
    boolean amqp_pairs_next(amqp_pairs *it, amqp_pair *out)
    boolean amqp_message_id(const amqp_message *m, amqp_value *out)
    size_t amqp_value_text(const amqp_value *v, char *out, size_t size)


cdef extern from "message/utf8.h" nogil:
    boolean utf8_is_valid(const uint8_t *p, size_t n)
    boolean utf8_step(const uint8_t **at, const uint8_t *end)


cdef enum:
    FIRST_BYTES = 4096
    KEPT_COUNT = 32            # of a batch there are ten, and two or three batches at a time
    KEPT_BYTES_MAX = 8 << 20   # what grew beyond is given back
    TEXT_MAX_BYTES = 36        # AMQP_TEXT_MAX_BYTES
    MARK_BYTES = 3             # U+FFFD in UTF-8

cdef uint8_t *kept[KEPT_COUNT]
cdef size_t kept_capacity[KEPT_COUNT]
cdef int kept_count = 0


cdef class Growing:
    """Memory that grows; Arrow's buffers keep it alive, then it goes back to be used again.

    It must not grow once Arrow has seen it.
    """

    def __cinit__(self):
        global kept_count
        if kept_count:
            kept_count -= 1
            self.data = kept[kept_count]
            self.capacity = kept_capacity[kept_count]
        elif not self.room(FIRST_BYTES):  # Arrow takes no buffer without an address, even if it is empty
            raise MemoryError(f"no memory for {FIRST_BYTES} bytes of a column")

    def __dealloc__(self):
        global kept_count
        if self.data != NULL and kept_count < KEPT_COUNT and self.capacity <= KEPT_BYTES_MAX:
            kept[kept_count] = self.data
            kept_capacity[kept_count] = self.capacity
            kept_count += 1
        else:
            free(self.data)

    cdef bint room(self, size_t more) noexcept nogil:
        """See to it that `more` bytes fit; False when there is no memory."""
        cdef size_t wanted = self.size + more
        cdef size_t capacity
        cdef uint8_t *grown
        if wanted <= self.capacity:
            return True
        capacity = max(wanted, 2 * self.capacity, <size_t>FIRST_BYTES)
        grown = <uint8_t *>realloc(self.data, capacity)
        if grown == NULL:
            return False
        self.data = grown
        self.capacity = capacity
        return True

    def __getbuffer__(self, Py_buffer *view, int flags):
        view.buf = self.data
        view.obj = self
        view.len = self.size
        view.itemsize = 1
        view.readonly = 0
        view.ndim = 1
        view.format = NULL
        view.shape = NULL
        view.strides = NULL
        view.suboffsets = NULL
        view.internal = NULL

    def __releasebuffer__(self, Py_buffer *view):
        pass


cdef inline bint add_end(Growing ends, size_t end) noexcept nogil:
    if not ends.room(sizeof(int32_t)):
        return False
    (<int32_t *>(ends.data + ends.size))[0] = <int32_t>end
    ends.size += sizeof(int32_t)
    return True


cdef class Texts:
    """A column of strings. Invariant: `ends` holds a 0 and then the end of each of `count` texts in `bytes`."""

    def __cinit__(self):
        self.ends, self.bytes, self.valid = Growing(), Growing(), Growing()
        if not add_end(self.ends, 0):
            raise MemoryError("no memory for a column of texts")

    cdef bint add(self, const uint8_t *text, size_t size, bint null) noexcept nogil:
        """Put one text at the end; False when there is no memory."""
        cdef uint8_t *valid
        if self.count & 7 == 0:
            if not self.valid.room(1):
                return False
            self.valid.data[self.valid.size] = 0
            self.valid.size += 1
        if null:
            self.nulls += 1
        else:
            valid = self.valid.data + (self.count >> 3)
            valid[0] = <uint8_t>(valid[0] | 1 << (self.count & 7))
            if not self.bytes.room(size):
                return False
            if utf8_is_valid(text, size):
                if size:
                    memcpy(self.bytes.data + self.bytes.size, text, size)
                self.bytes.size += size
            elif not self._mend(text, text + size):
                return False
        self.count += 1
        return add_end(self.ends, self.bytes.size)

    cdef bint _mend(self, const uint8_t *at, const uint8_t *end) noexcept nogil:
        cdef const uint8_t *start
        if not self.bytes.room(MARK_BYTES * <size_t>(end - at)):
            return False
        while at != end:
            start = at
            if utf8_step(&at, end):
                memcpy(self.bytes.data + self.bytes.size, start, at - start)
                self.bytes.size += at - start
            else:
                memcpy(self.bytes.data + self.bytes.size, b"\xef\xbf\xbd", MARK_BYTES)
                self.bytes.size += MARK_BYTES
                if at == start:
                    at += 1
        return True

    cdef buffers(self):
        return [pa.py_buffer(self.valid) if self.nulls else None, pa.py_buffer(self.ends), pa.py_buffer(self.bytes)]


cdef bint add_value(Texts column, const amqp_value *value) noexcept nogil:
    cdef char text[TEXT_MAX_BYTES]
    cdef size_t size
    if value.kind == AMQP_NULL or value.kind == AMQP_OTHER:
        return column.add(NULL, 0, True)
    size = amqp_value_text(value, text, TEXT_MAX_BYTES)
    if size <= TEXT_MAX_BYTES:
        return column.add(<const uint8_t *>text, size, False)
    return column.add(value_data(value), value.bytes, False)


cdef extern from *:
    """
    #include "message/amqp_read.h"
    _Static_assert(AMQP_TEXT_MAX_BYTES == 36, "TEXT_MAX_BYTES");
    static inline const uint8_t *value_data(const struct amqp_value *v) { return v->data; }
    """
    const uint8_t *value_data(const amqp_value *v) nogil


cdef class Properties:
    """The ids and headers of one batch's rows. Invariant between calls: as many of each as there are rows."""

    def __cinit__(self, bint want_ids, bint want_headers):
        self.want_ids, self.want_headers = want_ids, want_headers
        if want_ids:
            self.ids = Texts()
        if want_headers:
            self.keys, self.values, self.pair_ends = Texts(), Texts(), Growing()
            if not add_end(self.pair_ends, 0):
                raise MemoryError("no memory for a column of headers")

    cdef bint add(self, const amqp_message *message) noexcept nogil:
        """One row's; `message` is NULL where the row is no AMQP 1.0 message. False when there is no memory."""
        cdef amqp_value value
        cdef amqp_pairs pairs
        cdef amqp_pair pair
        if self.want_ids:
            if message != NULL and amqp_message_id(message, &value):
                if not add_value(self.ids, &value):
                    return False
            elif not self.ids.add(NULL, 0, True):
                return False
        if self.want_headers:
            if message != NULL:
                amqp_pairs_begin(&pairs, message.application_properties, message.application_properties_size)
                while amqp_pairs_next(&pairs, &pair):
                    if not self.keys.add(pair.key, pair.key_bytes, False) or not add_value(self.values, &pair.value):
                        return False
            return add_end(self.pair_ends, self.keys.count)
        return True

    cdef size_t size(self) noexcept nogil:
        """How many bytes of text there are."""
        cdef size_t size = 0
        if self.want_ids:
            size += self.ids.bytes.size
        if self.want_headers:
            size += self.keys.bytes.size + self.values.bytes.size + self.keys.ends.size + self.values.ends.size
        return size

    cdef ids_array(self, kind):
        return pa.Array.from_buffers(kind, self.ids.count, self.ids.buffers(), null_count=self.ids.nulls)

    cdef headers_array(self, kind, rows):
        pairs = pa.StructArray.from_arrays(
            [
                pa.Array.from_buffers(kind.key_type, self.keys.count, self.keys.buffers(), null_count=0),
                pa.Array.from_buffers(
                    kind.item_type, self.values.count, self.values.buffers(), null_count=self.values.nulls),
            ],
            fields=[kind.key_field, kind.item_field],
        )
        return pa.Array.from_buffers(
            kind, rows, [None, pa.py_buffer(self.pair_ends)], null_count=0, children=[pairs])
