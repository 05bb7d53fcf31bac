# SPDX-License-Identifier: Apache-2.0
"""Types of the codec for readers and checkers."""

from collections.abc import Mapping
from typing import NamedTuple

from vibemq.errors import MalformedFrame as MalformedFrame
from vibemq.errors import UnencodableValue as UnencodableValue

class Message(NamedTuple):
    type: int
    id: bytes
    queue: str | None = ...
    payload: bytes | None = ...
    headers: dict[str, str] = ...
    error_code: str | None = ...
    error_message: str | None = ...
    text_layout: bool = ...

def decode_body(body: bytes) -> Message: ...
def split_frames(data: bytes, body_max: int = ..., flags_max: int = ...) -> tuple[list[tuple[int, bytes]], int]: ...
def validate(body: bytes) -> str | None: ...
def is_queue_name(name: str | bytes) -> bool: ...
def is_json(text: bytes) -> bool: ...
def encode_body(
    type: int,
    id: str | bytes,
    *,
    queue: str | bytes | None = ...,
    payload: bytes | None = ...,
    headers: Mapping[str, str] | Mapping[bytes, bytes] | None = ...,
    error_code: str | None = ...,
    error_message: str | None = ...,
    text_layout: bool = ...,
) -> bytes: ...
def frame_of(body: bytes, flags: int = ...) -> bytes: ...
def encode_frame(
    type: int,
    id: str | bytes,
    *,
    queue: str | bytes | None = ...,
    payload: bytes | None = ...,
    headers: Mapping[str, str] | Mapping[bytes, bytes] | None = ...,
    error_code: str | None = ...,
    error_message: str | None = ...,
    text_layout: bool = ...,
) -> bytes: ...
