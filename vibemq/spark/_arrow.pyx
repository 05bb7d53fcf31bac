# SPDX-License-Identifier: Apache-2.0
"""Chunks of the streams protocol to Arrow record batches, without a Python object for a message.

Arrow's C++ library is not linked: a batch is one slab of memory laid out as Arrow wants
its columns (value ends, offsets, timestamps, values), filled here and wrapped with
`pyarrow.py_buffer` and `Array.from_buffers`, a few microseconds for each batch. A payload
is copied once, from the chunk into the slab, without the GIL.

Slabs are kept and used again: memory that the process has never touched costs ten
times as much to write as memory it has.

Bounds: a batch ends at `batch_bytes` of values (with their headers, which _properties.pyx keeps, where these
are wanted) or `batch_rows` rows, whichever comes first (one larger message is a batch of its own); a compressed sub-batch may unpack to at most
SUB_BATCH_BYTES_MAX, which is checked before anything is unpacked.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

import pyarrow as pa

from vibemq.errors import ProtocolError
from vibemq.spark._properties cimport AMQP_BODY_DATA, AMQP_BODY_NONE, AMQP_BODY_VALUE, Properties, amqp_message
from vibemq.spark.codecs import NAMES, decompress


cdef extern from "base/error.h" nogil:
    ctypedef enum err:
        OK
        ERR_END


cdef extern from "log/chunk.h" nogil:
    cdef struct chunk_entry:
        const uint8_t *body
        uint32_t body_bytes, records, uncompressed_bytes
        uint8_t is_sub_batch, compression
    err chunk_entry_next(const uint8_t **at, const uint8_t *end, chunk_entry *out)


cdef extern from "message/amqp.h" nogil:
    err amqp_parse(const uint8_t *data, uint32_t size, amqp_message *out)


cdef extern from "base/bytes.h" nogil:
    uint32_t bytes_load32(const uint8_t *p)


cdef enum:
    ROWS_MAX = 65536              # a slab's columns have a fixed place; more rows gain nothing (measured)
    ENDS_BYTES = 262208           # (ROWS_MAX + 1) value ends of 4 bytes, rounded up to 64
    COLUMN_BYTES = 524288         # ROWS_MAX values of 8 bytes
    VALUES_AT = 1310784           # ENDS_BYTES + 2 * COLUMN_BYTES
    SLABS_KEPT = 4                # what Spark's writer and a prefetching reader hold at once, with room
SUB_BATCH_BYTES_MAX = 268435456   # as csrc/log/chunk.h bounds a chunk: no sub-batch may unpack to more
TIMESTAMP_MS_MAX = 253402300799999  # the end of the year 9999: the last that Spark can print

cdef uint8_t *kept[SLABS_KEPT]
cdef size_t kept_values[SLABS_KEPT]
cdef int kept_count = 0


cdef class Slab:
    """The memory of one batch; Arrow's buffers keep it alive, then it goes back to be used again."""

    cdef uint8_t *data
    cdef size_t values_capacity

    def __cinit__(self, size_t values_capacity):
        global kept_count
        self.values_capacity = values_capacity
        if kept_count and kept_values[kept_count - 1] == values_capacity:
            kept_count -= 1
            self.data = kept[kept_count]
            return
        self.data = <uint8_t *>malloc(VALUES_AT + values_capacity)
        if self.data == NULL:
            raise MemoryError(f"no memory for a batch of {values_capacity} bytes")

    def __dealloc__(self):
        global kept_count
        if self.data == NULL:
            return
        if kept_count < SLABS_KEPT and self.values_capacity <= (8 << 20):
            kept[kept_count] = self.data
            kept_values[kept_count] = self.values_capacity
            kept_count += 1
        else:
            free(self.data)

    def __getbuffer__(self, Py_buffer *view, int flags):
        view.buf = self.data
        view.obj = self
        view.len = VALUES_AT + self.values_capacity
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


cdef inline bint body_of(const uint8_t *data, uint32_t size, const uint8_t **body, uint32_t *body_size) noexcept nogil:
    """The body of a record that needs no parser; False when it does.

    Two cases are seen at once: bytes that do not begin with a described type, so are no AMQP
    message, and a message that is one data section and nothing else, which is what most
    stream clients send.
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


cdef void parsed_body(const amqp_message *message, const uint8_t **body, uint32_t *body_size) noexcept nogil:
    """The body of an AMQP 1.0 message; unchanged where that has no bytes to be a body, so it stays as it is stored.

    A null is an empty body: our native door writes it for a message without one.
    """
    cdef const uint8_t *at
    if message.body_kind == AMQP_BODY_DATA:
        body[0] = message.body
        body_size[0] = message.body_size
    elif message.body_kind == AMQP_BODY_NONE:
        body_size[0] = 0
    elif message.body_kind == AMQP_BODY_VALUE and message.body_size >= 1:
        at = message.body
        if at[0] == 0x40 and message.body_size == 1:
            body_size[0] = 0
        elif message.body_size >= 2 and (at[0] == 0xa0 or at[0] == 0xa1) and 2 + <uint32_t>at[1] == message.body_size:
            body[0] = at + 2
            body_size[0] = message.body_size - 2
        elif message.body_size >= 5 and (at[0] == 0xb0 or at[0] == 0xb1) \
                and bytes_load32(at + 1) == message.body_size - 5:
            body[0] = at + 5
            body_size[0] = message.body_size - 5


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
    cdef object schema, names_buffers, unpacked
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
        cdef const uint8_t[::1] view = data
        if abs(timestamp_ms) > TIMESTAMP_MS_MAX:
            raise ProtocolError(self._where(chunk_id, f"its timestamp is {timestamp_ms} ms"))
        self.timestamp_us = timestamp_ms * 1000
        self.record_offset = chunk_id
        self.next_offset = max(chunk_id, start_offset)
        self.end_offset = end_offset
        self.at = &view[0] if view.shape[0] else NULL
        self.end = self.at + view.shape[0]
        self.entries_seen = 0
        self.inner_left = 0
        try:
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
            self.at = self.end = self.inner_at = self.inner_end = NULL
            self.unpacked = None

    def finish(self):
        """The last batch, or None."""
        return self._take() if self.rows else None

    cdef outcome _fill(self) noexcept nogil:
        """Walk records into the slab until something stops it."""
        cdef const uint8_t *data
        cdef uint32_t size
        cdef err result
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
                parsed_body(&message, &body, &body_size)
        elif self.want_value and not self.raw and not body_of(data, size, &body, &body_size) \
                and amqp_parse(data, size, &message) == OK:
            parsed_body(&message, &body, &body_size)
        if self.want_value:
            if body_size > self.slab.values_capacity - self.filled:
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
        cdef const uint8_t[::1] content
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
        content = self.unpacked
        self.inner_at = &content[0] if content.shape[0] else NULL
        self.inner_end = self.inner_at + content.shape[0]

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
