# SPDX-License-Identifier: Apache-2.0
cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

cdef class Home  # those below refer to it
from vibemq.broker.backlog cimport Backlog
from vibemq.broker.consumer cimport Consumer
from vibemq.broker.queue cimport Queue

from vibemq.broker.messages cimport message_view
from vibemq.storage.core cimport ledger, ledger_control, ledger_home
from vibemq.storage.shm cimport letter

cdef enum:
    BUDGET = 4096            # messages of one queue in one turn: about two milliseconds with everything around them

# What Mode.work_off() returns.
cdef enum:
    WORKED_OFF = 0
    GOES_ON = 1              # in the next turn
    WAITS = 2                # until its timer rings


# A consumer as the home knows it, on whichever worker it is.
@cython.final
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


# Who is given what: Rotation or FanOut.
cdef class Mode:
    cdef Queue queue
    cdef Backlog backlog
    cdef ledger *raw
    cdef ledger_control *control
    cdef readonly uint32_t generation
    cdef dict members                 # (worker, consumer id) -> Member
    cdef int64_t in_flight

    cdef bint can(self, Member m) noexcept
    cdef int give(self, Member to, message_view *m, uint32_t attempts, uint32_t strikes) except -1

    # A consumer has come; `fresh`: it was given nothing yet, else it has seen everything below `seen`.
    cdef int admit(self, Member m, bint fresh, uint64_t seen) except -1
    # A member has left; it has given back before what it had in flight, unless its worker died.
    cdef int left(self, Member gone) except -1
    # What was in flight at these (worker, life) will not be settled by anybody; those members have left.
    cdef int workers_died(self, set dead) except -1
    # All members are known, and so are the offsets that they have in flight.
    cdef int taken_over(self, set kept) except -1
    # A member may be given something again.
    cdef int has_room(self, Member m) except -1
    # A message was given back and may go out again at `due_ms` (0: at once).
    cdef int came_back(self, Member m, uint64_t offset, uint32_t attempts, uint32_t strikes, int64_t due_ms) except -1
    # A member that still is there cannot be given this message.
    cdef int unsuited(self, Member m, uint64_t offset, uint32_t attempts) except -1
    # What comes before anything is handed out.
    cdef int work_off(self) except -1
    # Give messages to whoever has room; True when the budget was used up.
    cdef bint hand_out(self) except -1
    # Take all that waits below `upto` out of the queue, for `reason` (None: purged); True when that is not finished.
    cdef bint clear(self, uint64_t upto, object reason) except -1
    # DropOldest: take out what is too much; True when that is not finished.
    cdef bint overflow(self) except -1
    # Move base over what nobody needs any more.
    cdef int settle_base(self) except -1
    # The log's next offset less this is how many messages wait.
    cdef uint64_t departed(self) except? 0
    cdef int tick(self) except -1
    cdef bint is_idle(self) except -1


@cython.final
cdef class Home:
    cdef Queue queue
    cdef readonly uint32_t generation
    cdef Backlog backlog
    cdef Mode mode
    cdef set awaited                  # (worker, epoch) of those that have not yet said what they have
    cdef set kept                     # offsets in flight at consumers that a new home has been told of

    cdef int join(self, Consumer consumer) except -1
    cdef int leave(self, Consumer consumer) except -1
    cdef int acked(self, Consumer consumer) except -1
    cdef int returned(self, Consumer consumer, uint64_t offset, uint32_t attempts, uint32_t strikes,
                      int64_t delay_ms) except -1
    cdef int room_again(self, Consumer consumer) except -1
    cdef int altered(self, object had) except -1   # the queue's options are others now than `had`
    cdef int on_letter(self, const letter *what) except -1
    cdef bint dispatch(self) except -1   # True when it wants to go on in the next turn
    cdef int seats_changed(self) except -1
    cdef int tick(self) except -1
    cdef bint is_idle(self) except -1    # nobody would miss it
    cdef int stop(self) except -1

    cdef int _take_over(self) except -1
    cdef int _has_told(self, uint32_t worker, uint32_t epoch) except -1
    cdef int _all_have_told(self) except -1
    cdef int _admit(self, Member m, bint fresh, uint64_t seen) except -1
    cdef int _leave(self, Member m) except -1
    cdef int _settled(self, Member m, uint32_t count) except -1
    cdef int _returned(self, Member m, uint64_t offset, uint32_t attempts, uint32_t strikes, int64_t delay_ms) except -1
    cdef int _join_letter(self, const letter *what) except -1
    cdef bint _take_out(self, int64_t now_ms) except -1
    cdef int _publish(self) except -1
    cdef int _set_timer(self, int64_t now_ms) except -1


cdef bint home_is_alive(Queue queue, ledger_home home) noexcept
# Who is home: this worker from now on, where nobody was or one that has died.
cdef ledger_home home_of(Queue queue) noexcept
cdef int introduce_consumers(Queue queue, ledger_home home) except -1
