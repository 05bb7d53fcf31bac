# SPDX-License-Identifier: Apache-2.0
"""A stream's arguments as a client gives them: which are valid, and when two sets are equivalent.

Rules: the RabbitMQ Streams protocol.  What they mean for the log is storage.arguments';
here is what only a declaration needs.  ``durability`` is our own addition.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vibemq.config import Remote, Store
from vibemq.errors import LimitExceeded
from vibemq.storage.arguments import LogOptions, log_options

POSITIVE = re.compile(r"[1-9][0-9]{0,9}")
LEADER_LOCATORS = ("client-local", "balanced", "random", "least-leaders", "min-masters")
DURABILITIES = ("os", "disk", "remote")  # each promises more than the one before; their places are on the wire


class BadArgument(ValueError):
    """An argument's value is not allowed; says which, and what is."""


@dataclass(frozen=True, slots=True)
class StreamArguments:
    """What a client gave, and what it means for the log."""

    given: dict[str, str]
    options: LogOptions

    @property
    def durability(self) -> str:
        return self.options["durability"]

    def same_as(self, given: dict[str, str], durability: str, store: Store) -> bool:
        """Is a stream that was made with `given` equivalent?"""
        return _options(given, durability, store) == self.options


def _options(given: dict[str, str], durability: str, store: Store) -> LogOptions:
    return log_options(given, durability, store.segment_size_bytes, store.chunk_messages_max)


def stream_arguments(given: dict[str, str], store: Store) -> StreamArguments:
    """Check; unknown keys are ignored, as RabbitMQ does.  Raises BadArgument."""
    cluster_size = given.get("initial-cluster-size", "1")
    if not POSITIVE.fullmatch(cluster_size):
        raise BadArgument(f"initial-cluster-size is {cluster_size!r}: needs an integer above 0")
    locator = given.get("queue-leader-locator", "balanced")
    if locator not in LEADER_LOCATORS:
        raise BadArgument(f"queue-leader-locator is {locator!r}: needs one of {', '.join(LEADER_LOCATORS)}")
    durability = given.get("durability", store.durability)
    if durability not in DURABILITIES:
        raise BadArgument(f"durability is {durability!r}: needs one of {', '.join(DURABILITIES)}")
    try:
        return StreamArguments(dict(given), _options(given, durability, store))
    except LimitExceeded as problem:
        raise BadArgument(str(problem)) from problem


def require_store(durability: str, remote: Remote) -> None:
    """Raises BadArgument: what is to lie in the object store needs one.  Every door's new streams come by here."""
    if durability == "remote" and not remote.url:
        raise BadArgument(
            "durability is 'remote', and this broker has no object store: needs os or disk, or remote.url in the "
            "broker's configuration"
        )
