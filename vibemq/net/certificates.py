# SPDX-License-Identifier: Apache-2.0
"""What the TLS ports show and whose certificates they take: made from files, and made again on SIGHUP.

The supervisor loads the files before it gives up root and forks; each worker reads them again for itself.  A
set of files that does not fit together never takes the place of one that does.

Sessions are not resumed: connections live long, and a ticket would outlive the certificate that it stands for.
"""

import logging
import ssl

from vibemq.config import Tls
from vibemq.errors import ConfigError

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
        except ConfigError as problem:
            logger.error("the TLS certificates are kept as they were: %s", problem)

    def wrap(self) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
        """The server's side of a new connection, with what comes in and what goes out."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        return self.context.wrap_bio(incoming, outgoing, server_side=True), incoming, outgoing


def _load(options: Tls) -> ssl.SSLContext:
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
        raise ConfigError(
            f"tls.certificate {options.certificate!r} and tls.key {options.key or options.certificate!r} "
            f"cannot be used: {problem.reason or problem}",
            hint="both are PEM files, the key is the certificate's own and has no passphrase",
        ) from None
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
        raise ConfigError(f"tls.client_ca {options.client_ca!r} cannot be used: {problem.reason or problem}") from None
    return context


def _check_readable(option: str, path: str) -> None:
    if not path:
        return
    try:
        with open(path, "rb"):
            return
    except OSError as problem:
        raise ConfigError(f"tls.{option}: cannot read {path!r}: {problem.strerror}") from None


def _no_passphrase() -> str:
    return ""  # instead of asking at a terminal that a service does not have


def _remember_name(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
    if isinstance(connection, NamedObject):
        connection.server_name = name or ""
