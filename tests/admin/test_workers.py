# SPDX-License-Identifier: Apache-2.0
"""Questions to workers: what comes too late, from before or with an error is never taken for an answer."""

import gc
import json
import os
import socket

import pytest

from vibemq.admin import workers
from vibemq.admin.workers import NoAnswer, Workers


@pytest.fixture
def pairs():
    made = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    yield made
    for pair in made:
        for end in pair:
            end.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(workers, "ANSWER_TIMEOUT_S", 0.2)


def answer(end, number, body, **more):
    fd = os.memfd_create("test")
    os.write(fd, json.dumps(body).encode())
    socket.send_fds(end, [json.dumps({"id": number, **more}).encode()], [fd])
    os.close(fd)


def test_answers_to_earlier_questions_are_thrown_away(pairs, monkeypatch):
    (theirs, ours), _ = pairs
    asked = Workers([ours])
    monkeypatch.setattr(asked, "_numbers", iter([7]))
    answer(theirs, 5, "of before")
    answer(theirs, 7, ["a", "b" * 1_000_000])
    assert asked.ask(0, "anything", more=1) == ["a", "b" * 1_000_000]
    assert json.loads(theirs.recv(1000)) == {"id": 7, "ask": "anything", "more": 1}


def test_who_does_not_answer_is_left_out(pairs, monkeypatch):
    (_, silent), (theirs, ours) = pairs
    asked = Workers([silent, ours])
    monkeypatch.setattr(asked, "_numbers", iter(range(1, 9)))
    with pytest.raises(NoAnswer, match="worker 0 did not answer"):
        asked.ask(0, "status")  # 1
    answer(theirs, 3, {"worker": 1})
    assert asked.statuses() == [{"worker": 1}]  # 2 and 3
    answer(theirs, 5, "again")
    assert asked.ask_any("status") == "again"  # 4 and 5


def test_an_error_is_told(pairs, monkeypatch):
    (theirs, ours), _ = pairs
    asked = Workers([ours])
    monkeypatch.setattr(asked, "_numbers", iter([1]))
    answer(theirs, 1, None, error="the disk is gone")
    with pytest.raises(NoAnswer, match="the disk is gone"):
        asked.ask(0, "restart")


def test_a_broker_that_ends_is_no_answer(pairs):
    (theirs, ours), _ = pairs
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(NoAnswer, match="the broker is ending"):
        Workers([ours]).ask(0, "status")


def test_nobody_to_ask_is_no_answer():
    with pytest.raises(NoAnswer, match="no worker answers"):
        Workers([]).ask_any("groups")
    assert Workers([]).statuses() == list(Workers([]).sessions()) == []


def test_descriptors_of_answers_are_closed(pairs, monkeypatch):
    (theirs, ours), _ = pairs
    asked = Workers([ours])
    gc.collect()  # what an earlier test forgot does not go meanwhile
    before = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        monkeypatch.setattr(asked, "_numbers", iter([number]))
        answer(theirs, number, number)
        assert asked.ask(0, "status") == number
        theirs.recv(1000)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_last_status_counts_for_a_worker_that_waits_for_the_disk(pairs, monkeypatch):
    (theirs, ours), _ = pairs
    stalled: list[str] = []
    asked = Workers([ours], lambda _: stalled[0] if stalled else None)
    monkeypatch.setattr(asked, "_numbers", iter([1, 2]))
    answer(theirs, 1, {"worker": 0, "connections": 7})
    assert asked.statuses() == [{"worker": 0, "connections": 7}]
    stalled.append("a write to a file")
    (status,) = asked.statuses()
    assert (status["connections"], status["is_stale"]) == (7, True)
    with pytest.raises(NoAnswer, match="worker 0 waits for the disk: a write to a file"):
        asked.ask(0, "sessions")
    (unknown,) = Workers([ours], lambda _: "a write to a file").statuses()
    assert (unknown["worker"], unknown["connections"]) == (0, 0), "an admin process that has just begun"
    stalled.clear()
    assert asked.statuses() == [], "it does not answer, and no disk explains that"
