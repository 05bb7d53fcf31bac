# SPDX-License-Identifier: Apache-2.0
"""One broker for all tests that leave it as they found it, one with users, and a queue name for each test."""

import itertools
from collections.abc import Iterator

import pytest
from authority import Authority
from micromsg2_peer import PASSWORD, ROOT, Micromsg2Peer, connected
from running import Running, broker

from vibemq.server.datadir import metadata_path
from vibemq.storage.metadata import Metadata

names = itertools.count()
SHORT = (
    *("--set", "micromsg2.handshake_timeout_s=1"),
    *("--set", "queues.ack_timeout_ms=60000"),
    *("--set", "queues.block_timeout_ms=3000"),
)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Shared by the session: queues are told apart by name, and nobody has to log in."""
    with broker(tmp_path_factory.mktemp("micromsg2") / "data", *SHORT) as running:
        yield running


@pytest.fixture
def raw(served: Running) -> Iterator[Micromsg2Peer]:
    """A connection before its handshake."""
    with Micromsg2Peer(served) as peer:
        yield peer


@pytest.fixture
def peer(served: Running) -> Iterator[Micromsg2Peer]:
    with connected(served) as peer:
        yield peer


@pytest.fixture
def other(served: Running) -> Iterator[Micromsg2Peer]:
    with connected(served) as peer:
        yield peer


@pytest.fixture
def name() -> str:
    """Of a queue that nobody else uses."""
    return f"queue-{next(names)}"


class Guarded:
    """A broker where everybody logs in, and its metadata, through which tests make users."""

    def __init__(self, running: Running, metadata: Metadata, authority: Authority) -> None:
        self.running, self.metadata, self.authority = running, metadata, authority


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("micromsg2-guarded")
    authority = Authority(folder)
    server = authority.issue("server")
    tls = ("--set", f"tls.certificate={server.certificate}", "--set", f"tls.key={server.key}")
    first = ("--set", f"native.superuser_name={ROOT}", "--set", f"native.superuser_password={PASSWORD}")
    ports = ("--set", "streams.tls_port=0", "--set", "signalr.tls_port=0", "--set", "micromsg2.tls_port=0")
    with broker(folder / "data", *first, *tls, *ports) as running:
        metadata = Metadata(metadata_path(str(folder / "data")))
        yield Guarded(running, metadata, authority)
        metadata.close()
