# SPDX-License-Identifier: Apache-2.0
"""Random bytes against a broker's SignalR port, as tests/fuzzing.py says.

The invariant in one sentence: whatever comes before, around and behind a WebSocket upgrade, and however it is cut, the
broker answers by HTTP or by frames or closes, makes no error of its own, and serves whoever comes next.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzzing import LIMIT_S, seeded, steps
from peers.http import DEADLINE_S
from running import Running, broker

pytestmark = [pytest.mark.fuzz]

ANSWER_S = 0.05  # to an input that needs none the broker keeps silent
HEAD = b"GET /hub%s HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
UPGRADE = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
HANDSHAKE = b'{"protocol":"json","version":1}\x1e'
CALL = b'{"type":1,"invocationId":"1","target":"ServerInfo","arguments":[]}\x1e'
WORDS = [
    *(b"\r\n", b"\r\n\r\n", b"\n", b"\0", b" ", b":", b"%", b"GET ", b"POST ", b"HTTP/1.1", b"HTTP/1.0", b"\x1e"),
    *(b"Content-Length: 5\r\n", b"Content-Length: 4294967296\r\n", b"Transfer-Encoding: chunked\r\n"),
    *(b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Upgrade: h2c\r\n", b"Accept: text/event-stream\r\n"),
    *(b"Origin: null\r\n", b"Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n", b"?id=", b"&access_token=x", UPGRADE),
]


def frame(opcode: int, payload: bytes) -> bytes:
    return bytes([0x80 | opcode, 0x80 | len(payload)]) + bytes(4) + payload


def seeds() -> list[bytes]:
    post = b"POST /hub%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    upgrade = HEAD % (b"", UPGRADE)
    return [
        upgrade,
        upgrade + frame(1, HANDSHAKE) + frame(1, CALL) + frame(8, b"\x03\xe8"),
        upgrade + frame(2, HANDSHAKE + CALL) + frame(9, b"ping"),
        HEAD % (b"?connectionId=x", UPGRADE) + frame(1, HANDSHAKE),
        HEAD % (b"?id=x", b"Accept: text/event-stream\r\n"),
        post % (b"/negotiate?negotiateVersion=1", 0),
        post % (b"/negotiate", 3) + b"abc" + post % (b"?id=x", 1) + b"y",
        b"OPTIONS /hub HTTP/1.1\r\nHost: localhost\r\nAccess-Control-Request-Method: POST\r\n\r\n",
    ]


def mutated(data: bytes, random_: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random_.randrange(5)):
        at = random_.randrange(len(changed) + 1)
        match random_.randrange(5):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << random_.randrange(8)
            case 1:
                changed[at:at] = random_.choice(WORDS)
            case 2:
                del changed[at : at + random_.randint(1, 20)]
            case 3:
                changed[at:at] = random_.randbytes(random_.randint(1, 50))
            case _:
                changed[at:at] = changed[at : at + random_.randint(1, 100)] * random_.choice((1, 2, 50))
    return bytes(changed)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    """A broker, and where its log goes: an error of its own is named there and nowhere else."""
    folder = tmp_path_factory.mktemp("fuzzed")
    log = folder / "log"
    before = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            with broker(folder / "data", "--set", "signalr.request_timeout_s=1", workers=1) as running:
                os.dup2(before, 2)
                yield running, log
        finally:
            os.dup2(before, 2)
            os.close(before)


def talk(running: Running, data: bytes, random_: random.Random) -> bytes:
    """Send it in pieces; what came back until the broker closed or kept silent."""
    found = b""
    with socket.create_connection((running.host, running.ports["signalr"]), timeout=ANSWER_S) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            at = 0
            while at < len(data):
                size = random_.choice((1, 7, 100, len(data)))
                peer.sendall(data[at : at + size])
                at += size
            while more := peer.recv(1 << 16):
                found += more
    return found


@pytest.mark.timeout(LIMIT_S)
def test_whatever_comes_to_the_port_is_answered_or_closed(served: tuple[Running, Path]) -> None:
    running, log = served
    random_ = seeded()
    golden = seeds()
    workers = running.worker_pids()
    answered = upgraded = 0
    for _ in steps(300):
        data = b"".join(mutated(random_.choice(golden), random_) for _ in range(random_.randint(1, 3)))
        found = talk(running, data, random_)
        assert found == b"" or found.startswith(b"HTTP/1.1 "), found[:100]
        answered += bool(found)
        upgraded += found.startswith(b"HTTP/1.1 101 ")
        assert b"error of ours" not in log.read_bytes(), (data, log.read_text()[-3000:])
    assert running.worker_pids() == workers
    with socket.create_connection((running.host, running.ports["signalr"]), timeout=DEADLINE_S) as peer:
        peer.sendall(golden[0])
        assert peer.recv(1 << 16).startswith(b"HTTP/1.1 101 ")
    assert answered > 5 and upgraded > 0
