# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint32_t, uint64_t
from vibemq.broker.deadletters cimport DeadLetters
from vibemq.broker.messages cimport Cursor, Probe, message_view
from vibemq.broker.consumer cimport Decider
from vibemq.broker.queue cimport Queue
from vibemq.storage.core cimport err, ledger, ledger_control, ledger_entry, ledger_word


cdef enum:
    RETRY_MS = 1000          # after the disk refused something: it may have room again
    PRIORITY_NORMAL = 1


cdef class Backlog(Decider):
    cdef Queue queue
    cdef object make_dead_letter_queue
    cdef ledger *raw
    cdef ledger_control *control
    cdef Cursor cursor                # over messages that have no entry yet
    cdef Probe probe                  # at messages that have one
    cdef bint stopped
    cdef bint entries_are_owned       # an entry's state is that of its one owner; a fan-out's copies have many
    cdef uint64_t next
    cdef int64_t ready                # entries below next that are ready
    cdef uint64_t ready_from[4]       # no ready entry of that level lies below
    cdef list delayed                 # heap of (due ms, offset)
    cdef list segments                # first offsets of the log's segments, rising
    cdef bint settling                # something was settled: base may move
    cdef bint unsynced                # something was settled since the ledger was synced
    cdef int64_t synced_ms
    cdef bint moved                   # something was handed out since the last tick
    cdef bint fetching                # a helper thread reads ahead
    cdef uint64_t unreadable_end      # of the last new messages that cannot be read
    cdef object timer
    cdef object expiry
    cdef uint64_t heard               # the log's next offset when news came last
    cdef uint64_t arrived             # the log's next offset when it was last asked whether too much waits
    cdef uint64_t expired             # every offset below has expired
    cdef bint making_room             # a helper drops what is settled: on a disk that hangs, for long
    cdef DeadLetters letters
    cdef bint making                  # its queue is being made
    cdef list graves                  # heap of (due ms, offset, reason, attempts): dead, and not on their way yet
    cdef dict burying                 # offset -> (reason, attempts) of those whose copy is not kept yet
    cdef dict dead                    # offsets of both, with the reason
    cdef ledger_entry *entry          # of the message in hand
    cdef ledger_word word

    cdef int passed(self, uint64_t upto) except -1
    cdef uint32_t level_of(self, uint64_t word) noexcept
    cdef int _ready_from_base(self) except -1
    cdef int _ready(self, uint64_t offset, uint32_t priority) except -1
    cdef _set_ready(self, uint64_t offset)
    cdef int _settle_one(self, uint64_t offset) except -1
    cdef int settle_dead(self, uint64_t offset, object reason) except -1
    cdef int _wake_delayed(self, int64_t now_ms) except -1
    cdef int _wake_delayed_below(self, uint64_t upto) except -1
    cdef err _pick_new(self, message_view *m) except *
    cdef err _failed_read(self, err e, message_view *m, object place) except *
    cdef int _make_entry(self, message_view *m) except -2
    cdef uint64_t _segment_of(self, uint64_t offset)
    cdef uint64_t _oldest(self)
    cdef bint _expire(self, int64_t now_ms) except -1
    cdef bint _purge(self) except -1
    cdef bint overflows(self) noexcept
    cdef bint _overflow(self) except -1
    cdef bint _clear(self, uint64_t upto, object reason) except -1
    cdef bint _skip_new(self, uint64_t upto, object reason) except -1
    cdef int _bury(self, uint64_t offset, object reason, uint32_t attempts) except -1
    cdef bint _bury_due(self, int64_t now_ms) except -1
    cdef uint64_t floor(self) except? 0
    cdef int _settle_base(self) except -1
