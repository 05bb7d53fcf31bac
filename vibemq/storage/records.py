# SPDX-License-Identifier: Apache-2.0
"""What the database has of each thing, as it was when it was looked up."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """One stream as it was when it was looked up."""

    vhost: str
    name: str
    incarnation: str  # 16 hex digits; a stream created again under the same name has another
    slot: int  # small number that names the live stream in shared memory; reused after deletion
    durability: str
    arguments: dict[str, str]
    created_ms: int
    directory: str  # of its log, absolute
    queue: dict[str, object] | None = None  # the queue's options; None: a plain stream


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
