# SPDX-License-Identifier: Apache-2.0
"""What envelope.pyx gives to the rest of the door: records found, messages parsed, their parts taken out.

A hub_message's spans point into the record, or into scratch memory where a JSON text had escapes; either way they hold
until the next parse. Arguments, items and results stay raw: a slice of JSON text or of MessagePack that was checked.
writers.pxd writes what these read.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from vibemq.storage.core cimport boolean

cdef enum:
    DIALECT_V1 = 0
    DIALECT_EARLY = 1
    DIALECT_ALPHA2 = 2        # as early, but streams end with type 3

cdef enum:
    ENCODING_JSON = 0
    ENCODING_MESSAGEPACK = 1

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
    RECORD_DEPTH_MAX = 64
    ID_BYTES_MAX = 256
    TARGET_BYTES_MAX = 1024
    STREAM_IDS_MAX = 64
    VARINT_MAX = 0x7FFFFFFF
    VARINT_BYTES_MAX = 5
    RECORD_SEPARATOR = 0x1E   # ends a JSON record
    BOUNDS = 5                # of arguments that are found without a search, and one

# What the parse functions find. spec.FAULTS has the words.
cdef enum:
    FAULT_NONE = 0
    FAULT_JSON = 1
    FAULT_DEPTH = 2
    FAULT_NOT_OBJECT = 3
    FAULT_NOT_ARRAY = 4
    FAULT_LENGTH = 5
    FAULT_SHORT = 6
    FAULT_TYPE = 7
    FAULT_ID = 8
    FAULT_ID_LONG = 9
    FAULT_TARGET = 10
    FAULT_TARGET_LONG = 11
    FAULT_ARGUMENTS = 12
    FAULT_ITEM = 13
    FAULT_ERROR = 14
    FAULT_BOTH = 15
    FAULT_RESULT_KIND = 16
    FAULT_STREAM_IDS = 17
    FAULT_HEADERS = 18
    FAULT_SEQUENCE = 19
    FAULT_NONBLOCKING = 20
    FAULT_ALLOW_RECONNECT = 21


cdef struct span:
    const uint8_t *data
    uint32_t size


cdef struct hub_message:
    int type                  # 0: none that is known, to be ignored
    bint has_id
    span id                   # invocationId; of uploads the stream id
    span target
    span arguments            # raw: the whole array
    uint32_t argument_count
    span stream_ids           # raw likewise: an array of strings
    uint32_t stream_id_count
    bint nonblocking          # an Invocation that is never answered, whether or not it has an id
    boolean has_escapes       # of JSON, anywhere in the record
    bint has_payload
    span payload              # an item or a result, raw
    bint has_error
    span error
    bint allow_reconnect
    int64_t sequence
    const uint8_t *bounds[BOUNDS]  # of the first arguments, for argument(): where one begins is where the last one ended


# FAULT_NONE or the fault.  The record comes without its framing.
cdef int parse_json(const uint8_t *record, size_t size, int dialect, hub_message *out) except -1
cdef int parse_messagepack(const uint8_t *body, size_t size, int dialect, hub_message *out) except -1
cpdef str fault_text(int fault)

# A raw argument: 1, or 0 when there is none of this index.
cdef int argument(const hub_message *m, int encoding, uint32_t index, span *out) noexcept
# The id of an upload that an invocation opens, as text: 1, or 0 when there is none of this index.
cdef int stream_id(const hub_message *m, int encoding, uint32_t index, span *out) noexcept
# The text of a raw value: 1, or 0 when it is no string.  Holds until the next parse.
cdef int text_of(span raw, int encoding, span *out) noexcept

# The bytes of the MessagePack record that begins here, with its length; 0: that has not come as a whole.
cdef size_t framed_size(const uint8_t *data, size_t size) noexcept
# The bytes of the first record with its framing, 0 when more are needed; raises MalformedFrame or LimitExceeded.
cdef Py_ssize_t next_record(const uint8_t *data, size_t size, int encoding, size_t record_max, span *body) except -2


cdef inline int id_check(int dialect, bint needed, hub_message *out) noexcept nogil:
    """Of an id that is there. An empty one is none, except to early peers, which number nothing without it."""
    if out.id.size > ID_BYTES_MAX:
        return FAULT_ID_LONG
    out.has_id = out.id.size > 0 or dialect != DIALECT_V1
    return FAULT_NONE if out.has_id or not needed else FAULT_ID
