# SPDX-License-Identifier: Apache-2.0
"""Ranges of offsets, compared with sets."""

from hypothesis import given
from hypothesis import strategies as st

from vibemq.broker.ranges import joined, length, without

PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def offsets(ranges):
    return {offset for first, end in ranges for offset in range(first, end)}


def is_in_order(ranges):
    bounds = [bound for each in ranges for bound in each]
    return bounds == sorted(set(bounds))  # rising, none empty, and none touches the next


@given(PAIRS, PAIRS)
def test_ranges_are_joined_as_sets_are(some, others):
    found = joined(some, others)
    assert offsets(found) == offsets(some) | offsets(others)
    assert is_in_order(found)
    assert length(found) == len(offsets(found))


@given(PAIRS, PAIRS)
def test_ranges_are_taken_from_others_as_sets_are(some, taken):
    found = without(joined(some), joined(taken))
    assert offsets(found) == offsets(some) - offsets(taken)
    assert is_in_order(found)
