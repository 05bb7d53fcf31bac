# SPDX-License-Identifier: Apache-2.0
"""One queue between two doors, as a test has it, and how what came out of it is compared."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from door_clients import (
    DOORS,
    HTTP,
    MESSAGEPACK,
    SPARK,
    Door,
    Message,
    http_consume,
    messagepack_consume,
    messagepack_publish,
    native_client,
    spark_publish,
    spark_read,
    spark_says,
    streams_read,
)
from door_values import OFFSET, Row, got, sent_in_messagepack
from running import Running

CONSUMERS = [*(pytest.param(door, id=door) for door in DOORS), pytest.param(SPARK, id=SPARK, marks=pytest.mark.spark)]
#: Publishers in the tables of values, where each encoding of the hub is a column.
WAYS = DOORS | {MESSAGEPACK: Door(messagepack_publish, messagepack_consume)}
READERS = [*CONSUMERS, pytest.param(MESSAGEPACK, id=MESSAGEPACK), pytest.param(HTTP, id=HTTP)]
PAIRS = [
    pytest.param(publisher, *consumer.values, id=f"{publisher}-{consumer.id}", marks=consumer.marks)
    for publisher in WAYS
    for consumer in READERS
] + [pytest.param(SPARK, *each.values, id=f"{SPARK}-{each.id}", marks=pytest.mark.spark) for each in READERS]
numbers = itertools.count()
CLIENTS = {"streams": "rstream", "signalr": "aiosignalr"}  # those of others


class Exchange:
    """Publishes by one door and consumes by another, or by Spark, through a queue that nobody else uses."""

    def __init__(self, served: Running, request: pytest.FixtureRequest) -> None:
        self.served, self.request = served, request
        self.queue = f"doors-{next(numbers)}"
        with native_client(served) as client:
            client.create_queue(self.queue)

    def __call__(self, publisher: str, consumer: str, messages: Sequence[Message]) -> list[Message]:
        self.publish(publisher, messages)
        return self.consume(consumer, len(messages))

    def publish(self, publisher: str, messages: Sequence[Message]) -> None:
        if publisher == SPARK:
            spark_publish(self.request.getfixturevalue("doors_spark"), self.served, self.queue, messages)
            return
        need(publisher)
        WAYS[publisher].publish(self.served, self.queue, messages)

    def consume(self, consumer: str, count: int, queue: str | None = None) -> list[Message]:
        if consumer == SPARK:
            spark = self.request.getfixturevalue("doors_spark")
            return spark_read(spark, self.served, queue or self.queue, count)
        if consumer == HTTP:
            return http_consume(self.served, queue or self.queue, count)
        need(consumer)
        return WAYS[consumer].consume(self.served, queue or self.queue, count)

    def stored(self, count: int) -> list[tuple[bytes, Any]]:
        """The first messages as they lie in the log, with what a streams client is told of each."""
        need("streams")
        return streams_read(self.served, self.queue, count)

    def leave(self, taker: str) -> None:
        need(taker)
        leave = DOORS[taker].leave
        assert leave is not None
        leave(self.served, self.queue)


def sent(row: Row, publisher: str) -> Message | None:
    """A row of the tables in the words of a publisher; None where it has none for it."""
    if publisher == MESSAGEPACK:
        return sent_in_messagepack(row)
    if publisher != SPARK:
        return row.sent.get(publisher)
    message = row.sent.get("streams")
    return message if message is not None and spark_says(message) else None


def need(door: str) -> None:
    if (client := CLIENTS.get(door)) is not None:
        pytest.importorskip(client, reason=f"the client {client} is not installed")


def typed(value: Any) -> Any:
    """Return a form in which 1, 1.0 and True differ, and 0.0 and -0.0 too."""
    if isinstance(value, dict):
        return {name: typed(each) for name, each in value.items()}
    if isinstance(value, list):
        return [typed(each) for each in value]
    return type(value).__name__, repr(value) if isinstance(value, float) else value


def comparable(message: Message, offset: int) -> Message:
    id = str(offset) if message.id is OFFSET else message.id
    headers = typed(dict(message.headers))
    return Message(typed(message.body), typed(id), headers, message.content_type, message.key)


def expected(row: Row, consumer: str, offset: int) -> Message:
    return comparable(got(row, consumer), offset)
