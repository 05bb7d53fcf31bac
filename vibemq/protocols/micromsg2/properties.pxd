# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t, uint32_t
from vibemq.broker.messages cimport message_view
from vibemq.storage.core cimport amqp_pair, amqp_value

cdef enum:
    TOO_LARGE = 0xFFFFFFFF         # size of a message's properties that no frame can hold

cdef size_t message_write(const uint8_t *properties, uint32_t properties_size, const uint8_t *payload,
                          uint32_t payload_size, const char *content_type, uint32_t content_type_size,
                          bytes dotnet_type, uint8_t **out) except 0
cdef const uint8_t *properties_of(const message_view *m, const char *content_type, uint32_t content_type_size,
                                  bint without_dotnet_type, bint single, uint32_t *size) noexcept
cdef bint dotnet_type_of(const message_view *m, amqp_pair *out) noexcept

# A message's own id and content type, which are no application properties; False: it has none, or no frame can hold it.
cdef bytes MESSAGE_ID, CONTENT_TYPE
cdef bint is_own(const uint8_t *key, uint32_t size) noexcept
cdef bint id_of(const message_view *m, char *text, amqp_value *out) noexcept
cdef bint content_type_of(const message_view *m, amqp_value *out) noexcept

cdef void view_of(bytes data, message_view *out) noexcept
