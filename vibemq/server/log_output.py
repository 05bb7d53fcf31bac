# SPDX-License-Identifier: Apache-2.0
"""Standard error that never makes a process wait: a pipe that nobody reads, or a file on a disk that stalls, would stop
each process that writes to it.

Lines for which there is no room wait in memory, and beyond PENDING_BYTES_MAX they are dropped and counted.  They are
written with the next line, with each `write_pending`, and at the process's end.  A write to a regular file cannot be
told not to wait, so a thread writes to it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import stat
import threading
import time
from collections import deque

#: Bytes of lines of one process that wait: a quarter of MiB is some thousand lines.
PENDING_BYTES_MAX = 256 << 10
#: How long the end of a process waits for a reader, or for the disk.
END_TIMEOUT_S = 1.0
#: How long the caller waits for the thread that writes its line.  Almost always that takes microseconds, and then the
#: line is in the file when the caller goes on.  While a write takes longer, no caller waits.
WRITE_WAIT_S = 0.05


class LogOutput:
    """Writes whole lines to a descriptor.  Not thread-safe: the logging handler's lock is held around each call."""

    def __init__(self, fd: int) -> None:
        self._pending: deque[bytes] = deque()
        self._pending_bytes = self._dropped = 0
        self._socket: socket.socket | None = None
        self._file = _File(fd) if stat.S_ISREG(os.fstat(fd).st_mode) else None
        self._fd = self._without_waiting(fd)

    def _without_waiting(self, fd: int) -> int:
        """A descriptor on the same file that refuses rather than waits.

        The mode belongs to the open file, which a shell and other programs may share: so it is opened anew.  A pipe of
        another account cannot be; a pipe's own mode is changed then, as only its writers have it.
        """
        kind = os.fstat(fd).st_mode
        if stat.S_ISSOCK(kind):  # such as systemd's
            self._socket = socket.socket(fileno=os.dup(fd))
        elif stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):
            try:
                return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            except OSError:
                if stat.S_ISFIFO(kind):
                    os.set_blocking(fd, False)
        return fd

    def forget(self) -> None:
        """In a forked process: the lines that wait are its parent's, which writes them."""
        self._pending.clear()
        self._pending_bytes = self._dropped = 0
        if self._file is not None:
            self._file = _File(self._fd)

    def write(self, line: str) -> None:
        encoded = line.encode("utf-8", "backslashreplace") + b"\n"
        self.write_pending()
        if self._dropped or self._pending_bytes + len(encoded) > PENDING_BYTES_MAX:
            self._dropped += 1
            return
        self._pending.append(encoded)
        self._pending_bytes += len(encoded)
        self.write_pending()

    def write_pending(self) -> bool:
        """Write as much as there is room for; False: something still waits."""
        while self._pending:
            line = self._pending[0]
            written = self._try(line)
            self._pending_bytes -= written
            if written < len(line):
                self._pending[0] = line[written:]
                return False
            self._pending.popleft()
        return True

    def take_dropped(self) -> int:
        """How many lines were dropped, once, when there is room again to say so."""
        if self._pending:
            return 0
        dropped, self._dropped = self._dropped, 0
        return dropped

    def _try(self, line: bytes) -> int:
        """Bytes that were taken; a line that can never be written counts as taken."""
        if self._file is not None:
            return self._file.take(line)
        try:
            if self._socket is not None:
                return self._socket.send(line, socket.MSG_DONTWAIT)
            return os.write(self._fd, line)
        except BlockingIOError:
            return 0
        except OSError as problem:
            if problem.errno in (errno.ENOBUFS, errno.ENOMEM):
                return 0
            return len(line)  # nobody can ever read it, or the disk is full: there is no other place to say that

    def end(self) -> None:
        """Give a reader, or the disk, END_TIMEOUT_S to take the waiting lines."""
        until_s = time.monotonic() + END_TIMEOUT_S
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        while not self.write_pending():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            if self._file is not None:
                self._file.wait(left_s)
            else:
                poll.poll(left_s * 1000)
        if self._file is not None:
            self._file.wait(max(until_s - time.monotonic(), 0.0))


class _File:
    """A regular file, and one line that a thread writes to it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_idle = threading.Event()
        self._is_idle.set()

    def take(self, line: bytes) -> int:
        """Return the number of bytes taken: all, or none while an earlier line is being written."""
        if not self._is_idle.is_set():
            return 0
        self._is_idle.clear()
        try:
            threading.Thread(target=self._write, args=(line,), name="log", daemon=True).start()
        except (RuntimeError, MemoryError):  # the machine gives no thread
            self._write(line)
        self.wait(WRITE_WAIT_S)
        return len(line)

    def wait(self, seconds: float) -> None:
        self._is_idle.wait(seconds)

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # the disk is full: there is no other place to say that
            while line:
                line = line[os.write(self._fd, line) :]
        self._is_idle.set()
