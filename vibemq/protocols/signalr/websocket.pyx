# SPDX-License-Identifier: Apache-2.0
"""Frames of WebSockets (RFC 6455): what comes becomes messages, and what is rare is written whole."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset
from vibemq.storage.core cimport bytes_load16, bytes_load64, utf8_is_valid, utf8_step

cdef enum:
    FIN = 0x80
    RESERVED_BITS = 0x70
    OPCODE = 0x0F
    MASKED = 0x80
    LENGTH_IN_16_BITS = 126
    MASK_BYTES = 4
    CONTROL_BYTES_MAX = 125    # payload of a control frame: its length has one byte
    HEADER_BYTES_MAX = 10      # of a frame that we write: without a mask
    # A fragmented message is likely to be longer than its first piece: .NET sends pieces of 4 KiB.
    BEGUN_BYTES_MIN = 16 * 1024


# ---- reading ----


cdef inline void unmask(uint8_t *p, size_t size, uint32_t mask) noexcept nogil:
    """XOR with the mask, whose bytes are as on the wire.

    The last word is made before the others and stored after them, because it overlaps the one before: no loop over
    single bytes at the end, which would cost a short message more than all its words.
    """
    cdef uint64_t word, last, mask2 = (<uint64_t> mask << 32) | mask
    cdef uint32_t half, last_half
    cdef size_t i = 0, words_end
    cdef unsigned turn
    if size >= 8:
        turn = 8 * ((size - 8) & 3)    # where in the mask the last word begins; the machine is little-endian
        memcpy(&last, p + size - 8, 8)
        last ^= (mask2 >> turn) | (mask2 << ((64 - turn) & 63))
        words_end = (size - 1) & ~<size_t> 7
        while i < words_end:
            memcpy(&word, p + i, 8)
            word ^= mask2
            memcpy(p + i, &word, 8)
            i += 8
        memcpy(p + size - 8, &last, 8)
    elif size >= 4:
        turn = 8 * (size & 3)
        memcpy(&half, p, 4)
        memcpy(&last_half, p + size - 4, 4)
        half ^= mask
        last_half ^= <uint32_t> (mask2 >> turn)
        memcpy(p, &half, 4)
        memcpy(p + size - 4, &last_half, 4)
    else:
        while i < size:
            p[i] ^= <uint8_t> (mask >> (8 * i))
            i += 1


cdef inline bint close_code_is_valid(int code) noexcept nogil:
    """May a peer send it?  Those that only stand for something (1004 to 1006, 1015) and unregistered ones may not."""
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


cdef class MessageReader:
    """Bytes to messages and control frames; no I/O, no Python object.

    A frame that has come whole is unmasked where it lies and handed out from there, so a message of one frame costs no
    copy.  Fragments are put together in memory of the reader's own, never more than message_max, which is given back
    with the next call; an idle connection owns none.  A frame that is not whole is not touched: the connection keeps it.

    Everything a header can say wrong is a fault as soon as the header is there, before a byte of payload is waited for;
    no extension is ever agreed.  Text is checked fragment by fragment, and one that cannot become UTF-8 any more is a
    fault at that fragment.  After a close frame or a fault the reader is `over`: what follows is nobody's event."""

    def __cinit__(self, size_t message_max):
        self.message_max = message_max

    def __dealloc__(self):
        free(self.begun)

    cdef int next(self, uint8_t *data, size_t size, ws_event *out) except -1:
        cdef size_t at = 0, header, payload
        cdef uint8_t *head
        cdef uint8_t *body
        cdef uint32_t mask
        cdef int opcode, width
        cdef bint is_last
        if self.handed_out:
            self._give_back()
        out.wanted, out.kind = 0, EVENT_NEEDS_MORE
        while not self.over and size - at >= 2:
            head = data + at
            opcode, is_last = head[0] & OPCODE, head[0] & FIN
            header, payload = 2 + MASK_BYTES, head[1] & 0x7F
            if head[0] & RESERVED_BITS:
                return self._fault(CLOSE_PROTOCOL_ERROR, b"reserved bits without an extension", size, out)
            if not head[1] & MASKED:
                return self._fault(CLOSE_PROTOCOL_ERROR, b"a frame of a client without a mask", size, out)
            if opcode > WS_PONG:
                return self._fault(CLOSE_PROTOCOL_ERROR, b"an unknown control frame", size, out)
            if opcode >= WS_CLOSE and not is_last:
                return self._fault(CLOSE_PROTOCOL_ERROR, b"a control frame in fragments", size, out)
            if opcode >= WS_CLOSE and payload > CONTROL_BYTES_MAX:
                return self._fault(CLOSE_PROTOCOL_ERROR, b"a control frame above 125 bytes", size, out)
            if WS_BINARY < opcode < WS_CLOSE:
                return self._fault(CLOSE_PROTOCOL_ERROR, b"an unknown data frame", size, out)
            if opcode == WS_CONTINUATION and not self.opcode:
                return self._fault(CLOSE_PROTOCOL_ERROR, b"a continuation of nothing", size, out)
            if WS_CONTINUATION < opcode < WS_CLOSE and self.opcode:
                return self._fault(CLOSE_PROTOCOL_ERROR, b"a new message inside another", size, out)
            if payload >= LENGTH_IN_16_BITS:
                width = 2 if payload == LENGTH_IN_16_BITS else 8
                if size - at < <size_t> (2 + width):
                    break
                header += width
                payload = bytes_load16(head + 2) if width == 2 else bytes_load64(head + 2)
                if payload >> 63:
                    return self._fault(CLOSE_PROTOCOL_ERROR, b"a length of 64 bits", size, out)
                if payload <= (125u if width == 2 else 0xFFFFu):
                    return self._fault(CLOSE_PROTOCOL_ERROR, b"a length not in its shortest form", size, out)
            if opcode < WS_CLOSE \
                    and (self.begun_size > self.message_max or payload > self.message_max - self.begun_size):
                return self._fault(CLOSE_TOO_BIG, b"a message above the limit", size, out)
            if size - at < header + payload:
                out.wanted = header + payload
                break

            body = head + header
            memcpy(&mask, body - MASK_BYTES, MASK_BYTES)
            unmask(body, payload, mask)
            at += header + payload
            out.used, out.opcode, out.payload, out.size = at, opcode, body, payload
            if opcode >= WS_CLOSE:
                return self._control(opcode, out)
            out.kind = EVENT_MESSAGE
            if opcode != WS_CONTINUATION and is_last:
                if opcode == WS_TEXT and not utf8_is_valid(body, payload):
                    return self._fault(CLOSE_NOT_UTF8, b"text that is not UTF-8", size, out)
                return EVENT_MESSAGE
            if opcode != WS_CONTINUATION:
                self.opcode = opcode
            self._append(body, payload)
            if self.opcode == WS_TEXT and not self._text_goes_on(is_last):
                return self._fault(CLOSE_NOT_UTF8, b"text that is not UTF-8", size, out)
            if is_last:
                out.opcode, out.size = self.opcode, self.begun_size
                if self.begun_size:
                    out.payload = self.begun
                self.handed_out = True
                return EVENT_MESSAGE
            out.kind = EVENT_NEEDS_MORE
        out.used = size if self.over else at
        return EVENT_NEEDS_MORE

    def read(self, bytearray data not None, size_t at) -> tuple:
        """The next event from `at` on, as ws_event has it, for tests."""
        cdef ws_event event
        cdef uint8_t *begin = data
        memset(&event, 0, sizeof(event))
        self.next(begin + at, len(data) - at, &event)
        return (event.kind, event.opcode, (<char *> event.payload)[:event.size] if event.size else b"", event.used,
                event.wanted, event.close_code, (<bytes> event.fault).decode() if event.fault != NULL else "")

    cdef int _append(self, const uint8_t *data, size_t size) except -1:
        """A fragment to what has begun; next() has seen to message_max."""
        cdef size_t need = self.begun_size + size
        cdef size_t capacity
        cdef uint8_t *grown
        if need > self.begun_capacity:
            capacity = min(max(2 * need, <size_t> BEGUN_BYTES_MIN), self.message_max)
            grown = <uint8_t *> realloc(self.begun, capacity)
            if grown == NULL:
                raise MemoryError
            self.begun = grown
            self.begun_capacity = capacity
        if size:
            memcpy(self.begun + self.begun_size, data, size)
        self.begun_size = need
        return 0

    cdef bint _text_goes_on(self, bint is_last) noexcept:
        """Is what has come of a text UTF-8, where a character may still be cut short unless it is the last piece?"""
        cdef const uint8_t *whole = self.begun + self.checked
        cdef const uint8_t *end = self.begun + self.begun_size
        cdef const uint8_t *lead = end
        cdef const uint8_t *at
        cdef bint cut = False
        if not is_last:
            # The lead of a character that lacks something is one of the last three bytes.
            while lead > whole and end - lead < 3 and not cut:
                lead -= 1
                if lead[0] < 0x80:
                    break
                at = lead
                cut = lead[0] >= 0xC0 and not utf8_step(&at, end) and at == end
        if not cut:
            lead = end
        if not utf8_is_valid(whole, lead - whole):
            return False
        self.checked = lead - self.begun
        return True

    cdef int _control(self, int opcode, ws_event *out) noexcept:
        if opcode != WS_CLOSE:
            out.kind = EVENT_PING if opcode == WS_PING else EVENT_PONG
            return out.kind
        if out.size == 1:
            return self._fault(CLOSE_PROTOCOL_ERROR, b"a close frame with half a code", out.used, out)
        out.close_code = CLOSE_NONE
        if out.size:
            out.close_code = bytes_load16(out.payload)
            out.payload += 2
            out.size -= 2
            if not close_code_is_valid(out.close_code):
                return self._fault(CLOSE_PROTOCOL_ERROR, b"a close code that may not be sent", out.used, out)
            if not utf8_is_valid(out.payload, out.size):
                return self._fault(CLOSE_NOT_UTF8, b"a close reason that is not UTF-8", out.used, out)
        self._give_back()  # the rest of a message will not come
        self.over = True
        out.kind = EVENT_CLOSE
        return EVENT_CLOSE

    cdef int _fault(self, int close_code, const char *words, size_t used, ws_event *out) noexcept:
        self._give_back()
        self.over = True
        out.kind, out.used, out.close_code, out.fault = EVENT_FAULT, used, close_code, words
        out.payload, out.size = NULL, 0
        return EVENT_FAULT

    cdef void _give_back(self) noexcept:
        free(self.begun)
        self.begun = NULL
        self.begun_size = self.begun_capacity = self.checked = self.opcode = self.handed_out = 0


# ---- writing ----


def frame(int opcode, bytes payload=b"") -> bytes:
    cdef uint8_t header[HEADER_BYTES_MAX]
    cdef uint8_t *end = header_write(header, opcode, len(payload))
    return (<char *> header)[:end - header] + payload


def close_frame(int code, str reason="") -> bytes:
    """A reason that is too long for it is cut at a character.  CLOSE_NONE: without a code."""
    if code == CLOSE_NONE:
        return frame(WS_CLOSE)
    text = reason.encode("utf-8", "replace")[:CONTROL_BYTES_MAX - 2].decode("utf-8", "ignore")
    return frame(WS_CLOSE, code.to_bytes(2, "big") + text.encode())
