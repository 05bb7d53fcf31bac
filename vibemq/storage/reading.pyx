# SPDX-License-Identifier: Apache-2.0
"""The committed chunks of a log, for a process that is no worker: from its files, or from bytes of a segment.

Each chunk's header and entries are compared with their checks; what the log's commit record does not cover does not
exist. Segments are copied piece by piece rather than mapped: it costs the same, and a bad disk block is an error.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t
from libc.stdlib cimport free
from libc.string cimport memcpy
from posix.unistd cimport close

from vibemq.grow cimport c_grow
from vibemq.storage cimport core
from vibemq.storage.core cimport OK, ERR_CORRUPT, ERR_END, ERR_NO_MEMORY, ERR_TRUNCATED

from vibemq.errors import StorageError

cdef extern from "log/log.h":
    err log_open_readonly(const char *directory, core.log **out, fault *f)

cdef extern from "log/chunk.h" nogil:
    err chunk_header_read(const uint8_t *data, uint64_t size, uint32_t seed, chunk *out)
    err chunk_verify(const uint8_t *data, uint64_t size, const chunk *c)

cdef enum:
    FETCH_BYTES = 65536  # at least: many small chunks, and not more than the processor's cache holds


cdef class Chunks:
    """What gives one chunk after the other: its header is `chunk`, its entries begin at `entries`."""

    cdef err next(self) noexcept nogil:
        """Go to the next chunk, whose entries stay until the next call."""
        return core.ERR_END

    cdef object problem(self, err code):
        """The last fault as an exception."""
        return StorageError(core.error_name(code).decode(), "there is no chunk")


cdef class ChunkReader(Chunks):
    """Reads from ``attach`` on, in order. Belongs to one thread, and to the process that made it.

    Invariant: ``data[used:filled]`` are the bytes at the place of ``at``.
    """

    def __cinit__(self, int directory_fd, str directory):
        """``directory_fd`` is the log's directory, from now on this object's; ``directory``: what messages call it.

        By the descriptor nobody can put another directory in its place. Raises StorageError: ERR_STALE where no broker
        has opened the log since this machine started, ERR_DELETED, ERR_NOT_FOUND, ERR_VERSION, ERR_IO.
        """
        self.fd = directory_fd
        self.path = b"/proc/self/fd/%d" % directory_fd
        self.directory = directory
        cdef err code = log_open_readonly(self.path, &self.raw, &self.fault)
        if code != OK:
            self.raw = NULL
            raise self.problem(code)

    def __dealloc__(self):
        if self.attached:
            core.reader_close(&self.at)
        core.log_close(self.raw)
        free(self.data)
        if self.path is not None:
            close(self.fd)

    def attach(self, int64_t offset):
        """Go to the chunk that holds ``offset``, or to the first one after it. StorageError."""
        cdef err code = core.reader_open(&self.at, self.raw, core.READER_OFFSET, offset, &self.fault)
        if code != OK:
            raise self.problem(code)
        self.attached = True

    def attach_time(self, int64_t ms):
        """Go to the first chunk that is not older than ``ms`` since 1970.  May wait for the object store.  StorageError."""
        cdef err code = core.reader_open(&self.at, self.raw, core.READER_TIMESTAMP, ms, &self.fault)
        if code == OK:
            self.attached = True
            with nogil:
                code = core.reader_settle(&self.at, False, &self.fault)
        if code != OK and code != ERR_END:
            raise self.problem(code)

    def take(self) -> bytes | None:
        """The next chunk as the streams protocol delivers it: header and entries.  None: there is none yet.

        May wait for the object store.  StorageError, with ERR_NOT_FOUND where retention took the segment.
        """
        cdef err code
        cdef bytes out
        with nogil:
            code = self.next()
        if code == ERR_END:
            return None
        if code != OK:
            raise self.problem(code)
        out = PyBytes_FromStringAndSize(NULL, core.CHUNK_HEADER_BYTES + self.chunk.data_bytes)
        core.chunk_header_to_wire(self.entries - self.chunk.bloom_bytes - core.CHUNK_HEADER_BYTES, <uint8_t *> <char *> out)
        memcpy(<char *> out + core.CHUNK_HEADER_BYTES, self.entries, self.chunk.data_bytes)
        return out

    cdef err next(self) noexcept nogil:
        """Go to the next chunk: its header is ``chunk``, its entries begin at ``entries``, until the next call.

        ERR_END: there is none yet. ERR_NOT_FOUND: retention took the segment. ERR_CORRUPT, ERR_IO: damage.
        """
        cdef err code
        cdef size_t wanted = 0
        while True:
            code = core.reader_chunk(&self.at, self.data + self.used, self.filled - self.used, True, &self.chunk,
                                     &self.fault)
            if code == OK:
                self.entries = self.data + self.used + core.CHUNK_HEADER_BYTES + self.chunk.bloom_bytes
                self.used += core.chunk_bytes(&self.chunk)
                core.reader_advance(&self.at, &self.chunk)
                return OK
            if code != ERR_TRUNCATED:
                return code
            if wanted and core.chunk_bytes(&self.chunk) <= wanted:
                return ERR_CORRUPT  # the file ends before what is committed
            # With the header behind it, which says how much to ask for next time: nothing large is copied twice.
            wanted = max(<size_t> FETCH_BYTES, core.chunk_bytes(&self.chunk) + core.CHUNK_HEADER_BYTES)
            if c_grow(&self.data, &self.capacity, wanted, 1, "a chunk", NULL) != 0:
                return ERR_NO_MEMORY
            self.used = self.filled = 0
            code = core.reader_fetch(&self.at, self.data, wanted, False, &self.filled, &self.fault)
            if code != OK:
                return code

    cdef object problem(self, err code):
        """The last fault as an exception."""
        cdef char line[1024]
        core.fault_format(&self.fault, line, sizeof(line))
        text = line.decode(errors="replace").replace(self.path.decode(), self.directory)
        return StorageError(core.error_name(code).decode(), text)


cdef class SegmentBytes(Chunks):
    """Chunks of a segment whose bytes come in blocks, cut anywhere.

    A chunk that lies whole in a block is given as it lies there; one across blocks is put together in `carry`.
    ``position`` is where in the segment the chunk begins that was given last, or was to come; ``after`` where it ends, 0
    where its header does not say that.
    """

    def __cinit__(self, uint32_t seed, uint64_t position):
        """``seed``: of the segment's checks. ``position``: of the first byte that will come."""
        self.seed, self.position = seed, position

    def __dealloc__(self):
        if self.has_block:
            PyBuffer_Release(&self.view)
        free(self.carry)

    def feed(self, block):
        """The bytes that follow; what came before must be used up: `next` has asked for more by ERR_TRUNCATED."""
        if self.has_block:
            PyBuffer_Release(&self.view)
            self.has_block = False
        PyObject_GetBuffer(block, &self.view, PyBUF_SIMPLE)
        self.has_block, self.used = True, 0

    def back(self):
        """Give the chunk that was given last once more."""
        self.is_again = True

    @property
    def chunk_id(self):
        """Of the chunk that was given last."""
        return self.chunk.chunk_id

    cdef err next(self) noexcept nogil:
        """ERR_TRUNCATED: more bytes are needed. ERR_CORRUPT: damage; then there is nothing more to be had."""
        cdef err code
        if self.is_again:
            self.is_again = False
            return OK
        self.position += self.size
        self.size = self.after = 0
        if self.is_carried:
            self.carried, self.is_carried = 0, False
        if not self.has_block:
            return ERR_TRUNCATED
        if self.carried == 0:
            code = self._look(<const uint8_t *> self.view.buf + self.used, self.view.len - self.used)
            if code == OK:
                self.used += self.size
            if code != ERR_TRUNCATED:
                return code
        return self._assemble()

    cdef err _look(self, const uint8_t *data, uint64_t size) noexcept nogil:
        cdef err code = chunk_header_read(data, size, self.seed, &self.chunk)
        if code != OK:
            return code
        self.after = self.position + core.chunk_bytes(&self.chunk)
        if core.chunk_bytes(&self.chunk) > size:
            return ERR_TRUNCATED
        code = chunk_verify(data, size, &self.chunk)
        if code == OK:
            self.entries = data + core.CHUNK_HEADER_BYTES + self.chunk.bloom_bytes
            self.size = core.chunk_bytes(&self.chunk)
        return code

    cdef err _assemble(self) noexcept nogil:
        """The chunk that the block before has begun: first its header, which says how much there is of it."""
        cdef uint64_t wanted = core.CHUNK_HEADER_BYTES, more
        cdef err code
        while True:
            if self.carried >= core.CHUNK_HEADER_BYTES:
                code = chunk_header_read(self.carry, self.carried, self.seed, &self.chunk)
                if code != OK:
                    return code
                wanted = core.chunk_bytes(&self.chunk)
                if self.carried == wanted:
                    self.is_carried = True
                    return self._look(self.carry, self.carried)
            more = min(wanted - self.carried, <uint64_t> self.view.len - self.used)
            if more == 0:
                return ERR_TRUNCATED
            if c_grow(&self.carry, &self.capacity, wanted, 1, "a chunk", NULL) != 0:
                return ERR_NO_MEMORY
            memcpy(self.carry + self.carried, <const uint8_t *> self.view.buf + self.used, more)
            self.carried += more
            self.used += more

    cdef object problem(self, err code):
        what = "its header" if self.after == 0 else "the CRC of its entries"
        text = f"{what} is not what was written" if code == ERR_CORRUPT else "there is no memory for it"
        return StorageError(core.error_name(code).decode(), f"the chunk at position {self.position}: {text}")
