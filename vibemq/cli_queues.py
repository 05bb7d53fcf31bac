# SPDX-License-Identifier: Apache-2.0
"""``vibemq publish``, ``vibemq consume`` and ``vibemq queues``: a broker's queues from a shell.

They are clients like any other and may run anywhere.  Data goes to standard output, everything else to
standard error, so they can be parts of a pipe: what `consume` prints, `publish` takes.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from vibemq.errors import NotAuthorized, QueueConflict, QueueNotFound, RequestFailed, UserError

if TYPE_CHECKING:
    from vibemq.client import Client, Message, QueueInfo, Summary

F = TypeVar("F", bound=Callable[..., Any])

IDLE_S = 0.2  # a queue that sends nothing for so long is asked whether it is empty
PREFETCH_MAX = 256  # as many as the broker gives without being told; with --count no more than wanted
EXIT_INTERRUPTED = 130  # as a shell says it of a command that SIGINT ended


def _sure(context: click.Context, _: click.Parameter, yes: bool) -> bool:
    if not yes and not context.resilient_parsing and not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask whether you are sure: add --yes")
    return yes


_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
_yes_option = click.option("--yes", is_flag=True, callback=_sure, help="Do not ask; needed where there is no terminal.")


def connection_options(command: F) -> F:
    """--url, --user and --password-stdin, which every command here has."""
    for option in (
        click.option("--password-stdin", is_flag=True, help="Read the password from the first line of standard input."),
        click.option("--user", metavar="NAME", help="Who we are, if not said in the URL."),
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
    from vibemq.client import connect

    if password_stdin and user is None:
        raise click.UsageError("--password-stdin needs --user")
    if user is not None:
        settings |= {"user": user, "password": _password(user, password_stdin)}
    return connect(url, **settings)


def _password(user: str, from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\n")
    if not sys.stdin.isatty():
        raise UserError("there is no terminal to ask for the password", hint="pipe it in, with --password-stdin")
    answer: str = click.prompt(f"Password of {user}", hide_input=True, err=True)
    return answer


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
@_json_option
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
    A queue that does not exist is made by this, unless the broker is told not to.
    A stream of that name becomes a queue by it, with all that it holds, and stays one; this command cannot see that.
    With --rate, Ctrl-C ends it early and still says how many the broker has.
    """
    if payload is not None and file is not None:
        raise click.UsageError("PAYLOAD and --file cannot be used together")
    if payload is None and count != 1:
        raise click.UsageError("--count needs PAYLOAD")
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
        click.echo(f"published {_messages(summary.published)} to queue {queue}")
    if summary.failed:
        click.echo(f"vibemq: {_messages(len(summary.failed))} refused, the first as follows", err=True)
        summary.raise_failed()
    if stopped:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)


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


def _messages(count: int) -> str:
    return f"{count} message{'' if count == 1 else 's'}"


# ---- consume ----


@click.command()
@click.argument("queue")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after N messages.")
@click.option("--no-ack", is_flag=True, help="Leave the messages in the queue: they go back when this ends.")
@click.option("--prefetch", type=click.IntRange(min=1), metavar="N", help="Messages on their way to us at a time.")
@click.option("--follow/--drain", default=True, help="Wait for more (default), or end when the queue is empty.")
@_json_option
@connection_options
def consume(
    queue: str, count: int | None, no_ack: bool, prefetch: int | None, follow: bool, as_json: bool, **connection: Any
) -> None:
    """Print the messages of QUEUE, a line for each, and acknowledge what is printed.

    A queue that does not exist is made by this, as by any consumer, unless the broker is told not to; a note says so.
    A stream of that name becomes a queue by it, with all that it holds, and stays one.
    With --json a line has the payload, the id, the headers and how often the message was delivered.
    """
    with _connect(**connection) as client:
        wanted = prefetch or (min(count, PREFETCH_MAX) if count else None)
        is_there, _ = _look(client, queue)
        with (
            contextlib.suppress(KeyboardInterrupt),  # how one ends --follow
            client.consume(queue, prefetch=wanted, timeout_s=None if follow else IDLE_S) as consumer,
        ):
            if not is_there:
                click.echo(f"vibemq: there was no queue {queue}: it is created", err=True)
            left = count
            while left is None or left > 0:
                message = next(consumer, None)
                if message is None:
                    if follow or no_ack or _is_empty(client, queue):
                        break
                    continue
                sys.stdout.write(_line(message, as_json) + "\n")
                sys.stdout.flush()  # before the broker is told that it may forget it
                if not no_ack:
                    message.ack()
                left = None if left is None else left - 1


def _is_empty(client: "Client", queue: str) -> bool:
    try:
        return client.queue_info(queue).messages == 0
    except RequestFailed:  # then silence has to be enough
        return True


def _line(message: "Message", as_json: bool) -> str:
    raw = (message.raw or b"null").decode("utf-8", "replace")
    if not as_json:
        return raw.replace("\r", " ").replace("\n", " ")  # between tokens only: JSON has no bare line break in a text
    rest = {"id": message.id, "headers": message.headers, "attempts": message.attempts}
    return json.dumps({**rest, "payload": json.loads(raw)}, ensure_ascii=False)


# ---- queues ----


@click.group()
def queues() -> None:
    """List, describe, create, delete and purge queues."""


@queues.command("list")
@_json_option
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
            (name, str(info.messages), str(info.in_flight), str(info.subscribers), info.options.mode.name.lower())
            if info
            else (name, "", "", "", "")
            for name, info in found
        ]
        _print_table(("queue", "messages", "in flight", "subscribers", "mode"), rows)


def _info(client: "Client", name: str) -> "QueueInfo | None":
    try:
        return client.queue_info(name)
    except RequestFailed:  # gone meanwhile, or the user may know no more than the name
        return None


def _user(url: str, user: str | None, **_: Any) -> str | None:
    from vibemq.client.settings import parse

    return user or parse(url).user


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
@_json_option
@connection_options
def queues_info(name: str, as_json: bool, **connection: Any) -> None:
    """Show how full a queue is, and its options."""
    with _connect(**connection, reconnect=False) as client:
        described = _described(client.queue_info(name))
    if as_json:
        click.echo(json.dumps(described))
    else:
        rows = [(key.replace("_", " "), str(value)) for key, value in described.items() if value is not None]
        _print_table(("queue", name), rows[1:])


def _described(info: "QueueInfo") -> dict[str, Any]:
    options = info.options
    return {
        "name": info.name,
        "messages": info.messages,
        "in_flight": info.in_flight,
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
@click.option("--max-messages", type=click.IntRange(min=0), metavar="N", help="That may wait (default 10000).")
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
@_json_option
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


@queues.command("delete")
@click.argument("name")
@_yes_option
@_json_option
@connection_options
def queues_delete(name: str, yes: bool, as_json: bool, **connection: Any) -> None:
    """Delete a queue with all its messages."""
    with _connect(**connection, reconnect=False) as client:
        is_there, info = _look(client, name)
        if is_there and not yes:
            _confirm("Delete", name, info)
        client.delete_queue(name)  # also if there is none: who may not is refused, whatever there is
    if not is_there:
        raise UserError(f"there is no queue {name}", hint="`vibemq queues list` shows all.")
    _say(as_json, name, "deleted")


@queues.command("purge")
@click.argument("name")
@_yes_option
@_json_option
@connection_options
def queues_purge(name: str, yes: bool, as_json: bool, **connection: Any) -> None:
    """Drop all messages that wait in a queue."""
    with _connect(**connection, reconnect=False) as client:
        if not yes:
            _confirm("Purge", name, _look(client, name)[1])
        client.purge_queue(name)
    _say(as_json, name, "purged")


def _confirm(verb: str, name: str, info: "QueueInfo | None") -> None:
    held = "" if info is None else f" with {_messages(info.messages)}"
    click.confirm(f"{verb} queue {name}{held}?", abort=True, err=True)


def _say(as_json: bool, name: str, done: str) -> None:
    click.echo(json.dumps({"queue": name, "result": done}) if as_json else f"queue {name} {done}")


def _print_table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
