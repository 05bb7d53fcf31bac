# SPDX-License-Identifier: Apache-2.0
"""Reading the broker's files gives the same as asking the broker, and only where they are its files."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyarrow as pa
from peers.streams import connected
from pyspark.sql import types
from running import Running, broker, wait_until
from spark_chunks import CODES, data_section, pack, simple

from vibemq.client.streams import StreamsConnection
from vibemq.protocols.streams import codec
from vibemq.protocols.streams.codec import SubBatch
from vibemq.protocols.streams.spec import Key
from vibemq.spark import client, local, plans, ranges, sink
from vibemq.spark.local import NotLocal
from vibemq.spark.options import parse
from vibemq.spark.ranges import DataLost

SCHEMA = pa.schema(
    [
        pa.field("value", pa.binary(), False),
        pa.field("offset", pa.int64(), False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), False),
        pa.field("stream", pa.string(), False),
        pa.field("message_id", pa.string()),
        pa.field("headers", pa.map_(pa.string(), pa.string()), False),
    ]
)
LARGE = 16 << 20


class Served(NamedTuple):
    running: Running
    folder: Path  # its data directory

    @property
    def port(self) -> int:
        return self.running.ports["streams"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    with broker(folder / "data", "--set", f"streams.frame_max_bytes={LARGE + 65536}") as running:
        yield Served(running, folder / "data")
        client.close_all()


def options(served, stream, **more):
    return parse({"endpoints": f"127.0.0.1:{served.port}", "stream": stream, **more})


def planned(served, stream):
    """The range as a plan has it, with what the broker says of its files."""
    whole = options(served, stream, maxBytesPerPartition="0")
    with client.connection(whole) as taken:
        [range] = plans.batch(whole, taken)
    return range


def read(served, wanted, mode="local", schema=SCHEMA, **more):
    return list(ranges.read(options(served, wanted.stream, readMode=mode, **more), schema, wanted))


def rows(batches):
    return pa.Table.from_batches(batches, SCHEMA).to_pylist()


@pytest.fixture
def no_broker(monkeypatch):
    """Whoever makes a connection fails the test."""

    def nobody(*_, **__):
        raise AssertionError("a local read asked the broker")

    def refuse():
        client.close_all()
        monkeypatch.setattr(client, "StreamsConnection", nobody)

    return refuse


def packed(name, messages):
    content = b"".join(simple(message) for message in messages)
    return SubBatch(CODES[name], len(messages), len(content), pack(name, content))


def symbol(text):
    return b"\xa3" + bytes([len(text)]) + text


AMQP = [
    data_section(b""),
    data_section(b"short"),
    data_section(b"long" * 100),
    b"\x00\x53\x75\xa0\x02ab" + b"\x00\x53\x75\xa0\x02cd",  # two data sections
    b"\x00\x53\x77\xa1\x05value",  # amqp-value: a string,
    b"\x00\x53\x77\xa0\x03bin",  # binary,
    b"\x00\x53\x77\x40",  # null,
    b"\x00\x53\x77\x55\x07",  # a number
    b"\x00\x53\x73\xc0\x06\x01\xa1\x03idX" + data_section(b"with an id"),
    b"\x00\x53\x74\xc1\x0b\x02\xa1\x03key\xa1\x03val" + data_section(b"with a header"),
    b"\x00\x53\x75\xa0\xff" + b"cut off",  # no AMQP message after all
    b"\x00",
    b"",
    b"\x01no AMQP",
]


@pytest.fixture(scope="module")
def stored(served):
    """A stream with every kind of message and of entry; small segments, so that there are several."""
    with connected(served.running) as peer:
        peer.create("all-kinds", **{"stream-max-segment-size-bytes": "100000"})
        peer.store("all-kinds", [message for message in AMQP for _ in range(20)])
        for name in CODES:
            peer.store(
                "all-kinds", [packed(name, AMQP), packed(name, [b"%s-%d" % (name.encode(), i) for i in range(999)])]
            )
        filtered = [(number, f"value-{number % 7}", b"filtered %d" % number) for number in range(1, 301)]
        peer.declare("all-kinds")
        peer.send(codec.encode_request(Key.PUBLISH, version=2, publisher_id=0, messages=filtered))
        peer.confirmed(len(filtered))
        peer.store("all-kinds", [struct.pack(">Q", number) * 30 for number in range(2000)])
        for message in (os.urandom(LARGE), b"", data_section(b"x" * (LARGE - 100)), b"the end"):
            peer.store("all-kinds", [message])
    return planned(served, "all-kinds")


def test_files_give_the_same_bytes_as_the_broker(served, stored, no_broker):
    sent = read(served, stored, "tcp")
    assert sum(batch.num_rows for batch in sent) == stored.end > 5000
    no_broker()
    for mode in ("local", "auto"):
        assert read(served, stored, mode) == sent
    assert len(list((served.folder / "streams").glob("*/*.segment"))) > 3


@pytest.mark.parametrize("more", [{"batchRows": "7"}, {"batchBytes": "100"}, {"valueFormat": "raw"}], ids=str)
def test_every_part_of_it_is_the_same(served, stored, more):
    end = stored.end - 4  # without the large ones
    for start, stop in ((0, 1), (279, 281), (290, 1400), (1000, end), (end - 1, end), (end, stored.end)):
        wanted = stored._replace(start=start, end=stop)
        assert rows(read(served, wanted, **more)) == rows(read(served, wanted, "tcp", **more))


def test_what_was_committed_later_is_not_read(served, stored):
    batches = read(served, stored._replace(start=10, end=20))
    assert [row["offset"] for row in rows(batches)] == list(range(10, 20))


def test_rows_of_any_size_come_back(served):
    given = {"endpoints": f"127.0.0.1:{served.port}", "stream": "written", "createStream": "true"}
    writer = sink.JobWriter(given, types.StructType().add("value", "binary"), False)
    values = [os.urandom(LARGE), b"", b"x" * LARGE, None, b"the end"]
    batches = [pa.record_batch([pa.array([value], pa.binary())], ["value"]) for value in values]
    writer.commit([writer.write(iter(batches))])
    wanted = planned(served, "written")
    for mode in ("tcp", "local"):
        assert [row["value"] for row in rows(read(served, wanted, mode))] == [value or b"" for value in values]


def test_a_query_reads_files_by_way_of_spark(spark, served, stored):
    def rows_of(mode):
        asked = (
            spark.read.format("vibemq").option("endpoints", f"127.0.0.1:{served.port}").option("stream", "all-kinds")
        )
        frame = asked.option("readMode", mode).option("minPartitions", "3").load()
        found = frame.selectExpr("offset", "length(value) as size", "crc32(value) as sum", "timestamp", "stream")
        return found.orderBy("offset").collect()

    assert len(rows_of("local")) == stored.end
    assert rows_of("local") == rows_of("tcp") == rows_of("auto")


# ---- where the files are not the broker's ----


def why_not(served, wanted):
    """The reason, after making sure that `auto` reads all the same."""
    assert rows(read(served, wanted, "auto")) == rows(read(served, wanted, "tcp"))
    with pytest.raises(NotLocal, match="readMode=local") as caught:
        read(served, wanted)
    return str(caught.value)


@pytest.fixture
def small(served, request):
    stream = request.node.name
    with connected(served.running) as peer:
        peer.create(stream)
        peer.store(stream, [b"a", b"b", b"c"])
    return planned(served, stream)


def test_a_broker_that_does_not_say_where_its_files_are(served, small):
    assert "has not said where its data directory is" in why_not(served, small._replace(store="", directory=""))


def test_another_store_lies_there(served, small):
    assert f"its store is {small.store}, the broker's another" in why_not(served, small._replace(store="another"))


def test_the_directory_is_not_there(served, small, tmp_path):
    reason = why_not(served, small._replace(directory=f"{tmp_path}/none/streams"))
    assert f"{tmp_path}/none is not there, so this is not the broker's machine" in reason


def test_a_permission_that_is_missing_is_told_with_the_file_and_the_user(served, small, monkeypatch):
    really = os.open

    def refused(path, *arguments, **named):
        if path == "identity":
            raise PermissionError(13, "Permission denied", path)
        return really(path, *arguments, **named)

    monkeypatch.setattr(local.os, "open", refused)
    reason = why_not(served, small)
    assert f"{served.folder}/identity may not be read by {local._user()}" in reason
    assert "run Spark as the broker's user" in reason


def copied(served, folder, wanted):
    """A data directory elsewhere, in which the stream's files are the broker's by way of a link."""
    (folder / "streams").mkdir(parents=True)
    (folder / "identity").write_text(wanted.store)
    name = f"{int(wanted.incarnation, 16):016x}"
    return folder / "streams" / name, served.folder / "streams" / name


def test_no_link_out_of_the_directory_is_followed(served, small, tmp_path):
    name, there = copied(served, tmp_path / "a", small)
    name.symlink_to(there)
    assert "is a link" in why_not(served, small._replace(directory=f"{tmp_path}/a/streams"))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "streams").symlink_to(served.folder / "streams")
    (tmp_path / "b" / "identity").write_text(small.store)
    assert "is a link" in why_not(served, small._replace(directory=f"{tmp_path}/b/streams"))
    (tmp_path / "b" / "identity").unlink()
    (tmp_path / "b" / "identity").symlink_to(served.folder / "identity")
    assert "identity is a link" in why_not(served, small._replace(directory=f"{tmp_path}/b/streams"))
    name, there = copied(served, tmp_path / "c", small)
    name.mkdir()
    for file in there.iterdir():
        (name / file.name).symlink_to(file)
    assert "control" in why_not(served, small._replace(directory=f"{tmp_path}/c/streams"))


def test_a_copy_of_the_directory_is_not_the_directory(served, small, tmp_path):
    """It would stand still while the stream goes on."""
    name, there = copied(served, tmp_path, small)
    name.mkdir()
    for file in there.iterdir():
        (name / file.name).write_bytes(file.read_bytes())
    assert "ERR_STALE" in why_not(served, small._replace(directory=f"{tmp_path}/streams"))


# ---- what goes away while it is read ----


def cut(served, stream, size):
    """A stream of several small segments, begun to be read."""
    with connected(served.running) as peer:
        peer.create(stream, **{"stream-max-segment-size-bytes": "20000", "max-length-bytes": str(size)})
        for _ in range(10):
            peer.store(stream, [b"%0100d" % number for number in range(100)])
    return planned(served, stream)


def fill_until_retention_works(served, stream, first):
    with connected(served.running) as peer, StreamsConnection.connect("127.0.0.1", served.port) as asked:

        def passed():
            peer.store(stream, [b"%0100d" % number for number in range(100)])
            return asked.stats(stream)["first_chunk_id"] > first

        wait_until(passed, "retention took the segments that come next")


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("mode", ["auto", "local"])
def test_retention_takes_the_files_that_come_next(served, fail, mode):
    stream = f"retention-{fail}-{mode}"
    wanted = cut(served, stream, 200_000)
    reading = ranges.read(options(served, stream, readMode=mode, failOnDataLoss=fail, batchRows="50"), SCHEMA, wanted)
    had = [next(reading)]
    fill_until_retention_works(served, stream, 500)
    if fail == "true":
        with pytest.raises(DataLost, match="retention has passed the start: wanted offsets"):
            had += reading
    else:
        had += reading
    got = [row["offset"] for row in rows(had)]
    assert got[:50] == list(range(50)) and got == sorted(set(got))
    if fail == "false":
        assert got[-1] == wanted.end - 1 and 50 < len(got) < wanted.end


@pytest.mark.parametrize("fail", ["true", "false"])
def test_the_stream_is_deleted_while_it_is_read(served, fail):
    stream = f"deleted-{fail}"
    wanted = cut(served, stream, 10_000_000)
    reading = ranges.read(
        options(served, stream, readMode="local", failOnDataLoss=fail, batchRows="50"), SCHEMA, wanted
    )
    had = [next(reading)]
    with StreamsConnection.connect("127.0.0.1", served.port) as asked:
        asked.delete(stream)
    folder = served.folder / "streams" / f"{int(wanted.incarnation, 16):016x}"
    wait_until(lambda: not folder.exists(), "its files are gone")
    if fail == "true":
        with pytest.raises(DataLost, match="it was deleted"):
            had += reading
        with pytest.raises(DataLost, match="it was deleted"):  # and one that begins now
            read(served, wanted)
    else:
        had += reading
        assert read(served, wanted, failOnDataLoss="false") == []
    got = [row["offset"] for row in rows(had)]
    assert got == list(range(len(got)))


def test_a_chunk_that_is_damaged_is_the_brokers_to_judge(served, small):
    """It gives no row here; what the broker has of it is what the query gets."""
    with connected(served.running) as peer:
        peer.store(small.stream, [b"d"])
    wanted = planned(served, small.stream)
    [segment] = (served.folder / "streams" / f"{int(small.incarnation, 16):016x}").glob("*.segment")
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b"\0\0\0\1b", b"\0\0\0\1B"))
    with pytest.raises(DataLost, match="records inside it are missing"):
        read(served, wanted)
    assert [row["value"] for row in rows(read(served, wanted, failOnDataLoss="false"))] == [b"d"]
