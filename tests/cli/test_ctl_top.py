# SPDX-License-Identifier: Apache-2.0
"""`vibemq ctl top`: a view that renews itself in a terminal, and one snapshot where nobody watches."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from running import ENVIRONMENT, broker

import vibemq.cli.ctl_top as ctl_top
from vibemq.cli.ctl_top import AGAIN_S, top, view
from vibemq.client import connect
from vibemq.errors import UserError

ROW = {"vhost": "/", "stream": "jobs", "type": "queue", "published_per_s": 10.0, "ready": 1234, "unacknowledged": 5,
       "consumers": 2, "acked_total": 100, "lost_total": 40, "bytes": 3 << 20, "stored_offset_lag": None}  # fmt: skip
PROCESS = {"name": "worker 0", "pid": 7, "turning_s_total": 1.0, "open_fds": 30, "max_fds": 20000,
           "cpu_seconds_total": 5.0, "resident_memory_bytes": 1 << 30}  # fmt: skip
ANSWER = {"node": "rabbit@here", "version": "0.1.0", "at_s": 100.0, "uptime_s": 90_000.0, "alarms": [],
          "is_drained": False, "memory_used": 1 << 30, "memory_limit": 0, "disk_free": 5 << 40, "connections": 1,
          "confirmed_total": 1000, "delivered_total": 500, "streams": 1,
          "processes": [PROCESS], "rows": [ROW]}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("top") / "data"
    with broker(folder, workers=1) as running:
        with connect(f"vibemq://{running.host}:{running.native_port}") as client:
            client.publish("jobs", 1)
        yield folder


def command(data, *words: str) -> list[str]:
    return [sys.executable, "-m", "vibemq.cli", "ctl", "--data-dir", str(data), "top", *words]


def shown(before: dict, now: dict) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(view(before, now))
    return captured.get()


def test_rates_are_of_the_time_between_two_answers():
    process = {**PROCESS, "cpu_seconds_total": 6.0, "turning_s_total": 2.5}
    row = {**ROW, "acked_total": 120, "lost_total": 54}
    now = {
        **ANSWER,
        "at_s": 102.0,
        "confirmed_total": 3000,
        "delivered_total": 501,
        "processes": [process],
        "rows": [row],
    }
    lines = shown(ANSWER, now).splitlines()
    assert lines[0].split() == ["rabbit@here", "0.1.0", "up", "1d", "1h", "no", "alarms"]
    assert "confirmed/s 1,000  delivered/s 0" in lines[1]
    assert "memory 1.0 GiB of no limit  disk 5.0 TiB free" in lines[2]
    (worker,) = (line.split() for line in lines if "worker 0" in line)
    assert worker == ["worker", "0", "7", "50", "75", "1.0", "GiB", "30", "of", "20,000"]
    (jobs,) = (line.split() for line in lines if "jobs" in line)
    assert jobs == ["jobs", "queue", "10", "10", "7", "1,234", "5", "2", "3.0", "MiB"]


def test_what_cannot_be_known_yet_is_a_dash_and_what_is_wrong_is_said_first():
    text = shown(ANSWER, {**ANSWER, "alarms": ["disk"], "is_drained": True})
    assert "disk alarm, maintenance" in text.splitlines()[0]
    assert "confirmed/s -" in text


def test_names_are_shown_as_text_whatever_they_are():
    text = shown(ANSWER, {**ANSWER, "rows": [{**ROW, "vhost": "v", "stream": "[red]\x1b[2J\nx"}]})
    assert "v: [red]?[2J?x" in text and "\x1b" not in text


def test_a_broker_that_is_being_restarted_is_asked_again(monkeypatch, capsys):
    answers = [ANSWER, UserError("no broker serves from here"), {**ANSWER, "at_s": 102.0, "confirmed_total": 3000}]
    pauses = []

    def ask(request: str, needs_broker: bool) -> dict:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if not answers:
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr(ctl_top, "time", SimpleNamespace(sleep=sleep))  # other threads of the tests go on to sleep
    with pytest.raises(KeyboardInterrupt):
        top(SimpleNamespace(options={"interval": 0.5, "formatter": None}, ask=ask))
    assert pauses == [0.5, AGAIN_S, 0.5, 0.5]
    text = capsys.readouterr().out
    assert "no broker serves from here; asking again" in text
    assert text.index("asking again") < text.index("confirmed/s 1,000")


def test_a_pipe_gets_one_snapshot_and_json_the_figures(data):
    done = subprocess.run(
        command(data, "--interval", "0.1"), capture_output=True, text=True, env=ENVIRONMENT, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert any(line.split()[:2] == ["jobs", "queue"] for line in lines)
    assert sum("worker 0" in line for line in lines) == 1
    found = subprocess.run(
        command(data, "--formatter", "json"), capture_output=True, text=True, env=ENVIRONMENT, timeout=60
    )
    figures = json.loads(found.stdout)
    assert figures["rows"][0]["stream"] == "jobs" and figures["rows"][0]["ready"] == 1
    assert {one["name"] for one in figures["processes"]} == {"worker 0", "supervisor", "admin"}


def test_without_a_broker_it_says_so(tmp_path):
    done = subprocess.run(command(tmp_path), capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert done.returncode == 69 and "no broker serves from" in done.stderr


def test_a_terminal_sees_it_renewed_until_ctrl_c(data):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    environment = {**ENVIRONMENT, "TERM": "xterm"}
    ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    # A run in a shell's background ignores SIGINT, and whoever it starts inherits that.
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command(data, "--interval", "0.1"), **ends, env=environment, start_new_session=True)
    signal.signal(signal.SIGINT, heard)
    os.close(theirs)
    text = b""
    try:
        while text.count(b"worker 0") < 3:
            text += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        try:
            while data_read := os.read(ours, 65536):
                text += data_read
        except OSError:  # the terminal's other end is closed
            pass
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"\x1b[?1049h" in text and b"\x1b[?1049l" in text, "the screen is as it was"
    assert b"Traceback" not in text
