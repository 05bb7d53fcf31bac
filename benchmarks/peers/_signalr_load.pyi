# SPDX-License-Identifier: Apache-2.0
"""Types of the load threads for SignalR hubs."""

from typing import Any

from benchmarks.peers._audience import Audience
from vibemq.bench._flow import Consumer, Publisher

class SignalRPublisher(Publisher):
    def __init__(self, *, key: bytes, payload_at: int, is_messagepack: bool = ..., **options: Any) -> None: ...

class SignalRConsumer(Consumer):
    def __init__(self, *, key: bytes, is_messagepack: bool = ..., **options: Any) -> None: ...

class SignalRAudience(Audience):
    def __init__(self, *, is_messagepack: bool = ..., **options: Any) -> None: ...
