# SPDX-License-Identifier: Apache-2.0
"""Streams are read from the object store, with no broker running or beside one, and the positions are the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("obstore", reason="needs the extra remote")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyarrow as pa
from running import broker, wait_until

from vibemq.client.streams import StreamsConnection
from vibemq.errors import ConfigError, RemoteError, SetupError, StreamNotFound
from vibemq.protocols.streams.spec import Key
from vibemq.spark import infer_schema
from vibemq.spark.options import parse
from vibemq.spark.ranges import DataLost
from vibemq.spark.source import BatchReader, StreamReader

SCHEMA = pa.schema([pa.field("value", pa.binary(), False), pa.field("offset", pa.int64(), False)])
ROWS, LATER = 6000, 450
SIZE = 200


def body(number: int) -> bytes:
    return b"%d " % number + b"x" * SIZE


class Left(NamedTuple):
    """What a broker left behind in its bucket."""

    url: str
    folder: Path
    closed: int  # rows in closed segments of the store


def flags(url: str, **more: str) -> list[str]:
    options = {"remote.url": url, "store.durability": "remote", "remote.interval_ms": "20"}
    small = {"store.segment_size_bytes": "300000", "remote.segment_age_s": "10"}
    return [word for pair in (options | small | more).items() for word in ("--set", "=".join(pair))]


def publish(connection: StreamsConnection, stream: str, first: int, count: int) -> None:
    with connection.publisher(stream) as publisher:
        for at in range(first, first + count, 100):
            publisher.publish([body(number) for number in range(at, min(at + 100, first + count))])
            publisher.flush()  # chunks of at most 100 rows


def connected(running) -> StreamsConnection:
    return StreamsConnection.connect(running.host, running.port, user="guest", password="guest", timeout_s=30)


def segments(bucket: Path) -> list[Path]:
    return sorted((bucket / "streams").glob("*/*.segment"))


@pytest.fixture(scope="module")
def left(tmp_path_factory) -> Left:
    folder = tmp_path_factory.mktemp("remote")
    bucket = folder / "bucket"
    with broker(folder / "data", *flags(f"file://{bucket}")) as running, connected(running) as connection:
        for stream in ("events", "empty"):
            connection.create(stream)
        names = ["orders-0", "orders-1"]
        connection.request(
            Key.CREATE_SUPER_STREAM, name="orders", partitions=names, binding_keys=["0", "1"], arguments={}
        )
        publish(connection, "events", 0, ROWS)
        wait_until(lambda: len(segments(bucket)) >= 3, "closed segments are in the store")
        for number in (0, 1):
            publish(connection, f"orders-{number}", 0, LATER)
        publish(connection, "events", ROWS, LATER)
    shutil.rmtree(folder / "data")
    return Left(f"file://{bucket}", bucket, int(segments(bucket)[-1].name.split("-")[1]))


def options(left: Left, **more: str):
    return parse({"remote": left.url, "stream": "events", **more})


def planned(left: Left, **more: str):
    reader = BatchReader(options(left, **more).for_batch(), SCHEMA)
    return reader, reader.partitions()


def read(left: Left, **more: str) -> list[dict]:
    reader, parts = planned(left, **more)
    return pa.Table.from_batches([batch for part in parts for batch in reader.read(part)], SCHEMA).to_pylist()


def expected(start: int = 0, end: int = ROWS + LATER) -> list[dict]:
    return [{"value": body(number), "offset": number} for number in range(start, end)]


def test_everything_confirmed_is_read_with_no_broker(left):
    assert 0 < left.closed < ROWS + LATER, "some rows are in write-ahead objects only"
    assert read(left) == expected()


def test_parts_are_cut_where_chunks_begin(left):
    reader, parts = planned(left, maxBytesPerPartition="100000")
    spans = [(part.value.start, part.value.end) for part in parts]
    assert len(spans) > 8
    assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
    segment_parts = [part for part in parts if part.value.end <= left.closed]
    for part in segment_parts:
        [batch] = reader.read(part)
        assert batch.column(1).to_pylist() == list(range(part.value.start, part.value.end))
        assert part.value.start % 100 == 0 and batch.nbytes < 150_000


def test_ranges_begin_and_end_anywhere(left):
    places = [(0, 1), (7, 1234), (left.closed - 1, left.closed + 1), (ROWS - 3, ROWS + LATER), (ROWS + 7, ROWS + 7)]
    for start, end in places:
        rows = read(left, startingOffsets=f'{{"events": {start}}}', endingOffsets=f'{{"events": {end}}}')
        assert rows == expected(start, end)


def test_super_streams_patterns_and_empty_streams(left):
    assert len(read(left, stream="empty")) == 0
    for selector in ({"superStream": "orders"}, {"subscribePattern": "orders-.*"}):
        given = {"remote": left.url, **selector}
        reader = BatchReader(parse(given), SCHEMA)
        rows = [batch.num_rows for part in reader.partitions() for batch in reader.read(part)]
        assert rows == [LATER, LATER]


def test_a_schema_is_found_without_a_broker(left):
    with pytest.raises(ConfigError, match="no JSON object"):  # so it has read them
        infer_schema(remote=left.url, stream="events")


def test_times(left):
    schema = SCHEMA.append(pa.field("timestamp", pa.timestamp("us", "UTC"), False))
    reader = BatchReader(options(left), schema)
    table = pa.Table.from_batches([batch for part in reader.partitions() for batch in reader.read(part)], schema)
    times = [int(time.timestamp() * 1000 + 0.5) for time in table.column("timestamp").to_pylist()]
    for offset in (left.closed - 150, ROWS):
        rows = read(left, startingTimestamp=str(times[offset]))
        assert rows[0]["offset"] == times.index(times[offset])


def test_a_stream_that_is_not_there_is_named(left):
    with pytest.raises(StreamNotFound, match=r"there is no stream 'nothing' .* of the bucket file://"):
        read(left, stream="nothing")
    with pytest.raises(StreamNotFound, match=r"no super stream 'nothing' in the bucket file://"):
        BatchReader(parse({"remote": left.url, "superStream": "nothing"}), SCHEMA).partitions()


def test_a_bucket_that_nobody_used_is_named(tmp_path):
    with pytest.raises(RemoteError, match=r"no broker has used the bucket .* prefix included"):
        read(Left(f"file://{tmp_path}", tmp_path, 0))
    with pytest.raises(ConfigError, match="there is no folder"):
        read(Left(f"file://{tmp_path}/nothing", tmp_path, 0))
    assert not (tmp_path / "nothing").exists(), "who only reads makes no folder"


def test_options_that_cannot_be(left, monkeypatch):
    for given, why in (
        ({"remoteOptions": "access_key_id=AKIA"}, "access_key_id is a secret"),
        ({"remoteOptions": "what"}, "KEY=VALUE"),
        ({"remote": "bucket"}, "is no URL"),
        ({"remote": "", "endpoints": "a:1", "remoteKeys": "/keys"}, "they need remote"),
        ({"filterValues": "a"}, "needs endpoints"),
        ({"remote": ""}, "endpoints: it is needed"),
    ):
        with pytest.raises(ConfigError, match=why):
            options(left, **given)
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(SetupError, match=r"option remote .* pip install .*obstore"):
        read(left, remote=left.url + "/")


def test_micro_batches_obey_their_limits(left):
    reader = StreamReader(options(left, startingOffsets="earliest", maxBytesPerTrigger="200000").for_stream(), SCHEMA)
    start, rows = reader.initialOffset(), []
    while (end := reader.latestOffset(start)) != start:
        batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
        assert sum(batch.nbytes for batch in batches) < 400_000
        rows += pa.Table.from_batches(batches, SCHEMA).to_pylist()
        start = end
    assert rows == expected()


# ---- damage ----


@pytest.fixture
def copy(left, tmp_path) -> Left:
    """The bucket, to be damaged."""
    shutil.copytree(left.folder, tmp_path / "bucket")
    return left._replace(url=f"file://{tmp_path / 'bucket'}", folder=tmp_path / "bucket")


def flip(path: Path, position: int) -> None:
    whole = bytearray(path.read_bytes())
    whole[position] ^= 1
    path.write_bytes(whole)


def of_events(bucket: Path) -> list[Path]:
    return [path for path in segments(bucket) if path.stat().st_size > 200_000]


@pytest.mark.parametrize("where", ["entries", "header"])
def test_a_damaged_chunk_is_named_and_costs_itself(copy, where):
    path = of_events(copy.folder)[1]
    first = int(path.name.split("-")[0])
    flip(path, 64 + 5000 if where == "entries" else 64 + 20)
    with pytest.raises(RemoteError, match=rf"{path.name} in the bucket is damaged: the chunk at position 64"):
        read(copy)
    rows = read(copy, failOnDataLoss="false")
    assert rows == expected(0, first) + expected(first + 100)


def test_a_damaged_object_is_named_and_costs_itself(copy):
    path = of_events(copy.folder)[1]
    first, after = map(int, path.name.split("-")[:2])
    with open(path, "rb+") as file:
        file.truncate(path.stat().st_size - 30)
    with pytest.raises(RemoteError, match=rf"{path.name} in the bucket is damaged: it does not end"):
        read(copy)
    assert read(copy, failOnDataLoss="false") == expected(0, first) + expected(after)


def test_a_damaged_write_ahead_object_is_named(copy):
    objects = sorted((copy.folder / "wal").glob("*/*/*"))
    newest = [path for path in objects if body(ROWS + LATER - 1) in path.read_bytes()][-1]
    flip(newest, 200)
    with pytest.raises(RemoteError, match=rf"{newest.name} in the bucket is damaged"):
        read(copy)
    rows = read(copy, failOnDataLoss="false")
    assert rows == expected(0, len(rows)) and ROWS <= len(rows) < ROWS + LATER


def test_a_segment_that_is_gone_is_data_loss(copy):
    reader, parts = planned(copy)
    path = of_events(copy.folder)[0]
    after = int(path.name.split("-")[1])
    path.unlink()
    with pytest.raises(DataLost, match="retention has passed the reader"):
        [batch for part in parts for batch in reader.read(part)]
    with pytest.raises(DataLost, match="retention has passed"):
        read(copy, startingOffsets='{"events": 0}')
    reader, _ = planned(copy, failOnDataLoss="false")
    batches = [batch for part in parts for batch in reader.read(part)]
    assert pa.Table.from_batches(batches, SCHEMA).to_pylist() == expected(after)


def test_write_ahead_behind_a_gap_does_not_count(copy):
    objects = sorted((copy.folder / "wal").glob("*/*/*"))
    [last] = [path for path in objects if body(ROWS + LATER - 150) in path.read_bytes()][-1:]
    last.unlink()  # later ones were on their way at once, and none of them was confirmed
    assert read(copy) == expected(0, ROWS + LATER - 150)


def test_encrypted(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("1 " + "ab" * 32 + "\n")
    keys.chmod(0o600)
    bucket = tmp_path / "bucket"
    url = f"file://{bucket}"
    with (
        broker(tmp_path / "data", *flags(url, **{"remote.encryption_keys": str(keys)})) as running,
        connected(running) as connection,
    ):
        connection.create("events")
        publish(connection, "events", 0, ROWS)
        wait_until(lambda: len(segments(bucket)) >= 2, "closed segments are in the store")
    there = Left(url, bucket, 0)
    assert read(there, remoteKeys=str(keys), maxBytesPerPartition="400000") == expected(0, ROWS)
    with pytest.raises(RemoteError, match=r"is encrypted with key 1\. option remoteKeys names"):
        read(there)
