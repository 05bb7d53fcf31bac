# SPDX-License-Identifier: Apache-2.0
"""Makes `format("vibemq")` known to Spark without a call.

At the first use of a format that it does not know, Spark imports every module named
pyspark_* and takes the class DefaultSource of each. A module that fails to import
disables this for all others too, so nothing here may fail: without pyspark 4 or pyarrow
there is simply no class.
"""

import contextlib

with contextlib.suppress(Exception):
    import pyarrow as _pyarrow  # noqa: F401

    from vibemq.spark.source import VibeMQDataSource as DefaultSource  # noqa: F401
