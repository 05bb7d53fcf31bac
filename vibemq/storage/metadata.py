# SPDX-License-Identifier: Apache-2.0
"""What exists: streams, queues and users, in one database that all processes share.

A queue is a stream with options of its own, so both have one table and one space of names.

Durability: a commit that concerns a stream with "disk" durability, or a user, is synced before it
is confirmed; others may be undone by a power cut, like the messages of such streams.
"""

import json
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from vibemq.errors import LimitExceeded, StreamExists, StreamNotFound
from vibemq.storage.users import Permission, Rights, UserRecord, Users

__all__ = ["Metadata", "Permission", "Rights", "StreamRecord", "UserRecord"]

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
    # streams.queue: a queue's options as JSON; NULL is a plain stream.  permissions.operations: a JSON
    # array of numbers.  accounts: one row, see storage.users.
    """
    ALTER TABLE streams ADD COLUMN queue TEXT;
    CREATE INDEX queues ON streams (vhost, slot) WHERE queue IS NOT NULL;
    ALTER TABLE users ADD COLUMN is_superuser INTEGER NOT NULL DEFAULT 0 CHECK (is_superuser IN (0, 1));
    ALTER TABLE users ADD COLUMN updated_ms INTEGER NOT NULL DEFAULT 0;
    UPDATE users SET updated_ms = created_ms;
    CREATE TABLE permissions (
        id            INTEGER PRIMARY KEY,
        username      TEXT NOT NULL REFERENCES users (name) ON DELETE CASCADE,
        queue_pattern TEXT NOT NULL,
        operations    TEXT NOT NULL,
        created_ms    INTEGER NOT NULL,
        UNIQUE (username, queue_pattern)
    );
    CREATE TABLE accounts (changes INTEGER NOT NULL);
    INSERT INTO accounts (changes) VALUES (0);
    """,
)

_STREAM_COLUMNS = "vhost, name, incarnation, slot, durability, arguments, created_ms, queue"
_FIND = f"SELECT {_STREAM_COLUMNS} FROM streams WHERE vhost = ? AND name = ?"
_AT = f"SELECT {_STREAM_COLUMNS} FROM streams WHERE slot = ?"
_PAGE = f"SELECT {_STREAM_COLUMNS} FROM streams WHERE slot > ? ORDER BY slot LIMIT {PAGE_ROWS}"
_QUEUES_PAGE = f"""
    SELECT {_STREAM_COLUMNS} FROM streams
    WHERE vhost = ? AND queue IS NOT NULL AND slot > ? ORDER BY slot LIMIT {PAGE_ROWS}
"""
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
    queue: dict[str, object] | None = None  # the queue's options; None: a plain stream


class Metadata(Users):
    """The database at ``path``; made, with its tables, on first use."""

    def __init__(self, path: str) -> None:
        super().__init__(path, MIGRATIONS)
        self.streams_dir = os.path.join(os.path.dirname(self.path), "streams")

    # ---- streams ----

    def create_stream(
        self,
        vhost: str,
        name: str,
        arguments: dict[str, str],
        durability: str,
        streams_max: int,
        prepare: Callable[[StreamRecord], None] | None = None,
        queue: Mapping[str, object] | None = None,
    ) -> StreamRecord:
        """Record a new stream; with options in ``queue`` it is a queue.

        ``prepare(record)`` runs before the commit: it makes the log, so that a recorded stream always
        has one; what a crash leaves unrecorded is removed at the next start.

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
                queue=None if queue is None else dict(queue),
            )
            record = self._record(_row(record))
            db.execute(f"INSERT INTO streams ({_STREAM_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", _row(record))
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
                raise _no_stream(vhost, name)
        return self._record(row)

    def set_queue(
        self,
        vhost: str,
        name: str,
        options: Mapping[str, object],
        prepare: Callable[[StreamRecord], None] | None = None,
    ) -> StreamRecord:
        """Make a stream a queue with these options; one that is a queue already stays as it is.

        Returns the record as it is afterwards.  ``prepare(record)`` runs before the commit, and only
        if there is something to change.  Raises StreamNotFound, StorageError, or what prepare raises.
        """
        known = self.find_stream(vhost, name)
        with self._writing(synced=known is not None and known.durability == "disk") as db:
            row = db.execute(_FIND, (vhost, name)).fetchone()
            if row is None:
                raise _no_stream(vhost, name)
            record = self._record(row)
            if record.queue is not None:
                return record
            kept = json.dumps(dict(options), sort_keys=True)
            db.execute("UPDATE streams SET queue = ? WHERE slot = ?", (kept, record.slot))
            record = replace(record, queue=json.loads(kept))
            if prepare is not None:
                prepare(record)
        return record

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

    def stream_at(self, slot: int) -> StreamRecord | None:
        """The stream that has this slot now.  StorageError."""
        with self._reading() as db:
            row = db.execute(_AT, (slot,)).fetchone()
        return None if row is None else self._record(row)

    def streams_after(self, slot: int) -> list[StreamRecord]:
        """The next page of streams whose slot is higher; empty at the end."""
        with self._reading() as db:
            return [self._record(row) for row in db.execute(_PAGE, (slot,))]

    def queues(self, vhost: str) -> Iterator[StreamRecord]:
        """All queues of a vhost by slot, read in pages: nothing is held between two of them."""
        slot = -1
        while page := self.queues_after(vhost, slot):
            yield from page
            slot = page[-1].slot

    def queues_after(self, vhost: str, slot: int) -> list[StreamRecord]:
        """The next page of a vhost's queues whose slot is higher; empty at the end."""
        with self._reading() as db:
            return [self._record(row) for row in db.execute(_QUEUES_PAGE, (vhost, slot))]

    def _record(self, row: tuple) -> StreamRecord:
        vhost, name, incarnation, slot, durability, arguments, created_ms, queue = row
        return StreamRecord(
            vhost,
            name,
            incarnation,
            slot,
            durability,
            json.loads(arguments),
            created_ms,
            os.path.join(self.streams_dir, incarnation),
            None if queue is None else json.loads(queue),
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
        None if record.queue is None else json.dumps(record.queue, sort_keys=True),
    )


def _no_stream(vhost: str, name: str) -> StreamNotFound:
    return StreamNotFound(f"there is no stream {name!r} in vhost {vhost!r}")


def _free_slot(db: sqlite3.Connection) -> int:
    if db.execute("SELECT 1 FROM streams WHERE slot = 0").fetchone() is None:
        return 0
    slot: int = db.execute(_FREE_SLOT).fetchone()[0]
    return slot
