# SPDX-License-Identifier: Apache-2.0
"""One broker for all tests of the management API that leave it as they found it."""

import itertools
from collections.abc import Iterator

import pytest
from http_caller import Http
from running import Running, broker

names = itertools.count()


@pytest.fixture(scope="session")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Shared by the session: things are told apart by name, and nobody is killed."""
    with broker(tmp_path_factory.mktemp("managed") / "data") as running:
        yield running


@pytest.fixture
def http(managed: Running) -> Http:
    return Http(managed)


@pytest.fixture
def name() -> str:
    """Of something that nobody else uses."""
    return f"thing-{next(names)}"
