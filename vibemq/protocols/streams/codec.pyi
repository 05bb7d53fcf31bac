# SPDX-License-Identifier: Apache-2.0
"""Types of the codec for readers and checkers. The tuples of commands come from the table, so they are Any here."""

from typing import Any, NamedTuple

from vibemq import errors
from vibemq.errors import UnencodableValue as UnencodableValue

class MalformedFrame(errors.MalformedFrame): ...

class SubBatch(NamedTuple):
    compression: int
    records: int
    uncompressed_size: int
    body: bytes

class Chunk(NamedTuple):
    magic_version: int
    chunk_type: int
    entries: int
    records: int
    timestamp_ms: int
    epoch: int
    chunk_id: int
    crc: int
    data_size: int
    trailer_size: int
    bloom_size: int
    reserved: int
    data: bytes
    trailer: bytes

def decode_request(key: int, version: int, payload: bytes | bytearray | memoryview) -> Any: ...
def decode_response(key: int, version: int, payload: bytes | bytearray | memoryview) -> Any: ...
def encode_request(key: int, correlation_id: int | None = None, *, version: int = 1, **fields: Any) -> bytes: ...
def encode_response(
    key: int, correlation_id: int | None, code: int | None, *, version: int = 1, **fields: Any
) -> bytes: ...
def encode_server_frame(key: int, *, version: int = 1, **fields: Any) -> bytes: ...
def __getattr__(name: str) -> Any: ...
