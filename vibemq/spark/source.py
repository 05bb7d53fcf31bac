# SPDX-License-Identifier: Apache-2.0
"""The data source that Spark knows as `format("vibemq")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from vibemq.errors import ConfigError
from vibemq.spark.options import COLUMNS, Options, parse
from vibemq.spark.reader import BatchReader, StreamReader

if TYPE_CHECKING:
    import pyarrow as pa

TYPES: dict[str, DataType] = {
    "value": BinaryType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "stream": StringType(),
    "message_id": StringType(),
    "headers": MapType(StringType(), StringType()),
}
assert tuple(TYPES) == COLUMNS
NULLABLE = {"message_id"}


class VibeMQDataSource(DataSource):
    """Streams of VibeMQ, or of any broker that speaks the RabbitMQ Streams protocol."""

    @classmethod
    def name(cls) -> str:
        return "vibemq"

    def schema(self) -> StructType:
        """The columns asked for. Spark calls this in `.load()`, so bad options are told there."""
        columns = self._options().columns
        return StructType([StructField(name, TYPES[name], nullable=name in NULLABLE) for name in columns])

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(self._options().for_batch(), arrow_schema(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(self._options().for_stream(), arrow_schema(schema))

    def _options(self) -> Options:
        return parse(self.options)


def arrow_schema(schema: StructType) -> pa.Schema:
    """What the batches must look like: a user's `.schema(…)` picks and orders columns by name."""
    for field in schema.fields:
        wanted = TYPES.get(field.name)
        if wanted is None:
            raise ConfigError(f"schema: there is no column {field.name!r}; there are {', '.join(COLUMNS)}")
        if field.dataType != wanted:
            raise ConfigError(
                f"schema: column {field.name} is {wanted.simpleString()}, not {field.dataType.simpleString()}"
            )
    if not schema.fields or len(set(schema.names)) < len(schema.names):
        raise ConfigError(f"schema: each column at most once, and at least one of {', '.join(COLUMNS)}")
    from pyspark.sql.pandas.types import to_arrow_schema  # imports pyarrow, which `import vibemq.spark` must not need

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # Spark 4.0 and 4.1 have no such argument
        return to_arrow_schema(schema)
