# SPDX-License-Identifier: Apache-2.0
"""A Publish as the AMQP 1.0 message that is stored: id, headers as application properties, payload as data."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from vibemq.broker.messages cimport scratch_room
from vibemq.protocols.native.wire cimport HEADERS_MAX, header_find, header_next, is_resend, native_frame
from vibemq.storage cimport core
from vibemq.storage.core cimport amqp_map, amqp_properties, bytes_store32, writer_bytes

cdef enum:
    DEDUP_CLIENT_BYTES = 16
    DEDUP_ID_BYTES = 32


cdef inline bint dedup_number(const uint8_t *id, uint32_t id_size, uint64_t *number) noexcept:
    """The number in an id of a client that has its duplicates dropped; False where the id is another kind."""
    cdef uint32_t i
    number[0] = 0
    if id_size != DEDUP_ID_BYTES:
        return False
    for i in range(<uint32_t> DEDUP_CLIENT_BYTES, <uint32_t> DEDUP_ID_BYTES):
        if c"0" <= id[i] <= c"9":
            number[0] = number[0] << 4 | <uint64_t> (id[i] - c"0")
        elif c"a" <= id[i] <= c"f":
            number[0] = number[0] << 4 | <uint64_t> (id[i] - c"a" + 10)
        else:
            return False
    return True


cdef inline int write_headers(writer_bytes *w, const native_frame *frame) except -1:
    """Each header once, with its last value: a map in which a key is twice is no AMQP."""
    cdef amqp_map map
    cdef const uint8_t *at = frame.headers
    cdef const uint8_t *end = frame.headers + frame.headers_size
    cdef const uint8_t *key
    cdef const uint8_t *value
    cdef const uint8_t *later
    cdef uint32_t key_size = 0, value_size = 0, later_size = 0
    cdef bytes name, text
    # Of thousands, comparing each with each would take seconds.
    cdef dict last = {} if frame.header_count > HEADERS_MAX else None
    core.amqp_map_begin(w, &map)
    while header_next(&at, end, &key, &key_size, &value, &value_size):
        if is_resend(key, key_size):
            continue
        if last is not None:
            last[(<char *> key)[:key_size]] = (<char *> value)[:value_size]
        elif not header_find(at, end, key, key_size, &later, &later_size):
            core.amqp_map_add(w, &map, key, key_size, value, value_size)
    if last is not None:
        for name, text in last.items():
            core.amqp_map_add(w, &map, <const uint8_t *> <char *> name, <uint32_t> len(name),
                              <const uint8_t *> <char *> text, <uint32_t> len(text))
    core.amqp_map_end(w, &map)
    return 0


cdef inline size_t message_write(const native_frame *frame, uint8_t **out) except 0:
    """The entry of a Publish, with its four bytes of length, in the scratch memory; its size."""
    cdef writer_bytes w
    cdef amqp_properties properties
    cdef size_t room = 4 + core.amqp_size_max(frame.header_count, <uint64_t> frame.id_size + frame.headers_size
                                              + frame.payload_size)
    cdef uint8_t *data = scratch_room(room)
    w = core.bytes_writer(data + 4, room - 4)
    memset(&properties, 0, sizeof(properties))
    properties.id, properties.id_bytes = frame.id, frame.id_size
    if frame.payload_size:
        properties.content_type, properties.content_type_bytes = core.AMQP_JSON, core.AMQP_JSON_BYTES
    core.amqp_write_properties(&w, &properties)
    if frame.header_count:
        write_headers(&w, frame)
    if frame.payload_size:
        core.amqp_write_data(&w, frame.payload, frame.payload_size)
    else:
        core.amqp_write_null(&w)
    if w.failed:
        raise AssertionError("amqp_size_max was too small")
    bytes_store32(data, <uint32_t> (w.at - data - 4))
    out[0] = data
    return w.at - data
