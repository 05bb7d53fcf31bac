# SPDX-License-Identifier: Apache-2.0
"""Who somebody is to the broker, and how the line is kept private: what the options about it mean where one connects.

Secrets are looked up here, for each connection anew: so one that is rotated is seen, and what only names the place of a
secret (`passwordEnv`, `passwordFile`, `tokenProvider`) is all that a plan, a pickle or a checkpoint could hold.
"""

from __future__ import annotations

import importlib
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vibemq.errors import ConfigError

if TYPE_CHECKING:
    from vibemq.spark.options import Options

PASSWORD, CERTIFICATE, ANONYMOUS = LOGINS = ("password", "certificate", "anonymous")
MECHANISMS = {PASSWORD: "PLAIN", CERTIFICATE: "EXTERNAL", ANONYMOUS: "ANONYMOUS"}


def check(options: Options) -> None:
    """ConfigError where the options contradict each other."""
    if not options.tls and any((options.tls_ca, options.tls_cert, options.tls_key)):
        raise ConfigError("options tlsCa, tlsCert and tlsKey: they need tls=true")
    if options.tls_key and not options.tls_cert:
        raise ConfigError("option tlsKey: it needs tlsCert, the certificate that the key belongs to")
    if options.login == CERTIFICATE and not options.tls_cert:
        raise ConfigError("option login=certificate: it needs tls=true and tlsCert, which names the user")


def arguments(options: Options) -> dict[str, Any]:
    """What StreamsConnection.connect is told."""
    return {
        "user": options.username,
        "password": secret(options) if options.login == PASSWORD else "",
        "mechanism": MECHANISMS[options.login],
        "tls": _context(options) if options.tls else None,
    }


def secret(options: Options) -> str:
    """The password, or the token that stands for it, from wherever the user put it."""
    if options.password_env:
        return _environment("passwordEnv", options.password_env)
    if options.password_file:
        try:
            return Path(options.password_file).read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as failed:
            raise ConfigError(f"option passwordFile: {failed}") from failed
    if options.token_provider:
        return _token(options.token_provider)
    return options.password


def _environment(option: str, name: str) -> str:
    if name not in os.environ:
        raise ConfigError(f"option {option}: the environment variable {name} is not set in this process")
    return os.environ[name]


def _token(place: str) -> str:
    module, _, function = place.partition(":")
    try:
        token = getattr(importlib.import_module(module), function)()
    except Exception as failed:  # whatever somebody else's function raises
        raise ConfigError(f"option tokenProvider: {place} failed with {type(failed).__name__}: {failed}") from failed
    if not isinstance(token, str) or not token:
        raise ConfigError(f"option tokenProvider: {place} gave {type(token).__name__}, not a text with the token")
    return token


def _context(options: Options) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.tls_ca or None)
    except (OSError, ssl.SSLError) as failed:
        raise ConfigError(f"option tlsCa: {options.tls_ca}: {failed}") from failed
    if options.tls_cert:
        place = options.tls_key_password_env
        password = _environment("tlsKeyPasswordEnv", place) if place else ""
        try:
            # Without a password OpenSSL would ask for one at a terminal that nobody sees.
            context.load_cert_chain(options.tls_cert, options.tls_key or None, password)
        except (OSError, ssl.SSLError) as failed:
            files = ", ".join(filter(None, (options.tls_cert, options.tls_key)))
            raise ConfigError(f"options tlsCert and tlsKey: {files}: {failed}") from failed
    return context
