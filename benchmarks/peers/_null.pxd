# SPDX-License-Identifier: Apache-2.0
"""What the null servers share. See _null.pyx."""

from libc.stdint cimport uint8_t

from vibemq.bench._flow cimport Buffer

cdef extern from *:
    """
    #include <errno.h>
    #include <sys/socket.h>
    #ifndef VIBEMQ_BENCH_NULL
    #define VIBEMQ_BENCH_NULL
    /* Waits for who takes it; nothing where the other end is gone, which the next read from it shows. */
    static void null_send_all(int fd, const uint8_t *p, size_t size) {
        while (size) {
            ssize_t sent = send(fd, p, size, MSG_NOSIGNAL);
            if (sent < 0 && errno == EINTR) continue;
            if (sent <= 0) return;
            p += sent, size -= (size_t)sent;
        }
    }
    #endif
    """
    void send_all "null_send_all"(int fd, const uint8_t *p, size_t size) noexcept nogil


cdef class Connection:
    cdef object socket
    cdef int fd
    cdef Buffer inbox, outbox
    cdef uint8_t *out(self, size_t size) except NULL
    cdef int answer(self, bytes data) except -1


cdef class Server:
    cdef dict connections       # by descriptor
    cdef list subscribers
    cdef object poll
    # Whole frames of the inbox; False: the connection is to end.
    cdef bint take(self, Connection c) except -1
    # What is left to be done when all that came was read: at least, to send.
    cdef int turn(self) except -1
    # Is there something to do though nothing has come?
    cdef bint has_work(self) except -1
    cdef bint read(self, Connection c) except -1
