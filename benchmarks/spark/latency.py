# SPDX-License-Identifier: Apache-2.0
"""How old a row is when the micro-batch that holds it is committed; the default trigger, the `noop` sink.

Two flows. Steady: 1,000 rows a second, evenly. In bursts: a second's rows at once, which is how Spark's own `rate`
source makes them available, however it dates them: so its age counts from the end of the second, and it is what the
same query costs without a broker. A row's own time is its chunk's (ours) or its making's (Kafka's); a batch's commit is
the end of its trigger, as Spark's progress has it.
"""

from __future__ import annotations

import datetime
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.spark.bed import Bed, pool
from vibemq.errors import VibeMQError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RATE = 1_000  # rows a second
SIZE_BYTES = 100
TICK_S = 0.01
WARM_S = 4.0  # the query starts, and its first batches are slow
MEASURED_DEFAULT_S = 6.0
ENDS_S = 1.0  # for the last batch
STREAM = "latency"
PARTS = tuple((number + 0.5) / 10 for number in range(10))  # of a batch's rows, in the order of their times
STEADY, BURSTS, RATE_SOURCE, KAFKA = "vibemq, steady", "vibemq, bursts", "Spark's rate source", "kafka, steady"


def cases(bed: Bed, measured_s: float) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Each by its name; a run gives the ages in ms of what came in `measured_s` seconds."""
    seconds = WARM_S + measured_s
    with bed.connect() as connection:
        connection.create(STREAM, exist_ok=True)
    yield STEADY, lambda: ages(bed, bed.ours(STREAM, streaming=True), lambda: feed(bed, steadily(seconds)))
    yield BURSTS, lambda: ages(bed, bed.ours(STREAM, streaming=True), lambda: feed(bed, bursts(seconds)), at_once_ms=0)
    rate = bed.reader(streaming=True).format("rate").options(rowsPerSecond=RATE).load()
    yield RATE_SOURCE, lambda: ages(bed, rate, lambda: time.sleep(seconds), at_once_ms=1000 / RATE)
    if kafka := bed.kafka:
        kafka.create(STREAM, 1)
        topic = bed.theirs(STREAM, streaming=True)
        yield KAFKA, lambda: ages(bed, topic, lambda: kafka.publish(STREAM, RATE, seconds, SIZE_BYTES))


def ages(bed: Bed, frame: DataFrame, feeding: Callable[[], None], at_once_ms: float | None = None) -> dict[str, Any]:
    """The ages of the rows of a query that runs while it is fed.

    at_once_ms: all rows of a batch came at once, so many ms after the time of the last of them.
    """
    from pyspark.sql import functions as F

    made = F.unix_millis("timestamp")
    columns = F.max(made).alias("last"), F.percentile_approx(made, list(PARTS), 10_000).alias("parts")
    checkpoint = bed.folder / "checkpoint-latency"
    writer = frame.observe("rows", *columns).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        began_ms = time.time() * 1000
        feeding()
        time.sleep(ENDS_S)
        if (failed := query.exception()) is not None:
            raise VibeMQError(f"the query failed: {failed}")
        progress = query.recentProgress
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
    found: list[float] = []
    batches: list[dict[str, int]] = []
    for batch in progress:
        triggered_ms = datetime.datetime.fromisoformat(batch.timestamp).timestamp() * 1000
        if triggered_ms < began_ms + WARM_S * 1000 or not batch.numInputRows:
            continue
        took_ms = batch.durationMs["triggerExecution"]
        times = batch.observedMetrics["rows"]
        each = times["parts"] if at_once_ms is None else [times["last"] + at_once_ms]
        weight = max(1, round(batch.numInputRows / len(each)))
        found += [triggered_ms + took_ms - at for at in each for _ in range(weight)]
        batches.append(batch.durationMs)
    if not found:
        raise VibeMQError(f"no batch had rows after {WARM_S:g} s")
    found.sort()
    return {
        "age_ms": found[len(found) // 2],
        "age_p99_ms": found[len(found) * 99 // 100],
        "batch_ms": statistics.mean(each["triggerExecution"] for each in batches),
        "of_it_ms": {part: statistics.mean(each[part] for each in batches) for part in batches[-1]},
    }


# ---- what is fed to our stream ----

Flow = Iterator[tuple[float, int]]  # seconds from the start, and how many rows are published then


def steadily(seconds: float) -> Flow:
    for tick in range(int(seconds / TICK_S)):
        yield tick * TICK_S, int(RATE * TICK_S)


def bursts(seconds: float) -> Flow:
    """Each somewhere in its second: else they would meet Spark's own rhythm, or miss it, in every round."""
    chance = random.Random(1)
    for second in range(int(seconds)):
        yield second + chance.random(), RATE


def feed(bed: Bed, flow: Flow) -> None:
    bodies = pool(SIZE_BYTES)
    with bed.connect() as connection, connection.publisher(STREAM) as publisher:
        began = time.monotonic()
        for at, rows in flow:
            time.sleep(max(0.0, began + at - time.monotonic()))
            publisher.publish(bodies[:rows])
            publisher.flush()
