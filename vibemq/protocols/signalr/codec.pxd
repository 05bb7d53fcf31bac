# SPDX-License-Identifier: Apache-2.0
"""What codec.pyx gives to the rest of the door: records found, messages parsed, their parts taken out.

A hub_message's spans point into the record, or to texts that were decoded because JSON had escapes in them; either way
they hold until the next parse. Arguments, items and results stay raw: a slice of JSON text or of MessagePack that was
checked.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from vibemq.protocols.signalr.wire cimport span
from vibemq.storage.core cimport boolean

cdef enum:
    DIALECT_V1 = 0
    DIALECT_EARLY = 1
    DIALECT_ALPHA2 = 2        # as early, but streams end with type 3

cdef enum:
    TYPE_INVOCATION = 1
    TYPE_STREAM_ITEM = 2
    TYPE_COMPLETION = 3
    TYPE_STREAM_INVOCATION = 4   # on early connections too, where a preview1 client's 4 has a target
    TYPE_CANCEL_INVOCATION = 5
    TYPE_PING = 6
    TYPE_CLOSE = 7
    TYPE_ACK = 8
    TYPE_SEQUENCE = 9
    TYPE_STREAM_COMPLETION = 10  # the early dialect's 4 without a target; no number of the wire

cdef enum:
    RESULT_ERROR = 1
    RESULT_VOID = 2
    RESULT_VALUE = 3

cdef enum:
    ID_BYTES_MAX = 256
    TARGET_BYTES_MAX = 1024
    STREAM_IDS_MAX = 64
    VARINT_MAX = 0x7FFFFFFF
    FIRST = 2                 # arguments that are found with the others' count
    RECORD_SEPARATOR = 0x1E   # ends a JSON record


cdef struct hub_message:
    int type                  # 0: none that is known, to be ignored
    bint has_id
    span id                   # invocationId; of uploads the stream id
    span target
    span arguments            # raw: the whole array
    uint32_t argument_count
    span first[FIRST]         # of the arguments, raw
    span stream_ids           # raw likewise: an array of strings; empty: none
    bint nonblocking          # an Invocation that is never answered, whether or not it has an id
    boolean has_escapes       # of JSON, anywhere in the record
    bint has_payload
    span payload              # an item or a result, raw
    bint has_error
    span error
    bint allow_reconnect
    int64_t sequence


# The bytes of the first record with its framing, 0 when more are needed; raises MalformedFrame or LimitExceeded.
cdef Py_ssize_t next_record(const uint8_t *data, size_t size, int encoding, size_t record_max, span *body) except -2
# The bytes of the length before a MessagePack record: 0 when more are needed, VARINT_BYTES_MAX + 1 when it is none.
cdef size_t length_read(const uint8_t *data, size_t size, size_t *length) noexcept
# The record comes without its framing.  Raises MalformedFrame.
cdef int parse(const uint8_t *record, size_t size, int encoding, int dialect, hub_message *out) except -1

# The text of a raw value; False when it is no string.  Holds until the next parse.
cdef bint text_of(span raw, int encoding, span *out) except -1
# A number without a fraction or an exponent that fits into 63 bits.
cdef bint integer_of(span raw, int encoding, int64_t *out) noexcept
