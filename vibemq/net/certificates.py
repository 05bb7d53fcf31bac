# SPDX-License-Identifier: Apache-2.0
"""What the TLS ports show and whose certificates they take: made from files, and made again on SIGHUP.

The supervisor loads the files before it gives up root and forks; each worker reads them again for itself.  A
set of files that does not fit together never takes the place of one that does.

Sessions are not resumed: connections live long, and a ticket would outlive the certificate that it stands for.
(A client of TLS 1.3 still gets two tickets, which stand for nothing: the binding cannot say that there be none.)

Importing this loads OpenSSL, 14 MB, so only a broker with [tls] does.
"""

from __future__ import annotations

import datetime
import logging
import math
import re
import shlex
import ssl
import time
from functools import partial
from typing import Any, NamedTuple

from cryptography import x509
from OpenSSL import SSL, crypto

from vibemq import openssl
from vibemq.config import Tls
from vibemq.errors import ConfigError
from vibemq.once_a_minute import OnceAMinute

#: What OpenSSL says of a key that is another certificate's, of the same kind and of another.
_OTHERS_KEY = ("key values mismatch", "key type mismatch", "no certificate assigned")
#: What says that it is OpenSSL's TLS that does not want a certificate which could be read.
_BY_TLS = "SSL routines"
_KEY_BEGINS = b"PRIVATE KEY-----"
_HAS_PASSPHRASE = re.compile(rb"^(-----BEGIN |Proc-Type:.*)ENCRYPTED", re.MULTILINE)
_LIST = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)
_FILE_BYTES_MAX = 1 << 20  # what is looked at for messages: a chain of certificates has some KiB
_LISTS_BYTES_MAX = 64 << 20  # of one file with lists of revoked certificates: some 40 bytes for each of them
_DAY_S = 86400
#: A certificate or list that ends within so many days is a warning, once a day.  Where renewing is automatic it is done
#: before: of 90 days with 30 left, of 45 with 15.
ENDS_SOON_DAYS = 14
#: Up to TLS 1.2: keys that are made for one connection, encryption that no weak hash guards.
_CIPHERS = b"@SECLEVEL=2:ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES:!aNULL:!SHA1:!AESCCM"
_OPTIONS = SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_TICKET | SSL.OP_NO_COMPRESSION | SSL.OP_CIPHER_SERVER_PREFERENCE
_SESSIONS_OF = b"vibemq"  # where clients show certificates, OpenSSL wants a name for sessions, resumed or not
VERIFY = {"none": SSL.VERIFY_NONE, "optional": SSL.VERIFY_PEER,
          "required": SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT}  # fmt: skip
VERIFY_STANDARD = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
#: Alternative names that can be a user, as they are called in configurations of OpenSSL.
_ALTERNATIVES: dict[type[Any], str] = {x509.DNSName: "DNS", x509.RFC822Name: "email",
                                       x509.UniformResourceIdentifier: "URI"}  # fmt: skip

logger = logging.getLogger(__name__)
unreadable = OnceAMinute(logger)


class Certificates:
    """Raises ConfigError when the files cannot be used."""

    #: The same for the management API: asyncio takes the standard library's contexts, and its OpenSSL is the system's.
    http: ssl.SSLContext

    def __init__(self, options: Tls, *, with_http: bool = False) -> None:
        self.options, self._with_http = options, with_http
        self.context, self._lists = _load(options)
        if with_http:
            self.http = _standard(options, has_lists=bool(self._lists))
        self.ends_s: float | None = None  # Unix time; None when that cannot be read
        openssl.check(self.accept())  # now, and not when the first client comes
        logger.info("TLS is done by %s", SSL.OpenSSL_version(SSL.OPENSSL_VERSION).decode())
        self._announce("was read")
        self._is_reading = False
        self.stale = False  # set by a signal's handler, which may do no more

    def refresh(self) -> None:
        """Read the files again, for connections made from now on."""
        self.stale = False
        try:
            found = _load(self.options)
            if self._with_http:
                self.http = _standard(self.options, has_lists=bool(found[1]))
        except (ConfigError, OSError) as problem:
            self._was_read(None, problem)
        else:
            self._was_read(found, None)

    def refresh_by(self, helpers: Any) -> None:
        """As ``refresh``, without waiting for it: lists of revoked certificates may be long."""
        if self._is_reading:
            return  # still stale: what is being read may be older than the signal
        self.stale, self._is_reading = False, True
        helpers.submit(partial(_load, self.options), self._was_read)

    def _was_read(self, found: tuple[SSL.Context, list[_List]] | None, problem: BaseException | None) -> None:
        self._is_reading = False
        if found is not None:
            self.context, self._lists = found
            self._announce("was read again")
            return
        if not isinstance(problem, (ConfigError, OSError)):  # OSError: a file went away between two looks at it
            logger.error("the TLS certificates are kept as they were", exc_info=problem)
            return
        hint = f" ({problem.hint})" if isinstance(problem, ConfigError) and problem.hint else ""
        logger.error("the TLS certificates are kept as they were: %s%s", problem, hint)

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
            unreadable.say(
                "names", "a client's certificate cannot be read for the names in it: %s", type(problem).__name__
            )
            return {"subject": (), "subjectAltName": ()}
        if certificate is None:
            return None
        return {"subject": _subject(certificate), "subjectAltName": _alternatives(certificate)}

    def say_ends(self, now_s: float, *, only_lists: bool = False) -> None:
        """For once a day: warn of what ends soon or has ended."""
        ends = [] if self.ends_s is None or only_lists else [
            (f"the TLS certificate in {self.options.certificate}", self.ends_s, "clients refuse to connect")
        ]  # fmt: skip
        refused = "the client certificates of that authority are refused"
        ends += [(f"the list of certificates revoked by {each.issuer}", each.ends_s, refused) for each in self._lists]
        for what, ends_s, then in ends:
            days = (ends_s - now_s) / _DAY_S
            if days <= 0:
                logger.error("%s ended on %s: %s until it is renewed and SIGHUP sent", what, _day(ends_s), then)
            elif days <= ENDS_SOON_DAYS:
                logger.warning("%s ends on %s, in %d days: after that %s", what, _day(ends_s), days, then)

    def _announce(self, done: str) -> None:
        """Log what was done, and what an operator who is asked why clients refuse to connect wants to know."""
        path, certificate = self.options.certificate, self.accept().get_certificate()
        assert certificate is not None  # or the files would have been refused
        now_s = time.time()
        self.ends_s, why = None, "until when it is valid cannot be read"
        try:
            begins_s, ends_s = _seconds(certificate.get_notBefore()), _seconds(certificate.get_notAfter())
        except (ValueError, crypto.Error):  # OpenSSL shows it all the same
            pass
        else:
            self.ends_s = ends_s
            why = f"clients will refuse it, it ended on {_day(ends_s)}" if ends_s <= now_s else ""
            if not why and begins_s > now_s:
                why = f"clients will refuse it, it is not valid before {_day(begins_s)}"
        if why:
            logger.warning("the TLS certificate %s from %s; %s", done, path, why)
        else:
            logger.info("the TLS certificate %s from %s; it is valid until %s", done, path, _day(ends_s))
        for each in self._lists:
            logger.info("%s has revoked %d certificates, says %s", each.issuer, each.size, each.path)
        self.say_ends(now_s, only_lists=bool(why))


class _List(NamedTuple):
    """A list of revoked certificates."""

    path: str
    issuer: str
    size: int
    ends_s: float


def _seconds(asn1_time: bytes | None) -> float:
    """Unix time; ValueError."""
    text = (asn1_time or b"").decode()
    return datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=datetime.UTC).timestamp()


def _day(at_s: float) -> str:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).strftime("%Y-%m-%d")


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


def _load(options: Tls) -> tuple[SSL.Context, list[_List]]:
    if not options.certificate:
        raise ConfigError(
            "[tls] has options, but tls.certificate names no file: no port would speak TLS",
            hint="set tls.certificate to the PEM file of the certificate, or leave the other options of [tls] out",
        )
    for option in ("certificate", "key", "client_ca", "client_crl"):
        path = getattr(options, option)
        try:
            _ = path and _read(path)
        except OSError as problem:
            raise ConfigError(
                f"tls.{option}: cannot read {path!r}: {problem.strerror}",
                hint="name a file that is there and that the account which starts the broker may read",
            ) from None
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
        if options.client_crl:
            raise ConfigError(
                f"tls.client_crl names {options.client_crl!r}, but tls.verify is 'none': no client shows a certificate",
                hint="set tls.verify to 'optional' or 'required', or leave tls.client_crl out",
            )
        return context, []
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
    return context, _use_lists(context, options)


def _standard(options: Tls, *, has_lists: bool) -> ssl.SSLContext:
    """Of the files that were just loaded, and found to fit together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    context.set_ciphers(_CIPHERS.decode())
    context.verify_mode = VERIFY_STANDARD[options.verify]
    try:
        context.load_cert_chain(options.certificate, options.key or None, password="")
        if options.verify != "none":
            for path in filter(None, (options.client_ca, options.client_crl)):
                context.load_verify_locations(path)
    except ssl.SSLError as problem:
        raise ConfigError(
            f"the files of [tls] cannot be used for HTTPS, which Python's OpenSSL does: {problem.reason or problem}",
            hint="have certificates issued for ECDSA or RSA keys, or set admin.enabled to false",
        ) from None
    if has_lists:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
    return context


def _use_lists(context: SSL.Context, options: Tls) -> list[_List]:
    """Have revoked certificates refused: by the lists of client_crl, and those beside authorities in client_ca.

    As soon as there is one, every authority needs one, as with other servers: whether its certificates are revoked
    would otherwise not be known, and OpenSSL refuses them.
    """
    found: list[_List] = []
    store = context.get_cert_store()
    assert store is not None  # a context has one from its beginning
    for option, path in (("client_ca", options.client_ca), ("client_crl", options.client_crl)):
        text = _read(path, _LISTS_BYTES_MAX + 1) if path else b""
        if len(text) > _LISTS_BYTES_MAX:
            raise ConfigError(
                f"tls.{option} {path!r} is larger than {_LISTS_BYTES_MAX} bytes",
                hint="have the authority leave certificates that have ended out of its list",
            )
        blocks = _LIST.findall(text)
        if option == "client_crl" and path and not blocks:
            raise ConfigError(
                f"tls.client_crl {path!r} holds no list of revoked certificates",
                hint="a PEM file is needed; `openssl crl -inform der -in FILE -out NEW` makes one of DER",
            )
        for block in blocks:
            try:
                listed = x509.load_pem_x509_crl(block)
                ends = listed.next_update_utc
                found.append(
                    _List(path, listed.issuer.rfc4514_string(), len(listed), ends.timestamp() if ends else math.inf)
                )
                if option == "client_crl":
                    store.add_crl(listed)  # those of client_ca were read with it
            except (ValueError, crypto.Error) as problem:
                raise ConfigError(
                    f"tls.{option} {path!r} has a list of revoked certificates that cannot be read: {problem}",
                    hint="have the authority issue it anew",
                ) from None
    if found:
        store.set_flags(crypto.X509StoreFlags.CRL_CHECK | crypto.X509StoreFlags.CRL_CHECK_ALL)
        _warn_of_authorities_without(found, options.client_ca)
    return found


def _warn_of_authorities_without(lists: list[_List], path: str) -> None:
    try:
        authorities = {each.subject.rfc4514_string() for each in x509.load_pem_x509_certificates(_read(path))}
    except ValueError:  # cryptography is stricter than OpenSSL, which has taken them
        return
    for authority in sorted(authorities - {each.issuer for each in lists}):
        logger.warning(
            "there is no list of the certificates that %s has revoked, so all of its client certificates are refused; "
            "put one into tls.client_crl",
            authority,
        )


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
            hint=f"`openssl pkey -in {shlex.quote(path)} -out NEW` writes it without one",
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


def _read(path: str, bytes_max: int = _FILE_BYTES_MAX) -> bytes:
    with open(path, "rb") as file:
        return file.read(bytes_max)
