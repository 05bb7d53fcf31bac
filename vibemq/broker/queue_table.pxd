# SPDX-License-Identifier: Apache-2.0
cimport cython
from libc.stdint cimport int64_t, uint32_t
from vibemq.broker.messages cimport Messages
from vibemq.broker.stream cimport StreamTable
from vibemq.storage.shm cimport Board, Mail, letter

cdef class QueueTable  # Queue refers to it
from vibemq.broker.queue cimport Queue


@cython.final
cdef class QueueTable:
    cdef readonly StreamTable streams
    cdef readonly object metadata, helpers, timers, defaults
    # Timers of acknowledgements and others that waiting input may answer: they go by `heard_ms`.
    cdef readonly object deadlines
    cdef readonly dict modes          # options.DeliveryMode -> Rotation or FanOut
    cdef readonly object make_dead_letter_queue  # (virtual host, name) -> None; blocks
    cdef Board board
    cdef Mail mail
    cdef readonly Messages messages
    cdef readonly uint32_t worker
    cdef list dirty                   # queues to dispatch
    cdef list reports                 # consumers with something to tell a home on another worker
    cdef uint32_t next_consumer
    cdef readonly int64_t now_ms      # the loop's clock, taken once a turn
    cdef readonly int64_t heard_ms    # all input that had come by then has been read; behind `now_ms` after a pause
    cdef public bint ending           # this worker says goodbye to everybody
    # Of access.permissions.Accesses, for publishers to compare with what let them in; NOBODY_MAY_PUBLISH while an
    # alarm is in effect, so that each of them asks again.
    cdef public int64_t access_generation
    cdef public object reserve        # broker.disk.Reserve
    cdef public bint holds_copies     # dead letters have to wait: what is free is for those who empty the disk
    cdef public bint makes_room       # a disk alarm: give back what is settled, also of segments in use
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
