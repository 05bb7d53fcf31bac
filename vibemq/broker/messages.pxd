# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from vibemq.storage.core cimport amqp_message, chunk, err, fault, reader
from vibemq.storage.log cimport Log

cdef extern from *:
    """
    #define VIBEMQ_NOWHERE UINT64_MAX
    """
    const uint64_t NOWHERE "VIBEMQ_NOWHERE"  # what Cursor.next gives as the offset where a whole chunk is damaged


# One stored message in place.  The bytes are the cache's: they may change with the next look at another.
cdef struct message_view:
    const uint8_t *data            # as it was stored
    uint32_t size
    bint is_amqp                   # else the whole of it is an opaque body
    amqp_message amqp
    uint64_t offset
    int64_t timestamp_ms
    uint64_t segment, place        # as in csrc/ledger/ledger.h
    uint16_t index


cdef struct cached_chunk:
    uint64_t key, segment, position
    uint8_t *data
    size_t capacity
    chunk header
    uint64_t used                  # when, in looks


cdef class Messages:
    cdef cached_chunk *chunks
    cdef cached_chunk *newest
    cdef uint64_t looks
    cdef size_t bytes
    cdef readonly object helpers
    cdef dict open                 # cursors and probes that hold a descriptor, longest first
    cdef uint64_t unpacked_key, unpacked_segment, unpacked_place
    cdef bytes unpacked
    cdef tuple to_unpack           # what read_ahead() is to have unpacked: (where, compression, bytes, size)
    cdef uint32_t unpacked_index, unpacked_at

    cdef int opened(self, object place) except -1
    cdef cached_chunk *load(self, uint64_t key, reader *at, err *e, fault *f) noexcept
    cdef err message(self, cached_chunk *c, uint64_t segment, uint64_t position, uint32_t entry_position, uint16_t index,
                     message_view *out, uint32_t *entry_bytes, uint32_t *records, fault *f) noexcept
    cdef bint _room(self, cached_chunk *c, size_t size) noexcept
    cdef err _sub_batch(self, cached_chunk *c, uint64_t place, const uint8_t *body, uint32_t body_bytes,
                        uint32_t uncompressed_bytes, uint8_t compression, uint16_t index,
                        message_view *out) noexcept


# A place in one stream's log: what a cursor and a probe are both.
cdef class Place:
    cdef Messages messages
    cdef Log log
    cdef uint64_t key
    cdef reader raw
    cdef bint open

    cdef void close(self) noexcept


# Goes over a stream's messages from an offset on.
cdef class Cursor(Place):
    cdef uint64_t offset           # of the next message
    cdef uint32_t entry_position   # in the chunk's data
    cdef uint64_t entry_first      # offset of that entry's first message

    cdef err next(self, message_view *out, fault *f) noexcept
    cdef err pass_damage(self, fault *f) noexcept
    cdef void seek(self, uint64_t offset) noexcept


# Looks up single messages whose place is known.
cdef class Probe(Place):
    cdef err look(self, uint64_t offset, uint64_t segment, uint64_t place, uint16_t index, message_view *out,
                  fault *f) noexcept
