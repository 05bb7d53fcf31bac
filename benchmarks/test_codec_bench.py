# SPDX-License-Identifier: Apache-2.0
"""What the streams codec and the compiled half of the client cost, for each command or message.

pytest benchmarks/test_codec_bench.py --benchmark-only
"""

import zlib

import pytest

from vibemq.client._streams import Inbox, encode_publish, open_chunk
from vibemq.protocols.streams import codec, spec
from vibemq.protocols.streams.spec import Code, Key

pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")

MESSAGES = [bytes(100)] * 1_000
DATA = b"".join(len(message).to_bytes(4, "big") + message for message in MESSAGES)
CHUNK = codec.Chunk(0x50, 0, 1_000, 1_000, 0, 1, 0, zlib.crc32(DATA), len(DATA), 0, 0, 0, DATA, b"")
DELIVER = codec.encode_server_frame(Key.DELIVER, subscription_id=1, chunk=CHUNK)
REQUESTS = {
    "DeclarePublisher": codec.encode_request(Key.DECLARE_PUBLISHER, 1, publisher_id=1, reference="me", stream="orders"),
    "Create": codec.encode_request(Key.CREATE, 1, stream="orders", arguments={"max-age": "12h"}),
    "Subscribe": codec.encode_request(
        Key.SUBSCRIBE, 1, subscription_id=1, stream="orders", offset_type=4, offset_value=9, credit=10
    ),
    "Publish of 1000": codec.encode_request(
        Key.PUBLISH, publisher_id=1, messages=[(i, message) for i, message in enumerate(MESSAGES)]
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_decode_request(benchmark, name):
    frame = REQUESTS[name]
    key, body = int.from_bytes(frame[4:6], "big"), frame[spec.FRAME_HEADER_SIZE_BYTES :]
    assert benchmark(codec.decode_request, key, 1, body)


def test_encode_response(benchmark):
    assert benchmark(codec.encode_response, Key.CREATE, 1, Code.OK)


def test_encode_publish_of_1000(benchmark):
    frame, count = benchmark(encode_publish, 1, MESSAGES, 0, 1, 1 << 20, 4_096)
    assert count == 1_000 and len(frame) == 13 + 1_000 * 112


def test_open_chunk_of_1000(benchmark):
    body = DELIVER[spec.FRAME_HEADER_SIZE_BYTES :]
    assert benchmark(open_chunk, body, 1, "here").records == 1_000


def test_messages_of_a_chunk_of_1000(benchmark):
    chunk = open_chunk(DELIVER[spec.FRAME_HEADER_SIZE_BYTES :], 1, "here")
    assert benchmark(lambda: sum(1 for _ in chunk.messages())) == 1_000


def test_inbox_finds_1000_small_frames(benchmark):
    stream = codec.encode_request(Key.CREATE, 1, stream="orders") * 1_000

    def receive(room):
        room[: len(stream)] = stream
        return len(stream)

    def find():
        inbox, count = Inbox(), 0
        inbox.receive(receive)
        while inbox.next_frame() is not None:
            count += 1
        return count

    assert benchmark(find) == 1_000
