# SPDX-License-Identifier: Apache-2.0
"""Types of the compiled encoder."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

BLOCK_BYTES: int
BLOCK_BYTES_MIN: int
OPEN_BYTES_MAX: int

def crc32c(data: bytes | memoryview) -> int: ...

class Encoder:
    rows: int
    def __init__(
        self,
        targets: tuple[str, ...],
        *,
        partitions: Sequence[int] = (),
        by_name: bool = False,
        content_type: str = "",
        compression: str = "none",
        block_max: int = ...,
    ) -> None: ...
    def encode(self, columns: Mapping[str, pa.Array], rows: int) -> Iterator[tuple[int, bytes | memoryview[int]]]: ...
    def finish(self) -> Iterator[tuple[int, bytes | memoryview[int]]]: ...
