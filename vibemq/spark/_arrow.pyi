# SPDX-License-Identifier: Apache-2.0
"""Types of the compiled decoder."""

from collections.abc import Generator, Iterator

import pyarrow as pa

from vibemq.errors import StorageError
from vibemq.storage.reading import Chunks

SUB_BATCH_BYTES_MAX: int
TIMESTAMP_MS_MAX: int

class Decoder:
    next_offset: int
    given: int
    def __init__(
        self, stream: str, schema: pa.Schema, *, raw: bool = False, batch_bytes: int = ..., batch_rows: int = ...
    ) -> None: ...
    def decode(
        self,
        chunk_id: int,
        timestamp_ms: int,
        entries: int,
        records: int,
        data: bytes | memoryview,
        start_offset: int,
        end_offset: int,
    ) -> Iterator[pa.RecordBatch]: ...
    def decode_log(
        self, chunks: Chunks, start_offset: int, end_offset: int
    ) -> Generator[pa.RecordBatch, None, tuple[int, StorageError | None]]: ...
    def finish(self) -> pa.RecordBatch | None: ...
