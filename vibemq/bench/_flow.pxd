# SPDX-License-Identifier: Apache-2.0
"""What the protocols' load threads share: bytes, the patches of a frame, counting, checking, latencies. See _flow.pyx."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport strlen

from vibemq.client._core cimport bytes_load16 as get_u16, bytes_load32 as get_u32, bytes_load64 as get_u64
from vibemq.client._core cimport bytes_store32 as put_u32, bytes_store64 as put_u64
from vibemq.openssl cimport OpensslEnd

cdef extern from *:
    """
    #include <errno.h>
    #include <poll.h>
    #include <stdint.h>
    #include <sys/prctl.h>
    #include <sys/socket.h>
    #include <time.h>
    #include "base/bytes.h"
    #ifndef VIBEMQ_FLOW
    #define VIBEMQ_FLOW
    #define flow_load(p) __atomic_load_n((p), __ATOMIC_RELAXED)
    #define flow_store(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
    #define flow_add(p, v) __atomic_fetch_add((p), (v), __ATOMIC_RELAXED)
    #define flow_mark(p) __atomic_exchange_n((p), 1, __ATOMIC_RELAXED)

    static int64_t flow_now_ns(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }
    /* The kernel may make any sleep 50 us longer unless it is told otherwise: as long as a whole round trip. */
    static void flow_precise_sleep(void) { prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0); }
    static void flow_wait(int fd, int writable, int64_t ns) {
        struct pollfd p = {fd, (short)(POLLIN | (writable ? POLLOUT : 0)), 0};
        struct timespec t = {ns / 1000000000, ns % 1000000000};
        ppoll(&p, 1, &t, NULL);
    }
    /* The bytes moved; 0: none now; -1: the connection ended; -2: see errno. */
    static ssize_t flow_send(int fd, const uint8_t *p, size_t size) {
        ssize_t sent = send(fd, p, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        return sent >= 0 ? sent : errno == EAGAIN || errno == EINTR ? 0 : errno == EPIPE || errno == ECONNRESET ? -1 : -2;
    }
    static ssize_t flow_receive(int fd, uint8_t *p, size_t size, int block) {
        ssize_t got = recv(fd, p, size, block ? 0 : MSG_DONTWAIT);
        return got > 0 ? got : got == 0 || errno == ECONNRESET ? -1 : errno == EAGAIN || errno == EINTR ? 0 : -2;
    }
    /* Eight lower-case hex digits: nibbles are spread to bytes, then 10 to 15 are lifted to the letters. */
    static inline void flow_put_hex8(uint8_t *p, uint32_t number) {
        uint64_t x = number;
        x = (x & 0xFFFF0000u) << 16 | (x & 0xFFFFu);
        x = (x & 0x0000FF000000FF00u) << 8 | (x & 0x000000FF000000FFu);
        x = (x & 0x00F000F000F000F0u) << 4 | (x & 0x000F000F000F000Fu);
        uint64_t letters = (x + 0x0606060606060606u) >> 4 & 0x0101010101010101u;
        bytes_store64(p, x + 0x3030303030303030u + letters * ('a' - '0' - 10));
    }
    static inline uint32_t flow_get_hex8(const uint8_t *p) {
        uint64_t x = bytes_load64(p);
        x = (x & 0x0F0F0F0F0F0F0F0Fu) + (x >> 6 & 0x0101010101010101u) * 9;
        x = (x | x >> 4) & 0x00FF00FF00FF00FFu;
        x = (x | x >> 8) & 0x0000FFFF0000FFFFu;
        return (uint32_t)(x | x >> 16);
    }
    #endif
    """
    int64_t load "flow_load"(int64_t *p) noexcept nogil
    void store "flow_store"(int64_t *p, int64_t value) noexcept nogil
    int64_t add "flow_add"(int64_t *p, int64_t value) noexcept nogil
    uint8_t mark "flow_mark"(uint8_t *p) noexcept nogil
    int64_t now_ns "flow_now_ns"() noexcept nogil
    void precise_sleep "flow_precise_sleep"() noexcept nogil
    void wait_for "flow_wait"(int fd, bint writable, int64_t ns) noexcept nogil
    Py_ssize_t send_some "flow_send"(int fd, const uint8_t *p, size_t size) noexcept nogil
    Py_ssize_t receive_some "flow_receive"(int fd, uint8_t *p, size_t size, bint block) noexcept nogil
    void put_hex8 "flow_put_hex8"(uint8_t *p, uint32_t number) noexcept nogil
    uint32_t get_hex8 "flow_get_hex8"(const uint8_t *p) noexcept nogil
    int leading_zeros "__builtin_clzll"(uint64_t value) noexcept nogil


cdef enum:
    PATCHES_MAX = 8        # in a frame
    PATCH_NUMBER = 0       # the message's number
    PATCH_STAMP = 1        # when it is sent
    PATCH_QUEUE = 2        # the number of its queue
    BODY_STAMP_AT = 7      # behind {"at":"
    BODY_NUMBER_AT = 35    # behind ","number":"
    BODY_SIZE_MIN = 55     # the members above, and an empty text


cdef enum:
    SUB_BUCKET_HALF_COUNT_MAGNITUDE = 10
    SUB_BUCKET_HALF_COUNT = 1 << SUB_BUCKET_HALF_COUNT_MAGNITUDE  # 1,024: three significant digits
    SUB_BUCKET_MASK = 2 * SUB_BUCKET_HALF_COUNT - 1
    BUCKET_COUNT = 16  # 2,048 us doubled until it is above 60 s
    COUNTS_COUNT = (BUCKET_COUNT + 1) * SUB_BUCKET_HALF_COUNT
    VALUE_US_MAX = 60000000  # above this a number says only that something is broken


cdef inline int64_t body_stamp(const uint8_t *body) noexcept nogil:
    return <int64_t>get_hex8(body + BODY_STAMP_AT) << 32 | get_hex8(body + BODY_STAMP_AT + 8)


cdef struct Buffer:
    uint8_t *data
    size_t begin
    size_t end
    size_t size


cdef struct Patch:
    int kind
    size_t at


cdef bint buffer_reserve(Buffer *buffer, size_t needed) noexcept nogil


cdef class Tally:
    cdef uint8_t *seen
    # strange: bodies that no publisher of the run has sent
    cdef readonly int64_t total, queues, distinct, repeated, strange
    cdef void note(self, int64_t number) noexcept nogil


cdef class Histogram:
    cdef uint64_t counts[COUNTS_COUNT]
    cdef readonly uint64_t total
    cdef readonly int64_t min_us
    cdef readonly int64_t max_us
    cdef readonly uint64_t clamped  # values that were above VALUE_US_MAX and are counted as that

    cdef inline void record_ns(self, int64_t value_ns, uint64_t count) noexcept nogil:
        cdef int64_t value_us = value_ns // 1000
        cdef int bucket
        if value_us < 1:
            value_us = 1
        elif value_us > VALUE_US_MAX:
            value_us = VALUE_US_MAX
            self.clamped += count
        # Bucket b has a resolution of 2^b us, and only the upper half of its sub-buckets, but for bucket 0.
        bucket = 64 - leading_zeros(<uint64_t>value_us | SUB_BUCKET_MASK) - (SUB_BUCKET_HALF_COUNT_MAGNITUDE + 1)
        self.counts[bucket * SUB_BUCKET_HALF_COUNT + (value_us >> bucket)] += count
        self.total += count
        if value_us < self.min_us:
            self.min_us = value_us
        if value_us > self.max_us:
            self.max_us = value_us


# A socket with TLS, for its set-up by a client and then for a load thread.
cdef class Tunnel:
    cdef object plain, connection
    cdef int fd
    cdef OpensslEnd end
    cdef bint waits                         # a client's receiving waits until something comes
    cdef bint unread                        # OpenSSL has more than the last call had room for
    cdef uint8_t *sealed                    # what goes out, in [sealed_begin, sealed_end):
    cdef size_t sealed_begin, sealed_end
    cdef size_t covered                     # so many bytes that `write` was given, and has not said to be sent
    cdef uint8_t *wire                      # what one receive brings
    cdef Py_ssize_t write(self, const uint8_t *p, size_t size) noexcept nogil
    cdef Py_ssize_t read(self, uint8_t *p, size_t size, bint block) noexcept nogil


cdef class Flow:
    cdef readonly object connection
    cdef int fd
    cdef Tunnel tunnel          # None: no TLS
    cdef Buffer inbox, outbox
    cdef int64_t stopped, now   # now: when the bytes that `take` looks at had come
    cdef bint failed
    cdef readonly int64_t last_ns
    cdef readonly int code          # the server's own, with which something was refused, or the connection closed
    cdef char fault_[256]
    cdef const uint8_t *take(self, const uint8_t *p, const uint8_t *end) noexcept nogil
    cdef void loop(self) noexcept nogil
    # As send_some.
    cdef Py_ssize_t write(self, const uint8_t *p, size_t size) noexcept nogil
    cdef Py_ssize_t receive(self, bint block) noexcept nogil
    cdef Py_ssize_t taken(self, Py_ssize_t got) noexcept nogil
    cdef bint push(self) noexcept nogil
    cdef bint flush(self) noexcept nogil
    cdef const uint8_t *fail(self, const uint8_t *p, const void *text, size_t size) noexcept nogil

    cdef inline uint8_t *room(self, size_t size) noexcept nogil:
        """Where the next `size` bytes to send go; the caller then adds to outbox.end. NULL without memory."""
        if self.outbox.size - self.outbox.end < size and not buffer_reserve(&self.outbox, size):
            self.fail(NULL, b"no memory for the outbox", 24)
            return NULL
        return self.outbox.data + self.outbox.end


cdef inline const uint8_t *fail_with(Flow flow, const uint8_t *p, const char *words) noexcept nogil:
    return flow.fail(p, words, strlen(words))


cdef class Publisher(Flow):
    cdef int64_t first, window, interval_ns, queues, start_ns
    cdef readonly int64_t total, sent, settled, refused
    cdef int64_t group, batch   # frames in a send, messages in a frame
    cdef bint named             # acks are told apart: what was acknowledged matters, not only how much
    cdef bint timed
    cdef size_t frame_size
    cdef Patch patches[PATCHES_MAX]
    cdef int patches_count
    cdef int64_t *stamps        # when the frames on the way were sent, or should have been
    cdef uint64_t stamps_mask
    cdef uint8_t *acked
    cdef readonly int64_t strange   # acks of what was not waiting for one
    cdef readonly Histogram confirms
    cdef int64_t due(self) noexcept nogil
    cdef int64_t pause_ns(self) noexcept nogil
    cdef void fill(self, int64_t count) noexcept nogil
    cdef void settle_number(self, int64_t number) noexcept nogil
    cdef void settle(self, int64_t count) noexcept nogil
    cdef void advance(self, int64_t count) noexcept nogil


cdef class Consumer(Flow):
    cdef readonly int64_t wanted, received
    cdef bint timed, observes
    cdef Tally tally
    cdef int64_t *next          # of each queue, the least number that would be in order
    cdef readonly int64_t disordered
    cdef readonly Histogram latencies
    cdef void observe(self, const uint8_t *body, size_t size) noexcept nogil

    cdef inline void gain(self, int64_t count) noexcept nogil:
        store(&self.received, self.received + count)
