# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t
from vibemq.broker.messages cimport Cursor
from vibemq.broker.stream cimport StreamUser
from vibemq.protocols.signalr.deliveries cimport Outlet
from vibemq.protocols.signalr.hub cimport HubConnection


# Goes over a log, a queue's or a stream's, and takes nothing away from anybody.
cdef class HubReader(StreamUser):
    cdef HubConnection hub
    cdef readonly Outlet outlet
    cdef Cursor cursor
    cdef uint64_t key
    cdef uint64_t left                # messages until it ends
    cdef bint follows                 # new messages, once it is at the end
    cdef bint fetching, writing
    cdef readonly bint closed
    cdef object when_over

    # Write as much as the transport has room for: after the start, and whenever there is room again.
    cpdef pump(self)
    cdef int _write(self) except -1
