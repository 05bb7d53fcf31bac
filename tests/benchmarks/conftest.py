# SPDX-License-Identifier: Apache-2.0
"""Builds the compiled parts of benchmarks/ before any test imports them: `make` does so for `make bench` only."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def build() -> None:
    """One process of pytest at a time; where nothing has changed it takes a moment."""
    (ROOT / "build").mkdir(exist_ok=True)
    with open(ROOT / "build" / "benchmarks.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment = {"VIBEMQ_CYTHON_CACHE": str(ROOT / "build" / "translated"), "VIBEMQ_OPTIMIZE": "1", **os.environ}
        command = [sys.executable, str(ROOT / "benchmarks" / "setup.py"), "-q", "build_ext", "--inplace"]
        subprocess.run(command, env=environment, check=True)


build()


@pytest.fixture
def pair():
    from flow_threads import socket_pair  # it needs what `build` has built

    with socket_pair() as ends:
        yield ends
