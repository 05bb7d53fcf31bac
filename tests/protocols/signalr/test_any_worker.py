# SPDX-License-Identifier: Apache-2.0
"""The requests of one hub connection may come to any worker: each is answered as if it had come to the right one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from authority import Authority, tls_flags
from peers.http import HANDSHAKE_ANSWER, JSON_HANDSHAKE, RS, HttpPeer, answer, call
from peers.streams import server_of
from running import Running, broker, wait_until

WORKERS = 3
CONNECTIONS_MAX = 200


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Running]:
    server = authority.issue("server")
    with broker(tmp_path_factory.mktemp("several") / "data", *tls_flags(server), workers=WORKERS) as running:
        yield running


@pytest.fixture(params=["plain", "tls"])
def each_worker(
    request: pytest.FixtureRequest, several: Running, authority: Authority
) -> Iterator[Callable[[], list[HttpPeer]]]:
    """Makes a connection to each worker, in the same order every time."""
    with ExitStack() as stack:

        def connect() -> HttpPeer:
            if request.param == "plain":
                return stack.enter_context(HttpPeer(several))
            peer = stack.enter_context(HttpPeer(several, several.ports["signalr-tls"]))
            peer.socket = authority.client_context().wrap_socket(peer.socket, server_hostname="localhost")
            return peer

        def one_for_each() -> list[HttpPeer]:
            pids = several.worker_pids()
            found: dict[int, HttpPeer] = {}
            for _ in range(CONNECTIONS_MAX):
                peer = connect()
                assert peer.ask("GET", "/nothing").status == 404  # it is accepted, by whoever accepts it
                found.setdefault(server_of(peer, set(pids)), peer)
                if len(found) == WORKERS:
                    return [found[pid] for pid in pids]
            raise AssertionError(f"{CONNECTIONS_MAX} connections, and one worker still has none")

        yield one_for_each


def test_a_websocket_may_come_to_another_worker_than_its_negotiation(each_worker):
    for negotiator in range(WORKERS):
        for upgrader in range(WORKERS):
            token = each_worker()[negotiator].token()
            peer = each_worker()[upgrader].upgrade(f"/hub?id={token}").handshake()
            peer.put(call("1"))
            assert peer.next_frame().records == [answer("1")]


def test_polls_and_posts_may_come_to_all_workers_in_turn(each_worker):
    one, two, three = each_worker()
    token = one.token()
    assert two.ask("GET", f"/hub?id={token}").body == b""
    assert three.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE).status == 200
    assert two.ask("GET", f"/hub?id={token}").body == HANDSHAKE_ANSWER
    one.send("GET", f"/hub?id={token}")
    assert each_worker()[1].ask("POST", f"/hub?id={token}", call("1")).status == 200
    assert json.loads(one.response().body.rstrip(RS)) == answer("1")
    assert each_worker()[2].ask("DELETE", f"/hub?id={token}").status == 202


def test_requests_behind_each_other_on_one_socket_may_be_about_hub_connections_of_all_workers(each_worker):
    peers = each_worker()
    tokens = [peer.token() for peer in peers]
    asked = [peers[0].request("GET", f"/hub?id={token}") for token in tokens]
    asked += [peers[0].request("POST", f"/hub?id={token}", JSON_HANDSHAKE) for token in tokens]
    asked += [peers[0].request("GET", f"/hub?id={token}") for token in tokens]
    peers[0].write(b"".join(asked))
    found = [peers[0].response() for _ in asked]
    assert [each.status for each in found] == [200] * len(asked)
    assert [each.body for each in found] == [b""] * (2 * WORKERS) + [HANDSHAKE_ANSWER] * WORKERS


@pytest.mark.parametrize("size", [100, 100_000, 900_000])
def test_a_body_of_any_size_goes_along(each_worker, size):
    one, two, three = each_worker()
    token = one.token()
    two.ask("GET", f"/hub?id={token}")
    body = (
        JSON_HANDSHAKE
        + json.dumps({"type": 1, "invocationId": "1", "target": "NoSuchMethod", "arguments": ["z" * size]}).encode()
        + RS
    )
    assert three.ask("POST", f"/hub?id={token}", body).status == 200
    records = [json.loads(record) for record in two.ask("GET", f"/hub?id={token}").body.split(RS)[:-1]]
    assert records == [{}, answer("1")]


def test_the_stream_of_events_may_be_on_any_worker(each_worker):
    one, two, three = each_worker()
    token = one.token()
    two.send("GET", f"/hub?id={token}", Accept="text/event-stream")
    assert two.head().status == 200
    assert three.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE).status == 200
    assert b"data: " + HANDSHAKE_ANSWER in two.until(b"data: {}" + RS)


def test_an_id_of_a_worker_that_does_not_know_it_is_unknown(each_worker):
    one, two, _ = each_worker()
    token = one.token()
    changed = token[:-4] + ("AAAA" if token[-4:] != "AAAA" else "BBBB")
    assert two.ask("POST", f"/hub?id={changed}", b"").status == 404
    assert two.ask("GET", "/nothing").status == 404, "and the connection goes on"


def test_a_connection_that_goes_from_worker_to_worker_leaves_nothing_behind(each_worker, several):
    peers = each_worker()
    tokens = [peer.token() for peer in peers]

    def go_round(times: int) -> None:
        for token in tokens * times:
            assert peers[0].ask("POST", f"/hub?id={token}", b"").status == 200

    def opened() -> int:
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in several.worker_pids())

    go_round(1)
    before = opened()
    go_round(5)
    wait_until(lambda: opened() <= before, "the workers close what they have given away")
