# SPDX-License-Identifier: Apache-2.0
cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        unsigned int events
        epoll_data_t data


cdef class Poller:
    cdef int epoll_fd
    cdef dict keys
    cdef epoll_event ready[256]

    cdef int _control(self, int operation, int fd, int events) except -1
    # Wait up to timeout_ms (-1: for ever) and leave fd and bits in `ready`; returns how many.
    cdef int wait(self, int timeout_ms) except -1
