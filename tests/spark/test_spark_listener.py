# SPDX-License-Identifier: Apache-2.0
"""The lag of a query shows at the broker like any consumer's."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from spark_fakes import FakeStream, installed
from spark_jobs import Job, messages

from vibemq.errors import ConfigError
from vibemq.spark import LagListener


def progress(offset, name=None, incarnation="7", stream="s"):
    end = json.dumps({"v": 1, "s": {stream: {"i": incarnation, "o": offset}}})
    sources = [SimpleNamespace(endOffset=end), SimpleNamespace(endOffset="5"), SimpleNamespace(endOffset=None)]
    return SimpleNamespace(progress=SimpleNamespace(name=name, id="an-id", sources=sources))


@pytest.fixture
def fake(monkeypatch):
    broker = installed(monkeypatch)
    broker.streams["s"] = FakeStream(7)
    broker.streams["s"].add(20)
    return broker


def test_what_is_committed_is_stored_under_a_name(fake):
    listener = LagListener(endpoints="here:1")
    listener.onQueryProgress(progress(15, "orders"))
    listener.onQueryProgress(progress(16))
    LagListener("mine", endpoints="here:1").onQueryProgress(progress(17))
    assert fake.offsets == {("spark-orders", "s"): 14, ("spark-an-id", "s"): 15, ("mine", "s"): 16}


def test_streams_that_are_not_this_ones_are_left_alone(fake):
    listener = LagListener(endpoints="here:1")
    listener.onQueryProgress(progress(15, incarnation="8"))
    listener.onQueryProgress(progress(15, stream="other"))
    listener.onQueryProgress(progress(0))
    assert fake.offsets == {}


def test_a_broker_that_is_away_is_a_warning(fake, caplog):
    fake.away = True
    LagListener(endpoints="here:1").onQueryProgress(progress(15, "somebody"))
    assert "offsets of spark-somebody are not stored" in caplog.text


def test_an_option_that_is_not_about_the_connection():
    with pytest.raises(ConfigError, match="no option startingOffsets"):
        LagListener(endpoints="here:1", startingOffsets="earliest")


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_a_listener_of_a_session(spark, broker, stream, tmp_path):
    broker.publish(stream, messages(500))
    listener = LagListener(f"query-{stream}", endpoints=broker.endpoints)
    spark.streams.addListener(listener)
    try:
        assert sum(Job(spark, tmp_path).run(broker, stream)) == 500
        broker.publish(stream, messages(30))
        deadline = time.monotonic() + 60
        with broker.connect() as connection:
            while (stored := connection.query_offset(listener.consumer_name, stream)) != 499:
                assert stored is None and time.monotonic() < deadline
                time.sleep(0.05)
            assert connection.next_offset(stream) - stored - 1 == 30, "what `vibemq streams offsets` calls the lag"
    finally:
        spark.streams.removeListener(listener)
