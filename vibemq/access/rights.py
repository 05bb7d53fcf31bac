# SPDX-License-Identifier: Apache-2.0
"""Who may configure, write and read which names in a virtual host, quick enough for each command.

Three regular expressions for each user and vhost, found anywhere in the name (storage.patterns).
Superusers may do everything everywhere, and so may the built-in guest where it is allowed at all:
it is nobody that rights could be given to.
"""

from typing import TYPE_CHECKING

from vibemq.access.permissions import Snapshot, Snapshots
from vibemq.access.users import EVERYTHING, GUEST, has_guest
from vibemq.storage.patterns import NAME_CHARACTERS_MAX, Pattern, pattern

if TYPE_CHECKING:
    from vibemq.storage.metadata import Metadata


class VhostRights(Snapshot):
    """What one user may do in one vhost, as of one moment."""

    __slots__ = ("_patterns", "vhost")
    _characters_max = NAME_CHARACTERS_MAX

    def __init__(
        self, user: str, vhost: str, patterns: tuple[str, str, str] = EVERYTHING, created_ms: int = 0,
        is_superuser: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(user, is_superuser, created_ms)
        self.vhost = vhost
        self._patterns: tuple[Pattern, ...] = tuple(pattern(text) for text in patterns)

    def __repr__(self) -> str:
        return f"VhostRights({self.user!r}, {self.vhost!r}, {[found.text for found in self._patterns]})"

    def configure(self, name: str) -> bool:
        """May the user make and delete what has this name?"""
        return self._allowed(name) & 1 == 1

    def write(self, name: str) -> bool:
        return self._allowed(name) & 2 == 2

    def read(self, name: str) -> bool:
        return self._allowed(name) & 4 == 4

    def _look_up(self, name: str) -> int:
        return sum(found.matches(name) << bit for bit, found in enumerate(self._patterns))


class Rights(Snapshots[tuple[str, str], VhostRights]):
    def __init__(self, metadata: "Metadata", guest_allowed: bool) -> None:
        super().__init__(metadata)
        self._guest_allowed = guest_allowed

    def of(self, user: str, vhost: str) -> VhostRights | None:
        """The rights as they are at this moment; None: no such user or vhost, or no permission for it."""
        self._look()
        found = self._current.get((user, vhost))
        if found is None and (found := self._read(user, vhost)) is not None:
            self._keep((user, vhost), found)
        return found

    def refresh(self) -> None:
        """Look for changes."""
        self._look()

    def _read(self, user: str, vhost: str) -> VhostRights | None:
        if not user.isprintable() or not vhost.isprintable():  # what was no UTF-8 carries surrogates
            return None
        if user == GUEST:
            exists = has_guest(self._metadata, self._guest_allowed) and self._metadata.has_vhost(vhost)
            return VhostRights(user, vhost, is_superuser=True) if exists else None
        kept = self._metadata.vhost_rights(user, vhost)
        if kept is None or (kept.patterns is None and not kept.is_superuser):
            return None
        patterns = EVERYTHING if kept.is_superuser or kept.patterns is None else kept.patterns
        return VhostRights(user, vhost, patterns, kept.created_ms, kept.is_superuser)
