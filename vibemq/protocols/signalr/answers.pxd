# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t
from vibemq.protocols.signalr.hub cimport HubConnection


cdef int ping(HubConnection hub) except -1
# Of type TYPE_ACK or TYPE_SEQUENCE.
cdef int sequence(HubConnection hub, int type, int64_t number) except -1
# `error`: None where there is none.
cdef int close(HubConnection hub, error, bint allow_reconnect) except -1
