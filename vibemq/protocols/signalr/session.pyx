# SPDX-License-Identifier: Apache-2.0
"""One socket of the SignalR door: HTTP requests, one after another, until one of them makes it a WebSocket.

A request is a frame: it stays in the connection's buffer until head and body are whole (request.py), and while
somebody else must answer first.  So the steps are: the head is parsed once, http.begin() says what may be refused
without the body and who asks, which may take a helper thread; then the body is waited for, and http.answer() answers.
Answers leave in the order of requests, because none is looked at before the last one has its answer.

A pending poll or an event stream holds the socket: what comes meanwhile waits in the buffer.  After an upgrade bytes
are frames of the WebSocket (MessageReader); their messages go to the hub connection, which knows nothing of all this.
"""

from itertools import islice

from libc.stdint cimport int64_t, uint8_t
from vibemq.broker.client cimport ClientSession
from vibemq.net.connection cimport Connection
from vibemq.net.door cimport PAUSE_COMMAND, PAUSE_UNCONFIRMED
from vibemq.protocols.signalr.hub cimport HubConnection
from vibemq.protocols.signalr.transports cimport LongPollingTransport, Transport, WebSocketTransport
from vibemq.protocols.signalr.websocket cimport (
    CLOSE_NONE, CLOSE_NORMAL, CLOSE_TOO_BIG, EVENT_CLOSE, EVENT_FAULT, EVENT_MESSAGE, EVENT_NEEDS_MORE, EVENT_PING, WS_PING, WS_PONG,
    MessageReader, ws_event,
)

from vibemq.broker.admission import log_closing
from vibemq.protocols.signalr import http
from vibemq.protocols.signalr.request import (
    BINARY, CHUNK_LINE_BYTES_MAX, CONTINUE, HEAD_BYTES_MAX, TRAILER_BYTES_MAX, Refusal, chunk_size,
)
from vibemq.protocols.signalr.spec import CLOSE_TIMEOUT_S, closed_with_error
from vibemq.protocols.signalr.websocket import close_frame, frame
from vibemq.storage.vhosts import DEFAULT_VHOST

cdef extern from "string.h" nogil:
    void *memmem(const void *haystack, size_t haystack_size, const void *needle, size_t needle_size)

cdef size_t HEAD_MAX = HEAD_BYTES_MAX
cdef size_t CHUNK_LINE_MAX = CHUNK_LINE_BYTES_MAX
cdef size_t TRAILER_MAX = TRAILER_BYTES_MAX

cdef enum:
    REQUESTS_PER_TURN = 32           # each costs some tens of microseconds: the loop's millisecond
    BODY_BYTES_PER_S_MIN = 16 * 1024 # of a peer that is not slow on purpose
    DESCRIBED_MAX = 128              # publishers, and subscriptions, of one connection: about a microsecond each

DOOR = "signalr"  # as workers know it


cdef class HttpSession(ClientSession):
    """It is paused for a COMMAND while somebody else must answer first, and UNCONFIRMED while its hub takes no more."""

    cdef object request                # whose head was read and whose body is not here or not answered yet; None
    cdef size_t head_size
    cdef bint told_to_continue
    cdef bytearray chunked             # of a request whose body comes in chunks: those that were here, without their frames; None
    cdef const uint8_t *body           # of the request that is answered now
    cdef size_t body_size
    # The WebSocket, event stream or pending poll that this socket serves; None: the next bytes are a request.
    cdef Transport transport
    cdef object poll                   # the request of the pending poll
    cdef readonly list answered        # transports of polls, whose records wait in the outbox
    cdef MessageReader reader          # of a WebSocket
    cdef bint saw_close                # the peer's Close has come, or ours has left
    cdef int receiver                  # the worker that this socket goes to once nothing waits to be sent; -1: none

    def __init__(self, Connection connection, door):
        super().__init__(connection, door)
        self.receiver, self.answered = -1, []

    cdef int open(self) except -1:
        # Browsers open some before they need them.
        self.deadline_in(self.door.config.request_timeout_s, HttpSession.finish)
        return 0

    # ---- requests ----

    cdef Py_ssize_t receive(self, const uint8_t *data, size_t size) except -1:
        cdef size_t at = 0
        cdef Py_ssize_t used
        cdef int count = 0
        while at < size and not self.busy:
            if self.transport is not None:
                if self.reader is not None:
                    return at + self._messages(<uint8_t *> data + at, size - at)
                if not isinstance(self.transport, LongPollingTransport):
                    return size  # nobody reads what follows a request for events
                self.connection.pause()
                break
            used = self._request(data + at, size - at)
            if used == 0:
                break
            at += used
            if self.connection.closing or self.connection.closed:
                return size
            count += 1
            if count >= REQUESTS_PER_TURN:
                self.yield_turn()
        return at

    cdef Py_ssize_t _request(self, const uint8_t *data, size_t size) except -1:
        """One request, if all of it is here; bytes used."""
        cdef size_t need
        cdef Py_ssize_t used
        if self.request is None:
            used = self._head(data, size)
            if used or self.request is None:
                return used
        if self.busy:
            return 0
        request = self.request
        if request.is_chunked:
            return self._in_chunks(request, data, size)
        need = self.head_size + <size_t> request.length
        if request.length > request.body_max:
            refusal = request.refusal or Refusal(413, f"The body has more than {request.body_max} bytes.")
            return self._refuse_and_close(refusal, request)
        if size < need:
            self.wanted = need
            if request.expects_continue and not self.told_to_continue:
                if request.refusal is not None:
                    return self._refuse_and_close(request.refusal, request)
                self.told_to_continue = True
                self.connection.write_bytes(CONTINUE)
            if self.deadline_ms == 0:
                self.deadline_in(self.door.config.request_timeout_s + request.length // BODY_BYTES_PER_S_MIN,
                                 http.too_slow)
            return 0
        return need if self._answer(request, data + self.head_size, request.length) else 0

    cdef Py_ssize_t _in_chunks(self, object request, const uint8_t *data, size_t size) except -1:
        """Take the head, then the whole chunks at the front; bytes used.  The last one stays until it is answered."""
        cdef const void *end
        cdef size_t at = 0, start, length
        if self.chunked is None:
            return self._first_of_chunks(request)
        while True:
            self.wanted = size - at + 1
            end = memmem(data + at, min(size - at, CHUNK_LINE_MAX), <const char *> b"\r\n", 2)
            if end == NULL and size - at < CHUNK_LINE_MAX:
                return at
            if end == NULL:
                return self._refuse_and_close(Refusal(400, f"The line of a chunk has over {CHUNK_LINE_MAX} bytes."), request)
            start = <const uint8_t *> end - data + 2
            try:
                length = chunk_size((<char *> data)[at:start - 2])
            except Refusal as refusal:
                return self._refuse_and_close(refusal, request)
            if length == 0:
                break
            if length + len(self.chunked) > <size_t> request.body_max:
                refusal = request.refusal or Refusal(413, f"The body has more than {request.body_max} bytes.")
                return self._refuse_and_close(refusal, request)
            if size - start < length + 2:
                self.wanted = start - at + length + 2
                return at
            if data[start + length] != c"\r" or data[start + length + 1] != c"\n":
                return self._refuse_and_close(Refusal(400, "A chunk does not end where its size says."), request)
            self.chunked += (<char *> data)[start:start + length]
            at = start + length + 2
        end = memmem(data + start - 2, min(size - start + 2, TRAILER_MAX), <const char *> b"\r\n\r\n", 4)
        if end == NULL and size - start + 2 < TRAILER_MAX:
            return at
        if end == NULL:
            return self._refuse_and_close(Refusal(431, f"More than {TRAILER_MAX} bytes behind the body."), request)
        if self._answer(request, <const uint8_t *> <char *> self.chunked, len(self.chunked)):
            self.chunked = None
            return <const uint8_t *> end - data + 4
        return at

    cdef Py_ssize_t _first_of_chunks(self, object request) except -1:
        if request.expects_continue:
            if request.refusal is not None:
                return self._refuse_and_close(request.refusal, request)
            self.connection.write_bytes(CONTINUE)
        self.chunked = bytearray()
        self.deadline_in(self.door.config.request_timeout_s + request.body_max // BODY_BYTES_PER_S_MIN, http.too_slow)
        return self.head_size

    cdef bint _answer(self, object request, const uint8_t *body, size_t size) except -1:
        """Answer a request that is here; False: the hub takes no more now, and the same bytes come again."""
        self.body, self.body_size, self.deadline_ms = body, size, 0
        request.length = size
        try:
            if not http.answer(self, request):
                return False
        finally:
            self.body, self.body_size = NULL, 0
        self.request = None
        return True

    cdef Py_ssize_t _head(self, const uint8_t *data, size_t size) except -1:
        """Read the head that begins here, if it is whole; bytes used by what is no request."""
        cdef const void *end
        cdef size_t at = 0
        while at + 1 < size and data[at] == c"\r" and data[at + 1] == c"\n":
            at += 2  # some clients end a body with a line of their own
        if at:
            return at
        if self.at_deadline is HttpSession.finish:
            self.deadline_in(self.door.config.request_timeout_s, http.too_slow)
        end = memmem(data, min(size, HEAD_MAX), <const char *> b"\r\n\r\n", 4)
        if end == NULL:
            if not (c"A" <= data[0] <= c"Z" or data[0] == c"\r"):
                return self._refuse_and_close(Refusal(400, "This is no HTTP request."), None)
            if size >= HEAD_MAX:
                return self._refuse_and_close(Refusal(431, f"More than {HEAD_MAX} bytes before the body."), None)
            return 0
        self.head_size = <size_t> (<const uint8_t *> end - data) + 4
        self.told_to_continue, self.deadline_ms = False, 0
        try:
            self.request = http.begin(self, (<char *> data)[:self.head_size])
        except Refusal as refusal:
            return self._refuse_and_close(refusal, None)
        return 0

    def _refuse_and_close(self, refusal, request) -> int:
        """Nobody can tell where the next request begins, or it is not worth reading so far."""
        self.request = self.chunked = None
        http.refuse(self, request, refusal, close=True)
        return 1

    def hand_body(self, HubConnection hub):
        """Give the body of the request to a hub connection, from where it lies."""
        hub.receive(self.body, self.body_size)

    def answered_whole(self, bint close):
        """The answer is written: the next request may be looked at."""
        if close:
            self.connection.close_after_flush()
        else:
            self.deadline_in(self.door.config.idle_timeout_s, HttpSession.finish)

    def deadline_in(self, double seconds, then):
        self.set_deadline(self.door.now_ms() + <int64_t> (seconds * 1000), then)

    # ---- waiting for others ----

    def waited(self):
        """The request at the front goes on: the loop gives the same bytes again, when nobody is in the middle of
        anything."""
        self.go_on(PAUSE_COMMAND)

    def hand_over(self, int worker):
        """The request at the front is for another worker: it gets the socket, and what was read and not answered."""
        self.receiver = worker
        self.set_busy()
        # For the peer to take earlier answers.
        self.deadline_in(self.door.config.request_timeout_s, HttpSession.finish)
        self.connection.want_turn()

    cdef int _hand_over(self) except -1:
        cdef int worker = self.receiver
        self.receiver = -1
        unread = (<char *> self.connection.inbox)[:self.connection.inbox_size]
        if not self.door.broker.handovers.give(worker, DOOR, self.connection, unread):
            self.request.refusal = Refusal(503, "Too many connections at once.", [("Retry-After", "1")])
            self.waited()
        return 0

    # ---- transports ----

    def serve(self, Transport transport not None, request=None):
        """From now on this socket is a transport's, or as long as its poll is pending, which is `request`."""
        self.transport, self.poll, self.deadline_ms = transport, request, 0
        if isinstance(transport, LongPollingTransport):
            self.deadline_in(self.door.config.poll_timeout_s, HttpSession.poll_over)
        elif isinstance(transport, WebSocketTransport):  # the 101 is written: what follows are frames
            self.reader = MessageReader(self.door.config.message_max_bytes)

    def answer_poll(self, int status, bytes body):
        """What the poll gets that this socket has waited with."""
        request, self.poll, self.transport = self.poll, None, None
        http.reply(self, request, status, body, BINARY)
        self.connection.want_turn()

    def poll_over(self):
        """Nothing has come for as long as a poll is held: the peer polls again."""
        if self.transport is not None:
            self.transport.dismiss(200)

    # ---- WebSocket ----

    cdef Py_ssize_t _messages(self, uint8_t *data, size_t size) except -1:
        cdef ws_event event
        cdef size_t at = 0
        cdef HubConnection hub = self.transport.hub
        while at < size and not self.busy:
            self.reader.next(data + at, size - at, &event)
            at += event.used
            if event.kind == EVENT_NEEDS_MORE:
                self.wanted = event.wanted
                break
            if event.kind == EVENT_MESSAGE:
                if not self.saw_close:
                    hub.receive(event.payload, event.size)
            elif event.kind == EVENT_PING:
                self._say(frame(WS_PONG, (<char *> event.payload)[:event.size]))
            elif event.kind == EVENT_CLOSE:
                is_well = event.close_code == CLOSE_NORMAL or event.close_code == CLOSE_NONE
                code = "" if is_well else f" with code {event.close_code}"
                self._end_messages(CLOSE_NORMAL if is_well else event.close_code, "", f"closed by the peer{code}")
                return size
            elif event.kind == EVENT_FAULT:
                fault = event.fault.decode()
                log_closing(self, "frame", "closed: %s", fault)
                if event.close_code == CLOSE_TOO_BIG and hub.say_close(
                        closed_with_error(f"InvalidDataException: {fault}"), True):
                    self.connection.leaving = True  # what still comes is passed over: a reset would cost the peer the record
                    self._end_messages(CLOSE_NORMAL, "", fault)
                else:
                    self._end_messages(event.close_code, fault, fault)
                return size
            if self.connection.closing or self.connection.closed:
                return size
        return at

    def _say(self, bytes frame):
        """A control frame, behind what the transport has written; nothing follows a Close."""
        if not self.saw_close:
            self.transport.seal()
            self.connection.write_bytes(frame)

    def ping(self):
        self._say(frame(WS_PING))

    def _say_close(self, int code, str reason):
        self._say(close_frame(code, reason))
        self.saw_close = True

    def _end_messages(self, int code, str reason, str why):
        self._say_close(code, reason)
        self.connection.close_after_flush()
        self.transport.lost(why)

    def close_socket(self, int code, str reason):
        """Our own Close; the peer answers it before the socket is closed, or it would lose what it had not read."""
        if self.connection.closed or self.connection.closing:
            return
        self.go_on(PAUSE_UNCONFIRMED)
        if self.saw_close:
            self.connection.close_after_flush()
            return
        self._say_close(code, reason)
        self.deadline_in(CLOSE_TIMEOUT_S, HttpSession.finish)

    # ---- the turn ----

    cdef bint deliver(self) except -1:
        cdef Transport transport = self.transport
        self.go_on_after_turn()
        if transport is not None and transport.session is self:
            transport.seal()
        self.connection.flush()
        if self.answered and self.connection.all_sent():
            self._answers_over(True)
        if self.transport is not None and not self.connection.socket_full:
            self.transport.drained()
        if self.receiver >= 0 and self.connection.all_sent():
            self._hand_over()
        return False

    cdef int _answers_over(self, bint were_taken) except -1:
        cdef LongPollingTransport transport
        answered, self.answered = self.answered, []
        for transport in answered:
            transport.answer_over(were_taken)
            if were_taken:
                transport.drained()
        return 0

    cdef int tick(self, int64_t now_ms) except -1:
        self.look_at_deadline(now_ms)
        if self.transport is not None and not self.transport.over:
            self.transport.hub.tick(now_ms)
        return 0

    cdef int beat(self, int64_t now_ms) except -1:
        if self.transport is not None and not self.transport.over:
            self.transport.hub.beat(now_ms)
        return 0

    cdef int shutdown(self) except -1:
        if self.transport is None:
            # A request that is not answered yet waits for the rest of itself, for a hub that takes no more, or for a
            # login: none of these is worth waiting for, and nothing was promised to its peer.  But by the next request
            # on this socket a peer that polls may fetch its Close.
            if self.door.end_polling():
                self.connection.close_after_flush()
        elif not self.transport.over:
            self.transport.hub.shutdown()
        return 0

    cdef int close(self) except -1:
        cdef Transport transport = self.transport
        self.state = "closed"
        self._answers_over(False)
        self.transport = self.request = None
        if transport is None:
            return 0
        if isinstance(transport, LongPollingTransport):
            transport.poll_over()
        else:
            transport.lost("the socket was closed")
        return 0

    # ---- what others ask ----

    def describe(self) -> dict:
        """This connection as the admin side shows it: the socket, and the first of what its hub connection does."""
        hub = None if self.transport is None else self.transport.hub
        publishers, subscriptions = ([], []) if hub is None else (hub.publishers, hub.subscriptions.by_id.values())
        return self.described(
            vhost=DEFAULT_VHOST,
            frame_max=self.door.config.message_max_bytes,
            client_properties={} if hub is None else {"transport": self.transport.name},
            publishers=[{"stream": name.decode()} for name in islice(publishers, DESCRIBED_MAX)],
            subscriptions=[one.describe() for one in islice(subscriptions, DESCRIBED_MAX)],
        )
