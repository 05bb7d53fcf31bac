# SPDX-License-Identifier: Apache-2.0
"""One SQLite database that all processes share: connections, transactions, migrations.

Why SQLite: creations and deletions are rare, must be atomic over many processes and a
kill -9, and a person can look into the file.  Write-ahead logging, so that looking
something up never waits for somebody who creates something.

A connection belongs to one thread of one process and is opened on first use, after fork: an
inherited connection shares locks with the process it came from, and closing it there
can delete the write-ahead log under the others.  Who forks closes its connection before.

Durability: commits are atomic always.  A synced one also survives a power cut; others may be
undone by it.

A file beside it (storage.integrity) has its digests: damage and loss are found before the first client is served.

A database may be bound to a bucket (remote/FORMAT.md).  Then each transaction that changes a row is published there, as
the next one of all brokers, before it is committed here: what is there and not here is applied when that is noticed.
"""

import os
import sqlite3
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial, wraps
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

from vibemq.errors import MetadataRace, StorageError
from vibemq.storage import changes, integrity, ownership, row_sums
from vibemq.storage.changes import Binding, Changes, NumberTaken
from vibemq.storage.records import Record, Table

REFUSED = ("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")  # and their kinds, which begin so
BUSY_TIMEOUT_MS = 10_000  # writers of other processes hold the lock for milliseconds, with a bucket for one PUT
RESTORE = "restore the data directory from a backup or the bucket"
RACES_MAX = 8  # against other changes, that one request may lose: each change is rare, so more is no coincidence

Self = TypeVar("Self", bound="Database")
Words = ParamSpec("Words")
Result = TypeVar("Result")


def again_when_raced(change: Callable[[], Result]) -> Result:
    """Does it, and again where another change of the metadata came first: then nothing was changed by this one."""
    for _ in range(RACES_MAX - 1):
        with suppress(MetadataRace):
            return change()
    return change()


def again_when_full(
    method: Callable[Concatenate[Self, Words], Result],
) -> Callable[Concatenate[Self, Words], Result]:
    """For a method that is one transaction and does nothing else: it is run again as ``retry`` says.

    SQLite undoes a transaction that meets a full disk, so it is begun anew; and so is one to which another change
    came first.
    """

    @wraps(method)
    def again(self: Self, /, *args: Words.args, **kwargs: Words.kwargs) -> Result:
        return again_when_raced(lambda: self.retry(partial(method, self, *args, **kwargs)))

    return again


class Database:
    """The database at ``path``; made on first use, and brought to the schema of ``migrations``.

    Each migration leads from the schema version of its index to the next one.
    """

    def __init__(self, path: str, migrations: tuple[str, ...]) -> None:
        self.path = os.path.abspath(path)
        self._migrations = migrations
        #: Called before each transaction: on a full disk it is given what was kept for it (broker/disk.py).
        self.make_room: Callable[[], None] = lambda: None
        #: Does a transaction, again where it raised ERR_DISK_FULL and there is more of what was kept.
        self.retry: Callable[[Callable[[], Any]], Any] = lambda write: write()
        #: Makes a change durable in the bucket under its number, or raises StorageError; NumberTaken where there is
        #: another already, be it an earlier one of ours: its bytes tell.  The write lock is held meanwhile, so it takes
        #: less than BUSY_TIMEOUT_MS.  Returns the epoch of the broker that made it.  None: there is no bucket.
        self.publish: Callable[[int, Changes], int] | None = None
        #: Called before an older schema is brought to ours: raises where a broker of that version serves from it.
        self.before_upgrade: Callable[[], None] = lambda: None
        self._local = threading.local()
        self._is_ours = False  # looked at once: a newer one cannot come while a broker runs

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
        self._refuse_newer()
        db = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None, cached_statements=64)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA foreign_keys = ON")
            if (version := _schema_version(db)) != len(self._migrations):
                if version:
                    self.before_upgrade()
                self._migrate(db)
        except BaseException:
            db.close()
            raise
        self._local.db, self._local.pid, self._local.is_watched, self._local.changes_began = (
            db,
            os.getpid(),
            False,
            False,
        )
        self._local.is_summed = self._local.is_in_directory = False
        return db

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._connection()
        except sqlite3.Error as problem:
            raise _storage_error(self.path, problem) from problem

    def _rows(self, question: str, *values: object) -> list[tuple]:
        with self._reading() as db:
            return db.execute(question, values).fetchall()

    def _row(self, question: str, *values: object) -> tuple | None:
        """The first one."""
        with self._reading() as db:
            row: tuple | None = db.execute(question, values).fetchone()
        return row

    def _records(self, table: Table[Record], rest: str, *values: object) -> list[Record]:
        return [table.record(row) for row in self._rows(f"{table.select} {rest}", *values)]

    def _record(self, table: Table[Record], rest: str, *values: object) -> Record | None:
        row = self._row(f"{table.select} {rest}", *values)
        return None if row is None else table.record(row)

    def commits_seen(self) -> int:
        """Another number than this thread was given before: somebody else has committed something since."""
        return int(self._rows("PRAGMA data_version")[0][0])

    def _kept(self, what: str) -> Any:
        """A column of the one row of `accounts`."""
        return self._rows(f"SELECT {what} FROM accounts")[0][0]

    @contextmanager
    def _transaction(self, synced: bool) -> Iterator[sqlite3.Connection]:
        """As ``_writing``, for what is not to be published."""
        number = 0
        try:
            db = self._connection()
            self.make_room()
            if not self._local.is_summed:
                row_sums.watch(db)
                self._local.is_summed = True
            if synced:
                db.execute("PRAGMA synchronous = FULL")
            try:
                db.execute("BEGIN IMMEDIATE")
                try:
                    if not self._local.changes_began:
                        integrity.begin_changes(self.path)
                        self._local.changes_began = True
                    before = db.total_changes
                    yield db
                    if synced and db.total_changes != before:
                        number = row_sums.count_synced(db)
                    db.execute("COMMIT")
                except BaseException:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    raise
            finally:
                if synced:
                    db.execute("PRAGMA synchronous = NORMAL")
            if synced and not self._local.is_in_directory:  # while this connection is open, its files keep their names
                _sync_directory(os.path.dirname(self.path))
                self._local.is_in_directory = True
            if number:
                integrity.note_synced(self.path, number)
        except sqlite3.Error as problem:
            raise _storage_error(self.path, problem) from problem

    @contextmanager
    def _writing(self, synced: bool) -> Iterator[sqlite3.Connection]:
        """One transaction; ``synced`` makes it survive a power cut before it returns.

        Of a bound database its changes lie in the bucket before.  Raises MetadataRace: another one, of another broker
        or of a process that was killed before it could commit, came first and is applied now, so all that was looked up
        may be otherwise.
        """
        published = None
        try:
            with self._transaction(synced) as db:
                if not self._local.is_watched and changes.binding(db):  # known only here: others bind it too
                    db.execute("ROLLBACK")
                    changes.watch(db)
                    self._local.is_watched = True
                    db.execute("BEGIN IMMEDIATE")
                yield db
                if self._local.is_watched:
                    published = self._publish(db)
        except NumberTaken as taken:
            self._follow(taken)
        except StorageError:
            if published is None:
                raise
            self.retry(partial(self.apply, *published))  # it is made, and only missing here

    def _publish(self, db: sqlite3.Connection) -> tuple[int, Changes, int] | None:
        """What was changed, if anything was."""
        bound, made = changes.binding(db), changes.made(db)
        if not made or bound is None:
            return None
        if self.publish is None:
            raise StorageError(
                "ERR_INVALID",
                f"{self.path}: this data directory belongs to the bucket of cluster {bound.cluster}, "
                "so what is changed goes there first, through the running broker; nothing was changed",
                hint="start the broker, then do it again",
            )
        epoch = self.publish(bound.number + 1, made)
        db.execute("UPDATE remote SET number = ?, epoch = ?", (bound.number + 1, max(epoch, bound.epoch)))
        return bound.number + 1, made, epoch

    def _follow(self, taken: NumberTaken) -> NoReturn:
        """Apply what came first, and say so."""
        bound = self.binding()
        if bound is not None and bound.number + 1 == taken.number:  # else another process was quicker with that too
            body = taken.body
            self.retry(partial(self.apply, taken.number, body.get("changes"), body.get("epoch", 0)))
        raise MetadataRace(
            "ERR_EXISTS",
            f"{self.path}: another broker, or a process that was killed, changed the metadata at the same moment; "
            "nothing was changed",
            hint="try again",
        )

    # ---- the bucket to which it belongs ----

    def bind(self, cluster: str, name: str) -> None:
        """From now on changes are published, as of the broker ``name``; again: under another name.

        Raises StorageError: it belongs to another cluster.
        """
        with self._transaction(synced=True) as db:
            bound = changes.binding(db)
            if bound is None:
                db.execute("INSERT INTO remote (cluster, name, number) VALUES (?, ?, 0)", (cluster, name))
            elif bound.cluster == cluster:
                db.execute("UPDATE remote SET name = ?", (name,))
            else:
                raise StorageError(
                    "ERR_INVALID",
                    f"{self.path}: this data directory belongs to the bucket of cluster {bound.cluster}, "
                    f"and not of {cluster}",
                    hint="set remote.url to the bucket that it had, or start with an empty data directory",
                )

    def binding(self) -> Binding | None:
        with self._reading() as db:
            return changes.binding(db)

    def apply(self, number: int, made: object, epoch: int = 0) -> bool:
        """Do what meta object ``number`` says, and be as of it; False: that was so already.

        A change of a lower epoch than an earlier one's is void: its broker was deposed and never acknowledged it.
        ``epoch`` 0: an older version made it, without an epoch.

        Raises StorageError: it is not the next one, or a newer VibeMQ's, or of another past; nothing was changed.
        """
        with self._transaction(synced=False) as db:
            bound, accounts = changes.binding(db), _account_changes(db)
            if bound is None:
                raise StorageError("ERR_INVALID", f"{self.path}: this data directory belongs to no bucket")
            if number <= bound.number:
                return False
            if number != bound.number + 1:
                said = f"{self.path}: change {bound.number + 1} of the metadata is needed next, and there is {number}"
                raise StorageError("ERR_INVALID", said)
            if epoch >= bound.epoch:
                changes.write(db, made, f"meta/{number:016}")
                if self._local.is_watched:
                    changes.forget(db)
            db.execute("UPDATE remote SET number = ?, epoch = ?", (number, max(epoch, bound.epoch)))
            are_others = _account_changes(db) != accounts
        if are_others:
            self._note_access(synced=False)  # the bucket has the change
        return True

    # ---- damage ----

    def require_whole(self, boot: str, *, is_restorable: bool = False) -> None:
        """Refuse a database that is damaged, before this process has used it and where no broker serves from it.

        Raises StorageError.  ``boot``: the boot ID.  ``is_restorable``: a missing one is restored from a bucket.
        """
        is_verified = integrity.require_whole(self.path, boot, is_restorable=is_restorable)
        if is_verified or not os.path.exists(self.path):
            return
        try:
            self._refuse_newer()
            with closing(self._read_only()) as db:
                found = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        except sqlite3.Error as problem:
            raise _storage_error(self.path, problem) from problem
        if found != "ok":
            raise StorageError("ERR_CORRUPT", f"{self.path} is damaged: {found}; nothing was changed", hint=RESTORE)

    def require_access(self) -> None:
        """Refuse users and permissions that differ from the acknowledged ones, and other damaged rows.

        Raises StorageError.
        """
        changes_made, digest = self._access()  # which makes a database that is missing
        if integrity.accepts_rows(self.path):
            with self._transaction(synced=False) as db:
                row_sums.make(db)
                integrity.note_access(self.path, changes_made, digest)
            return
        integrity.require_access(self.path, changes_made, digest)
        with self._reading() as db:
            db.execute("BEGIN")
            try:
                names, is_bound = row_sums.damaged(db), changes.binding(db) is not None
                number = row_sums.synced(db)
            finally:
                db.execute("ROLLBACK")
        integrity.require_rows(self.path, names)
        if not is_bound:  # else the bucket has the missing changes
            integrity.require_synced(self.path, number)

    def begin_serving(self, boot: str) -> None:
        """Record that processes of this boot use it from now on.  Raises StorageError."""
        integrity.begin_serving(self.path, boot)

    def rest(self) -> bool:
        """Checkpoint all into one file at an orderly stop, and record its digest; False: another process has it open.

        Raises StorageError.
        """
        with self._reading() as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.close()
        return integrity.rest(self.path)

    def _access(self) -> tuple[int, str]:
        """Return the number of changes of users and permissions, and a digest of them, at one moment."""
        with self._reading() as db:
            db.execute("BEGIN")
            try:
                return _account_changes(db), integrity.access_digest(db)
            finally:
                db.execute("ROLLBACK")

    def _note_access(self, *, synced: bool = True) -> None:
        """Record a change of users or permissions, after its commit and before its answer."""
        integrity.note_access(self.path, *self._access(), synced=synced)

    def _refuse_newer(self) -> None:
        """Raises StorageError where the schema is newer than ours, and changes no byte of any file.

        By a connection that cannot write: an ordinary one would carry the write-ahead log over when it is closed.
        Without such a log (or with an empty one) none is made either.
        """
        if self._is_ours:
            return
        with closing(self._read_only()) as db:
            self._require_known(_schema_version(db))
        self._is_ours = True

    def _read_only(self) -> sqlite3.Connection:
        has_log = os.path.exists(f"{self.path}-wal") and os.path.getsize(f"{self.path}-wal") > 0
        mode = "mode=ro" if has_log else "mode=ro&immutable=1"
        address = f"file:{urllib.parse.quote(self.path)}?{mode}"
        return sqlite3.connect(address, uri=True, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None)

    def _require_known(self, version: int) -> None:
        if version > len(self._migrations):
            raise StorageError(
                "ERR_VERSION",
                f"{self.path}: schema version {version}, "
                f"but this VibeMQ knows only versions up to {len(self._migrations)}; nothing was changed",
                hint="it was written by a newer VibeMQ: start that one, or restore the data directory as it was before",
            )

    def _migrate(self, db: sqlite3.Connection) -> None:
        """Bring the schema to this version; several processes may try at once, one does it."""
        db.execute("BEGIN IMMEDIATE")
        try:
            integrity.begin_changes(self.path)
            version = _schema_version(db)
            self._require_known(version)
            if not integrity.accepts_rows(self.path):
                integrity.require_rows(self.path, row_sums.damaged(db))
            for script in self._migrations[version:]:
                for statement in filter(str.strip, script.split(";")):
                    db.execute(statement)
            row_sums.make(db)
            db.execute(f"PRAGMA user_version = {len(self._migrations)}")
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise


def _account_changes(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT changes FROM accounts").fetchone()[0])


def _schema_version(db: sqlite3.Connection) -> int:
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    return version


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
        refused = ownership.of_error(problem, path)
        why = refused.why if refused else problem.strerror
        raise StorageError("ERR_IO", f"cannot open {path}: {why}", hint=refused.hint if refused else "") from problem


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
    if name.startswith(REFUSED):  # SQLite does not say which of its files, and why
        files = [(path + suffix, False) for suffix in ("", "-wal", "-shm")]
        for file, is_directory in (*files, (os.path.dirname(path), True)):
            if refused := ownership.refusal(file, directory=is_directory):
                return StorageError(code, f"cannot use {path}: {refused.why}", hint=refused.hint)
    if str(problem).startswith("Could not decode to UTF-8"):  # Python's, which has no number
        code = "ERR_CORRUPT"
    hint = RESTORE if code == "ERR_CORRUPT" else ""
    return StorageError(code, f"{path}: {problem}" + (f" ({name})" if name else ""), hint=hint)
