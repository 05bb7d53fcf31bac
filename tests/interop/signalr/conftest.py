# SPDX-License-Identifier: Apache-2.0
"""A broker with a hub, and the programs of hub clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import client_matrix
import pytest
from hub_clients import CLIENTS, FLAVOURS, LACKS, Flavour, HubProgram
from hub_serving import PASSWORD, README, USER, Programs, Served, serving, way
from running import Restartable, restartable


def pytest_configure(config: pytest.Config) -> None:
    client_matrix.collect(config, client_matrix.Matrix(README, CLIENTS), Path(__file__).parent)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """With `flavour` a test is done in each of the ways in which a client connects."""
    if "flavour" in metafunc.fixturenames:
        metafunc.parametrize(("client", "flavour"), [(one.client, one) for one in FLAVOURS], ids=map(str, FLAVOURS))


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served")) as served:
        yield served


@pytest.fixture(scope="session")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Another one, for tests that do harm to it."""
    with serving(tmp_path_factory.mktemp("fragile")) as served:
        yield served


@pytest.fixture
def ending(tmp_path: Path) -> Iterator[Restartable]:
    """One that can be restarted, with the same superuser."""
    options = {
        "native.superuser_name": USER,
        "native.superuser_password": PASSWORD,
        "signalr.keepalive_interval_s": 1,  # some clients stop only when the next record comes
    }
    flags = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
    with restartable(tmp_path / "data", *flags) as broker:
        yield broker


@pytest.fixture
def programs(served: Served, tmp_path: Path) -> Iterator[Programs]:
    programs = Programs(tmp_path, served.authority)
    yield programs
    programs.end()


@pytest.fixture(scope="session")
def connected(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Flavour], HubProgram]]:
    """One connection of each flavour, for the tests that leave it as it was."""
    programs = Programs(tmp_path_factory.mktemp("connected"), served.authority)
    hubs: dict[Flavour, HubProgram] = {}

    def connect(flavour: Flavour) -> HubProgram:
        hub = hubs.get(flavour)
        if hub is None or hub.process.poll() is not None or hub.has_closed():
            hub = programs.start(flavour.client)
            hub.connect(**way(flavour), url=served.url, **served.login(flavour))
            hubs[flavour] = hub
        return hub

    yield connect
    programs.end()


@pytest.fixture
def hub(connected: Callable[[Flavour], HubProgram], client: str, flavour: Flavour) -> HubProgram:
    return connected(flavour)


@pytest.fixture
def needs(client: str) -> Callable[[str], None]:
    """Skips what the client has not."""

    def check(capability: Any) -> None:
        if why := LACKS[client].get(capability):
            pytest.skip(why)

    return check
