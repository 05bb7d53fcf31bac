# SPDX-License-Identifier: Apache-2.0
"""``vibemq streams``: a broker's streams from a shell, over the streams protocol.

A client like any other, which may run anywhere; against other brokers of the protocol it does what they have commands
for.  Data goes to standard output, everything else to standard error.
"""

import base64
import contextlib
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from vibemq.cli.connection import StreamsBroker, streams_options
from vibemq.cli.terminal import (
    EXIT_INTERRUPTED,
    messages_text,
    named_values,
    nobody_reads,
    print_facts,
    print_rows,
    say_done,
    yes_option,
)  # fmt: skip
from vibemq.errors import RequestFailed, StreamExists, StreamNotFound, TimeoutExceeded, UserError, VibeMQError
from vibemq.protocols.streams.spec import Code, OffsetType

if TYPE_CHECKING:
    from vibemq.client._streams import Chunk
    from vibemq.client.streams import ListedStream, StreamsConnection
READ_BYTES = 65_536  # of standard input at a time: what is there goes out at once, however little it is
LOOK_S = 0.5  # while following: how soon it is noticed that nobody reads what is printed
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
         "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}  # fmt: skip
AGO = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@click.group()
def streams() -> None:
    """Create, list, describe, publish to, read and delete streams, and show stored offsets."""


# ---- what there is ----


@streams.command("create")
@click.argument("name")
@click.option("--max-age", metavar="AGE", help="Drop what is older: a number and one of Y M D h m s, such as 12h.")
@click.option("--max-length-bytes", metavar="SIZE", help="Drop the oldest beyond this size, such as 20GB or 512MiB.")
@click.option("--segment-size", metavar="SIZE", help="Of a file of the log: what is dropped is dropped file by file.")
@click.option("--durability", type=click.Choice(["os", "disk"]), help="What a confirm means; of VibeMQ only.")
@click.option("--argument", "more", multiple=True, metavar="NAME=VALUE", callback=named_values,
              help="Any other argument; repeatable.")  # fmt: skip
@streams_options
def streams_create(
    name: str, max_age: str | None, max_length_bytes: str | None, segment_size: str | None, durability: str | None,
    more: dict[str, str], as_json: bool, broker: StreamsBroker,
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
                raise UserError(f"{name} is a queue", hint=f"`vibemq queues info {name}` describes it.") from problem
            has = f": it has {_arguments_text(there.arguments)}" if there is not None else ""
            raise UserError(
                f"stream {name} is there already, with other arguments{has}",
                hint="Leave the arguments out to use it as it is. A policy can override them: `vibemq ctl set_policy`.",
            ) from problem
    say_done(as_json, "stream", name, done)


def _size(option: str, text: str | None) -> str | None:
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([a-zA-Z]*)", text)
    unit = UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise click.UsageError(f"{option} {text}: a number of bytes is needed, such as 1000000, 20GB or 512MiB")
    return str(int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit)


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
        described = _described(name, listed, _ends(client, name))
    print_facts(as_json, "stream", described, _shown)


class _Ends(NamedTuple):
    """Where a stream begins and ends, and its size; None where nobody tells."""

    first: int | None = None
    end: int | None = None
    segments: int | None = None
    size_bytes: int | None = None


def _ends(client: "StreamsConnection", name: str) -> _Ends:
    facts = client.stats(name) if client.has_stats else {}
    if "committed_offset" in facts:
        first, end = max(0, facts["first_chunk_id"]), facts["committed_offset"] + 1
    else:
        first, end = client.first_offset(name), client.next_offset(name)
    return _Ends(first, end, facts.get("segments"), facts.get("size_bytes"))


def _listed(client: "StreamsConnection", listed: "ListedStream") -> dict[str, Any]:
    try:
        ends = _ends(client, listed.name)
    except (RequestFailed, StreamNotFound):  # gone meanwhile, or the user may write it and not read it
        ends = _Ends()
    return _described(listed.name, listed, ends)


def _described(name: str, listed: "ListedStream | None", ends: _Ends) -> dict[str, Any]:
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
            raise UserError(f"{name} is a queue", hint=f"`vibemq queues delete {name}` deletes it.")
        if not yes:
            ends = _ends(client, name)
            held = messages_text((ends.end or 0) - (ends.first or 0))
            click.confirm(f"Delete stream {name} with {held}?", abort=True, err=True)
        client.delete(name)
    say_done(as_json, "stream", name, "deleted")


# ---- publish ----


@streams.command("publish")
@click.argument("name")
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...")
@click.option("--file", "file", type=click.File("rb"), help="A message for each line of this file.")
@click.option("--raw", is_flag=True, help="Store the bytes as they are; stream clients expect AMQP 1.0 messages.")
@streams_options
def streams_publish(
    name: str, messages: tuple[str, ...], file: IO[bytes] | None, raw: bool, as_json: bool, broker: StreamsBroker
) -> None:
    """Publish each MESSAGE, or each line of a file or of standard input, to the stream NAME.

    A line goes out as soon as it is there.  Returns when the broker has confirmed all of them; Ctrl-C ends it early,
    and still says how many were confirmed.
    """
    from vibemq.client._streams import write_message

    if messages and file is not None:
        raise click.UsageError("MESSAGE and --file cannot be used together")
    problem = None
    with broker.connect() as client, _Interrupts() as interrupts:
        # Connected first: a password may be the first line of standard input.
        publisher = client.publisher(name)
        given = [[message.encode("utf-8", "surrogateescape") for message in messages]]
        try:
            for bodies in given if messages else _lines(file or sys.stdin.buffer, interrupts):
                publisher.publish(bodies if raw else [write_message(body) for body in bodies])
        except VibeMQError as refused:
            problem = refused
        try:
            publisher.close()
        except VibeMQError as refused:
            problem = problem or refused
    if as_json:
        failed = publisher.published - publisher.confirmed
        click.echo(json.dumps({"stream": name, "published": publisher.confirmed, "failed": failed}))
    else:
        click.echo(f"published {messages_text(publisher.confirmed)} to stream {name}")
    if problem is not None:
        raise problem
    if interrupts.came:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)


class _Interrupts:
    """Ctrl-C that ends waiting for input and nothing else, so that what was sent is confirmed and counted.

    A second one ends everything.
    """

    def __init__(self) -> None:
        self.came = 0
        self._may_end = False

    def __enter__(self) -> "_Interrupts":
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is signal.default_int_handler:  # or somebody had it ignored
            signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._before)

    def _on_interrupt(self, *_: object) -> None:
        self.came += 1
        if self._may_end or self.came > 1:
            raise KeyboardInterrupt

    def read(self, read: Callable[[int], bytes], size: int) -> bytes:
        """Nothing at the end, and after an interrupt."""
        if self.came:
            return b""
        try:
            self._may_end = True
            return read(size)
        except KeyboardInterrupt:
            return b""
        finally:
            self._may_end = False


def _lines(file: IO[bytes], interrupts: _Interrupts) -> Iterator[list[bytes]]:
    """The lines that are there, again and again; those with nothing in them are no messages."""
    rest = b""
    read = getattr(file, "read1", file.read)
    while data := interrupts.read(read, READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        yield [line.removesuffix(b"\r") for line in lines if line.strip()]
    if rest.strip() and not interrupts.came:
        yield [rest.removesuffix(b"\r")]


# ---- tail ----


class Start(NamedTuple):
    """Where to begin to read."""

    type: OffsetType
    value: int = 0


def _start(_: click.Context, option: click.Parameter, given: str) -> Start:
    text = given.strip()
    words = {"first": OffsetType.FIRST, "last": OffsetType.LAST, "next": OffsetType.NEXT}
    if text.lower() in words:
        return Start(words[text.lower()])
    if text.isascii() and text.isdigit() and int(text) < 2**63:
        return Start(OffsetType.OFFSET, int(text))
    try:
        if match := re.fullmatch(r"([0-9]{1,9})([smhd])(?: ago)?", text):
            when_s = max(0.0, time.time() - int(match[1]) * AGO[match[2]])
        else:
            when_s = max(0.0, datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):  # the latter of years that there are not in every time zone
        raise click.BadParameter(
            f"{text!r} is none of first, last, next, an offset, a time such as 2026-01-31T12:00:00Z, "
            "or how long ago, such as 10m",
            param=option,
        ) from None
    return Start(OffsetType.TIMESTAMP, int(when_s * 1000))


@streams.command("tail")
@click.argument("name")
@click.option(
    "--from",
    "start",
    callback=_start,
    default="last",
    metavar="WHERE",
    help="first, last (what was written last; default), next (what comes from now on), an offset, a time such as "
    "2026-01-31T12:00:00Z (local without a zone), or how long ago, such as 10m.",
)
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after N messages.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more at the end; --from next always does.")
@streams_options
def streams_tail(
    name: str, start: Start, count: int | None, follow: bool, as_json: bool, broker: StreamsBroker
) -> None:
    """Print messages of the stream NAME, a line for each, and end where the stream ends now.

    Nothing is taken from the stream, and no offset is stored.  With --json a line has the offset, the time of the
    message's chunk, the id, the headers and the body: as text, or in base64 where it is none.  Times are those of
    chunks, so --from a time may begin with some messages that are older.
    """
    follow = follow or start.type == OffsetType.NEXT
    # Ctrl-C is how one ends --follow.
    with broker.connect() as client, contextlib.suppress(KeyboardInterrupt):
        left = count
        for chunk in _chunks(client, name, start, follow):
            for offset, message in chunk.messages():
                if start.type == OffsetType.OFFSET and offset < start.value:
                    continue  # what the first chunk holds before it
                sys.stdout.write(_line(chunk, offset, message, as_json) + "\n")
                left = None if left is None else left - 1
                if left == 0:
                    return
            sys.stdout.flush()


def _chunks(client: "StreamsConnection", name: str, start: Start, follow: bool) -> "Iterator[Chunk]":
    """The chunks from there on; without `follow` up to where the stream ends now, or ended when this began."""
    if not follow:
        ends = _ends(client, name)
        end = ends.end or 0
        begin: int | None = start.value if start.type == OffsetType.OFFSET else 0
        if start.type == OffsetType.TIMESTAMP:  # which may be behind the last chunk; None: the broker cannot tell
            begin = client.resolve_offset(name, start.type, start.value)
        if (ends.first or 0) >= end or (begin is not None and begin >= end):
            return
    with client.subscribe(name, start.type, start.value, credit=2) as subscription:
        while True:
            chunk = subscription.next_chunk(LOOK_S if follow else client.timeout_s, default=None)
            if chunk is not None:
                yield chunk
            if follow:
                if nobody_reads():
                    return
            elif chunk is None:
                raise TimeoutExceeded(
                    f"stream {name}: nothing came within {client.timeout_s:g} s, before its end at {end}",
                    hint="Is the broker overloaded?",
                )
            elif chunk.next_offset >= end:
                return


def _line(chunk: "Chunk", offset: int, message: bytes, as_json: bool) -> str:
    from vibemq.client._streams import read_message

    body, identity, headers = read_message(message)
    if not as_json:
        return body.decode("utf-8", "replace").replace("\r", " ").replace("\n", " ")
    try:
        content = {"body": body.decode()}
    except UnicodeDecodeError:
        content = {"body_base64": base64.b64encode(body).decode()}
    when = datetime.fromtimestamp(chunk.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    shown = {"offset": offset, "timestamp": when, "id": identity, "headers": headers, **content}
    return json.dumps(shown, ensure_ascii=False)


# ---- stored offsets ----


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
        end = _ends(client, name).end or 0
    found = [
        {"consumer": consumer, "offset": offset, "lag": None if offset is None else max(0, end - offset - 1)}
        for consumer, offset in stored.items()
    ]
    columns = {key: key for key in ("consumer", "offset", "lag")}
    none = f"no consumer has stored an offset of stream {name}"
    print_rows(as_json, found, columns, none, lambda _, value: "none" if value is None else str(value))
