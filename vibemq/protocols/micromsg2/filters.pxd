# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint32_t, uint64_t
from vibemq.broker.messages cimport message_view
from vibemq.storage.core cimport amqp_pair

cdef struct condition


# Immutable; made by compile_filter.
cdef class Filter:
    cdef condition *conditions     # with the texts that they point to, one block of memory
    cdef readonly uint32_t count
    cdef readonly str text
    cdef uint64_t all, true_without   # a bit for each condition, and each that a message without its property meets
    cdef bint is_on_own               # some are on the message's own id or content type

    cdef bint matches(self, const message_view *m) noexcept
    cdef bint allows(self, bytes name, amqp_pair *pair, uint64_t *left) noexcept
