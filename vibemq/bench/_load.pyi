# SPDX-License-Identifier: Apache-2.0
"""Types of the load threads."""

from vibemq.bench._histogram import Histogram
from vibemq.bench._tunnel import Tunnel

STAMP_SIZE_BYTES: int

class Producer:
    last_confirm_ns: int
    refused_code: int
    close_code: int
    send_error: int
    confirms: Histogram
    def __init__(
        self,
        *,
        fd: int,
        number: int,
        total: int,
        batch: int,
        size: int,
        group: int,
        window: int,
        rate: float,
        timed: bool,
        sub_batch: int = 0,
        filter_value: bytes = b"",
        tunnel: Tunnel | None = None,
    ) -> None: ...
    @property
    def sent(self) -> int: ...
    @property
    def confirmed(self) -> int: ...
    @property
    def refused(self) -> int: ...
    def stop(self) -> None: ...
    def send(self) -> None: ...
    def read_confirms(self) -> None: ...

class Consumer:
    last_chunk_ns: int
    subscribe_code: int
    close_code: int
    send_error: int
    latencies: Histogram
    def __init__(
        self,
        *,
        fd: int,
        subscribe: bytes,
        credit: bytes,
        wanted: int,
        producers: int,
        verify: bool,
        timed: bool,
        tunnel: Tunnel | None = None,
    ) -> None: ...
    @property
    def received(self) -> int: ...
    @property
    def chunks(self) -> int: ...
    @property
    def disordered(self) -> int: ...
    def read(self) -> None: ...
