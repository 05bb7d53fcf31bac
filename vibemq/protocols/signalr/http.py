# SPDX-License-Identifier: Apache-2.0
"""What the SignalR door answers over HTTP: plain Python, once per request.

ROUTES is the whole of it: paths below the hub's, and for each the methods and who answers them.  What is not in the
table is refused.  Before anybody answers, in this order: is there such a route, may the page that sends this do so
(Origin), who asks (Basic, Bearer or ?access_token=), and is the body of a size that it may have.

Pages.  A browser sends what any page asks it to send, with the rights of whoever looks at the page: a WebSocket to
any host without asking, a POST of plain text too, and where nobody has to log in there is nothing that the page would
have to know.  So whatever has an Origin must come from our own host and port or from signalr.allowed_origins, and
while nobody has to log in the Host must be one that no stranger's name server can give away.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from vibemq.access.permissions import EVERYTHING
from vibemq.access.scopes import TokenAccess
from vibemq.access.users import Verdict, basic_login
from vibemq.broker.admission import access_of, check_password, log_closing, needs_login, renew, user_without_login
from vibemq.errors import LimitExceeded, ProtocolError
from vibemq.once_a_minute import OnceAMinute
from vibemq.protocols.signalr import demo
from vibemq.protocols.signalr.request import BINARY, JSON, NO_CACHE, TEXT, Headers, Refusal, Request, head_of, parse
from vibemq.protocols.signalr.spec import LONG_POLLING, NEGOTIATE_VERSION_MAX, SERVER_SENT_EVENTS, WEB_SOCKETS
from vibemq.protocols.signalr.transports import EventsTransport, LongPollingTransport, WebSocketTransport

if TYPE_CHECKING:
    from vibemq.access.permissions import Access
    from vibemq.protocols.signalr.door import SignalRDoor
    from vibemq.protocols.signalr.hub import HubConnection
    from vibemq.protocols.signalr.session import HttpSession

logger = logging.getLogger(__name__)
faults = OnceAMinute(logger, logging.ERROR)

#: Clients put all that they had to send meanwhile into one POST.
MESSAGES_PER_BODY = 4
#: Of a request that nobody reads: it is taken in, so that the connection may go on.
IGNORED_BODY_BYTES_MAX = 16 * 1024
SECRET_CHARACTERS_MAX = 16 * 1024
WEB_SOCKET_ID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
WEB_SOCKET_VERSION = "13"
WEB_SOCKET_KEY_BYTES = 16
ALLOWED_HEADERS = "x-requested-with,x-signalr-user-agent,authorization,content-type"
UNKNOWN_ID = "No Connection with that ID"
NOT_AN_INTEGER = "The client requested a non-integer protocol version."
TRANSPORTS = [
    {"transport": WEB_SOCKETS, "transferFormats": ["Text", "Binary"]},
    {"transport": SERVER_SENT_EVENTS, "transferFormats": ["Text"]},
    {"transport": LONG_POLLING, "transferFormats": ["Text", "Binary"]},
]


# ---- a request, step by step ----


def begin(session: HttpSession, head: bytes) -> Request:
    """The head is here.  What can be refused without the body is, and who asks is found out.  Raises Refusal."""
    door = session.door
    request = parse(head)
    request.body_max = IGNORED_BODY_BYTES_MAX
    try:
        _find_route(door, request)
        _check_origin(door, request)
        if (owner := door.owner_elsewhere(request)) is not None:
            session.hand_over(owner)  # who asks, and everything else, is for that worker to find out
        elif request.answer not in (preflight, demo_page):
            identify(session, request)
    except Refusal as refusal:
        request.refusal = refusal
    return request


def answer(session: HttpSession, request: Request) -> bool:
    """Head and body are here.  False: it has to wait, and comes again."""
    try:
        if request.refusal is not None:
            raise request.refusal
        done: bool | None = request.answer(session, request)
        return done is not False
    except Refusal as refusal:
        refuse(session, request, refusal)
    return True


def refuse(session: HttpSession, request: Request | None, refusal: Refusal, close: bool = False) -> None:
    status = refusal.status
    if status not in (401, 404):  # a wrong login has its own line, and clients come late with a Close
        log_closing(session, str(status), "%s: %s", request or "a request", refusal)
    headers = list(refusal.headers)
    if status == 401:
        # At Basic browsers would ask the user for a password.
        asks = request is None or request.comes_from_browser
        headers.append(("WWW-Authenticate", "Bearer" if asks else 'Basic realm="VibeMQ", Bearer'))
    reply(session, request, status, refusal.text.encode(), TEXT, headers, close=close)


def reply(
    session: HttpSession,
    request: Request | None,
    status: int,
    body: bytes = b"",
    content_type: str = TEXT,
    headers: Headers = (),
    close: bool = False,
) -> None:
    """Answer the request that is at the front; HEAD is told everything but the body."""
    close = close or request is None or not request.keep_alive
    shown = [] if status == 204 else [("Content-Length", str(len(body))), ("Content-Type", content_type)]
    shown += [("X-Content-Type-Options", "nosniff"), *NO_CACHE, *(request.cors if request else ()), *headers]
    if request is not None and request.is_old and not close:
        shown.append(("Connection", "keep-alive"))
    is_head = request is not None and request.method == "HEAD"
    session.write(head_of(status, shown, close) + (b"" if is_head else body))
    session.answered_whole(close)


def too_slow(session: HttpSession) -> None:
    refuse(session, None, Refusal(408, "The request did not come in time."), close=True)


# ---- may they? ----


def _check_origin(door: SignalRDoor, request: Request) -> None:
    """Raises Refusal where a page of somebody else's, or a name of theirs, brings this."""
    origin, host = request.header("origin").lower(), request.header("host").lower()
    if origin:
        if origin in door.allowed_origins:
            request.cors = (
                ("Access-Control-Allow-Origin", request.header("origin")),
                ("Access-Control-Allow-Credentials", "true"),
                ("Vary", "Origin"),
            )
        elif origin.partition("://")[2] != host and request.answer is not preflight:
            raise Refusal(403, "Pages of this origin may not use the hub (signalr.allowed_origins).")
    if host and not needs_login(door.broker) and not _is_ours(door, host):
        raise Refusal(403, "Name the broker by its address, or as localhost (signalr.allowed_origins).")


def without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return name if port.isdigit() and name else host


def _is_ours(door: SignalRDoor, host: str) -> bool:
    """Is this a Host that no name server but this machine's own tells anybody?"""
    name = without_port(host)
    if name == "localhost" or name.endswith(".localhost") or name in door.allowed_hosts:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def identify(session: HttpSession, request: Request) -> None:
    """Find out who asks; a helper thread may have to, and the session waits for it.  Raises Refusal."""
    broker = session.door.broker
    scheme, _, credentials = request.header("authorization").partition(" ")
    scheme, credentials = scheme.lower(), credentials.strip()
    if not scheme and (token := request.query.get("access_token")):
        scheme, credentials = "bearer", token
    if len(credentials) > SECRET_CHARACTERS_MAX:
        raise Refusal(401)
    basic = basic_login(request.header("authorization"))
    if not needs_login(broker):
        user, password = basic or (None, None)
        _let_in(session, request, user_without_login(broker, user, password, session.is_loopback), EVERYTHING)
    elif basic is not None:
        check_password(session, *basic, partial(_judged, session, request, basic[0]))
    elif scheme == "bearer" and broker.authenticator.is_token(credentials):
        check_password(session, "", credentials, partial(_judged, session, request, ""))
    elif scheme == "bearer" and credentials:
        named = broker.tokens.user_of(credentials, session.is_loopback)
        if named is None:
            log_closing(session, "token", "an access token was refused")
            raise Refusal(401)
        _judged(session, request, named, Verdict.OK, None)
    else:
        raise Refusal(401)


def _judged(
    session: HttpSession, request: Request, user: str, verdict: Verdict | None, problem: BaseException | None
) -> None:
    if problem is not None or verdict is None:
        faults.say_fault(problem, "%s: a login could not be checked", session.peer)
        request.refusal = Refusal(500)
    elif (access := access_of(session, user, verdict)) is not None:
        _let_in(session, request, access.user or user, access)
    else:
        request.refusal = Refusal(401)
        delay_ms = session.door.config.login_failure_delay_s * 1000
        session.wait_until(session.door.now_ms() + delay_ms, lambda session: session.waited())


def _let_in(session: HttpSession, request: Request, user: str, access: Access) -> None:
    """Only what a hub connection that is known will read may be large."""
    session.client.user, session.client.access = user, access
    if request.answer is post:
        try:
            _find(session, request)
            request.body_max = session.door.config.message_max_bytes * MESSAGES_PER_BODY
        except Refusal as refusal:
            request.refusal = refusal


def _find(session: HttpSession, request: Request) -> HubConnection:
    """The hub connection that a request is about.  Raises Refusal."""
    token = request.connection_token
    if not token:
        raise Refusal(400, "Connection ID required")
    hub = session.door.hubs.get(token)
    if hub is None:
        raise Refusal(404, UNKNOWN_ID)
    if isinstance(session.client.access, TokenAccess):
        is_theirs = renew(hub.client, session.client.access)
    else:
        is_theirs = hub.client.user == session.client.user and not isinstance(hub.client.access, TokenAccess)
    if not is_theirs:
        raise Refusal(403, "This connection belongs to another user.")
    return hub


def _find_for(kind: str, session: HttpSession, request: Request) -> HubConnection:
    """The same, to be used by a transport of this kind."""
    hub = _find(session, request)
    if hub.kind not in ("", kind):
        raise Refusal(400, "Cannot change transports mid-connection")
    return hub


# ---- negotiating ----


def preflight(session: HttpSession, request: Request) -> None:
    """A browser asks whether a page may; without the headers that _check_origin gave, it may not."""
    headers = []
    if request.cors:
        headers = [
            ("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"),
            ("Access-Control-Allow-Headers", ALLOWED_HEADERS),
            ("Access-Control-Max-Age", "600"),
        ]
    reply(session, request, 204, headers=headers)


def negotiate_early(session: HttpSession, request: Request) -> None:
    """As clients of 2017 do."""
    hub = _negotiated(session, request, wants_stateful=False)
    names = [each["transport"] for each in TRANSPORTS]
    body = {"connectionId": hub.token, "availableTransports": names}
    reply(session, request, 200, msgspec.json.encode(body), JSON, [("Allow", "GET, POST, OPTIONS")])


def negotiate(session: HttpSession, request: Request) -> None:
    asked = request.query.get("negotiateversion", "0")
    if not (asked.removeprefix("-").isdigit() and asked.isascii() and len(asked) <= 10):
        reply(session, request, 200, msgspec.json.encode({"error": NOT_AN_INTEGER}), JSON)
        return
    version = max(0, min(int(asked), NEGOTIATE_VERSION_MAX))
    wants_stateful = request.query.get("usestatefulreconnect", "").lower() == "true"
    hub = _negotiated(session, request, wants_stateful)
    answer = {"negotiateVersion": version, "connectionId": hub.connection_id if version else hub.token}
    if version:
        answer["connectionToken"] = hub.token
    answer["availableTransports"] = TRANSPORTS
    if wants_stateful:
        answer["useStatefulReconnect"] = True
    reply(session, request, 200, msgspec.json.encode(answer), JSON)


def _negotiated(session: HttpSession, request: Request, wants_stateful: bool) -> HubConnection:
    door = session.door
    if door.broker.queues.ending:
        raise Refusal(503, "The broker ends, or is in maintenance.", [("Retry-After", "5")])
    if door.has_its_share(session.peer_address):
        refusal = "Too many connections of this address were negotiated and not used (signalr.waiting_per_address_max)."
        raise Refusal(503, refusal, [("Retry-After", "5")])
    if door.is_full():
        raise Refusal(503, "Too many connections were negotiated and not used.", [("Retry-After", "5")])
    hub = door.open_hub(session, request, wants_stateful)
    hub.wait()
    return hub


def give_token(session: HttpSession, request: Request) -> None:
    """An access token for who has logged in by password; a token would else live for ever by renewing itself."""
    if not request.header("authorization").lower().startswith("basic ") or not session.client.user:
        raise Refusal(401)
    if isinstance(session.client.access, TokenAccess):
        raise Refusal(403, "Who comes by a token uses that, or a new one of its provider's.")
    lifetime_s = session.door.config.access_token_lifetime_s
    token = session.door.broker.tokens.issue(session.client.user, lifetime_s)
    reply(session, request, 200, msgspec.json.encode({"accessToken": token, "expiresIn": lifetime_s}), JSON)


def demo_page(session: HttpSession, request: Request) -> None:
    """A page to try the hub with, for everybody: what it may do is decided when it connects."""
    kind, file = demo.FILES[request.path.lower().removeprefix(session.door.path)]
    reply(session, request, 200, file.read_bytes(), kind)


# ---- transports ----


def get(session: HttpSession, request: Request) -> None:
    if request.names("connection", "upgrade") and request.names("upgrade", "websocket"):
        upgrade(session, request)
    elif "text/event-stream" in request.header("accept").lower():
        open_events(session, request)
    else:
        poll(session, request)


def upgrade(session: HttpSession, request: Request) -> None:
    if request.header("sec-websocket-version") != WEB_SOCKET_VERSION:
        raise Refusal(426, "WebSocket version 13 is spoken here.", [("Sec-WebSocket-Version", WEB_SOCKET_VERSION)])
    key = request.header("sec-websocket-key")
    try:
        if request.is_old or len(base64.b64decode(key, validate=True)) != WEB_SOCKET_KEY_BYTES:
            raise ValueError
    except ValueError:  # also binascii.Error
        raise Refusal(400, "Sec-WebSocket-Key must be 16 bytes in base64, and the version HTTP/1.1.") from None
    hub = _hub_of_upgrade(session, request)
    if hub.transport is not None:
        if not hub.wants_stateful:
            raise Refusal(409, "This connection has a WebSocket already.")
        before = hub.transport.session
        hub.transport.lost("another socket has taken its place")
        before.finish()
        if hub.closed:
            raise Refusal(404, UNKNOWN_ID)
    accept = base64.b64encode(hashlib.sha1(key.encode() + WEB_SOCKET_ID).digest()).decode()
    headers = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept), *request.cors]
    session.write(head_of(101, headers))
    transport = WebSocketTransport(hub, session)
    session.serve(transport)
    hub.attach(transport)


def _hub_of_upgrade(session: HttpSession, request: Request) -> HubConnection:
    """A WebSocket may begin without negotiating.  One client sends a connectionId that it has made up."""
    if request.query.get("id") or request.connection_token in session.door.hubs:
        return _find_for(WEB_SOCKETS, session, request)
    return session.door.open_hub(session, request)


def open_events(session: HttpSession, request: Request) -> None:
    hub = _find_for(SERVER_SENT_EVENTS, session, request)
    if hub.transport is not None:
        raise Refusal(409, "This connection has an event stream already.")
    transport = EventsTransport(hub, session, request)
    session.serve(transport)
    hub.attach(transport)


def poll(session: HttpSession, request: Request) -> None:
    hub = _find_for(LONG_POLLING, session, request)
    if hub.polls is not None:
        hub.stop_waiting()
        hub.polls.poll(session, request)
        return
    reply(session, request, 200, b"", BINARY)  # before anything else: clients wait for it
    # One client takes one record of each response and leaves the others.
    hub.attach(LongPollingTransport(hub, request.header("accept").lower() == "text"))
    hub.wait()


def post(session: HttpSession, request: Request) -> bool:
    hub = _find(session, request)
    if hub.kind == WEB_SOCKETS:
        raise Refusal(405, "POST requests are not allowed for WebSocket connections.", [("Allow", "GET, OPTIONS")])
    if hub.closed:
        raise Refusal(404, UNKNOWN_ID)
    transport = hub.transport
    if transport is not None and not transport.takes_more:
        session.set_busy()
        if not transport.keep_waiting(session):
            session.waited()
            raise Refusal(503, "Too many requests wait for this connection.", [("Retry-After", "5")])
        return False
    if transport is None:
        hub.early_bytes += request.length
        if hub.early_bytes > session.door.config.message_max_bytes:
            raise Refusal(413, "Too much was sent before a transport was there for the answers.")
    try:
        session.hand_body(hub)
    except (ProtocolError, LimitExceeded) as problem:
        log_closing(session, "body", "hub connection closed: %s", problem)
    except Exception as problem:
        faults.say_fault(problem, "%s: hub connection closed by an error of ours", session.peer)
    else:
        reply(session, request, 200)
        return True
    hub.leave("what was posted could not be read")
    raise Refusal(500)


def delete(session: HttpSession, request: Request) -> None:
    hub = _find(session, request)
    if hub.kind != LONG_POLLING:
        raise Refusal(400, "Only a connection that polls is ended by DELETE.")
    reply(session, request, 202)
    hub.leave("ended by the peer")


Answer = Callable[["HttpSession", Request], "bool | None"]
ROUTES: dict[str, dict[str, Answer]] = {
    "": {"OPTIONS": negotiate_early, "GET": get, "POST": post, "DELETE": delete},
    "/negotiate": {"POST": negotiate},
    "/token": {"POST": give_token},
}


def _find_route(door: SignalRDoor, request: Request) -> None:
    path = request.path.lower()
    below = path.removeprefix(door.path) if path.startswith(door.path) else "/"
    methods = {"GET": demo_page} if door.config.demo and below in demo.FILES else ROUTES.get(below)
    if methods is None:
        raise Refusal(404, f"There is nothing here; the hub is at {door.config.path}.")
    if request.method == "OPTIONS" and request.header("access-control-request-method"):
        request.answer = preflight
        return
    request.answer = methods.get(request.method)
    if request.answer is None:
        allowed = ", ".join(dict.fromkeys([*methods, "OPTIONS"]))
        raise Refusal(405, f"{request.method} is not known here.", [("Allow", allowed)])
