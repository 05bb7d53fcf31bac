# SPDX-License-Identifier: Apache-2.0
"""One native connection: frames in, acknowledgements and Delivers out.

Publish, Ack, Nack and Ping are acted upon in place and make no Python object (of a queue that is
known; the first one opens it).  Every other frame is decoded by the codec and goes to
``commands.handle``, plain Python.  The life of a message through here: ``NativePublisher.publish`` lays it into its
queue's batch; ``NativePublisher.confirm`` sends its PublishAck; the queue's home picks a
``Subscription``, whose ``write`` puts the Deliver into the outbox; ``_ack`` settles it.
Protocol: README.md beside this file.
"""

from libc.string cimport memcmp

from vibemq.broker.inflight cimport NO_SLOT
from vibemq.broker.consumer cimport Consumer
from vibemq.broker.queue cimport Queue
from vibemq.net.connection cimport Connection
from vibemq.net.door cimport PAUSE_ENDING
from vibemq.protocols.native.codec cimport fault_text, malformed
from vibemq.protocols.native.deliveries cimport StoredSubscription, Subscription
from vibemq.protocols.native.publisher cimport NativePublisher
from vibemq.protocols.native.wire cimport (
    CHECK_OK, FRAME_HEADER_BYTES, FRAME_NEEDS_MORE, FRAME_OK, FRAME_UNKNOWN_FLAGS, TYPE_ACK, TYPE_CONNECT,
    TYPE_DISCONNECT, TYPE_ERROR, TYPE_NACK, TYPE_PING, TYPE_PUBLISH, error_size, error_write, frame_check, frame_header,
    deliver_fits, frame_parse, header_find, pong_size, pong_write,
)
from vibemq.storage cimport core
from vibemq.storage.core cimport bytes_load32

from vibemq.broker.admission import check_access
from vibemq.errors import LimitExceeded
from vibemq.protocols.native import commands, replies
from vibemq.protocols.native.compression import decompress
from vibemq.protocols.native.codec import MalformedFrame
from vibemq.protocols.native.spec import LOGIN_FRAME_BYTES_MAX, ErrorCode

cdef enum:
    CONTROLS_PER_TURN = 32    # control commands cost tens of microseconds: the loop's millisecond
    BYTES_PER_CONTROL = 32768 # of a decompressed body: about as much work

cdef bytes INVALID_MESSAGE = ErrorCode.INVALID_MESSAGE.value.encode()
cdef bytes RATE_LIMITED = ErrorCode.RATE_LIMITED.value.encode()


cdef class NativeSession(QueueSession):
    def __init__(self, Connection connection, door):
        super().__init__(connection, door)
        self.state = commands.FIRST_STATE
        self.client_version = ""
        self.connection_id = door.next_connection_id()
        self.text_layout, self.layout_fixed = door.text_layout, door.layout_fixed
        self.flags_max = 2
        self.features = frozenset()
        self.frame_max = door.config.frame_max_bytes
        self.read_max, connection.is_trusted = min(self.frame_max, LOGIN_FRAME_BYTES_MAX), False
        self.compression_threshold = door.config.compression_threshold_bytes
        self.queues = door.queues
        self.rate = door.config.messages_per_second_per_connection
        self.tokens = self.rate

    cdef int open(self) except -1:
        self.heard_ms = self.tokens_ms = self.door.queues.now_ms
        commands.opened(self)
        return 0

    # ---- receive ----

    cdef Py_ssize_t receive(self, const uint8_t *data, size_t size) except -1:
        cdef size_t at = 0
        cdef uint32_t body_size = 0
        cdef uint8_t flags = 0
        cdef int fault
        cdef int controls = 0
        while size - at > 0:
            fault = frame_header(data + at, size - at, self.read_max, self.flags_max, &body_size, &flags)
            if fault == FRAME_NEEDS_MORE:
                if size - at >= 4:
                    self.wanted = <size_t> body_size + FRAME_HEADER_BYTES
                break
            if fault != FRAME_OK:
                had = data[at + 4] if fault == FRAME_UNKNOWN_FLAGS else bytes_load32(data + at)
                replies.refuse_framing(self, malformed(fault, self.read_max, had))
                return size
            if flags:
                try:
                    body = decompress(flags, (<char *> data)[at + FRAME_HEADER_BYTES:at + FRAME_HEADER_BYTES + body_size],
                                      self.decompressed_max)
                except (MalformedFrame, LimitExceeded) as problem:
                    replies.refuse_framing(self, problem)
                    return size
                # What was small on the wire may have been much work: it counts by what it became.
                controls += 1 + <int> (len(body) // BYTES_PER_CONTROL)
                controls += self._body(<const uint8_t *> <char *> body, len(body))
            else:
                controls += self._body(data + at + FRAME_HEADER_BYTES, body_size)
            at += FRAME_HEADER_BYTES + body_size
            if self.connection.closing or self.connection.closed:
                return size
            if controls >= CONTROLS_PER_TURN:
                self.yield_turn()
            if self.busy:
                break
        return at

    @property
    def decompressed_max(self) -> int:
        """Before a login a frame may not become more than it may be."""
        return self.door.config.decompressed_max_bytes if self.state == "open" else self.read_max

    cdef int _body(self, const uint8_t *body, size_t size) except -1:
        """One whole body; 1 when it was a control command."""
        cdef native_frame frame
        cdef int fault = frame_parse(body, size, &frame)
        if fault != FRAME_OK:
            replies.refuse_framing(self, malformed(fault, frame.needed, frame.had),
                                    (<char *> frame.id)[:frame.id_size] if frame.id_size else b"")
            return 1
        if self.state == "open":
            if frame.type == TYPE_ACK:
                return self._ack(&frame, False)
            if frame.type == TYPE_PUBLISH:
                return self._checked_publish(&frame, body, size)
            if frame.type == TYPE_NACK and "nack" in self.features:
                return self._ack(&frame, True)
        if (frame.type == TYPE_CONNECT or self.state == "connecting") and frame.type != TYPE_ERROR \
                and not self.layout_fixed:
            self.text_layout = frame.text_layout  # up to and with Connect the peer shows which layout it speaks
        if frame.type == TYPE_PING:
            pong_write(self.connection.outbox_reserve(pong_size(frame.id_size, self.text_layout)), frame.id,
                       frame.id_size, self.text_layout)
            return 0
        if frame.type != TYPE_DISCONNECT and frame.type != TYPE_ACK and frame.type != TYPE_NACK and self._limited():
            return self._refuse(&frame, RATE_LIMITED, b"Message rate limit exceeded.")
        check = frame_check(&frame)
        if check != CHECK_OK:
            text = fault_text(&frame, check)
            if text is not None:
                self._refuse(&frame, INVALID_MESSAGE, text.encode())
                return 1
        commands.handle(self, (<char *> body)[:size])
        return 1

    cdef int _checked_publish(self, const native_frame *frame, const uint8_t *body, size_t size) except -1:
        cdef int check
        if self._limited():
            return self._refuse(frame, RATE_LIMITED, b"Message rate limit exceeded.")
        check = frame_check(frame)
        if check != CHECK_OK:
            text = fault_text(frame, check)
            if text is not None:
                return self._refuse(frame, INVALID_MESSAGE, text.encode())
        if not deliver_fits(frame, 0, self.frame_max):
            return self._refuse(frame, INVALID_MESSAGE, b"The message is larger than the %d bytes that clients read."
                                % self.frame_max)
        return self._publish(frame, body, size)

    cdef int _publish(self, const native_frame *frame, const uint8_t *body, size_t size) except -1:
        """A Publish that is as it should be, into its queue if this user may; 1 when that took Python."""
        cdef NativePublisher publisher = <NativePublisher> self.publisher_cached
        if publisher is None or len(publisher.name) != <Py_ssize_t> frame.queue_size \
                or memcmp(<char *> publisher.name, frame.queue, frame.queue_size) != 0:
            publisher = self.publishers.get((<char *> frame.queue)[:frame.queue_size]) if frame.queue_size else None
            if publisher is None:
                commands.first_publish(self, (<char *> body)[:size])
                return 1
            self.publisher_cached = publisher
        if core.control_is_deleted(publisher.stream.log.control):
            # Its doorbell may not have been heard yet, but whoever deleted it has had the answer.
            commands.first_publish(self, (<char *> body)[:size])
            return 1
        if publisher.generation != self.queues.access_generation:
            if not commands.may_publish(self, (<char *> frame.id)[:frame.id_size], publisher.queue.name):
                return 1
            publisher.generation = self.queues.access_generation
        publisher.publish(frame, body, size)
        return 0

    cdef int _ack(self, const native_frame *frame, bint nack) except -1:
        cdef int32_t slot = NO_SLOT
        cdef const uint8_t *named
        cdef uint32_t named_size = 0
        cdef Consumer consumer
        if frame.header_count and header_find(frame, <const char *> b"messageId", 9, &named, &named_size):
            slot = self._find(frame, named, named_size)
        if slot == NO_SLOT:
            slot = self._find(frame, frame.id, frame.id_size)
        if slot == NO_SLOT:
            return 0  # it went back to the queue, or was settled, before this was on its way
        consumer = <Consumer> self.by_number[self.in_flight.slots[slot].consumer]
        if nack:
            (<Queue> consumer.queue).give_back(consumer, slot, True, 0)
        else:
            (<Queue> consumer.queue).settle(consumer, slot)
        return 0

    cdef int32_t _find(self, const native_frame *frame, const uint8_t *id, uint32_t id_size) except -2:
        """The oldest delivery with this id, of the queue that the frame names if it names one."""
        cdef int32_t slot = self.in_flight.find(id, id_size)
        if frame.queue_size:
            while slot != NO_SLOT and not self._is_of(slot, frame):
                slot = self.in_flight.next_same(slot)
        return slot

    cdef bint _is_of(self, int32_t slot, const native_frame *frame) except -1:
        cdef Subscription subscription = <Subscription> self.by_number[self.in_flight.slots[slot].consumer]
        return len(subscription.name) == <Py_ssize_t> frame.queue_size \
            and memcmp(<char *> subscription.name, frame.queue, frame.queue_size) == 0

    cdef int _refuse(self, const native_frame *frame, bytes code, bytes text) except -1:
        error_write(self.connection.outbox_reserve(error_size(frame.id_size, 0, len(code), len(text))), frame.id,
                    frame.id_size, NULL, 0, <char *> code, len(code), <char *> text, len(text))
        return 0

    def refuse_frame(self, bytes id, bytes code, bytes text):
        """An Error that answers the frame `id`."""
        if not self.connection.closed:
            error_write(self.connection.outbox_reserve(error_size(len(id), 0, len(code), len(text))), <char *> id,
                        len(id), NULL, 0, <char *> code, len(code), <char *> text, len(text))

    cdef bint _limited(self) noexcept:
        """Has this connection sent more messages than its rate allows?  A bucket of one second's worth."""
        cdef int64_t rate = self.rate
        cdef int64_t now_ms
        if rate == 0:
            return False
        now_ms = self.queues.now_ms
        self.tokens = min(<double> rate, self.tokens + <double> (now_ms - self.tokens_ms) * rate / 1000.0)
        self.tokens_ms = now_ms
        if self.tokens < 1.0:
            return True
        self.tokens -= 1.0
        return False

    # ---- what commands do to this session ----

    def trust(self, size_t read_max):
        """The peer is let in: its frames may be so large from here on."""
        self.read_max, self.connection.is_trusted = read_max, True

    def publish_body(self, bytes body):
        """A Publish whose queue had to be opened first; it was counted and checked when it came."""
        cdef native_frame frame
        if frame_parse(<const uint8_t *> <char *> body, len(body), &frame) != FRAME_OK:
            raise AssertionError("a frame that was read once cannot be read again")
        self._publish(&frame, <const uint8_t *> <char *> body, len(body))

    def add_publisher(self, Queue queue, bytes name):
        """Its first Publish asks whether it is allowed: rights may have changed while the queue was made."""
        cdef NativePublisher publisher = NativePublisher(self, queue, name)
        publisher.generation = -1
        self.publishers[name] = publisher

    def forget_rights(self):
        """This connection is another user's now: every queue is asked for again."""
        cdef NativePublisher publisher
        for publisher in self.publishers.values():
            publisher.generation = -1

    def add_subscription(self, bytes name, int prefetch, bint stored=False) -> Subscription:
        """Remember it; ``consume`` gives it a queue."""
        subscription = (StoredSubscription if stored else Subscription)(self, name, self.free_number(), prefetch)
        self.remember_subscription(name, subscription)
        return subscription

    def consume(self, Subscription subscription, Queue queue):
        subscription.dormant = False
        queue.add_consumer(subscription, subscription.wanted)

    def send_off(self, why):
        commands.send_off(self, why)

    def rights_changed(self):
        commands.rights_changed(self)

    def leave(self):
        """The peer has said goodbye: read no more, confirm what it has published, then close."""
        self.state = "leaving"
        for name in list(self.subscriptions):
            self.remove_subscription(name)
        self.set_busy()
        self.connection.pause()
        self.connection.want_turn()  # after this turn's batches

    def describe(self) -> dict:
        """This connection as the admin side shows it."""
        version = {"version": self.client_version} if self.client_version else {}
        return self.described(frame_max=self.frame_max, client_properties=version)

    # ---- deliver ----

    cdef bint deliver(self) except -1:
        cdef Subscription subscription
        self.go_on_after_turn()
        if self.state == "leaving" and self.has_confirmed_all():
            self.finish()
        if self.connection.flush() and self.has_stalled_subscriptions():
            for subscription in list(self.subscriptions.values()):
                if subscription.stalled and subscription.queue is not None:
                    (<Queue> subscription.queue).room_again(subscription)
        return False

    def has_stalled_subscriptions(self) -> bool:
        for subscription in self.subscriptions.values():
            if (<Subscription> subscription).stalled:
                return True
        return False

    # ---- time ----

    cdef int tick(self, int64_t now_ms) except -1:
        self.look_at_deadline(now_ms)
        if self.state == "open":
            self._keep_alive(now_ms)
            check_access(self.client)
            if self.dormant:
                self.dormant = False
                commands.wake_dormant(self)
        if self.shutting_down:
            self._end_when_done()
        return 0

    cdef bint _has_done_its_work(self):
        """Nothing in flight, no publish that waits for a sync, no command in a helper."""
        return self.in_flight.count == 0 and not self.working and self.has_confirmed_all()

    cdef int _keep_alive(self, int64_t now_ms) except -1:
        if self.connection.bytes_in != self.heard_bytes:
            self.heard_bytes, self.heard_ms = self.connection.bytes_in, now_ms
        elif self.door.config.keepalive_timeout_s and now_ms - self.heard_ms > self.door.config.keepalive_timeout_s * 1000 \
                and not self.busy and not self.connection.waits:
            commands.silent(self)
        return 0

    cdef int shutdown(self) except -1:
        """Called at every tick while the broker shuts down: say so once, then wait for what is in flight."""
        if not self.shutting_down:
            self.shutting_down = True
            commands.say_goodbye(self)
            self._end_when_done()
        return 0

    cdef int _end_when_done(self) except -1:
        """With nothing in flight the peer could only send more to be confirmed, without end."""
        if self._has_done_its_work():
            self.finish()
        elif self.in_flight.count == 0:
            self.pause(PAUSE_ENDING)
        return 0
