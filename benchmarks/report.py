# SPDX-License-Identifier: Apache-2.0
"""Servers side by side: the only figure of speed that means anything is a ratio from one run on one machine.

Servers take turns, and who begins changes with each round, so that whatever else the machine does falls on all of
them. What is reported is the median of the rounds with the smallest and the largest beside it, and each server's
durability, because a confirm that promises less is cheaper.
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vibemq.errors import VibeMQError

ROUNDS_DEFAULT_COUNT = 5  # the fewest that give a median with something on both sides of it
WARM_BLOCK_SIZE_BYTES = 1 << 20
RATES = ("consume_msg_s", "publish_msg_s")  # the first that a run has is shown


def head(rounds: int, baseline: str) -> dict[str, Any]:
    """What a report begins with: when, where and how."""
    return {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "rounds": rounds,
        "baseline": baseline,
    }


def machine() -> dict[str, Any]:
    """What the figures depend on and nobody remembers a month later."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_average_1_min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }


_warm_fd = -1  # of the file whose pages hold the memory, once there is one


def warm_memory(size_mb: int) -> None:
    """Keeps so much memory in use until the program ends: as page cache, which the kernel gives to whoever needs some.

    A virtual machine may hand memory that is free back to its host, and a page that comes from there again costs ten
    times as much to write as one that was in use, so whoever happens to be measured then would pay for it. A server
    that has been up for a while has no free memory either.
    """
    global _warm_fd
    if size_mb:
        _warm_fd = os.open("/var/tmp", os.O_TMPFILE | os.O_RDWR)  # a disk's: of a hole there the pages are page cache
        os.ftruncate(_warm_fd, size_mb * WARM_BLOCK_SIZE_BYTES)
        keep_warm()


def keep_warm() -> None:
    """Before each run: what was deleted since is taken into use again."""
    if _warm_fd >= 0:
        for at in range(0, os.fstat(_warm_fd).st_size, WARM_BLOCK_SIZE_BYTES):
            os.posix_fadvise(_warm_fd, at, WARM_BLOCK_SIZE_BYTES, os.POSIX_FADV_WILLNEED)


# ---- measuring ----


def alternate(
    scenario: str,
    rounds: int,
    servers: Sequence[Any],
    figures: Callable[[Any], dict[str, Any]],
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Each server's summary by its name. A run that fails is told and counted; the others go on."""
    runs: dict[str, list[dict[str, Any]]] = {server.name: [] for server in servers}
    for turn in range(rounds):
        for server in rotated(servers, turn):
            tell(f"{scenario}: round {turn + 1} of {rounds}, {server.name}")
            keep_warm()
            try:
                runs[server.name].append(figures(server))
            except VibeMQError as error:
                tell(f"{scenario}: {server.name} failed: {error}")
                runs[server.name].append({"error": str(error)})
    return {name: summary(each) for name, each in runs.items()}


def rotated(servers: Sequence[Any], turn: int) -> Sequence[Any]:
    first = turn % len(servers)
    return [*servers[first:], *servers[:first]]


def flat(figures: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a run by name, inner ones as `latency_us.p99`."""
    for name, value in figures.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            yield prefix + name, value


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Median, smallest and largest of each figure over the runs that succeeded, and the runs themselves."""
    numbers: dict[str, list[float]] = {}
    for figures in runs:
        for name, value in flat(figures):
            numbers.setdefault(name, []).append(value)
    return {
        "median": {name: statistics.median(values) for name, values in numbers.items()},
        "spread": {name: [min(values), max(values)] for name, values in numbers.items()},
        "failed": sum("error" in figures for figures in runs),
        "runs": runs,
    }


def ratios(results: dict[str, Any], figure: str, baseline: str) -> dict[str, float | None]:
    """How many times better than the baseline; of a time, less is better."""
    medians = {name: result["median"].get(figure) for name, result in results.items()}
    base = medians.get(baseline)
    if not base:
        return dict.fromkeys(medians)
    return {
        name: None if not value else round(base / value if "_us." in figure else value / base, 2)
        for name, value in medians.items()
    }


# ---- for people ----


def markdown(report: dict[str, Any]) -> str:
    """The report as two tables."""
    servers = [(each["name"], each["version"], each["durability"]) for each in report["servers"]]
    headings = ("msg/s", "MB/s", "broker CPU us/msg", "p50 us", "p99 us", "p99.9 us")
    rows: list[Sequence[str]] = [("load", "server", *headings, f"x {report['baseline']}")]
    for scenario in report["scenarios"]:
        for name, result in scenario["results"].items():
            rate = next((rate for rate in RATES if result["median"].get(rate)), RATES[-1])
            percentiles = (f"{scenario['percentiles']}.{percentile}" for percentile in ("p50", "p99", "p999"))
            figures = (rate, rate.replace("_msg_", "_mb_"), "broker_cpu_us_per_msg", *percentiles)
            cells = [cell(result, figure) for figure in figures]
            if result["failed"]:
                cells[0] += f" **{result['failed']} failed**"
            ratio = scenario["ratio"][name]
            rows.append((scenario["title"], name, *cells, "" if ratio is None else f"{ratio:g}"))
    lines = [
        f"Measured {report['created']} on {report['machine']['system']}, {report['machine']['cores']} cores; "
        f"median of {report['rounds']} rounds in alternation, smallest and largest in parentheses.",
        "",
        *table([("server", "version", "durability of a confirm"), *servers]),
        "",
        *table(rows),
    ]
    return "\n".join(lines) + "\n"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of markdown; the first row is the heading."""
    first, *others = (f"| {' | '.join(row)} |" for row in rows)
    return [first, "|" + "---|" * len(rows[0]), *others]


def cell(result: dict[str, Any], figure: str, unit: float = 1) -> str:
    """A figure's median, smallest and largest, in so many of its unit."""
    if figure not in result["median"]:
        return ""
    numbers = [number / unit for number in (result["median"][figure], *result["spread"][figure])]
    middle, low, high = (f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}" for number in numbers)
    return f"{middle} ({low}..{high})"
