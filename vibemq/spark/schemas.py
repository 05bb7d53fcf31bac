# SPDX-License-Identifier: Apache-2.0
"""Schemas of JSON messages: read from an option, and checked.

Spark reads DDL in its JVM, which the processes that plan and read have not; so what is known of it here is what
JSON can be decoded to.
"""

from __future__ import annotations

import json
import re
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
