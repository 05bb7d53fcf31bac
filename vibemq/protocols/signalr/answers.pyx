# SPDX-License-Identifier: Apache-2.0
"""What a hub connection writes besides completions and deliveries: stream items of methods, ends, and its own records."""

from libc.stdint cimport uint8_t

from vibemq.protocols.signalr.envelope cimport DIALECT_ALPHA2, DIALECT_EARLY, ENCODING_JSON
from vibemq.protocols.signalr.writers cimport (
    close_size, close_write, item_begin, item_end, item_size, ping_size, ping_write, put, sequence_size, sequence_write,
    span_of_bytes, stream_end_size, stream_end_write, stream_item_head_size, stream_item_head_write,
)

from vibemq.protocols.signalr.envelope import raw_of


cdef uint8_t *own_room(HubConnection hub, size_t size) except NULL:
    return hub.room_for(size, hub.encoding == ENCODING_JSON, False)


def stream_item(HubConnection hub, bytes id, value):
    """A value of a method's, where its call is answered by a stream."""
    cdef bytes raw = raw_of(value, hub.encoding)
    cdef size_t head = stream_item_head_size(hub.dialect, hub.encoding, span_of_bytes(id))
    cdef uint8_t *p = hub.record(item_size(hub.encoding, head, len(raw)))
    p = item_begin(p, hub.encoding, head, len(raw))
    p = stream_item_head_write(p, hub.dialect, hub.encoding, span_of_bytes(id))
    item_end(put(p, <char *> raw, len(raw)), hub.encoding)
    hub.written()


def stream_end(HubConnection hub, bytes id, text, bint is_modern):
    """`is_modern`: an early connection that made a StreamInvocation expects a Completion."""
    cdef bytes error = (text or "").encode(errors="replace")
    cdef int dialect = DIALECT_ALPHA2 if is_modern and hub.dialect == DIALECT_EARLY else hub.dialect
    cdef size_t size = stream_end_size(dialect, hub.encoding, span_of_bytes(id), span_of_bytes(error))
    stream_end_write(hub.record(size), dialect, hub.encoding, span_of_bytes(id), span_of_bytes(error))
    hub.written()


cdef int ping(HubConnection hub) except -1:
    ping_write(own_room(hub, ping_size(hub.encoding)), hub.encoding)
    return hub.written()


cdef int sequence(HubConnection hub, int type, int64_t number) except -1:
    sequence_write(own_room(hub, sequence_size(hub.encoding, number)), hub.encoding, type, number)
    return hub.written()


cdef int close(HubConnection hub, error, bint allow_reconnect) except -1:
    cdef bytes text = (error or "").encode(errors="replace")
    cdef size_t size = close_size(hub.encoding, span_of_bytes(text), allow_reconnect)
    close_write(own_room(hub, size), hub.encoding, span_of_bytes(text), allow_reconnect)
    return hub.written()
