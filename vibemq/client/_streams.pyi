# SPDX-License-Identifier: Apache-2.0
"""Types of the compiled half of the streams client."""

from collections.abc import Callable, Iterator

class Inbox:
    def receive(self, receive_into: Callable[[memoryview], int]) -> int: ...
    def next_frame(self) -> tuple[int, int, bytes] | None: ...

class Chunk:
    subscription_id: int
    chunk_type: int
    entries: int
    records: int
    timestamp_ms: int
    epoch: int
    chunk_id: int
    data: memoryview
    @property
    def next_offset(self) -> int: ...
    def messages(self) -> Iterator[tuple[int, bytes]]: ...

def sub_batch_messages(entry: bytes) -> list[bytes]: ...
def open_chunk(body: bytes, version: int, where: str) -> Chunk: ...
def confirm_count(body: bytes) -> int: ...
def encode_publish(
    publisher_id: int, messages: list[bytes], start: int, first_id: int, size_max: int, count_max: int
) -> tuple[bytes, int]: ...
