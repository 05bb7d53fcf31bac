# SPDX-License-Identifier: Apache-2.0
"""What the commands of all subjects share: how one is obeyed and answered, and what a session may do.

A command's function gives an Outcome, or raises Refused; ``obey`` makes the answer of it.  ``session.rights`` answers
configure(name), write(name) and read(name); it is looked up again when somebody has changed any rights, before
a command is obeyed and at the next tick.  What has been declared or subscribed goes when its right goes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from vibemq.broker.admission import log_expiry, rights_in
from vibemq.broker.arguments import BadArgument
from vibemq.broker.helping import in_helper
from vibemq.broker.limits import count_refused
from vibemq.errors import (
    ExchangeNotFound,
    LimitExceeded,
    PreconditionFailed,
    StorageError,
    StreamExists,
    StreamNotFound,
)
from vibemq.net.hosts import host_of
from vibemq.once_a_minute import OnceAMinute
from vibemq.protocols.streams import spec
from vibemq.protocols.streams.codec import encode_response
from vibemq.protocols.streams.endings import stream_unavailable
from vibemq.protocols.streams.spec import Code

if TYPE_CHECKING:
    from vibemq.broker.stream import Stream
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)
lacking = OnceAMinute(logger, logging.INFO)
refusing = OnceAMinute(logger)
failing = OnceAMinute(logger, logging.ERROR)
revoking = OnceAMinute(logger)
_unusable = OnceAMinute(logger, logging.ERROR)  # a client tries again for as long as it runs

OFFSET_MAX = 2**63 - 1


# ---- commands and their answers ----


class Refused(Exception):
    """The answer to a command is this code."""

    def __init__(self, code: Code) -> None:
        super().__init__(code)
        self.code = code


class Busy(Exception):
    """Another process holds the lock of a log in a slow file system call: the command is tried again."""


#: After so long the command is tried again, with the next tick of the loop (0.5 s).
BUSY_RETRY_MS = 100


class Later(NamedTuple):
    """`work` is for a helper thread, the session takes no command meanwhile; ``then(result)`` gives the outcome."""

    work: Callable[[], Any]
    then: Callable[[Any], Any] = lambda _: Code.OK
    after: Callable[[Any], None] = lambda _: None  # of the result, behind the answer, or when the peer has left
    failure: Code | None = Code.INTERNAL_ERROR  # where the error says no more; None: the answer has no place for a code
    submit: Callable[..., None] | None = None  # to other threads than the door's helpers


#: The code of an answer, or the fields of one that is OK; None: there is none, or it has been given.
Outcome = Code | dict[str, Any] | Later | None


def obey(session: StreamsSession, key: int, request: Any, command: Callable[[StreamsSession, Any], Outcome]) -> None:
    try:
        outcome = command(session, request)
    except (Refused, BadArgument) as problem:
        outcome = code_of(session, request, problem)
    except Busy:
        _try_again(session, key, request, command)
        return
    if not isinstance(outcome, Later):
        answer(session, key, request, outcome)
        return
    later = outcome

    def done(result: Any, problem: BaseException | None) -> None:
        if problem is not None:
            if later.failure is None:
                raise problem  # which ends the connection
            answer(session, key, request, code_of(session, request, problem, later.failure))
            return
        answer(session, key, request, later.then(result))
        later.after(result)

    in_helper(session, later.work, done, submit=later.submit, left=later.after)


def _try_again(
    session: StreamsSession, key: int, request: Any, command: Callable[[StreamsSession, Any], Outcome]
) -> None:
    def again(_: StreamsSession) -> None:
        session.set_idle()
        obey(session, key, request, command)
        session.read_on()

    session.wait_until(session.door.queues.now_ms + BUSY_RETRY_MS, again)


def answer(session: StreamsSession, key: int, request: Any, outcome: Outcome) -> None:
    if isinstance(outcome, dict):
        session.write(encode_response(key, request.correlation_id, Code.OK, **outcome))
    elif isinstance(outcome, Code):
        session.write(encode_response(key, request.correlation_id, outcome))


def code_of(session: StreamsSession, request: Any, problem: BaseException, failure: Code = Code.INTERNAL_ERROR) -> Code:
    """Return the wire's code for the problem with a request, and log an unexpected one.  Raises Busy."""
    if isinstance(problem, StorageError) and problem.code == "ERR_BUSY":
        raise Busy from problem
    if isinstance(problem, Refused):
        return problem.code
    if isinstance(problem, StreamNotFound | ExchangeNotFound):
        return Code.STREAM_DOES_NOT_EXIST
    if isinstance(problem, StreamExists):
        return Code.STREAM_ALREADY_EXISTS
    name, subject = type(request).__name__, getattr(request, "stream", request[1])
    kind = host_of(session.peer_address), name, type(problem)
    if isinstance(problem, BadArgument):
        lacking.say(kind, "%s: %s %s: %s", session.peer, name, subject, problem)
        return Code.PRECONDITION_FAILED
    if isinstance(problem, LimitExceeded | PreconditionFailed):
        if isinstance(problem, LimitExceeded):
            count_refused()
        refusing.say(kind, "%s: %s %s: %s", session.peer, name, subject, problem)
        return Code.PRECONDITION_FAILED
    if isinstance(problem, StorageError | OSError):
        failing.say(kind, "%s: %s %s: %s", session.peer, name, subject, problem)
    else:
        failing.say_fault(problem, "%s: a command failed by an error of ours", session.peer)
    return failure


@contextmanager
def found(session: StreamsSession, request: Any) -> Iterator[Stream]:
    """The stream a request names, closed afterwards if nobody uses it.  Raises Refused."""
    table = session.door.table
    try:
        stream = table.find(session.virtual_host, request.stream)
    except StreamNotFound:
        raise Refused(Code.STREAM_DOES_NOT_EXIST) from None
    except StorageError as problem:
        _unusable.say(request.stream, "stream %s cannot be opened: %s", request.stream, problem)
        raise Refused(Code.STREAM_NOT_AVAILABLE) from None
    try:
        yield stream
    finally:
        table.release_if_unused(stream)


def readable(session: StreamsSession, request: Any) -> AbstractContextManager[Stream]:
    """The same for somebody who may read it."""
    need(session, "read", request.stream)
    return found(session, request)


def is_ours(session: StreamsSession) -> bool:
    """Is the client VibeMQ's own?  It knows more commands, and is told more."""
    return bool(session.peer_properties.get("product") == spec.OWN_PRODUCT)


def offset_value(request: Any) -> int:
    """The offset or time a request names; an offset beyond every log is as good as the last one there can be."""
    return min(request.offset_value or 0, OFFSET_MAX)


# ---- what a session may do ----


def need(session: StreamsSession, right: str, *names: str) -> None:
    """Raises Refused where the right is missing for any of these names."""
    may = getattr(session.rights, right)
    for name in names:
        if not may(name):
            said = "%s: user %r may not %s %r"
            lacking.say((session.client.user, right), said, session.peer, session.client.user, right, name)
            raise Refused(Code.ACCESS_REFUSED)


def look_again(session: StreamsSession) -> bool:
    """Look the rights up; False: the virtual host, or the user, is gone or the one is closed to the other."""
    broker, client = session.door.broker, session.client
    session.rights = rights_in(broker, client.user, client.access, session.virtual_host)
    session.rights_generation = broker.rights.generation
    return session.rights is not None


def is_stale(session: StreamsSession) -> bool:
    """Are the rights to be looked up again: have somebody's changed, or has the token of this client expired?"""
    access = session.client.access  # of who came by a token only
    return session.rights_generation != session.door.broker.rights.generation or (access is not None and access.is_over)


def rights_changed(session: StreamsSession, end: Callable[[StreamsSession], None] | None = None) -> bool:
    """Apply changed rights to this session; False if it may not stay.

    It ends at once, or by ``end`` if only its virtual host is closed to its user.
    """
    if session.state != "open":
        return True
    if look_again(session):
        revoke(session)
        return True
    user, access = session.client.user, session.client.access
    if access is not None and access.is_over:
        log_expiry(session.peer, user)
        session.finish()
        return False
    revoking.say(user, "%s: virtual host %r is closed to user %r now", session.peer, session.virtual_host, user)
    (end or session.__class__.finish)(session)
    return False


def revoke(session: StreamsSession) -> None:
    """Take away the publishers and subscriptions whose right is gone, and tell each stream's name once."""
    rights, user = session.rights, session.client.user
    lost: dict[str, None] = {}
    for users, may, remove in (
        (session.publishers, rights.write, session.remove_publisher),
        (session.deliveries.by_id, rights.read, session.deliveries.remove),
    ):
        for number, each in list(users.items()):
            if not all(map(may, each.used_names)):
                remove(number)
                lost[each.stream.name] = None
    for name in lost:
        revoking.say((user, name), "%s: user %r may not use stream %s any more", session.peer, user, name)
        stream_unavailable(session, name)
