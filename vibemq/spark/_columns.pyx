# SPDX-License-Identifier: Apache-2.0
"""The memory of Arrow columns, and the columns that stand beside the bodies of messages.

A column of texts is three stretches of memory that grow: where each text ends, the texts, and a bit for
each that says it is not null. Headers are one map, or list, for each row: two such columns for all rows together, and
where each row's pairs end.

Whatever a publisher wrote becomes text, as the doors that know only text hand it on: numbers in
decimal, booleans as words, UUIDs in their canonical form, timestamps as milliseconds. Lists, maps and
other values that have no text are null. Bytes that are no UTF-8, which Arrow and Spark want of strings,
become U+FFFD. A key that a publisher wrote twice is there twice.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy

import pyarrow as pa

from vibemq.grow cimport c_grow
from vibemq.client._core cimport (
    AMQP_NULL, AMQP_OTHER, AMQP_TEXT_MAX_BYTES, amqp_message, amqp_pair, amqp_pairs, amqp_pairs_begin, amqp_pairs_next,
    amqp_value, amqp_value_text, boolean,
)
from vibemq.storage.core cimport utf8_is_valid, utf8_step


cdef extern from "message/amqp.h" nogil:
    enum amqp_field:
        AMQP_MESSAGE_ID, AMQP_CONTENT_TYPE, AMQP_GROUP_ID
    boolean amqp_property(const amqp_message *m, amqp_field field, amqp_value *out)


cdef enum:
    FIRST_BYTES = 4096            # of a column that grows
    SLABS_KEPT = 4                # what Spark's writer and a prefetching reader hold at once, with room
    KEPT_BYTES_MAX = 9699392      # 8 MiB of values; what grew beyond is given back
    MARK_BYTES = 3                # U+FFFD in UTF-8

# ---- memory, which is kept and used again: what the process has never touched costs ten times as much to write ----

cdef Pool slabs, columns
slabs.most, columns.most = SLABS_KEPT, COLUMNS_KEPT


cdef class Memory:
    """Arrow's buffers keep it alive, then it goes back to its pool. It must not grow once Arrow has seen it."""

    cdef int begin(self, Pool *pool, size_t room) except -1:
        """With what was kept last, if there is any."""
        self.pool = pool
        if pool.count:
            pool.count -= 1
            self.data, self.capacity = pool.data[pool.count], pool.capacity[pool.count]
        if not self.room(room):
            raise MemoryError(f"no memory for {room} bytes of a batch")
        return 0

    def __dealloc__(self):
        cdef Pool *pool = self.pool
        if self.data != NULL and pool.count < pool.most and self.capacity <= KEPT_BYTES_MAX:
            pool.data[pool.count], pool.capacity[pool.count] = self.data, self.capacity
            pool.count += 1
        else:
            free(self.data)

    cdef bint room(self, size_t more) noexcept nogil:
        """See to it that `more` bytes fit; False when there is no memory."""
        return c_grow(&self.data, &self.capacity, self.size + more, 1, "a column", NULL) == 0

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)


cdef class Slab(Memory):
    """The columns of one batch whose places are known, and its values behind them."""

    def __cinit__(self, size_t size):
        self.begin(&slabs, size)
        self.size = size


cdef class Growing(Memory):
    """Arrow takes no buffer without an address, so that even an empty one has some room."""

    def __cinit__(self):
        self.begin(&columns, FIRST_BYTES)


# ---- texts ----

cdef inline bint add_end(Growing ends, size_t end) noexcept nogil:
    if not ends.room(sizeof(int32_t)):
        return False
    (<int32_t *>(ends.data + ends.size))[0] = <int32_t>end
    ends.size += sizeof(int32_t)
    return True


cdef class Texts:
    """A column of strings, or of binary values, which are taken as they are.

    Invariant: `ends` holds a 0 and then the end of each of `count` texts in `bytes`.
    """

    def __cinit__(self, bint is_binary=False):
        self.is_binary = is_binary
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
            if self.is_binary or utf8_is_valid(text, size):
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

    cdef array(self, kind):
        buffers = [pa.py_buffer(self.valid) if self.nulls else None, pa.py_buffer(self.ends), pa.py_buffer(self.bytes)]
        return pa.Array.from_buffers(kind, self.count, buffers, null_count=self.nulls)


cdef bint add_value(Texts column, const amqp_value *value) noexcept nogil:
    cdef char text[AMQP_TEXT_MAX_BYTES]
    cdef size_t size
    if value.kind == AMQP_NULL or value.kind == AMQP_OTHER:
        return column.add(NULL, 0, True)
    size = amqp_value_text(value, text, AMQP_TEXT_MAX_BYTES)
    if size <= AMQP_TEXT_MAX_BYTES:
        return column.add(<const uint8_t *>text, size, False)
    return column.add(value.data, value.bytes, False)


# ---- what stands beside the body of a message ----

cdef bint add_property(Texts column, const amqp_message *message, amqp_field field) noexcept nogil:
    cdef amqp_value value
    if message != NULL and amqp_property(message, field, &value):
        return add_value(column, &value)
    return column.add(NULL, 0, True)


cdef class Properties:
    """Those columns of one batch's rows that are wanted; None are the others.

    Invariant between calls: as many texts of each, and ends of headers, as there are rows.
    """

    def __cinit__(self, schema):
        names = schema.names
        if "key" in names:
            self.key = Texts(is_binary=True)
        if "message_id" in names:
            self.message_id = Texts()
        if "content_type" in names:
            self.content_type = Texts()
        if "headers" in names:
            kind = schema.field("headers").type
            is_map = pa.types.is_map(kind)
            self.header_keys = Texts()
            self.header_values = Texts(is_binary=not is_map)
            self.header_ends = Growing()
            if not add_end(self.header_ends, 0):
                raise MemoryError("no memory for a column of headers")

    cdef bint add(self, const amqp_message *message) noexcept nogil:
        """One row's; `message` is NULL where the row is no AMQP 1.0 message. False when there is no memory."""
        cdef amqp_pairs pairs
        cdef amqp_pair pair
        if self.key is not None and not add_property(self.key, message, AMQP_GROUP_ID):
            return False
        if self.message_id is not None and not add_property(self.message_id, message, AMQP_MESSAGE_ID):
            return False
        if self.content_type is not None and not add_property(self.content_type, message, AMQP_CONTENT_TYPE):
            return False
        if self.header_ends is not None:
            if message != NULL:
                amqp_pairs_begin(&pairs, message.application_properties, message.application_properties_size)
                while amqp_pairs_next(&pairs, &pair):
                    if not self.header_keys.add(pair.key, pair.key_bytes, False) \
                            or not add_value(self.header_values, &pair.value):
                        return False
            return add_end(self.header_ends, self.header_keys.count)
        return True

    cdef size_t size(self) noexcept nogil:
        """How many bytes of text there are, and of the places of headers."""
        cdef size_t size = 0
        if self.key is not None:
            size += self.key.bytes.size
        if self.message_id is not None:
            size += self.message_id.bytes.size
        if self.content_type is not None:
            size += self.content_type.bytes.size
        if self.header_ends is not None:
            size += self.header_keys.bytes.size + self.header_values.bytes.size
            size += self.header_keys.ends.size + self.header_values.ends.size
        return size

    cdef array(self, field, rows):
        """A column's, by its name; None when it is none of these."""
        if field.name == "headers":
            return self._headers(field.type, rows)
        cdef Texts column = {"key": self.key, "message_id": self.message_id, "content_type": self.content_type}.get(
            field.name)
        return None if column is None else column.array(field.type)

    cdef _headers(self, kind, rows):
        """A map for each row or, as Kafka's source has it, a list of structs of a key and a value."""
        key, value = (kind.key_field, kind.item_field) if pa.types.is_map(kind) else kind.value_type
        pairs = pa.StructArray.from_arrays(
            [self.header_keys.array(key.type), self.header_values.array(value.type)], fields=[key, value])
        return pa.Array.from_buffers(
            kind, rows, [None, pa.py_buffer(self.header_ends)], null_count=0, children=[pairs])
