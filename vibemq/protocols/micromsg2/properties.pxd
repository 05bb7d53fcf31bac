# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t, uint32_t
from vibemq.broker.messages cimport message_view
from vibemq.storage.core cimport amqp_value

cdef enum:
    PROPERTIES_BYTES_MAX = 65535   # spec has the reason
    TOO_LARGE = 0xFFFFFFFF         # size of a message's properties that no frame can hold


# The entry of one message (four bytes of length, then AMQP), in the worker's scratch memory; its size.  `content_type`
# is that of the sender's serializer, NULL where it has none, and `dotnet_type` is None where it gave none.  Whatever
# bytes a peer sends are stored; only memory can run out.
cdef size_t message_write(const uint8_t *properties, uint32_t properties_size, const uint8_t *payload,
                          uint32_t payload_size, const char *content_type, uint32_t content_type_size,
                          bytes dotnet_type, uint8_t **out) except 0

# A message's properties as they go out, in the message itself or in memory that lives until the next call.  *size is
# 0 where there are none and TOO_LARGE where they need more than a frame can hold.  `content_type` is that of the
# receiver's serializer (NULL: none).  `single`: one property at most, in few bytes, for peers that read no more.
cdef const uint8_t *properties_of(const message_view *m, const char *content_type, uint32_t content_type_size,
                                  bint without_dotnet_type, bint single, uint32_t *size) noexcept

# The dotnet-type of a message in place; size 0: it has none.
cdef const uint8_t *dotnet_type_of(const message_view *m, uint32_t *size) noexcept

# ---- for filters ----

# A message's id as a text, which may stand in `text` (AMQP_TEXT_MAX_BYTES); False: it has none.
cdef bint id_of(const message_view *m, char *text, amqp_value *out) noexcept
# False: it has none.
cdef bint content_type_of(const message_view *m, amqp_value *out) noexcept
cdef bint is_message_id(const uint8_t *key, uint32_t size) noexcept
cdef bint is_content_type(const uint8_t *key, uint32_t size) noexcept
# Bytes as if they were a stored message.
cdef void view_of(bytes data, message_view *out) noexcept
