# SPDX-License-Identifier: Apache-2.0
"""The columns that a query gets: their types by the options or by the user's own schema, and as Arrow has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import types

from vibemq.errors import ConfigError
from vibemq.spark import schemas
from vibemq.spark.options import COLUMNS, JSON, KAFKA, MAP, STRING, Options

if TYPE_CHECKING:
    import pyarrow as pa

TYPES: dict[str, types.DataType] = {
    "value": types.BinaryType(),
    "offset": types.LongType(),
    "timestamp": types.TimestampType(),
    "stream": types.StringType(),
    "key": types.BinaryType(),
    "message_id": types.StringType(),
    "content_type": types.StringType(),
    "headers": types.MapType(types.StringType(), types.StringType()),
}
assert tuple(TYPES) == COLUMNS
NULLABLE = {"key", "message_id", "content_type"}
HEADERS = {  # by headersFormat
    MAP: TYPES["headers"],
    KAFKA: types.ArrayType(types.StructType().add("key", types.StringType()).add("value", types.BinaryType())),
}


def spark_schema(options: Options) -> types.StructType:
    """The columns asked for."""
    return types.StructType([_field(name, options) for name in options.columns])


def _field(name: str, options: Options) -> types.StructField:
    kind, nullable = TYPES[name], name in NULLABLE
    if name == "headers":
        kind = HEADERS[options.headers_format]
    if name == "value" and options.value_format == STRING:
        kind = types.StringType()
    if name == "value" and options.value_format == JSON:
        if not options.value_schema:
            raise ConfigError(
                "option valueFormat=json: it needs valueSchema, such as 'id BIGINT, name STRING', or "
                ".schema('value STRUCT<id: BIGINT, name: STRING>, offset BIGINT'); vibemq.spark.infer_schema finds one"
            )
        kind, nullable = schemas.read(options.value_schema), True  # null of a message without anything in it
    return types.StructField(name, kind, nullable)


def arrow_schema(schema: types.StructType, options: Options) -> pa.Schema:
    """What the batches must look like: a user's `.schema(…)` picks and orders columns by name."""
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise ConfigError(f"schema: there is no column {field.name!r}; there are {', '.join(COLUMNS)}")
        is_json = field.name == "value" and options.value_format == JSON
        if is_json:
            schemas.check(field.dataType, "schema: column value")
        else:
            wanted = _field(field.name, options).dataType
            if field.dataType != wanted and not (field.name == "headers" and field.dataType in HEADERS.values()):
                raise ConfigError(
                    f"schema: column {field.name} is {wanted.simpleString()}, not {field.dataType.simpleString()}"
                )
        may_be_null = is_json or field.name in NULLABLE
        if may_be_null and (not field.nullable or (is_json and field.dataType != schemas.nullable(field.dataType))):
            raise ConfigError(
                f"schema: column {field.name} is NOT NULL, or something in it is, which messages do not promise; "
                "leave NOT NULL out, or Spark would believe it and return wrong rows"
            )
    if not schema.fields or len(set(schema.names)) < len(schema.names):
        raise ConfigError(f"schema: each column at most once, and at least one of {', '.join(COLUMNS)}")
    from pyspark.sql.pandas.types import to_arrow_schema  # imports pyarrow, which `import vibemq.spark` must not need

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # Spark 4.0 and 4.1 have no such argument
        return to_arrow_schema(schema)
