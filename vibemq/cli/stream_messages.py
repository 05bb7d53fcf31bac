# SPDX-License-Identifier: Apache-2.0
"""``vibemq streams publish`` and ``tail``: messages into a stream and out of it, from a shell."""

import base64
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, NamedTuple

import click

from vibemq.cli import EXIT_INTERRUPTED
from vibemq.cli.connection import StreamsBroker, streams_options
from vibemq.cli.resuming import Resuming
from vibemq.cli.terminal import Seconds, messages_text, nobody_reads
from vibemq.errors import TimeoutExceeded, VibeMQError
from vibemq.protocols.streams.spec import OffsetType

if TYPE_CHECKING:
    from vibemq.client._streams import Chunk
    from vibemq.client.streams import StreamsConnection

READ_BYTES = 65_536  # of standard input at a time: what is there goes out at once, however little it is
LOOK_S = 0.5  # while following: how soon it is noticed that nobody reads what is printed
AGO = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Ends(NamedTuple):
    """Where a stream begins and ends, and its size; None where nobody tells."""

    first: int | None = None
    end: int | None = None
    segments: int | None = None
    size_bytes: int | None = None


def ends_of(client: "StreamsConnection", name: str) -> Ends:
    facts = client.stats(name) if client.has_stats else {}
    if "committed_offset" in facts:
        first, end = max(0, facts["first_chunk_id"]), facts["committed_offset"] + 1
    else:
        first, end = client.first_offset(name), client.next_offset(name)
    return Ends(first, end, facts.get("segments"), facts.get("size_bytes"))


# ---- publish ----


@click.command("publish")
@click.argument("name")
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...")
@click.option("--file", "file", type=click.File("rb"), help="A message for each line of this file.")
@click.option("--raw", is_flag=True, help="Store the bytes as they are; stream clients expect AMQP 1.0 messages.")
@click.option(
    "--name",
    "reference",
    default="",
    metavar="PUBLISHER",
    help="Publish under this name, which no other program uses: after a restart nothing is stored twice.",
)
@click.option(
    "--wait",
    "patience_s",
    type=Seconds(min=0),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for a broker that is restarted.",
)
@streams_options
def streams_publish(
    name: str, messages: tuple[str, ...], file: IO[bytes] | None, raw: bool, reference: str, patience_s: float,
    as_json: bool, broker: StreamsBroker,
) -> None:  # fmt: skip
    """Publish each MESSAGE, or each line of a file or of standard input, to the stream NAME.

    A line goes out as soon as it is there.  Returns when the broker has confirmed all of them; Ctrl-C ends it early,
    and still says how many were confirmed.  When the connection ends it connects again for so long as --wait says, and
    sends what was not confirmed: without --name some of it may be stored twice then.
    """
    from vibemq.client._streams import write_message

    if messages and file is not None:
        raise click.UsageError("MESSAGE and --file cannot be used together")
    problem = None
    interrupts = _Interrupts()
    # Connected first: a password may be the first line of standard input.
    publisher = Resuming(broker, name, reference, patience_s, lambda: interrupts.came)
    with interrupts:
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
        click.echo(json.dumps({"stream": name, "published": publisher.confirmed, "failed": publisher.unconfirmed}))
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


@click.command("tail")
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
    with broker.connect() as client:
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
        ends = ends_of(client, name)
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
