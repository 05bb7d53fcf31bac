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
from typing import TYPE_CHECKING, Any

from vibemq.errors import SetupError
from vibemq.extras import install
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
# Spark takes this for a shell, which shows warnings and what has a level of its own.
TALKATIVE = ("info", "debug", "trace", "all")
TALKATIVE_LOG4J = """\
logger.spark.name = org.apache.spark
logger.spark.level = {level}
"""


def register(spark: SparkSession) -> None:
    """Make `format("vibemq")` known to a session. Does no harm when it is known already."""
    from pyspark.errors import AnalysisException

    from vibemq.spark.source import VibeMQDataSource

    try:
        spark.dataSource.register(VibeMQDataSource)
    except AnalysisException as known:  # Spark 4.0 has found pyspark_vibemq by itself and takes no name twice
        if known.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def require_pyspark() -> None:
    """SetupError: it is not installed."""
    try:
        import pyspark.sql  # noqa: F401
    except ImportError as failed:
        raise SetupError("pyspark is not installed", hint=f"`{install('spark-local')}`") from failed


def local_session(
    name: str = "vibemq",
    *,
    cores: str | int = "*",
    master: str = "",
    log_file: str | Path | None = None,
    log_level: str = "error",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session on this machine, unless `master` names a cluster's. `log_file` takes what the JVM would write to
    standard error.

    SetupError when pyspark or a Java runtime is missing.
    """
    require_pyspark()
    from pyspark.sql import SparkSession

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
        # By TCP, which Spark before 4.1 has alone, each task waits 40 ms for an acknowledgement that the kernel delays.
        "spark.python.unix.domain.socket.enabled": "true",
        **(config or {}),
    }
    with tempfile.TemporaryDirectory(prefix="vibemq-spark-") as folder:
        log4j = Path(folder) / "log4j2.properties"
        properties = QUIET_LOG4J + (TALKATIVE_LOG4J if log_level.lower() in TALKATIVE else "")
        log4j.write_text(properties.format(level=log_level), encoding="utf-8")
        java_options = settings.get("spark.driver.extraJavaOptions", "")
        settings["spark.driver.extraJavaOptions"] = f"{java_options} -Dlog4j2.configurationFile={log4j}".strip()
        builder = SparkSession.builder.master(master or f"local[{cores}]").appName(name)
        for key, value in settings.items():
            builder = builder.config(key, value)
        with _standard_error_to(log_file):
            spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(log_level.upper())
    if not master and CHECKPOINT_MANAGER not in settings:
        _write_checkpoints_without_processes(spark)
    register(spark)
    return spark


CHECKPOINT_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_STREAMING = "org.apache.spark.sql.execution.streaming."


def _write_checkpoints_without_processes(spark: SparkSession) -> None:
    """For each file of a checkpoint on a local disk Spark's usual way starts six processes (chmod, readlink).

    The other one, which it takes itself for file systems that have only that, promises the same there.
    """
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for package in ("checkpointing.", ""):  # newer, older Spark
        name = f"{_STREAMING}{package}FileSystemBasedCheckpointFileManager"
        if loader.getResource(f"{name.replace('.', '/')}.class") is not None:
            spark.conf.set(CHECKPOINT_MANAGER, name)
            return


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
