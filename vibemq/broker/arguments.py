# SPDX-License-Identifier: Apache-2.0
"""A stream's arguments as a client gives them: which are valid, and when two sets are equivalent.

Rules: the RabbitMQ Streams protocol.  What they mean for the log is storage.arguments';
here is what only a declaration needs.  ``durability`` is our own addition.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

from vibemq.config import Remote, Store
from vibemq.errors import LimitExceeded
from vibemq.storage.arguments import LogOptions, log_options
from vibemq.storage.policies import STREAM_KEYS

#: All names that mean anything here. RabbitMQ ignores others, and so do we.
NAMES = (*STREAM_KEYS, "initial-cluster-size", "queue-leader-locator", "durability")
#: Of RabbitMQ's queues: like one of these names, and right where they are.
NAMES_OF_QUEUES = ("queue-master-locator", "initial-quorum-size")
NAMES_MAX = 32  # each that is not known is compared with all of them, in a loop that may not stop for a millisecond
NAME_CHARACTERS_MAX = 64
SIMILAR = 0.75  # "max-lenght-bytes", "max_age", "max-length"
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
    """Check; names that are like none of ours are ignored, as RabbitMQ does.  Raises BadArgument."""
    _check_names(given)
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


def _check_names(given: dict[str, str]) -> None:
    """Raises BadArgument for a misspelt name: the stream would be made without that limit, and nobody told."""
    if len(given) > NAMES_MAX:
        raise BadArgument(f"{len(given)} arguments: at most {NAMES_MAX} are possible")
    for name in given:
        if name in NAMES or name in NAMES_OF_QUEUES:
            continue
        if meant := get_close_matches(name[:NAME_CHARACTERS_MAX], NAMES, 1, SIMILAR):
            raise BadArgument(f"there is no argument {name[:NAME_CHARACTERS_MAX]!r} of a stream: is {meant[0]} meant?")


def require_store(durability: str, remote: Remote) -> None:
    """Raises BadArgument: what is to lie in the object store needs one.  Every door's new streams come by here."""
    if durability == "remote" and not remote.url:
        raise BadArgument(
            "durability is 'remote', and this broker has no object store: needs os or disk, or remote.url in the "
            "broker's configuration"
        )
