# SPDX-License-Identifier: Apache-2.0
"""WebSocket frames (RFC 6455) of a server: masked ones are read in place, unmasked ones are written.

websocket.pyx says how; what other modules need is here.  Writers trust their caller for the room they write to.
"""

cimport cython
from libc.stdint cimport uint8_t

from vibemq.storage.core cimport bytes_store16, bytes_store64, utf8_is_valid

cdef enum:
    WS_CONTINUATION = 0
    WS_TEXT = 1
    WS_BINARY = 2
    WS_CLOSE = 8
    WS_PING = 9
    WS_PONG = 10

cdef enum:
    WS_HEADER_BYTES_MAX = 10        # of a frame that we write: without a mask
    WS_CONTROL_BYTES_MAX = 125      # payload of a control frame: its length has one byte

# What to close with. The RFC names more; these are what the door needs.
cdef enum:
    CLOSE_NORMAL = 1000
    CLOSE_PROTOCOL_ERROR = 1002
    CLOSE_NONE = 1005               # stands for a close frame without a code; never on the wire
    CLOSE_NOT_UTF8 = 1007
    CLOSE_TOO_BIG = 1009
    CLOSE_INTERNAL_ERROR = 1011

cdef enum:
    EVENT_NEEDS_MORE = 0
    EVENT_MESSAGE
    EVENT_PING
    EVENT_PONG
    EVENT_CLOSE
    EVENT_FAULT


cdef struct ws_event:
    int kind
    int opcode            # of a message: WS_TEXT or WS_BINARY
    uint8_t *payload      # unmasked; in the bytes that were given, or the reader's own; until the next call
    size_t size           # of a close frame: of the reason alone
    size_t used           # bytes that were given and are done with, with every kind of event
    size_t wanted         # EVENT_NEEDS_MORE: what the frame behind `used` needs in all; 0: unknown
    int close_code        # EVENT_CLOSE: the peer's, CLOSE_NONE for none; EVENT_FAULT: what to close with
    const char *fault     # EVENT_FAULT: in words, ASCII, short enough for a close frame


# Invariants: opcode is 0 between messages; begun_size <= begun_capacity and checked <= begun_size.
@cython.final
cdef class MessageReader:
    # Bytes of one message, however many frames it comes in. A change counts from the next frame.
    cdef public size_t message_max
    cdef int opcode                 # of the fragmented message that has begun; 0: none
    cdef bint handed_out            # what has begun was complete and is the caller's until the next call
    cdef readonly bint over         # a close frame or a fault has come: nothing after it is read
    cdef uint8_t *begun
    cdef size_t begun_size
    cdef readonly size_t begun_capacity
    cdef size_t checked             # begun[:checked] is UTF-8 and ends with a character
    # The next event in `size` bytes, which begin with a frame's first byte; returns its kind.  A frame that is whole
    # is unmasked where it is, one that is not stays as it came: give it again, from `used` on, with more behind it.
    # Only memory can run out.
    cdef int next(self, uint8_t *data, size_t size, ws_event *out) except -1
    cdef int _append(self, const uint8_t *data, size_t size) except -1
    cdef bint _text_goes_on(self, bint is_last) noexcept
    cdef int _control(self, int opcode, uint8_t *payload, size_t size, ws_event *out) noexcept
    cdef int _fault(self, int close_code, const char *words, size_t used, ws_event *out) noexcept
    cdef void _give_back(self) noexcept


# ---- writing: whole frames, never masked ----


cdef inline size_t header_size(size_t payload) noexcept nogil:
    return 2 if payload <= 125 else 4 if payload <= 0xFFFF else 10


cdef inline uint8_t *header_write(uint8_t *out, int opcode, size_t payload) noexcept nogil:
    """The header of a whole message or a control frame; returns where the payload goes."""
    out[0] = 0x80 | opcode
    if payload <= 125:
        out[1] = <uint8_t> payload
        return out + 2
    if payload <= 0xFFFF:
        out[1] = 126
        bytes_store16(out + 2, <unsigned short> payload)
        return out + 4
    out[1] = 127
    bytes_store64(out + 2, payload)
    return out + 10


# A whole frame, for those that are rare.
cpdef bytes frame(int opcode, bytes payload=*)
# A whole close frame; a reason that is too long for it is cut at a character. CLOSE_NONE: without a code.
cpdef bytes close_frame(int code, str reason=*)
