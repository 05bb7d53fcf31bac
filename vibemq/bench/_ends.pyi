# SPDX-License-Identifier: Apache-2.0
"""Types of both ends of a load over our protocols."""

from typing import Any

from vibemq.bench._flow import Consumer, Publisher

STAMP_SIZE_BYTES: int

def publish_frame(batch: int, size: int, sub_batch: int = ..., filter_value: bytes = ...) -> bytes: ...

class NativePublisher(Publisher): ...
class NativeConsumer(Consumer): ...

class StreamsPublisher(Publisher):
    def __init__(
        self, *, number: int, size: int, sub_batch: int = ..., filter_value: bytes = ..., **options: Any
    ) -> None: ...

class StreamsConsumer(Consumer):
    chunks: int
    def __init__(self, *, credit: bytes, producers: int, verify: bool, **options: Any) -> None: ...
