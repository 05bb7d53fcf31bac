# SPDX-License-Identifier: Apache-2.0
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef class Backlog  # those below refer to it
from vibemq.broker.client cimport Consumer
from vibemq.broker.publisher cimport Burials
from vibemq.broker.queue cimport Queue

from vibemq.broker.messages cimport message_view
from vibemq.broker.reading cimport Reading
from vibemq.storage.core cimport err, fault, ledger, ledger_control, ledger_entry, ledger_word


cdef enum:
    RETRY_MS = 1000          # after the disk refused something: it may have room again
    PRIORITY_NORMAL = 1
    LEVELS = 4               # of priority


cdef enum:
    DEAD_MAX = 65_536        # in transfer to the dead-letter queue: some 300 bytes each, and a bound while it is stuck
    BUDGET = 4096            # messages of one queue in one turn: about two milliseconds with everything around them

# What Backlog.work_off() returns.
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
    cdef int64_t window               # its prefetch, or less while it is overdue (Consumer.overdue)
    cdef bint overdue
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
    cdef uint32_t record              # its number in the member table; 0: it has none
    cdef str subscriber               # the name from its client; "": none
    cdef int64_t ttl_ms               # time to live of the name without a connection; 0: the grace of unnamed members
    cdef bint vanished, died          # its connection was lost; its whole worker ended
    cdef object copies                # deque of ranges: own copies of a vanished member, also of messages settled by others
    cdef list debts                   # those ranges, as this member took them over
    cdef list taken                   # parts of them in [start, skip_below): they are not delivered a second time
    cdef list passed_on               # a vanished member's: ranges that other members have got too
    cdef uint64_t alone_from, alone_end  # in this range no other member got a copy of its messages
    cdef bint was_alone               # a vanished member's: no other member has got any of its copies since
    cdef uint64_t tried_below         # copies below were delivered before
    cdef uint64_t lapsed_count        # copies of it that have left the queue
    cdef int64_t due_ms               # a vanished member's: its copies are kept until then
    cdef set holds                    # while a home takes over: offsets that it has in flight
    cdef int64_t came_ms              # when it subscribed, or when it vanished
    cdef bint early                   # it subscribed before a new home knew the vanished members
    cdef object restored              # likewise: its MemberRecord
    cdef list again                   # heap of (due ms, offset, attempts, strikes): copies that came back


# What waits, and who is given what: Rotation or FanOut.
cdef class Backlog:
    cdef Queue queue
    cdef ledger *raw
    cdef ledger_control *control
    cdef readonly uint32_t generation # of the home
    cdef dict members                 # (worker, consumer id) -> Member
    cdef int64_t in_flight
    cdef Reading reading
    cdef bint stopped
    cdef bint is_fan_out              # an entry has copies with many owners; else its state is that of its one owner
    cdef bint by_priority
    cdef uint64_t next
    cdef int64_t ready                # entries below next that are ready
    cdef uint64_t ready_from_level[LEVELS]  # no ready entry of that level lies below
    cdef list delayed                 # heap of (due ms, offset)
    cdef bint settling                # something was settled: base may move
    cdef bint moved                   # something was handed out since the last tick
    cdef uint64_t unreadable_end      # of the last new messages that cannot be read
    cdef object timer
    cdef object expiry
    cdef uint64_t arrived             # the log's next offset when it was last asked whether too much waits
    cdef uint64_t expired             # every offset below has expired
    cdef Burials burials              # the way of `graves` into the dead-letter queue
    cdef list graves                  # heap of (due ms, offset, reason, attempts): dead, and not on their way yet
    cdef dict burying                 # offset -> (reason, attempts) of those whose copy is not kept yet
    cdef dict dead                    # offsets of both, with the reason
    cdef dict failing                 # offset -> failed deliveries, of messages in a queue without a limit
    cdef ledger_entry *entry          # of the message in hand
    cdef ledger_word word

    cdef int altered(self, object had) except -1
    cdef int stop(self) except -1

    cdef int make_ready(self, uint64_t offset, ledger_entry *entry) except -1
    cdef int ready_from_base(self) except -1
    cdef int add_ready(self, uint64_t offset, ledger_word word) except -1
    cdef int settle(self, uint64_t offset) except -1
    cdef int wake_delayed(self, int64_t now_ms) except -1

    cdef bint take_up(self, uint64_t offset, fault *f) noexcept
    cdef err look(self, uint64_t offset, message_view *m) except *
    cdef err pick_new(self, message_view *m) except *

    cdef uint64_t oldest(self)
    cdef bint overflows(self) noexcept
    cdef int bury(self, uint64_t offset, object reason, uint32_t attempts) except -1
    cdef int bury_exhausted(self, uint64_t offset, uint32_t attempts, uint32_t strikes) except -1
    cdef bint bury_due(self, int64_t now_ms) except -1

    cdef int _make_entry(self, message_view *m) except -2
    cdef bint _skip_new(self, uint64_t upto, object reason) except -1

    cdef int failed_again(self, uint64_t offset, uint32_t strikes) except -1
    cdef int _tell_failing(self) except -1

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
    # Move base over what is settled below `floor`, and drop what the log no longer needs.
    cdef int settle_base(self, uint64_t floor) except -1
    # The log's next offset less this is how many messages wait.
    cdef uint64_t departed(self) except? 0
    # Entries from here on may still be needed, settled or not.
    cdef uint64_t floor(self) except? 0
    cdef int tick(self) except -1     # twice a second
    cdef bint is_idle(self) except -1
