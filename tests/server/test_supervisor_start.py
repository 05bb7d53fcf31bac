# SPDX-License-Identifier: Apache-2.0
"""From `serve` to the ready line: what must be there, what is refused, and with which words."""

import itertools
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest
from supervisor_harness import once_within

from vibemq.access.users import add_user
from vibemq.storage.metadata import Metadata

READY_S_MAX = 1.5
TRIES_MAX = 10


def test_exactly_one_line_on_stdout_once_every_worker_accepts(start):
    broker = start(server__workers=3).wait_ready()
    assert re.fullmatch(
        rf"vibemq ready pid={broker.process.pid} workers=3 streams=127\.0\.0\.1:\d+\n", broker.ready_line
    )
    assert broker.log.count(" is ready, pid ") == 3
    broker.signal(signal.SIGTERM)
    assert broker.wait() == 0
    assert broker.process.stdout.read() == ""


def test_ready_within_a_second_and_a_half(start, tmp_path):
    folders = (str(tmp_path / f"data{number}") for number in itertools.count())

    def took_s():
        began = time.monotonic()
        start(server__data_dir=next(folders)).wait_ready()
        return time.monotonic() - began

    once_within(READY_S_MAX, TRIES_MAX, took_s)


def test_says_where_clients_are_sent_when_that_is_elsewhere(start):
    broker = start(streams__advertised_host="broker.example").wait_ready()
    assert "stream clients are told to connect to broker.example:the port above" in broker.log


def test_exit_codes_are_kept_even_if_the_starter_ignored_sigchld(start):
    old = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        broker = start()
    finally:
        signal.signal(signal.SIGCHLD, old)
    broker.wait_ready()
    broker.signal(signal.SIGTERM)
    assert broker.wait() == 0
    assert broker.log.count("ended with exit code 0") == 2


def test_port_zero_is_one_port_for_all_workers(start):
    broker = start(server__workers=3).wait_ready()
    seen = set()
    for _ in range(300):
        seen.add(broker.ask()[0])
        if len(seen) == 3:
            break
    assert seen == {0, 1, 2}


def test_process_titles_say_who_is_who(start):
    broker = start().wait_ready()
    titles = {Path(f"/proc/{pid}/cmdline").read_text().strip("\0") for pid in [broker.process.pid, *broker.workers()]}
    who = ("supervisor", "worker 0", "worker 1")
    assert titles == {f"vibemq: {each}, {broker.data_dir}" for each in who}, "and of which broker"


def test_worker_holds_its_own_listener_the_lock_and_the_board_but_nothing_of_others(start):
    broker = start(server__workers=3).wait_ready()
    files = broker.ask("files")[2]
    # Its listener, the connection that asks, and for connections that are handed over what it reads itself and what
    # each of the three reads; of the supervisor's own sockets none.
    assert files.count("socket:") == 2 + 1 + 3
    assert files.count("/data/lock") == 1
    assert files.count("memfd:vibemq-board") == 1
    assert files.count("[eventfd]") == 3
    assert "pidfd" not in files


def test_data_directory_is_made_for_its_owner_only(start):
    broker = start().wait_ready()
    assert broker.data_dir.stat().st_mode & 0o777 == 0o700
    assert (broker.data_dir / "meta.db").stat().st_mode & 0o077 == 0
    assert (broker.data_dir / "lock").read_text().strip() == str(broker.process.pid)


def test_log_has_one_line_for_each_event(start):
    broker = start().wait_ready()
    assert r"stub: two\nlines" in broker.log
    line = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ +(supervisor|worker \d)\[\d+\] [\w.]+: .+")
    assert all(line.fullmatch(text) for text in broker.log.splitlines())


def test_refuses_a_port_where_somebody_listens(start):
    with socket.create_server(("127.0.0.1", 0)) as other:
        broker = start(streams__port=other.getsockname()[1])
        assert broker.wait() == 1
    assert "vibemq: the streams door cannot listen on 127.0.0.1:" in broker.log
    assert "another program listens there" in broker.log
    assert "Traceback" not in broker.log


def test_refuses_the_port_of_another_broker_of_the_same_account(start, tmp_path):
    first = start().wait_ready()
    second = start(streams__port=first.port, server__data_dir=str(tmp_path / "other"))
    assert second.wait() == 1
    assert "another program listens there" in second.log
    assert first.ask()[1] in first.workers()


def test_refuses_a_data_directory_in_use_and_names_the_pid(start):
    first = start().wait_ready()
    second = start()
    assert second.wait() == 1
    assert f"is in use by the broker with pid {first.process.pid}" in second.log
    assert "hint: stop that broker first" in second.log


def test_waits_for_the_workers_of_a_supervisor_that_was_killed(start):
    first = start().wait_ready()
    workers = first.workers()
    for pid in workers:  # they cannot notice their supervisor's death before we say so
        os.kill(pid, signal.SIGSTOP)
    first.process.kill()
    first.wait()
    second = start()
    second.wait_log("waiting up to 5 s for them to end")
    for pid in workers:
        os.kill(pid, signal.SIGCONT)
    second.wait_ready()
    assert set(second.workers()).isdisjoint(workers)


def test_refuses_other_machines_while_nobody_has_a_password(start, tmp_path):
    broker = start(server__host="0.0.0.0")
    assert broker.wait() == 1
    assert "refusing to listen on 0.0.0.0" in broker.log
    assert "vibemq users add NAME" in broker.log

    add_user(Metadata(str(tmp_path / "data" / "meta.db")), "alice", "correct horse")
    broker = start(server__host="0.0.0.0").wait_ready()
    assert broker.host == "0.0.0.0"


def test_a_worker_that_cannot_start_fails_the_start(start):
    broker = start("broken")
    assert broker.wait() == 1
    assert "ended with exit code 3" in broker.log
    assert "cannot start" in broker.log
    assert broker.process.stdout.read() == ""


def test_refuses_to_start_without_a_door(start):
    broker = start(streams__enabled=False)
    assert broker.wait() == 1
    assert "vibemq: no door is open" in broker.log


def test_refuses_an_address_that_is_not_this_machines(start, tmp_path):
    (tmp_path / "data").mkdir()
    add_user(Metadata(str(tmp_path / "data" / "meta.db")), "alice", "correct horse")
    broker = start(server__host="192.0.2.1")  # reserved for documentation
    assert broker.wait() == 1
    assert "this machine does not have that address" in broker.log


def test_listens_on_ipv6(start):
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    broker = start(server__host="::1").wait_ready()
    assert f"streams=[::1]:{broker.port}" in broker.ready_line
    assert broker.ask()[1] in broker.workers()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
def test_gives_up_root_for_the_account_named(start, tmp_path):
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.owner() == "root" and folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    broker = start(server__user="nobody").wait_ready()
    for pid in [broker.process.pid, *broker.workers()]:
        status = Path(f"/proc/{pid}/status").read_text()
        assert re.search(r"^Uid:\s+65534\s+65534\s+65534", status, re.M)
        assert re.search(r"^Groups:\s+(65534 )?$", status, re.M)
    assert broker.data_dir.owner() == "nobody"


def test_an_unknown_account_is_refused(start):
    broker = start(server__user="no-such-account")
    assert broker.wait() == 1
    assert "there is no account 'no-such-account'" in broker.log
