# SPDX-License-Identifier: Apache-2.0
"""What the client's tests talk to: real brokers (ours, and RabbitMQ where it is installed), and one in memory."""

import pytest
from peers.native_server import NativeServer
from running import broker

from benchmarks.servers import RabbitMQStreams
from vibemq.client import connect


@pytest.fixture(scope="session")
def rabbitmq_port(tmp_path_factory):
    if why := RabbitMQStreams.missing():
        pytest.skip(why)
    server = RabbitMQStreams(tmp_path_factory.mktemp("rabbitmq")).start()
    yield server.streams_port
    server.stop()


@pytest.fixture(scope="session")
def own_port(tmp_path_factory):
    with broker(tmp_path_factory.mktemp("vibemq") / "data") as running:
        yield running.port


@pytest.fixture(params=["vibemq", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def broker_port(request):
    """Each test with this runs against both."""
    return request.getfixturevalue("own_port" if request.param == "vibemq" else "rabbitmq_port")


@pytest.fixture
def server():
    with NativeServer() as running:
        yield running


@pytest.fixture
def client(server):
    with connect(server.url) as connected:
        yield connected
