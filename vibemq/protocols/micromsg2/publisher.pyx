# SPDX-License-Identifier: Apache-2.0
"""One connection's way into one queue or stream: messages into its log, and word to the receive window when they are kept.

What is noted for a message is its place in the receive window, 8 bytes; without acknowledgements nothing is.  When the
batch is persisted or, with durability `disk`, when a sync covers it, the window learns that the message is accepted, and
the session acknowledges at the end of the turn.  A message that is refused is out of its way as well, because acknowledgements
are cumulative; the ERROR that says so is written before any of them.
"""

from libc.string cimport memcpy

from vibemq.broker.publisher cimport ROOM, SERVER_ERROR
from vibemq.broker.queue cimport Queue
from vibemq.broker.stream cimport Stream
from vibemq.protocols.micromsg2.properties cimport message_write
from vibemq.storage.core cimport OK

cdef enum:
    NOTE_BYTES = 8


cdef class Micromsg2Publisher(QueuePublisher):
    def __init__(self, Micromsg2Session session, Stream stream not None, Queue queue, bytes name, bytes destination):
        """`queue`: None where the stream is none."""
        self.session, self.client, self.destination = session, session.client, destination
        self.generation = -1  # its first message asks whether it is allowed
        self.begin(stream, queue, name)

    # ---- in ----

    cdef int publish(self, const uint8_t *properties, uint32_t properties_size, const uint8_t *payload,
                     uint32_t payload_size, bytes dotnet_type, uint64_t index) except -1:
        cdef uint8_t *entry = NULL
        cdef int room = self.room_for(1)  # first: making room may use the memory that the entry is written into
        cdef size_t size = message_write(properties, properties_size, payload, payload_size, self.session.type_data,
                                         self.session.type_size, dotnet_type, &entry)
        if room == ROOM:
            return self._append(entry, size, index)
        self.put_off((index, (<const char *> entry)[:size]), size, room)
        return 1

    cdef int _append(self, const uint8_t *entry, size_t size, uint64_t index) except -1:
        if self.add(entry, <uint32_t> size, 1, None, 0) != OK:
            return self._refuse(index, SERVER_ERROR, b"out of memory")
        if index:
            memcpy(self.note(NOTE_BYTES), &index, NOTE_BYTES)
        return 0

    # ---- what became of it ----

    cdef int confirm(self, const uint8_t *notes, size_t size, uint64_t first_offset, bint offsets_known) except -1:
        cdef uint64_t index
        cdef size_t at = 0
        while at < size:
            memcpy(&index, notes + at, NOTE_BYTES)
            self.session.kept(index)
            at += NOTE_BYTES
        return 0

    cdef int refuse_notes(self, const uint8_t *notes, size_t size, bytes code, bytes text) except -1:
        cdef uint64_t index
        cdef size_t at = 0
        if size == 0:  # without acknowledgements: one word for all of them
            return self._refuse(0, code, text)
        while at < size:
            memcpy(&index, notes + at, NOTE_BYTES)
            self._refuse(index, code, text)
            at += NOTE_BYTES
        return 0

    cdef int _refuse(self, uint64_t index, bytes code, bytes text) except -1:
        self.session.refuse_message(index, code, text, self.destination)
        return 0

    cdef int forget(self) except -1:
        self.session.forget_publisher(self.destination, self)
        return 0

    # ---- a full queue ----

    cdef int publish_parked(self, object what) except -1:
        cdef bytes entry = what[1]
        return self._append(<const uint8_t *> <char *> entry, len(entry), what[0])

    cdef int refuse_parked(self, object what, bytes code, bytes text) except -1:
        self._refuse(what[0], code, text)
        return 0

    cdef int redirect_parked(self, object what) except -1:
        cdef bytes entry = what[1]
        return self.redirect(<const uint8_t *> <char *> entry, len(entry), what[0])

    def answer_redirected(self, indices, bint ok):
        for index in indices:
            if not ok:
                self._refuse(index, SERVER_ERROR, b"it could not be stored in the dead-letter queue")
            else:
                self.session.kept(index)
