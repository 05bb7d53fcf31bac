# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from vibemq.broker.messages cimport message_view
from vibemq.storage.core cimport amqp_pair

cdef enum:
    TOO_LARGE = 0xFFFFFFFF         # size of a message's properties that no frame can hold

cdef size_t message_write(const uint8_t *properties, uint32_t properties_size, const uint8_t *payload,
                          uint32_t payload_size, const char *content_type, uint32_t content_type_size,
                          bytes dotnet_type, uint8_t **out) except 0
cdef const uint8_t *properties_of(const message_view *m, const char *content_type, uint32_t content_type_size,
                                  bint without_dotnet_type, bint single, uint32_t *size) noexcept
cdef bint dotnet_type_of(const message_view *m, amqp_pair *out) noexcept

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
