# SPDX-License-Identifier: Apache-2.0
"""What all sessions of the SignalR door on one worker share: hub connections by their tokens.

A hub connection outlives sockets, so it has a Place here from negotiating on.  Places without a socket (nothing has
come yet, or between two polls, or a WebSocket is gone that may come back) wait: for signalr.disconnect_timeout_s, and
only so many of them.  A token is secret and names the worker that has the place; what others may see of a connection
is its connection id.
"""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
import struct
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from vibemq.access.permissions import EVERYTHING, Access
from vibemq.access.users import GUEST
from vibemq.broker.parts import Broker
from vibemq.config import Config
from vibemq.net.hosts import host_of
from vibemq.protocols.signalr import message_methods, publishing, queue_methods  # noqa: F401  they fill METHODS
from vibemq.protocols.signalr.hub import HubConnection
from vibemq.protocols.signalr.methods import METHODS
from vibemq.protocols.signalr.session import HttpSession, seat_epoch, tick
from vibemq.protocols.signalr.spec import CLOSE_NORMAL, LONG_POLLING, Encoding
from vibemq.protocols.signalr.transports import LongPollingTransport

if TYPE_CHECKING:
    from vibemq.protocols.signalr.request import Request

#: Worker and the epoch of its seat, then what nobody can guess.
TOKEN_HEAD = struct.Struct("<BI")
TOKEN_RANDOM_BYTES = 16
CONNECTION_ID_BYTES = 16
LOOK_MS = 500

logger = logging.getLogger(__name__)


class SignalRDoor:
    name = "SignalR"
    methods = METHODS

    def __init__(self, config: Config, broker: Broker) -> None:
        self.config = config.signalr
        self.broker = broker
        self.queues = broker.queues
        self.catalog = broker.catalog
        self.helpers = broker.helpers
        self.authenticator = broker.authenticator
        self.path = config.signalr.path.lower()
        self.allowed_origins = frozenset(filter(None, config.signalr.allowed_origins.lower().split(",")))
        self.allowed_hosts = frozenset(_host_of(origin) for origin in self.allowed_origins)
        self.places: dict[str, Place] = {}  # by token
        self._waiting: dict[str, Place] = {}  # those without a transport
        self._waiting_by_host: Counter[str] = Counter()
        self._polling: dict[str, Place] = {}  # those whose transport has a socket only now and then
        #: Those with a socket, which the loop bounds, and as many between two polls; those that wait have their own.
        self._places_max = config.server.connections_max + config.signalr.waiting_max
        self._timer = broker.timers.timer(self._look)

    def accept(self, connection: Any) -> HttpSession:
        """The session of a new connection."""
        return HttpSession(connection, self)

    def now_ms(self) -> int:
        """The loop's clock: monotonic ms."""
        return time.monotonic_ns() // 1_000_000

    # ---- tokens ----

    def _new_token(self) -> str:
        head = TOKEN_HEAD.pack(self.broker.worker, seat_epoch(self.broker.board))
        return base64.urlsafe_b64encode(head + secrets.token_bytes(TOKEN_RANDOM_BYTES)).decode().rstrip("=")

    def owner_elsewhere(self, request: Request) -> int | None:
        """The other worker that has the hub connection which a request is about; None: it is not about one there."""
        named = owner_of(request.connection_token) if request.connection_token else None
        if named is None or named[0] == self.broker.worker or named[0] >= self.broker.worker_count:
            return None
        return named[0]

    # ---- hub connections ----

    def open_place(
        self, request: Request, address: str, *, wants_stateful: bool = False, has_socket: bool = False
    ) -> Place | None:
        """A new hub connection for whoever asks; None: too many have no socket already."""
        waiting = len(self._waiting)
        if not has_socket and (waiting >= self.config.waiting_max or len(self.places) >= self._places_max):
            return None
        token = self._new_token()
        connection_id = base64.urlsafe_b64encode(secrets.token_bytes(CONNECTION_ID_BYTES)).decode().rstrip("=")
        hub = HubConnection(
            self,
            connection_id,
            token,
            request.user,
            request.access,
            is_alpha2=request.query.get("dialect") == "alpha2",
            wants_stateful=wants_stateful,
        )
        place = self.places[token] = Place(self, hub, request.user, address, wants_stateful)
        if self._timer.due_ms > self.now_ms() + LOOK_MS:
            self._timer.set(self.now_ms() + LOOK_MS)
        return place

    def forget(self, hub: HubConnection) -> None:
        """The hub connection is over.  What polls have not yet fetched is kept for them."""
        place = self.places.get(hub.token)
        if place is None:
            return
        if place.kind == LONG_POLLING and place.transport is not None and not place.is_over:
            place.is_over = True
            place.wait()
            return
        self.drop(place)

    def drop(self, place: Place) -> None:
        self.places.pop(place.token, None)
        self.stop_waiting(place)
        self._polling.pop(place.token, None)

    def transport_lost(self, place: Place, transport: Any, why: str) -> None:
        """A socket is gone: the hub connection ends, or waits for another."""
        if place.transport is transport:
            place.transport = None
        if not place.hub.closed:
            place.hub.detached(transport, why)
        if place.hub.closed or not place.wants_stateful:
            self.drop(place)
        else:
            place.wait()

    def begin_to_wait(self, place: Place) -> None:
        if place.kind == LONG_POLLING:
            self.stop_waiting(place)
            self._polling[place.token] = place
        elif place.token not in self._waiting:
            self._waiting[place.token] = place
            self._waiting_by_host[place.host] += 1

    def stop_waiting(self, place: Place) -> None:
        if self._waiting.pop(place.token, None) is not None:
            self._waiting_by_host[place.host] -= 1
            if not self._waiting_by_host[place.host]:
                del self._waiting_by_host[place.host]

    def has_its_share(self, address: str) -> bool:
        """Do as many hub connections of one host wait already as may of one?"""
        return self._waiting_by_host[host_of(address)] >= self.config.waiting_per_address_max

    def address_of(self, hub: HubConnection) -> str:
        """Where it was negotiated from."""
        place = self.places.get(hub.token)
        return "" if place is None else place.host

    def access_of(self, user: str) -> Access | None:
        """What this user may do; None: there is no such user."""
        return EVERYTHING if user == GUEST else self.broker.accesses.of(user)

    # ---- time ----

    def _look(self, now_ms: int) -> None:
        """Twice a second, while there are hub connections."""
        for place in [*self._waiting.values(), *self._polling.values()]:
            try:
                place.look(now_ms)
            except Exception:
                logger.exception("hub connection %s: closed by an error of ours", place.connection_id)
                self.drop(place)
        if self.places:
            self._timer.set(now_ms + LOOK_MS)


class Place:
    """Where a hub connection is found, what it speaks through, and until when it is kept without a socket."""

    __slots__ = (
        "door",
        "early_bytes",
        "expires_ms",
        "host",
        "hub",
        "is_over",
        "kind",
        "transport",
        "user",
        "wants_stateful",
    )

    def __init__(self, door: SignalRDoor, hub: HubConnection, user: str, address: str, wants_stateful: bool) -> None:
        self.door, self.hub, self.user, self.wants_stateful = door, hub, user, wants_stateful
        self.host = host_of(address)
        self.kind = ""  # the name of the transport that it began with
        self.transport: Any = None
        self.expires_ms = 0  # 0: it has a socket
        self.early_bytes = 0  # posted before there was a transport
        self.is_over = False  # and kept only for what a poll may still fetch

    @property
    def token(self) -> str:
        return self.hub.token  # type: ignore[no-any-return]

    @property
    def connection_id(self) -> str:
        return self.hub.connection_id  # type: ignore[no-any-return]

    @property
    def joins_records(self) -> bool:
        """May an event carry several records?  Of MessagePack, early clients take one."""
        return self.hub.encoding == Encoding.JSON  # type: ignore[no-any-return]

    def is_used_otherwise(self, kind: str) -> bool:
        return self.kind not in ("", kind)

    def begin_polling(self, *, one_record_each: bool) -> LongPollingTransport:
        return LongPollingTransport(self.hub, self, one_record_each)

    def use(self, transport: Any) -> None:
        """The first transport, or another socket for one that was lost."""
        self.kind, self.transport = transport.name, transport
        self.stop_waiting()
        self.hub.attach(transport)

    def wait(self) -> None:
        """Without a socket from now on."""
        self.expires_ms = self.door.now_ms() + self.door.config.disconnect_timeout_s * 1000
        self.door.begin_to_wait(self)

    def stop_waiting(self) -> None:
        self.expires_ms = 0
        self.door.stop_waiting(self)

    def look(self, now_ms: int) -> None:
        if self.expires_ms and now_ms >= self.expires_ms:
            self.leave("its peer has not come back")
        elif not self.hub.closed:
            tick(self.hub, now_ms)

    def leave(self, why: str) -> None:
        """The hub connection ends without its peer."""
        transport = self.transport
        if transport is not None:
            transport.end(CLOSE_NORMAL, why)
        if not self.hub.closed:
            self.hub.detached(transport, why)
        if not self.hub.closed:
            self.hub.close()
        self.door.drop(self)


def owner_of(token: str) -> tuple[int, int] | None:
    """A token names its worker, and the epoch of that worker's seat; None: it is no token."""
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except (binascii.Error, ValueError):
        return None
    if len(raw) != TOKEN_HEAD.size + TOKEN_RANDOM_BYTES:
        return None
    worker, epoch = TOKEN_HEAD.unpack_from(raw)
    return worker, epoch


def _host_of(origin: str) -> str:
    host = origin.partition("://")[2]
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and ":" in host else host
