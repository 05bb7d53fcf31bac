# SPDX-License-Identifier: Apache-2.0
"""Limits that a shell, a service manager or a container sets: the size of files, and system calls that are refused."""

import errno
import json
import platform
import resource
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from running import ENVIRONMENT, SERVE, Running, broker, wait_until

from vibemq.broker.alarms import SIZE_HOLD_S, Conditions, in_effect
from vibemq.client import connect
from vibemq.errors import ServerFailed, VibeMQError

BODY = "x" * 50_000
UNLIMITED = resource.RLIM_INFINITY
#: Numbers of system calls by machine: asm/unistd.h.
CALLS = {
    "x86_64": {"memfd_create": 319, "pidfd_open": 434, "pidfd_send_signal": 424},
    "aarch64": {"memfd_create": 279, "pidfd_open": 434, "pidfd_send_signal": 424},
}


# ---- the size of files ----


def limit_files(running: Running, size: int) -> None:
    for pid in (running.process.pid, running.admin_pid(), *running.worker_pids()):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, UNLIMITED))


def health(running: Running) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{running.admin_port}/health", timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as problem:
        return problem.code


def publish_until_refused(url: str) -> tuple[int, str]:
    """How many messages were confirmed, and why the next one was not."""
    with connect(url) as client:
        for number in range(1000):
            try:
                client.publish("jobs", {"number": number, "body": BODY})
            except VibeMQError as refused:
                return number, str(refused)
    raise AssertionError("no limit was met")


def test_at_the_limit_of_a_files_size_messages_are_refused_and_none_that_was_confirmed_is_lost(tmp_path):
    data, log = tmp_path / "data", tmp_path / "log"
    through = ("sh", "-c", f"exec \"$@\" 2> '{log}'", "sh")
    with broker(data, workers=1, through=through) as running:
        url = f"vibemq://127.0.0.1:{running.native_port}"
        with connect(url) as client:
            client.publish("jobs", {"number": -1})
        assert health(running) == 200
        limit_files(running, 2 << 20)
        confirmed, _ = publish_until_refused(url)
        assert confirmed > 10
        with connect(url) as client, pytest.raises(ServerFailed, match="reached the size that its process may write"):
            client.publish("jobs", 1)
        wait_until(lambda: health(running) == 503, "an alarm that an orchestrator sees")
        assert "has reached the size of 2097152 bytes that this process may write (RLIMIT_FSIZE)" in log.read_text()
        assert "Traceback" not in log.read_text() and "failed" not in log.read_text()
        with connect(url) as client, client.consume("jobs", timeout_s=60) as consumer:
            numbers = [next(consumer).payload["number"] for _ in range(10)]  # not acknowledged
        assert numbers == list(range(-1, 9))
    with broker(data) as running:
        with connect(f"vibemq://127.0.0.1:{running.native_port}") as client:
            client.publish("jobs", {"number": confirmed})
            with client.consume("jobs", timeout_s=60) as consumer:
                found = sorted(next(consumer).payload["number"] for _ in range(confirmed + 2))
        assert found == list(range(-1, confirmed + 1))


def test_the_alarm_of_a_files_size_ends_by_itself(tmp_path, monkeypatch):
    now_s = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    conditions = Conditions()
    conditions.note_file_limit()
    now_s += SIZE_HOLD_S - 1
    assert in_effect(str(tmp_path), 1, conditions) == ["disk"]
    now_s += 1
    assert in_effect(str(tmp_path), 1, conditions) == []


def serve(tmp_path: Path, *through: str) -> subprocess.CompletedProcess:
    command = [*through, *SERVE, "--workers", "1", "--data-dir", str(tmp_path / "data")]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)


def test_a_broker_whose_files_may_be_too_small_does_not_start(tmp_path):
    done = serve(tmp_path, "sh", "-c", 'ulimit -f 20000; exec "$@"', "sh")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "(RLIMIT_FSIZE), and the broker needs 201326592" in done.stderr


def test_a_limit_below_the_size_of_segments_is_said_at_the_start(tmp_path, capfd):
    limited = ("prlimit", f"--fsize={256 << 20}:{256 << 20}")
    with broker(tmp_path / "data", "--set", "log.format=json", through=limited):
        pass
    events = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    (said,) = [each["message"] for each in events if each["event"] == "file_size_limit_low"]
    assert said.startswith("a file may have at most 268435456 bytes here")


# ---- refused system calls ----

FILTER = """
import ctypes, os, struct, sys
number, code = int(sys.argv[1]), int(sys.argv[2])
rows = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | code), (0x06, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *row) for row in rows))
filter = ctypes.create_string_buffer(struct.pack("@HP", len(rows), ctypes.addressof(program)))
call = ctypes.CDLL(None, use_errno=True).prctl
call.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
if call(38, 1, 0, 0, 0) or call(22, 2, ctypes.addressof(filter), 0, 0):
    sys.exit("SECCOMP " + os.strerror(ctypes.get_errno()))
os.execv(sys.argv[3], sys.argv[3:])
"""


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", CALLS["x86_64"])
def test_a_system_call_that_a_filter_refuses_is_named(tmp_path, call, code):
    numbers = CALLS.get(platform.machine())
    if numbers is None:
        pytest.skip(f"the numbers of system calls of {platform.machine()} are not in this test")
    done = serve(tmp_path, sys.executable, "-c", FILTER, str(numbers[call]), str(code))
    if "SECCOMP" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"the broker needs the system call {call}, and it is refused here" in done.stderr
    assert "seccomp profile" in done.stderr
