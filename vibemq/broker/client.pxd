# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from vibemq.broker.messages cimport message_view
from vibemq.net.door cimport Session
from vibemq.storage.shm cimport Usage, letter

cdef class InFlight

cdef enum:
    METERS_MAX = 2


# A rate that all clients of a user or a virtual host share.
cdef struct meter_of:
    uint32_t row
    uint16_t change                   # the rate's number
    double message_us                 # the time that one message costs
    double left_us                    # less than 1, of what was not counted yet


# Whoever publishes and consumes through a door: who it is, what it may do, and how much of it waits here.  Each limit
# that is passed is a reason to read nothing more of it (net/door.pxd), until it is well below that limit again.
cdef class Client:
    cdef readonly object owner        # the session, or whatever outlives one; see client.pyx
    cdef readonly object broker       # broker.parts.Broker
    cdef public str user              # "" when nobody had to log in
    cdef public object access         # access.permissions.Access; None: it is not let in yet
    cdef readonly Py_ssize_t unconfirmed      # messages that wait for a sync
    cdef readonly Py_ssize_t parked_bytes     # of messages that wait for room in full queues
    cdef readonly Py_ssize_t consumers        # its subscriptions, whose acknowledgements may be what makes room
    cdef Py_ssize_t unconfirmed_max
    cdef Py_ssize_t burying           # its publishers that wait for a dead-letter queue to be made
    cdef bint parks_much
    cdef readonly unsigned int held   # reasons of net.door.Pause for which it is not read
    cdef public tuple counted         # of broker.limits: as whose it is counted; () until it is let in
    cdef int meters                   # how many rates it is limited by: its user's, its virtual host's
    cdef meter_of rates[METERS_MAX]
    cdef Usage usage
    cdef object rate_timer            # when it is read on; None: it was never held

    cdef int count_unconfirmed(self, Py_ssize_t more) except -1
    cdef int count_parked(self, Py_ssize_t more) except -1
    cdef int count_consumers(self, Py_ssize_t more) except -1
    cdef int count_burying(self, Py_ssize_t more) except -1
    # Messages for full queues are refused: too much is parked, and the pause that would hold them up is not allowed.
    cdef bint parks_no_more(self) noexcept
    # It has published so many; only to be called where it has meters.
    cdef int spend(self, uint64_t count) except -1
    cdef int _hold_for(self, uint64_t wait_us, uint64_t now_us) except -1
    # This reason holds now, or no longer.
    cdef int hold(self, unsigned int reason, bint holds) except -1
    cdef int _look_at_parked(self) except -1


# A door's session whose peer is a client of the broker.
cdef class ClientSession(Session):
    cdef readonly object door          # what all sessions of the door on this worker share
    cdef readonly Client client
    cdef public str state              # a key of the door's table of states; "closed" at the end
    cdef readonly int64_t connected_ms # since 1970
    cdef public int64_t deadline_ms    # of a handshake, of an answer that is held back; 0: none
    cdef public object at_deadline     # what happens then: (session) -> None
    cdef readonly dict publishers      # the door's own key -> broker.publisher.Publisher
    cdef object publisher_cached       # the one used last

    # It has had its share of this turn; the next deliver() lets it go on.
    cdef int yield_turn(self) except -1
    cdef int go_on_after_turn(self) except -1
    cdef bint has_confirmed_all(self) except -1
    cdef int close_publishers(self) except -1
    # Is a deadline over?  Then what was to happen has happened.
    cdef bint look_at_deadline(self, int64_t now_ms) except -1


# The same of a door to queues, whose clients acknowledge each message.
cdef class QueueSession(ClientSession):
    cdef readonly dict subscriptions   # by name; each has a `number` and leave(lost)
    cdef list by_number                # the same, or None
    cdef InFlight in_flight
    cdef bint shutting_down


# ---- consumers ----

cdef enum:
    ID_BYTES_INLINE = 40  # ids are mostly 32 or 36 characters; a longer one gets memory of its own
    NO_SLOT = -1


# One message that was handed to a consumer of this connection and is not settled.
cdef struct delivery:
    uint64_t offset
    int64_t sent_ms
    uint32_t hash, id_size
    uint8_t *id_long               # NULL: the id stands in `id`
    uint8_t id[ID_BYTES_INLINE]
    uint32_t attempts, strikes
    bint held                      # the peer reported that its program holds this message
    bint seen                      # the peer's program has had this message, and each one before it
    uint32_t sequence              # counts what this connection was handed: tells the slot's owners apart; never 0
    int32_t consumer               # its consumer's number in this connection; NO_SLOT: the slot is free
    int32_t next, previous         # of the same consumer, in the order they were handed out
    int32_t bucket_next, bucket_previous


# A consumer's deliveries, oldest first.
cdef struct delivery_list:
    int32_t first, last
    uint32_t count


cdef class InFlight:
    cdef delivery *slots
    cdef int32_t *heads              # of buckets, oldest first
    cdef int32_t *tails
    cdef uint32_t capacity, bucket_mask
    cdef int32_t free_slot
    cdef readonly uint32_t count
    cdef uint32_t sequence           # of the last one
    cdef uint64_t key

    cdef int32_t add(self, delivery_list *own, int32_t consumer, uint64_t offset, const uint8_t *id, uint32_t id_size,
                     uint32_t attempts, uint32_t strikes, int64_t now_ms) except -2
    cdef int32_t find(self, const uint8_t *id, uint32_t id_size) noexcept
    cdef int32_t next_same(self, int32_t slot) noexcept
    cdef void remove(self, delivery_list *own, int32_t slot) noexcept
    cdef int _grow(self) except -1
    cdef bint _is(self, int32_t slot, uint32_t hash, const uint8_t *id, uint32_t id_size) noexcept


cdef enum:
    WRITTEN = 0                    # what a consumer's write() returns
    UNDELIVERABLE = 1
    UNWANTED = 2


# Of a host and a user: the same whenever they reconnect, in every worker.  Those that share one count as the same peer.
cdef uint32_t peer_key(str user, str address) except? 0


# Somebody on this worker who gets a queue's messages.  The last four methods are the door's; none may block.
cdef class Consumer:
    cdef object queue                 # the broker.queue.Queue; None once it is removed
    cdef readonly uint32_t consumer_id  # among this worker's
    cdef readonly int32_t number      # among its connection's
    cdef InFlight deliveries          # its connection's
    cdef delivery_list own            # its part of them
    cdef readonly uint32_t prefetch   # how many may be in flight
    cdef bint follows                 # it said nothing of that: as many as its queue says
    cdef readonly str subscriber      # its name as a member of a fan-out; "": none
    cdef readonly uint32_t subscriber_ttl_s  # time to live of the name without its connection; 0: the grace of unnamed members
    cdef readonly uint32_t record     # in the fan-out's member table; 0: none
    cdef uint32_t peer                # whose it is: peer_key() of its connection
    cdef object member                # the home's broker.home.Member of it, while the home is on this worker
    cdef bint stalled                 # had no room when there was something for it
    # From a home on another worker: what was handed over and is not written yet, and what it is told.
    cdef letter *pending
    cdef size_t pending_head, pending_size, pending_capacity
    cdef uint64_t received
    cdef uint64_t seen                # one more than the highest offset it was given; before: the log's end when it came
    cdef bint fresh, unordered        # was given nothing so far; something after what came later
    cdef dict returned                # of a fan-out with a home elsewhere: copies given back that come again
    cdef uint32_t settled_count
    # The acknowledgement clock runs for the oldest delivery: from when it was sent, or when the one before it was settled.
    cdef int64_t clock_ms             # when the oldest delivery of that time was settled or given back
    cdef int64_t heard_ms             # when the peer last settled or refused a delivery
    cdef bint overdue                 # did not settle its oldest delivery in time, and none since (Home._narrow)
    cdef bint returning               # and its other deliveries in flight at that time are being taken back
    cdef bint says_held               # its peer names the messages in its program's hand (Holding)
    cdef bint queued, fetching

    cdef int take(self, message_view *m, uint32_t attempts, uint32_t strikes) except -1
    cdef uint64_t lowest(self) noexcept
    cdef bint is_any_held(self) noexcept
    cdef int32_t last_seen(self) noexcept
    cdef void note_seen(self, int32_t slot) noexcept
    cdef int push_pending(self, const letter *what) except -1
    cdef int write_pending(self) except -1
    # May another message be written now?  When not: call queue.room_again(self) once there is.
    cdef bint room(self) noexcept
    # Write a Deliver for message `m`, whose id is `id`.  The bytes are only valid during the call.
    # UNDELIVERABLE: this consumer can never be given it, but others may.  UNWANTED: this consumer does not want it, and
    # its copy is settled; only consumers of a fan-out may say so.
    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size, uint32_t attempts) except -1
    # The queue was deleted; this consumer is already detached from it.
    cdef int on_deleted(self) except -1
    # One of the above raised: end this consumer's connection, later, and nobody else's.
    cdef int failed(self, object problem) except -1
