# SPDX-License-Identifier: Apache-2.0
"""What the TLS ports show and whose certificates they take: made from files, and made again on SIGHUP.

The supervisor loads the files before it gives up root and forks; each worker reads them again for itself.  A
set of files that does not fit together never takes the place of one that does.

Sessions are not resumed: connections live long, and a ticket would outlive the certificate that it stands for.
"""

import base64
import logging
import ssl

from vibemq.config import Tls
from vibemq.errors import ConfigError

#: What OpenSSL says of a key that is another certificate's, of the same kind and of another.
_OTHERS_KEY = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
_KEY_BEGINS = b"PRIVATE KEY-----"
_FILE_BYTES_MAX = 1 << 20  # what is looked at for messages: a chain of certificates has some KiB
_VERSION_TAG, _SHORT_TIME_TAG = 0xA0, 0x17  # of ASN.1
VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

logger = logging.getLogger(__name__)


class NamedObject(ssl.SSLObject):
    """Keeps the name that the client asked for."""

    server_name = ""


class Certificates:
    """Raises ConfigError when the files cannot be used."""

    def __init__(self, options: Tls) -> None:
        self.options = options
        self.context = _load(options)
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
            path = self.options.certificate
            logger.info("the TLS certificate was read again from %s; it is valid until %s", path, _expiry(path))

    def wrap(self) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
        """The server's side of a new connection, with what comes in and what goes out."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        return self.context.wrap_bio(incoming, outgoing, server_side=True), incoming, outgoing


def _load(options: Tls) -> ssl.SSLContext:
    if not options.certificate:
        raise ConfigError(
            "[tls] has options, but tls.certificate names no file: no port would speak TLS",
            hint="set tls.certificate to the PEM file of the certificate, or leave the other options of [tls] out",
        )
    for option in ("certificate", "key", "client_ca"):
        _check_readable(option, getattr(options, option))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.sslobject_class = NamedObject
    context.sni_callback = _remember_name
    try:
        context.load_cert_chain(options.certificate, options.key or None, _no_passphrase)
    except ssl.SSLError as problem:
        raise _unusable(options, problem) from None
    context.verify_mode = VERIFY[options.verify]
    if options.verify == "none":
        return context
    if not options.client_ca:
        raise ConfigError(
            f"tls.verify is {options.verify!r}, but tls.client_ca names no file",
            hint="name the PEM file with the authorities whose client certificates are accepted",
        )
    try:
        context.load_verify_locations(options.client_ca)
    except ssl.SSLError as problem:
        raise ConfigError(
            f"tls.client_ca {options.client_ca!r} holds no certificates that can be read: {problem.reason or problem}",
            hint="name the PEM file with the authorities whose client certificates are accepted",
        ) from None
    return context


def _unusable(options: Tls, problem: ssl.SSLError) -> ConfigError:
    """Which of the two files is wrong and what helps; OpenSSL's own words seldom say."""
    certificate, key_path = options.certificate, options.key or options.certificate
    named = f"tls.key {options.key!r}" if options.key else f"tls.certificate {certificate!r}, as tls.key is not set,"
    key = _read(key_path)
    if problem.reason in _OTHERS_KEY:
        return ConfigError(
            f"tls.key {key_path!r} is not the key of tls.certificate {certificate!r}",
            hint="name the key that the certificate was issued for; where both were renewed, name both new files",
        )
    if not _holds_certificate(certificate):
        return ConfigError(
            f"tls.certificate {certificate!r} holds no certificate that can be read",
            hint="a PEM file is needed, with the server's certificate first and then those of authorities in between",
        )
    if _KEY_BEGINS not in key:
        return ConfigError(f"{named} holds no private key", hint="set tls.key to the PEM file of the certificate's key")
    if b"ENCRYPTED" in key:
        return ConfigError(
            f"{named} has a private key with a passphrase, which nobody can type for a service",
            hint=f"`openssl pkey -in {key_path} -out NEW` writes it without one",
        )
    if problem.reason:  # too small a key, a hash that is not safe any more
        return ConfigError(f"{named} and its certificate cannot be used: {problem.reason}", hint="issue them anew")
    return ConfigError(f"{named} has a private key that cannot be read", hint="a whole PEM file is needed")


def _holds_certificate(path: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
    except ssl.SSLError:
        return False
    return True


def _expiry(path: str) -> str:
    """The day up to which the first certificate of a file is valid."""
    try:
        return _last_day(_read(path))
    except (OSError, ValueError, IndexError):  # replaced meanwhile, or a kind of PEM that only OpenSSL knows
        return "a day that the file does not show"


def _last_day(pem: bytes) -> str:
    begin, end = pem.index(_BEGIN) + len(_BEGIN), pem.index(_END)
    der = base64.b64decode(pem[begin:end])

    def inside(at: int) -> tuple[int, int]:
        """Where the contents of the DER element at ``at`` begin and end."""
        size, at = der[at + 1], at + 2
        if size & 0x80:
            more = size & 0x7F
            size, at = int.from_bytes(der[at : at + more], "big"), at + more
        return at, at + size

    at, _ = inside(inside(0)[0])  # the part that is signed
    if der[at] == _VERSION_TAG:
        _, at = inside(at)
    for _ in ("serial number", "signature", "issuer"):
        _, at = inside(at)
    _, after = inside(inside(at)[0])  # of the validity: behind the day from which on it holds
    begin, end = inside(after)
    text = der[begin:end].decode()
    if der[after] == _SHORT_TIME_TAG:  # two digits of the year, 1950 to 2049
        text = ("19" if text >= "50" else "20") + text
    return f"{text[:4]}-{text[4:6]}-{text[6:8]}"


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


def _no_passphrase() -> str:
    return ""  # instead of asking at a terminal that a service does not have


def _remember_name(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
    if isinstance(connection, NamedObject):
        connection.server_name = name or ""
