# SPDX-License-Identifier: Apache-2.0
"""A broker, a raw connection to its streams door, and a stream for each test."""

import pytest
from fixtures import connection, shared_broker
from peers.streams import Peer, connected

served = shared_broker(
    "streams",
    *("--set", "streams.login_failure_delay_s=2"),
)
peer = connection(connected)


@pytest.fixture
def stream(peer: Peer, name: str) -> str:
    return peer.create(name)
