# SPDX-License-Identifier: Apache-2.0
"""How much is free where the data lies, and the reserve: room that is kept for those who empty a full disk.

Handing out a message, storing an offset and deleting a stream write a little, and make much room.  So the broker keeps
a file of zeros beside its data (DATA/reserve).  Whoever meets a full disk on such a way gives a piece of it back and
tries again.  Pieces are small, because on a full disk somebody else may be waiting for whatever becomes free.  It is
filled again when there is room.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable
from typing import TypeVar

from vibemq.errors import StorageError
from vibemq.once_a_minute import OnceAMinute

logger = logging.getLogger(__name__)
releasing = OnceAMinute(logger)

#: 16 bytes for a message that is handed out: a million of them, spread over some hundred queues.
RESERVE_BYTES = 16 << 20
PIECE_BYTES = 1 << 20
#: What a transaction of the metadata may write, by far.
TRANSACTION_BYTES = 512 << 10
NAME = "reserve"
#: Files that must be free for messages to be taken: consumers need one for each 16,384 messages that a queue hands out,
#: and the database, segments and stored offsets need some hundred, before whatever empties the disk is done.
FILES_FREE_MIN = 256

Result = TypeVar("Result")


def free_bytes(path: str) -> int:
    """What this account may still write there.  May block where a file system hangs; raises OSError."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def free_files(path: str) -> int | None:
    """How many files this account may still make there; None: as many as there is room for.

    May block where a file system hangs; raises OSError.
    """
    found = os.statvfs(path)
    return found.f_favail if found.f_files else None


def lacks_files(path: str) -> bool:
    """Are fewer than FILES_FREE_MIN files free, though perhaps many bytes?"""
    left = free_files(path)
    return left is not None and left < FILES_FREE_MIN


class Reserve:
    """All processes of a broker use the same file; ``free_min_bytes`` is the floor at which publishers stop."""

    def __init__(self, data_dir: str, free_min_bytes: int) -> None:
        self._data_dir = data_dir
        self._path = os.path.join(data_dir, NAME)
        self._free_min_bytes = free_min_bytes
        self.bytes_max = min(RESERVE_BYTES, free_min_bytes // 2)

    @property
    def size_bytes(self) -> int:
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0

    def fill(self) -> bool:
        """Make it whole if the disk stays above the floor all the same; True: it is.  May block; raises OSError."""
        missing = self.bytes_max - self.size_bytes
        if missing <= 0:
            return True
        if free_bytes(self._data_dir) - missing <= self._free_min_bytes:
            return False
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = 0
            while size < self.bytes_max:  # piece by piece: whoever releases one waits for the lock, in its loop
                fcntl.flock(fd, fcntl.LOCK_EX)
                size = os.fstat(fd).st_size
                more = min(PIECE_BYTES, self.bytes_max - size)
                if more > 0:
                    os.posix_fallocate(fd, size, more)
                    size += more
                fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            os.close(fd)
        return True

    def release(self) -> bool:
        """Give a piece back; False: there is none left, or files are missing and not bytes."""
        try:
            if free_files(self._data_dir) == 0:
                return False
            fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as problem:
            return self._unusable(problem)
        try:
            # Between another process's look and its cut the file would grow again, as a hole that holds no room.
            fcntl.flock(fd, fcntl.LOCK_EX)
            size = os.fstat(fd).st_size
            if size == 0:
                return False
            left = max(0, size - PIECE_BYTES)
            os.ftruncate(fd, left)
        except OSError as problem:
            return self._unusable(problem)
        finally:
            os.close(fd)
        releasing.say(self._path, "the disk is full: the reserve is being used, %d bytes of it are left", left)
        return True

    def _unusable(self, problem: OSError) -> bool:
        logger.error("the reserve at %s cannot be used: %s", self._path, problem.strerror)
        return False

    def make_room(self) -> None:
        """For a transaction of the metadata, which may be what empties the disk: a piece at most.

        Not until so much is free: some file systems show late what became free, and others take it.
        """
        if not self.bytes_max:
            return
        try:
            if free_bytes(self._data_dir) < TRANSACTION_BYTES:
                self.release()
        except OSError as problem:  # the transaction itself says it in its own words
            logger.debug("free space at %s cannot be asked: %s", self._data_dir, problem)

    def retry(self, write: Callable[[], Result]) -> Result:
        """``write()``, again with a piece of the reserve each time that the disk is full."""
        while True:
            try:
                return write()
            except (StorageError, OSError) as problem:
                is_full = getattr(problem, "code", "") == "ERR_DISK_FULL" or getattr(problem, "errno", 0) in (
                    errno.ENOSPC,
                    errno.EDQUOT,
                )
                if not is_full or not self.release():
                    raise
