# SPDX-License-Identifier: Apache-2.0
"""What is kept of transactions: the applications whose batches are numbered, what is staged, and what is decided.

What a transaction stages lies in a stream like any other, but in a virtual host of a name that no client can open and
no list shows; its arguments say whose it is.  A decision stands here from when it is made until all of it is applied.
What must be done as one is done within ``writing``.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vibemq.storage.database import Database, again_when_full
from vibemq.storage.records import Table, as_column

#: Where staging streams are: no name that a virtual host can be given.
STAGING = "\x01transactions"


@dataclass(frozen=True, slots=True)
class Application:
    """Whose batches are numbered, in a vhost."""

    vhost: str
    name: str
    user: str  # whose it is
    run: str  # the one that may decide now; "": none
    peer: str  # from where that came last
    seen_ms: int  # when, since 1970
    past: tuple[list[str], ...]  # runs that may no more, oldest first: [run, by which one, from where]
    version: int  # the last batch decided; -1: none
    messages: int  # of that
    decided_ms: int  # 0: never
    is_ephemeral: bool  # its name is nobody's: it will not come again
    targets: tuple[str, ...] = ()  # streams that the last batch was decided for; (): none, or by an older version

    @property
    def past_runs(self) -> set[str]:
        return {run for run, _, _ in self.past}


@dataclass(frozen=True, slots=True)
class Decision:
    """A batch that is to be appended, whatever happens."""

    id: int
    vhost: str
    application: str
    version: int
    is_durable: bool  # some target has durability `disk` or `remote`
    targets: tuple[list[Any], ...]  # [name, incarnation or "" where it is done, number of the first message]
    staged: tuple[list[Any], ...]  # [name, incarnation, blocks], in their order
    decided_ms: int


APPLICATIONS = Table("applications", Application)
DECISIONS = Table("decisions", Decision)
_OF = "WHERE vhost = ? AND name = ?"
_OTHERS = ", ".join(f"{column} = excluded.{column}" for column in APPLICATIONS.columns.split(", ")[2:])
_UPDATE = f"ON CONFLICT (vhost, name) DO UPDATE SET {_OTHERS}"


class Transactions(Database):
    """The tables are storage.metadata's."""

    @contextmanager
    def writing(self, synced: bool = False) -> Iterator[None]:
        """One transaction of the database; synced: it survives a power cut before this returns."""
        with self._writing(synced):
            yield

    # ---- applications ----

    def application(self, vhost: str, name: str) -> Application | None:
        return self._record(APPLICATIONS, _OF, vhost, name)

    def applications(self) -> list[Application]:
        return self._records(APPLICATIONS, "ORDER BY vhost, name")

    def put_application(self, record: Application) -> None:
        """Within ``writing``.  Updated, not replaced: where only `seen_ms` is another, there is nothing to publish."""
        APPLICATIONS.insert(self._connection(), record, then=_UPDATE)

    def application_to_forget(self, user: str, most: int) -> Application | None:
        """Of ``most`` the one to go: this user's first, with a name that was nobody's, then what decided longest ago.

        None that stages, or waits for what it has decided.
        """
        idle = (
            "WHERE NOT EXISTS (SELECT 1 FROM decisions d WHERE d.vhost = applications.vhost "
            "AND d.application = applications.name) AND NOT EXISTS (SELECT 1 FROM streams s WHERE s.vhost = ? "
            "AND json_extract(s.arguments, '$.vhost') = applications.vhost "
            "AND json_extract(s.arguments, '$.application') = applications.name)"
        )
        order = "ORDER BY user <> ?, is_ephemeral DESC, max(decided_ms, seen_ms) LIMIT 1"
        count = self._rows("SELECT COUNT(*) FROM applications")[0][0]
        return self._record(APPLICATIONS, f"{idle} {order}", STAGING, user) if count >= most else None

    def forget_application(self, record: Application) -> None:
        """Within ``writing``."""
        self._connection().execute(f"DELETE FROM applications {_OF}", (record.vhost, record.name))

    # ---- decisions ----

    def decisions(self) -> list[Decision]:
        """Those that are not applied yet, as they were made."""
        return self._records(DECISIONS, "ORDER BY id")

    def decision(self, id: int) -> Decision | None:
        return self._record(DECISIONS, "WHERE id = ?", id)

    def has_decisions(self) -> bool:
        return self._row("SELECT 1 FROM decisions LIMIT 1") is not None

    def add_decision(
        self, of: Application, version: int, is_durable: bool, targets: list[list[Any]], staged: list[list[Any]]
    ) -> Decision:
        """Within ``writing``."""
        db, now_ms = self._connection(), time.time_ns() // 1_000_000
        (last,) = db.execute("SELECT coalesce(max(id), 0) FROM decisions").fetchone()
        record = Decision(
            last + 1, of.vhost, of.name, version, is_durable, tuple(targets), tuple(staged), now_ms
        )  # fmt: skip
        DECISIONS.insert(db, record)
        return record

    @again_when_full
    def settle_targets(self, decision: Decision, targets: list[list[Any]]) -> None:
        """Some targets have all of it, the others not yet: those of the former have no incarnation any more."""
        with self._writing(synced=decision.is_durable) as db:
            db.execute("UPDATE decisions SET targets = ? WHERE id = ?", (as_column(tuple(targets)), decision.id))

    @again_when_full
    def end_decision(self, decision: Decision, messages: int) -> None:
        """All of it is appended, and synced where that was promised."""
        with self._writing(synced=decision.is_durable) as db:
            db.execute("DELETE FROM decisions WHERE id = ?", (decision.id,))
            of = (messages, decision.vhost, decision.application, decision.version)
            db.execute(f"UPDATE applications SET messages = ? {_OF} AND version = ?", of)
            db.execute("UPDATE accounts SET batches_decided = batches_decided + 1, "
                       "messages_decided = messages_decided + ?", (messages,))  # fmt: skip

    def decided_ever(self) -> tuple[int, int]:
        """Batches and messages, since the database was made."""
        return int(self._kept("batches_decided")), int(self._kept("messages_decided"))


def staging_arguments(
    vhost: str, application: str, version: int, run: str, incarnations: list[str]
) -> Mapping[str, str]:
    """What a staging stream says of itself; of its targets the incarnations, in the order of their numbers."""
    return {
        "vhost": vhost, "application": application, "version": str(version), "run": run,
        "targets": " ".join(incarnations),
    }  # fmt: skip
