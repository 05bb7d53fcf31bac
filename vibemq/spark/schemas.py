# SPDX-License-Identifier: Apache-2.0
"""Schemas of JSON messages: read from an option, checked, or found in messages.

Spark reads DDL in its JVM, which the processes that plan and read have not; so what is known of it here is what
JSON can be decoded to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import reduce
from typing import Any

from pyspark.sql import types

from vibemq.errors import ConfigError

WORDS: dict[str, types.DataType] = {
    "boolean": types.BooleanType(),
    "int": types.IntegerType(),
    "integer": types.IntegerType(),
    "bigint": types.LongType(),
    "long": types.LongType(),
    "double": types.DoubleType(),
    "string": types.StringType(),
}
KNOWN = "boolean, int, bigint, double, string, struct<…> and array<…>"
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>:,]))")


def read(text: str) -> types.StructType:
    """A schema as DDL or as Spark's JSON (`schema.json()`). ConfigError."""
    if text.lstrip().startswith("{"):
        try:
            schema = types.StructType.fromJson(json.loads(text))
        except Exception as failed:  # whatever it is that Spark makes of another's JSON
            raise ConfigError(f"option valueSchema: this is not a schema in Spark's JSON: {failed!r}") from failed
    else:
        schema = _Ddl(text).schema()
    return nullable(check(schema, "option valueSchema"))


def nullable(kind: Any) -> Any:
    """The same type, of which any part may be null: a message need not have what a schema promises."""
    if isinstance(kind, types.StructType):
        fields = [(field.name, nullable(field.dataType), True, field.metadata) for field in kind]
        return types.StructType([types.StructField(*field) for field in fields])
    return types.ArrayType(nullable(kind.elementType)) if isinstance(kind, types.ArrayType) else kind


def check(schema: types.DataType, where: str) -> types.StructType:
    """The schema itself where JSON can be decoded to it. ConfigError."""
    if not isinstance(schema, types.StructType) or not schema.fields:
        raise ConfigError(f"{where}: a JSON message is a struct<…> of at least one field, not {schema.simpleString()}")
    if len(set(schema.names)) < len(schema.names):
        raise ConfigError(f"{where}: a field is named twice in {schema.simpleString()}")
    for field in schema.fields:
        _check_type(field.dataType, f"{where}: field {field.name}")
    return schema


def _check_type(kind: types.DataType, where: str) -> None:
    if isinstance(kind, types.ArrayType):
        _check_type(kind.elementType, where)
    elif isinstance(kind, types.StructType):
        check(kind, where)
    elif kind not in WORDS.values():
        raise ConfigError(
            f"{where}: JSON is not decoded to {kind.simpleString()} but to {KNOWN}. "
            "Read it as string and cast it, or leave the message to from_json with valueFormat=string"
        )


class _Ddl:
    """`name type, …`, with `name: type` inside of struct<…>."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def schema(self) -> types.StructType:
        fields = self._fields()
        if self.text[self.at :].strip():
            raise self._unfit("a comma or the end")
        return fields

    def _fields(self) -> types.StructType:
        schema = types.StructType()
        while True:
            name = self._name()
            self._take(":")
            schema.add(name, self._type())
            if not self._take(","):
                return schema

    def _type(self) -> types.DataType:
        word = self._name().lower()
        if word in WORDS:
            return WORDS[word]
        if word not in ("struct", "array"):
            raise ConfigError(f"option valueSchema: type {word} is not one of {KNOWN}; read it as string and cast it")
        self._need("<")
        found = self._fields() if word == "struct" else types.ArrayType(self._type())
        self._need(">")
        return found

    def _name(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        if not match or match[3]:
            raise self._unfit("a name")
        self.at = match.end()
        return match[2] or match[1].replace("``", "`")

    def _take(self, sign: str) -> bool:
        match = _TOKEN.match(self.text, self.at)
        if not match or match[3] != sign:
            return False
        self.at = match.end()
        return True

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            raise self._unfit(sign)

    def _unfit(self, needed: str) -> ConfigError:
        rest = self.text[self.at :].strip() or "the end"
        return ConfigError(f"option valueSchema: needed {needed} where {rest[:40]!r} is, in {self.text!r}")


# ---- finding one ----


def infer(records: int, options: Mapping[str, Any]) -> types.StructType:
    """See vibemq.spark.infer_schema."""
    import pyarrow as pa

    from vibemq.spark import plans, ranges
    from vibemq.spark.client import patiently
    from vibemq.spark.options import parse

    wanted = parse({**{name: str(value) for name, value in options.items()}, "maxBytesPerPartition": "0"})
    values = pa.schema([pa.field("value", pa.binary(), False)])
    found: types.DataType = types.NullType()
    names = []
    for each in patiently(wanted, lambda taken: plans.batch(wanted, taken)):
        names.append(repr(each.stream))
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
        raise ConfigError(
            f"infer_schema: no JSON object with a field is among the first {records} messages of {', '.join(names)}"
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
