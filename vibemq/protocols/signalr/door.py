# SPDX-License-Identifier: Apache-2.0
"""What all sessions of the SignalR door on one worker share: hub connections by their tokens.

A hub connection outlives sockets, so it is here from negotiating on.  Those without a socket (nothing has come yet, or
between two polls, or a WebSocket is gone that may come back) wait: for signalr.disconnect_timeout_s, and only so many
of them.  A token is secret and names the worker that has the hub connection; what others may see is its connection id.
"""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
from collections import Counter
from typing import TYPE_CHECKING

from vibemq.broker.admission import enter, leave
from vibemq.broker.parts import Broker, Door
from vibemq.config import Config
from vibemq.net.hosts import host_of
from vibemq.once_a_minute import OnceAMinute
from vibemq.protocols.signalr import publishing, queues, subscribing  # noqa: F401  they fill METHODS
from vibemq.protocols.signalr.commands import METHODS
from vibemq.protocols.signalr.http import without_port
from vibemq.protocols.signalr.hub import HubConnection
from vibemq.protocols.signalr.request import Refusal
from vibemq.protocols.signalr.session import HttpSession
from vibemq.protocols.signalr.spec import LAST_POLL_WAIT_S, LONG_POLLING

if TYPE_CHECKING:
    from vibemq.protocols.signalr.request import Request

TOKEN_RANDOM_BYTES = 16  # behind a byte that is the worker
LOOK_MS = 500

logger = logging.getLogger(__name__)
faults = OnceAMinute(logger, logging.ERROR)


class SignalRDoor(Door):
    name = "signalr"
    session = HttpSession
    methods = METHODS

    def __init__(self, config: Config, broker: Broker) -> None:
        super().__init__(config.signalr, broker)
        self.path = config.signalr.path.lower()
        self.allowed_origins = frozenset(filter(None, config.signalr.allowed_origins.lower().split(",")))
        self.allowed_hosts = frozenset(without_port(origin.partition("://")[2]) for origin in self.allowed_origins)
        self.hubs: dict[str, HubConnection] = {}  # by token
        self._waiting: dict[str, HubConnection] = {}  # those without a transport
        self._waiting_by_host: Counter[str] = Counter()
        self._polling: dict[str, HubConnection] = {}  # those whose transport has a socket only now and then
        self._end_looked_ms = self._ends_ms = 0  # of end_polling
        #: Those with a socket, which the loop bounds, and as many between two polls; those that wait have their own.
        self._hubs_max = config.server.connections_max + config.signalr.waiting_max
        self._timer = broker.queues.deadlines.timer(self._look)  # lost peers may have come back

    def owner_elsewhere(self, request: Request) -> int | None:
        """The other worker that has the hub connection which a request is about; None: it is not about one there."""
        worker = owner_of(request.connection_token)
        return None if worker in (-1, self.broker.worker) or worker >= self.broker.worker_count else worker

    def is_full(self) -> bool:
        """Are there as many hub connections without a socket as there may be?"""
        return len(self._waiting) >= self.config.waiting_max or len(self.hubs) >= self._hubs_max

    def open_hub(self, session: HttpSession, request: Request, wants_stateful: bool = False) -> HubConnection:
        """A new hub connection for whoever asks.  Raises Refusal."""
        secret = bytes([self.broker.worker]) + secrets.token_bytes(TOKEN_RANDOM_BYTES)
        token = base64.urlsafe_b64encode(secret).decode().rstrip("=")
        hub = HubConnection(self, token, session, request, wants_stateful)
        if why := enter(hub.client):
            raise Refusal(429, f"{why[0].upper()}{why[1:]}.")
        self.hubs[token] = hub
        if self._timer.due_ms > self.now_ms() + LOOK_MS:
            self._timer.set(self.now_ms() + LOOK_MS)
        return hub

    def drop(self, hub: HubConnection) -> None:
        """Nobody will ask for it any more."""
        self.hubs.pop(hub.token, None)
        leave(hub.client)
        self.stop_waiting(hub)
        self._polling.pop(hub.token, None)

    def begin_to_wait(self, hub: HubConnection) -> None:
        if hub.kind == LONG_POLLING:
            self.stop_waiting(hub)
            self._polling[hub.token] = hub
        elif hub.token not in self._waiting:
            self._waiting[hub.token] = hub
            self._waiting_by_host[host_of(hub.peer_address)] += 1

    def stop_waiting(self, hub: HubConnection) -> None:
        if self._waiting.pop(hub.token, None) is not None:
            host = host_of(hub.peer_address)
            self._waiting_by_host[host] -= 1
            if not self._waiting_by_host[host]:
                del self._waiting_by_host[host]

    def has_its_share(self, address: str) -> bool:
        """Do as many hub connections of one host wait already as may of one?"""
        return self._waiting_by_host[host_of(address)] >= self.config.waiting_per_address_max

    def end_polling(self) -> bool:
        """Close the hub connections that poll, while the broker ends; True if no socket is kept for polls any more.

        Each has LAST_POLL_WAIT_S to fetch its Close.
        """
        now_ms = self.now_ms()
        if now_ms != self._end_looked_ms:  # once a tick for all sockets
            if now_ms - self._end_looked_ms > 2 * LOOK_MS:  # the end begins, perhaps after maintenance that was over
                self._ends_ms = now_ms + LAST_POLL_WAIT_S * 1000
            self._end_looked_ms = now_ms
            for hub in list(self._polling.values()):
                if not hub.ending:
                    hub.shutdown()
                    self._ends_ms = now_ms + LAST_POLL_WAIT_S * 1000
        return not self._polling or now_ms >= self._ends_ms

    def _look(self, now_ms: int) -> None:
        """Twice a second, while there are hub connections."""
        for hub in [*self._waiting.values(), *self._polling.values()]:
            try:
                hub.look(now_ms)
            except Exception as problem:
                faults.say_fault(problem, "hub connection %s: closed by an error of ours", hub.connection_id)
                self.drop(hub)
        if self.hubs:
            self._timer.set(now_ms + LOOK_MS)


def owner_of(token: str) -> int:
    """The worker that a token names; -1: it is no token."""
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except (binascii.Error, ValueError):
        return -1
    return raw[0] if len(raw) == 1 + TOKEN_RANDOM_BYTES else -1
