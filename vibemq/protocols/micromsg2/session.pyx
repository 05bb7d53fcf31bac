# SPDX-License-Identifier: Apache-2.0
"""One MicroMsg2 connection: messages in and acknowledged, messages out and settled.

MESSAGE frames and acknowledgements are acted upon in place and make no Python object (of a destination that is known; the
first message opens it).  The handshake goes to ``handshake.take``, commands to ``commands.handle``: plain Python.  The life
of a message through here: ``ReceiveWindow.take`` counts it; ``Micromsg2Publisher.publish`` lays it into its queue's batch; when
that is kept the window learns it, and ``deliver`` acknowledges, once a turn, all that lies before the first open one.  The
queue's home picks a ``Subscription``, whose ``write`` puts the MESSAGE into the outbox and the delivery into the
``SendWindow``; the peer's acknowledgement settles it with all before it.
Protocol: README.md beside this file.
"""

from libc.stdint cimport uint16_t
from libc.string cimport memcmp
from vibemq.broker.client cimport NO_SLOT, Consumer, delivery
from vibemq.broker.queue cimport Queue
from vibemq.broker.stream cimport Stream
from vibemq.net.connection cimport Connection
from vibemq.net.door cimport PAUSE_ENDING
from vibemq.broker.messages cimport LogReader
from vibemq.protocols.micromsg2.deliveries cimport Outlet, Subscription, TopicReader
from vibemq.protocols.micromsg2.publisher cimport Micromsg2Publisher
from vibemq.protocols.micromsg2.window cimport DUPLICATE, OVERRUN, sent_message
from vibemq.protocols.micromsg2.wire cimport (
    ACK_FRAME_BYTES, FRAME_COMMAND, FRAME_EXTENSION, FRAME_MESSAGE, PARSE_NEEDS_MORE, PARSE_OK, ack_frame_write,
    ack_number, extension_frame_size, extension_frame_write, frame_parse,
)
from vibemq.storage cimport core

from vibemq.broker.admission import check_access
from vibemq.protocols.micromsg2 import commands, handshake
from vibemq.protocols.micromsg2.codec import encode_command, encode_error
from vibemq.protocols.micromsg2.spec import (
    HANDSHAKE_HEAD_BYTES, HANDSHAKE_LIST_BYTES_MAX, IDENTITY_BYTES_MAX, SHARP_PAYLOAD_BYTES_MAX,
    SHARP_PAYLOAD_BYTES_MAX_SERIALIZED, ErrorCode,
)

cdef enum:
    CONTROLS_PER_TURN = 32        # what Python decides costs tens of microseconds: the loop's millisecond
    OUTBOX_BYTES_MAX = 512 * 1024 # of messages that wait for a peer to read; more only waits longer
    DOTNET_TYPE_BYTES_MAX = 4096  # it is stored with each message
    HEARTBEATS_MISSED_MAX = 3     # of a peer that has promised them

cdef size_t HANDSHAKE_BYTES_MAX = HANDSHAKE_HEAD_BYTES + IDENTITY_BYTES_MAX + 2 * (2 + HANDSHAKE_LIST_BYTES_MAX)


cdef class Micromsg2Session(QueueSession):
    def __init__(self, Connection connection, door):
        super().__init__(connection, door)
        self.queues = door.queues
        self.identity = ""
        self.message_max = door.config.message_max_bytes
        self.payload_max = <uint32_t> -1
        self.sent, self.received = SendWindow(0), ReceiveWindow(0, False)
        self.state, self.shake = handshake.FIRST_STEP, handshake.Shake()

    cdef int open(self) except -1:
        self.heard_ms = self.told_ms = self.queues.now_ms
        handshake.opened(self)
        return 0

    def agree(self, agreed, bint is_sharp):
        """The handshake is done: these extensions are active."""
        self.agreed, self.shake, self.is_sharp = agreed, None, is_sharp
        self.state, self.deadline_ms = "open", 0
        if agreed.content_type:
            self.content_type = agreed.content_type.encode()
            self.type_data, self.type_size = self.content_type, <uint32_t> len(self.content_type)
        self.ack_id, self.dotnet_id, self.heartbeat_id = agreed.ack_id, agreed.dotnet_id, agreed.heartbeat_id
        self.heartbeat_ms = agreed.heartbeat_ms or 0
        if self.ack_id:
            self.sent, self.received = SendWindow(agreed.window), ReceiveWindow(agreed.window, is_sharp)
        if is_sharp:
            self.payload_max = SHARP_PAYLOAD_BYTES_MAX_SERIALIZED if self.content_type else SHARP_PAYLOAD_BYTES_MAX
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
                    commands.refuse_frame(self, fault, data[at], frame.payload_size)
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
            commands.protocol_error(self, ErrorCode.PROTOCOL_ERROR, "only messages may be continued")
            return 1
        if frame.kind == FRAME_EXTENSION:
            return self._extension(frame)
        payload = (<const char *> frame.payload)[:frame.payload_size]
        if frame.kind == FRAME_COMMAND:
            commands.handle(self, payload)
        else:
            commands.told_error(self, payload)
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
                commands.overrun(self, self.received.unacknowledged, frame.sequence)
                return 1
            index = self.received.index
            if self.ack_timer is not None:
                self.connection.want_turn()
        if self.part is not None or frame.continued:
            return self._fragment(frame, index)
        return self._publish(frame.destination, frame.destination_size, frame.properties, frame.properties_size,
                             frame.payload, frame.payload_size, index)

    cdef int _fragment(self, const mm_frame *frame, uint64_t index) except -1:
        """One of the frames of a large message; it is published with the last."""
        cdef bytes destination, properties
        cdef bytearray part
        if self.part is None:
            self.part = bytearray()
            self.part_destination = (<const char *> frame.destination)[:frame.destination_size]
            self.part_properties = (<const char *> frame.properties)[:frame.properties_size]
            self.part_dotnet_type = self.dotnet_type
        elif frame.destination_size and (<const char *> frame.destination)[:frame.destination_size] != self.part_destination:
            commands.protocol_error(self, ErrorCode.PROTOCOL_ERROR,
                                    "a message to another destination in the middle of a continued one")
            return 1
        if len(self.part) + <size_t> frame.payload_size > self.message_max:
            commands.too_large(self, len(self.part) + frame.payload_size)
            return 1
        self.part += (<const char *> frame.payload)[:frame.payload_size]
        if frame.continued:
            if index:
                self.kept(index)  # it is acknowledged like any frame, or a small window would never go on
            return 0
        part, self.part = self.part, None
        destination, properties, self.part_destination, self.part_properties = \
            self.part_destination, self.part_properties, None, None
        dotnet_type, self.dotnet_type = self.dotnet_type, self.part_dotnet_type
        self._publish(<const uint8_t *> <const char *> destination, len(destination),
                      <const uint8_t *> <const char *> properties, len(properties),
                      <const uint8_t *> <const char *> part, len(part), index)
        self.dotnet_type = dotnet_type  # one that came between the frames is that of the next message
        return 1

    cdef int _publish(self, const uint8_t *destination, uint32_t destination_size, const uint8_t *properties,
                      uint32_t properties_size, const uint8_t *payload, uint32_t payload_size, uint64_t index) except -1:
        """A whole message, into its queue if this user may; 1 when that took Python."""
        cdef Micromsg2Publisher publisher = <Micromsg2Publisher> self.publisher_cached
        if publisher is None or <uint32_t> len(publisher.destination) != destination_size \
                or memcmp(<const char *> publisher.destination, destination, destination_size) != 0:
            publisher = self.publishers.get((<const char *> destination)[:destination_size])
            self.publisher_cached = publisher
        # One that is deleted: its doorbell may not have been heard yet, but whoever deleted it has had the answer.
        if publisher is None or core.control_is_deleted(publisher.stream.log.control):
            commands.first_send(self, (<const char *> destination)[:destination_size],
                                (<const char *> properties)[:properties_size], (<const char *> payload)[:payload_size],
                                self.dotnet_type, index)
            return 1
        if publisher.generation != self.queues.access_generation:
            if not commands.may_publish(self, publisher, index):
                return 1
            publisher.generation = self.queues.access_generation
        return publisher.publish(properties, properties_size, payload, payload_size, self.dotnet_type, index)

    cdef int _extension(self, const mm_frame *frame) except -1:
        cdef int64_t number
        if self.ack_id and frame.extension == self.ack_id:
            number = ack_number(frame)
            if number < 0:
                commands.protocol_error(self, ErrorCode.PROTOCOL_ERROR,
                                        f"an acknowledgement has 2 octets, had {frame.payload_size}")
                return 1
            return self._acknowledged(number)
        if self.dotnet_id and frame.extension == self.dotnet_id:
            if frame.payload_size > DOTNET_TYPE_BYTES_MAX:
                commands.protocol_error(self, ErrorCode.LIMIT_EXCEEDED, "the name of a .NET type has at most "
                                        f"{DOTNET_TYPE_BYTES_MAX} bytes, had {frame.payload_size}")
                return 1
            self.dotnet_type = (<const char *> frame.payload)[:frame.payload_size] or None
        elif frame.extension == 0 or frame.extension > self.agreed.count:
            commands.protocol_error(self, ErrorCode.PROTOCOL_ERROR, f"extension id {frame.extension} is not one of the "
                                    f"{self.agreed.count} that were agreed")
            return 1
        return 0

    cdef int _acknowledged(self, int64_t number) except -1:
        """All messages up to this number are settled; a number that nobody waits for is late, and means nothing."""
        cdef uint32_t count = self.sent.covered(number)
        cdef sent_message s
        cdef delivery *d
        cdef Consumer consumer
        if count == 0:
            return 0
        while count:
            s = self.sent.oldest()[0]
            self.sent.pop()
            count -= 1
            if s.slot == NO_SLOT:
                continue
            d = &self.in_flight.slots[s.slot]
            if d.consumer != NO_SLOT and d.sequence == s.slot_sequence:  # else it has gone back to the queue
                consumer = <Consumer> self.by_number[d.consumer]
                (<Queue> consumer.queue).settle(consumer, s.slot)
        self.connection.want_turn()  # whoever had no room has some now
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

    def refuse_message(self, uint64_t index, bytes code, bytes text, bytes destination):
        """An ERROR for a message, which is then never acknowledged by its own number."""
        if self.state != "open":
            return
        where = f"{destination.decode(errors='replace')}: " if destination else ""
        if index:
            where = f"message {self.received.number_of(index)}: {where}"
            self.received.refused(index)
            self.connection.want_turn()
        commands.refuse_message(self, code.decode(), where + text.decode(errors="replace"))

    # ---- what commands do to this session ----

    def write_error(self, code, text):
        """An ERROR frame, cut to what peers read; SharpMessaging would take it for a message."""
        if not self.is_sharp and not self.connection.closed:
            self.connection.write_bytes(encode_error(f"{code}: {text}"))

    def write_command(self, name, pairs):
        self.connection.write_bytes(encode_command(name, pairs))

    def publish_again(self, bytes destination, bytes properties, bytes payload, bytes dotnet_type, uint64_t index):
        """A message whose queue had to be opened first."""
        cdef Micromsg2Publisher publisher = self.publishers.get(destination)
        if publisher is None:
            return
        if publisher.generation != self.queues.access_generation:
            if not commands.may_publish(self, publisher, index):
                return
            publisher.generation = self.queues.access_generation
        publisher.publish(<const uint8_t *> <const char *> properties, len(properties),
                          <const uint8_t *> <const char *> payload, len(payload), dotnet_type, index)

    def add_publisher(self, Stream stream, Queue queue, bytes name, bytes destination):
        self.publishers[destination] = Micromsg2Publisher(self, stream, queue, name, destination)

    def forget_rights(self):
        """They have changed: every queue is asked for again."""
        cdef Micromsg2Publisher publisher
        for publisher in self.publishers.values():
            publisher.generation = -1

    def add_subscription(self, str name, bytes destination, filter, Queue queue, uint32_t prefetch):
        """To a queue or topic."""
        subscription = Subscription(self, name, Outlet(self, destination, filter), self.free_number(), not self.ack_id)
        self.remember_subscription(name, subscription)
        try:
            queue.add_consumer(subscription, prefetch)
        except BaseException:
            self.forget_subscription(name)
            raise

    def add_reader(self, str name, bytes destination, filter, Stream stream, uint64_t offset, bint is_plain):
        """Of a log from this offset on, instead of any other; it takes nothing away from anybody."""
        outlet = Outlet(self, destination, filter)
        reader = TopicReader(self, name, outlet, self.free_number(), stream, offset, is_plain)
        self.remove_subscription(name)  # not before: a stream that nobody reads any more is closed
        self.remember_subscription(name, reader)
        reader.pump()

    def send_off(self, why):
        commands.send_off(self, why)

    def rights_changed(self):
        commands.rights_changed(self)

    def subscription_ended(self, subscription, problem):
        """By itself.  `problem` is None where its queue was deleted."""
        if self.subscriptions.get(subscription.name) is subscription:
            self.forget_subscription(subscription.name)
            commands.subscription_ended(self, subscription.name, problem)

    # ---- deliver ----

    cdef bint may_write(self) noexcept:
        """Is there room for another frame with a message?"""
        return self.sent.has_room() and not self.connection.closing \
            and self.connection.outbox_size - self.connection.outbox_head < OUTBOX_BYTES_MAX

    cdef bint room(self) noexcept:
        """For another message.  Whoever is told that there is none is woken when there is."""
        cdef bint room = self.sending is None and self.may_write() and not self.shutting_down
        self.has_stalled |= not room
        return room

    cdef bint deliver(self) except -1:
        cdef bint more = False
        cdef Outlet outlet
        self.go_on_after_turn()
        if self.ack_id and self.state == "open":
            self._acknowledge()
        if self.sending is not None:
            outlet = <Outlet> self.sending  # its subscription may be gone, and then nobody else holds it
            outlet.go_on()
        if self.connection.flush():
            if self.has_autos and self.sending is None:
                self._settle_autos()
            more = self.sending is not None and self.may_write()
        if self.has_stalled and self.room():
            self._wake_stalled()
        return more

    cdef int _settle_autos(self) except -1:
        """Without acknowledgements a message counts as delivered once the socket has taken it."""
        self.has_autos = False
        for subscription in list(self.subscriptions.values()):
            if isinstance(subscription, Subscription):
                (<Subscription> subscription).settle_all()
        return 0

    cdef int _wake_stalled(self) except -1:
        cdef Consumer consumer
        self.has_stalled = False
        for subscription in list(self.subscriptions.values()):
            if isinstance(subscription, LogReader):
                if (<LogReader> subscription).stalled:
                    (<LogReader> subscription).pump()
                continue
            consumer = <Consumer> subscription
            if consumer.stalled and consumer.queue is not None:
                (<Queue> consumer.queue).room_again(consumer)
        return 0

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
            commands.silent(self)
            return 0
        if self.connection.bytes_out != self.told_bytes:
            self.told_bytes, self.told_ms = self.connection.bytes_out, now_ms
        elif now_ms - self.told_ms >= self.heartbeat_ms:
            self.told_ms = now_ms
            extension_frame_write(self.connection.outbox_reserve(extension_frame_size(0)), self.heartbeat_id, NULL, 0)
        return 0

    cdef bint _has_done_its_work(self) except -1:
        """Nothing in flight, no message that waits for a sync, no command in a helper."""
        return self.in_flight.count == 0 and self.sending is None and not self.working and self.has_confirmed_all()

    cdef int shutdown(self) except -1:
        """Called at every tick while the broker shuts down: nothing new is delivered; wait for what is in flight."""
        self.shutting_down = True
        if self.state != "open" or self._has_done_its_work():
            commands.say_goodbye(self)
        elif self.in_flight.count == 0 and self.sending is None:
            self.pause(PAUSE_ENDING)  # the peer could only send more to be acknowledged, without end
        return 0

    cdef int close(self) except -1:
        if self.ack_timer is not None:
            self.ack_timer.cancel()
        self.sending = self.part = None
        return QueueSession.close(self)

    def describe(self) -> dict:
        """This connection as the admin side shows it."""
        shown = {} if self.agreed is None else {
            "connection_name": self.identity, "extensions": ";".join(self.agreed.ids),
        }
        return self.described(frame_max=self.message_max, client_properties=shown)
