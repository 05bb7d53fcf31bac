# SPDX-License-Identifier: Apache-2.0
"""The native client and a real broker of ours, killed workers included."""

import asyncio
import os
import signal
import threading

import pytest
from click.testing import CliRunner
from running import broker

from vibemq.cli.commands import main
from vibemq.client import State, aconnect, connect
from vibemq.errors import AuthenticationFailed, NotAuthorized, QueueFull, QueueNotFound

QUICK = {"reconnect_initial_delay_s": 0.05, "reconnect_max_delay_s": 0.2}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with broker(tmp_path_factory.mktemp("native-client") / "data", workers=2) as started:
        yield started


@pytest.fixture
def url(running):
    return f"vibemq://127.0.0.1:{running.native_port}"


@pytest.fixture
def client(url):
    with connect(url) as connected:
        yield connected


def test_what_is_published_is_consumed(client):
    client.create_queue("all", max_messages=100_000)
    assert client.publish_many("all", ({"n": n} for n in range(20_000)), headers={"h": "v"}).published == 20_000
    got = []
    with client.consume("all", prefetch=1000) as consumer:
        for message in consumer:
            got.append(message.payload["n"])
            message.ack()
            if len(got) == 20_000:
                break
    assert got == list(range(20_000))
    info = client.queue_info("all")
    assert (info.messages, info.in_flight) == (0, 0)


@pytest.mark.parametrize("name", ["gzip", "brotli", "zstd"])
def test_compressed_messages_come_out_as_they_went_in(url, name):
    with connect(url, compression=(name,)) as client:
        payload = {"text": "ünï " * 2000}
        client.publish(f"packed-{name}", payload)
        assert next(client.consume(f"packed-{name}")).payload == payload


def test_bytes_headers_ids_and_priorities_survive(client):
    client.publish("odd", b"\x00\xff", headers={"ключ": "значение"}, id="an id", priority="critical")
    message = next(client.consume("odd"))
    assert (message.id, message.payload, message.attempts) == ("an id", b"\x00\xff", 1)
    assert message.headers["ключ"] == "значение"
    assert message.headers["priority"] == "Critical"
    message.ack()


def test_a_message_that_is_given_back_comes_again_and_ends_in_the_dead_letters(client):
    client.create_queue("failing", attempts_max=2, dead_letter=True, backoff_ms=0)
    client.publish("failing", "poison")
    with client.consume("failing") as consumer:
        assert next(consumer).attempts == 1
        consumer._last.nack()
        second = next(consumer)
        assert second.attempts == 2
        second.nack()
        dead = next(client.consume(client.queue_info("failing").dead_letter_queue, create=True))
    assert dead.payload == "poison"
    assert dead.headers["x-original-queue"] == "failing"


def test_a_full_queue_refuses_with_its_own_error(client):
    client.create_queue("small", max_messages=2, overflow="drop_newest")
    summary = client.publish_many("small", range(5))
    assert summary.published == 2
    assert [refused.index for refused in summary.failed] == [2, 3, 4]
    assert {type(refused.error) for refused in summary.failed} == {QueueFull}


def test_queues_are_described_purged_and_deleted(client):
    client.declare_queue("life", mode="priority_based", message_ttl_ms=60_000, on_conflict="fail")
    client.declare_queue("life", mode="priority_based", message_ttl_ms=60_000, on_conflict="fail")
    client.publish_many("life", range(10))
    assert client.queue_info("life").messages == 10
    client.purge_queue("life")
    assert client.queue_info("life").messages == 0
    client.delete_queue("life")
    assert "life" not in client.list_queues()
    with pytest.raises(QueueNotFound):
        client.queue_info("life")


def test_two_clients_share_the_work(url, client):
    seen = {"a": [], "b": []}
    news = threading.Condition()

    def handler(name):
        def handle(message):
            with news:
                seen[name].append(message.payload)
                news.notify_all()

        return handle

    with connect(url) as other:
        client.subscribe("shared", handler("a"), prefetch=1, create=True)
        other.subscribe("shared", handler("b"), prefetch=1)
        client.publish_many("shared", range(200))
        with news:
            assert news.wait_for(lambda: len(seen["a"]) + len(seen["b"]) >= 200, 20)
        assert sorted(seen["a"] + seen["b"]) == list(range(200))
        assert seen["a"] and seen["b"]


def test_many_tasks_publish_and_consume_with_asyncio(url):
    async def work():
        async with aconnect(url) as client:
            ids = await asyncio.gather(*(client.publish("tasks", n) for n in range(300)))
            assert len(set(ids)) == 300
            got = []
            async for message in client.consume("tasks", auto_ack=True):
                got.append(message.payload)
                if len(got) == 300:
                    break
            assert sorted(got) == list(range(300))

    asyncio.run(work())


def test_users_are_managed_over_the_wire(tmp_path):
    secret, data = "a long password", tmp_path / "data"
    added = CliRunner().invoke(
        main, ["users", "add", "vibemq", "--password-stdin", "--data-dir", str(data)], input=f"{secret}\n"
    )
    assert added.exit_code == 0, added.output
    with broker(data, workers=1) as running:
        place = f"127.0.0.1:{running.native_port}"
        with pytest.raises(AuthenticationFailed):
            connect(f"vibemq://{place}")
        with connect(f"vibemq://{place}", user="vibemq", password=secret) as admin:
            admin.create_user("ada", "another password")
            admin.grant("ada", "ada.*", "Publish", "GetQueueInfo")
            assert [permission.pattern for permission in admin.permissions("ada")] == ["ada.*"]
            assert [(user.name, user.is_superuser) for user in admin.list_users()] == [("ada", False), ("vibemq", True)]
            with connect(f"vibemq://{place}", user="ada", password="another password") as ada:
                ada.publish("ada.log", 1)
                with pytest.raises(NotAuthorized):
                    ada.publish("other", 1)
                with pytest.raises(NotAuthorized):
                    ada.create_user("eve", "yet another one")
            admin.revoke("ada", "ada.*")
            admin.delete_user("ada")
            assert [user.name for user in admin.list_users()] == ["vibemq"]


def test_killed_workers_cost_a_publisher_and_a_consumer_nothing_but_time(tmp_path):
    count, kills = 4_000, 3
    with broker(tmp_path / "data", workers=2) as running:
        url = f"vibemq://127.0.0.1:{running.native_port}"
        again = threading.Semaphore(0)

        def told(state, error):
            if state is State.RECONNECTING:
                again.release()

        def numbers():
            for number in range(count):
                if number % (count // (kills + 1)) == 0 and number:
                    for pid in running.worker_pids():
                        os.kill(pid, signal.SIGKILL)
                    assert again.acquire(timeout=20)
                yield number

        with connect(url, on_connection=told, **QUICK) as client:
            client.create_queue("kill", max_messages=count)
            summary = client.publish_many("kill", numbers(), window=200)
            assert (summary.published, summary.failed) == (count, [])
            got = set()
            for message in client.consume("kill"):
                got.add(message.payload)
                message.ack()
                if len(got) == count:
                    break
            assert got == set(range(count))
