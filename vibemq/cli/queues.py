# SPDX-License-Identifier: Apache-2.0
"""``vibemq queues``: a client like any other, which may run anywhere."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from vibemq.cli.connection import Broker, queues_options
from vibemq.cli.groups import Commands
from vibemq.cli.terminal import (
    F,
    Seconds,
    messages_text,
    print_facts,
    print_rows,
    progress_bar,
    say_done,
    with_options,
    yes_option,
)
from vibemq.errors import NotAuthorized, QueueConflict, QueueNotFound, RequestFailed, UserError

if TYPE_CHECKING:
    from vibemq.client import Client, QueueInfo

#: Of the list: titles, and the keys of what is described.
COLUMNS = {"queue": "name", "messages": "messages", "in flight": "in_flight", "dropped": "dropped",
           "subscribers": "subscribers", "mode": "mode"}  # fmt: skip


@click.group(cls=Commands)
def queues() -> None:
    """List, describe, create, alter, delete and purge queues; move what is in them."""


@queues.command("list")
@queues_options
def queues_list(as_json: bool, broker: Broker) -> None:
    """Show the queues for which the user has any permission; without users that is all of them."""
    with broker.connect(reconnect=False) as client:
        found = [_listed(client, name) for name in client.list_queues()]
    user = broker.named
    none = "there are no queues" if user is None else f"there is no queue for which user {user} has any permission"
    print_rows(as_json, found, COLUMNS, f"{none}; `vibemq queues create NAME` makes one")


def _listed(client: "Client", name: str) -> dict[str, Any]:
    try:
        return _described(client.queue_info(name))
    except RequestFailed:  # gone meanwhile, or the user may know no more than the name
        return {"name": name}


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
@queues_options
def queues_info(name: str, as_json: bool, broker: Broker) -> None:
    """Show how full a queue is, and its options."""
    with broker.connect(reconnect=False) as client:
        described = _described(client.queue_info(name))
    print_facts(as_json, "queue", described, lambda _, value: None if value is None else str(value))


def _described(info: "QueueInfo") -> dict[str, Any]:
    options = info.options
    return {
        "name": info.name,
        **{key: getattr(info, key) for key in ("messages", "in_flight", "dropped", "refused", "subscribers")},
        "created": info.created.isoformat() if info.created else None,
        "mode": options.mode.name.lower(),
        "max_messages": options.max_messages,
        "overflow": options.overflow.name.lower(),
        "message_ttl_ms": options.message_ttl_ms,
        "attempts_max": options.attempts_max,
        "dead_letter_queue": info.dead_letter_queue if options.dead_letter else None,
        **{key: getattr(options, key) for key in ("ack_timeout_ms", "prefetch", "durability")},
    }


def _milliseconds(_: click.Context, __: click.Parameter, seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def limit_options(*, is_new: bool) -> Callable[[F], F]:
    """What a queue may be given when it is made, and later; one that ``is_new`` has defaults."""
    count, letters = click.IntRange(min=1), "Keep what could not be delivered, in NAME.dlq"
    seconds: dict[str, Any] = {"type": Seconds(min=0), "callback": _milliseconds, "metavar": "SECONDS"}
    overflow = click.Choice(["drop_oldest", "drop_newest", "block_publisher", "redirect_to_dlq"])

    def about(text: str, new: str, later: str = "") -> str:
        return f"{text}{new if is_new else later}."

    return with_options(
        click.option("--max-messages", type=click.IntRange(min=0), metavar="N",
                     help=about("That may wait", " (default 0: no limit)", "; 0: no limit")),
        click.option("--overflow", type=overflow, help=about("When it is full", " (default drop_oldest)")),
        click.option("--ttl", "message_ttl_ms", **seconds,
                     help=about("How long a message may wait", "", "; 0: for ever")),
        click.option("--attempts", "attempts_max", type=count, metavar="N",
                     help=about("Deliveries that may fail", " (default 3 with dead letters, else any number)")),
        click.option("--dead-letter" if is_new else "--dead-letter/--no-dead-letter", is_flag=True, default=None,
                     help=about(letters, "", ", or drop it")),
        click.option("--dead-letter-queue", metavar="NAME", help="Keep it in this queue instead."),
        click.option("--ack-timeout", "ack_timeout_ms", **seconds, help="Until it is delivered again."),
        click.option("--prefetch", type=count, metavar="N", help="Messages with a consumer at a time."),
    )  # fmt: skip


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were typed, and what follows from them."""
    given = {key: value for key, value in options.items() if value is not None}
    if given.get("dead_letter_queue"):
        given.setdefault("dead_letter", True)
    return given


@queues.command("create")
@click.argument("name")
@click.option(
    "--mode",
    type=click.Choice(["round_robin", "fan_out_with_ack", "fan_out_without_ack", "priority_based"]),
    help="Who gets a message (default round_robin).",
)
@limit_options(is_new=True)
@click.option("--durability", type=click.Choice(["os", "disk", "remote"]), help="What an acknowledgement means.")
@click.option(
    "--on-conflict",
    type=click.Choice(["ignore", "fail", "override"]),
    default="fail",
    show_default=True,
    help="If it exists and is not as the options given here say; override deletes its messages.",
)
@queues_options
def queues_create(name: str, on_conflict: str, as_json: bool, broker: Broker, **options: Any) -> None:
    """Make a queue, unless it is there as wanted.

    A stream of that name becomes a queue by it, with all that it holds, and stays one.
    """
    given = _given(options)
    if given.get("overflow") == "redirect_to_dlq" and not given.get("dead_letter"):
        raise click.UsageError("--overflow redirect_to_dlq needs --dead-letter or --dead-letter-queue")
    with broker.connect(reconnect=False) as client:
        done = _create(client, name, on_conflict, given)
    say_done(as_json, "queue", name, done)


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
            conflict.hint = "Leave the options out to use it as it is; `vibemq queues alter` changes options."
            raise
        if on_conflict == "override":
            client.declare_queue(name, on_conflict="override", **options)
            return "deleted and created again"
        click.echo(f"vibemq: {conflict}", err=True)
    return "was there already"


move_options = with_options(
    click.option("--count", type=click.IntRange(min=1), metavar="N", help="Move at most N messages."),
    click.option("--dry-run", is_flag=True, help="Only say how many would go where (of the first 10,000 at most)."),
    queues_options,
)


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


def _move(name: str, target: str | None, count: int | None, dry_run: bool, as_json: bool, broker: Broker) -> None:
    with broker.connect() as client, progress_bar(f"from {name}") as progress:
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
RESETTABLE = ("max_messages", "overflow", "message_ttl_ms", "attempts_max", "ack_timeout_ms", "backoff_ms",
              "backoff_max_ms", "prefetch", "dead_letter", "dead_letter_queue")  # fmt: skip


@queues.command("alter")
@click.argument("name")
@limit_options(is_new=False)
@click.option("--reset", multiple=True, type=click.Choice(RESETTABLE), help="Back to the configuration. Repeatable.")
@click.option("--mode", hidden=True)
@click.option("--durability", hidden=True)
@queues_options
def queues_alter(name: str, reset: tuple[str, ...], as_json: bool, broker: Broker, **options: Any) -> None:
    """Change options of a queue that is there; its messages stay.

    What is not given stays as it is. A smaller --ttl drops at once what is too old. A smaller --max-messages drops
    the oldest with --overflow drop_oldest: at once. All this needs the permissions CreateQueue and DeleteQueue.
    """
    for option in ("mode", "durability"):
        if (given := options.pop(option)) is not None:
            raise click.UsageError(
                f"the {option} of a queue cannot change while it lives: make another queue with `vibemq queues create "
                f"OTHER --{option} {given}` and move the messages there, or delete the queue and make it anew"
            )
    changes = _given(options)
    if both := changes.keys() & set(reset):
        raise click.UsageError(f"--reset {sorted(both)[0]} contradicts the value that is given for it")
    changes |= dict.fromkeys(reset)
    if not changes:
        raise click.UsageError("no option to change was given; `vibemq queues alter --help` lists them")
    with broker.connect(reconnect=False) as client:
        client.alter_queue(name, **changes)
    say_done(as_json, "queue", name, "altered")


@queues.command("delete")
@click.argument("name")
@yes_option
@queues_options
def queues_delete(name: str, yes: bool, as_json: bool, broker: Broker) -> None:
    """Delete a queue with all its messages."""
    with broker.connect(reconnect=False) as client:
        is_there, info = _look(client, name)
        if is_there and not yes:
            _confirm("Delete", name, info)
        try:
            client.delete_queue(name, missing_ok=is_there)  # who may not is refused, whatever there is
        except QueueNotFound as missing:
            missing.hint = "`vibemq queues list` shows all."  # the client's is for programs
            raise
    say_done(as_json, "queue", name, "deleted")


@queues.command("purge")
@click.argument("name")
@yes_option
@queues_options
def queues_purge(name: str, yes: bool, as_json: bool, broker: Broker) -> None:
    """Drop all messages that wait in a queue."""
    with broker.connect(reconnect=False) as client:
        if not yes:
            _confirm("Purge", name, _look(client, name)[1])
        client.purge_queue(name)
    say_done(as_json, "queue", name, "purged")


def _confirm(verb: str, name: str, info: "QueueInfo | None") -> None:
    held = f" with {messages_text(info.messages)}" if info else ""
    click.confirm(f"{verb} queue {name}{held}?", abort=True, err=True)
