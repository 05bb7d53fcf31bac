# SPDX-License-Identifier: Apache-2.0
cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

cdef class Home  # those below refer to it
from vibemq.broker.backlog cimport Backlog, Member
from vibemq.broker.client cimport Consumer
from vibemq.broker.queue cimport Queue

from vibemq.storage.core cimport ledger_home
from vibemq.storage.shm cimport letter

@cython.final
cdef class Home:
    cdef Queue queue
    cdef readonly uint32_t generation
    cdef Backlog backlog              # Rotation or FanOut
    cdef set awaited                  # (worker, epoch) of those that have not yet said what they have
    cdef bint unsynced                # something was settled since the ledger was synced
    cdef int64_t synced_ms
    cdef bint making_room             # a helper drops what is settled: on a disk that hangs, for long
    cdef uint64_t heard               # the log's next offset when news came last
    cdef uint64_t purge_seen          # the order of a purge that the last turn found
    cdef set kept                     # offsets in flight at consumers that a new home has been told of

    cdef int join(self, Consumer consumer) except -1
    cdef int leave(self, Consumer consumer, bint vanished) except -1   # `vanished`: its connection was lost
    cdef int acked(self, Consumer consumer) except -1
    cdef int returned(self, Consumer consumer, uint64_t offset, uint32_t attempts, uint32_t strikes,
                      int64_t delay_ms) except -1
    cdef int room_again(self, Consumer consumer) except -1
    cdef int narrowed(self, Consumer consumer) except -1  # `overdue` has changed: the window is narrowed or widened
    cdef int altered(self, object had) except -1   # the queue's options are others now than `had`
    cdef int on_letter(self, const letter *what) except -1
    cdef int news(self) except -1        # of the log
    cdef bint dispatch(self) except -1   # True when it wants to go on in the next turn
    cdef int seats_changed(self) except -1
    cdef int tick(self) except -1
    cdef bint is_idle(self) except -1    # nobody would miss it
    cdef int stop(self) except -1

    cdef int _admit(self, const letter *what, Consumer consumer) except -1
    cdef int _leave(self, Member m) except -1
    cdef int _keep(self, Member m, uint64_t offset) except -1
    cdef int _narrow(self, Member m, bint overdue) except -1
    cdef int _settled(self, Member m, uint32_t count) except -1
    cdef int _returned(self, Member m, uint64_t offset, uint32_t attempts, uint32_t strikes, int64_t delay_ms) except -1
    cdef bint _purge_is_new(self) noexcept
    cdef bint _take_out(self, int64_t now_ms) except -1
    cdef int _wake_below(self, uint64_t upto) except -1
    cdef int _publish(self) except -1
    cdef int _set_timer(self, int64_t now_ms) except -1


cdef bint home_is_alive(Queue queue, ledger_home home) noexcept
# Who is home: this worker from now on, where nobody was or one that has died.
cdef ledger_home home_of(Queue queue) noexcept
cdef int introduce_consumers(Queue queue, ledger_home home) except -1
# The page's `departed` as it is now.  The home stores it only at the end of its turn, and learns by letter of messages that
# other workers gave back.
cdef uint64_t departed_now(Queue queue) except? 0
