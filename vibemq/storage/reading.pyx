# SPDX-License-Identifier: Apache-2.0
"""The committed chunks of a log, for a process that is no worker and may only read the files.

Each chunk's header and entries are compared with their checks; what the log's commit record does not cover does not
exist. Segments are copied piece by piece rather than mapped: it costs the same, and a bad disk block is an error.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport free
from posix.unistd cimport close

from vibemq.grow cimport c_grow
from vibemq.storage cimport core
from vibemq.storage.core cimport OK, ERR_CORRUPT, ERR_NO_MEMORY, ERR_TRUNCATED

from vibemq.errors import StorageError

cdef extern from "log/log.h":
    err log_open_readonly(const char *directory, core.log **out, fault *f)

cdef enum:
    FETCH_BYTES = 65536  # at least: many small chunks, and not more than the processor's cache holds


cdef class ChunkReader:
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
