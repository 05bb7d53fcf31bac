# SPDX-License-Identifier: Apache-2.0
"""One native connection: frames in, acknowledgements and Delivers out.

Publish, Ack, Nack, Holding and Ping are acted upon in place and make no Python object (of a queue that is known; the
first one opens it).  Every other frame is decoded by the codec and goes to ``commands.handle``, plain Python.  The life of a
message through here: ``NativePublisher.publish`` lays it into its queue's batch, as an AMQP 1.0 message (id, headers as
application properties, payload as data), and writes its PublishAck to the side; ``NativePublisher.confirm`` sends that
when the batch is kept; the queue's home picks a ``Subscription``, whose ``write`` puts the Deliver into the outbox;
``_ack`` settles it.
Protocol: README.md beside this file.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from vibemq.broker.client cimport NO_SLOT, UNDELIVERABLE, Consumer, QueueSession, peer_key
from vibemq.broker.messages cimport (
    HEADER_TEXT_BYTES_MAX, VALUE_TEXT_BYTES, as_json, is_messagepack, message_view, payload_of, scratch_room,
    value_of,
)
from vibemq.broker.publisher cimport ROOM, SERVER_ERROR, QueuePublisher
from vibemq.broker.queue cimport Queue
from vibemq.broker.queue_table cimport QueueTable
from vibemq.net.connection cimport Connection
from vibemq.net.door cimport PAUSE_ENDING
from vibemq.protocols.native.codec cimport fault_text, malformed
from vibemq.protocols.native.message cimport DEDUP_CLIENT_BYTES, dedup_number, message_write
from vibemq.protocols.native.wire cimport (
    CHECK_OK, CHECK_QUEUE_NAME_CHARACTER, DECIMAL_BYTES_MAX, FRAME_HEADER_BYTES, FRAME_NEEDS_MORE, FRAME_OK, FRAME_UNKNOWN_FLAGS, TYPE_ACK,
    TYPE_CONNECT, TYPE_DELIVER, TYPE_DISCONNECT, TYPE_ERROR, TYPE_HOLDING, TYPE_NACK, TYPE_PING, TYPE_PUBLISH,
    decimal_before, deliver_fits, error_size, error_write, frame_begin, frame_check, frame_end, frame_header, frame_parse,
    frame_payload, frame_size, header_find, header_size, json_is_valid, native_frame, pong_size, pong_write,
    publish_ack_size, publish_ack_write, put_bytes, put_header,
)
from vibemq.storage cimport core
from vibemq.storage.core cimport OK, amqp_pair, amqp_pairs, bytes_load16, bytes_load32, bytes_store32

from vibemq.broker.admission import check_access
from vibemq.broker.hops import first_hop_bytes
from vibemq.errors import LimitExceeded, MalformedFrame, StorageError
from vibemq.protocols.native import commands
from vibemq.protocols.native.compression import compress, decompress
from vibemq.protocols.native.spec import CHECK_FAULTS, COMPRESSION_BY_NAME, LOGIN_FRAME_BYTES_MAX, ErrorCode

cdef str NAME_FAULT = CHECK_FAULTS[CHECK_QUEUE_NAME_CHARACTER]

cdef enum:
    CONTROLS_PER_TURN = 32          # control commands cost tens of microseconds: the loop's millisecond
    BYTES_PER_CONTROL = 32768       # of a decompressed body: about as much work
    OUTBOX_BYTES_MAX = 512 * 1024   # Delivers that wait for a peer to read: enough for one gathering send
    HEADERS_COUNT_MAX = 65535       # the count on the wire is a u16
    # The headers of a dead letter, without the name of its queue and its hop: their names, a reason, a time, a number.
    LETTER_ADDED_BYTES = 180
    ATTEMPTS_SIZE = 16
    ENCODING_SIZE = 16

cdef bytes INVALID_MESSAGE = ErrorCode.INVALID_MESSAGE.value.encode()
cdef bytes NAMES_FULL = b"the queue keeps the numbers of as many clients as it can, and all of them are connected"
cdef bytes RATE_LIMITED = ErrorCode.RATE_LIMITED.value.encode()
cdef char *ATTEMPTS = "deliveryAttempts"
cdef char *ENCODING = "payload-encoding"

cdef class NativeSession(QueueSession)


# ---- in ----


# One connection's way into one queue.  Its notes are PublishAcks, as they will be sent; if the batch is not kept, each
# of them becomes an Error.
cdef class NativePublisher(QueuePublisher):
    cdef NativeSession session
    cdef size_t letter_bytes          # what becoming a dead letter may add to a Deliver; 0: none becomes one
    cdef bytes reference              # of a client whose duplicates are dropped: the first digits of its ids

    def __init__(self, NativeSession session not None, Queue queue not None, bytes name):
        self.session, self.client, self.reference = session, session.client, session.id_digits
        self.generation = -1  # its first Publish asks whether it is allowed
        self.begin(queue.stream, queue, name)
        self.altered()

    def altered(self):
        QueuePublisher.altered(self)
        self.letter_bytes = 0
        if self.queue.options.dead_letter:
            name = self.queue.options.dead_letter_name(self.queue.name)
            self.letter_bytes = LETTER_ADDED_BYTES + max(len(name.encode()), len(self.name))
            self.letter_bytes += first_hop_bytes(self.queue.name, name)

    # ---- in ----

    cdef int publish(self, const native_frame *frame) except -1:
        cdef uint8_t *entry = NULL
        cdef size_t size
        cdef int room = ROOM
        if self.letter_bytes and not deliver_fits(frame, self.letter_bytes, self.session.frame_max):
            return self.session.refuse(frame.id, frame.id_size, INVALID_MESSAGE,
                                       b"With the headers of a dead letter the message would be larger than the %d "
                                       b"bytes that clients read." % self.session.frame_max)
        if self.queue.max_messages or self.has_parked:
            room = self.room_for(1)  # first: making room may use the memory that the entry is written into
        size = message_write(frame, &entry)
        return self._take(frame.id, frame.id_size, entry, size, room)

    def publish_stored(self, bytes id, bytes message):
        """Of a PublishStored: the message as another queue had it."""
        cdef int room = self.room_for(1)
        cdef uint8_t *entry = scratch_room(4 + len(message))
        bytes_store32(entry, <uint32_t> len(message))
        memcpy(entry + 4, <char *> message, len(message))
        self._take(<const uint8_t *> <char *> id, <uint32_t> len(id), entry, 4 + len(message), room)

    cdef int _take(self, const uint8_t *id, uint32_t id_size, const uint8_t *entry, size_t size, int room) except -1:
        if room == ROOM:
            return self._append(id, id_size, entry, size)
        return self.put_off(((<char *> id)[:id_size], (<char *> entry)[:size]), size, room)

    cdef int _append(self, const uint8_t *id, uint32_t id_size, const uint8_t *entry, size_t size) except -1:
        cdef uint64_t number = 0
        cdef bint tracked = self.session.dedup and dedup_number(id, id_size, &number)
        if tracked and self.reference is None:
            self.reference = (<char *> id)[:DEDUP_CLIENT_BYTES]
        tracked = tracked and memcmp(<char *> self.reference, id, DEDUP_CLIENT_BYTES) == 0
        if tracked and self.declared is None:
            try:
                self.declare(self.reference)
            except StorageError as problem:
                return self.session.refuse(id, id_size, SERVER_ERROR, b"Duplicates could not be recognised: %s." % (
                    NAMES_FULL if problem.code == "ERR_LIMIT" else str(problem).encode()))
        if self.add(entry, <uint32_t> size, 1, self.reference if tracked else None, number) != OK:
            return self.session.refuse(id, id_size, SERVER_ERROR, b"Out of memory.")
        size = publish_ack_size(id_size, len(self.name), self.session.text_layout)
        publish_ack_write(self.note(size), id, id_size, <char *> self.name, len(self.name), self.session.text_layout)
        return 0

    # ---- what became of it ----

    cdef int confirm(self, const uint8_t *notes, size_t size, uint64_t first_offset, bint offsets_known) except -1:
        if not self.session.connection.closed:
            self.session.connection.write(notes, size)
        return 0

    cdef int refuse_notes(self, const uint8_t *notes, size_t size, bytes code, bytes text) except -1:
        cdef size_t at = 0
        while at < size:  # the id is the first string of each frame, behind version and type
            self.session.refuse(notes + at + FRAME_HEADER_BYTES + 4, bytes_load16(notes + at + FRAME_HEADER_BYTES + 2),
                                code, text)
            at += FRAME_HEADER_BYTES + bytes_load32(notes + at)
        return 0

    cdef int forget(self) except -1:
        self.session.forget_publisher(self.name, self)
        return 0

    # ---- a full queue: what is put off is (id, entry) ----

    cdef int publish_parked(self, object what) except -1:
        cdef bytes id, entry
        id, entry = what
        return self._append(<const uint8_t *> <char *> id, <uint32_t> len(id), <const uint8_t *> <char *> entry,
                            len(entry))

    cdef int refuse_parked(self, object what, bytes code, bytes text) except -1:
        self.session.refuse_frame(what[0], code.decode(), text.decode())
        return 0

    cdef int redirect_parked(self, object what) except -1:
        cdef bytes id, entry
        id, entry = what
        return self.redirect(<const uint8_t *> <char *> entry, len(entry), id)

    def answer_redirected(self, ids, bint ok):
        cdef bytes id
        cdef size_t size
        cdef Connection connection = self.session.connection
        if connection.closed:
            return
        connection.want_turn()
        for id in ids:
            if not ok:
                self.session.refuse_frame(id, SERVER_ERROR.decode(), "The message could not be stored.")
                continue
            size = publish_ack_size(len(id), len(self.name), self.session.text_layout)
            publish_ack_write(connection.outbox_reserve(size), <char *> id, len(id), <char *> self.name,
                              len(self.name), self.session.text_layout)


# ---- a Deliver ----


cdef bint is_header(const amqp_pair *pair, uint32_t value_size) noexcept:
    """One that we write ourselves replaces the publisher's."""
    return value_size and 0 < pair.key_bytes <= HEADER_TEXT_BYTES_MAX \
        and not (pair.key_bytes == ATTEMPTS_SIZE and memcmp(pair.key, ATTEMPTS, ATTEMPTS_SIZE) == 0)


cdef class Subscription(Consumer):
    """What a connection is subscribed to.

    A stored message becomes a Deliver in one pass over its parts.  What was not written by this door may be no JSON,
    which would end the read loop of clients that parse every payload; it is then sent as a JSON string, or as base64 in
    one.  A message that is larger as a Deliver than clients read is given back as undeliverable.
    """

    cdef NativeSession session
    cdef bytes name                   # of the queue, as frames bear it
    cdef readonly uint32_t wanted     # the prefetch it asked for; 0: the queue's
    cdef readonly bint stored         # its messages come as they are stored
    cdef public bint dormant          # its queue does not exist (any more)

    def __init__(self, NativeSession session, bytes name, int number, uint32_t wanted, bint stored):
        self.session, self.name, self.number, self.wanted, self.stored = session, name, number, wanted, stored
        self.deliveries = session.in_flight
        self.peer = peer_key(session.client.user, session.peer_address)

    cdef bint room(self) noexcept:
        cdef Connection connection = self.session.connection
        return connection.outbox_size - connection.outbox_head < OUTBOX_BYTES_MAX and not connection.closing \
            and not self.session.shutting_down

    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size, uint32_t attempts) except -1:
        cdef NativeSession session = self.session
        cdef amqp_pairs it
        cdef amqp_pair pair
        cdef char text[VALUE_TEXT_BYTES]
        cdef const uint8_t *value
        cdef uint32_t value_size = 0, payload_size = 0, count = 1, size_max = session.frame_max
        cdef uint8_t digits[DECIMAL_BYTES_MAX]
        cdef uint8_t *first_digit = decimal_before(digits + DECIMAL_BYTES_MAX, attempts)
        cdef size_t digits_size = digits + DECIMAL_BYTES_MAX - first_digit
        cdef size_t headers = header_size(ATTEMPTS_SIZE, digits_size)
        cdef size_t size
        cdef uint8_t *out
        cdef uint8_t *p
        cdef const uint8_t *payload
        cdef bint base64 = False, has_headers = False, is_json, of_messagepack
        if self.stored:
            payload, payload_size, size_max = m.data, m.size, session.read_max
        else:
            payload = payload_of(m, &payload_size)
            has_headers = m.is_amqp and m.amqp.application_properties_size
            is_json = payload_size == 0 or json_is_valid(payload, payload_size)
            # One byte may be a digit of JSON and a small number of MessagePack.
            of_messagepack = (not is_json or payload_size == 1) and is_messagepack(m, payload, payload_size)
            if of_messagepack or not is_json:
                made, base64 = as_json(payload, payload_size, of_messagepack)
                payload, payload_size = <const uint8_t *> <char *> made, <uint32_t> len(made)
                if base64:
                    headers += header_size(ENCODING_SIZE, 6)
                    count += 1
        if has_headers:
            core.amqp_pairs_begin(&it, m.amqp.application_properties, m.amqp.application_properties_size)
            while core.amqp_pairs_next(&it, &pair):
                value_of(&pair, text, &value_size)
                if is_header(&pair, value_size):
                    headers += header_size(pair.key_bytes, value_size)
                    count += 1
        size = frame_size(id_size, len(self.name), payload_size, headers, session.text_layout)
        if size - FRAME_HEADER_BYTES > size_max or count > HEADERS_COUNT_MAX:
            return UNDELIVERABLE
        out = session.connection.outbox_reserve(size)
        p = frame_begin(out, size, TYPE_DELIVER, id, id_size, <char *> self.name, len(self.name))
        p = frame_payload(p, payload, payload_size, count)
        if has_headers:
            core.amqp_pairs_begin(&it, m.amqp.application_properties, m.amqp.application_properties_size)
            while core.amqp_pairs_next(&it, &pair):
                value = value_of(&pair, text, &value_size)
                if is_header(&pair, value_size):
                    p = put_header(p, pair.key, pair.key_bytes, value, value_size)
        if base64:
            p = put_header(p, ENCODING, ENCODING_SIZE, b"base64", 6)
        frame_end(put_header(p, ATTEMPTS, ATTEMPTS_SIZE, first_digit, digits_size), session.text_layout)
        if session.compression is not None and size - FRAME_HEADER_BYTES >= session.compression_threshold:
            self._compress(out, size)
        return 0

    cdef int _compress(self, uint8_t *frame, size_t size) except -1:
        """Put the compressed body in the place of the one just written, when that is shorter."""
        cdef bytes packed = compress(self.session.compression, (<char *> frame)[FRAME_HEADER_BYTES:size])
        if packed is None:
            return 0
        bytes_store32(frame, <uint32_t> len(packed))
        frame[4] = <uint8_t> int(COMPRESSION_BY_NAME[self.session.compression])
        put_bytes(frame + FRAME_HEADER_BYTES, <char *> packed, len(packed))
        self.session.connection.outbox_size -= size - FRAME_HEADER_BYTES - len(packed)
        return 0

    def describe(self) -> dict:
        return {"subscription_id": self.number, "stream": self.name.decode(), "active": not self.dormant,
                "prefetch": self.prefetch, "in_flight": self.own.count, "properties": {}}

    def leave(self, bint lost):
        self.says_held = "holding" in self.session.features
        if self.queue is not None:
            self.queue.remove_consumer(self, lost)

    cdef int on_deleted(self) except -1:
        """The subscription lives on by name, and attaches to the queue when it is made again."""
        self.dormant = self.session.dormant = True
        return 0

    cdef int failed(self, object problem) except -1:
        self.session.connection.fail(problem)
        return 0


# ---- the connection ----


# Its publishers and subscriptions go by the names of their queues, in bytes.
cdef class NativeSession(QueueSession):
    cdef public str connection_id
    cdef public str client_version
    cdef public bint text_layout       # what is written: mirrors the peer
    cdef public str compression        # negotiated name, None: nothing is compressed
    cdef public uint8_t flags_max      # highest compression flag that this peer may use
    cdef public frozenset features
    cdef public bytes id_digits        # with which its numbered ids begin; None: not said
    cdef public bint dedup             # one of them, asked for each message
    cdef public uint32_t frame_max
    cdef uint32_t read_max             # of a frame that comes: with the feature `stored` a little more
    cdef public uint32_t compression_threshold
    cdef public bint dormant           # some subscription waits for its queue to be made
    cdef uint64_t heard_bytes
    cdef int64_t heard_ms
    cdef QueueTable queues
    cdef int64_t rate
    cdef double tokens                 # messages that the rate limit allows now
    cdef int64_t tokens_ms

    send_off, rights_changed = commands.send_off, commands.rights_changed

    def __init__(self, Connection connection, door):
        super().__init__(connection, door)
        self.state, self.client_version = commands.FIRST_STATE, ""
        self.connection_id = door.next_connection_id()
        self.text_layout = door.text_layout
        self.flags_max, self.features = 2, frozenset()
        self.frame_max = door.config.frame_max_bytes
        self.read_max, connection.is_trusted = min(self.frame_max, LOGIN_FRAME_BYTES_MAX), False
        self.compression_threshold = door.config.compression_threshold_bytes
        self.queues = door.queues
        self.tokens = self.rate = door.config.messages_per_second_per_connection

    cdef int open(self) except -1:
        self.heard_ms = self.tokens_ms = self.queues.now_ms
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
                commands.refuse_framing(self, malformed(fault, self.read_max, had))
                return size
            if flags:
                # Before a login a frame may not become more than it may be.
                size_max = self.door.config.decompressed_max_bytes if self.state == "open" else self.read_max
                packed = (<char *> data)[at + FRAME_HEADER_BYTES:at + FRAME_HEADER_BYTES + body_size]
                try:
                    body = decompress(flags, packed, size_max)
                except (MalformedFrame, LimitExceeded) as problem:
                    commands.refuse_framing(self, problem)
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

    cdef int _body(self, const uint8_t *body, size_t size) except -1:
        """One whole body; 1 when it was a control command."""
        cdef native_frame frame, unnamed
        cdef int fault = frame_parse(body, size, &frame)
        cdef bint is_publish = False
        if fault != FRAME_OK:
            commands.refuse_framing(self, malformed(fault, frame.needed, frame.had),
                                    (<char *> frame.id)[:frame.id_size])
            return 1
        if self.state == "open":
            if frame.type == TYPE_ACK:
                return self._ack(&frame)
            if (frame.type == TYPE_NACK and "nack" in self.features) \
                    or (frame.type == TYPE_HOLDING and "holding" in self.features):
                return self._ack(&frame)
            is_publish = frame.type == TYPE_PUBLISH
        if not is_publish:
            if (frame.type == TYPE_CONNECT or self.state == "connecting") and frame.type != TYPE_ERROR \
                    and not self.door.layout_fixed:
                self.text_layout = frame.text_layout  # up to and with Connect the peer shows which layout it speaks
            if frame.type == TYPE_PING:
                pong_write(self.connection.outbox_reserve(pong_size(frame.id_size, self.text_layout)), frame.id,
                           frame.id_size, self.text_layout)
                return 0
        if frame.type != TYPE_DISCONNECT and frame.type != TYPE_ACK and frame.type != TYPE_NACK \
                and frame.type != TYPE_HOLDING and self._limited():
            return self.refuse(frame.id, frame.id_size, RATE_LIMITED, b"Message rate limit exceeded.")
        fault = frame_check(&frame)
        if fault != CHECK_OK:
            text = fault_text(&frame, fault)
            if text == NAME_FAULT and commands.has_queue(self, (<char *> frame.queue)[:frame.queue_size]):
                unnamed = frame  # another protocol has made it: only the rest of the frame can be wrong
                unnamed.queue_size = 0
                text = fault_text(&unnamed, frame_check(&unnamed))
            if text is not None:
                self.refuse(frame.id, frame.id_size, INVALID_MESSAGE, text.encode())
                return not is_publish
        if is_publish:
            return self._publish(&frame, body, size)
        commands.handle(self, (<char *> body)[:size])
        return 1

    cdef int _publish(self, const native_frame *frame, const uint8_t *body, size_t size) except -1:
        """A Publish that is as it should be, into its queue if this user may; 1 when that took Python."""
        cdef NativePublisher publisher = <NativePublisher> self.publisher_cached
        if not deliver_fits(frame, 0, self.frame_max):
            return self.refuse(frame.id, frame.id_size, INVALID_MESSAGE,
                               b"The message is larger than the %d bytes that clients read." % self.frame_max)
        if publisher is None or len(publisher.name) != <Py_ssize_t> frame.queue_size \
                or memcmp(<char *> publisher.name, frame.queue, frame.queue_size) != 0:
            publisher = self.publishers.get((<char *> frame.queue)[:frame.queue_size]) if frame.queue_size else None
            if publisher is not None:
                self.publisher_cached = publisher
        # One that is deleted: its doorbell may not have been heard yet, but whoever deleted it has had the answer.
        if publisher is None or core.control_is_deleted(publisher.stream.log.control):
            commands.first_publish(self, (<char *> body)[:size])
            return 1
        if publisher.generation != self.queues.access_generation:
            if not commands.may_publish(self, (<char *> frame.id)[:frame.id_size], publisher.queue.name):
                return 1
            publisher.generation = self.queues.access_generation
        return publisher.publish(frame)

    cdef int _ack(self, const native_frame *frame) except -1:
        """Process an Ack, a Nack or a Holding of one delivery."""
        cdef int32_t slot = NO_SLOT
        cdef const uint8_t *named
        cdef uint32_t named_size = 0
        cdef Consumer consumer
        if frame.header_count and header_find(frame.headers, frame.headers + frame.headers_size, b"messageId", 9,
                                              &named, &named_size):
            slot = self._find(frame, named, named_size)
        if slot == NO_SLOT:
            slot = self._find(frame, frame.id, frame.id_size)
        if slot == NO_SLOT:
            return 0  # it went back to the queue, or was settled, before this was on its way
        consumer = <Consumer> self.by_number[self.in_flight.slots[slot].consumer]
        if frame.type == TYPE_HOLDING:
            if frame.payload_size:  # `false`: it had it, and has it no more
                self.in_flight.slots[slot].seen = True
            else:
                self.in_flight.slots[slot].held = True
        elif frame.type == TYPE_NACK:
            (<Queue> consumer.queue).give_back(consumer, slot, True, 0)
        else:
            (<Queue> consumer.queue).settle(consumer, slot)
        return 0

    cdef int32_t _find(self, const native_frame *frame, const uint8_t *id, uint32_t id_size) except -2:
        """The oldest delivery with this id, of the queue that the frame names if it names one."""
        cdef int32_t slot = self.in_flight.find(id, id_size)
        cdef bytes name
        while slot != NO_SLOT and frame.queue_size:
            name = (<Subscription> self.by_number[self.in_flight.slots[slot].consumer]).name
            if len(name) == <Py_ssize_t> frame.queue_size and memcmp(<char *> name, frame.queue, frame.queue_size) == 0:
                break
            slot = self.in_flight.next_same(slot)
        return slot

    cdef int refuse(self, const uint8_t *id, uint32_t id_size, bytes code, bytes text) except -1:
        """An Error that answers the frame `id`."""
        if not self.connection.closed:
            error_write(self.connection.outbox_reserve(error_size(id_size, len(code), len(text))), id, id_size,
                        <char *> code, len(code), <char *> text, len(text))
        return 0

    def refuse_frame(self, bytes id, code, text):
        self.refuse(<const uint8_t *> <char *> id, <uint32_t> len(id), code.encode(),
                    text.encode(errors="replace")[:65_535])

    cdef bint _limited(self) noexcept:
        """Has this connection sent more messages than its rate allows?  A bucket of one second's worth."""
        cdef double rate = self.rate
        cdef double passed_ms = self.queues.now_ms - self.tokens_ms
        if rate == 0:
            return False
        self.tokens_ms = self.queues.now_ms
        self.tokens = min(rate, self.tokens + passed_ms * rate / 1000.0)
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

    def add_publisher(self, Queue queue, bytes name) -> NativePublisher:
        publisher = self.publishers[name] = self.publisher_cached = NativePublisher(self, queue, name)
        return publisher

    def forget_rights(self):
        """This connection is another user's now: every queue is asked for again."""
        cdef NativePublisher publisher
        for publisher in self.publishers.values():
            publisher.generation = -1

    def add_subscription(self, bytes name, int prefetch, bint stored) -> Subscription:
        """Remember it; ``consume`` gives it a queue."""
        subscription = Subscription(self, name, self.free_number(), prefetch, stored)
        self.remember_subscription(name, subscription)
        return subscription

    def consume(self, Subscription subscription, Queue queue, str subscriber=None, uint32_t subscriber_ttl_s=0,
                answer=None):
        queue.add_consumer(subscription, subscription.wanted, subscriber, subscriber_ttl_s, answer)
        subscription.dormant = False

    def subscribe(self, bytes name, int prefetch, bint stored, Queue queue, str subscriber, uint32_t subscriber_ttl_s,
                  answer):
        """`answer()` comes before the first message.  Raises LimitExceeded, StorageError: then nothing is remembered."""
        subscription = self.add_subscription(name, prefetch, stored)
        try:
            self.consume(subscription, queue, subscriber, subscriber_ttl_s, answer)
        except BaseException:
            self.remove_subscription(name)
            raise

    def leave(self):
        """The peer has said goodbye: read no more, confirm what it has published, then close."""
        self.state = "leaving"
        for name in list(self.subscriptions):
            self.remove_subscription(name)
        self.set_busy()
        self.connection.pause()
        self.connection.want_turn()  # after this turn's batches

    def describe(self) -> dict:
        version = {"version": self.client_version} if self.client_version else {}
        return self.described(frame_max=self.frame_max, client_properties=version)

    # ---- deliver ----

    cdef bint deliver(self) except -1:
        cdef Subscription subscription
        cdef bint has_stalled = False
        self.go_on_after_turn()
        if self.state == "leaving" and self.has_confirmed_all():
            self.finish()
        if self.connection.flush():
            for subscription in self.subscriptions.values():
                has_stalled |= subscription.stalled
            for subscription in list(self.subscriptions.values()) if has_stalled else ():
                if subscription.stalled and subscription.queue is not None:
                    (<Queue> subscription.queue).room_again(subscription)
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

    cdef int _keep_alive(self, int64_t now_ms) except -1:
        cdef int64_t timeout_ms = self.door.config.keepalive_timeout_s * 1000
        if self.connection.bytes_in != self.heard_bytes:
            self.heard_bytes, self.heard_ms = self.connection.bytes_in, now_ms
        elif timeout_ms and now_ms - self.heard_ms > timeout_ms and not self.busy and not self.connection.waits:
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
        """With nothing in flight, no command in a helper thread and no publish that waits for a sync."""
        if self.in_flight.count:
            return 0
        if not self.working and self.has_confirmed_all():
            self.finish()
        else:
            self.pause(PAUSE_ENDING)  # the peer could only send more to be confirmed, without end
        return 0
