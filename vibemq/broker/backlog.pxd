# SPDX-License-Identifier: Apache-2.0
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef class Backlog  # those below refer to it
from vibemq.broker.deadletters cimport DeadLetters
from vibemq.broker.queue cimport Queue

from vibemq.broker.messages cimport Cursor, Place, Probe, message_view
from vibemq.storage.core cimport err, fault, ledger, ledger_control, ledger_entry, ledger_word


cdef enum:
    RETRY_MS = 1000          # after the disk refused something: it may have room again
    PRIORITY_NORMAL = 1
    LEVELS = 4               # of priority


@cython.final
cdef class Backlog:
    cdef Queue queue
    cdef object make_dead_letter_queue
    cdef ledger *raw
    cdef ledger_control *control
    cdef dict members                 # the home's
    cdef Cursor cursor                # over messages that have no entry yet
    cdef Probe probe                  # at messages that have one
    cdef bint stopped
    cdef bint is_fan_out              # an entry has copies with many owners; else its state is that of its one owner
    cdef bint by_priority
    cdef uint64_t next
    cdef int64_t ready                # entries below next that are ready
    cdef uint64_t ready_from_level[LEVELS]  # no ready entry of that level lies below
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

    cdef int altered(self, object had) except -1
    cdef int news(self) except -1
    cdef int tick(self) except -1     # twice a second
    cdef bint is_idle(self) except -1
    cdef int stop(self) except -1

    cdef int level_of(self, uint64_t word) noexcept
    cdef int ready_from_base(self) except -1
    cdef int add_ready(self, uint64_t offset, uint32_t level) except -1
    cdef int settle(self, uint64_t offset) except -1
    cdef int wake_delayed(self, int64_t now_ms) except -1
    cdef int wake_delayed_below(self, uint64_t upto) except -1
    cdef uint64_t departed(self) noexcept

    cdef bint take_up(self, uint64_t offset, fault *f) noexcept
    cdef err look(self, uint64_t offset, message_view *m) except *
    cdef err pick_new(self, message_view *m) except *

    cdef uint64_t oldest(self)
    cdef int expire(self, int64_t now_ms) except -1
    cdef bint overflows(self) noexcept
    cdef bint drop_oldest(self, uint64_t floor) except -1
    cdef bint clear(self, uint64_t upto, object reason, uint64_t floor) except -1
    cdef int bury(self, uint64_t offset, object reason, uint32_t attempts) except -1
    cdef int bury_exhausted(self, uint64_t offset, uint32_t attempts, uint32_t strikes) except -1
    cdef bint bury_due(self, int64_t now_ms) except -1
    cdef int settle_base(self, uint64_t floor) except -1

    cdef int _read_ahead(self, Place place) except -1
    cdef int _make_entry(self, message_view *m) except -2
    cdef uint64_t _segment_of(self, uint64_t offset)
    cdef bint _skip_new(self, uint64_t upto, object reason, uint64_t floor) except -1
