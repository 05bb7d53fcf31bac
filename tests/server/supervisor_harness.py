# SPDX-License-Identifier: Apache-2.0
"""A supervisor with stub workers, as real processes (stub_broker.py)."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from running import ENVIRONMENT

STUB = Path(__file__).with_name("stub_broker.py")
READY = re.compile(r"vibemq ready pid=(\d+) workers=(\d+) streams=(\S+):(\d+)\n")


PYTHON_STARTS_COUNT, PYTHON_STARTS_S = 10, 0.15  # so long they take where promises were measured
DEADLINE_S = 60.0  # only a broker that is wrong needs it; a machine that compiles meanwhile may take many seconds


def wait_until(holds: Callable[[], bool], what: str, seconds: float = DEADLINE_S) -> None:
    """Poll until something another process does has happened; fail with ``what`` if it never does."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.005)


def once_within(promised_s: float, tries_max: int, took_s: Callable[[], float]) -> None:
    """Fail if it never takes as little as was promised of the machine on which that was measured.

    This one may be busy with other tests for a while, or slower for good: that is told by starts of Python, taken in
    alternation. A broker that is slower than promised always is, and slower than they are.
    """
    took: list[float] = []
    starts: list[float] = []
    for _ in range(tries_max):
        took.append(took_s())
        if took[-1] < promised_s:
            return
        began = time.monotonic()
        for _ in range(PYTHON_STARTS_COUNT):
            subprocess.run([sys.executable, "-c", ""], check=True)
        starts.append(time.monotonic() - began)
    assert min(took) < promised_s * min(starts) / PYTHON_STARTS_S, (took, starts)


class Broker:
    """One run of stub_broker.py."""

    def __init__(self, folder: Path, mode: str = "", **options: object) -> None:
        self.folder = folder
        self.config_path = folder / "vibemq.toml"
        self.log_path = folder / "log"
        self.data_dir = folder / "data"
        self.write_config(**options)
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(STUB), str(self.config_path), mode],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env=ENVIRONMENT,
            )
        self.host, self.port, self.ready_line = "", 0, ""

    def write_config(self, **options: object) -> None:
        """``server__workers=3`` becomes workers = 3 in section [server]."""
        values = {
            "server__workers": 2,
            "streams__port": 0,
            "native__enabled": False,
            "signalr__enabled": False,
            "micromsg2__enabled": False,
            "server__data_dir": str(self.data_dir),
            "store__disk_free_min_bytes": 1_000_000,  # half of it is reserved, in each folder that pytest keeps
            **options,
        }
        sections: dict[str, list[str]] = {}
        for name, value in values.items():
            section, _, option = name.partition("__")
            text = {True: "true", False: "false"}.get(value, value) if isinstance(value, bool) else value
            quoted = f'"{text}"' if isinstance(value, str) else str(text)
            sections.setdefault(section, []).append(f"{option} = {quoted}")
        self.config_path.write_text("".join(f"[{s}]\n" + "\n".join(lines) + "\n" for s, lines in sections.items()))

    def wait_ready(self) -> "Broker":
        assert self.process.stdout is not None
        self.ready_line = self.process.stdout.readline()
        match = READY.fullmatch(self.ready_line)
        assert match, f"no ready line but {self.ready_line!r}; the log says:\n{self.log}"
        assert int(match[1]) == self.process.pid
        self.host, self.port = match[3].strip("[]"), int(match[4])
        return self

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def wait_log(self, text: str, count: int = 1, seconds: float = DEADLINE_S) -> None:
        wait_until(lambda: self.log.count(text) >= count, f"{text!r} {count} times in the log:\n{self.log}", seconds)

    def workers(self) -> list[int]:
        """Pids of the processes that the supervisor has forked."""
        return [
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=20)

    def ask(self, line: str = "") -> tuple[int, int, str]:
        """Connect, and return (index, pid) of the worker that accepted and its answer to a line."""
        with self.connect() as connection, connection.makefile("rw") as file:
            index, pid = map(int, file.readline().split())
            if not line:
                return index, pid, ""
            file.write(line + "\n")
            file.flush()
            return index, pid, file.readline().strip()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 20.0) -> int:
        return self.process.wait(seconds)

    def end(self) -> None:
        """Leave nothing behind, whatever the test did."""
        children = self.workers() if self.process.poll() is None else []
        self.process.kill()
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
