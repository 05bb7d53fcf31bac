# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint8_t, uint64_t
from vibemq.net.door cimport Session
from vibemq.net.sockets cimport Tls, iovec


cdef enum:
    # What the room is for, each with a part of its own.
    ROOM_READ = 0   # whatever one read of a socket brought and could not be used at once: half of all
    ROOM_SMALL = 1  # small frames that have begun: a quarter
    ROOM_LARGE = 2  # large ones, and answers that peers do not read: a quarter
    ROOM_PARTS = 3


# What all connections of a worker keep together of input that is not used yet.
cdef class Room:
    cdef readonly size_t limit          # bytes
    cdef size_t size[ROOM_PARTS]
    cdef size_t taken[ROOM_PARTS]       # what connections keep beyond their shares, or are promised
    cdef int promises[ROOM_PARTS]      # connections that are promised room for the whole of a frame
    cdef tuple waiting                  # for each part: connections that want such a promise, longest first

    cdef size_t readable(self) noexcept
    cdef bint may_promise(self, int part, size_t more) noexcept
    cdef int serve(self, int part) except -1


cdef class Connection:
    cdef readonly int fd
    cdef readonly str peer              # "127.0.0.1:54321 -> 127.0.0.1:5552", for people
    cdef readonly str peer_host, local_host
    cdef readonly int peer_port, local_port
    cdef readonly bint is_loopback
    cdef public bint is_relayed         # TLS ends in another worker, which passes the plain bytes on
    cdef Session session
    cdef Tls tls                        # None: the bytes on the wire are the frames
    cdef object loop                    # server.turn.Loop: told when this connection wants a turn
    cdef uint8_t *inbox                 # an incomplete frame, or frames not yet taken by a busy session
    cdef size_t inbox_size, inbox_capacity
    cdef Room room                      # what all connections of the worker keep together
    cdef size_t counted, counted_out    # of it: what this one keeps beyond its share, and what its peer does not read
    cdef int part                       # which part of the room that is counted in
    cdef size_t promised                # bytes that the inbox may grow to, the whole frame at its front; 0: nothing
    cdef bint waits                     # for such a promise; not read meanwhile
    cdef int64_t held_ms                # since when it has kept others waiting; 0: it does not
    cdef uint64_t held_bytes            # sent and received until then
    cdef public bint is_trusted         # reads as much at once as there is room for: its peer has logged in
    cdef uint8_t *outbox                # frames to send, [outbox_head, outbox_size)
    cdef size_t outbox_head, outbox_size, outbox_capacity
    cdef public bint socket_full        # the socket took less than was offered: wait until it is writable
    cdef public bint closing            # no more is read; close when the outbox is empty
    cdef public bint closed
    cdef public object problem          # why it must end at its next turn; None
    cdef public int64_t closing_ms      # when `closing` was first seen by the clock; 0 before
    cdef public bint leaving            # its session was told that the broker ends, and is asked at each tick
    cdef public bint lingering          # half closed: all is sent, and the peer's end is awaited
    cdef public bint scheduled          # already in the loop's list of connections to send
    cdef bint paused                    # not watched for input
    cdef int watched                    # bits registered with the poller
    cdef uint64_t bytes_in, bytes_out   # whole life; heartbeats compare them

    cdef ssize_t _recv(self, uint8_t *data, size_t size) except -2
    cdef Py_ssize_t _shake_hands(self) except -2
    cdef int _take(self, const uint8_t *data, size_t size) except -1
    cdef int _take_inbox(self) except -1
    cdef int _inbox_reserve(self, size_t size) except -1
    cdef int _count(self) except -1
    cdef bint _ask_room(self) except -1
    cdef int _end_promise(self) except -1
    cdef int _leave_room(self) except -1
    cdef int make_way(self, int64_t now_ms, bint wanted) except -1
    cdef int _block(self) except -1
    cpdef pause(self)
    cdef Py_ssize_t receive(self) except -2
    cdef int read_on(self) except -1
    cdef uint8_t *outbox_reserve(self, size_t size) except NULL
    cdef int write(self, const uint8_t *data, size_t size) except -1
    cdef int prepend(self, const uint8_t *data, size_t size) except -1
    cdef bint flush(self) except -1
    cdef bint all_sent(self)
    cdef bint is_shaking_hands(self)
    cdef bint has_unread(self)
    cdef size_t pending(self)           # bytes in the outbox
    cdef Py_ssize_t send(self, iovec *iov, int count, bint outbox_first) except -2
    cdef int want_turn(self) except -1
    cdef int close_after_flush(self) except -1
    cdef int half_close(self) except -1
