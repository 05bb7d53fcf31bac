# SPDX-License-Identifier: Apache-2.0
"""How much memory the broker uses, and how much it may: what the memory alarm compares.

Used is what the broker's processes have for themselves: resident pages less those of files and of shared memory.
The page cache, which holds the logs, is the kernel's to give away, so it does not count; and what a process
shares with the one that it was forked from counts in each, which errs on the safe side by some MiB.  It is read from
/proc/PID/statm, in microseconds: exact numbers (smaps) take milliseconds of a process with much memory.
May is a part of what the machine has, or of what the control group of the broker is allowed if that is less.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vibemq.broker.alarms import Conditions

PERCENT = 100
LOOK_EACH_S = 1.0  # some GB at worst, which peers' own memory bounds first
#: An alarm ends below this part of the watermark, so that it does not flutter.
END_PERCENT = 95


class MemoryWatch:
    """What the supervisor looks at every second; ``due`` is when, by the monotonic clock."""

    def __init__(self, conditions: Conditions, percent: int, absolute_bytes: int) -> None:
        self._conditions, self._percent, self._absolute_bytes = conditions, percent, absolute_bytes
        self.due = time.monotonic()

    def look(self, pids: Iterable[int]) -> None:
        self.due = time.monotonic() + LOOK_EACH_S
        watermark = high_watermark_bytes(self._percent, self._absolute_bytes, total_bytes())
        used = used_bytes(pids)
        is_alarm = self._conditions.has_memory_alarm
        if used > watermark or not watermark:
            is_alarm = watermark > 0
        elif used * PERCENT < watermark * END_PERCENT:
            is_alarm = False
        self._conditions.set_memory(used, watermark, is_alarm=is_alarm)


def used_bytes(pids: Iterable[int], proc: str = "/proc") -> int:
    """Of these processes; one that has ended uses none."""
    total = 0
    for pid in pids:
        try:
            with open(f"{proc}/{pid}/statm", "rb") as file:
                fields = file.read().split()
        except OSError:
            continue
        total += int(fields[1]) - int(fields[2])
    return total * os.sysconf("SC_PAGE_SIZE")


def total_bytes(proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> int:
    """Of the machine, or what the control group allows; 0: nobody says."""
    limits = [*_machine(proc), *_control_groups(proc, groups)]
    return min(limits, default=0)


def high_watermark_bytes(percent: int, absolute_bytes: int, total: int) -> int:
    """From where on publishers have to wait; 0: never.  A number of bytes goes before a part."""
    return absolute_bytes or total * percent // PERCENT


def _machine(proc: str) -> list[int]:
    try:
        with open(f"{proc}/meminfo", encoding="utf-8") as file:  # a codec that is loaded: root may be given up by now
            return [int(line.split()[1]) * 1024 for line in file if line.startswith("MemTotal:")]
    except OSError:
        return []


def _control_groups(proc: str, groups: str) -> list[int]:
    """The limits of this process's group and of those above it, of either version."""
    found = []
    try:
        with open(f"{proc}/self/cgroup", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            root, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = f"{groups}/memory", "memory.limit_in_bytes"
        else:
            continue
        while True:
            found += _limit(f"{root}{path.rstrip('/')}/{name}")
            if path in ("", "/"):
                break
            path = os.path.dirname(path)
    return found


def _limit(path: str) -> list[int]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read().strip()
    except OSError:  # a container shows its own group only, as the root
        return []
    return [int(text)] if text.isdigit() else []
