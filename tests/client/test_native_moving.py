# SPDX-License-Identifier: Apache-2.0
"""Messages that move from queue to queue: all of each, none lost, none twice; and by the command line likewise."""

import asyncio
import datetime
import itertools
import json

import pytest
from click.testing import CliRunner
from running import broker

from vibemq.cli.commands import main
from vibemq.client import OverflowStrategy, _moving, aconnect, connect
from vibemq.client.micromsg2 import Micromsg2Client
from vibemq.client.streams import StreamsConnection
from vibemq.errors import ConfigError, InvalidRequest, QueueFull, QueueNotFound

PREFETCH_MAX = 100  # less than moving would take
names = (f"moving-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    limits = ("--set", f"queues.prefetch_max={PREFETCH_MAX}")
    with broker(tmp_path_factory.mktemp("native-moving") / "data", *limits, workers=2) as started:
        yield started


@pytest.fixture
def url(running):
    return f"vibemq://127.0.0.1:{running.native_port}"


@pytest.fixture
def client(url):
    with connect(url, reconnect_initial_delay_s=0.01) as connected:
        yield connected


@pytest.fixture
def run(url, monkeypatch):
    monkeypatch.setenv("VIBEMQ_URL", url)
    return lambda *arguments, **options: CliRunner().invoke(main, arguments, prog_name="vibemq", **options)


@pytest.fixture
def source():
    return next(names)


@pytest.fixture
def target(client):
    name = next(names)
    client.create_queue(name)
    return name


def stored(running, queue):
    """The bytes of every message that the log of a queue holds."""
    with StreamsConnection.connect(running.host, running.port) as connection:
        return [data for chunk in connection.read_chunks(queue, 0) for _, data in chunk.messages()]


def all_sorts(running, client, queue):
    """From three doors: JSON, text, bytes, ids of all kinds, headers of all types, priorities, content types."""
    client.publish(queue, {"n": 1, "ü": None}, headers={"k": "v", "ключ": "значение"}, id="mine", priority="critical")
    client.publish(queue, b"\x00\xff", id="0123456789abcdef0123456789abcdef")
    client.publish(queue, "text", id="0123456789abcdef0000000000000001")  # a lower number than the one before
    client.publish(queue, 2)
    with Micromsg2Client(port=running.ports["micromsg2"]) as peer:
        day = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
        peer.send(f"queue/{queue}", b"\xffbytes", {"i": 5, "f": 1.5, "t": day, "s": "text"})
        peer.flush()
    with StreamsConnection.connect(running.host, running.port) as connection, connection.publisher(queue) as publisher:
        publisher.publish([b"\x00\x53\x70\x45\x00\x53\x75\xa0\x04body", b"no AMQP at all", b"\x00\x53\x77\xa1\x02hi"])
    return 8


def fill_letters(client, queue, count):
    """Dead letters in queue.dlq."""
    client.create_queue(queue, dead_letter=True, attempts_max=1)
    client.publish_many(queue, range(count), headers={"h": "v"}, priority="high")
    with client.consume(queue, prefetch=count) as consumer:
        for _ in range(count):
            next(consumer).nack()
    with client.consume(f"{queue}.dlq", prefetch=count, create=True) as consumer:
        return [next(consumer).id for _ in range(count)]


def test_dead_letters_go_back_to_where_they_came_from(client, source):
    ids = fill_letters(client, source, 5)
    seen = []
    moved = client.move_messages(f"{source}.dlq", progress=lambda *so_far: seen.append(so_far))
    assert (moved.queues, moved.left) == ({source: 5}, 0)
    assert seen[-1] == (5, 5)
    assert client.queue_info(f"{source}.dlq").messages == 0
    assert client.queue_info(source).messages == 5
    with client.consume(source) as consumer:
        back = [next(consumer) for _ in range(5)]
    assert [message.id for message in back] == ids, (
        "in the order of the dead letters, which need not be that of the queue"
    )
    assert sorted(message.payload for message in back) == list(range(5))
    assert {(message.headers["h"], message.headers["priority"]) for message in back} == {("v", "High")}


def test_messages_move_byte_by_byte_as_they_are_stored(running, client, source, target):
    count = all_sorts(running, client, source)
    assert client.move_messages(source, target).queues == {target: count}
    assert stored(running, target) == stored(running, source)
    info = client.queue_info(source)
    assert (info.messages, info.in_flight) == (0, 0)


def test_moving_into_a_full_queue_that_redirects_makes_its_dead_letter_queue(client, source):
    target = next(names)
    client.create_queue(target, max_messages=2, overflow=OverflowStrategy.REDIRECT_TO_DLQ, dead_letter=True)
    for n in range(5):
        client.publish(source, {"n": n})
    assert client.move_messages(source, target).queues == {target: 5}
    assert client.queue_info(target).messages == 2
    with client.consume(f"{target}.dlq", timeout_s=5) as letters:
        assert [next(letters).payload["n"] for _ in range(3)] == [2, 3, 4]


def with_letters(client, source, count):
    """As many dead letters of it, behind three messages that say nothing of where they came from."""
    client.create_queue(source, max_messages=1, overflow=OverflowStrategy.REDIRECT_TO_DLQ, dead_letter=True)
    for n in range(3):
        client.publish(f"{source}.dlq", {"stranger": n})
    client.publish_many(source, range(count + 1))
    client.alter_queue(source, max_messages=0)


def test_letters_that_say_no_origin_stay_however_long_the_others_take(client, source, monkeypatch):
    monkeypatch.setattr(_moving, "SUBSCRIBED_S", 0.0)  # it subscribes again after each part
    with_letters(client, source, 2 * PREFETCH_MAX)
    moved = client.move_messages(f"{source}.dlq")
    assert (moved.queues, moved.left) == ({source: 2 * PREFETCH_MAX}, 3)
    assert client.queue_info(source).messages == 2 * PREFETCH_MAX + 1
    assert client.queue_info(f"{source}.dlq").messages == 3
    with client.consume(f"{source}.dlq") as letters:
        assert [next(letters).payload["stranger"] for _ in range(3)] == [0, 1, 2]


def test_letters_that_say_no_origin_and_hide_the_others_are_told(client, source):
    client.publish_many(f"{source}.dlq", range(PREFETCH_MAX))
    with_letters(client, source, 1)
    with pytest.raises(InvalidRequest, match=f"{PREFETCH_MAX} messages that do not say where they came from"):
        client.move_messages(f"{source}.dlq")
    assert client.queue_info(source).messages == 1


def test_what_the_command_line_prints_it_takes_and_makes_the_same_messages_of(running, client, run, source, target):
    count = all_sorts(running, client, source)
    printed = run("consume", source, "--json", "--drain")
    assert printed.exit_code == 0, printed.stderr
    lines = [json.loads(line) for line in printed.stdout.splitlines()]
    assert [line["payload"] for line in lines[:4]] == [{"n": 1, "ü": None}, "AP8=", "text", 2]
    assert (lines[0]["id"], lines[0]["headers"]["priority"], lines[0]["headers"]["k"]) == ("mine", "Critical", "v")
    taken = run("publish", target, "--json", input=printed.stdout)
    assert json.loads(taken.stdout) == {"queue": target, "published": count, "failed": 0}
    assert stored(running, target) == stored(running, source)


def test_a_line_that_was_changed_is_published_as_it_says(client, run, target):
    line = {"id": "mine", "headers": {"k": "v", "priority": "High"}, "attempts": 3, "payload": {"new": 1}}
    assert run("publish", target, "--json", input=json.dumps(line)).exit_code == 0
    message = next(client.consume(target))
    assert (message.id, message.payload, message.headers) == ("mine", {"new": 1}, {"k": "v", "priority": "High"})


@pytest.mark.parametrize("line", ["1", "[1]", "{}", "no JSON", '{"stored": "%"}', '{"payload": NaN}'])
def test_a_line_that_is_no_message_is_refused_by_its_number(run, target, line):
    refused = run("publish", target, "--json", input='{"payload": 1}\n' + line)
    assert refused.exit_code == 1
    assert "line 2: needed an object" in refused.stderr


@pytest.mark.parametrize(
    ("members", "said"),
    [({"id": 5}, "id: needed a text"), ({"id": ""}, "id: needed 1 to"), ({"headers": {"a": 1}}, "headers are texts")],
)
def test_a_line_whose_id_or_header_cannot_be_is_refused_by_its_number(run, target, members, said):
    refused = run("publish", target, "--json", input='{"payload": 1}\n' + json.dumps({"payload": 2} | members))
    assert (refused.exit_code, refused.stderr.startswith(f"vibemq: line 2: {said}")) == (1, True), refused.stderr


def test_ids_that_look_like_numbers_of_another_client_are_all_published(client, target):
    for number in (5, 3, 4, 3):
        client.publish(target, number, id=f"fedcba9876543210{number:016x}")
    assert client.queue_info(target).messages == 4


def test_a_count_moves_the_oldest_and_a_dry_run_nothing(client, source, target):
    client.publish_many(source, range(10))
    assert client.move_messages(source, target, dry_run=True).queues == {target: 10}
    assert client.queue_info(source).messages == 10
    assert client.move_messages(source, target, count=4).queues == {target: 4}
    assert client.queue_info(source).messages == 6
    assert client.queue_info(target).messages == 4
    with client.consume(target) as consumer:
        assert [next(consumer).payload for _ in range(4)] == list(range(4))


def test_a_dry_run_looks_at_as_many_as_the_broker_hands_out_and_a_move_at_all(client, source, target):
    count = 3 * PREFETCH_MAX
    client.publish_many(source, range(count))
    assert client.move_messages(source, target, dry_run=True).queues == {target: PREFETCH_MAX}
    assert client.move_messages(source, target).queues == {target: count}
    assert client.queue_info(target).messages == count


def test_what_does_not_say_where_it_came_from_stays(client, source):
    client.publish(source, 1)
    moved = client.move_messages(source)
    assert (moved.queues, moved.left) == ({}, 1)
    assert client.queue_info(source).messages == 1


def test_no_queue_is_made_by_moving(client, source):
    client.publish(source, 1)
    with pytest.raises(QueueNotFound, match="typo, to which messages"):
        client.move_messages(source, "typo")
    with pytest.raises(QueueNotFound):
        client.move_messages("typo", source)
    with pytest.raises(ConfigError, match="needed another queue"):
        client.move_messages(source, source)
    assert "typo" not in client.list_queues()
    assert client.queue_info(source).messages == 1


def test_what_the_target_refuses_stays(client, source):
    full = next(names)
    client.create_queue(full, max_messages=3, overflow="drop_newest")
    client.publish_many(source, range(5))
    with pytest.raises(QueueFull):
        client.move_messages(source, full)
    assert (client.queue_info(full).messages, client.queue_info(source).messages) == (3, 2)


#: Further losses of one message wait for its back-off, which grows to minutes.
LOSSES = 4


def test_a_lost_connection_in_between_loses_nothing_and_doubles_nothing(running, client, source, target):
    client.publish_many(source, range(1_000))

    losses = iter(range(LOSSES))

    def lose(done, _):
        if done > 200 and next(losses, None) is not None:
            client._engine._link.transport.abort()

    moved = client.move_messages(source, target, progress=lose, timeout_s=60)
    assert next(losses, None) is None
    assert (moved.queues, moved.left) == ({target: 1_000}, 0)
    info = client.queue_info(source)
    assert (info.messages, info.in_flight) == (0, 0)
    assert sorted(stored(running, target)) == sorted(stored(running, source))


async def moved_with_losses(url, source, target, losing, **options):
    """Move, and lose the connection where ``losing`` says, LOSSES times, before the last acknowledgements are sent."""
    losses = iter(range(LOSSES))
    async with aconnect(url, reconnect_initial_delay_s=0.01) as client:

        def lose(done, of):
            if losing(done, of) and next(losses, None) is not None:
                client._engine._link.transport.abort()

        return await client.move_messages(source, target, progress=lose, timeout_s=60, **options)


def test_messages_with_lost_last_acknowledgements_are_not_in_both_queues(running, client, url, source, target):
    client.publish_many(source, range(50))
    moved = asyncio.run(moved_with_losses(url, source, target, lambda done, of: done == of))
    assert moved.queues == {target: 50}
    info = client.queue_info(source)
    assert (info.messages, info.in_flight) == (0, 0)
    assert sorted(stored(running, target)) == sorted(stored(running, source))


def test_a_count_is_moved_and_no_more_when_the_last_acknowledgements_are_lost(running, client, url, source, target):
    client.publish_many(source, range(300))
    lost = []
    losing = lambda done, of: done == of and not lost and not lost.append(done)  # noqa: E731
    moved = asyncio.run(moved_with_losses(url, source, target, losing, count=100))
    assert moved.queues == {target: 100}
    assert len(stored(running, target)) == 100
    info = client.queue_info(source)
    assert info.messages + info.in_flight == 200


def test_every_tenth_part_may_lose_the_connection(running, client, url, source, target):
    client.publish_many(source, range(5_000))
    lost = set()

    def losing(done, _):
        part = done // 500
        is_new = done > 100 and part not in lost
        lost.add(part)
        return is_new

    moved = asyncio.run(moved_with_losses(url, source, target, losing))
    assert len(lost) > 5
    assert (moved.queues, moved.left) == ({target: 5_000}, 0)
    assert client.queue_info(source).messages == 0
    assert sorted(stored(running, target)) == sorted(stored(running, source))


def test_the_command_line_moves_and_replays(client, run, source, target):
    fill_letters(client, source, 3)
    dry = run("queues", "replay", f"{source}.dlq", "--dry-run")
    assert (dry.exit_code, dry.stdout) == (0, f"would move 3 messages to queue {source}\n")
    replayed = run("queues", "replay", f"{source}.dlq", "--count", "2", "--json")
    assert json.loads(replayed.stdout) == {
        "queue": f"{source}.dlq", "moved": {source: 2}, "left": 0, "dry_run": False
    }  # fmt: skip
    assert run("queues", "move", f"{source}.dlq", target).stdout == f"moved 1 message to queue {target}\n"
    assert run("queues", "move", f"{source}.dlq", target).stdout == f"nothing to move in queue {source}.dlq\n"
    missing = run("queues", "move", source, "typo")
    assert missing.exit_code == 1
    assert "queue typo, to which messages" in missing.stderr
