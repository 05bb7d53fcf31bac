# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from vibemq.broker.messages cimport message_view
from vibemq.broker.stream cimport Stream, StreamUser


cdef class DeadLetters(StreamUser):
    cdef object queue                 # broker.queue.Queue
    cdef object owner                 # told: letters_kept(tokens, ok)
    cdef readonly str name
    cdef list tokens                  # of this turn's batch
    cdef readonly bint closed
    cdef object timer                 # of one that is retired

    cdef int _look_if_done(self) except -1
    cdef int add(self, message_view *m, object token, bytes queue, bytes reason, uint32_t attempts) except -1
