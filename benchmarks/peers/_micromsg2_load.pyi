# SPDX-License-Identifier: Apache-2.0
"""Types of the load threads for the MicroMsg2 door."""

from typing import Any

from benchmarks.peers._audience import Audience
from vibemq.bench._flow import Consumer, Publisher

class Micromsg2Publisher(Publisher):
    def __init__(self, *, ack_id: int, **options: Any) -> None: ...

class Micromsg2Consumer(Consumer):
    def __init__(self, *, ack_id: int, window: int, **options: Any) -> None: ...

class Micromsg2Audience(Audience): ...
