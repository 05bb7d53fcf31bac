# SPDX-License-Identifier: Apache-2.0
"""Who may configure, write and read which names in a virtual host, quick enough for each command.

Three regular expressions for each user and vhost, found anywhere in the name (storage.patterns).
Superusers may do everything everywhere, and so may the built-in guest where it is allowed at all:
it is nobody that rights could be given to.

A ``VhostRights`` is a snapshot.  ``Rights`` holds those of one process and notices changes
by the counter that every change of users, vhosts and permissions raises in its transaction.
"""

from typing import TYPE_CHECKING

from vibemq.access.users import GUEST
from vibemq.storage.patterns import NAME_CHARACTERS_MAX, Pattern, pattern

if TYPE_CHECKING:
    from vibemq.storage.metadata import Metadata

_NAMES_REMEMBERED_MAX = 4096  # answers kept for each user and vhost; mostly some hundred KiB
_SNAPSHOTS_MAX = 4096  # users and vhosts at once

_CONFIGURE, _WRITE, _READ = range(3)
_EVERYTHING = (".*", ".*", ".*")


class VhostRights:
    """What one user may do in one vhost, as of one moment."""

    __slots__ = ("_patterns", "_remembered", "created_ms", "is_superuser", "user", "vhost")

    def __init__(
        self,
        user: str,
        vhost: str,
        patterns: tuple[str, str, str] = _EVERYTHING,
        created_ms: int = 0,
        is_superuser: bool = False,
    ) -> None:
        self.user = user
        self.vhost = vhost
        self.is_superuser = is_superuser
        self.created_ms = created_ms  # another one: deleted and made again under the same name
        self._patterns: tuple[Pattern, ...] = tuple(pattern(text) for text in patterns)
        self._remembered: dict[str, int] = {}  # name -> one bit for each pattern that matches

    def __repr__(self) -> str:
        return f"VhostRights({self.user!r}, {self.vhost!r}, {[found.text for found in self._patterns]})"

    def configure(self, name: str) -> bool:
        """May the user make and delete what has this name?"""
        return self._allowed(name) >> _CONFIGURE & 1 == 1

    def write(self, name: str) -> bool:
        return self._allowed(name) >> _WRITE & 1 == 1

    def read(self, name: str) -> bool:
        return self._allowed(name) >> _READ & 1 == 1

    def _allowed(self, name: str) -> int:
        allowed = self._remembered.get(name)
        if allowed is None:
            allowed = sum(found.matches(name) << bit for bit, found in enumerate(self._patterns))
            if len(name) > NAME_CHARACTERS_MAX:  # nothing has it, so remembering would only cost memory
                return allowed
            if len(self._remembered) >= _NAMES_REMEMBERED_MAX:  # names come from peers
                self._remembered.clear()
            self._remembered[name] = allowed
        return allowed


class Rights:
    """The rights of the users that one process serves; for one thread of it, after fork.

    ``generation`` changes when any user, vhost or permission did: who keeps a VhostRights compares that
    integer, and asks ``of`` again when it is another.
    """

    def __init__(self, metadata: "Metadata", guest_allowed: bool) -> None:
        self._metadata = metadata
        self._guest_allowed = guest_allowed
        self.generation = 0
        self._changes = -1  # of the database, when last looked
        self._current: dict[tuple[str, str], VhostRights] = {}  # of this generation

    def of(self, user: str, vhost: str) -> VhostRights | None:
        """The rights as they are at this moment; None: no such user or vhost, or no permission for it."""
        self.refresh()
        found = self._current.get((user, vhost))
        if found is None:
            found = self._look_up(user, vhost)
            if found is not None:
                if len(self._current) >= _SNAPSHOTS_MAX:
                    self._current.clear()
                self._current[user, vhost] = found
        return found

    def refresh(self) -> None:
        """Look for changes; some microseconds when there are none."""
        changes = self._metadata.account_changes()
        if changes != self._changes:
            self._changes = changes
            self.generation += 1
            self._current.clear()

    def _look_up(self, user: str, vhost: str) -> VhostRights | None:
        if not user.isprintable() or not vhost.isprintable():  # what was no UTF-8 carries surrogates
            return None
        if user == GUEST:
            allowed = self._guest_allowed and not self._metadata.guest_removed()
            exists = allowed and self._metadata.has_vhost(vhost)
            return VhostRights(user, vhost, is_superuser=True) if exists else None
        kept = self._metadata.vhost_rights(user, vhost)
        if kept is None or (kept.patterns is None and not kept.is_superuser):
            return None
        patterns = _EVERYTHING if kept.is_superuser or kept.patterns is None else kept.patterns
        return VhostRights(user, vhost, patterns, kept.created_ms, kept.is_superuser)
