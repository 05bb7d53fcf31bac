# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint32_t, uint64_t
from vibemq.broker.messages cimport message_view
from vibemq.storage.core cimport amqp_value

cdef struct condition


# Immutable; made by compile_filter.
cdef class Filter:
    cdef condition *conditions     # with the texts that they point to, one block of memory
    cdef readonly uint32_t count
    cdef readonly str text
    # Which conditions there are, which a message without their property meets, which are on its id and which on its
    # content type: a bit for each.
    cdef uint64_t all, true_without, on_id, on_content_type

    cdef bint matches(self, const message_view *m) noexcept
    cdef bint all_hold(self, uint64_t which, const amqp_value *v) noexcept
