# SPDX-License-Identifier: Apache-2.0
"""A native server in memory, an event loop in a thread, whose every answer a test can replace.

It keeps queues, hands out messages up to a prefetch, requeues what a lost connection had, and drops what comes again
with vibemq-resend. What goes wrong on purpose goes into `server.replies`: a function by command that gives the frames
to send instead, or None for the usual ones. Tests wait with `await_frames`, which is told of each frame.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from peers.native import publish_ack_frame
from vibemq.protocols.native import codec, compression
from vibemq.protocols.native.options import OPTION_DEFAULTS, queue_info, queue_options
from vibemq.protocols.native.spec import COMPRESSION_BY_NAME, Command, ErrorCode

AWAIT_S = 20  # for tests that fail
PREFETCH = 256
RESEND = "vibemq-resend"


class Queue:
    def __init__(self, options: Any = OPTION_DEFAULTS) -> None:
        self.options = options
        self.waiting: deque[tuple[bytes, bytes | None, dict[str, str], int]] = deque()
        self.ids: set[bytes] = set()


class NativeServer:
    """`with NativeServer() as server:` listens on server.port."""

    def __init__(
        self,
        *,
        features: str = "nack,purge",
        password: str | None = None,
        compression: tuple[str, ...] = (),
        tls: ssl.SSLContext | None = None,
        dribble: bool = False,
    ) -> None:
        self.features, self.password, self.compression, self.tls = features, password, compression, tls
        self.dribble = dribble  # each byte a packet of its own
        self.queues: dict[str, Queue] = {}
        self.replies: dict[int, Callable[[Connection, codec.Message], list[bytes] | None]] = {}
        self.frames: list[codec.Message] = []
        self.flags: list[int] = []  # of each frame
        self.connections: list[Connection] = []
        self.accepting = True
        self.port = 0
        self._news = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> NativeServer:
        self._thread.start()
        self._server = self.do(self._listen())
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def _listen(self) -> asyncio.Server:
        return await self._loop.create_server(lambda: Connection(self), "127.0.0.1", 0, ssl=self.tls)

    def __exit__(self, *_: object) -> None:
        self.drop()
        self.do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(AWAIT_S)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()

    def do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(AWAIT_S)

    @property
    def url(self) -> str:
        return f"vibemq://127.0.0.1:{self.port}"

    def drop(self) -> None:
        """Every connection ends without a word."""
        self.do(self._drop())

    async def _drop(self) -> None:
        for connection in list(self.connections):
            connection.transport.abort()

    def send(self, *frames: bytes) -> None:
        """To all connections."""
        self.do(self._send(frames))

    async def _send(self, frames: tuple[bytes, ...]) -> None:
        for connection in self.connections:
            for frame in frames:
                connection.send(frame)

    def told(self) -> None:
        with self._news:
            self._news.notify_all()

    def of(self, command: int) -> list[codec.Message]:
        return [frame for frame in self.frames if frame.type == command]

    def await_frames(self, command: int, count: int = 1) -> list[codec.Message]:
        with self._news:
            found = self._news.wait_for(lambda: len(self.of(command)) >= count, AWAIT_S)
        assert found, f"needed {count} frames {Command(command).name}, had {len(self.of(command))}"
        return self.of(command)

    def await_true(self, what: Callable[[], object]) -> None:
        """`what` can only become true by a frame or by a connection that ends."""
        with self._news:
            assert self._news.wait_for(what, AWAIT_S)


class Connection(asyncio.Protocol):
    """The server's end of one connection."""

    transport: asyncio.Transport

    def __init__(self, server: NativeServer) -> None:
        self.server = server
        self.buffer = b""
        self.subscriptions: dict[str, int] = {}  # queue: prefetch
        self.in_flight: dict[tuple[str, bytes], tuple[bytes, bytes | None, dict[str, str], int]] = {}
        self.packer: str | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.server.connections.append(self)
        if not self.server.accepting:
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.server.connections.remove(self)
        for (queue, _), message in reversed(self.in_flight.items()):
            if queue in self.server.queues:
                self.server.queues[queue].waiting.appendleft(message)
        self.server.told()

    def data_received(self, data: bytes) -> None:
        frames, taken = codec.split_frames(self.buffer + data, flags_max=3)
        self.buffer = (self.buffer + data)[taken:]
        for flags, body in frames:
            frame = codec.decode_body(compression.decompress(flags, body, 1 << 26))
            self.server.frames.append(frame)
            self.server.flags.append(flags)
            reply = self.server.replies.get(frame.type)
            answers = reply(self, frame) if reply else None
            for answer in self.answer(frame) if answers is None else answers:
                self.send(answer)
            for connection in self.server.connections:
                connection.deliver()
        self.server.told()

    def send(self, frame: bytes) -> None:
        body = frame[5:]
        packed = compression.compress(self.packer, body) if self.packer and len(body) >= 64 else None
        if packed is not None:
            frame = codec.frame_of(packed, COMPRESSION_BY_NAME[self.packer])
        for part in [frame[i : i + 1] for i in range(len(frame))] if self.server.dribble else [frame]:
            self.transport.write(part)

    def deliver(self) -> None:
        for name, prefetch in self.subscriptions.items():
            queue = self.server.queues.get(name)
            while queue and queue.waiting and sum(1 for key in self.in_flight if key[0] == name) < prefetch:
                id, payload, headers, attempts = queue.waiting.popleft()
                self.in_flight[name, id] = (id, payload, headers, attempts + 1)
                headers = {**headers, "deliveryAttempts": str(attempts + 1)}
                self.send(codec.encode_frame(Command.DELIVER, id, queue=name, payload=payload, headers=headers))

    # ---- the commands ----

    def answer(self, frame: codec.Message) -> list[bytes]:
        return getattr(self, "on_" + Command(frame.type).name.lower(), self.on_unknown)(frame)

    def refuse(self, frame: codec.Message, code: ErrorCode, text: str = "No.") -> list[bytes]:
        return [codec.encode_frame(Command.ERROR, frame.id, error_code=code.value, error_message=text)]

    def reply(self, frame: codec.Message, command: Command, payload: bytes | None = None) -> list[bytes]:
        return [codec.encode_frame(command, frame.id, queue=frame.queue, payload=payload)]

    def on_unknown(self, frame):
        return self.refuse(frame, ErrorCode.UNKNOWN_COMMAND)

    def on_connect(self, frame):
        if self.server.password not in (None, frame.headers.get("authPassword")):
            return self.refuse(frame, ErrorCode.AUTH_FAILED, "Invalid username or password.")
        headers = {"serverVersion": "memory", "connectionId": "c1", "features": self.server.features}
        name = compression.negotiate(frame.headers.get("supported-compression"), self.server.compression)
        if name is not None:
            headers["negotiated-compression"] = name
        answer = codec.encode_frame(Command.CONNECT_ACK, frame.id, headers=headers)
        self.transport.write(answer)  # never compressed
        self.packer = name
        return []

    def on_disconnect(self, frame):
        self.transport.close()
        return []

    def on_ping(self, frame):
        return [codec.encode_frame(Command.PONG, frame.id)]

    def on_publish(self, frame):
        queue = self.server.queues.setdefault(frame.queue, Queue())
        headers = dict(frame.headers)
        if not (headers.pop(RESEND, None) and frame.id in queue.ids):
            queue.waiting.append((frame.id, frame.payload, headers, 0))
            queue.ids.add(frame.id)
        return [publish_ack_frame(frame.id, frame.queue.encode())]

    def on_subscribe(self, frame):
        self.server.queues.setdefault(frame.queue, Queue())
        self.subscriptions[frame.queue] = int(frame.headers.get("prefetch", PREFETCH))
        return self.reply(frame, Command.SUBSCRIBE_ACK)

    def on_unsubscribe(self, frame):
        self.subscriptions.pop(frame.queue, None)
        for key in [key for key in reversed(self.in_flight) if key[0] == frame.queue]:
            self.server.queues[frame.queue].waiting.appendleft(self.in_flight.pop(key))
        return self.reply(frame, Command.UNSUBSCRIBE_ACK)

    def on_ack(self, frame):
        self.in_flight.pop((frame.queue, frame.id), None)
        return []

    def on_nack(self, frame):
        self.server.queues[frame.queue].waiting.appendleft(self.in_flight.pop((frame.queue, frame.id)))
        return []

    def on_create_queue(self, frame):
        options = queue_options(frame.headers, frame.payload, OPTION_DEFAULTS)
        self.server.queues.setdefault(frame.queue, Queue(options))
        return self.reply(frame, Command.CREATE_QUEUE)

    def on_delete_queue(self, frame):
        self.server.queues.pop(frame.queue, None)
        return self.reply(frame, Command.DELETE_QUEUE)

    def on_queue_info(self, frame):
        queue = self.server.queues.get(frame.queue)
        if queue is None:
            return self.reply(frame, Command.QUEUE_INFO)
        subscribers = [c for c in self.server.connections if frame.queue in c.subscriptions]
        info = queue_info(
            frame.queue,
            queue.options,
            1_700_000_000_000,
            message_count=len(queue.waiting),
            subscriber_count=len(subscribers),
            in_flight_count=sum(1 for c in subscribers for key in c.in_flight if key[0] == frame.queue),
        )
        return self.reply(frame, Command.QUEUE_INFO, info)

    def on_list_queues(self, frame):
        names = ",".join(f'"{name}"' for name in sorted(self.server.queues))
        return self.reply(frame, Command.LIST_QUEUES, f"[{names}]".encode())

    def on_purge_queue(self, frame):
        self.server.queues[frame.queue].waiting.clear()
        return self.reply(frame, Command.PURGE_QUEUE)
