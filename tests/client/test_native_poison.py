# SPDX-License-Identifier: Apache-2.0
"""The message that a program held when its consumer ended has failed; prefetched messages have not."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from running import broker, wait_until

from vibemq.client import aconnect, connect
from vibemq.client.micromsg2 import Micromsg2Client

LIMIT = 2
UNCOUNTED_RETURNS = 10
names = (f"poison-{number}" for number in itertools.count())


class Poisoned(Exception):
    pass


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with broker(tmp_path_factory.mktemp("poison") / "data", workers=1) as served:
        yield served


@pytest.fixture
def url(running):
    return f"vibemq://127.0.0.1:{running.native_port}"


@pytest.fixture
def client(url):
    with connect(url) as connected:
        yield connected


@pytest.fixture
def queue(client):
    name = next(names)
    client.create_queue(name, dead_letter=True, attempts_max=LIMIT)
    client.create_queue(name + ".dlq")
    return name


def dead(client, queue):
    return client.queue_info(queue + ".dlq").messages


def nobody_consumes(client, queue):
    wait_until(lambda: client.queue_info(queue).subscribers == 0, "its consumer is gone")


def raises_in_the_clients_block(url, queue):
    with connect(url) as client:
        for message in client.consume(queue, timeout_s=20):
            if message.payload == "poison":
                raise Poisoned
            message.ack()


def raises_in_the_consumers_block(url, queue):
    with connect(url) as client, client.consume(queue, timeout_s=20) as messages:
        for message in messages:
            if message.payload == "poison":
                raise Poisoned
            message.ack()


def raises_and_acknowledges_by_itself(url, queue):
    with connect(url) as client:
        for message in client.consume(queue, auto_ack=True, timeout_s=20):
            if message.payload == "poison":
                raise Poisoned


def closes_in_finally(url, queue):
    client = connect(url)
    try:
        messages = client.consume(queue, timeout_s=20)
        for message in messages:
            if message.payload == "poison":
                raise Poisoned
            message.ack()
    finally:
        client.close()


def raises_in_a_second_consumer(url, queue):
    with connect(url) as client:
        first = client.consume(queue, prefetch=1)
        first.open()  # it has the poison, and the other has a connection of its own
        with client.consume(queue, timeout_s=20) as messages:
            first.close()
            for message in messages:
                if message.payload == "poison":
                    raise Poisoned
                message.ack()


def raises_in_asyncio(url, queue):
    async def run():
        async with aconnect(url) as client:
            async for message in client.consume(queue, timeout_s=20):
                if message.payload == "poison":
                    raise Poisoned
                message.ack()

    asyncio.run(run())


LOOPS = (
    raises_in_the_clients_block,
    raises_in_the_consumers_block,
    raises_and_acknowledges_by_itself,
    closes_in_finally,
    raises_in_a_second_consumer,
    raises_in_asyncio,
)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_raises_meets_its_poison_as_often_as_the_limit_says(client, url, queue, loop):
    client.publish_many(queue, ["poison", *range(5)])
    for _ in range(LIMIT):
        assert dead(client, queue) == 0
        with pytest.raises(Poisoned):
            loop(url, queue)
        nobody_consumes(client, queue)
    wait_until(lambda: dead(client, queue) == 1, "it is dead")
    assert client.queue_info(queue).messages == (0 if loop is raises_in_a_second_consumer else 5)
    assert dead(client, queue) == 1, "prefetched messages did not fail"


def test_a_message_settled_before_the_end_does_not_count(client, url, queue):
    client.publish_many(queue, range(5))
    for _ in range(LIMIT + 1):
        with pytest.raises(Poisoned), connect(url) as other:
            for message in other.consume(queue):
                message.ack()
                raise Poisoned
        nobody_consumes(client, queue)
    assert (client.queue_info(queue).messages, dead(client, queue)) == (5 - LIMIT - 1, 0)


KILLED = """
    import os, signal, sys
    from vibemq.client import connect

    client = connect(sys.argv[1])
    handed = [next(messages) for messages in [client.consume(sys.argv[2], timeout_s=20)] for _ in range(3)]
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_program_killed_with_three_messages_gets_each_once_more_than_the_limit(client, url, queue):
    client.publish_many(queue, range(3))
    runs = 0
    while dead(client, queue) < 3:
        program = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(KILLED), url, queue], env=os.environ, check=False
        )
        assert program.returncode == -signal.SIGKILL, "there were three messages"
        nobody_consumes(client, queue)
        runs += 1
        if runs > LIMIT:
            wait_until(lambda: dead(client, queue) == 3, "all are dead")
        elif runs == LIMIT:
            wait_until(lambda: client.queue_info(queue).messages == 2, "the first was the oldest and then in hand")
            client.publish(queue, "third")


def test_a_dry_run_of_a_move_counts_no_failure(client, queue):
    client.publish_many(queue, range(5))
    target = queue + ".target"
    client.create_queue(target)
    for _ in range(LIMIT + 2):
        assert client.move_messages(queue, target, dry_run=True).total == 5
        nobody_consumes(client, queue)
    assert (client.queue_info(queue).messages, dead(client, queue)) == (5, 0)


def test_a_micromsg2_program_that_raises_has_acknowledged_earlier_messages(running, client, queue):
    client.publish_many(queue, ["good", "poison", "after"])
    for number in range(LIMIT):
        with pytest.raises(Poisoned), Micromsg2Client(port=running.ports["micromsg2"]) as peer:
            peer.subscribe(f"queue/{queue}")
            while True:
                message = peer.receive(20)
                assert message is not None
                assert not (number and message.payload == b'"good"'), "it was done before the other failed"
                if message.payload == b'"poison"':
                    raise Poisoned
        nobody_consumes(client, queue)
    wait_until(lambda: dead(client, queue) == 1, "it is dead")
    assert client.queue_info(queue).messages == 1


def one_of_a_connection(running, url, queue):
    with connect(url) as client:
        messages = client.consume(queue, prefetch=10, timeout_s=20)
        message = next(messages)
        message.ack()
    return message.payload, message.attempts


def one_of_a_subscription(running, url, queue):
    with connect(url) as client, client.consume(queue, prefetch=10, timeout_s=20) as messages:
        message = next(messages)
        message.ack()
        messages.close()
        return message.payload, message.attempts


def one_of_micromsg2(running, url, queue):
    with Micromsg2Client(port=running.ports["micromsg2"], auto_ack=False) as peer:
        peer.subscribe(f"queue/{queue}", prefetch=10)
        message = peer.receive(20)
        peer.ack(message)
    return int(message.payload), 1


@pytest.mark.parametrize("take_one", [one_of_a_connection, one_of_a_subscription, one_of_micromsg2])
def test_messages_that_no_program_saw_go_back_as_if_never_delivered(running, client, url, queue, take_one):
    rounds = UNCOUNTED_RETURNS + LIMIT + 4
    client.publish_many(queue, range(rounds + 5))
    for number in range(rounds):
        assert take_one(running, url, queue) == (number, 1)
        nobody_consumes(client, queue)
    assert (client.queue_info(queue).messages, dead(client, queue)) == (5, 0)
    with client.consume(queue, timeout_s=20) as messages:
        assert [(each.payload, each.attempts) for _, each in zip(range(5), messages, strict=False)] == [
            (rounds + number, 1) for number in range(5)
        ]


def test_messages_that_a_program_saw_and_left_are_delivered_again_and_count(client, url, queue):
    client.publish_many(queue, [0, 1, 2, *["unseen"] * 3])
    for attempt in range(1, LIMIT + 2):  # from the second on the program is known to have them in hand
        assert dead(client, queue) == 0
        with client.consume(queue, timeout_s=20) as messages:
            seen = [next(messages) for _ in range(3)]
            messages.stop()
            assert next(messages, None) is None  # so that none is in hand
        assert [(each.payload, each.attempts) for each in seen] == [(number, attempt) for number in range(3)]
        nobody_consumes(client, queue)
    wait_until(lambda: dead(client, queue) == 3, "those that were seen are dead")
    with client.consume(queue, timeout_s=20) as messages:
        unseen = next(messages)
    assert (unseen.payload, unseen.attempts) == ("unseen", 1)


def test_a_message_that_a_program_has_acknowledged_past_was_seen(client, url, queue):
    client.publish_many(queue, range(4))
    with client.consume(queue, timeout_s=20) as messages:
        seen = [next(messages) for _ in range(2)]
        seen[1].ack()
    with client.consume(queue, timeout_s=20) as messages:
        assert [(each.payload, each.attempts) for _, each in zip(range(3), messages, strict=False)] == [
            (0, 2), (2, 1), (3, 1),
        ]  # fmt: skip
