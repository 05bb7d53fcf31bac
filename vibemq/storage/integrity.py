# SPDX-License-Identifier: Apache-2.0
"""DATA/meta.check: digests of the database beside it, so that damage and loss are found before it serves.

SQLite keeps no checksum of a page, and silently drops the frames of a write-ahead log behind a damaged one.  So this
file records:

* of users, permissions and virtual hosts: the number of changes that were answered, and a digest of these tables.  They
  are on disk before such a change is answered.
* of all synced changes: their number.  It is written before such a change is answered, and not synced: the number is
  on disk some seconds later.
* of the whole file: its digest, from an orderly stop to the next change.
* in which boot a broker last served: within it every frame of the write-ahead log is in memory or on disk.

A database with fewer or other changes than were answered is refused.  One with more is accepted: a process was killed
between its commit and this file, and no client was answered.  Rows of all tables have sums in the database
itself (storage.row_sums).

To accept a database in its present state, the operator removes this file: then it and the sums are created again.

The file is overwritten in place, so no write of it needs room on the disk.  It holds the same sector twice, so
a power cut or a flipped bit damages at most one of them.
"""

import fcntl
import hashlib
import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace

from vibemq.errors import StorageError
from vibemq.storage import ownership
from vibemq.storage.wal import INDEX_BYTES, read_index, read_log

FORMAT = 1  # of the file, and of which columns `access` covers
COPY_BYTES = 512  # the smallest sector
COPIES = 2
SUM_DIGITS = 16
PIECE_BYTES = 1 << 20

log = logging.getLogger("vibemq.storage")

#: Every column of the tables that decide access, sorted by key.  A later column needs another FORMAT.
_ACCESS = (
    "SELECT name, password_hash, tags, created_ms, is_superuser, updated_ms, verifier FROM users ORDER BY name",
    "SELECT username, queue_pattern, operations, created_ms FROM permissions ORDER BY username, queue_pattern",
    "SELECT name, description, tags, created_ms FROM vhosts ORDER BY name",
    "SELECT vhost, username, configure, write, read FROM vhost_permissions ORDER BY vhost, username",
    "SELECT username, tag, definition FROM user_limits ORDER BY username",
    "SELECT vhost, tag, definition FROM vhost_limits ORDER BY vhost",
    "SELECT username, tag, definition FROM built_in_limits ORDER BY username",
    "SELECT guest_removed, token_key FROM accounts",
)


@dataclass(frozen=True, slots=True)
class Check:
    """The content of `meta.check`."""

    changes: int = 0  # of users and permissions, that were answered
    access: str = ""  # digest of these tables at that time; empty: unknown
    boot: str = ""  # in which a broker last served
    digest: str = ""  # of the database file; empty: it may have changed since
    size_bytes: int = 0  # of that
    synced: int = 0  # changes that were synced before they were answered


def path_of(database: str) -> str:
    return database.removesuffix(".db") + ".check"


def access_digest(db: sqlite3.Connection) -> str:
    """Return a digest of all rows that decide access; within a transaction."""
    digest = hashlib.blake2b(digest_size=16)
    for question in _ACCESS:
        digest.update(repr(db.execute(question).fetchall()).encode(errors="surrogatepass"))
    return digest.hexdigest()


def read(database: str) -> Check | None:
    """Return the content of the file; None where it is missing, as with a database of an older version.

    Raises StorageError: it is damaged, or it cannot be read.
    """
    path = path_of(database)
    there = _bytes(path)
    return _parsed(path, there) if there else None


def note_access(database: str, changes: int, digest: str, *, synced: bool = True) -> None:
    """Record that this many changes were made, before they are answered; a later record stays.  Raises StorageError."""

    def newer(check: Check) -> Check:
        return check if check.changes > changes else replace(check, changes=changes, access=digest)

    _update(database, newer, synced=synced)


def note_synced(database: str, number: int) -> None:
    """Record the number of synced changes before the last is answered; a later record stays.  Raises StorageError.

    A power cut may undo the record.  Then damage of many bits in the log of these seconds looks like the log's end.
    """
    _update(database, lambda check: replace(check, synced=max(check.synced, number)), synced=False)


def accepts_rows(database: str) -> bool:
    """True if the rows have no record: the database is of an older version, or an operator removed the file."""
    check = read(database)
    return check is None or not check.access


def begin_changes(database: str) -> None:
    """Record that the database is about to change, so its digest no longer holds.  Raises StorageError."""
    if _size(path_of(database)):
        _update(database, lambda check: replace(check, digest="", size_bytes=0))


def begin_serving(database: str, boot: str) -> None:
    """Record the boot in which processes write from now on.  Raises StorageError."""
    _update(database, lambda check: replace(check, boot=boot, digest="", size_bytes=0))


def rest(database: str) -> bool:
    """Record the digest of the whole file; return False where another process has it open.  Raises StorageError.

    A process that opens it makes a write-ahead log first, and takes the lock of this file before it changes anything.
    """
    with _locked(database) as (write, check):
        if os.path.exists(f"{database}-wal"):
            return False
        digest, size = _digest(database)
        if os.path.exists(f"{database}-wal"):
            return False
        write(replace(check, digest=digest, size_bytes=size))
    return True


def require_whole(database: str, boot: str, *, is_restorable: bool) -> bool:
    """Check the files before SQLite opens them; return True if every byte of the database was verified.

    ``is_restorable``: a missing database is made of a bucket's.  No connection of this process may be open: closing a
    descriptor of these files drops the locks that it holds.  Raises StorageError, and changes nothing.
    """
    check = read(database)
    if check is None:
        check = Check()
    if not os.path.exists(database):
        if not is_restorable and (check.changes or check.digest):
            raise StorageError(
                "ERR_CORRUPT",
                f"{database} is missing, and {path_of(database)} says that users or streams were in it; "
                "nothing was changed",
                hint=f"restore it from a backup; to begin with no user and no stream, move {path_of(database)} to "
                "another folder",
            )
        if not is_restorable:
            _require_no_logs(database)
        return True
    if not is_restorable and not _size(database) and not (check.changes or check.digest):
        _require_no_logs(database)
    _require_log(database, is_same_boot=bool(boot) and check.boot == boot)
    if not check.digest or _size(f"{database}-wal"):
        return False
    digest, size = _digest(database)
    found = read(database)
    if (digest, size) == (check.digest, check.size_bytes) or found is None or found.digest != check.digest:
        return True
    raise StorageError(
        "ERR_CORRUPT",
        f"{database} is damaged: since the broker was stopped its content has changed ({size} bytes, "
        f"{check.size_bytes} at the stop); nothing was changed",
        hint="restore the data directory from a backup or the bucket; where it was changed on purpose, move "
        f"{path_of(database)} to another folder and start again",
    )


def _require_no_logs(database: str) -> None:
    """Raises StorageError if a directory without metadata has streams: it had a broker, and perhaps users."""
    streams = os.path.join(os.path.dirname(database), "streams")
    with suppress(FileNotFoundError, NotADirectoryError):
        if os.listdir(streams):
            raise StorageError(
                "ERR_CORRUPT",
                f"{database} is {'empty' if os.path.exists(database) else 'missing'}, and {streams} has logs of "
                "streams; nothing was changed",
                hint=f"restore the data directory from a backup; to begin with no user and no stream, move {streams} "
                "to another folder",
            )


def require_access(database: str, changes: int, digest: str) -> None:
    """Compare users and permissions with those that were answered.  Raises StorageError."""
    check = read(database)
    if check is None or changes > check.changes or not check.access:
        note_access(database, changes, digest)
        return
    accept = _accept(database, "users and permissions")
    if changes < check.changes:
        raise StorageError(
            "ERR_CORRUPT",
            f"{database}: {check.changes} changes of users and permissions were answered, and only {changes} are in "
            "it: later ones are lost; nobody is let in",
            hint=accept,
        )
    if digest != check.access:
        raise StorageError(
            "ERR_CORRUPT",
            f"{database}: users, permissions or virtual hosts are not as they were written; nobody is let in",
            hint=accept,
        )


def require_rows(database: str, tables: list[str]) -> None:
    """Raises StorageError if these tables do not match their sums."""
    if tables:
        raise StorageError(
            "ERR_CORRUPT",
            f"{database}: rows of {', '.join(tables)} are not as they were written; nothing was changed",
            hint=_accept(database, "all rows"),
        )


def require_synced(database: str, number: int) -> None:
    """Compare the number of synced changes with those that were answered.  Raises StorageError."""
    check = read(database)
    if check is not None and number < check.synced:
        raise StorageError(
            "ERR_CORRUPT",
            f"{database}: {check.synced} synced changes were answered, and only {number} are in it: later ones are "
            "lost; nothing was changed",
            hint=_accept(database, "streams, queues and all else"),
        )


def _accept(database: str, what: str) -> str:
    return (
        f"restore the data directory from a backup or the bucket; to accept {what} as they are now, "
        f"move {path_of(database)} to another folder and start again"
    )


# ---- the write-ahead log ----


def _require_log(database: str, *, is_same_boot: bool) -> None:
    """Raises StorageError if SQLite would drop committed transactions.

    A frame with a wrong checksum may be the log's end: of a process that was killed during a commit, or of a rolled
    back one, with older frames behind it.  It is damage

    * if the wal-index of this boot has committed transactions behind it: the index is written after the frames;
    * if one flipped bit explains it;
    * in the boot that wrote it, if there is no such index and transactions end behind the frame.

    After a power cut unsynced frames may be missing before written ones.  That is no damage, as such changes are not
    promised.  Users and permissions are synced, and ``require_access`` counts them.
    """
    path = f"{database}-wal"
    if not os.path.exists(path) and not is_same_boot:
        return
    index = read_index(_bytes(f"{database}-shm", INDEX_BYTES)) if is_same_boot else None
    log = read_log(_bytes(path))
    why = f"its frame {log.bad_frame}, at byte {log.bad_at}, does not fit its checksum"
    if not log.is_header_whole:
        why = "its header does not fit its checksum"
    elif index is not None:
        if index.frames == 0 or (not log.salts and index.checkpointed >= index.frames):
            return
        if index.salts == log.salts and log.committed >= index.frames:
            return
        if index.salts != log.salts:
            why = f"{index.frames} frames were committed to it, and they are missing"
        else:
            why += f", and {index.frames} frames were committed"
    elif log.is_one_bit:
        why += ", by one flipped bit"
    elif is_same_boot and log.commits_behind:
        why += f", and {log.commits_behind} transactions end behind it"
    else:
        return
    raise StorageError(
        "ERR_CORRUPT",
        f"{path} is damaged: {why}; changes that were answered would be undone, so nothing was changed",
        hint="restore the data directory from a backup or the bucket; to accept that these changes are lost, move "
        f"{path} and {os.path.basename(database)}-shm to another folder and start again",
    )


# ---- files ----


def _bytes(path: str, most: int = -1) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(most)
    except FileNotFoundError:
        return b""
    except OSError as problem:
        raise _cannot("read", path, problem) from problem


def _size(path: str) -> int:
    with suppress(FileNotFoundError):
        return os.path.getsize(path)
    return 0


def _digest(path: str) -> tuple[str, int]:
    digest, size = hashlib.blake2b(digest_size=16), 0
    try:
        with open(path, "rb") as file:
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
                size += len(piece)
    except OSError as problem:
        raise _cannot("read", path, problem) from problem
    return digest.hexdigest(), size


def _update(database: str, change: Callable[[Check], Check], *, synced: bool = True) -> None:
    with _locked(database, synced=synced) as (write, check):
        changed = change(check)
        if changed != check:
            write(changed)


@contextmanager
def _locked(database: str, *, synced: bool = True) -> Iterator[tuple[Callable[[Check], None], Check]]:
    """Lock the file, and create it where it is missing; yield a function that writes it, and its content."""
    path = path_of(database)
    folder = os.path.dirname(path)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            there = os.pread(fd, COPIES * COPY_BYTES, 0)
            if not there and os.geteuid() == 0:  # made by root, it would be closed to the account that serves
                owner = os.stat(folder)
                os.fchown(fd, owner.st_uid, owner.st_gid)

            def write(check: Check) -> None:
                said = json.dumps({"format": FORMAT, **asdict(check)})
                os.pwrite(fd, COPIES * (f"{_sum(said)} {said}".encode().ljust(COPY_BYTES - 1) + b"\n"), 0)
                if synced:
                    os.fsync(fd)
                    if not there:
                        _sync_folder(folder)

            yield write, _parsed(path, there) if there else Check()
        finally:
            os.close(fd)
    except OSError as problem:
        raise _cannot("write", path, problem) from problem


def _sync_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _parsed(path: str, there: bytes) -> Check:
    """Return the first undamaged copy."""
    for at in range(0, COPIES * COPY_BYTES, COPY_BYTES):
        digits, _, said = there[at : at + COPY_BYTES].decode("ascii", "replace").rstrip().partition(" ")
        if digits == _sum(said):
            break
        log.warning("%s: copy %d of %d in it is damaged", path, at // COPY_BYTES + 1, COPIES)
    else:
        raise StorageError(
            "ERR_CORRUPT",
            f"{path} is damaged: no copy in it fits its checksum; nothing was changed",
            hint="restore the data directory from a backup or the bucket; or move this file to another folder, start "
            "again, and look with `vibemq users list` whether all users are there",
        )
    found = json.loads(said)
    if found.pop("format") != FORMAT:
        raise StorageError(
            "ERR_VERSION", f"{path} is of another format than {FORMAT}", hint="it was written by a newer VibeMQ"
        )
    return Check(**found)


def _sum(said: str) -> str:
    return hashlib.blake2b(said.encode(errors="replace"), digest_size=SUM_DIGITS // 2).hexdigest()


def _cannot(what: str, path: str, problem: OSError) -> StorageError:
    refused = ownership.of_error(problem, path)
    why = refused.why if refused else problem.strerror
    return StorageError("ERR_IO", f"cannot {what} {path}: {why}", hint=refused.hint if refused else "")
