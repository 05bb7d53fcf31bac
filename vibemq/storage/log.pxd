# SPDX-License-Identifier: Apache-2.0
from vibemq.storage.core cimport control, err, fault, log, log_appended, doorbell_board
from libc.stdint cimport uint32_t, uint64_t


cdef object storage_error(err code, const fault *f)


cdef class Log:
    cdef log *raw
    cdef control *control
    cdef readonly str directory


cdef class Board:
    cdef doorbell_board *raw
    cdef readonly uint32_t index, workers
    cdef readonly int doorbell_fd       # this worker's own
    cdef int fds[64]
    cdef object memory

    cdef void mark(self, uint64_t workers, uint32_t slot) noexcept nogil
