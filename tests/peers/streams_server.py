# SPDX-License-Identifier: Apache-2.0
"""A streams server in memory, one thread for each connection, whose every answer a test can replace.

It is as small as it can be while the client cannot tell: it keeps chunks, obeys credit and answers in order. What
goes wrong on purpose goes into `server.replies`: a function by key that gives the frames to send instead.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

from vibemq.protocols.streams import codec, spec
from vibemq.protocols.streams.spec import RESPONSE_BIT, Code, Key, OffsetType

ENTRIES_IN_A_CHUNK_MAX = 100
AWAIT_S = 20.0  # for tests that fail


def chunk_of(first_offset: int, messages: list[bytes], **changes: Any) -> codec.Chunk:
    data = b"".join(len(message).to_bytes(4, "big") + message for message in messages)
    chunk = codec.Chunk(
        spec.CHUNK_MAGIC_VERSION,
        0,  # of messages
        len(messages),
        len(messages),
        1_700_000_000_000,
        1,
        first_offset,
        zlib.crc32(data),
        len(data),
        0,
        0,
        0,
        data,
        b"",
    )
    return chunk._replace(**changes)


class MemoryServer:
    """`with MemoryServer() as server:` listens on server.port."""

    def __init__(self, *, version: str = "4.3.0", tls: ssl.SSLContext | None = None, dribble: bool = False) -> None:
        self.version = version
        self.tls = tls
        self.dribble = dribble  # each byte a packet of its own
        self.streams: dict[str, list[codec.Chunk]] = {}
        self.sequences: dict[tuple[str, str], int] = {}
        self.offsets: dict[tuple[str, str], int] = {}
        self.replies: dict[int, Callable[[Connection, Any], list[bytes] | None]] = {}
        self.seen: list[tuple[int, Any]] = []
        self.tune = (1_048_576, 60)
        self.connections: list[Connection] = []
        self.lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._closing = False

    def __enter__(self) -> MemoryServer:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self.connections:
            connection.end()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _start(self, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=body, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            if self.tls is not None:
                try:
                    peer = self.tls.wrap_socket(peer, server_side=True)
                except OSError:
                    peer.close()
                    continue
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(self, peer)
            self.connections.append(connection)
            self._start(connection.run)

    def requests(self, key: int) -> list[Any]:
        return [request for seen, request in self.seen if seen == key]

    def await_request(self, key: int, timeout_s: float = AWAIT_S) -> Any:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if found := self.requests(key):
                return found[0]
            time.sleep(0.01)
        raise AssertionError(f"no frame with key {key:#06x} within {timeout_s} s")

    def next_offset(self, stream: str) -> int:
        chunks = self.streams[stream]
        return chunks[-1].chunk_id + chunks[-1].records if chunks else 0


class Connection:
    """The server's end of one connection."""

    def __init__(self, server: MemoryServer, peer: socket.socket) -> None:
        self.server, self.peer = server, peer
        self.publishers: dict[int, tuple[str, str]] = {}
        self.subscriptions: dict[int, list[Any]] = {}  # id: [stream, position in chunks, credit]

    def run(self) -> None:
        with contextlib.suppress(OSError), self.peer, self.peer.makefile("rb") as incoming:
            while header := incoming.read(4):
                frame = incoming.read(int.from_bytes(header, "big"))
                key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
                request = codec.decode_request(key, version, frame[4:])
                with self.server.lock:  # an answer to Subscribe must be out before anybody's publish is delivered
                    self.handle(key, request)
                if key & ~RESPONSE_BIT == Key.CLOSE:
                    return

    def handle(self, key: int, request: Any) -> None:
        self.server.seen.append((key, request))
        reply = self.server.replies.get(key)
        frames = reply(self, request) if reply else None
        for answer in self.answer(key, request) if frames is None else frames:
            self.send(answer)
        for connection in self.server.connections:
            with contextlib.suppress(OSError):
                connection.deliver()

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.peer.shutdown(socket.SHUT_RDWR)

    def send(self, frame: bytes) -> None:
        if self.server.dribble:
            for i in range(len(frame)):
                self.peer.sendall(frame[i : i + 1])
        else:
            self.peer.sendall(frame)

    def answer(self, key: int, request: Any) -> list[bytes]:
        if key & RESPONSE_BIT:
            return []
        method = getattr(self, "on_" + Key(key).name.lower())
        outcome = method(request)
        if outcome is None:
            return []
        if isinstance(outcome, list):
            return outcome
        code, fields = outcome if isinstance(outcome, tuple) else (outcome, {})
        return [codec.encode_response(key, request.correlation_id, code, **fields)]

    def deliver(self) -> None:
        for number, subscription in list(self.subscriptions.items()):
            chunks = self.server.streams.get(subscription[0], [])
            while subscription[2] and subscription[1] < len(chunks):
                chunk = chunks[subscription[1]]
                subscription[1] += 1
                subscription[2] -= 1
                self.send(codec.encode_server_frame(Key.DELIVER, subscription_id=number, chunk=chunk))

    # ---- the commands ----

    def on_peer_properties(self, request):
        return Code.OK, {"properties": {"product": "memory", "version": self.server.version}}

    def on_sasl_handshake(self, request):
        return Code.OK, {"mechanisms": ["PLAIN"]}

    def on_sasl_authenticate(self, request):
        if request.data != b"\0guest\0guest":
            return Code.AUTHENTICATION_FAILURE
        frame_max, heartbeat = self.server.tune
        return [
            codec.encode_response(Key.SASL_AUTHENTICATE, request.correlation_id, Code.OK),
            codec.encode_server_frame(Key.TUNE, frame_max=frame_max, heartbeat=heartbeat),
        ]

    def on_heartbeat(self, request):
        return None

    def on_open(self, request):
        if request.virtual_host != "/":
            return Code.VIRTUAL_HOST_ACCESS_FAILURE
        return Code.OK, {"properties": {"advertised_host": "localhost", "advertised_port": str(self.server.port)}}

    def on_exchange_command_versions(self, request):
        return Code.OK, {"versions": spec.COMMAND_VERSIONS}

    def on_close(self, request):
        return Code.OK

    def on_create(self, request):
        if request.stream in self.server.streams:
            return Code.STREAM_ALREADY_EXISTS
        self.server.streams[request.stream] = []
        return Code.OK

    def on_delete(self, request):
        return Code.OK if self.server.streams.pop(request.stream, None) is not None else Code.STREAM_DOES_NOT_EXIST

    def on_metadata(self, request):
        streams = [
            (name, Code.OK, 0, [0]) if name in self.server.streams else (name, Code.STREAM_DOES_NOT_EXIST, 0xFFFF, [])
            for name in request.streams
        ]
        brokers = [(0, "localhost", self.server.port)]
        return [codec.encode_response(Key.METADATA, request.correlation_id, None, brokers=brokers, streams=streams)]

    def on_stream_stats(self, request):
        chunks = self.server.streams.get(request.stream)
        if chunks is None:
            return Code.STREAM_DOES_NOT_EXIST
        first, last = (chunks[0].chunk_id, chunks[-1].chunk_id) if chunks else (-1, -1)
        end = self.server.next_offset(request.stream) - 1
        statistics = {"first_chunk_id": first, "committed_chunk_id": last, "committed_offset": end}
        return Code.OK, {"statistics": statistics}

    def on_declare_publisher(self, request):
        if request.stream not in self.server.streams:
            return Code.STREAM_DOES_NOT_EXIST
        self.publishers[request.publisher_id] = (request.reference, request.stream)
        return Code.OK

    def on_delete_publisher(self, request):
        return Code.OK if self.publishers.pop(request.publisher_id, None) else Code.PUBLISHER_DOES_NOT_EXIST

    def on_query_publisher_sequence(self, request):
        return Code.OK, {"sequence": self.server.sequences.get((request.reference, request.stream), 0)}

    def on_publish(self, request):
        owner = self.publishers[request.publisher_id]
        chunks = self.server.streams[owner[1]]
        bodies = [message.data for message in request.messages]
        for start in range(0, len(bodies), ENTRIES_IN_A_CHUNK_MAX):
            offset = self.server.next_offset(owner[1])
            chunks.append(chunk_of(offset, bodies[start : start + ENTRIES_IN_A_CHUNK_MAX]))
        ids = [message.publishing_id for message in request.messages]
        self.server.sequences[owner] = max(ids)
        confirm = codec.encode_server_frame(Key.PUBLISH_CONFIRM, publisher_id=request.publisher_id, publishing_ids=ids)
        return [confirm]

    def on_subscribe(self, request):
        chunks = self.server.streams.get(request.stream)
        if chunks is None:
            return Code.STREAM_DOES_NOT_EXIST
        places = {OffsetType.FIRST: 0, OffsetType.LAST: max(0, len(chunks) - 1), OffsetType.NEXT: len(chunks)}
        place = places.get(request.offset_type)
        if place is None:
            before = [i for i, chunk in enumerate(chunks) if chunk.chunk_id + chunk.records <= request.offset_value]
            place = len(before)
        self.subscriptions[request.subscription_id] = [request.stream, place, request.credit]
        return Code.OK

    def on_credit(self, request):
        if request.subscription_id in self.subscriptions:
            self.subscriptions[request.subscription_id][2] += request.credit

    def on_unsubscribe(self, request):
        known = self.subscriptions.pop(request.subscription_id, None)
        return Code.OK if known else Code.SUBSCRIPTION_ID_DOES_NOT_EXIST

    def on_store_offset(self, request):
        self.server.offsets[request.reference, request.stream] = request.offset

    def on_query_offset(self, request):
        offset = self.server.offsets.get((request.reference, request.stream))
        return Code.NO_OFFSET if offset is None else (Code.OK, {"offset": offset})
