# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t, uint32_t
from vibemq.storage.core cimport amqp_value

cdef enum:
    TYPED_BYTES_MAX = 64       # what value_put writes at most of a value that is no text


# Is it text, whatever that means: string, symbol, binary?
cdef bint is_text(const amqp_value *v) noexcept
# Has it a text, but no type in MicroMsg2: true, false, nan, inf?
cdef bint is_untyped(const amqp_value *v) noexcept
# Is the text encoded as percent_encode does?  `escaped`: it is not its own decoded form.
cdef bint is_strict(const uint8_t *p, uint32_t size, bint *escaped) noexcept
# A value as it stands in a property: INT, UINT, DOUBLE, TIMESTAMP or STRING.  `room` is for its text decoded, as many
# bytes, and may be `text`; out.data is that text behind the type's letter.  True: value_put writes it like this.
cdef bint value_parse(const uint8_t *text, uint32_t size, uint8_t *room, amqp_value *out) noexcept
# The end of the value, with its letter and encoded; NULL: MicroMsg2 has no word for it.
cdef uint8_t *value_put(uint8_t *out, const amqp_value *v) noexcept
