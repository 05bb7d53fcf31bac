# SPDX-License-Identifier: Apache-2.0
"""The standard streams of a command: any encoding, and an error that says which of them failed."""

import codecs
import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from vibemq.cli import EXIT_INTERRUPTED

T = TypeVar("T")
ESCAPED = "vibemq.escaped"


class StreamFailed(OSError):
    """Standard input or output cannot be used."""


def run(command: Callable[[], object]) -> int:
    """Run a command with the streams of this module; return the exit code."""
    _prepare()
    try:
        code = _exit_code(command)
        sys.stdout.flush()
        return code
    except StreamFailed as problem:
        return _give_up(problem)


def _exit_code(command: Callable[[], object]) -> int:
    try:
        command()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def _give_up(problem: StreamFailed) -> int:
    """Say why, and drop the bytes that wait: the interpreter would try them again at its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    if problem.errno != errno.EPIPE:  # the reader is gone on purpose, as after `| head -1`
        print(f"vibemq: {problem.strerror}", file=sys.stderr)
    return 1


# ---- the streams ----


def _prepare() -> None:
    codecs.register_error(ESCAPED, _escaped)
    # The interpreter has no object for a stream that was closed.
    found = [getattr(stream, "encoding", "ascii") for stream in (sys.stdin, sys.stdout, sys.stderr)]
    # ASCII is what a locale says that nobody has set.  Python, too, takes it for UTF-8 where the locale is "C".
    reads, writes, says = ("utf-8" if codecs.lookup(each).name == "ascii" else each for each in found)
    stdin, stdout, stderr = (
        _Stream(0, "r", closefd=False),
        _Stream(1, "w", closefd=False),
        _Errors(2, "w", closefd=False),
    )
    sys.stdin = io.TextIOWrapper(io.BufferedReader(stdin), reads, "surrogateescape")
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(stdout), writes, ESCAPED, line_buffering=unbuffered or stdout.isatty()
    )
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(stderr), says, "backslashreplace", line_buffering=True)


def _escaped(problem: UnicodeError) -> tuple[str, int]:
    r"""Write characters that the terminal's encoding lacks as JSON escapes, \u2192 for example.

    So lines of JSON stay JSON, and a path that is not UTF-8 is shown.
    """
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    units = problem.object[problem.start : problem.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)), problem.end


class _Stream(io.FileIO):
    """Tells its own errors from those of other files."""

    def write(self, data: Any, /) -> int:
        return self._tried(super().write, data)

    def readinto(self, room: Any, /) -> int:
        return self._tried(super().readinto, room)

    def readall(self) -> bytes:
        return self._tried(super().readall)

    def _tried(self, call: Callable[..., T], *arguments: Any) -> T:
        try:
            return call(*arguments)
        except OSError as problem:
            doing = "write to standard output" if self.fileno() else "read standard input"
            raise StreamFailed(problem.errno, f"cannot {doing}: {problem.strerror}") from None


class _Errors(_Stream):
    """Takes lines that nobody can ever read: the exit code of a command says the same."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except StreamFailed:
            return memoryview(data).nbytes
