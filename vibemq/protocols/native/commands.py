# SPDX-License-Identifier: Apache-2.0
"""Control commands of the native door: plain Python, once per connection or command.

STATES is the whole state machine: for each state the commands it allows and who answers them.  What is not in the table
is refused.  Whoever answers raises what is wrong, and ``failed`` words it.  A command that must touch the disk or hash
a password runs in a helper thread; its session is busy until then, so replies leave in the order of requests.  Texts
and codes: README.md beside this file.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

import vibemq
from vibemq.access.permissions import EVERYTHING, Access, Operation
from vibemq.access.users import Verdict
from vibemq.broker import admission
from vibemq.broker.admission import Ended, check_access, log_closing, may, needs_login
from vibemq.broker.arguments import BadArgument
from vibemq.broker.audit import author
from vibemq.broker.helping import in_helper
from vibemq.broker.options import ACK_TIMEOUT_MS_MIN, letters_named, subscriber_of
from vibemq.errors import Refused, StorageError, StreamExists, StreamIsNoQueue, StreamNotFound
from vibemq.protocols.native import accounts, compression, spec
from vibemq.protocols.native.codec import Message, decode_body, encode_body, encode_frame, frame_of
from vibemq.protocols.native.options import READERS, altered_options, options_of, queue_info, queue_options
from vibemq.protocols.native.spec import FORM_STORED, Command, CommandRule, ErrorCode, Header
from vibemq.storage.vhosts import DEFAULT_VHOST

if TYPE_CHECKING:
    from vibemq.protocols.native.session import NativeSession

logger = logging.getLogger(__name__)

FRESH_ID = b"server"  # of a frame that answers none
PREFETCH_HEADER = "prefetch"
DORMANT_LOOKS_PER_TICK = 64  # lookups of some microseconds each, twice a second


def handle(session: NativeSession, body: bytes) -> None:
    """One frame that is not a data frame of an open session."""
    request = decode_body(body)
    if session.state == "open" and not check_access(session.client):
        return
    rule = spec.COMMAND_BY_TYPE.get(request.type)
    answer = STATES[session.state].get(request.type)
    try:
        if answer is not None and rule is not None and _is_known(session, rule):
            _check_queue(session, request, rule)
            answer(session, request)
        elif session.state == "connecting":
            raise Refused(ErrorCode.NOT_AUTHENTICATED, "Please send a Connect command first.")
        elif session.state == "open":
            name = str(request.type) if rule is None else rule.name
            raise Refused(ErrorCode.UNKNOWN_COMMAND, f"Unknown command type: {name}")
    except Exception as problem:  # one bad command is answered; it does not cost the connection
        failed(session, request, problem)


def _is_known(session: NativeSession, rule: CommandRule) -> bool:
    """An addition to who has asked for it; users are no matter of the protocol while nobody has to log in."""
    if rule.feature is not None and rule.feature not in session.features:
        return False
    return not rule.admin or needs_login(session.door.broker)


def _check_queue(session: NativeSession, request: Message, rule: CommandRule) -> None:
    if not rule.needs_queue:
        return
    if not request.queue:
        action = rule.name[0].lower() + rule.name[1:]
        raise Refused(ErrorCode.INVALID_QUEUE, f"Queue name is required for {action}.")
    if rule.operation is not None:
        require(session, Operation(rule.operation), request.queue)


# ---- answers ----


def reply(session: NativeSession, request: Message, **fields: Any) -> None:
    """The answer to a request, compressed when that was agreed and is worth it; never larger than clients read.

    Its number and its queue follow from the request, other fields are those of encode_body."""
    rule = spec.COMMAND_BY_TYPE[request.type]
    queue = request.queue if rule.needs_queue else None
    body = encode_body(rule.reply or rule.command, request.id, queue=queue, text_layout=session.text_layout, **fields)
    if session.compression and len(body) >= session.compression_threshold:
        packed = compression.compress(session.compression, body)
        if packed is not None and len(packed) <= session.frame_max:
            session.write(frame_of(packed, spec.COMPRESSION_BY_NAME[session.compression]))
            return
    if len(body) > session.frame_max:
        text = f"The answer has {len(body)} bytes, more than the {session.frame_max} that clients read."
        session.refuse_frame(request.id, ErrorCode.SERVER_ERROR, text)
        return
    session.write(frame_of(body))


def failed(session: NativeSession, request: Message, problem: BaseException) -> None:
    """What was asked for cannot be, or an error of ours or of the disk's: the peer is told, and goes on."""
    code: str = ErrorCode.SERVER_ERROR
    if isinstance(problem, Refused):
        code, text = problem.code, str(problem)
    elif isinstance(problem, BadArgument):
        code, text = ErrorCode.INVALID_PAYLOAD, f"{problem}."
    elif isinstance(problem, StreamIsNoQueue):
        code, text = ErrorCode.NOT_A_QUEUE, f"'{request.queue}' is a stream, not a queue."
    elif isinstance(problem, StreamNotFound):
        code, text = ErrorCode.QUEUE_NOT_FOUND, f"Queue '{request.queue}' does not exist."
    elif isinstance(problem, StreamExists):
        code, text = ErrorCode.QUEUE_EXISTS, f"Queue '{request.queue}' already exists."
    else:
        text = admission.what_failed(session.peer, problem)
    session.refuse_frame(request.id, code, text)


def later(
    session: NativeSession,
    request: Message,
    work: Callable[[], Any],
    answer: Callable[[Any], bytes | None] = lambda result: None,
    *,
    tolerated: type[Exception] | None = None,
    **how: Any,
) -> None:
    """Do the work in a helper thread, then reply with what ``answer(result)`` gives as payload.

    `tolerated`: an error that the declarations of .NET peers would break on; it is answered as if all was well.
    """

    def done(result: Any, problem: BaseException | None) -> None:
        is_tolerated = tolerated is not None and isinstance(problem, tolerated) and not session.text_layout
        if problem is None or is_tolerated:
            reply(session, request, payload=answer(result))
        else:
            failed(session, request, problem)

    in_helper(session, work, done, **how)


def refuse_framing(session: NativeSession, problem: Exception, request_id: bytes = b"") -> None:
    """Bytes that are no frame: say so, and close, because nobody knows where the next one begins."""
    log_closing(session, "frame", "refused: %s", problem)
    session.refuse_frame(request_id or FRESH_ID, ErrorCode.INVALID_MESSAGE, str(problem))
    session.finish()


# ---- the connection ----


def opened(session: NativeSession) -> None:
    if not session.door.broker.connection_rate.admit(session.peer_address, time.monotonic()):
        log_closing(session, "rate", "its address connects too often, closed")
        session.refuse_frame(FRESH_ID, ErrorCode.RATE_LIMITED, "Too many connections from this address.")
        session.finish()
        return
    await_connect(session)


def await_connect(session: NativeSession) -> None:
    """From now on the peer has a while to log in."""
    door = session.door
    session.set_deadline(door.now_ms() + door.config.handshake_timeout_s * 1000, _too_slow)


def _too_slow(session: NativeSession) -> None:
    log_closing(session, "slow", "did not log in within %d s, closed", session.door.config.handshake_timeout_s)
    session.refuse_frame(FRESH_ID, ErrorCode.AUTH_REQUIRED, "No successful Connect in time.")
    session.finish()


def silent(session: NativeSession) -> None:
    log_closing(session, "silent", "silent for %d s, closed", session.door.config.keepalive_timeout_s)
    session.finish()


def say_goodbye(session: NativeSession) -> None:
    if session.state == "open":
        headers: dict[str, str] = {Header.REASON: spec.REASON_SERVER_SHUTDOWN}
        session.write(encode_frame(Command.DISCONNECT, FRESH_ID, headers=headers, text_layout=session.text_layout))
    else:
        session.finish()


def connect(session: NativeSession, request: Message) -> None:
    user, password = request.headers.get(Header.AUTH_USERNAME), request.headers.get(Header.AUTH_PASSWORD)
    broker = session.door.broker
    if not needs_login(broker):
        user = admission.user_without_login(broker, user, password, session.is_loopback)
        _connected(session, request, user, EVERYTHING)
        return
    if password is None:
        raise Refused(ErrorCode.AUTH_REQUIRED, "Username and password are required.")
    if user is None:
        user = session.door.config.superuser_name

    def done(verdict: Any, problem: BaseException | None) -> None:
        if problem is not None:
            failed(session, request, problem)
        else:
            _judged(session, request, user, verdict)

    admission.check_password(session, user, password, done)


def _judged(session: NativeSession, request: Message, user: str, verdict: Verdict) -> None:
    access = admission.access_of(session, user, verdict)
    if access is not None:
        _connected(session, request, access.user or user, access)
        return
    before, session.state = session.state, "refused"

    def answer(session: NativeSession) -> None:
        session.state = before  # of a second Connect: who they were, they still are
        session.refuse_frame(request.id, ErrorCode.AUTH_FAILED, "Invalid username or password.")
        if before == FIRST_STATE:
            await_connect(session)
        session.set_idle()
        session.read_on()

    session.wait_until(session.door.now_ms() + session.door.config.login_failure_delay_s * 1000 + 1, answer)


def _connected(session: NativeSession, request: Message, user: str, access: Access) -> None:
    door, asked = session.door, request.headers
    admission.leave(session.client)  # of a second Connect: who they were
    session.client.user, session.state, session.deadline_ms = user, "open", 0
    if why := admission.enter(session.client):
        session.refuse_frame(request.id, ErrorCode.RATE_LIMITED, f"{why[0].upper()}{why[1:]}.")
        session.finish()
        return
    # For people: bytes that are no UTF-8 could not be shown anywhere.
    session.client_version = asked.get(Header.CLIENT_VERSION, "")[:64].encode(errors="replace").decode()
    session.compression = compression.negotiate(asked.get(Header.SUPPORTED_COMPRESSION), door.compressions)
    session.flags_max = 3 if session.compression == "zstd" else 2
    wanted = {name.strip().lower() for name in asked.get(Header.FEATURES, "").split(",")}
    session.features = frozenset(wanted.intersection(spec.FEATURE_NAMES))
    session.dedup = spec.FEATURE_DEDUP in session.features
    client = asked.get(Header.CLIENT, "").encode(errors="replace")
    session.id_digits = client if len(client) == spec.DEDUP_CLIENT_BYTES else None
    session.trust(session.frame_max + (spec.STORED_EXTRA_BYTES if FORM_STORED in session.features else 0))
    headers: dict[str, str] = {
        Header.CONNECTION_ID: session.connection_id,
        Header.SERVER_VERSION: vibemq.__version__,
        Header.NEGOTIATED_COMPRESSION: session.compression or "",  # what is empty is not written
        Header.FEATURES: ",".join(sorted(session.features)),
    }
    # Never compressed: some peers read it before they have set their side up.
    session.write(encode_frame(Command.CONNECT_ACK, request.id, headers=headers, text_layout=session.text_layout))
    session.client.access = access
    rights_changed(session)


def send_off(session: NativeSession, why: Ended) -> None:
    if why is Ended.DELETED:
        session.refuse_frame(FRESH_ID, ErrorCode.AUTH_FAILED, "This user was deleted.")
    elif why is Ended.EXPIRED:
        session.refuse_frame(FRESH_ID, ErrorCode.AUTH_FAILED, "The token has expired.")
    else:
        session.refuse_frame(FRESH_ID, ErrorCode.AUTH_REQUIRED, "Username and password are required.")
    session.finish()


def rights_changed(session: NativeSession) -> None:
    """Subscriptions that they do not cover end, and each queue is asked for again."""
    session.forget_rights()
    for name in list(session.subscriptions):
        queue = name.decode()
        if not may(session.client, Operation.Subscribe, queue):
            session.remove_subscription(name)
            text = f"Access denied: the subscription of user '{session.client.user}' to queue '{queue}' has ended."
            session.refuse_frame(FRESH_ID, ErrorCode.NOT_AUTHORIZED, text)


# ---- queues ----


def require(session: NativeSession, operation: Operation, queue: str) -> None:
    """Raises Refused.  All that it tells, the peer has said itself: nobody has looked whether there is such a queue."""
    if not may(session.client, operation, queue):
        user = session.client.user
        text = f"Access denied. User '{user}' lacks the permission {operation.name} for queue '{queue}'."
        raise Refused(ErrorCode.NOT_AUTHORIZED, text)


def may_publish(session: NativeSession, request_id: bytes, queue: str) -> bool:
    """Ask again: rights have changed since the last time, or an alarm is in effect; a refusal is answered here."""
    if not check_access(session.client):
        return False
    try:
        why = admission.refusal_now(session.door.broker, session.peer)
        if why:
            raise Refused(ErrorCode.SERVER_ERROR, f"The message is not stored: {why}.")
        require(session, Operation.Publish, queue)
    except Refused as problem:
        session.refuse_frame(request_id, problem.code, str(problem))
        return False
    return True


def first_publish(session: NativeSession, body: bytes) -> None:
    """A Publish into a queue that this connection has not used yet."""
    request = decode_body(body)
    if not request.queue:
        session.refuse_frame(request.id, ErrorCode.INVALID_QUEUE, "Queue name is required for publish.")
        return
    name = request.queue.encode()

    def opened_queue(queue: Any) -> None:
        session.add_publisher(queue, name)
        session.publish_body(body)

    if may_publish(session, request.id, request.queue):
        _with_queue(session, request, opened_queue)


def publish_stored(session: NativeSession, request: Message) -> None:
    """A message as another queue had it: nothing is looked at but whether there is room for it."""
    name = (request.queue or "").encode()

    def opened_queue(queue: Any) -> None:
        publisher = session.publishers.get(name)
        if publisher is None or publisher.queue is not queue:
            publisher = session.add_publisher(queue, name)
        publisher.publish_stored(request.id, request.payload or b"")

    if may_publish(session, request.id, request.queue or ""):
        _with_queue(session, request, opened_queue)


def has_queue(session: NativeSession, name: bytes) -> bool:
    """Is there a queue of this name?  Other protocols make some with names that no frame of this one may make."""
    try:
        record = session.door.broker.queues.metadata.find_stream(DEFAULT_VHOST, name.decode())
    except UnicodeDecodeError:
        return False
    return record is not None and record.queue is not None


def _with_queue(session: NativeSession, request: Message, then: Callable[[Any], None], *, wanted: bool = True) -> None:
    """Call ``then(queue)``, after making the queue if it does not exist, and that is ``wanted`` and allowed.

    By the protocol using a queue makes it, also of a stream.
    """
    name = request.queue or ""
    admission.with_queue(
        session.client,
        DEFAULT_VHOST,
        name,
        may_convert=True,
        may_create=wanted and admission.may_make(session.client, name),
        then=then,
        failed=partial(failed, session, request),
        in_helper=partial(in_helper, session),
    )


def subscribe(session: NativeSession, request: Message) -> None:
    name = (request.queue or "").encode()
    most = session.door.queues.defaults.prefetch_max
    try:
        prefetch = int(request.headers.get(PREFETCH_HEADER, "0"))
    except ValueError:
        prefetch = -1
    if not 0 <= prefetch <= most:
        raise Refused(ErrorCode.INVALID_MESSAGE, f"Header prefetch must be a number from 1 to {most}.")
    try:
        subscriber, ttl_s = subscriber_of(
            request.headers.get(Header.SUBSCRIBER), request.headers.get(Header.SUBSCRIBER_TTL)
        )
    except BadArgument as problem:
        raise Refused(ErrorCode.INVALID_MESSAGE, f"{problem}.") from None
    create = request.headers.get(Header.CREATE, "true").lower()
    if create not in ("true", "false"):
        raise Refused(ErrorCode.INVALID_MESSAGE, f"Header {Header.CREATE} must be true or false.")
    if len(session.subscriptions) >= admission.SUBSCRIPTIONS_MAX and name not in session.subscriptions:
        raise Refused(ErrorCode.SERVER_ERROR, f"At most {admission.SUBSCRIPTIONS_MAX} subscriptions each.")

    def opened_queue(queue: Any) -> None:
        number = request.id.decode(errors="surrogateescape")
        headers = {Header.QUEUE_NAME: request.queue, Header.SUBSCRIPTION_ID: number}
        # The acknowledgement goes before the first message: clients see nothing else while a handler runs.
        answer = partial(reply, session, request, headers=headers)
        known = session.subscriptions.get(name)
        if known is None:
            stored = FORM_STORED in session.features and request.headers.get(Header.FORM) == FORM_STORED
            session.subscribe(name, prefetch, stored, queue, subscriber, ttl_s, answer)
        elif known.dormant:
            session.consume(known, queue, answer=answer)
        else:
            answer()

    _with_queue(session, request, opened_queue, wanted=create == "true")


def unsubscribe(session: NativeSession, request: Message) -> None:
    session.remove_subscription((request.queue or "").encode())
    reply(session, request, headers={Header.QUEUE_NAME: request.queue})


def wake_dormant(session: NativeSession) -> None:
    """Subscriptions whose queue was deleted go on with one of the same name."""
    dormant = [name for name, subscription in session.subscriptions.items() if subscription.dormant]
    session.dormant = len(dormant) > DORMANT_LOOKS_PER_TICK
    for name in dormant[:DORMANT_LOOKS_PER_TICK]:
        # Whoever was looked at goes to the end, so that all have their turn.
        subscription = session.subscriptions[name] = session.subscriptions.pop(name)
        try:
            queue = session.door.queues.find(DEFAULT_VHOST, name.decode())
        except (StreamNotFound, StorageError):
            session.dormant = True
        else:
            session.consume(subscription, queue)


def create_queue(session: NativeSession, request: Message) -> None:
    name = request.queue or ""
    options = queue_options(request.headers, request.payload, session.door.option_defaults)
    wrong = ErrorCode.INVALID_PAYLOAD if request.payload else ErrorCode.INVALID_MESSAGE
    if options.dead_letter:
        letters = options.dead_letter_name(name)
        if letters == name:
            raise Refused(wrong, "A queue cannot be its own dead-letter queue.")
        require(session, Operation.Publish, letters)  # or its dead letters would go where its maker may not publish
    if options.ack_timeout_ms is not None and options.ack_timeout_ms < ACK_TIMEOUT_MS_MIN:
        raise Refused(wrong, f"ackTimeoutMs: needed {ACK_TIMEOUT_MS_MIN} or more.")
    stored = options.stored()
    if request.payload in (None, b"null"):
        # Missing options are not stored, so they follow the configuration; a payload has all but the limits.
        stored = {key: value for key, value in stored.items() if not request.headers.keys().isdisjoint(READERS[key][0])}
    work = partial(session.door.catalog.create_queue, DEFAULT_VHOST, name, stored, by=author(session.client))
    later(session, request, work, tolerated=StreamExists)


def alter_queue(session: NativeSession, request: Message) -> None:
    """Who may delete a queue and make it anew may change it as well: a smaller limit or time drops messages."""
    name, broker = request.queue or "", session.door.broker
    require(session, Operation.DeleteQueue, name)
    changes = altered_options(request.payload)
    letters = letters_named(name, changes)
    if letters is not None:
        require(session, Operation.Publish, letters)

    def answer(_: Any) -> None:
        broker.tell_access_changed()
        logger.info("%s: user %r changes queue %s: %s", session.peer, session.client.user, name, changes)

    alter = partial(session.door.catalog.alter_queue, DEFAULT_VHOST, name, changes, by=author(session.client))
    later(session, request, alter, answer)


def delete_queue(session: NativeSession, request: Message) -> None:
    catalog = session.door.catalog

    def answer(gone: Any) -> None:
        if gone is not None:
            catalog.deleted(gone)

    work = partial(catalog.delete_queue, DEFAULT_VHOST, request.queue or "", by=author(session.client))
    later(session, request, work, answer, tolerated=StreamNotFound, left=catalog.deleted)


def info(session: NativeSession, request: Message) -> None:
    door, name = session.door, request.queue or ""
    record = door.queues.metadata.find_stream(DEFAULT_VHOST, name)
    try:
        if record is None or record.queue is None:
            raise StreamNotFound(name)
        queue = door.queues.find(DEFAULT_VHOST, name)
    except StreamNotFound:
        if session.text_layout:
            raise
        reply(session, request)  # an Error would break .NET declarations
        return
    waiting, in_flight, consumers = queue.counts()
    dropped, refused = queue.losses()
    options = options_of(door.queues.metadata.effective_options(record), door.option_defaults)
    if options.attempts_max is None:  # the configuration and dead-lettering decide
        options = replace(options, attempts_max=queue.options.attempts_max)
    queue.close_if_unused()
    payload = queue_info(
        name,
        options,
        record.created_ms,
        message_count=waiting,
        subscriber_count=consumers,
        in_flight_count=in_flight,
        dropped_count=dropped,
        refused_count=refused,
        prefetch_max=door.queues.defaults.prefetch_max,
        text_layout=session.text_layout,
    )
    reply(session, request, payload=payload)


def list_queues(session: NativeSession, request: Message) -> None:
    metadata, access = session.door.queues.metadata, session.client.access

    def answer(names: Any) -> bytes:
        return msgspec.json.encode(sorted(name for name in names if access.sees(name)))

    # Thousands of rows: not in the loop.
    later(session, request, lambda: [record.name for record in metadata.queues(DEFAULT_VHOST)], answer)


def purge_queue(session: NativeSession, request: Message) -> None:
    name = request.queue or ""
    queue = session.door.queues.find(DEFAULT_VHOST, name)
    count = queue.purge()
    queue.close_if_unused()
    say = partial(session.door.broker.catalog.say_purged, DEFAULT_VHOST, name, count, by=author(session.client))
    later(session, request, say, lambda _: msgspec.json.encode({"purged": count}))


# ---- users ----


def manage_users(session: NativeSession, request: Message) -> None:
    broker = session.door.broker

    def answer(result: Any) -> bytes:
        if request.type not in (Command.ADMIN_LIST_USERS, Command.ADMIN_GET_USER_PERMISSIONS):
            broker.tell_access_changed()
        return msgspec.json.encode(result)

    fields = accounts.fields_of(request)
    change = partial(accounts.COMMANDS[request.type], broker.queues.metadata, session.client.access, fields)
    by = author(session.client)

    def work() -> Any:
        result, audit = change(), broker.catalog.audit
        if audit is not None and (what := accounts.AUDITED.get(request.type)):
            audit.say(by, what, **{"name" if key == "username" else key: value for key, value in result.items()})
        return result

    later(session, request, work, answer, submit=broker.helpers.submit_hash)


# ---- the state machine ----

FIRST_STATE = "connecting"
Answer = Callable[[Any, Message], None]
BEFORE: dict[int, Answer] = {Command.CONNECT: connect, Command.DISCONNECT: lambda session, request: session.leave()}
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
