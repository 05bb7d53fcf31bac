# SPDX-License-Identifier: Apache-2.0
"""A broker with a hub, the programs of the clients, and the matrix of what they showed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import client_matrix
import pytest
from hub_clients import CLIENTS, FLAVOURS, LACKS, Flavour, HubProgram
from hub_serving import PASSWORD, README, USER, Programs, Served, serving, way
from running import Restartable, restartable

COLLECTOR = pytest.StashKey[client_matrix.Collector]()


def pytest_configure(config: pytest.Config) -> None:
    matrix = client_matrix.Matrix(README, CLIENTS)
    config.stash[COLLECTOR] = client_matrix.collect(config, matrix, Path(__file__).parent)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with `client` is a line of the matrix; its parameter is the column.  With `flavour` it is done in each of
    the ways in which the client connects."""
    if "flavour" in metafunc.fixturenames:
        metafunc.parametrize(("client", "flavour"), [(one.client, one) for one in FLAVOURS], ids=map(str, FLAVOURS))
    elif "client" in metafunc.fixturenames:
        metafunc.parametrize("client", [client.name for client in CLIENTS])


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest) -> client_matrix.Matrix:
    """What the tests before have shown, where every line was to be run."""
    collector = request.config.stash[COLLECTOR]
    if collector.deselected:
        pytest.skip("not all lines were run")
    return collector.matrix


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
def queue(request: pytest.FixtureRequest) -> str:
    """A name of its own for each test."""
    return request.node.name.replace("[", "-").rstrip("]")


@pytest.fixture
def needs(client: str) -> Callable[[str], None]:
    """Skips what the client has not."""

    def check(capability: Any) -> None:
        if why := LACKS[client].get(capability):
            pytest.skip(why)

    return check
