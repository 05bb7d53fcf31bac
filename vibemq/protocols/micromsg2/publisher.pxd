# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from vibemq.broker.publisher cimport QueuePublisher
from vibemq.protocols.micromsg2.session cimport Micromsg2Session


# One connection's way into one queue or stream, by the destination that its messages name.
cdef class Micromsg2Publisher(QueuePublisher):
    cdef Micromsg2Session session
    cdef readonly bytes destination

    # 1 when that took Python.  `index` is the message's place in the receive window; 0 without acknowledgements.
    cdef int publish(self, const uint8_t *properties, uint32_t properties_size, const uint8_t *payload,
                     uint32_t payload_size, bytes dotnet_type, uint64_t index) except -1
    cdef int _append(self, const uint8_t *entry, size_t size, uint64_t index) except -1
    cdef int _refuse(self, uint64_t index, bytes code, bytes text) except -1
