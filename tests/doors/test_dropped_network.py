# SPDX-License-Identifier: Apache-2.0
"""A network that drops, between the broker and each kind of client: it goes on afterwards, nothing confirmed is lost.

It drops in three ways: connections are reset; nothing comes through for a while and then does; nothing comes through,
and then the connections are dead.  Each time a client is in the middle of a publish.  Our native client connects and
sends again by itself, the others tell their program, which opens another connection.  The clients of others are cut in
their own tests, too (tests/interop).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cutting import Network, network
from lasting_clients import KINDS, WAIT_S, check
from running import broker

pytestmark = pytest.mark.timeout(240)

EACH = 5  # messages before, and after, each drop


def reset(net: Network) -> None:
    net.cut()


def lose_and_restore(net: Network) -> None:
    net.restore()


def lose_and_reset(net: Network) -> None:
    net.cut()
    net.restore()


DROPS = (reset, lose_and_restore, lose_and_reset)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


def test_a_network_that_drops_loses_nothing_that_was_confirmed(tmp_path: Path, kind: str) -> None:
    queue, door = f"dropped-{kind}", "streams" if kind == "rstream" else kind
    with network(0) as net, broker(tmp_path / "data", "--set", f"streams.advertised_port={net.port}") as served:
        net.target = served.ports[door]
        port = {"streams": {"port": net.port}, "native": {"native_port": net.port}}.get(door, {})
        through = served._replace(**port, ports={**served.ports, door: net.port})
        publisher = KINDS[kind](through, queue)
        confirmed: list[str] = []

        def publish() -> None:
            id = f"m-{len(confirmed)}"
            publisher.publish(id)
            confirmed.append(id)

        for drop in DROPS:
            for _ in range(EACH):
                publish()
            net.lose()
            caught = threading.Thread(target=publish)
            caught.start()
            assert net.has_swallowed.wait(WAIT_S), "nothing was published"
            drop(net)
            net.restore()
            caught.join(WAIT_S)
            assert not caught.is_alive(), f"{kind}: not confirmed after {drop.__name__}"
        for _ in range(EACH):
            publish()
        publisher.close()
        check(through, door, queue, confirmed)
