# SPDX-License-Identifier: Apache-2.0
"""Agents that repeat what was not answered: every line is there once, whatever is restarted or killed meanwhile."""

import http.client
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from http_caller import STREAM, Http, wait_until
from running import Restartable, restartable

from vibemq.client.streams import StreamsConnection

LINES = 200  # of a request


class Agent(threading.Thread):
    """Sends its lines in order, each request until it is answered with 200."""

    def __init__(self, made: Restartable, name: str, is_named: bool = True) -> None:
        super().__init__(name=name, daemon=True)
        self.made, self.is_named = made, is_named
        self.stopping = threading.Event()
        self.sent = 0  # lines that are answered

    def run(self) -> None:
        while not self.stopping.is_set():
            lines = [f"{self.name} {number}" for number in range(self.sent, self.sent + LINES)]
            named = {"Publisher": self.name, "Sequence": str(self.sent)} if self.is_named else {}
            while not self._is_stored("\n".join(lines), named):
                if self.stopping.wait(0.02):
                    break
            else:
                self.sent += LINES

    def _is_stored(self, body: str, named: dict[str, str]) -> bool:
        with suppress(OSError, http.client.HTTPException):
            reply = Http(self.made.running).raw("POST", "/api/stream/%2F/load/lines", body, **named)
            assert reply.status in (200, 503), reply.text
            return reply.status == 200
        return False


def stored(made: Restartable) -> dict[str, list[int]]:
    """The numbers of each agent's lines, as they lie in the stream."""
    found: dict[str, list[int]] = {}
    host, port = made.running.host, made.running.port
    with StreamsConnection.connect(host, port, user="guest", password="guest") as client:
        end = Http(made.running).get("stream", "/", "load", "messages", query="?count=1")["next_offset"]
        for chunk in client.read_chunks("load", 0):
            for _, message in chunk.messages():
                name, number = bytes(message).split(b"agent-")[1].split()
                found.setdefault(f"agent-{name.decode()}", []).append(int(number))
            if chunk.next_offset >= end:
                return found
    raise AssertionError("the stream ends too early")


def restart(made: Restartable) -> None:
    made.restart()


def kill_worker(made: Restartable) -> None:
    os.kill(made.running.worker_pids()[0], signal.SIGKILL)


def kill_admin(made: Restartable) -> None:
    os.kill(made.running.admin_pid(), signal.SIGKILL)


def restart_workers(made: Restartable) -> None:
    assert Http(made.running).status("POST", "workers", "restarts") in (200, 201, 202, 204)


@pytest.mark.parametrize("durability", ["os", "disk"])
def test_every_line_of_named_agents_is_there_once(tmp_path: Path, durability: str) -> None:
    with restartable(tmp_path, "--durability", durability) as made:
        assert Http(made.running).status("PUT", "queues", "/", "load", body=STREAM) == 201
        agents = [Agent(made, f"agent-{number}") for number in range(4)]
        for agent in agents:
            agent.start()
        disturbances: list[Callable[[Restartable], None]] = [restart, kill_worker, kill_admin, restart_workers, restart]
        for disturb in disturbances:
            before = [agent.sent for agent in agents]
            disturb(made)
            wait_until(
                lambda before=before: all(agent.sent > sent for agent, sent in zip(agents, before, strict=True)),
                f"every agent goes on after {disturb.__name__}",
            )
        for agent in agents:
            agent.stopping.set()
        for agent in agents:
            agent.join()
        found = stored(made)
        for agent in agents:
            numbers = found[agent.name]
            assert numbers == list(range(len(numbers))), agent.name
            assert agent.sent <= len(numbers) <= agent.sent + LINES


def test_an_orderly_restart_answers_what_it_stored_also_without_names(tmp_path: Path) -> None:
    with restartable(tmp_path) as made:
        assert Http(made.running).status("PUT", "queues", "/", "load", body=STREAM) == 201
        agents = [Agent(made, f"agent-{number}", is_named=False) for number in range(4)]
        for agent in agents:
            agent.start()
        for _ in range(3):
            before = [agent.sent for agent in agents]
            made.restart()
            wait_until(
                lambda before=before: all(agent.sent > sent for agent, sent in zip(agents, before, strict=True)),
                "every agent goes on",
            )
        for agent in agents:
            agent.stopping.set()
        for agent in agents:
            agent.join()
        assert stored(made) == {agent.name: list(range(agent.sent)) for agent in agents}


def test_lines_that_a_full_queue_holds_are_refused_when_the_broker_ends(tmp_path: Path) -> None:
    with restartable(tmp_path) as made:
        http = Http(made.running)
        options = {"queue_options": {"max_messages": 1, "overflow": 2}}
        assert http.status("PUT", "queues", "/", "full", "definition", body=options) == 201
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(http.raw, "POST", "/api/queues/%2F/full/lines", b"1\n2\n3\n")
            wait_until(lambda: http.get("stream", "/", "full", "messages")["next_offset"] == 1, "a message")
            made.restart()
            reply = sent.result()
        assert (reply.status, reply.json["stored"]) == (503, 1)
        assert [(each["first"], each["last"]) for each in reply.json["refused"]] == [(2, None)]
        assert "restarted" in reply.json["reason"] and int(reply.headers["Retry-After"]) > 0
