# SPDX-License-Identifier: Apache-2.0
"""One message into a stream or queue, for somebody who has no connection to this worker: a person at the management page.

It goes the way of any door's message: into the batch of this turn, past a full queue's overflow, and is answered when
what the stream's durability promises holds.  Rights are the asker's business; alarms are looked at here.
"""

from libc.stdlib cimport free, malloc
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset
from vibemq.broker.client cimport Client
from vibemq.broker.publisher cimport ROOM, QueuePublisher
from vibemq.broker.queue cimport Queue
from vibemq.broker.stream cimport Stream
from vibemq.storage cimport core
from vibemq.storage.core cimport OK, amqp_map, amqp_properties, bytes_load32, bytes_store32, writer_bytes

from vibemq.broker.admission import refusal_now
from vibemq.errors import LimitExceeded, StorageError, StreamNotFound

#: Of its body and headers: what a person types, and what fits into a question to a worker.
MESSAGE_BYTES_MAX = 32 * 1024
HEADERS_MAX = 64
_UNCONFIRMED_MAX = 16  # of one message: it is never held back


#: AMQP 1.0: descriptors of sections, and of types the ones with sizes of 32 bits.
_HEADER, _ANNOTATIONS, _PROPERTIES = b"\0\x53\x70", b"\0\x53\x72", b"\0\x53\x73"
_LIST, _MAP, _NULL, _TRUE, _FALSE, _BYTE, _UINT, _TIME = b"\xd0", b"\xd1", b"\x40", b"\x41", b"\x42", b"\x50", b"\x70", b"\x83"
_BINARY, _TEXT, _SYMBOL = b"\xb0", b"\xb1", b"\xb3"


def publish_one(broker, str virtual_host, str name, bytes body, dict headers, str content_type, str peer, told,
                dict properties=None):
    """Call ``told(offset or None, why it is not kept or "")`` once, in the loop; the offset is None where nobody knows it.

    ``headers``: text by text.  ``properties``: RabbitMQ's of AMQP 0.9.1, checked, and ``exchange`` and ``routing_key``; the
    content type is among them.  Raises StreamNotFound, LimitExceeded, StorageError.
    """
    cdef OneMessage one
    why = refusal_now(broker, peer)
    if why:
        told(None, why)
        return
    entry = _entry(body, headers, "" if properties else content_type)
    if properties:
        message = _sections(properties) + entry[4:]
        entry = len(message).to_bytes(4, "big") + message
    record = broker.streams.metadata.find_stream(virtual_host, name)
    if record is None:
        raise StreamNotFound(name)
    queue = None if record.queue is None else broker.queues.find(virtual_host, name)
    stream = broker.streams.find(virtual_host, name) if queue is None else queue.stream
    one = OneMessage(broker, stream, queue, name.encode(), peer, told)
    one.publish(entry)


cdef bytes _variable(bytes kind, object text):
    cdef bytes data = text.encode() if isinstance(text, str) else text
    return kind + len(data).to_bytes(4, "big") + data


cdef bytes _compound(bytes section, bytes kind, list values):
    cdef bytes data = b"".join(values)
    return section + kind + (len(data) + 4).to_bytes(4, "big") + len(values).to_bytes(4, "big") + data


cdef bytes _sections(dict of):
    """Header, message annotations and properties as RabbitMQ converts a message of AMQP 0.9.1."""
    cdef list header = [_NULL, _NULL, _NULL], annotations = [], properties
    if "delivery_mode" in of:
        header[0] = _TRUE if of["delivery_mode"] == 2 else _FALSE
    if "priority" in of:
        header[1] = _BYTE + of["priority"].to_bytes(1, "big")
    if "expiration" in of:
        header[2] = _UINT + int(of["expiration"]).to_bytes(4, "big")
    for name, key in (("exchange", "x-exchange"), ("routing_key", "x-routing-key"), ("type", "x-basic-type")):
        if name in of:
            annotations += [_variable(_SYMBOL, key), _variable(_TEXT, of[name])]
    properties = [
        _variable(kind, of[name]) if name in of else _NULL
        for name, kind in (
            ("message_id", _TEXT), ("user_id", _BINARY), ("to", _TEXT), ("subject", _TEXT), ("reply_to", _TEXT),
            ("correlation_id", _TEXT), ("content_type", _SYMBOL), ("content_encoding", _SYMBOL), ("expires", _TEXT),
        )
    ]
    properties.append(_TIME + (of["timestamp"] * 1000).to_bytes(8, "big") if "timestamp" in of else _NULL)
    properties.append(_variable(_TEXT, of["app_id"]) if "app_id" in of else _NULL)
    return (
        (_compound(_HEADER, _LIST, header) if header != [_NULL] * 3 else b"")
        + _compound(_ANNOTATIONS, _MAP, annotations)
        + _compound(_PROPERTIES, _LIST, properties)
    )


cdef bytes _entry(bytes body, dict headers, str content_type):
    cdef amqp_properties properties
    cdef amqp_map map
    cdef writer_bytes w
    cdef bytes kind = content_type.encode(), key, value
    cdef size_t size = len(body) + len(kind)
    cdef list pairs = [(name.encode(), text.encode()) for name, text in headers.items()]
    cdef size_t room
    cdef uint8_t *out
    for key, value in pairs:
        size += len(key) + len(value)
    if size > <size_t> MESSAGE_BYTES_MAX:
        raise LimitExceeded("body and headers of a message in bytes", size, MESSAGE_BYTES_MAX)
    if len(pairs) > HEADERS_MAX:
        raise LimitExceeded("headers of a message", len(pairs), HEADERS_MAX)
    room = 4 + core.amqp_size_max(<uint32_t> len(pairs), size)
    out = <uint8_t *> malloc(room)
    if out == NULL:
        raise MemoryError
    try:
        w = core.bytes_writer(out + 4, room - 4)
        if kind:
            memset(&properties, 0, sizeof(properties))
            properties.content_type, properties.content_type_bytes = kind, <uint32_t> len(kind)
            core.amqp_write_properties(&w, &properties)
        if pairs:
            core.amqp_map_begin(&w, &map)
            for key, value in pairs:
                core.amqp_map_add(&w, &map, <const uint8_t *> <char *> key, <uint32_t> len(key),
                                  <const uint8_t *> <char *> value, <uint32_t> len(value))
            core.amqp_map_end(&w, &map)
        core.amqp_write_data(&w, <const uint8_t *> <char *> body, <uint32_t> len(body))
        if w.failed:
            raise LimitExceeded("a message as it is stored, in bytes", size, MESSAGE_BYTES_MAX)
        bytes_store32(out, <uint32_t> (w.at - out - 4))
        return (<const char *> out)[:w.at - out]
    finally:
        free(out)


class _Asker:
    """Whom the message comes from, as a Client's owner."""

    ending = False

    def __init__(self, peer, failed):
        self.peer, self.fail = peer, failed

    def hold(self, reason, holds):
        """There is nothing of it to be read."""


cdef class OneMessage(QueuePublisher):
    cdef object told              # None once it is answered
    cdef object end               # of this publisher: not while the stream tells its users
    cdef uint64_t place           # in its batch

    def __init__(self, broker, Stream stream, Queue queue, bytes name, str peer, told):
        self.told, self.end = told, broker.timers.timer(self._close)
        self.client = Client(_Asker(peer, self._failed), broker, _UNCONFIRMED_MAX)
        self.begin(stream, queue, name)

    cdef int publish(self, bytes entry) except -1:
        cdef int room = ROOM if self.queue is None else self.room_for(1)
        if room == ROOM:
            return self._lay(entry)
        return self.put_off(entry, len(entry), room)

    cdef int _lay(self, bytes entry) except -1:
        if self.add(<const uint8_t *> <char *> entry, <uint32_t> len(entry), 1, None, 0) != OK:
            return self._answer(None, "Out of memory.")
        self.place = self.stream.batch.records - 1
        self.note(1)
        return 0

    cdef int _answer(self, offset, str why) except -1:
        told, self.told = self.told, None
        if told is not None:
            self.end.set(self.client.broker.queues.now_ms)
            told(offset, why)
        return 0

    def _failed(self, problem):
        self._answer(None, str(problem))

    def _close(self, now_ms):
        stream = self.stream
        self.close()
        if self.queue is None and stream.log.raw != NULL:
            self.client.broker.streams.release_if_unused(stream)

    # ---- what became of it ----

    cdef int confirm(self, const uint8_t *notes, size_t size, uint64_t first_offset, bint offsets_known) except -1:
        return self._answer(first_offset + self.place if offsets_known else None, "")

    cdef int refuse_notes(self, const uint8_t *notes, size_t size, bytes code, bytes text) except -1:
        return self._answer(None, text.decode())

    cdef int publish_parked(self, object what) except -1:
        return self._lay(what)

    cdef int refuse_parked(self, object what, bytes code, bytes text) except -1:
        return self._answer(None, text.decode())

    cdef int redirect_parked(self, object what) except -1:
        cdef bytes entry = what
        return self.redirect(<const uint8_t *> <char *> entry, len(entry), None)

    def answer_redirected(self, tokens, bint ok):
        self._answer(None, "" if ok else "The message could not be stored.")
