# SPDX-License-Identifier: Apache-2.0
"""The SignalR door over TLS: the same answers, on a port of its own."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from authority import Authority, tls_flags
from peers.http import DEADLINE_S, HANDSHAKE_ANSWER, JSON_HANDSHAKE, HttpPeer, answer, call
from running import Running, broker


@pytest.fixture(scope="module")
def secured(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    server = authority.issue("server")
    with broker(tmp_path_factory.mktemp("secured") / "data", *tls_flags(server), workers=1) as running:
        yield running


@pytest.fixture
def connect(secured: Running, authority: Authority) -> Iterator[HttpPeer]:
    """A raw connection whose bytes are encrypted."""
    port = secured.ports["signalr-tls"]
    context = ssl.create_default_context(cafile=str(Path(authority.certificate)))
    context.check_hostname = False
    with HttpPeer(secured, port) as peer:
        peer.socket = context.wrap_socket(peer.socket)
        yield peer


def test_a_web_socket_works_over_tls(connect: HttpPeer) -> None:
    connect.upgrade(Origin=f"https://{connect.host}").handshake()
    connect.put(b"".join(call(str(number)) for number in range(1000)))
    records: list[dict] = []
    while len(records) < 1000:
        records += connect.next_frame().records
    assert records[-1] == answer("999")


def test_polls_work_over_tls(connect: HttpPeer) -> None:
    token = connect.token()
    assert connect.ask("GET", f"/hub?id={token}").body == b""
    assert connect.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE).status == 200
    assert connect.ask("GET", f"/hub?id={token}").body == HANDSHAKE_ANSWER


def test_who_speaks_plain_http_to_the_tls_port_is_closed(secured: Running) -> None:
    with socket.create_connection((secured.host, secured.ports["signalr-tls"]), timeout=DEADLINE_S) as plain:
        plain.sendall(b"GET /hub HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert not plain.recv(1 << 16).startswith(b"HTTP")
