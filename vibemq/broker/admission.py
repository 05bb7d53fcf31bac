# SPDX-License-Identifier: Apache-2.0
"""Whether a connection may (still) be here, whether its messages may come in now, and the queue that it uses, made if
need be: the same at each door."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from vibemq.access.users import GUEST
from vibemq.errors import StorageError, StreamExists, StreamIsNoQueue, StreamNotFound
from vibemq.net.hosts import host_of
from vibemq.once_a_minute import OnceAMinute
from vibemq.storage.vhosts import DEFAULT_VHOST

if TYPE_CHECKING:
    from vibemq.access.permissions import Access
    from vibemq.broker.parts import Broker

logger = logging.getLogger(__name__)

refusing = OnceAMinute(logger)
closing = OnceAMinute(logger, logging.INFO)

SUBSCRIPTIONS_MAX = 2048  # of one connection, which all end in one turn when it does: 7 us each
REFUSALS_LOGGED_MAX = 64  # of one connection: a flood must not fill the disk
NO_OPTIONS: Mapping[str, Any] = {}


class Ended(enum.Enum):
    """Why a connection that was let in may not stay."""

    LOGIN_NEEDED = enum.auto()  # it came when nobody had to log in
    DELETED = enum.auto()  # its user, perhaps made anew since


def refusal_now(broker: Broker, peer: str) -> str:
    """Why no message may come in at any door now, for a peer: a disk or memory alarm.  "" when it may.

    Publishes are refused and the connection is read on, because its acknowledgements may be what makes room.  The
    streams door, whose clients know no refusal that comes and goes, does not read who publishes (as RabbitMQ)."""
    why: str = broker.alarms.refusal
    if why:
        refusing.say("publishes", "publishes are refused, the last one of %s: %s", peer, why)
    return why


def log_closing(session: Any, kind: str, text: str, *arguments: object) -> None:
    """A connection ends by its peer's doing: anybody may connect to be thrown out, and that must not fill the disk.

    Once a minute for each door, address and `kind`, with the count.
    """
    subject = (type(session), host_of(session.peer_address), kind)
    closing.say(subject, f"%s: {text}", session.peer, *arguments)


def needs_login(broker: Broker) -> bool:
    """Once anybody has a password, and wherever other machines can reach, everybody must say who they are."""
    return broker.is_public or broker.accesses.has_users


def access_now(broker: Broker, user: str, access: Access) -> Access | Ended:
    """What a connection that had `access` before may do now, or why it has Ended."""
    if user == GUEST:
        return access  # not a user that somebody could change
    if not user:
        return Ended.LOGIN_NEEDED if needs_login(broker) else access
    now = broker.accesses.of(user)
    return Ended.DELETED if now is None or now.created_ms != access.created_ms else now


def stream_right(broker: Broker, user: str, access: Access, right: str, stream: str) -> bool:
    """May the user `configure`, `write` or `read` this stream, which is no queue?"""
    if not user or access.is_superuser:
        return True
    rights = broker.rights.of(user, DEFAULT_VHOST)
    return rights is not None and bool(getattr(rights, right)(stream))


def log_refusal(peer: str, user: str, right: str, queue: str, refusals: set[tuple[str, str, str]]) -> None:
    """Once for each thing that a connection may not do; `refusals` are those of the connection so far."""
    refusal = (user, right, queue)
    if len(refusals) >= REFUSALS_LOGGED_MAX or refusal in refusals:
        return
    refusals.add(refusal)
    last = "; what else is refused to this connection is not logged" if len(refusals) == REFUSALS_LOGGED_MAX else ""
    logger.info("%s: user %r lacks the permission %s for %r%s", peer, user, right, queue, last)


def with_queue(
    broker: Broker,
    virtual_host: str,
    name: str,
    *,
    may_create: bool,
    may_convert: bool = False,
    options: Mapping[str, Any] = NO_OPTIONS,
    then: Callable[[Any], None],
    failed: Callable[[Exception], None],
    in_helper: Callable[[Callable[[], Any], Callable[[Any, Any], None]], None],
) -> None:
    """Call ``then(queue)``, after making the queue with `options` if it does not exist and that is allowed.

    A stream of that name becomes a queue only with ``may_convert``.  ``failed`` is told StreamNotFound when there is no
    queue, or no longer, StreamIsNoQueue when there is a stream instead, StorageError or OSError.
    """

    def missing(problem: StreamNotFound) -> StreamNotFound:
        record = broker.queues.metadata.find_stream(virtual_host, name)
        return problem if record is None or record.queue is not None else StreamIsNoQueue(name)

    def use() -> None:
        try:
            queue = broker.queues.find(virtual_host, name)
        except StreamNotFound as problem:
            failed(missing(problem))
        except (StorageError, OSError) as problem:
            failed(problem)
        else:
            then(queue)

    def made(_: Any, problem: Exception | None) -> None:
        if problem is None or isinstance(problem, StreamExists):
            use()
        else:
            failed(problem)

    try:
        queue = broker.queues.find(virtual_host, name)
    except StreamNotFound as problem:
        why = missing(problem)
        if may_create and (may_convert or not isinstance(why, StreamIsNoQueue)):
            create = broker.catalog.create_queue
            in_helper(partial(create, virtual_host, name, dict(options), may_convert=may_convert), made)
        else:
            failed(why)
    except (StorageError, OSError) as problem:
        failed(problem)
    else:
        then(queue)
