# SPDX-License-Identifier: Apache-2.0
"""Types of the audience of a fan-out."""

from collections.abc import Sequence

from vibemq.bench._flow import Histogram

class Audience:
    last_ns: int
    disordered: int
    latencies: Histogram
    def __init__(
        self,
        *,
        connections: Sequence[tuple[int, bytes, int]],
        messages: int,
        step: int = ...,
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
