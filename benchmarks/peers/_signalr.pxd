# SPDX-License-Identifier: Apache-2.0
"""Reading WebSocket frames and hub records, as the load threads and the null hub do it. See _signalr.pyx."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #ifndef VIBEMQ_BENCH_SIGNALR
    #define VIBEMQ_BENCH_SIGNALR
    static inline void hub_xor8(uint8_t *p, uint64_t mask) {
        uint64_t v;
        memcpy(&v, p, 8);
        v ^= mask;
        memcpy(p, &v, 8);
    }
    /* The mask's first byte is for p[0]. */
    static inline void hub_mask(uint8_t *p, size_t size, uint64_t mask) {
        size_t i = 0;
        for (; i + 8 <= size; i += 8) hub_xor8(p + i, mask);
        for (; i < size; i++) p[i] ^= (uint8_t)(mask >> 8 * (i & 7));
    }
    /* Behind a MessagePack value's first byte c >= 0xC0: the bytes of its number; 9: no hub writes such a value. */
    static inline unsigned hub_width(uint8_t c) {
        static const uint8_t widths[32] = {0, 9, 0, 0, 1, 2, 4, 9, 9, 9, 4, 8, 1, 2, 4, 8,
                                           1, 2, 4, 8, 9, 9, 9, 9, 9, 1, 2, 4, 2, 4, 2, 4};
        return widths[c & 31];
    }
    static inline uint64_t hub_number(const uint8_t *p, unsigned width) {
        uint64_t v = 0;
        while (width--) v = v << 8 | *p++;
        return v;
    }
    #endif
    """
    void hub_xor8(uint8_t *p, uint64_t mask) noexcept nogil
    void hub_mask(uint8_t *p, size_t size, uint64_t mask) noexcept nogil
    unsigned int hub_width(uint8_t c) noexcept nogil
    uint64_t hub_number(const uint8_t *p, unsigned int width) noexcept nogil
    void *memmem(const void *p, size_t size, const void *wanted, size_t wanted_size) nogil

cdef enum:
    SEPARATOR = 0x1E
    FRAME_SIZE_MAX = 1 << 27    # beyond any hub's limit: what is larger is no frame
    WS_TEXT = 1
    WS_BINARY = 2
    WS_CLOSE = 8
    WS_FIN = 0x80
    WS_MASKED = 0x80
    INVOCATION = 1
    STREAM_ITEM = 2
    COMPLETION = 3
    CLOSE_MESSAGE = 7
    NEEDS_MORE = 0
    FOUND = 1
    WRONG = -1


cdef struct frame:
    int opcode
    uint8_t *payload
    size_t size
    bint is_masked
    uint32_t key                # of the mask, as it lies in memory
    uint8_t *next


cdef struct cursor:
    const uint8_t *p            # the next frame; what is before it is done with
    const uint8_t *end
    const uint8_t *at           # the next record of the message before p
    const uint8_t *message_end
    bint is_messagepack
    const char *fault


cdef struct record:
    int type                    # 0: none that matters here
    const uint8_t *id
    size_t id_size
    bint is_error               # a Completion with an error, or a Close
    const uint8_t *rest         # of a StreamItem: its item; of an error: its words
    const uint8_t *end


cdef struct delivery:
    uint64_t tag
    const uint8_t *body         # and all of the record behind it, where it is JSON
    size_t size


cdef int frame_at(const uint8_t *p, const uint8_t *end, frame *out) noexcept nogil
cdef void cursor_set(cursor *c, const uint8_t *p, const uint8_t *end, bint is_messagepack) noexcept nogil
cdef int next_record(cursor *c, record *out) noexcept nogil
cdef bint delivery_of(const record *r, bint is_messagepack, delivery *out) noexcept nogil
cdef uint64_t mask_of(uint32_t key, size_t place) noexcept nogil
cdef const uint8_t *skip(const uint8_t *p, const uint8_t *end) noexcept nogil
cdef size_t header_put(uint8_t *out, int opcode, size_t payload, bint is_masked, uint32_t key) noexcept nogil
