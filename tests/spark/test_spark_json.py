# SPDX-License-Identifier: Apache-2.0
"""Columns become one JSON object for each row, which any reader of JSON understands."""

from __future__ import annotations

import datetime
import decimal
import json

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from vibemq.errors import ConfigError
from vibemq.spark._json import objects

UTC = datetime.UTC


def written(**columns: pa.Array) -> list[str]:
    rows = len(next(iter(columns.values())))
    return [each.decode() for each in objects(columns, rows).to_pylist()]


def test_every_type_has_its_form():
    at = datetime.datetime(2026, 1, 31, 12, 34, 56, 789012)
    columns = {
        "text": pa.array(['say "hi"\\\n\x01é']),
        "large": pa.array(["x"], pa.large_string()),
        "bytes": pa.array([b"\x00\xff\x10"]),
        "yes": pa.array([True]),
        "byte": pa.array([-128], pa.int8()),
        "long": pa.array([2**63 - 1]),
        "float": pa.array([0.1], pa.float32()),
        "double": pa.array([1e-7]),
        "whole": pa.array([3.0]),
        "money": pa.array([decimal.Decimal("12.50")], pa.decimal128(10, 2)),
        "date": pa.array([datetime.date(2026, 1, 31)]),
        "time": pa.array([at.replace(tzinfo=UTC)], pa.timestamp("us", "UTC")),
        "there": pa.array([at.replace(tzinfo=UTC)], pa.timestamp("us", "Europe/Oslo")),
        "local": pa.array([at], pa.timestamp("us")),
        "nothing": pa.nulls(1),
    }
    assert written(**columns) == [
        '{"text":"say \\"hi\\"\\\\\\n\\u0001é","large":"x","bytes":"AP8Q","yes":true,"byte":-128,'
        '"long":9223372036854775807,"float":0.1,"double":1e-7,"whole":3,"money":12.50,"date":"2026-01-31",'
        '"time":"2026-01-31T12:34:56.789012Z","there":"2026-01-31T12:34:56.789012Z",'
        '"local":"2026-01-31T12:34:56.789012"}'
    ]


def test_numbers_that_json_has_not_are_strings():
    doubles = pa.array([float("nan"), float("inf"), float("-inf"), -0.5, None])
    assert written(n=doubles) == ['{"n":"NaN"}', '{"n":"Infinity"}', '{"n":"-Infinity"}', '{"n":-0.5}', "{}"]


def test_nulls_are_left_out_of_objects_and_stay_in_lists_and_maps():
    nested = pa.array(
        [
            {"list": [1, None], "map": [("a", None), ("b", [True])], "empty": []},
            {"list": None, "map": [], "empty": None},
            None,
        ],
        pa.struct(
            [
                ("list", pa.list_(pa.int64())),
                ("map", pa.map_(pa.string(), pa.list_(pa.bool_()))),
                ("empty", pa.list_(pa.string())),
            ]
        ),
    )
    rows = ['{"s":{"list":[1,null],"map":{"a":null,"b":[true]},"empty":[]}}', '{"s":{"map":{}}}', "{}"]
    assert written(s=nested) == rows
    assert written(s=nested.slice(1)) == rows[1:]


def test_keys_of_maps_that_are_no_strings_become_strings():
    column = pa.array([[(1, "x"), (-2, "y")]], pa.map_(pa.int32(), pa.string()))
    assert written(m=column) == ['{"m":{"1":"x","-2":"y"}}']


def test_names_are_escaped():
    assert written(**{'a"b': pa.array([1])}) == ['{"a\\"b":1}']


def test_text_that_is_no_utf8_is_mended_so_that_the_object_is_json():
    broken = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a\xffb\x08", b"fine"]).buffers())
    assert written(t=broken) == ['{"t":"a\ufffdb\\b"}', '{"t":"fine"}']


def test_a_type_without_a_form_is_named_with_its_column():
    with pytest.raises(ConfigError, match=r"column span, its items: valueFormat=json has no form for duration"):
        written(span=pa.array([[datetime.timedelta(1)]]))


VALUES = st.fixed_dictionaries(
    {},
    optional={
        "i": st.integers(-(2**63), 2**63 - 1),
        "d": st.floats(allow_nan=False, allow_infinity=False),
        "t": st.text(),
        "b": st.booleans(),
        "l": st.lists(st.one_of(st.none(), st.text()), max_size=4),
        "s": st.fixed_dictionaries({}, optional={"i": st.integers(-5, 5), "t": st.text(max_size=3)}),
    },
)
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("d", pa.float64()),
        ("t", pa.string()),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.string())),
        ("s", pa.struct([("i", pa.int64()), ("t", pa.string())])),
    ]
)


@given(rows=st.lists(VALUES, min_size=1, max_size=20), offset=st.integers(0, 9))
def test_what_is_written_is_read_again(rows, offset):
    offset = min(offset, len(rows) - 1)
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA).slice(offset)
    found = objects(dict(zip(SCHEMA.names, batch.columns, strict=True)), batch.num_rows).to_pylist()
    assert [json.loads(each) for each in found] == rows[offset:]
