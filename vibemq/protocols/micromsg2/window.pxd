# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


# What becomes of a message that the peer sends.
cpdef enum Arrival:
    TAKEN = 0
    DUPLICATE = 1  # its number was received within the window: it is acknowledged again and dropped
    OVERRUN = 2    # the peer has a full window unacknowledged and sends on


# A delivery that waits for its acknowledgement.
cdef struct sent_message:
    int32_t consumer
    int32_t slot                   # NO_SLOT: a fragment before the last
    uint32_t slot_sequence


# A message of the peer, from its arrival until its number may come again.
cdef struct received_message:
    uint16_t number
    uint8_t state


# Invariant: `last` is the number of the newest of the `count` that are remembered, and they are numbered without gaps.
cdef class SendWindow:
    cdef readonly uint32_t size    # of the window; 0: no acknowledgements, nothing is remembered, there is always room
    cdef readonly uint32_t count   # sent and not acknowledged
    cdef readonly uint16_t last    # the number given last; 0: none yet
    cdef sent_message *ring        # the n-th message lies at n modulo capacity
    cdef uint32_t capacity
    cdef uint64_t first            # the oldest in the ring, as a count of all that was pushed

    cpdef bint has_room(self) noexcept
    # The number of the next message.  With acknowledgements the message must then be pushed.
    cpdef uint16_t next(self) noexcept
    cpdef int push(self, int32_t consumer, int32_t slot, uint32_t slot_sequence) except -1
    # How many of the oldest an acknowledgement of `number` settles; 0: none, it is late, a duplicate or was never sent.
    cpdef uint32_t covered(self, int64_t number) noexcept
    # The oldest message, which is there while `count` is not 0; it is gone with pop().
    cdef sent_message *oldest(self) noexcept
    cpdef void pop(self) noexcept


# Messages are counted from 1 by `index`.  Invariant: forgotten <= answered <= decided <= index.
cdef class ReceiveWindow:
    cdef readonly uint32_t size            # of the window; 0: no acknowledgements, every message is taken
    cdef readonly bint lenient             # for a peer whose window is its own business: only WINDOW_MAX is an overrun
    cdef readonly uint64_t index           # of the message taken last
    cdef readonly uint16_t last            # its number
    cdef received_message *ring            # the n-th message lies at n modulo capacity
    cdef uint32_t capacity
    cdef uint64_t *seen                    # a bit for each number that is remembered; NULL before the first message
    cdef uint64_t forgotten                # up to this index numbers are no longer remembered
    cdef uint64_t answered                 # up to this index the peer waits for nothing
    cdef uint64_t decided                  # up to this index everything is accepted or refused
    cdef uint64_t due                      # the message whose number the next acknowledgement bears; 0: none
    cdef uint64_t acknowledged             # that of the last one; 0: none yet
    cdef int64_t acknowledged_number
    cdef bint waits                        # the last duplicate does, for an acknowledgement that is not due yet

    cpdef int take(self, uint16_t number) except -1
    # It is accepted and durable.
    cpdef void accepted(self, uint64_t index) noexcept
    # It was refused: its number is never acknowledged by itself, only by the number of a later one that was accepted.
    cpdef void refused(self, uint64_t index) noexcept
    # The number up to which everything is decided, which from now on is acknowledged; -1: nothing new.
    cpdef int64_t acknowledge(self) noexcept
    # The answer to the duplicate that came last: the number that was acknowledged last; -1: it lies behind that one.
    cpdef int64_t again(self) noexcept
    # The number of a message that is not answered.
    cpdef uint16_t number_of(self, uint64_t index) noexcept
    cpdef bint is_full(self) noexcept
    cpdef bint is_decided(self) noexcept

    cdef bint _is_behind(self, uint16_t number) noexcept
    cdef int _remember(self, uint16_t number) except -1
    cdef void _decide(self, uint64_t index, uint8_t state) noexcept
