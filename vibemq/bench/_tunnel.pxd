# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t
from vibemq.openssl cimport OpensslEnd

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass


# What the load threads use of a Tunnel, without the GIL.
cdef struct TunnelEnds:
    OpensslEnd end                      # under `lock`
    pthread_mutex_t lock
    int fd
    bint waits                          # receiving waits until something comes
    bint unread                         # OpenSSL has more than the last call had room for
    uint8_t *sealed                     # what goes out; the sending thread's
    uint8_t *wire                       # what came and OpenSSL does not have yet, in [wire_begin, wire_end);
    size_t wire_begin, wire_end         # the receiving thread's


cdef class Tunnel:
    cdef TunnelEnds ends
    cdef object plain, connection


# 0 or an error number; bytes received, 0 at the end, or an error number's negative.  What OpenSSL refuses is EPROTO.
cdef int tunnel_send(TunnelEnds *ends, const uint8_t *data, size_t size) noexcept nogil
cdef Py_ssize_t tunnel_receive(TunnelEnds *ends, uint8_t *data, size_t size) noexcept nogil
