# SPDX-License-Identifier: Apache-2.0
"""Brokers that tests share as long as they leave them as they found them, and a queue name for each test."""

import contextlib
import itertools
from collections.abc import Iterator

import pytest
from queue_peer import QueuePeer, on_worker
from running import Running, broker

names = itertools.count()
SOON = ("--set", "server.shutdown_timeout_s=4")
IMPATIENT = ("--set", "queues.block_timeout_ms=400")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two workers; nobody is killed.  Blocked publishers are not kept waiting for long."""
    with broker(tmp_path_factory.mktemp("queues") / "data", *SOON, *IMPATIENT) as running:
        yield running


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One worker, so that who gets what follows from the order of frames alone."""
    with broker(tmp_path_factory.mktemp("single") / "data", *SOON, workers=1) as running:
        yield running


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    """Closes what the test has opened, in reverse order."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def connect(single: Running, stack: contextlib.ExitStack):
    """Opens connections to the broker with one worker."""
    return lambda **options: stack.enter_context(QueuePeer(single, **options))


@pytest.fixture
def connect_to(served: Running, stack: contextlib.ExitStack):
    """Opens connections to a given worker of the broker with two."""
    return lambda worker, **options: on_worker(served, worker, stack, **options)


@pytest.fixture
def name() -> str:
    """Of a queue that nobody else uses."""
    return f"queue-{next(names)}"
