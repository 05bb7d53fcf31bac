# SPDX-License-Identifier: Apache-2.0
"""What the scripts that measure size have in common: memory of a broker, many open files, a report."""

import json
import resource
from pathlib import Path

from benchmarks.servers import VibeMQ
from vibemq.bench.run import tree_pids

MEMORY = ("Pss", "Pss_Anon", "Pss_File", "Pss_Shmem")


def memory_mb(server: VibeMQ) -> dict[str, float]:
    """Of all its processes together, by kind; what they share is counted once between them."""
    found = dict.fromkeys(MEMORY, 0.0)
    for pid in tree_pids(server.pid):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in found:
                found[name] += int(rest.split()[0]) / 1024
    return {name.lower() + "_mb": round(size, 1) for name, size in found.items()}


def as_many_files_as_allowed() -> None:
    """From here on this process, and what it starts, may have as many files open as the system lets it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def show(report: dict[str, object], output: Path | None) -> None:
    text = json.dumps(report, indent=2)
    print(text)
    if output:
        output.write_text(text + "\n")
