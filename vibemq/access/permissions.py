# SPDX-License-Identifier: Apache-2.0
"""Who may do what with which queue, quick enough to be asked for each frame.

A permission is a pattern and a set of operations; an operation is allowed if any permission whose
pattern (access.glob) matches the queue has it.

An ``Access`` is a snapshot of one user's rights.  ``Accesses`` holds those of one process and notices
changes by the counter that every change of users raises in its transaction.
"""

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vibemq.access.glob import Glob, fold
from vibemq.errors import UserError

if TYPE_CHECKING:
    from vibemq.storage.metadata import Metadata
    from vibemq.storage.records import Permission

PATTERN_CHARACTERS_MAX = 256  # as long as the longest name of a queue
_QUEUES_REMEMBERED_MAX = 4096  # answers kept for each user; some hundred KiB


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
        raise UserError(f"the pattern has {_characters(pattern)}; 1 to {PATTERN_CHARACTERS_MAX} are needed")
    if not pattern.isprintable():
        raise UserError(f"the pattern {pattern!r} has characters that no queue's name can have")


class Access:
    """What one user may do, as of one moment; superusers may do everything."""

    __slots__ = ("_globs", "_remembered", "created_ms", "is_superuser", "user")

    def __init__(
        self, user: str, is_superuser: bool = False, permissions: Iterable["Permission"] = (), created_ms: int = 0
    ) -> None:
        self.user = user
        self.is_superuser = is_superuser
        self.created_ms = created_ms  # another one: deleted and made again under the same name
        self._globs = [
            (Glob(permission.pattern), sum(1 << operation for operation in permission.operations))
            for permission in permissions
        ]
        self._remembered: dict[str, int] = {}  # queue -> one bit for each operation that is allowed

    def __repr__(self) -> str:
        return f"Access({self.user!r}, is_superuser={self.is_superuser}, permissions={len(self._globs)})"

    def may(self, operation: int, queue: str) -> bool:
        """May the user do this with the queue of this name?"""
        return self.is_superuser or self._allowed(queue) >> operation & 1 == 1

    def sees(self, queue: str) -> bool:
        """Is the queue in the user's list: does any pattern match, whatever it allows?"""
        return self.is_superuser or self._allowed(queue) != 0

    def _allowed(self, queue: str) -> int:
        allowed = self._remembered.get(queue)
        if allowed is None:
            folded, allowed = fold(queue), 0
            for glob, operations in self._globs:
                if operations & ~allowed and glob.matches(folded):
                    allowed |= operations
            if len(self._remembered) >= _QUEUES_REMEMBERED_MAX:  # names come from peers
                self._remembered.clear()
            self._remembered[queue] = allowed
        return allowed


#: For connections that nobody restricts: authorization is off.
EVERYTHING = Access("", is_superuser=True)


class Accesses:
    """The rights of the users that one process serves; for one thread of it, after fork.

    ``generation`` changes when any user or permission did: who keeps an Access compares that
    integer, and asks ``of`` again when it is another.
    """

    def __init__(self, metadata: "Metadata") -> None:
        self._metadata = metadata
        self.generation = 0
        self._has_users = False
        self._changes = -1  # of the database, when last looked
        self._known: dict[str, int] = {}  # users that were asked for and lived when last looked: created_ms
        self._current: dict[str, Access] = {}  # of this generation
        self._gone: set[str] = set()  # deleted, not yet told

    def of(self, user: str) -> Access | None:
        """The rights as they are at this moment; None: there is no such user."""
        self._look()
        access = self._current.get(user)
        if access is None:
            rights = self._metadata.rights(user) if user.isprintable() else None
            if rights is None:
                return None
            access = Access(user, rights.is_superuser, rights.permissions, rights.created_ms)
            self._current[user] = access
            if self._known.setdefault(user, rights.created_ms) != rights.created_ms:  # since we looked
                self._gone.add(user)
                self._known[user] = rights.created_ms
        return access

    @property
    def has_users(self) -> bool:
        """Does anybody have a password of their own?"""
        self._look()
        return self._has_users

    def refresh(self) -> frozenset[str]:
        """Look for changes; some microseconds when there are none.

        Returns the users that were deleted since the last call, of those asked for here; also those
        that somebody has made again meanwhile.
        """
        self._look()
        gone, self._gone = frozenset(self._gone), set()
        return gone

    def _look(self) -> None:
        changes = self._metadata.account_changes()
        if changes == self._changes:
            return
        self._changes = changes
        self.generation += 1
        self._current.clear()
        alive = self._metadata.user_creations()
        self._has_users = bool(alive)
        if self._known:
            gone = {user for user, created_ms in self._known.items() if alive.get(user) != created_ms}
            self._gone |= gone
            for user in gone:
                del self._known[user]


def _characters(text: str) -> str:
    return f"{len(text)} character" + ("" if len(text) == 1 else "s")
