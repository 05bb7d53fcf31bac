# SPDX-License-Identifier: Apache-2.0
"""What a worker puts together once and hands to each of its doors, and what each door makes of that."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vibemq.access.permissions import Accesses
    from vibemq.access.rights import Rights
    from vibemq.access.tokens import Tokens
    from vibemq.access.users import Authenticator
    from vibemq.broker.alarms import Alarms
    from vibemq.broker.catalog import Catalog
    from vibemq.broker.groups import Groups
    from vibemq.broker.limits import WorkerLimits
    from vibemq.broker.queue_table import QueueTable
    from vibemq.broker.stream import StreamTable
    from vibemq.broker.timers import Timers
    from vibemq.broker.transactions import Transactions
    from vibemq.net.hosts import ConnectionRate
    from vibemq.storage.shm import Board


@dataclass(frozen=True, slots=True)
class Broker:
    """One worker's part of the broker.  What comes from vibemq.server has no type here: it lies above."""

    streams: StreamTable
    queues: QueueTable
    groups: Groups
    catalog: Catalog
    transactions: Transactions
    alarms: Alarms
    board: Board
    helpers: Any  # server.helpers.Helpers
    timers: Timers
    authenticator: Authenticator  # who somebody is
    accesses: Accesses  # what they may do with queues
    rights: Rights  # what they may configure, write and read in a vhost
    limits: WorkerLimits  # how many connections they may have, and how much they may publish
    tokens: Tokens  # a user for a while, without a password
    connection_rate: ConnectionRate  # how often an address may come through the native door
    is_public: bool  # listens where other machines can reach
    handovers: Any  # server.handover.Handovers: gives a connection to another worker
    tell_access_changed: Callable[[], None]  # the other workers look again
    worker: int
    worker_count: int


class Door:
    """What all sessions of one door on this worker share."""

    name: str  # in the configuration, and as workers know it
    session: Any  # the class of its sessions

    def __init__(self, config: Any, broker: Broker) -> None:
        """``config``: the door's own part of the configuration."""
        self.config = config
        self.broker = broker
        self.queues = broker.queues
        self.catalog = broker.catalog
        self.helpers = broker.helpers

    def accept(self, connection: Any) -> Any:
        """The session of a new connection."""
        return self.session(connection, self)

    def now_ms(self) -> int:
        """The loop's clock: monotonic ms."""
        return time.monotonic_ns() // 1_000_000
