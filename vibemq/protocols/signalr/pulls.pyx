# SPDX-License-Identifier: Apache-2.0
"""Receive: messages pulled from a queue, as the result of one call.

Each message that is wanted gets a consumer of its own that may have one in flight.  So whatever home the queue has, on
this worker or on another, hands over no more than was asked for; a consumer that has got nothing leaves when the call is
answered, the others when their message is settled.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from vibemq.broker.consumer cimport UNDELIVERABLE
from vibemq.broker.messages cimport message_view
from vibemq.protocols.signalr.deliveries cimport HubSubscription, Outlet
from vibemq.protocols.signalr.hub cimport HubConnection
from vibemq.protocols.signalr.items cimport delivery_size, delivery_write, item, item_of

from vibemq.broker.operations import Operation
from vibemq.protocols.signalr.invocations import HubError
from vibemq.protocols.signalr.message_methods import Subscribed, check_count
from vibemq.protocols.signalr.methods import METHODS, needed, optional, require
from vibemq.protocols.signalr.publishing import open_queue
from vibemq.protocols.signalr.queue_options import one_of, read_options, type_of, whole_from
from vibemq.protocols.signalr.spec import Encoding, ErrorCode
from vibemq.storage.vhosts import DEFAULT_VHOST

MESSAGES_MAX = 256  # of one call: each has a consumer, of some microseconds
WAIT_MS_MAX = 600_000
LOOK_MS = 10
RESULT_ADDS_BYTES = 64  # around the deliveries of an answer, without the invocation's id
GRACE_MS = 250  # for a home on another worker to hand over what there is


cdef class PullOutlet(Outlet):
    """Keeps a delivery, as a raw value."""

    cdef object pull
    cdef readonly bytes taken

    def __init__(self, HubConnection hub, bytes queue, pull):
        super().__init__(hub, queue)
        self.pull = pull

    cdef int write(self, const message_view *m, uint64_t key, const uint8_t *id, uint32_t id_size, bint redelivered,
                   uint64_t tag) except -1:
        cdef int encoding = self.hub.encoding
        cdef const item *of = item_of(m, key, self.queue, id, id_size, redelivered, encoding)
        cdef size_t size = delivery_size(of, tag, encoding)
        if size + <size_t> self.pull.adds > self.record_max:
            return UNDELIVERABLE
        if not self.pull.fits(size):
            return 0  # it goes back to the queue with its consumer, as soon as the call is answered
        taken = bytes(size)
        delivery_write(<uint8_t *> <char *> taken, of, tag, encoding)
        self.taken = taken
        self.pull.came(taken)
        return 0


cdef class PullConsumer(HubSubscription):
    cdef bint room(self) noexcept:
        cdef PullOutlet outlet = <PullOutlet> self.outlet
        return outlet.taken is None and not outlet.pull.is_full and HubSubscription.room(self)

    @property
    def taken(self):
        return (<PullOutlet> self.outlet).taken


class Pull:
    """One Receive that waits for messages."""

    def __init__(self, call, queue, int most, int64_t wait_ms, bint is_auto):
        hub = call.hub
        self.call, self.hub, self.queue, self.most, self.is_auto = call, hub, queue, most, is_auto
        self.deliveries, self.ways = [], []
        self.adds = RESULT_ADDS_BYTES + 2 * len(call.id)
        self.bytes, self.bytes_max, self.is_full = self.adds, hub.door.config.message_max_bytes, False
        now_ms = hub.queues.now_ms
        if call.is_cancelled:
            wait_ms = 0
        self.due_ms, self.grace_ms = now_ms + wait_ms, now_ms + max(wait_ms, GRACE_MS)
        self.timer = hub.queues.timers.timer(self.look)
        call.on_cancel, call.on_over = self.finish, self.close
        name = queue.name
        for _ in range(most):
            subscribed = Subscribed(hub, name, None)
            outlet = PullOutlet(hub, name.encode(), self)
            consumer = PullConsumer(hub, hub.next_number(), outlet, is_auto=False, when_deleted=self.deleted)
            hub.add_subscription(subscribed, consumer)
            self.ways.append(subscribed)
            queue.add_consumer(consumer, 1)
        self.timer.set(0)

    def fits(self, size) -> bool:
        """The answer is one record, which must not be larger than what peers read."""
        self.bytes += size + 1
        self.is_full = self.is_full or self.bytes > self.bytes_max
        if self.is_full:
            self.timer.set(0)
        return not self.is_full

    def came(self, bytes delivery):
        """In the middle of the queue's work: what follows from it waits for the next turn."""
        self.deliveries.append(delivery)
        self.timer.set(0)

    def look(self, now_ms):
        now_ms = self.hub.queues.now_ms
        if self.deliveries or now_ms >= self.grace_ms or (now_ms >= self.due_ms and not self.queue.counts()[0]):
            self.finish()
        else:
            self.timer.set(min(now_ms + LOOK_MS, self.grace_ms) if now_ms >= self.due_ms else self.due_ms)

    def deleted(self):
        self.call.refuse(ErrorCode.QUEUE_NOT_FOUND, f"Queue '{self.queue.name}' was deleted.")

    def finish(self):
        if self.hub.encoding == Encoding.JSON:
            self.call.complete_raw(b"[" + b",".join(self.deliveries) + b"]")
        else:
            count = len(self.deliveries)
            head = bytes([0x90 + count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")
            self.call.complete_raw(head + b"".join(self.deliveries))

    def close(self):
        """The call is over: consumers with a message stay until that is settled."""
        self.timer.cancel()
        for subscribed in self.ways:
            if self.hub.closed or subscribed.consumer.taken is None:
                subscribed.close()
            else:
                self.hub.add_pull(subscribed)
                if self.is_auto:
                    self.hub.settle_when_sent(subscribed.consumer)


@METHODS.add("Receive", needed("queue"), optional("options"))
def receive(call, queue, options):
    """Up to ``max`` messages; with none there it waits for the first one, ``waitMs`` at most."""
    readers = {
        "max": whole_from(1, MESSAGES_MAX),
        "waitMs": whole_from(0, WAIT_MS_MAX),
        "ack": one_of("auto", "manual"),
    }
    wanted = read_options(options or {}, readers)
    if call.id is None:
        return None  # messages would go to nobody, and count as settled
    check_count(call.hub)
    require(call.hub, Operation.Subscribe, queue)
    record = call.hub.queues.metadata.find_stream(DEFAULT_VHOST, queue)
    if record is not None and record.queue is None:  # it would become a queue
        raise HubError(ErrorCode.NOT_SUPPORTED, f"'{queue}' is a stream, which nobody takes from; use ReadStream.")

    def opened(found):
        if type_of(found.policy) != "queue":
            found.close_if_unused()
            raise HubError(ErrorCode.NOT_SUPPORTED, f"'{queue}' is a topic, which keeps nothing for those who are not "
                                                    "subscribed; use Subscribe.")
        Pull(call, found, wanted.get("max", 1), wanted.get("waitMs", 0), wanted.get("ack", "auto") == "auto")

    return open_queue(call, queue, opened)
