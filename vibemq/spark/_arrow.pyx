# SPDX-License-Identifier: Apache-2.0
"""Chunks of the streams protocol to Arrow record batches, without a Python object for a message.

Arrow's C++ library is not linked: a batch is one slab of memory laid out as Arrow wants its columns (value ends,
offsets, timestamps, values), filled here and wrapped with `pyarrow.py_buffer` and `Array.from_buffers`, a few
microseconds for each batch. A payload is copied once, from the chunk into the slab, without the GIL.

Ids and headers are columns of texts: three stretches of memory that grow, where each text ends, the
texts, and a bit for each that says it is not null. Headers are one map for each row: two such columns
for all rows together, and where each row's pairs end.

Whatever a publisher wrote becomes text, as the doors that know only text hand it on: numbers in
decimal, booleans as words, UUIDs in their canonical form, timestamps as milliseconds. Lists, maps and
other values that have no text are null. Bytes that are no UTF-8, which Arrow and Spark want,
become U+FFFD. A key that a publisher wrote twice is there twice.

Bounds: a batch ends at `batch_bytes` of values (with their headers, where these are wanted) or `batch_rows` rows,
whichever comes first (one larger message is a batch of its own); a compressed sub-batch may unpack to at most
SUB_BATCH_BYTES_MAX, which is checked before anything is unpacked. Ends are 32 bits wide and cannot overflow: a batch
takes no further message once it is full, at most 64 MiB, and one message, at most 256 MiB, becomes at most 3.5 times as
much text (7 bytes of a float with a one-byte key become 24; a byte that is no UTF-8 becomes three).
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport memcpy

import pyarrow as pa

from vibemq.grow cimport c_grow
from vibemq.client._core cimport (
    AMQP_NULL, AMQP_OTHER, AMQP_TEXT_MAX_BYTES, amqp_message, amqp_message_id, amqp_pair, amqp_pairs, amqp_pairs_begin,
    amqp_pairs_next, amqp_parse, amqp_value, amqp_value_text, boolean, bytes_load32, chunk_entry,
    chunk_entry_next, message_body,
)

from vibemq.errors import ProtocolError
from vibemq.spark.codecs import NAMES, decompress


cdef extern from "base/error.h" nogil:
    enum:
        OK
        ERR_END


cdef extern from "message/text.h" nogil:
    boolean utf8_is_valid(const uint8_t *p, size_t n)
    boolean utf8_step(const uint8_t **at, const uint8_t *end)


cdef enum:
    ROWS_MAX = 65536              # a slab's columns have a fixed place; more rows gain nothing (measured)
    ENDS_BYTES = 262208           # (ROWS_MAX + 1) value ends of 4 bytes, rounded up to 64
    COLUMN_BYTES = 524288         # ROWS_MAX values of 8 bytes
    VALUES_AT = 1310784           # ENDS_BYTES + 2 * COLUMN_BYTES
    FIRST_BYTES = 4096            # of a column that grows
    SLABS_KEPT = 4                # what Spark's writer and a prefetching reader hold at once, with room
    COLUMNS_KEPT = 32             # of a batch there are ten, and two or three batches at a time
    KEPT_BYTES_MAX = 9699392      # 8 MiB of values; what grew beyond is given back
    MARK_BYTES = 3                # U+FFFD in UTF-8
SUB_BATCH_BYTES_MAX = 268435456   # as csrc/log/chunk.h bounds a chunk: no sub-batch may unpack to more
TIMESTAMP_MS_MAX = 253402300799999  # the end of the year 9999: the last that Spark can print

# ---- memory, which is kept and used again: what the process has never touched costs ten times as much to write ----

cdef struct Pool:
    int count, most
    uint8_t *data[COLUMNS_KEPT]
    size_t capacity[COLUMNS_KEPT]

cdef Pool slabs, columns
slabs.most, columns.most = SLABS_KEPT, COLUMNS_KEPT


cdef class Memory:
    """Arrow's buffers keep it alive, then it goes back to its pool. It must not grow once Arrow has seen it."""

    cdef uint8_t *data
    cdef size_t size, capacity
    cdef Pool *pool

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

    def __cinit__(self, size_t values_capacity):
        self.begin(&slabs, VALUES_AT + values_capacity)
        self.size = VALUES_AT + values_capacity


cdef class Growing(Memory):
    """Arrow takes no buffer without an address, so that even an empty one has some room."""

    def __cinit__(self):
        self.begin(&columns, FIRST_BYTES)


# ---- ids and headers ----

cdef inline bint add_end(Growing ends, size_t end) noexcept nogil:
    if not ends.room(sizeof(int32_t)):
        return False
    (<int32_t *>(ends.data + ends.size))[0] = <int32_t>end
    ends.size += sizeof(int32_t)
    return True


cdef class Texts:
    """A column of strings. Invariant: `ends` holds a 0 and then the end of each of `count` texts in `bytes`."""

    cdef Growing ends, bytes, valid
    cdef uint32_t count, nulls

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
    cdef char text[AMQP_TEXT_MAX_BYTES]
    cdef size_t size
    if value.kind == AMQP_NULL or value.kind == AMQP_OTHER:
        return column.add(NULL, 0, True)
    size = amqp_value_text(value, text, AMQP_TEXT_MAX_BYTES)
    if size <= AMQP_TEXT_MAX_BYTES:
        return column.add(<const uint8_t *>text, size, False)
    return column.add(value.data, value.bytes, False)


cdef class Properties:
    """The ids and headers of one batch's rows. Invariant between calls: as many of each as there are rows."""

    cdef bint want_ids, want_headers
    cdef Texts ids, keys, values
    cdef Growing pair_ends

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


# ---- chunks to batches ----


cdef inline bint body_of(const uint8_t *data, uint32_t size, const uint8_t **body, uint32_t *body_size) noexcept nogil:
    """The body of a record that needs no parser; False when it does.

    Two cases are seen at once: bytes that do not begin with a described type, so are no AMQP message, and a message
    that is one data section and nothing else, which is what most stream clients send.
    """
    body[0] = data
    body_size[0] = size
    if size == 0 or data[0] != 0:
        return True
    if size >= 5 and data[1] == 0x53 and data[2] == 0x75:
        if data[3] == 0xa0 and 5 + <uint32_t>data[4] == size:
            body[0] = data + 5
            body_size[0] = size - 5
            return True
        if data[3] == 0xb0 and size >= 8 and bytes_load32(data + 4) == size - 8:
            body[0] = data + 8
            body_size[0] = size - 8
            return True
    return False


cdef enum outcome:
    CHUNK_DONE        # every entry was walked
    RANGE_DONE        # the end of the wanted range was reached inside the chunk
    BATCH_FULL        # hand the batch on, then go on at the same record
    WANT_UNPACKED     # `entry` is a compressed sub-batch that must be unpacked first
    CORRUPT


cdef class Decoder:
    """Turns chunks of one stream into record batches with the columns of `schema`.

    Invariant: `rows` rows lie in `slab`, their values end at `filled`; the records before
    `next_offset` are in batches already handed on or in the slab.
    """

    cdef Slab slab
    cdef object schema, names_buffers
    cdef bytes unpacked
    cdef str stream
    cdef bint raw, want_value, want_ids, want_headers, no_memory
    cdef Properties properties        # None where neither ids nor headers are wanted
    cdef size_t batch_bytes, filled, short_of
    cdef int32_t batch_rows, rows
    cdef readonly int64_t next_offset
    cdef int64_t record_offset, end_offset, timestamp_us
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef const uint8_t *inner_at
    cdef const uint8_t *inner_end
    cdef uint32_t inner_left, entries_seen
    cdef chunk_entry entry

    def __init__(self, str stream, schema, *, bint raw=False, size_t batch_bytes=4 << 20, int32_t batch_rows=ROWS_MAX):
        known = {"value", "offset", "timestamp", "stream", "message_id", "headers"}
        unknown = [name for name in schema.names if name not in known]
        if unknown:
            raise ValueError(f"no column {unknown[0]!r}: there are {', '.join(sorted(known))}")
        if not 1 <= batch_rows <= ROWS_MAX:
            raise ValueError(f"batch_rows must be 1 to {ROWS_MAX}, not {batch_rows}")
        self.stream = stream
        self.schema = schema
        self.raw = raw
        self.want_value = "value" in schema.names
        self.want_ids = "message_id" in schema.names
        self.want_headers = "headers" in schema.names
        self.batch_bytes = max(batch_bytes, <size_t>1)
        self.batch_rows = batch_rows
        self.names_buffers = None

    def decode(self, chunk_id, timestamp_ms, entries, records, data, start_offset, end_offset):
        """Yield each batch that fills up while the records of [start_offset, end_offset) are taken from a chunk.

        What is left over stays for the next chunk, or for `finish`. `data` is the chunk's
        entries; it is read only while this generator runs.
        """
        cdef outcome what
        cdef Py_buffer view
        if abs(timestamp_ms) > TIMESTAMP_MS_MAX:
            raise ProtocolError(self._where(chunk_id, f"its timestamp is {timestamp_ms} ms"))
        self.timestamp_us = timestamp_ms * 1000
        self.record_offset = chunk_id
        self.next_offset = max(chunk_id, start_offset)
        self.end_offset = end_offset
        self.entries_seen = 0
        self.inner_left = 0
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            self.at = <const uint8_t *>view.buf
            self.end = self.at + view.len
            while True:
                if self.slab is None:
                    self._new_slab()
                with nogil:
                    what = self._fill()
                if self.no_memory:
                    raise MemoryError(f"no memory for the headers of {self.rows} messages")
                if what == BATCH_FULL:
                    if self.rows:
                        yield self._take()
                    else:
                        self.slab = Slab(self.short_of)
                elif what == WANT_UNPACKED:
                    self._unpack(chunk_id)
                else:
                    break
            if what == CORRUPT:
                raise ProtocolError(self._where(chunk_id, f"entry {self.entries_seen} cannot be read"))
            if what == CHUNK_DONE and (self.entries_seen != entries or self.record_offset != chunk_id + records):
                raise ProtocolError(self._where(
                    chunk_id, f"it says {entries} entries and {records} records, "
                              f"but holds {self.entries_seen} and {self.record_offset - chunk_id}"))
        finally:
            PyBuffer_Release(&view)
            self.at = self.end = self.inner_at = self.inner_end = NULL
            self.unpacked = None

    def finish(self):
        """The last batch, or None."""
        return self._take() if self.rows else None

    cdef outcome _fill(self) noexcept nogil:
        """Walk records into the slab until something stops it."""
        cdef const uint8_t *data
        cdef uint32_t size
        cdef int result
        cdef chunk_entry inner
        while True:
            if self.inner_left:
                if self.record_offset >= self.end_offset:
                    return RANGE_DONE
                data = self.inner_at
                if chunk_entry_next(&data, self.inner_end, &inner) != OK or inner.is_sub_batch:
                    return CORRUPT
                if self.record_offset >= self.next_offset and not self._add(inner.body, inner.body_bytes):
                    return BATCH_FULL
                self.inner_at = data
                self.inner_left -= 1
                self.record_offset += 1
                if self.inner_left == 0 and self.inner_at != self.inner_end:
                    return CORRUPT
                continue
            if self.record_offset >= self.end_offset and self.at != self.end:
                return RANGE_DONE
            data = self.at
            result = chunk_entry_next(&data, self.end, &self.entry)
            if result == ERR_END:
                return CHUNK_DONE
            if result != OK:
                return CORRUPT
            if not self.entry.is_sub_batch:
                if self.record_offset >= self.next_offset and not self._add(self.entry.body, self.entry.body_bytes):
                    return BATCH_FULL
                self.record_offset += 1
            elif self.record_offset + self.entry.records <= self.next_offset:
                self.record_offset += self.entry.records
            else:
                self.inner_left = self.entry.records
                self.inner_at = self.entry.body
                self.inner_end = self.entry.body + self.entry.body_bytes
            self.at = data
            self.entries_seen += 1
            if self.inner_left and self.entry.compression:
                return WANT_UNPACKED

    cdef inline bint _add(self, const uint8_t *data, uint32_t size) noexcept nogil:
        """Put one record into the slab; False when it has no room for it."""
        cdef uint8_t *slab = self.slab.data
        cdef const uint8_t *body = data
        cdef uint32_t body_size = size
        cdef amqp_message message
        cdef bint is_amqp = False
        cdef bint with_properties = self.want_ids or self.want_headers
        if self.rows >= self.batch_rows:
            return False
        if with_properties:
            if self.rows and self.filled + self.properties.size() >= self.batch_bytes:
                return False
            is_amqp = size != 0 and data[0] == 0 and amqp_parse(data, size, &message) == OK
            if is_amqp and not self.raw:
                message_body(&message, &body, &body_size)
        elif self.want_value and not self.raw and not body_of(data, size, &body, &body_size) \
                and amqp_parse(data, size, &message) == OK:
            message_body(&message, &body, &body_size)
        if self.want_value:
            if body_size > self.slab.size - VALUES_AT - self.filled:
                self.short_of = body_size
                return False
            memcpy(slab + VALUES_AT + self.filled, body, body_size)
            self.filled += body_size
        if with_properties and not self.properties.add(&message if is_amqp else NULL):
            self.no_memory = True
            return False
        (<int32_t *>slab)[self.rows + 1] = <int32_t>self.filled
        (<int64_t *>(slab + ENDS_BYTES))[self.rows] = self.record_offset
        (<int64_t *>(slab + ENDS_BYTES + COLUMN_BYTES))[self.rows] = self.timestamp_us
        self.rows += 1
        self.next_offset = self.record_offset + 1
        return True

    cdef _new_slab(self):
        self.slab = Slab(self.batch_bytes)
        if self.want_ids or self.want_headers:
            self.properties = Properties(self.want_ids, self.want_headers)

    cdef _unpack(self, chunk_id):
        """Replace the compressed body of the sub-batch at hand by its content."""
        if self.entry.uncompressed_bytes > SUB_BATCH_BYTES_MAX:
            raise ProtocolError(self._where(
                chunk_id, f"a sub-batch says it unpacks to {self.entry.uncompressed_bytes} bytes, "
                          f"more than the {SUB_BATCH_BYTES_MAX} allowed"))
        try:
            self.unpacked = decompress(
                self.entry.compression, <bytes>self.inner_at[:self.inner_end - self.inner_at],
                self.entry.uncompressed_bytes)
        except ValueError as failed:
            name = NAMES.get(self.entry.compression, f"compression {self.entry.compression}")
            raise ProtocolError(self._where(chunk_id, f"its {name} sub-batch cannot be unpacked: {failed}")) from failed
        self.inner_at = <const uint8_t *>PyBytes_AS_STRING(self.unpacked)
        self.inner_end = self.inner_at + PyBytes_GET_SIZE(self.unpacked)

    cdef _take(self):
        """Wrap the slab as a record batch and start an empty one."""
        rows = self.rows
        slab = pa.py_buffer(self.slab)
        (<int32_t *>self.slab.data)[0] = 0
        arrays = []
        for field in self.schema:
            if field.name == "message_id":
                arrays.append(self.properties.ids_array(field.type))
                continue
            if field.name == "headers":
                arrays.append(self.properties.headers_array(field.type, rows))
                continue
            if field.name == "value":
                buffers = [None, slab.slice(0, 4 * (rows + 1)), slab.slice(VALUES_AT, self.filled)]
            elif field.name == "offset":
                buffers = [None, slab.slice(ENDS_BYTES, 8 * rows)]
            elif field.name == "timestamp":
                buffers = [None, slab.slice(ENDS_BYTES + COLUMN_BYTES, 8 * rows)]
            else:
                buffers = self._names(rows)
            arrays.append(pa.Array.from_buffers(field.type, rows, buffers, null_count=0))
        self.slab = None
        self.properties = None
        self.rows = 0
        self.filled = 0
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    cdef _names(self, rows):
        """The stream column's buffers: the same bytes over and over, so all batches share them."""
        if self.names_buffers is None or self.names_buffers[0] < rows:
            room = min(ROWS_MAX, max(1024, 1 << (rows - 1).bit_length()))
            names = pa.repeat(pa.scalar(self.stream, pa.string()), room)
            self.names_buffers = (room, names.buffers())
        return self.names_buffers[1]

    def _where(self, chunk_id, what):
        return f"stream {self.stream!r}, chunk {chunk_id}: {what}"
