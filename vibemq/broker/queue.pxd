# SPDX-License-Identifier: Apache-2.0
cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from vibemq.broker.client cimport Consumer
from vibemq.broker.messages cimport Probe
from vibemq.broker.stream cimport StreamUser

cdef class Queue(StreamUser)  # those below refer to it
from vibemq.broker.home cimport Home
from vibemq.broker.queue_table cimport QueueTable

from vibemq.storage.members cimport MemberTable
from vibemq.storage.core cimport fault, ledger, ledger_control
from vibemq.storage.shm cimport letter

cdef enum:
    NOBODY_MAY_PUBLISH = -2  # no publisher has this generation

cdef enum:
    MODE_ROUND_ROBIN = 0
    MODE_FAN_OUT_WITH_ACK = 1
    MODE_FAN_OUT_WITHOUT_ACK = 2
    MODE_PRIORITY_BASED = 3
    UNSUITED = -1  # instead of a delay: this consumer cannot be given the message, others perhaps can

# Failed deliveries ("strikes") as the ledger counts them, LEDGER_ATTEMPTS_MAX at most.
cdef enum:
    FAILURES_UNREADABLE = 1023  # the message cannot be read
    FAILURES_REJECTED = 1022    # a consumer rejected it for good
    FAILURES_MOST = 1021        # counting stops here
    UNLIMITED = 1022            # `failures_max` of a queue without a limit: UNREADABLE and REJECTED end an entry all the same


@cython.final
cdef class Queue(StreamUser):
    cdef readonly object options      # of now: a policy of the virtual host goes over the queue's own options
    cdef object record                # storage.metadata's, as the queue was when its own options last changed
    cdef readonly QueueTable table
    cdef readonly str name
    cdef ledger *raw
    cdef ledger_control *control
    cdef uint64_t key                 # of this incarnation, among all that this worker reads
    cdef uint32_t tag
    cdef int mode, overflow
    cdef readonly uint64_t max_messages
    cdef uint32_t failures_max        # number of failed deliveries that ends a message; UNLIMITED: none
    cdef dict consumers               # consumer_id -> Consumer
    cdef set users                    # doors' publishers, and whoever else keeps it open
    cdef Home home                    # None unless this worker is the home
    cdef uint32_t told                # generation of the home on another worker that knows our consumers
    cdef Probe probe
    cdef MemberTable members          # a fan-out's; None: not needed yet
    cdef object ack_timer
    cdef list waiting_publishers
    cdef uint64_t refused             # messages in this turn, because it is full: the log is told at its end
    cdef list put_off                 # (offset, None or (consumer, attempts, strikes)): not in the ledger yet
    cdef bint dirty, closed
    cdef bint becoming                # the home
    cdef bint reading                 # told of news: it is the home, or publishers wait for room here
    cdef uint32_t worker, life

    cdef uint64_t log_end(self) noexcept
    cdef uint64_t waiting(self) noexcept
    cdef int settle(self, Consumer consumer, int32_t slot) except -1
    # The consumer reports that the delivery failed.
    cdef int give_back(self, Consumer consumer, int32_t slot, bint strike, int64_t delay_ms) except -1
    cdef int refuse(self, Consumer consumer, int32_t slot) except -1
    cdef int room_again(self, Consumer consumer) except -1
    cdef int mark(self) except -1
    cdef int check_home(self) except -1
    cdef int move_home(self, uint32_t worker) except -1
    cdef letter letter_of(self, int kind, uint32_t generation, Consumer consumer) noexcept
    cdef int on_letter(self, const letter *what) except -1
    cdef bint dispatch(self) except -1
    cdef int count_settled(self, Consumer consumer) except -1
    cdef int report(self, Consumer consumer) except -1
    cdef int give_back_message(self, Consumer consumer, uint64_t offset, uint32_t attempts, uint32_t strikes,
                               int64_t delay_ms) except -1

    cdef uint32_t _add_member(self, Consumer consumer) except? 0
    cdef int _use(self, object options) except -1
    cdef int _heard(self, Consumer consumer) except -1
    cdef int _return(self, Consumer consumer, int32_t slot, bint failed, int64_t delay_ms) except -1
    cdef int _return_pending(self, Consumer consumer) except -1
    cdef int _settle(self, uint64_t offset) except -1
    cdef int _put_off(self, uint64_t offset, const fault *f, object returned) except -1
    cdef bint _is_fan_out(self) noexcept
    cdef bint _is_ours(self, uint64_t word) noexcept
    cdef int _send_home(self, const letter *what) except -1
    cdef int _hand(self, const letter *what) except -1
    cdef int _hand_back(self, const letter *what) except -1
