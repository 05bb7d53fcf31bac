# SPDX-License-Identifier: Apache-2.0
"""Offsets are one string for one state, and a limited batch makes progress, stays in bounds and starves nobody."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibemq.errors import ConfigError
from vibemq.spark import offsets
from vibemq.spark.offsets import Position

names = st.text(min_size=1, max_size=12)
positions = st.dictionaries(
    names, st.builds(Position, st.text("0123456789abcdef", max_size=16), st.integers(0, offsets.OFFSET_MAX)), max_size=6
)


def to_json(state) -> str:
    """As Spark writes it."""
    return json.dumps(offsets.to_dict(state), separators=(",", ":"))


def from_json(text):
    return offsets.from_dict(json.loads(text))


@given(positions)
def test_round_trip_is_identical_to_the_byte(state):
    text = to_json(state)
    assert from_json(text) == state
    assert to_json(from_json(text)) == text


@given(positions, st.randoms())
def test_order_of_insertion_does_not_show(state, random):
    shuffled = list(state.items())
    random.shuffle(shuffled)
    assert to_json(dict(shuffled)) == to_json(state)


def test_the_form_is_the_documented_one():
    assert to_json({"b": Position("f0", 2), "a": Position("", 1)}) == (
        '{"v":1,"s":{"a":{"i":"","o":1},"b":{"i":"f0","o":2}}}'
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"v":2,"s":{}}', "newer VibeMQ"),
        ('{"v":0,"s":{}}', "version 1"),
        ('{"s":{}}', "version"),
        ("[]", "version"),
        ('{"v":1,"s":{"a":{"i":"","o":-1}}}', "'a'"),
        ('{"v":1,"s":{"a":{"i":"","o":true}}}', "'a'"),
        ('{"v":1,"s":{"a":{"o":1}}}', "'a'"),
        ('{"v":1,"s":{"a":7}}', "'a'"),
    ],
)
def test_anything_else_is_refused_with_a_sentence(text, says):
    with pytest.raises(ConfigError, match=says):
        from_json(text)


@st.composite
def spans(draw):
    start = draw(st.dictionaries(names, st.integers(0, 10**12), min_size=1, max_size=6))
    more = {name: draw(st.integers(0, 10**9)) for name in start}
    begin = {name: Position("i", offset) for name, offset in start.items()}
    tail = {name: Position("i", start[name] + more[name]) for name in start}
    return begin, tail


@given(spans(), st.integers(1, 10**10))
def test_a_limited_batch(span, rows_max):
    start, tail = span
    end = offsets.limited(start, tail, rows_max)
    waiting = offsets.backlog(start, tail)
    taken = {name: end[name].offset - start[name].offset for name in tail}
    assert set(end) == set(tail)
    assert all(0 <= taken[name] <= waiting[name] for name in tail)
    assert all(taken[name] > 0 for name in tail if waiting[name]), "a stream with a backlog was left out"
    busy = sum(1 for count in waiting.values() if count)
    assert sum(taken.values()) <= max(rows_max, busy)
    if sum(waiting.values()) <= rows_max:
        assert end == tail


@given(spans(), st.integers(1, 10**10))
def test_limited_batches_come_to_the_end(span, rows_max):
    start, tail = span
    rows_max = max(rows_max, sum(offsets.backlog(start, tail).values()) // 20 + 1)
    for _ in range(100):
        if start == tail:
            return
        start = offsets.limited(start, tail, rows_max)
    raise AssertionError("no end after 100 batches")
