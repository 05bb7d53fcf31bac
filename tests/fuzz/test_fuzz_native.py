# SPDX-License-Identifier: Apache-2.0
"""Random bytes against the native codec, as tests/fuzzing.py says.

The invariant in one sentence: whatever a peer sends, each layer (framing, compression, body, validation, options) gives
a value or one of the errors that it names, the value says the same when it is written and read again, and nothing
that was decompressed is larger than was allowed.
"""

import contextlib
import json
import random
from pathlib import Path

import pytest
from fuzzing import LIMIT_S, seeded, steps

from vibemq.errors import LimitExceeded
from vibemq.protocols.native import codec, compression, options, spec
from vibemq.protocols.native.codec import MalformedFrame, Message

pytestmark = [pytest.mark.fuzz]

BODY_BYTES_MAX = 1 << 16
FLAGS_MAX = spec.Compression.ZSTD

VECTORS = json.loads((Path(__file__).parent.parent / "protocols" / "native" / "vectors.json").read_text())
GOLDEN = [
    bytes.fromhex(vector["frame_hex"])
    for group in ("golden_frames", "text_example_frames", "broker_frames", "compressed_frames_decode_only")
    for vector in VECTORS[group]
]
EDGE_CASES = [bytes.fromhex(vector["hex"]) for group in ("must_reject", "must_accept") for vector in VECTORS[group]]


def mutated(frame: bytes, random_: random.Random) -> bytes:
    """A frame as a broken or hostile peer may send it: often with a size that fits, sometimes not."""
    flags, body = frame[4], bytearray(frame[5:])
    if random_.random() < 0.1:
        name = random_.choice(list(spec.COMPRESSION_BY_NAME))
        flags = spec.COMPRESSION_BY_NAME[name]
        packed = compression.compress(name, bytes(body) * random_.choice((1, 10, 5000)))
        body = bytearray(packed or body)
    for _ in range(random_.randrange(4)):
        at = random_.randrange(len(body) + 1)
        match random_.randrange(5):
            case 0 if body:
                body[at % len(body)] ^= 1 << random_.randrange(8)
            case 1:
                number = random_.choice(
                    (b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0" * 4, b"\xff\xff", b"\0\1")
                )
                body[at : at + len(number)] = number
            case 2:
                del body[at : at + random_.randint(1, 9)]
            case 3:
                body[at:at] = random_.choice((random_.randbytes(random_.randint(1, 200)), b"[" * 70, b'{"mode":'))
            case _:
                body[at:at] = body[at : at + random_.randint(1, 60)]
    size = len(body)
    if random_.random() < 0.1:
        size = random_.choice((0, 1, size + 1, max(0, size - 1), 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF))
    if random_.random() < 0.05:
        flags = random_.randrange(256)
    return size.to_bytes(4, "big") + bytes([flags]) + bytes(body)


def written(message: Message) -> bytes:
    fields = {name: value for name, value in message._asdict().items() if name not in ("type", "id")}
    return codec.encode_body(message.type, message.id, **fields)


def read_body(body: bytes) -> None:
    fault = codec.validate(body)  # MalformedFrame: not even a frame
    try:
        message = codec.decode_body(body)
    except MalformedFrame as error:
        assert error.where == "queue" and fault is not None, "what cannot be decoded must not be valid"
        return
    assert codec.decode_body(written(message)) == message
    if message.type == spec.Command.PUBLISH and fault is None and message.payload is not None:
        json.loads(message.payload)
    with contextlib.suppress(options.BadOption):
        options.queue_options(message.headers, message.payload, options.OPTION_DEFAULTS)


def read_stream(stream: bytes) -> int:
    """As a session does, until the first fault; how many bodies were read."""
    count = 0
    frames, used = codec.split_frames(stream, BODY_BYTES_MAX, FLAGS_MAX)
    assert used <= len(stream)
    for flags, data in frames:
        body = compression.decompress(flags, data, BODY_BYTES_MAX)
        assert len(body) <= BODY_BYTES_MAX
        read_body(body)
        count += 1
    return count


@pytest.mark.timeout(LIMIT_S)
def test_whatever_a_peer_sends_is_a_value_or_a_named_error():
    random_ = seeded()
    read = refused = 0
    for _ in steps(50_000):
        frames = [mutated(random_.choice(GOLDEN + EDGE_CASES), random_) for _ in range(random_.randint(1, 4))]
        try:
            read += read_stream(b"".join(frames))
        except (MalformedFrame, LimitExceeded):
            refused += 1
    assert read > 10 and refused > 10
