# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from vibemq.storage.core cimport doorbell_board, ring, shared_word


cdef uint8_t *address_of(object memory) except NULL


cdef class Board:
    cdef doorbell_board *raw
    cdef readonly uint32_t index, workers
    cdef readonly int doorbell_fd       # this worker's own
    cdef int fds[64]
    cdef object memory

    cdef void mark(self, uint64_t workers, uint32_t slot) noexcept nogil


# What a letter says.  H: sent by a queue's home; C: sent by a worker that has consumers of it.
cpdef enum Letter:
    LETTER_HELLO = 1     # H: I am the home; tell me your consumers and what they have in flight
    LETTER_YOURS = 2     # H: you are the home from now on
    LETTER_HAND = 3      # H: message `offset` is your consumer's
    LETTER_JOIN = 4      # C: here is a consumer: `count` is its prefetch, `low` its `seen`, `received` whether it is fresh,
                         # `index` whether its prefetch is the queue's, `attempts` the key of its peer (host and user)
    LETTER_KEPT = 5      # C: it has message `offset` in flight
    LETTER_TOLD = 6      # C: that was all I have for this queue
    LETTER_LEAVE = 7     # C: the consumer is gone; what it had in flight was given back before
    LETTER_SETTLED = 8   # C: `count` messages are settled; nothing below `low` is in flight or waits
    LETTER_RETURNED = 9  # C: message `offset` was given back; ready after `count` ms, and `index`: it cannot have it


# One cell of a ring.  Every field means something only for the letters that say so above.
cdef struct letter:
    uint8_t kind, sender         # sender: the worker's index
    uint16_t index               # HAND: of the message in its entry
    uint32_t slot, tag           # the queue: its stream's slot, and which incarnation has it
    uint32_t generation          # of the home, as its sender knows it
    # Of the sender's seat and of the receiver's: what a dead worker wrote or was to read is not its successor's.
    uint32_t epoch, receiver_epoch
    uint32_t consumer            # of the worker that is not the home
    uint32_t attempts, strikes, count
    uint64_t offset, segment, place
    uint64_t low                 # SETTLED: see above; HAND: how many were handed to this consumer, this one included
    uint64_t received            # SETTLED: how many of those had come


# What limited users and virtual hosts use: a row of words for each of them.
cdef class Usage:
    cdef object memory
    cdef shared_word *words
    cdef size_t stride               # words of a row
    cdef readonly uint32_t rows, workers

    cdef shared_word *_row(self, uint32_t row) except NULL
    # Count messages that cost so much of the limited one's time in `row`, whose rate has the number `change`.  For how
    # many us it has to wait now.
    cdef uint64_t spend(self, uint32_t row, uint16_t change, uint64_t cost_us, uint64_t now_us) noexcept nogil


cdef class Mail:
    cdef Board board
    cdef object memory
    cdef uint8_t *rings              # workers x workers of them, by sender and receiver
    cdef size_t ring_stride
    cdef readonly uint32_t workers
    cdef uint32_t epoch              # of this worker's seat
    cdef letter *unsent[64]          # what did not fit into a ring, for each receiver
    cdef size_t unsent_head[64]
    cdef size_t unsent_size[64]
    cdef size_t unsent_capacity[64]
    cdef uint64_t dirty              # receivers to ring at the end of the turn

    cdef ring *_ring(self, uint32_t sender, uint32_t receiver) noexcept
    cdef int send(self, uint32_t receiver, const letter *what) except -1
    cdef bint take(self, uint32_t sender, letter *out) noexcept
    cdef int flush(self) except -1
