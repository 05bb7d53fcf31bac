# SPDX-License-Identifier: Apache-2.0
from vibemq.broker.queue cimport Queue, QueueParts
from vibemq.storage.mail cimport letter


cdef class QueueTable(QueueParts):
    cdef readonly dict by_name
    cdef dict by_slot
    cdef Py_ssize_t ticked            # how far the round of ticks has come
    cdef object options_seen          # metadata.queue_changes() when it was looked at last
    cdef object policies_seen         # storage.policies.HeldPolicies that open queues are as, but for those in `altering`
    cdef list altering                # queues that may have other options by them
    cdef object alter_timer

    cdef int _alter(self, Queue queue, object policies) except -1
    cdef int _take_effect(self, Queue queue, object had) except -1
    cdef Queue _addressee(self, const letter *what)
    cdef int take_mail(self) except -1
    cdef int seats_changed(self) except -1
    cdef int dispatch(self) except -1
