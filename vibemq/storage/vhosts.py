# SPDX-License-Identifier: Apache-2.0
"""Virtual hosts, and what each user may configure, write and read in them.

A virtual host is a space of names of its own.  Every change counts in ``accounts.changes``, as a
change of users does, so that all processes notice it the same way.  The native door knows
only the virtual host that is always there, ``/``.
"""

import time
from collections.abc import Iterable

from vibemq.errors import UserError, VhostNotFound
from vibemq.storage.database import again_when_full
from vibemq.storage.names import require_address
from vibemq.storage.patterns import pattern
from vibemq.storage.records import KeptRights, Table, VhostPermission, VhostRecord
from vibemq.storage.users import Users

DEFAULT_VHOST = "/"
VHOST_NAME_SIZE_MAX_BYTES = 255

VHOSTS = Table("vhosts", VhostRecord)
PERMISSIONS = Table("vhost_permissions", VhostPermission, user="username")
_RIGHTS = """
    SELECT u.created_ms, u.is_superuser, p.configure, p.write, p.read
    FROM users u CROSS JOIN vhosts v LEFT JOIN vhost_permissions p ON p.vhost = v.name AND p.username = u.name
    WHERE u.name = ? AND v.name = ?
"""


class Vhosts(Users):
    """Virtual hosts and permissions in them; the tables are storage.metadata's."""

    @again_when_full
    def add_vhost(self, name: str, description: str = "", tags: Iterable[str] = ()) -> bool:
        """Make a virtual host; False: it was there, and has the description and tags now.  Raises UserError."""
        size = len(name.encode(errors="surrogatepass"))
        if not 1 <= size <= VHOST_NAME_SIZE_MAX_BYTES or not name.isprintable():
            raise UserError(
                f"virtual host name {name!r}: 1 to {VHOST_NAME_SIZE_MAX_BYTES} bytes of printable characters are needed"
            )
        with self._changing_accounts() as db:
            exists = self.has_vhost(name)
            if not exists:
                require_address("virtual host", name)
            keep = "ON CONFLICT (name) DO UPDATE SET description = excluded.description, tags = excluded.tags"
            VHOSTS.insert(db, VhostRecord(name, description, tuple(tags), time.time_ns() // 1_000_000), then=keep)
        return not exists

    @again_when_full
    def delete_vhost(self, name: str) -> None:
        """Forget a vhost that has no streams, with its permissions, exchanges and policies.

        Raises VhostNotFound; UserError if it is the default one or has streams (broker.catalog deletes these).
        """
        if name == DEFAULT_VHOST:
            raise UserError(f"virtual host {name!r} is always there and cannot be deleted")
        with self._changing_accounts() as db:
            self.require_vhost(name)
            if self._row("SELECT 1 FROM streams WHERE vhost = ? LIMIT 1", name):
                raise UserError(f"virtual host {name!r} has streams", hint="only an empty one can be deleted")
            db.execute("DELETE FROM vhosts WHERE name = ?", (name,))
            db.execute("UPDATE accounts SET policy_changes = policy_changes + 1")

    def has_vhost(self, name: str) -> bool:
        return self._row("SELECT 1 FROM vhosts WHERE name = ?", name) is not None

    def require_vhost(self, name: str) -> None:
        """Raises VhostNotFound."""
        if not self.has_vhost(name):
            raise VhostNotFound(f"there is no virtual host {name!r}")

    def vhosts(self) -> list[VhostRecord]:
        """All virtual hosts by name."""
        return self._records(VHOSTS, "ORDER BY name")

    # ---- permissions ----

    @again_when_full
    def set_permissions(self, vhost: str, user: str, configure: str, write: str, read: str) -> bool:
        """Let the user do this in the vhost, instead of what it could do there; was there no permission before?

        Raises VhostNotFound, UserNotFound, UserError for what is no pattern.
        """
        for text in (configure, write, read):
            pattern(text)
        with self._changing_accounts() as db:
            self.require_vhost(vhost)
            self.require_user(user)
            had = self.vhost_permissions(vhost, user)
            PERMISSIONS.insert(db, VhostPermission(vhost, user, configure, write, read), how="INSERT OR REPLACE")
        return not had

    @again_when_full
    def clear_permissions(self, vhost: str, user: str) -> bool:
        """Close the vhost for the user; was it open?  Raises VhostNotFound, UserNotFound."""
        with self._changing_accounts() as db:
            self.require_vhost(vhost)
            self.require_user(user)
            gone = db.execute("DELETE FROM vhost_permissions WHERE vhost = ? AND username = ?", (vhost, user))
        return gone.rowcount > 0

    def vhost_permissions(self, vhost: str | None = None, user: str | None = None) -> list[VhostPermission]:
        """By vhost and user; of all of them, or of those given."""
        given = "WHERE (?1 IS NULL OR vhost = ?1) AND (?2 IS NULL OR username = ?2)"
        return self._records(PERMISSIONS, f"{given} ORDER BY vhost, username", vhost, user)

    def vhost_rights(self, user: str, vhost: str) -> KeptRights | None:
        """As of one moment; None: there is no such user, or no such vhost."""
        row = self._row(_RIGHTS, user, vhost)
        if row is None:
            return None
        created_ms, is_superuser, *patterns = row
        return KeptRights(created_ms, bool(is_superuser), None if patterns[0] is None else tuple(patterns))
