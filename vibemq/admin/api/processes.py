# SPDX-License-Identifier: Apache-2.0
"""What the kernel says of a process, so that it holds for one that hangs as well."""

from __future__ import annotations

import os
import resource

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def about(pid: int) -> dict[str, float]:
    """Nothing where it has just died."""
    try:
        fds = os.stat(f"/proc/{pid}/fd").st_size or len(os.listdir(f"/proc/{pid}/fd"))  # 0 before Linux 6.2
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            words = file.read().rpartition(")")[2].split()
        limit, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    except OSError:
        return {}
    return {
        "open_fds": fds,
        "max_fds": limit,
        "cpu_seconds_total": (int(words[11]) + int(words[12])) / _TICKS_PER_S,
        "resident_memory_bytes": int(words[21]) * _PAGE_BYTES,
    }
