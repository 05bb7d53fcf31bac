# SPDX-License-Identifier: Apache-2.0
"""Brokers that tests share as long as they leave them as they found them, and connections to them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures import shared_broker
from held_disk import HeldDisk
from peers.queues import QueuePeer, on_worker
from running import Running

SOON = ("--set", "server.shutdown_timeout_s=4")
IMPATIENT = ("--set", "queues.block_timeout_ms=400")


# Blocked publishers are not kept waiting for long.
served = shared_broker("queues", *SOON, *IMPATIENT)
# One worker, so that who gets what follows from the order of frames alone.
single = shared_broker("single", *SOON, workers=1)


@pytest.fixture
def disk(tmp_path: Path) -> HeldDisk:
    return HeldDisk(tmp_path)


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
