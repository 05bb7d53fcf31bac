# SPDX-License-Identifier: Apache-2.0
"""What a machine finds on its disk after its power went: all that was synced, and of the rest what had been written.

Files that grew may be shorter, or have zeros where their pages never came; names that were new may be gone.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from random import Random

from other_boot import write_in_another_boot

from vibemq.storage.log import dump
from vibemq.storage.metadata import Metadata

PAGE_BYTES = 4096
#: Synced, with their names, before anything depends on them.
WHOLE = {".remote", ".quarantine", ""}


def log_directories(data: Path) -> list[Path]:
    metadata = Metadata(str(data / "meta.db"))
    found = [Path(record.directory) for record in metadata.logs() if os.path.isdir(record.directory)]
    metadata.close()
    return found


def cut_power(data: Path, chance: Random) -> list[str]:
    """Of a data directory that nobody uses; what it did, a line each."""
    done = []
    for directory in log_directories(data):
        if chance.random() < 0.05:  # a file system's own check may find a directory that is none
            shutil.rmtree(directory)
            done.append(f"{directory.name}: gone")
            continue
        segment, position = _numbers(directory / "control", r"durable: segment (\d+) up to byte (\d+)")
        entries = _numbers(directory / "ledger", r"synced: (\d+)")[0] if (directory / "ledger").exists() else 0
        for path in sorted(directory.iterdir()):
            safe = _safe_bytes(path, segment, position, entries)
            if safe is not None and (harm := _harm(path, safe, chance)):
                done.append(f"{directory.name}/{path.name}: {harm}, of {safe} bytes that were synced")
        write_in_another_boot(directory)
    return done


def _safe_bytes(path: Path, segment: int, position: int, entries: int) -> int | None:
    """So many bytes of the file were synced; None: all."""
    if path.name in ("tracking", "offsets"):
        return 0
    if path.suffix in WHOLE or not path.stem.isdigit():
        return None
    first = int(path.stem)
    if path.suffix == ".ledger":
        return None if first < entries else 0
    if path.suffix == ".segment" and first == segment:
        return position
    return None if first < segment or (path.suffix == ".tracking" and first == segment) else 0


def _harm(path: Path, safe: int, chance: Random) -> str:
    size = path.stat().st_size
    kind = chance.choice(("", "cut", "zeros", "gone" if safe == 0 else "cut"))
    at = chance.randint(min(safe, size), size)
    if kind == "cut":
        os.truncate(path, at)
        return f"{size} bytes cut to {at}"
    if kind == "zeros":
        holes = [page for page in range(at - at % PAGE_BYTES, size, PAGE_BYTES) if chance.random() < 0.7]
        with open(path, "r+b") as file:
            for page in holes:
                file.seek(begin := max(page, safe))
                file.write(bytes(min(page + PAGE_BYTES, size) - begin))
        return f"zeros in pages at {holes}"
    if kind == "gone":
        path.unlink()
    return kind


def _numbers(path: Path, pattern: str) -> tuple[int, ...]:
    lines: list[str] = []
    dump(str(path), False, 0, lines.append)
    found = re.search(pattern, "\n".join(lines))
    assert found is not None, lines
    return tuple(map(int, found.groups()))
