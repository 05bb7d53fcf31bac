# SPDX-License-Identifier: Apache-2.0
"""What users of the stream clients do, with each client and nothing of ours: the lines of the door's matrix."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from stream_serving import hashed

BODY = re.compile(rb"(?:rstream|js|java|go|rust)-\d+$")  # AMQP 1.0 puts the body last


class Filled(NamedTuple):
    """A stream with the messages 0 to 19 of a client, then, of another connection, 20 to 24."""

    stream: str
    between_ms: int


@pytest.fixture(scope="module")
def filled(served) -> Callable[[Any, str], Filled]:
    """For the tests that only read."""
    made: dict[str, Filled] = {}

    def fill(run: Any, client: str) -> Filled:
        if client not in made:
            stream = f"filled-{client}"
            with served.connect() as connection:
                connection.create(stream, exist_ok=True)  # a try before may have failed
            run.publish(client, stream, 20)
            between_ms = time.time_ns() // 1_000_000 + 1  # the next program takes longer than that to start
            run.publish(client, stream, 5, first=20)
            made[client] = Filled(stream, between_ms)
        return made[client]

    return fill


def numbered(messages: list[dict]) -> list[tuple[int, str]]:
    return [(message["offset"], message["body"]) for message in messages]


def expected(client: str, numbers: range) -> list[tuple[int, str]]:
    """As in a stream whose messages have been numbered as their offsets are."""
    return [(number, f"{client}-{number}") for number in numbers]


@pytest.mark.line("publish, and every message is confirmed")
def test_every_message_is_confirmed_and_there(run, served, client, stream):
    run.publish(client, stream, 50)
    with served.connect() as connection:
        assert sum(chunk.records for chunk in connection.read_chunks(stream, 0)) == 50


@pytest.mark.line("consume from first")
def test_from_first(run, client, filled):
    assert numbered(run.consume(client, filled(run, client).stream, 25)) == expected(client, range(25))


@pytest.mark.line("consume from last")
def test_from_last(run, client, filled):
    program = run(client, "consume", **{"stream": filled(run, client).stream, "from": "last"})
    messages = [program.until("message")]
    while messages[-1]["body"] != f"{client}-24":
        messages.append(program.until("message"))
    assert messages[0]["offset"] >= 20
    assert numbered(messages) == expected(client, range(messages[0]["offset"], 25))


@pytest.mark.line("consume from next")
def test_from_next(run, client, stream):
    run.publish(client, stream, 5)
    program = run(client, "consume", **{"stream": stream, "from": "next", "count": 5})
    program.until("subscribed")
    run.publish(client, stream, 5, first=5)
    assert numbered(program.messages(5)) == expected(client, range(5, 10))
    program.finish()


@pytest.mark.line("consume from an offset")
def test_from_an_offset(run, client, filled):
    messages = run.consume(client, filled(run, client).stream, 18, **{"from": "offset:7"})
    assert numbered(messages) == expected(client, range(7, 25))


@pytest.mark.line("consume from a timestamp")
def test_from_a_timestamp(run, client, filled):
    stream, between_ms = filled(run, client)
    messages = run.consume(client, stream, 5, **{"from": f"timestamp:{between_ms}"})
    assert numbered(messages) == expected(client, range(20, 25))


@pytest.mark.line("deduplication after a reconnect")
def test_what_was_published_already_is_not_published_again(run, served, client, stream):
    run.publish(client, stream, 10, reference="writer")
    run.publish(client, stream, 10, reference="writer", first=5)
    with served.connect() as connection:
        assert sum(chunk.records for chunk in connection.read_chunks(stream, 0)) == 15
    assert numbered(run.consume(client, stream, 15)) == expected(client, range(15))


def test_duplicates_in_a_frame_do_not_stop_the_rust_client(run, served, stream):
    """It gives up at a confirm that names an id twice, with whatever that still had to say."""
    said = run("rust", "publish", stream=stream, count=20, reference="writer", twice=1).finish()
    assert said == [{"event": "confirmed", "count": 20}]
    with served.connect() as connection:
        assert sum(chunk.records for chunk in connection.read_chunks(stream, 0)) == 20


@pytest.mark.line("offset tracking")
def test_the_next_run_goes_on_where_the_last_one_stored(run, client, stream):
    run.publish(client, stream, 10)
    stored = {"reference": "reader", "from": "stored"}
    first = run.consume(client, stream, 4, store=1, **stored)
    assert numbered(first) == expected(client, range(4))
    assert numbered(run.consume(client, stream, 6, **stored)) == expected(client, range(4, 10))


@pytest.mark.line("sub-entry batch, not compressed")
def test_a_sub_batch_is_stored_and_read_back(run, client, stream):
    unless_it_has_sub_batches(client)
    run.publish(client, stream, 20, compression="none")
    assert numbered(run.consume(client, stream, 20)) == expected(client, range(20))


@pytest.mark.line("sub-entry batch, compressed")
def test_a_compressed_sub_batch_is_stored_and_read_back(run, client, stream):
    unless_it_has_sub_batches(client)
    run.publish(client, stream, 20, compression="gzip")
    assert numbered(run.consume(client, stream, 20)) == expected(client, range(20))


def unless_it_has_sub_batches(client: str) -> None:
    if client == "rust":
        pytest.skip("the Rust client neither publishes nor reads sub-entry batches")


@pytest.mark.line("filtering at the server")
def test_chunks_without_the_wanted_value_are_not_sent(run, needs, client, stream):
    needs("filters")
    run.publish(client, stream, 10, filter="red")
    run.publish(client, stream, 10, filter="blue", first=10)
    run.publish(client, stream, 5, filter="red", first=20)
    # The program shows all that comes, matching or not, and each connection has chunks of its own.
    assert numbered(run.consume(client, stream, 10, filter="blue")) == expected(client, range(10, 20))


@pytest.mark.line("super stream with hash routing")
def test_keys_are_spread_over_the_partitions(run, served, needs, client):
    needs("super streams")
    super_stream = f"invoices-{client}"
    run(client, "create", stream=super_stream, partitions=3).finish()
    run.publish(client, super_stream, 30, super=1)
    placed = {}
    with served.connect() as connection:
        for number in range(3):
            for chunk in connection.read_chunks(f"{super_stream}-{number}", 0):
                placed |= {BODY.search(message)[0].decode(): number for _, message in chunk.messages()}
    keys = [f"{client}-{number}" for number in range(30)]
    assert sorted(placed) == sorted(keys), "a message is missing or came twice"
    # rstream's own function hashes other bytes: its keys keep together, but not where the other clients put them.
    assert client == "rstream" or placed == {key: hashed(key) % 3 for key in keys}
    read = run.consume(client, super_stream, 30, super=1, reference="reader")
    assert sorted(message["body"] for message in read) == sorted(keys)
    run(client, "delete", stream=super_stream, super=1).finish()


@pytest.mark.line("single active consumer, fail-over")
def test_the_next_consumer_takes_over_from_one_that_died(run, needs, client, stream):
    needs("groups")
    options = {"stream": stream, "from": "first", "single": 1, "reference": "group"}
    first = run(client, "consume", **options)
    first.until("active")
    second = run(client, "consume", **options)
    second.until("subscribed")
    run.publish(client, stream, 5)
    assert numbered(first.messages(5)) == expected(client, range(5))
    first.kill()
    second.until("active")
    assert [line["event"] for line in second.said] == ["subscribed", "active"], "it was given messages while waiting"
    assert numbered(second.messages(5)) == expected(client, range(5))


@pytest.mark.line("TLS")
def test_over_tls(run, served, needs, client, stream):
    needs("TLS")
    encrypted = {"port": served.tls_port, "tls": served.authority}
    run.publish(client, stream, 10, **encrypted)
    assert numbered(run.consume(client, stream, 10, **encrypted)) == expected(client, range(10))


@pytest.mark.line("a refused permission is reported")
def test_who_may_only_read_can_read_and_is_told_so(run, served, needs, client, filled):
    needs("permissions")
    served.add_reader("reader", "only-reads")
    stream = filled(run, client).stream
    reader = {"user": "reader", "password": "only-reads"}
    assert numbered(run.consume(client, stream, 25, **reader)) == expected(client, range(25))
    refusal = run(client, "publish", stream=stream, count=1, **reader).failure()
    assert re.search(r"refused|code.{0,5} 16\b|permission", refusal, re.IGNORECASE), refusal


@pytest.mark.line("goes on after its connection was closed by force")
def test_no_message_is_lost_when_connections_are_closed(run, served, needs, client, stream):
    needs("closing connections")
    program = run(client, "consume", **{"stream": stream, "from": "first"})
    program.until("subscribed")
    run.publish(client, stream, 3)
    messages = program.messages(3)
    served.close_connections()
    run.publish(client, stream, 3, first=3)
    while messages[-1]["offset"] < 5:
        messages.append(program.until("message"))
    # The Java client asks for the last message it had once more.
    assert sorted(set(numbered(messages))) == expected(client, range(6))


@pytest.mark.line("a stream deleted under a consumer is noticed")
def test_a_consumer_is_told_that_its_stream_is_deleted(run, client, stream):
    if client == "rust":
        pytest.skip("the Rust client knows no MetadataUpdate frame")
    program = run(client, "consume", **{"stream": stream, "from": "first"})
    program.until("subscribed")
    run(client, "delete", stream=stream).finish()
    program.until("gone")
    program.finish()


@pytest.mark.line("reads the messages of {publisher}")
@pytest.mark.parametrize("publisher", ["rstream", "js", "java", "go", "rust"])
def test_each_reads_the_messages_of_each(run, client, publisher, filled):
    messages = run.consume(client, filled(run, publisher).stream, 25)
    assert numbered(messages) == expected(publisher, range(25))
    assert {message["client"] for message in messages} == {publisher}, "an application property has changed"


def test_the_readme_shows_what_was_shown_here(outcomes):
    """After a run of every line with every client; `make interop` writes it."""
    outcomes.check()
