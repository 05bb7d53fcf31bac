# SPDX-License-Identifier: Apache-2.0
"""What the scopes of an OAuth token let its bearer do, in RabbitMQ's words.

    PREFIX read:VHOST/NAME    also write and configure; ``*`` in both stands for any run of characters
    PREFIX tag:TAG            for the management API

Parts are percent-encoded, so the virtual host / is ``%2F``, and case counts.  A third part, RabbitMQ's routing key, may
only be ``*``: a right to some messages of a stream is no right to the stream.  A scope of any other form is another
service's, and gives nothing.  Rights in the virtual host / are rights to queues, too, as ``_OPERATIONS`` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple
from urllib.parse import unquote

from vibemq.access.glob import Glob
from vibemq.access.permissions import Access, Operation
from vibemq.access.rights import VhostRights
from vibemq.storage.vhosts import DEFAULT_VHOST

#: In the order of the bits in access.rights.
_BITS = {"configure": 1, "write": 2, "read": 4}
#: What each right to a name lets one do with the queue of that name.
_OPERATIONS = {
    "configure": (Operation.CreateQueue, Operation.DeleteQueue, Operation.GetQueueInfo, Operation.ListQueues),
    "write": (Operation.Publish, Operation.GetQueueInfo, Operation.ListQueues),
    "read": (Operation.Subscribe, Operation.PurgeQueue, Operation.GetQueueInfo, Operation.ListQueues),
}
_MASKS = {_BITS[right]: sum(1 << operation for operation in given) for right, given in _OPERATIONS.items()}
_TAG = "tag"


class Scope(NamedTuple):
    """A right to all names that fit, in all virtual hosts that fit."""

    bit: int
    vhost: Glob
    name: Glob


class Scopes(NamedTuple):
    """Those of one token that are ours."""

    rights: tuple[Scope, ...]
    tags: tuple[str, ...]


def scopes_of(texts: Iterable[str], prefix: str) -> Scopes:
    """Of what a token says, each scope a text; those that do not begin with ``prefix`` are other services'."""
    rights, tags = [], []
    for text in dict.fromkeys(texts):
        kind, colon, rest = text.removeprefix(prefix).partition(":")
        if not text.startswith(prefix) or not colon:
            continue
        if kind == _TAG:
            tags.append(rest)
        elif kind in _BITS and (scope := _scope(_BITS[kind], rest)) is not None:
            rights.append(scope)
    return Scopes(tuple(rights), tuple(tags))


def _scope(bit: int, rest: str) -> Scope | None:
    vhost, *names = rest.split("/")
    if not 1 <= len(names) <= 2 or names[1:] not in ([], ["*"]):
        return None
    try:
        return Scope(bit, Glob(vhost, literal=_literal), Glob(names[0], literal=_literal))
    except UnicodeDecodeError:
        return None


def _literal(text: str) -> str:
    """Raises UnicodeDecodeError."""
    return unquote(text, errors="strict")


class TokenAccess(Access):
    """The account of a token: nothing of it is kept anywhere, and it is over when the token is."""

    __slots__ = ("_clock", "_rights", "over_s", "tags")

    def __init__(self, user: str, scopes: Scopes, over_s: float, clock: Callable[[], float]) -> None:
        """``over_s``: when its rights end, in seconds of ``clock``, which are those since 1970."""
        super().__init__(user)
        self._rights, self.tags = scopes
        self.over_s, self._clock = over_s, clock

    def __repr__(self) -> str:
        return f"TokenAccess({self.user!r}, scopes={len(self._rights)}, tags={self.tags}, over_s={self.over_s})"

    @property
    def is_over(self) -> bool:
        return not self._clock() < self.over_s

    def rights_in(self, vhost: str) -> VhostRights | None:
        """What it may do there with streams; None: nothing, or the token is over.  Nobody has looked for the vhost."""
        found = tuple(scope for scope in self._rights if scope.vhost.matches(vhost))
        return _ScopeRights(self.user, vhost, found) if found and not self.is_over else None

    def _look_up(self, name: str) -> int:
        allowed = 0
        for scope in self._rights:
            if scope.vhost.matches(DEFAULT_VHOST) and scope.name.matches(name):
                allowed |= _MASKS[scope.bit]
        return allowed


class _ScopeRights(VhostRights):
    __slots__ = ("_scopes",)

    def __init__(self, user: str, vhost: str, scopes: tuple[Scope, ...]) -> None:
        super().__init__(user, vhost)
        self._scopes = scopes

    def __repr__(self) -> str:
        return f"_ScopeRights({self.user!r}, {self.vhost!r}, scopes={len(self._scopes)})"

    def _look_up(self, name: str) -> int:
        allowed = 0
        for scope in self._scopes:
            if scope.name.matches(name):
                allowed |= scope.bit
        return allowed
