# SPDX-License-Identifier: Apache-2.0
"""What a service manager hears of a broker, and that the log is JSON where that is wanted."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import broker, written

from vibemq.server.hangs import LOOK_S, Beats, HangWatch
from vibemq.server.notify import FEEDS_PER_INTERVAL, ServiceManager

WAIT_S = 60.0  # only a broker that is wrong needs it


@pytest.fixture
def manager(tmp_path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(WAIT_S)
        yield listening


def told(manager: socket.socket, *, but: str = "WATCHDOG=1") -> dict[str, str]:
    """The next thing that is told, but for the watchdog's food."""
    while (text := manager.recv(4096).decode()) == but:
        pass
    return dict(line.split("=", 1) for line in text.split("\n"))


def test_a_service_manager_hears_of_readiness_reloads_the_watchdog_and_the_end(tmp_path: Path, manager, capfd):
    through = ("env", f"NOTIFY_SOCKET={tmp_path}/notify", "WATCHDOG_USEC=3000000")
    with broker(tmp_path / "data", "--set", "log.format=json", workers=1, through=through) as running:
        ready = told(manager)
        assert ready["READY"] == "1" and f"native=127.0.0.1:{running.native_port}" in ready["STATUS"]
        assert told(manager, but="")["WATCHDOG"] == "1"
        running.process.send_signal(signal.SIGHUP)
        reloading = told(manager)
        assert reloading["RELOADING"] == "1" and int(reloading["MONOTONIC_USEC"]) > 0
        assert told(manager)["READY"] == "1"
    assert told(manager)["STOPPING"] == "1"
    lines = [json.loads(line) for line in written(capfd).splitlines() if line.startswith("{")]
    assert {"broker_ready", "process_ready", "broker_stopping", "broker_stopped"} <= {line["event"] for line in lines}
    assert [line for line in lines if line["event"] == "other"] == []
    assert {line["process"] for line in lines} == {"supervisor", "admin"}


def test_the_watchdog_is_fed_only_while_all_is_well(tmp_path, manager):
    found = ServiceManager({"NOTIFY_SOCKET": f"{tmp_path}/notify", "WATCHDOG_USEC": "9000000"})
    assert found.due is not None and found.interval_s == 9.0
    found.feed(100.0, is_well=False)
    assert found.due == 100.0 + 9.0 / FEEDS_PER_INTERVAL
    found.feed(103.0, is_well=True)
    found.stopping("it is over")
    assert manager.recv(100) == b"WATCHDOG=1", "the first time nothing was told"
    assert manager.recv(100) == b"STOPPING=1\nSTATUS=stopping: it is over"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": "1000000"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(os.getpid() + 1)},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "soon"},
    ],
)
def test_who_is_not_meant_feeds_no_watchdog(environ):
    assert ServiceManager(environ).due is None


def test_a_service_manager_that_is_gone_is_said_in_the_log_and_no_more(caplog):
    ServiceManager({"NOTIFY_SOCKET": "/nowhere/notify"}).ready("x")
    assert "the service manager at /nowhere/notify cannot be told: No such file or directory" in caplog.text


def test_an_abstract_socket_is_one_that_begins_with_an_at():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(WAIT_S)
        name = f"vibemq-test-{os.getpid()}"
        listening.bind(f"\0{name}")
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).ready("all")
        assert listening.recv(100) == b"READY=1\nSTATUS=all"


def test_any_is_well_while_one_worker_beats_though_none_is_ever_replaced(monkeypatch):
    states = {100: ("S", 0.0), 101: ("S", 0.0)}
    monkeypatch.setattr("vibemq.server.hangs._process", states.__getitem__)
    beats, most_s, now_s = Beats(2), 5.0, 0.0
    watch = HangWatch(beats, 0, now_s, is_asked=True)

    def look(seconds: int, *beating: int) -> bool:
        nonlocal now_s
        for _ in range(seconds):
            now_s += LOOK_S
            for index in beating:
                beats.beat(index)
            assert watch.look(now_s, [(0, 100), (1, 101)]) is None
        return watch.is_any_well(most_s)

    assert not watch.is_any_well(most_s), "before the first look nobody knows"
    assert look(10, 0, 1) and look(10, 1), "one is enough"
    assert look(4), "a while it may be silent"
    assert not look(2)
    assert look(1, 0)
    states[101] = ("D", 0.0)  # waits for the disk, which no other process would change
    assert not look(10)
