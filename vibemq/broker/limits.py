# SPDX-License-Identifier: Apache-2.0
"""The limits of users and virtual hosts as one worker keeps them: how many connections, how many messages a second.

How many streams and queues somebody may have is looked at where they are made (storage.limits).

**Connections** are counted by each worker for itself, in a word of shared memory that only it writes, and added up
without a lock.  Who comes is counted first, then all are added up, so there are never more than the limit; two who come
to two workers at the same moment for the last place may both be refused.  While a limit is new or a worker just
replaced, workers have not all counted for it yet, for half a second at most.

**Messages** are paid for from one bucket of all workers, of a second's worth, exactly; a new rate fills it once.  Who
has overdrawn it is not read until that is paid back: no message is lost or refused, and what was read already, one
frame, still counts.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING

from vibemq.once_a_minute import OnceAMinute
from vibemq.storage.limits import GUEST_SLOT, MAX_CONNECTIONS, PUBLISH_RATE, USER, VHOST, Limited

if TYPE_CHECKING:
    from vibemq.broker.client import Client
    from vibemq.broker.timers import Timers
    from vibemq.storage.metadata import Metadata
    from vibemq.storage.shm import Usage

logger = logging.getLogger(__name__)
refusing = OnceAMinute(logger)

#: Of the shared table: users and virtual hosts in turn, then guest.
ROWS = 2 * GUEST_SLOT + 1
_KINDS = (USER, VHOST)
Key = tuple[str, str]  # kind and name

_refused = 0  # requests of clients, by this process
_refused_lock = threading.Lock()  # the admin process answers in several threads


def count_refused() -> None:
    """Count a request of a client that a limit has refused, or an entry that a full table could not keep.

    The limits are configured ones, and the fixed ones of ARCHITECTURE.md.
    """
    global _refused
    with _refused_lock:
        _refused += 1


def refused_total() -> int:
    """How many requests of clients this process has refused because of a limit."""
    return _refused


class WorkerLimits:
    """For the loop's thread of one worker."""

    def __init__(self, metadata: Metadata, usage: Usage, worker: int, timers: Timers) -> None:
        self._metadata, self._worker = metadata, worker
        self.usage, self.timers = usage, timers
        self._changes = -1
        self._limited: dict[Key, Limited] = {}
        self._clients: dict[Key, set[Client]] = {}  # who is in, by user and by virtual host
        self.refresh()

    def refresh(self) -> None:
        """Look for changes; some microseconds where there are none.  Raises StorageError."""
        changes = self._metadata.account_changes()
        if changes == self._changes:
            return
        before, self._limited = self._limited, {(each.kind, each.name): each for each in self._metadata.limited()}
        self._changes = changes
        for key, limited in self._limited.items():
            self._count(limited, len(self._clients.get(key, ())))
        for key in before.keys() | self._limited.keys():
            if before.get(key) != self._limited.get(key):
                for client in self._clients.get(key, ()):
                    self._meter(client)

    def enter(self, client: Client, vhost: str) -> str:
        """Count a client that has logged in, until it leaves: "", or why it may not come in; then it is not counted."""
        self.leave(client)
        keys = ((USER, client.user), (VHOST, vhost))
        for at, key in enumerate(keys):
            inside = self._clients.setdefault(key, set())
            inside.add(client)
            limited = self._limited.get(key)
            most = None if limited is None else limited.get(MAX_CONNECTIONS)
            if limited is not None and most is not None and self._count(limited, len(inside)) > most:
                self._remove(client, keys[: at + 1])
                of = f"user {key[1]!r}" if key[0] == USER else f"virtual host {key[1]!r}"
                why = f"{of} has its {most} connections (max-connections)"
                count_refused()
                refusing.say(key, "%s: not let in: %s", client.owner.peer, why)
                return why
        client.counted = keys
        self._meter(client)
        return ""

    def leave(self, client: Client) -> None:
        """It has gone, or somebody else logs in on its connection."""
        keys, client.counted = client.counted, ()
        self._remove(client, keys)
        client.stop_metering()

    def _remove(self, client: Client, keys: tuple[Key, ...]) -> None:
        for key in keys:
            inside = self._clients[key]
            inside.discard(client)
            if limited := self._limited.get(key):
                self._count(limited, len(inside))
            if not inside:
                del self._clients[key]

    def _count(self, limited: Limited, own: int) -> int:
        return self.usage.count(_row(limited), limited.tag, self._worker, own)

    def _meter(self, client: Client) -> None:
        """Its messages are counted from now on, where they are limited."""
        client.meter(self.usage, self._rates(client.counted))

    def _rates(self, keys: tuple[Key, ...]) -> list[tuple[int, int, int]]:
        found = []
        for key in keys:
            limited = self._limited.get(key)
            rate = None if limited is None else limited.get(PUBLISH_RATE)
            if limited is not None and rate is not None:
                found.append((_row(limited), limited.change, rate))
        return found

    def take_one(self, user: str, vhost: str) -> int:
        """Count one message of somebody who has no connection here.  Else for how many us it must not come."""
        wait_us = self.wait_us(user, vhost)
        if not wait_us:
            now_us = time.monotonic_ns() // 1000
            for row, change, rate in self._rates(((USER, user), (VHOST, vhost))):
                self.usage.spent(row, change, math.ceil(1e6 / rate), now_us)
        return wait_us

    def wait_us(self, user: str, vhost: str) -> int:
        """Return for how long no message of this user may come into this virtual host; 0: it may come now."""
        now_us = time.monotonic_ns() // 1000
        rates = self._rates(((USER, user), (VHOST, vhost)))
        return max((self.usage.spent(row, change, 0, now_us) for row, change, _ in rates), default=0)

    def meter(self, client: Client, user: str, vhost: str) -> None:
        """Count the messages of a client that is no connection, until its ``stop_metering``."""
        client.meter(self.usage, self._rates(((USER, user), (VHOST, vhost))))


def _row(limited: Limited) -> int:
    return 2 * limited.slot + _KINDS.index(limited.kind)
