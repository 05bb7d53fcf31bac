# SPDX-License-Identifier: Apache-2.0
"""The three ways to a peer: WebSocket, server-sent events, long polling; and the reader of WebSocket frames.

A WebSocket's records are laid straight into the connection's outbox, many to a message: MESSAGE_HEADER_BYTES are
kept free before the first one, for the header when the message is sealed.  The message that is open is always the last
thing in the outbox.  Events must be rewritten and polls may not be there yet, so these two collect records first.

A long-polling transport stays between polls; its session is then None.  Of events and polls, what the peer sends comes
by other requests: pause() keeps those waiting.
"""

from collections import deque

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove, memset
from vibemq.grow cimport grow
from vibemq.net.door cimport PAUSE_UNCONFIRMED
from vibemq.protocols.signalr.wire cimport ENCODING_JSON
from vibemq.storage.core cimport bytes_load16, bytes_load64, utf8_is_valid, utf8_step

from vibemq.errors import ConnectionClosed, LimitExceeded
from vibemq.protocols.signalr.records import group_encode
from vibemq.protocols.signalr.request import NO_CACHE, head_of
from vibemq.protocols.signalr.spec import LONG_POLLING, SERVER_SENT_EVENTS, WEB_SOCKETS

cdef enum:
    # Above this nothing more is written until the peer has taken half of it.
    QUEUED_BYTES_MAX = 512 * 1024
    # From here on no POST is read, as no socket is.
    UNREAD_BYTES_PAUSE = 1 << 20
    # And here the peer is given up.
    BUFFER_BYTES_MAX = 64 << 20
    # Of a message with several records; what clients read in one go is at least 1 MiB.
    MESSAGE_BYTES_MAX = 65_535
    MESSAGE_HEADER_BYTES = 4   # of the largest such message
    SHORT_MESSAGE_BYTES = 125  # whose header has only two
    BUFFER_BYTES_KEPT = 64 * 1024
    # Of one hub connection: clients have one under way, and nobody sees who gives up while the hub takes no more.
    POSTS_WAITING_MAX = 16

# Of WebSocket frames.
cdef enum:
    FIN = 0x80
    RESERVED_BITS = 0x70
    OPCODE = 0x0F
    MASKED = 0x80
    LENGTH_IN_16_BITS = 126
    MASK_BYTES = 4
    CONTROL_BYTES_MAX = 125    # payload of a control frame: its length has one byte
    # A fragmented message is likely to be longer than its first piece: .NET sends pieces of 4 KiB.
    BEGUN_BYTES_MIN = 16 * 1024


# ---- WebSocket frames ----


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


# ---- transports ----


cdef class Transport:
    def __init__(self, HubConnection hub, Session session):
        self.hub, self.kept_waiting = hub, []
        self._use(session)

    def _use(self, Session session):
        self.session = session
        self.connection = None if session is None else session.connection

    @property
    def peer(self) -> str:
        """For the log."""
        return f"hub connection {self.hub.connection_id}" if self.session is None else self.connection.peer

    cdef uint8_t *reserve(self, size_t size, bint is_text) except NULL:
        raise TypeError(f"{type(self).__name__} does not say how to write")

    cdef bint room(self) noexcept:
        if self.pending() < QUEUED_BYTES_MAX:
            return True
        self.wants_room = True
        return False

    cdef size_t pending(self) noexcept:
        return self.connection.outbox_size - self.connection.outbox_head if self.connection is not None else 0

    cdef int pause(self) except -1:
        self.is_held = True
        return 0

    cdef int resume(self) except -1:
        self.is_held = False
        waiting, self.kept_waiting = self.kept_waiting, []
        for session in waiting:
            session.waited()
        return 0

    @property
    def takes_more(self) -> bool:
        """May the hub be given more?  Not while the answers to what it was given wait for a peer that does not read."""
        return not self.is_held and self.pending() < UNREAD_BYTES_PAUSE

    def keep_waiting(self, session) -> bool:
        """A request that comes when the hub takes no more; resume() lets it go on.  False: too many wait already."""
        if len(self.kept_waiting) < POSTS_WAITING_MAX:
            self.kept_waiting.append(session)
            return True
        return False

    cdef int seal(self) except -1:
        return 0

    cdef int drained(self) except -1:
        """The socket took something: tell the hub what that means."""
        if self.over:
            return 0
        if self.kept_waiting and self.takes_more:
            self.resume()
        if self.wants_room and self.pending() < QUEUED_BYTES_MAX // 2:
            self.wants_room = False
            self.hub.subscriptions.room_again()
        if not self.over and self.pending() == 0:
            self.hub.subscriptions.sent()
        return 0

    def lost(self, str why):
        """The socket is gone; the hub decides what that means for it."""
        if self.connection is not None and not self.connection.closed:
            self.seal()
        self._use(None)
        if not self.over:
            self.over = True
            self.resume()
            self.hub.lost(self, why)

    def keep_alive(self):
        """Something that the hub protocol does not see, for dialects without pings."""


cdef class WebSocketTransport(Transport):
    def __init__(self, HubConnection hub, Session session):
        super().__init__(hub, session)
        self.name, self.carries_binary = WEB_SOCKETS, True

    cdef uint8_t *reserve(self, size_t size, bint is_text) except NULL:
        cdef int opcode = WS_TEXT if is_text else WS_BINARY
        cdef uint8_t *out
        if self.session is None or self.over:
            raise ConnectionClosed(self.peer)
        if self.open_size and (opcode != self.open_opcode or self.open_size + size > MESSAGE_BYTES_MAX):
            self.seal()
        if size > MESSAGE_BYTES_MAX:
            out = self.connection.outbox_reserve(header_size(size) + size)
            return header_write(out, opcode, size)
        if self.open_size:
            out = self.connection.outbox_reserve(size)
        else:
            out = self.connection.outbox_reserve(MESSAGE_HEADER_BYTES + size) + MESSAGE_HEADER_BYTES
            self.open_opcode = opcode
        self.open_size += size
        return out

    cdef int seal(self) except -1:
        """The header of the open message, whose size is known now."""
        cdef uint8_t *at
        cdef size_t spare
        if self.open_size == 0:
            return 0
        at = self.connection.outbox + self.connection.outbox_size - self.open_size - MESSAGE_HEADER_BYTES
        if self.open_size <= SHORT_MESSAGE_BYTES:
            spare = MESSAGE_HEADER_BYTES - header_size(self.open_size)
            memmove(at + MESSAGE_HEADER_BYTES - spare, at + MESSAGE_HEADER_BYTES, self.open_size)
            self.connection.outbox_size -= spare
        header_write(at, self.open_opcode, self.open_size)
        self.open_size = 0
        return 0

    cdef int pause(self) except -1:
        self.is_held = True
        if self.session is not None:
            self.session.pause(PAUSE_UNCONFIRMED)
        return 0

    cdef int resume(self) except -1:
        self.is_held = False
        if self.session is not None:
            self.session.go_on(PAUSE_UNCONFIRMED)
        return 0

    def end(self, int close_code, str reason):
        if not self.over:
            self.over = True
            self.session.close_socket(close_code, reason)

    def keep_alive(self):
        if self.session is not None:
            self.session.ping()


cdef class BufferedTransport(Transport):
    def __dealloc__(self):
        free(self.data)

    cdef uint8_t *reserve(self, size_t size, bint is_text) except NULL:
        cdef size_t need = self.size + size
        if need > BUFFER_BYTES_MAX:
            raise LimitExceeded("records (the peer does not fetch them)", need, BUFFER_BYTES_MAX)
        grow(&self.data, &self.capacity, need, 1)
        self.size += size
        if self.session is not None:
            self.connection.want_turn()
        return self.data + self.size - size

    cdef size_t pending(self) noexcept:
        return self.size + Transport.pending(self)

    def _empty(self):
        self.size = 0
        if self.capacity > BUFFER_BYTES_KEPT:
            free(self.data)
            self.data, self.capacity = NULL, 0


cdef class EventsTransport(BufferedTransport):
    def __init__(self, HubConnection hub, Session session, request):
        super().__init__(hub, session)
        self.name = SERVER_SENT_EVENTS
        self.is_chunked = not request.is_old
        headers = [
            ("Content-Type", "text/event-stream"),
            ("Content-Encoding", "identity"),
            ("X-Content-Type-Options", "nosniff"),
            *NO_CACHE,
            *request.cors,
        ]
        if self.is_chunked:
            headers.append(("Transfer-Encoding", "chunked"))
        self.connection.write_bytes(head_of(200, headers, close=True))
        self._chunk(<const uint8_t *> b":\r\n", 3)  # opens the browser's event source

    cdef uint8_t *reserve(self, size_t size, bint is_text) except NULL:
        if self.session is None or self.over:
            raise ConnectionClosed(self.peer)
        if self.size and not (is_text and self.hub.encoding == ENCODING_JSON):  # of MessagePack, early clients take one
            self._event()
        self.is_binary = not is_text
        return BufferedTransport.reserve(self, size, is_text)

    cdef int seal(self) except -1:
        return self._event() if self.size else 0

    cdef int _event(self) except -1:
        """What waits, as one event: each line break begins another data line."""
        cdef bytes text = (<char *> self.data)[:self.size]
        if self.is_binary:
            text = group_encode(text)
        self._empty()
        if b"\n" in text or b"\r" in text:  # only between the values of JSON: any break is as good as another
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\r\ndata: ")
        text = b"data: " + text + b"\r\n\r\n"
        return self._chunk(<const uint8_t *> text, len(text))

    cdef int _chunk(self, const uint8_t *data, size_t size) except -1:
        if not self.is_chunked:
            return self.connection.write(data, size)
        cdef bytes head = b"%x\r\n" % size
        self.connection.write(<const uint8_t *> head, len(head))
        self.connection.write(data, size)
        return self.connection.write(<const uint8_t *> b"\r\n", 2)

    def end(self, int close_code, str reason):
        if self.over:
            return
        self.seal()
        self.over = True
        if self.is_chunked:
            self.connection.write(<const uint8_t *> b"0\r\n\r\n", 5)
        self.resume()
        self.session.finish()

    def keep_alive(self):
        if self.session is not None and not self.over:
            self.seal()
            self._chunk(<const uint8_t *> b":\r\n\r\n", 5)


cdef class LongPollingTransport(BufferedTransport):
    def __init__(self, HubConnection hub, bint one_record_each):
        super().__init__(hub, None)
        self.name, self.carries_binary = LONG_POLLING, True
        if one_record_each:
            self.sizes = deque()

    cdef uint8_t *reserve(self, size_t size, bint is_text) except NULL:
        if self.sizes is not None:
            self.sizes.append(size)
        return BufferedTransport.reserve(self, size, is_text)

    cdef size_t pending(self) noexcept:
        return self.size + (0 if self.leaving is None else <size_t> len(self.leaving))

    def poll(self, Session session, request):
        """A poll waits for records; one that waits already is told that it is over."""
        if self.session is not None:
            self._dismiss(204)
            self.hub.stop_waiting()
        if self.leaving is not None and self.leaver is not session:
            self.leaver.give_up("its peer polls again instead of reading the answer")
        self._use(session)
        session.serve(self, request)
        if self.over or self.size:
            self._answer()

    cdef int seal(self) except -1:
        return self._answer() if self.size and self.session is not None else 0

    cdef int _answer(self) except -1:
        """Give the poll what there is, once the answer before it has gone: if that is lost, it comes again first."""
        cdef size_t size = self.size
        cdef Session session = self.session
        if self.leaving is not None:
            return 0
        if size == 0:
            self._dismiss(204)
            self.hub.door.drop(self.hub)  # the peer knows now
            return 0
        if self.sizes is not None:
            size = self.sizes.popleft()
        self.leaving, self.leaver = (<char *> self.data)[:size], session
        session.answer_poll(200, self.leaving)
        session.answered.append(self)
        self.size -= size
        if self.size:
            memmove(self.data, self.data + size, self.size)
        else:
            self._empty()
        self._use(None)
        self.hub.wait()
        return 0

    def _dismiss(self, int status):
        """End the poll that waits without anything."""
        session, _ = self.session, self._use(None)
        session.answer_poll(status, b"")
        self.hub.wait()

    def timed_out(self):
        """Nothing has come for as long as a poll is held: the peer polls again."""
        self._dismiss(200)

    def poll_lost(self):
        """The socket of the waiting poll is gone; the peer may come with another."""
        self._use(None)
        self.hub.wait()

    cdef int answer_over(self, bint was_taken) except -1:
        """The socket took the last answer, or is gone with some of it: then the peer has not read any."""
        cdef bytes answer = self.leaving
        cdef size_t size = len(answer)
        self.leaving = self.leaver = None
        if not was_taken:
            BufferedTransport.reserve(self, size, False)
            memmove(self.data + size, self.data, self.size - size)
            memcpy(self.data, <char *> answer, size)
            if self.sizes is not None:
                self.sizes.appendleft(size)
        if self.session is not None and (self.size or self.over):
            self._answer()
        return 0

    def end(self, int close_code, str reason):
        if not self.over:
            self.over = True
            self.resume()
            if self.session is not None:
                self._answer()
