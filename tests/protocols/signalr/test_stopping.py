# SPDX-License-Identifier: Apache-2.0
"""The broker's stop does not wait for what a peer may never do.  Every time limit of these brokers is longer than the
one for a stop in the tests (running.py), so only a stop that waits for none of them ends in time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from peers.http import HANDSHAKE_ANSWER, JSON_HANDSHAKE, RS, HttpPeer, call
from running import Running, broker

CLOSE = {"type": 7, "allowReconnect": True}
LONG = {
    "signalr.disconnect_timeout_s": 3600,
    "signalr.request_timeout_s": 300,
    "signalr.idle_timeout_s": 3600,
    "signalr.poll_timeout_s": 95,
    "server.shutdown_timeout_s": 3600,
}


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Running]:
    flags = [word for name, value in LONG.items() for word in ("--set", f"{name}={value}")]
    with broker(tmp_path / "data", *flags, workers=1) as running:
        yield running


@pytest.fixture
def peers(slow: Running) -> Iterator[tuple[HttpPeer, HttpPeer, str]]:
    """Two sockets, one to poll with, and the path of a hub connection that is between two polls."""
    with ExitStack() as stack:
        polls, posts = (stack.enter_context(HttpPeer(slow)) for _ in range(2))
        path = f"/hub?id={polls.token()}"
        assert polls.ask("GET", path).status == 200
        assert posts.ask("POST", path, JSON_HANDSHAKE).status == 200
        assert polls.ask("GET", path).body == HANDSHAKE_ANSWER
        yield polls, posts, path


def stops(running: Running) -> None:
    running.process.terminate()
    assert running.process.wait(60) == 0


def test_a_hub_between_polls_does_not_delay_it(slow: Running, peers: tuple[HttpPeer, HttpPeer, str]) -> None:
    stops(slow)


def test_a_client_between_polls_fetches_its_close_with_the_next_one(
    slow: Running, peers: tuple[HttpPeer, HttpPeer, str]
) -> None:
    polls, posts, path = peers
    with HttpPeer(slow) as witness:
        witness.upgrade().handshake()
        slow.process.terminate()
        assert witness.next_frame().records == [CLOSE]  # so the worker has been told, and all its sockets
        witness.socket.close()
        assert polls.ask("GET", path).body == json.dumps(CLOSE, separators=(",", ":")).encode() + RS
        assert posts.ask("POST", "/hub/negotiate", b"").status == 503
        assert polls.ask("DELETE", path).status == 202
    assert slow.process.wait(60) == 0


def test_a_client_whose_poll_waits_is_answered_with_its_close(
    slow: Running, peers: tuple[HttpPeer, HttpPeer, str]
) -> None:
    polls, posts, path = peers
    polls.send("GET", path)
    slow.process.terminate()
    assert json.loads(polls.response().body.rstrip(RS)) == CLOSE
    assert posts.ask("DELETE", path).status == 202
    assert slow.process.wait(60) == 0


def test_a_post_that_waits_until_answers_are_fetched_does_not_delay_it(
    slow: Running, peers: tuple[HttpPeer, HttpPeer, str]
) -> None:
    """Of answers that nobody fetches no more than 1 MiB is made, so the last of these are never taken."""
    _, _, path = peers
    with ExitStack() as stack:
        for post in range(6):
            calls = b"".join(call(f"{post}-{number}", "x" * 900) for number in range(600))
            stack.enter_context(HttpPeer(slow)).send("POST", path, calls)
        with HttpPeer(slow) as other:  # what is answered now was read after those
            other.negotiate()
        stops(slow)


def test_half_a_body_does_not_delay_it(slow: Running, peers: tuple[HttpPeer, HttpPeer, str]) -> None:
    _, posts, path = peers
    half = posts.request("POST", path, call("1"), Expect="100-continue")[:-10]
    posts.write(half)
    assert posts.until(b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")  # so the head has been read
    stops(slow)
