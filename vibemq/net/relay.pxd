# SPDX-License-Identifier: Apache-2.0
from vibemq.net.connection cimport Connection
from vibemq.net.door cimport Session


cdef class Relay(Session):
    cdef Connection other       # the far end; None once it is gone
