# SPDX-License-Identifier: Apache-2.0
from vibemq.broker.reader cimport LogReader
from vibemq.protocols.signalr.deliveries cimport Outlet
from vibemq.protocols.signalr.hub cimport HubConnection


cdef class HubReader(LogReader):
    cdef HubConnection hub
    cdef readonly Outlet outlet
    cdef object when_over
