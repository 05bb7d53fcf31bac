# SPDX-License-Identifier: Apache-2.0
"""Our poller has the shape of the standard library's selectors, so either can take the other's place."""

import os
import selectors
import socket
import threading

import pytest
import running
from peers.streams import connected, on_every_worker

from vibemq.net.sockets import Poller

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
AT_ONCE = 0
LONG_S = 20.0


@pytest.fixture(params=[Poller, selectors.DefaultSelector], ids=["ours", "selectors"])
def poller(request):
    poller = request.param()
    yield poller
    poller.close()


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        yield left, right


def test_nothing_registered_is_nothing_found(poller):
    assert poller.select(AT_ONCE) == []
    assert poller.select(-1) == []
    assert len(poller.get_map()) == 0


def test_register_gives_the_key_that_select_gives(poller, pair):
    left, right = pair
    key = poller.register(left, READ, "data")
    assert key == selectors.SelectorKey(left, left.fileno(), READ, "data")
    assert poller.select(AT_ONCE) == []
    right.send(b"x")
    assert poller.select(LONG_S) == [(key, READ)]
    assert poller.select(AT_ONCE) == [(key, READ)], "level-triggered: what is unread is told again"
    left.recv(10)
    assert poller.select(AT_ONCE) == []


def test_a_number_is_as_good_as_its_file(poller, pair):
    left, right = pair
    poller.register(left.fileno(), READ)
    right.send(b"x")
    [(key, events)] = poller.select(LONG_S)
    assert (key.fileobj, key.fd, events, key.data) == (left.fileno(), left.fileno(), READ, None)
    assert poller.unregister(left).fd == left.fileno()


def test_only_what_is_watched_is_told(poller, pair):
    left, right = pair
    right.send(b"x")
    poller.register(left, WRITE)
    assert [events for _, events in poller.select(LONG_S)] == [WRITE]
    poller.modify(left, READ | WRITE)
    assert [events for _, events in poller.select(LONG_S)] == [READ | WRITE]
    key = poller.modify(left, READ, "new data")
    assert poller.select(LONG_S) == [(key, READ)]
    assert key.data == "new data"


def test_after_unregister_nothing_is_told(poller, pair):
    left, right = pair
    key = poller.register(left, READ)
    right.send(b"x")
    assert poller.unregister(left) == key
    assert poller.select(AT_ONCE) == []
    poller.register(left, READ)
    assert len(poller.select(LONG_S)) == 1


def test_twice_registered_and_never_registered_are_key_errors(poller, pair):
    left, right = pair
    poller.register(left, READ)
    with pytest.raises(KeyError):
        poller.register(left, WRITE)
    with pytest.raises(KeyError):
        poller.modify(right, READ)
    with pytest.raises(KeyError):
        poller.unregister(right)
    assert list(poller.get_map()) == [left.fileno()]


def test_a_peer_that_is_gone_is_readable(poller, pair):
    left, right = pair
    poller.register(left, READ)
    right.close()
    assert [events for _, events in poller.select(LONG_S)] == [READ]


def test_a_wait_without_a_limit_ends_when_there_is_something(poller, pair):
    left, right = pair
    poller.register(left, READ)
    sender = threading.Thread(target=right.send, args=(b"x",))
    sender.start()
    assert [events for _, events in poller.select(None)] == [READ]
    sender.join()


def test_hundreds_are_told_of_in_the_end(poller):
    pairs = [socket.socketpair() for _ in range(300)]
    try:
        waiting = {left.fileno() for left, _ in pairs}
        for left, right in pairs:
            poller.register(left, READ, right)
            right.send(b"x")
        while waiting:
            found = poller.select(LONG_S)
            assert found
            for key, _ in found:
                os.read(key.fd, 1)
                waiting.remove(key.fd)
        assert poller.select(AT_ONCE) == []
    finally:
        for both in pairs:
            for end in both:
                end.close()


def test_the_broker_runs_on_the_standard_librarys_poller(tmp_path, monkeypatch):
    monkeypatch.setitem(running.ENVIRONMENT, "VIBEMQ_POLLER", "selectors")
    opened = []
    with running.broker(tmp_path) as served:
        try:
            users = list(on_every_worker(served, opened))
            users[0].create("s")
            for user in users:
                user.subscribe("s", credit=1000)
            with connected(served) as publisher:
                for _ in range(10):
                    publisher.store("s", [bytes(1000)] * 500)
            for user in users:
                records = 0
                while records < 5000:
                    records += user.chunk().records
            old = served.worker_pids()
        finally:
            for user in opened:
                user.socket.close()
        assert served.worker_pids() == old
