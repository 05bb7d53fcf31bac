# SPDX-License-Identifier: Apache-2.0
"""The report of the Spark pipeline for people: what was measured, and the ratios that are wanted of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.report import cell, table
from benchmarks.spark import fields, latency
from benchmarks.spark.works import BUCKET, KAFKA, LOCAL, MAPPED, ONE_TASK, OURS, PARQUET, SENDFILE, TWO_TASKS

Wanted = tuple[float | None, float | None]  # what is needed, and more than that
TITLES = {"scan": "batch scan", "drain": "drain by micro-batches", "sink": "sink", fields.WORK: "JSON to columns"}
RATES = {
    "M rows/s": ("rows_s", 1e6),
    "MB/s": ("mb_s", 1),
    "Spark's CPU, s": ("spark_cpu_s", 1),
    "broker's CPU, s": ("broker_cpu_s", 1),
}
AGES = {"median, ms": ("age_ms", 1), "p99, ms": ("age_p99_ms", 1), "a batch takes, ms": ("batch_ms", 1)}
AGE_NEEDED_MS = 30


@dataclass(frozen=True)
class Goal:
    """One way to do a work is to be so many times as fast as another of another; `wanted` by size in bytes."""

    text: str
    way: tuple[str, str]
    peer: tuple[str, str]
    wanted: dict[int, Wanted] = field(default_factory=dict)
    figure: str = "rows_s"  # of `way`; the peer's is always that


GOALS = (
    Goal("scan, local reads / Parquet", ("scan", LOCAL), ("scan", PARQUET), {100: (1.2, 1.6), 1000: (1.2, 1.6)}),
    Goal("mapped Arrow batches, a Python source / Parquet", ("scan", MAPPED), ("scan", PARQUET)),
    Goal("scan, local reads / mapped Arrow batches", ("scan", LOCAL), ("scan", MAPPED)),
    Goal("scan over TCP / Parquet", ("scan", OURS), ("scan", PARQUET), {100: (0.85, 1.0), 1000: (0.85, 1.0)}),
    Goal("the same batches by sendfile over TCP / Parquet", ("scan", SENDFILE), ("scan", PARQUET)),
    Goal("scan over TCP / Kafka's connector", ("scan", OURS), ("scan", KAFKA), {100: (1.5, 3), 1000: (1.5, 3)}),
    Goal("scan from the bucket / Parquet", ("scan", BUCKET), ("scan", PARQUET), {100: (0.7, 1.0), 1000: (0.7, 1.0)}),
    Goal("one stream in two tasks / in one", ("scan", TWO_TASKS), ("scan", ONE_TASK), {100: (1.5, None)}),
    Goal("drain over TCP / scan of Parquet", ("drain", OURS), ("scan", PARQUET), {100: (0.8, 1.0)}),
    Goal("drain, local reads / scan of Parquet", ("drain", LOCAL), ("scan", PARQUET), {100: (0.8, 1.0)}),
    Goal("its batches alone / scan of Parquet", ("drain", LOCAL), ("scan", PARQUET), figure="batches_rows_s"),
    Goal("drain over TCP / Kafka's connector", ("drain", OURS), ("drain", KAFKA)),
    Goal("sink, exactly once / Parquet", ("sink", OURS), ("sink", PARQUET), {100: (0.5, 1.0)}),
    Goal(
        "JSON to columns by the source / by from_json",
        (fields.WORK, fields.SOURCE),
        (fields.WORK, fields.FUNCTION),
        {fields.SIZE_BYTES: (1.0, None)},
    ),
    Goal("sink, exactly once / Kafka's, at least once", ("sink", OURS), ("sink", KAFKA), {100: (2, 4)}),
)


def goals(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each ratio that both of its sides were measured for."""
    medians = {
        (part["work"], part["size_bytes"], way): result["median"]
        for part in parts
        for way, result in part["results"].items()
    }
    found = []
    for goal in GOALS:
        for size in dict.fromkeys(part["size_bytes"] for part in parts):
            ours = medians.get((goal.way[0], size, goal.way[1]), {}).get(goal.figure)
            peer = medians.get((goal.peer[0], size, goal.peer[1]), {}).get("rows_s")
            if ours and peer:
                needed, stretch = goal.wanted.get(size, (None, None))
                text = f"{goal.text}, {size} B"
                found.append({"ratio": text, "measured": round(ours / peer, 2), "needed": needed, "stretch": stretch})
    return found


def age_above_rate_ms(parts: Sequence[dict[str, Any]]) -> float | None:
    """By how much a row in a burst is older at its commit than one of Spark's rate source."""
    ages = {way: result["median"].get("age_ms") for part in parts for way, result in part["results"].items()}
    ours, rate = ages.get(latency.BURSTS), ages.get(latency.RATE_SOURCE)
    return None if ours is None or rate is None else round(ours - rate, 1)


def markdown(report: dict[str, Any]) -> str:
    machine, parts = report["machine"], report["parts"]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    lines = [
        f"Measured {report['created']} on {machine['system']}, {machine['cores']} cores, brokers and Spark on them; "
        f"{versions}; median of {report['rounds']} rounds in alternation, smallest and largest in parentheses.",
    ]
    rates = [part for part in parts if part["work"] != "latency"]
    if rates:
        lines += ["", *table([("work", "rows", "way", *RATES), *_rows(rates, RATES)])]
    ages = [part for part in parts if part["work"] == "latency"]
    if ages:
        lines += ["", *table([("age of a row at commit", "rows", "way", *AGES), *_rows(ages, AGES)])]
    wanted = [(each["ratio"], f"{each['measured']:.2f}", *_wanted(each)) for each in report["goals"]]
    if (above := report["age_above_rate_ms"]) is not None:
        wanted.append(("age in bursts, more than the rate source's", f"{above:g} ms", f"{AGE_NEEDED_MS} ms", ""))
    if wanted:
        lines += ["", *table([("ratio", "measured", "needed", "more than that"), *wanted])]
    lines += ["", *(f"- not measured: {why}" for why in report["failures"])] if report["failures"] else []
    return "\n".join(lines) + "\n"


def _wanted(goal: dict[str, Any]) -> tuple[str, str]:
    needed, stretch = ("" if goal[name] is None else f"{goal[name]:g}" for name in ("needed", "stretch"))
    return needed, stretch


def _rows(parts: Sequence[dict[str, Any]], columns: dict[str, tuple[str, float]]) -> Iterator[Sequence[str]]:
    for part in parts:
        for way, result in part["results"].items():
            cells = [cell(result, figure, unit) for figure, unit in columns.values()]
            if result["failed"]:
                cells[0] += f" **{result['failed']} failed**"
            title = f"{TITLES.get(part['work'], part['work'])}, {part['size_bytes']} B"
            yield title, f"{part['rows']:,}", way, *cells
