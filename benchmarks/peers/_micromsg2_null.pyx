# SPDX-License-Identifier: Apache-2.0
"""The null server of MicroMsg2.

It acknowledges what a read brought, hands each message on, to all subscribers of a topic or to the newest of a queue,
and keeps nothing: of messages without a subscriber it knows how many there were, and the last. That one is what a later
subscriber gets, so many times. Windows count: where a subscriber has a full one, publishers wait.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t

from benchmarks.peers cimport _null
from vibemq.protocols.micromsg2.wire cimport (
    ACK_FRAME_BYTES, FRAGMENT_BYTES, FRAME_COMMAND, FRAME_EXTENSION, FRAME_MESSAGE, PARSE_NEEDS_MORE, PARSE_OK,
    SEQUENCE_MAX, ack_frame_write, ack_number, frame_parse, message_frame_size, message_frame_write, mm_frame,
)

from vibemq.protocols.micromsg2 import extensions
from vibemq.protocols.micromsg2.codec import decode_handshake, encode_command, encode_handshake, parse_command
from vibemq.protocols.micromsg2.spec import TOPIC_PREFIX, WINDOW_MAX, ExtensionName

cdef enum:
    OUTBOX_SIZE_MAX = 1 << 19   # of a subscriber without acknowledgements

SUPPORTED = frozenset(ExtensionName)


cdef class Connection(_null.Connection):
    cdef object c1, s1          # of the handshake, until it is over
    cdef bint is_open
    cdef int ack_id
    cdef int64_t window, sent, acked    # of what it is sent; a window of 0: no acknowledgements
    cdef uint16_t received      # the number that it sent last
    cdef bint owed              # ... and that has no answer yet
    cdef bytes destination      # what it has subscribed to

    cdef bint has_room(self) noexcept:
        if self.window:
            return self.sent - self.acked < self.window
        return self.outbox.end < OUTBOX_SIZE_MAX

    cdef int deliver(self, const mm_frame *f) except -1:
        cdef size_t destination_size = len(self.destination)
        cdef uint16_t sequence = <uint16_t>(self.sent % SEQUENCE_MAX + 1)
        message_frame_write(
            self.out(message_frame_size(destination_size, f.properties_size, f.payload_size)), sequence,
            <const char *>self.destination, destination_size, f.properties, f.properties_size, f.payload,
            f.payload_size, False,
        )
        self.sent += 1
        return 0

    cdef void acknowledged(self, int64_t number) noexcept:
        """The oldest that waits has the number acked % SEQUENCE_MAX + 1."""
        cdef int64_t count = (number - 1 - self.acked % SEQUENCE_MAX + SEQUENCE_MAX) % SEQUENCE_MAX + 1
        if count <= self.sent - self.acked:
            self.acked += count


cdef class Server(_null.Server):
    kind = Connection

    cdef bint is_topic
    cdef int64_t backlog
    cdef bytes kept             # the frame of the last message that nobody was there for

    cdef bint has_work(self) except -1:
        """What a subscriber's full window holds back needs an acknowledgement; what its outbox does, only a turn."""
        return self.backlog != 0 and self.has_room()

    cdef int turn(self) except -1:
        cdef Connection c
        cdef mm_frame frame
        if self.backlog and self.subscribers:
            c = self.newest()
            frame_parse(<const uint8_t *><const char *>self.kept, len(self.kept), FRAGMENT_BYTES, &frame)
            while self.backlog and c.has_room():
                c.deliver(&frame)
                self.backlog -= 1
        for c in list(self.connections.values()):
            if c.inbox.end and not self.take(c):
                self.drop(c.fd)
        for c in self.connections.values():
            if c.owed:
                ack_frame_write(c.out(ACK_FRAME_BYTES), <uint8_t>c.ack_id, c.received)
                c.owed = False
        return _null.Server.turn(self)

    cdef Connection newest(self):
        return self.subscribers[len(self.subscribers) - 1]

    cdef bint has_room(self) noexcept:
        """Of all who get the next message."""
        cdef Connection c
        if not self.subscribers:
            return False
        if not self.is_topic:
            return self.newest().has_room()
        for c in self.subscribers:
            if not c.has_room():
                return False
        return True

    cdef bint take(self, _null.Connection connection) except -1:
        """Whole frames, as long as there is room for what they bring; False: the connection is to end."""
        cdef Connection c = connection
        cdef mm_frame frame
        cdef int found
        if not c.is_open and not self.shake(c):
            return True
        while True:
            found = frame_parse(c.inbox.data + c.inbox.begin, c.inbox.end - c.inbox.begin, FRAGMENT_BYTES, &frame)
            if found != PARSE_OK:
                break
            if frame.kind == FRAME_MESSAGE:
                if self.subscribers and (self.backlog or not self.has_room()):
                    return True
                self.message(c, &frame)
            elif frame.kind == FRAME_EXTENSION:
                if frame.extension == c.ack_id:
                    c.acknowledged(ack_number(&frame))
            elif frame.kind == FRAME_COMMAND:
                self.command(c, parse_command((<const char *>frame.payload)[: frame.payload_size]))
            c.inbox.begin += frame.size
        return found == PARSE_NEEDS_MORE

    cdef int message(self, Connection c, const mm_frame *frame) except -1:
        cdef Connection subscriber
        if not self.subscribers:
            self.backlog += 1
            if self.backlog == 1:
                self.kept = (<const char *>c.inbox.data)[c.inbox.begin : c.inbox.begin + frame.size]
        elif self.is_topic:
            for subscriber in self.subscribers:
                subscriber.deliver(frame)
        else:
            self.newest().deliver(frame)
        c.received, c.owed = frame.sequence, c.ack_id != 0
        return 0

    # ---- what is rare ----

    cdef bint shake(self, Connection c) except -1:
        """The handshake; True when it is over."""
        found = decode_handshake((<const char *>c.inbox.data)[c.inbox.begin : c.inbox.end])
        if found is None:
            return False
        message, used = found
        c.inbox.begin += used
        if c.c1 is None:
            c.c1, c.s1 = message, extensions.negotiate_server(message, supported=SUPPORTED)
            c.answer(encode_handshake(extensions.handshake_of(c.s1)))
            return self.shake(c)
        agreed = extensions.check_c2(c.c1, c.s1, message, supported=SUPPORTED, window_max=WINDOW_MAX)
        c.ack_id, c.window, c.is_open = agreed.ack_id, agreed.window, True
        return True

    def command(self, Connection c, command):
        pairs = dict(command.pairs)
        answer = {"id": pairs["id"]}
        if command.name == "subscribe":
            c.destination = pairs["destination"].encode()
            self.is_topic = pairs["destination"].startswith(TOPIC_PREFIX)
            self.subscribers.append(c)
        elif command.name == "info":
            in_flight = sum([(<Connection>one).sent - (<Connection>one).acked for one in self.subscribers if (<Connection>one).ack_id])
            answer |= {"messages": self.backlog, "in-flight": in_flight, "consumers": len(self.subscribers)}
        else:
            self.backlog = 0
        c.answer(encode_command("ok", answer))
