# SPDX-License-Identifier: Apache-2.0
"""Types of the load threads for SignalR hubs."""

from collections.abc import Sequence
from typing import Any

from vibemq.bench._flow import Consumer, Publisher
from vibemq.bench._histogram import Histogram

class SignalRPublisher(Publisher):
    def __init__(self, *, key: bytes, payload_at: int, is_messagepack: bool = ..., **options: Any) -> None: ...

class SignalRConsumer(Consumer):
    def __init__(self, *, key: bytes, is_messagepack: bool = ..., **options: Any) -> None: ...

class Audience:
    last_ns: int
    disordered: int
    latencies: Histogram
    def __init__(
        self,
        *,
        connections: Sequence[tuple[int, bytes]],
        messages: int,
        is_messagepack: bool = ...,
        timed: bool = ...,
    ) -> None: ...
    @property
    def received(self) -> int: ...
    @property
    def fault(self) -> str: ...
    @property
    def least(self) -> int: ...
    def stop(self) -> None: ...
    def run(self) -> None: ...
