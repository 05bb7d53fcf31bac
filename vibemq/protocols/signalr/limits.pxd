# SPDX-License-Identifier: Apache-2.0
cdef class Limits:
    cdef readonly Py_ssize_t unconfirmed, unconfirmed_max
    cdef readonly Py_ssize_t parked_bytes, waiting_bytes
    cdef bint throttled, blocked, crowded

    cdef int count_unconfirmed(self, Py_ssize_t more) except -1
    cdef int count_parked(self, Py_ssize_t more) except -1
    # False: a peer whose acknowledgements must be read has sent more than can be held back.
    cdef bint count_waiting(self, Py_ssize_t more, bint is_held_back) except *
