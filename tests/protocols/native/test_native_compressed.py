# SPDX-License-Identifier: Apache-2.0
"""Compression on a connection: agreed in Connect, decided frame by frame, and never more than was allowed."""

import json

import pytest
from peers.native import BODY_BYTES_MAX, FRESH_ID, NativePeer, connected
from running import broker

from vibemq.protocols.native import compression
from vibemq.protocols.native.codec import encode_body, frame_of
from vibemq.protocols.native.spec import COMPRESSION_BY_NAME, LOGIN_FRAME_BYTES_MAX, Command, Compression

NAMES = list(COMPRESSION_BY_NAME)
BIG = b'"' + b"x" * 5000 + b'"'
THRESHOLD = 1024
DECOMPRESSED_MAX = 4 << 20


@pytest.fixture(scope="module")
def tight(tmp_path_factory):
    """One that decompresses no more than 4 MiB."""
    folder = tmp_path_factory.mktemp("tight") / "data"
    with broker(folder, "--set", f"native.decompressed_max_bytes={DECOMPRESSED_MAX}", workers=1) as running:
        yield running


def packed(name, body):
    data = compression.compress(name, body)
    assert data is not None
    return frame_of(data, COMPRESSION_BY_NAME[name])


def agreed(running, offer):
    peer = connected(running, supported_compression=offer)
    peer.flags_max = Compression.ZSTD
    return peer


# ---- agreeing ----


@pytest.mark.parametrize(
    ("offer", "chosen"),
    [
        ("brotli,gzip", "brotli"),
        ("gzip,brotli", "gzip"),
        (" GZip , brotli", "gzip"),
        ("lz4, zstd ,gzip", "zstd"),
        ("lz4,deflate", None),
        ("", None),
        (",,", None),
    ],
)
def test_the_first_of_the_clients_list_that_the_broker_has_is_chosen(raw, offer, chosen):
    answer = raw.connect(supported_compression=offer)
    assert answer.headers.get("negotiated-compression") == chosen
    assert raw.flags == Compression.NONE, "ConnectAck is never compressed"


@pytest.mark.parametrize(("ours", "chosen"), [("", None), ("gzip", "gzip")])
def test_the_broker_offers_what_it_is_configured_to(tmp_path, ours, chosen):
    with broker(tmp_path, "--set", f"native.compressions={ours}", workers=1) as running, NativePeer(running) as raw:
        assert raw.connect(supported_compression="brotli,gzip").headers.get("negotiated-compression") == chosen


# ---- what the broker sends ----


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", [False, True], ids=["dotnet", "text"])
def test_delivers_above_the_threshold_are_compressed(served, peer, name, text):
    queue = f"compressed-{name}-{text}"
    with connected(served, text=text, supported_compression=name) as reader:
        reader.flags_max = Compression.ZSTD
        reader.subscribe(queue)
        for payload, flags in ((b'"small"', Compression.NONE), (BIG, COMPRESSION_BY_NAME[name])):
            peer.publish(queue, payload)
            message = reader.deliver()
            assert (message.payload, reader.flags) == (payload, flags)
        assert reader.wire_bytes < THRESHOLD


def test_the_threshold_is_inclusive_and_of_the_uncompressed_body(served, peer, name):
    with agreed(served, "gzip") as reader:
        reader.subscribe(name)
        rest = len(encode_body(Command.DELIVER, b"m", queue=name, payload=b'""', headers={"deliveryAttempts": "1"}))
        for size, flags in ((THRESHOLD - 1, Compression.NONE), (THRESHOLD, Compression.GZIP)):
            peer.publish(name, b'"' + b"x" * (size - rest) + b'"', b"m")
            reader.deliver()
            assert reader.flags == flags


def test_what_compression_would_make_longer_goes_out_as_it_is(served, peer, name):
    import random

    noise = random.Random(1)
    payload = json.dumps("".join(chr(noise.randrange(0x4E00, 0x9FFF)) for _ in range(3000)), ensure_ascii=False)
    with agreed(served, "brotli") as reader:
        reader.subscribe(name)
        peer.publish(name, payload.encode())
        assert reader.deliver().payload == payload.encode()
        assert reader.flags in (Compression.NONE, Compression.BROTLI)
        uncompressed = len(payload.encode())
        assert reader.wire_bytes <= uncompressed + 100


def test_replies_above_the_threshold_are_compressed(served, name):
    with agreed(served, "brotli,gzip") as peer:
        queues = [peer.create(f"{name}-{'x' * 200}-{at}") for at in range(20)]
        answer = peer.ask(Command.LIST_QUEUES)
        assert peer.flags == Compression.BROTLI
        assert set(queues) <= set(json.loads(answer.payload))


def test_who_agreed_on_nothing_gets_nothing_compressed(peer, other, name):
    peer.subscribe(name)
    other.publish(name, BIG)
    peer.deliver()
    assert peer.flags == Compression.NONE


# ---- what the broker reads ----


@pytest.mark.parametrize("name", ["gzip", "brotli"])
def test_the_flags_of_each_frame_count_whatever_was_agreed(served, name):
    with NativePeer(served) as peer:
        peer.write(packed(name, encode_body(Command.PING, b"p", queue="x" * 200)))
        assert peer.next().id == b"p", "also before Connect"
        peer.write(packed(name, encode_body(Command.CONNECT, b"c", headers={"clientVersion": "1" * 200})))
        assert peer.next().type == Command.CONNECT_ACK
        publish = encode_body(Command.PUBLISH, b"m", queue="mixed", payload=BIG)
        peer.write(packed("gzip", publish), packed("brotli", publish), frame_of(publish))
        assert [peer.next().type for _ in range(3)] == [Command.PUBLISH_ACK] * 3


def test_zstd_is_read_only_from_who_agreed_on_it(served, name):
    publish = packed("zstd", encode_body(Command.PUBLISH, b"m", queue=name, payload=BIG))
    with agreed(served, "zstd") as peer:
        peer.write(publish)
        assert peer.next().type == Command.PUBLISH_ACK
        peer.write(packed("gzip", encode_body(Command.PUBLISH, b"m", queue=name, payload=BIG)))
        assert peer.next().type == Command.PUBLISH_ACK
        peer.connect(supported_compression="gzip")  # and no more
        peer.write(publish)
        assert [error.error_code for error in peer.rest()] == ["INVALID_MESSAGE"]
    with agreed(served, "gzip,zstd") as peer:
        peer.write(publish)
        assert [error.error_code for error in peer.rest()] == ["INVALID_MESSAGE"]


def damaged(name):
    at = {"gzip": -8, "brotli": 0, "zstd": 0}[name]  # what its format checks: a sum, a header
    whole = compression.compress(name, encode_body(Command.PING, b"p", queue="x" * 200))
    changed = bytearray(whole)
    changed[at] ^= 0xFF
    return {"cut": whole[:-4], "with a tail": whole + b"tail", "changed": changed}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damage", ["cut", "with a tail", "changed"])
def test_a_damaged_body_gets_an_error_and_the_connection_closes(served, peer, name, damage):
    with agreed(served, "zstd") as victim:
        victim.write(frame_of(damaged(name)[damage], COMPRESSION_BY_NAME[name]))
        (error,) = victim.rest()
        assert (error.error_code, error.id) == ("INVALID_MESSAGE", FRESH_ID)
    peer.ping()


# ---- bombs ----


@pytest.mark.parametrize("name", ["gzip", "brotli"])
def test_before_login_no_body_may_become_more_than_a_frame(tight, name):
    with connected(tight) as other, NativePeer(tight) as raw:
        # Exactly the maximum is read; what is in it is another matter.
        fits = encode_body(Command.PUBLISH, b"m", queue="q", payload=b'"' + b"x" * (LOGIN_FRAME_BYTES_MAX - 16) + b'"')
        assert len(fits) == LOGIN_FRAME_BYTES_MAX
        raw.write(packed(name, fits))
        assert raw.next().error_code in ("NOT_AUTHENTICATED", "INVALID_MESSAGE")
        raw.write(packed(name, fits + b"\0"))
        (error,) = raw.rest()
        assert (error.error_code, error.id) == ("INVALID_MESSAGE", FRESH_ID)
        other.ping()


@pytest.mark.parametrize("name", NAMES)
def test_after_login_a_body_may_become_larger_than_a_frame_but_not_what_is_no_use(tight, name):
    with agreed(tight, name) as peer, connected(tight) as other:
        large = encode_body(Command.PUBLISH, b"m", queue="q", payload=b'"' + b"x" * (DECOMPRESSED_MAX - 16) + b'"')
        assert len(large) == DECOMPRESSED_MAX
        peer.write(packed(name, large))
        answer = peer.next()
        assert (answer.id, answer.error_code) == (b"m", "INVALID_MESSAGE"), "no client could read it"
        peer.ping()
        peer.write(packed(name, large + b"\0"))
        (error,) = peer.rest()
        assert (error.error_code, error.id) == ("INVALID_MESSAGE", FRESH_ID)
        other.ping()


@pytest.mark.parametrize("name", NAMES)
def test_a_bomb_is_not_even_unpacked(tight, name):
    bomb = compression.compress(name, bytes(256 << 20), 6)
    assert len(bomb) < BODY_BYTES_MAX
    with agreed(tight, name) as peer, connected(tight) as other:
        peer.write(frame_of(bomb, COMPRESSION_BY_NAME[name]))
        assert [error.error_code for error in peer.rest()] == ["INVALID_MESSAGE"]
        other.ping()
