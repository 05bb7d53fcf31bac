# SPDX-License-Identifier: Apache-2.0
"""What it costs to unmask and split the frames of a WebSocket client: about 64 KiB of messages of one size at a time.

pytest benchmarks/test_websocket_bench.py --benchmark-only
"""

import pytest
from peers.websocket_frames import BINARY, TEXT, masked

from vibemq.protocols.signalr.websocket import MessageReader

pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")

READ_BYTES = 64 * 1024
# Frames are unmasked where they lie, so each pass masks what the last one unmasked: with this mask ASCII stays ASCII.
MASK = b"\x01\x02\x03\x04"


@pytest.mark.parametrize("size", [64, 1024, 16384])
@pytest.mark.parametrize("opcode", [TEXT, BINARY], ids=["text", "binary"])
def test_messages_of_one_frame(benchmark, opcode, size):
    count = READ_BYTES // size
    data = bytearray(masked(opcode, b"x" * size, mask=MASK) * count)
    benchmark.extra_info["messages"] = count
    assert benchmark(MessageReader(1 << 20).count, data) == count


def test_messages_in_fragments_of_4_kib(benchmark):
    pieces = [masked(BINARY if i == 0 else 0, bytes(4096), fin=i == 3, mask=MASK) for i in range(4)]
    data = bytearray(b"".join(pieces) * 4)
    benchmark.extra_info["messages"] = 4
    assert benchmark(MessageReader(1 << 20).count, data) == 4
