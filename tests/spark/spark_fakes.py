# SPDX-License-Identifier: Apache-2.0
"""A broker made of a list: streams with chunks, which can be away, lose records, or drop connections."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field

from spark_chunks import Built

from vibemq.client.plans import NOT_SAID, Plan, PlannedStream, WantedRange
from vibemq.client.streams import ListedStream
from vibemq.errors import ConnectionClosed, RequestFailed, StreamNotFound
from vibemq.spark import client


@dataclass
class FakeStream:
    incarnation: int | None
    first: int = 0
    chunks: list[Built] = field(default_factory=list)
    lost_by_power_cut: int = 0  # of the last records

    @property
    def next(self) -> int:
        return self.chunks[-1].chunk_id + self.chunks[-1].records if self.chunks else self.first

    @property
    def durable(self) -> int:
        return self.next - self.lost_by_power_cut

    def add(self, count: int, size: int = 10) -> None:
        """`count` messages in chunks of `size`, all with the time of their chunk's first offset."""
        end = self.next + count
        for at in range(self.next, end, size):
            chunk = Built(at, 1_000 * at)
            chunk.add(*[b"\x01%d" % offset for offset in range(at, min(at + size, end))])
            self.chunks.append(chunk)


class FakeBroker:
    def __init__(self) -> None:
        self.streams: dict[str, FakeStream] = {}
        self.offsets: dict[tuple[str, str], int] = {}  # stored
        self.super_streams: dict[str, list[str]] = {}
        self.away = False
        self.connections = 0
        self.plans = 0
        self.drop_after_chunks = 0  # 0: never

    def connect(self, host, port, **settings):
        if self.away:
            raise ConnectionClosed("refused")
        self.connections += 1
        return FakeConnection(self)


class FakeConnection:
    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.open = True

    def _stream(self, name: str) -> FakeStream:
        if self.broker.away or not self.open:
            raise ConnectionClosed("gone")
        if name not in self.broker.streams:
            raise StreamNotFound(f"no {name}", hint="Create it.")
        return self.broker.streams[name]

    def close(self) -> None:
        self.open = False

    @property
    def closed(self) -> bool:
        return not self.open

    def exists(self, name: str) -> bool:
        return name in self.broker.streams

    @property
    def has_plans(self) -> bool:
        return all(stream.incarnation is not None for stream in self.broker.streams.values())

    def plan_reads(self, ranges, *, reference: str = "", super_stream: str = "") -> Plan:
        self.broker.plans += 1
        wanted = {each.stream: each for each in ranges}
        streams = self.partitions(super_stream) if super_stream else list(wanted)
        return Plan("store", "/streams", {name: self._plan(wanted.get(name, WantedRange(name))) for name in streams})

    def partitions(self, super_stream: str) -> list[str]:
        if self.broker.away:
            raise ConnectionClosed("gone")
        if super_stream not in self.broker.super_streams:
            raise StreamNotFound(f"no {super_stream}", hint="Create it.")
        return list(self.broker.super_streams[super_stream])

    def store_offset(self, reference: str, stream: str, offset: int) -> None:
        self.broker.offsets[reference, stream] = offset

    def list_streams(self) -> list[ListedStream]:
        return [ListedStream(name, False, {}) for name in sorted(self.broker.streams)]

    def _plan(self, wanted: WantedRange) -> PlannedStream:
        stream = self._stream(wanted.stream)
        start = stream.first if wanted.start == NOT_SAID else max(wanted.start, stream.first)
        end = stream.durable if wanted.end == NOT_SAID else wanted.end
        chunks = [chunk for chunk in stream.chunks if chunk.chunk_id < end]
        sizes = {chunk.chunk_id: len(chunk.data) for chunk in chunks}
        cuts: list[int] = []
        part_end, size = end, 0
        for chunk_id in reversed(sizes if wanted.split_bytes or wanted.split_records else ()):
            size += sizes[chunk_id]
            too_large = wanted.split_bytes and size > wanted.split_bytes
            if too_large or (wanted.split_records and part_end - chunk_id > wanted.split_records):
                following = chunk_id + next(chunk.records for chunk in chunks if chunk.chunk_id == chunk_id)
                if following < part_end:
                    cuts.append(following)
                    part_end, size = following, sizes[chunk_id]
        limit, size = end, 0
        here = [chunk for chunk in chunks if chunk.chunk_id + chunk.records > start]
        for chunk in here if wanted.bytes_max else ():
            size += len(chunk.data)
            if size > wanted.bytes_max and chunk is not here[0]:
                limit = chunk.chunk_id
                break
        times = [chunk.chunk_id for chunk in stream.chunks if chunk.timestamp_ms >= wanted.timestamp]
        return PlannedStream(
            wanted.stream,
            1,
            f"{stream.incarnation:016x}",
            first=stream.first,
            next=stream.next,
            durable=stream.durable,
            at_timestamp=NOT_SAID if wanted.timestamp == NOT_SAID else min(times, default=stream.next),
            limit=limit,
            waiting_bytes=sum(len(chunk.data) for chunk in here),
            cuts=tuple(cut for cut in reversed(cuts) if cut > start),
        )

    def stats(self, name: str) -> dict[str, int]:
        stream = self._stream(name)
        if stream.incarnation is None:
            raise RequestFailed("unknown", code=13)
        first = stream.first if stream.chunks else -1
        return {"first_chunk_id": first, "committed_offset": stream.next - 1, "incarnation": stream.incarnation}

    def first_offset(self, name: str) -> int:
        return self._stream(name).first

    def next_offset(self, name: str) -> int:
        return self._stream(name).next

    def read_chunks(self, name: str, start: int, end: int):
        given = 0
        for chunk in self._stream(name).chunks:
            if chunk.chunk_id + chunk.records <= max(start, self._stream(name).first) or chunk.chunk_id >= end:
                continue
            if self.broker.drop_after_chunks and given == self.broker.drop_after_chunks:
                raise ConnectionClosed("dropped")
            given += 1
            yield chunk


def installed(monkeypatch) -> FakeBroker:
    """The only broker there is from now on; waits are short."""
    fake = FakeBroker()
    monkeypatch.setattr(client, "StreamsConnection", fake)
    monkeypatch.setattr(client, "_pool", {})
    monkeypatch.setattr(client, "ASK_AGAIN_SECONDS", 0.001)
    monkeypatch.setattr(client, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(client, "PAUSE_SECONDS_MAX", 0.005)
    return fake


def offsets_of(reader, partitions) -> list[int]:
    """What the tasks of a plan read, each with a copy of its partition as Spark makes them."""
    return [
        offset
        for each in pickle.loads(pickle.dumps(partitions))
        for batch in reader.read(each)
        for offset in batch["offset"].to_pylist()
    ]
