# SPDX-License-Identifier: Apache-2.0
"""Limits of users and virtual hosts: at every door, in every worker, by real clients."""

import http.client
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fixtures import shared_broker
from http_caller import Http, Reply
from peers.streams import DEADLINE_S
from running import ENVIRONMENT, Running, broker, exit_code, forked, wait_until

from vibemq.access.users import GUEST
from vibemq.admin.bodies import BODY_BYTES_MAX
from vibemq.broker.limits import ROWS
from vibemq.client import Client, connect
from vibemq.client.micromsg2 import Micromsg2Client
from vibemq.client.streams import StreamsConnection
from vibemq.errors import LimitExceeded, UserError, UserNotFound, VibeMQError
from vibemq.storage.limits import LIMITED_MAX, USER, VHOST
from vibemq.storage.metadata import Metadata
from vibemq.storage.shm import Usage

PASSWORD = "correct horse battery"
ROOT = ("--set", "native.superuser_name=root", "--set", f"native.superuser_password={PASSWORD}")
SECOND_US = 1_000_000
FORK = multiprocessing.get_context("fork")

served = shared_broker("limited", *ROOT)


@pytest.fixture
def http_of(served: Running) -> Http:
    return Http(served, "root", PASSWORD)


@pytest.fixture
def user(request: pytest.FixtureRequest, http_of: Http, name: str) -> Iterator[str]:
    """Who may do everything but have no limits yet."""
    if getattr(request, "param", "") == GUEST:
        yield GUEST
        assert http_of.status("DELETE", "user-limits", GUEST) == 204
        return
    make_user(http_of, name)
    yield name
    assert http_of.status("DELETE", "users", name) == 204


#: A user as any, and the built-in one.
either = pytest.mark.parametrize("user", ["a user", GUEST], indirect=True)


def make_user(http_of: Http, name: str) -> None:
    body = {"password": PASSWORD, "tags": "administrator"}
    assert http_of.status("PUT", "users", name, body=body) == 201
    every = {"configure": ".*", "write": ".*", "read": ".*"}
    assert http_of.status("PUT", "permissions", "/", name, body=every) == 201
    with connect(f"vibemq://root:{quote(PASSWORD)}@127.0.0.1:{http_of.running.native_port}") as root:
        root.grant(name, "*", "Publish", "Subscribe", "CreateQueue", "DeleteQueue", "GetQueueInfo")


def limit(http_of: Http, kind: str, name: str, **limits: int) -> None:
    body = {limit.replace("_", "-"): value for limit, value in limits.items()}
    assert http_of.status("PUT", f"{kind}-limits", name, body=body) == 204


def password_of(user: str) -> str:
    return GUEST if user == GUEST else PASSWORD


# ---- each door's client, who is in once it is made ----


def native(running: Running, user: str) -> Client:
    return connect(f"vibemq://{user}:{quote(password_of(user))}@127.0.0.1:{running.native_port}", reconnect=False)


def streams(running: Running, user: str) -> StreamsConnection:
    how = {"user": user, "password": password_of(user), "timeout_s": DEADLINE_S}
    return StreamsConnection.connect("127.0.0.1", running.port, **how)  # type: ignore[arg-type]


def micromsg2(running: Running, user: str) -> Micromsg2Client:
    return Micromsg2Client("127.0.0.1", running.ports["micromsg2"], user=user, password=password_of(user))


def negotiated(running: Running, user: str) -> tuple[int, str]:
    """A hub connection holds its place from when it is negotiated on."""
    asked = http.client.HTTPConnection("127.0.0.1", running.ports["signalr"], timeout=DEADLINE_S)
    login = b64encode(f"{user}:{password_of(user)}".encode()).decode()
    asked.request("POST", "/hub/negotiate?negotiateVersion=1", headers={"Authorization": f"Basic {login}"})
    answer = asked.getresponse()
    text = answer.read().decode()
    asked.close()
    return answer.status, text


# ---- connections ----


@either
def test_a_user_has_no_more_connections_than_its_limit_by_whatever_doors(
    served: Running, http_of: Http, user: str
) -> None:
    limit(http_of, "user", user, max_connections=3)
    with ExitStack() as opened:
        first = opened.enter_context(native(served, user))
        opened.enter_context(streams(served, user))
        opened.enter_context(micromsg2(served, user))
        for door in (native, streams, micromsg2):
            with pytest.raises(VibeMQError):
                door(served, user)
        status, text = negotiated(served, user)
        assert (status, "has its 3 connections (max-connections)" in text) == (429, True)
        with pytest.raises(VibeMQError, match=r"has its 3 connections"):
            native(served, user)
        refused = re.findall(
            r"^vibemq_limits_refused_total{.*} (\S+)$", http_of.call("GET", "metrics").text, re.MULTILINE
        )
        assert sum(map(float, refused)) >= 5
        with native(served, "root"):
            pass  # another user's
        first.close()
        wait_until(lambda: lets_in(served, user), "the place of who has left is free")
    limit(http_of, "user", user, max_connections=-1)
    with native(served, user):
        assert negotiated(served, user)[0] == 200


def lets_in(running: Running, user: str) -> bool:
    try:
        native(running, user).close()
    except VibeMQError:
        return False
    return True


@either
def test_a_limit_counts_who_was_there_before_it_and_sends_nobody_away(
    served: Running, http_of: Http, user: str, name: str
) -> None:
    with ExitStack() as opened:
        clients = [opened.enter_context(native(served, user)) for _ in range(6)]  # some at each worker
        limit(http_of, "user", user, max_connections=6)
        wait_until(lambda: not lets_in(served, user), "all six are counted")
        for client in clients:
            client.publish(f"{name}-q", 1)
        clients[0].delete_queue(f"{name}-q")


def test_a_killed_worker_takes_its_count_with_it(tmp_path: Path) -> None:
    with broker(tmp_path / "data", *ROOT) as running:
        http_of = Http(running, "root", PASSWORD)
        make_user(http_of, "ada")
        limit(http_of, "user", "ada", max_connections=4)
        limit(http_of, "vhost", "/", max_connections=1000)
        with ExitStack() as opened:
            for _ in range(4):
                opened.enter_context(native(running, "ada"))
            assert not lets_in(running, "ada")
            for pid in running.worker_pids():
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: lets_in(running, "ada"), "the dead hold no places")


def test_a_virtual_host_has_no_more_connections_than_its_limit(served: Running, http_of: Http, user: str) -> None:
    assert http_of.status("PUT", "vhosts", user) == 201
    every = {"configure": ".*", "write": ".*", "read": ".*"}
    assert http_of.status("PUT", "permissions", user, user, body=every) == 201
    limit(http_of, "vhost", user, max_connections=1)

    def inside() -> StreamsConnection:
        return StreamsConnection.connect("127.0.0.1", served.port, user=user, password=PASSWORD, virtual_host=user)

    with inside():
        with pytest.raises(VibeMQError, match="VIRTUAL_HOST_ACCESS_FAILURE"):
            inside()
        streams(served, user).close()  # into another
    assert http_of.status("DELETE", "vhosts", user) == 204


# ---- streams and queues ----


@either
def test_a_user_makes_no_more_queues_and_streams_than_its_limits(
    served: Running, http_of: Http, user: str, name: str
) -> None:
    limit(http_of, "user", user, max_queues=3, max_streams=1)
    with native(served, user) as client, streams(served, user) as connection, micromsg2(served, user) as peer:
        client.create_queue(f"{name}-1")
        connection.create(f"{name}-2")
        with pytest.raises(VibeMQError, match="PRECONDITION_FAILED"):
            connection.create(f"{name}-3")  # one plain stream
        assert peer.command("create", destination=f"queue/{name}-3") == {"created": "true"}
        with pytest.raises(VibeMQError, match="queues and streams"):
            client.create_queue(f"{name}-4")
        with pytest.raises(VibeMQError):
            client.publish(f"{name}-4", 1)  # which would make it
        mine = Http(served, user, password_of(user))
        stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
        reply = mine.call("PUT", "queues", "/", f"{name}-4", body=stream)
        assert (reply.status, "max-queues" in reply.text or "queues and streams" in reply.text) == (400, True)
        assert http_of.status("PUT", "queues", "/", f"{name}-5", body=stream) == 201  # somebody else
        client.delete_queue(f"{name}-1")
        client.create_queue(f"{name}-4")
        for each in ("2", "3", "4", "5"):
            assert http_of.status("DELETE", "queues", "/", f"{name}-{each}") == 204


def test_a_virtual_host_has_no_more_queues_than_its_limit(http_of: Http, name: str) -> None:
    assert http_of.status("PUT", "vhosts", name) == 201
    limit(http_of, "vhost", name, max_queues=2)
    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    assert [http_of.status("PUT", "queues", name, each, body=stream) for each in "abc"] == [201, 201, 400]
    partitions = {"partitions": 2, "arguments": {}}
    assert http_of.status("PUT", "stream", "super-streams", name, "s", body=partitions) == 400
    limit(http_of, "vhost", name, max_queues=4)
    assert http_of.status("PUT", "stream", "super-streams", name, "s", body=partitions) == 201
    assert http_of.status("DELETE", "vhosts", name) == 204


def refused_by(http_of: Http, process: str) -> float:
    found = re.findall(
        rf'^vibemq_limits_refused_total{{process="{process}.*"}} (\S+)$', http_of.call("GET", "metrics").text, re.M
    )
    return sum(map(float, found))


def test_what_a_limit_refuses_at_the_management_api_is_counted_there(http_of: Http, name: str) -> None:
    before = refused_by(http_of, "admin")
    assert http_of.status("PUT", "vhosts", name) == 201
    limit(http_of, "vhost", name, max_queues=0)
    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    for _ in range(3):
        assert http_of.status("PUT", "queues", name, "a", body=stream) == 400
    assert refused_by(http_of, "admin") == before + 3
    assert http_of.status("PUT", "vhosts", name, body={"description": "x" * BODY_BYTES_MAX}) == 413
    assert refused_by(http_of, "admin") == before + 4
    assert http_of.status("DELETE", "vhosts", name) == 204


# ---- messages a second ----


@either
@pytest.mark.parametrize("door", ["native", "streams", "micromsg2"])
def test_who_publishes_more_than_its_rate_is_read_later_and_loses_nothing(
    served: Running, http_of: Http, user: str, name: str, door: str
) -> None:
    """Of two connections, which have one bucket; that it took its time at least is all that a clock can show here."""
    limit(http_of, "user", user, publish_rate=400)
    with ExitStack() as opened:
        publishers = [PUBLISHERS[door](opened, served, user, name) for _ in range(2)]
        begun = time.monotonic()
        for publish in publishers:
            publish(300)
        # Which the bucket holds at first, and the last frame of each, is not waited for.
        assert time.monotonic() - begun >= (600 - 400 - 2) / 400
    assert http_of.get("queues", "/", name)["messages"] == 600
    assert http_of.status("DELETE", "queues", "/", name) == 204


def native_publisher(opened: ExitStack, running: Running, user: str, name: str) -> Any:
    client = opened.enter_context(native(running, user))
    return lambda count: client.publish_many(name, range(count))


def streams_publisher(opened: ExitStack, running: Running, user: str, name: str) -> Any:
    connection = opened.enter_context(streams(running, user))
    connection.create(name, exist_ok=True)

    def publish(count: int) -> None:
        with connection.publisher(name) as publisher:  # whose end waits for all confirms
            for _ in range(count):
                publisher.publish([b"x"])

    return publish


def micromsg2_publisher(opened: ExitStack, running: Running, user: str, name: str) -> Any:
    peer = opened.enter_context(micromsg2(running, user))

    def publish(count: int) -> None:
        for _ in range(count):
            peer.send(f"queue/{name}", b"x")
        peer.flush()

    return publish


PUBLISHERS = {"native": native_publisher, "streams": streams_publisher, "micromsg2": micromsg2_publisher}


@either
@pytest.mark.parametrize("kind", ["user", "vhost"])
def test_what_is_published_over_http_counts_and_is_refused_beyond_the_rate(
    served: Running, http_of: Http, user: str, name: str, kind: str
) -> None:
    body = {"properties": {}, "routing_key": name, "payload": "x", "payload_encoding": "string"}
    http, count = Http(served, user, password_of(user)), 0

    def post_one() -> Reply:
        return http.call("POST", "stream", "/", name, "messages", body={"body": "x"})

    with streams(served, user) as connection:
        connection.create(name)
        with connection.publisher(name) as publisher:
            limit(http_of, kind, user if kind == "user" else "/", publish_rate=1)
            try:
                while (reply := http.call("POST", "exchanges", "/", "amq.default", "publish", body=body)).status == 200:
                    count += 1
                    assert count < 100, "nothing is refused"
                assert reply.status == 429 and int(reply.headers["Retry-After"]) == 1
                publisher.publish([b"x"] * 1000)
                publisher.flush()
                assert int(post_one().headers["Retry-After"]) > 900, "what came by another door counts"
                assert post_one().status == 429 and "publish-rate" in post_one().json["reason"]
            finally:
                limit(http_of, kind, user if kind == "user" else "/", publish_rate=-1)
        assert post_one().status == 201
    assert http_of.get("queues", "/", name)["messages"] == count + 1001
    assert http_of.status("DELETE", "queues", "/", name) == 204


@either
def test_a_limit_that_is_taken_away_lets_go_at_once(served: Running, http_of: Http, user: str, name: str) -> None:
    limit(http_of, "user", user, publish_rate=1)
    with streams(served, user) as connection:
        connection.create(name)
        with connection.publisher(name) as publisher:
            publisher.publish([b"x"] * 5000)  # more than an hour's worth
            limit(http_of, "user", user, publish_rate=-1)
            publisher.publish([b"x"] * 10)
        assert http_of.get("queues", "/", name)["messages"] == 5010
        connection.delete(name)


def test_all_spend_from_one_bucket_of_a_second() -> None:
    usage = Usage(4, 3)
    at = 10**9
    assert usage.spent(1, 7, SECOND_US, at) == 0  # what a second brings, at once
    assert usage.spent(1, 7, SECOND_US // 2, at) == SECOND_US // 2
    assert usage.spent(1, 7, 0, at + SECOND_US // 4) == SECOND_US // 4
    assert usage.spent(1, 7, 0, at + SECOND_US // 2) == 0
    assert usage.spent(1, 7, SECOND_US // 100, at + SECOND_US // 2) == SECOND_US // 100
    assert usage.spent(2, 7, SECOND_US, at) == 0  # another's
    assert usage.spent(1, 7, 10_000 * SECOND_US, at + SECOND_US) > 9000 * SECOND_US
    assert usage.spent(1, 8, SECOND_US, at + SECOND_US) == 0  # a new rate begins with a full bucket
    assert usage.spent(1, 8, SECOND_US, at + 100 * SECOND_US) == 0  # and never has more than that
    assert usage.spent(1, 8, SECOND_US, at + 100 * SECOND_US) == SECOND_US
    assert usage.spent(1, 8, 2**64 - 1, at) > 2**47  # more than it can count is as much as it can


def test_who_does_not_know_of_a_new_rate_yet_spends_from_its_bucket() -> None:
    for old, new in ((7, 8), (2**16 - 1, 0), (2**16 - 1, 3)):
        usage = Usage(1, 2)
        waits = [usage.spent(0, change, SECOND_US, 10**9) for change in (old, new, old, new, old)]
        assert waits == [0, 0, SECOND_US, 2 * SECOND_US, 3 * SECOND_US]


def test_a_new_rate_fills_the_bucket_once_though_workers_learn_of_it_at_the_same_time() -> None:
    workers, rows, cost = 2, 500, 2 * SECOND_US
    usage, come = Usage(rows, workers), Usage(rows, workers)

    def spend(worker: int) -> None:
        for row in range(rows):
            while come.count(row, 1, worker, 1) < workers:
                os.sched_yield()
            usage.spent(row, 1, cost, 10**9)

    children = [FORK.Process(target=spend, args=(worker,), daemon=True) for worker in range(workers)]
    for child in children:
        child.start()
    while running := [child for child in children if child.is_alive()]:
        wait([child.sentinel for child in running])
        if any(child.exitcode for child in children):  # the others would wait for it
            for child in running:
                child.kill()
    assert [child.exitcode for child in children] == [0] * workers
    assert {usage.spent(row, 1, 0, 10**9) for row in range(rows)} == {workers * cost - SECOND_US}


def test_connections_are_added_up_by_owner() -> None:
    usage = Usage(4, 3)
    assert [usage.count(2, 5, worker, worker + 1) for worker in range(3)] == [1, 3, 6]
    assert usage.count(2, 5, 1, 0) == 4
    assert usage.count(2, 6, 0, 1) == 1  # another owner of the row: the old one's do not count
    assert usage.count(3, 5, 0, 2) == 2
    for row, worker in ((4, 0), (0, 3)):
        with pytest.raises(ValueError):
            usage.count(row, 1, worker, 1)


def test_processes_that_count_at_once_are_never_more_than_the_limit() -> None:
    """Each comes and goes many times; whoever is let in while the sum is too large would be seen by somebody."""
    workers, most, rounds = 4, 2, 3000
    usage, holders = Usage(1, workers), Usage(1, workers)

    def come_and_go(worker: int) -> None:
        wrong = 0
        for _ in range(rounds):
            if usage.count(0, 1, worker, 1) <= most:
                wrong += holders.count(0, 1, worker, 1) > most
                holders.count(0, 1, worker, 0)
            usage.count(0, 1, worker, 0)
        assert not wrong

    children = [forked(partial(come_and_go, worker)) for worker in range(workers)]
    assert [exit_code(pid) for pid in children] == [0] * workers


# ---- how they are set ----


@either
def test_limits_by_the_paths_of_rabbitmq(http_of: Http, user: str) -> None:
    assert http_of.status("PUT", "user-limits", user, "max-connections", body={"value": 5}) == 204
    assert http_of.status("PUT", "user-limits", user, "max-queues", body={"value": 0}) == 204
    held = {"max-connections": 5, "max-queues": 0}
    assert http_of.get("user-limits", user) == [{"user": user, "value": held}]
    assert {"user": user, "value": held} in http_of.get("user-limits")
    assert http_of.get("users", user)["limits"] == held
    assert http_of.status("DELETE", "user-limits", user, "max-queues") == 204
    assert http_of.get("user-limits", user) == [{"user": user, "value": {"max-connections": 5}}]
    assert http_of.status("DELETE", "user-limits", user) == 204
    assert http_of.get("user-limits", user) == []
    assert http_of.status("PUT", "vhost-limits", "/", "max-queues", body={"value": 50_000}) == 204
    assert http_of.get("vhost-limits", "/") == [{"vhost": "/", "value": {"max-queues": 50_000}}]
    assert http_of.status("DELETE", "vhost-limits", "/", "max-queues") == 204
    for limit_name, value in (("max-channels", 1), ("max-queues", "5"), ("publish-rate", 0), ("max-queues", True),
                              ("max-queues", None), ("max-connections", 10**10)):  # fmt: skip
        assert http_of.status("PUT", "user-limits", user, limit_name, body={"value": value}) == 400
    assert http_of.status("PUT", "user-limits", "nobody-there", "max-queues", body={"value": 1}) == 404
    assert http_of.status("GET", "vhost-limits", "nowhere") == 404


@either
def test_limits_are_part_of_definitions_and_rabbitmqs_are_understood(http_of: Http, user: str) -> None:
    limit(http_of, "user", user, max_connections=7)
    limit(http_of, "vhost", "/", max_queues=40_000)
    held = http_of.get("definitions")
    assert {"max-connections": 7} in [each["limits"] for each in held["users"] if each["name"] == user]
    assert [each["limits"] for each in held["vhosts"] if each["name"] == "/"] == [{"max-queues": 40_000}]
    for kind, name in (("user", user), ("vhost", "/")):
        assert http_of.status("DELETE", f"{kind}-limits", name) == 204
    assert http_of.status("POST", "definitions", body=held) == 204
    assert http_of.get("user-limits", user)[0]["value"] == {"max-connections": 7}
    assert http_of.get("vhost-limits", "/")[0]["value"] == {"max-queues": 40_000}
    theirs = {
        "users": [{"name": user, "tags": "", "limits": {"max-channels": 5, "max-connections": 8}}],
        "parameters": [
            {"component": "vhost-limits", "name": "limits", "vhost": "/", "value": {"max-queues": 30_000}},
            {"component": "federation-upstream", "name": "x", "vhost": "/", "value": {}},
        ],
    }
    assert http_of.status("POST", "definitions", body=theirs) == 204
    assert http_of.get("user-limits", user)[0]["value"] == {"max-connections": 8}
    assert http_of.get("vhost-limits", "/")[0]["value"] == {"max-queues": 30_000}
    assert http_of.status("DELETE", "vhost-limits", "/") == 204


def test_limits_go_with_their_owner_and_slots_are_used_again(tmp_path: Path) -> None:
    metadata = Metadata(str(tmp_path / "meta.db"))
    for name in ("ada", "bob"):
        metadata.add_user(name, "hash")
        metadata.set_limits(USER, name, {"max-queues": 1})
    metadata.add_vhost("v")
    metadata.set_limits(VHOST, "v", {"publish-rate": 5, "max-streams": None})
    assert [(each.kind, each.name, each.slot) for each in metadata.limited()] == [
        (USER, "ada", 0),
        (USER, "bob", 1),
        (VHOST, "v", 0),
    ]
    tag = metadata.limited(USER)[0].tag
    metadata.create_stream("v", "s", {}, "os", 10, user="ada")
    with pytest.raises(LimitExceeded, match="user 'ada'"):
        metadata.create_stream("v", "t", {}, "os", 10, user="ada")
    metadata.delete_user("ada")
    metadata.add_user("ada", "hash")
    assert metadata.limits_of(USER, "ada") == {}
    metadata.set_limits(USER, "ada", {"max-queues": 1})
    found = metadata.limited(USER)[0]
    assert found.slot == 0 and found.tag not in (0, tag)
    metadata.create_stream("v", "t", {}, "os", 10, user="ada")  # another ada, who has made none
    with pytest.raises(UserNotFound):
        metadata.set_limits(USER, "carol", {"max-queues": 1})
    with pytest.raises(UserError, match="there is no limit"):
        metadata.set_limits(USER, "ada", {"max-channels": 1})
    assert LIMITED_MAX >= 4096
    metadata.close()


@pytest.mark.parametrize("lost", [False, True], ids=["restart", "another machine"])
def test_limits_of_guest_are_kept_and_go_when_it_is_removed(tmp_path: Path, lost: bool) -> None:
    if lost:
        pytest.importorskip("obstore", reason="needs the extra remote")
    flags = ("--set", f"remote.url=file://{tmp_path}/bucket") if lost else ()
    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    with broker(tmp_path / "data", *flags) as running:
        http_of = Http(running)
        limit(http_of, "user", GUEST, max_queues=2, max_connections=1)
        assert [http_of.status("PUT", "queues", "/", each, body=stream) for each in "abc"] == [201, 201, 400]
    if lost:
        (tmp_path / "data").rename(tmp_path / "gone")
    with broker(tmp_path / "data", *flags) as running:
        http_of = Http(running)
        assert http_of.get("user-limits") == [{"user": GUEST, "value": {"max-connections": 1, "max-queues": 2}}]
        reply = http_of.call("PUT", "queues", "/", "c", body=stream)
        assert (reply.status, "user 'guest'" in reply.text) == (400, True)
        with streams(running, GUEST) as connection:
            with pytest.raises(VibeMQError, match="PRECONDITION_FAILED"):
                connection.create("c")
            assert not lets_in(running, GUEST)
            with connect(f"vibemq://127.0.0.1:{running.native_port}") as nobody:  # who has not said that it is guest
                nobody.create_queue("d")
        ctl(tmp_path, "delete_user", GUEST)
        assert "does not exist" in ctl(tmp_path, "set_user_limits", GUEST, '{"max-queues": 1}', code=67)
        ctl(tmp_path, "add_user", GUEST, GUEST)
        assert http_of.get("user-limits") == []
        limit(http_of, "user", GUEST, max_queues=1)
        assert http_of.status("PUT", "queues", "/", "c", body=stream) == 201  # another guest, who has made none
        assert http_of.status("PUT", "queues", "/", "e", body=stream) == 400


def ctl(folder: Path, *words: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "vibemq.cli", "ctl", *words, "--data-dir", str(folder / "data")]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=DEADLINE_S)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_guest_has_limits_whatever_there_are_of_others(tmp_path: Path) -> None:
    metadata = Metadata(str(tmp_path / "meta.db"))
    metadata.add_user("ada", "hash")
    metadata.set_limits(USER, "ada", {"max-queues": 1})
    with metadata._writing(synced=False) as db:
        db.execute("UPDATE user_limits SET slot = ?", (LIMITED_MAX - 1,))
    metadata.set_limits(USER, GUEST, {"max-connections": 1})
    rows = [2 * each.slot for each in metadata.limited(USER)]
    usage = Usage(ROWS, 1)
    assert [usage.count(row, 5, 0, own) for row, own in zip(rows, (1, 2), strict=True)] == [1, 2]
    assert len(set(rows)) == 2 and max(rows) == ROWS - 1
    metadata.close()
