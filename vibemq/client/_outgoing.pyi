# SPDX-License-Identifier: Apache-2.0
"""Types of the compiled half of the native client: messages on their way out."""

from asyncio import Future
from collections.abc import Iterator, Mapping
from typing import Any

from vibemq.client._native import Core

BATCH_BYTES_MAX: int

class Fields:
    data: bytes
    count: int
    def __init__(self, headers: Mapping[str, str] | None = ..., priority: int | str | None = ...) -> None: ...

NO_FIELDS: Fields

class Flow:
    submitted: int
    in_flight: int
    acked: int
    forgotten: int
    refused: list[tuple[int, str, str, str]]
    wake_at: int
    waiters: list[tuple[int, Future[None]]]
    def take_refused(self) -> list[tuple[int, str, str, str]]: ...

class Batch:
    count: int
    sent: bool
    data: bytes | None
    size_bytes: int
    unsettled: int
    def __init__(self, core: Core, queue: str, stored: bool = ...) -> None: ...
    def add(self, payload: Any, fields: Fields = ..., raw: bool = ..., id: str | bytes | None = ...) -> None: ...
    def id_of(self, index: int) -> str: ...
    def extend(self, iterator: Iterator[Any], count_max: int, fields: Fields = ..., raw: bool = ...) -> bool: ...
