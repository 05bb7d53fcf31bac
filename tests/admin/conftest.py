# SPDX-License-Identifier: Apache-2.0
"""One broker for all tests of the management API that leave it as they found it."""

import itertools
from collections.abc import Iterator

import pytest
from http_caller import STREAM, Http
from peer import Peer, on_every_worker
from running import Running, broker

names = itertools.count()


@pytest.fixture(scope="session")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Shared by the session: things are told apart by name, and nobody is killed."""
    with broker(tmp_path_factory.mktemp("managed") / "data") as running:
        yield running


@pytest.fixture
def http(managed: Running) -> Http:
    return Http(managed)


@pytest.fixture
def name() -> str:
    """Of something that nobody else uses."""
    return f"thing-{next(names)}"


@pytest.fixture
def peers(managed: Running) -> Iterator[list[Peer]]:
    """A connection to each worker."""
    opened: list[Peer] = []
    try:
        yield list(on_every_worker(managed, opened))
    finally:
        for peer in opened:
            peer.socket.close()


@pytest.fixture
def stream(http: Http, name: str) -> Iterator[str]:
    assert http.status("PUT", "queues", "/", name, body=STREAM) == 201
    yield name
    http.status("DELETE", "queues", "/", name)
