# SPDX-License-Identifier: Apache-2.0
"""The users' part of the metadata: accounts, and which queues each may do what with.

Every change is synced before it returns and raises ``accounts.changes`` in the same transaction,
so that a process finds out with one small read that rights may be others than before.
What an operation number means is access.permissions'; here it is only kept.

A password is kept as a hash and as a verifier (vibemq.access.proofs), which are set together or not at all: who sets
a hash and names no verifier takes the old one away, for it would let the old password in.
"""

import json
import shlex
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from vibemq.errors import UserExists, UserNotFound
from vibemq.storage.database import Database, again_when_full
from vibemq.storage.names import require_address
from vibemq.storage.records import Permission, Rights, Table, UserRecord

GUEST = "guest"
USERS = Table("users", UserRecord)
_RIGHTS = """
    SELECT u.created_ms, u.is_superuser, p.queue_pattern, p.operations
    FROM users u LEFT JOIN permissions p ON p.username = u.name
    WHERE u.name = ? ORDER BY p.queue_pattern
"""


class Users(Database):
    """Users and permissions; the tables are storage.metadata's."""

    @again_when_full
    def add_user(
        self,
        name: str,
        password_hash: str,
        tags: tuple[str, ...] = (),
        is_superuser: bool | None = None,
        verifier: str = "",
    ) -> bool:
        """Record a user; whether it is a superuser is the result.  None: only if it is the first user of all.

        Raises UserExists, UserError.
        """
        with self._changing_accounts() as db:
            if self.find_user(name):
                hint = f"`vibemq users passwd {shlex.quote(name)}` changes the password"
                raise UserExists(f"user {name!r} exists already", hint=hint)
            if is_superuser is None:
                is_superuser = self._row("SELECT 1 FROM users LIMIT 1") is None
            _insert(db, name, password_hash, verifier, tags, is_superuser)
        return is_superuser

    @again_when_full
    def add_first_superuser(self, name: str, password_hash: str, verifier: str = "") -> bool:
        """If there is no superuser, make this one, or make it of the user of that name; was it done?

        Raises UserError.
        """
        with self._changing_accounts() as db:
            if self.has_superuser():
                return False
            if not _update(db, name, is_superuser=1, password_hash=password_hash, verifier=verifier):
                _insert(db, name, password_hash, verifier, (), True)
        return True

    def has_superuser(self) -> bool:
        return self._row("SELECT 1 FROM users WHERE is_superuser = 1 LIMIT 1") is not None

    @again_when_full
    def delete_user(self, name: str, superusers_too: bool = True) -> bool:
        """Delete a user with all permissions; False: it is a superuser and was spared.  Raises UserNotFound."""
        with self._changing_accounts() as db:
            if self.require_user(name).is_superuser and not superusers_too:
                return False
            db.execute("DELETE FROM users WHERE name = ?", (name,))
        return True

    def change_password(self, name: str, password_hash: str, verifier: str = "") -> None:
        """Raises UserNotFound."""
        self._update_user(name, password_hash=password_hash, verifier=verifier)

    def set_superuser(self, name: str, is_superuser: bool) -> None:
        """Raises UserNotFound."""
        self._update_user(name, is_superuser=int(is_superuser))

    @again_when_full
    def put_user(self, name: str, tags: tuple[str, ...], password_hash: str | None, verifier: str = "") -> bool:
        """Make a user, or change the tags and, if there is a hash, the password of one; was one made?

        Nobody becomes a superuser this way.  Raises UserNotFound: a new user needs a hash; UserError.
        """
        with self._changing_accounts() as db:
            if not _update(db, name, tags=json.dumps(tags)):
                if password_hash is None:
                    raise no_user(name)
                _insert(db, name, password_hash, verifier, tags, False)
                return True
            if password_hash is not None:
                _update(db, name, password_hash=password_hash, verifier=verifier)
        return False

    def set_tags(self, name: str, tags: tuple[str, ...]) -> None:
        """Raises UserNotFound."""
        self._update_user(name, tags=json.dumps(tags))

    def find_user(self, name: str) -> UserRecord | None:
        return self._record(USERS, "WHERE name = ?", name)

    def require_user(self, name: str) -> UserRecord:
        """Raises UserNotFound."""
        found = self.find_user(name)
        if found is None:
            raise no_user(name)
        return found

    def users(self) -> list[UserRecord]:
        """All users by name."""
        return self._records(USERS, "ORDER BY name")

    # ---- permissions ----

    @again_when_full
    def grant(self, name: str, pattern: str, operations: Iterable[int]) -> None:
        """Let the user do these operations, and no others, by this pattern.  Raises UserNotFound."""
        kept = json.dumps(sorted({int(operation) for operation in operations}))
        with self._changing_accounts() as db:
            self.require_user(name)
            db.execute(
                "INSERT INTO permissions (username, queue_pattern, operations, created_ms) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (username, queue_pattern) DO UPDATE SET operations = excluded.operations",
                (name, pattern, kept, _now_ms()),
            )

    @again_when_full
    def revoke(self, name: str, pattern: str) -> bool:
        """Take the entry with exactly this pattern away; was there one?  Raises UserNotFound."""
        with self._changing_accounts() as db:
            self.require_user(name)
            gone = db.execute("DELETE FROM permissions WHERE username = ? AND queue_pattern = ?", (name, pattern))
        return gone.rowcount > 0

    def permissions(self, name: str) -> list[Permission]:
        """By pattern.  Raises UserNotFound."""
        found = self.rights(name)
        if found is None:
            raise no_user(name)
        return list(found.permissions)

    def permission_counts(self) -> dict[str, int]:
        """How many entries each user has; users without any are left out."""
        return dict(self._rows("SELECT username, COUNT(*) FROM permissions GROUP BY username"))

    def rights(self, name: str) -> Rights | None:
        """Everything about one user's rights, as of one moment; None: there is no such user."""
        rows = self._rows(_RIGHTS, name)
        if not rows:
            return None
        kept = tuple(Permission(row[2], tuple(json.loads(row[3]))) for row in rows if row[2] is not None)
        return Rights(rows[0][0], bool(rows[0][1]), kept)

    # ---- the built-in guest, who has no row in users ----

    def guest_removed(self) -> bool:
        """Has somebody removed guest?  Some microseconds."""
        return bool(self._kept("guest_removed"))

    @again_when_full
    def set_guest_removed(self, removed: bool) -> None:
        """Its limits go with it, and who made a stream is forgotten, as of any user."""
        with self._changing_accounts() as db:
            db.execute("UPDATE accounts SET guest_removed = ?", (int(removed),))
            if removed:
                for table in ("built_in_limits", "built_in_creators"):
                    db.execute(f"DELETE FROM {table} WHERE username = ?", (GUEST,))

    def has_user(self, name: str) -> bool:
        """Is there this user, whom limits can be set for?  guest is, until somebody removes it."""
        return not self.guest_removed() if name == GUEST else self.find_user(name) is not None

    # ---- the key of this database ----

    def token_key(self) -> bytes:
        """What access tokens are signed with (access.tokens), and unknown users' salts made of (access.proofs)."""
        return bytes(self._kept("token_key"))

    # ---- noticing changes ----

    def account_changes(self) -> int:
        """How many changes of users and permissions there have been; some microseconds."""
        return int(self._kept("changes"))

    def user_creations(self) -> dict[str, int]:
        """Each user's ``created_ms``, by name."""
        return dict(self._rows("SELECT name, created_ms FROM users"))

    @again_when_full
    def _update_user(self, name: str, **columns: object) -> None:
        with self._changing_accounts() as db:
            if not _update(db, name, **columns):
                raise no_user(name)

    @contextmanager
    def _changing_accounts(self) -> Iterator[sqlite3.Connection]:
        with self._writing(synced=True) as db:
            before = db.total_changes
            yield db
            is_changed = db.total_changes != before
            if is_changed:  # else a change would be published without need
                db.execute("UPDATE accounts SET changes = changes + 1")
        if is_changed:
            self._note_access()


def _insert(
    db: sqlite3.Connection, name: str, password_hash: str, verifier: str, tags: tuple[str, ...], is_superuser: bool
) -> None:
    require_address("user", name)
    now_ms = _now_ms()
    USERS.insert(db, UserRecord(name, tags, now_ms, password_hash, is_superuser, now_ms, verifier))


def _update(db: sqlite3.Connection, name: str, **columns: object) -> bool:
    """Is there such a user?"""
    assignments = ", ".join(f"{column} = ?" for column in columns)
    changed = db.execute(
        f"UPDATE users SET {assignments}, updated_ms = ? WHERE name = ?", (*columns.values(), _now_ms(), name)
    )
    return changed.rowcount > 0


def no_user(name: str) -> UserNotFound:
    """The error for a name that no user has."""
    return UserNotFound(f"there is no user {name!r}", hint="`vibemq users list` shows all")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
