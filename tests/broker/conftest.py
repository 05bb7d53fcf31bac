# SPDX-License-Identifier: Apache-2.0
"""One broker for all tests that leave it as they found it, and a stream name for each test."""

import itertools
from collections.abc import Iterator

import pytest
from peer import Peer, connected
from running import Running, broker

names = itertools.count()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Shared by the session: streams are told apart by name, and nobody is killed."""
    short = ("--set", "streams.handshake_timeout_s=2", "--set", "streams.login_failure_delay_s=2")
    with broker(tmp_path_factory.mktemp("broker") / "data", *short) as running:
        yield running


@pytest.fixture
def peer(served: Running) -> Iterator[Peer]:
    with connected(served) as peer:
        yield peer


@pytest.fixture
def name() -> str:
    """Of a stream that nobody else uses."""
    return f"stream-{next(names)}"


@pytest.fixture
def stream(peer: Peer, name: str) -> str:
    return peer.create(name)
