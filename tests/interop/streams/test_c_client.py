# SPDX-License-Identifier: Apache-2.0
"""rabbitmq-stream-c-client, unmodified, where its sources can be had: no release of it is packaged.  What it sends,
byte for byte, a program of our own sends everywhere.

It is no column of the matrix: it hands messages over as they are stored, and most lines are nothing that it knows.
"""

from __future__ import annotations

import pytest

COUNT = 250  # several frames of its hundred messages


@pytest.fixture(params=["c", "c_client"])
def c(request):
    return request.param


def test_it_logs_in_creates_publishes_and_consumes(run, c):
    stream = f"of-{c}"
    run(c, "create", stream=stream).finish()
    try:
        run.publish(c, stream, COUNT)
        messages = run.consume(c, stream, COUNT, **{"from": "offset:0"})
        assert [(m["offset"], m["body"]) for m in messages] == [(n, f"{c}-{n}") for n in range(COUNT)]
        assert len(run.consume(c, stream, 50, **{"from": f"offset:{COUNT - 50}"})) == 50
    finally:
        run(c, "delete", stream=stream).finish()


def test_its_publisher_reference_keeps_duplicates_out(run, served, stream, c):
    run.publish(c, stream, 100, reference="writer")
    run.publish(c, stream, 100, reference="writer", first=50)
    with served.connect() as connection:
        assert sum(chunk.records for chunk in connection.read_chunks(stream, 0)) == 150


def test_properties_of_its_subscription_are_read_whatever_their_count_says(run, stream, c):
    """With the property `filter.0`, which a server that stopped at the count would miss or refuse."""
    run.publish(c, stream, 10)
    run.publish("rstream", stream, 10, filter="red")
    run.publish("rstream", stream, 10, filter="blue")
    messages = run.consume(c, stream, 20, **{"from": "offset:0", "filter": "blue"})
    assert [m["offset"] for m in messages] == [*range(10), *range(20, 30)]


def test_it_goes_on_at_the_offset_that_it_has_stored(run, stream):
    run.publish("c_client", stream, 30)
    for first in (0, 10):
        start = "stored" if first else "offset:0"
        messages = run.consume("c_client", stream, 10, **{"from": start, "reference": "reader", "store": 1})
        assert [m["offset"] for m in messages] == [*range(first, first + 10)]


def test_each_side_reads_what_the_other_has_published(run, served, stream):
    run.publish("c_client", stream, 3)
    with served.connect() as connection:
        connection.publisher(stream).publish([b"ours-0", b"ours-1"])
        (chunk, *_) = connection.read_chunks(stream, 0)
        assert [message for _, message in chunk.messages()] == [b"c_client-0", b"c_client-1", b"c_client-2"]
    assert [m["body"] for m in run.consume("c_client", stream, 2, **{"from": "offset:3"})] == ["ours-0", "ours-1"]
