# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of the server's processes (supervisor_harness.py)."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from supervisor_harness import Broker


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Start brokers; all on the same folder, so a second one meets the first one's data."""
    started: list[Broker] = []

    def starter(mode: str = "", **options: object) -> Broker:
        broker = Broker(tmp_path, mode, **options)
        started.append(broker)
        return broker

    yield starter
    for broker in started:
        broker.end()
