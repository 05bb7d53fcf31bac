# SPDX-License-Identifier: Apache-2.0
"""What a transaction changed, as data, so that the same can be done to another database of the same past.

Triggers of the connection log each row that is inserted, updated or deleted, cascades and replaced rows included. They
are made from the tables as they are, so new tables and columns are covered by themselves. A list of changes is JSON:

    ["insert", table, row]    ["update", table, key, columns that are others now]    ["delete", table, key]

Rows, keys and columns are objects from a column's name to its value, blobs in hex; a key is the primary key, or
`rowid` of a table that has none. They are in the order in which they happened, and are done again in that order.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from vibemq.errors import StorageError
from vibemq.storage import row_sums

Changes = list[list[Any]]

#: Whose database it is.
BINDING = "remote"
#: Tables of this machine's file, which are never part of a published change.
_OWN = (BINDING, *row_sums.CHECKS)
#: What only this machine wants to know, by table: an update of nothing else is no change.
LOCAL = {"applications": frozenset(("peer", "seen_ms"))}  # the sight of a run, as often as it stages

_LOG = "changes_made"


class Binding(NamedTuple):
    """To which bucket a database belongs."""

    cluster: str
    name: str  # this broker's
    number: int  # of the last change that is in the database
    epoch: int  # the highest epoch of a broker with a change in the database


class NumberTaken(Exception):
    """Another change of the metadata has this number; ``body``: what the object there says, with its `changes`."""

    def __init__(self, number: int, body: Mapping[str, Any]) -> None:
        super().__init__(f"another change of the metadata is number {number}")
        self.number = number
        self.body = body


class _Table(NamedTuple):
    columns: dict[str, bool]  # name -> is it a blob?
    key: tuple[str, ...]


def binding(db: sqlite3.Connection) -> Binding | None:
    row = db.execute(f"SELECT cluster, name, number, epoch FROM {BINDING}").fetchone()
    return None if row is None else Binding(*row)


def watch(db: sqlite3.Connection) -> None:
    """Log on this connection what is changed from now on; outside a transaction."""
    db.execute("PRAGMA temp_store = MEMORY")  # a full disk is not met here
    db.execute("PRAGMA recursive_triggers = ON")  # rows that REPLACE deletes are logged too
    db.execute(f"CREATE TEMP TABLE {_LOG} (id INTEGER PRIMARY KEY, named TEXT, old TEXT, new TEXT)")
    for name, table in _tables(db).items():
        for event, old, new in (("INSERT", "", "NEW"), ("UPDATE", "OLD", "NEW"), ("DELETE", "OLD", "")):
            values = ", ".join(_as_json(table, which) if which else "NULL" for which in (old, new))
            db.execute(
                f'CREATE TEMP TRIGGER "{_LOG}_{name}_{event}" AFTER {event} ON main."{name}" '
                f"BEGIN INSERT INTO {_LOG} (named, old, new) VALUES ('{name}', {values}); END"
            )


def made(db: sqlite3.Connection) -> Changes:
    """What was changed since the last time; within a transaction, whose rollback brings it back."""
    rows = db.execute(f"SELECT named, old, new FROM {_LOG} ORDER BY id").fetchall()
    if not rows:
        return []
    db.execute(f"DELETE FROM {_LOG}")
    keys = {name: table.key for name, table in _tables(db).items()}
    changes: Changes = []
    for name, before, after in rows:
        old, new = before and json.loads(before), after and json.loads(after)
        key = old and {column: old[column] for column in keys[name]}
        if old is None:
            changes.append(["insert", name, new])
        elif new is None:
            changes.append(["delete", name, key])
        else:
            others = {column: value for column, value in new.items() if value != old[column]}
            if not LOCAL.get(name, frozenset()).issuperset(others):
                changes.append(["update", name, key, others])
    return changes


def write(db: sqlite3.Connection, changes: object, of: str) -> None:
    """Do them, within a transaction; ``of``: where they come from, for errors.  StorageError: it must not be kept."""
    tables = _tables(db)
    for change in _checked_list(changes, of):
        match change:
            case ["insert", str(name), dict(row)] if row:
                values = _values(tables, name, row, of)
                places = ", ".join("?" * len(values))
                _run(db, f'INSERT INTO "{name}" ({_listed(row, ", ", "")}) VALUES ({places})', values, change, of)
            case ["update", str(name), dict(key), dict(row)] if key and row:
                values = _values(tables, name, row, of) + _values(tables, name, key, of)
                statement = f'UPDATE "{name}" SET {_listed(row, ", ", " = ?")} WHERE {_listed(key, " AND ", " IS ?")}'
                if _run(db, statement, values, change, of) != 1:
                    raise _differs(change, of, "there is no such row")
            case ["delete", str(name), dict(key)] if key:  # it may have gone with another row: a cascade happens again
                statement = f'DELETE FROM "{name}" WHERE {_listed(key, " AND ", " IS ?")}'
                _run(db, statement, _values(tables, name, key, of), change, of)
            case _:
                raise StorageError("ERR_CORRUPT", f"{of}: {_shown(change)} is no change of a row")


def forget(db: sqlite3.Connection) -> None:
    """What was logged was no change of ours."""
    db.execute(f"DELETE FROM {_LOG}")


def _tables(db: sqlite3.Connection) -> dict[str, _Table]:
    names = "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
    found = {}
    for (name,) in db.execute(f"{names} ORDER BY name").fetchall():
        if name in _OWN:
            continue
        info = db.execute(f'PRAGMA main.table_info("{name}")').fetchall()
        columns = {column: kind.upper() == "BLOB" for _, column, kind, *_ in info}
        key = tuple(column for _, column, *_, at in sorted(info, key=lambda each: each[-1]) if at)
        found[name] = _Table(columns, key) if key else _Table({"rowid": False, **columns}, ("rowid",))
    return found


def _as_json(table: _Table, of: str) -> str:
    """SQL for a row as an object."""

    def value(column: str, is_blob: bool) -> str:
        said = f'{of}."{column}"'
        return f"'{column}', " + (f"CASE WHEN {said} IS NULL THEN NULL ELSE hex({said}) END" if is_blob else said)

    return f"json_object({', '.join(value(*column) for column in table.columns.items())})"


def _checked_list(changes: object, of: str) -> Iterable[Any]:
    if not isinstance(changes, list):
        raise StorageError("ERR_CORRUPT", f"{of}: its changes are {_shown(changes)}, and a list is needed")
    return changes


def _values(tables: Mapping[str, _Table], name: str, row: Mapping[str, Any], of: str) -> list[object]:
    columns = tables[name].columns if name in tables else {}
    values: list[object] = []
    for column, value in row.items():
        if column not in columns:
            what = f"column {column!r} of table {name!r}" if columns else f"table {name!r}"
            raise StorageError(
                "ERR_VERSION",
                f"{of}: it changes {what}, which this VibeMQ does not know; nothing was changed",
                hint="it was written by a newer VibeMQ: start that one here too",
            )
        if not isinstance(value, str | int | float | None):
            raise StorageError("ERR_CORRUPT", f"{of}: {_shown(value)} is no value of a column ({name}.{column})")
        try:
            values.append(bytes.fromhex(value) if columns[column] and isinstance(value, str) else value)
        except ValueError:
            said = f"{of}: {name}.{column} needs hex digits"  # and not what is there: it may be a key
            raise StorageError("ERR_CORRUPT", said) from None
    return values


def _listed(columns: Iterable[str], between: str, behind: str) -> str:
    """Only of names that ``_values`` knew."""
    return between.join(f'"{column}"{behind}' for column in columns)


def _run(db: sqlite3.Connection, statement: str, values: list[object], change: list[Any], of: str) -> int:
    try:
        return db.execute(statement, values).rowcount
    except (sqlite3.IntegrityError, OverflowError, UnicodeEncodeError) as problem:
        raise _differs(change, of, str(problem)) from problem


def _differs(change: list[Any], of: str, why: str) -> StorageError:
    return StorageError(
        "ERR_CORRUPT",
        f"{of}: cannot {change[0]} a row of {change[1]} as it says: {why}; this database has another past",
        hint="restore this data directory from the bucket",
    )


def _shown(value: object) -> str:
    """Short, and of rows not their values: hashes and keys are among them."""
    return value if isinstance(value, str) and len(value) < 40 else f"a {type(value).__name__}"
