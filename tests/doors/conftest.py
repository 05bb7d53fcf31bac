# SPDX-License-Identifier: Apache-2.0
"""One broker with two workers for all pairs of doors, and one Spark session, or the reason why there is none."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest
from door_clients import DOORS, SPARK, Message, native_client, spark_read
from running import Running, broker

numbers = itertools.count()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with broker(tmp_path_factory.mktemp("doors") / "data", workers=2) as running:
        yield running


@pytest.fixture(scope="session")
def doors_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from vibemq.errors import SetupError
    from vibemq.spark import local_session

    folder = tmp_path_factory.mktemp("spark")
    config = {"spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    # The workers must find the package where it is not installed.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    try:
        session = local_session("vibemq-doors", cores=2, log_file=folder / "jvm.log", config=config)
    except SetupError as missing:
        pytest.skip(str(missing))
    yield session
    session.stop()


class Exchange:
    """Publishes by one door and consumes by another, or by Spark, through a queue that nobody else uses."""

    def __init__(self, served: Running, request: pytest.FixtureRequest) -> None:
        self.served, self.request = served, request
        self.queue = f"doors-{next(numbers)}"
        with native_client(served) as client:
            client.create_queue(self.queue)

    def __call__(self, publisher: str, consumer: str, messages: list[Message]) -> list[Message]:
        if publisher in ("streams", SPARK) or consumer == "streams":
            pytest.importorskip("rstream", reason="the client rstream is not installed")
        if "signalr" in (publisher, consumer):
            pytest.importorskip("aiosignalr", reason="the client aiosignalr is not installed")
        spark = self.request.getfixturevalue("doors_spark") if consumer == SPARK else None
        DOORS[publisher].publish(self.served, self.queue, messages)
        if spark is not None:
            return spark_read(spark, self.served, self.queue, len(messages))
        return DOORS[consumer].consume(self.served, self.queue, len(messages))


@pytest.fixture
def exchange(served: Running, request: pytest.FixtureRequest) -> Exchange:
    return Exchange(served, request)
