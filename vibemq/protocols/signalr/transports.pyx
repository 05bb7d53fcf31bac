# SPDX-License-Identifier: Apache-2.0
"""The three ways to a peer: WebSocket, server-sent events, long polling.

A WebSocket's records are laid straight into the connection's outbox, many to a message: MESSAGE_HEADER_BYTES are
kept free before the first one, for the header when the message is sealed.  The message that is open is always the last
thing in the outbox.  Events must be rewritten and polls may not be there yet, so these two collect records first.

A long-polling transport stays between polls; its session is then None.  Of events and polls, what the peer sends comes
by other requests: hold() keeps those waiting.
"""

from collections import deque

from libc.stdlib cimport free
from libc.string cimport memcpy, memmove
from vibemq.grow cimport grow
from vibemq.net.door cimport PAUSE_UNCONFIRMED
from vibemq.protocols.signalr.websocket cimport WS_BINARY, WS_TEXT, header_size, header_write
from vibemq.protocols.signalr.wire cimport ENCODING_JSON

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

    cdef int hold(self, bint holds) except -1:
        self.is_held = holds
        if not holds:
            waiting, self.kept_waiting = self.kept_waiting, []
            for session in waiting:
                session.waited()
        return 0

    @property
    def takes_more(self) -> bool:
        """May the hub be given more?  Not while the answers to what it was given wait for a peer that does not read."""
        return not self.is_held and self.pending() < UNREAD_BYTES_PAUSE

    def keep_waiting(self, session) -> bool:
        """A request that comes when the hub takes no more; hold(False) lets it go on.  False: too many wait already."""
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
            self.hold(False)
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
            self.hold(False)
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

    cdef int hold(self, bint holds) except -1:
        self.is_held = holds
        if self.session is not None:
            self.session.hold(PAUSE_UNCONFIRMED, holds)
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
        self._chunk(b":\r\n")  # opens the browser's event source

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
        self._chunk(b"data: %b\r\n\r\n" % text)
        return 0

    def _chunk(self, bytes data):
        self.connection.write_bytes(b"%x\r\n%b\r\n" % (len(data), data) if self.is_chunked else data)

    def end(self, int close_code, str reason):
        if self.over:
            return
        self.seal()
        self.over = True
        if self.is_chunked:
            self.connection.write_bytes(b"0\r\n\r\n")
        self.hold(False)
        self.session.finish()

    def keep_alive(self):
        if self.session is not None and not self.over:
            self.seal()
            self._chunk(b":\r\n\r\n")


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
            self.dismiss(204)
            self.hub.stop_waiting()
        if self.leaving is not None and self.leaver is not session:
            self.leaver.fail(ConnectionClosed("its peer polls again instead of reading the answer"))
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
            self.dismiss(204)
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
        self.poll_over()
        return 0

    def dismiss(self, int status):
        """End the poll that waits without anything."""
        self.session.answer_poll(status, b"")
        self.poll_over()

    def poll_over(self):
        """The poll that waited is answered, or its socket gone; the peer may come with another."""
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
            self.hold(False)
            if self.session is not None:
                self._answer()
