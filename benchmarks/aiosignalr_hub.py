# SPDX-License-Identifier: Apache-2.0
"""A hub of aiosignalr (PyPI), the peer of `python -m benchmarks signalr`: the methods that the load generator calls.

It keeps messages in memory only as long as a subscriber has not had them. Its port is on the first line that it
writes. Run by an interpreter that has aiosignalr, which need not be the one that runs the benchmark.
"""

import asyncio
import socket

from aiohttp import web
from aiosignalr.server import Hub, ServerOptions, SignalRServer
from aiosignalr.server.aiohttp_server import build_aiohttp_app

RECORD_SIZE_MAX = 1 << 20


class Queue:
    """Messages on their way to whoever subscribed."""

    def __init__(self) -> None:
        self.offset = 0
        self.subscribers: list[asyncio.Queue] = []


QUEUES: dict[str, Queue] = {}


class Broker(Hub):
    async def create_queue(self, name: str, options: dict | None = None) -> dict:
        QUEUES[name] = Queue()
        return {"name": name}

    async def delete_queue(self, name: str) -> bool:
        return QUEUES.pop(name, None) is not None

    async def queue_info(self, name: str) -> dict:
        return {"messages": 0, "unacked": 0, "consumers": len(QUEUES[name].subscribers)}

    async def publish(self, name: str, body: object) -> dict:
        queue = QUEUES[name]
        queue.offset += 1
        for subscriber in queue.subscribers:
            subscriber.put_nowait((queue.offset, body))
        return {"id": str(queue.offset), "offset": queue.offset}

    async def ack(self, tags: list) -> None:
        return None

    async def subscribe(self, name: str, options: dict | None = None):
        queue, mine = QUEUES[name], asyncio.Queue()
        queue.subscribers.append(mine)
        try:
            while True:
                offset, body = await mine.get()
                yield {"tag": offset, "id": str(offset), "queue": name, "body": body, "offset": offset}
        finally:
            queue.subscribers.remove(mine)


# What clients call them.
Broker.createqueue, Broker.deletequeue, Broker.queueinfo = Broker.create_queue, Broker.delete_queue, Broker.queue_info


async def main() -> None:
    hub = SignalRServer(Broker, options=ServerOptions(maximum_receive_message_size=RECORD_SIZE_MAX))
    runner = web.AppRunner(build_aiohttp_app(hub, path="/hub"), access_log=None)
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        await web.SockSite(runner, listener).start()
        print(f"aiosignalr ready port={listener.getsockname()[1]}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())
