# SPDX-License-Identifier: Apache-2.0
"""How a command reaches a broker as a client does, wherever it is: by a URL, at the native or at the streams door.

With ``queues_options`` or ``streams_options`` a command gets ``as_json`` and a ``broker``, to which it connects.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from vibemq.cli.terminal import ask_password, json_option, options_as

if TYPE_CHECKING:
    import ssl

    from vibemq.client import Client
    from vibemq.client.settings import Settings
    from vibemq.client.streams import StreamsConnection


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """The queues of a broker."""

    url: str
    user: str | None
    password_stdin: bool
    tls: bool
    ca_file: str | None
    certificate: str | None
    key: str | None

    @property
    def named(self) -> str | None:
        """Who we are."""
        from vibemq.client import settings

        return self.user or settings.user_of(self.url)[0]

    def connect(self, **settings: Any) -> "Client":
        from vibemq.client import connect
        from vibemq.client.settings import parse

        who, password = self._login()
        login: dict[str, Any] = {} if password is None else {"user": who, "password": password}
        where = parse(self.url, **login, **({"tls": True} if self.tls else {}))
        self._refuse_files_without(where)
        if where.tls:
            settings["tls"] = self._context(where)
        return connect(self.url, **settings, **login)

    def _refuse_files_without(self, where: "Settings") -> None:
        if (self.ca_file or self.certificate or self.key) and not where.tls:
            raise click.UsageError("--ca-file, --certificate and --key are for TLS: add --tls")
        if self.key and not self.certificate:
            raise click.UsageError("--key needs --certificate")

    def _context(self, where: "Settings") -> "ssl.SSLContext":
        context = replace(
            where,
            tls=True,
            tls_ca=self.ca_file or where.tls_ca,
            tls_cert=self.certificate or where.tls_cert,
            tls_key=self.key or ("" if self.certificate else where.tls_key),
        ).tls_context("--ca-file", "--certificate", "--key")
        assert context is not None
        return context

    def _login(self) -> tuple[str | None, str | None]:
        """Who we are, and the password where it was to be asked for."""
        from vibemq.client import settings

        who, has_password = self.named, settings.user_of(self.url)[1]
        if self.password_stdin and who is None:
            raise click.UsageError("--password-stdin needs --user, or a user in the URL")
        if who is not None and (self.password_stdin or self.user is not None or not has_password):
            return who, ask_password(who, self.password_stdin)
        return who, None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsBroker(Broker):
    """Its streams."""

    host: str | None
    port: int | None
    vhost: str | None

    def address(self) -> "Settings":
        """Where it is, and who comes; a password that is missing is asked for."""
        from vibemq.client import settings

        who, password = self._login()
        login = {"user": who, "password": password, "virtual_host": self.vhost}
        where = settings.streams_address(self.url, host=self.host, port=self.port, tls=self.tls, **login)
        self._refuse_files_without(where)
        return where

    def connect(self, where: "Settings | None" = None) -> "StreamsConnection":  # type: ignore[override]
        """Connect to `where`, an earlier result of `address`: a missing password is asked for once only."""
        from vibemq.client.streams import StreamsConnection

        where = where or self.address()
        return StreamsConnection.connect(
            where.host,
            where.port,
            user=where.user or "",
            password=where.password or "",
            virtual_host=where.virtual_host,
            tls=self._context(where) if where.tls else None,
            client_properties={"connection_name": "vibemq streams"},
        )


def _url_option(default: str, about: str) -> Any:
    return click.option("--url", default=default, show_default=True, show_envvar=True, envvar="VIBEMQ_URL", help=about)


_LOGIN = (
    click.option("--user", metavar="NAME", help="Who we are, if not said in the URL."),
    click.option("--password-stdin", is_flag=True, help="Read the password from the first line of standard input."),
)
_TLS = (
    click.option("--tls", is_flag=True, help="Speak TLS."),
    click.option("--ca-file", metavar="FILE", help="Trust these authorities instead of the system's; with TLS."),
    click.option("--certificate", metavar="FILE", help="Our certificate, for a broker that asks for one; PEM."),
    click.option("--key", metavar="FILE", help="The key of --certificate, if that has none in it."),
)
_STREAMS_URL = "vibemq://[USER:PASSWORD@]HOST[/?streamsPort=PORT] or rabbitmq-stream[+tls]://[...@]HOST[:PORT][/VHOST]."
queues_options = options_as(
    "broker",
    Broker,
    json_option,
    _url_option("vibemq://localhost", "Where the broker is: vibemq[s]://[USER:PASSWORD@]HOST[:PORT]."),
    *_LOGIN,
    *_TLS,
)
streams_options = options_as(
    "broker",
    StreamsBroker,
    json_option,
    _url_option("vibemq://localhost", _STREAMS_URL),
    click.option("--host", metavar="HOST", help="Where the broker is, if not said in the URL."),
    click.option("--port", type=click.IntRange(1, 65_535), metavar="PORT", help="Default 5552, with TLS 5551."),
    *_LOGIN,
    click.option("--vhost", metavar="NAME", help="Virtual host, if not said in the URL (default /)."),
    *_TLS,
)
