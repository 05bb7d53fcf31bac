# SPDX-License-Identifier: Apache-2.0
"""The clients of others, by door: the columns and the outcomes of each folder's matrix, and a name for each test."""

import client_matrix
import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with `client` is a line of the matrix; its parameter is the column."""
    if "client" in metafunc.fixturenames and "flavour" not in metafunc.fixturenames:
        matrix = client_matrix.collector_of(metafunc.config, metafunc.definition.path).matrix
        metafunc.parametrize("client", [client.name for client in matrix.clients])


@pytest.fixture
def outcomes(request: pytest.FixtureRequest) -> client_matrix.Matrix:
    """What the tests before have shown, where every line was to be run."""
    collector = client_matrix.collector_of(request.config, request.path)
    if collector.deselected:
        pytest.skip("not all lines were run")
    return collector.matrix


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A name of its own for each test."""
    return request.node.name.replace("[", "-").rstrip("]")
