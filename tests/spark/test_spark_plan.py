# SPDX-License-Identifier: Apache-2.0
"""The tasks of a plan are its ranges, each record once, in an order that does not depend on the order asked."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="pyspark is not installed")

from vibemq.spark.ranges import Range
from vibemq.spark.source import plan

wanted = st.builds(
    Range, st.sampled_from("abcdef"), st.just("i"), st.integers(0, 1000), st.integers(0, 1000), st.booleans()
)


@given(st.lists(wanted, unique_by=lambda each: each.stream))
def test_the_union_is_what_was_asked_and_the_order_is_fixed(ranges):
    parts = [partition.value for partition in plan(ranges)]
    assert parts == [partition.value for partition in plan(reversed(ranges))]
    for each in ranges:
        own = sorted((part.start, part.end) for part in parts if part.stream == each.stream)
        covered = [offset for start, end in own for offset in range(start, end)]
        assert covered == list(range(each.start, each.end))
    assert all(part.start < part.end for part in parts)


def test_a_partition_is_small_and_holds_no_secret():
    (partition,) = plan([Range("s" * 255, "f" * 16, 0, 1 << 62)])
    assert len(pickle.dumps(partition)) < 1024
    assert "password" not in repr(partition)
