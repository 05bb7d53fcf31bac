# SPDX-License-Identifier: Apache-2.0
"""The SASL mechanisms: which are offered, who a client says it is, and how each is proved.

PLAIN and AMQPLAIN bring a user and a password.  EXTERNAL means the user that the client's TLS certificate
names, ANONYMOUS a user that the configuration names; neither has anything to prove here.  The bytes are parsed
without I/O; the password is for access.users.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from vibemq.access.users import GUEST, has_guest

if TYPE_CHECKING:
    from vibemq.protocols.streams.session import StreamsSession

#: How names in a certificate for which RFC 4514 has no letters are written.
ATTRIBUTES = {
    "1.2.840.113549.1.9.1": "EMAILADDRESS",
    "2.5.4.4": "SN",
    "2.5.4.5": "SERIALNUMBER",
    "2.5.4.12": "TITLE",
    "2.5.4.42": "GIVENNAME",
    "2.5.4.43": "INITIALS",
    "2.5.4.44": "GENERATIONQUALIFIER",
    "2.5.4.65": "PSEUDONYM",
}
#: Kinds of alternative names that can be a user, the first that there is.
ALTERNATIVES = ("DNS", "email", "URI")
#: Sizes in bytes of the values in an AMQP 0-9-1 table; those not here begin with their size.
FIXED_SIZES = {b"t": 1, b"b": 1, b"B": 1, b"s": 2, b"u": 2, b"I": 4, b"i": 4, b"f": 4, b"D": 5}
FIXED_SIZES |= {b"l": 8, b"L": 8, b"d": 8, b"T": 8, b"V": 0}
SIZED = (b"S", b"x", b"F", b"A")


class Claim(NamedTuple):
    """Who somebody says to be."""

    user: str
    password: str | None  # None: nothing to prove


class Malformed(Exception):
    """Not what the mechanism says."""


class Unusable(Exception):
    """A certificate that names no user."""


def offered(session: StreamsSession) -> list[str]:
    """The mechanisms for this connection, in the order in which clients are to prefer them."""
    mechanisms = ["PLAIN", "AMQPLAIN"]
    if anonymous_user(session):
        mechanisms.append("ANONYMOUS")
    if session.peer_certificate:
        mechanisms.append("EXTERNAL")
    return mechanisms


def claim(session: StreamsSession, mechanism: str, data: bytes) -> Claim:
    """Of a mechanism that is offered.  Raises Malformed, Unusable."""
    if mechanism == "PLAIN":
        return plain(data)
    if mechanism == "AMQPLAIN":
        return amqplain(data)
    if mechanism == "ANONYMOUS":
        user = anonymous_user(session)
        # As with its password: guest is for this machine only, whatever way it comes.
        return Claim(user, GUEST if user == GUEST else None)
    return Claim(certificate_user(session.peer_certificate, session.door.config.certificate_user), None)


def anonymous_user(session: StreamsSession) -> str:
    """Whom ANONYMOUS means; "": nobody."""
    door = session.door
    return door.config.anonymous_user or (GUEST if has_guest(door.table.metadata, door.guest_allowed) else "")


def plain(data: bytes) -> Claim:
    parts = data.split(b"\0")
    if len(parts) != 3 or parts[0]:
        raise Malformed("not three parts with an empty first one")
    return Claim(_text(parts[1]), _text(parts[2]))


def amqplain(data: bytes) -> Claim:
    """A table of AMQP 0-9-1 without its size."""
    table: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        name, at = _take(data, at + 1, data[at])
        kind, at = _take(data, at, 1)
        if kind in FIXED_SIZES:
            _, at = _take(data, at, FIXED_SIZES[kind])
        elif kind in SIZED:
            size, at = _take(data, at, 4)
            value, at = _take(data, at, int.from_bytes(size, "big"))
            if kind == b"S":
                table[name] = value
        else:
            raise Malformed(f"a value of type {kind!r}")
    try:
        return Claim(_text(table[b"LOGIN"]), _text(table[b"PASSWORD"]))
    except KeyError as missing:
        raise Malformed(f"no {missing.args[0]!r}") from None


def certificate_user(certificate: Mapping[str, Any], form: str) -> str:
    """The user that a certificate names, of what net.certificates says of it.  Raises Unusable."""
    if form == "subject_alternative_name":
        names = [name for kind in ALTERNATIVES for have, name in certificate.get("subjectAltName", ()) if have == kind]
        user = names[0] if names else ""
    elif form == "common_name":
        user = ",".join(value for rdn in certificate.get("subject", ()) for name, value in rdn if name == "CN")
    else:
        user = distinguished_name(certificate.get("subject", ()))
    if not user:
        raise Unusable(f"the certificate has no {form.replace('_', ' ')}")
    return user


def distinguished_name(subject: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    """As RFC 4514 writes it: the last part that was encoded comes first."""
    return ",".join(
        "+".join(f"{ATTRIBUTES.get(name, name)}={_escaped(value)}" for name, value in rdn) for rdn in reversed(subject)
    )


def _escaped(value: str) -> str:
    escaped = "".join(f"\\{letter}" if letter in ',+"\\<>;' else letter for letter in value)
    if escaped[:1] in (" ", "#"):
        escaped = "\\" + escaped
    if value.endswith(" ") and len(value) > 1:
        escaped = escaped[:-1] + "\\ "
    return escaped


def _take(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if len(data) - at < size:
        raise Malformed("the table ends within a value")
    return data[at : at + size], at + size


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        raise Malformed(str(problem)) from problem
