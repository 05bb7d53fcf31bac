# SPDX-License-Identifier: Apache-2.0
"""The admin process dies, hangs and comes back, and no worker is hurt; workers die, and it goes on."""

import os
import signal
import subprocess
import threading

import pytest
from http_caller import STREAM, Http, wait_until
from peers.streams import connected, is_alive, kill, on_every_worker
from running import ENVIRONMENT, SERVE, Running, broker

from vibemq.protocols.streams.spec import Key


def test_an_admin_process_that_is_killed_is_replaced_and_nobody_else_notices(tmp_path):
    with broker(tmp_path / "data") as running, connected(running) as peer:
        http, workers = Http(running), running.worker_pids()
        peer.create("before")
        for _ in range(3):
            old = running.admin_pid()
            kill(old)
            assert http.get("queues")[0]["name"] == "before"  # who connects meanwhile waits, and is not refused
            assert running.admin_pid() != old
        assert running.worker_pids() == workers
        assert peer.code(Key.CREATE, stream="after", arguments={}) == 1


def test_workers_that_are_killed_are_asked_again_once_they_are_back(tmp_path):
    with broker(tmp_path / "data") as running:
        http, old = Http(running), running.worker_pids()
        for pid in old:
            kill(pid)
        wait_until(lambda: len(set(running.worker_pids()) - set(old)) == 2, "new workers")
        with connected(running):
            wait_until(lambda: len(http.get("connections")) == 1, "the connection")
        assert http.raw("GET", "/health").status == 200


def test_a_worker_that_hangs_is_left_out_and_the_rest_is_shown(tmp_path):
    with broker(tmp_path / "data") as running:
        http, opened = Http(running), []
        chosen = list(on_every_worker(running, opened))
        pid, *_ = running.worker_pids()
        os.kill(pid, signal.SIGSTOP)
        try:
            assert 1 <= len(http.get("connections")) < len(opened) + 1
            assert http.raw("GET", "/health").status == 503
            assert http.status("PUT", "queues", "/", "meanwhile", body=STREAM) == 201
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: len(http.get("connections")) == len(opened), "all of them")
        assert http.raw("GET", "/health").status == 200
        for peer in [*opened, *chosen]:
            peer.socket.close()


def test_nothing_is_left_when_the_supervisor_is_killed(tmp_path):
    with pytest.raises(AssertionError, match="did not stop cleanly"), broker(tmp_path / "data") as running:
        pids = [running.admin_pid(), *running.worker_pids()]
        kill(running.process.pid)
        wait_until(lambda: not any(map(is_alive, pids)), "the end of all processes")
    with broker(tmp_path / "data") as running:  # over the socket that was left
        assert Http(running).get("queues") == []


def test_an_admin_process_that_hangs_does_not_hold_up_the_stop(tmp_path):
    # The time for workers is longer than the broker fixture waits.
    with broker(tmp_path / "data", "--shutdown-timeout", "600") as running:
        hung = running.admin_pid()
        os.kill(hung, signal.SIGSTOP)
    assert not is_alive(hung)


def test_the_api_can_be_switched_off(tmp_path):
    with broker(tmp_path / "data", "--set", "admin.enabled=false") as running:
        assert running.admin_port == 0
        assert running.admin_pid()  # `vibemq ctl` needs it


def test_other_machines_are_let_in_only_when_a_user_exists(tmp_path):
    flags = ("--set", "admin.host=0.0.0.0")
    command = [*SERVE, "--data-dir", str(tmp_path / "data"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert done.returncode == 1
    assert "refusing to listen on 0.0.0.0" in done.stderr


def test_many_callers_at_once_are_all_answered(managed):
    codes: list[int] = []
    callers = [
        threading.Thread(target=lambda: codes.append(Http(managed).status("GET", "overview"))) for _ in range(40)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert codes == [200] * 40


def test_hundreds_of_connections_come_whole_in_pieces(managed: Running):
    opened = [connected(managed) for _ in range(300)]
    try:
        shown = {connection["name"] for connection in Http(managed).get("connections")}
        ours = {
            " -> ".join(f"{h}:{p}" for h, p in (peer.socket.getsockname(), peer.socket.getpeername()))
            for peer in opened
        }
        assert ours <= shown
    finally:
        for peer in opened:
            peer.socket.close()
