# SPDX-License-Identifier: Apache-2.0
"""What Python decides of an open MicroMsg2 connection: commands, the first message to a destination, rights and ends.

COMMANDS is the table of commands; what is not in it is refused.  A command is answered by ``ok`` or ``error`` where
`x-reply` is agreed and it bears an id; else an error is an ERROR frame and success is silent.  What must touch the disk
runs in a helper thread, and the session takes no frame until then, so answers leave in the order of commands.  Texts
and codes: README.md beside this file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from vibemq.access.glob import Glob, fold
from vibemq.access.permissions import Operation
from vibemq.broker import admission
from vibemq.broker.admission import SUBSCRIPTIONS_MAX, Ended, check_access, log_closing
from vibemq.broker.arguments import BadArgument
from vibemq.broker.audit import author
from vibemq.broker.helping import in_helper
from vibemq.broker.messages import offset_of_word
from vibemq.broker.options import FAN_OUTS, DeliveryMode, letters_named, options_of, subscriber_of
from vibemq.errors import Refused, StorageError, StreamExists, StreamNotFound
from vibemq.net.hosts import host_of
from vibemq.once_a_minute import OnceAMinute
from vibemq.protocols.micromsg2.codec import BadCommand, encode_command, parse_command
from vibemq.protocols.micromsg2.destinations import Target, check_new, target_of
from vibemq.protocols.micromsg2.extensions import number_in
from vibemq.protocols.micromsg2.filters import BadFilter, compile_filter
from vibemq.protocols.micromsg2.options import queue_options
from vibemq.protocols.micromsg2.spec import SEQUENCE_MAX, TOPIC_PREFIX, ErrorCode, ExtensionName
from vibemq.storage.vhosts import DEFAULT_VHOST

if TYPE_CHECKING:
    from vibemq.protocols.micromsg2.session import Micromsg2Session

told = OnceAMinute(logging.getLogger(__name__), logging.INFO)

PREFETCH_AUTO = 4096  # settled as soon as they are sent, so this is only what one turn may write
LIST_BYTES_MAX = 60_000  # of the destinations in an answer, which has to fit in a COMMAND
ID_CHARACTERS_MAX = 255  # of a command: they come back, percent-encoded, with the answer
PEER_TEXT_MAX = 200  # of what a peer says of itself, in the log

# ---- ends ----


def protocol_error(session: Micromsg2Session, code: str, text: str) -> None:
    """Nobody knows what the next bytes would mean: say so, and close."""
    log_closing(session, code, "closed: %s: %s", code, text)
    session.write_error(code, text)
    session.finish()


def refuse_message(session: Micromsg2Session, code: str, text: str) -> None:
    """An ERROR for a message, or for a subscription of the handshake.

    SharpMessaging reads none, and would send the message or wait for ever, so its connection ends."""
    if session.is_sharp:
        protocol_error(session, code, text)
    else:
        session.write_error(code, text)


def told_error(session: Micromsg2Session, payload: bytes) -> None:
    """The peer has something against us.  If that is the end, it closes."""
    text = payload.decode(errors="replace")
    told.say(host_of(session.peer_address), "%s: the peer says: %.*s", session.peer, PEER_TEXT_MAX, text)


def say_goodbye(session: Micromsg2Session) -> None:
    if not session.ending:
        session.write_error(ErrorCode.SHUTTING_DOWN, "the broker stops; connect again later")
        session.finish()


# ---- who may ----


def send_off(session: Micromsg2Session, why: Ended) -> None:
    if why is Ended.DELETED:
        session.write_error(ErrorCode.AUTH_FAILED, "this user was deleted")
    elif why is Ended.EXPIRED:
        session.write_error(ErrorCode.AUTH_FAILED, "the token has expired")
    else:
        session.write_error(ErrorCode.AUTH_REQUIRED, "a user and a password are required now")
    session.finish()


def rights_changed(session: Micromsg2Session) -> None:
    """Subscriptions that they do not cover end, and each queue is asked for again."""
    session.forget_rights()
    for name, subscription in list(session.subscriptions.items()):
        try:
            require(session, "read" if getattr(subscription, "is_plain", False) else Operation.Subscribe, name)
        except Refused as problem:
            session.remove_subscription(name)
            session.write_error(problem.code, subscription_over(name, problem.message))


def require(session: Micromsg2Session, what: Operation | str, name: str) -> None:
    """An operation on a queue, or a right to a stream that is none; nobody has looked whether it is there.

    Raises Refused."""
    if isinstance(what, Operation):
        allowed, right = admission.may(session.client, what, name), what.name
    else:
        allowed, right = admission.has_right(session.client, what, name), what
    if not allowed:
        text = f"user '{session.client.user}' lacks the permission {right} for '{name}'; ask an administrator"
        raise Refused(ErrorCode.NOT_AUTHORIZED, text)


def check_alarms(session: Micromsg2Session) -> None:
    """Raises Refused."""
    why = admission.refusal_now(session.door.broker, session.peer)
    if why:
        raise Refused(ErrorCode.SERVER_ERROR, why)


def may_publish(session: Micromsg2Session, publisher: Any, index: int) -> bool:
    """Ask again: rights have changed since the last time, or an alarm is in effect; a refusal is answered here."""
    if not check_access(session.client):
        return False
    try:
        check_alarms(session)
        require(session, "write" if publisher.queue is None else Operation.Publish, publisher.stream.name)
    except Refused as problem:
        session.refuse_message(index, problem.code, problem.message, publisher.destination)
        return False
    return True


# ---- queues ----


def refused_by(session: Micromsg2Session, problem: BaseException, name: str) -> Refused:
    """What a peer is told of what went wrong."""
    if isinstance(problem, Refused):
        return problem
    if isinstance(problem, StreamNotFound):
        return Refused(ErrorCode.QUEUE_NOT_FOUND, f"there is no queue or topic '{name}'")
    if isinstance(problem, BadFilter):
        return Refused(ErrorCode.BAD_FILTER, str(problem))
    if isinstance(problem, BadArgument):
        return Refused(ErrorCode.BAD_COMMAND, str(problem))
    return Refused(ErrorCode.SERVER_ERROR, admission.what_failed(session.peer, problem))


def check_kind(session: Micromsg2Session, target: Target) -> None:
    """A prefix must not contradict the queue that is there, if there is one.  Raises Refused."""
    queues = session.door.queues
    record = queues.metadata.find_stream(DEFAULT_VHOST, target.name)
    if record is None or record.queue is None:
        return
    if not target.fits(options_of(record.queue, queues.defaults).is_fan_out):
        raise target.wrong_kind()


def open_queue(
    session: Micromsg2Session, target: Target, then: Callable[[Any], None], failed: Callable[[BaseException], None]
) -> None:
    """Call ``then(queue)``, now or after it was made, or ``failed(problem)``."""
    try:
        if session.door.queues.metadata.find_stream(DEFAULT_VHOST, target.name) is None:
            check_new(target)
    except (Refused, StorageError) as problem:
        failed(problem)
        return

    def opened(queue: Any) -> None:
        if not target.fits(queue.options.is_fan_out):
            queue.close_if_unused()
            failed(target.wrong_kind())
        else:
            then(queue)

    admission.with_queue(
        session.client,
        DEFAULT_VHOST,
        target.name,
        may_create=admission.may_make(session.client, target.name),
        options=target.options,
        then=opened,
        failed=failed,
        in_helper=partial(in_helper, session),
    )


def first_send(session: Micromsg2Session, destination: bytes, index: int, again: Callable[[], None]) -> None:
    """A message to a destination that this connection has not used yet; ``again()`` publishes it once it may be."""

    def refuse(problem: BaseException) -> None:
        why = refused_by(session, problem, destination.decode(errors="replace"))
        session.refuse_message(index, why.code, why.message, destination)

    def ready(stream: Any, queue: Any, name: str) -> None:
        session.add_publisher(stream, queue, name.encode(), destination)
        again()

    if not check_access(session.client):
        return
    try:
        check_alarms(session)
        target = target_of(destination, session.door.config.default_queue)
        record = session.door.queues.metadata.find_stream(DEFAULT_VHOST, target.name)
        is_plain = record is not None and record.queue is None
        require(session, "write" if is_plain else Operation.Publish, target.name)
        if is_plain:
            ready(session.door.broker.streams.find(DEFAULT_VHOST, target.name), None, target.name)
            return
    except (Refused, StreamNotFound, StorageError) as problem:
        refuse(problem)
        return
    open_queue(session, target, lambda queue: ready(queue.stream, queue, target.name), refuse)


def subscription_ended(session: Micromsg2Session, name: str, problem: BaseException | None) -> None:
    """By itself: what it was to is gone, or cannot be read."""
    if problem is None or isinstance(problem, StreamNotFound):
        code, why = ErrorCode.QUEUE_NOT_FOUND, "it was deleted"
    else:
        code, why = ErrorCode.SERVER_ERROR, "it cannot be read; the broker's log says why"
    session.write_error(code, subscription_over(name, why))


def subscription_over(name: str, why: str) -> str:
    """Clients tell by the first words that no more messages will come."""
    return f"the subscription to '{name}' has ended: {why}"


# ---- commands ----

Pairs = dict[str, list[str]]
NAMES = ("destination", "queue", "to", "name")  # a topic's own alias adds the prefix


class Command:
    """One that has come, and the way to answer it."""

    def __init__(self, session: Micromsg2Session, name: str, pairs: Pairs) -> None:
        self.session, self.name, self.pairs = session, name, pairs
        self.id = self.value("id") or ""

    @property
    def wants_answer(self) -> bool:
        return bool(self.session.agreed.reply and self.id)

    def value(self, key: str) -> str | None:
        return self.pairs[key][-1] if key in self.pairs else None

    @property
    def destination(self) -> str:
        """Raises Refused."""
        topic = self.value("topic")
        if topic is not None:
            return TOPIC_PREFIX + topic.removeprefix(TOPIC_PREFIX)
        named = next((name for name in NAMES if name in self.pairs), None)
        if named is None:
            raise Refused(ErrorCode.BAD_COMMAND, f"{self.name} needs destination=NAME")
        return self.pairs[named][-1]

    @property
    def target(self) -> Target:
        """Raises Refused."""
        return target_of(self.destination.encode(errors="surrogateescape"), self.session.door.config.default_queue)

    def run(self, do: Callable[[Command], None]) -> None:
        try:
            do(self)
        except Exception as problem:  # one bad command is answered; it does not cost the connection
            self.refuse(problem)

    def done(self, **pairs: str) -> None:
        if self.wants_answer:
            self.session.write(encode_command("ok", {"id": self.id, **pairs}))

    def refuse(self, problem: BaseException) -> None:
        try:
            subject = self.destination
        except Refused:
            subject = ""
        why = refused_by(self.session, problem, subject)
        if self.wants_answer:
            self.session.write(encode_command("error", {"id": self.id, "code": why.code, "text": why.message}))
        elif self.name == ExtensionName.SUBSCRIBE:  # or a peer that reads no ERROR would wait for messages for ever
            refuse_message(self.session, why.code, why.message)
        else:
            self.session.write_error(why.code, why.message)

    def later(self, work: Callable[[], Any], answer: Callable[[Any], None], **how: Any) -> None:
        """Do the work in a helper thread, then ``answer(result)``."""

        def done(result: Any, problem: BaseException | None) -> None:
            if problem is not None:
                self.refuse(problem)
            else:
                self.run(lambda _: answer(result))

        in_helper(self.session, work, done, **how)


def handle(session: Micromsg2Session, payload: bytes) -> None:
    if not check_access(session.client):
        return
    try:
        parsed = parse_command(payload)
    except BadCommand as problem:
        protocol_error(session, ErrorCode.BAD_COMMAND, str(problem))
        return
    pairs: Pairs = {}
    for key, value in parsed.pairs:
        pairs.setdefault(key, []).append(value)
    if parsed.name in ("ok", "error"):
        return  # we call no commands that could be answered
    Command(session, parsed.name, pairs).run(look_up)


def look_up(command: Command) -> None:
    """Raises what is wrong, as each function of COMMANDS does."""
    if len(command.id) > ID_CHARACTERS_MAX:
        command.id = ""
        raise Refused(ErrorCode.BAD_COMMAND, f"an id has at most {ID_CHARACTERS_MAX} characters")
    if command.name not in COMMANDS:
        raise Refused(ErrorCode.BAD_COMMAND, f"'{command.name:.40}' is none of {', '.join(COMMANDS)}")
    COMMANDS[command.name](command)


def subscribe(command: Command) -> None:
    session = command.session
    if not session.agreed.pub_sub:
        raise Refused(ErrorCode.NOT_SUPPORTED, "subscribe needs the extension pub-sub, which was not agreed")
    start(command)


def subscribe_agreed(session: Micromsg2Session) -> None:
    """A subscription by handshake, for peers without commands."""
    extension = session.agreed.properties.get(ExtensionName.SUBSCRIBE)
    if extension is None:
        return
    pairs = {key.lower(): [value] for key, value in extension.properties.items()}
    pairs.pop("id", None)  # of a command, which this is not: what it said need not be such as an answer can hold
    Command(session, ExtensionName.SUBSCRIBE, pairs).run(start)


def start(command: Command) -> None:
    """Begin to consume.  Raises Refused, BadFilter, StreamNotFound, StorageError."""
    session = command.session
    if "group" in command.pairs:
        raise Refused(ErrorCode.NOT_SUPPORTED, "groups are not supported; consumers of a queue share its messages")
    destination, target = command.destination.encode(errors="replace"), command.target
    known = session.subscriptions.get(target.name)
    if known is None and len(session.subscriptions) >= SUBSCRIPTIONS_MAX:
        raise Refused(ErrorCode.LIMIT_EXCEEDED, f"at most {SUBSCRIPTIONS_MAX} subscriptions on one connection")
    text = ";".join(command.pairs.get("filter", []))
    chosen = compile_filter(text) if text else None
    prefetch = _prefetch(command)
    try:
        subscriber, ttl_s = subscriber_of(command.value("subscriber"), command.value("subscriber-ttl"))
    except BadArgument as problem:
        raise Refused(ErrorCode.BAD_COMMAND, str(problem)) from None
    record = session.door.queues.metadata.find_stream(DEFAULT_VHOST, target.name)
    is_plain = record is not None and record.queue is None
    if is_plain or command.value("from") is not None:
        read(command, target, destination, chosen, is_plain=is_plain)
        return
    require(session, Operation.Subscribe, target.name)

    def opened(queue: Any) -> None:
        if chosen is not None and not queue.options.is_fan_out:
            queue.close_if_unused()
            why = f"'{target.name}' is a queue, whose messages go to one consumer each; filters are for topics"
            command.refuse(Refused(ErrorCode.NOT_SUPPORTED, why))
            return
        subscribed = session.subscriptions.get(target.name)
        done = partial(command.done, destination=command.destination)
        if subscribed is not None:
            done()
            subscribed.outlet.filter = chosen
        else:
            session.add_subscription(target.name, destination, chosen, queue, prefetch, subscriber, ttl_s, done)

    open_queue(session, target, opened, command.refuse)


def read(command: Command, target: Target, destination: bytes, chosen: Any, *, is_plain: bool) -> None:
    """A log from a place on.  Raises Refused, StreamNotFound, StorageError."""
    session, name = command.session, target.name
    require(session, "read" if is_plain else Operation.Subscribe, name)
    check_kind(session, target)
    place = command.value("from")
    known = session.subscriptions.get(name)
    if place is None and known is not None:  # only the filter is another
        known.outlet.filter = chosen
        command.done(destination=command.destination)
        return
    place = place or "next"
    stream = session.door.broker.streams.find(DEFAULT_VHOST, name)
    try:
        offset = offset_of_word(stream, place)
        if offset is None:
            if not (place.isascii() and place.isdigit() and len(place) < 20 and int(place) < 2**63):
                raise Refused(ErrorCode.BAD_COMMAND, f"from needs first, last, next or an offset, had '{place:.20}'")
            offset = int(place)
        command.done(destination=command.destination)  # before the first message
        session.add_reader(name, destination, chosen, stream, offset, is_plain)
    except BaseException:
        session.door.broker.streams.release_if_unused(stream)
        raise


def _prefetch(command: Command) -> int:
    """How many messages may be in flight: as many as the window holds, or fewer where somebody says so."""
    session = command.session
    most = session.agreed.window or PREFETCH_AUTO
    text = command.value("prefetch")
    if text is None:
        return most
    prefetch = number_in(text, most)
    if prefetch is None:
        raise Refused(ErrorCode.BAD_COMMAND, f"prefetch needs a number from 1 on, had '{text:.20}'")
    return prefetch


def unsubscribe(command: Command) -> None:
    if not command.session.remove_subscription(command.target.name):
        raise Refused(ErrorCode.QUEUE_NOT_FOUND, f"there is no subscription to '{command.destination}'")
    command.done()


def create(command: Command) -> None:
    session, target = command.session, command.target
    require(session, Operation.CreateQueue, target.name)
    options = {**target.options, **queue_options(command.pairs)}
    if not target.fits(options.get("mode", DeliveryMode.ROUND_ROBIN) in FAN_OUTS):
        raise Refused(ErrorCode.BAD_COMMAND, f"mode contradicts the prefix {target.prefix}")
    if session.door.queues.metadata.find_stream(DEFAULT_VHOST, target.name) is None:
        check_new(target)
    check_kind(session, target)
    letters = letters_named(target.name, options)
    if letters is not None:
        require(session, Operation.Publish, letters)  # or its dead letters would go where its maker may not publish

    def make() -> str:
        try:
            session.door.catalog.create_queue(DEFAULT_VHOST, target.name, options, by=author(session.client))
        except StreamExists:
            return "false"
        return "true"

    command.later(make, lambda created: command.done(created=created))


def delete(command: Command) -> None:
    session, target, catalog = command.session, command.target, command.session.door.catalog
    require(session, Operation.DeleteQueue, target.name)
    check_kind(session, target)

    def answer(gone: Any) -> None:
        catalog.deleted(gone)
        command.done()

    delete_it = partial(catalog.delete_queue, DEFAULT_VHOST, target.name, by=author(session.client))
    command.later(delete_it, answer, left=catalog.deleted)


def holding(command: Command) -> None:
    """Note that the peer's program holds a delivery, or none (0): it has failed if it goes back unsettled."""
    text = command.value("number") or ""
    number = 0 if text == "0" else number_in(text, SEQUENCE_MAX)
    if number is None:
        raise Refused(ErrorCode.BAD_COMMAND, f"holding needs the number of a message, had '{text:.20}'")
    command.session.note_held(number)
    command.done()


def needs_reply(command: Command) -> None:
    """Raises Refused."""
    if not command.wants_answer:
        raise Refused(ErrorCode.NOT_SUPPORTED, f"{command.name} needs the extension x-reply, and an id")


def info(command: Command) -> None:
    needs_reply(command)
    session, target = command.session, command.target
    name = target.name
    require(session, Operation.GetQueueInfo, name)
    check_kind(session, target)
    queue = session.door.queues.find(DEFAULT_VHOST, name)
    waiting, in_flight, consumers = queue.counts()
    prefix = "topic/" if queue.options.is_fan_out else "queue/"
    queue.close_if_unused()
    counts = {"messages": str(waiting), "in-flight": str(in_flight), "consumers": str(consumers)}
    command.done(destination=prefix + name, **counts)


def list_queues(command: Command) -> None:
    needs_reply(command)
    session = command.session
    pattern = Glob(command.value("pattern") or "*")

    access, metadata = session.client.access, session.door.queues.metadata

    def work() -> list[str]:
        names = (record.name for record in metadata.queues(DEFAULT_VHOST))
        return sorted(name for name in names if access.sees(name) and pattern.matches(fold(name)))

    def answer(names: Any) -> None:
        text = "\n".join(names)
        if len(text.encode()) * 3 > LIST_BYTES_MAX:  # percent-encoded
            why = f"{len(names)} names do not fit in an answer; ask for fewer with pattern="
            raise Refused(ErrorCode.LIMIT_EXCEEDED, why)
        command.done(count=str(len(names)), names=text)

    command.later(work, answer)  # thousands of rows: not in the loop


COMMANDS: dict[str, Callable[[Command], None]] = {
    "subscribe": subscribe,
    "unsubscribe": unsubscribe,
    "create": create,
    "delete": delete,
    "holding": holding,
    "info": info,
    "list": list_queues,
}
