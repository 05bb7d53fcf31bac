# SPDX-License-Identifier: Apache-2.0
"""What clients use of the C core: numbers in bytes, checksums, and AMQP 1.0 messages as it reads them."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from *:
    """
    #include <stdbool.h>
    """
    ctypedef bint boolean "bool"


cdef extern from "base/bytes.h" nogil:
    uint16_t bytes_load16(const uint8_t *p)
    uint32_t bytes_load32(const uint8_t *p)
    uint64_t bytes_load64(const uint8_t *p)
    void bytes_store32(uint8_t *p, uint32_t value)
    void bytes_store64(uint8_t *p, uint64_t value)


cdef extern from "base/crc32.h" nogil:
    uint32_t crc32_update(uint32_t crc, const void *data, size_t size)


cdef extern from "log/chunk.h" nogil:
    cdef struct chunk_entry:
        const uint8_t *body
        uint32_t body_bytes, records, uncompressed_bytes
        uint8_t is_sub_batch, compression
    int chunk_entry_next(const uint8_t **at, const uint8_t *end, chunk_entry *out)


cdef extern from "message/amqp.h" nogil:
    ctypedef enum amqp_body:
        AMQP_BODY_NONE
        AMQP_BODY_DATA
        AMQP_BODY_VALUE
    cdef struct amqp_message:
        amqp_body body_kind
        const uint8_t *body
        const uint8_t *application_properties
        uint32_t body_size, application_properties_size
    int amqp_parse(const uint8_t *data, uint32_t size, amqp_message *out)
    cdef enum:
        AMQP_NULL
        AMQP_OTHER
        AMQP_TEXT_MAX_BYTES
    cdef struct amqp_value:
        int kind
        uint32_t bytes
        const uint8_t *data
    cdef struct amqp_pair:
        const uint8_t *key
        uint32_t key_bytes
        amqp_value value
    cdef struct amqp_pairs:
        pass
    void amqp_pairs_begin(amqp_pairs *it, const uint8_t *data, uint32_t size)
    boolean amqp_pairs_next(amqp_pairs *it, amqp_pair *out)
    boolean amqp_message_id(const amqp_message *m, amqp_value *out)
    size_t amqp_value_text(const amqp_value *v, char *out, size_t size)


cdef inline void message_body(const amqp_message *message, const uint8_t **body, uint32_t *body_size) noexcept nogil:
    """The body in bytes; unchanged where there are none, as of a list or a map.

    A null is an empty body: our native door writes it for a message without one.
    """
    cdef const uint8_t *at = message.body
    cdef uint32_t size = message.body_size
    if message.body_kind == AMQP_BODY_DATA:
        body[0], body_size[0] = at, size
    elif message.body_kind == AMQP_BODY_NONE:
        body_size[0] = 0
    elif message.body_kind != AMQP_BODY_VALUE:
        return
    elif size == 1 and at[0] == 0x40:
        body_size[0] = 0
    elif size >= 2 and (at[0] == 0xa0 or at[0] == 0xa1) and 2 + <uint32_t>at[1] == size:  # one byte says the length
        body[0], body_size[0] = at + 2, size - 2
    elif size >= 5 and (at[0] == 0xb0 or at[0] == 0xb1) and bytes_load32(at + 1) == size - 5:  # four bytes do
        body[0], body_size[0] = at + 5, size - 5
