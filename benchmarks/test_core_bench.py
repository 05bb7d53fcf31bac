# SPDX-License-Identifier: Apache-2.0
"""CRC, ring and append of the C core, each beside what it would be compared with.

Every benchmark returns something that a wrong answer would change, and checks it.
"""

import zlib

import pytest

from vibemq.storage import measure

ROUNDS = 200


@pytest.mark.parametrize("size_bytes", [128, 4096, 65536])
def test_crc_of_ours(benchmark, size_bytes):
    data = bytes(range(256)) * (size_bytes // 256) or bytes(range(size_bytes))
    benchmark.group = f"CRC-32 of {size_bytes} B, {ROUNDS} times"
    benchmark.extra_info["kernel"] = measure.crc_kernel()
    assert benchmark(measure.crc, data, ROUNDS) == zlib.crc32(data)


@pytest.mark.parametrize("size_bytes", [128, 4096, 65536])
def test_crc_of_zlib(benchmark, size_bytes):
    data = bytes(range(256)) * (size_bytes // 256) or bytes(range(size_bytes))
    benchmark.group = f"CRC-32 of {size_bytes} B, {ROUNDS} times"

    def rounds():
        for _ in range(ROUNDS):
            value = zlib.crc32(data)
        return value

    assert benchmark(rounds) == measure.crc(data, 1)


def test_ring_of_descriptors(benchmark):
    benchmark.group = "64,000 descriptors through a ring"
    assert benchmark(measure.ring_pairs, 64_000) == 64_000


@pytest.mark.parametrize(("messages", "size_bytes"), [(1, 100), (9000, 100), (1000, 1000)])
def test_append(benchmark, tmp_path, messages, size_bytes):
    benchmark.group = f"fill, seal and append {messages} x {size_bytes} B, durability os"
    appender = measure.Appender(str(tmp_path / "log"))
    try:
        before = appender.append(messages, size_bytes)
        benchmark.pedantic(appender.append, (messages, size_bytes), rounds=200, warmup_rounds=20)
        after = appender.append(messages, size_bytes)
        assert after > before and after % messages == 0
    finally:
        appender.close()
