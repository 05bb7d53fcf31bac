# SPDX-License-Identifier: Apache-2.0
"""A broker made of a list: streams with chunks, which can be away, lose records, or drop connections."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_chunks import Built

from vibemq.errors import ConnectionClosed, RequestFailed, StreamNotFound


@dataclass
class FakeStream:
    incarnation: int | None
    first: int = 0
    chunks: list[Built] = field(default_factory=list)

    @property
    def next(self) -> int:
        return self.chunks[-1].chunk_id + self.chunks[-1].records if self.chunks else self.first

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
        self.away = False
        self.connections = 0
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
