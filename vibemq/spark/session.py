# SPDX-License-Identifier: Apache-2.0
"""A Spark session in this process that knows `format("vibemq")` and keeps its mouth shut.

For jobs on one machine, notebooks and tests. A cluster has its own session and Java:
there `vibemq.spark.register(spark)` is enough.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vibemq.errors import SetupError
from vibemq.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET_LOG4J = """\
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


def register(spark: SparkSession) -> None:
    """Make `format("vibemq")` known to a session. Does no harm when it is known already."""
    from vibemq.spark.source import VibeMQDataSource

    spark.dataSource.register(VibeMQDataSource)


def local_session(
    name: str = "vibemq",
    *,
    cores: str | int = "*",
    log_file: str | Path | None = None,
    log_level: str = "error",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session on this machine. `log_file` takes what the JVM would write to standard error.

    SetupError when pyspark or a Java runtime is missing.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as failed:
        raise SetupError("pyspark is not installed", hint="pip install 'vibemq[spark-local]'") from failed
    ensure_java()
    # Spark would start whichever python3 is first on PATH; its workers need the packages of this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",  # a host name that does not resolve must not stop a local job
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
        **(config or {}),
    }
    with tempfile.TemporaryDirectory(prefix="vibemq-spark-") as folder:
        log4j = Path(folder) / "log4j2.properties"
        log4j.write_text(QUIET_LOG4J.format(level=log_level), encoding="utf-8")
        java_options = settings.get("spark.driver.extraJavaOptions", "")
        settings["spark.driver.extraJavaOptions"] = f"{java_options} -Dlog4j2.configurationFile={log4j}".strip()
        builder = SparkSession.builder.master(f"local[{cores}]").appName(name)
        for key, value in settings.items():
            builder = builder.config(key, value)
        with _standard_error_to(log_file):
            spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(log_level.upper())
    register(spark)
    return spark


@contextlib.contextmanager
def _standard_error_to(path: str | Path | None) -> Iterator[None]:
    """Let processes that are started now write their standard error to a file.

    The JVM inherits the descriptor when it is started, and there is no other way to hand it one.
    """
    if path is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(path, "ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
