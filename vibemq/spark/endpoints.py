# SPDX-License-Identifier: Apache-2.0
"""Distinguish an endpoint that can never answer from a broker that does not answer at the moment.

Both look alike to one connection: it ends, or no host has that name.  Each endpoint is probed once in a process,
without a login, before a query waits for `brokerDownTimeoutMs`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct

from vibemq.addresses import host_port

PROBE_SECONDS = 3.0
#: PeerProperties without properties: size, key, version, correlation ID, count.
QUESTION = struct.pack(">IHHII", 12, 0x11, 1, 1, 0)
ANSWER_KEY = 0x8011

_probed: set[tuple[str, int, bool]] = set()
_resolved: set[str] = set()


def mistake(host: str, port: int, failed: BaseException, *, tls: bool) -> str:
    """Return why connecting again cannot help, and the remedy; empty: the broker may come back."""
    cause = failed.__cause__
    if isinstance(cause, socket.gaierror):
        # A name that was known may vanish while a broker is restarted, as in Kubernetes, and tasks start at any time.
        if cause.errno != socket.EAI_NONAME or host in _resolved or _is_in_task():
            return ""
        return f"there is no host {host!r}: look at its name"
    _resolved.add(host)
    if isinstance(cause, ConnectionError | TimeoutError) or (host, port, tls) in _probed:
        return ""
    _probed.add((host, port, tls))
    with contextlib.suppress(OSError):
        if tls and _speaks_plain(host, port):
            return f"{host_port(host, port)} speaks without TLS: name the TLS port (5551), or leave tls out"
        if not tls and _speaks_tls(host, port):
            return f"{host_port(host, port)} speaks TLS: set tls=true, or name the port without TLS (5552)"
    return ""


def _speaks_plain(host: str, port: int) -> bool:
    with socket.create_connection((host, port), PROBE_SECONDS) as probe:
        probe.sendall(QUESTION)
        heard = b""
        while len(heard) < 6:
            more = probe.recv(6 - len(heard))
            if not more:
                return False
            heard += more
    return heard[4:] == struct.pack(">H", ANSWER_KEY)


def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # nothing is sent through it, so nobody is trusted
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, port), PROBE_SECONDS) as probe, context.wrap_socket(probe):
        return True


def _is_in_task() -> bool:
    from pyspark import TaskContext

    return TaskContext.get() is not None
