# SPDX-License-Identifier: Apache-2.0
"""One broker with two workers for all pairs of doors, and one Spark session, or the reason why there is none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from door_exchange import Exchange
from running import Running, broker


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


@pytest.fixture
def exchange(served: Running, request: pytest.FixtureRequest) -> Exchange:
    return Exchange(served, request)
