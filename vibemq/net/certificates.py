# SPDX-License-Identifier: Apache-2.0
"""What the TLS ports show and whose certificates they take: made from files, and made again on SIGHUP.

The supervisor loads the files before it gives up root and forks; each worker reads them again for itself.  A
set of files that does not fit together never takes the place of one that does.

Sessions are not resumed: connections live long, and a ticket would outlive the certificate that it stands for.
(A client of TLS 1.3 still gets two tickets, which stand for nothing: the binding cannot say that there be none.)

Importing this loads OpenSSL, 14 MB, so only a broker with [tls] does.
"""

import logging
import re
import time
from typing import Any

from cryptography import x509
from OpenSSL import SSL, crypto

from vibemq import openssl
from vibemq.config import Tls
from vibemq.errors import ConfigError

#: What OpenSSL says of a key that is another certificate's, of the same kind and of another.
_OTHERS_KEY = ("key values mismatch", "key type mismatch", "no certificate assigned")
#: What says that it is OpenSSL's TLS that does not want a certificate which could be read.
_BY_TLS = "SSL routines"
_KEY_BEGINS = b"PRIVATE KEY-----"
_HAS_PASSPHRASE = re.compile(rb"^(-----BEGIN |Proc-Type:.*)ENCRYPTED", re.MULTILINE)
_REVOKED_BEGINS = b"-----BEGIN X509 CRL-----"
_FILE_BYTES_MAX = 1 << 20  # what is looked at for messages: a chain of certificates has some KiB
#: Up to TLS 1.2: keys that are made for one connection, encryption that no weak hash guards.
_CIPHERS = b"@SECLEVEL=2:ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES:!aNULL:!SHA1:!AESCCM"
_OPTIONS = SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_TICKET | SSL.OP_NO_COMPRESSION | SSL.OP_CIPHER_SERVER_PREFERENCE
_SESSIONS_OF = b"vibemq"  # where clients show certificates, OpenSSL wants a name for sessions, resumed or not
VERIFY = {
    "none": SSL.VERIFY_NONE,
    "optional": SSL.VERIFY_PEER,
    "required": SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT,
}
#: Alternative names that can be a user, as they are called in configurations of OpenSSL.
_ALTERNATIVES: dict[type[Any], str] = {
    x509.DNSName: "DNS",
    x509.RFC822Name: "email",
    x509.UniformResourceIdentifier: "URI",
}

logger = logging.getLogger(__name__)


class Certificates:
    """Raises ConfigError when the files cannot be used."""

    def __init__(self, options: Tls) -> None:
        self.options = options
        self.context = _load(options)
        openssl.check(self.accept())  # now, and not when the first client comes
        logger.info("TLS is done by %s", SSL.OpenSSL_version(SSL.OPENSSL_VERSION).decode())
        self._announce("was read")
        self.stale = False  # set by a signal's handler, which may do no more

    def refresh(self) -> None:
        """Read the files again, for connections made from now on."""
        self.stale = False
        try:
            self.context = _load(self.options)
        except (ConfigError, OSError) as problem:  # OSError: a file went away between two looks at it
            hint = f" ({problem.hint})" if isinstance(problem, ConfigError) and problem.hint else ""
            logger.error("the TLS certificates are kept as they were: %s%s", problem, hint)
        else:
            self._announce("was read again")

    def accept(self) -> SSL.Connection:
        """The server's end of a new connection, between memory buffers."""
        connection = SSL.Connection(self.context, None)
        connection.set_accept_state()
        return connection

    @staticmethod
    def peer(connection: SSL.Connection) -> dict[str, Any] | None:
        """What the certificate that the client showed says of it; None without one.

        ``subject``: in their order, groups of pairs of a name (RFC 4514; else a dotted number) and its value.
        ``subjectAltName``: pairs of a kind and a name.  What cannot be read is empty.
        """
        try:
            certificate = connection.get_peer_certificate(as_cryptography=True)
        except ValueError as problem:  # cryptography is stricter than OpenSSL, which has checked it and let it in
            logger.warning("a client's certificate cannot be read for the names in it: %s", problem)
            return {"subject": (), "subjectAltName": ()}
        if certificate is None:
            return None
        return {"subject": _subject(certificate), "subjectAltName": _alternatives(certificate)}

    def _announce(self, done: str) -> None:
        """Log what was done, and what an operator who is asked why clients refuse to connect wants to know."""
        path, certificate = self.options.certificate, self.accept().get_certificate()
        assert certificate is not None  # or the files would have been refused
        try:
            begins, ends = (certificate.get_notBefore() or b"").decode(), (certificate.get_notAfter() or b"").decode()
            ended = certificate.has_expired()
        except (ValueError, crypto.Error):  # OpenSSL shows it all the same
            logger.warning("the TLS certificate %s from %s; until when it is valid cannot be read", done, path)
            return
        if ended:
            why = f"it ended on {_day(ends)}"
        elif begins > time.strftime("%Y%m%d%H%M%SZ", time.gmtime()):
            why = f"it is not valid before {_day(begins)}"
        else:
            logger.info("the TLS certificate %s from %s; it is valid until %s", done, path, _day(ends))
            return
        logger.warning("the TLS certificate %s from %s; clients will refuse it, %s", done, path, why)


def _day(time_text: str) -> str:
    return f"{time_text[:4]}-{time_text[4:6]}-{time_text[6:8]}"


def _subject(certificate: x509.Certificate) -> tuple[tuple[tuple[str, str], ...], ...]:
    try:
        groups = certificate.subject.rdns
    except ValueError:
        return ()
    return tuple(tuple((name.rfc4514_attribute_name, str(name.value)) for name in group) for group in groups)


def _alternatives(certificate: x509.Certificate) -> tuple[tuple[str, str], ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        return ()
    return tuple((_ALTERNATIVES[type(name)], name.value) for name in names if type(name) in _ALTERNATIVES)


def _load(options: Tls) -> SSL.Context:
    if not options.certificate:
        raise ConfigError(
            "[tls] has options, but tls.certificate names no file: no port would speak TLS",
            hint="set tls.certificate to the PEM file of the certificate, or leave the other options of [tls] out",
        )
    for option in ("certificate", "key", "client_ca"):
        _check_readable(option, getattr(options, option))
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_options(_OPTIONS)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)  # 34 KiB of a connection that is idle
    context.set_cipher_list(_CIPHERS)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_session_id(_SESSIONS_OF)
    _use_certificate(context, options)
    _use_key(context, options)
    context.set_verify(VERIFY[options.verify])
    if options.verify == "none":
        return context
    if not options.client_ca:
        raise ConfigError(
            f"tls.verify is {options.verify!r}, but tls.client_ca names no file",
            hint="name the PEM file with the authorities whose client certificates are accepted",
        )
    try:
        context.load_verify_locations(options.client_ca)
    except SSL.Error as problem:
        raise ConfigError(
            f"tls.client_ca {options.client_ca!r} holds no certificates that can be read: {_first(problem)[1]}",
            hint="name the PEM file with the authorities whose client certificates are accepted",
        ) from None
    if _REVOKED_BEGINS in _read(options.client_ca):
        logger.warning("tls.client_ca %r has lists of revoked certificates, which are not looked at", options.client_ca)
    return context


def _use_certificate(context: SSL.Context, options: Tls) -> None:
    try:
        context.use_certificate_chain_file(options.certificate)
    except SSL.Error as problem:
        by, reason = _first(problem)
        if by == _BY_TLS:  # too small a key, a hash that is not safe any more
            raise ConfigError(
                f"tls.certificate {options.certificate!r} cannot be used: {reason}",
                hint="have it issued anew, for a larger key or with a newer hash",
            ) from None
        raise ConfigError(
            f"tls.certificate {options.certificate!r} holds no certificate that can be read",
            hint="a PEM file is needed, with the server's certificate first and then those of authorities in between",
        ) from None


def _use_key(context: SSL.Context, options: Tls) -> None:
    certificate, path = options.certificate, options.key or options.certificate
    named = f"tls.key {path!r}" if options.key else f"tls.certificate {certificate!r}, as tls.key is not set,"
    key = _read(path)
    if _KEY_BEGINS not in key:
        raise ConfigError(f"{named} holds no private key", hint="set tls.key to the PEM file of the certificate's key")
    if _HAS_PASSPHRASE.search(key):  # OpenSSL would ask for it at the terminal
        raise ConfigError(
            f"{named} has a private key with a passphrase, which nobody can type for a service",
            hint=f"`openssl pkey -in {path} -out NEW` writes it without one",
        )
    try:
        context.use_privatekey_file(path)
        context.check_privatekey()
    except SSL.Error as problem:
        if _first(problem)[1] in _OTHERS_KEY:
            raise ConfigError(
                f"tls.key {path!r} is not the key of tls.certificate {certificate!r}",
                hint="name the key that the certificate was issued for; where both were renewed, name both new files",
            ) from None
        raise ConfigError(f"{named} has a private key that cannot be read", hint="a whole PEM file is needed") from None


def _first(problem: SSL.Error) -> tuple[str, str]:
    """Of what went wrong, the part of OpenSSL that said it first, and its words."""
    found = problem.args[0] if problem.args else []
    return (found[0][0], found[0][2]) if found else ("", "OpenSSL gives no reason")


def _check_readable(option: str, path: str) -> None:
    if not path:
        return
    try:
        _read(path)
    except OSError as problem:
        raise ConfigError(
            f"tls.{option}: cannot read {path!r}: {problem.strerror}",
            hint="name a file that is there and that the account which starts the broker may read",
        ) from None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_FILE_BYTES_MAX)
