# SPDX-License-Identifier: Apache-2.0
"""A broker for the programs of stream clients, and the programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import client_matrix
import pytest
from stream_clients import CLIENTS
from stream_serving import Runner, Served, rabbitmq, vibemq

import vibemq.protocols.streams as door

README = Path(door.__file__).parent / "README.md"
RABBITMQ = os.environ.get("VIBEMQ_INTEROP_BROKER") == "rabbitmq"


def pytest_configure(config: pytest.Config) -> None:
    client_matrix.collect(config, client_matrix.Matrix(README, CLIENTS), Path(__file__).parent)


@pytest.fixture
def outcomes(outcomes: client_matrix.Matrix) -> client_matrix.Matrix:
    if RABBITMQ:
        pytest.skip("the matrix is of our own broker")
    return outcomes


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """VibeMQ; or RabbitMQ, which shows whether a program itself is right: VIBEMQ_INTEROP_BROKER=rabbitmq."""
    with (rabbitmq if RABBITMQ else vibemq)(tmp_path_factory.mktemp("served")) as served:
        yield served


@pytest.fixture
def run(served: Served, tmp_path: Path) -> Iterator[Runner]:
    runner = Runner(served, tmp_path)
    yield runner
    for manager in runner.started:
        manager.__exit__(None, None, None)


@pytest.fixture
def stream(queue: str, served: Served) -> Iterator[str]:
    with served.connect() as connection:
        connection.create(queue)
    yield queue
    with served.connect() as connection:
        connection.delete(queue, missing_ok=True)


@pytest.fixture
def needs(served: Served) -> Callable[[str], None]:
    """Skips what the broker under test has not."""

    def check(feature: str) -> None:
        if why := served.lacks(feature):
            pytest.skip(why)

    return check
