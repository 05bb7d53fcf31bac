# SPDX-License-Identifier: Apache-2.0
"""TLS for the load threads: a socket for one thread that sends and one that reads, at the same time.

An ssl.SSLSocket is not for two threads at once, makes two system calls for each record, and uses the
distribution's OpenSSL.  Here the ciphertext passes through memory, by the OpenSSL that the broker has too
(vibemq/openssl.pyx): encrypting or decrypting a record is under a lock, and one system call takes many.
"""

import os

from libc.errno cimport EPROTO, errno
from libc.stdlib cimport free, malloc
from vibemq.bench._sockets cimport receive, send_all
from vibemq.openssl cimport (
    openssl_attach, openssl_decrypt, openssl_encrypt, openssl_feed, openssl_handshake, openssl_take,
)

from vibemq.openssl import reason

cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attributes)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)

cdef enum:
    ROUND_BYTES = 16 * 1024  # encrypted or decrypted at a time: a record
    SEND_BYTES = 128 * 1024  # encrypted for one system call, and still in the cache then
    SEALED_BYTES = SEND_BYTES + SEND_BYTES // 16  # with what the records add
    RECEIVE_BYTES = 512 * 1024


cdef class Tunnel:
    """What a client needs of a socket.  Sending always waits."""

    def __cinit__(self):
        pthread_mutex_init(&self.ends.lock, NULL)
        self.ends.sealed = <uint8_t *> malloc(SEALED_BYTES)
        self.ends.wire = <uint8_t *> malloc(RECEIVE_BYTES)
        if self.ends.sealed == NULL or self.ends.wire == NULL:
            raise MemoryError

    def __init__(self, plain, connection):
        """`connection`: an OpenSSL.SSL.Connection without a socket, in its initial state."""
        self.plain, self.connection = plain, connection
        self.ends.fd, self.ends.waits = plain.fileno(), True
        openssl_attach(&self.ends.end, connection)
        self._shake_hands()

    def __dealloc__(self):
        pthread_mutex_destroy(&self.ends.lock)
        free(self.ends.sealed)
        free(self.ends.wire)

    def _shake_hands(self):
        cdef int finished = 0
        cdef bytes got
        while not finished:
            finished = openssl_handshake(&self.ends.end)
            said = reason(self.connection) if finished < 0 else ""
            records = self._taken()
            if records:
                self.plain.sendall(records)
            if said:
                raise ConnectionError(said)
            if not finished:
                got = self.plain.recv(ROUND_BYTES)  # by Python: the socket may still have a timeout
                if not got:
                    raise ConnectionResetError("the server closed the connection in the TLS handshake")
                openssl_feed(&self.ends.end, got, len(got))
        self.ends.unread = True

    def _taken(self):
        cdef size_t size = openssl_take(&self.ends.end, self.ends.sealed, SEALED_BYTES)
        return (<char *> self.ends.sealed)[:size]

    def setblocking(self, bint flag):
        self.ends.waits = flag
        self.plain.setblocking(True)

    def fileno(self):
        return self.plain.fileno()

    def shutdown(self, how):
        self.plain.shutdown(how)

    def close(self):
        self.ends.fd = -1  # a socket that is opened next has this number
        self.plain.close()

    def send(self, const uint8_t[:] data):
        cdef int error = 0
        cdef size_t size = len(data)
        if size:
            with nogil:
                error = tunnel_send(&self.ends, &data[0], size)
        if error:
            raise OSError(error, os.strerror(error))
        return size

    def recv_into(self, uint8_t[:] room):
        cdef Py_ssize_t got
        with nogil:
            got = tunnel_receive(&self.ends, &room[0], len(room))
        if got < 0:
            raise OSError(-got, os.strerror(-got))
        return got


cdef int tunnel_send(TunnelEnds *ends, const uint8_t *data, size_t size) noexcept nogil:
    cdef size_t part, encrypted, sealed
    cdef int failed = 0, error
    while size:
        encrypted = sealed = 0
        pthread_mutex_lock(&ends.lock)
        while encrypted < size and encrypted < SEND_BYTES and not failed:
            part = min(size - encrypted, <size_t> ROUND_BYTES)
            failed = openssl_encrypt(&ends.end, data + encrypted, part)
            sealed += openssl_take(&ends.end, ends.sealed + sealed, SEALED_BYTES - sealed)
            encrypted += part
        pthread_mutex_unlock(&ends.lock)
        if failed:
            return EPROTO
        error = send_all(ends.fd, ends.sealed, sealed)
        if error:
            return error
        data += encrypted
        size -= encrypted
    return 0


cdef Py_ssize_t tunnel_receive(TunnelEnds *ends, uint8_t *data, size_t size) noexcept nogil:
    cdef Py_ssize_t got = 0, n
    cdef size_t part
    if ends.unread:
        got = decrypt(ends, data, size, 0)
    while got == 0 and not ends.end.ended:
        if ends.wire_begin == ends.wire_end:
            n = receive(ends.fd, ends.wire, RECEIVE_BYTES, ends.waits)
            if n <= 0:
                return -errno if n else 0
            ends.wire_begin, ends.wire_end = 0, n
        while ends.wire_begin < ends.wire_end and <size_t> got < size:
            part = min(ends.wire_end - ends.wire_begin, <size_t> ROUND_BYTES)
            n = decrypt(ends, data + got, size - got, part)
            if n < 0:
                return n
            got += n
    ends.unread = <size_t> got == size
    return got


cdef Py_ssize_t decrypt(TunnelEnds *ends, uint8_t *data, size_t size, size_t fed) noexcept nogil:
    """Of what was fed and the next `fed` bytes of the wire; as tunnel_receive."""
    cdef Py_ssize_t got = -1
    pthread_mutex_lock(&ends.lock)
    if not openssl_feed(&ends.end, ends.wire + ends.wire_begin, fed):
        got = openssl_decrypt(&ends.end, data, size)
    pthread_mutex_unlock(&ends.lock)
    ends.wire_begin += fed
    return -EPROTO if got < 0 else got
