# SPDX-License-Identifier: Apache-2.0
"""TLS for the load threads; loaded only for a load that has it.

An ssl.SSLSocket makes two system calls for each record, and uses the distribution's OpenSSL. Here the ciphertext passes
through memory, by the OpenSSL that the broker has too (vibemq/openssl.pyx), and one system call takes many records.
"""

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc cimport errno
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc

from OpenSSL import SSL

from vibemq.bench._flow cimport Transport, receive_some, send_some, wait_for
from vibemq.openssl cimport (
    OpensslEnd, openssl_attach, openssl_decrypt, openssl_encrypt, openssl_feed, openssl_handshake, openssl_take,
)

from vibemq import openssl
from vibemq.errors import UserError

cdef enum:
    ROUND_BYTES = 16 * 1024  # encrypted or decrypted at a time: a record
    SEND_BYTES = 128 * 1024  # encrypted for one system call, and still in the cache then
    SEALED_BYTES = SEND_BYTES + SEND_BYTES // 16  # with what the records add
    RECEIVE_BYTES = 512 * 1024
    WAIT_NS = 100000000


class TunnelContext:
    """What a client needs of an ssl.SSLContext. Servers are those that ``authorities``, a PEM file, vouches for."""

    def __init__(self, authorities):
        self._context = SSL.Context(SSL.TLS_CLIENT_METHOD)
        self._context.set_min_proto_version(SSL.TLS1_2_VERSION)
        self._context.set_verify(SSL.VERIFY_PEER)
        try:
            self._context.load_verify_locations(authorities)
        except SSL.Error as problem:
            raise UserError(f"{authorities}: needed a PEM file with certificates of authorities: {problem}") from None

    def wrap_socket(self, sock, *, server_hostname):
        connection = SSL.Connection(self._context, None)
        connection.set_connect_state()
        openssl.expect(connection, server_hostname)
        return Tunnel(sock, connection)


cdef class Tunnel(Transport):
    """What a client needs of a socket, and a load thread of a Transport. Sending always waits for a client."""

    cdef OpensslEnd end
    cdef object plain, connection
    cdef bint waits                         # a client's receiving waits until something comes
    cdef bint unread                        # OpenSSL has more than the last call had room for
    cdef uint8_t *sealed                    # what goes out, in [sealed_begin, sealed_end):
    cdef size_t sealed_begin, sealed_end
    cdef size_t covered                     # so many bytes that `write` was given, and has not said to be sent
    cdef uint8_t *wire                      # what came and OpenSSL does not have yet, in [wire_begin, wire_end)
    cdef size_t wire_begin, wire_end

    def __cinit__(self, *_):
        self.sealed = <uint8_t *>malloc(SEALED_BYTES)
        self.wire = <uint8_t *>malloc(RECEIVE_BYTES)
        if self.sealed == NULL or self.wire == NULL:
            raise MemoryError

    def __init__(self, plain, connection):
        """`connection`: an OpenSSL.SSL.Connection without a socket, in its initial state."""
        self.plain, self.connection = plain, connection
        self.fd, self.waits = plain.fileno(), True
        openssl_attach(&self.end, connection)
        self._shake_hands()

    def __dealloc__(self):
        free(self.sealed)
        free(self.wire)

    def _shake_hands(self):
        cdef int finished = 0
        cdef bytes got
        while not finished:
            finished = openssl_handshake(&self.end)
            said = openssl.reason(self.connection) if finished < 0 else ""
            records = self._taken()
            if records:
                self.plain.sendall(records)
            if said:
                raise ConnectionError(said)
            if not finished:
                got = self.plain.recv(ROUND_BYTES)  # by Python: the socket may still have a timeout
                if not got:
                    raise ConnectionResetError("the server closed the connection in the TLS handshake")
                openssl_feed(&self.end, got, len(got))
        self.unread = True

    def _taken(self):
        cdef size_t size = openssl_take(&self.end, self.sealed, SEALED_BYTES)
        return (<char *>self.sealed)[:size]

    def setblocking(self, bint flag):
        self.waits = flag
        self.plain.setblocking(True)

    def fileno(self):
        return self.plain.fileno()

    def shutdown(self, how):
        self.plain.shutdown(how)

    def close(self):
        self.fd = -1  # a socket that is opened next has this number
        self.plain.close()

    def send(self, data):
        cdef Py_buffer view
        cdef Py_ssize_t sent = 0, more = 0
        cdef int error
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        with nogil:
            while sent < view.len and more >= 0:
                more = self.write(<const uint8_t *>view.buf + sent, view.len - sent)
                if more > 0:
                    sent += more
                elif more == 0:
                    wait_for(self.fd, True, WAIT_NS)
            error = errno.errno if more < -1 else errno.EPIPE
        PyBuffer_Release(&view)
        if more < 0:
            raise OSError(error, os.strerror(error))
        return sent

    def recv_into(self, room):
        cdef Py_buffer view
        cdef Py_ssize_t got
        cdef int error
        PyObject_GetBuffer(room, &view, PyBUF_WRITABLE)
        with nogil:
            got = self.read(<uint8_t *>view.buf, view.len, self.waits)
            error = errno.errno if got else errno.EAGAIN
        PyBuffer_Release(&view)
        if got == 0 or got < -1:
            raise OSError(error, os.strerror(error))
        return max(got, 0)

    cdef Py_ssize_t write(self, const uint8_t *p, size_t size) noexcept nogil:
        """What is not sent as a whole is given again by the caller, and then is not encrypted again."""
        cdef size_t part
        cdef Py_ssize_t sent
        if self.sealed_begin == self.sealed_end:
            self.sealed_begin = self.sealed_end = 0
            while self.covered < size and self.covered < SEND_BYTES:
                part = min(size - self.covered, <size_t>ROUND_BYTES)
                if openssl_encrypt(&self.end, p + self.covered, part):
                    return self.refused()
                self.sealed_end += openssl_take(
                    &self.end, self.sealed + self.sealed_end, SEALED_BYTES - self.sealed_end
                )
                self.covered += part
        sent = send_some(self.fd, self.sealed + self.sealed_begin, self.sealed_end - self.sealed_begin)
        if sent < 0:
            return sent
        self.sealed_begin += sent
        if self.sealed_begin < self.sealed_end:
            return 0
        sent, self.covered = self.covered, 0
        return sent

    cdef Py_ssize_t read(self, uint8_t *p, size_t size, bint block) noexcept nogil:
        cdef Py_ssize_t got = 0, more
        if self.unread:
            got = self.decrypt(p, size, 0)
        while got == 0 and not self.end.ended:
            if self.wire_begin == self.wire_end:
                more = receive_some(self.fd, self.wire, RECEIVE_BYTES, block)
                if more <= 0:
                    return more
                self.wire_begin, self.wire_end = 0, more
            while self.wire_begin < self.wire_end and 0 <= got < <Py_ssize_t>size:
                more = self.decrypt(p + got, size - got, min(self.wire_end - self.wire_begin, <size_t>ROUND_BYTES))
                got = got + more if more >= 0 else more
        self.unread = got == <Py_ssize_t>size
        return got if got else -1

    cdef Py_ssize_t decrypt(self, uint8_t *p, size_t size, size_t fed) noexcept nogil:
        """Of what was fed and the next `fed` bytes of the wire."""
        cdef Py_ssize_t got = -1
        if not openssl_feed(&self.end, self.wire + self.wire_begin, fed):
            got = openssl_decrypt(&self.end, p, size)
        self.wire_begin += fed
        return self.refused() if got < 0 else got

    cdef Py_ssize_t refused(self) noexcept nogil:
        """By OpenSSL."""
        errno.errno = errno.EPROTO
        return -2
