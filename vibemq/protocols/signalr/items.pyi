# SPDX-License-Identifier: Apache-2.0
def encode_delivery(
    message: bytes,
    encoding: int,
    *,
    queue: bytes = b"q",
    tag: int = 1,
    offset: int = 0,
    timestamp_ms: int = 0,
    attempts: int = 1,
) -> bytes: ...
