# SPDX-License-Identifier: Apache-2.0
"""Types of the queue load threads that all protocols share."""

from vibemq.bench._histogram import Histogram

NUMBER_MARK: bytes
STAMP_MARK: bytes
QUEUE_MARK: bytes
SIZE_MIN: int

def body(size: int) -> bytes: ...

class Tally:
    total: int
    queues: int
    def __init__(self, total: int, queues: int = 1) -> None: ...
    @property
    def missing(self) -> int: ...
    @property
    def repeated(self) -> int: ...
    @property
    def strange(self) -> int: ...

class Flow:
    last_ns: int
    @property
    def fault(self) -> str: ...
    def stop(self) -> None: ...
    def run(self) -> None: ...

class Publisher(Flow):
    strange: int
    confirms: Histogram
    def __init__(
        self,
        *,
        fd: int,
        frame: bytes,
        total: int,
        window: int,
        group: int,
        early: bytes = ...,
        first: int = ...,
        rate: float = ...,
        queues: int = ...,
        timed: bool = ...,
        verify: bool = ...,
    ) -> None: ...
    @property
    def sent(self) -> int: ...
    @property
    def confirmed(self) -> int: ...

class Consumer(Flow):
    disordered: int
    latencies: Histogram
    def __init__(
        self, *, fd: int, wanted: int, early: bytes = ..., timed: bool = ..., tally: Tally | None = ...
    ) -> None: ...
    @property
    def received(self) -> int: ...
