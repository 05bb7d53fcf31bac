# SPDX-License-Identifier: Apache-2.0
"""A disk on which a test delays or fails fdatasync (broker/hold_sync.c), for brokers started through it."""

import shutil
import subprocess
from pathlib import Path

import pytest
from running import wait_until

COMPILER = shutil.which("cc") or shutil.which("gcc")


class HeldDisk:
    """``broker(..., through=disk.through)``."""

    def __init__(self, folder: Path) -> None:
        if COMPILER is None:
            pytest.skip("there is no C compiler to build another disk with")
        library, source = folder / "hold_sync.so", Path(__file__).parent / "broker/hold_sync.c"
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
