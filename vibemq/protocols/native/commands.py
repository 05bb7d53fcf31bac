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

from vibemq.access.permissions import EVERYTHING, Access, Operation
from vibemq.access.users import Verdict
from vibemq.broker.admission import (
    SUBSCRIPTIONS_MAX,
    Ended,
    access_of,
    check_access,
    check_password,
    log_closing,
    may,
    may_make,
    needs_login,
    refusal_now,
    user_without_login,
    with_queue,
)
from vibemq.broker.arguments import BadArgument
from vibemq.broker.helping import in_helper
from vibemq.broker.options import ACK_TIMEOUT_MS_MIN, letters_named
from vibemq.errors import AccountError, StorageError, StreamExists, StreamIsNoQueue, StreamNotFound
from vibemq.protocols.native import accounts, compression
from vibemq.protocols.native.codec import Message, decode_body, encode_body, encode_frame
from vibemq.protocols.native.options import (
    READERS,
    BadOption,
    altered_options,
    options_of,
    queue_info,
    queue_options,
)
from vibemq.protocols.native.replies import FRESH_ID, error, failed, not_authorized, reply
from vibemq.protocols.native.spec import (
    COMMAND_BY_TYPE,
    DEDUP_CLIENT_BYTES,
    FEATURE_DEDUP,
    FEATURE_NAMES,
    FORM_STORED,
    REASON_SERVER_SHUTDOWN,
    STORED_EXTRA_BYTES,
    Command,
    ErrorCode,
    Header,
    wire_name,
)
from vibemq.storage.vhosts import DEFAULT_VHOST

if TYPE_CHECKING:
    from vibemq.protocols.native.session import NativeSession

logger = logging.getLogger(__name__)

PREFETCH_HEADER = "prefetch"
CREATE_HEADER = Header.CREATE.value
DORMANT_LOOKS_PER_TICK = 64  # lookups of some microseconds each, twice a second


def handle(session: NativeSession, body: bytes) -> None:
    """One frame that is not a data frame of an open session."""
    request = decode_body(body)
    rule = COMMAND_BY_TYPE.get(request.type)  # type: ignore[call-overload]
    if session.state == "open" and not check_access(session.client):
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
        if rule.operation is not None and _lacks(session, request, rule.operation, request.queue):
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


# ---- the connection ----


def opened(session: NativeSession) -> None:
    door = session.door
    if not door.admits(session.peer_address):
        log_closing(session, "rate", "its address connects too often, closed")
        session.refuse_frame(FRESH_ID, ErrorCode.RATE_LIMITED.encode(), b"Too many connections from this address.")
        session.finish()
        return
    await_connect(session)


def await_connect(session: NativeSession) -> None:
    """From now on the peer has a while to log in."""
    door = session.door
    session.set_deadline(door.now_ms() + door.config.handshake_timeout_s * 1000, _too_slow)


def _too_slow(session: NativeSession) -> None:
    log_closing(session, "slow", "did not log in within %d s, closed", session.door.config.handshake_timeout_s)
    error_text = b"No successful Connect in time."
    session.refuse_frame(FRESH_ID, ErrorCode.AUTH_REQUIRED.encode(), error_text)
    session.finish()


def silent(session: NativeSession) -> None:
    log_closing(session, "silent", "silent for %d s, closed", session.door.config.keepalive_timeout_s)
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
    broker = session.door.broker
    if not needs_login(broker):
        _connected(session, request, user_without_login(broker, user, password, session.is_loopback), EVERYTHING)
        return
    if password is None:
        error(session, request, ErrorCode.AUTH_REQUIRED, "Username and password are required.")
        return
    if user is None:
        user = session.door.config.superuser_name

    def done(verdict: Any, problem: BaseException | None) -> None:
        if problem is not None:
            failed(session, request, problem)
        else:
            _judged(session, request, user, verdict)

    check_password(session, user, password, done)


def _judged(session: NativeSession, request: Message, user: str, verdict: Verdict) -> None:
    access = access_of(session.door.broker, session.peer, user, verdict)
    if access is not None:
        _connected(session, request, user, access)
        return
    before, session.state = session.state, "refused"

    def answer(session: NativeSession) -> None:
        session.state = before  # of a second Connect: who they were, they still are
        error(session, request, ErrorCode.AUTH_FAILED, "Invalid username or password.")
        if before == FIRST_STATE:
            await_connect(session)
        session.set_idle()
        session.read_on()

    session.wait_until(session.door.now_ms() + session.door.config.login_failure_delay_s * 1000 + 1, answer)


def _connected(session: NativeSession, request: Message, user: str, access: Access) -> None:
    door = session.door
    session.client.user, session.state, session.deadline_ms = user, "open", 0
    session.client_version = _shown(request.headers.get(Header.CLIENT_VERSION, "")[:64])
    session.compression = compression.negotiate(request.headers.get(Header.SUPPORTED_COMPRESSION), door.compressions)
    session.flags_max = 3 if session.compression == "zstd" else 2
    wanted = {name.strip().lower() for name in request.headers.get(Header.FEATURES, "").split(",")}
    session.features = frozenset(wanted.intersection(FEATURE_NAMES))
    session.dedup = FEATURE_DEDUP in session.features
    client = request.headers.get(Header.CLIENT, "").encode(errors="replace")
    session.id_digits = client if len(client) == DEDUP_CLIENT_BYTES else None
    session.trust(session.frame_max + (STORED_EXTRA_BYTES if FORM_STORED in session.features else 0))
    headers = {Header.CONNECTION_ID.value: session.connection_id, Header.SERVER_VERSION.value: door.server_version}
    if session.compression:
        headers[Header.NEGOTIATED_COMPRESSION.value] = session.compression
    if session.features:
        headers[Header.FEATURES.value] = ",".join(sorted(session.features))
    # Never compressed: some peers read it before they have set their side up.
    session.write(encode_frame(Command.CONNECT_ACK, request.id, headers=headers, text_layout=session.text_layout))
    session.client.access = access
    rights_changed(session)


def _shown(text: str) -> str:
    """What a peer said of itself, for people: bytes that are no UTF-8 could not be shown anywhere."""
    return text.encode(errors="replace").decode()


def disconnect(session: NativeSession, request: Message) -> None:
    session.leave()


def send_off(session: NativeSession, why: Ended) -> None:
    if why is Ended.DELETED:
        session.refuse_frame(FRESH_ID, ErrorCode.AUTH_FAILED.encode(), b"This user was deleted.")
    else:
        session.refuse_frame(FRESH_ID, ErrorCode.AUTH_REQUIRED.encode(), b"Username and password are required.")
    session.finish()


def rights_changed(session: NativeSession) -> None:
    """Subscriptions that they do not cover end, and each queue is asked for again."""
    session.forget_rights()
    for name in list(session.subscriptions):
        queue = name.decode()
        if not may(session.client, Operation.Subscribe, queue):
            session.remove_subscription(name)
            text = f"Access denied: the subscription of user '{session.client.user}' to queue '{queue}' has ended."
            session.refuse_frame(FRESH_ID, ErrorCode.NOT_AUTHORIZED.encode(), text.encode())


# ---- queues ----


def _lacks(session: NativeSession, request: Message, operation: int, queue: str) -> bool:
    """Then that has been answered."""
    allowed = may(session.client, Operation(operation), queue)
    if not allowed:
        not_authorized(session, request.id, Operation(operation), queue)
    return not allowed


def may_publish(session: NativeSession, request_id: bytes, queue: str) -> bool:
    """Ask again: rights have changed since the last time, or an alarm is in effect; a refusal is answered here."""
    if not check_access(session.client):
        return False
    why = refusal_now(session.door.broker, session.peer)
    if why:
        text = f"The message is not stored: {why}."
        session.refuse_frame(request_id, ErrorCode.SERVER_ERROR.encode(), text.encode())
        return False
    if may(session.client, Operation.Publish, queue):
        return True
    not_authorized(session, request_id, Operation.Publish, queue)
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


def publish_stored(session: NativeSession, request: Message) -> None:
    """A message as another queue had it: nothing is looked at but whether there is room for it."""
    name = (request.queue or "").encode()
    body = encode_body(Command.PUBLISH_STORED, request.id, queue=request.queue, payload=request.payload)

    def opened_queue(queue: Any) -> None:
        publisher = session.publishers.get(name)
        if publisher is None or publisher.queue is not queue:
            session.add_publisher(queue, name)  # type: ignore[union-attr]
            publisher = session.publishers[name]
        publisher.publish_stored(body)

    if may_publish(session, request.id, request.queue or ""):
        _with_queue(session, request, opened_queue)


def _with_queue(session: NativeSession, request: Message, then: Callable[[Any], None], *, wanted: bool = True) -> None:
    """Call ``then(queue)``, after making the queue if it does not exist, and that is ``wanted`` and allowed.

    By the protocol using a queue makes it, also of a stream.
    """
    name = request.queue or ""

    def refused(problem: Exception) -> None:
        if isinstance(problem, StreamIsNoQueue):
            error(session, request, ErrorCode.NOT_A_QUEUE, f"'{name}' is a stream, not a queue.")
        elif isinstance(problem, StreamNotFound):
            error(session, request, ErrorCode.QUEUE_NOT_FOUND, f"Queue '{name}' does not exist.")
        else:
            failed(session, request, problem)

    with_queue(
        session.door.broker,
        DEFAULT_VHOST,
        name,
        may_convert=True,
        may_create=wanted and may_make(session.client, name),
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
    create = request.headers.get(CREATE_HEADER, "true").lower()
    if create not in ("true", "false"):
        error(session, request, ErrorCode.INVALID_MESSAGE, f"Header {CREATE_HEADER} must be true or false.")
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
            stored = FORM_STORED in session.features and request.headers.get(Header.FORM) == FORM_STORED
            known = session.add_subscription(name, prefetch, stored)
            session.consume(known, queue)
        elif known.dormant:
            session.consume(known, queue)

    _with_queue(session, request, opened_queue, wanted=create == "true")


def _text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def unsubscribe(session: NativeSession, request: Message) -> None:
    session.remove_subscription((request.queue or "").encode())
    headers = {Header.QUEUE_NAME.value: request.queue or ""}
    reply(session, request, Command.UNSUBSCRIBE_ACK, queue=request.queue, headers=headers)


def wake_dormant(session: NativeSession) -> None:
    """Subscriptions whose queue was deleted go on with one of the same name."""
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
        session.consume(subscription, queue)


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
    if options.dead_letter and _lacks(session, request, Operation.Publish, dead_letters):
        return  # or its dead letters would go where its maker may not publish
    if options.ack_timeout_ms is not None and options.ack_timeout_ms < ACK_TIMEOUT_MS_MIN:
        code = ErrorCode.INVALID_PAYLOAD if request.payload else ErrorCode.INVALID_MESSAGE
        error(session, request, code, f"ackTimeoutMs: needed {ACK_TIMEOUT_MS_MIN} or more.")
        return
    stored = options.stored()
    if request.payload in (None, b"null"):
        # What was not said is not stored, so it follows the configuration; a payload says everything but the limit.
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


def alter_queue(session: NativeSession, request: Message) -> None:
    """Who may delete a queue and make it anew may change it as well: a smaller limit or time drops messages."""
    name, broker = request.queue or "", session.door.broker
    if _lacks(session, request, Operation.DeleteQueue, name):
        return
    try:
        changes = altered_options(request.payload)
    except BadOption as problem:
        error(session, request, problem.error_code, str(problem))
        return
    letters = letters_named(name, changes)
    if letters is not None and _lacks(session, request, Operation.Publish, letters):
        return

    def done(_: Any, problem: BaseException | None) -> None:
        if isinstance(problem, StreamNotFound):
            error(session, request, ErrorCode.QUEUE_NOT_FOUND, f"Queue '{name}' does not exist.")
        elif isinstance(problem, BadArgument):
            error(session, request, ErrorCode.INVALID_PAYLOAD, f"{problem}.")
        elif problem is not None:
            failed(session, request, problem)
        else:
            broker.tell_access_changed()
            logger.info("%s: user %r changes queue %s: %s", session.peer, session.client.user, name, changes)
            reply(session, request, Command.ALTER_QUEUE, queue=name)

    in_helper(session, partial(session.door.catalog.alter_queue, DEFAULT_VHOST, name, changes), done)


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

    in_helper(session, partial(catalog.delete_queue, DEFAULT_VHOST, name), done, left=catalog.deleted)


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
    dropped, refused = queue.losses()
    queue.close_if_unused()
    payload = queue_info(
        name,
        options_of(door.queues.metadata.effective_options(record), door.option_defaults),
        record.created_ms,
        message_count=waiting,
        subscriber_count=consumers,
        in_flight_count=in_flight,
        dropped_count=dropped,
        refused_count=refused,
        prefetch_max=door.queues.defaults.prefetch_max,
        text_layout=session.text_layout,
    )
    reply(session, request, Command.QUEUE_INFO, queue=name, payload=payload)


def list_queues(session: NativeSession, request: Message) -> None:
    metadata, access = session.door.queues.metadata, session.client.access

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
    queue.close_if_unused()
    reply(session, request, Command.PURGE_QUEUE, queue=name, payload=msgspec.json.encode({"purged": count}))


# ---- users ----


def manage_users(session: NativeSession, request: Message) -> None:
    broker, command = session.door.broker, Command(request.type)

    def done(answer: Any, problem: BaseException | None) -> None:
        if isinstance(problem, AccountError):
            error(session, request, problem.code, str(problem))
        elif problem is not None:
            failed(session, request, problem)
        else:
            if command not in (Command.ADMIN_LIST_USERS, Command.ADMIN_GET_USER_PERMISSIONS):
                broker.tell_access_changed()
            reply(session, request, command, payload=msgspec.json.encode(answer))

    try:
        fields = accounts.fields_of(request)
    except AccountError as problem:
        done(None, problem)
        return
    work = partial(accounts.COMMANDS[command], broker.queues.metadata, session.client.access, fields)
    in_helper(session, work, done, submit=broker.helpers.submit_hash)


# ---- the state machine ----

FIRST_STATE = "connecting"
Answer = Callable[[Any, Message], None]
BEFORE: dict[int, Answer] = {Command.CONNECT: connect, Command.DISCONNECT: disconnect}
STATES: dict[str, dict[int, Answer]] = {
    "connecting": BEFORE,
    "refused": {},  # an answer is held back; nothing is read meanwhile
    "open": {
        **BEFORE,
        Command.PUBLISH_STORED: publish_stored,
        Command.SUBSCRIBE: subscribe,
        Command.UNSUBSCRIBE: unsubscribe,
        Command.CREATE_QUEUE: create_queue,
        Command.DELETE_QUEUE: delete_queue,
        Command.QUEUE_INFO: info,
        Command.LIST_QUEUES: list_queues,
        Command.PURGE_QUEUE: purge_queue,
        Command.ALTER_QUEUE: alter_queue,
        **dict.fromkeys(accounts.COMMANDS, manage_users),
    },
    "leaving": {},  # Disconnect has come; what was published is still confirmed
    "closed": {},
}
