# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from vibemq.broker.messages cimport message_view
from vibemq.protocols.signalr.codec cimport span

# The entry of a message, with its four bytes of length, in the worker's scratch memory; its size.  `has_escapes`: JSON
# that may have any.  `options`: an options.MessageOptions or None.
cdef size_t entry_write(span body, int encoding, bint has_escapes, object options, uint8_t **out) except 0


# A delivery without its tag, which is all of it that consumers of the same message do not share.
cdef struct item:
    uint64_t key, offset      # which message of which stream; 0 and 2^64-1: none
    bint redelivered
    uint8_t *data             # JSON: what follows the tag's number.  MessagePack: the pairs behind the tag's
    size_t size, capacity
    uint32_t pairs            # with the tag's


# The worker's only one for this encoding: holds until the next call.  `key`: of the stream, as a broker.queue.Queue
# has it.
cdef const item *item_of(const message_view *m, uint64_t key, bytes queue, const uint8_t *id, uint32_t id_size,
                         bint redelivered, int encoding) except NULL
cdef size_t delivery_size(const item *of, uint64_t tag, int encoding) noexcept
cdef uint8_t *delivery_write(uint8_t *p, const item *of, uint64_t tag, int encoding) noexcept
