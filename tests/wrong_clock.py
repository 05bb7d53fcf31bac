# SPDX-License-Identifier: Apache-2.0
"""A wall clock that a test sets (wrong_clock.c), for processes that are started through it."""

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

COMPILER = shutil.which("cc") or shutil.which("gcc")
HOUR_S = 3600
DAY_S = 24 * HOUR_S


class Clock:
    """``broker(..., through=clock.through)``."""

    def __init__(self, folder: Path) -> None:
        if COMPILER is None:
            pytest.skip("there is no C compiler to build another clock with")
        library, file = folder / "clock.so", folder / "clock"
        source = Path(__file__).with_name("wrong_clock.c")
        subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
        file.write_bytes(bytes(16))
        with open(file, "r+b") as opened:
            self._words = mmap.mmap(opened.fileno(), 16)
        self.environ = {"LD_PRELOAD": str(library), "VIBEMQ_CLOCK": str(file)}
        self.through = ("env", *(f"{name}={value}" for name, value in self.environ.items()))

    def jump(self, wrong_s: int) -> None:
        """To so many seconds before or behind the right time."""
        struct.pack_into("=q", self._words, 0, wrong_s)

    def synchronise(self) -> None:
        """From now on the kernel says that the clock is synchronised."""
        struct.pack_into("=q", self._words, 8, 1)
