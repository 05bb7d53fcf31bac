# SPDX-License-Identifier: Apache-2.0
"""One MicroMsg2 connection: messages in and acknowledged, messages out and settled.

MESSAGE frames and acknowledgements are acted upon in place and make no Python object (of a destination that is known;
the first message opens it).  The handshake goes to ``handshake.take``, commands to ``commands.handle``: plain Python.
The life of a message through here: ``ReceiveWindow.take`` counts it; ``Micromsg2Publisher.publish`` lays it into its
queue's batch; when that is kept the window learns it, and ``deliver`` acknowledges, once a turn, all that lies before
the first open one.  The queue's home picks a ``Subscription`` (window.pyx), whose ``write`` puts the MESSAGE into the
outbox and the delivery into the ``SendWindow``; the peer's acknowledgement settles it with all before it.
Protocol: README.md beside this file.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy
from vibemq.broker.client cimport QueueSession
from vibemq.broker.publisher cimport ROOM, SERVER_ERROR, QueuePublisher
from vibemq.broker.queue cimport Queue
from vibemq.broker.queue_table cimport QueueTable
from vibemq.broker.stream cimport Stream
from vibemq.net.connection cimport Connection
from vibemq.net.door cimport PAUSE_ENDING
from vibemq.protocols.micromsg2.properties cimport message_write
from vibemq.protocols.micromsg2.window cimport (
    DUPLICATE, OVERRUN, Outlet, ReceiveWindow, Sender, SendWindow, Subscription, TopicReader,
)
from vibemq.protocols.micromsg2.wire cimport (
    ACK_FRAME_BYTES, FRAME_COMMAND, FRAME_EXTENSION, FRAME_MESSAGE, PARSE_NEEDS_MORE, PARSE_OK, PARSE_TOO_LARGE,
    ack_frame_write, ack_number, frame_parse, mm_frame,
)
from vibemq.storage cimport core
from vibemq.storage.core cimport OK

from functools import partial

from vibemq.broker.admission import check_access
from vibemq.protocols.micromsg2 import commands, handshake
from vibemq.protocols.micromsg2.codec import encode_error, malformed
from vibemq.protocols.micromsg2.spec import (
    HANDSHAKE_HEAD_BYTES, HANDSHAKE_LIST_BYTES_MAX, IDENTITY_BYTES_MAX, SHARP_PAYLOAD_BYTES_MAX,
    SHARP_PAYLOAD_BYTES_MAX_SERIALIZED, ErrorCode,
)

cdef enum:
    CONTROLS_PER_TURN = 32        # what Python decides costs tens of microseconds: the loop's millisecond
    DOTNET_TYPE_BYTES_MAX = 4096  # it is stored with each message
    HEARTBEATS_MISSED_MAX = 3     # of a peer that has promised them
    NOTE_BYTES = 8

cdef size_t HANDSHAKE_BYTES_MAX = HANDSHAKE_HEAD_BYTES + IDENTITY_BYTES_MAX + 2 * (2 + HANDSHAKE_LIST_BYTES_MAX)

cdef class Micromsg2Session(QueueSession)


# ---- in ----


# One connection's way into one queue or stream, by the destination that its messages name.  What is noted for a message
# is its place in the receive window; without acknowledgements nothing is.  A message that is refused is out of the
# window's way as well, because acknowledgements are cumulative; the ERROR that says so is written before any of them.
cdef class Micromsg2Publisher(QueuePublisher):
    cdef Micromsg2Session session
    cdef readonly bytes destination

    def __init__(self, Micromsg2Session session, Stream stream not None, Queue queue, bytes name, bytes destination):
        """`queue`: None where the stream is none."""
        self.session, self.client, self.destination = session, session.client, destination
        self.generation = -1  # its first message asks whether it is allowed
        self.begin(stream, queue, name)

    cdef int publish(self, const mm_frame *message, bytes dotnet_type, uint64_t index) except -1:
        """1 when that took Python.  `index` is its place in the receive window; 0 without acknowledgements."""
        cdef uint8_t *entry = NULL
        cdef int room = self.room_for(1)  # first: making room may use the memory that the entry is written into
        cdef size_t size = message_write(message.properties, message.properties_size, message.payload,
                                         message.payload_size, self.session.out.type_data, self.session.out.type_size,
                                         dotnet_type, &entry)
        if room == ROOM:
            return self._append(entry, size, index)
        self.put_off((index, (<const char *> entry)[:size]), size, room)
        return 1

    cdef int _append(self, const uint8_t *entry, size_t size, uint64_t index) except -1:
        if self.add(entry, <uint32_t> size, 1, None, 0) != OK:
            return self._refuse(index, SERVER_ERROR, b"out of memory")
        if index:
            memcpy(self.note(NOTE_BYTES), &index, NOTE_BYTES)
        return 0

    cdef int _refuse(self, uint64_t index, bytes code, bytes text) except -1:
        self.session.refuse_message(index, code.decode(), text.decode(errors="replace"), self.destination)
        return 0

    # ---- what became of it ----

    cdef int confirm(self, const uint8_t *notes, size_t size, uint64_t first_offset, bint offsets_known) except -1:
        cdef uint64_t index
        cdef size_t at
        for at in range(0, size, NOTE_BYTES):
            memcpy(&index, notes + at, NOTE_BYTES)
            self.session.kept(index)
        return 0

    cdef int refuse_notes(self, const uint8_t *notes, size_t size, bytes code, bytes text) except -1:
        cdef uint64_t index
        cdef size_t at
        if size == 0:  # without acknowledgements: one word for all of them
            return self._refuse(0, code, text)
        for at in range(0, size, NOTE_BYTES):
            memcpy(&index, notes + at, NOTE_BYTES)
            self._refuse(index, code, text)
        return 0

    cdef int forget(self) except -1:
        self.session.forget_publisher(self.destination, self)
        return 0

    # ---- a full queue: what is put off is (index, entry) ----

    cdef int publish_parked(self, object what) except -1:
        cdef bytes entry = what[1]
        return self._append(<const uint8_t *> <char *> entry, len(entry), what[0])

    cdef int refuse_parked(self, object what, bytes code, bytes text) except -1:
        return self._refuse(what[0], code, text)

    cdef int redirect_parked(self, object what) except -1:
        cdef bytes entry = what[1]
        return self.redirect(<const uint8_t *> <char *> entry, len(entry), what[0])

    def answer_redirected(self, indices, bint ok):
        for index in indices:
            if not ok:
                self._refuse(index, SERVER_ERROR, b"it could not be stored in the dead-letter queue")
            else:
                self.session.kept(index)


# ---- the connection ----


# Its publishers go by destinations, its subscriptions (Subscription or TopicReader) by the name of the queue or stream.
cdef class Micromsg2Session(QueueSession):
    cdef public object shake           # handshake.Shake, until the connection is open
    cdef readonly object agreed        # extensions.Agreed, from then on
    cdef public str identity           # what the peer calls itself
    cdef readonly bytes content_type   # of the serializer; None: payloads are opaque
    cdef readonly bint is_sharp        # the peer is SharpMessaging, which reads less than the protocol allows
    cdef readonly uint8_t ack_id, heartbeat_id
    cdef QueueTable queues
    # What comes in.
    cdef readonly uint32_t message_max # of one message, in one frame or in several
    cdef ReceiveWindow received
    cdef int64_t ack_delay_ms          # SharpMessaging: how long an incomplete window waits for its acknowledgement
    cdef object ack_timer
    cdef uint64_t ack_timer_index      # of the newest message when it was set
    cdef bytes dotnet_type             # of the messages that come; None: none was told
    cdef tuple part                    # what publish_whole() gets when the last frame has come; None: none is to come
    cdef Sender out                    # what goes out
    # Signs of life.
    cdef readonly int64_t heartbeat_ms # 0: none agreed
    cdef uint64_t heard_bytes, told_bytes
    cdef int64_t heard_ms, told_ms

    send_off, rights_changed = commands.send_off, commands.rights_changed

    def __init__(self, Connection connection, door):
        super().__init__(connection, door)
        self.queues = door.queues
        self.identity = ""
        self.message_max = door.config.message_max_bytes
        self.out, self.received = Sender(self, self.queues), ReceiveWindow(0)
        self.state, self.shake = handshake.FIRST_STEP, handshake.Shake()

    cdef int open(self) except -1:
        self.heard_ms = self.told_ms = self.queues.now_ms
        handshake.opened(self)
        return 0

    def agree(self, agreed, bint is_sharp):
        """The handshake is done: these extensions are active."""
        self.agreed, self.shake, self.is_sharp = agreed, None, is_sharp
        self.out.is_sharp = is_sharp
        self.state, self.deadline_ms = "open", 0
        if agreed.content_type:
            self.content_type = agreed.content_type.encode()
            self.out.type_data, self.out.type_size = self.content_type, <uint32_t> len(self.content_type)
        self.ack_id, self.out.dotnet_id, self.heartbeat_id = agreed.ack_id, agreed.dotnet_id, agreed.heartbeat_id
        self.heartbeat_ms = agreed.heartbeat_ms or 0
        if self.ack_id:
            self.out.window, self.received = SendWindow(agreed.window), ReceiveWindow(agreed.window, is_sharp)
        if is_sharp:
            self.out.payload_max = SHARP_PAYLOAD_BYTES_MAX_SERIALIZED if self.content_type else SHARP_PAYLOAD_BYTES_MAX
            if self.ack_id:
                self.ack_delay_ms = agreed.ack_delay_ms
                self.ack_timer = self.queues.timers.timer(self._ack_delayed)

    # ---- receive ----

    cdef Py_ssize_t receive(self, const uint8_t *data, size_t size) except -1:
        cdef size_t at = 0
        cdef size_t used
        cdef mm_frame frame
        cdef int fault
        cdef int controls = 0
        while at < size and not self.busy:
            if self.shake is not None:
                used = handshake.take(self, (<const char *> data)[at:at + min(size - at, HANDSHAKE_BYTES_MAX)])
                if used == 0:
                    break
                at += used
            else:
                fault = frame_parse(data + at, size - at, self.message_max, &frame)
                if fault == PARSE_NEEDS_MORE:
                    self.wanted = frame.size
                    break
                if fault != PARSE_OK:
                    code = ErrorCode.MESSAGE_TOO_LARGE if fault == PARSE_TOO_LARGE else ErrorCode.PROTOCOL_ERROR
                    self._wrong(code, str(malformed(fault, data[at], frame.payload_size, self.message_max)))
                    return size
                controls += self._frame(&frame)
                at += frame.size
                if controls >= CONTROLS_PER_TURN:
                    self.yield_turn()
            if self.connection.closing or self.connection.closed:
                return size
        return at

    cdef int _frame(self, const mm_frame *frame) except -1:
        """One whole frame; 1 when Python had to decide."""
        if frame.kind == FRAME_MESSAGE:
            return self._message(frame)
        if frame.continued:
            return self._wrong(ErrorCode.PROTOCOL_ERROR, "only messages may be continued")
        if frame.kind == FRAME_EXTENSION:
            return self._extension(frame)
        payload = (<const char *> frame.payload)[:frame.payload_size]
        if frame.kind == FRAME_COMMAND:
            commands.handle(self, payload)
        else:
            commands.told_error(self, payload)
        return 1

    cdef int _wrong(self, code, text) except -1:
        commands.protocol_error(self, code, text)
        return 1

    cdef int _message(self, const mm_frame *frame) except -1:
        cdef uint64_t index = 0
        cdef int arrival
        if self.ack_id:
            arrival = self.received.take(frame.sequence)
            if arrival == DUPLICATE:
                self._ack_write(self.received.again())
                return 1  # a look at a whole window, at worst
            if arrival == OVERRUN:
                waiting = self.received.unacknowledged
                return self._wrong(ErrorCode.WINDOW_OVERRUN, f"message {frame.sequence} came while {waiting} are "
                                   "unacknowledged, as many as were agreed; wait for the acknowledgement")
            index = self.received.index
            if self.ack_timer is not None:
                self.connection.want_turn()
        if self.part is not None or frame.continued:
            return self._fragment(frame, index)
        return self._publish(frame, index)

    cdef int _fragment(self, const mm_frame *frame, uint64_t index) except -1:
        """One of the frames of a large message; it is published with the last."""
        cdef bytes destination = (<const char *> frame.destination)[:frame.destination_size]
        cdef bytearray payload
        if self.part is None:
            properties = (<const char *> frame.properties)[:frame.properties_size]
            self.part = (destination, properties, bytearray(), self.dotnet_type)
        elif destination and destination != self.part[0]:
            return self._wrong(ErrorCode.PROTOCOL_ERROR,
                               "a message to another destination in the middle of a continued one")
        payload = self.part[2]
        if len(payload) + <size_t> frame.payload_size > self.message_max:
            return self._wrong(ErrorCode.MESSAGE_TOO_LARGE, f"needed at most {self.message_max} bytes in all frames of "
                               f"a message, had {len(payload) + frame.payload_size}")
        payload += (<const char *> frame.payload)[:frame.payload_size]
        if frame.continued:
            if index:
                self.kept(index)  # it is acknowledged like any frame, or a small window would never go on
            return 0
        part, self.part = self.part, None
        self.publish_whole(*part, index)
        return 1

    cdef int _publish(self, const mm_frame *message, uint64_t index) except -1:
        """A whole message, into its queue if this user may; 1 when that took Python."""
        cdef Micromsg2Publisher publisher = <Micromsg2Publisher> self.publisher_cached
        if publisher is None or <uint32_t> len(publisher.destination) != message.destination_size \
                or memcmp(<const char *> publisher.destination, message.destination, message.destination_size) != 0:
            publisher = self.publishers.get((<const char *> message.destination)[:message.destination_size])
            self.publisher_cached = publisher
        # One that is deleted: its doorbell may not have been heard yet, but whoever deleted it has had the answer.
        if publisher is None or core.control_is_deleted(publisher.stream.log.control):
            destination = (<const char *> message.destination)[:message.destination_size]
            properties = (<const char *> message.properties)[:message.properties_size]
            payload = (<const char *> message.payload)[:message.payload_size]
            commands.first_send(self, destination, index, partial(
                self.publish_whole, destination, properties, payload, self.dotnet_type, index))
            return 1
        if publisher.generation != self.queues.access_generation:
            if not commands.may_publish(self, publisher, index):
                return 1
            publisher.generation = self.queues.access_generation
        return publisher.publish(message, self.dotnet_type, index)

    def publish_whole(self, bytes destination, bytes properties, payload, bytes dotnet_type, uint64_t index):
        """A message that came before: a type that was told since is that of the next one."""
        cdef mm_frame message
        message.destination = <const uint8_t *> <const char *> destination
        message.destination_size = <uint32_t> len(destination)
        message.properties = <const uint8_t *> <const char *> properties
        message.properties_size = <uint32_t> len(properties)
        message.payload = <const uint8_t *> <const char *> payload
        message.payload_size = <uint32_t> len(payload)
        next_type, self.dotnet_type = self.dotnet_type, dotnet_type
        self._publish(&message, index)
        self.dotnet_type = next_type

    cdef int _extension(self, const mm_frame *frame) except -1:
        cdef int64_t number
        if self.ack_id and frame.extension == self.ack_id:
            number = ack_number(frame)
            if number < 0:
                return self._wrong(ErrorCode.PROTOCOL_ERROR,
                                   f"an acknowledgement has 2 octets, had {frame.payload_size}")
            return self.out.acknowledged(number)
        if self.out.dotnet_id and frame.extension == self.out.dotnet_id:
            if frame.payload_size > DOTNET_TYPE_BYTES_MAX:
                return self._wrong(ErrorCode.LIMIT_EXCEEDED, "the name of a .NET type has at most "
                                   f"{DOTNET_TYPE_BYTES_MAX} bytes, had {frame.payload_size}")
            self.dotnet_type = (<const char *> frame.payload)[:frame.payload_size] or None
        elif frame.extension == 0 or frame.extension > len(self.agreed.ids):
            return self._wrong(ErrorCode.PROTOCOL_ERROR, f"extension id {frame.extension} is not one of the "
                               f"{len(self.agreed.ids)} that were agreed")
        return 0

    # ---- acknowledge ----

    cdef int kept(self, uint64_t index) except -1:
        """The message with this place in the receive window is kept."""
        if index:
            self.received.accepted(index)
            if not self.connection.closed:
                self.connection.want_turn()
        return 0

    cdef int _acknowledge(self) except -1:
        """At the end of a turn: one word for all that has been kept.

        SharpMessaging takes an incomplete window for a loss and sends the rest again, so it gets word when the window
        is full, or when nothing more has come for a while, or when there will be no later time for it."""
        if self.ack_timer is not None and not (self.received.is_decided()
                                               and (self.received.is_full() or self.shutting_down)):
            if self.received.unacknowledged and self.ack_timer_index != self.received.index:
                self.ack_timer_index = self.received.index
                self.ack_timer.set(self.queues.now_ms + self.ack_delay_ms)
            return 0
        return self._ack_write(self.received.acknowledge())

    cdef int _ack_write(self, int64_t number) except -1:
        if number >= 0 and not self.connection.closed:
            ack_frame_write(self.connection.outbox_reserve(ACK_FRAME_BYTES), self.ack_id, <uint16_t> number)
        return 0

    def _ack_delayed(self, now_ms):
        if self.state == "open":
            if self.received.is_decided():
                self._ack_write(self.received.acknowledge())
            else:
                self.ack_timer.set(now_ms + self.ack_delay_ms)

    def refuse_message(self, uint64_t index, code, text, bytes destination):
        """An ERROR for a message, which is then never acknowledged by its own number."""
        if self.state != "open":
            return
        where = f"{destination.decode(errors='replace')}: " if destination else ""
        if index:
            where = f"message {self.received.number_of(index)}: {where}"
            self.received.refused(index)
            self.connection.want_turn()
        commands.refuse_message(self, code, where + text)

    # ---- what commands do to this session ----

    def write_error(self, code, text):
        """An ERROR frame, cut to what peers read; SharpMessaging would take it for a message."""
        if not self.is_sharp and not self.connection.closed:
            self.connection.write_bytes(encode_error(f"{code}: {text}"))

    def add_publisher(self, Stream stream, Queue queue, bytes name, bytes destination):
        publisher = Micromsg2Publisher(self, stream, queue, name, destination)
        self.publishers[destination] = self.publisher_cached = publisher

    def note_held(self, int64_t number):
        """Note that the peer's program holds the message of this number."""
        self.out.hold(number)

    def forget_rights(self):
        """They have changed: every queue is asked for again."""
        cdef Micromsg2Publisher publisher
        for publisher in self.publishers.values():
            publisher.generation = -1

    def add_subscription(self, str name, bytes destination, filter, Queue queue, uint32_t prefetch,
                         str subscriber, uint32_t subscriber_ttl_s, answer):
        """To a queue or topic; `answer()` comes before the first message."""
        subscription = Subscription(name, Outlet(self.out, destination, filter), self.free_number())
        self.remember_subscription(name, subscription)
        try:
            queue.add_consumer(subscription, prefetch, subscriber, subscriber_ttl_s, answer)
        except BaseException:
            self.forget_subscription(name)
            raise

    def add_reader(self, str name, bytes destination, filter, Stream stream, uint64_t offset, bint is_plain):
        """Of a log from this offset on, instead of any other; it takes nothing away from anybody."""
        outlet = Outlet(self.out, destination, filter)
        reader = TopicReader(name, outlet, self.free_number(), stream, offset, is_plain)
        self.remove_subscription(name)  # not before: a stream that nobody reads any more is closed
        self.remember_subscription(name, reader)
        reader.pump()

    def subscription_ended(self, subscription, problem):
        """By itself.  `problem` is None where its queue was deleted."""
        if self.subscriptions.get(subscription.name) is subscription:
            self.forget_subscription(subscription.name)
            commands.subscription_ended(self, subscription.name, problem)

    # ---- deliver ----

    cdef bint deliver(self) except -1:
        self.go_on_after_turn()
        if self.ack_id and self.state == "open":
            self._acknowledge()
        return self.out.deliver()

    # ---- time ----

    cdef int tick(self, int64_t now_ms) except -1:
        if self.connection.closing:
            return 0  # the last word has been said
        self.look_at_deadline(now_ms)
        if self.state == "open":
            if self.heartbeat_ms:
                self._keep_alive(now_ms)
            check_access(self.client)
        return 0

    cdef int _keep_alive(self, int64_t now_ms) except -1:
        # Who is not read may have said much: too much of it waits here, or of our own for a slow reader.
        if self.connection.bytes_in != self.heard_bytes or self.busy or self.connection.paused:
            self.heard_bytes, self.heard_ms = self.connection.bytes_in, now_ms
        elif now_ms - self.heard_ms > self.heartbeat_ms * HEARTBEATS_MISSED_MAX:
            return self._wrong(ErrorCode.TOO_SLOW, "no heartbeat came")
        return self.beat(now_ms)

    cdef int beat(self, int64_t now_ms) except -1:
        if self.state != "open" or not self.heartbeat_ms:
            return 0
        if self.connection.bytes_out != self.told_bytes:
            self.told_bytes, self.told_ms = self.connection.bytes_out, now_ms
        elif now_ms - self.told_ms >= self.heartbeat_ms:
            self.told_ms = now_ms
            self.out.write_extension(self.heartbeat_id, NULL, 0)
        return 0

    cdef int shutdown(self) except -1:
        """Called at every tick while the broker shuts down: nothing new is delivered; wait for what is in flight."""
        cdef bint delivered = self.in_flight.count == 0 and self.out.sending is None
        self.shutting_down = True
        if self.state != "open" or delivered and not self.working and self.has_confirmed_all():
            commands.say_goodbye(self)
        elif delivered:
            self.pause(PAUSE_ENDING)  # the peer could only send more to be acknowledged, without end
        return 0

    cdef int close(self) except -1:
        if self.ack_timer is not None:
            self.ack_timer.cancel()
        self.out.sending = self.part = None
        return QueueSession.close(self)

    def describe(self) -> dict:
        shown = {} if self.agreed is None else {
            "connection_name": self.identity, "extensions": ";".join(self.agreed.ids),
        }
        return self.described(frame_max=self.message_max, client_properties=shown)
