# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t
from vibemq.storage.core cimport bytes_store16, bytes_store64

cdef enum:
    WS_CONTINUATION = 0
    WS_TEXT = 1
    WS_BINARY = 2
    WS_CLOSE = 8
    WS_PING = 9
    WS_PONG = 10

# What to close with. The RFC names more; these are what the door needs.
cdef enum:
    CLOSE_NORMAL = 1000
    CLOSE_PROTOCOL_ERROR = 1002
    CLOSE_NONE = 1005               # stands for a close frame without a code; never on the wire
    CLOSE_NOT_UTF8 = 1007
    CLOSE_POLICY_VIOLATION = 1008
    CLOSE_TOO_BIG = 1009
    CLOSE_INTERNAL_ERROR = 1011


# ---- WebSocket frames of a server, which are never masked; writers trust their caller for the room ----


cdef inline size_t header_size(size_t payload) noexcept nogil:
    return 2 if payload <= 125 else 4 if payload <= 0xFFFF else 10


cdef inline uint8_t *header_write(uint8_t *out, int opcode, size_t payload) noexcept nogil:
    """The header of a whole message or a control frame; returns where the payload goes."""
    out[0] = 0x80 | opcode
    if payload <= 125:
        out[1] = <uint8_t> payload
    elif payload <= 0xFFFF:
        out[1] = 126
        bytes_store16(out + 2, <unsigned short> payload)
    else:
        out[1] = 127
        bytes_store64(out + 2, payload)
    return out + header_size(payload)


cdef enum:
    EVENT_NEEDS_MORE, EVENT_MESSAGE, EVENT_PING, EVENT_PONG, EVENT_CLOSE, EVENT_FAULT


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
cdef class MessageReader:
    cdef public size_t message_max  # bytes of one message, in however many frames; a change counts from the next frame
    cdef int opcode                 # of the fragmented message that has begun; 0: none
    cdef bint handed_out            # what has begun was complete and is the caller's until the next call
    cdef readonly bint over
    cdef uint8_t *begun
    cdef size_t begun_size
    cdef readonly size_t begun_capacity
    cdef size_t checked             # begun[:checked] is UTF-8 and ends with a character

    # The next event in `size` bytes, which begin with a frame's first byte; returns its kind.  A frame that is not
    # whole is to be given again, from `used` on, with more behind it.  Only memory can run out.
    cdef int next(self, uint8_t *data, size_t size, ws_event *out) except -1
    cdef int _append(self, const uint8_t *data, size_t size) except -1
    cdef bint _text_goes_on(self, bint is_last) noexcept
    cdef int _control(self, int opcode, ws_event *out) noexcept
    cdef int _fault(self, int close_code, const char *words, size_t used, ws_event *out) noexcept
    cdef void _give_back(self) noexcept
