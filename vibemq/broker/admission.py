# SPDX-License-Identifier: Apache-2.0
"""What is decided about a client (client.pyx), the same at each door: whether it may come in and stay, what it may do,
whether its messages may come in now, and the queue that it uses, made if need be.  A door words the answers."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from vibemq.access.permissions import EVERYTHING, Operation
from vibemq.access.scopes import TokenAccess
from vibemq.access.users import GUEST, Verdict
from vibemq.broker.audit import author
from vibemq.broker.helping import in_helper
from vibemq.broker.limits import count_refused
from vibemq.errors import LimitExceeded, StorageError, StreamExists, StreamIsNoQueue, StreamNotFound
from vibemq.net.hosts import host_of
from vibemq.once_a_minute import OnceAMinute
from vibemq.storage.vhosts import DEFAULT_VHOST

if TYPE_CHECKING:
    from vibemq.access.permissions import Access
    from vibemq.access.rights import VhostRights
    from vibemq.broker.client import Client
    from vibemq.broker.parts import Broker

logger = logging.getLogger(__name__)
limiting = OnceAMinute(logger)
lacking = OnceAMinute(logger, logging.INFO)
sending_off = OnceAMinute(logger)
expiring = OnceAMinute(logger, logging.INFO)
faults = OnceAMinute(logger, logging.ERROR)

refusing = OnceAMinute(logger)
closing = OnceAMinute(logger, logging.INFO, event="peer_refused")
logins = OnceAMinute(logger)  # which operators look for

SUBSCRIPTIONS_MAX = 2048  # of one connection, which all end in one turn when it does: 7 us each
USER_CHARACTERS_LOGGED_MAX = 255
NO_OPTIONS: Mapping[str, Any] = {}


class Ended(enum.Enum):
    """Why a connection that was let in may not stay."""

    LOGIN_NEEDED = enum.auto()  # it came when nobody had to log in
    DELETED = enum.auto()  # its user, perhaps made anew since
    EXPIRED = enum.auto()  # the token that let it in


def refusal_now(broker: Broker, peer: str) -> str:
    """Why no message may come in at any door now, for a peer: a disk or memory alarm.  "" when it may.

    Publishes are refused and the connection is read on, because its acknowledgements may be what makes room.  The
    streams door, whose clients know no refusal that comes and goes, does not read who publishes (as RabbitMQ)."""
    why: str = broker.alarms.refusal
    if why:
        refusing.say("publishes", "publishes are refused, the last one of %s: %s", peer, why)
    return why


def log_closing(session: Any, kind: str, text: str, *arguments: object) -> None:
    """By its peer's doing a connection ends, or a request is refused: anybody may connect for just that, and it must
    not fill the disk.

    Once a minute for each door, address and `kind`, with the count.
    """
    subject = (type(session), host_of(session.peer_address), kind)
    closing.say(subject, f"%s: {text}", session.peer, *arguments)


# ---- coming in ----


def needs_login(broker: Broker) -> bool:
    """Once anybody has a password or may have a token, and wherever other machines can reach, everybody must say who
    they are."""
    return broker.is_public or broker.authenticator.takes_tokens or broker.accesses.has_users


def user_without_login(broker: Broker, user: str | None, password: str | None, is_loopback: bool) -> str:
    """Whose name somebody has where nobody has to log in: guest's or nobody's.

    Whatever name was given is not that of a user: nobody has looked at a password.  But guest's is no secret."""
    is_guest = user == GUEST and broker.authenticator.check_cached(GUEST, password or "", is_loopback) is Verdict.OK
    return GUEST if is_guest else ""


def check_password(
    session: Any, user: str, password: str, then: Callable[[Verdict | TokenAccess | None, BaseException | None], None]
) -> None:
    """Call ``then(verdict, problem)``, at once or when a helper thread has found out.  A token may be the password."""
    broker, loopback = session.client.broker, session.is_loopback
    verdict = broker.authenticator.check_cached(user, password, loopback)
    if verdict is not None:
        then(verdict, None)
    else:
        work = partial(broker.authenticator.check, user, password, loopback)
        by_token = broker.authenticator.is_token(password)
        in_helper(session, work, then, submit=broker.helpers.submit_token if by_token else broker.helpers.submit_hash)


def access_of(session: Any, user: str, verdict: Verdict | TokenAccess) -> Access | None:
    """What a user may do of whom this was found out.  None: it may not come in, which is in the log.

    By a token it is somebody else: `TokenAccess.user`."""
    broker: Broker = session.client.broker
    if isinstance(verdict, TokenAccess):
        return verdict
    if verdict is Verdict.OK:
        access = EVERYTHING if user == GUEST else broker.accesses.of(user)
        if access is not None:
            return access
    only_here = verdict is Verdict.LOOPBACK_ONLY
    what = "%s: user %.*r may only come from this machine" if only_here else "%s: login refused for user %.*r"
    logins.say(host_of(session.peer_address), what, session.peer, USER_CHARACTERS_LOGGED_MAX, user)
    return None


def enter(client: Client, vhost: str = DEFAULT_VHOST) -> str:
    """It has logged in, and counts until its ``leave``: "", or why its user or virtual host may have no more."""
    return client.broker.limits.enter(client, vhost)


def leave(client: Client) -> None:
    """Its connection is over; called as often as one likes."""
    client.broker.limits.leave(client)


# ---- staying, and what it may do ----


def access_now(broker: Broker, user: str, access: Access) -> Access | Ended:
    """What a connection that had `access` before may do now, or why it has Ended."""
    if isinstance(access, TokenAccess):
        # A user of that name who was made since is somebody else, as at the login.
        return Ended.EXPIRED if access.is_over or broker.accesses.of(user) is not None else access
    if user == GUEST:
        return access  # not a user that somebody could change
    if not user:
        return Ended.LOGIN_NEEDED if needs_login(broker) else access
    now = broker.accesses.of(user)
    return Ended.DELETED if now is None or now.created_ms != access.created_ms else now


def check_access(client: Client) -> bool:
    """At each command and twice a second: is this user still allowed to be here, and to do what it does?

    False: no, and the connection is about to end."""
    owner = client.owner
    if owner.ending:
        return False
    now = access_now(client.broker, client.user, client.access)
    if isinstance(now, Ended):
        if now is Ended.DELETED:
            sending_off.say(client.user, "%s: user %r was deleted, closed", owner.peer, client.user)
        elif now is Ended.EXPIRED:
            log_expiry(owner.peer, client.user)
        else:
            sending_off.say("", "%s: came when nobody had to log in, closed", owner.peer)
        owner.send_off(now)
        return False
    if now is not client.access:
        client.access = now
        owner.rights_changed()
    return True


def log_expiry(peer: str, user: str) -> None:
    expiring.say(user, "%s: the token of user %r has expired, closed", peer, user)


def renew(client: Client, access: TokenAccess) -> bool:
    """The same user brings another token, whose rights it has from now on; False: it is not the same."""
    if not isinstance(client.access, TokenAccess) or client.user != access.user:
        return False
    if access.over_s > client.access.over_s:  # requests may overtake each other
        client.access = access
        client.owner.rights_changed()
    return True


def may(client: Client, operation: Operation, queue: str) -> bool:
    """May it do this with the queue of this name, if there is one?  Nobody has looked; a refusal is in the log."""
    if client.access.may(operation, queue):
        return True
    log_refusal(client.owner.peer, client.user, operation.name, queue)
    return False


def has_right(client: Client, right: str, stream: str) -> bool:
    """May it `configure`, `write` or `read` this stream, which is no queue?  A refusal is in the log."""
    if stream_right(client.broker, client.user, client.access, right, stream):
        return True
    log_refusal(client.owner.peer, client.user, right, stream)
    return False


def stream_right(broker: Broker, user: str, access: Access, right: str, stream: str) -> bool:
    """May the user `configure`, `write` or `read` this stream, which is no queue?"""
    if not user or access.is_superuser:
        return True
    rights = rights_in(broker, user, access, DEFAULT_VHOST)
    return rights is not None and bool(getattr(rights, right)(stream))


def rights_in(broker: Broker, user: str, access: Access | None, vhost: str) -> VhostRights | None:
    """What a user may do in a virtual host; None: nothing, or there is no such user or virtual host.

    `access` says whether it came by a token."""
    if not isinstance(access, TokenAccess):
        return broker.rights.of(user, vhost)
    known = vhost.isprintable() and broker.queues.metadata.has_vhost(vhost)
    return access.rights_in(vhost) if known and broker.accesses.of(user) is None else None


def log_refusal(peer: str, user: str, right: str, queue: str) -> None:
    """Log once a minute that a user lacks a right for a queue or stream."""
    lacking.say((user, right, queue), "%s: user %r lacks the permission %s for %r", peer, user, right, queue)


def what_failed(peer: str, problem: BaseException) -> str:
    """For the peer whose command the disk, a limit or an error of ours has stopped; the log says more."""
    if isinstance(problem, LimitExceeded):  # caused by the client, not by the broker
        count_refused()
        limiting.say(str(problem).partition(":")[0], "%s: a command failed: %s", peer, problem)
        return str(problem)
    if isinstance(problem, StorageError):
        faults.say(problem.code, "%s: a command failed: %s", peer, problem)
        return str(problem)
    faults.say_fault(problem, "%s: a command failed by an error of ours", peer)
    return "The broker could not do this; its log says why."


# ---- queues ----


def may_make(client: Client, queue: str) -> bool:
    """May using this queue make it?"""
    config = client.broker.catalog.config.queues
    needed = config.auto_create_needs_permission
    return bool(config.auto_create and (not needed or client.access.may(Operation.CreateQueue, queue)))


def with_queue(
    client: Client,
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
    queue, or no longer, StreamIsNoQueue when there is a stream instead, LimitExceeded, StorageError or OSError.
    """
    broker = client.broker

    def use(may_create: bool) -> None:
        try:
            queue = broker.queues.find(virtual_host, name)
        except StreamNotFound as problem:
            record = broker.queues.metadata.find_stream(virtual_host, name)
            is_stream = record is not None and record.queue is None
            if may_create and (may_convert or not is_stream):
                create = partial(
                    broker.catalog.create_queue, virtual_host, name, dict(options), by=author(client),
                    may_convert=may_convert,
                )  # fmt: skip
                in_helper(create, made)
            else:
                failed(StreamIsNoQueue(name) if is_stream else problem)
        except (StorageError, OSError) as problem:
            failed(problem)
        else:
            then(queue)

    def made(_: Any, problem: Exception | None) -> None:
        if problem is None or isinstance(problem, StreamExists):
            use(may_create=False)
        else:
            failed(problem)

    use(may_create)
