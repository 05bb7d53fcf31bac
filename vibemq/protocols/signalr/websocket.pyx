# SPDX-License-Identifier: Apache-2.0
"""The server's side of WebSocket frames: bytes to messages and control frames; no I/O, no Python object.

A frame that has come whole is unmasked where it lies and handed out from there, so a message of one frame costs no
copy.  Fragments are put together in memory of the reader's own, never more than message_max, which is given back with
the next call; an idle connection owns none.  A frame that is not whole is not touched: the connection keeps it.

Everything a header can say wrong is a fault as soon as the header is there, before a byte of payload is waited for:
reserved bits (no extension is ever agreed), unknown opcodes, a frame without a mask, a length not in its shortest form,
control frames that are long or fragmented, fragments out of order, a message above message_max.  Text is checked
fragment by fragment, and one that cannot become UTF-8 any more is a fault at that fragment.

After a close frame or a fault the reader is `over`: what follows is used up and is nobody's event.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from vibemq.storage.core cimport bytes_load16, bytes_load64, utf8_step

cdef enum:
    FIN = 0x80
    RESERVED_BITS = 0x70
    OPCODE = 0x0F
    MASKED = 0x80
    LENGTH_IN_16_BITS = 126
    LENGTH_IN_64_BITS = 127
    MASK_BYTES = 4
    # A fragmented message is likely to be longer than its first piece: .NET sends pieces of 4 KiB.
    BEGUN_BYTES_MIN = 16 * 1024


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
    def __cinit__(self, size_t message_max):
        self.message_max = message_max

    def __dealloc__(self):
        free(self.begun)

    cdef int next(self, uint8_t *data, size_t size, ws_event *out) except -1:
        cdef size_t at = 0, left, header, payload
        cdef uint8_t *head
        cdef uint8_t *body
        cdef uint32_t mask
        cdef int opcode
        cdef bint is_last
        if self.handed_out:
            self._give_back()
        out.wanted = 0
        if self.over:
            out.used = size
            out.kind = EVENT_NEEDS_MORE
            return EVENT_NEEDS_MORE
        while True:
            left = size - at
            if left < 2:
                break
            head = data + at
            opcode = head[0] & OPCODE
            is_last = head[0] & FIN
            payload = head[1] & 0x7F
            header = 2 + MASK_BYTES
            if head[0] & RESERVED_BITS:
                return self._fault(CLOSE_PROTOCOL_ERROR, b"reserved bits without an extension", size, out)
            if not head[1] & MASKED:
                return self._fault(CLOSE_PROTOCOL_ERROR, b"a frame of a client without a mask", size, out)
            if opcode >= WS_CLOSE:
                if opcode > WS_PONG:
                    return self._fault(CLOSE_PROTOCOL_ERROR, b"an unknown control frame", size, out)
                if not is_last:
                    return self._fault(CLOSE_PROTOCOL_ERROR, b"a control frame in fragments", size, out)
                if payload > WS_CONTROL_BYTES_MAX:
                    return self._fault(CLOSE_PROTOCOL_ERROR, b"a control frame above 125 bytes", size, out)
            else:
                if opcode > WS_BINARY:
                    return self._fault(CLOSE_PROTOCOL_ERROR, b"an unknown data frame", size, out)
                if opcode == WS_CONTINUATION:
                    if not self.opcode:
                        return self._fault(CLOSE_PROTOCOL_ERROR, b"a continuation of nothing", size, out)
                elif self.opcode:
                    return self._fault(CLOSE_PROTOCOL_ERROR, b"a new message inside another", size, out)
                if payload == LENGTH_IN_16_BITS:
                    if left < 4:
                        break
                    payload = bytes_load16(head + 2)
                    header = 4 + MASK_BYTES
                    if payload <= 125:
                        return self._fault(CLOSE_PROTOCOL_ERROR, b"a length not in its shortest form", size, out)
                elif payload == LENGTH_IN_64_BITS:
                    if left < 10:
                        break
                    payload = bytes_load64(head + 2)
                    header = 10 + MASK_BYTES
                    if payload >> 63:
                        return self._fault(CLOSE_PROTOCOL_ERROR, b"a length of 64 bits", size, out)
                    if payload <= 0xFFFF:
                        return self._fault(CLOSE_PROTOCOL_ERROR, b"a length not in its shortest form", size, out)
                if self.begun_size > self.message_max or payload > self.message_max - self.begun_size:
                    return self._fault(CLOSE_TOO_BIG, b"a message above the limit", size, out)
            if left < header + payload:
                out.wanted = header + payload
                break

            body = head + header
            memcpy(&mask, body - MASK_BYTES, MASK_BYTES)
            unmask(body, payload, mask)
            at += header + payload
            if opcode >= WS_CLOSE:
                out.used = at
                return self._control(opcode, body, payload, out)
            if opcode != WS_CONTINUATION and is_last:
                if opcode == WS_TEXT and not utf8_is_valid(body, payload):
                    return self._fault(CLOSE_NOT_UTF8, b"text that is not UTF-8", size, out)
                out.opcode = opcode
                out.payload = body
                out.size = payload
            else:
                if opcode != WS_CONTINUATION:
                    self.opcode = opcode
                self._append(body, payload)
                if self.opcode == WS_TEXT and not self._text_goes_on(is_last):
                    return self._fault(CLOSE_NOT_UTF8, b"text that is not UTF-8", size, out)
                if not is_last:
                    continue
                out.opcode = self.opcode
                out.payload = self.begun if self.begun_size else body
                out.size = self.begun_size
                self.handed_out = True
            out.used = at
            out.kind = EVENT_MESSAGE
            return EVENT_MESSAGE
        out.used = at
        out.kind = EVENT_NEEDS_MORE
        return EVENT_NEEDS_MORE

    def read(self, bytearray data not None, size_t at) -> tuple:
        """The next event from `at` on, as ws_event has it, for tests."""
        cdef ws_event event
        cdef uint8_t *begin = data
        memset(&event, 0, sizeof(event))
        self.next(begin + at, len(data) - at, &event)
        return (event.kind, event.opcode, (<char *> event.payload)[:event.size] if event.size else b"", event.used,
                event.wanted, event.close_code, (<bytes> event.fault).decode() if event.fault != NULL else "")

    def count(self, bytearray data not None) -> int:
        """How many messages are in `data`: what a session would pay for them, for benchmarks."""
        cdef ws_event event
        cdef uint8_t *begin = data
        cdef size_t at = 0
        cdef Py_ssize_t messages = 0
        while self.next(begin + at, len(data) - at, &event) == EVENT_MESSAGE:
            at += event.used
            messages += 1
        return messages

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

    cdef int _control(self, int opcode, uint8_t *payload, size_t size, ws_event *out) noexcept:
        out.payload = payload
        out.size = size
        if opcode != WS_CLOSE:
            out.kind = EVENT_PING if opcode == WS_PING else EVENT_PONG
            return out.kind
        if size == 0:
            out.close_code = CLOSE_NONE
        elif size == 1:
            return self._fault(CLOSE_PROTOCOL_ERROR, b"a close frame with half a code", out.used, out)
        else:
            out.close_code = bytes_load16(payload)
            out.payload = payload + 2
            out.size = size - 2
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
        out.kind = EVENT_FAULT
        out.payload = NULL
        out.size = 0
        out.used = used
        out.close_code = close_code
        out.fault = words
        return EVENT_FAULT

    cdef void _give_back(self) noexcept:
        free(self.begun)
        self.begun = NULL
        self.begun_size = self.begun_capacity = self.checked = 0
        self.opcode = 0
        self.handed_out = False


# ---- writing ----


cpdef bytes frame(int opcode, bytes payload=b""):
    cdef uint8_t header[WS_HEADER_BYTES_MAX]
    cdef uint8_t *end = header_write(header, opcode, len(payload))
    return PyBytes_FromStringAndSize(<const char *> header, end - header) + payload


cpdef bytes close_frame(int code, str reason=""):
    if code == CLOSE_NONE:
        return frame(WS_CLOSE)
    text = reason.encode("utf-8", "replace")
    end = WS_CONTROL_BYTES_MAX - 2
    if len(text) > end:
        while text[end] & 0xC0 == 0x80:
            end -= 1
        text = text[:end]
    return frame(WS_CLOSE, code.to_bytes(2, "big") + text)
