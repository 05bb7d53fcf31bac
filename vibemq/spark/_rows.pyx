# SPDX-License-Identifier: Apache-2.0
"""Arrow columns to blocks of messages, without a Python object for a row.

A block is what a transaction stages at once: messages for one stream, each with the four bytes of length that it has in
a Publish frame. Every target has the block that is being filled; one that is full is handed on at once. What a block
takes is allocated once and given away with it, so a value is copied once, from the column into the block.

Bounds: blocks have BLOCK_BYTES, or less where there are so many targets that they would be more than OPEN_BYTES_MAX
together. A message that does not fit such a block has one of its own, of at most `block_max` bytes.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

import pyarrow as pa

from vibemq.spark._columns cimport address
from vibemq.storage.core cimport (
    AMQP_NULL, AMQP_STRING, amqp_map, amqp_map_add_value, amqp_map_begin, amqp_map_end, amqp_size_max, amqp_value,
    amqp_write_data, amqp_write_null, bytes_store32, bytes_writer, writer_bytes,
)

from vibemq.errors import ConfigError, LimitExceeded
from vibemq.spark.codecs import sub_batch


cdef extern from "base/crc32c.h" nogil:
    uint32_t c_crc32c "crc32c" (const void *data, size_t size)


cdef extern from "base/murmur3.h" nogil:
    uint32_t murmur3_partition(const void *key, uint32_t size, uint32_t partitions)


cdef extern from "message/amqp_write.h" nogil:
    cdef struct amqp_properties:
        const uint8_t *id
        const uint8_t *key
        const char *content_type
        const int64_t *creation_time_ms
        uint32_t id_bytes, key_bytes, content_type_bytes
    void amqp_write_properties(writer_bytes *w, const amqp_properties *p)


cdef enum:
    SIZE_BYTES = 4             # before each message
    SHORT_BYTES_MAX = 255      # a data section's size is one byte up to here
    PLAIN_BYTES = 8            # descriptor 3, binary 5: what a data section has around its bytes at most
BLOCK_BYTES = 256 << 10        # some thousand rows: a round trip's cost is spread, and a lost connection repeats little
BLOCK_BYTES_MIN = 16 << 10     # with very many targets; smaller ones would cost more for each row
OPEN_BYTES_MAX = 16 << 20      # of all blocks that are being filled


def crc32c(const uint8_t[::1] data not None):
    """CRC-32C, which snappy's framing format wants."""
    return c_crc32c(&data[0] if len(data) else NULL, len(data))


# ---- columns ----

cdef struct texts:
    # A column of strings or binaries in Arrow's buffers. Invariant: there or all else is unused; `valid` NULL: no nulls.
    const uint8_t *valid
    const uint8_t *ends
    const uint8_t *bytes
    int64_t first              # the row that the array begins with
    bint there, wide


cdef inline bint is_valid(const uint8_t *valid, int64_t at) noexcept nogil:
    return valid == NULL or valid[at >> 3] >> (at & 7) & 1


cdef inline bint text_at(const texts *column, int64_t row, const uint8_t **data, uint64_t *size) noexcept nogil:
    """One row's bytes; False where it has none."""
    cdef int64_t begin, end
    if not column.there:
        return False
    row += column.first
    if not is_valid(column.valid, row):
        return False
    if column.wide:
        begin, end = (<const int64_t *>column.ends)[row], (<const int64_t *>column.ends)[row + 1]
    else:
        begin, end = (<const int32_t *>column.ends)[row], (<const int32_t *>column.ends)[row + 1]
    data[0] = column.bytes + begin
    size[0] = <uint64_t>(end - begin)
    return True


cdef int open_texts(texts *column, array) except -1:
    memset(column, 0, sizeof(texts))
    if array is None or not len(array):
        return 0
    kind = array.type
    column.wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    if not (column.wide or pa.types.is_string(kind) or pa.types.is_binary(kind)):
        raise TypeError(f"a column of strings or binaries is needed, not of {kind}")
    valid, ends, data = array.buffers()
    column.valid, column.ends, column.bytes = address(valid), address(ends), address(data)
    column.first = array.offset
    column.there = True
    return 0


# ---- rows ----

cdef struct block:
    # What is being filled for one target. Invariant: size <= capacity, and data is NULL where capacity is 0.
    uint8_t *data
    size_t size, capacity
    uint32_t records


cdef class Encoder:
    """Turns rows into blocks. Columns that it knows: value, stream, key, headers, message_id, content_type, timestamp.

    `targets` are the names of the streams. With `by_name` the column stream says which; with `partitions` (the index in
    `targets` of each partition of a super stream, in its order) the key does, as at all clients; else there is one.
    `content_type` is that of messages whose column says none.
    """

    cdef texts value, key, stream, message_id, content_type, header_key, header_value
    cdef const uint8_t *headers_valid
    cdef const int32_t *header_ends
    cdef const uint8_t *times_valid
    cdef const int64_t *times_us
    cdef int64_t header_first, time_first  # the rows that these arrays begin with
    cdef block *blocks
    cdef uint32_t *partitions
    cdef uint32_t partition_count
    cdef int64_t full              # the target whose block must be taken now; -1: none
    cdef readonly uint64_t rows
    cdef size_t block_bytes, block_max
    cdef bint by_name, plain
    cdef list kept                 # the bytes objects that `blocks` point into
    cdef tuple targets
    cdef dict indexes
    cdef bytes usual_type, last_name
    cdef uint32_t last_target
    cdef str compression
    cdef object columns            # whose buffers are looked at

    def __init__(self, tuple targets not None, *, partitions=(), bint by_name=False, str content_type="",
                 str compression="none", size_t block_max=BLOCK_BYTES):
        cdef uint32_t index
        self.targets, self.by_name, self.compression = targets, by_name, compression
        self.indexes = {name.encode(): at for at, name in enumerate(targets)}
        self.usual_type = content_type.encode()
        self.block_max, self.full = block_max, -1
        self.block_bytes = min(block_max, max(BLOCK_BYTES_MIN, min(BLOCK_BYTES, OPEN_BYTES_MAX // max(1, len(targets)))))
        self.kept = [None] * len(targets)
        self.blocks = <block *>calloc(len(targets), sizeof(block))
        self.partition_count = len(partitions)
        self.partitions = <uint32_t *>calloc(max(1, len(partitions)), sizeof(uint32_t))
        if self.blocks == NULL or self.partitions == NULL:
            raise MemoryError(f"no memory for {len(targets)} targets")
        for index, target in enumerate(partitions):
            self.partitions[index] = target

    def __dealloc__(self):
        free(self.blocks)
        free(self.partitions)

    def encode(self, columns, int64_t rows):
        """Yield (index of the target, block) for each block that fills up; `columns` are arrays by name."""
        cdef int64_t row = 0
        self._open(columns)
        while row < rows:
            row = self._run(row, rows)
            if self.full >= 0:
                yield self.full, self._take(self.full)
        self.columns = None

    def finish(self):
        """Yield what is left."""
        cdef uint32_t target
        for target in range(<uint32_t>len(self.targets)):
            if self.blocks[target].size:
                yield target, self._take(target)

    cdef int _open(self, columns) except -1:
        self.columns = columns
        open_texts(&self.value, columns.get("value"))
        open_texts(&self.key, columns.get("key"))
        open_texts(&self.stream, columns.get("stream"))
        open_texts(&self.message_id, columns.get("message_id"))
        open_texts(&self.content_type, columns.get("content_type"))
        self._open_headers(columns.get("headers"))
        self._open_times(columns.get("timestamp"))
        self.plain = not (self.key.there or self.message_id.there or self.content_type.there or self.usual_type
                          or self.header_ends != NULL or self.times_us != NULL)
        return 0

    cdef int _open_headers(self, array) except -1:
        """A map, or a list of structs of a key and a value: in memory both are ends, keys and values."""
        self.header_ends, self.headers_valid = NULL, NULL
        if array is None or not len(array):
            return 0
        if pa.types.is_map(array.type):
            keys, values = array.keys, array.items
        else:
            keys, values = array.values.flatten()
        open_texts(&self.header_key, keys)
        open_texts(&self.header_value, values)
        valid, ends = array.buffers()[:2]
        self.headers_valid = address(valid)
        self.header_ends = <const int32_t *>address(ends)
        self.header_first = array.offset
        self.columns = (self.columns, keys, values)
        return 0

    cdef int _open_times(self, array) except -1:
        self.times_us, self.times_valid = NULL, NULL
        if array is None or not len(array):
            return 0
        if not (pa.types.is_timestamp(array.type) and array.type.unit == "us"):
            raise TypeError(f"a column of timestamps in microseconds is needed, not of {array.type}")
        valid, data = array.buffers()
        self.times_valid = address(valid)
        self.times_us = <const int64_t *>address(data)
        self.time_first = array.offset
        return 0

    cdef int64_t _run(self, int64_t row, int64_t rows) except -1:
        """Write rows until there are no more or a block is `full`; gives the row that comes next."""
        while row < rows and self.full < 0:
            row += self._row(row)
        return row

    cdef int _row(self, int64_t row) except -1:
        """Write one row; 0 when its target's block has no room for it."""
        cdef const uint8_t *value = NULL
        cdef const uint8_t *key = NULL
        cdef uint64_t value_size = 0, key_size = 0
        cdef bint has_value = text_at(&self.value, row, &value, &value_size)
        cdef bint has_key = text_at(&self.key, row, &key, &key_size)
        cdef uint32_t target = 0
        cdef block *out
        cdef uint8_t *p
        if value_size > self.block_max or key_size > self.block_max:
            self._too_large(max(value_size, key_size))
        if self.partition_count:
            if has_key:
                target = self.partitions[murmur3_partition(key, <uint32_t>key_size, self.partition_count)]
            else:
                target = self.partitions[self.rows % self.partition_count]
        elif self.by_name:
            target = self._named(row)
        out = &self.blocks[target]
        if not self.plain:
            if not self._whole_row(row, target, value, <uint32_t>value_size, has_value, key, <uint32_t>key_size, has_key):
                return 0
        else:
            if out.capacity - out.size < SIZE_BYTES + PLAIN_BYTES + value_size \
                    and not self._room(target, SIZE_BYTES + PLAIN_BYTES + value_size):
                return 0
            p = out.data + out.size
            if has_value and value_size <= SHORT_BYTES_MAX:
                bytes_store32(p, 5 + <uint32_t>value_size)
                memcpy(p + 4, b"\x00\x53\x75\xa0", 4)
                p[8] = <uint8_t>value_size
                memcpy(p + 9, value, value_size)
                out.size += 9 + value_size
            elif has_value:
                bytes_store32(p, 8 + <uint32_t>value_size)
                memcpy(p + 4, b"\x00\x53\x75\xb0", 4)
                bytes_store32(p + 8, <uint32_t>value_size)
                memcpy(p + 12, value, value_size)
                out.size += 12 + value_size
            else:
                bytes_store32(p, 4)
                memcpy(p + 4, b"\x00\x53\x77\x40", 4)
                out.size += 8
            if out.size > self.block_max:
                self._too_large(out.size)
        if out.capacity > self.block_max:
            out.capacity = self.block_max  # it was for this message, whose size was only estimated
        out.records += 1
        self.rows += 1
        if out.size >= self.block_bytes:
            self.full = target
        return 1

    cdef int _whole_row(self, int64_t row, uint32_t target, const uint8_t *value, uint32_t value_size, bint has_value,
                        const uint8_t *key, uint32_t key_size, bint has_key) except -1:
        """A row with properties or headers."""
        cdef amqp_properties properties
        cdef amqp_value header
        cdef amqp_map map
        cdef writer_bytes w
        cdef block *out = &self.blocks[target]
        cdef uint8_t *start
        cdef const uint8_t *text = NULL
        cdef const uint8_t *name = NULL
        cdef uint64_t size = 0, name_size = 0, payload = <uint64_t>value_size + key_size
        cdef int64_t time_ms, at, end = 0, first = 0
        cdef uint64_t room
        memset(&properties, 0, sizeof(properties))
        if has_key:
            properties.key, properties.key_bytes = key, key_size
        if text_at(&self.message_id, row, &text, &size):
            payload += size
            properties.id, properties.id_bytes = text, <uint32_t>min(size, self.block_max)
        if text_at(&self.content_type, row, &text, &size):
            self._is_ascii(text, size)
            payload += size
            properties.content_type, properties.content_type_bytes = <const char *>text, <uint32_t>min(size, self.block_max)
        elif self.usual_type and has_value:
            payload += len(self.usual_type)
            properties.content_type = PyBytes_AS_STRING(self.usual_type)
            properties.content_type_bytes = <uint32_t>len(self.usual_type)
        if self.times_us != NULL and is_valid(self.times_valid, self.time_first + row):
            time_ms = self.times_us[self.time_first + row]
            time_ms = time_ms // 1000 - (time_ms % 1000 < 0)  # rounded down also before 1970
            properties.creation_time_ms = &time_ms
        if self.header_ends != NULL and is_valid(self.headers_valid, self.header_first + row):
            first, end = self.header_ends[self.header_first + row], self.header_ends[self.header_first + row + 1]
            for at in range(first, end):
                if not text_at(&self.header_key, at, &name, &name_size):
                    raise ConfigError("column headers: a header has no key")
                payload += name_size
                if text_at(&self.header_value, at, &text, &size):
                    payload += size
        if payload > self.block_max:
            self._too_large(payload)
        room = SIZE_BYTES + amqp_size_max(<uint32_t>(end - first), payload)
        if out.capacity - out.size < room and not self._room(target, room):
            return 0
        start = out.data + out.size
        w = bytes_writer(start + SIZE_BYTES, room - SIZE_BYTES)
        if properties.id != NULL or properties.key != NULL or properties.content_type != NULL \
                or properties.creation_time_ms != NULL:
            amqp_write_properties(&w, &properties)
        if first != end:
            amqp_map_begin(&w, &map)
            for at in range(first, end):
                text_at(&self.header_key, at, &name, &name_size)
                memset(&header, 0, sizeof(header))
                header.kind = AMQP_NULL
                if text_at(&self.header_value, at, &text, &size):
                    header.kind, header.data, header.bytes = AMQP_STRING, text, <uint32_t>size
                amqp_map_add_value(&w, &map, name, <uint32_t>name_size, &header)
            amqp_map_end(&w, &map)
        if has_value:
            amqp_write_data(&w, value, value_size)
        else:
            amqp_write_null(&w)
        if w.failed:
            raise AssertionError("a message needs more room than is computed for it")
        bytes_store32(start, <uint32_t>(w.at - start - SIZE_BYTES))
        if out.size + <size_t>(w.at - start) > self.block_max:
            self._too_large(<uint64_t>(w.at - start))
        out.size += <size_t>(w.at - start)
        return 1

    cdef int _is_ascii(self, const uint8_t *text, uint64_t size) except -1:
        cdef uint64_t at
        for at in range(size):
            if text[at] & 0x80:
                raise ConfigError("column content_type: a row's is not ASCII, which a content type is")
        return 0

    cdef uint32_t _named(self, int64_t row) except? 0xffff_ffff:
        """The target that the column stream names; most rows name the one of the row before."""
        cdef const uint8_t *name = NULL
        cdef uint64_t size = 0
        if not text_at(&self.stream, row, &name, &size):
            raise ConfigError("column stream: it is null in a row; every row must name one of the streams of option stream")
        if self.last_name is None or size != <uint64_t>len(self.last_name) \
                or memcmp(name, PyBytes_AS_STRING(self.last_name), size):
            found = (<const char *>name)[:size]
            if found not in self.indexes:
                raise ConfigError(
                    f"column stream: a row names {found.decode('utf-8', 'replace')!r}, which option stream does not; "
                    f"it names {', '.join(self.targets)}")
            self.last_name, self.last_target = found, self.indexes[found]
        return self.last_target

    cdef int _room(self, uint32_t target, size_t needed) except -1:
        """See to it that a block has room for `needed` bytes; 0 where it must be taken first."""
        cdef block *out = &self.blocks[target]
        if out.size:
            self.full = target
            return 0
        data = PyBytes_FromStringAndSize(NULL, max(self.block_bytes, needed))
        self.kept[target] = data
        out.data, out.capacity = <uint8_t *>PyBytes_AS_STRING(data), len(data)
        return 1

    cdef _take(self, uint32_t target):
        """The block of a target, which then has none; compressed where that makes it smaller."""
        cdef block *out = &self.blocks[target]
        cdef uint32_t records = out.records
        data = memoryview(self.kept[target])[:out.size]
        self.kept[target], self.full = None, -1
        memset(out, 0, sizeof(block))
        if self.compression != "none":
            # No message takes less than 8 bytes, so a block has no more of them than a sub-batch can count.
            packed = sub_batch(self.compression, records, data)
            if len(packed) < len(data):
                return packed
        return data

    def _too_large(self, size):
        raise LimitExceeded(
            "message size in bytes", size, self.block_max,
            hint="Raise the broker's streams.frame_max_bytes, or write smaller messages.")
