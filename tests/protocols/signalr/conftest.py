# SPDX-License-Identifier: Apache-2.0
"""Brokers with the SignalR door: one where nobody has to log in, one with users; and raw connections to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from fixtures import shared_broker
from peers.http import MESSAGE_BYTES_MAX, ORIGIN, PASSWORDS, HttpPeer
from running import Running, broker

from vibemq.access.users import add_user
from vibemq.storage.metadata import Metadata

FLAGS = (
    *("--set", f"signalr.message_max_bytes={MESSAGE_BYTES_MAX}"),
    *("--set", f"signalr.allowed_origins={ORIGIN},http://app.example:3000"),
)


# Nobody has to log in.  One worker, so that every socket finds every hub connection.
served = shared_broker("signalr", *FLAGS, workers=1)


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Has users, who must log in."""
    folder = tmp_path_factory.mktemp("guarded") / "data"
    folder.mkdir(mode=0o700)
    metadata = Metadata(str(folder / "meta.db"))
    for name, password in PASSWORDS.items():
        add_user(metadata, name, password)
    metadata.close()
    with broker(folder, *FLAGS, workers=1) as running:
        yield running


@pytest.fixture
def connect(served: Running) -> Iterator[Callable[[], HttpPeer]]:
    """Another connection each time."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(HttpPeer(served))


@pytest.fixture
def peer(connect: Callable[[], HttpPeer]) -> HttpPeer:
    return connect()
