# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint8_t
from vibemq.broker.queue_table cimport QueueTable
from vibemq.net.door cimport Session
from vibemq.protocols.signalr.transports cimport Transport
from vibemq.protocols.signalr.websocket cimport MessageReader


cdef class HttpSession(Session):
    cdef readonly object door          # protocols.signalr.door.SignalRDoor
    cdef QueueTable queues             # for the loop's clock
    cdef object request                # whose head was read and whose body is not here or not answered yet; None
    cdef size_t head_size
    cdef bint told_to_continue
    cdef const uint8_t *body           # of the request that is answered now
    cdef size_t body_size
    # The WebSocket, event stream or pending poll that this socket serves; None: the next bytes are a request.
    cdef Transport transport
    cdef object poll                   # the request of the pending poll
    cdef list answered                 # transports of polls, whose records wait in the outbox
    cdef MessageReader reader          # of a WebSocket
    cdef readonly bint saw_close       # the peer's Close has come, or ours has left
    cdef int receiver                  # the worker that this socket goes to once nothing waits to be sent; -1: none
    cdef bint waiting, held, yielded   # why `busy`: somebody else's answer, the hub is full, enough for one turn
    cdef int64_t deadline_ms
    cdef object at_deadline
    cdef readonly int64_t connected_ms # since 1970

    cdef Py_ssize_t _requests(self, const uint8_t *data, size_t size) except -1
    cdef Py_ssize_t _request(self, const uint8_t *data, size_t size) except -1
    cdef Py_ssize_t _head(self, const uint8_t *data, size_t size) except -1
    cdef Py_ssize_t _messages(self, uint8_t *data, size_t size) except -1
    cdef int _control(self, int opcode, const uint8_t *payload, size_t size) except -1
    cdef int _hand_over(self) except -1
    cdef int _answers_over(self, bint were_taken) except -1
    cdef int hold(self, bint held) except -1
    cdef int serve(self, Transport transport, request) except -1
    cdef int wait_for_request(self) except -1
