# SPDX-License-Identifier: Apache-2.0
"""What it costs to unmask and split the frames of a WebSocket client: about 64 KiB of messages of one size at a time.

pytest benchmarks/test_websocket_bench.py --benchmark-only

A call from Python, and a tuple of what was found, is in the figure of each message.
"""

import pytest
from peers.websocket_frames import BINARY, KINDS, TEXT, masked

from vibemq.protocols.signalr.websocket import MessageReader

pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")

READ_BYTES = 64 * 1024
# Frames are unmasked where they lie, so each pass masks what the last one unmasked: with this mask ASCII stays ASCII.
MASK = b"\x01\x02\x03\x04"
MESSAGE = KINDS.index("message")


def count_messages(reader, data):
    """How many messages are in `data`."""
    at = messages = 0
    while True:
        kind, _, _, used, *_ = reader.read(data, at)
        if kind != MESSAGE:
            return messages
        at += used
        messages += 1


@pytest.mark.parametrize("size", [64, 1024, 16384])
@pytest.mark.parametrize("opcode", [TEXT, BINARY], ids=["text", "binary"])
def test_messages_of_one_frame(benchmark, opcode, size):
    count = READ_BYTES // size
    data = bytearray(masked(opcode, b"x" * size, mask=MASK) * count)
    benchmark.extra_info["messages"] = count
    assert benchmark(count_messages, MessageReader(1 << 20), data) == count


def test_messages_in_fragments_of_4_kib(benchmark):
    pieces = [masked(BINARY if i == 0 else 0, bytes(4096), fin=i == 3, mask=MASK) for i in range(4)]
    data = bytearray(b"".join(pieces) * 4)
    benchmark.extra_info["messages"] = 4
    assert benchmark(count_messages, MessageReader(1 << 20), data) == 4
