# SPDX-License-Identifier: Apache-2.0
"""``vibemq consume``: the messages of a queue to a shell.

A client like any other, which may run anywhere.  Data goes to standard output, everything else to standard error.
"""

import base64
import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from vibemq.cli.connection import Broker, queues_options
from vibemq.cli.terminal import WholeSeconds, nobody_reads, watch_reader
from vibemq.errors import RequestFailed

if TYPE_CHECKING:
    from vibemq.client import Client, Consumer, Message

IDLE_S, PATIENCE_S = 0.2, 30.0  # a queue that sends nothing for so long is asked whether it is empty; is given up
PREFETCH_MAX = 256  # as many as the broker gives without being told; with --count no more than wanted


@click.command()
@click.argument("queue")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after N messages.")
@click.option("--no-ack", is_flag=True, help="Leave the messages in the queue: they go back when this ends.")
@click.option("--prefetch", type=click.IntRange(min=1), metavar="N", help="Messages on their way to us at a time.")
@click.option("--follow/--drain", default=True, help="Wait for more (default), or end when the queue is empty.")
@click.option("--subscriber", default="", metavar="NAME", help="A member of a fan-out; its copies wait for it.")
@click.option("--subscriber-ttl", type=WholeSeconds(min=0), default=0, metavar="S", help="For so long.")
@click.option("--create", is_flag=True, help="Make the queue if there is none, also of a stream of that name.")
@queues_options
def consume(
    queue: str, count: int | None, no_ack: bool, prefetch: int | None, follow: bool, create: bool, subscriber: str,
    subscriber_ttl: int, as_json: bool, broker: Broker,
) -> None:  # fmt: skip
    """Print the messages of QUEUE, a line for each, and acknowledge what is printed.

    Nothing is made by this but with --create, and a stream is not consumed: `vibemq streams tail` reads it.
    With --create a stream becomes a queue for good: it keeps what the stream's retention keeps, and has no limit.
    With --json a line has the payload, the id, the headers, how often the message was delivered, and in "stored" the
    whole of it as the broker keeps it: `vibemq publish --json` takes such lines, and makes the same messages of them.
    """
    with broker.connect() as client:
        wanted = prefetch or (min(count, PREFETCH_MAX) if count else None)
        stored, idle_s = as_json and client.gives_stored, None if follow else IDLE_S
        with client.consume(
            queue, prefetch=wanted, create=create, stored=stored, timeout_s=idle_s,
            subscriber=subscriber, subscriber_ttl_s=subscriber_ttl,
        ) as consumer:  # fmt: skip
            watch_reader(consumer.stop)
            given = consumer if follow else _until_empty(client, queue, consumer, no_ack)
            for message in itertools.islice(given, count):
                click.echo(_line(message, as_json, stored))  # before the broker is told to forget it
                if not no_ack:
                    message.ack()


def _until_empty(client: "Client", queue: str, consumer: "Consumer", no_ack: bool) -> "Iterator[Message]":
    silent_s = 0.0
    while silent_s < PATIENCE_S:
        for message in consumer:  # until it is silent
            silent_s = 0.0
            yield message
        if no_ack or nobody_reads() or _is_empty(client, queue):
            return
        silent_s += IDLE_S
    click.echo(f"vibemq: what is left in {queue} is put off, or too large for a client", err=True)


def _is_empty(client: "Client", queue: str) -> bool:
    with contextlib.suppress(RequestFailed):  # then silence has to be enough
        return client.queue_info(queue).messages == 0
    return True


def _line(message: "Message", as_json: bool, stored: bool) -> str:
    if not as_json:
        raw = (message.raw or b"null").decode("utf-8", "replace")
        return raw.replace("\r", " ").replace("\n", " ")  # between tokens only: JSON has no bare line break in a text
    about = {"id": message.id, "headers": message.headers, "attempts": message.attempts}
    if not stored:
        return _json({**about, "payload": json.loads((message.raw or b"null").decode("utf-8", "replace"))})
    from vibemq.client._streams import read_message
    from vibemq.protocols.native.codec import is_json

    body, _, headers = read_message(message.raw)
    payload: Any = None
    if body and is_json(body):
        payload = json.loads(body)
    elif body:
        try:
            payload = body.decode()
        except UnicodeDecodeError:
            payload, headers["payload-encoding"] = base64.b64encode(body).decode(), "base64"
    shown = {name: text for name, text in headers.items() if text is not None}
    whole = base64.b64encode(message.raw).decode()
    return _json({**about, "headers": shown, "payload": payload, "stored": whole})


def _json(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False)
