# SPDX-License-Identifier: Apache-2.0
"""Control commands of the native door: plain Python, once per connection or command.

STATES is the whole state machine: for each state the commands it allows and who answers them.  What is
not in the table is refused.  A command that must touch the disk or hash a password runs in a helper
thread; its session is busy until then, so replies leave in the order of requests.  Texts and codes:
README.md beside this file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from vibemq.broker.admission import (
    GUEST,
    SUBSCRIPTIONS_MAX,
    Ended,
    access_now,
    log_refusal,
    needs_login,
    with_queue,
)
from vibemq.broker.helping import in_helper
from vibemq.broker.policy import ACK_TIMEOUT_MS_MIN
from vibemq.errors import AccountError, LimitExceeded, StorageError, StreamExists, StreamNotFound
from vibemq.protocols.native import compression
from vibemq.protocols.native.codec import Message, decode_body, encode_body, encode_frame, frame_of, is_json
from vibemq.protocols.native.options import READERS, BadOption, options_of, queue_info, queue_options
from vibemq.protocols.native.spec import (
    COMMAND_BY_TYPE,
    COMPRESSION_BY_NAME,
    FEATURE_DEDUP,
    FEATURE_NAMES,
    REASON_SERVER_SHUTDOWN,
    Command,
    ErrorCode,
    Header,
    QueueOperation,
    wire_name,
)
from vibemq.storage.vhosts import DEFAULT_VHOST

if TYPE_CHECKING:
    from vibemq.broker.policy import QueuePolicy
    from vibemq.protocols.native.session import NativeSession

logger = logging.getLogger(__name__)

#: The id of a frame that answers none.
FRESH_ID = b"server"
PREFETCH_HEADER = "prefetch"
DORMANT_LOOKS_PER_TICK = 64  # lookups of some microseconds each, twice a second


def handle(session: NativeSession, body: bytes) -> None:
    """One frame that is not a data frame of an open session."""
    request = decode_body(body)
    rule = COMMAND_BY_TYPE.get(request.type)  # type: ignore[call-overload]
    if session.state == "open" and not check_access(session):
        return
    answer = STATES[session.state].get(request.type)
    if answer is not None:
        if rule is not None and rule.feature is not None and rule.feature not in session.features:
            answer = None
        elif rule is not None and rule.admin and not needs_login(session.door.broker):
            answer = None  # users are no matter of the protocol while nobody has to log in
    elif session.state == "connecting":
        error(session, request, ErrorCode.NOT_AUTHENTICATED, "Please send a Connect command first.")
        return
    elif session.state != "open":
        return
    if answer is None:
        error(session, request, ErrorCode.UNKNOWN_COMMAND, f"Unknown command type: {_name(request.type)}")
        return
    if rule is not None and rule.needs_queue:
        if not request.queue:
            error(session, request, ErrorCode.INVALID_QUEUE, f"Queue name is required for {_action(rule.command)}.")
            return
        if rule.operation is not None and not session.access.may(rule.operation, request.queue):
            not_authorized(session, request.id, rule.operation, request.queue)
            return
    try:
        answer(session, request)
    except Exception as problem:  # one bad command is answered; it does not cost the connection
        failed(session, request, problem)


def _name(number: int) -> str:
    rule = COMMAND_BY_TYPE.get(number)  # type: ignore[call-overload]
    return str(number) if rule is None else rule.name


def _action(command: Command) -> str:
    return wire_name(command)[0].lower() + wire_name(command)[1:]


# ---- answers ----


def reply(
    session: NativeSession,
    request: Message,
    command: Command,
    *,
    queue: str | None = None,
    payload: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> None:
    """The answer to a request, compressed when that was agreed and is worth it; never larger than clients read."""
    body = encode_body(
        command, request.id, queue=queue, payload=payload, headers=headers, text_layout=session.text_layout
    )
    if session.compression and len(body) >= session.compression_threshold:
        packed = compression.compress(session.compression, body)
        if packed is not None and len(packed) <= session.frame_max:
            session.write(frame_of(packed, COMPRESSION_BY_NAME[session.compression]))
            return
    if len(body) > session.frame_max:
        text = f"The answer has {len(body)} bytes, more than the {session.frame_max} that clients read."
        error(session, request, ErrorCode.SERVER_ERROR, text)
        return
    session.write(frame_of(body))


def error(session: NativeSession, request: Message, code: str, text: str) -> None:
    session.refuse_frame(request.id, str(code).encode(), text.encode(errors="replace")[:65_535])


def not_authorized(session: NativeSession, request_id: bytes, operation: QueueOperation, queue: str) -> None:
    """All that it tells, the peer has said itself: nobody has looked whether there is such a queue."""
    _log_refusal(session, operation, queue)
    text = f"Access denied. User '{session.user}' lacks the permission {wire_name(operation)} for queue '{queue}'."
    session.refuse_frame(request_id, ErrorCode.NOT_AUTHORIZED.encode(), text.encode(errors="replace"))


def _log_refusal(session: NativeSession, operation: QueueOperation, queue: str) -> None:
    log_refusal(session.peer, session.user, wire_name(operation), queue, session.refusals)


def refuse_framing(session: NativeSession, problem: Exception, request_id: bytes = b"") -> None:
    """Bytes that are no frame: say so, and close, because nobody knows where the next one begins."""
    logger.info("%s: refused: %s", session.peer, problem)
    session.refuse_frame(request_id or FRESH_ID, ErrorCode.INVALID_MESSAGE.encode(), str(problem).encode()[:65_535])
    session.finish()


def failed(session: NativeSession, request: Message, problem: BaseException) -> None:
    """A handler or the disk failed: the peer is told, and goes on."""
    if isinstance(problem, LimitExceeded | StorageError):
        logger.error("%s: %s", session.peer, problem)
        error(session, request, ErrorCode.SERVER_ERROR, str(problem))
    else:
        logger.error("%s: a command failed by an error of ours", session.peer, exc_info=problem)
        error(session, request, ErrorCode.SERVER_ERROR, "The broker could not do this; its log says why.")


# ---- the connection ----


def opened(session: NativeSession) -> None:
    door = session.door
    if not door.admits(session.peer_address):
        logger.info("%s: its address connects too often, closed", session.peer)
        session.refuse_frame(FRESH_ID, ErrorCode.RATE_LIMITED.encode(), b"Too many connections from this address.")
        session.finish()
        return
    await_connect(session)


def await_connect(session: NativeSession) -> None:
    """From now on the peer has a while to log in."""
    door = session.door
    session.deadline_ms = door.now_ms() + door.config.handshake_timeout_s * 1000
    session.at_deadline = _too_slow


def _too_slow(session: NativeSession) -> None:
    logger.info("%s: did not log in within %d s, closed", session.peer, session.door.config.handshake_timeout_s)
    error_text = b"No successful Connect in time."
    session.refuse_frame(FRESH_ID, ErrorCode.AUTH_REQUIRED.encode(), error_text)
    session.finish()


def silent(session: NativeSession) -> None:
    logger.info("%s: silent for %d s, closed", session.peer, session.door.config.keepalive_timeout_s)
    session.finish()


def say_goodbye(session: NativeSession) -> None:
    if session.state == "open":
        session.write(
            encode_frame(
                Command.DISCONNECT,
                FRESH_ID,
                headers={Header.REASON.value: REASON_SERVER_SHUTDOWN},
                text_layout=session.text_layout,
            )
        )
    else:
        session.finish()


def connect(session: NativeSession, request: Message) -> None:
    user, password = request.headers.get(Header.AUTH_USERNAME), request.headers.get(Header.AUTH_PASSWORD)
    authenticator = session.door.authenticator
    if not needs_login(session.door.broker):
        # Whatever name was given is not that of a user: nobody has looked at a password.  But guest's is no secret.
        guest = user == GUEST and authenticator.check_cached(GUEST, password or "", session.is_loopback)
        _connected(session, request, GUEST if guest and guest.name == "OK" else "", session.door.broker.everything)
        return
    if password is None:
        error(session, request, ErrorCode.AUTH_REQUIRED, "Username and password are required.")
        return
    if user is None:
        user = session.door.config.superuser_name
    verdict = authenticator.check_cached(user, password, session.is_loopback)
    if verdict is not None:
        _judged(session, request, user, verdict)
        return

    def done(verdict: Any, problem: BaseException | None) -> None:
        if problem is not None:
            failed(session, request, problem)
        else:
            _judged(session, request, user, verdict)

    work = partial(authenticator.check, user, password, session.is_loopback)
    in_helper(session, work, done, submit=session.door.helpers.submit_hash)


def _judged(session: NativeSession, request: Message, user: str, verdict: Any) -> None:
    if verdict.name == "OK":
        broker = session.door.broker
        access = broker.everything if user == GUEST else broker.accesses.of(user)
        if access is not None:
            _connected(session, request, user, access)
            return
    if verdict.name == "LOOPBACK_ONLY":
        logger.warning("%s: user %r may only come from this machine", session.peer, user)
    else:
        logger.warning("%s: login refused for user %r", session.peer, user)
    # Held back, so that guessing gets slow; the peer may try again afterwards.
    before, session.state = session.state, "refused"
    session.deadline_ms = session.door.now_ms() + session.door.config.login_failure_delay_s * 1000 + 1
    session.set_busy()

    def answer(session: NativeSession) -> None:
        session.state = before  # of a second Connect: who they were, they still are
        error(session, request, ErrorCode.AUTH_FAILED, "Invalid username or password.")
        if before == FIRST_STATE:
            await_connect(session)
        session.set_idle()
        session.resume()

    session.at_deadline = answer


def _connected(session: NativeSession, request: Message, user: str, access: Any) -> None:
    door = session.door
    session.user, session.state, session.deadline_ms = user, "open", 0
    session.client_version = _shown(request.headers.get(Header.CLIENT_VERSION, "")[:64])
    session.compression = compression.negotiate(request.headers.get(Header.SUPPORTED_COMPRESSION), door.compressions)
    session.flags_max = 3 if session.compression == "zstd" else 2
    wanted = {name.strip().lower() for name in request.headers.get(Header.FEATURES, "").split(",")}
    session.features = frozenset(wanted.intersection(FEATURE_NAMES))
    session.dedup = FEATURE_DEDUP in session.features
    headers = {Header.CONNECTION_ID.value: session.connection_id, Header.SERVER_VERSION.value: door.server_version}
    if session.compression:
        headers[Header.NEGOTIATED_COMPRESSION.value] = session.compression
    if session.features:
        headers[Header.FEATURES.value] = ",".join(sorted(session.features))
    # Never compressed: some peers read it before they have set their side up.
    session.write(encode_frame(Command.CONNECT_ACK, request.id, headers=headers, text_layout=session.text_layout))
    session.forget_rights()
    _use_access(session, access)


def _shown(text: str) -> str:
    """What a peer said of itself, for people: bytes that are no UTF-8 could not be shown anywhere."""
    return text.encode(errors="replace").decode()


def disconnect(session: NativeSession, request: Message) -> None:
    session.leave()


def check_access(session: NativeSession) -> bool:
    """At each command and twice a second: is this user still allowed to be here, and to do what it does?

    False: no, and the connection is about to end."""
    if session.ending:
        return False
    access = access_now(session.door.broker, session.user, session.access)
    if access is Ended.LOGIN_NEEDED:
        logger.warning("%s: came when nobody had to log in, closed", session.peer)
        return _send_off(session, ErrorCode.AUTH_REQUIRED, b"Username and password are required.")
    if access is Ended.DELETED:
        logger.warning("%s: user %r was deleted, closed", session.peer, session.user)
        return _send_off(session, ErrorCode.AUTH_FAILED, b"This user was deleted.")
    if access is not session.access:
        _use_access(session, access)
    return True


def _send_off(session: NativeSession, code: ErrorCode, text: bytes) -> bool:
    session.refuse_frame(FRESH_ID, code.encode(), text)
    session.finish()
    return False


def _use_access(session: NativeSession, access: Any) -> None:
    """These are the rights now; subscriptions that they do not cover end."""
    session.access = access
    for name in list(session.subscriptions):
        queue = name.decode()
        if not access.may(QueueOperation.SUBSCRIBE, queue):
            session.remove_subscription(name)
            _log_refusal(session, QueueOperation.SUBSCRIBE, queue)
            text = f"Access denied: the subscription of user '{session.user}' to queue '{queue}' has ended."
            session.refuse_frame(FRESH_ID, ErrorCode.NOT_AUTHORIZED.encode(), text.encode())


# ---- queues ----


def may_publish(session: NativeSession, request_id: bytes, queue: str) -> bool:
    """Ask again, because rights have changed since the last time; a refusal is answered here."""
    if not check_access(session):
        return False
    if session.access.may(QueueOperation.PUBLISH, queue):
        return True
    not_authorized(session, request_id, QueueOperation.PUBLISH, queue)
    return False


def first_publish(session: NativeSession, body: bytes) -> None:
    """A Publish into a queue that this connection has not used yet."""
    request = decode_body(body)
    if not request.queue:
        error(session, request, ErrorCode.INVALID_QUEUE, "Queue name is required for publish.")
        return
    if not may_publish(session, request.id, request.queue):
        return

    def opened_queue(queue: Any) -> None:
        session.add_publisher(queue, request.queue.encode())  # type: ignore[union-attr]
        session.publish_body(body)

    _with_queue(session, request, opened_queue)


def _with_queue(session: NativeSession, request: Message, then: Callable[[Any], None]) -> None:
    """Call ``then(queue)``, after making the queue if it does not exist and that is allowed."""
    door, name = session.door, request.queue or ""

    def refused(problem: Exception) -> None:
        if isinstance(problem, StreamNotFound):
            error(session, request, ErrorCode.QUEUE_NOT_FOUND, f"Queue '{name}' does not exist.")
        else:
            failed(session, request, problem)

    with_queue(
        door.broker,
        DEFAULT_VHOST,
        name,
        may_create=door.auto_create
        and (not door.auto_create_needs_permission or session.access.may(QueueOperation.CREATE_QUEUE, name)),
        then=then,
        failed=refused,
        in_helper=partial(in_helper, session),
    )


def subscribe(session: NativeSession, request: Message) -> None:
    name = (request.queue or "").encode()
    try:
        prefetch = int(request.headers.get(PREFETCH_HEADER, "0"))
        if not 0 <= prefetch <= session.door.queues.defaults.prefetch_max:
            raise ValueError(prefetch)
    except ValueError:
        most = session.door.queues.defaults.prefetch_max
        error(session, request, ErrorCode.INVALID_MESSAGE, f"Header prefetch must be a number from 1 to {most}.")
        return
    if len(session.subscriptions) >= SUBSCRIPTIONS_MAX and name not in session.subscriptions:
        error(session, request, ErrorCode.SERVER_ERROR, f"At most {SUBSCRIPTIONS_MAX} subscriptions each.")
        return

    def opened_queue(queue: Any) -> None:
        # The acknowledgement goes first: clients see nothing else while a handler runs.
        headers = {Header.QUEUE_NAME.value: request.queue or "", Header.SUBSCRIPTION_ID.value: _text(request.id)}
        reply(session, request, Command.SUBSCRIBE_ACK, queue=request.queue, headers=headers)
        known = session.subscriptions.get(name)
        if known is None:
            known = session.add_subscription(name, prefetch)
            session.attach(known, queue)
        elif known.dormant:
            session.attach(known, queue)

    _with_queue(session, request, opened_queue)


def _text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def unsubscribe(session: NativeSession, request: Message) -> None:
    session.remove_subscription((request.queue or "").encode())
    headers = {Header.QUEUE_NAME.value: request.queue or ""}
    reply(session, request, Command.UNSUBSCRIBE_ACK, queue=request.queue, headers=headers)


def wake_dormant(session: NativeSession) -> None:
    """Subscriptions whose queue was deleted attach to one of the same name."""
    looks = DORMANT_LOOKS_PER_TICK
    # Whoever was looked at goes to the end, so that all have their turn.
    for name, subscription in [item for item in session.subscriptions.items() if item[1].dormant]:
        if looks == 0:
            session.dormant = True
            break
        looks -= 1
        session.subscriptions[name] = session.subscriptions.pop(name)
        try:
            queue = session.door.queues.find(DEFAULT_VHOST, name.decode())
        except (StreamNotFound, StorageError):
            session.dormant = True
            continue
        session.attach(subscription, queue)


def create_queue(session: NativeSession, request: Message) -> None:
    name = request.queue or ""
    try:
        options = queue_options(request.headers, request.payload, session.door.option_defaults)
    except BadOption as problem:
        error(session, request, problem.error_code, str(problem))
        return
    dead_letters = options.dead_letter_name(name)
    if options.dead_letter and dead_letters == name:
        code = ErrorCode.INVALID_PAYLOAD if request.payload else ErrorCode.INVALID_MESSAGE
        error(session, request, code, "A queue cannot be its own dead-letter queue.")
        return
    if options.dead_letter and not session.access.may(QueueOperation.PUBLISH, dead_letters):
        # Or its dead letters would go where its maker may not publish.
        not_authorized(session, request.id, QueueOperation.PUBLISH, dead_letters)
        return
    if options.ack_timeout_ms is not None and options.ack_timeout_ms < ACK_TIMEOUT_MS_MIN:
        code = ErrorCode.INVALID_PAYLOAD if request.payload else ErrorCode.INVALID_MESSAGE
        error(session, request, code, f"ackTimeoutMs: needed {ACK_TIMEOUT_MS_MIN} or more.")
        return
    stored = options.stored()
    if request.payload in (None, b"null"):
        # What was not said is not stored, so it follows the configuration; a payload says everything.
        stored = {field: value for field, value in stored.items() if _is_said(field, request.headers)}

    def done(_: Any, problem: BaseException | None) -> None:
        if isinstance(problem, StreamExists):
            if session.text_layout:
                error(session, request, ErrorCode.QUEUE_EXISTS, f"Queue '{name}' already exists.")
                return
        elif problem is not None:
            failed(session, request, problem)
            return
        reply(session, request, Command.CREATE_QUEUE, queue=name)

    in_helper(session, partial(session.door.catalog.create_queue, DEFAULT_VHOST, name, stored), done)


def _is_said(field: str, headers: dict[str, str]) -> bool:
    names, _ = READERS[field]
    return any(name in headers for name in names)


def delete_queue(session: NativeSession, request: Message) -> None:
    name, catalog = request.queue or "", session.door.catalog

    def done(gone: Any, problem: BaseException | None) -> None:
        if isinstance(problem, StreamNotFound):
            if session.text_layout:
                error(session, request, ErrorCode.QUEUE_NOT_FOUND, f"Queue '{name}' does not exist.")
                return
        elif problem is not None:
            failed(session, request, problem)
            return
        else:
            catalog.deleted(gone)
        reply(session, request, Command.DELETE_QUEUE, queue=name)

    def work() -> Any:
        record = catalog.metadata.find_stream(DEFAULT_VHOST, name)
        if record is None or record.queue is None:  # a stream that is no queue is none of this door's
            raise StreamNotFound(name)
        return catalog.delete(DEFAULT_VHOST, name)

    in_helper(session, work, done, left=catalog.deleted)


def info(session: NativeSession, request: Message) -> None:
    door, name = session.door, request.queue or ""
    try:
        record = door.queues.metadata.find_stream(DEFAULT_VHOST, name)
        if record is None or record.queue is None:
            raise StreamNotFound(name)
        queue = door.queues.find(DEFAULT_VHOST, name)
    except StreamNotFound:
        if session.text_layout:
            error(session, request, ErrorCode.QUEUE_NOT_FOUND, f"Queue '{name}' does not exist.")
        else:
            reply(session, request, Command.QUEUE_INFO, queue=name)  # an Error would break .NET declarations
        return
    waiting, in_flight, consumers = queue.counts()
    queue.release(None)
    payload = queue_info(
        name,
        options_of(record.queue, door.option_defaults),
        record.created_ms,
        message_count=waiting,
        subscriber_count=consumers,
        in_flight_count=in_flight,
        text_layout=session.text_layout,
    )
    reply(session, request, Command.QUEUE_INFO, queue=name, payload=payload)


def list_queues(session: NativeSession, request: Message) -> None:
    metadata, access = session.door.queues.metadata, session.access

    def done(names: Any, problem: BaseException | None) -> None:
        if problem is not None:
            failed(session, request, problem)
            return
        seen = sorted(name for name in names if access.sees(name))
        reply(session, request, Command.LIST_QUEUES, payload=msgspec.json.encode(seen))

    # Thousands of rows: not in the loop.
    in_helper(session, lambda: [record.name for record in metadata.queues(DEFAULT_VHOST)], done)


def purge_queue(session: NativeSession, request: Message) -> None:
    name = request.queue or ""
    try:
        queue = session.door.queues.find(DEFAULT_VHOST, name)
    except StreamNotFound:
        error(session, request, ErrorCode.QUEUE_NOT_FOUND, f"Queue '{name}' does not exist.")
        return
    count = queue.purge()
    queue.release(None)
    reply(session, request, Command.PURGE_QUEUE, queue=name, payload=msgspec.json.encode({"purged": count}))


def make_dead_letter_queue(session: NativeSession, name: str, source: QueuePolicy, publish: bytes) -> None:
    """A message is to be redirected to a queue that does not exist yet; afterwards it is published again."""
    catalog = session.door.catalog

    def done(_: Any, problem: BaseException | None) -> None:
        if problem is not None:
            failed(session, decode_body(publish), problem)
        else:
            session.publish_body(publish)

    in_helper(session, partial(catalog.create_dead_letter_queue, DEFAULT_VHOST, name, source), done)


# ---- users ----

ADMIN = {
    Command.ADMIN_CREATE_USER: "create_user",
    Command.ADMIN_DELETE_USER: "delete_user",
    Command.ADMIN_CHANGE_PASSWORD: "change_password",
    Command.ADMIN_GRANT_PERMISSION: "grant",
    Command.ADMIN_REVOKE_PERMISSION: "revoke",
    Command.ADMIN_LIST_USERS: "list_users",
    Command.ADMIN_GET_USER_PERMISSIONS: "user_permissions",
}


def admin(session: NativeSession, request: Message) -> None:
    """Commands 50 to 56: fields in a JSON object or, as some documents have it, in headers."""
    broker = session.door.broker
    fields: Any = None
    if request.payload:
        try:
            if not is_json(request.payload):  # bounds the depth before a recursive parser sees it
                raise msgspec.DecodeError("this is not JSON")
            fields = msgspec.json.decode(request.payload)
        except msgspec.DecodeError as problem:
            error(session, request, ErrorCode.INVALID_PAYLOAD, f"Payload must be a JSON object: {problem}.")
            return
    elif request.headers:
        fields = dict(request.headers)
        if "operations" in fields:
            fields["operations"] = [name.strip() for name in fields["operations"].split(",")]
    work = getattr(broker.accounts, ADMIN[Command(request.type)])

    def done(answer: Any, problem: BaseException | None) -> None:
        if isinstance(problem, AccountError):
            error(session, request, problem.code, str(problem))
        elif problem is not None:
            failed(session, request, problem)
        else:
            if request.type not in (Command.ADMIN_LIST_USERS, Command.ADMIN_GET_USER_PERMISSIONS):
                broker.tell_access_changed()
            reply(session, request, Command(request.type), payload=msgspec.json.encode(answer))

    in_helper(
        session,
        partial(work, broker.queues.metadata, session.access, fields),
        done,
        submit=session.door.helpers.submit_hash,
    )


# ---- the state machine ----

FIRST_STATE = "connecting"
Answer = Callable[[Any, Message], None]
BEFORE: dict[int, Answer] = {Command.CONNECT: connect, Command.DISCONNECT: disconnect}
STATES: dict[str, dict[int, Answer]] = {
    "connecting": BEFORE,
    "refused": {},  # an answer is held back; nothing is read meanwhile
    "open": {
        **BEFORE,
        Command.SUBSCRIBE: subscribe,
        Command.UNSUBSCRIBE: unsubscribe,
        Command.CREATE_QUEUE: create_queue,
        Command.DELETE_QUEUE: delete_queue,
        Command.QUEUE_INFO: info,
        Command.LIST_QUEUES: list_queues,
        Command.PURGE_QUEUE: purge_queue,
        **dict.fromkeys(ADMIN, admin),
    },
    "leaving": {},  # Disconnect has come; what was published is still confirmed
    "closed": {},
}
