# SPDX-License-Identifier: Apache-2.0
"""Where the broker is and how patient a client is with it: Settings, and the connection strings that give them.

Both forms of other VibeMQ clients are read, with the same options and defaults:
    vibemq://user:password@host:2925/?keepAlive=30&queues=orders,bills      or vibemqs, which is TLS
    Host=localhost;Port=2925;Username=user;Password="a;b";compression=none
A streams door is named by these, too, with the options streamsPort and virtualHost, or as stream clients write it:
    rabbitmq-stream://user:password@host:5552/sales     or rabbitmq-stream+tls
Delays and the time for a command may have fractions of a second.  An option that nobody knows and a value that cannot
be are errors, where those clients ignore both: each was meant to count.
"""

from __future__ import annotations

import math
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any
from urllib.parse import unquote, urlsplit

from vibemq.addresses import host_port, parse_host, split_host_port
from vibemq.errors import ConfigError
from vibemq.protocols.native.spec import (
    COMMAND_TIMEOUT_S,
    COMPRESSION_BY_NAME,
    COMPRESSION_THRESHOLD_BYTES_DEFAULT,
    FRAME_BODY_BYTES_MAX_DEFAULT,
    KEEP_ALIVE_S,
    PORT_DEFAULT,
    PORT_TLS_DEFAULT,
)
from vibemq.protocols.streams.spec import PORT_DEFAULT as STREAMS_PORT
from vibemq.protocols.streams.spec import PORT_TLS_DEFAULT as STREAMS_PORT_TLS

SCHEME = "vibemq://"
SCHEME_TLS = "vibemqs://"
STREAMS_SCHEMES = ("rabbitmq-stream", "rabbitmq-stream+tls")
#: By both doors of a broker.
SHARED = ("host", "user", "password", "virtual_host", "tls", "skip_cert_validation", "tls_ca", "tls_cert", "tls_key")
CONNECT_TIMEOUT_S = 30  # a broker may take its time with a password, on purpose
TRUE = frozenset(("true", "1", "yes", "on"))
FALSE = frozenset(("false", "0", "no", "off"))
SEGMENT = re.compile(r'(?:"(?:\\.?|[^"\\])*"?|[^;"])+', re.S)  # up to a ; that is neither quoted nor escaped
ESCAPED = re.compile(r"\\(.?)", re.S)
ESCAPABLE = '"\\;='


@dataclass(frozen=True, slots=True)
class Settings:
    """All there is to say about a connection; times are in seconds, and 0 attempts mean that it never gives up."""

    host: str = "localhost"
    port: int = PORT_DEFAULT
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool | ssl.SSLContext = False  # a context is used as it is
    skip_cert_validation: bool = False
    tls_ca: str = ""  # a PEM file with the authorities that are trusted; "": the system's
    tls_cert: str = ""  # our certificate, for a broker that asks for one, as PEM
    tls_key: str = ""  # its key, where that is not in the certificate's file
    keep_alive_s: float = KEEP_ALIVE_S
    command_timeout_s: float = COMMAND_TIMEOUT_S
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    compression: tuple[str, ...] = ("brotli", "gzip")
    compression_threshold_bytes: int = COMPRESSION_THRESHOLD_BYTES_DEFAULT
    reconnect: bool = True
    reconnect_max_attempts: int = 0
    reconnect_initial_delay_s: float = 1.0
    reconnect_max_delay_s: float = 300.0
    reconnect_exponential_backoff: bool = True
    queues: tuple[str, ...] = ()
    frame_max_bytes: int = FRAME_BODY_BYTES_MAX_DEFAULT  # of a body, both ways; as much as the broker allows
    streams_port: int | None = None  # the other door of the same broker, for the commands that use that one
    virtual_host: str = "/"  # there; the native door has one only
    text_layout: bool = False  # for a broker that was built from the protocol's text alone

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", parse_host(self.host))
        if (self.user is None) != (self.password is None):
            raise ConfigError(
                f"connection to {self.host}: needed a user name and a password, had only one of them",
                hint="Give both, or neither for a broker without authorization.",
            )
        if not self.tls and (self.tls_ca or self.tls_cert or self.tls_key):
            raise ConfigError(
                f"connection to {self.host}: tls_ca, tls_cert and tls_key are for TLS, which is not asked for",
                hint=f"Begin the URL with {SCHEME_TLS}, or set tls.",
            )
        if self.tls_key and not self.tls_cert:
            raise ConfigError(f"connection to {self.host}: tls_key needs tls_cert, the certificate that it belongs to")
        if not 1 <= self.port <= 65_535:
            raise ConfigError(f"connection to {self.host}: needed a port from 1 to 65535, had {self.port}")
        for name in self.compression:
            if name not in COMPRESSION_BY_NAME:
                raise ConfigError(f"compression: needed {', '.join(COMPRESSION_BY_NAME)} or none, had {name!r}")
        if self.keep_alive_s <= 0 or self.command_timeout_s <= 0 or self.connect_timeout_s <= 0:
            raise ConfigError("keep-alive and timeouts: needed more than 0 seconds")

    @property
    def peer(self) -> str:
        """For people: where the broker is, without the password."""
        return host_port(self.host, self.port)

    def tls_context(self, ca: str = "tls_ca", cert: str = "tls_cert", key: str = "tls_key") -> ssl.SSLContext | None:
        """Of a new connection, so that files which were renewed are read anew.  Raises ConfigError.

        By these names an error calls the files.
        """
        if not self.tls or isinstance(self.tls, ssl.SSLContext):
            return self.tls or None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca or None)
        except OSError as error:
            told = f"{ca} {self.tls_ca}: {error.strerror or error}"
            raise ConfigError(told, hint="It needs certificates of authorities as PEM.") from error
        if self.skip_cert_validation:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.tls_cert:
            try:
                context.load_cert_chain(self.tls_cert, self.tls_key or None)
            except OSError as error:
                raise ConfigError(
                    f"{cert} {self.tls_cert}: {error.strerror or error}",
                    hint=f"It needs a certificate and, there or in {key}, the key that belongs to it, as PEM.",
                ) from error
        return context

    def delay_s(self, attempt: int) -> float:
        """How long to wait before reconnect number `attempt`, which counts from 1."""
        if not self.reconnect_exponential_backoff:
            return min(self.reconnect_initial_delay_s, self.reconnect_max_delay_s)
        return min(self.reconnect_initial_delay_s * 2.0 ** min(attempt - 1, 64), self.reconnect_max_delay_s)


def parse(text: str | None, **options: Any) -> Settings:
    """The Settings of a connection string; `options` are fields of Settings that win over it.

    >>> from vibemq.client.settings import parse
    >>> parse("vibemq://ada:secret@example.org/?keepAlive=5&compression=none").keep_alive_s
    5
    >>> parse("Host=example.org;Port=2999").peer
    'example.org:2999'
    """
    if text is None or not text.strip():
        raise ConfigError("connection string: it is empty", hint="For instance vibemq://localhost:2925.")
    text = text.strip()
    scheme = text[: len(SCHEME_TLS)].lower()
    if scheme.startswith(SCHEME):
        given, rest = _url(text[len(SCHEME) :])
    elif scheme == SCHEME_TLS:
        given, rest = _url(text[len(SCHEME_TLS) :])
        given["tls"] = True
    elif "://" in text.split("=", 1)[0]:
        scheme, _, place = text.partition("://")
        address = place.partition("/")[0].rpartition("@")[2]
        host = address[: address.find("]") + 1] or address.partition(":")[0]  # the port is that of another protocol
        for_streams = " That is a URL for what uses streams only." if scheme.startswith("rabbitmq-stream") else ""
        raise ConfigError(
            f"connection string: needed {SCHEME}..., had {scheme}://",
            hint=f"Did you mean {SCHEME}{host or 'localhost'}?{for_streams}",
        )
    elif "=" not in text:
        shown = text if "@" not in text else "..." + text[text.rindex("@") :]  # before it may be a password
        raise ConfigError(f"connection string: {shown!r} is none", hint=f"Did you mean {SCHEME}{shown}?")
    else:
        given, rest = _pairs(text)
    known = {f.name for f in fields(Settings)}
    if unknown := options.keys() - known:
        raise ConfigError(f"connection options: there is no {', '.join(sorted(unknown))}; known are {sorted(known)}")
    said = {**given, **_options(rest), **options}
    if given.get("tls") and not said["tls"]:
        raise ConfigError(f"connection string: {SCHEME_TLS} is TLS, and tls is false", hint=f"Say {SCHEME} without it.")
    said.setdefault("port", PORT_TLS_DEFAULT if said.get("tls") else PORT_DEFAULT)
    return Settings(**said)


def streams_address(
    url: str,
    *,
    host: str | None = None,
    port: int | None = None,
    user: str | None = None,
    password: str | None = None,
    virtual_host: str | None = None,
    tls: bool = False,
) -> Settings:
    """Where a streams door is, and who comes; who says nothing at all is guest. What is given wins over the URL."""
    given = {"host": host, "port": port, "user": user, "password": password, "virtual_host": virtual_host}
    given = {name: value for name, value in given.items() if value is not None}
    scheme = url.partition("://")[0].lower()
    if scheme in STREAMS_SCHEMES:
        said = _stream_url(url) | {"tls": scheme.endswith("+tls")}
    else:  # its port is the native door's
        found = parse(url, **{name: given[name] for name in ("user", "password") if name in given})
        said = {"port": found.streams_port}
        said |= {name: getattr(found, name) for name in SHARED}
    said |= given
    said["tls"] = tls or said["tls"]
    said["port"] = said["port"] or (STREAMS_PORT_TLS if said["tls"] else STREAMS_PORT)
    if said["user"] is None:
        said["user"], said["password"] = "guest", "guest"
    elif said["password"] is None:
        raise ConfigError(
            f"connection to {said['host']}: user {said['user']!r} has no password",
            hint="Give it in the URL, or on standard input with --password-stdin.",
        )
    return Settings(**said)


def user_of(url: str) -> tuple[str | None, bool]:
    """The user whom a URL names, if any, and whether it has the password, too."""
    login, at, _ = url.partition("://")[2].partition("/")[0].rpartition("@")
    user, colon, _ = login.partition(":")
    return (unquote(user) or None, bool(colon)) if at else (None, False)


# ---- the two forms: what says where and who, and the other pairs with keys in lower case ----


def _url(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    place, _, query = text.partition("?")
    place = place.partition("/")[0]
    login, at, address = place.rpartition("@")
    given: dict[str, Any] = {}
    if at:
        user, colon, password = login.partition(":")
        given["user"] = unquote(user) or None
        given["password"] = unquote(password) if colon else None
    host, port = split_host_port(address)
    if not host:
        raise ConfigError("connection string: there is no host in it", hint="For instance vibemq://localhost:2925.")
    given["host"] = unquote(host)
    if port:
        given["port"] = _own_port(port)
    pairs = {}
    for item in filter(None, query.split("&")):
        key, equals, value = item.partition("=")
        if not equals:
            raise ConfigError("connection string: needed key=value in each part after the ?; one has no =")
        pairs[unquote(key).lower()] = unquote(value)
    return given, pairs


def _stream_url(url: str) -> dict[str, Any]:
    example = f"For instance {STREAMS_SCHEMES[0]}://localhost:5552."
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as problem:
        raise ConfigError(f"connection string: {problem}", hint=example) from None
    if not parts.hostname:
        raise ConfigError("connection string: there is no host in it", hint=example)
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


def _pairs(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    pairs = {}
    for number, segment in enumerate(filter(str.strip, SEGMENT.findall(text)), 1):
        key, equals, value = segment.partition("=")
        if not equals:
            raise ConfigError(
                f"connection string: part {number} is no Key=value",  # which it may have from a password
                hint='A value with ; in it is put into double quotes: Password="a;b".',
            )
        pairs[key.strip().lower()] = _unquoted(value.strip())
    given: dict[str, Any] = {"host": pairs.pop("host", "") or "localhost"}
    if port := pairs.pop("port", ""):
        given["port"] = _own_port(port)
    user, password = pairs.pop("username", None), pairs.pop("password", None)
    given["user"], given["password"] = user or None, password
    if not user and not password:
        given["password"] = None
    return given, pairs


def _unquoted(value: str) -> str:
    if len(value) < 2 or value[0] != '"' or value[-1] != '"':
        return value
    return ESCAPED.sub(lambda found: found[1] if found[1] in ESCAPABLE else found[0], value[1:-1])


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65_535):
        raise ValueError
    return int(text)


def _own_port(text: str) -> int:
    try:
        return _port(text)
    except ValueError:
        had = f", had {text}" if text.isascii() and text.isdigit() else ""  # what is no number may be of a password
        raise ConfigError(
            f"connection string: needed a port from 1 to 65535{had}",
            hint="In a URL, / : @ and ? in a user or password are written as %2F %3A %40 and %3F.",
        ) from None


# ---- the options, which both forms share ----


def _truth(text: str) -> bool:
    plain = text.strip().lower()
    if plain not in TRUE | FALSE:
        raise ValueError
    return plain in TRUE


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _compression(text: str) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in text.split(","))
    if names != ("none",) and not set(names) <= COMPRESSION_BY_NAME.keys():
        raise ValueError
    return () if names == ("none",) else names


def _at_least(least: float, read: Callable[[str], float] = int) -> Callable[[str], float]:
    def value_of(text: str) -> float:
        value = read(text)
        if not least <= value < math.inf:
            raise ValueError
        return value

    return value_of


_TRUTH = (_truth, "true or false")
_POSITIVE = (_at_least(1), "a whole number from 1 on")
_SECONDS = (_at_least(0, float), "a number of seconds, such as 0.5 or 30")
_SOME_SECONDS = (_at_least(math.ulp(0), float), "more than 0 seconds, such as 0.5 or 30")
_COMPRESSION = (_compression, f"none, or some of {', '.join(COMPRESSION_BY_NAME)} with commas between them")
#: The field, how it is read, and what is needed where that fails.
OPTIONS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "tls": ("tls", *_TRUTH),
    "useTls": ("tls", *_TRUTH),
    "skipCertValidation": ("skip_cert_validation", *_TRUTH),
    "tlsCa": ("tls_ca", str, ""),
    "tlsCert": ("tls_cert", str, ""),
    "tlsKey": ("tls_key", str, ""),
    "keepAlive": ("keep_alive_s", *_POSITIVE),
    "keepAliveInterval": ("keep_alive_s", *_POSITIVE),
    "commandTimeout": ("command_timeout_s", *_SOME_SECONDS),
    "compression": ("compression", *_COMPRESSION),
    "compressionThreshold": ("compression_threshold_bytes", _at_least(0), "a whole number from 0 on"),
    "reconnectMaxAttempts": ("reconnect_max_attempts", lambda text: max(0, int(text)), "a whole number"),
    "reconnectInitialDelay": ("reconnect_initial_delay_s", *_SECONDS),
    "reconnectMaxDelay": ("reconnect_max_delay_s", *_SECONDS),
    "reconnectExponentialBackoff": ("reconnect_exponential_backoff", *_TRUTH),
    "queues": ("queues", _names, ""),
    "streamsPort": ("streams_port", _port, "a port from 1 to 65535"),
    "virtualHost": ("virtual_host", str, ""),
}
_BY_LOWER = {name.lower(): name for name in OPTIONS}


def _options(pairs: dict[str, str]) -> dict[str, Any]:
    found = {}
    for key, text in pairs.items():
        if key not in _BY_LOWER:
            near = _BY_LOWER[get_close_matches(key, _BY_LOWER, 1, 0.0)[0]]
            hint = f"Did you mean {near}? There are {', '.join(OPTIONS)}."
            raise ConfigError(f"connection string: there is no option {key!r}", hint=hint)
        name, read, needed = OPTIONS[_BY_LOWER[key]]
        try:
            found[name] = read(text)
        except ValueError:
            raise ConfigError(
                f"connection string: {_BY_LOWER[key]}: needed {needed}, had {text!r}",
                hint="Mend it, or leave the option out to have its default.",
            ) from None
    return found
