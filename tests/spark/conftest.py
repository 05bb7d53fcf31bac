# SPDX-License-Identifier: Apache-2.0
"""One Spark session and one broker of each kind for all tests here; what is not installed skips with its reason."""

from __future__ import annotations

import itertools

import pytest
from fixtures import spark_session
from spark_brokers import RabbitMQ, VibeMQ

_numbers = itertools.count()


spark = spark_session("vibemq-tests", **{"spark.task.maxFailures": "1"})


@pytest.fixture(scope="session")
def own_broker(tmp_path_factory):
    broker = VibeMQ(tmp_path_factory.mktemp("broker")).start()
    yield broker
    broker.kill()  # an orderly stop would wait for the idle connections of Spark's workers


@pytest.fixture(scope="session")
def rabbitmq_broker(tmp_path_factory):
    if why := RabbitMQ.missing():
        pytest.skip(why)
    broker = RabbitMQ(tmp_path_factory.mktemp("rabbitmq")).start()
    yield broker
    broker.stop()


@pytest.fixture(params=["vibemq", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def broker(request):
    """Each test with this runs against both."""
    return request.getfixturevalue("own_broker" if request.param == "vibemq" else "rabbitmq_broker")


@pytest.fixture
def stream(request):
    """A name that no other test uses."""
    return f"{request.node.name}-{next(_numbers)}".replace("[", "-").replace("]", "")
