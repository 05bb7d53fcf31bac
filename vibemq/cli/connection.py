# SPDX-License-Identifier: Apache-2.0
"""How a command reaches a broker as a client does, wherever it is: by a URL, at the native or at the streams door."""

from typing import TYPE_CHECKING, Any

import click

from vibemq.cli.terminal import ask_password, with_options
from vibemq.errors import SetupError

if TYPE_CHECKING:
    import ssl

    from vibemq.client import Client
    from vibemq.client.streams import StreamsConnection


def _url_option(default: str, about: str) -> Any:
    return click.option("--url", default=default, show_default=True, show_envvar=True, envvar="VIBEMQ_URL", help=about)


_login_options = with_options(
    click.option("--user", metavar="NAME", help="Who we are, if not said in the URL."),
    click.option("--password-stdin", is_flag=True, help="Read the password from the first line of standard input."),
)
queues_options = with_options(
    _url_option("vibemq://localhost:2925", "Where the broker is: vibemq://[USER:PASSWORD@]HOST[:PORT]."),
    _login_options,
)
streams_options = with_options(
    _url_option(
        "vibemq://localhost",
        "vibemq://[USER:PASSWORD@]HOST[/?streamsPort=PORT] or rabbitmq-stream[+tls]://[...@]HOST[:PORT][/VHOST].",
    ),
    click.option("--host", metavar="HOST", help="Where the broker is, if not said in the URL."),
    click.option("--port", type=click.IntRange(1, 65_535), metavar="PORT", help="Default 5552, with TLS 5551."),
    _login_options,
    click.option("--vhost", metavar="NAME", help="Virtual host, if not said in the URL (default /)."),
    click.option("--tls", is_flag=True, help="Speak TLS."),
    click.option("--ca-file", metavar="FILE", help="Trust these authorities instead of the system's; with TLS."),
    click.option("--certificate", metavar="FILE", help="Our certificate, for a broker that asks for one; PEM."),
    click.option("--key", metavar="FILE", help="The key of --certificate, if that has none in it."),
)


def connect_queues(url: str, user: str | None, password_stdin: bool, **settings: Any) -> "Client":
    from vibemq.client import connect

    who, password = _login(url, user, password_stdin)
    if password is not None:
        settings |= {"user": who, "password": password}
    return connect(url, **settings)


def user_of(url: str, user: str | None, **_: Any) -> str | None:
    """Who we are, by the same options."""
    from vibemq.client import address

    return user or address.user_of(url)[0]


def connect_streams(
    url: str,
    host: str | None,
    port: int | None,
    user: str | None,
    password_stdin: bool,
    vhost: str | None,
    tls: bool,
    ca_file: str | None,
    certificate: str | None,
    key: str | None,
) -> "StreamsConnection":
    from vibemq.client import address
    from vibemq.client.streams import StreamsConnection

    who, password = _login(url, user, password_stdin)
    where = address.parse(url, host=host, port=port, user=who, password=password, virtual_host=vhost, tls=tls)
    if (ca_file or certificate or key) and not where.tls:
        raise click.UsageError("--ca-file, --certificate and --key are for TLS: add --tls")
    return StreamsConnection.connect(
        where.host,
        where.port,
        user=where.user,
        password=where.password,
        virtual_host=where.virtual_host,
        tls=_context(ca_file, certificate, key, where.skip_cert_validation) if where.tls else None,
        client_properties={"connection_name": "vibemq streams"},
    )


def _login(url: str, user: str | None, from_stdin: bool) -> tuple[str | None, str | None]:
    """Who we are, and the password where it was to be asked for."""
    from vibemq.client import address

    named, has_password = address.user_of(url)
    who = user or named
    if from_stdin and who is None:
        raise click.UsageError("--password-stdin needs --user, or a user in the URL")
    if who is not None and (from_stdin or user is not None or not has_password):
        return who, ask_password(who, from_stdin)
    return who, None


def _context(ca_file: str | None, certificate: str | None, key: str | None, trust_all: bool) -> "ssl.SSLContext":
    import ssl

    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as problem:
        raise SetupError(f"--ca-file {ca_file}: {_reason(problem)}", hint="It needs certificates as PEM.") from None
    if trust_all:  # by the URL's skipCertValidation=true
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate:
        try:
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as problem:
            raise SetupError(
                f"--certificate {certificate}: {_reason(problem)}",
                hint="It needs a certificate and, there or in --key, the key that belongs to it, as PEM.",
            ) from None
    elif key:
        raise click.UsageError("--key needs --certificate")
    return context


def _reason(problem: OSError) -> str:
    return problem.strerror or str(problem)
