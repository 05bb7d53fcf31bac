# SPDX-License-Identifier: Apache-2.0
"""The management API of a broker that may be anywhere, by a URL: how `vibemq ctl --url` asks."""

from __future__ import annotations

import base64
import functools
import ipaddress
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from vibemq.cli.terminal import ask_password
from vibemq.errors import UserError

if TYPE_CHECKING:
    import http.client

PORT, PORT_TLS = 2926, 2936
PASSWORD_VARIABLE = "VIBEMQ_PASSWORD"
_EXAMPLE = "for instance https://anna@broker.example"


@dataclass(frozen=True)
class Management:
    """``url``: http(s)://USER[:PASSWORD]@HOST[:PORT]; a password that is missing is VIBEMQ_PASSWORD, or asked for.

    The files are for https; without ``ca_file`` the system's authorities are trusted.
    """

    url: str
    ca_file: str | None = None
    certificate: str | None = None
    key: str | None = None

    def ask(self, method: str, path: str, body: Any, headers: dict[str, str], timeout_s: float) -> tuple[int, bytes]:
        """Status and body of the answer.  Raises UserError, OSError, http.client.HTTPException."""
        connection = self._connection(timeout_s)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, headers | {"Authorization": self._login})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        from http.client import HTTPConnection, HTTPSConnection

        host, port = self._place
        if self.url.lower().startswith("http://"):
            if self.ca_file or self.certificate or self.key:
                raise UserError("--ca-file, --certificate and --key are for https")
            if not _is_loopback(host):
                raise UserError(f"--url: over http the password would go to {host} for all to read", hint="use https")
            return HTTPConnection(host, port or PORT, timeout=timeout_s)
        from vibemq.client.settings import Settings

        where = Settings(
            host=host,
            tls=True,
            tls_ca=self.ca_file or "",
            tls_cert=self.certificate or "",
            tls_key=self.key or "",
        )
        context = where.tls_context("--ca-file", "--certificate", "--key")
        return HTTPSConnection(host, port or PORT_TLS, timeout=timeout_s, context=context)

    @functools.cached_property
    def _place(self) -> tuple[str, int | None]:
        try:
            found = urlsplit(self.url)
            host, port = found.hostname, found.port
        except ValueError as problem:
            raise UserError(f"--url: {problem}", hint=_EXAMPLE) from None
        if found.scheme not in ("http", "https") or not host or not found.username:
            raise UserError("--url: needed https://USER[:PASSWORD]@HOST[:PORT]", hint=_EXAMPLE)
        if found.path.strip("/") or found.query or found.fragment:
            raise UserError("--url: needed nothing behind the host and its port", hint=_EXAMPLE)
        return host, port

    @functools.cached_property
    def _login(self) -> str:
        found = urlsplit(self.url)
        user = unquote(found.username or "")
        given = os.environ.get(PASSWORD_VARIABLE) if found.password is None else unquote(found.password)
        password = ask_password(user, from_stdin=False) if given is None else given
        return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
