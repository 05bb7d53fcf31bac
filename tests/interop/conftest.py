# SPDX-License-Identifier: Apache-2.0
"""A broker for the programs, the programs, and the matrix of what they showed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import client_matrix
import pytest
from foreign_clients import CannotBeHad, Program, started
from programs import BY_NAME, CLIENTS
from serving import Served, rabbitmq, vibemq

import vibemq.protocols.streams as door

README = Path(door.__file__).parent / "README.md"
COLLECTOR = pytest.StashKey[client_matrix.Collector]()
RABBITMQ = os.environ.get("VIBEMQ_INTEROP_BROKER") == "rabbitmq"


def pytest_configure(config: pytest.Config) -> None:
    matrix = client_matrix.Matrix(README, CLIENTS)
    config.stash[COLLECTOR] = client_matrix.collect(config, matrix, Path(__file__).parent)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with `client` is a line of the matrix; its parameter is the column."""
    if "client" in metafunc.fixturenames:
        metafunc.parametrize("client", [client.name for client in CLIENTS])


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest) -> client_matrix.Matrix:
    """What the tests before have shown, where every line was to be run against our own broker."""
    collector = request.config.stash[COLLECTOR]
    if collector.deselected or RABBITMQ:
        pytest.skip("not all lines were run")
    return collector.matrix


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """VibeMQ; or RabbitMQ, which shows whether a program itself is right: VIBEMQ_INTEROP_BROKER=rabbitmq."""
    with (rabbitmq if RABBITMQ else vibemq)(tmp_path_factory.mktemp("served")) as served:
        yield served


class Runner:
    """Starts programs against the broker, and ends what is left of them."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served, self.folder = served, folder
        self.started: list[Any] = []

    def __call__(self, client: str, command: str, **options: Any) -> Program:
        try:
            words = BY_NAME[client].command()
        except CannotBeHad as why:
            pytest.skip(str(why))
        given = self.served.access() | options
        words = [*words, command, *(word for name, value in given.items() for word in (f"--{name}", str(value)))]
        manager = started(words, self.folder / f"{client}.log")
        program = manager.__enter__()
        self.started.append(manager)
        return program

    def publish(self, client: str, stream: str, count: int, **options: Any) -> None:
        """And every message is confirmed."""
        said = self(client, "publish", stream=stream, count=count, **options).finish()
        assert said == [{"event": "confirmed", "count": count}]

    def consume(self, client: str, stream: str, count: int, **options: Any) -> list[dict[str, Any]]:
        """So many messages, of a subscription that ends with them."""
        said = self(client, "consume", **{"stream": stream, "from": "first", "count": count} | options).finish()
        return [line for line in said if line["event"] == "message"]


@pytest.fixture
def run(served: Served, tmp_path: Path) -> Iterator[Runner]:
    runner = Runner(served, tmp_path)
    yield runner
    for manager in runner.started:
        manager.__exit__(None, None, None)


@pytest.fixture
def stream(request: pytest.FixtureRequest, served: Served) -> Iterator[str]:
    """A stream of its own for each test."""
    name = request.node.name.replace("[", "-").rstrip("]")
    with served.connect() as connection:
        connection.create(name)
    yield name
    with served.connect() as connection:
        connection.delete(name, missing_ok=True)


@pytest.fixture
def needs(served: Served) -> Callable[[str], None]:
    """Skips what the broker under test has not."""

    def check(feature: str) -> None:
        if why := served.lacks(feature):
            pytest.skip(why)

    return check
