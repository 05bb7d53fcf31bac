# SPDX-License-Identifier: Apache-2.0
"""What a worker puts together once and hands to each of its doors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vibemq.broker.alarms import Alarms
    from vibemq.broker.catalog import Catalog
    from vibemq.broker.groups import Groups
    from vibemq.broker.queue_table import QueueTable
    from vibemq.broker.stream import StreamTable
    from vibemq.storage.log import Board


@dataclass(frozen=True, slots=True)
class Broker:
    """One worker's part of the broker.  What comes from vibemq.admin has no type here: doors do not know it."""

    streams: StreamTable
    queues: QueueTable
    groups: Groups
    catalog: Catalog
    alarms: Alarms
    board: Board
    helpers: Any  # server.helpers.Helpers
    timers: Any  # broker.timers.Timers
    authenticator: Any  # admin.users.Authenticator: who somebody is
    accesses: Any  # admin.permissions.Accesses: what they may do with queues
    rights: Any  # admin.rights.Rights: what they may configure, write and read in a vhost
    tokens: Any  # admin.tokens.Tokens: a user for a while, without a password
    accounts: Any  # the module admin.accounts: users and permissions by command
    everything: Any  # the access of somebody who may do all, where nobody has to log in
    connection_rate: Any  # admin.limits.ConnectionRate: how often an address may come through the native door
    is_public: bool  # listens where other machines can reach
    handovers: Any  # server.handover.Handovers: gives a connection to another worker
    tell_access_changed: Any  # () -> None: the other workers look again
    worker: int
    worker_count: int
