# SPDX-License-Identifier: Apache-2.0
"""The broker under test, what an administrator does to it, and the programs started against it; RabbitMQ can stand in
for what both have."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from foreign_clients import CannotBeHad, Program, started
from stream_clients import BY_NAME

from benchmarks import servers
from vibemq.client.streams import StreamsConnection

USER, PASSWORD = "interop", "programs-only"  # no blanks: the Go client makes a URL of it
HASH_SEED = 104729  # of every client, or they would not agree where a key belongs


class Served:
    """`lacks` says why a feature cannot be shown, or nothing."""

    user, password = "guest", "guest"
    tls_port = admin_port = 0
    authority = ""  # a file with the certificate that the broker's was signed with

    def __init__(self, port: int) -> None:
        self.host, self.port = "localhost", port
        self.missing: dict[str, str] = {}

    def lacks(self, feature: str) -> str:
        return self.missing.get(feature, "")

    def access(self) -> dict[str, Any]:
        """What a program needs to connect."""
        return {"host": self.host, "port": self.port, "user": self.user, "password": self.password}

    def connect(self) -> StreamsConnection:
        return StreamsConnection.connect(self.host, self.port, user=self.user, password=self.password, timeout_s=20)

    # ---- the management API ----

    def api(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://localhost:{self.admin_port}/api/{path}", data, method=method)
        request.add_header(
            "Authorization", "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        )
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def add_reader(self, name: str, password: str) -> None:
        self.api("PUT", f"users/{name}", {"password": password, "tags": ""})
        self.api("PUT", f"permissions/%2F/{name}", {"configure": "^$", "write": "^$", "read": ".*"})

    def close_connections(self) -> None:
        """All there are."""
        for connection in self.api("GET", "connections"):
            self.api("DELETE", "connections/" + urllib.parse.quote(connection["name"], safe=""))


class Runner:
    """Starts programs against the broker, and ends what is left of them."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served, self.folder = served, folder
        self.started: list[Any] = []

    def __call__(self, client: str, command: str, **options: Any) -> Program:
        try:
            words = BY_NAME[client].command()
        except CannotBeHad as why:
            pytest.skip(str(why))
        given = self.served.access() | options
        words = [*words, command, *(word for name, value in given.items() for word in (f"--{name}", str(value)))]
        manager = started(words, self.folder / f"{client}.log")
        program = manager.__enter__()
        self.started.append(manager)
        return program

    def publish(self, client: str, stream: str, count: int, **options: Any) -> None:
        """And every message is confirmed."""
        said = self(client, "publish", stream=stream, count=count, **options).finish()
        assert said == [{"event": "confirmed", "count": count}]

    def consume(self, client: str, stream: str, count: int, **options: Any) -> list[dict[str, Any]]:
        """So many messages, of a subscription that ends with them."""
        said = self(client, "consume", **{"stream": stream, "from": "first", "count": count} | options).finish()
        return [line for line in said if line["event"] == "message"]


@contextmanager
def vibemq(folder: Path) -> Iterator[Served]:
    """With a superuser, so that nobody is let in as guest."""
    options = {"native.superuser_name": USER, "native.superuser_password": PASSWORD}
    options |= {"streams.tls_port": "0", "signalr.tls_port": "0", "micromsg2.tls_port": "0"}
    why = "" if shutil.which("openssl") else "openssl is not installed, to make a certificate with"
    if not why:
        options |= certificates(folder)
    words = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
    server = servers.VibeMQ(folder, 2, tuple(words))
    server.start()
    try:
        served = Served(server.streams_port)
        served.user, served.password = USER, PASSWORD
        served.missing = {"TLS": why}
        served.authority = str(folder / "authority.pem")
        served.tls_port, served.admin_port = (server.ports.get(door, 0) for door in ("streams-tls", "admin"))
        yield served
    finally:
        server.stop()


def certificates(folder: Path) -> dict[str, str]:
    """An authority, and a certificate for this machine that it has signed."""
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    authority = ["-subj", "/CN=interop authority", "-keyout", "authority.key", "-out", "authority.pem"]
    server = ["-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.pem"]
    server += ["-CA", "authority.pem", "-CAkey", "authority.key"]
    server += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    for command in ([*new, *authority], [*new, *server]):
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=30)
    return {"tls.certificate": str(folder / "server.pem"), "tls.key": str(folder / "server.key")}


@contextmanager
def rabbitmq(folder: Path) -> Iterator[Served]:
    server = servers.RabbitMQStreams(folder)
    server.start()
    try:
        served = Served(server.streams_port)
        features = ("super streams", "groups", "filters", "TLS", "permissions", "closing connections")
        served.missing = dict.fromkeys(features, "Debian's RabbitMQ 3.10 has it not, or its tools are not used here")
        yield served
    finally:
        server.stop()


def hashed(key: str) -> int:
    """Murmur3, 32 bits: what clients route by."""
    data, value = key.encode(), HASH_SEED
    for at in range(0, len(data), 4):
        block = int.from_bytes(data[at : at + 4], "little") * 0xCC9E2D51 & 0xFFFFFFFF
        value ^= (block << 15 | block >> 17) * 0x1B873593 & 0xFFFFFFFF
        if at + 4 <= len(data):
            value = ((value << 13 | value >> 19) * 5 + 0xE6546B64) & 0xFFFFFFFF
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    value = (value ^ value >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return value ^ value >> 16
