# SPDX-License-Identifier: Apache-2.0
"""A broker where nobody has to log in, one with users, and raw connections to the first one's MicroMsg2 door."""

from collections.abc import Iterator

import pytest
from authority import Authority, tls_flags
from fixtures import connection, shared_broker
from peers.micromsg2 import PASSWORD, ROOT, Micromsg2Peer, connected
from running import Running, broker

from vibemq.server.datadir import metadata_path
from vibemq.storage.metadata import Metadata

served = shared_broker(
    "micromsg2",
    *("--set", "queues.ack_timeout_ms=60000"),
    *("--set", "queues.block_timeout_ms=3000"),
)
raw = connection(Micromsg2Peer)  # before its handshake
peer = connection(connected)
other = connection(connected)


class Guarded:
    """A broker where everybody logs in, and its metadata, through which tests make users."""

    def __init__(self, running: Running, metadata: Metadata, authority: Authority) -> None:
        self.running, self.metadata, self.authority = running, metadata, authority


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("micromsg2-guarded")
    authority = Authority(folder)
    server = authority.issue("server")
    first = {"native__superuser_name": ROOT, "native__superuser_password": PASSWORD}
    with broker(folder / "data", *tls_flags(server, **first, micromsg2__tls_port=0)) as running:
        metadata = Metadata(metadata_path(str(folder / "data")))
        yield Guarded(running, metadata, authority)
        metadata.close()
