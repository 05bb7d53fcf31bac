# SPDX-License-Identifier: Apache-2.0
"""What payload.pxd declares and is not inline."""

from vibemq.grow cimport grow
from vibemq.storage cimport core
from vibemq.storage.core cimport OK, writer_bytes

cdef uint8_t *scratch = NULL
cdef size_t scratch_size = 0


cdef uint8_t *scratch_room(size_t size) except NULL:
    grow(&scratch, &scratch_size, size, 1)
    return scratch


cdef tuple as_json(const uint8_t *payload, uint32_t size):
    cdef writer_bytes w
    cdef bytearray out = bytearray(core.JSON_STRING_SIZE_MAX(size))
    w = core.bytes_writer(<uint8_t *> <char *> out, len(out))
    if core.json_string_write(&w, payload, size) == OK:
        return bytes(out[:w.at - <uint8_t *> <char *> out]), False
    out = bytearray(core.JSON_BASE64_SIZE(size))
    w = core.bytes_writer(<uint8_t *> <char *> out, len(out))
    core.json_base64_write(&w, payload, size)
    return bytes(out[:w.at - <uint8_t *> <char *> out]), True
