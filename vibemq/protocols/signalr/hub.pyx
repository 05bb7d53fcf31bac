# SPDX-License-Identifier: Apache-2.0
"""One hub connection: hub messages in, completions and stream items out, over whatever transport it has just now.

Publish, Ack and Nack are acted upon in place, without a Python object for each message; what else is called goes to
commands.py, plain Python.  A handshake with a version speaks version 1 (or 2, which may lose its socket: reconnect.py),
one without speaks the early dialect.  Everything a peer has begun is registered while its record is parsed
(invocations.py), so that a cancel or an upload's end may be in the same read.
Records of types 1 to 5 are written by ``record``, then ``written``; what comes before the first transport is held.
When it is over, its messages go back to their queues, and what it has published is kept but confirmed to nobody.
"""

import logging
import secrets

from libc.string cimport memchr, memcmp

from vibemq.broker.client cimport ClientSession
from vibemq.protocols.signalr.codec cimport (
    DIALECT_ALPHA2, DIALECT_EARLY, DIALECT_V1, RECORD_SEPARATOR, TYPE_ACK, TYPE_CANCEL_INVOCATION, TYPE_CLOSE,
    TYPE_COMPLETION, TYPE_INVOCATION, TYPE_PING, TYPE_SEQUENCE, TYPE_STREAM_INVOCATION, TYPE_STREAM_ITEM, integer_of,
    length_read, next_record, parse, text_of,
)
from vibemq.protocols.signalr.publisher cimport HubPublisher
from vibemq.protocols.signalr.subscriptions cimport Subscriptions
from vibemq.protocols.signalr.transports cimport Transport
from vibemq.protocols.signalr.websocket cimport CLOSE_INTERNAL_ERROR, CLOSE_NORMAL, CLOSE_POLICY_VIOLATION
from vibemq.protocols.signalr.wire cimport (
    ENCODING_JSON, ENCODING_MESSAGEPACK, bytes_of, put, span, span_of, varint_put, varint_size,
)
from vibemq.storage cimport core

from vibemq.broker.admission import Ended, check_access, log_closing
from vibemq.errors import ConnectionClosed, LimitExceeded, ProtocolError
from vibemq.protocols.signalr import commands, records, spec
from vibemq.protocols.signalr.codec import texts_of
from vibemq.protocols.signalr.invocations import Call, Invocations
from vibemq.protocols.signalr.reconnect import Replay
from vibemq.protocols.signalr.records import group_decode, value_of
from vibemq.protocols.signalr.spec import ENCODING_BY_NAME, LONG_POLLING, NOTHING, ErrorCode
from vibemq.once_a_minute import OnceAMinute

logger = logging.getLogger(__name__)
faults = OnceAMinute(logger, logging.ERROR)

cdef size_t HANDSHAKE_BYTES_MAX = spec.HANDSHAKE_BYTES_MAX

cdef enum:
    WAITING_BYTES_MAX = 1 << 20
    # Of a stateful peer that acknowledges too little: calls that wait for it, and answers that are kept for it.
    HELD_BACK_BYTES_MAX = 16 << 20
    FAILED_CALL_DELAY_MS = 1000  # a peer without a handler would have a message's attempts used up at once

ENDINGS = {
    Ended.LOGIN_NEEDED: "Username and password are required.",
    Ended.DELETED: "This user was deleted.",
    Ended.EXPIRED: "The token has expired.",
}


cdef class HubConnection:
    def __init__(self, door, str token, ClientSession session not None, request, bint wants_stateful):
        """`session`: whose request asks for it."""
        self.door, self.token, self.peer_address = door, token, session.peer_address
        self.wants_stateful = wants_stateful
        self.connection_id, self.kind = secrets.token_urlsafe(spec.CONNECTION_ID_BYTES), ""
        self.is_alpha2 = request.query.get("dialect") == "alpha2"
        self.client = Client(self, door.broker, door.config.unconfirmed_max)
        self.client.user, self.client.access = session.client.user, session.client.access
        self.queues = door.broker.queues
        self.publishers, self.feeds = {}, {}
        self.subscriptions, self.calls = Subscriptions(self), Invocations(self)
        self.unfinished, self.held = bytearray(), []
        self.record_max = door.config.message_max_bytes
        self.opened_ms = self.heard_ms = self.written_ms = self.lost_ms = self.queues.now_ms

    @property
    def peer(self) -> str:
        return f"hub connection {self.connection_id}" if self.transport is None else self.transport.peer

    @property
    def carries_binary(self) -> bool:
        return self.transport is None or self.transport.carries_binary

    @property
    def ending(self) -> bool:
        return self.closed

    # ---- transports ----

    def attach(self, Transport transport not None):
        """The first transport, or the next one of a stateful reconnect."""
        previous, self.transport, self.kind = self.transport, transport, transport.name
        if transport.name == LONG_POLLING:
            self.polls = transport
        self.stop_waiting()
        self.is_paused = self.is_shutting_down = False  # maintenance may be over
        self.acked_ms = self.queues.now_ms
        if self.is_open and self.dialect == DIALECT_V1 and self.encoding == ENCODING_MESSAGEPACK \
                and not transport.carries_binary:
            return self.protocol_error(spec.transport_not_binary("messagepack"))
        if self.replay is None:
            for record, is_text in self.held:
                self._write(bytes(record), is_text)
            self.held.clear()
        else:
            if previous is not None and previous is not transport:
                self._socket_lost()
                previous.end(CLOSE_NORMAL, "")
            self._send(records.sequence(self.encoding, TYPE_SEQUENCE, self.replay.first), False)
            for record in list(self.replay.unacked):
                self._write(record, self.encoding == ENCODING_JSON)
        self._pause_or_resume()
        self.subscriptions.room_again()

    def lost(self, Transport transport, str why):
        """This transport's socket is gone: it ends, or waits for another."""
        if transport is self.transport and not self.closed:
            self.transport = None
            if self.replay is None or self.is_shutting_down:
                self._over(why, True)
            else:
                self._socket_lost()
        if self.closed or not self.wants_stateful:
            self.door.drop(self)
        else:
            self.wait()

    def leave(self, str why):
        """It ends without its peer."""
        cdef Transport transport = self.polls if self.closed else self.transport
        if transport is not None:
            transport.end(CLOSE_NORMAL, why)
        if not self.closed:
            self._over(why, True)
        self.door.drop(self)

    def wait(self):
        """Without a socket from now on, for disconnect_timeout_s."""
        self.expires_ms = self.door.now_ms() + <int64_t> self.door.config.disconnect_timeout_s * 1000
        self.door.begin_to_wait(self)

    def stop_waiting(self):
        self.expires_ms = 0
        self.door.stop_waiting(self)

    def look(self, int64_t now_ms):
        """For one that has no socket which would do it."""
        if self.expires_ms and now_ms >= self.expires_ms:
            self.leave("its peer has not come back")
        else:
            self.tick(now_ms)

    def _socket_lost(self):
        """A stateful connection waits for its next socket; what was half here comes again."""
        self.unfinished.clear()
        self.replay.lost()
        self.lost_ms = self.queues.now_ms

    def close(self, str error=None, bint allow_reconnect=False, int code=CLOSE_NORMAL, str reason=""):
        """Tell the peer, if its dialect has words for it, and end.

        Behind a Close record the socket closes with 1000: of any other code .NET clients show nothing of the record.
        """
        cdef Transport transport = self.transport
        if self.closed:
            return
        if self.say_close(error, allow_reconnect):
            code = CLOSE_NORMAL
        else:
            reason = error or reason
        self._over(error or reason, False)
        if transport is not None:
            transport.end(code, reason)

    def say_close(self, str error, bint allow_reconnect) -> bool:
        """Write a Close record.  False: the peer's dialect has none, or nothing reaches it."""
        if not self.is_open or self.dialect != DIALECT_V1 or self.transport is None:
            return False
        self._send(records.close(self.encoding, error, allow_reconnect), False)
        return True

    def protocol_error(self, str text):
        """The peer does what the protocol does not allow, and nobody knows what it would mean next."""
        log_closing(self, "closed", "closed: %s", text)
        self.close(spec.closed_with_error(f"InvalidDataException: {text}"), True, CLOSE_INTERNAL_ERROR)

    def fail(self, problem):
        """End the connection at its next turn: for those who are in the middle of telling many."""
        if isinstance(problem, (ConnectionClosed, LimitExceeded, ProtocolError)):
            self.give_up(f"{problem}.")
            return
        faults.say_fault(problem, "%s: hub connection closed by an error of ours", self.peer)
        error = spec.closed_with_error()
        self.queues.timers.timer(lambda _: self.close(error, True, CLOSE_INTERNAL_ERROR)).set(0)

    def give_up(self, str text):
        """As ``fail``, where it is the peer's doing."""
        if self.is_given_up or self.closed:
            return
        self.is_given_up = True
        log_closing(self, "given up", "closed: %s", text)
        error = spec.closed_with_error(f"InvalidOperationException: {text}")
        self.queues.timers.timer(lambda _: self.close(error, True, CLOSE_INTERNAL_ERROR)).set(0)

    def _over(self, str why, bint was_lost):
        """Give everything back.  `was_lost`: without a goodbye, so what was in flight may have been what went wrong."""
        self.closed, self.is_open, self.was_lost = True, False, was_lost
        self.client.broker.limits.leave(self.client)
        logger.debug("%s: over: %s", self.peer, why)
        for publisher in list(self.publishers.values()):
            publisher.close()
        self.publishers.clear()
        self.publisher_cached = None
        self.subscriptions.close()
        self.calls.close()
        self.transport = None
        self.held.clear()
        self.unfinished = bytearray()
        if self.polls is None or self.is_left:
            self.door.drop(self)
        else:  # what polls have not yet fetched is kept for them
            self.is_left = True
            self.wait()

    # ---- receive ----

    cdef int receive(self, const uint8_t *data, size_t size) except -1:
        cdef Py_ssize_t used = 0
        cdef bytearray whole
        if self.closed:
            return 0
        self.has_heard = True
        try:
            if not self.unfinished:
                used = self._take(data, size)
            elif self._may_end(data, size):
                whole, self.unfinished = self.unfinished + (<const char *> data)[:size], bytearray()
                data, size = <const uint8_t *> <char *> whole, len(whole)
                used = self._take(data, size)
            if <size_t> used < size and not self.closed:
                if len(self.unfinished) + size - used > self.record_max + 8:
                    raise LimitExceeded("hub message: bytes", len(self.unfinished) + size - used, self.record_max)
                self.unfinished += (<const char *> data)[used:size]
        except (ProtocolError, LimitExceeded) as problem:
            self.protocol_error(str(problem))
        return 0

    cdef bint _may_end(self, const uint8_t *data, size_t size) except -1:
        """Does the record that has begun end in these bytes?  One in very many pieces is searched and copied once."""
        cdef size_t at, length
        if not self.is_open or self.encoding == ENCODING_JSON:
            return memchr(data, RECORD_SEPARATOR, size) != NULL
        at = length_read(<const uint8_t *> <char *> self.unfinished, len(self.unfinished), &length)
        return not self.carries_binary or at == 0 or len(self.unfinished) + size >= at + length

    cdef Py_ssize_t _take(self, const uint8_t *data, size_t size) except -1:
        """Act upon the whole records at the front; the bytes that they take."""
        cdef Py_ssize_t used = 0
        if not self.is_open:
            used = self._handshake(data, size)
            if used == 0 or self.closed:
                return size if self.closed else 0
        if self.encoding == ENCODING_JSON or self.transport is None or self.transport.carries_binary:
            return used + self._records(data + used, size - used)
        found, taken = group_decode((<const char *> data)[used:size], self.record_max)
        if self._records(<const uint8_t *> <const char *> found, len(found)) != <Py_ssize_t> len(found):
            raise ProtocolError("A group does not hold whole records.")
        return used + taken

    cdef Py_ssize_t _records(self, const uint8_t *data, size_t size) except -1:
        cdef size_t at = 0
        cdef Py_ssize_t used
        cdef span body
        while at < size:
            used = next_record(data + at, size - at, self.encoding, self.record_max, &body)
            if used == 0:
                return at
            self._one(body.data, body.size)
            if self.closed:
                return size
            at += used
        return at

    cdef Py_ssize_t _handshake(self, const uint8_t *data, size_t size) except -1:
        cdef const uint8_t *end = <const uint8_t *> memchr(data, RECORD_SEPARATOR, min(size, HANDSHAKE_BYTES_MAX))
        if end == NULL:
            if size >= HANDSHAKE_BYTES_MAX:
                raise LimitExceeded("handshake: bytes", size, HANDSHAKE_BYTES_MAX)
            return 0
        self._shake_hands((<const char *> data)[:end - data])
        return end - data + 1

    def _shake_hands(self, bytes record):
        """Open the connection, or end it.  Raises ProtocolError when this is no handshake."""
        shake = records.parse_handshake(record)
        encoding = ENCODING_BY_NAME.get(shake.protocol)
        error = None
        if encoding is None:
            error = spec.protocol_not_supported(shake.protocol)
        elif shake.version is not None and not 0 <= shake.version <= spec.PROTOCOL_VERSION_MAX:
            error = spec.version_not_supported(shake.protocol, shake.version)
        elif shake.version is not None and encoding == ENCODING_MESSAGEPACK and not self.carries_binary:
            error = spec.transport_not_binary(shake.protocol)
        if error is not None:
            return self._reject(error if shake.version is not None else None)
        if shake.version is not None:
            self._write(records.handshake_answer(), True)
            if shake.version == spec.STATEFUL_VERSION and self.wants_stateful:
                self.replay = Replay()
        else:
            self.dialect = DIALECT_ALPHA2 if self.is_alpha2 else DIALECT_EARLY
        self.encoding, self.is_open = encoding, True

    def _reject(self, error):
        """The handshake comes to nothing; early peers (None) read no answer."""
        cdef Transport transport = self.transport
        log_closing(self, "handshake", "closed in the handshake: %s", error or "not supported")
        if error is not None:
            self._write(records.handshake_answer(error), True)
        self._over("handshake", False)
        if transport is not None:
            transport.end(CLOSE_INTERNAL_ERROR if error is None else CLOSE_NORMAL, error or "")

    cdef int _one(self, const uint8_t *body, size_t size) except -1:
        cdef hub_message m
        parse(body, size, self.encoding, self.dialect, &m)
        if self.replay is not None and not self.replay.takes(m.type):
            return 0
        if m.type == TYPE_INVOCATION or m.type == TYPE_STREAM_INVOCATION:
            return self._invoked(&m)
        if m.type == TYPE_STREAM_ITEM:
            upload = self.calls.uploads.get(bytes_of(m.id))
            if upload is not None:
                upload.item(bytes_of(m.payload))
        elif m.type == TYPE_COMPLETION:
            return self._completed(&m)
        elif m.type == TYPE_CANCEL_INVOCATION:
            self.calls.cancel(bytes_of(m.id))
        elif m.type == TYPE_PING:
            self.has_pinged = True
        elif m.type == TYPE_CLOSE:
            self.close()
        elif self.replay is not None:
            if m.type == TYPE_SEQUENCE:
                self.replay.goes_on_with(m.sequence)
            elif m.type == TYPE_ACK:
                self._acknowledged(m.sequence)
        return 0

    def _acknowledged(self, int64_t number):
        self.replay.acknowledged(number)
        self.acked_ms = self.queues.now_ms
        if self.was_full and not self.holds_back():
            self.was_full = False
            self.subscriptions.room_again()
            self.calls.go_on()
            self._pause_or_resume()

    def _is_full(self):
        """The peer must acknowledge before it is sent more, so whatever it sends is read."""
        if not self.was_full:
            self.was_full, self.acked_ms = True, self.queues.now_ms
            self._pause_or_resume()
        if self.replay.bytes > HELD_BACK_BYTES_MAX:
            self.give_up(f"More than {HELD_BACK_BYTES_MAX} bytes were sent and never acknowledged.")

    cdef int _completed(self, const hub_message *m) except -1:
        """The end of an upload, or the result of what we have called."""
        id = bytes_of(m.id)
        upload = self.calls.uploads.get(id)
        if upload is not None:
            upload.end(bytes_of(m.error).decode(errors="replace") if m.has_error else None)
        elif self.subscriptions.in_flight.count:
            # Whatever a handler returns is well, but for false.
            false = b"false" if self.encoding == ENCODING_JSON else b"\xc2"
            well = not m.has_error and not (m.has_payload and bytes_of(m.payload) == false)
            if id.startswith(b"d") and id[1:].isdigit() and len(id) < 18:  # late answers come to nothing
                delay_ms = FAILED_CALL_DELAY_MS if m.has_error else 0
                self.subscriptions.settle([int(id[1:])], False, not well, True, delay_ms)
        return 0

    cdef int _invoked(self, const hub_message *m) except -1:
        if m.type == TYPE_INVOCATION and m.stream_ids.size == 0 and not self.working:
            if m.target.size == 7 and memcmp(m.target.data, b"Publish", 7) == 0:
                return self._publish(m)
            if m.target.size == 3 and memcmp(m.target.data, b"Ack", 3) == 0:
                return self._settle(m, False)
            if m.target.size == 4 and memcmp(m.target.data, b"Nack", 4) == 0:
                return self._settle(m, True)
        return self._call(m)

    cdef int _call(self, const hub_message *m) except -1:
        """What Python decides."""
        uploads = texts_of(bytes_of(m.stream_ids), self.encoding) if m.stream_ids.size else ()
        id = bytes_of(m.id) if m.has_id and not m.nonblocking else None
        name = bytes_of(m.target).decode(errors="replace")
        is_stream = m.type == TYPE_STREAM_INVOCATION
        self.calls.begin(Call(self, id, name, bytes_of(m.arguments), m.argument_count, is_stream), uploads)
        return 0

    cdef int _publish(self, const hub_message *m) except -1:
        """A Publish into a queue that is known, if this user may.  Whatever is unusual goes through Python."""
        cdef span name
        cdef HubPublisher publisher
        if m.argument_count != 2 or self.holds_back() or not text_of(m.first[0], self.encoding, &name):
            return self._call(m)
        publisher = self.publisher_cached
        if publisher is None or len(publisher.name) != <Py_ssize_t> name.size \
                or memcmp(<char *> publisher.name, name.data, name.size) != 0:
            publisher = self.publishers.get(bytes_of(name))
            if publisher is None:
                return self._call(m)
            self.publisher_cached = publisher
        if publisher.generation != self.queues.access_generation \
                or core.control_is_deleted(publisher.stream.log.control):
            return self._call(m)
        return publisher.publish(m.id if m.has_id and not m.nonblocking else span_of(NULL, 0), m.first[1],
                                 m.has_escapes, None, 0)

    cdef int _settle(self, const hub_message *m, bint nack) except -1:
        """An Ack or Nack of one tag or an array of them, without options."""
        cdef int64_t tag = 0
        if m.argument_count != 1:
            return self._call(m)
        if integer_of(m.first[0], self.encoding, &tag):
            tags = [tag]
        else:
            try:
                tags = value_of(bytes_of(m.first[0]), self.encoding)
            except ProtocolError:
                return self._call(m)
            if type(tags) is not list or not all([type(one) is int for one in tags]):
                return self._call(m)
        settled = self.subscriptions.settle(tags, False, nack, True, 0)
        if m.has_id and not m.nonblocking:
            self.answer(records.completion, bytes_of(m.id), settled)
        return 0

    def keep_published(self):
        """Have all that was published so far in the logs, so that the next method finds it there."""
        cdef HubPublisher publisher
        if self.has_published:
            self.has_published = False
            for publisher in list(self.publishers.values()):
                if publisher.stream.batch != NULL:
                    publisher.stream.persist()

    def forget_publisher(self, bytes name, publisher):
        if self.publishers.get(name) is publisher:
            del self.publishers[name]
        if self.publisher_cached is publisher:
            self.publisher_cached = None

    # ---- what is written ----

    cdef uint8_t *room_for(self, size_t size, bint is_text, bint is_numbered) except NULL:
        self.latest_size, self.latest_is_numbered, self.has_written = size, is_numbered, True
        if self.transport is not None:
            self.latest = self.transport.reserve(size, is_text)
        else:
            self.kept = bytearray(size)  # of a stateful connection nobody needs it: what attach() sends is the replay
            self.latest = <uint8_t *> <char *> self.kept
            if self.replay is None and self.held_size + size > self.record_max:
                # No exception: whoever writes may be a timer, or a queue that tells many.
                self.give_up(f"More than {self.record_max} bytes of answers wait for the first transport.")
            elif self.replay is None:
                self.held_size += size
                self.held.append((self.kept, is_text))
        return self.latest

    cdef uint8_t *record(self, size_t size) except NULL:
        return self._framed(size, True)

    cdef uint8_t *_framed(self, size_t size, bint is_numbered) except NULL:
        cdef uint8_t *p
        if self.encoding == ENCODING_JSON:
            p = self.room_for(size + 1, True, is_numbered)
            p[size] = RECORD_SEPARATOR
            return p
        return varint_put(self.room_for(varint_size(size) + size, False, is_numbered), size)

    cdef int written(self) except -1:
        if self.replay is not None and self.latest_is_numbered:
            self.replay.keep((<const char *> self.latest)[:self.latest_size])
            if self.replay.is_full:
                self._is_full()
        return 0

    cdef int _write(self, bytes record, bint is_text) except -1:
        """`record` with its framing, which is not numbered now."""
        put(self.room_for(len(record), is_text, False), <const char *> record, len(record))
        return 0

    cdef int _send(self, bytes record, bint is_numbered) except -1:
        put(self._framed(len(record), is_numbered), <const char *> record, len(record))
        return self.written()

    def answer(self, write, bytes id, *more):
        """To a call, as one of records' functions writes it: completion, stream_item or stream_end.

        `id`: None when nobody waits for an answer."""
        if id is not None:
            self._send(write(self.dialect, self.encoding, id.decode(), *more), True)

    def refuse(self, bytes id, str method, code, text):
        if not self.closed:
            error = spec.hub_exception(spec.invoking(method), f"{code}: {text}", self.dialect)
            self.answer(records.completion, id, NOTHING, error)

    def count_waiting(self, Py_ssize_t more):
        """Calls and items of uploads, for a helper thread or the next turn."""
        self.waiting_bytes += more
        self.crowded = self.waiting_bytes > (WAITING_BYTES_MAX // 2 if self.crowded else WAITING_BYTES_MAX)
        if more > 0 and self.waiting_bytes > HELD_BACK_BYTES_MAX and self.holds_back():
            self.give_up(f"More than {HELD_BACK_BYTES_MAX} bytes of calls wait for acknowledgements of what was sent.")
        self._pause_or_resume()

    def hold(self, unsigned int reason, bint holds):
        """Too much of it waits in the broker, or no longer."""
        self._pause_or_resume()

    def _pause_or_resume(self):
        """Calls that wait because a stateful peer acknowledged too little go on with its next Ack, so it is read."""
        cdef bint wants_pause = self.is_shutting_down or self.client.held != 0 \
            or (self.crowded and not self.holds_back())
        if self.transport is not None and wants_pause != self.is_paused:
            self.is_paused = wants_pause
            self.transport.hold(wants_pause)

    def send_off(self, why):
        text = ENDINGS[why]
        text = spec.closed_with_error(f"HubException: {ErrorCode.NOT_AUTHORIZED}: {text}")
        self.close(text, why is Ended.EXPIRED, CLOSE_POLICY_VIOLATION)  # with another token it may come again

    def rights_changed(self):
        """Subscriptions that they do not cover end, and each queue is asked for again."""
        cdef HubPublisher publisher
        for publisher in self.publishers.values():
            publisher.generation = -1
        for way in list(self.subscriptions.by_id.values()):
            if not commands.may_read(self, way.name, way.is_stream):
                way.revoke()

    def has_room(self) -> bool:
        return self.room()

    cpdef bint holds_back(self):
        """Has the peer of a stateful connection acknowledged too little to be sent more?"""
        return self.replay is not None and self.replay.is_full

    cdef bint room(self) noexcept:
        if self.transport is None or self.is_shutting_down or self.holds_back():
            return False
        return self.transport.room()

    # ---- time ----

    cdef int tick(self, int64_t now_ms) except -1:
        config = self.door.config
        if self.closed:
            return 0
        if self.has_heard or self.is_paused:
            self.has_heard, self.heard_ms = False, now_ms
        if self.has_written:
            self.has_written, self.written_ms = False, now_ms
        self.subscriptions.end_pulls()
        if not self.is_open:
            if now_ms - self.opened_ms > config.handshake_timeout_s * 1000:
                self._reject(spec.HANDSHAKE_CANCELED)
        elif self.transport is None:
            if now_ms - self.lost_ms > config.disconnect_timeout_s * 1000:
                self._over("did not come back", True)
        elif not check_access(self.client):
            return 0
        elif self.dialect != DIALECT_V1:
            self.beat(now_ms)
        else:
            if self.has_pinged and now_ms - self.heard_ms > config.client_timeout_s * 1000:
                log_closing(self, "silent", "silent for %d s, closed", config.client_timeout_s)
                self.close(spec.closed_with_error("TimeoutException: The client has not sent anything for "
                                                  f"{config.client_timeout_s} s."), True, CLOSE_INTERNAL_ERROR)
                return 0
            if self.replay is not None:
                if self.holds_back() and now_ms - self.acked_ms > config.stateful_ack_timeout_s * 1000:
                    self.give_up("Nothing was acknowledged for "
                                 f"{config.stateful_ack_timeout_s} s, with all sent that is kept for a reconnect.")
                    return 0
                told = self.replay.to_tell()
                if told:
                    self._send(records.sequence(self.encoding, TYPE_ACK, told), False)
            self.beat(now_ms)
        return 0

    cdef int beat(self, int64_t now_ms) except -1:
        """Send a keep-alive if nothing was sent during the interval."""
        if self.closed or not self.is_open or self.transport is None:
            return 0
        if self.has_written:
            self.has_written, self.written_ms = False, now_ms
        if now_ms - self.written_ms < self.door.config.keepalive_interval_s * 1000:
            return 0
        if self.dialect != DIALECT_V1:
            self.written_ms = now_ms
            self.transport.keep_alive()  # the dialect has no pings
        elif self.transport.name != LONG_POLLING:
            self._send(records.ping(self.encoding), False)
        return 0

    cpdef int shutdown(self) except -1:
        """At every tick while the broker ends: confirm, then send off, without an error: at one pysignalr would end."""
        self.is_shutting_down = True
        if self.client.unconfirmed or self.working:
            self._pause_or_resume()
        elif not self.closed:
            if self.is_paused and self.transport is not None:
                self.transport.hold(False)  # the peer's own close is read
            self.close(None, True, reason=spec.SERVER_SHUTTING_DOWN)
        return 0
