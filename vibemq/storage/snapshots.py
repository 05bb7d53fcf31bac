# SPDX-License-Identifier: Apache-2.0
"""Copies of a database, and how one becomes a database again: whole, private, and never over another."""

import errno
import os
import shutil
import sqlite3
import urllib.parse
from contextlib import closing, suppress

from vibemq.errors import StorageError


def copy(db: sqlite3.Connection, path: str) -> None:
    """As of one moment, into a new file that is whole in itself and on disk when this returns.

    Raises StorageError; sqlite3.Error where the database cannot be read.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as problem:
        raise _cannot("make a snapshot at", path, problem) from problem
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as target:
            db.backup(target)  # in one step, so nobody's write makes it begin again
            target.execute("PRAGMA journal_mode = DELETE")  # what belongs to it lies in no second file
        _sync(path)
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise


def restore(snapshot: str, path: str, versions: int) -> None:
    """Make the database at ``path`` of a snapshot whose schema is at most of version ``versions``.

    Raises StorageError: there is a database, or the snapshot is none, or a newer VibeMQ's, or damaged.
    """
    path = os.path.abspath(path)
    for file in (path, f"{path}-wal", f"{path}-shm"):  # a write-ahead log that is left would be played into it
        if os.path.lexists(file):
            raise StorageError(
                "ERR_EXISTS",
                f"{file} is there already, and is not written over",
                hint="restore into an empty data directory, or move this file away",
            )
    _require_whole(snapshot, versions)
    making = f"{path}.restoring"
    try:
        with suppress(FileNotFoundError):
            os.unlink(making)  # of an attempt that was killed
        fd = os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(snapshot, "rb") as source, open(fd, "wb") as target:
            shutil.copyfileobj(source, target)
            target.flush()
            os.fsync(target.fileno())
        os.link(making, path)  # which refuses where somebody else was quicker
        os.unlink(making)
        _sync(os.path.dirname(path))
    except OSError as problem:
        raise _cannot("restore", path, problem) from problem


def _require_whole(path: str, versions: int) -> None:
    address = f"file:{urllib.parse.quote(os.path.abspath(path))}"
    try:
        with closing(sqlite3.connect(f"{address}?mode=ro&immutable=1", uri=True)) as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > versions:
                raise StorageError(
                    "ERR_VERSION",
                    f"{path}: schema version {version}, but this VibeMQ knows only versions up to {versions}",
                    hint="it was written by a newer VibeMQ: restore with that one",
                )
            found = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
            is_bound = found == "ok" and db.execute("SELECT COUNT(*) FROM remote").fetchone()[0] == 1
    except sqlite3.Error as problem:
        raise StorageError("ERR_CORRUPT", f"{path}: this is no snapshot of a database: {problem}") from problem
    if not is_bound:
        why = "it belongs to no bucket" if found == "ok" else found
        raise StorageError("ERR_CORRUPT", f"{path}: this snapshot cannot be used: {why}")


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _cannot(what: str, path: str, problem: OSError) -> StorageError:
    full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
    return StorageError("ERR_DISK_FULL" if full else "ERR_IO", f"cannot {what} {path}: {problem.strerror}")
