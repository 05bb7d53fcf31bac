# SPDX-License-Identifier: Apache-2.0
"""One raw connection to the SignalR door: the tests say every byte and see every header.

Nothing here reuses connections, follows redirects or repairs anything on its own, because that is what the tests are
about.  Every wait has a deadline, so a broker that keeps silent fails a test instead of stopping it.
"""

from __future__ import annotations

import base64
import json
import os
import socket
from typing import Any, NamedTuple

from running import Running

# What the broker of the tests is told (conftest.py).
ORIGIN = "https://shop.example"
MESSAGE_BYTES_MAX = 16 * 1024
PASSWORDS = {"ada": "a password of hers", "bob": "another one"}

DEADLINE_S = 30.0
END = b"\r\n\r\n"
RS = b"\x1e"
JSON_HANDSHAKE = b'{"protocol":"json","version":1}' + RS
HANDSHAKE_ANSWER = b"{}" + RS


class Response(NamedTuple):
    status: int
    reason: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Frame(NamedTuple):
    opcode: int
    payload: bytes

    @property
    def records(self) -> list[Any]:
        *records, rest = self.payload.split(RS)
        assert rest == b"", "a record is split over messages"
        return [json.loads(record) for record in records]


TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def frame(opcode: int, payload: bytes = b"") -> bytes:
    """As a client sends it: masked, whole."""
    mask = b"\x37\xfa\x21\x3d"  # the same each time, so that tests with frames in their names have the same names
    size = len(payload)
    if size < 126:
        head = bytes([0x80 | opcode, 0x80 | size])
    elif size < 65536:
        head = bytes([0x80 | opcode, 0x80 | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([0x80 | opcode, 0x80 | 127]) + size.to_bytes(8, "big")
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def unmasked(payload: bytes) -> bytes:
    """A text frame whose mask is all zeros: a lot of large ones cost the test nothing."""
    size = len(payload)
    head = b"\x81\xfe" + size.to_bytes(2, "big") if size < 65536 else b"\x81\xff" + size.to_bytes(8, "big")
    return head + bytes(4) + payload


class HttpPeer:
    def __init__(self, running: Running, port: int = 0, segment_bytes: int = 0) -> None:
        """``segment_bytes``: of TCP; where these are small, the kernel takes little that is not read."""
        port = port or running.ports["signalr"]
        self.host = f"{running.host}:{port}"
        self.socket = socket.socket(socket.AF_INET6 if ":" in running.host else socket.AF_INET)
        self.socket.settimeout(DEADLINE_S)
        if segment_bytes:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment_bytes)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect((running.host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.inbox = b""

    def __enter__(self) -> HttpPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    # ---- bytes ----

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def drip(self, data: bytes) -> None:
        """One byte a segment."""
        for at in range(len(data)):
            self.socket.sendall(data[at : at + 1])

    def more(self) -> bool:
        """Read on; False: the broker has closed."""
        data = self.socket.recv(1 << 16)
        self.inbox += data
        return bool(data)

    def until(self, end: bytes) -> bytes:
        while end not in self.inbox:
            if not self.more():
                raise ConnectionError(f"closed before {end!r}, after {self.inbox[:200]!r}")
        found, _, self.inbox = self.inbox.partition(end)
        return found + end

    def exactly(self, size: int) -> bytes:
        while len(self.inbox) < size:
            if not self.more():
                raise ConnectionError(f"closed within {size} bytes, after {self.inbox[:200]!r}")
        found, self.inbox = self.inbox[:size], self.inbox[size:]
        return found

    def is_closed(self) -> bool:
        """Does the broker close, without another byte?"""
        try:
            more = self.more()
        except ConnectionResetError:
            return not self.inbox
        return not more and not self.inbox

    # ---- requests ----

    def request(self, method: str, target: str, body: bytes | None = None, **headers: str) -> bytes:
        """`_` in the name of a header stands for `-`; a header given as "" is left out."""
        shown = {"Host": self.host, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if body is not None:
            shown = {"Content-Length": str(len(body)), **shown}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in shown.items() if value)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + (body or b"")

    def send(self, method: str, target: str, body: bytes | None = None, **headers: str) -> None:
        self.write(self.request(method, target, body, **headers))

    def head(self) -> Response:
        lines = self.until(END).decode("latin-1").split("\r\n")
        version, status, reason = lines[0].split(" ", 2)
        assert version == "HTTP/1.1"
        headers = {}
        for line in lines[1:-2]:
            name, _, value = line.partition(": ")
            assert name.lower() not in headers, f"{name} twice"
            headers[name.lower()] = value
        return Response(int(status), reason, headers, b"")

    def response(self, has_body: bool = True) -> Response:
        found = self.head()
        size = int(found.headers.get("content-length", 0)) if has_body else 0
        return found._replace(body=self.exactly(size))

    def ask(self, method: str, target: str, body: bytes | None = None, **headers: str) -> Response:
        self.send(method, target, body, **headers)
        return self.response(has_body=method != "HEAD")

    def negotiate(self, query: str = "?negotiateVersion=1", **headers: str) -> dict[str, Any]:
        found = self.ask("POST", f"/hub/negotiate{query}", b"", **headers)
        assert found.status == 200, found
        answer: dict[str, Any] = found.json
        return answer

    def token(self, **headers: str) -> str:
        """Of a hub connection that nobody has used yet."""
        token: str = self.negotiate(**headers)["connectionToken"]
        return token

    # ---- WebSocket ----

    def upgrade_request(self, target: str = "/hub", **headers: str) -> bytes:
        key = base64.b64encode(os.urandom(16)).decode()
        basics = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec_WebSocket_Version": "13"}
        return self.request("GET", target, None, **{**basics, "Sec_WebSocket_Key": key, **headers})

    def upgrade(self, target: str = "/hub", **headers: str) -> HttpPeer:
        self.write(self.upgrade_request(target, **headers))
        found = self.head()
        assert found.status == 101, found
        return self

    def put(self, payload: bytes, opcode: int = TEXT) -> None:
        self.write(frame(opcode, payload))

    def next_frame(self) -> Frame:
        first, second = self.exactly(2)
        assert first & 0x70 == 0 and first & 0x80 and second & 0x80 == 0
        size = second
        if second == 126:
            size = int.from_bytes(self.exactly(2), "big")
            assert size > 125
        elif second == 127:
            size = int.from_bytes(self.exactly(8), "big")
            assert size > 65535
        return Frame(first & 15, self.exactly(size))

    def handshake(self) -> HttpPeer:
        self.put(JSON_HANDSHAKE)
        assert self.next_frame().payload == HANDSHAKE_ANSWER
        return self


def call(id: str, target: str = "NoSuchMethod") -> bytes:
    """An invocation that only names a method: of an unknown one the answer is known without a queue."""
    return json.dumps({"type": 1, "invocationId": id, "target": target, "arguments": []}).encode() + RS


def answer(id: str, target: str = "NoSuchMethod") -> dict[str, Any]:
    return {"type": 3, "invocationId": id, "error": f"Unknown hub method '{target}'"}
