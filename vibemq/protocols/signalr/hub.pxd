# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from vibemq.broker.client cimport Client
from vibemq.broker.queue_table cimport QueueTable
from vibemq.protocols.signalr.codec cimport hub_message
from vibemq.protocols.signalr.publisher cimport HubPublisher
from vibemq.protocols.signalr.subscriptions cimport Subscriptions
from vibemq.protocols.signalr.transports cimport Transport


cdef class HubConnection:
    cdef readonly object door          # SignalRDoor
    cdef readonly str connection_id, token
    cdef readonly str peer_address     # that it was negotiated from
    cdef readonly str kind             # the name of the transport that it began with
    cdef readonly Transport polls      # where polls fetch what there is, also once it is closed; None: it has another
    cdef public Py_ssize_t early_bytes # posted before there was a transport
    cdef int64_t expires_ms            # without a socket; 0: it has one
    cdef bint is_left                  # closed, and kept only for what a poll may still fetch
    cdef readonly int dialect, encoding  # set by the handshake
    cdef readonly bint is_alpha2       # an early connection of ?dialect=alpha2
    cdef readonly bint wants_stateful  # was promised a stateful reconnect by negotiate
    cdef readonly Transport transport  # None between polls and sockets
    cdef readonly bint closed
    cdef bint is_open                  # the handshake is done
    cdef readonly QueueTable queues
    cdef readonly dict publishers      # queue name (bytes) -> HubPublisher
    cdef HubPublisher publisher_cached
    cdef readonly dict feeds           # number -> publishing.Feed, of uploads that are not answered
    # What methods have begun and not finished (invocations.Invocations).
    cdef readonly object calls
    cdef readonly Subscriptions subscriptions
    cdef bytearray unfinished          # a record whose end has not come
    cdef list held                     # [(record, is text)] that wait for the first transport
    cdef size_t held_size
    cdef bytearray kept                # the last record that had no transport, for as long as it is written
    cdef uint8_t *latest               # the record that is being written: stateful reconnect keeps a copy
    cdef size_t latest_size
    cdef bint latest_is_numbered
    cdef bint has_written, has_heard, has_pinged, is_shutting_down, was_full, was_lost, is_given_up
    cdef int64_t written_ms, heard_ms, opened_ms, lost_ms
    cdef int64_t acked_ms              # when the peer last acknowledged; if it had not to, when it last had to begin
    cdef object replay                 # reconnect.Replay; None without stateful reconnect
    cdef public bint working           # invocations wait: a helper thread is busy with one before them
    cdef size_t record_max
    cdef bint is_paused                # the transport was told
    cdef readonly Client client
    cdef Py_ssize_t waiting_bytes      # of calls and items of uploads that wait for a method
    cdef bint crowded                  # too many of them
    cdef public bint has_published     # since a method last saw to it that all of it is in the logs

    # Hub bytes of one WebSocket message or POST body.
    cdef int receive(self, const uint8_t *data, size_t size) except -1
    cdef int tick(self, int64_t now_ms) except -1
    cdef int beat(self, int64_t now_ms) except -1
    cpdef int shutdown(self) except -1
    # Room for one whole record of types 1 to 5, whose framing is there.  The caller fills it, then calls written().
    cdef uint8_t *record(self, size_t size) except NULL
    cdef int written(self) except -1
    cdef bint room(self) noexcept

    cpdef bint holds_back(self)
    cdef bint _may_end(self, const uint8_t *data, size_t size) except -1
    cdef Py_ssize_t _take(self, const uint8_t *data, size_t size) except -1
    cdef Py_ssize_t _records(self, const uint8_t *data, size_t size) except -1
    cdef Py_ssize_t _handshake(self, const uint8_t *data, size_t size) except -1
    cdef int _one(self, const uint8_t *body, size_t size) except -1
    cdef int _completed(self, const hub_message *m) except -1
    cdef int _invoked(self, const hub_message *m) except -1
    cdef int _call(self, const hub_message *m) except -1
    cdef int _publish(self, const hub_message *m) except -1
    cdef int _settle(self, const hub_message *m, bint nack) except -1
    # The same for any record: only types 1 to 5 are numbered, for a stateful reconnect.
    cdef uint8_t *room_for(self, size_t size, bint is_text, bint is_numbered) except NULL
    cdef int _write(self, bytes record, bint is_text) except -1
    cdef uint8_t *_framed(self, size_t size, bint is_numbered) except NULL
    cdef int _send(self, bytes record, bint is_numbered) except -1
