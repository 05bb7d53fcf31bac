# SPDX-License-Identifier: Apache-2.0
from vibemq.broker.queue cimport Queue, QueueParts
from vibemq.storage.mail cimport letter


cdef class QueueTable(QueueParts):
    cdef readonly dict by_name
    cdef dict by_slot
    cdef Py_ssize_t ticked            # how far the round of ticks has come

    cdef Queue _addressee(self, const letter *what)
    cdef int take_mail(self) except -1
    cdef int seats_changed(self) except -1
    cdef int dispatch(self) except -1
