# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint8_t
from vibemq.net.connection cimport Connection


# Why a session is not read, each with what lifts it.  Whatever lifts one must still be read, by somebody: the table
# "Pauses" in ARCHITECTURE.md says how.
cpdef enum Pause:
    PAUSE_COMMAND = 1      # a helper thread works on a command, and replies keep the order of requests: its result
    PAUSE_TURN = 2         # it has had its share of this turn: the next deliver()
    PAUSE_UNCONFIRMED = 4  # too many messages wait for a sync: syncs
    PAUSE_PARKED = 8       # too much is parked before full queues: consumers of those queues, block_timeout_ms
    PAUSE_ALARM = 16       # too little disk or memory is free, and it publishes: consumers, retention, an operator
    PAUSE_RATE = 64        # its user or virtual host publishes more than its limit allows: time
    PAUSE_ENDING = 32      # the broker ends, and nothing is in flight: nothing, the connection ends with its last sync


# What a person is shown as "blocked".
cdef enum:
    PAUSES_SHOWN = 4 | 8 | 16 | 64


# The contract between a connection and the door it came through.  One Session per
# connection; every method runs in the worker's loop and may not block.
cdef class Session:
    cdef Connection connection
    # Bytes that the frame at the front needs in all, when receive() left an incomplete one
    # and could read its length; 0 when unknown.  The connection then makes room for just that.
    cdef size_t wanted
    # True while no more bytes may be given to receive(); what pause() and go_on() are for keeps it so while any
    # reason is left.
    cdef bint busy
    cdef readonly unsigned int pauses  # of Pause

    # Give receive() nothing more, for this reason.
    cdef int pause(self, unsigned int reason) except -1
    # This reason is over: read on, unless another is left.
    cdef int go_on(self, unsigned int reason) except -1

    # The connection exists and is registered; send greetings if the protocol has any.  A TLS
    # handshake, if the port speaks it, is still to come: it has to fit in the first deadline.
    cdef int open(self) except -1
    # `size` bytes that begin at a frame boundary.  Returns how many were consumed (whole
    # frames only) or -1 with a Python error set; an error ends the connection.  The
    # bytes are the caller's and change after the call.
    cdef Py_ssize_t receive(self, const uint8_t *data, size_t size) except -1
    # Send what consumers have credit for, and the outbox, until the socket is full or the
    # turn's share is used.  Returns True when there is more to send at once.
    cdef bint deliver(self) except -1
    # Called about twice a second with the loop's clock in ms: heartbeats and deadlines.
    cdef int tick(self, int64_t now_ms) except -1
    # Called in its place after a pause, while input waits: send a heartbeat if one is due, and judge nobody.
    cdef int beat(self, int64_t now_ms) except -1
    # The broker shuts down: tell the peer.
    cdef int shutdown(self) except -1
    # The connection is gone: give everything back.  Called once, whatever happened.
    cdef int close(self) except -1
