# SPDX-License-Identifier: Apache-2.0
"""One broker for all tests that leave it as they found it, and a queue name for each test."""

import itertools
from collections.abc import Iterator

import pytest
from native_peer import NativePeer, connected
from running import Running, broker

names = itertools.count()
SHORT = (
    *("--set", "native.handshake_timeout_s=1"),
    *("--set", "queues.ack_timeout_ms=60000"),
    *("--set", "queues.block_timeout_ms=700"),
)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Shared by the session: queues are told apart by name, and nobody has to log in."""
    with broker(tmp_path_factory.mktemp("native") / "data", *SHORT) as running:
        yield running


@pytest.fixture
def raw(served: Running) -> Iterator[NativePeer]:
    """A connection without Connect."""
    with NativePeer(served) as peer:
        yield peer


@pytest.fixture
def peer(served: Running) -> Iterator[NativePeer]:
    with connected(served) as peer:
        yield peer


@pytest.fixture
def other(served: Running) -> Iterator[NativePeer]:
    with connected(served) as peer:
        yield peer


@pytest.fixture
def text(served: Running) -> Iterator[NativePeer]:
    """A peer of the text layout."""
    with connected(served, text=True) as peer:
        yield peer


@pytest.fixture
def name() -> str:
    """Of a queue that nobody else uses."""
    return f"queue-{next(names)}"
