# SPDX-License-Identifier: Apache-2.0
"""The parts of a message that are not its publisher's: how it is stored, where it lies, how often it went out, and what
its dead letter says; through every door."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime

import pytest
from door_clients import (
    DEADLINE_S,
    DOORS,
    TAKERS,
    Message,
    Stored,
    micromsg2_client,
    micromsg2_message,
    native_client,
)
from door_exchange import CONSUMERS, Exchange, comparable, expected
from door_headers import DAY, amqp
from door_values import JSON, PLAIN, TEXT, UUID, Row

from vibemq.protocols.micromsg2.codec import Untyped

pytestmark = pytest.mark.timeout(180)

# ---- how it is stored ----

ID = b"\xa1\x03m-1"
JSON_SYMBOL = b"\xa3\x10application/json"
PROPERTIES, HEADERS, DATA = b"\0\x53\x73", b"\0\x53\x74", b"\0\x53\x75"
ANNOTATIONS = b"\0\x53\x72"
NULL = b"\x40"
BODY = DATA + b'\xa0\x07{"n":1}'
SEVEN = b"\0\0\0\0\0\0\0\x07"
SECOND_AND_A_HALF = datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
HALF = b"\x3f\xe0\0\0\0\0\0\0"

STORED = {
    "native": (
        "native",
        Message({"n": 1}, headers={"a": "7"}),
        PROPERTIES + b"\xc0\x1d\x07" + ID + 5 * NULL + JSON_SYMBOL
        + HEADERS + b"\xd1\0\0\0\x0a\0\0\0\x02" + b"\xa1\x01a\xa1\x017" + BODY,
    ),
    "signalr": (
        "signalr",
        Message({"n": 1}, headers={"a": 7, "b": True, "c": 0.5}, key="k"),
        PROPERTIES + b"\xc0\x23\x0b" + ID + 5 * NULL + JSON_SYMBOL + 3 * NULL + b"\xa1\x01k"
        + HEADERS + b"\xd1\0\0\0\x20\0\0\0\x06" + b"\xa1\x01a\x81" + SEVEN + b"\xa1\x01b\x41" + b"\xa1\x01c\x82" + HALF
        + BODY,
    ),
    "micromsg2": (
        "micromsg2",
        Message(b'{"n":1}', headers={"a": 7, "b": 0.5, "c": "x", "d": SECOND_AND_A_HALF}, content_type=JSON),
        PROPERTIES + b"\xc0\x1d\x07" + ID + 5 * NULL + JSON_SYMBOL
        + HEADERS + b"\xd1\0\0\0\x2e\0\0\0\x08" + b"\xa1\x01a\x81" + SEVEN + b"\xa1\x01b\x82" + HALF
        + b"\xa1\x01c\xa1\x01x" + b"\xa1\x01d\x83" + b"\0\0\0\0\0\0\x05\xdc" + BODY,
    ),
    "properties that are not written as the broker does": (
        "micromsg2",
        Message(b'{"n":1}', headers={"a": Untyped("x")}),
        ANNOTATIONS + b"\xc1\x2f\x02" + b"\xa3\x16x-micromsg2-properties" + b"\xa0\x14a:x;message-id:Tm-1;"
        + PROPERTIES + b"\xc0\x06\x01" + ID + HEADERS + b"\xd1\0\0\0\x0a\0\0\0\x02" + b"\xa1\x01a\xa1\x01x" + BODY,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("publisher", "message", "stored"), STORED.values(), ids=STORED)
def test_a_message_is_stored_as_amqp(exchange: Exchange, publisher: str, message: Message, stored: bytes) -> None:
    exchange.publish(publisher, [message])
    [(found, _)] = exchange.stored(1)
    assert found == stored


def test_what_a_streams_client_wrote_is_stored_as_it_is(exchange: Exchange) -> None:
    messages = [b"", b"\0", b"no AMQP", BODY, PROPERTIES + b"\x45" + BODY + BODY]
    exchange.publish("streams", [Message(Stored(data)) for data in messages])
    assert [found for found, _ in exchange.stored(len(messages))] == messages


# ---- where it lies ----

OFFSETS: dict[str, list[int | None]] = {
    "native": [None, None],
    "streams": [0, 1],
    "signalr": [0, 1],
    "micromsg2": [None, None],
    "spark": [0, 1],
}


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_its_offset_and_time_are_those_of_its_stream(exchange: Exchange, consumer: str) -> None:
    for number in range(2):
        exchange.publish("native", [Message(number)])
    contexts = [context for _, context in exchange.stored(2)]
    found = exchange.consume(consumer, 2)
    assert [message.offset for message in found] == OFFSETS[consumer]
    told = OFFSETS[consumer][0] is not None
    assert [message.timestamp_ms for message in found] == [context.timestamp if told else None for context in contexts]


# ---- how often it went out ----

AGAIN = {  # the first time, and when it comes again
    "native": (1, 2),
    "streams": (None, None),
    "signalr": (False, True),
    "micromsg2": (None, None),
    "spark": (None, None),
}


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_the_first_delivery_says_so(exchange: Exchange, consumer: str) -> None:
    [message] = exchange("native", consumer, [Message(1)])
    assert message.again == AGAIN[consumer][0]


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("taker", TAKERS)
def test_what_one_door_has_not_settled_comes_again_by_another(exchange: Exchange, taker: str, consumer: str) -> None:
    exchange.publish("native", [Message(1)])
    exchange.leave(taker)
    [message] = exchange.consume(consumer, 1)
    assert message.again == AGAIN[consumer][1]


# ---- when it died ----

WHEN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
LETTER = {"x-failure-reason": "MaxRetriesExceeded", "x-attempts": "1"}
KINDS = {"text": "shop", "count": 7, "half": 0.5, "good": True, "raw": b"\xff"}
TEXTS = {"text": "shop", "count": "7", "half": "0.5", "good": "true", "at": "1413201600250"}
DAY_MS = 1413201600250
DEAD = {
    "of kinds that several doors have": Row(
        sent={"streams": Message(b'{"n":1}', "m-1", KINDS | {"at": DAY}, JSON, "customer-1")},
        got={
            "native": Message({"n": 1}, "m-1", LETTER | TEXTS | {"raw": "\udcff"}),
            "streams": Message(b'{"n":1}', "m-1", LETTER | KINDS | {"at": DAY_MS}, JSON, "customer-1"),
            "signalr": Message({"n": 1}, "m-1", LETTER | KINDS | {"at": DAY_MS, "raw": "/w=="}, None, "customer-1"),
            "micromsg2": Message(b'{"n":1}', "m-1", LETTER | KINDS | {"at": DAY, "good": Untyped("true")}, JSON),
            "spark": Message(b'{"n":1}', "m-1", LETTER | TEXTS | {"raw": "\N{REPLACEMENT CHARACTER}"}),
        },
    ),
    "of kinds that only streams clients write": Row(
        sent={"streams": Message(b"1", UUID, {"of": UUID, "half": amqp("FLOAT", 0.5)})},
        got={
            "native": Message(1, str(UUID), LETTER | {"of": str(UUID), "half": "0.5"}),
            "streams": Message(b"1", UUID, LETTER | {"of": UUID, "half": 0.5}),
            "signalr": Message(1, str(UUID), LETTER | {"of": str(UUID), "half": 0.5}),
            "micromsg2": Message(b"1", str(UUID), LETTER | {"of": str(UUID), "half": 0.5}),
            "spark": Message(b"1", str(UUID), LETTER | {"of": str(UUID), "half": "0.5"}),
        },
    ),
}


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("row", DEAD.values(), ids=DEAD)
def test_a_dead_letter_is_the_message_that_it_was_and_says_why(exchange: Exchange, row: Row, consumer: str) -> None:
    queue = exchange.queue + "-dying"
    letters = queue + ".dlq"
    with native_client(exchange.served) as client:
        client.create_queue(letters)
        client.create_queue(queue, dead_letter=True, attempts_max=1)
        exchange.queue = queue
        exchange.publish("streams", [row.sent["streams"]])
        with client.consume(queue, timeout_s=DEADLINE_S) as consumer_of_queue:
            next(consumer_of_queue).nack()
        deadline = time.monotonic() + DEADLINE_S
        while client.queue_info(letters).messages == 0:
            assert time.monotonic() < deadline
    [letter] = exchange.consume(consumer, 1, letters)
    headers = dict(letter.headers)
    assert WHEN.fullmatch(headers.pop("x-failed-at")) and headers.pop("x-original-queue") == queue
    hop = {"queue": queue, "reason": "MaxRetriesExceeded", "count": 1, "to": letters}
    assert json.loads(headers.pop("x-death")) == [hop]
    assert comparable(letter._replace(headers=headers), 0) == expected(row, consumer, 0)


# ---- what only one door has ----

TYPE = "Shop.Order, Shop"
TYPE_HEADER = {"dotnet-type": TYPE}


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_a_dotnet_type_is_a_header_where_nobody_asked_for_it(exchange: Exchange, consumer: str) -> None:
    with micromsg2_client(exchange.served, "dotnet") as client:
        client.send(exchange.queue, b"1", {"a": "x"}, TYPE)
    [message] = exchange.consume(consumer, 1)
    assert message.headers == {"a": "x"} | TYPE_HEADER


@pytest.mark.parametrize("publisher", DOORS)
def test_a_header_of_that_name_is_the_type_where_it_was_agreed_on(exchange: Exchange, publisher: str) -> None:
    body = PLAIN[publisher].body
    exchange.publish(publisher, [Message(body, headers={"a": "x"} | TYPE_HEADER), Message(body, headers={"a": "y"})])
    with micromsg2_client(exchange.served, "dotnet") as client:
        client.subscribe(exchange.queue)
        found = [client.receive(DEADLINE_S) for _ in range(2)]
    assert [(message.properties["a"], message.dotnet_type) for message in found if message] == [
        ("x", TYPE),
        ("y", None),
    ]
    assert not any("dotnet-type" in message.properties for message in found if message)


def test_a_receiver_is_told_of_content_types_that_are_not_its_serializers(exchange: Exchange) -> None:
    exchange.publish("streams", [Message(b"1", content_type=JSON), Message(b"1", content_type=TEXT), Message(b"1")])
    with micromsg2_client(exchange.served, "json") as client:
        client.subscribe(exchange.queue)
        found = [micromsg2_message(client.receive(DEADLINE_S)) for _ in range(3)]
    assert [message.content_type for message in found] == [None, TEXT, None]
