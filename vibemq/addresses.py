# SPDX-License-Identifier: Apache-2.0
"""Hosts and ports as people write them: an IPv6 address is in brackets where a port follows (RFC 3986)."""

import re

from vibemq.errors import ConfigError


def parse_host(text: str) -> str:
    """Return a host name or an address, of IPv6 without brackets.  Raises ConfigError."""
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        host.encode("idna")  # as the look-up will do it
        is_host = not re.search(r"[\s/@?#]", host)
    except UnicodeError:
        is_host = False
    if not is_host:
        raise ConfigError(
            f"{text!r} is no name of a host and no address",
            hint="for instance broker.example, 192.0.2.1 or [2001:db8::1], without a scheme and a port",
        )
    return host


def host_port(host: str, port: int | str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(text: str) -> tuple[str, str]:
    """Return host and port of `text`; the port is "" where there is none."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":")
    if text.count(":") > 1:  # an IPv6 address without brackets
        return text, ""
    host, _, port = text.partition(":")
    return host, port
