# SPDX-License-Identifier: Apache-2.0
"""A broker for the length of one job: `vibemq serve` as a child, in folders of its own."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vibemq.errors import SetupError

READY_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 20.0  # longer than a broker with nothing in flight needs
LOG_TAIL_BYTES = 2000


class Doors(NamedTuple):
    """Where the broker is, each as host:port."""

    streams: str
    native: str


class Broker:
    """`vibemq serve` with two doors that matter; with a bucket, a confirm means that this has the message."""

    def __init__(self, folder: Path, workers: int, bucket: Path | None) -> None:
        self._log, self._data = folder / "broker.log", folder / "broker"
        self._command = [sys.executable, "-m", "vibemq.cli", "serve", "--workers", str(workers)]
        self._command += ["--data-dir", str(self._data)]
        self._command += [word for door in ("signalr", "micromsg2", "admin") for word in (f"--{door}-port", "0")]
        if bucket is not None:
            options = (f"remote.url=file://{bucket}", "store.durability=remote")
            self._command += [word for option in options for word in ("--set", option)]
        self._process = self._start("0", "0")
        try:
            self.doors = _doors(self._process, self._log)
        except BaseException:
            self.stop()
            raise

    def _start(self, streams: str, native: str) -> subprocess.Popen[bytes]:
        command = [*self._command, "--streams-port", streams, "--native-port", native]
        with open(self._log, "ab") as log:
            # A session of its own: Ctrl-C at the terminal is for the job, which then stops the broker last.
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, start_new_session=True)

    def lose_machine(self) -> None:
        """All processes die at once and the data directory goes; then another broker is started on the same ports."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self.stop()
        shutil.rmtree(self._data)
        self._process = self._start(*(door.rpartition(":")[2] for door in self.doors))
        _doors(self._process, self._log)

    def stop(self) -> None:
        _stop(self._process)


@contextlib.contextmanager
def broker(folder: Path, workers: int, bucket: Path | None = None) -> Iterator[Broker]:
    """Run a broker on free ports. It is ended by its own process id, however the job ends."""
    made = Broker(folder, workers, bucket)
    try:
        yield made
    finally:
        made.stop()


def _doors(process: subprocess.Popen[bytes], log_file: Path) -> Doors:
    """Wait for the one line `vibemq ready pid=PID workers=N streams=HOST:PORT native=HOST:PORT`."""
    line = _first_line(process, time.monotonic() + READY_SECONDS_MAX)
    doors = dict(word.split("=", 1) for word in line.split() if "=" in word)
    if not {"streams", "native"} <= doors.keys():
        with open(log_file, "rb") as log:
            log.seek(max(0, log_file.stat().st_size - LOG_TAIL_BYTES))
            said = log.read().decode("utf-8", "replace").strip()
        raise SetupError(f"the broker did not start within {READY_SECONDS_MAX:.0f} s: {said or line or 'no output'}")
    return Doors(doors["streams"], doors["native"])


def _first_line(process: subprocess.Popen[bytes], deadline: float) -> str:
    assert process.stdout is not None
    fd = process.stdout.fileno()
    line = b""
    while b"\n" not in line:
        readable, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        data = os.read(fd, 4096) if readable else b""
        if not data:
            break
        line += data
    return line.decode("utf-8", "replace")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask first; the whole group goes when that takes too long. The group holds only what this child has started."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_SECONDS_MAX)
    if process.stdout is not None:
        process.stdout.close()
