# SPDX-License-Identifier: Apache-2.0
"""The null server of SignalR hubs.

It completes each Publish, writes each message to all that have subscribed (in JSON), and keeps nothing. Of an
invocation it reads what the load generator writes: the order of members is fixed. What is no Publish is rare, and
answered in Python. All subscribers get the same bytes, made once for what a turn brought.
"""

from libc.stdint cimport uint8_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy, memmove

from vibemq.bench._flow cimport Buffer, buffer_reserve
from benchmarks.peers cimport _null
from benchmarks.peers._signalr cimport (
    FOUND, NEEDS_MORE, SEPARATOR, WS_BINARY, WS_CLOSE, WS_TEXT, frame, frame_at, header_put, hub_mask, mask_of, skip,
)

import base64
import hashlib
import json

import msgspec

cdef enum:
    MESSAGE_SIZE_MAX = 60000        # records go into one WebSocket message until it has so many bytes
    HEADER_SIZE = 4                 # of a message of so many bytes
    ID_SIZE = 8                     # of the load generator's invocations

ACCEPT_SUFFIX = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
MARK = "<number>"
RESULT = {"id": "0" * 32, "offset": 123456789}
BODY_MARK = "<body>"
ITEM = {
    "tag": 123456789, "id": "0" * 32, "queue": "bench", "body": BODY_MARK, "offset": 123456789,
    "timestamp": 1234567890123, "redelivered": False, "contentType": "application/json",
}


def json_record(value):
    return json.dumps(value, separators=(",", ":")).encode() + b"\x1e"


def messagepack_record(value):
    text = msgspec.msgpack.encode(value)
    size = bytes([len(text)]) if len(text) < 128 else bytes([len(text) & 127 | 128, len(text) >> 7])
    return size + text


# What is before and behind an id or a body.
JSON_DONE = json_record({"type": 3, "invocationId": MARK, "result": RESULT}).split(MARK.encode())
MESSAGEPACK_DONE = messagepack_record([3, {}, MARK, 3, RESULT]).split(MARK.encode())
JSON_ITEM = json_record({"type": 2, "invocationId": "s", "item": ITEM}).split(json.dumps(BODY_MARK).encode())


cdef class Messages:
    """Records in WebSocket messages, ready to be sent."""

    cdef Buffer data
    cdef size_t size            # of the records in the message that is open
    cdef int opcode

    def __dealloc__(self):
        free(self.data.data)

    cdef uint8_t *room(self, size_t size) except NULL:
        """Where a record of this size goes."""
        if self.size and self.size + size > MESSAGE_SIZE_MAX:
            self.seal()
        if self.data.size - self.data.end < size + HEADER_SIZE and not buffer_reserve(&self.data, size + HEADER_SIZE):
            raise MemoryError
        if self.size == 0:
            self.data.end += HEADER_SIZE
        self.size += size
        self.data.end += size
        return self.data.data + self.data.end - size

    cdef void seal(self) noexcept:
        cdef uint8_t *begin = self.data.data + self.data.end - self.size - HEADER_SIZE
        cdef size_t size = self.size, head
        if size:
            head = header_put(begin, self.opcode, size, False, 0)
            memmove(begin + head, begin + HEADER_SIZE, size)
            self.data.end -= HEADER_SIZE - head
            self.size = 0


cdef class Connection(_null.Connection):
    cdef bint is_open, is_messagepack   # is_open: the handshake is over
    cdef Messages answers

    def __cinit__(self, connection):
        self.answers = Messages()


cdef class Hub(_null.Server):
    """Its connections, those that have subscribed, and what the latter are to get."""

    kind = Connection
    cdef Messages deliveries
    cdef bytes json_head, json_tail, pack_head, pack_tail, item_head, item_tail

    def __cinit__(self):
        self.deliveries = Messages()
        self.deliveries.opcode = WS_TEXT
        self.json_head, self.json_tail = JSON_DONE
        self.pack_head, self.pack_tail = MESSAGEPACK_DONE
        self.item_head, self.item_tail = JSON_ITEM

    cdef bint take(self, _null.Connection connection) except -1:
        cdef Connection c = connection
        cdef frame f
        cdef int found
        if c.answers.opcode == 0 and not self.upgrade(c):
            return True
        while True:
            found = frame_at(c.inbox.data + c.inbox.begin, c.inbox.data + c.inbox.end, &f)
            if found != FOUND or f.opcode == WS_CLOSE:
                return found == NEEDS_MORE
            hub_mask(f.payload, f.size, mask_of(f.key, 0))
            if not c.is_open:
                self.shake(c, f.payload[:f.size])
            elif f.opcode == WS_TEXT or f.opcode == WS_BINARY:
                self.records(c, f.payload, f.payload + f.size)
            c.inbox.begin = f.next - c.inbox.data

    cdef int turn(self) except -1:
        cdef Connection c
        for c in self.connections.values():
            if c.answers.data.end:
                self.send(c, c.answers)
                c.answers.data.end = 0
        if self.deliveries.data.end:
            for c in self.subscribers:
                self.send(c, self.deliveries)
            self.deliveries.data.end = 0
        return 0

    cdef int send(self, Connection c, Messages messages) except -1:
        messages.seal()
        _null.send_all(c.fd, messages.data.data, messages.data.end)
        return 0

    cdef bint upgrade(self, Connection c) except -1:
        """The answer to the HTTP request, once it is whole."""
        head, blank, _ = (c.inbox.data[:c.inbox.end]).partition(b"\r\n\r\n")
        if not blank:
            return False
        c.inbox.begin = len(head) + len(blank)
        c.answers.opcode = WS_TEXT
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
        key = fields[b"Sec-WebSocket-Key"]  # as the load generator writes it
        accept = base64.b64encode(hashlib.sha1(key + ACCEPT_SUFFIX).digest())
        c.socket.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )
        return True

    cdef int shake(self, Connection c, bytes record) except -1:
        c.is_messagepack = json.loads(record.rstrip(b"\x1e"))["protocol"] == "messagepack"
        self.put(c, b"{}\x1e")
        c.answers.seal()
        c.answers.opcode = WS_BINARY if c.is_messagepack else WS_TEXT
        c.is_open = True
        return 0

    cdef int put(self, Connection c, bytes record) except -1:
        memcpy(c.answers.room(len(record)), <const char *>record, len(record))
        return 0

    cdef int records(self, Connection c, uint8_t *p, uint8_t *end) except -1:
        """The records of one message."""
        cdef uint8_t *next
        while p < end:
            if c.is_messagepack:
                while p < end and p[0] & 0x80:
                    p += 1
                next = <uint8_t *>skip(p + 1, end)
                if next is NULL:
                    raise ValueError("needed whole records")
                if p[1:5] == b"\x96\x01\x80\xa8" and p[13:21] == b"\xa7Publish":
                    self.complete(c, p + 5, self.pack_head, self.pack_tail)
                else:
                    self.call(c, msgspec.msgpack.decode(p[1 : next - p]), False)
                p = next
                continue
            next = <uint8_t *>memchr(p, SEPARATOR, end - p)
            if next is NULL:
                raise ValueError("needed whole records")
            if next - p > 70 and memcmp(p, b'{"type":1,"invocationId":"', 26) == 0 and memcmp(
                p + 26 + ID_SIZE, b'","target":"Publish","arguments":["', 35
            ) == 0:
                self.complete(c, p + 26, self.json_head, self.json_tail)
                if self.subscribers:
                    self.deliver(p + 26 + ID_SIZE + 35, next)
            else:
                record = json.loads(p[: next - p])
                if "target" in record:
                    self.call(c, [record["type"], {}, record.get("invocationId"), record["target"]], True)
            p = next + 1
        return 0

    cdef int complete(self, Connection c, const uint8_t *id, bytes head, bytes tail) except -1:
        cdef size_t head_size = len(head), tail_size = len(tail)
        cdef uint8_t *out = c.answers.room(head_size + ID_SIZE + tail_size)
        memcpy(out, <const char *>head, head_size)
        memcpy(out + head_size, id, ID_SIZE)
        memcpy(out + head_size + ID_SIZE, <const char *>tail, tail_size)
        return 0

    cdef int deliver(self, const uint8_t *queue, const uint8_t *end) except -1:
        """The second of the arguments, the first of which is at `queue`: a name that needs no escapes."""
        cdef const uint8_t *body = <const uint8_t *>memchr(queue, c'"', end - queue)
        cdef size_t head_size = len(self.item_head), tail_size = len(self.item_tail), size
        cdef uint8_t *out
        if body is NULL or end - body < 4:
            raise ValueError("needed a queue and a body")
        body += 2
        size = end - 2 - body
        out = self.deliveries.room(head_size + size + tail_size)
        memcpy(out, <const char *>self.item_head, head_size)
        memcpy(out + head_size, body, size)
        memcpy(out + head_size + size, <const char *>self.item_tail, tail_size)
        return 0

    def call(self, Connection c, record, is_json):
        """Any other method; [type, headers, id, target, ...]."""
        if not isinstance(record, list) or len(record) < 4 or record[2] is None:
            return
        if record[0] == 4:
            self.subscribers.append(c)
            return
        info = {"messages": 0, "unacked": 0, "consumers": len(self.subscribers)}
        if is_json:
            self.put(c, json_record({"type": 3, "invocationId": record[2], "result": info}))
        else:
            self.put(c, messagepack_record([3, {}, record[2], 3, info]))
