# SPDX-License-Identifier: Apache-2.0
"""The clients of others, each with a short program in a folder of its own: how they are had, and how they are run.

What a client needs is installed and built in a cache outside the source tree (VIBEMQ_INTEROP_CACHE, else
~/.cache/vibemq-interop), once for each state of its folder; so a name is used once, whatever the door.  A client that
cannot be had is skipped by name, with the reason.  Those that are compiled for a minute or more are compiled only where
VIBEMQ_INTEROP=all asks for it (`make interop`); a program that lies built in the cache is always used.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

CACHE = Path(os.environ.get("VIBEMQ_INTEROP_CACHE") or "~/.cache/vibemq-interop").expanduser()
BUILD_TIMEOUT_S = 300.0  # of one client, all downloads included
EVENT_TIMEOUT_S = 30.0
EVERYTHING = os.environ.get("VIBEMQ_INTEROP") == "all"


#: Why a client is not tried again in this run.
UNAVAILABLE: dict[str, str] = {}


class CannotBeHad(Exception):
    """Why a client is skipped."""


class ProgramFailed(Exception):
    """What a program said of its failure, or that it said nothing."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def run_step(command: list[str], folder: Path, deadline: float, **environment: str) -> None:
    """One step of a build, within what is left of the time."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=max(1.0, deadline - time.monotonic()),
        )
    except subprocess.TimeoutExpired:
        raise CannotBeHad(f"`{command[0]}` took longer than {BUILD_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        lines = done.stdout.strip().splitlines() or ["no output"]
        telling = next((line for line in lines if "error" in line.lower()), lines[-1])
        raise CannotBeHad(f"`{' '.join(command[:3])}` failed: {telling[:200]}")


def build_python(_: Path, target: Path, deadline: float) -> None:
    """It is among the test requirements, so there is nothing to build."""


def build_js(source: Path, target: Path, deadline: float) -> None:
    run_step(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"], target, deadline)


class Client(NamedTuple):
    """`words`: how the built program is called, {} being the folder it was built in.

    `besides`: a folder outside this tree that it is built from, too."""

    source: Path
    package: str
    tools: tuple[str, ...]
    build: Callable[[Path, Path, float], None]
    words: tuple[str, ...]
    quick: bool = True  # had in seconds, or compiled for a minute
    besides: Path | None = None

    @property
    def name(self) -> str:
        return self.source.name

    def folder(self) -> Path:
        """Of this state of the source."""
        state = hashlib.sha256()
        for root in filter(None, (self.source, self.besides)):
            for path in sorted(root.rglob("*")):
                if path.is_file() and path.suffix != ".md" and not {"__pycache__", ".git"} & {*path.parts}:
                    state.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
        return CACHE / f"{self.name}-{state.hexdigest()[:12]}"

    def command(self) -> list[str]:
        """The program, built if need be; CannotBeHad where that is not possible here."""
        if self.name in UNAVAILABLE:
            raise CannotBeHad(UNAVAILABLE[self.name])
        try:
            return self._command()
        except CannotBeHad as why:
            UNAVAILABLE[self.name] = str(why)
            raise

    def _command(self) -> list[str]:
        if lacking := [tool for tool in self.tools if shutil.which(tool) is None]:
            raise CannotBeHad(f"{self.name}: {' and '.join(lacking)} not installed")
        folder = self.folder()
        CACHE.mkdir(parents=True, exist_ok=True)
        with open(CACHE / f"{self.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs at once build once
            if not folder.exists():
                if not self.quick and not EVERYTHING:
                    raise CannotBeHad(f"{self.name}: not built yet, which `make interop` does")
                self._build_in(folder)
        return [word.format(folder) for word in self.words]

    def _build_in(self, folder: Path) -> None:
        for old in CACHE.glob(f"{self.name}-*"):
            if old.name != "rust-target":
                shutil.rmtree(old)
        unfinished = CACHE / f"{self.name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(self.source, unfinished, ignore=shutil.ignore_patterns("__pycache__"))
        try:
            self.build(self.source, unfinished, time.monotonic() + BUILD_TIMEOUT_S)
        except CannotBeHad as why:
            raise CannotBeHad(f"{self.name}: {why}") from None
        unfinished.rename(folder)


class Program:
    """One run of a client's program: what it says, line by line."""

    def __init__(
        self, command: list[str], errors: Path, *, stdin: int = subprocess.DEVNULL, **environment: str
    ) -> None:
        self.errors = errors
        variables = os.environ | environment
        with open(errors, "ab") as log:
            self.process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=log, env=variables)
        assert self.process.stdout is not None
        self.pipe = self.process.stdout
        os.set_blocking(self.pipe.fileno(), False)
        self.unread = b""
        self.said: list[dict[str, Any]] = []

    def lines(self, timeout_s: float = EVENT_TIMEOUT_S) -> Iterator[dict[str, Any]]:
        """What it says, until it ends."""
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.pipe, selectors.EVENT_READ)
            while True:
                yield from self._whole_lines()
                if not selector.select(deadline - time.monotonic()):
                    raise ProgramFailed(f"nothing more within {EVENT_TIMEOUT_S:.0f} s of {self.said[-5:]}{self.why()}")
                data = os.read(self.pipe.fileno(), 1 << 16)
                if not data:
                    return
                self.unread += data

    def _whole_lines(self) -> Iterator[dict[str, Any]]:
        while b"\n" in self.unread:
            line, _, self.unread = self.unread.partition(b"\n")
            if line.startswith(b"{"):
                self.said.append(json.loads(line))
                yield self.said[-1]

    def catch_up(self) -> None:
        """All that it has said by now is in ``said``."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.pipe.fileno(), 1 << 16):
                self.unread += data
        for _ in self._whole_lines():
            pass

    def why(self) -> str:
        return f"; it wrote: {self.errors.read_text(errors='replace')[-600:]}"

    def until(self, event: str, timeout_s: float = EVENT_TIMEOUT_S) -> dict[str, Any]:
        """The next such event; what comes before it is in `said`."""
        for line in self.lines(timeout_s):
            if line["event"] == event:
                return line
            if line["event"] == "error":
                raise ProgramFailed(str(line))
        raise ProgramFailed(f"it ended without {event!r}, after {self.said[-5:]}{self.why()}")

    def messages(self, count: int) -> list[dict[str, Any]]:
        """So many more of them."""
        return [self.until("message") for _ in range(count)]

    def finish(self) -> list[dict[str, Any]]:
        """Everything it said, when it has ended well."""
        for line in self.lines():
            if line["event"] == "error":
                raise ProgramFailed(str(line))
        if status := self.process.wait(EVENT_TIMEOUT_S):
            raise ProgramFailed(f"exit code {status}{self.why()}")
        return self.said

    def failure(self) -> str:
        """How it failed, which it must."""
        try:
            self.finish()
        except ProgramFailed as failed:
            return failed.text
        raise ProgramFailed(f"needed a failure, had {self.said[-3:]}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.pipe.close()
        if self.process.stdin is not None:
            self.process.stdin.close()


@contextlib.contextmanager
def started(command: list[str], errors: Path) -> Iterator[Program]:
    program = Program(command, errors)
    try:
        yield program
    finally:
        program.kill()  # no harm when it has ended
