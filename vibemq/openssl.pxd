# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t


# One end of a TLS connection.  Its pointers belong to an OpenSSL.SSL.Connection, which whoever has this keeps as long.
cdef struct OpensslEnd:
    void *ssl
    void *incoming                      # ciphertext from the peer
    void *outgoing                      # ciphertext for the peer
    bint ended                          # the peer said that it sends no more


# Of a connection that was made without a socket.
cdef int openssl_attach(OpensslEnd *end, object connection) except -1
# 1: the handshake is over, 0: more of the peer is needed, -1: failed.
cdef int openssl_handshake(OpensslEnd *end) noexcept nogil
# Ciphertext that has come; 0, or -1 without memory.
cdef int openssl_feed(OpensslEnd *end, const uint8_t *data, size_t size) noexcept nogil
# Bytes decrypted of what was fed, less than `size` when all was; -1: failed.
cdef ssize_t openssl_decrypt(OpensslEnd *end, uint8_t *data, size_t size) noexcept nogil
# All of it; 0, or -1: failed.
cdef int openssl_encrypt(OpensslEnd *end, const uint8_t *data, size_t size) noexcept nogil
# Bytes of ciphertext that wait for the peer, and bytes taken of them.
cdef size_t openssl_waiting(OpensslEnd *end) noexcept nogil
cdef size_t openssl_take(OpensslEnd *end, uint8_t *data, size_t size) noexcept nogil
# Tell the peer that nothing follows, if it can still be told.
cdef void openssl_finish(OpensslEnd *end) noexcept nogil
