# SPDX-License-Identifier: Apache-2.0
"""What an orderly restart of the broker and a worker that hangs are for the stream clients of others, while they
publish and consume: nobody is left behind, and every message that was confirmed is there."""

from __future__ import annotations

import os
import re
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from foreign_clients import Program
from running import Restartable, restartable
from stream_serving import Runner, Served

from vibemq.client.streams import StreamsConnection

STREAM = "through"
BODY = re.compile(rb"(?:rstream|js|java|go|rust)-(\d+)$")  # AMQP 1.0 puts the body last
LOAD = 100  # messages confirmed and read before it happens, and again afterwards
RECOVERY_TIMEOUT_S = 120.0  # the Go client waits up to 30 s between two attempts of its own


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Restartable]:
    with restartable(tmp_path / "data", "--set", "server.worker_hang_s=3") as broker:
        yield broker


@pytest.fixture
def program(broker: Restartable, client: str, tmp_path: Path) -> Iterator[Program]:
    """It publishes and consumes, and has begun to do both."""
    with connect(broker) as connection:
        connection.create(STREAM)
    runner = Runner(Served(broker.running.port), tmp_path)
    program = runner(client, "through", stream=STREAM)
    yield program
    program.kill()


def connect(broker: Restartable) -> StreamsConnection:
    return StreamsConnection.connect("localhost", broker.running.port, user="guest", password="guest", timeout_s=20)


def confirmed(program: Program) -> list[int]:
    return [line["number"] for line in program.said if line["event"] == "confirmed"]


def read(program: Program) -> list[int]:
    return [int(line["body"].rpartition("-")[2]) for line in program.said if line["event"] == "message"]


def goes_on(program: Program) -> None:
    """It has LOAD more messages confirmed, and has read one that was published later than all that it had."""
    program.catch_up()
    enough, newest = len(confirmed(program)) + LOAD, max([*confirmed(program), *read(program), 0])
    for _ in program.lines(RECOVERY_TIMEOUT_S):
        if len(confirmed(program)) >= enough and max(read(program), default=0) > newest:
            return
    pytest.fail(f"the program ended: {program.said[-3:]}{program.why()}")


def stored(broker: Restartable) -> set[int]:
    numbers: set[int] = set()
    with connect(broker) as connection:
        for chunk in connection.read_chunks(STREAM, 0):
            numbers.update(int(match[1]) for _, message in chunk.messages() if (match := BODY.search(message)))
    return numbers


def check_nothing_is_lost(broker: Restartable, program: Program) -> None:
    program.kill()
    missing = set(confirmed(program)) - stored(broker)
    assert not missing, "confirmed, and not there"


@pytest.mark.line("goes on through an orderly restart of the broker, under load")
def test_nobody_is_stranded_by_an_orderly_restart(broker: Restartable, program: Program, client: str) -> None:
    goes_on(program)
    for _ in range(2):
        broker.restart()
        goes_on(program)
    check_nothing_is_lost(broker, program)


@pytest.mark.line("goes on after a worker hung and was replaced, under load")
def test_nobody_is_stranded_by_a_worker_that_hangs(broker: Restartable, program: Program, client: str) -> None:
    goes_on(program)
    hanging = [(pid, os.pidfd_open(pid)) for pid in broker.running.worker_pids()]
    for pid, _ in hanging:
        os.kill(pid, signal.SIGSTOP)
    for pid, end in hanging:  # one after the other; a client may go on with the first successor
        assert select.select([end], [], [], RECOVERY_TIMEOUT_S)[0], f"worker {pid} hangs and is still there"
        os.close(end)
    goes_on(program)
    check_nothing_is_lost(broker, program)
