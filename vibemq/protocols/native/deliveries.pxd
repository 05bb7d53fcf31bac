# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t, uint32_t
from vibemq.broker.consumer cimport Consumer
from vibemq.protocols.native.session cimport NativeSession


cdef class Subscription(Consumer):
    cdef NativeSession session
    cdef bytes name                   # of the queue, as frames bear it
    cdef readonly uint32_t wanted     # the prefetch it asked for; 0: the queue's
    cdef public bint dormant          # its queue does not exist (any more)

    cdef int _finish(self, NativeSession session, uint8_t *out, uint8_t *p, size_t size, uint32_t attempts) except -1
    cdef int _compress(self, NativeSession session, uint8_t *frame, size_t size) except -1


cdef class StoredSubscription(Subscription):
    """Its messages come as they are stored."""
