# SPDX-License-Identifier: Apache-2.0
"""Real brokers for the client's tests: ours, and RabbitMQ where Debian's package is installed."""

import pytest
from running import broker

from vibemq.bench.servers import RabbitMQStreams


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
