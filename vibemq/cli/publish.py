# SPDX-License-Identifier: Apache-2.0
"""``vibemq publish``: messages into a queue from a shell, also those that `vibemq consume --json` printed.

A client like any other, which may run anywhere.  Data goes to standard output, everything else to standard error.
"""

import base64
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, NamedTuple, TypeVar

import click

from vibemq.cli import EXIT_INTERRUPTED
from vibemq.cli.connection import Broker, queues_options
from vibemq.cli.terminal import messages_text, progress_bar
from vibemq.errors import UserError, VibeMQError

if TYPE_CHECKING:
    from vibemq.client import Client, Publisher

T = TypeVar("T")


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
@queues_options
def publish(
    queue: str, payload: str | None, file: IO[str] | None, text: bool, headers: dict[str, str], priority: str | None,
    count: int, rate: float | None, window: int, as_json: bool, broker: Broker,
) -> None:  # fmt: skip
    """Publish PAYLOAD, or each line of a file or of standard input, to QUEUE.

    What is JSON is sent as it is; anything else is sent as a text.  Returns when the broker has all of it.
    With --json and without PAYLOAD each line is one that `vibemq consume --json` printed, and becomes the same message:
    "stored" is the whole of it; to change something, leave "stored" out and change payload, headers or id.
    A queue that does not exist is made by this, unless the broker is told not to.
    A stream of that name becomes a queue by it, with all that it holds, and stays one; this command cannot see that.
    Ctrl-C ends it early and still says how many the broker has.
    """
    if payload is not None and file is not None:
        raise click.UsageError("PAYLOAD and --file cannot be used together")
    if count != 1 and payload is None:
        raise click.UsageError("--count needs PAYLOAD")
    if as_json and payload is None:
        if text or headers or priority:
            raise click.UsageError("with --json each line says of itself what --text, --header and --priority would")
        _publish_records(queue, file, rate, window, broker)
        return
    with broker.connect() as client:  # first: a password may be the first line of standard input
        given = filter(str.strip, file or sys.stdin) if payload is None else itertools.repeat(payload, count)
        bodies = (_body(line.rstrip("\r\n") if payload is None else line, text) for line in given)
        with progress_bar(f"to {queue}", count if payload is not None else None) as tell:
            counted = bodies if tell is None else _counted(bodies, tell)
            publisher = client.publisher(queue, window=window, raw=True)
            sending = (publisher.publish(body, headers=headers, priority=priority) for body in _paced(counted, rate))
            outcome = _publish([publisher], sending)
    _say(queue, outcome, as_json)


def _publish_records(queue: str, file: IO[str] | None, rate: float | None, window: int, broker: Broker) -> None:
    """The lines of `consume --json`, each of them the message that it was."""
    with broker.connect() as client:
        stored = client.publisher(queue, window=window, stored=True)
        plain = client.publisher(queue, window=window, raw=True)

        def sending() -> Iterator[int]:
            for number, line in enumerate(_paced(filter(str.strip, file or sys.stdin), rate), 1):
                _publish_record(client, stored, plain, line, number)
                yield number

        outcome = _publish([stored, plain], sending())
    _say(queue, outcome, as_json=True)


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


class _Outcome(NamedTuple):
    """What became of messages: how many are stored (None: not known), how many were refused, and why it ended early."""

    stored: int | None
    refused: int = 0
    problem: VibeMQError | None = None
    was_stopped: bool = False


def _publish(publishers: "Sequence[Publisher]", sending: Iterable[object]) -> _Outcome:
    """Send by running through `sending`, then wait for the broker's answers.

    It waits after Ctrl-C too, and after a message that cannot be sent.  A second Ctrl-C ends the wait.
    """
    problem, was_stopped = None, False
    try:
        for _ in sending:
            pass
    except KeyboardInterrupt:
        was_stopped = True
    except VibeMQError as refused:
        problem = refused
    summaries = []
    for publisher in publishers:
        try:
            summaries.append(publisher.flush())
        except VibeMQError as late:
            problem = problem or late
            try:
                summaries.append(publisher.flush())  # of messages that were answered before it gave up
            except VibeMQError:
                return _Outcome(None, 0, problem, was_stopped)
    failed = [refused for summary in summaries for refused in summary.failed]
    if failed and problem is None:
        problem = failed[0].error
    return _Outcome(sum(summary.published for summary in summaries), len(failed), problem, was_stopped)


def _say(queue: str, outcome: _Outcome, as_json: bool) -> None:
    """Say how many are stored before the first error is raised.  Raises VibeMQError."""
    if as_json:
        click.echo(json.dumps({"queue": queue, "published": outcome.stored, "failed": outcome.refused}))
    elif outcome.stored is None:
        click.echo(f"how many messages are stored in queue {queue} is not known")
    else:
        click.echo(f"published {messages_text(outcome.stored)} to queue {queue}")
    if outcome.refused:
        click.echo(f"vibemq: {messages_text(outcome.refused)} refused, the first as follows", err=True)
    if outcome.problem is not None:
        raise outcome.problem
    if outcome.was_stopped:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)


def _paced(items: Iterable[T], rate: float | None) -> Iterator[T]:
    """So many a second, at most."""
    started = time.monotonic()
    for number, item in enumerate(items):
        if rate is not None and (early_s := started + number / rate - time.monotonic()) > 0:
            time.sleep(early_s)
        yield item


def _counted(bodies: Iterable[bytes], tell: Callable[[int, int | None], object]) -> Iterator[bytes]:
    number = 0
    for number, body in enumerate(bodies, 1):
        yield body
        if number % 100 == 0:
            tell(number, None)
    tell(number, number)
