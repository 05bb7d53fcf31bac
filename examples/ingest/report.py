# SPDX-License-Identifier: Apache-2.0
"""What the example shows: one live line while it runs, then a short table and a plot."""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from job import BACK, PARQUET, Job, Outcome, Progress
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUSIEST_COUNT = 5
#: In the plot, points further apart are not joined: there is a sample a second, and five of the progress.
SAMPLES_APART_S_MAX, HISTORY_APART_S_MAX = 2.5, 2.0
PLAIN_LINE_SECONDS = 3.0  # where nothing can be redrawn, a line this often


class Line:
    """The live line; plain lines where standard error is no terminal."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.console = Console(stderr=True, highlight=False)
        self.live = Live(console=self.console, auto_refresh=False, transient=True) if self.console.is_terminal else None
        self.shown_at = 0.0
        self.shown = ""

    def __enter__(self) -> Line:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self.live.stop()

    def tell(self, doing: str) -> None:
        text = self._text(doing)
        if self.live:
            self.live.update(Text(text), refresh=True)
        elif doing != self.shown or time.monotonic() - self.shown_at >= PLAIN_LINE_SECONDS:
            print(text, file=sys.stderr, flush=True)
            self.shown, self.shown_at = doing, time.monotonic()

    def _text(self, doing: str) -> str:
        progress = self.progress
        confirmed, written = self._rates()
        parts = [f"{progress.seconds:5.1f} s  {doing:<16}"]
        parts.append(f"sent {progress.sent:>9,}  confirmed {progress.confirmed:>9,}")
        parts.append(f"in Parquet {progress.rows(PARQUET):>9,}  written back {progress.rows(BACK):>9,}")
        if confirmed or progress.rows(PARQUET):
            parts.append(f"{confirmed:,.0f} confirmed/s, {written:,.0f} to Parquet/s")
        else:
            parts.append("publishing waits for Spark's first batch")
        return "  ".join(parts)

    def _rates(self) -> tuple[float, float]:
        """Over the last few seconds: rows come to Parquet in steps of one trigger."""
        history = self.progress.history
        if len(history) < 2:
            return 0.0, 0.0
        last = history[-1]
        first = next((each for each in history if last[0] - each[0] <= 5.0), history[0])
        seconds = max(last[0] - first[0], 0.001)
        return (last[1] - first[1]) / seconds, (last[2] - first[2]) / seconds


def show(job: Job, progress: Progress, outcome: Outcome, plot_file: Path | None) -> None:
    """The table, on standard output."""
    console = Console(highlight=False)
    facts = Table.grid(padding=(0, 2))
    seconds = max(progress.publish_seconds, 0.001)
    rate = f"{progress.confirmed / seconds:,.0f} messages/s"
    facts.add_row("published", f"{progress.sent:,} messages, {progress.confirmed:,} confirmed")
    facts.add_row("", _by_door(progress.confirmed_by))
    facts.add_row("", f"{progress.bytes / 1e6:,.1f} MB in {seconds:.1f} s: {rate}")
    facts.add_row("in Parquet", f"{outcome.rows[PARQUET]:,} rows, {outcome.bytes / 1e6:,.1f} MB, {job.data}")
    facts.add_row("", _by_door(outcome.doors))
    facts.add_row("written back", f"{outcome.rows[BACK]:,} readings, into stream {job.back}")
    busy = [each for each in progress.history if each[2]]
    if busy:
        seconds = max(busy[-1][0] - progress.history[0][0], 0.001)
        rows = progress.rows(PARQUET) + progress.rows(BACK)
        facts.add_row("", f"{rows / seconds:,.0f} rows/s by both over {seconds:.1f} s, with a restart of each")
    if outcome.mismatches:
        facts.add_row("check", "FAILED")
    else:
        facts.add_row("check", "every confirmed message is there exactly once, both ways")
    if plot_file:
        facts.add_row("plot", str(plot_file))
    console.print(facts, soft_wrap=True)
    if outcome.metrics:
        table = Table(title="busiest metrics", title_justify="left")
        for name in ("metric", "messages", "min", "mean", "max"):
            table.add_column(name, justify="left" if name == "metric" else "right")
        for metric, count, *numbers in outcome.metrics[:BUSIEST_COUNT]:
            table.add_row(metric, f"{count:,}", *(f"{number:,.6g}" for number in numbers))
        console.print(table)
    for mismatch in outcome.mismatches:
        print(f"mismatch: {mismatch}", file=sys.stderr)


def _by_door(counts: Mapping[str, int]) -> str:
    """
    >>> _by_door({"streams": 12345, "native": 678})
    '12,345 through the streams door, 678 through the native door'
    """
    return ", ".join(f"{counts[door]:,} through the {door} door" for door in sorted(counts, reverse=True))


# ---- the plot ----


def plot(job: Job, spark: SparkSession, progress: Progress) -> Path | None:
    """A PNG: what was confirmed and written over time, and how busy the processors were. None without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
        from matplotlib.ticker import StrMethodFormatter
    except ImportError:
        return None
    busy = _busy_processors(job, spark)
    figure, axes = pyplot.subplots(
        2 if busy else 1, 1, figsize=(9, 7 if busy else 4), layout="constrained", squeeze=False, sharex=True
    )
    start = progress.published_at
    upper: Any = axes[0][0]
    times = [each[0] - start for each in progress.history]
    confirmed = with_gaps([(each[0] - start, each[1]) for each in progress.history], HISTORY_APART_S_MAX)
    upper.plot([second for second, _ in confirmed], [count for _, count in confirmed], label="confirmed by the broker")
    upper.step(times, [each[2] for each in progress.history], where="post", label="written to Parquet")
    upper.set(title=f"stream {job.stream}", ylabel="messages")
    upper.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    upper.legend(loc="upper left")
    upper.grid(alpha=0.3)
    if busy:
        lower: Any = axes[1][0]
        zero = progress.started_at + start
        for device, points in sorted(busy.items()):
            points = with_gaps(points, SAMPLES_APART_S_MAX)
            lower.plot([second - zero for second, _ in points], [share for _, share in points], label=device)
        lower.set(title="processor time not idle, from the Parquet", ylabel="%", ylim=(0, 105))
        lower.legend(loc="lower right", ncols=4)
        lower.grid(alpha=0.3)
    axes[-1][0].set(xlabel="seconds since the first message", xlim=(min(0.0, *times), None))
    file = job.output / "ingest.png"
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
    return file


def with_gaps(points: Sequence[tuple[float, float]], apart_s_max: float) -> list[tuple[float, float]]:
    """The points, with one that is not drawn where two lie further apart: no line across missing samples."""
    found: list[tuple[float, float]] = []
    for second, value in points:
        if found and second - found[-1][0] > apart_s_max:
            found.append(((found[-1][0] + second) / 2, math.nan))
        found.append((second, value))
    return found


def _busy_processors(job: Job, spark: SparkSession) -> dict[str, list[tuple[float, float]]]:
    """For each processor, how much of each second since 1970 it was not idle."""
    from pyspark.sql import functions as F

    if not any(job.data.glob("metric=cpu_seconds/*.parquet")):
        return {}
    frame = spark.read.parquet(str(job.data)).where("metric = 'cpu_seconds' and device <> 'cpu'")
    second = F.floor(F.unix_micros("time") / 1_000_000)
    totals = frame.groupBy("device", second.alias("second"), "field").agg(F.max("value").alias("value")).collect()
    return busy_shares((row.device, row.second, row.field, row.value) for row in totals)


def busy_shares(totals: Iterable[tuple[str, int, str, float]]) -> dict[str, list[tuple[float, float]]]:
    """Counters of processor time, as (device, second, field, value), to percent of each second that was not idle.

    A point is in the middle of its time: what counts of a second is its last sample.
    """
    seconds: dict[str, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for device, second, field, value in totals:
        seconds[device][second][field] = value
    shares: dict[str, list[tuple[float, float]]] = {}
    for device, by_second in seconds.items():
        ordered = sorted(by_second)
        points = []
        for before, after in pairwise(ordered):
            spent = {field: value - by_second[before].get(field, value) for field, value in by_second[after].items()}
            # guest time is counted in user time as well
            whole = sum(value for field, value in spent.items() if not field.startswith("guest"))
            idle = spent.get("idle", 0.0) + spent.get("iowait", 0.0)
            if whole > 0:
                points.append(((before + after) / 2 + 1, 100 * (whole - idle) / whole))
        if points:
            shares[device] = points
    return shares
