# SPDX-License-Identifier: Apache-2.0
"""A small file system of its own, which a test may fill to the last byte; or a broker that is told how much is free."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import running as runner

FILLER = "somebody-elses-file"
PIECE_BYTES = 1 << 20


@contextmanager
def small_disk(folder: Path, size_bytes: int, kind: str, files_max: int = 0) -> Iterator[Path]:
    """``kind``: "tmpfs", or "ext4" in a file; the test is skipped where this may not be mounted.

    ``files_max``: of a tmpfs, the files that it can have; 0: no limit.
    """
    mounted = folder / kind
    mounted.mkdir()
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},nr_inodes={files_max}", "none", str(mounted)]
    else:
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("mkfs.ext4 is not installed")
        image = folder / "image"
        with open(image, "wb") as file:
            file.truncate(size_bytes)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
        command = ["mount", "-o", "loop", str(image), str(mounted)]
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


class ToldFree:
    """What brokers that start from now on take for free: what a file says, which their Python's first module reads."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        self._file = folder / "free"
        site = folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(
            "import os\n"
            "real = os.statvfs\n"
            "def statvfs(path):\n"
            "    found = list(real(path))\n"
            f"    found[1], found[4] = 1, int(open({str(self._file)!r}).read())\n"
            "    return os.statvfs_result(found)\n"
            "os.statvfs = statvfs\n"
        )
        self.say(text)
        monkeypatch.setitem(runner.ENVIRONMENT, "PYTHONPATH", f"{site}:{runner.ENVIRONMENT['PYTHONPATH']}")

    def say(self, text: str) -> None:
        """At once: the broker never reads half of it."""
        new = self._file.with_suffix(".new")
        new.write_text(text)
        new.rename(self._file)


def fill(disk: Path) -> None:
    """As somebody else who writes there: until nothing is free."""
    with open(disk / FILLER, "ab", buffering=0) as file:
        size = PIECE_BYTES
        while size:
            try:
                if file.write(bytes(size)) < size:
                    size //= 2
            except OSError as problem:
                if problem.errno != errno.ENOSPC:
                    raise
                size //= 2
        os.fsync(file.fileno())


def free_bytes(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize
