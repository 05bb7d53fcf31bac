# SPDX-License-Identifier: Apache-2.0
"""What a user, or all in a virtual host together, may have at most: connections, streams, queues, messages a second.

How many streams and queues there are is looked at in the transaction that makes one, so these limits hold exactly,
whichever process makes it.  The others are the workers' (broker.limits): each who is limited has a slot, the place of
what it uses in the memory that they share, and a tag, by which what an earlier owner of the slot has left there is told
from its own.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

from vibemq.errors import LimitExceeded, UserError
from vibemq.storage.database import again_when_full
from vibemq.storage.users import GUEST, no_user
from vibemq.storage.vhosts import Vhosts

MAX_CONNECTIONS, MAX_QUEUES, MAX_STREAMS = "max-connections", "max-queues", "max-streams"
PUBLISH_RATE = "publish-rate"  # messages a second
#: The least of each that is a limit; less than 0 is none.  Who may publish nothing has no permission to.
LEAST = {MAX_CONNECTIONS: 0, MAX_QUEUES: 0, MAX_STREAMS: 0, PUBLISH_RATE: 1}
LIMIT_MAX = 1_000_000_000
#: Users, and virtual hosts, that may have limits: what each uses takes a cache line or more in shared memory.
LIMITED_MAX = 8192
GUEST_SLOT = LIMITED_MAX  # of its own: it has limits whatever there are of others
USER, VHOST = "user", "vhost"
_TAG_BITS = 32  # of the column of that name; above them is the change
_TAG_MAX = 2**_TAG_BITS - 1
_CHANGES = 2**16
_GUEST = ("built_in_limits", "username")
#: Who has limits, by kind; guest is a user without a row in users, which those of the first table need.
_TABLES = {USER: (("user_limits", "username"), _GUEST), VHOST: (("vhost_limits", "vhost"),)}


class Limited(NamedTuple):
    """Somebody who has limits."""

    kind: str  # USER or VHOST
    name: str
    slot: int  # among those of its kind: below LIMITED_MAX, or GUEST_SLOT
    tag: int  # not 0
    change: int  # of the accounts: the one that set the rate, modulo 2^16
    limits: dict[str, int]

    def get(self, limit: str) -> int | None:
        """None: there is no such limit."""
        return self.limits.get(limit)


class Limits(Vhosts):
    """The tables are storage.metadata's; each change counts as one of the accounts."""

    def limited(self, kind: str | None = None) -> list[Limited]:
        """All who have limits, or those of one kind, by name."""
        found = []
        for each in (kind,) if kind is not None else (USER, VHOST):
            held = (f"SELECT {column} AS name, slot, tag, definition FROM {table}" for table, column in _TABLES[each])
            for name, slot, tag, text in self._rows(f"{' UNION ALL '.join(held)} ORDER BY name"):
                found.append(Limited(each, name, slot, tag & _TAG_MAX, tag >> _TAG_BITS, json.loads(text)))
        return found

    def limits_of(self, kind: str, name: str) -> dict[str, int]:
        """Empty where there is no limit; some microseconds."""
        table, column = _table(kind, name)
        row = self._row(f"SELECT definition FROM {table} WHERE {column} = ?", name)
        found: dict[str, int] = {} if row is None else json.loads(row[0])
        return found

    @again_when_full
    def set_limits(self, kind: str, name: str, changes: Mapping[str, object], *, instead: bool = False) -> None:
        """Change these limits, None is none; ``instead``: the others go.

        Raises UserNotFound, VhostNotFound, UserError for what is no limit, LimitExceeded: too many have limits.
        """
        checked = _checked(changes)
        table, column = _table(kind, name)
        with self._changing_accounts() as db:
            if kind == VHOST:
                self.require_vhost(name)
            elif not self.has_user(name):
                raise no_user(name)
            held = self.limits_of(kind, name)
            kept = {limit: value for limit, value in (({} if instead else held) | checked).items() if value is not None}
            if not kept:
                db.execute(f"DELETE FROM {table} WHERE {column} = ?", (name,))
                return
            had = db.execute(f"SELECT slot, tag FROM {table} WHERE {column} = ?", (name,)).fetchone()
            slot, tag = had or (_free_slot(db, table), 1 + secrets.randbelow(_TAG_MAX))
            if had is None or held.get(PUBLISH_RATE) != kept.get(PUBLISH_RATE):
                tag = tag & _TAG_MAX | (self.account_changes() + 1) % _CHANGES << _TAG_BITS
            db.execute(
                f"INSERT INTO {table} (slot, {column}, tag, definition) VALUES (?, ?, ?, ?) "
                f"ON CONFLICT ({column}) DO UPDATE SET tag = excluded.tag, definition = excluded.definition",
                (slot, name, tag, json.dumps(kept, sort_keys=True)),
            )

    def _refuse_by_limits(self, db: sqlite3.Connection, vhost: str, user: str, count: int, *, are_queues: bool) -> None:
        """Raises LimitExceeded where so many more would be too many; within the transaction that makes them."""
        creators = "built_in_creators" if user == GUEST else "creators"
        of_user = f"incarnation IN (SELECT incarnation FROM {creators} WHERE username = ?)"
        for kind, name, where in ((VHOST, vhost, "vhost = ?"), (USER, user, of_user)):
            for limit, narrower in ((MAX_QUEUES, ""), (MAX_STREAMS, " AND queue IS NULL")):
                most = self.limits_of(kind, name).get(limit)
                if most is None or (narrower and are_queues):
                    continue
                had = db.execute(f"SELECT COUNT(*) FROM streams WHERE {where}{narrower}", (name,)).fetchone()[0]
                if had + count > most:
                    raise LimitExceeded(
                        f"{_of(kind, name)}: {'streams' if narrower else 'queues and streams'}", had + count, most,
                        hint=f"have an administrator raise {limit} (`vibemq ctl set_{kind}_limits`), or do with fewer",
                    )  # fmt: skip

    def _add_creator(self, db: sqlite3.Connection, incarnation: str, user: str) -> None:
        """Who has made a stream; who came when nobody had to log in is nobody."""
        if user == GUEST:
            db.execute(
                "INSERT INTO built_in_creators SELECT ?, ? FROM accounts WHERE guest_removed = 0", (incarnation, user)
            )
        elif user:
            db.execute("INSERT INTO creators SELECT ?, name FROM users WHERE name = ?", (incarnation, user))


def _table(kind: str, name: str) -> tuple[str, str]:
    return _GUEST if kind == USER and name == GUEST else _TABLES[kind][0]


def _of(kind: str, name: str) -> str:
    return f"user {name!r}" if kind == USER else f"virtual host {name!r}"


def _checked(limits: Mapping[str, object]) -> dict[str, int | None]:
    """None: no limit.  Raises UserError."""
    found: dict[str, int | None] = {}
    for limit, value in limits.items():
        if limit not in LEAST:
            raise UserError(f"there is no limit {limit!r}; there are {', '.join(LEAST)}")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value > LIMIT_MAX):
            raise UserError(f"{limit} must be an integer up to {LIMIT_MAX}, but is {value!r}; -1 is no limit")
        if value is not None and 0 <= value < LEAST[limit]:
            raise UserError(f"{limit} must be {LEAST[limit]} or more, but is {value}; -1 is no limit")
        found[limit] = None if value is None or value < 0 else value
    return found


def _free_slot(db: sqlite3.Connection, table: str) -> int:
    """Raises LimitExceeded."""
    if table == _GUEST[0]:
        return GUEST_SLOT
    taken = [row[0] for row in db.execute(f"SELECT slot FROM {table} ORDER BY slot")]
    slot = next((at for at, each in enumerate(taken) if at != each), len(taken))
    if slot >= LIMITED_MAX:
        raise LimitExceeded(f"{table}: how many have limits", slot + 1, LIMITED_MAX)
    return slot
