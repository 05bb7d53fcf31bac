# SPDX-License-Identifier: Apache-2.0
"""What exists: streams, queues, users and what else is set up, in one database that all processes share.

A queue is a stream with options of its own, so both have one table and one space of names in
each virtual host.  Here is what concerns streams, and the schema of everything; the other tables'
functions are in storage.users, vhosts, routing and policies.

Durability: a commit that concerns a stream with "disk" or "remote" durability, or a user, is synced before it
is confirmed; others may be undone by a power cut, like the messages of such streams.
"""

import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from vibemq.config import STREAMS_MAX
from vibemq.errors import LimitExceeded, StreamExists, StreamNotFound
from vibemq.storage import changes, snapshots
from vibemq.storage.database import again_when_full
from vibemq.storage.limits import Limits
from vibemq.storage.policies import Policies
from vibemq.storage.records import StreamRecord, Table, as_column
from vibemq.storage.routing import PARTITION_ORDER, SUPER_STREAM, Routing, insert_binding, insert_exchange
from vibemq.storage.transactions import STAGING, Transactions

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
    # Virtual hosts.  Users that are there could do everything with streams until now, and go on with that.
    # bindings.arguments and policies.definition: JSON.  bindings.partition_order: read from its arguments.
    # Streams could be given any filter size while there were no filters: what is none says nothing now either.
    """
    UPDATE streams SET arguments = json_remove(arguments, '$."stream-filter-size-bytes"')
    WHERE json_extract(arguments, '$."stream-filter-size-bytes"') GLOB '*[^0-9]*'
       OR CAST(json_extract(arguments, '$."stream-filter-size-bytes"') AS INTEGER) NOT BETWEEN 16 AND 255;
    CREATE TABLE vhosts (
        name        TEXT PRIMARY KEY,
        description TEXT NOT NULL,
        tags        TEXT NOT NULL,
        created_ms  INTEGER NOT NULL
    );
    INSERT INTO vhosts SELECT '/', 'Default virtual host', '[]', 0;
    INSERT OR IGNORE INTO vhosts SELECT DISTINCT vhost, '', '[]', 0 FROM streams;
    CREATE TABLE vhost_permissions (
        vhost     TEXT NOT NULL REFERENCES vhosts (name) ON DELETE CASCADE,
        username  TEXT NOT NULL REFERENCES users (name) ON DELETE CASCADE,
        configure TEXT NOT NULL,
        write     TEXT NOT NULL,
        read      TEXT NOT NULL,
        PRIMARY KEY (vhost, username)
    );
    CREATE INDEX vhost_permissions_of_user ON vhost_permissions (username);
    INSERT INTO vhost_permissions SELECT '/', name, '.*', '.*', '.*' FROM users;
    CREATE TABLE exchanges (
        vhost      TEXT NOT NULL REFERENCES vhosts (name) ON DELETE CASCADE,
        name       TEXT NOT NULL,
        arguments  TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        PRIMARY KEY (vhost, name)
    );
    CREATE TABLE bindings (
        id              INTEGER PRIMARY KEY,
        vhost           TEXT NOT NULL,
        exchange        TEXT NOT NULL,
        stream          TEXT NOT NULL,
        routing_key     TEXT NOT NULL,
        arguments       TEXT NOT NULL,
        partition_order INTEGER,
        UNIQUE (vhost, exchange, routing_key, stream, arguments),
        FOREIGN KEY (vhost, exchange) REFERENCES exchanges (vhost, name) ON DELETE CASCADE,
        FOREIGN KEY (vhost, stream) REFERENCES streams (vhost, name) ON DELETE CASCADE
    );
    CREATE INDEX bindings_of_stream ON bindings (vhost, stream);
    CREATE TABLE policies (
        vhost      TEXT NOT NULL REFERENCES vhosts (name) ON DELETE CASCADE,
        name       TEXT NOT NULL,
        pattern    TEXT NOT NULL,
        definition TEXT NOT NULL,
        priority   INTEGER NOT NULL,
        apply_to   TEXT NOT NULL,
        PRIMARY KEY (vhost, name)
    );
    ALTER TABLE accounts ADD COLUMN policy_changes INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE accounts ADD COLUMN guest_removed INTEGER NOT NULL DEFAULT 0 CHECK (guest_removed IN (0, 1));
    """,
    # What access tokens are signed with: 32 random bytes, which SQLite takes from the operating system.
    """
    ALTER TABLE accounts ADD COLUMN token_key BLOB;
    UPDATE accounts SET token_key = randomblob(32);
    """,
    # users.verifier: what a login by challenge is checked with; empty where only the password's hash is known.
    """
    ALTER TABLE users ADD COLUMN verifier TEXT NOT NULL DEFAULT '';
    """,
    # streams.altered: accounts.queue_changes as it was when this queue's options were last changed; 0: never.
    """
    ALTER TABLE streams ADD COLUMN altered INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX altered_queues ON streams (altered) WHERE altered > 0;
    ALTER TABLE accounts ADD COLUMN queue_changes INTEGER NOT NULL DEFAULT 0;
    """,
    # Transactions: see storage.transactions, whose records these are.  past, targets and staged: JSON.
    """
    CREATE TABLE applications (
        vhost        TEXT NOT NULL REFERENCES vhosts (name) ON DELETE CASCADE,
        name         TEXT NOT NULL,
        user         TEXT NOT NULL,
        run          TEXT NOT NULL,
        peer         TEXT NOT NULL,
        seen_ms      INTEGER NOT NULL,
        past         TEXT NOT NULL,
        version      INTEGER NOT NULL,
        messages     INTEGER NOT NULL,
        decided_ms   INTEGER NOT NULL,
        is_ephemeral INTEGER NOT NULL CHECK (is_ephemeral IN (0, 1)),
        PRIMARY KEY (vhost, name)
    );
    CREATE TABLE decisions (
        id          INTEGER PRIMARY KEY,
        vhost       TEXT NOT NULL,
        application TEXT NOT NULL,
        version     INTEGER NOT NULL,
        is_durable  INTEGER NOT NULL CHECK (is_durable IN (0, 1)),
        targets     TEXT NOT NULL,
        staged      TEXT NOT NULL,
        decided_ms  INTEGER NOT NULL
    );
    ALTER TABLE accounts ADD COLUMN batches_decided INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE accounts ADD COLUMN messages_decided INTEGER NOT NULL DEFAULT 0;
    """,
    # durability may be `remote` (a column takes its CHECK with it).  owner: the broker that takes a stream's writes, ''
    # without a bucket.  remote: one row where this database belongs to a bucket, see storage.database.
    #
    # From here on a migration may only add: changes that were made before it are also applied after it.
    """
    ALTER TABLE streams ADD COLUMN kept TEXT NOT NULL DEFAULT 'os' CHECK (kept IN ('os', 'disk', 'remote'));
    UPDATE streams SET kept = durability;
    ALTER TABLE streams DROP COLUMN durability;
    ALTER TABLE streams RENAME COLUMN kept TO durability;
    ALTER TABLE streams ADD COLUMN owner TEXT NOT NULL DEFAULT '';
    ALTER TABLE streams ADD COLUMN owner_epoch INTEGER NOT NULL DEFAULT 0;
    CREATE TABLE remote (
        id      INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
        cluster TEXT NOT NULL,
        name    TEXT NOT NULL,
        number  INTEGER NOT NULL
    );
    """,
    # Limits: see storage.limits.  definition: JSON.  creators: which user has made a stream.
    """
    CREATE TABLE user_limits (
        slot       INTEGER PRIMARY KEY,
        username   TEXT NOT NULL UNIQUE REFERENCES users (name) ON DELETE CASCADE,
        tag        INTEGER NOT NULL,
        definition TEXT NOT NULL
    );
    CREATE TABLE vhost_limits (
        slot       INTEGER PRIMARY KEY,
        vhost      TEXT NOT NULL UNIQUE REFERENCES vhosts (name) ON DELETE CASCADE,
        tag        INTEGER NOT NULL,
        definition TEXT NOT NULL
    );
    CREATE TABLE creators (
        incarnation TEXT PRIMARY KEY REFERENCES streams (incarnation) ON DELETE CASCADE,
        username    TEXT NOT NULL REFERENCES users (name) ON DELETE CASCADE
    );
    CREATE INDEX creators_of_user ON creators (username);
    """,
    # The same of users who have no row in users: guest.
    """
    CREATE TABLE built_in_limits (
        slot       INTEGER PRIMARY KEY,
        username   TEXT NOT NULL UNIQUE,
        tag        INTEGER NOT NULL,
        definition TEXT NOT NULL
    );
    CREATE TABLE built_in_creators (
        incarnation TEXT PRIMARY KEY REFERENCES streams (incarnation) ON DELETE CASCADE,
        username    TEXT NOT NULL
    );
    CREATE INDEX creators_of_built_in ON built_in_creators (username);
    """,
    # The streams of an application's last batch.  JSON.
    """
    ALTER TABLE applications ADD COLUMN targets TEXT NOT NULL DEFAULT '[]';
    """,
    # remote.epoch: the highest epoch of a broker with a change in here; later changes of lower epochs are void.
    """
    ALTER TABLE remote ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
    """,
    # Checks of this file alone: see storage.row_sums.
    """
    CREATE TABLE row_sums (
        named TEXT PRIMARY KEY,
        sum   INTEGER NOT NULL
    );
    CREATE TABLE synced (changes INTEGER NOT NULL);
    INSERT INTO synced (changes) VALUES (0);
    """,
)

STREAMS = Table("streams", StreamRecord, directory=None)
SYNCED = ("disk", "remote")  # durabilities of streams whose changes are synced
_NAMED = "WHERE vhost = ? AND name = ?"

Prepare = Callable[[StreamRecord], None]


class Metadata(Routing, Policies, Transactions, Limits):
    """The database at ``path``; made, with its tables, on first use."""

    def __init__(self, path: str) -> None:
        super().__init__(path, MIGRATIONS)
        self.streams_dir = os.path.join(os.path.dirname(self.path), "streams")
        self._next_slot = 0  # the search for a free slot begins there

    # ---- as part of a bucket ----

    def snapshot_to(self, path: str) -> None:
        """Copy the database as of one moment, with its number, while others write.  Nothing may be at ``path``."""
        with self._reading() as db:
            snapshots.copy(db, path)

    @again_when_full
    def own_all(self, name: str, epoch: int) -> int:
        """Give the streams that have no owner to the broker ``name``; how many there were."""
        with self._writing(synced=True) as db:
            return db.execute("UPDATE streams SET owner = ?, owner_epoch = ? WHERE owner = ''", (name, epoch)).rowcount

    # ---- streams ----

    def create_stream(
        self,
        vhost: str,
        name: str,
        arguments: dict[str, str],
        durability: str,
        streams_max: int,
        prepare: Prepare | None = None,
        queue: Mapping[str, object] | None = None,
        vhost_streams_max: int = 0,
        user: str = "",
    ) -> StreamRecord:
        """Record a new stream; with options in ``queue`` it is a queue.  ``vhost_streams_max`` 0: no limit.
        ``user`` makes it, and its limits hold as those of the vhost do.

        ``prepare(record)`` runs before the commit: it makes the log, so that a recorded stream always
        has one; what a crash leaves unrecorded is removed at the next start.

        Raises StreamExists (with the record), LimitExceeded, VhostNotFound, StorageError, or what prepare raises.
        """
        with self._writing(synced=durability in SYNCED) as db:
            self._refuse(db, vhost, [name], streams_max, vhost_streams_max, user, are_queues=queue is not None)
            record = self._insert(db, self._draft(vhost, name, arguments, durability, queue), prepare)
            self._add_creator(db, record.incarnation, user)
        return record

    def _insert(self, db: sqlite3.Connection, draft: StreamRecord, prepare: Prepare | None) -> StreamRecord:
        record = replace(draft, slot=next(self._free_slots(db)))
        _insert_stream(db, record)
        if prepare is not None:
            prepare(record)
        return record

    def _free_slots(self, db: sqlite3.Connection) -> Iterator[int]:
        """Free slots, one after another; to be used up before the next change.

        The search begins at the slot that was found last, else it would read all streams each time.
        """
        begin = self._next_slot
        for slot, end in ((begin, STREAMS_MAX), (0, begin)):
            rows = db.execute("SELECT slot FROM streams WHERE slot >= ? AND slot < ? ORDER BY slot", (slot, end))
            for taken in chain((row[0] for row in rows), (end,)):
                while slot < taken:
                    self._next_slot = slot
                    yield slot
                    slot += 1
                slot = taken + 1
        # Only with what transactions have staged: `streams_max` is no higher.
        raise LimitExceeded("number of streams, those of transactions included", STREAMS_MAX + 1, STREAMS_MAX)

    def create_super_stream(
        self,
        vhost: str,
        name: str,
        partitions: Sequence[tuple[str, str]],
        arguments: dict[str, str],
        durability: str,
        streams_max: int,
        prepare: Prepare,
        vhost_streams_max: int = 0,
        user: str = "",
    ) -> list[StreamRecord]:
        """Record an exchange and a stream and a binding for each (stream's name, binding key): all or nothing.

        ``prepare(record)`` makes a partition's log.  That may be a thousand of them, so it happens before the
        transaction, without slots, for nobody else can write meanwhile; who calls removes the logs when this
        raises: StreamExists, LimitExceeded, VhostNotFound, StorageError, or what prepare raises.
        """
        names = [stream for stream, _ in partitions]
        with self._reading() as db:  # to know before a thousand logs were made for nothing
            self._refuse(db, vhost, names, streams_max, vhost_streams_max, user, name)
        drafts = [self._draft(vhost, stream, arguments, durability) for stream in names]
        for draft in drafts:
            prepare(draft)
        with self._writing(synced=durability in SYNCED) as db:
            self._refuse(db, vhost, names, streams_max, vhost_streams_max, user, name)
            insert_exchange(db, vhost, name, {SUPER_STREAM: True})
            records = [replace(draft, slot=slot) for draft, slot in zip(drafts, self._free_slots(db), strict=False)]
            for order, (record, (stream, key)) in enumerate(zip(records, partitions, strict=True)):
                _insert_stream(db, record)
                self._add_creator(db, record.incarnation, user)
                insert_binding(db, vhost, name, stream, key, {PARTITION_ORDER: order})
        return records

    def _refuse(
        self,
        db: sqlite3.Connection,
        vhost: str,
        names: list[str],
        streams_max: int,
        vhost_streams_max: int,
        user: str,
        exchange: str | None = None,
        *,
        are_queues: bool = False,
    ) -> None:
        """Raises VhostNotFound, StreamExists, LimitExceeded where streams of these names cannot be made."""
        self.require_vhost(vhost)
        if exchange is not None and self.find_exchange(vhost, exchange) is not None:
            raise StreamExists(f"super stream {exchange!r} exists already in vhost {vhost!r}")
        for name in names:
            if record := self.find_stream(vhost, name):
                raise StreamExists(f"stream {name!r} exists already in vhost {vhost!r}", record=record)

        def limit(most: int, option: str, of: str, where: str, *values: str) -> None:
            count = db.execute(f"SELECT COUNT(*) FROM streams WHERE {where}", values).fetchone()[0] + len(names)
            if count > most:
                what = f"cannot create stream {names[0]!r}: number of streams{of}"
                raise LimitExceeded(what, count, most, hint=f"raise store.{option}, or do with fewer")

        # There are at most as many streams as slots up to the highest one, which is known without reading all.
        slots = db.execute("SELECT COALESCE(MAX(slot) + 1, 0) FROM streams").fetchone()[0]
        if slots + len(names) > streams_max:
            limit(streams_max, "streams_max", "", "vhost <> ?", STAGING)
        if vhost_streams_max:
            limit(vhost_streams_max, "streams_per_virtual_host_max", f" in vhost {vhost!r}", "vhost = ?", vhost)
        self._refuse_by_limits(db, vhost, user, len(names), are_queues=are_queues)

    def _draft(
        self,
        vhost: str,
        name: str,
        arguments: dict[str, str],
        durability: str,
        queue: Mapping[str, object] | None = None,
    ) -> StreamRecord:
        """A stream that nobody knows yet; its slot is not taken."""
        incarnation, now_ms = secrets.token_hex(8), time.time_ns() // 1_000_000
        kept = None if queue is None else as_column(dict(queue))
        return self._stream((vhost, name, incarnation, -1, durability, as_column(arguments), now_ms, kept))

    @again_when_full
    def delete_stream(self, vhost: str, name: str) -> StreamRecord:
        """Forget a stream and return what it was; its slot is free from now on.  Raises StreamNotFound."""
        with self._writing(synced=self._is_durable(vhost, name)) as db:
            row = db.execute(f"DELETE FROM streams {_NAMED} RETURNING {STREAMS.columns}", (vhost, name)).fetchone()
            if row is None:
                raise _no_stream(vhost, name)
        gone = self._stream(row)
        self._next_slot = min(self._next_slot, gone.slot)
        return gone

    def set_queue(
        self, vhost: str, name: str, options: Mapping[str, object], prepare: Prepare | None = None
    ) -> StreamRecord:
        """Make a stream a queue with these options; one that is a queue already stays as it is.

        Returns the record as it is afterwards.  ``prepare(record)`` runs before the commit, and only
        if there is something to change.  Raises StreamNotFound, StorageError, or what prepare raises.
        """
        with self._writing(synced=self._is_durable(vhost, name)) as db:
            record = self.find_stream(vhost, name)
            if record is None:
                raise _no_stream(vhost, name)
            if record.queue is None:
                record = replace(record, queue=dict(options))
                db.execute("UPDATE streams SET queue = ? WHERE slot = ?", (as_column(record.queue), record.slot))
                if prepare is not None:
                    prepare(record)
        return record

    @again_when_full
    def alter_queue(
        self, vhost: str, name: str, change: Callable[[dict[str, object]], Mapping[str, object]]
    ) -> StreamRecord:
        """Give a queue the options that ``change`` makes of those it has; nothing is written where they are the same.

        The change raises `queue_changes` in the same transaction.  Raises StreamNotFound, also for a stream that is no
        queue, StorageError, or what ``change`` raises.
        """
        with self._writing(synced=self._is_durable(vhost, name)) as db:
            record = self.find_stream(vhost, name)
            if record is None or record.queue is None:
                raise _no_stream(vhost, name)
            options = dict(change(dict(record.queue)))
            if options != record.queue:
                db.execute("UPDATE accounts SET queue_changes = queue_changes + 1")
                db.execute(
                    "UPDATE streams SET queue = ?, altered = (SELECT queue_changes FROM accounts) WHERE slot = ?",
                    (as_column(options), record.slot),
                )
        return replace(record, queue=options)

    def _is_durable(self, vhost: str, name: str) -> bool:
        known = self.find_stream(vhost, name)
        return known is not None and known.durability in SYNCED

    def queue_changes(self) -> int:
        """How often options of queues were changed; some microseconds."""
        return int(self._kept("queue_changes"))

    def queues_altered_since(self, changes: int) -> list[StreamRecord]:
        """Queues whose options were changed after `queue_changes` was that."""
        return self._found("altered > 0 AND altered > ? AND queue IS NOT NULL", changes)

    def find_stream(self, vhost: str, name: str) -> StreamRecord | None:
        """Look a stream up; some microseconds."""
        row = self._row(f"{STREAMS.select} {_NAMED}", vhost, name)
        return None if row is None else self._stream(row)

    def stream_of(self, incarnation: str) -> StreamRecord | None:
        return next(iter(self._found("incarnation = ?", incarnation)), None)

    def stream_at(self, slot: int) -> StreamRecord | None:
        """The stream that has this slot now.  StorageError."""
        return next(iter(self._found("slot = ?", slot)), None)

    def streams(self) -> Iterator[StreamRecord]:
        """All streams by slot, read in pages: nothing is held between two of them."""
        return _paged(self.streams_after)

    def streams_after(self, slot: int) -> list[StreamRecord]:
        """The next page of streams whose slot is higher; empty at the end."""
        return self._found(f"slot > ? AND vhost <> ? ORDER BY slot LIMIT {PAGE_ROWS}", slot, STAGING)

    def logs(self) -> Iterator[StreamRecord]:
        """The same with those of transactions: everything that has a log."""
        return _paged(lambda slot: self._found(f"slot > ? ORDER BY slot LIMIT {PAGE_ROWS}", slot))

    # ---- staging streams ----

    def staging(self) -> list[StreamRecord]:
        """All of them, in the order of their names."""
        return self._found("vhost = ? ORDER BY name", STAGING)

    def staging_of(self, vhost: str, application: str) -> list[StreamRecord]:
        """One application's."""
        mine = "json_extract(arguments, '$.vhost') = ? AND json_extract(arguments, '$.application') = ?"
        return self._found(f"vhost = ? AND {mine} ORDER BY name", STAGING, vhost, application)

    def draft_staging(self, name: str, arguments: Mapping[str, str], durability: str) -> StreamRecord:
        """One that nobody knows yet; whoever asks makes its log, and records it or removes that again."""
        return self._draft(STAGING, name, dict(arguments), durability)

    def add_staging(self, draft: StreamRecord) -> None:
        """Record it, where there is none of its name; within ``writing``.  LimitExceeded."""
        self._insert(self._connection(), draft, None)

    @again_when_full
    def condemn_staging(self, record: StreamRecord) -> bool:
        """See to it that no decision names it any more, and none will; False: one does."""
        with self._writing(synced=False) as db:
            if any(incarnation == record.incarnation for made in self.decisions() for _, incarnation, _ in made.staged):
                return False
            over = as_column({**record.arguments, "version": "-1"})  # of no version that can be decided
            of = (over, STAGING, record.name, record.incarnation)
            db.execute(f"UPDATE streams SET arguments = ? {_NAMED} AND incarnation = ?", of)
        return True

    @again_when_full
    def forget_staging(self, record: StreamRecord) -> None:
        """Its log is removed, or will be."""
        with self._writing(synced=False) as db:
            of = (STAGING, record.name, record.incarnation)
            db.execute(f"DELETE FROM streams {_NAMED} AND incarnation = ?", of)

    def streams_from(self, vhost: str, first: str) -> list[StreamRecord]:
        """A page of a vhost's streams in the order of their names, the first not before ``first``; empty at the end."""
        return self._found(f"vhost = ? AND name >= ? ORDER BY name LIMIT {PAGE_ROWS}", vhost, first)

    def queues(self, vhost: str) -> Iterator[StreamRecord]:
        """All queues of a vhost by slot, read in pages: nothing is held between two of them."""
        page = f"vhost = ? AND queue IS NOT NULL AND slot > ? ORDER BY slot LIMIT {PAGE_ROWS}"
        return _paged(lambda slot: self._found(page, vhost, slot))

    def _found(self, where: str, *values: object) -> list[StreamRecord]:
        return [self._stream(row) for row in self._rows(f"{STREAMS.select} WHERE {where}", *values)]

    def _stream(self, row: tuple) -> StreamRecord:
        return STREAMS.record(row, os.path.join(self.streams_dir, row[2]))


def restore(snapshot: str, path: str) -> None:
    """Make the database at ``path``, where there is none, of a snapshot.  StorageError: nothing was made."""
    snapshots.restore(snapshot, path, len(MIGRATIONS))


def _paged(page_after: Callable[[int], list[StreamRecord]]) -> Iterator[StreamRecord]:
    slot = -1
    while page := page_after(slot):
        yield from page
        slot = page[-1].slot


def _insert_stream(db: sqlite3.Connection, record: StreamRecord) -> None:
    """In a bucket's database a new stream is this broker's."""
    STREAMS.insert(db, record)
    if bound := changes.binding(db):
        db.execute("UPDATE streams SET owner = ? WHERE slot = ?", (bound.name, record.slot))


def _no_stream(vhost: str, name: str) -> StreamNotFound:
    return StreamNotFound(f"there is no stream {name!r} in vhost {vhost!r}")
