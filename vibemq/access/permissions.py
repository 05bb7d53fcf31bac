# SPDX-License-Identifier: Apache-2.0
"""Who may do what with which queue, quick enough to be asked for each frame.

A permission is a pattern and a set of operations; an operation is allowed if any permission whose
pattern (access.glob) matches the queue has it.

An ``Access`` is a snapshot of one user's rights.  ``Accesses`` holds those of one process and notices
changes by the counter that every change of users, vhosts and permissions raises in its transaction.
What one may do with streams in a virtual host (access.rights) is kept in the same way.
"""

import enum
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from vibemq.access.glob import Glob, fold
from vibemq.errors import UserError

if TYPE_CHECKING:
    from vibemq.storage.metadata import Metadata
    from vibemq.storage.records import Permission

PATTERN_CHARACTERS_MAX = 256  # as long as the longest name of a queue
_NAMES_REMEMBERED_MAX = 4096  # answers kept for each user (and vhost); mostly some hundred KiB
_SNAPSHOTS_MAX = 4096  # users (and vhosts) at once

K = TypeVar("K", bound=Hashable)
S = TypeVar("S")


class Operation(enum.IntEnum):
    """What one may do with a queue.  The numbers are stored, the names are on the wire."""

    Publish = 0
    Subscribe = 1
    CreateQueue = 2
    DeleteQueue = 3
    PurgeQueue = 4
    GetQueueInfo = 5
    ListQueues = 6


_BY_NAME = {operation.name.lower(): operation for operation in Operation}


def operation_named(name: str) -> Operation | None:
    """The operation of that name, in any case; None: there is none."""
    return _BY_NAME.get(name.strip().lower())


def operations_named(names: Iterable[str]) -> list[Operation]:
    """Each once, in their order.  Raises UserError."""
    for name in names:
        if operation_named(name) is None:
            raise UserError(f"there is no operation {name!r}; known are {', '.join(known.name for known in Operation)}")
    return sorted({_BY_NAME[name.strip().lower()] for name in names})


def operation_names(operations: Iterable[int]) -> list[str]:
    return [Operation(number).name for number in operations]


def check_pattern(pattern: str) -> None:
    """Raises UserError when a permission cannot have this pattern."""
    if not 1 <= len(pattern) <= PATTERN_CHARACTERS_MAX:
        characters = f"{len(pattern)} character{'' if len(pattern) == 1 else 's'}"
        raise UserError(f"the pattern has {characters}; 1 to {PATTERN_CHARACTERS_MAX} are needed")
    if not pattern.isprintable():
        raise UserError(f"the pattern {pattern!r} has characters that no queue's name can have")


class Snapshot:
    """What one user may do, as of one moment, with answers remembered by name; superusers may do everything."""

    __slots__ = ("_remembered", "created_ms", "is_superuser", "user")
    _characters_max: ClassVar[int]  # nothing has a longer name, so remembering it would only cost memory

    def __init__(self, user: str, is_superuser: bool, created_ms: int) -> None:
        self.user = user
        self.is_superuser = is_superuser
        self.created_ms = created_ms  # another one: deleted and made again under the same name
        self._remembered: dict[str, int] = {}  # name -> one bit for each operation that is allowed

    def _allowed(self, name: str) -> int:
        allowed = self._remembered.get(name)
        if allowed is None:
            allowed = self._look_up(name)
            if len(name) > self._characters_max:
                return allowed
            if len(self._remembered) >= _NAMES_REMEMBERED_MAX:  # names come from peers
                self._remembered.clear()
            self._remembered[name] = allowed
        return allowed

    def _look_up(self, name: str) -> int:
        """The bits; nothing is allowed but by a kind of rights that says so."""
        return 0


class Access(Snapshot):
    __slots__ = ("_globs",)
    _characters_max = PATTERN_CHARACTERS_MAX

    def __init__(
        self, user: str, is_superuser: bool = False, permissions: Iterable["Permission"] = (), created_ms: int = 0
    ) -> None:
        super().__init__(user, is_superuser, created_ms)
        self._globs = [
            (Glob(permission.pattern), sum(1 << operation for operation in permission.operations))
            for permission in permissions
        ]

    def __repr__(self) -> str:
        return f"Access({self.user!r}, is_superuser={self.is_superuser}, permissions={len(self._globs)})"

    def may(self, operation: int, queue: str) -> bool:
        """May the user do this with the queue of this name?"""
        return self.is_superuser or self._allowed(queue) >> operation & 1 == 1

    def sees(self, queue: str) -> bool:
        """Is the queue in the user's list: does any pattern match, whatever it allows?"""
        return self.is_superuser or self._allowed(queue) != 0

    def _look_up(self, name: str) -> int:
        folded, allowed = fold(name), 0
        for glob, operations in self._globs:
            if operations & ~allowed and glob.matches(folded):
                allowed |= operations
        return allowed


#: For connections that nobody restricts: authorization is off.
EVERYTHING = Access("", is_superuser=True)


class Snapshots(Generic[K, S]):
    """The rights of the users that one process serves; for one thread of it, after fork.

    ``generation`` changes when any of them did: who keeps a snapshot compares that integer, and asks ``of`` again when
    it is another.
    """

    def __init__(self, metadata: "Metadata") -> None:
        self._metadata = metadata
        self.generation = 0
        self._changes = -1  # of the database, when last looked
        self._current: dict[K, S] = {}  # of this generation

    def _look(self) -> bool:
        """Are there changes? Some microseconds when there are none."""
        changes = self._metadata.account_changes()
        if changes == self._changes:
            return False
        self._changes = changes
        self.generation += 1
        self._current.clear()
        return True

    def _keep(self, key: K, found: S) -> S:
        if len(self._current) >= _SNAPSHOTS_MAX:
            self._current.clear()
        self._current[key] = found
        return found


class Accesses(Snapshots[str, Access]):
    def __init__(self, metadata: "Metadata") -> None:
        super().__init__(metadata)
        self._has_users = False
        self._known: dict[str, int] = {}  # users that were asked for and lived when last looked: created_ms
        self._gone: set[str] = set()  # deleted, not yet told

    def of(self, user: str) -> Access | None:
        """The rights as they are at this moment; None: there is no such user."""
        self._look_at_users()
        access = self._current.get(user)
        if access is None:
            rights = self._metadata.rights(user) if user.isprintable() else None
            if rights is None:
                return None
            access = self._keep(user, Access(user, rights.is_superuser, rights.permissions, rights.created_ms))
            if self._known.setdefault(user, rights.created_ms) != rights.created_ms:  # since we looked
                self._gone.add(user)
                self._known[user] = rights.created_ms
        return access

    @property
    def has_users(self) -> bool:
        """Does anybody have a password of their own?"""
        self._look_at_users()
        return self._has_users

    def refresh(self) -> frozenset[str]:
        """Look for changes.

        Returns the users that were deleted since the last call, of those asked for here; also those
        that somebody has made again meanwhile.
        """
        self._look_at_users()
        gone, self._gone = frozenset(self._gone), set()
        return gone

    def _look_at_users(self) -> None:
        if not self._look():
            return
        alive = self._metadata.user_creations()
        self._has_users = bool(alive)
        gone = {user for user, created_ms in self._known.items() if alive.get(user) != created_ms}
        self._gone |= gone
        for user in gone:
            del self._known[user]
