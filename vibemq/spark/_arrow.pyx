# SPDX-License-Identifier: Apache-2.0
"""Chunks of the streams protocol to Arrow record batches, without a Python object for a message.

Arrow's C++ library is not linked: a batch is one slab of memory laid out as Arrow wants its columns (value ends,
offsets, timestamps, values), filled here and wrapped with `pyarrow.py_buffer` and `Array.from_buffers`, a few
microseconds for each batch. A payload is copied once, from the chunk into the slab, without the GIL.

Bounds: a batch ends at `batch_bytes` of values (with their headers, where these are wanted) or `batch_rows` rows,
whichever comes first (one larger message is a batch of its own); a compressed sub-batch may unpack to at most
SUB_BATCH_BYTES_MAX, which is checked before anything is unpacked. Ends are 32 bits wide and cannot overflow: a batch
takes no further message once it is full, at most 64 MiB, and one message, at most 256 MiB, becomes at most 3.5 times as
much text (7 bytes of a float with a one-byte key become 24; a byte that is no UTF-8 becomes three).
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

import pyarrow as pa

from vibemq.client._core cimport (
    amqp_message, amqp_parse, bytes_load32, chunk_entry, chunk_entry_next, message_body,
)
from vibemq.spark._columns cimport Properties, Slab
from vibemq.storage.core cimport ERR_END, OK, err
from vibemq.storage.reading cimport Chunks

from vibemq.errors import ProtocolError
from vibemq.spark.codecs import NAMES, decompress


cdef enum:
    ROWS_MAX = 65536              # a slab's columns have a fixed place; more rows gain nothing (measured)
    ENDS_BYTES = 262208           # (ROWS_MAX + 1) value ends of 4 bytes, rounded up to 64
    COLUMN_BYTES = 524288         # ROWS_MAX values of 8 bytes
    VALUES_AT = 1310784           # ENDS_BYTES + 2 * COLUMN_BYTES
BESIDE = frozenset(("key", "message_id", "content_type", "headers"))
SUB_BATCH_BYTES_MAX = 268435456   # as csrc/log/chunk.h bounds a chunk: no sub-batch may unpack to more
cdef int64_t TIMESTAMP_MS_LAST = 253402300799999  # the end of the year 9999: the last that Spark can print
TIMESTAMP_MS_MAX = TIMESTAMP_MS_LAST

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
    cdef bint raw, want_value, with_properties, is_plain, no_memory
    cdef Properties properties        # None where none are wanted
    cdef size_t batch_bytes, filled, short_of
    cdef int32_t batch_rows, rows
    cdef readonly int64_t next_offset
    cdef readonly int64_t given       # rows in all the batches handed on
    cdef int64_t record_offset, end_offset, timestamp_us
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef const uint8_t *inner_at
    cdef const uint8_t *inner_end
    cdef int64_t chunk_id
    cdef uint32_t entries, records, inner_left, entries_seen
    cdef chunk_entry entry

    def __init__(self, str stream, schema, *, bint raw=False, size_t batch_bytes=4 << 20, int32_t batch_rows=ROWS_MAX):
        known = {"value", "offset", "timestamp", "stream", *BESIDE}
        unknown = [name for name in schema.names if name not in known]
        if unknown:
            raise ValueError(f"no column {unknown[0]!r}: there are {', '.join(sorted(known))}")
        if not 1 <= batch_rows <= ROWS_MAX:
            raise ValueError(f"batch_rows must be 1 to {ROWS_MAX}, not {batch_rows}")
        self.stream = stream
        self.schema = schema
        self.raw = raw
        self.want_value = "value" in schema.names
        self.with_properties = not BESIDE.isdisjoint(schema.names)
        self.is_plain = self.want_value and not (raw or self.with_properties)
        self.batch_bytes = max(batch_bytes, <size_t>1)
        self.batch_rows = batch_rows
        self.names_buffers = None

    def decode(self, chunk_id, timestamp_ms, entries, records, data, start_offset, end_offset):
        """Yield each batch that fills up while the records of [start_offset, end_offset) are taken from a chunk.

        What is left over stays for the next chunk, or for `finish`. `data` is the chunk's
        entries; it is read only while this generator runs.
        """
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            self._begin(chunk_id, timestamp_ms, entries, records, <const uint8_t *>view.buf, view.len, start_offset,
                        end_offset)
            while (batch := self._go_on()) is not None:
                yield batch
        finally:
            PyBuffer_Release(&view)
            self._end()

    def decode_log(self, Chunks chunks, int64_t start_offset, int64_t end_offset):
        """The same for all chunks of a log, or of a piece of one, from `start_offset` on.

        Returns where it had to stop, with the exception that says why, or None: at `end_offset`, or because there is
        nothing but what lies behind.
        """
        cdef err code
        cdef int64_t at = start_offset
        problem = None
        try:
            while at < end_offset:
                with nogil:
                    code = chunks.next()
                if code != OK:
                    problem = chunks.problem(code)
                    break
                if <int64_t>chunks.chunk.chunk_id > at:
                    break
                self._begin(chunks.chunk.chunk_id, chunks.chunk.timestamp_ms, chunks.chunk.entries,
                            chunks.chunk.records, chunks.entries, chunks.chunk.data_bytes, at, end_offset)
                while (batch := self._go_on()) is not None:
                    yield batch
                at = max(at, min(end_offset, <int64_t>(chunks.chunk.chunk_id + chunks.chunk.records)))
        finally:
            self._end()
        return at, problem

    cdef int _begin(self, int64_t chunk_id, int64_t timestamp_ms, uint32_t entries, uint32_t records,
                    const uint8_t *data, size_t size, int64_t start_offset, int64_t end_offset) except -1:
        """A chunk is at hand. `data`, its entries, must stay until `_go_on` gives None or `_end` is called."""
        self.chunk_id = chunk_id
        if not -TIMESTAMP_MS_LAST <= timestamp_ms <= TIMESTAMP_MS_LAST:
            raise ProtocolError(self._where(f"its timestamp is {timestamp_ms} ms"))
        self.timestamp_us = timestamp_ms * 1000
        self.entries, self.records = entries, records
        self.record_offset = chunk_id
        self.next_offset = max(chunk_id, start_offset)
        self.end_offset = end_offset
        self.entries_seen = 0
        self.inner_left = 0
        self.at = data
        self.end = data + size
        return 0

    cdef _go_on(self):
        """The next batch that fills up, or None when the chunk is done."""
        cdef outcome what
        while True:
            if self.slab is None:
                self._new_slab()
            with nogil:
                what = self._fill()
            if self.no_memory:
                raise MemoryError(f"no memory for the headers of {self.rows} messages")
            if what == BATCH_FULL:
                if self.rows:
                    return self._take()
                self.slab = Slab(VALUES_AT + self.short_of)
            elif what == WANT_UNPACKED:
                self._unpack()
            else:
                break
        if what == CORRUPT:
            raise ProtocolError(self._where(f"entry {self.entries_seen} cannot be read"))
        if what == CHUNK_DONE and (
                self.entries_seen != self.entries or self.record_offset != self.chunk_id + self.records):
            raise ProtocolError(self._where(
                f"it says {self.entries} entries and {self.records} records, "
                f"but holds {self.entries_seen} and {self.record_offset - self.chunk_id}"))
        return None

    cdef void _end(self) noexcept:
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
            if self.is_plain and self.record_offset >= self.next_offset:
                if self.inner_left:  # but the last one, behind which nothing may follow
                    self.inner_left -= self._run(&self.inner_at, self.inner_end, self.inner_left - 1)
                else:
                    self.entries_seen += self._run(&self.at, self.end, ROWS_MAX)
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

    cdef inline uint32_t _run(self, const uint8_t **start, const uint8_t *end, int64_t most) noexcept nogil:
        """Put messages into the slab as long as their bodies need no parser: the usual case, and the shortest way.

        At most `most`, and what fits; returns how many. It stops at whatever is for `_fill` to judge.
        """
        cdef const uint8_t *at = start[0]
        cdef const uint8_t *body
        cdef uint8_t *values = self.slab.data + VALUES_AT
        cdef size_t filled = self.filled, room = self.slab.size - VALUES_AT
        cdef int32_t *ends = <int32_t *>self.slab.data + self.rows + 1
        cdef int64_t *offsets = <int64_t *>(self.slab.data + ENDS_BYTES) + self.rows
        cdef int64_t *times = <int64_t *>(self.slab.data + ENDS_BYTES + COLUMN_BYTES) + self.rows
        cdef int64_t count = 0, i
        cdef uint32_t size, body_size
        most = min(most, self.end_offset - self.record_offset, <int64_t>(self.batch_rows - self.rows))
        while count < most and end - at >= 4:
            size = bytes_load32(at)
            if size > <size_t>(end - at - 4):  # as of a sub-batch, whose first bit is set
                break
            if not body_of(at + 4, size, &body, &body_size) or body_size > room - filled:
                break
            memcpy(values + filled, body, body_size)
            filled += body_size
            ends[count] = <int32_t>filled
            count += 1
            at += 4 + size
        for i in range(count):
            offsets[i] = self.record_offset + i
        for i in range(count):
            times[i] = self.timestamp_us
        start[0] = at
        self.filled = filled
        self.rows += <int32_t>count
        self.record_offset += count
        self.next_offset = max(self.next_offset, self.record_offset)
        return <uint32_t>count

    cdef inline bint _add(self, const uint8_t *data, uint32_t size) noexcept nogil:
        """Put one record into the slab; False when it has no room for it."""
        cdef uint8_t *slab = self.slab.data
        cdef const uint8_t *body = data
        cdef uint32_t body_size = size
        cdef amqp_message message
        cdef bint is_amqp = False
        cdef bint with_properties = self.with_properties
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
        self.slab = Slab(VALUES_AT + self.batch_bytes)
        if self.with_properties:
            self.properties = Properties(self.schema)

    cdef _unpack(self):
        """Replace the compressed body of the sub-batch at hand by its content."""
        if self.entry.uncompressed_bytes > SUB_BATCH_BYTES_MAX:
            raise ProtocolError(self._where(
                f"a sub-batch says it unpacks to {self.entry.uncompressed_bytes} bytes, "
                f"more than the {SUB_BATCH_BYTES_MAX} allowed"))
        try:
            self.unpacked = decompress(
                self.entry.compression, <bytes>self.inner_at[:self.inner_end - self.inner_at],
                self.entry.uncompressed_bytes)
        except ValueError as failed:
            name = NAMES.get(self.entry.compression, f"compression {self.entry.compression}")
            raise ProtocolError(self._where(f"its {name} sub-batch cannot be unpacked: {failed}")) from failed
        self.inner_at = <const uint8_t *>PyBytes_AS_STRING(self.unpacked)
        self.inner_end = self.inner_at + PyBytes_GET_SIZE(self.unpacked)

    cdef _take(self):
        """Wrap the slab as a record batch and start an empty one."""
        rows = self.rows
        slab = pa.py_buffer(self.slab)
        (<int32_t *>self.slab.data)[0] = 0
        arrays = []
        for field in self.schema:
            if field.name in BESIDE:
                arrays.append(self.properties.array(field, rows))
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
        self.given += rows
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

    def _where(self, what):
        return f"stream {self.stream!r}, chunk {self.chunk_id}: {what}"
