# SPDX-License-Identifier: Apache-2.0
"""The memory that all of the broker's processes use, which the supervisor compares with the high watermark.

Forked processes share pages, so the sum of their resident sizes is too high, by 30 MiB for each worker.  The kernel
divides a shared page among the processes that have it (`Pss` in /proc/PID/smaps_rollup), which is exact.  Reading that
walks all pages: 6 ms for each GiB.  So it is read seldom, and in between the change of the resident sizes, which cost
some microseconds, is added to it.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from vibemq.control_groups import memory_limit_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vibemq.broker.alarms import Conditions

PERCENT = 100
MEMORY_LOOK_EACH_S = 1.0  # in which peers may send some GB at worst; the limits of each connection bound that first
#: A memory alarm ends below this part of the watermark, so that it does not flutter.
MEMORY_END_PERCENT = 95
#: Shortest time between two exact readings, and the part of the supervisor's time that they may take.
EXACT_EACH_S = 10.0
EXACT_TIME_PARTS = 100
#: Added to the score by which the kernel chooses a process to kill when memory runs out, in thousandths of the memory:
#: a worker's death costs its connections, the supervisor's ends the broker.
OOM_SCORE_ADDED = 50
OOM_SCORE_MAX = 1000
_OOM_SCORE = "/proc/self/oom_score_adj"


def may_set_oom_score() -> bool:
    """True if this process and its children may change their score; not after root was given up for another account."""
    return os.access(_OOM_SCORE, os.W_OK)


def be_killed_first() -> None:
    """Let the kernel kill this child of the supervisor first when memory runs out."""
    if may_set_oom_score():
        with open(_OOM_SCORE, "r+", encoding="ascii") as file:
            score = int(file.read())
            file.seek(0)
            file.write(str(min(score + OOM_SCORE_ADDED, OOM_SCORE_MAX)))


class MemoryWatch:
    """Compares once in MEMORY_LOOK_EACH_S; ``due`` is the next time by the monotonic clock."""

    def __init__(self, conditions: Conditions, percent: int, absolute_bytes: int, data_dir: str) -> None:
        self._conditions, self._percent, self._absolute_bytes = conditions, percent, absolute_bytes
        self._usage = MemoryUsage(data_dir)
        self.due = time.monotonic()

    def look(self, pids: Iterable[int]) -> None:
        self.due = time.monotonic() + MEMORY_LOOK_EACH_S
        watermark = high_watermark_bytes(self._percent, self._absolute_bytes, total_bytes())
        used = self._usage.bytes_of(pids)
        is_alarm = self._conditions.has_memory_alarm
        if used > watermark or not watermark:
            is_alarm = watermark > 0
        elif used * PERCENT < watermark * MEMORY_END_PERCENT:
            is_alarm = False
        self._conditions.set_memory(used, watermark, is_alarm=is_alarm)


class MemoryUsage:
    """Memory that processes have for themselves: no pages of files, because the kernel may take those away.

    Files of a data directory on a tmpfs are memory, and count.
    """

    def __init__(self, data_dir: str, proc: str = "/proc") -> None:
        self._data_dir, self._proc = data_dir, proc
        self._is_tmpfs: bool | None = None  # not known yet
        self._exact_due_s = time.monotonic()
        self._pids: frozenset[int] = frozenset()
        self._too_many = 0  # bytes by which the sum of resident sizes exceeded the exact figure

    def bytes_of(self, pids: Iterable[int]) -> int:
        """Bytes; a process that has ended uses none."""
        pids = frozenset(pids)
        resident = sum(self._resident_bytes(pid) for pid in pids)
        began_s = time.monotonic()
        if pids != self._pids or began_s >= self._exact_due_s:
            self._pids = pids
            self._too_many = resident - sum(self._exact_bytes(pid) for pid in pids)
            took_s = time.monotonic() - began_s
            self._exact_due_s = began_s + max(EXACT_EACH_S, took_s * EXACT_TIME_PARTS)
        if self._is_tmpfs is None:  # once: another file system may not answer
            self._is_tmpfs = is_on_tmpfs(self._data_dir, self._proc)
        return max(resident - self._too_many, 0) + (tmpfs_bytes(self._data_dir) if self._is_tmpfs else 0)

    def _resident_bytes(self, pid: int) -> int:
        """Resident pages without those of files and of shared memory."""
        try:
            with open(f"{self._proc}/{pid}/statm", "rb") as file:
                fields = file.read().split()
        except OSError:
            return 0
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")

    def _exact_bytes(self, pid: int) -> int:
        """The same, with a page that n processes share counted as one n-th of a page.

        Where the kernel shows no such figure (before Linux 5.4, or a filter forbids it) it is the resident size.
        """
        try:
            with open(f"{self._proc}/{pid}/smaps_rollup", "rb") as file:
                lines = file.read().splitlines()
        except OSError:
            return self._resident_bytes(pid)
        found = [int(line.split()[1]) for line in lines if line.startswith(b"Pss_Anon:")]
        return found[0] * 1024 if found else self._resident_bytes(pid)


def is_on_tmpfs(folder: str, proc: str = "/proc") -> bool | None:
    """Return whether `folder` is on a tmpfs; None: unknown."""
    try:
        device = os.stat(folder).st_dev
        with open(f"{proc}/self/mountinfo", encoding="utf-8", errors="replace") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}"
    return any(words[2] == wanted and words[words.index("-") + 1] == "tmpfs" for words in mounts)


def tmpfs_bytes(folder: str) -> int:
    """Return the bytes in use of the tmpfs of `folder`; 0: it does not tell."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def total_bytes(proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> int:
    """Bytes of the machine, or those that its control groups allow; 0: neither is known."""
    limits = [limit for limit in (_machine_bytes(proc), memory_limit_bytes(proc, groups)) if limit is not None]
    return min(limits, default=0)


def high_watermark_bytes(percent: int, absolute_bytes: int, total: int) -> int:
    """Bytes above which publishers have to wait; 0: never.  A number of bytes goes before a part."""
    return absolute_bytes or total * percent // PERCENT


def _machine_bytes(proc: str) -> int | None:
    try:
        with open(f"{proc}/meminfo", encoding="utf-8") as file:  # a loaded codec: root may be given up
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("MemTotal:")), None)
    except OSError:
        return None
