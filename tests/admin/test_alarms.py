# SPDX-License-Identifier: Apache-2.0
"""What the management API and `vibemq ctl` say of alarms, also while no worker answers; and maintenance."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from full_disk import ToldFree
from http_caller import Http, wait_until
from peers.streams import connected
from running import ENVIRONMENT, Running, broker

from vibemq.admin.api import health
from vibemq.broker.alarms import Conditions
from vibemq.client import connect
from vibemq.errors import ServerFailed
from vibemq.protocols.native.codec import encode_frame
from vibemq.protocols.native.spec import Command
from vibemq.server.memory import total_bytes

NEEDED = 1_000_000
MUCH, LITTLE = str(NEEDED), str(NEEDED - 1)
CHECKS = ("health/checks/alarms", "health/checks/local-alarms", "healthchecks/node", "aliveness-test/%2F")
MIB = 1 << 20


def ctl(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vibemq.cli", "ctl", "--data-dir", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False)


def metric(http: Http, name: str) -> float:
    lines = [line.split()[1] for line in http.call("GET", "metrics").text.splitlines() if line.startswith(name + " ")]
    assert len(lines) == 1, name
    return float(lines[0])


def status_of(http: Http, path: str) -> tuple[int, Any]:
    reply = http.raw("GET", path)
    return reply.status, reply.json


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def check_alarm(http: Http, resource: str) -> None:
    (node,) = http.get("nodes")
    shown = [{"node": node["name"], "resource": resource}]
    for path in ("/health", *(f"/api/{check}" for check in CHECKS)):
        status, body = status_of(http, path)
        assert (status, body["status"], body["alarms"]) == (503, "failed", shown), path
    assert status_of(http, "/health")[1]["reason"] == f"resource alarm(s) in effect: {resource}"
    reason = status_of(http, "/api/health/checks/alarms")[1]["reason"]
    assert reason == "There are alarms in effect in the cluster"


@pytest.mark.parametrize("free", [LITTLE, "0"], ids=["below the floor", "no byte"])
def test_a_disk_alarm_is_said_everywhere_also_while_all_workers_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: str
) -> None:
    told = ToldFree(tmp_path, monkeypatch, MUCH)
    folder = tmp_path / "data"
    with broker(folder, "--set", f"store.disk_free_min_bytes={NEEDED}") as running:
        http = Http(running)
        assert metric(http, "vibemq_alarms_free_disk_space_watermark") == 0
        for path in ("/health", *(f"/api/{check}" for check in CHECKS)):
            assert status_of(http, path) == (200, {"status": "ok"})
        assert ctl(folder, "check_alarms").returncode == 0
        told.say(free)
        check_alarm(http, "disk")
        (node,) = http.get("nodes")
        assert (node["disk_free"], node["disk_free_alarm"], node["mem_alarm"]) == (int(free), True, False)
        assert metric(http, "vibemq_alarms_free_disk_space_watermark") == 1
        assert metric(http, "vibemq_alarms_memory_used_watermark") == 0
        assert metric(http, "vibemq_disk_space_available_bytes") == int(free)
        assert "Free disk space alarm on node" in ctl(folder, "alarms").stdout
        failed = ctl(folder, "check_local_alarms")
        assert failed.returncode == 69 and "Free disk space alarm on node" in failed.stderr
        assert json.loads(ctl(folder, "status", "--formatter", "json").stdout)["alarms"] == ["disk"]
        with stopped(running.worker_pids()):
            check_alarm(http, "disk")
        told.say(MUCH)
        assert status_of(http, "/health") == (200, {"status": "ok"})


def half_sent(running: Running) -> socket.socket:
    """Most of a frame of 1 MiB, which the broker keeps until the rest comes."""
    opened = socket.create_connection((running.host, running.native_port))
    opened.sendall(encode_frame(Command.CONNECT, b"c"))
    opened.sendall((MIB - 100).to_bytes(4, "big") + b"\0" + bytes(MIB - 1000))
    return opened


def test_above_the_memory_watermark_publishers_are_refused_until_it_is_free_again(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with broker(folder, workers=1) as running:
        http = Http(running)
        wait_until(lambda: metric(http, "vibemq_memory_used_bytes") > 0, "memory was looked at")
        used = int(metric(http, "vibemq_memory_used_bytes"))
        assert metric(http, "vibemq_memory_limit_bytes") == total_bytes() * 60 // 100
    watermark = used + 96 * MIB  # of the 150 MiB below; an allocator may keep some of them for a while
    flags = ("--set", f"store.memory_high_watermark_bytes={watermark}")
    flags += ("--set", f"server.unfinished_input_max_bytes={1024 * MIB}")  # a part of it is for frames like these
    with broker(folder, *flags, workers=1) as running:
        http = Http(running)
        with connect(f"vibemq://{running.host}:{running.native_port}") as client:
            client.publish("q", "before")
            heavy = [half_sent(running) for _ in range(150)]
            wait_until(lambda: http.get("nodes")[0]["mem_alarm"], "the memory alarm")
            check_alarm(http, "memory")
            assert metric(http, "vibemq_alarms_memory_used_watermark") == 1
            assert "Memory alarm on node" in ctl(folder, "alarms").stdout

            def is_refused() -> bool:
                try:
                    client.publish("q", "while")
                except ServerFailed as problem:
                    return "memory alarm" in str(problem)
                return False

            wait_until(is_refused, "a publisher is refused")
            with client.consume("q") as consumer:
                next(consumer).ack()
            for one in heavy:
                one.close()
            wait_until(lambda: not http.get("nodes")[0]["mem_alarm"], "the end of the memory alarm")
            wait_until(lambda: not is_refused(), "publishers go on")


def test_maintenance_sends_everybody_away_refuses_newcomers_and_ends(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with broker(folder) as running:
        http, often = Http(running), "reconnectInitialDelay=0.1&reconnectMaxDelay=0.5"
        address = f"vibemq://{running.host}:{running.native_port}?{often}"
        with connected(running) as stays, connect(address) as client:
            client.publish("q", 1)
            assert http.raw("GET", "/health/ready", Authorization="").status == 200
            assert ctl(folder, "drain").returncode == 0
            assert http.raw("GET", "/health/ready", Authorization="").status == 503
            for port in running.ports.values():
                if port != running.admin_port:
                    with pytest.raises(ConnectionRefusedError):
                        socket.create_connection((running.host, port))
            wait_until(lambda: http.get("connections") == [], "all have gone")
            (node,) = http.get("nodes")
            assert node["being_drained"] is True
            assert metric(http, "vibemq_being_drained") == 1
            assert json.loads(ctl(folder, "status", "--formatter", "json").stdout)["is_under_maintenance"] is True
            for check in ("is-in-service", "ready-to-serve-clients", f"port-listener/{running.port}"):
                assert status_of(http, f"/api/health/checks/{check}")[0] == 503, check
            assert status_of(http, "/api/health/checks/alarms")[0] == 200
            killed = running.worker_pids()[0]
            os.kill(killed, signal.SIGKILL)  # its successor refuses newcomers, too
            ready = "/api/health/checks/ready-to-serve-clients"  # says first that one of two does not answer
            wait_until(lambda: killed not in running.worker_pids(), "its end")
            wait_until(lambda: "maintenance" in status_of(http, ready)[1]["reason"], "another worker")
            for _ in range(8):
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection((running.host, running.port))

            assert ctl(folder, "revive").returncode == 0
            assert http.raw("GET", "/health/ready", Authorization="").status == 200
            client.publish("q", 2)  # it has connected again by itself
            with client.consume("q") as consumer:
                assert [next(consumer).payload for _ in range(2)] == [1, 2]
            for number in range(8):  # whichever worker they come to
                with connected(running) as again:
                    again.create(f"s{number}")
            for check in (
                "is-in-service",
                f"port-listener/{running.port}",
                "protocol-listener/streams",
                "virtual-hosts",
            ):
                assert status_of(http, f"/api/health/checks/{check}")[0] == 200, check
            assert http.get("nodes")[0]["being_drained"] is False
            stays.socket.close()


def test_a_worker_that_starts_when_maintenance_is_over_lets_newcomers_in(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with broker(folder, workers=1) as running:
        assert ctl(folder, "drain").returncode == 0
        (killed,) = running.worker_pids()
        with stopped([running.process.pid]):  # it starts no other until maintenance is over
            os.kill(killed, signal.SIGKILL)
            assert ctl(folder, "revive").returncode == 0

        def lets_in() -> bool:
            try:
                connected(running).socket.close()
            except OSError:
                return False
            return True

        wait_until(lets_in, "the end of maintenance")


def test_a_worker_that_does_not_answer_is_said_during_maintenance_too() -> None:
    """`vibemq ctl ping` passes over maintenance, and over nothing else."""
    conditions = Conditions()
    conditions.is_drained = True
    answering: list[object] = [{}]
    api: Any = SimpleNamespace(conditions=conditions, workers=AskedWorkers(answering))
    answer = health.ready_to_serve_clients(api, cast(Any, None))
    assert (answer.status, answer.body["reason"]) == (503, "1 of 2 workers do not answer")
    answering.append({})
    answer = health.ready_to_serve_clients(api, cast(Any, None))
    assert answer.status == 503
    assert "maintenance" in answer.body["reason"]


class AskedWorkers:
    """Two, of whom some answer."""

    def __init__(self, answers: list[object]) -> None:
        self._answers = answers

    def __len__(self) -> int:
        return 2

    def statuses(self) -> list[object]:
        return self._answers
