# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t
from vibemq.storage.core cimport control, err, fault, log


cdef object storage_error(err code, const fault *f)
cdef int check(err code, const fault *f) except -1


cdef class Log:
    cdef log *raw
    cdef control *control
    cdef readonly str directory
    cdef readonly int64_t sync_us     # how long its last sync took
