# SPDX-License-Identifier: Apache-2.0
from vibemq.storage.core cimport control, err, fault, log


cdef object storage_error(err code, const fault *f)
cdef int check(err code, const fault *f) except -1


cdef class Log:
    cdef log *raw
    cdef control *control
    cdef readonly str directory
