# SPDX-License-Identifier: Apache-2.0
"""The broker under test, and the programs that are started against it."""

from __future__ import annotations

import json
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from authority import Authority
from foreign_clients import CannotBeHad, Client
from hub_clients import BY_NAME, HERE, LACKS, Flavour, HubProgram
from running import Running, broker

import vibemq

README = Path(vibemq.__file__).parent / "protocols" / "signalr" / "README.md"
USER, PASSWORD = "interop", "programs-only"
READER, READER_PASSWORD = "reader", "only-reads"


def basic(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


class Served:
    """The broker under test.  With a superuser, so that nobody is let in as guest."""

    def __init__(self, running: Running, authority: str) -> None:
        self.running, self.authority = running, authority
        self.url = f"http://127.0.0.1:{running.ports['signalr']}/hub"
        self.tls_url = f"https://localhost:{running.ports.get('signalr-tls', 0)}/hub"

    def api(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.running.admin_port}/api/{path}", data, method=method)
        request.add_header("Authorization", basic(USER, PASSWORD))
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def token(self, user: str = USER, password: str = PASSWORD) -> str:
        """An access token, for a password."""
        request = urllib.request.Request(f"{self.url}/token", b"", method="POST")
        request.add_header("Authorization", basic(user, password))
        with urllib.request.urlopen(request, timeout=20) as answer:
            return str(json.loads(answer.read())["accessToken"])

    def login(self, flavour: Flavour, user: str = USER, password: str = PASSWORD) -> dict[str, str]:
        """By password; by token where the client gives no headers."""
        if {"headers", ("headers", flavour.transport)} & LACKS[flavour.client].keys():
            return {"token": self.token(user, password)}
        return {"user": user, "password": password}


@contextmanager
def serving(folder: Path, **options: object) -> Iterator[Served]:
    authority = Authority(folder)
    identity = authority.issue("server")
    options = {
        "native.superuser_name": USER,
        "native.superuser_password": PASSWORD,
        "signalr.port": 0,
        "signalr.tls_port": 0,
        "streams.tls_port": 0,
        "signalr.keepalive_interval_s": 1,  # some clients stop only when the next record comes
        "signalr.demo": "true",
        "tls.certificate": identity.certificate,
        "tls.key": identity.key,
    } | options
    flags = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
    with broker(folder / "data", *flags, workers=2) as running:
        served = Served(running, authority.certificate)
        served.api("PUT", f"users/{READER}", {"password": READER_PASSWORD, "tags": ""})
        served.api("PUT", f"permissions/%2F/{READER}", {"configure": "^$", "write": "^$", "read": ".*"})
        yield served


def way(flavour: Flavour) -> dict[str, str]:
    return {"transport": flavour.transport, "encoding": flavour.encoding}


class Programs:
    """Starts programs, and ends what is left of them."""

    def __init__(self, folder: Path, authority: str) -> None:
        self.folder = folder
        self.environment = {
            "NODE_PATH": str(HERE),
            "PYTHONPATH": str(HERE),
            "NODE_EXTRA_CA_CERTS": authority,
            "SSL_CERT_FILE": authority,
        }
        self.running: list[HubProgram] = []

    def start(self, client: str) -> HubProgram:
        return self.run(BY_NAME[client])

    def run(self, client: Client) -> HubProgram:
        try:
            words = client.command()
        except CannotBeHad as why:
            pytest.skip(str(why))
        program = HubProgram(words, self.folder / f"{client.name}.log", **self.environment)
        self.running.append(program)
        return program

    def end(self) -> None:
        for program in self.running:
            program.kill()
