# SPDX-License-Identifier: Apache-2.0
# Sockets of the streams load threads, without the GIL.
from libc.stdint cimport uint8_t

cdef extern from *:
    """
    #include <errno.h>
    #include <sys/socket.h>

    /* 0, or the error number; every byte is sent unless there is an error. */
    static int vibemq_send_all(int fd, const uint8_t *p, size_t size) {
        while (size) {
            ssize_t sent = send(fd, p, size, MSG_NOSIGNAL);
            if (sent < 0 && errno == EINTR) continue;
            if (sent <= 0) return sent < 0 ? errno : EPIPE;
            p += sent;
            size -= (size_t)sent;
        }
        return 0;
    }
    static ssize_t vibemq_receive(int fd, uint8_t *p, size_t size, int wait) {
        ssize_t got;
        do got = recv(fd, p, size, wait ? 0 : MSG_DONTWAIT); while (got < 0 && errno == EINTR);
        return got;
    }
    """
    int send_all "vibemq_send_all"(int fd, const uint8_t *p, size_t size) noexcept nogil
    Py_ssize_t receive "vibemq_receive"(int fd, uint8_t *p, size_t size, bint wait) noexcept nogil
