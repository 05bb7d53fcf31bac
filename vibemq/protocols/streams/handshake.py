# SPDX-License-Identifier: Apache-2.0
"""The handshake, from PeerProperties to Open, one step after the other; and the secret that is renewed afterwards.

Codes and delays: the RabbitMQ Streams protocol.  What is a guess is answered late, what is no guess at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vibemq.access.scopes import TokenAccess
from vibemq.access.users import Verdict
from vibemq.broker.admission import USER_CHARACTERS_LOGGED_MAX, check_password, enter
from vibemq.net.hosts import host_of
from vibemq.once_a_minute import OnceAMinute
from vibemq.protocols.streams import sasl
from vibemq.protocols.streams.codec import encode_response, encode_server_frame
from vibemq.protocols.streams.endings import fail_later, step_begins
from vibemq.protocols.streams.replies import Outcome, answer, look_again, revoke
from vibemq.protocols.streams.spec import Code, Key

if TYPE_CHECKING:
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)
faults = OnceAMinute(logger, logging.ERROR)
malformed = OnceAMinute(logger, logging.INFO)
logins = OnceAMinute(logger)

#: What a login comes to, on the wire.
VERDICTS = {
    Verdict.OK: Code.OK,
    Verdict.REFUSED: Code.AUTHENTICATION_FAILURE,
    Verdict.LOOPBACK_ONLY: Code.AUTHENTICATION_FAILURE_LOOPBACK,
}
#: Answers for which whoever guesses has to wait.
DELAYED = (
    Code.AUTHENTICATION_FAILURE,
    Code.VIRTUAL_HOST_ACCESS_FAILURE,
    Code.SASL_CANNOT_CHANGE_MECHANISM,
    Code.SASL_CANNOT_CHANGE_USERNAME,
)


def peer_properties(session: StreamsSession, request: Any) -> Outcome:
    session.peer_properties = request.properties
    return {"properties": session.door.properties}


def sasl_handshake(session: StreamsSession, request: Any) -> Outcome:
    return {"mechanisms": sasl.offered(session)}


# ---- who somebody is ----


def sasl_authenticate(session: StreamsSession, request: Any) -> None:
    if request.mechanism not in sasl.offered(session):
        _refuse(session, request, Code.SASL_MECHANISM_NOT_SUPPORTED)
        return

    def done(user: str, code: Code, access: TokenAccess | None = None) -> None:
        if code == Code.OK:
            session.client.user, session.client.access, session.mechanism = user, access, request.mechanism
            config = session.door.config
            answer(session, Key.SASL_AUTHENTICATE, request, code)
            # The very next frame: one client insists on it.
            session.write(encode_server_frame(Key.TUNE, frame_max=config.frame_max_bytes, heartbeat=config.heartbeat_s))
            session.state = "tuning"
            step_begins(session)
        else:
            _refuse(session, request, code, user)

    _prove(session, request, done)


def update_secret(session: StreamsSession, request: Any) -> None:
    """The same user brings a new password or token, and may have other rights from now on."""
    is_expelled = session.state == "expelled"
    if is_expelled:
        step_begins(session)  # the check of a password may last longer than what was left
    if request.mechanism != session.mechanism:
        _refuse(session, request, Code.SASL_CANNOT_CHANGE_MECHANISM)
        return

    def done(user: str, code: Code, access: TokenAccess | None = None) -> None:
        client = session.client
        if code == Code.OK and (user != client.user or (access is None) != (client.access is None)):
            code = Code.SASL_CANNOT_CHANGE_USERNAME
        if code == Code.OK:
            client.access = access
        if code == Code.OK and (is_expelled or not look_again(session)):
            code = Code.VIRTUAL_HOST_ACCESS_FAILURE
        if code != Code.OK:
            _refuse(session, request, code, user)
            return
        answer(session, Key.SASL_AUTHENTICATE, request, code)
        revoke(session)

    _prove(session, request, done)


def _prove(session: StreamsSession, request: Any, done: Callable[..., None]) -> None:
    """Call `done` with the user that the request means and whether it is that user; at once or after a helper.

    Of who comes by a token, which says itself who that is, also with what it may do.
    """
    try:
        who = sasl.claim(session, request.mechanism, request.data)
    except sasl.Malformed as problem:
        malformed.say(host_of(session.peer_address), "%s: login with malformed data: %s", session.peer, problem)
        done("", Code.SASL_ERROR)
        return
    except sasl.Unusable as problem:
        logins.say(host_of(session.peer_address), "%s: its login cannot be checked: %s", session.peer, problem)
        done("", Code.AUTHENTICATION_FAILURE)
        return
    if who.password is None:
        known = session.door.table.metadata.find_user(who.user) is not None
        done(who.user, Code.OK if known else Code.AUTHENTICATION_FAILURE)
        return

    def checked(verdict: Any, error: BaseException | None) -> None:
        if error is not None:
            faults.say_fault(error, "%s: a login could not be checked", session.peer)
            done(who.user, Code.INTERNAL_ERROR)
        elif isinstance(verdict, TokenAccess):
            done(verdict.user, Code.OK, verdict)
        else:
            done(who.user, VERDICTS[verdict])

    check_password(session, who.user, who.password, checked)


def _refuse(session: StreamsSession, request: Any, code: Code, user: str = "") -> None:
    """No login, or no more: whatever the connection had, it does nothing any more."""
    session.drop_all()
    if code in DELAYED:
        shown = USER_CHARACTERS_LOGGED_MAX, user or session.client.user, code.name
        logins.say((host_of(session.peer_address), code), "%s: login refused for user %.*r, %s", session.peer, *shown)
        fail_later(session, encode_response(Key.SASL_AUTHENTICATE, request.correlation_id, code))
    else:
        answer(session, Key.SASL_AUTHENTICATE, request, code)
        session.finish()


# ---- where to ----


def tune(session: StreamsSession, request: Any) -> None:
    ours, theirs = session.door.config.frame_max_bytes, request.frame_max
    session.negotiated_frame_max = min(ours, theirs) if ours and theirs else ours or theirs
    session.heartbeat_s = request.heartbeat  # verbatim: a client that answers 0 never sends any


def open_(session: StreamsSession, request: Any) -> Outcome:
    session.virtual_host = request.virtual_host
    problem = ""
    if not look_again(session):
        problem = f"does not exist or is closed to user {session.client.user!r}"
    elif not session.door.enter():
        problem = (
            f"not opened: {session.door.config.connections_max} connections there may be (streams.connections_max)"
        )
    elif why := enter(session.client, request.virtual_host):
        session.door.leave()
        problem = f"not opened: {why}"
    if problem:
        logins.say(host_of(session.peer_address), "%s: virtual host %r %s", session.peer, request.virtual_host, problem)
        fail_later(session, encode_response(Key.OPEN, request.correlation_id, Code.VIRTUAL_HOST_ACCESS_FAILURE))
        return None
    session.counted = True
    session.opened()
    host, port = advertised(session)
    return {"properties": {"advertised_host": host, "advertised_port": str(port)}}


def advertised(session: StreamsSession) -> tuple[str, int]:
    """The address the client evidently reached us by, unless configured."""
    config = session.door.config
    here, port = session.local_address
    if session.is_loopback:
        here = "localhost"
    if session.is_tls:  # the name it asked for is the one that it finds in the certificate
        host = config.advertised_tls_host or config.advertised_host or session.server_name or here
        return host, config.advertised_tls_port or port
    return config.advertised_host or here, config.advertised_port or port
