# SPDX-License-Identifier: Apache-2.0
"""A message that one consumer cannot be given is there for those that can, whichever door they came through."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from door_clients import DEADLINE_S, micromsg2_client, native_client
from running import Running, broker

from vibemq.access.users import add_user
from vibemq.client import Client, connect
from vibemq.client.micromsg2 import Message, Micromsg2Client
from vibemq.storage.metadata import Metadata

LARGE = json.dumps("x" * (1 << 20)).encode()  # larger than a frame of the native door
ATTEMPTS = 3
PEERS = 2
PASSWORD = "correct horse"
FAN_OUT = "fan_out_with_ack"


@pytest.fixture(scope="module", params=[1, 2], ids=["one-worker", "two-workers"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    folder = tmp_path_factory.mktemp("unsuited")
    log = folder / "log"
    with broker(folder / "data", workers=request.param, through=("sh", "-c", 'exec "$@" 2>"$0"', str(log))) as running:
        yield running, log


@pytest.fixture
def running(served: tuple[Running, Path]) -> Iterator[Running]:
    yield served[0]
    with native_client(served[0]) as client:
        for queue in client.list_queues():
            client.delete_queue(queue)


def client_of(running: Running, user: str) -> Client:
    return connect(f"vibemq://{user}:{PASSWORD}@{running.host}:{running.native_port}")


def take_large(taker: Micromsg2Client, destination: str) -> Message:
    taker.subscribe(destination)
    message = taker.receive(DEADLINE_S)
    assert message is not None and message.payload == LARGE
    return message


def publish_large(running: Running, destination: str) -> None:
    with micromsg2_client(running, "json") as client:
        client.send(destination, LARGE)
        client.flush()


def wait_for(client: Client, queue: str, **wanted: int) -> None:
    """Counts are the home's, which may be another worker: they come true soon."""
    end = time.monotonic() + DEADLINE_S
    while any(getattr(client.queue_info(queue), name) != count for name, count in wanted.items()):
        assert time.monotonic() < end, f"{client.queue_info(queue)}, wanted {wanted}"


@pytest.mark.parametrize("mode", ["round_robin", "priority_based"])
def test_what_the_native_door_cannot_carry_waits_for_a_consumer_that_can_take_it(running: Running, mode: str) -> None:
    with native_client(running) as client, native_client(running) as publisher:
        client.create_queue("q", mode=mode, dead_letter=True, attempts_max=ATTEMPTS)
        with client.consume("q", timeout_s=DEADLINE_S) as consumer:
            publish_large(running, "queue/q")
            publisher.publish("q", "small")
            small = next(consumer)
            assert small.payload == "small", "what is behind it is not held up"
            small.ack()
            wait_for(publisher, "q", messages=1, in_flight=0, dropped=0)
            with micromsg2_client(running) as taker:
                take_large(taker, "q")
            wait_for(publisher, "q", messages=0, in_flight=0, dropped=0)
        assert "q.dlq" not in client.list_queues() or client.queue_info("q.dlq").messages == 0


@pytest.mark.parametrize("dead_letter", [False, True])
def test_one_client_that_keeps_coming_back_loses_nothing_for_those_that_can_take_it(
    running: Running, dead_letter: bool
) -> None:
    with native_client(running) as watcher:
        watcher.create_queue("q", dead_letter=dead_letter, attempts_max=ATTEMPTS)
        publish_large(running, "queue/q")
        for number in range(ATTEMPTS + 2):
            with native_client(running) as client, client.consume("q", timeout_s=DEADLINE_S) as consumer:
                watcher.publish("q", number)
                small = next(consumer)  # so this one was offered the large one, which is older, before
                assert small.payload == number
                small.ack()
                wait_for(watcher, "q", messages=1, in_flight=0, dropped=0)
            wait_for(watcher, "q", subscribers=0, messages=1, dropped=0)
        with micromsg2_client(running) as taker:
            take_large(taker, "q")
        wait_for(watcher, "q", messages=0, in_flight=0, dropped=0)


def test_without_a_dead_letter_queue_nothing_is_dropped_for_being_unsuited(
    running: Running, served: tuple[Running, Path]
) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(native_client(running)) for _ in range(ATTEMPTS + 1)]
        clients[0].create_queue("kept", attempts_max=1)
        publish_large(running, "queue/kept")
        for number, client in enumerate(clients, 1):
            stack.enter_context(client.consume("kept"))
            wait_for(clients[0], "kept", subscribers=number, messages=1, in_flight=0, dropped=0)
        said = "queue kept: messages that could be given to none of the consumers that tried wait"
        log, end = served[1], time.monotonic() + DEADLINE_S
        while said not in log.read_text():
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.01)
        taker = stack.enter_context(micromsg2_client(running))
        take_large(taker, "kept")


def test_what_so_many_peers_as_attempts_could_not_be_given_is_dead_lettered(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(broker(tmp_path / "data", workers=2))
        publish_large(running, "queue/q")
        for number in range(PEERS):
            add_user(Metadata(str(tmp_path / "data" / "meta.db")), f"user{number}", PASSWORD, is_superuser=True)
        clients = [stack.enter_context(client_of(running, f"user{number}")) for number in range(PEERS)]
        clients[0].alter_queue("q", dead_letter=True, attempts_max=PEERS)
        for number, client in enumerate(clients, 1):
            stack.enter_context(client.consume("q"))
            left = int(number < PEERS)
            wait_for(clients[0], "q", subscribers=number, messages=left, in_flight=0)
        wait_for(clients[0], "q.dlq", messages=1)
        taker = stack.enter_context(
            Micromsg2Client(running.host, running.ports["micromsg2"], user="user0", password=PASSWORD)
        )
        message = take_large(taker, "q.dlq")
        assert message.properties["x-failure-reason"] == "Undeliverable"
        assert message.properties["x-attempts"] == "0", "nobody was ever given it"


@pytest.mark.parametrize("dead_letter", [False, True])
def test_of_a_fan_out_only_the_copy_of_who_cannot_take_it_is_given_up(running: Running, dead_letter: bool) -> None:
    with native_client(running) as client, micromsg2_client(running) as taker:
        client.create_queue("t", mode=FAN_OUT, dead_letter=dead_letter)
        with client.consume("t", timeout_s=DEADLINE_S) as consumer:
            taker.subscribe("topic/t")
            wait_for(client, "t", subscribers=2)
            publish_large(running, "topic/t")
            with connect(f"vibemq://{running.host}:{running.native_port}") as publisher:
                publisher.publish("t", "small")
            small = next(consumer)
            assert small.payload == "small"
            small.ack()
            found = [taker.receive(DEADLINE_S) for _ in range(2)]
            assert [message.payload for message in found if message] == [LARGE, b'"small"']
            wait_for(client, "t", messages=0, dropped=0 if dead_letter else 1)
            if dead_letter:
                wait_for(client, "t.dlq", messages=1)
