# SPDX-License-Identifier: Apache-2.0
"""Read streams with Spark: `spark.read.format("vibemq")` and `spark.readStream.format("vibemq")`.

    from vibemq.spark import local_session
    spark = local_session()
    spark.read.format("vibemq").option("endpoints", "localhost:5552").option("stream", "orders").load()

Importing this package imports neither pyspark nor pyarrow; using it does.
"""

from vibemq.spark.session import local_session, register

__all__ = ["local_session", "register"]
