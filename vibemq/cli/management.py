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

from vibemq.addresses import host_port, parse_host
from vibemq.cli.terminal import ask_password
from vibemq.errors import UserError

if TYPE_CHECKING:
    import http.client

PORT, PORT_TLS = 2926, 2936
PASSWORD_VARIABLE = "VIBEMQ_PASSWORD"
_EXAMPLE = "for instance https://anna@broker.example"
_NO_TERMINAL = f"set {PASSWORD_VARIABLE} to the password"
_LOGIN_HINT = (
    f"check the user in --url and the password, there or in {PASSWORD_VARIABLE}; "
    "guest may come from the broker's own machine only"
)


@dataclass(frozen=True)
class Management:
    """``url``: http(s)://USER[:PASSWORD]@HOST[:PORT]; a password that is missing is VIBEMQ_PASSWORD, or asked for.

    The files are for https; without ``ca_file`` the system's authorities are trusted.
    """

    url: str
    ca_file: str | None = None
    certificate: str | None = None
    key: str | None = None

    def ask(self, method: str, path: str, body: Any, headers: dict[str, str], timeout_s: float) -> tuple[int, Any]:
        """Status and body of the answer.  Raises UserError."""
        import ssl
        from http.client import HTTPException

        connection = self._connection(timeout_s)
        headers = headers | {"Authorization": self._login}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            status, read = response.status, response.read()
        except ssl.SSLCertVerificationError as problem:
            raise UserError(
                f"{self._peer}: the TLS handshake failed: {problem}",
                hint="--ca-file names the file of the authority that the broker's certificate is from; is it for this "
                "host name?",
            ) from problem
        except ssl.SSLError as problem:
            hint = f"does the broker want a certificate (--certificate, --key)? {_wrong_port()}"
            raise UserError(f"{self._peer}: the TLS connection failed: {problem}", hint=hint) from problem
        except OSError as problem:
            raise UserError(f"{self._peer}: the broker did not answer: {problem}", hint=_wrong_port()) from problem
        except HTTPException as problem:  # whose words may be the bytes that came
            raise self._no_api() from problem
        finally:
            connection.close()
        try:
            answer = json.loads(read) if read else None
        except ValueError as problem:
            raise self._no_api() from problem
        refused = answer if isinstance(answer, dict) else None
        if status >= 300 and refused is None:
            raise self._no_api()
        if (
            status == 401 and refused and refused.get("error") == "not_authorized"
        ):  # who lacks a tag is 'not_authorised'
            raise UserError(f"{self._peer}: login of user {self._user!r} failed", hint=_LOGIN_HINT)
        return status, answer

    def _no_api(self) -> UserError:
        return UserError(f"{self._peer}: what answers there is no management API", hint=_wrong_port())

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        from http.client import HTTPConnection, HTTPSConnection

        host, port = self._place
        if self._is_plain:
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
        return parse_host(unquote(host)), port

    @property
    def _peer(self) -> str:
        """For people: where the broker is, without the password."""
        host, port = self._place
        return host_port(host, port or (PORT if self._is_plain else PORT_TLS))

    @property
    def _is_plain(self) -> bool:
        return self.url.lower().startswith("http://")

    @property
    def _user(self) -> str:
        return unquote(urlsplit(self.url).username or "")

    @functools.cached_property
    def _login(self) -> str:
        found = urlsplit(self.url)
        given = os.environ.get(PASSWORD_VARIABLE) if found.password is None else unquote(found.password)
        password = ask_password(self._user, from_stdin=False, hint=_NO_TERMINAL) if given is None else given
        return "Basic " + base64.b64encode(f"{self._user}:{password}".encode()).decode()


def _wrong_port() -> str:
    from vibemq.client._failures import wrong_door

    return wrong_door("management")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
