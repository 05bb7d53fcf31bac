# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint32_t, uint64_t
from vibemq.broker.backlog cimport Backlog
from vibemq.broker.messages cimport message_view
from vibemq.broker.consumer cimport Consumer
from vibemq.storage.mail cimport letter

cdef enum:
    BUDGET = 4096            # messages of one queue in one turn: about two milliseconds with everything around them


# A consumer as the home knows it, on whichever worker it is.
cdef class Member:
    cdef Consumer consumer            # None: on another worker
    cdef readonly uint32_t worker, life, consumer_id
    cdef int64_t prefetch, outstanding  # how many it may have in flight, and has
    cdef bint follows                 # its prefetch is the queue's
    cdef uint32_t peer                # key of the host and user whose consumer it is
    cdef set refused                  # rotation: offsets that it could not be given; None: there was none
    cdef uint64_t aside_seen          # rotation: nothing that was set aside until then is for it
    cdef bint able                    # stands in the rotation
    cdef bint gone
    cdef bint failed              # it could not take a message, and its connection is ending
    cdef uint64_t handed, received    # remote: how many were sent to it, and how many of those had come
    cdef uint64_t reported            # remote: the lowest offset that it had not settled
    # Fan-out: each member has its own place.
    cdef uint64_t start               # it gets everything from here on
    cdef uint64_t cursor              # what it gets next
    cdef uint64_t skip_below          # settled messages below are no copies of its own
    cdef uint64_t low                 # nothing below is owed to it any more
    cdef list inherited               # ranges below start that it got from members who left
    cdef object owed                  # deque of those parts of them that it was not given yet
    cdef list again                   # heap of (due ms, offset, attempts, strikes): copies that came back


cdef class Home(Backlog):
    cdef readonly uint32_t generation
    cdef dict members                 # (worker, consumer id) -> Member
    cdef int64_t in_flight
    cdef set awaited                  # (worker, epoch) of those that have not yet said what they have
    cdef set kept                     # offsets in flight at consumers that a new home has been told of

    # What the two kinds of home do in their own way.
    cdef int admit(self, Member m, bint fresh, uint64_t seen) except -1
    cdef int came_back(self, Member m, uint64_t offset, uint32_t attempts, uint32_t strikes, int64_t due_ms) except -1
    cdef int unsuited(self, Member m, uint64_t offset, uint32_t attempts) except -1
    cdef int has_room(self, Member m) except -1
    cdef int inherit(self, Member gone) except -1
    cdef int worker_died(self, set dead) except -1
    cdef int taken_over(self, uint64_t base) except -1
    cdef bint hand_out(self) except -1
    cdef uint64_t departed(self) except? 0
    cdef object next_due(self)

    cdef bint _can(self, Member m) noexcept
    cdef int _give(self, Member to, message_view *m, uint32_t attempts, uint32_t strikes) except -1
    cdef int _leave(self, Member m) except -1
    cdef int _returned(self, Member m, uint64_t offset, uint32_t attempts, uint32_t strikes, int64_t delay_ms) except -1
    cdef int _join_letter(self, const letter *what) except -1
    cdef int _has_told(self, uint32_t worker, uint32_t epoch) except -1
    cdef int _taken_over(self) except -1
    cdef int _publish(self) except -1
