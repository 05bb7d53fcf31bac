# SPDX-License-Identifier: Apache-2.0
"""Makes tunnels (bench._tunnel) where clients make SSL sockets.

Importing this loads OpenSSL, so only a load over TLS does.
"""

from __future__ import annotations

import socket

from OpenSSL import SSL

from vibemq import openssl
from vibemq.bench._tunnel import Tunnel
from vibemq.errors import UserError


class TunnelContext:
    """What a client needs of an ssl.SSLContext. Servers are those that ``authorities``, a PEM file, vouches for."""

    def __init__(self, authorities: str) -> None:
        self._context = SSL.Context(SSL.TLS_CLIENT_METHOD)
        self._context.set_min_proto_version(SSL.TLS1_2_VERSION)
        self._context.set_verify(SSL.VERIFY_PEER)
        try:
            self._context.load_verify_locations(authorities)
        except SSL.Error as problem:
            raise UserError(f"{authorities}: needed a PEM file with certificates of authorities: {problem}") from None

    def wrap_socket(self, sock: socket.socket, *, server_hostname: str) -> Tunnel:
        connection = SSL.Connection(self._context, None)
        connection.set_connect_state()
        openssl.expect(connection, server_hostname)
        return Tunnel(sock, connection)
