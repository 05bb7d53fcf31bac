# SPDX-License-Identifier: Apache-2.0
"""One broker with two workers for all pairs of doors, and one Spark session, or the reason why there is none."""

from __future__ import annotations

import pytest
from door_exchange import Exchange
from fixtures import shared_broker, spark_session
from running import Running

served = shared_broker("doors")
doors_spark = spark_session("vibemq-doors")


@pytest.fixture
def exchange(served: Running, request: pytest.FixtureRequest) -> Exchange:
    return Exchange(served, request)
