# SPDX-License-Identifier: Apache-2.0
"""Types of what all protocols' load threads share."""

import socket
from collections.abc import Iterator
from typing import Any

from OpenSSL import SSL

NUMBER_MARK: bytes
STAMP_MARK: bytes
QUEUE_MARK: bytes
SIZE_MIN: int

def body(size: int) -> bytes: ...

class Histogram:
    total: int
    min_us: int
    max_us: int
    clamped: int
    def record_us(self, value_us: int, count: int = 1) -> None: ...
    def merge(self, other: Histogram) -> None: ...
    def percentile_us(self, percent: float) -> int: ...
    def buckets(self) -> Iterator[tuple[int, int]]: ...
    def encode(self) -> str | None: ...

class Tunnel:
    def __init__(self, plain: socket.socket, connection: SSL.Connection) -> None: ...
    def setblocking(self, flag: bool) -> None: ...
    def fileno(self) -> int: ...
    def shutdown(self, how: int) -> None: ...
    def close(self) -> None: ...
    def send(self, data: bytes | memoryview) -> int: ...
    def recv_into(self, room: memoryview | bytearray) -> int: ...

class Tally:
    total: int
    queues: int
    repeated: int
    strange: int
    def __init__(self, total: int, queues: int = 1) -> None: ...
    @property
    def missing(self) -> int: ...

class Flow:
    last_ns: int
    code: int
    connection: socket.socket | Tunnel
    def __init__(self, *, connection: socket.socket | Tunnel, early: bytes = ..., inbox_size: int = ...) -> None: ...
    @property
    def fault(self) -> str: ...
    def stop(self) -> None: ...
    def run(self) -> None: ...

class Publisher(Flow):
    total: int
    sent: int
    refused: int
    strange: int
    confirms: Histogram
    def __init__(
        self,
        *,
        frame: bytes,
        total: int,
        window: int,
        group: int,
        batch: int = ...,
        first: int = ...,
        rate: float = ...,
        queues: int = ...,
        timed: bool = ...,
        verify: bool = ...,
        **options: Any,
    ) -> None: ...
    @property
    def confirmed(self) -> int: ...

class Consumer(Flow):
    wanted: int
    received: int
    disordered: int
    latencies: Histogram
    def __init__(
        self, *, wanted: int, opening: bytes = ..., timed: bool = ..., tally: Tally | None = ..., **options: Any
    ) -> None: ...
