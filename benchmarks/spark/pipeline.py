# SPDX-License-Identifier: Apache-2.0
"""Spark beside itself: our source and sink, its Kafka connector with a Kafka broker, and Parquet, in one run.

    python -m benchmarks spark --rounds 5 --output result

One session, one broker of ours, one Kafka broker, all on this machine's cores. The same rows lie in all places. Each
way of a work is done once to be checked by count and checksum, which warms up, and then timed in alternation with the
others. What fails is told and left out; the rest goes on.
"""

from __future__ import annotations

import importlib.util
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from benchmarks import report
from benchmarks.compare import installed
from benchmarks.servers import VibeMQ
from benchmarks.spark import fields, latency, table, works
from benchmarks.spark.bed import Bed
from benchmarks.spark.kafka import Kafka, jars
from vibemq.errors import VibeMQError

WORKS = ("scan", "drain", "sink", fields.WORK, "latency")
PEERS = ("parquet", "kafka", "bucket", "mapped", "sendfile")
CASES = {"scan": works.scans, "drain": works.drains, "sink": works.sinks}
ROWS_DEFAULT = 10_000_000
LARGE_BYTES = 1000  # of rows so large there are a fifth as many
MESSAGE_CHARACTERS_MAX = 600


BEGAN = time.monotonic()


def tell(line: str) -> None:
    """Progress, beside the report that may go elsewhere."""
    click.echo(f"{time.monotonic() - BEGAN:6.0f} s  {line}", err=True)


@dataclass(frozen=True)
class Way:
    """What report.alternate takes turns with."""

    name: str
    figures: Callable[[], dict[str, Any]]


@dataclass
class Pipeline:
    bed: Bed
    rounds: int
    parts: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def attempt(self, what: str, call: Callable[[], Any]) -> bool:
        """Whether it went well; if not, why is told and reported."""
        try:
            call()
        except Exception as failed:  # of Spark, of the JVM, of a broker: whatever it is, the other parts go on
            self.failures.append(f"{what}: {brief(failed)}")
            tell(f"FAILED {self.failures[-1]}")
            return False
        return True

    def size(self, size: int, rows: int, wanted: Iterable[str]) -> None:
        if self.attempt(f"{size} B, the rows", lambda: self.bed.fill(size, rows)):
            for work in wanted:
                if work in CASES:
                    cases = CASES[work](self.bed, size)
                    self.attempt(f"{work}, {size} B", lambda work=work, cases=cases: self.rates(work, size, cases))
        self.attempt(f"{size} B, clearing", lambda: self.bed.drop(size))

    def json(self, rows: int) -> None:
        self.rates(fields.WORK, fields.SIZE_BYTES, fields.cases(self.bed, fields.publish(self.bed, rows)))

    def rates(self, work: str, size: int, cases: Iterable[works.Case]) -> None:
        ways = []
        for case in cases:
            tell(f"{work}, {size} B: checking {case.name}")

            if self.attempt(f"{work}, {size} B, {case.name}", lambda case=case: works.verify(case)):
                ways.append(Way(case.name, lambda case=case: works.measured(self.bed, case, size)))
                rows = case.expected[0]
        if ways:
            self.part(work, size, rows, ways)

    def latency(self, seconds: float) -> None:
        ways = [Way(name, figures) for name, figures in latency.cases(self.bed, seconds)]
        self.part("latency", latency.SIZE_BYTES, round(latency.RATE * seconds), ways)

    def part(self, work: str, size: int, rows: int, ways: list[Way]) -> None:
        results = report.alternate(f"{work}, {size} B", self.rounds, ways, figures, tell)
        self.parts.append({"work": work, "size_bytes": size, "rows": rows, "results": results})


def figures(way: Way) -> dict[str, Any]:
    """A run of it; whatever fails in it is a VibeMQError, which report.alternate counts."""
    try:
        return way.figures()
    except Exception as failed:
        raise VibeMQError(brief(failed)) from failed


def brief(failed: Exception) -> str:
    """What Spark says first, and the Python exception behind it, without the stacks of either language."""
    said = str(failed).splitlines() or [""]
    causes = [line for line in said[1:] if re.match(r"[a-z_.]*[A-Z]\w+: ", line)]
    return " ... ".join([f"{type(failed).__name__}: {said[0]}", *causes[-1:]])[:MESSAGE_CHARACTERS_MAX]


def choice(known: Iterable[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Words separated by commas."""

    def read(_: click.Context, parameter: click.Parameter, text: str) -> list[str]:
        words = [word.strip() for word in text.split(",") if word.strip()]
        if strange := set(words) - set(known):
            raise click.BadParameter(f"needed some of {', '.join(known)}, had {', '.join(sorted(strange))}")
        return words

    return read


def sizes(_: click.Context, __: click.Parameter, text: str) -> list[int]:
    words = text.split(",")
    if not all(word.strip().isdigit() and int(word) > 1 for word in words):
        raise click.BadParameter(f"needed numbers of bytes, had {text}")
    return [int(word) for word in words]


@click.command()
@click.option("--work", "wanted", default=",".join(WORKS), show_default=True, callback=choice(WORKS))
@click.option("--sizes", "sizes_bytes", default="100,1000", show_default=True, callback=sizes, help="Bytes of a row.")
@click.option("--rows", default=ROWS_DEFAULT, show_default=True, help=f"A fifth of it from {LARGE_BYTES} B on.")
@click.option("--rounds", type=click.IntRange(1), default=report.ROUNDS_DEFAULT_COUNT, show_default=True)
@click.option("--peers", default=",".join(PEERS), show_default=True, callback=choice(PEERS))
@click.option("--latency-s", default=latency.MEASURED_DEFAULT_S, show_default=True, help="Of each run of `latency`.")
@click.option("--warm-mb", type=click.IntRange(0), default=0, help="Keep so much memory in use.")
@click.option("--folder", type=click.Path(path_type=Path), help="For all data; 20 GB at the default number of rows.")
@click.option("--output", type=click.Path(path_type=Path), help="Writes OUTPUT.json and OUTPUT.md.")
def spark(
    wanted: list[str],
    sizes_bytes: list[int],
    rows: int,
    rounds: int,
    peers: list[str],
    latency_s: float,
    warm_mb: int,
    folder: Path | None,
    output: Path | None,
) -> None:
    """Spark's reads and writes: ours beside its Kafka connector and Parquet."""
    report.warm_memory(warm_mb)
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vibemq-bench-", dir=folder)))
        pipeline = Pipeline(bed(stack, data, peers), rounds)
        for size in sizes_bytes if CASES.keys() & set(wanted) else ():
            pipeline.size(size, rows if size < LARGE_BYTES else rows // 5, wanted)
        if fields.WORK in wanted:
            pipeline.attempt(fields.WORK, lambda: pipeline.json(rows // 5))
        if "latency" in wanted:
            pipeline.attempt("latency", lambda: pipeline.latency(latency_s))
        show(pipeline, output)


def bed(stack: ExitStack, folder: Path, peers: list[str]) -> Bed:
    """Everything started; what is not there is told and left out."""
    from vibemq.spark import local_session

    kafka = None
    settings = {"spark.local.dir": str(folder), "spark.sql.streaming.numRecentProgressUpdates": "10000"}
    for kafka in installed([Kafka], folder, tell) if "kafka" in peers else []:
        tell("starting kafka")
        stack.callback(kafka.stop)
        kafka.start()
        settings["spark.jars"] = ",".join(jars("connector"))
    tell("starting vibemq and Spark")
    broker = VibeMQ(folder / "vibemq")
    stack.callback(broker.stop)
    broker.start()
    session = local_session("bench", log_file=folder / "spark.log", config=settings)
    stack.callback(session.stop)
    sender = None
    if "sendfile" in peers:
        from benchmarks.spark.mapped import Sender  # which imports Spark

        sender = Sender()
        stack.callback(sender.stop)
    found = frozenset(peers)
    if "bucket" in found and importlib.util.find_spec("obstore") is None:
        tell("no bucket: the Python package obstore is not installed (the extra remote)")
        found -= {"bucket"}
    return Bed(session, folder, broker, kafka, sender, tell, found)


def show(pipeline: Pipeline, output: Path | None) -> None:
    """The report in the terminal and in files; a part that failed is an exit code of 1."""
    bed, parts = pipeline.bed, pipeline.parts
    versions = {"Spark": bed.spark.version, "VibeMQ": bed.broker.version()}
    if bed.kafka:
        versions["Kafka"] = bed.kafka.version()
    measured = {
        **report.head(pipeline.rounds, ""),
        "versions": versions,
        "parts": parts,
        "goals": table.goals(parts),
        "age_above_rate_ms": table.age_above_rate_ms(parts),
        "failures": pipeline.failures,
    }
    text = table.markdown(measured)
    if output is not None:
        output.with_name(output.name + ".json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
        output.with_name(output.name + ".md").write_text(text, encoding="utf-8")
    click.echo(text, nl=False)
    if pipeline.failures or any(result["failed"] for part in parts for result in part["results"].values()):
        raise click.exceptions.Exit(1)
