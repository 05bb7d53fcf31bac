# SPDX-License-Identifier: Apache-2.0
"""What exists: streams and users, in one SQLite database that all processes share.

Why SQLite: creations and deletions are rare, must be atomic over many processes and a
kill -9, and a person can look into the file.  Write-ahead logging, so that looking a
stream up never waits for somebody who creates one.

A connection belongs to one thread of one process and is opened on first use, after fork: an
inherited connection shares locks with the process it came from, and closing it there
can delete the write-ahead log under the others.  Who forks closes its connection before.

Durability: commits are atomic always.  One that concerns a stream with "disk" durability, or
a user, is also synced before it is confirmed; others may be undone by a power cut,
like the messages of such streams.
"""

import json
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vibemq.errors import LimitExceeded, StorageError, StreamExists, StreamNotFound, UserExists, UserNotFound

BUSY_TIMEOUT_MS = 10_000  # writers of other processes hold the lock for milliseconds
PAGE_ROWS = 500

# Each entry leads from the schema version of its index to the next one.  Never change
# an entry that was released: append one.
MIGRATIONS = (
    """
    CREATE TABLE streams (
        slot        INTEGER PRIMARY KEY CHECK (slot BETWEEN 0 AND 65535),
        vhost       TEXT NOT NULL,
        name        TEXT NOT NULL,
        incarnation TEXT NOT NULL UNIQUE,
        durability  TEXT NOT NULL CHECK (durability IN ('os', 'disk')),
        arguments   TEXT NOT NULL,
        created_ms  INTEGER NOT NULL,
        UNIQUE (vhost, name)
    );
    CREATE TABLE users (
        name          TEXT PRIMARY KEY,
        password_hash TEXT NOT NULL,
        tags          TEXT NOT NULL,
        created_ms    INTEGER NOT NULL
    );
    """,
)

_STREAM_COLUMNS = "vhost, name, incarnation, slot, durability, arguments, created_ms"
_FIND = f"SELECT {_STREAM_COLUMNS} FROM streams WHERE vhost = ? AND name = ?"
_PAGE = f"SELECT {_STREAM_COLUMNS} FROM streams WHERE slot > ? ORDER BY slot LIMIT {PAGE_ROWS}"
# The end of the first unbroken run of slots; slot 0 is asked for apart.
_FREE_SLOT = """
    SELECT s.slot + 1 FROM streams s
    WHERE NOT EXISTS (SELECT 1 FROM streams t WHERE t.slot = s.slot + 1)
    ORDER BY s.slot LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """One stream as it was when it was looked up."""

    vhost: str
    name: str
    incarnation: str  # 16 hex digits; a stream created again under the same name has another
    slot: int  # small number that names the live stream in shared memory; reused after deletion
    durability: str
    arguments: dict[str, str]
    created_ms: int
    directory: str  # of its log, absolute


@dataclass(frozen=True, slots=True)
class UserRecord:
    """One user; the hash is kept out of ``repr`` so that no log shows it."""

    name: str
    tags: tuple[str, ...]
    created_ms: int
    password_hash: str

    def __repr__(self) -> str:
        return f"UserRecord(name={self.name!r}, tags={self.tags!r})"


class Metadata:
    """The database at ``path``; made, with its tables, on first use."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.streams_dir = os.path.join(os.path.dirname(self.path), "streams")
        self._local = threading.local()

    # ---- streams ----

    def create_stream(
        self,
        vhost: str,
        name: str,
        arguments: dict[str, str],
        durability: str,
        streams_max: int,
        prepare: Callable[[StreamRecord], None] | None = None,
    ) -> StreamRecord:
        """Record a new stream.  ``prepare(record)`` runs before the commit: it makes the log, so that
        a recorded stream always has one; what a crash leaves unrecorded is removed at the next start.

        Raises StreamExists (with the record), LimitExceeded, StorageError, or what prepare raises.
        """
        with self._writing(synced=durability == "disk") as db:
            if row := db.execute(_FIND, (vhost, name)).fetchone():
                raise StreamExists(f"stream {name!r} exists already in vhost {vhost!r}", record=self._record(row))
            count = db.execute("SELECT COUNT(*) FROM streams").fetchone()[0]
            if count >= streams_max:
                raise LimitExceeded(
                    f"cannot create stream {name!r}: number of streams",
                    count + 1,
                    streams_max,
                    hint="delete streams or raise store.streams_max",
                )
            record = StreamRecord(
                vhost=vhost,
                name=name,
                incarnation=secrets.token_hex(8),
                slot=_free_slot(db),
                durability=durability,
                arguments=dict(arguments),
                created_ms=time.time_ns() // 1_000_000,
                directory="",
            )
            record = self._record(_row(record))
            db.execute(f"INSERT INTO streams ({_STREAM_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", _row(record))
            if prepare is not None:
                prepare(record)
        return record

    def delete_stream(self, vhost: str, name: str) -> StreamRecord:
        """Forget a stream and return what it was; its slot is free from now on.  Raises StreamNotFound."""
        known = self.find_stream(vhost, name)
        with self._writing(synced=known is not None and known.durability == "disk") as db:
            row = db.execute(
                f"DELETE FROM streams WHERE vhost = ? AND name = ? RETURNING {_STREAM_COLUMNS}", (vhost, name)
            ).fetchone()
            if row is None:
                raise StreamNotFound(f"there is no stream {name!r} in vhost {vhost!r}")
        return self._record(row)

    def find_stream(self, vhost: str, name: str) -> StreamRecord | None:
        """Look a stream up; some microseconds."""
        with self._reading() as db:
            row = db.execute(_FIND, (vhost, name)).fetchone()
        return None if row is None else self._record(row)

    def streams(self) -> Iterator[StreamRecord]:
        """All streams by slot, read in pages: nothing is held between two of them."""
        slot = -1
        while page := self.streams_after(slot):
            yield from page
            slot = page[-1].slot

    def streams_after(self, slot: int) -> list[StreamRecord]:
        """The next page of streams whose slot is higher; empty at the end."""
        with self._reading() as db:
            return [self._record(row) for row in db.execute(_PAGE, (slot,))]

    # ---- users ----

    def add_user(self, name: str, password_hash: str, tags: tuple[str, ...] = ()) -> None:
        """Raises UserExists."""
        with self._writing(synced=True) as db:
            if db.execute("SELECT 1 FROM users WHERE name = ?", (name,)).fetchone():
                raise UserExists(
                    f"user {name!r} exists already", hint=f"`vibemq users passwd {name}` changes the password"
                )
            db.execute(
                "INSERT INTO users (name, password_hash, tags, created_ms) VALUES (?, ?, ?, ?)",
                (name, password_hash, json.dumps(tags), time.time_ns() // 1_000_000),
            )

    def delete_user(self, name: str) -> None:
        """Raises UserNotFound."""
        with self._writing(synced=True) as db:
            if db.execute("DELETE FROM users WHERE name = ?", (name,)).rowcount == 0:
                raise _no_user(name)

    def change_password(self, name: str, password_hash: str) -> None:
        """Raises UserNotFound."""
        with self._writing(synced=True) as db:
            if db.execute("UPDATE users SET password_hash = ? WHERE name = ?", (password_hash, name)).rowcount == 0:
                raise _no_user(name)

    def find_user(self, name: str) -> UserRecord | None:
        with self._reading() as db:
            row = db.execute(
                "SELECT name, tags, created_ms, password_hash FROM users WHERE name = ?", (name,)
            ).fetchone()
        return None if row is None else _user(row)

    def users(self) -> list[UserRecord]:
        with self._reading() as db:
            return [
                _user(row)
                for row in db.execute("SELECT name, tags, created_ms, password_hash FROM users ORDER BY name")
            ]

    # ---- connections ----

    def close(self) -> None:
        """Close this thread's connection; the next use opens another."""
        db = getattr(self._local, "db", None)
        if db is not None:
            self._local.db = None
            db.close()

    def _connection(self) -> sqlite3.Connection:
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is not None:
            if self._local.pid != os.getpid():
                raise RuntimeError(f"{self.path}: this connection was opened before a fork; close() it there first")
            return db
        _make_private(self.path)
        db = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None, cached_statements=32)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA foreign_keys = ON")
            if _version(db) != len(MIGRATIONS):
                _migrate(db, self.path)
        except BaseException:
            db.close()
            raise
        self._local.db, self._local.pid = db, os.getpid()
        return db

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._connection()
        except sqlite3.Error as problem:
            raise _storage_error(self.path, problem) from problem

    @contextmanager
    def _writing(self, synced: bool) -> Iterator[sqlite3.Connection]:
        """One transaction; ``synced`` makes it survive a power cut before it returns."""
        try:
            db = self._connection()
            if synced:
                db.execute("PRAGMA synchronous = FULL")
            try:
                db.execute("BEGIN IMMEDIATE")
                try:
                    yield db
                    db.execute("COMMIT")
                except BaseException:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    raise
            finally:
                if synced:
                    db.execute("PRAGMA synchronous = NORMAL")
            if synced:
                _sync_directory(os.path.dirname(self.path))
        except sqlite3.Error as problem:
            raise _storage_error(self.path, problem) from problem

    def _record(self, row: tuple) -> StreamRecord:
        vhost, name, incarnation, slot, durability, arguments, created_ms = row
        return StreamRecord(
            vhost,
            name,
            incarnation,
            slot,
            durability,
            json.loads(arguments),
            created_ms,
            os.path.join(self.streams_dir, incarnation),
        )


def _row(record: StreamRecord) -> tuple:
    return (
        record.vhost,
        record.name,
        record.incarnation,
        record.slot,
        record.durability,
        json.dumps(record.arguments, sort_keys=True),
        record.created_ms,
    )


def _user(row: tuple) -> UserRecord:
    name, tags, created_ms, password_hash = row
    return UserRecord(name=name, tags=tuple(json.loads(tags)), created_ms=created_ms, password_hash=password_hash)


def _no_user(name: str) -> UserNotFound:
    return UserNotFound(f"there is no user {name!r}", hint="`vibemq users list` shows all")


def _free_slot(db: sqlite3.Connection) -> int:
    if db.execute("SELECT 1 FROM streams WHERE slot = 0").fetchone() is None:
        return 0
    slot: int = db.execute(_FREE_SLOT).fetchone()[0]
    return slot


def _version(db: sqlite3.Connection) -> int:
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    return version


def _migrate(db: sqlite3.Connection, path: str) -> None:
    """Bring the schema to this version; several processes may try at once, one does it."""
    db.execute("BEGIN IMMEDIATE")
    try:
        version = _version(db)
        if version > len(MIGRATIONS):
            raise StorageError(
                "ERR_INVALID",
                f"{path}: schema version {version}, but this VibeMQ knows only versions up to {len(MIGRATIONS)}",
                hint="it was written by a newer VibeMQ: use that one",
            )
        for script in MIGRATIONS[version:]:
            for statement in filter(str.strip, script.split(";")):
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


def _make_private(path: str) -> None:
    """Password hashes lie in it: no other account reads it, whatever the umask (SQLite's side files follow).

    A database that exists is not opened here: closing any descriptor of a file drops all locks that
    this process holds on it, those of SQLite's connections in other threads included.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    except OSError as problem:
        raise StorageError("ERR_IO", f"cannot open {path}: {problem.strerror}") from problem


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _storage_error(path: str, problem: sqlite3.Error) -> StorageError:
    name = getattr(problem, "sqlite_errorname", "") or ""
    code = {"SQLITE_FULL": "ERR_DISK_FULL", "SQLITE_CORRUPT": "ERR_CORRUPT", "SQLITE_NOTADB": "ERR_CORRUPT"}.get(
        name, "ERR_IO"
    )
    return StorageError(code, f"{path}: {problem}" + (f" ({name})" if name else ""))
