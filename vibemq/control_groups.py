# SPDX-License-Identifier: Apache-2.0
"""The limits of memory and processors that Linux control groups set for this process, of either version.

A group's limit also holds for all groups below it, so each limit is the smallest on the way up to the root.  A
container shows its own group as the root.  Sources: the kernel's admin-guide/cgroup-v2 and admin-guide/cgroup-v1.
"""

import os
from collections.abc import Iterator


def memory_limit_bytes(proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> int | None:
    """Bytes that this process's groups may use; None: no group has a limit.

    `memory.high` counts as well as `memory.max`: above it the kernel slows a group down until it hardly runs.
    """
    found = []
    for folder, is_unified in _folders("memory", proc, groups):
        for name in ("memory.max", "memory.high") if is_unified else ("memory.limit_in_bytes",):
            text = _text(f"{folder}/{name}")
            if text.isdigit():  # else "max", or the group has no such file
                found.append(int(text))
    return min(found, default=None)


def processors_limit(proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> float | None:
    """Processors' worth of time that this process's groups may use, 1.5 for example; None: no group has a quota."""
    found = []
    for folder, is_unified in _folders("cpu", proc, groups):
        if is_unified:
            words = _text(f"{folder}/cpu.max").split()
        else:
            words = [_text(f"{folder}/cpu.cfs_quota_us"), _text(f"{folder}/cpu.cfs_period_us")]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            found.append(int(words[0]) / int(words[1]))
    return min(found, default=None)


def _folders(controller: str, proc: str, groups: str) -> Iterator[tuple[str, bool]]:
    """Folders of this process's group for `controller` and of the groups above it; True: of version 2."""
    for line in _text(f"{proc}/self/cgroup").split("\n"):
        if line.count(":") < 2:
            continue
        number, controllers, path = line.split(":", 2)
        if number == "0":
            root = groups
        elif controller in controllers.split(","):
            root = f"{groups}/{controller}"
        else:
            continue
        while True:
            yield f"{root}{path.rstrip('/')}", number == "0"
            if path in ("", "/"):
                break
            path = os.path.dirname(path)


def _text(path: str) -> str:
    """Contents of a file of the kernel's; "" where it has none.  Names of groups may have any bytes."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().strip()
    except OSError:
        return ""
