# SPDX-License-Identifier: Apache-2.0
"""What a queue itself would write waits on a full disk: dead letters, and messages that were parked before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from full_disk import ToldFree, small_disk
from running import Running, broker

import vibemq.client
from vibemq.broker.disk import FILES_FREE_MIN, free_files
from vibemq.errors import QueueFull, QueueNotFound, ServerFailed

NEEDED = 1_000_000
MUCH, AT_THE_FLOOR, BELOW_HALF = str(NEEDED), str(NEEDED - 1), str(NEEDED // 2 - 1)
WAIT_S = 60


@pytest.fixture
def free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToldFree:
    return ToldFree(tmp_path, monkeypatch, MUCH)


@pytest.fixture
def limited(free: ToldFree, tmp_path: Path) -> Iterator[Running]:
    flags = ("--set", f"store.disk_free_min_bytes={NEEDED}", "--set", "queues.block_timeout_ms=60000")
    with broker(tmp_path / "data", *flags, workers=1) as running:
        yield running


def address(served: Running) -> str:
    return f"vibemq://{served.host}:{served.native_port}?commandTimeout={WAIT_S}"


def client_of(served: Running) -> vibemq.client.Client:
    return vibemq.client.connect(address(served))


def wait_until(holds: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, f"after {WAIT_S} s still not: {what}"
        time.sleep(0.05)


def messages_in(client: vibemq.client.Client, name: str) -> int | None:
    """None: there is no such queue yet."""
    try:
        return client.queue_info(name).messages
    except QueueNotFound:
        return None


def is_refused(client: vibemq.client.Client) -> bool:
    try:
        client.publish("other", 1)
    except ServerFailed as problem:
        assert not problem.hint, "the broker has said all: nobody needs its log"
        return "disk alarm" in str(problem)
    return False


async def until(holds: Callable[[], Awaitable[Any]], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not await holds():
        assert time.monotonic() < end, f"after {WAIT_S} s still not: {what}"
        await asyncio.sleep(0.05)


async def refused(client: vibemq.client.AsyncClient) -> bool:
    try:
        await client.publish("other", 1)
    except ServerFailed as problem:
        return "disk alarm" in str(problem)
    return False


async def is_empty(client: vibemq.client.AsyncClient, queue: str) -> bool:
    info = await client.queue_info(queue)
    return info.messages + info.in_flight == 0


def fail_one(client: vibemq.client.Client, queue: str) -> None:
    with client.consume(queue, timeout_s=WAIT_S) as consumer:
        next(consumer).nack()


def test_dead_letters_are_written_at_the_floor_and_wait_below_half_of_it(limited: Running, free: ToldFree) -> None:
    with client_of(limited) as client:
        client.create_queue("q", dead_letter=True, attempts_max=1)
        client.publish_many("q", [1, 2])
        free.say(AT_THE_FLOOR)
        wait_until(lambda: is_refused(client), "the disk alarm")
        fail_one(client, "q")
        wait_until(lambda: messages_in(client, "q.dlq") == 1, "the first dead letter")
        free.say(MUCH)
        wait_until(lambda: not is_refused(client), "the end of the alarm")
        free.say(BELOW_HALF)
        wait_until(lambda: is_refused(client), "the next one")
        fail_one(client, "q")
        wait_until(lambda: client.queue_info("q").in_flight == 0, "it was given back")
        assert client.queue_info("q.dlq").messages == 1
        free.say(MUCH)
        wait_until(lambda: client.queue_info("q.dlq").messages == 2, "the second dead letter")
        wait_until(lambda: client.queue_info("q").messages == 0, "nothing is left")


def test_what_was_parked_before_a_full_queue_does_not_come_in_on_a_full_disk(limited: Running, free: ToldFree) -> None:
    async def work() -> None:
        async with vibemq.client.aconnect(address(limited)) as client:
            await client.create_queue("q", max_messages=1, overflow=vibemq.client.OverflowStrategy.BLOCK_PUBLISHER)
            await client.publish("q", "first")
            parked = asyncio.ensure_future(client.publish("q", "parked"))
            await asyncio.sleep(0)  # it is written first
            await client.publish("other", 1)  # on the same connection, so what was sent before has been read
            free.say(AT_THE_FLOOR)
            await until(lambda: refused(client), "the disk alarm")
            async with client.consume("q") as consumer:
                (await anext(consumer)).ack()
                await until(lambda: is_empty(client, "q"), "there is room in the queue")
                assert not parked.done()
                free.say(MUCH)
                assert (await anext(consumer)).payload == "parked"
            await parked

    asyncio.run(asyncio.wait_for(work(), WAIT_S))


def test_what_waited_too_long_during_an_alarm_was_not_kept_out_by_the_queue(free: ToldFree, tmp_path: Path) -> None:
    flags = ("--set", f"store.disk_free_min_bytes={NEEDED}", "--set", "queues.block_timeout_ms=5000")

    async def work(served: Running) -> None:
        async with vibemq.client.aconnect(address(served)) as client:
            await client.create_queue("q", max_messages=1, overflow=vibemq.client.OverflowStrategy.BLOCK_PUBLISHER)
            await client.publish("q", "first")
            parked = asyncio.ensure_future(client.publish("q", "parked"))
            await asyncio.sleep(0)  # it is written first
            await client.publish("other", 1)
            free.say(AT_THE_FLOOR)
            await until(lambda: refused(client), "the disk alarm")
            with pytest.raises(QueueFull, match="no messages were taken"):
                await parked
            assert (await client.queue_info("q")).refused == 0

    with broker(tmp_path / "data", *flags, workers=1) as served:
        asyncio.run(asyncio.wait_for(work(served), WAIT_S))


def test_without_inodes_publishers_are_refused_and_what_was_confirmed_is_consumed(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path, 256 << 20, "tmpfs", files_max=FILES_FREE_MIN + 200) as disk,
        broker(disk / "data", workers=1) as served,
        client_of(served) as client,
    ):
        client.create_queue("q")
        client.publish("q", "before")
        others = disk / "others"
        others.mkdir()
        made = 0
        while (free_files(str(disk)) or 0) >= FILES_FREE_MIN:
            (others / str(made)).touch()
            made += 1
        wait_until(lambda: is_refused(client), "the disk alarm")
        while free_files(str(disk)):
            (others / str(made)).touch()
            made += 1
        with pytest.raises(ServerFailed, match="fewer than 256 files can be made"):
            client.publish("q", "refused")
        reserve = (disk / "data" / "reserve").stat().st_size
        with client.consume("q", timeout_s=WAIT_S) as consumer:
            message = next(consumer)
            assert message.payload == "before"
            message.ack()
        assert (disk / "data" / "reserve").stat().st_size == reserve, "its bytes are no help"
        for name in range(made):
            (others / str(name)).unlink()
        wait_until(lambda: not is_refused(client), "the end of the alarm")
