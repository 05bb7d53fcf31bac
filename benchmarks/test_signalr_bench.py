# SPDX-License-Identifier: Apache-2.0
"""What hub messages of the signalr door cost, for each message.

pytest benchmarks/test_signalr_bench.py --benchmark-only

A call from Python is in every figure; the one for a ping in MessagePack is nearly nothing else.
"""

import json

import msgspec
import pytest
from peers import hub_messages as messages
from peers.hub_messages import Message

from vibemq.protocols.signalr.spec import Encoding, MessageType

pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")

BODY = {"a": 1, "customer": "somebody", "lines": [{"sku": "x-17", "count": 3}], "price": 12.5, "note": "as usual"}
RECORDS = {
    "JSON publish of 100 B": (
        b'{"type":1,"invocationId":"123","target":"Publish","arguments":["orders",%b]}'
        % json.dumps(BODY, separators=(",", ":")).encode(),
        Encoding.JSON,
    ),
    "JSON publish of a text of 10 kB": (
        b'{"type":1,"invocationId":"123","target":"Publish","arguments":["orders","%b"]}' % (b"x" * 10_000),
        Encoding.JSON,
    ),
    "JSON ping": (b'{"type":6}', Encoding.JSON),
    "MessagePack publish of 100 B": (
        msgspec.msgpack.encode([1, {}, "123", "Publish", ["orders", BODY], []]),
        Encoding.MESSAGEPACK,
    ),
    "MessagePack publish of 100 B as bin": (
        msgspec.msgpack.encode([1, {}, "123", "Publish", ["orders", bytes(100)], []]),
        Encoding.MESSAGEPACK,
    ),
    "MessagePack ping": (b"\x91\x06", Encoding.MESSAGEPACK),
}


@pytest.mark.parametrize("name", RECORDS)
def test_parse(benchmark, name):
    record, encoding = RECORDS[name]
    assert benchmark(messages.type_of, record, encoding) in (MessageType.INVOCATION, MessageType.PING)


@pytest.mark.parametrize("encoding", Encoding)
def test_split_1000_records(benchmark, encoding):
    record = messages.encode(Message(MessageType.INVOCATION, "123", "Publish", ["orders", BODY]), encoding)
    records, used = benchmark(messages.split_records, record * 1_000, encoding)
    assert len(records) == 1_000 and used == 1_000 * len(record)


@pytest.mark.parametrize("encoding", Encoding)
def test_encode_completion(benchmark, encoding):
    assert benchmark(messages.encode, Message(MessageType.COMPLETION, "123", payload=42), encoding)
