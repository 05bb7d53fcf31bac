# SPDX-License-Identifier: Apache-2.0
"""One broker for all tests of the management API that leave it as they found it."""

from collections.abc import Callable, Iterator

import pytest
from fixtures import shared_broker
from http_caller import STREAM, Http
from peers.streams import Peer, on_every_worker
from running import Running

managed = shared_broker("managed")


@pytest.fixture
def http(managed: Running) -> Http:
    return Http(managed)


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


@pytest.fixture
def queue(http: Http, name: str) -> Iterator[Callable[..., str]]:
    """Make a queue with these options."""

    def make(**options: object) -> str:
        assert http.status("PUT", "queues", "/", name, "definition", body={"queue_options": options}) == 201
        return name

    yield make
    http.status("DELETE", "queues", "/", name)
    http.status("DELETE", "queues", "/", f"{name}.dlq")
