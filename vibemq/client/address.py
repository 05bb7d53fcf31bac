# SPDX-License-Identifier: Apache-2.0
"""Where the streams door of a broker is, from one of the names that brokers have.

vibemq://user:password@host/?streamsPort=5552&virtualHost=sales     as for the native door, whose port it may have
rabbitmq-stream://user:password@host:5552/sales                     as stream clients write it; + tls with TLS
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from vibemq.client import settings
from vibemq.errors import ConfigError
from vibemq.protocols.streams.spec import PORT_DEFAULT

PORT_TLS_DEFAULT = 5551
SCHEME, SCHEME_TLS = "rabbitmq-stream", "rabbitmq-stream+tls"


@dataclass(frozen=True, slots=True)
class StreamsAddress:
    """What StreamsConnection.connect needs to know, but for what to trust."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    virtual_host: str
    tls: bool
    skip_cert_validation: bool = False


def parse(
    url: str,
    *,
    host: str | None = None,
    port: int | None = None,
    user: str | None = None,
    password: str | None = None,
    virtual_host: str | None = None,
    tls: bool = False,
) -> StreamsAddress:
    """What is given wins over what the URL says; who says nothing at all is guest on this machine. ConfigError."""
    scheme = url.partition("://")[0].lower()
    if scheme in (SCHEME, SCHEME_TLS):
        said = _stream_url(url)
        said["tls"] = scheme == SCHEME_TLS
    else:
        said = _native_url(url, user, password)
    if tls or said["tls"]:
        said["tls"], standard = True, PORT_TLS_DEFAULT
    else:
        standard = PORT_DEFAULT
    given = {"host": host, "port": port, "user": user, "password": password, "virtual_host": virtual_host}
    said |= {name: value for name, value in given.items() if value is not None}
    said["port"] = said["port"] or standard
    if said["user"] is None:
        said["user"], said["password"] = "guest", "guest"
    elif said["password"] is None:
        raise ConfigError(
            f"connection to {said['host']}: user {said['user']!r} has no password",
            hint="Give it in the URL, or on standard input with --password-stdin.",
        )
    return StreamsAddress(**said)


def user_of(url: str) -> tuple[str | None, bool]:
    """The user whom a URL names, if any, and whether it has the password, too."""
    login, at, _ = url.partition("://")[2].partition("/")[0].rpartition("@")
    user, colon, _ = login.partition(":")
    return (unquote(user) or None, bool(colon)) if at else (None, False)


def _stream_url(url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as problem:
        raise ConfigError(f"connection string: {problem}", hint=f"For instance {SCHEME}://localhost:5552.") from None
    if not parts.hostname:
        raise ConfigError("connection string: there is no host in it", hint=f"For instance {SCHEME}://localhost:5552.")
    if parts.query or parts.fragment:
        raise ConfigError(
            f"connection string: {parts.scheme}://: needed nothing behind the virtual host, had options",
            hint="Only vibemq:// has options; leave out what follows the `?`.",
        )
    return {
        "host": unquote(parts.hostname),
        "port": port,
        "user": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password) if parts.password is not None else None,
        "virtual_host": unquote(parts.path.removeprefix("/")) or "/",
    }


def _native_url(url: str, user: str | None, password: str | None) -> dict[str, Any]:
    """Its port is the native door's, and says nothing about where this one is."""
    login = {"user": user, "password": password}
    found = settings.parse(url, **{name: value for name, value in login.items() if value is not None})
    shared = ("host", "user", "password", "virtual_host", "tls", "skip_cert_validation")
    return {"port": found.streams_port, **{name: getattr(found, name) for name in shared}}
