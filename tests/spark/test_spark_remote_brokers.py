# SPDX-License-Identifier: Apache-2.0
"""A bucket beside its broker: positions are the same either way, and what the one does not give the other does."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("obstore", reason="needs the extra remote")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyarrow as pa
from peers.faulty import FaultyStore
from peers.s3 import S3Server
from running import broker, wait_until
from spark_jobs import Job, batch, expected, sums
from test_spark_remote import SCHEMA, body, connected, flags, of_events, publish, segments

from vibemq.errors import TimeoutExceeded
from vibemq.spark import client, local, ranges
from vibemq.spark.options import parse
from vibemq.spark.source import BatchReader

ROWS = 6000


@contextmanager
def filled(folder: Path, **more: str):
    """A broker with three closed segments in its bucket, at least, and something behind them."""
    bucket = folder / "bucket"
    with broker(folder / "data", *flags(f"file://{bucket}", **more)) as running:
        with connected(running) as connection:
            connection.create("events")
            publish(connection, "events", 0, ROWS)
            wait_until(lambda: len(segments(bucket)) >= 3, "closed segments are in the store")
        yield running
        client.close_all()


class Killed(Exception):
    """So that nobody stops the broker in order, which would wait for the idle connections of Spark's workers."""


def kill(running) -> None:
    for pid in (running.process.pid, *running._children("")):
        os.kill(pid, signal.SIGKILL)
    running.process.wait()
    raise Killed


def endpoints(running) -> str:
    return f"{running.host}:{running.port}"


def rows(reader: BatchReader, parts) -> list[dict]:
    return pa.Table.from_batches([batch for part in parts for batch in reader.read(part)], SCHEMA).to_pylist()


def everything() -> list[dict]:
    return [{"value": body(number), "offset": number} for number in range(ROWS)]


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_a_query_goes_on_from_the_bucket_and_again_from_the_broker(spark, tmp_path):
    job, sent = Job(spark, tmp_path), [body(number) for number in range(ROWS + 200)]
    bucket, nobody = f"file://{tmp_path / 'bucket'}", SimpleNamespace(endpoints="")
    with pytest.raises(Killed), filled(tmp_path) as running:
        there = SimpleNamespace(endpoints=endpoints(running))
        assert sum(job.run(there, "events")) == ROWS
        with connected(running) as connection:
            publish(connection, "events", ROWS, 100)
        kill(running)
    assert sum(job.run(nobody, "events", remote=bucket)) == 100
    assert sums(batch(spark, nobody, "events", remote=bucket).load()) == expected(sent[: ROWS + 100])
    with pytest.raises(Killed), broker(tmp_path / "data", *flags(bucket)) as running:
        there = SimpleNamespace(endpoints=endpoints(running))
        with connected(running) as connection:
            publish(connection, "events", ROWS + 100, 100)
        assert sum(job.run(there, "events")) == 100
        kill(running)
    assert sums(job.result()) == expected(sent)


def test_closed_segments_are_read_from_the_bucket_and_the_rest_from_the_broker(tmp_path, monkeypatch):
    with filled(tmp_path) as running:
        options = parse({"endpoints": endpoints(running), "stream": "events", "remote": f"file://{tmp_path}/bucket"})
        reader = BatchReader(options, SCHEMA)
        parts = reader.partitions()
        border = max(part.value.end for part in parts if part.value.pieces)
        assert 0 < border <= ROWS
        assert rows(reader, parts) == everything()

        asked = []

        def read_broker(options, wanted, at, decoder):
            asked.append((at, wanted.end))
            return (yield from original(options, wanted, at, decoder))

        original = ranges._read_broker
        monkeypatch.setattr(ranges, "_read_broker", read_broker)
        monkeypatch.setattr(local, "read", lambda decoder, wanted, must: _nothing(wanted))
        assert rows(reader, parts) == everything()
        assert asked == [(start, end) for start, end in [(border, ROWS)] if start < end]

        asked.clear()
        damaged = of_events(tmp_path / "bucket")[1]
        first = int(damaged.name.split("-")[0])
        whole = bytearray(damaged.read_bytes())
        whole[64 + 5000] ^= 1
        damaged.write_bytes(whole)
        assert rows(reader, parts) == everything(), "the broker has what the bucket has lost"
        assert any(start <= first < end for start, end in asked)


def _nothing(wanted):
    return wanted.start
    yield


def test_files_give_what_only_the_bucket_has(tmp_path):
    with filled(tmp_path, **{"remote.local_size_max_bytes": "400000"}) as running:
        folders = [path.parent for path in (tmp_path / "data" / "streams").glob("*/*.index")]
        wait_until(lambda: not (folders[0] / f"{0:020}.segment").exists(), "the first segment is only in the bucket")
        options = parse({"endpoints": endpoints(running), "stream": "events", "readMode": "local"})
        reader = BatchReader(options, SCHEMA)
        assert rows(reader, reader.partitions()) == everything()


# ---- a store that has trouble ----


@pytest.fixture(scope="module")
def bucket(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("faulty")
    with filled(folder):
        pass
    return folder / "bucket"


@pytest.fixture
def faulty(bucket):
    with S3Server() as server, FaultyStore(server.below("spark")) as proxy:
        for path in bucket.rglob("*"):
            if path.is_file():
                proxy.overwrite(str(path.relative_to(bucket)), path.read_bytes())
        yield proxy


def test_requests_that_fail_or_are_cut_off_are_made_again(faulty, monkeypatch):
    for name, value in faulty.environ.items():
        monkeypatch.setenv(name, value)
    given = {"remote": faulty.url, "remoteOptions": faulty.options, "stream": "events"}
    reader = BatchReader(parse(given), SCHEMA)
    parts = reader.partitions()
    faulty.truncate(1000, "GET", r"\.segment", times=4)
    faulty.answer(503, "GET", r"\.segment", times=4)
    faulty.cut_before("GET", r"wal/", times=4)
    assert rows(reader, parts) == everything()
    faulty.up()
    reader = BatchReader(parse({**given, "brokerDownTimeoutMs": "200"}), SCHEMA)
    faulty.answer(503)
    with pytest.raises(TimeoutExceeded, match=r"the bucket s3://.* has been away .* brokerDownTimeoutMs"):
        reader.partitions()
