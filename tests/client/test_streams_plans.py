# SPDX-License-Identifier: Apache-2.0
"""PlanReads of a real broker: one round trip says what is there, what stays, and where it may be cut."""

from pathlib import Path

import pytest

from vibemq.client import plans
from vibemq.client.plans import WantedRange
from vibemq.client.streams import StreamsConnection
from vibemq.errors import RequestFailed, StreamNotFound
from vibemq.protocols.streams import spec

ARGUMENTS = {"stream-max-segment-size-bytes": 100_000}


@pytest.fixture
def connection(own_port):
    with StreamsConnection.connect("127.0.0.1", own_port) as connected:
        assert connected.has_plans
        yield connected


@pytest.fixture
def stream(connection, request):
    name = request.node.name
    connection.create(name, ARGUMENTS)
    return name


def publish(connection, stream, batches, count=200):
    with connection.publisher(stream) as publisher:
        for _ in range(batches):
            publisher.publish([b"\x01" + bytes(99)] * count)
            publisher.flush()


def test_facts_of_a_stream(connection, stream, own_port):
    publish(connection, stream, 5)
    connection.store_offset("query", stream, 700)
    plan = connection.plan_reads([WantedRange(stream)], reference="query")
    there = plan.streams[stream]
    stats = connection.stats(stream)
    assert (there.first, there.next, there.durable, there.stored) == (0, 1000, 1000, 700)
    assert int(there.incarnation, 16) == stats["incarnation"] % (1 << 64)
    assert (there.size_bytes, there.cuts, there.address[1]) == (stats["size_bytes"], (), own_port)
    directory = Path(plan.directory)
    assert (directory / there.incarnation / f"{0:020}.segment").exists()
    assert (directory.parent / "identity").read_text().strip() == plan.store
    assert connection.plan_reads([WantedRange(stream)]).streams[stream].stored is None


def test_cuts_are_chunks_and_those_of_an_end_stay(connection, stream):
    publish(connection, stream, 60)
    chunks = {chunk.chunk_id: len(chunk.data) for chunk in connection.read_chunks(stream, 0)}
    wanted = WantedRange(stream, 0, 9_000, split_bytes=50_000)
    cuts = connection.plan_reads([wanted]).streams[stream].cuts
    assert len(cuts) > 10 and set(cuts) <= chunks.keys()
    for begin, end in zip((0, *cuts), (*cuts, 9_000), strict=True):
        inside = [size for chunk, size in chunks.items() if begin <= chunk < end]
        assert sum(inside) <= 50_000 or len(inside) == 1
    publish(connection, stream, 10)
    assert connection.plan_reads([wanted]).streams[stream].cuts == cuts
    later = wanted._replace(start=cuts[4] + 1)
    assert connection.plan_reads([later]).streams[stream].cuts == cuts[5:]
    records = connection.plan_reads([WantedRange(stream, split_records=3000)]).streams[stream].cuts
    assert records == (2000, 5000, 8000, 11000)


def test_more_cuts_than_one_answer_has_are_asked_for_again(connection, stream):
    publish(connection, stream, spec.CUTS_COUNT_MAX // 32 + 10, 32 * 32)
    chunks = [chunk.chunk_id for chunk in connection.read_chunks(stream, 0)]
    cuts = connection.plan_reads([WantedRange(stream, split_records=1)]).streams[stream].cuts
    assert list(cuts) == chunks[1:]


def test_so_many_bytes_and_since_when(connection, stream):
    publish(connection, stream, 30)
    chunks = list(connection.read_chunks(stream, 0))
    wanted = WantedRange(stream, 500, bytes_max=100_000, timestamp=chunks[7].timestamp_ms)
    there = connection.plan_reads([wanted]).streams[stream]
    first = next(i for i, chunk in enumerate(chunks) if chunk.chunk_id + chunk.records > 500)
    inside = [chunk for chunk in chunks[first:] if chunk.chunk_id < there.limit]
    assert sum(len(chunk.data) for chunk in inside) <= 100_000 < sum(len(c.data) + 200 for c in inside) + 100_000 // 2
    assert there.at_timestamp == min(c.chunk_id for c in chunks if c.timestamp_ms >= chunks[7].timestamp_ms)
    assert there.waiting_bytes >= sum(len(chunk.data) for chunk in chunks[first:])
    one = connection.plan_reads([WantedRange(stream, 500, bytes_max=1)]).streams[stream].limit
    assert one == chunks[first].chunk_id + chunks[first].records
    none = connection.plan_reads([WantedRange(stream, timestamp=1 << 60)]).streams[stream]
    assert none.at_timestamp == none.next


def test_the_partitions_of_a_super_stream_come_with_it(connection, stream):
    names = [f"{stream}-{number}" for number in range(3)]
    connection.request(
        spec.Key.CREATE_SUPER_STREAM, name=f"{stream}-all", partitions=names, binding_keys=["0", "1", "2"]
    )
    publish(connection, names[1], 3)
    plan = connection.plan_reads([WantedRange(names[1], split_records=100)], super_stream=f"{stream}-all")
    assert list(plan.streams) == names == connection.partitions(f"{stream}-all")
    assert [each.next for each in plan.streams.values()] == [0, 600, 0]
    assert plan.streams[names[1]].cuts
    with pytest.raises(StreamNotFound):
        connection.plan_reads(super_stream="nothing")


def test_a_stream_that_is_not_there_and_too_many_of_them(connection, stream):
    with pytest.raises(StreamNotFound, match="nothing"):
        connection.plan_reads([WantedRange(stream), WantedRange("nothing")])
    many = [WantedRange(f"{number}") for number in range(spec.PLANNED_STREAMS_COUNT_MAX + 1)]
    with pytest.raises(RequestFailed, match="PRECONDITION_FAILED"):
        connection.request(spec.ExtensionKey.PLAN_READS, ranges=many)
    assert connection.plan_reads([WantedRange(stream)]).streams[stream].next == 0


def test_what_is_on_disk_counts_as_durable(connection, stream):
    name = f"{stream}-disk"
    connection.create(name, {"durability": "disk"})
    publish(connection, name, 3)
    there = connection.plan_reads([WantedRange(name)]).streams[name]
    assert there.is_disk_durable and there.durable == 600


def test_many_ranges_are_asked_for_in_pieces(connection, stream, monkeypatch):
    names = [f"{stream}-{number}" for number in range(5)]
    for number, name in enumerate(names):
        connection.create(name)
        publish(connection, name, 3, 100 + number)
    monkeypatch.setattr(plans, "RANGES_COUNT_MAX", 2)
    found = connection.plan_reads([WantedRange(name, split_records=1) for name in names]).streams
    assert [found[name].next for name in names] == [300, 303, 306, 309, 312]
    assert all(len(found[name].cuts) >= 2 for name in names)
