# SPDX-License-Identifier: Apache-2.0
"""TLS between memory buffers, by the OpenSSL that comes with pyOpenSSL.

pyOpenSSL makes contexts and connections.  What runs for every record is called here without it, through pointers
to the library's functions: its methods make an exception of each "no more has come", and copy.  Measured in
rounds of 64 KiB with AES-256-GCM: 9.4 GB/s encrypting and 9.8 decrypting, by the methods 4.8 and 4.3, and 3.3 and
3.5 by the standard library's ssl, whose OpenSSL is the distribution's and knows no vector AES.

The pointers are fetched once, when the first connection is attached: who has no TLS loads no OpenSSL.  A library
that lacks a function, or whose function has other arguments, is refused.

A failure's reason waits in the thread in which it happened; `reason` takes it from there.  An end is for one
thread at a time, any thread.
"""

import ipaddress

from libc.stdint cimport uintptr_t

from vibemq.errors import SetupError, UserError
from vibemq.extras import install

cdef struct Functions:
    int (*SSL_do_handshake)(void *) noexcept nogil
    int (*SSL_shutdown)(void *) noexcept nogil
    int (*SSL_get_error)(void *, int) noexcept nogil
    int (*SSL_read)(void *, void *, int) noexcept nogil
    int (*SSL_write)(void *, const void *, int) noexcept nogil
    int (*BIO_read)(void *, void *, int) noexcept nogil
    int (*BIO_write)(void *, const void *, int) noexcept nogil
    long (*BIO_get_mem_data)(void *, char **) noexcept nogil
    void (*ERR_clear_error)() noexcept nogil

cdef Functions openssl

# What the binding says of each, in the same order; `const` is nothing to it.
SIGNATURES = {
    "SSL_do_handshake": "int(*)(SSL *)",
    "SSL_shutdown": "int(*)(SSL *)",
    "SSL_get_error": "int(*)(SSL *, int)",
    "SSL_read": "int(*)(SSL *, void *, int)",
    "SSL_write": "int(*)(SSL *, void *, int)",
    "BIO_read": "int(*)(BIO *, void *, int)",
    "BIO_write": "int(*)(BIO *, void *, int)",
    "BIO_get_mem_data": "long(*)(BIO *, char * *)",
    "ERR_clear_error": "void(*)()",
}

cdef enum:
    # Of OpenSSL's interface, the same in all its versions.
    SSL_ERROR_WANT_READ = 2
    SSL_ERROR_ZERO_RETURN = 6
    # Sizes are ints there.
    PIECE_BYTES_MAX = 1 << 30

library = None
ffi = None


cdef int openssl_attach(OpensslEnd *end, object connection) except -1:
    if library is None:
        _load()
    try:
        end.ssl = _pointer(connection._ssl)
        end.incoming = _pointer(connection._into_ssl)
        end.outgoing = _pointer(connection._from_ssl)
    except AttributeError as problem:
        raise _unfit(problem) from None
    end.ended = False
    return 0


cdef int openssl_handshake(OpensslEnd *end) noexcept nogil:
    cdef int result
    openssl.ERR_clear_error()
    result = openssl.SSL_do_handshake(end.ssl)
    if result == 1:
        return 1
    return 0 if openssl.SSL_get_error(end.ssl, result) == SSL_ERROR_WANT_READ else -1


cdef int openssl_feed(OpensslEnd *end, const uint8_t *data, size_t size) noexcept nogil:
    cdef int n
    while size:
        n = openssl.BIO_write(end.incoming, data, <int> min(size, <size_t> PIECE_BYTES_MAX))
        if n <= 0:
            return -1
        data += n
        size -= n
    return 0


cdef ssize_t openssl_decrypt(OpensslEnd *end, uint8_t *data, size_t size) noexcept nogil:
    cdef size_t got = 0
    cdef int n, why
    openssl.ERR_clear_error()
    while got < size and not end.ended:
        n = openssl.SSL_read(end.ssl, data + got, <int> min(size - got, <size_t> PIECE_BYTES_MAX))
        if n > 0:
            got += n
            continue
        why = openssl.SSL_get_error(end.ssl, n)
        if why == SSL_ERROR_WANT_READ:
            break
        if why != SSL_ERROR_ZERO_RETURN:
            return -1
        end.ended = True
    return got


cdef int openssl_encrypt(OpensslEnd *end, const uint8_t *data, size_t size) noexcept nogil:
    cdef int n
    openssl.ERR_clear_error()
    while size:
        n = openssl.SSL_write(end.ssl, data, <int> min(size, <size_t> PIECE_BYTES_MAX))
        if n <= 0:
            return -1
        data += n
        size -= n
    return 0


cdef size_t openssl_waiting(OpensslEnd *end) noexcept nogil:
    cdef char *data
    return max(openssl.BIO_get_mem_data(end.outgoing, &data), 0)


cdef size_t openssl_take(OpensslEnd *end, uint8_t *data, size_t size) noexcept nogil:
    return max(openssl.BIO_read(end.outgoing, data, <int> min(size, <size_t> PIECE_BYTES_MAX)), 0)


cdef void openssl_finish(OpensslEnd *end) noexcept nogil:
    openssl.ERR_clear_error()
    openssl.SSL_shutdown(end.ssl)
    openssl.ERR_clear_error()


def check(connection) -> None:
    """Raises SetupError when this is not a library that can be used."""
    cdef OpensslEnd end
    openssl_attach(&end, connection)


def expect(connection, host: str) -> None:
    """Of a client: ask for this host, a name or an address, and take nobody else.  Raises UserError."""
    check(connection)
    wanted = library.SSL_get0_param(connection._ssl)
    try:
        address = ipaddress.ip_address(host).packed
    except ValueError:
        name = _dns_name(host)
        library.X509_VERIFY_PARAM_set_hostflags(wanted, library.X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS)
        # OpenSSL takes any name where it is to look for none, and any below a name that begins with a dot.
        if not name or name.startswith(b".") or not library.X509_VERIFY_PARAM_set1_host(wanted, name, len(name)):
            raise UserError(f"{host!r} is no host name that a server's certificate could show") from None
        connection.set_tlsext_host_name(name)
    else:
        if not library.X509_VERIFY_PARAM_set1_ip(wanted, address, len(address)):
            raise MemoryError


def reason(connection) -> str:
    """Of what failed last in this thread, in words."""
    said, code = "", library.ERR_get_error()
    while code:
        said, code = _text(library.ERR_reason_error_string(code)) or said, library.ERR_get_error()
    verified = library.SSL_get_verify_result(connection._ssl)
    if said == "certificate verify failed" and verified != library.X509_V_OK:
        said += ": " + _text(library.X509_verify_cert_error_string(verified))
    return said or "OpenSSL gives no reason"


cdef int _load() except -1:
    global library, ffi
    cdef void **places = <void **> &openssl
    try:
        from cryptography.hazmat.bindings._rust import _openssl
        ffi, lib = _openssl.ffi, _openssl.lib
        addresses = []
        for name, signature in SIGNATURES.items():
            address = ffi.addressof(lib, name)
            if ffi.typeof(address).cname != signature:
                raise TypeError(f"{name} is {ffi.typeof(address).cname}, needed {signature}")
            addresses.append(int(ffi.cast("uintptr_t", address)))
    except (ImportError, AttributeError, TypeError) as problem:
        raise _unfit(problem) from None
    for place, address in enumerate(addresses):
        places[<int> place] = <void *> <uintptr_t> address
    library = lib
    return 0


cdef void *_pointer(owned) except NULL:
    return <void *> <uintptr_t> int(ffi.cast("uintptr_t", owned))


def _dns_name(host: str) -> bytes:
    """As DNS and certificates write it; b"" when it is no name."""
    try:
        return host.encode("idna")
    except UnicodeError:
        return b""


def _text(words) -> str:
    return ffi.string(words).decode(errors="replace") if words else ""


def _unfit(problem):
    return SetupError(
        f"the installed pyOpenSSL and cryptography are not those that TLS is made for: {problem}",
        hint=f"`{install('tls')}` brings versions that fit",
    )
