# SPDX-License-Identifier: Apache-2.0
"""``vibemq publish``, ``vibemq consume`` and ``vibemq queues``: a broker's queues from a shell.

They are clients like any other and may run anywhere.  Data goes to standard output, everything else to
standard error, so they can be parts of a pipe: what `consume` prints, `publish` takes.
"""

import base64
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from vibemq.errors import NotAuthorized, QueueConflict, QueueNotFound, RequestFailed, UserError
from vibemq.terminal import (
    EXIT_INTERRUPTED,
    ask_login,
    json_option,
    messages_text,
    nobody_reads,
    password_option,
    print_table,
    user_option,
    watch_reader,
    yes_option,
)

if TYPE_CHECKING:
    from vibemq.client import Client, Consumer, Message, Publisher, QueueInfo, Summary

F = TypeVar("F", bound=Callable[..., Any])

IDLE_S, PATIENCE_S = 0.2, 30.0  # a queue that sends nothing for so long is asked whether it is empty; is given up
PREFETCH_MAX = 256  # as many as the broker gives without being told; with --count no more than wanted


def connection_options(command: F) -> F:
    """--url, --user and --password-stdin, which every command here has."""
    for option in (
        password_option,
        user_option,
        click.option(
            "--url",
            default="vibemq://localhost:2925",
            show_default=True,
            show_envvar=True,
            envvar="VIBEMQ_URL",
            help="Where the broker is: vibemq://[USER:PASSWORD@]HOST[:PORT].",
        ),
    ):
        command = option(command)
    return command


def _connect(url: str, user: str | None, password_stdin: bool, **settings: Any) -> "Client":
    from vibemq.client import address, connect

    who, password = ask_login(*address.user_of(url), user, password_stdin)
    if password is not None:
        settings |= {"user": who, "password": password}
    return connect(url, **settings)


# ---- publish ----


def _headers(_: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    if any(not separator or not name for name, separator, _ in pairs):
        raise click.BadParameter("needed NAME=VALUE", param=option)
    return {name: value for name, _, value in pairs}


@click.command()
@click.argument("queue")
@click.argument("payload", required=False)
@click.option("--file", "file", type=click.File("r", encoding="utf-8"), help="A message for each line of this file.")
@click.option("--text", is_flag=True, help="Send text even where it could be read as JSON.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", callback=_headers, help="Repeatable.")
@click.option("--priority", type=click.Choice(["low", "normal", "high", "critical"]))
@click.option("--count", type=click.IntRange(min=1), default=1, metavar="N", help="Send PAYLOAD so many times.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Messages a second, at most.")
@click.option(
    "--window", type=click.IntRange(min=1), default=1000, show_default=True, help="Messages on their way at a time."
)
@json_option
@connection_options
def publish(
    queue: str,
    payload: str | None,
    file: IO[str] | None,
    text: bool,
    headers: dict[str, str],
    priority: str | None,
    count: int,
    rate: float | None,
    window: int,
    as_json: bool,
    **connection: Any,
) -> None:
    """Publish PAYLOAD, or each line of a file or of standard input, to QUEUE.

    What is JSON is sent as it is; anything else is sent as a text.  Returns when the broker has all of it.
    With --json and without PAYLOAD each line is one that `vibemq consume --json` printed, and becomes the same message:
    "stored" is the whole of it; to change something, leave "stored" out and change payload, headers or id.
    A queue that does not exist is made by this, unless the broker is told not to.
    A stream of that name becomes a queue by it, with all that it holds, and stays one; this command cannot see that.
    With --rate, Ctrl-C ends it early and still says how many the broker has.
    """
    if payload is not None and file is not None:
        raise click.UsageError("PAYLOAD and --file cannot be used together")
    if count != 1 and payload is None:
        raise click.UsageError("--count needs PAYLOAD")
    if as_json and payload is None:
        if text or headers or priority:
            raise click.UsageError("with --json each line says of itself what --text, --header and --priority would")
        _publish_records(queue, file, rate, window, **connection)
        return
    with _connect(**connection) as client:  # first: a password may be the first line of standard input
        if payload is not None:
            bodies: Iterable[bytes] = (_body(payload, text) for _ in range(count))
        else:
            bodies = (_body(line.rstrip("\r\n"), text) for line in file or sys.stdin if line.strip())
        total = count if payload is not None else None
        with _progress(f"to {queue}", total) as shown:
            summary, stopped = _publish(client, queue, shown(bodies), rate, window, headers=headers, priority=priority)
    if as_json:
        click.echo(json.dumps({"queue": queue, "published": summary.published, "failed": len(summary.failed)}))
    else:
        click.echo(f"published {messages_text(summary.published)} to queue {queue}")
    if summary.failed:
        click.echo(f"vibemq: {messages_text(len(summary.failed))} refused, the first as follows", err=True)
        summary.raise_failed()
    if stopped:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)


def _publish_records(queue: str, file: IO[str] | None, rate: float | None, window: int, **connection: Any) -> None:
    """The lines of `consume --json`, each of them the message that it was."""
    with _connect(**connection) as client:
        stored, plain = (
            client.publisher(queue, window=window, stored=True),
            client.publisher(queue, window=window, raw=True),
        )
        started = time.monotonic()
        number = 0
        for number, line in enumerate(filter(str.strip, file or sys.stdin), 1):
            if rate is not None and (early_s := started + number / rate - time.monotonic()) > 0:
                time.sleep(early_s)
            _publish_record(client, stored, plain, line, number)
        summaries = [stored.flush(), plain.flush()]
    failed = sum(len(summary.failed) for summary in summaries)
    published = sum(summary.published for summary in summaries)
    click.echo(json.dumps({"queue": queue, "published": published, "failed": failed}))
    for summary in summaries:
        summary.raise_failed()


def _publish_record(client: "Client", stored: "Publisher", plain: "Publisher", line: str, number: int) -> None:
    needed = f'line {number}: needed an object with "payload" or "stored", as `vibemq consume --json` prints it'
    try:
        record = json.loads(line)
        if not isinstance(record, dict):
            raise TypeError(f"had {line.strip()[:60]}")
        if "stored" in record:
            if not client.gives_stored:
                raise UserError(f"line {number}: this broker does not take messages as others have stored them")
            stored.publish(base64.b64decode(record["stored"], validate=True))
            return
        headers = dict(record.get("headers") or {})
        body = json.dumps(record["payload"], ensure_ascii=False, allow_nan=False).encode()
        needed = f"line {number}"
        plain.publish(body, headers=headers, id=record.get("id"))  # what a broker refuses is none of these errors
    except (ValueError, TypeError, KeyError) as problem:
        had = f"there is no {problem} in it" if isinstance(problem, KeyError) else problem
        raise UserError(f"{needed}: {had}") from None


def _body(line: str, text: bool) -> bytes:
    """As JSON text."""
    from vibemq.protocols.native.codec import is_json

    data = line.encode("utf-8", "surrogateescape")
    return data if not text and is_json(data) else json.dumps(line, ensure_ascii=False).encode("utf-8", "replace")


def _publish(
    client: "Client", queue: str, bodies: Iterable[bytes], rate: float | None, window: int, **how: Any
) -> "tuple[Summary, bool]":
    """What became of them, and whether Ctrl-C came before the last of them."""
    if rate is None:
        return client.publish_many(queue, bodies, window=window, raw=True, **how), False
    stopped = False
    with client.publisher(queue, window=window, raw=True) as publisher:
        started = time.monotonic()
        try:
            for number, body in enumerate(bodies):
                early_s = started + number / rate - time.monotonic()
                if early_s > 0:
                    time.sleep(early_s)
                publisher.publish(body, **how)
        except KeyboardInterrupt:  # what is on its way is waited for, so that the count is true; a second one ends that
            stopped = True
        return publisher.flush(), stopped


@contextlib.contextmanager
def _progress(title: str, total: int | None) -> Iterator[Callable[[Iterable[bytes]], Iterable[bytes]]]:
    """Counts what is taken from an iterable, for whoever watches a terminal."""
    if not sys.stderr.isatty() or total == 1:
        yield lambda bodies: bodies
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(f"{task.speed:,.0f}/s" if task.speed else "")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)

        def shown(bodies: Iterable[bytes]) -> Iterator[bytes]:
            number = 0
            for number, body in enumerate(bodies, 1):
                yield body
                if number % 100 == 0:
                    bar.update(task, completed=number)
            bar.update(task, completed=number, total=number)

        yield shown


# ---- consume ----


@click.command()
@click.argument("queue")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after N messages.")
@click.option("--no-ack", is_flag=True, help="Leave the messages in the queue: they go back when this ends.")
@click.option("--prefetch", type=click.IntRange(min=1), metavar="N", help="Messages on their way to us at a time.")
@click.option("--follow/--drain", default=True, help="Wait for more (default), or end when the queue is empty.")
@click.option("--create", is_flag=True, help="Make the queue if there is none, also of a stream of that name.")
@json_option
@connection_options
def consume(
    queue: str,
    count: int | None,
    no_ack: bool,
    prefetch: int | None,
    follow: bool,
    create: bool,
    as_json: bool,
    **connection: Any,
) -> None:
    """Print the messages of QUEUE, a line for each, and acknowledge what is printed.

    Nothing is made by this but with --create, and a stream is not consumed: `vibemq streams tail` reads it.
    With --create a stream becomes a queue for good: it keeps what the stream's retention keeps, and has no limit.
    With --json a line has the payload, the id, the headers, how often the message was delivered, and in "stored" the
    whole of it as the broker keeps it: `vibemq publish --json` takes such lines, and makes the same messages of them.
    """
    with _connect(**connection) as client:
        wanted = prefetch or (min(count, PREFETCH_MAX) if count else None)
        with (
            contextlib.suppress(KeyboardInterrupt),  # how one ends --follow
            _consumer(client, queue, wanted, create, None if follow else IDLE_S, as_json) as consumer,
        ):
            watch_reader(consumer.stop)
            left, silent_s = count, 0.0
            while left is None or left > 0:
                message = next(consumer, None)
                if message is None:
                    if follow or no_ack or nobody_reads() or _is_empty(client, queue):
                        break
                    if (silent_s := silent_s + IDLE_S) >= PATIENCE_S:
                        click.echo(f"vibemq: what is left in {queue} is put off, or too large for a client", err=True)
                        break
                    continue
                silent_s = 0.0
                click.echo(_line(message, as_json, consumer._feed.stored))  # before the broker is told to forget it
                if not no_ack:
                    message.ack()
                left = None if left is None else left - 1


def _is_empty(client: "Client", queue: str) -> bool:
    with contextlib.suppress(RequestFailed):  # then silence has to be enough
        return client.queue_info(queue).messages == 0
    return True


def _consumer(
    client: "Client", queue: str, prefetch: int | None, create: bool, timeout_s: float | None, as_json: bool
) -> "Consumer":
    consumer = client.consume(queue, prefetch=prefetch, create=create, timeout_s=timeout_s)
    consumer._feed.stored = as_json and client.gives_stored
    return consumer


def _stored_line(message: "Message") -> str:
    from vibemq.client import _amqp
    from vibemq.protocols.native.codec import is_json

    body, _, headers = _amqp.read(message.raw)
    payload: Any = None
    if body and is_json(body):
        payload = json.loads(body)
    elif body:
        try:
            payload = body.decode()
        except UnicodeDecodeError:
            payload, headers["payload-encoding"] = base64.b64encode(body).decode(), "base64"
    shown = {name: text for name, text in headers.items() if text is not None}
    rest = {"id": message.id, "headers": shown, "attempts": message.attempts, "payload": payload}
    return json.dumps({**rest, "stored": base64.b64encode(message.raw).decode()}, ensure_ascii=False)


def _line(message: "Message", as_json: bool, stored: bool) -> str:
    if stored:
        return _stored_line(message)
    raw = (message.raw or b"null").decode("utf-8", "replace")
    if not as_json:
        return raw.replace("\r", " ").replace("\n", " ")  # between tokens only: JSON has no bare line break in a text
    rest = {"id": message.id, "headers": message.headers, "attempts": message.attempts}
    return json.dumps({**rest, "payload": json.loads(raw)}, ensure_ascii=False)


# ---- queues ----


@click.group()
def queues() -> None:
    """List, describe, create, alter, delete and purge queues; move what is in them."""


def move_options(command: F) -> F:
    for option in (
        connection_options,
        json_option,
        click.option("--dry-run", is_flag=True, help="Only say how many would go where (of the first 10,000 at most)."),
        click.option("--count", type=click.IntRange(min=1), metavar="N", help="Move at most N messages."),
    ):
        command = option(command)
    return command


@contextlib.contextmanager
def moving_bar(title: str) -> Iterator[Callable[[int, int], object] | None]:
    """Shows how far it is, to whoever watches a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@queues.command("list")
@json_option
@connection_options
def queues_list(as_json: bool, **connection: Any) -> None:
    """Show the queues for which the user has any permission; without users that is all of them."""
    with _connect(**connection, reconnect=False) as client:
        found = [(name, _info(client, name)) for name in client.list_queues()]
    if as_json:
        click.echo(json.dumps([_described(info) if info else {"name": name} for name, info in found]))
    elif not found:
        user = _user(**connection)
        none = "there are no queues" if user is None else f"there is no queue for which user {user} has any permission"
        click.echo(f"{none}; `vibemq queues create NAME` makes one")
    else:
        rows = [
            (
                name,
                *(str(count) for count in (info.messages, info.in_flight, info.dropped, info.subscribers)),
                info.options.mode.name.lower(),
            )
            if info
            else (name, "", "", "", "", "")
            for name, info in found
        ]
        print_table(("queue", "messages", "in flight", "dropped", "subscribers", "mode"), rows)


def _info(client: "Client", name: str) -> "QueueInfo | None":
    try:
        return client.queue_info(name)
    except RequestFailed:  # gone meanwhile, or the user may know no more than the name
        return None


def _user(url: str, user: str | None, **_: Any) -> str | None:
    from vibemq.client import address

    return user or address.user_of(url)[0]


def _look(client: "Client", name: str) -> "tuple[bool, QueueInfo | None]":
    """Whether the queue is there, and its description where the user may have it.

    Who may not is helped by the list: any permission for a queue puts it there.
    """
    try:
        return True, client.queue_info(name)
    except QueueNotFound:
        return False, None
    except NotAuthorized:
        return name in client.list_queues(), None


@queues.command("info")
@click.argument("name")
@json_option
@connection_options
def queues_info(name: str, as_json: bool, **connection: Any) -> None:
    """Show how full a queue is, and its options."""
    with _connect(**connection, reconnect=False) as client:
        described = _described(client.queue_info(name))
    if as_json:
        click.echo(json.dumps(described))
    else:
        rows = [(key.replace("_", " "), str(value)) for key, value in described.items() if value is not None]
        print_table(("queue", name), rows[1:])


def _described(info: "QueueInfo") -> dict[str, Any]:
    options = info.options
    return {
        "name": info.name,
        "messages": info.messages,
        "in_flight": info.in_flight,
        "dropped": info.dropped,
        "refused": info.refused,
        "subscribers": info.subscribers,
        "created": info.created.isoformat() if info.created else None,
        "mode": options.mode.name.lower(),
        "max_messages": options.max_messages,
        "overflow": options.overflow.name.lower(),
        "message_ttl_ms": options.message_ttl_ms,
        "attempts_max": options.attempts_max,
        "dead_letter_queue": info.dead_letter_queue if options.dead_letter else None,
        "ack_timeout_ms": options.ack_timeout_ms,
        "prefetch": options.prefetch,
        "durability": options.durability,
    }


@queues.command("create")
@click.argument("name")
@click.option(
    "--mode",
    type=click.Choice(["round_robin", "fan_out_with_ack", "fan_out_without_ack", "priority_based"]),
    help="Who gets a message (default round_robin).",
)
@click.option("--max-messages", type=click.IntRange(min=0), metavar="N", help="That may wait (default 0: no limit).")
@click.option(
    "--overflow",
    type=click.Choice(["drop_oldest", "drop_newest", "block_publisher", "redirect_to_dlq"]),
    help="When it is full (default drop_oldest).",
)
@click.option("--ttl", type=click.FloatRange(min=0), metavar="SECONDS", help="How long a message may wait.")
@click.option("--attempts", "attempts_max", type=click.IntRange(min=1), metavar="N", help="Deliveries (default 3).")
@click.option("--dead-letter", is_flag=True, help="Keep what could not be delivered, in NAME.dlq.")
@click.option("--dead-letter-queue", metavar="NAME", help="Keep it in this queue instead.")
@click.option("--ack-timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Until it is delivered again.")
@click.option("--prefetch", type=click.IntRange(min=1), metavar="N", help="Messages with a consumer at a time.")
@click.option("--durability", type=click.Choice(["os", "disk"]), help="What an acknowledgement means.")
@click.option(
    "--on-conflict",
    type=click.Choice(["ignore", "fail", "override"]),
    default="fail",
    show_default=True,
    help="If it exists and is not as the options given here say; override deletes its messages.",
)
@json_option
@connection_options
def queues_create(
    name: str,
    ttl: float | None,
    ack_timeout: float | None,
    dead_letter: bool,
    on_conflict: str,
    as_json: bool,
    url: str,
    user: str | None,
    password_stdin: bool,
    **options: Any,
) -> None:
    """Make a queue, unless it is there as wanted.

    A stream of that name becomes a queue by it, with all that it holds, and stays one.
    """
    if options["overflow"] == "redirect_to_dlq" and not (dead_letter or options["dead_letter_queue"]):
        raise click.UsageError("--overflow redirect_to_dlq needs --dead-letter or --dead-letter-queue")
    given = {key: value for key, value in options.items() if value is not None}
    if ttl is not None:
        given["message_ttl_ms"] = round(ttl * 1000)
    if ack_timeout is not None:
        given["ack_timeout_ms"] = round(ack_timeout * 1000)
    if dead_letter or options["dead_letter_queue"]:
        given["dead_letter"] = True
    with _connect(url, user, password_stdin, reconnect=False) as client:
        done = _create(client, name, on_conflict, given)
    _say(as_json, name, done)


def _create(client: "Client", name: str, on_conflict: str, options: dict[str, Any]) -> str:
    """Make the queue if that is needed, and say what was done."""
    is_there, info = _look(client, name)
    if not is_there:
        client.create_queue(name, **options)
        return "created"
    if info is None:
        if on_conflict == "override":
            raise UserError(
                f"queue {name} is there already, and whether it would have to be made anew this user may not see",
                hint="That needs the permission GetQueueInfo.",
            )
        client.create_queue(name, **options)  # changes nothing, but is refused where creating is not allowed
        click.echo("vibemq: whether its options are those wanted was not compared: that needs GetQueueInfo", err=True)
        return "was there already"
    try:
        client.declare_queue(name, on_conflict="fail", **options)
    except QueueConflict as conflict:
        if on_conflict == "fail":
            conflict.hint = "Leave the options out, or use --on-conflict override, which deletes its messages."
            raise
        if on_conflict == "override":
            client.declare_queue(name, on_conflict="override", **options)
            return "deleted and created again"
        click.echo(f"vibemq: {conflict}", err=True)
    return "was there already"


@queues.command("replay")
@click.argument("name")
@move_options
def queues_replay(name: str, **how: Any) -> None:
    """Put the dead letters in queue NAME back into the queues that they came from.

    They keep their ids, headers and priorities.  What does not say where it came from stays.
    A letter leaves NAME when its queue has confirmed it; if this command is killed, at most 64 may be in both.
    """
    _move(name, None, **how)


@queues.command("move")
@click.argument("name")
@click.argument("target")
@move_options
def queues_move(name: str, target: str, **how: Any) -> None:
    """Put the messages that wait in queue NAME into queue TARGET, which must be there.

    They keep their ids, headers and priorities.
    A message leaves NAME when TARGET has confirmed it; if this command is killed, at most 64 may be in both.
    """
    _move(name, target, **how)


def _move(name: str, target: str | None, count: int | None, dry_run: bool, as_json: bool, **connection: Any) -> None:
    with _connect(**connection) as client, moving_bar(f"from {name}") as progress:
        moved = client.move_messages(name, target, count=count, dry_run=dry_run, progress=progress)
    if as_json:
        click.echo(json.dumps({"queue": name, "moved": moved.queues, "left": moved.left, "dry_run": dry_run}))
        return
    for where, number in sorted(moved.queues.items()):
        click.echo(f"{'would move' if dry_run else 'moved'} {messages_text(number)} to queue {where}")
    if moved.left:
        click.echo(f"left {messages_text(moved.left)} without a word of where to put them back", err=True)
    if not moved.total:
        click.echo(f"nothing to move in queue {name}")


#: As `queues alter --reset` takes them; options with which a queue is made only are refused with the reason.
RESETTABLE = (
    "max_messages",
    "overflow",
    "message_ttl_ms",
    "attempts_max",
    "ack_timeout_ms",
    "backoff_ms",
    "backoff_max_ms",
    "prefetch",
    "dead_letter",
    "dead_letter_queue",
)


@queues.command("alter")
@click.argument("name")
@click.option("--max-messages", type=click.IntRange(min=0), metavar="N", help="That may wait; 0: no limit.")
@click.option(
    "--overflow",
    type=click.Choice(["drop_oldest", "drop_newest", "block_publisher", "redirect_to_dlq"]),
    help="When it is full.",
)
@click.option(
    "--ttl", type=click.FloatRange(min=0), metavar="SECONDS", help="How long a message may wait; 0: for ever."
)
@click.option("--attempts", "attempts_max", type=click.IntRange(min=1), metavar="N", help="Deliveries.")
@click.option(
    "--dead-letter/--no-dead-letter", default=None, help="Keep what could not be delivered, in NAME.dlq, or drop it."
)
@click.option("--dead-letter-queue", metavar="NAME", help="Keep it in this queue instead.")
@click.option("--ack-timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Until it is delivered again.")
@click.option("--prefetch", type=click.IntRange(min=1), metavar="N", help="Messages with a consumer at a time.")
@click.option("--reset", multiple=True, type=click.Choice(RESETTABLE), help="Back to the configuration. Repeatable.")
@click.option("--mode", hidden=True)
@click.option("--durability", hidden=True)
@json_option
@connection_options
def queues_alter(
    name: str,
    ttl: float | None,
    ack_timeout: float | None,
    dead_letter: bool | None,
    reset: tuple[str, ...],
    mode: str | None,
    durability: str | None,
    as_json: bool,
    url: str,
    user: str | None,
    password_stdin: bool,
    **options: Any,
) -> None:
    """Change options of a queue that is there; its messages stay.

    What is not given stays as it is. A smaller --ttl drops at once what is too old. A smaller --max-messages drops
    the oldest with --overflow drop_oldest: at once. All this needs the permissions CreateQueue and DeleteQueue.
    """
    for option, given in (("mode", mode), ("durability", durability)):
        if given is not None:
            raise click.UsageError(
                f"the {option} of a queue cannot change while it lives: make another queue with `vibemq queues create "
                f"OTHER --{option} {given}` and move the messages there, or delete the queue and make it anew"
            )
    changes: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    for key, seconds in (("message_ttl_ms", ttl), ("ack_timeout_ms", ack_timeout)):
        if seconds is not None:
            changes[key] = round(seconds * 1000)
    if dead_letter is not None or options["dead_letter_queue"]:
        changes["dead_letter"] = dead_letter is not False
    if both := changes.keys() & set(reset):
        raise click.UsageError(f"--reset {sorted(both)[0]} contradicts the value that is given for it")
    changes |= dict.fromkeys(reset)
    if not changes:
        raise click.UsageError("no option to change was given; `vibemq queues alter --help` lists them")
    with _connect(url, user, password_stdin, reconnect=False) as client:
        client.alter_queue(name, **changes)
    _say(as_json, name, "altered")


@queues.command("delete")
@click.argument("name")
@yes_option
@json_option
@connection_options
def queues_delete(name: str, yes: bool, as_json: bool, **connection: Any) -> None:
    """Delete a queue with all its messages."""
    with _connect(**connection, reconnect=False) as client:
        is_there, info = _look(client, name)
        if is_there and not yes:
            _confirm("Delete", name, info)
        client.delete_queue(name, missing_ok=True)  # who may not is refused, whatever there is
    if not is_there:
        raise UserError(f"there is no queue {name}", hint="`vibemq queues list` shows all.")
    _say(as_json, name, "deleted")


@queues.command("purge")
@click.argument("name")
@yes_option
@json_option
@connection_options
def queues_purge(name: str, yes: bool, as_json: bool, **connection: Any) -> None:
    """Drop all messages that wait in a queue."""
    with _connect(**connection, reconnect=False) as client:
        if not yes:
            _confirm("Purge", name, _look(client, name)[1])
        client.purge_queue(name)
    _say(as_json, name, "purged")


def _confirm(verb: str, name: str, info: "QueueInfo | None") -> None:
    held = f" with {messages_text(info.messages)}" if info else ""
    click.confirm(f"{verb} queue {name}{held}?", abort=True, err=True)


def _say(as_json: bool, name: str, done: str) -> None:
    click.echo(json.dumps({"queue": name, "result": done}) if as_json else f"queue {name} {done}")
