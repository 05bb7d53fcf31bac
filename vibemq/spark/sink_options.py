# SPDX-License-Identifier: Apache-2.0
"""The options of writing with `format("vibemq")`, and what the columns of the rows are for.

Where and as whom to connect is said as for reading (options.py). All is checked on the driver, before a task runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import types

from vibemq.errors import ConfigError
from vibemq.spark import options as reading
from vibemq.spark.codecs import CODES
from vibemq.spark.options import (
    Options,
    choice,
    flag,
    known,
    milliseconds,
    number,
    option,
    option_fields,
    read_fields,
    text,
    word,
)

#: Options that mean the same as for reading.
ACCESS = (*reading.ACCESS, "fetchTimeoutMs", "brokerDownTimeoutMs")
SPARKS = ("checkpointLocation", "queryName", "path")  # Spark adds these; `path` is refused below

TEXTS = (types.StringType, types.BinaryType)
#: What a column of each name may be; `headers` has a form of its own.
ATTRIBUTES: dict[str, tuple[type[types.DataType], ...]] = {
    "value": TEXTS,
    "stream": (types.StringType,),
    "key": TEXTS,
    "message_id": TEXTS,
    "content_type": (types.StringType,),
    "timestamp": (types.TimestampType,),
}
#: What _json.pyx has a form for. A variant's parts would come as they lie in memory.
JSON_TYPES = (
    *TEXTS, types.CharType, types.VarcharType, types.NumericType, types.BooleanType, types.NullType,
    types.DateType, types.TimestampType, types.TimestampNTZType,
)  # fmt: skip
NEVER_DATA = ("stream", "headers", "message_id", "content_type")  # with valueFormat=json all others are in the value


@dataclass(frozen=True)
class SinkOptions:
    """What the user asked for."""

    access: Options  # and the names of the streams, or of the super stream
    is_json: bool = option("valueFormat", choice({"binary": False, "string": False, "json": True}), False)
    compression: str = option("compression", word("none", *CODES), "none")
    create_stream: bool = option("createStream", flag, False)
    ignore_unknown: bool = option("ignoreUnknownColumns", flag, False)
    confirm_timeout_ms: int = option("confirmTimeoutMs", milliseconds(1), 120_000)
    txn_app_id: str = option("txnAppId", text, "")
    txn_version: int = option("txnVersion", number(0), 0)


OWN = ("stream", "superStream", *option_fields(SinkOptions))


@dataclass(frozen=True)
class Columns:
    """Which columns say something of the message, and which are the fields of its JSON value."""

    attributes: tuple[str, ...]
    fields: tuple[str, ...]


def parse(given: Mapping[str, str]) -> SinkOptions:
    """Read Spark's option map. ConfigError names the option and the remedy."""
    reading.refuse_table(given)
    options = known(dict(given), (*ACCESS, *OWN), "writing with format('vibemq')", silent=SPARKS)
    if ("stream" in options) == ("superStream" in options):
        raise ConfigError("options stream and superStream: give exactly one of them to say where the rows go")
    if "path" in options:
        raise ConfigError(
            f"a path, {options['path']!r}: rows go to a broker, not into a folder; option stream or superStream says "
            "which stream, and save() and start() take no path"
        )
    if ("txnAppId" in options) != ("txnVersion" in options):
        raise ConfigError("options txnAppId and txnVersion: only both together make a second run write nothing")
    if "txnAppId" in options and not options["txnAppId"].strip():
        raise ConfigError("option txnAppId: it is empty; a name is needed, by which the broker knows a second run")
    # The reader's rules hold for names of streams, too.
    access = reading.parse({name: options[name] for name in (*ACCESS, "stream", "superStream") if name in options})
    return SinkOptions(access, **read_fields(SinkOptions, options))


# ---- columns ----


def columns(options: SinkOptions, schema: types.StructType) -> Columns:
    """What each column is for. ConfigError names one that has no use, is missing or is of another type."""
    if len(set(schema.names)) < len(schema.names):
        raise ConfigError("columns: each name once")
    attributes = [field.name for field in schema.fields if _is_attribute(options, field)]
    fields = [name for name in schema.names if options.is_json and name not in NEVER_DATA]
    if not options.is_json:
        unknown = [name for name in schema.names if name not in attributes]
        if unknown and not options.ignore_unknown:
            raise ConfigError(
                f"columns: {', '.join(unknown)} cannot be part of a message; there are "
                f"{', '.join((*ATTRIBUTES, 'headers'))}. Select those, or have all columns in the value with "
                "valueFormat=json, or leave the others out with ignoreUnknownColumns=true"
            )
        if "value" not in attributes:
            raise ConfigError("columns: value is needed; valueFormat=json makes one of the other columns")
    elif not fields:
        raise ConfigError("columns: none is left for the JSON value")
    for name in fields:
        _check_json(name, schema[name].dataType)
    if options.access.super_stream and "key" not in attributes:
        raise ConfigError(
            "columns: superStream needs a column key, a string or binary, by which rows find their partition"
        )
    if len(options.access.streams) > 1 and "stream" not in attributes:
        raise ConfigError("columns: option stream names several, so a column stream must say for each row which")
    if len(options.access.streams) == 1 or options.access.super_stream:
        attributes = [name for name in attributes if name != "stream"]  # as Kafka's: the option is stronger
    return Columns(tuple(attributes), tuple(fields))


def _check_json(where: str, kind: types.DataType) -> None:
    """ConfigError: there is something in it that has no form as JSON."""
    if isinstance(kind, types.UserDefinedType):
        _check_json(where, kind.sqlType())
    elif isinstance(kind, types.StructType):
        for field in kind.fields:
            _check_json(f"{where}.{field.name}", field.dataType)
    elif isinstance(kind, types.ArrayType):
        _check_json(f"{where}, its items", kind.elementType)
    elif isinstance(kind, types.MapType):
        _check_json(f"{where}, its keys", kind.keyType)
        _check_json(f"{where}, its values", kind.valueType)
    elif not isinstance(kind, JSON_TYPES):
        raise ConfigError(
            f"column {where}: valueFormat=json has no form for {kind.simpleString()}; cast it to a string"
        )


def _is_attribute(options: SinkOptions, field: types.StructField) -> bool:
    if field.name == "headers":
        if not _is_headers(field.dataType):
            raise ConfigError(
                "column headers: it must be map<string, string>, or array<struct<key: string, value: binary>>, with "
                f"strings or binaries, not {field.dataType.simpleString()}"
            )
        return True
    wanted = ATTRIBUTES.get(field.name)
    if wanted is None or (options.is_json and field.name == "value"):
        return False
    if isinstance(field.dataType, wanted):
        return True
    if options.is_json and field.name not in NEVER_DATA:
        return False  # a field of the value, and nothing else
    names = " or ".join(each().simpleString() for each in wanted)
    raise ConfigError(f"column {field.name}: it must be {names}, not {field.dataType.simpleString()}; cast it")


def _is_headers(kind: types.DataType) -> bool:
    if isinstance(kind, types.MapType):
        return isinstance(kind.keyType, TEXTS) and isinstance(kind.valueType, TEXTS)
    if not isinstance(kind, types.ArrayType) or not isinstance(kind.elementType, types.StructType):
        return False
    pair = kind.elementType
    return pair.names == ["key", "value"] and all(isinstance(field.dataType, TEXTS) for field in pair.fields)
