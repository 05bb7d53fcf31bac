# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from vibemq.broker.consumer cimport Consumer, Decider
from vibemq.broker.messages cimport Messages, Probe, message_view
from vibemq.broker.stream cimport Stream, StreamTable, StreamUser
from vibemq.storage.core cimport fault, ledger, ledger_control, ledger_home
from vibemq.storage.shm cimport Board
from vibemq.storage.mail cimport Mail, letter

cdef enum:
    NOBODY_MAY_PUBLISH = -2  # no publisher has this generation

cdef enum:
    MODE_ROUND_ROBIN = 0
    MODE_FAN_OUT_WITH_ACK = 1
    MODE_FAN_OUT_WITHOUT_ACK = 2
    MODE_PRIORITY_BASED = 3
    UNSUITED = -1  # instead of a delay: this consumer cannot be given the message, others perhaps can


# What all queues of a worker share; QueueTable adds what is done with it.
cdef class QueueParts:
    cdef readonly StreamTable streams
    cdef readonly object metadata, helpers, timers, defaults, make_home
    cdef Board board
    cdef Mail mail
    cdef readonly Messages messages
    cdef readonly uint32_t worker
    cdef list dirty                   # queues to dispatch
    cdef list reports                 # consumers with something to tell a home on another worker
    cdef uint32_t next_consumer
    cdef readonly int64_t now_ms      # the loop's clock, taken once a turn
    cdef public bint ending           # this worker says goodbye to everybody
    # Of access.permissions.Accesses, for publishers to compare with what let them in; NOBODY_MAY_PUBLISH while an
    # alarm is in effect, so that each of them asks again.
    cdef public int64_t access_generation
    cdef public object reserve        # broker.disk.Reserve
    cdef public bint holds_copies     # dead letters have to wait: what is free is for those who empty the disk
    cdef public bint makes_room       # a disk alarm: give back what is settled, also of segments in use


cdef class Queue(StreamUser):
    cdef readonly object policy       # of now: a policy of the virtual host goes over the queue's own options
    cdef object record                # storage.metadata's, as the queue was when its own options last changed
    cdef readonly QueueParts table    # the broker.queue_table.QueueTable
    cdef readonly str name
    cdef ledger *raw
    cdef ledger_control *control
    cdef uint64_t key                 # of this incarnation, among all that this worker reads
    cdef uint32_t tag
    cdef int mode, overflow
    cdef readonly uint64_t max_messages
    cdef dict consumers               # consumer_id -> Consumer
    cdef set users                    # doors' publishers, and whoever else keeps it open
    cdef Decider home                 # None unless this worker is the home
    cdef uint32_t told                # generation of the home on another worker that knows our consumers
    cdef Probe probe
    cdef object ack_timer
    cdef list waiting_publishers
    cdef uint64_t refused             # messages in this turn, because it is full: the log is told at its end
    cdef list put_off                 # (offset, None or (consumer, attempts, strikes)): not in the ledger yet
    cdef bint dirty, closed
    cdef bint becoming                # the home
    cdef bint reading                 # told of news: it is the home, or publishers wait for room here
    cdef uint32_t worker, life

    cdef uint64_t waiting(self) noexcept
    cdef int settle(self, Consumer consumer, int32_t slot) except -1
    cdef int give_back(self, Consumer consumer, int32_t slot, bint strike, int64_t delay_ms) except -1
    cdef int refuse(self, Consumer consumer, int32_t slot) except -1
    cdef int room_again(self, Consumer consumer) except -1
    cdef int mark(self) except -1
    cdef int _settle(self, uint64_t offset) except -1
    cdef int _put_off(self, uint64_t offset, const fault *f, object returned) except -1
    cdef bint _is_fan_out(self) noexcept
    cdef bint _is_ours(self, uint64_t word) noexcept
    cdef ledger_home _home_now(self) noexcept
    cdef bint _is_alive(self, ledger_home home) noexcept
    cdef int _give_back_letter(self, Consumer consumer, const letter *what) except -1
    cdef int _give_back(self, Consumer consumer, uint64_t offset, uint32_t attempts, uint32_t strikes,
                        int64_t delay_ms) except -1
    cdef int check_home(self) except -1
    cdef int _tell_home(self, ledger_home home) except -1
    cdef int _send(self, uint32_t to, int kind, uint32_t generation, Consumer consumer, uint64_t offset) except -1
    cdef int _send_home(self, int kind, Consumer consumer, uint64_t offset) except -1
    cdef int _to_home(self, const letter *what) except -1
    cdef int _hand(self, const letter *what) except -1
    cdef int _hand_back(self, const letter *what) except -1
    cdef int _write_pending(self, Consumer consumer) except -1
    cdef int on_letter(self, const letter *what) except -1
    cdef bint dispatch(self) except -1
    cdef int report(self, Consumer consumer) except -1
