# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint32_t, uint64_t
from vibemq.broker.deadletters cimport DeadLetters
from vibemq.broker.messages cimport Cursor, Probe, message_view
from vibemq.broker.queue cimport Consumer, Decider, Queue
from vibemq.storage.core cimport err, ledger, ledger_control, ledger_entry, ledger_word
from vibemq.storage.mail cimport letter


# A consumer as the home knows it, on whichever worker it is.
cdef class Member:
    cdef Consumer consumer            # None: on another worker
    cdef readonly uint32_t worker, life, consumer_id
    cdef int64_t credit
    cdef bint able                    # stands in the rotation
    cdef bint gone
    cdef uint64_t handed, received    # remote: how many were sent to it, and how many of those had come
    # Fan-out: each member has its own place.
    cdef uint64_t start               # it gets everything from here on
    cdef uint64_t cursor              # what it gets next
    cdef uint64_t skip_below          # settled messages below are no copies of its own
    cdef uint64_t reported, low
    cdef list again                   # heap of (due ms, offset, attempts, strikes): copies that came back

    cdef uint64_t lowest(self) noexcept


cdef class Home(Decider):
    cdef Queue queue
    cdef object make_dead_letter_queue
    cdef readonly uint32_t generation
    cdef ledger *raw
    cdef ledger_control *control
    cdef Cursor cursor
    cdef Probe probe
    cdef dict members                 # (worker, consumer id) -> Member
    cdef object able                  # deque of members that may be given something
    cdef int mode
    cdef bint is_fan_out, stopped
    cdef uint64_t next
    cdef int64_t ready                # entries below next that are ready
    cdef uint64_t ready_from[4]       # no ready entry of that priority lies below; [0] for all without priorities
    cdef int64_t in_flight
    cdef list delayed                 # heap of (due ms, offset)
    cdef list segments                # first offsets of the log's segments, rising
    cdef bint settling                # something was settled: base may move
    cdef bint fetching                # a helper thread reads ahead
    cdef object timer
    # Taking over.
    cdef set awaited                  # workers that have not yet said what they have
    cdef set kept                     # offsets that are in flight at other workers
    # Expiry.
    cdef object expiry
    cdef uint64_t expired             # every offset below has expired
    # Dead letters.
    cdef DeadLetters letters
    cdef bint making                  # its queue is being made
    cdef set burying                  # offsets whose copy is not kept yet
    cdef uint64_t purged, dropped_to
    cdef ledger_entry *entry          # of the message in hand
    cdef ledger_word word

    cdef _set_ready(self, uint64_t offset)
    cdef _take_over_fan_out(self, uint64_t base)
    cdef _set_timer(self, int64_t now_ms)
    cdef int _able_again(self, Member m) except -1
    cdef bint _can(self, Member m) noexcept
    cdef Member _turn_of(self)
    cdef err _pick(self, message_view *m) except *
    cdef err _pick_ready(self, message_view *m) except *
    cdef err _pick_new(self, message_view *m) except *
    cdef int _give(self, Member to, message_view *m, uint32_t attempts, uint32_t strikes) except -1
    cdef int _make_entry(self, message_view *m) except -2
    cdef uint64_t _segment_of(self, uint64_t offset)
    cdef bint _round_robin(self, int budget) except -1
    cdef bint _fan_out(self, int budget) except -1
    cdef int _again(self, Member to, int *budget) except -1
    cdef int _take_in(self, int budget) except -1
    cdef int _settle_base(self) except -1
    cdef int _ready(self, uint64_t offset, uint32_t priority) except -1
    cdef bint _bury(self, message_view *m, uint64_t offset, object reason, uint32_t attempts) except -1
    cdef int _pass(self, Member to, bint came_back) except -1
    cdef uint64_t _oldest(self)
    cdef bint _expire(self, int64_t now_ms) except -1
    cdef bint _purge(self) except -1
    cdef bint _overflow(self) except -1
    cdef bint _clear(self, uint64_t upto, object reason) except -1
    cdef int _skip_new(self, uint64_t upto) except -1
    cdef int _settle_one(self, uint64_t offset) except -1
    cdef bint _bury_at(self, uint64_t offset, object reason) except -1
    cdef int _delay(self, uint64_t offset, int64_t delay_ms) except -1
    cdef int _publish(self) except -1
    cdef err _failed_read(self, err e, message_view *m, object place) except *
