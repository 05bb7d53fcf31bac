# SPDX-License-Identifier: Apache-2.0
"""Conditions that Spark pushes down make ranges smaller and results no other, whether that is switched on or not."""

from __future__ import annotations

import datetime
import time

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from pyspark.sql import functions as F
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from spark_fakes import FakeStream, installed, offsets_of
from spark_jobs import batch, messages, sums

from vibemq.spark import source
from vibemq.spark.pushdown import Span, bounds
from vibemq.spark.source import VibeMQDataSource

SWITCH = "spark.sql.python.filterPushdown.enabled"
OFFSET, TIME, STREAM = ("offset",), ("timestamp",), ("stream",)


def at(ms, microseconds=0):
    return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(0, 0, microseconds, ms)


@pytest.mark.parametrize(
    ("filters", "offsets", "times"),
    [
        ([], Span(), Span()),
        ([EqualTo(OFFSET, 5)], Span(5, 6), Span()),
        ([EqualNullSafe(OFFSET, 5)], Span(5, 6), Span()),
        ([EqualNullSafe(OFFSET, None), IsNotNull(OFFSET), Not(EqualTo(OFFSET, 1))], Span(), Span()),
        ([GreaterThan(OFFSET, 5), LessThanOrEqual(OFFSET, 9)], Span(6, 10), Span()),
        ([GreaterThanOrEqual(OFFSET, 5), GreaterThan(OFFSET, 7), LessThan(OFFSET, 9)], Span(8, 9), Span()),
        ([In(OFFSET, (7, 3, 5))], Span(3, 8), Span()),
        ([GreaterThanOrEqual(TIME, at(5)), LessThan(TIME, at(9))], Span(), Span(5, 9)),
        ([GreaterThan(TIME, at(5)), LessThanOrEqual(TIME, at(9))], Span(), Span(6, 10)),
        ([GreaterThanOrEqual(TIME, at(5, 1)), LessThan(TIME, at(9, 1))], Span(), Span(6, 10)),
        ([EqualTo(("value",), b"x")], Span(), Span()),
    ],
)
def test_bounds(filters, offsets, times):
    found = bounds(filters)
    assert (found.offsets, found.times_ms) == (offsets, times)


def test_names():
    assert bounds([In(STREAM, ("a", "b")), StringStartsWith(STREAM, "a")]).take("a")
    assert not bounds([EqualTo(STREAM, "a")]).take("b")


@pytest.mark.parametrize("incarnation", [7, None])
def test_ranges_become_smaller(monkeypatch, incarnation):
    broker = installed(monkeypatch)
    for name in "ab":
        broker.streams[name] = FakeStream(incarnation)
        broker.streams[name].add(100)
    monkeypatch.setitem(source.sys.modules, source.PUSHDOWN_WORKER, source)

    def read(*filters):
        known = VibeMQDataSource({"endpoints": "here:1", "subscribe": "a,b", "filterPushdown": "true"})
        reader = known.reader(known.schema())
        assert list(reader.pushFilters(list(filters))) == list(filters)
        return offsets_of(reader, reader.partitions())

    assert read(EqualTo(STREAM, "a")) == list(range(100))
    assert read(EqualTo(STREAM, "b"), GreaterThan(OFFSET, 33), LessThan(OFFSET, 37)) == [34, 35, 36]
    assert read(GreaterThan(OFFSET, 1000)) == []
    between = read(EqualTo(STREAM, "a"), GreaterThanOrEqual(TIME, at(20_000)), LessThan(TIME, at(40_000)))
    assert between == (list(range(20, 40)) if incarnation else list(range(100)))


@pytest.fixture(params=["true", "false"])
def switched(spark, request):
    spark.conf.set(SWITCH, request.param)
    yield request.param == "true"
    spark.conf.unset(SWITCH)


@pytest.fixture
def filled(broker, stream):
    broker.publish(stream, messages(500))
    time.sleep(0.05)  # another time of the chunks
    broker.publish(stream, messages(500, 500))
    return stream


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_results_are_the_same_with_the_switch_on_and_off(spark, broker, filled, switched):
    def load():
        return batch(spark, broker, filled, maxRecordsPerPartition=100, filterPushdown="true").load()

    rows = load().collect()
    later = max(row.timestamp for row in rows)
    some = load().where((F.col("offset") >= 250) & (F.col("offset") < 260) & (F.col("stream") == filled))
    assert sums(some)[0:2] == (10, sum(range(250, 260)))
    young = load().where(F.col("timestamp") >= F.lit(later))
    assert sorted(row.offset for row in young.collect()) == [row.offset for row in rows if row.timestamp >= later]
    if switched:
        assert some.rdd.getNumPartitions() == 1
        if broker.name == "vibemq":
            assert young.rdd.getNumPartitions() < load().rdd.getNumPartitions()


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_a_frame_is_right_for_many_queries_unless_one_asks_for_smaller_ranges(spark, own_broker, stream, switched):
    own_broker.publish(stream, messages(1_000))
    frame = batch(spark, own_broker, stream).load()
    low, high = frame.where("offset < 10"), frame.where("offset >= 990")
    assert (low.count(), frame.count(), low.union(high).count()) == (10, 1_000, 20)
