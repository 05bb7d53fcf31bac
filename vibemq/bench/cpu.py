# SPDX-License-Identifier: Apache-2.0
"""Processor time and place of a process and all that it started: a broker is often more than one process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vibemq.errors import UserError

TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def tree_cpu_s(pid: int) -> float:
    """User and system seconds of `pid` and its descendants that are alive now."""
    return sum(tree_pids(pid).values())


@contextmanager
def only_on(core: int, pid: int) -> Iterator[None]:
    """Keeps every thread of `pid` and its descendants on one core for as long as this lasts."""
    threads = [int(task.name) for process in tree_pids(pid) for task in Path(f"/proc/{process}/task").iterdir()]
    before = {}
    try:
        for thread in threads:
            with suppress(ProcessLookupError):
                before[thread] = os.sched_getaffinity(thread)
                os.sched_setaffinity(thread, {core})
        yield
    finally:
        for thread, cores in before.items():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)


def tree_pids(pid: int) -> dict[int, float]:
    """`pid` and its descendants, with the seconds that each has used."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text()
        except OSError:  # it ended while we looked
            continue
        # The name in parentheses may hold anything, so the fields are counted from the last parenthesis.
        fields = stat[stat.rindex(")") + 2 :].split()
        parents[int(folder.name)] = int(fields[1])
        seconds[int(folder.name)] = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    if pid not in seconds:
        raise UserError(f"process {pid}: there is none", hint="Give the process id of the broker's first process.")
    return {process: used for process, used in seconds.items() if _descends(process, pid, parents)}


def _descends(process: int, ancestor: int, parents: dict[int, int]) -> bool:
    while process not in (ancestor, 0):
        process = parents.get(process, 0)
    return process == ancestor
