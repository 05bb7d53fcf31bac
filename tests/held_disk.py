# SPDX-License-Identifier: Apache-2.0
"""A disk on which a test delays or fails calls (held_disk.c), for brokers started through it."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from running import wait_until

COMPILER = shutil.which("cc") or shutil.which("gcc")


class DiskCall(NamedTuple):
    pid: int
    thread: int
    name: str
    path: str


class HeldDisk:
    """``broker(..., through=disk.through)``."""

    def __init__(self, folder: Path) -> None:
        if COMPILER is None:
            pytest.skip("there is no C compiler to build another disk with")
        library, source = folder / "held_disk.so", Path(__file__).with_suffix(".c")
        options = ["-shared", "-fPIC", "-Wall", "-Werror", "-O1", "-D_GNU_SOURCE"]
        subprocess.run([COMPILER, *options, "-o", library, source, "-ldl"], check=True)
        self._folder = folder / "syncs"
        self._folder.mkdir()
        self.through = ("env", f"LD_PRELOAD={library}", f"VIBEMQ_SYNCS={self._folder}")

    def hold(self) -> None:
        """Hold each sync of a segment from now on."""
        (self._folder / "waits").unlink(missing_ok=True)
        (self._folder / "held").touch()

    def wait_until_held(self) -> None:
        """Wait until a sync of a segment waits."""
        wait_until((self._folder / "waits").exists, "a sync that waits")

    def fail(self) -> None:
        """Fail every sync of a segment from now on, also the held ones."""
        (self._folder / "failing").touch()
        self.release()

    def release(self) -> None:
        (self._folder / "held").unlink(missing_ok=True)

    def mend(self) -> None:
        (self._folder / "failing").unlink()

    def stall(self, part: object, call: str = "*") -> None:
        """Let calls that change a file with `part` in its path wait from now on; ``call``: only those of that name."""
        self._set("stalled", f"{call} {part}")

    def unstall(self) -> None:
        (self._folder / "stalled").unlink(missing_ok=True)

    def slow(self, part: object) -> None:
        """Let each call that changes a file with `part` in its path take 20 ms longer from now on."""
        self._set("slow", f"* {part}")

    def trace(self, part: object) -> None:
        """Note each call on files whose path contains `part` in `calls`, without a wait."""
        self._set("traced", f"* {part}")

    def calls(self) -> list[DiskCall]:
        """Calls that were traced, were slow, or that wait or have waited."""
        file = self._folder / "calls"
        lines = [line.split(" ", 3) for line in file.read_text().splitlines()] if file.exists() else []
        return [DiskCall(int(pid), int(thread), name, path) for pid, thread, name, path in lines]

    def wait_until_stalled(self, name: str = "") -> DiskCall:
        """Wait until a call waits (one of that name); return the first one."""
        wait_until(lambda: any(name in call.name for call in self.calls()), f"a stalled {name or 'call'}")
        return next(call for call in self.calls() if name in call.name)

    def _set(self, name: str, content: str) -> None:
        (self._folder / f"{name}.new").write_text(content)
        (self._folder / f"{name}.new").rename(self._folder / name)
