# SPDX-License-Identifier: Apache-2.0
"""Mutated frames against a live broker as tests/fuzzing.py says.

The invariant in one sentence: whatever one connection sends, it is answered by whole frames or closed, no worker dies,
and a connection that behaves is served all the time.  The log names no error of ours.
"""

import select

import pytest
from fuzzing import LIMIT_S, seeded, steps
from peers.native import NativePeer, connected
from running import broker

from vibemq.protocols.native import compression
from vibemq.protocols.native.codec import encode_body, frame_of, split_frames
from vibemq.protocols.native.spec import COMPRESSION_BY_NAME, Command, Compression

pytestmark = [pytest.mark.fuzz]

QUEUES = ["fuzz-a", "fuzz-b", "größe", "fuzz-full"]
HEADERS = [
    {},
    {"priority": "High", "messageId": "m1"},
    {"prefetch": "3"},
    {"prefetch": "-1"},
    {"deliveryMode": "FanOutWithAck", "maxQueueSize": "3", "overflowStrategy": "BlockPublisher"},
    {"supported-compression": "zstd,gzip", "features": "nack,purge"},
    {"authUsername": "guest", "authPassword": "guest"},
    {f"h{at}": "v" * at for at in range(1, 60)},
]
PAYLOADS = [
    None,
    b"1",
    b"null",
    b'{"mode":3}',
    b'{"messageTtl":"00:00:01","maxQueueSize":2}',
    b"[" * 200,
    b'"' + b"x" * 70_000,
]


def made(random_):
    """A frame that is legal, or nearly."""
    command = random_.choice([*Command, random_.randrange(256)])
    fields = {"error_code": "x"} if command == Command.ERROR else {}
    body = encode_body(
        command,
        random_.choice((b"m1", b"m2", b"\xff", b"i" * 300)),
        queue=random_.choice([None, *QUEUES]),
        payload=random_.choice(PAYLOADS),
        headers=random_.choice(HEADERS),
        text_layout=random_.random() < 0.2,
        **fields,
    )
    return body


def mutated(random_):
    body, flags = bytearray(made(random_)), 0
    for _ in range(random_.choice((0, 0, 0, 1, 2))):
        at = random_.randrange(len(body))
        match random_.randrange(4):
            case 0:
                body[at] ^= 1 << random_.randrange(8)
            case 1:
                body[at : at + 2] = random_.choice((b"\xff\xff", b"\0\0", b"\x7f\xff"))
            case 2:
                del body[at : at + random_.randint(1, 9)]
            case _:
                body[at:at] = random_.randbytes(random_.randint(1, 50))
    if random_.random() < 0.1:
        name = random_.choice(list(COMPRESSION_BY_NAME))
        body, flags = bytearray(compression.compress(name, bytes(body) * random_.choice((1, 200))) or body), 0
        flags = COMPRESSION_BY_NAME[name]
    if random_.random() < 0.01:
        flags = random_.randrange(256)
    frame = bytearray(frame_of(bytes(body) if len(body) > 1 else b"\1\x0a", flags))
    if random_.random() < 0.01:
        frame[random_.randrange(4)] ^= 1 << random_.randrange(8)
    return bytes(frame)


def read_what_came(peer):
    """Whole frames, or the beginning of one; False when the broker has closed the connection."""
    while select.select([peer.socket], [], [], 0)[0]:
        try:
            data = peer.socket.recv(1 << 18)
        except ConnectionError:
            return False
        if not data:
            assert not peer.inbox, "the last frame is not whole"
            return False
        _, used = split_frames(peer.inbox + data, flags_max=Compression.ZSTD)
        peer.inbox = (peer.inbox + data)[used:]
    return True


def attack(running, random_):
    with NativePeer(running, text=random_.random() < 0.3) as peer:
        if random_.random() < 0.8:
            peer.connect(
                features="nack,purge", supported_compression=random_.choice(("zstd", "brotli", "gzip", "none"))
            )
        peer.socket.settimeout(10)
        for _ in range(random_.randint(1, 30)):
            data = b"".join(mutated(random_) for _ in range(random_.randint(1, 10)))
            try:
                peer.write(data)
            except (ConnectionError, TimeoutError):
                return
            if not read_what_came(peer):
                return


@pytest.mark.timeout(LIMIT_S)
def test_whatever_is_sent_no_worker_dies_and_others_are_served(tmp_path, capfd):
    random_ = seeded()
    flags = ("--set", "queues.block_timeout_ms=100", "--set", "server.log_level=error")
    with broker(tmp_path, *flags) as running, connected(running) as peer:
        pids = running.worker_pids()
        peer.subscribe("calm")
        for step in steps(300):
            attack(running, random_)
            peer.send(Command.PUBLISH, b"m%d" % step, queue="calm", payload=b"%d" % step)
            assert {peer.next().type, peer.next().type} == {Command.PUBLISH_ACK, Command.DELIVER}
            peer.send(Command.ACK, b"m%d" % step)
        assert running.worker_pids() == pids, "a worker has died"
    said, log = capfd.readouterr()
    print(said)
    assert "error of ours" not in log and "Traceback" not in log, log
