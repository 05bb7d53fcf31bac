# SPDX-License-Identifier: Apache-2.0
"""Malformed input with a password in it, at every port of a broker that logs: as tests/fuzzing.py says.

The invariant in one sentence: whatever a peer sends, the broker's log holds no traceback and nothing of a credential,
and no input repeats a line within a minute.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import json
import os
import random
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzzing import LIMIT_S, seeded, steps
from running import Running, broker

from vibemq.protocols.micromsg2.codec import Handshake, encode_handshake
from vibemq.protocols.native.codec import encode_frame
from vibemq.protocols.native.spec import Command

pytestmark = [pytest.mark.fuzz]

ANSWER_S = 0.02  # to wait for an answer, if one is due; the broker reads the input in any case
USER, SECRET = "root", "correct-horse-battery"
BASIC = base64.b64encode(f"{USER}:{SECRET}".encode())
TOKEN = base64.urlsafe_b64encode(b'{"sub":"correct-horse"}').rstrip(b"=") + b"." + b"c2ln" * 40
#: Parts of credentials, in each of their forms, that must not be in the log.
PARTS = [SECRET[:8], SECRET[-8:], BASIC[:16].decode(), BASIC[-16:].decode(), TOKEN[:16].decode(), "c2lnc2lnc2ln"]
WORDS = [
    b"\r\n",
    b"\r\n\r\n",
    b"\0",
    b"\x80\xff",
    b" ",
    b":",
    b"\x1b[2J",
    b"Content-Length: x\r\n",
    b"HTTP/9.9",
    b"%zz",
]
LINES_OF_A_KIND_MAX = 2  # at once, and with the count when the broker ends


def text(value: bytes) -> bytes:
    return struct.pack(">h", len(value)) + value


def command(key: int, body: bytes) -> bytes:
    frame = struct.pack(">HHI", key, 1, 1) + body
    return struct.pack(">I", len(frame)) + frame


def inputs() -> dict[str, list[bytes]]:
    """Return, by listener, inputs that carry a credential."""
    plain = b"\0" + USER.encode() + b"\0" + SECRET.encode()
    head = b"GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: %s\r\n\r\n"
    login = json.dumps({"user": USER, "password": SECRET}).encode()
    post = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
    http = [head % (b"/api/overview", scheme) for scheme in (b"Basic " + BASIC, b"Bearer " + TOKEN)]
    sasl = command(0x12, b"") + command(0x13, text(b"PLAIN") + struct.pack(">I", len(plain)) + plain)
    connect = {b"authUsername": USER.encode(), b"authPassword": SECRET.encode()}
    return {
        "admin": [*http, post % (b"/page/login", len(login), login), post % (b"/api/users/x", len(login), login)],
        "signalr": [
            *(request.replace(b"/api/overview", b"/hub") for request in http),
            head % (b"/hub?access_token=" + TOKEN, b"Bearer " + TOKEN),
            post % (b"/hub/negotiate?access_token=" + TOKEN, len(login), login),
        ],
        "streams": [sasl, sasl + command(0x15, text(b"/")) + command(0x0D, text(b"q") + struct.pack(">i", 0))],
        "native": [
            encode_frame(Command.CONNECT, b"1", headers=connect),
            encode_frame(Command.PUBLISH, b"2", queue=b"q"),
        ],
        "micromsg2": [encode_handshake(Handshake(required=f"json;microauth:user={USER},password={SECRET}".encode()))],
    }


def mutated(data: bytes, random_: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random_.randrange(1, 4)):
        at = random_.randrange(len(changed) + 1)
        match random_.randrange(4):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << random_.randrange(8)
            case 1:
                changed[at:at] = random_.choice(WORDS)
            case 2:
                del changed[at : at + random_.randint(1, 5)]
            case _:
                changed[at:at] = random_.randbytes(random_.randint(1, 9))
    return bytes(changed)


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Let this process, and those that it starts, write to a file in place of standard error."""
    before = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def send(running: Running, port: int, data: bytes) -> None:
    with contextlib.suppress(OSError), socket.create_connection((running.host, port), timeout=ANSWER_S) as peer:
        peer.sendall(data)
        while peer.recv(1 << 16):
            pass


@pytest.mark.timeout(LIMIT_S)
def test_no_input_writes_a_traceback_a_secret_or_a_line_again_within_a_minute(tmp_path: Path) -> None:
    random_, log = seeded(), tmp_path / "log"
    options = f"native.superuser_name={USER}", f"native.superuser_password={SECRET}", "log.format=json"
    flags = [word for option in options for word in ("--set", option)]
    with logging_to(log), broker(tmp_path / "data", *flags, workers=1) as running:
        golden = inputs()
        assert golden.keys() <= running.ports.keys()
        for _ in steps(60):
            for listener, whole in golden.items():
                send(running, running.ports[listener], mutated(random_.choice(whole), random_))
    written = log.read_text()
    assert "Traceback" not in written
    assert [part for part in PARTS if part in written] == []
    lines = [json.loads(line) for line in written.splitlines()]
    kinds = collections.Counter(
        (
            line["pid"],
            line["event"],
            re.sub(r" \(\d.* said once a minute\)|'[^']*'|\"[^\"]*\"|\d+", "", line["message"]),
        )
        for line in lines
    )
    assert [(kind, count) for kind, count in kinds.items() if count > LINES_OF_A_KIND_MAX] == []
    assert [line for line in lines if line["event"] == "internal_error"] == []
    assert any(line["event"] == "peer_refused" for line in lines), "the inputs were refused"
