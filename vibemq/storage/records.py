# SPDX-License-Identifier: Apache-2.0
"""What the database has of each thing, as it was when it was looked up, and how that lies in a table.

A record's fields are columns of the same names, in the same order: dicts and tuples as JSON, truth values as 0 and 1.
"""

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar, get_origin

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """One stream; with options of its own it is a queue."""

    vhost: str
    name: str
    incarnation: str  # 16 hex digits; a stream created again under the same name has another
    slot: int  # small number that names the live stream in shared memory; reused after deletion
    durability: str
    arguments: dict[str, str]
    created_ms: int
    queue: dict[str, object] | None  # the queue's options; None: a plain stream
    directory: str  # of its log, absolute; no column


@dataclass(frozen=True, slots=True)
class ExchangeRecord:
    """A direct exchange."""

    vhost: str
    name: str
    arguments: dict[str, object]
    created_ms: int


@dataclass(frozen=True, slots=True)
class BindingRecord:
    """What is routed by exactly ``routing_key`` goes to ``stream``."""

    vhost: str
    exchange: str
    stream: str
    routing_key: str
    arguments: dict[str, object]


@dataclass(frozen=True, slots=True)
class UserRecord:
    """One user; hash and verifier are kept out of ``repr`` so that no log shows them."""

    name: str
    tags: tuple[str, ...]
    created_ms: int
    password_hash: str
    is_superuser: bool
    updated_ms: int
    verifier: str  # empty: none

    def __repr__(self) -> str:
        return f"UserRecord(name={self.name!r}, tags={self.tags!r}, is_superuser={self.is_superuser})"


@dataclass(frozen=True, slots=True)
class Permission:
    """Queues whose name matches ``pattern`` may be used for ``operations``, ascending numbers."""

    pattern: str
    operations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rights:
    """What one user may do; ``created_ms`` tells a user made again under the same name."""

    created_ms: int
    is_superuser: bool
    permissions: tuple[Permission, ...]


@dataclass(frozen=True, slots=True)
class VhostRecord:
    """One virtual host; description and tags are for people and tools."""

    name: str
    description: str
    tags: tuple[str, ...]
    created_ms: int


@dataclass(frozen=True, slots=True)
class VhostPermission:
    """Regular expressions for the names in ``vhost`` that ``user`` may configure, write and read."""

    vhost: str
    user: str
    configure: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class KeptRights:
    """A user's rights in one vhost as they are kept; ``patterns`` is None where there is no permission."""

    created_ms: int  # the user's: another one was made under the same name if it differs
    is_superuser: bool
    patterns: tuple[str, str, str] | None


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    vhost: str
    name: str
    pattern: str
    definition: dict[str, int | str]
    priority: int
    apply_to: str


class Table(Generic[Record]):
    """The table ``name``, whose rows are records ``of`` this type."""

    def __init__(self, name: str, of: type[Record], **columns: str | None) -> None:
        """``columns``: of fields that have another name there, or (None) none."""
        kept = [(columns.get(field.name, field.name), field) for field in fields(of)]  # type: ignore[arg-type]
        self._of = of
        self._fields = [field.name for column, field in kept if column]
        self._readers = [(at, reader) for at, (_, field) in enumerate(kept) if (reader := _reader(field.type))]
        self.columns = ", ".join(column for column, _ in kept if column)
        self.select = f"SELECT {self.columns} FROM {name}"
        self._into = f"INTO {name} ({self.columns}) VALUES ({', '.join('?' * len(self._fields))})"

    def record(self, row: Sequence[Any], *more: object) -> Record:
        """``more``: of the fields without a column, which are the last."""
        values = list(row)
        for at, read in self._readers:
            values[at] = read(values[at])
        return self._of(*values, *more)

    def insert(self, db: sqlite3.Connection, record: Record, how: str = "INSERT", then: str = "") -> None:
        values = [as_column(getattr(record, field)) for field in self._fields]
        db.execute(f"{how} {self._into} {then}", values)


def as_column(value: object) -> object:
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | tuple) else value


def _reader(kind: Any) -> Callable[[Any], Any] | None:
    """What makes a field's value of its column's; None: they are the same."""
    if kind is bool:
        return bool
    if get_origin(kind) is tuple:
        return lambda text: tuple(json.loads(text))
    if get_origin(kind) is dict:
        return json.loads
    return None if get_origin(kind) is None else lambda text: None if text is None else json.loads(text)
