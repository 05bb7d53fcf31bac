# SPDX-License-Identifier: Apache-2.0
"""A schema that JSON messages fit, found in some of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import types

from vibemq.errors import ConfigError
from vibemq.spark import plans, ranges
from vibemq.spark.client import patiently
from vibemq.spark.options import parse
from vibemq.spark.schemas import WORDS


def infer(records: int, options: Mapping[str, Any]) -> types.StructType:
    """See vibemq.spark.infer_schema."""
    given = {name: str(value) for name, value in options.items() if name.lower() not in ("valueschema", "mode")}
    wanted = parse({**given, "maxBytesPerPartition": "0"})
    values = pa.schema([pa.field("value", pa.binary(), False)])
    found: types.DataType = types.NullType()
    for each in patiently(wanted, lambda taken: plans.batch(wanted, taken)):
        some = each._replace(end=min(each.end, each.start + records))
        for batch in ranges.read(wanted, values, some):
            for value in batch.column(0).to_pylist():
                try:
                    message = json.loads(value)
                except (ValueError, RecursionError):
                    continue
                if isinstance(message, dict):
                    found = _both(found, _type_of(message))
    if not isinstance(found, types.StructType) or not found.fields:
        names = ", ".join(map(repr, wanted.streams or filter(None, (wanted.super_stream, wanted.pattern))))
        raise ConfigError(
            f"infer_schema: no JSON object with a field is among the first {records} messages of {names}; publish one, "
            "or say the schema: option valueSchema, or --schema"
        )
    return _settled(found)


def _type_of(value: Any) -> types.DataType:
    """NullType: it says nothing."""
    if isinstance(value, dict):
        return types.StructType([types.StructField(name, _type_of(each)) for name, each in value.items()])
    if isinstance(value, list):
        nothing: types.DataType = types.NullType()
        return types.ArrayType(reduce(_both, map(_type_of, value), nothing))
    if isinstance(value, bool):
        return WORDS["boolean"]
    if isinstance(value, int):
        return WORDS["bigint" if -(1 << 63) <= value < 1 << 63 else "double"]
    if isinstance(value, float):
        return WORDS["double"]
    return WORDS["string"] if isinstance(value, str) else types.NullType()


def _both(one: types.DataType, other: types.DataType) -> types.DataType:
    """A type that takes what either takes."""
    if one == other or isinstance(other, types.NullType):
        return one
    if isinstance(one, types.NullType):
        return other
    if isinstance(one, types.StructType) and isinstance(other, types.StructType):
        there = {field.name: field.dataType for field in other}
        merged = {field.name: _both(field.dataType, there.pop(field.name, types.NullType())) for field in one}
        return types.StructType([types.StructField(name, kind) for name, kind in {**merged, **there}.items()])
    if isinstance(one, types.ArrayType) and isinstance(other, types.ArrayType):
        return types.ArrayType(_both(one.elementType, other.elementType))
    return WORDS["double" if {one, other} == {WORDS["bigint"], WORDS["double"]} else "string"]


def _settled(kind: Any) -> Any:
    """With strings where nothing was said; an object without a field is one as well."""
    if isinstance(kind, types.StructType) and kind.fields:
        return types.StructType([types.StructField(field.name, _settled(field.dataType)) for field in kind])
    if isinstance(kind, types.ArrayType):
        return types.ArrayType(_settled(kind.elementType))
    return WORDS["string"] if isinstance(kind, types.NullType | types.StructType) else kind
