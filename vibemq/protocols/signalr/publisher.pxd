# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from vibemq.broker.publisher cimport QueuePublisher
from vibemq.protocols.signalr.hub cimport HubConnection
from vibemq.protocols.signalr.wire cimport span


# Where messages come from: whom to answer, and how.
cdef struct origin:
    int64_t upload          # the number of the Feed that they are part of; 0: none, and the invocation is answered
    uint32_t records
    uint32_t place          # of the first in its batch, once it is there
    span id                 # of the invocation; its data is NULL when nobody waits for an answer
    span message_id         # of one that has an id of its own


# One hub connection's way into one queue, or into a stream that is none.
cdef class HubPublisher(QueuePublisher):
    cdef HubConnection hub
    cdef size_t record_max
    cdef object options_seen, options_read  # of the last message, as they came and as MessageOptions
    cdef set progressed               # uploads (publishing.Feed) of which something was kept just now

    # One message.  `id`: of the invocation; its data is NULL when nobody waits for an answer.  `options`: a dict or
    # None.  `upload`: the number of the Feed that it is part of; then there is no answer of its own.  `has_escapes`:
    # JSON that may have some.
    cdef int publish(self, span id, span body, bint has_escapes, object options, int64_t upload) except -1
    cdef size_t _entry(self, span body, bint has_escapes, object options, uint8_t **out) except 0
    cdef int _take(self, origin *of, const uint8_t *entry, size_t size) except -1
    cdef int _lay(self, origin *of, const uint8_t *entry, size_t size) except -1
    cdef int _refuse(self, const origin *of, object code, str text) except -1
    cdef bint _is_counted(self, const origin *of) except -1
    cdef int _kept(self, const origin *of, uint64_t offset, bint offset_known) except -1
    cdef int _complete(self, const origin *of, uint64_t offset, bint offset_known) except -1
