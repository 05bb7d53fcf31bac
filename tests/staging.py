# SPDX-License-Identifier: Apache-2.0
"""What tests of transactions share: rows as entries, a transaction that is staged, and what a stream holds."""

from __future__ import annotations

import struct
import uuid

from vibemq.client.streams import Staging, StreamsConnection
from vibemq.protocols.streams.spec import TransactionState as State


def entries(*messages: bytes) -> bytes:
    """As they lie in a chunk."""
    return b"".join(struct.pack(">I", len(message)) + message for message in messages)


def amqp(body: bytes) -> bytes:
    """An AMQP 1.0 message with a data section."""
    return b"\0\x53\x75\xa0" + bytes([len(body)]) + body


def rows(client: StreamsConnection, stream: str) -> list[bytes]:
    return [body for chunk in client.read_chunks(stream, 0) for _, body in chunk.messages()]


def begun(
    client: StreamsConnection, application: str, version: int, *targets: str, run: str = "run", name: str = ""
) -> Staging:
    staging = client.begin_transaction(name or uuid.uuid4().hex, application, version, run, targets)
    assert (staging.state, staging.holder) == (State.OK, "")
    return staging


def staged(
    client: StreamsConnection, application: str, version: int, *parts: tuple[str, list[bytes]], run: str = "run"
) -> tuple[str, int]:
    """One transaction with a block for each target, as a commit names it."""
    with begun(client, application, version, *(target for target, _ in parts), run=run) as staging:
        for target, (_, messages) in enumerate(parts):
            staging.stage(target, entries(*messages))
    return staging.name, staging.blocks
