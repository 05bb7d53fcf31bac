# SPDX-License-Identifier: Apache-2.0
"""One raw connection to the streams door: the tests say every byte and see every frame.

The product's own client hides what these tests are about (the order of frames, what comes
after an error, how a frame is cut into pieces).  Every wait has a deadline, so a broker that
keeps silent fails a test instead of stopping it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from running import Running

from vibemq.protocols.streams import codec, spec
from vibemq.protocols.streams.spec import Code, Key, OffsetType

DEADLINE_S = 30.0
GUEST = b"\0guest\0guest"


class Frame(NamedTuple):
    key: int
    version: int
    body: bytes  # what follows the version

    def decoded(self) -> Any:
        return codec.decode_response(self.key, self.version, self.body)


class Peer:
    """`raw.next_frame()` and `raw.ended()` are the only ways to learn what the broker said."""

    def __init__(self, running: Running, receive_buffer_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes:  # before connect, or the window has been offered already
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect((running.host, running.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.inbox = bytearray()
        self.correlation_id = 0

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    # ---- bytes and frames ----

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def drip(self, data: bytes) -> None:
        """One byte a segment."""
        for at in range(len(data)):
            self.socket.sendall(data[at : at + 1])

    def next_frame(self) -> Frame:
        while (size := self._whole()) == 0:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError(f"the broker closed the connection, {len(self.inbox)} bytes of a frame before")
            self.inbox += data
        frame = bytes(self.inbox[4:size])
        del self.inbox[:size]
        return Frame(int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big"), frame[4:])

    def has_frame(self) -> bool:
        """Is something there to read, or at least the beginning of it?"""
        return self._whole() > 0 or bool(select.select([self.socket], [], [], 0)[0])

    def _whole(self) -> int:
        """Size of the first frame if it is there, else 0."""
        if len(self.inbox) < 4:
            return 0
        size = 4 + int.from_bytes(self.inbox[:4], "big")
        return size if len(self.inbox) >= size else 0

    def expect(self, key: int) -> Any:
        """The next frame but heartbeats, which must be this one."""
        frame = self.next_frame()
        while frame.key == Key.HEARTBEAT and key != Key.HEARTBEAT:
            frame = self.next_frame()
        assert frame.key == key, f"needed frame {key:#06x}, had {frame.key:#06x}: {frame.body[:60].hex()}"
        return frame.decoded()

    def until(self, key: int) -> tuple[list[Frame], Any]:
        """Everything before the first frame with that key, and that frame."""
        before = []
        while (frame := self.next_frame()).key != key:
            before.append(frame)
        return before, frame.decoded()

    def rest(self) -> bytes:
        """Whatever comes until the broker closes the connection."""
        data = bytes(self.inbox)
        self.inbox.clear()
        with contextlib.suppress(ConnectionResetError):  # it had not read all that we sent
            while more := self.socket.recv(1 << 16):
                data += more
        return data

    # ---- commands ----

    def ask(self, key: int, *, version: int = 1, **fields: Any) -> Any:
        """A command and its answer, which must be the next frame."""
        self.send(self.command(key, version=version, **fields))
        answer = self.expect(key | spec.RESPONSE_BIT)
        assert answer.correlation_id == self.correlation_id
        return answer

    def command(self, key: int, *, version: int = 1, **fields: Any) -> bytes:
        self.correlation_id += 1
        return codec.encode_request(key, self.correlation_id, version=version, **fields)

    def code(self, key: int, **fields: Any) -> int:
        return self.ask(key, **fields).code

    def create(self, stream: str, **arguments: str) -> str:
        assert self.code(Key.CREATE, stream=stream, arguments=arguments) == Code.OK
        return stream

    def declare(self, stream: str, publisher_id: int = 0, reference: str = "") -> None:
        fields = {"publisher_id": publisher_id, "reference": reference, "stream": stream}
        assert self.code(Key.DECLARE_PUBLISHER, **fields) == Code.OK

    def subscribe(self, stream: str, subscription_id: int = 0, *, at: int = OffsetType.FIRST, **fields: Any) -> None:
        fields = {"offset_value": 0, "credit": 1, "properties": {}, **fields}
        fields |= {"subscription_id": subscription_id, "stream": stream, "offset_type": at}
        assert self.code(Key.SUBSCRIBE, **fields) == Code.OK

    def credit(self, subscription_id: int, credit: int) -> None:
        self.send(codec.encode_request(Key.CREDIT, subscription_id=subscription_id, credit=credit))

    def publish(self, messages: list[tuple[int, Any]], publisher_id: int = 0) -> None:
        self.send(publish_frame(messages, publisher_id))

    def confirmed(self, count: int, publisher_id: int = 0) -> list[int]:
        """The ids of the next `count` confirms."""
        ids: list[int] = []
        while len(ids) < count:
            confirm = self.expect(Key.PUBLISH_CONFIRM)
            assert confirm.publisher_id == publisher_id
            ids += confirm.publishing_ids
        return ids

    def store(self, stream: str, messages: list[Any]) -> None:
        """Publish as publisher 255, wait for the confirms, leave no publisher behind."""
        self.declare(stream, 255)
        self.publish(list(enumerate(messages, 1)), 255)
        assert self.confirmed(len(messages), 255) == list(range(1, len(messages) + 1))
        assert self.code(Key.DELETE_PUBLISHER, publisher_id=255) == Code.OK

    def chunk(self, subscription_id: int = 0) -> Any:
        """The chunk of the next Deliver."""
        deliver = self.expect(Key.DELIVER)
        assert deliver.subscription_id == subscription_id
        return deliver.chunk

    # ---- the handshake ----

    def log_in(self, data: bytes = GUEST, mechanism: str = "PLAIN") -> None:
        """Up to and with Tune; Open is next."""
        assert self.code(Key.PEER_PROPERTIES, properties={"product": "raw"}) == Code.OK
        assert mechanism in self.ask(Key.SASL_HANDSHAKE).mechanisms
        assert self.code(Key.SASL_AUTHENTICATE, mechanism=mechanism, data=data) == Code.OK
        self.expect(Key.TUNE)

    def open(
        self,
        frame_max: int = spec.FRAME_SIZE_DEFAULT_BYTES,
        heartbeat: int = 0,
        virtual_host: str = "/",
        data: bytes = GUEST,
        mechanism: str = "PLAIN",
    ) -> Peer:
        self.log_in(data, mechanism)
        self.send(codec.encode_request(Key.TUNE, frame_max=frame_max, heartbeat=heartbeat))
        assert self.code(Key.OPEN, virtual_host=virtual_host) == Code.OK
        return self


def publish_frame(messages: list[tuple[int, Any]], publisher_id: int = 0) -> bytes:
    rows = [(publishing_id, None, data) for publishing_id, data in messages]
    return codec.encode_request(Key.PUBLISH, publisher_id=publisher_id, messages=rows)


def managed(running: Running, path: str, method: str = "GET") -> Any:
    """What the management API says to guest."""
    url = f"http://{running.host}:{running.admin_port}/api/{path}"
    headers = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    with urllib.request.urlopen(
        urllib.request.Request(url, method=method, headers=headers), timeout=DEADLINE_S
    ) as said:
        return json.loads(said.read() or b"null")


def connected(running: Running, receive_buffer_bytes: int = 0, **options: Any) -> Peer:
    """An open connection."""
    return Peer(running, receive_buffer_bytes).open(**options)


def readable(peer: Peer) -> None:
    """Until the broker has sent something that this peer has not read."""
    assert select.select([peer.socket], [], [], DEADLINE_S)[0], "nothing came"


# ---- processes ----


class Killed(Exception):
    """Leaves a ``with broker(...)`` whose broker the test itself has killed, without asking it to stop cleanly."""


def is_alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have ended with its supervisor
        os.kill(pid, signal.SIGKILL)


def on_every_worker(running: Running, peers: list[Peer]) -> Iterator[Peer]:
    """Open connections until each worker has one, and yield one for each; `peers` keeps them all, to be closed.

    The kernel spreads connections by a hash of their addresses, so nobody can choose; who
    serves whom is read from /proc, where both ends of a loopback connection are named.
    """
    missing = set(running.worker_pids())
    while missing:
        assert len(peers) < 200, "200 connections, and one worker still has none"
        peer = connected(running)
        peers.append(peer)
        pid = server_of(peer, missing)
        if pid:
            missing.discard(pid)
            yield peer


def server_of(peer: Peer, pids: set[int]) -> int:
    """Which of the processes holds the other end of this connection; 0 for none."""
    local, remote = (
        f"{socket.inet_aton(host)[::-1].hex().upper()}:{port:04X}"
        for host, port in (peer.socket.getsockname(), peer.socket.getpeername())
    )
    inodes = {
        f"socket:[{columns[9]}]"
        for columns in map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
        if columns[1] == remote and columns[2] == local
    }
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(link) in inodes:
                    return pid
    return 0
