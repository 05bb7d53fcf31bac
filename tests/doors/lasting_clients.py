# SPDX-License-Identifier: Apache-2.0
"""A client of each kind, as its user would write a program that has to last: whatever becomes of its connections, it
goes on, and what it says is confirmed is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from door_clients import DOORS, LOGIN, RECORD_BYTES_MAX, micromsg2_client
from running import Running

import vibemq.client
from vibemq.client.streams import StreamsConnection
from vibemq.errors import VibeMQError
from vibemq.protocols.streams.spec import OffsetType

WAIT_S = 60
ANSWER_S = 5  # a publish whose answer has not come by then has failed: the broker answers in milliseconds
ATTEMPTS_MAX = 600
AGAIN_S = 0.1  # a broker that is being restarted takes some seconds


class Native:
    """Connects again by itself, and publishes once."""

    def __init__(self, served: Running, queue: str) -> None:
        address = (
            f"vibemq://{served.host}:{served.native_port}?reconnectInitialDelay=0.1&reconnectMaxDelay=0.2&keepAlive=1"
        )
        self.client, self.queue = vibemq.client.connect(address), queue

    def publish(self, id: str) -> None:
        self.client.publish(self.queue, id, id=id, timeout_s=WAIT_S)

    def close(self) -> None:
        self.client.close()


class Again:
    """Clients that tell their program: it opens another connection, and publishes again what was not confirmed.

    Each has an ``open``, and a ``send`` that returns once the message is confirmed."""

    errors: tuple[type[BaseException], ...] = (VibeMQError, OSError)

    def __init__(self, served: Running, queue: str) -> None:
        self.served, self.queue = served, queue
        self.client: Any = None

    def publish(self, id: str) -> None:
        for _ in range(ATTEMPTS_MAX):
            try:
                if self.client is None:
                    self.open()
                self.send(id)
                return
            except self.errors:
                self.close()
                time.sleep(AGAIN_S)
        raise AssertionError(f"{id} was not confirmed in {ATTEMPTS_MAX} attempts")

    def close(self) -> None:
        client, self.client = self.client, None
        if client is not None:
            try:
                client.close()
            except self.errors:
                return  # it was lost already


class Micromsg2(Again):
    def open(self) -> None:
        self.client = micromsg2_client(self.served)
        self.client.timeout_s = ANSWER_S

    def send(self, id: str) -> None:
        self.client.send(self.queue, id, {"message-id": id})
        self.client.flush()


class Streams(Again):
    def open(self) -> None:
        self.client = StreamsConnection.connect(self.served.host, self.served.port, timeout_s=ANSWER_S)
        self.client.create(self.queue, exist_ok=True)
        self.publisher = self.client.publisher(self.queue)

    def send(self, id: str) -> None:
        self.publisher.publish([id.encode()])
        self.publisher.flush()


class Signalr(Again):
    errors = (Exception,)  # each layer of it has its own

    def __init__(self, served: Running, queue: str) -> None:
        super().__init__(served, queue)
        self.loop = asyncio.new_event_loop()

    def open(self) -> None:
        from aiosignalr.client import HubConnection
        from aiosignalr.protocol import JSONProtocol

        class Json(JSONProtocol):
            def __init__(self) -> None:
                super().__init__(RECORD_BYTES_MAX)

        self.client = hub = HubConnection(protocol=Json())
        address = f"http://{self.served.host}:{self.served.ports['signalr']}/hub"
        self.loop.run_until_complete(asyncio.wait_for(hub.start(address, transports={"WebSockets"}), ANSWER_S))

    def send(self, id: str) -> None:
        work = self.client.invoke("Publish", self.queue, id, {"messageId": id})
        self.loop.run_until_complete(asyncio.wait_for(work, ANSWER_S))

    def close(self) -> None:
        hub, self.client = self.client, None
        if hub is not None:
            try:
                self.loop.run_until_complete(asyncio.wait_for(hub.stop(), ANSWER_S))
            except Exception:
                return  # it was lost already


class Rstream(Again):
    """The streams client of others for Python; it goes where the broker says that it is."""

    errors = (Exception,)

    def __init__(self, served: Running, queue: str) -> None:
        super().__init__(served, queue)
        self.loop = asyncio.new_event_loop()

    def run(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, ANSWER_S))

    def open(self) -> None:
        from rstream import Producer

        self.client = Producer(self.served.host, self.served.port, **LOGIN)
        self.run(self.client.start())
        self.run(self.client.create_stream(self.queue, exists_ok=True))

    def send(self, id: str) -> None:
        self.run(self.client.send_wait(self.queue, id.encode()))

    def close(self) -> None:
        client, self.client = self.client, None
        if client is not None:
            try:
                self.run(client.close())
            except Exception:
                return  # it was lost already


KINDS: dict[str, Callable[[Running, str], Any]] = {
    "native": Native,
    "streams": Streams,
    "rstream": Rstream,
    "signalr": Signalr,
    "micromsg2": Micromsg2,
}


def check(served: Running, door: str, queue: str, confirmed: list[str]) -> None:
    """All are there, in order; what was sent again because its answer was lost may be there twice."""
    if door == "streams":
        with StreamsConnection.connect(served.host, served.port) as streams:
            end = streams.next_offset(queue)
            subscription = streams.subscribe(queue, OffsetType.FIRST)
            found: list[str] = []
            while len(found) < end:
                found += [message.decode() for _, message in subscription.next_chunk(WAIT_S).messages()]
    else:
        with vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}") as client:
            count = client.queue_info(queue).messages
        found = [message.id for message in DOORS[door].consume(served, queue, count)]
    assert list(dict.fromkeys(found)) == confirmed
    if door == "native":
        assert found == confirmed, "our own client sends what may have been lost again, and it is stored once"
