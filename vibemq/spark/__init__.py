# SPDX-License-Identifier: Apache-2.0
"""Read streams with Spark: `spark.read.format("vibemq")` and `spark.readStream.format("vibemq")`::

    from vibemq.spark import local_session
    spark = local_session()
    spark.read.format("vibemq").option("endpoints", "localhost:5552").option("stream", "orders").load()

Importing this package imports neither pyspark nor pyarrow; using it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vibemq.spark.session import local_session, register

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from vibemq.spark.listener import LagListener

__all__ = ["LagListener", "infer_schema", "local_session", "register"]


def infer_schema(*, records: int = 1000, **options: Any) -> StructType:
    """The schema of the JSON objects among the first `records` messages of each stream that `options` name.

    `options` are those of the source. What is null or empty wherever it is seen becomes a string, and so does what has
    several types; whole numbers among others become doubles. ConfigError where there is no JSON object::

        schema = infer_schema(endpoints="localhost:5552", stream="orders")
        spark.read.format("vibemq").options(valueFormat="json", valueSchema=schema.json(), ...)
    """
    from vibemq.spark import inference  # imports pyspark and pyarrow

    return inference.infer(records, options)


def __getattr__(name: str) -> Any:
    """What needs pyspark, when it is asked for."""
    if name == "LagListener":
        from vibemq.spark.listener import LagListener

        return LagListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
