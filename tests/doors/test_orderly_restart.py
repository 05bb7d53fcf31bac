# SPDX-License-Identifier: Apache-2.0
"""An orderly restart of the broker, under load, as our own clients and a hub client meet it: nobody is left behind, and
nothing confirmed is lost.  The clients of others are in tests/interop."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from lasting_clients import AGAIN_S, KINDS, WAIT_S
from running import ENVIRONMENT, Restartable, Running, broker, restartable, written

import vibemq.client
from vibemq.client.streams import StreamsConnection
from vibemq.errors import VibeMQError
from vibemq.protocols.streams.spec import OffsetType

pytestmark = pytest.mark.timeout(240)

STREAMS = ("streams", "rstream")  # kinds of publishers that make a stream; the others make a queue
LOAD = 50  # messages confirmed and consumed before the restart, and again afterwards


class Load:
    """Publishes with confirms, and consumes, in threads of its own."""

    def __init__(self, kind: str, running: Running) -> None:
        self.publisher = KINDS[kind](running, "q")
        self.running = running
        self.confirmed: list[str] = []
        self.consumed: set[str] = set()
        self.changed = threading.Condition()
        self.ends, self.over = threading.Event(), threading.Event()
        self.messages: vibemq.client.Consumer | None = None
        self.publish("m-0")
        consume = self.consume_stream if kind in STREAMS else self.consume_queue
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self.publish_on, consume)]
        for thread in self.threads:
            thread.start()

    def publish(self, id: str) -> None:
        self.publisher.publish(id)
        with self.changed:
            self.confirmed.append(id)
            self.changed.notify_all()

    def publish_on(self) -> None:
        while not self.ends.is_set():
            self.publish(f"m-{len(self.confirmed)}")
        self.publisher.close()

    def take(self, *ids: str) -> None:
        with self.changed:
            self.consumed.update(ids)
            self.changed.notify_all()

    def consume_queue(self) -> None:
        """It connects again by itself."""
        address = (
            f"vibemq://{self.running.host}:{self.running.native_port}?reconnectInitialDelay=0.1&reconnectMaxDelay=0.5"
        )
        with vibemq.client.connect(address) as client, client.consume("q") as self.messages:
            for message in self.messages:
                self.take(message.id)
                message.ack()

    def consume_stream(self) -> None:
        """It tells of the end of its connection, and another one is made."""
        offset = 0
        while not self.over.is_set():
            try:
                with StreamsConnection.connect(self.running.host, self.running.port) as streams:
                    subscription = streams.subscribe("q", OffsetType.OFFSET, offset)
                    while True:
                        for at, message in subscription.next_chunk(WAIT_S).messages():
                            offset = at + 1
                            self.take(message.decode())
            except (VibeMQError, OSError):
                time.sleep(AGAIN_S)

    def goes_on(self) -> None:
        """LOAD more are confirmed, and consumed."""
        enough = len(self.confirmed) + LOAD
        with self.changed:
            assert self.changed.wait_for(
                lambda: len(self.confirmed) >= enough and self.confirmed[enough - 1] in self.consumed, WAIT_S
            ), f"{len(self.confirmed)} of {enough} were confirmed, {len(self.consumed)} consumed"

    def stop(self) -> None:
        """Nobody is left to look for a broker that another test may start at this address."""
        self.ends.set()
        self.over.set()
        if self.messages is not None:
            self.messages.stop()

    def end(self) -> None:
        """All that was confirmed is consumed."""
        self.ends.set()
        self.threads[0].join(WAIT_S)
        assert not self.threads[0].is_alive()
        with self.changed:
            done = self.changed.wait_for(lambda: self.consumed.issuperset(self.confirmed), WAIT_S)
        assert done, sorted(set(self.confirmed) - self.consumed)[:10]


@pytest.mark.parametrize("durability", ["os", "disk"])
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_is_stranded_by_an_orderly_restart(tmp_path: Path, kind: str, durability: str) -> None:
    with restartable(tmp_path / "data", "--durability", durability) as broker:
        load = Load(kind, broker.running)
        try:
            for _ in range(2):
                load.goes_on()
                broker.restart()
            load.goes_on()
            load.end()
        finally:
            load.stop()


def restart_workers(data_dir: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "vibemq.cli", "ctl", "restart_workers", "--data-dir", str(data_dir)]
    return subprocess.Popen(words, env=ENVIRONMENT)


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_is_stranded_or_refused_while_workers_are_replaced_one_by_one(tmp_path: Path, kind: str) -> None:
    with broker(tmp_path / "data", "--durability", "disk", workers=2) as running:
        before, load = set(running.worker_pids()), Load(kind, running)
        try:
            load.goes_on()
            restarting = restart_workers(tmp_path / "data")
            while restarting.poll() is None:
                socket.create_connection((running.host, running.port)).close()  # at no moment is anybody refused
            assert restarting.returncode == 0
            after = set(running.worker_pids())
            assert len(after) == 2 and not after & before
            load.goes_on()
            load.end()
        finally:
            load.stop()


def test_a_worker_that_does_not_end_holds_up_a_rolling_restart_for_as_long_as_a_stop(tmp_path: Path, capfd) -> None:
    with broker(tmp_path / "data", "--set", "server.shutdown_timeout_s=1", workers=2) as running:
        hung, other = running.worker_pids()
        os.kill(hung, signal.SIGSTOP)
        assert restart_workers(tmp_path / "data").wait(WAIT_S) == 0
        assert not {hung, other} & set(running.worker_pids())
    assert f"pid {hung}, is killed: it did not end within 1 s" in written(capfd)


def test_a_client_with_asyncio_connects_again(tmp_path: Path) -> None:
    import asyncio

    async def use(broker: Restartable) -> None:
        address = f"vibemq://{broker.running.host}:{broker.running.native_port}?reconnectInitialDelay=0.1"
        async with vibemq.client.aconnect(address) as client, asyncio.timeout(WAIT_S):
            first = client.publish_many("q", (f"{n}" for n in range(2 * LOAD)))
            under_way = asyncio.ensure_future(first)
            await asyncio.to_thread(broker.restart)
            assert (await under_way).published == 2 * LOAD
            await client.publish("q", "after")
            seen = set()
            async with client.consume("q") as messages:
                async for message in messages:
                    seen.add(message.payload)
                    message.ack()
                    if message.payload == "after":
                        break
            assert seen == {"after", *(f"{n}" for n in range(2 * LOAD))}

    with restartable(tmp_path / "data") as broker:
        asyncio.run(use(broker))
