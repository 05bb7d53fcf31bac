# SPDX-License-Identifier: Apache-2.0
"""Compressed bodies: golden ones, every cut of them, tails, and bombs, whose output is bounded whatever they claim."""

import contextlib
import json
import random
import tracemalloc
import zlib
from pathlib import Path

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from vibemq.errors import LimitExceeded
from vibemq.protocols.native import codec, compression, spec
from vibemq.protocols.native.compression import compress, decompress, negotiate
from vibemq.protocols.native.spec import Compression

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
NAMES = ["gzip", "brotli", "zstd"]
LIMIT = 1 << 20
TEXT = b'{"text":"%s"}' % (b"to be or not to be " * 200)


def gzip(data: bytes, level: int = 9) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()


def unpack(name: str, data: bytes, size_max: int = LIMIT) -> bytes:
    return decompress(spec.COMPRESSION_BY_NAME[name], data, size_max)


@pytest.mark.parametrize("vector", VECTORS["compressed_frames_decode_only"], ids=lambda v: v["name"])
def test_a_golden_compressed_frame_is_read(vector):
    ((flags, packed),), _ = codec.split_frames(bytes.fromhex(vector["frame_hex"]))
    body = decompress(flags, packed, LIMIT)
    if "plain_body_hex" in vector:
        assert body == bytes.fromhex(vector["plain_body_hex"])
    else:
        assert len(body) == vector["plain_body_length"]
        payload = b'{"t":"%s"}' % (b"x" * 1200)
        assert codec.decode_body(body) == codec.Message(spec.Command.PUBLISH, b"m2", "q", payload)


@pytest.mark.parametrize("vector", VECTORS["compressed_frames_decode_only"], ids=lambda v: v["name"])
def test_a_golden_compressed_frame_cut_short_or_with_a_tail_is_refused(vector):
    ((flags, packed),), _ = codec.split_frames(bytes.fromhex(vector["frame_hex"]))
    for size in range(len(packed)):
        with pytest.raises(codec.MalformedFrame, match="body: needed"):
            decompress(flags, packed[:size], LIMIT)
    for tail in (b"\0", b"garbage"):
        with pytest.raises(codec.MalformedFrame, match="body: needed"):
            decompress(flags, packed + tail, LIMIT)


def test_a_frame_of_protocol_1_0_is_no_gzip():
    reject = next(v for v in VECTORS["must_reject"] if "flag GZip" in v["name"])
    ((flags, packed),), _ = codec.split_frames(bytes.fromhex(reject["hex"]))
    with pytest.raises(codec.MalformedFrame, match="body: needed one gzip stream"):
        decompress(flags, packed, LIMIT)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_compressed_comes_back(name):
    packed = compress(name, TEXT)
    assert packed is not None and len(packed) < len(TEXT) // 10
    assert unpack(name, packed) == TEXT
    assert unpack(name, packed, len(TEXT)) == TEXT
    for size in range(len(packed)):
        with pytest.raises(codec.MalformedFrame):
            unpack(name, packed[:size])
    with pytest.raises(codec.MalformedFrame):
        unpack(name, packed + b"\0")


@pytest.mark.parametrize("name", NAMES)
def test_what_would_not_be_shorter_is_not_compressed(name):
    assert compress(name, b"") is None
    assert compress(name, b"x") is None
    assert compress(name, random.Random(7).randbytes(5000)) is None


@given(st.sampled_from(NAMES), st.binary(max_size=300), st.integers(1, 50), st.integers(1, 9))
def test_any_body_comes_back_at_any_level(name, piece, times, level):
    body = piece * times
    packed = compress(name, body, level)
    if packed is not None:
        assert len(packed) < len(body)
        assert unpack(name, packed) == body


@pytest.mark.parametrize("name", NAMES)
def test_a_body_one_byte_too_large_is_refused(name):
    packed = compress(name, TEXT)
    with pytest.raises(LimitExceeded, match=f"{len(TEXT) - 1}"):
        unpack(name, packed, len(TEXT) - 1)
    with pytest.raises(LimitExceeded):
        unpack(name, packed, 0)


BOMB_SIZE = 256 << 20
BOMB_LIMIT = 1 << 20


def zeros(feed) -> bytes:
    return b"".join(feed(bytes(1 << 20)) for _ in range(BOMB_SIZE >> 20))


def gzip_bomb() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return zeros(packer.compress) + packer.flush()


def brotli_bomb() -> bytes:
    packer = brotli.Compressor(quality=5)
    return zeros(packer.process) + packer.finish()


def zstd_bomb() -> bytes:
    packer = zstandard.ZstdCompressor(write_content_size=True).compressobj(size=BOMB_SIZE)
    return zeros(packer.compress) + packer.flush()


def lying_zstd_bomb() -> bytes:
    """Says that it holds 100 bytes, in the frame header's one-byte size of a single segment, and goes on."""
    honest = zstandard.ZstdCompressor(level=1).compress(bytes(200_000))
    body = honest[4 + 1 + 4 :]  # behind magic, descriptor and the four bytes of the size
    return honest[:4] + bytes([0x20, 100]) + body


@pytest.mark.parametrize("flag, bomb", [(1, gzip_bomb), (2, brotli_bomb), (3, zstd_bomb)], ids=NAMES)
def test_a_bomb_is_refused_before_it_has_grown(flag, bomb):
    packed = bomb()
    assert len(packed) < BOMB_LIMIT
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded):
            decompress(flag, packed, BOMB_LIMIT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * BOMB_LIMIT


def test_a_zstd_frame_that_lies_about_its_size_is_refused():
    with pytest.raises((codec.MalformedFrame, LimitExceeded)):
        decompress(Compression.ZSTD, lying_zstd_bomb(), BOMB_LIMIT)


def test_gzip_may_have_several_members_but_not_thousands():
    assert unpack("gzip", gzip(b"one ") + gzip(b"two")) == b"one two"
    with pytest.raises(LimitExceeded):
        unpack("gzip", gzip(b"one ") + gzip(b"two"), 6)
    with pytest.raises(codec.MalformedFrame, match="members"):
        unpack("gzip", gzip(b"") * 5000)
    for tail in (b"\0", gzip(b"two")[:-1], b"\x1f\x8b"):
        with pytest.raises(codec.MalformedFrame):
            unpack("gzip", gzip(b"one") + tail)


def test_damage_to_gzip_is_found_by_its_checksum():
    damaged = bytearray(gzip(TEXT))
    damaged[-5] ^= 1
    with pytest.raises(codec.MalformedFrame):
        unpack("gzip", bytes(damaged))


def zstd_stream(body: bytes, **parameters) -> bytes:
    chosen = zstandard.ZstdCompressionParameters(**parameters)
    return zstandard.ZstdCompressor(compression_params=chosen).compress(body)


def test_a_zstd_frame_must_say_its_size():
    with pytest.raises(codec.MalformedFrame, match="content size"):
        unpack("zstd", zstd_stream(TEXT, write_content_size=False))


def test_a_zstd_window_is_bounded():
    packer = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=27, write_content_size=True)
    ).compressobj(size=-1)
    with pytest.raises((LimitExceeded, codec.MalformedFrame)):
        unpack("zstd", packer.compress(TEXT) + packer.flush())
    header = b"\x28\xb5\x2f\xfd" + bytes([0x40, 17 << 3]) + (1000 - 256).to_bytes(2, "little")  # 1 << 27, 1000 bytes
    with pytest.raises(LimitExceeded, match="window"):
        unpack("zstd", header + b"\x03\x1f\0x")
    large = bytes(compression.WINDOW_ZSTD_BYTES_MAX + 1)
    assert unpack("zstd", compress("zstd", large), 64 << 20) == large


@given(st.sampled_from([1, 2, 3]), st.binary(max_size=200))
def test_garbage_is_refused_or_bounded(flag, data):
    with contextlib.suppress(codec.MalformedFrame, LimitExceeded):
        assert len(decompress(flag, data, 1000)) <= 1000


def test_damaged_streams_are_refused_or_bounded():
    random_ = random.Random(99)
    streams = {spec.COMPRESSION_BY_NAME[name]: compress(name, TEXT) for name in NAMES}
    for _ in range(3000):
        flag, packed = random_.choice(list(streams.items()))
        damaged = bytearray(packed)
        damaged[random_.randrange(len(damaged))] ^= 1 << random_.randrange(8)
        with contextlib.suppress(codec.MalformedFrame, LimitExceeded):
            assert len(decompress(flag, bytes(damaged), len(TEXT))) <= len(TEXT)


def test_an_uncompressed_body_is_itself_within_the_limit():
    assert decompress(Compression.NONE, b"abc", 3) == b"abc"
    with pytest.raises(LimitExceeded, match="body: 3, at most 2 allowed"):
        decompress(Compression.NONE, b"abc", 2)


@pytest.mark.parametrize(
    ("client", "server", "agreed"),
    [
        ("brotli,gzip", ["gzip", "brotli"], "brotli"),
        ("brotli,gzip", ["gzip"], "gzip"),
        (" GZip , BROTLI ", ["Brotli", "GZip"], "gzip"),
        ("zstd,brotli", NAMES, "zstd"),
        ("zstd,brotli", ["gzip", "brotli"], "brotli"),
        ("lz4,,snappy", NAMES, None),
        ("lz4,gzip", [*NAMES, "lz4"], "gzip"),
        ("gzip", [], None),
        ("", NAMES, None),
        (None, NAMES, None),
    ],
)
def test_the_clients_first_choice_that_the_server_has_is_agreed(client, server, agreed):
    assert negotiate(client, server) == agreed
