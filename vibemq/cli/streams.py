# SPDX-License-Identifier: Apache-2.0
"""``vibemq streams``: a broker's streams from a shell, over the streams protocol.

A client like any other, which may run anywhere; against other brokers of the protocol it does what they have commands
for.  Data goes to standard output, everything else to standard error.
"""

import re
import shlex
from typing import TYPE_CHECKING, Any

import click

from vibemq.cli.connection import StreamsBroker, streams_options
from vibemq.cli.groups import Commands
from vibemq.cli.stream_messages import Ends, ends_of, streams_publish, streams_tail
from vibemq.cli.terminal import messages_text, named_values, print_facts, print_rows, say_done, yes_option
from vibemq.errors import RequestFailed, StreamExists, StreamNotFound, UserError
from vibemq.protocols.streams.spec import Code
from vibemq.units import SIZES, in_units

if TYPE_CHECKING:
    from vibemq.client.streams import ListedStream, StreamsConnection


@click.group(cls=Commands)
def streams() -> None:
    """Create, list, describe, publish to, read and delete streams, and show stored offsets."""


streams.add_command(streams_publish)
streams.add_command(streams_tail)


@streams.command("create")
@click.argument("name")
@click.option("--max-age", metavar="AGE", help="Drop what is older: a number and one of Y M D h m s, such as 12h.")
@click.option("--max-length-bytes", metavar="SIZE", help="Drop the oldest beyond this size, such as 20GB or 512MiB.")
@click.option("--segment-size", metavar="SIZE", help="Of a file of the log: what is dropped is dropped file by file.")
@click.option("--durability", type=click.Choice(["os", "disk", "remote"]), help="What a confirm means; of VibeMQ only.")
@click.option(
    "--read-unconfirmed",
    is_flag=True,
    help="Consumers do not wait for confirms, and may see messages that a loss removes; VibeMQ only.",
)
@click.option("--argument", "more", multiple=True, metavar="NAME=VALUE", callback=named_values,
              help="Any other argument; repeatable.")  # fmt: skip
@streams_options
def streams_create(
    name: str, max_age: str | None, max_length_bytes: str | None, segment_size: str | None, durability: str | None,
    read_unconfirmed: bool, more: dict[str, str], as_json: bool, broker: StreamsBroker,
) -> None:  # fmt: skip
    """Make a stream, unless it is there with the same arguments.

    Without --max-age and --max-length-bytes nothing is ever dropped.
    """
    arguments = {argument.removeprefix("x-"): value for argument, value in more.items()}
    if max_age is not None and not re.fullmatch(r"[1-9][0-9]{0,8}[YMDhms]", max_age):
        raise click.UsageError(f"--max-age {max_age}: a number and one of Y M D h m s is needed, such as 12h")
    named = {
        "max-age": max_age,
        "max-length-bytes": _size("--max-length-bytes", max_length_bytes),
        "stream-max-segment-size-bytes": _size("--segment-size", segment_size),
        "durability": durability,
        "read-unconfirmed": "true" if read_unconfirmed else None,
    }
    arguments |= {argument: value for argument, value in named.items() if value is not None}
    with broker.connect() as client:
        done = "created"
        try:
            client.create(name, arguments)
        except StreamExists:
            done = "was there already"
        except RequestFailed as problem:
            if problem.code != Code.PRECONDITION_FAILED or not client.exists(name):
                raise
            there = client.find_stream(name) if client.has_listings else None
            if there is not None and there.is_queue:
                hint = f"`vibemq queues info {shlex.quote(name)}` describes it."
                raise UserError(f"{name} is a queue", hint=hint) from problem
            has = f": it has {_arguments_text(there.arguments)}" if there is not None else ""
            raise UserError(
                f"stream {name} is there already, with other arguments{has}",
                hint="Leave the arguments out to use it as it is. A policy can override them: `vibemq ctl set_policy`.",
            ) from problem
    say_done(as_json, "stream", name, done)


def _size(option: str, text: str | None) -> str | None:
    if text is None:
        return None
    found = in_units(f"{text}B" if text.isdigit() else text, SIZES)
    if found is None:
        raise click.UsageError(f"{option} {text}: a number of bytes is needed, such as 1000000, 20GB or 512MiB")
    return str(found)


def _arguments_text(arguments: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(arguments.items())) or "none"


@streams.command("list")
@click.option("--all", "everything", is_flag=True, help="Queues, too: they can be read as streams.")
@streams_options
def streams_list(everything: bool, as_json: bool, broker: StreamsBroker) -> None:
    """Show the streams of a virtual host that the user may read or write; a command of VibeMQ brokers."""
    with broker.connect() as client:
        listed = [each for each in client.list_streams() if everything or not each.is_queue]
        found = [_listed(client, each) for each in listed]
    columns = {"name": "name", "kind": "kind", "messages": "messages", "size": "size_bytes", "arguments": "arguments"}
    none = "there are no streams here that the user may read or write; `vibemq streams create NAME` makes one"
    print_rows(as_json, found, columns, none, _shown)


@streams.command("info")
@click.argument("name")
@streams_options
def streams_info(name: str, as_json: bool, broker: StreamsBroker) -> None:
    """Show where a stream begins and ends, its size and its arguments, as far as the broker tells them."""
    with broker.connect() as client:
        listed = client.find_stream(name) if client.has_listings else None
        described = _described(name, listed, ends_of(client, name))
    print_facts(as_json, "stream", described, _shown)


def _listed(client: "StreamsConnection", listed: "ListedStream") -> dict[str, Any]:
    try:
        ends = ends_of(client, listed.name)
    except (RequestFailed, StreamNotFound):  # gone meanwhile, or the user may write it and not read it
        ends = Ends()
    return _described(listed.name, listed, ends)


def _described(name: str, listed: "ListedStream | None", ends: Ends) -> dict[str, Any]:
    return {
        "name": name,
        "kind": None if listed is None else "queue" if listed.is_queue else "stream",
        "first_offset": ends.first if ends.end else None,
        "last_offset": ends.end - 1 if ends.end else None,
        "messages": None if ends.end is None or ends.first is None else ends.end - ends.first,
        "segments": ends.segments,
        "size_bytes": ends.size_bytes,
        "arguments": None if listed is None else listed.arguments,
    }


def _shown(column: str, value: Any) -> str:
    """For people: sizes with their unit, and nothing where nobody tells."""
    if value is None:
        return ""
    if column == "size_bytes":
        return f"{value:,} B"
    return _arguments_text(value) if isinstance(value, dict) else str(value)


@streams.command("delete")
@click.argument("name")
@yes_option
@streams_options
def streams_delete(name: str, yes: bool, as_json: bool, broker: StreamsBroker) -> None:
    """Delete a stream with all its messages and stored offsets."""
    with broker.connect() as client:
        listed = client.find_stream(name) if client.has_listings else None
        if listed is not None and listed.is_queue:
            raise UserError(f"{name} is a queue", hint="Queues are deleted by `vibemq queues delete`.")
        if not yes:
            ends = ends_of(client, name)
            held = messages_text((ends.end or 0) - (ends.first or 0))
            click.confirm(f"Delete stream {name} with {held}?", abort=True, err=True)
        client.delete(name)
    say_done(as_json, "stream", name, "deleted")


@streams.command("offsets")
@click.argument("name")
@click.argument("consumers", nargs=-1, metavar="[CONSUMER]...")
@streams_options
def streams_offsets(name: str, consumers: tuple[str, ...], as_json: bool, broker: StreamsBroker) -> None:
    """Show the offsets that named consumers of the stream NAME have stored, and how many messages came after them.

    Without CONSUMER those of all; that a VibeMQ broker tells.
    """
    with broker.connect() as client:
        if consumers:
            stored = {consumer: client.query_offset(consumer, name) for consumer in consumers}
        else:
            stored = dict(client.list_offsets(name))
        end = ends_of(client, name).end or 0
    found = [
        {"consumer": consumer, "offset": offset, "lag": None if offset is None else max(0, end - offset - 1)}
        for consumer, offset in stored.items()
    ]
    columns = {key: key for key in ("consumer", "offset", "lag")}
    none = f"no consumer has stored an offset of stream {name}"
    print_rows(as_json, found, columns, none, lambda _, value: "none" if value is None else str(value))
