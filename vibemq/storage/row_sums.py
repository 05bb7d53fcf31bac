# SPDX-License-Identifier: Apache-2.0
"""Check sums of the rows of each table, so that a flipped bit in a row is found after a kill too.

The table `row_sums` has a sum for each other table: the hashes of its rows, added modulo 2^60.  Triggers of the
connection that writes keep it up to date within the transaction, so a change costs two hashes and no sync, and rows
may come in any order.  The table `synced` has the number of changes that were synced before they were answered.

The triggers are temporary: no other program needs the hash function to write, and its changes are found as damage.
"""

import hashlib
import sqlite3
from typing import Any

#: Tables that have no sum: those of this module.
CHECKS = ("row_sums", "synced")

_MASK = (1 << 60) - 1  # two of them are added within SQLite's 63 bits


def are_in(db: sqlite3.Connection) -> bool:
    """True if the schema has the tables of this module; older ones have not."""
    question = "SELECT 1 FROM main.sqlite_master WHERE type = 'table' AND name = 'row_sums'"
    return db.execute(question).fetchone() is not None


def make(db: sqlite3.Connection) -> None:
    """Compute all sums again; within a transaction."""
    if not are_in(db):
        return
    db.execute("DELETE FROM row_sums")
    db.executemany("INSERT INTO row_sums (named, sum) VALUES (?, ?)", _computed(db).items())


def damaged(db: sqlite3.Connection) -> list[str]:
    """Return the names of the tables with rows that do not match their sum; none for a schema without sums."""
    if not are_in(db):
        return []
    kept: dict[str, int] = dict(db.execute("SELECT named, sum FROM row_sums").fetchall())
    found = _computed(db)
    return sorted(name for name in kept.keys() | found.keys() if kept.get(name) != found.get(name))


def watch(db: sqlite3.Connection) -> None:
    """Keep the sums up to date on this connection from now on; outside a transaction."""
    if not are_in(db):
        return
    db.execute("PRAGMA temp_store = MEMORY")  # so a full disk does not matter
    db.execute("PRAGMA recursive_triggers = ON")  # rows that REPLACE deletes have triggers too
    db.create_function("row_hash", -1, _hash, deterministic=True)
    for name, columns in _tables(db).items():
        for event, rows in (("INSERT", ("NEW",)), ("UPDATE", ("NEW", "OLD")), ("DELETE", ("OLD",))):
            change = "".join(
                f" {'+' if row == 'NEW' else '-'} row_hash('{name}', "
                + ", ".join(f'{row}."{c}"' for c in columns)
                + ")"
                for row in rows
            )
            db.execute(
                f'CREATE TEMP TRIGGER "row_sums_{name}_{event}" AFTER {event} ON main."{name}" '
                f"BEGIN UPDATE row_sums SET sum = (sum{change}) & {_MASK} WHERE named = '{name}'; END"
            )


def count_synced(db: sqlite3.Connection) -> int:
    """Count one change more that is to be synced, within its transaction; return how many there are."""
    if not are_in(db):
        return 0
    db.execute("UPDATE synced SET changes = changes + 1")
    return synced(db)


def synced(db: sqlite3.Connection) -> int:
    """Return how many changes were synced before they were answered."""
    return int(db.execute("SELECT changes FROM synced").fetchone()[0])


def _computed(db: sqlite3.Connection) -> dict[str, int]:
    sums = {}
    for name, columns in _tables(db).items():
        listed = ", ".join(f'"{column}"' for column in columns)
        sums[name] = sum(_hash(name, *row) for row in db.execute(f'SELECT {listed} FROM main."{name}"')) & _MASK
    return sums


def _hash(*row: Any) -> int:
    digest = hashlib.blake2b(repr(row).encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") & _MASK


def _tables(db: sqlite3.Connection) -> dict[str, list[str]]:
    """Return the columns of each table that has a sum."""
    names = "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
    return {
        name: [column for _, column, *_ in db.execute(f'PRAGMA main.table_info("{name}")').fetchall()]
        for (name,) in db.execute(f"{names} ORDER BY name").fetchall()
        if name not in CHECKS
    }
