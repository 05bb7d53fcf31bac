# SPDX-License-Identifier: Apache-2.0
"""Types of the native protocol's load threads."""

from typing import Any

from vibemq.bench._flow import Consumer, Publisher

class NativePublisher(Publisher): ...
class NativeConsumer(Consumer): ...

class EchoPublisher(Publisher):
    def __init__(self, *, reply_size: int, **options: Any) -> None: ...
