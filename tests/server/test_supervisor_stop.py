# SPDX-License-Identifier: Apache-2.0
"""Signals: ending cleanly, ending those who do not, and reading the configuration again."""

import signal
import time

import pytest
from supervisor_harness import wait_until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_workers_first_and_exits_0(start, number):
    broker = start().wait_ready()
    broker.signal(number)
    assert broker.wait() == 0
    assert broker.log.count("ended with exit code 0") == 2
    assert broker.log.splitlines()[-1].endswith("vibemq.server: stopped")


def test_new_connections_are_refused_as_soon_as_it_stops(start):
    broker = start(server__workers=1).wait_ready()
    assert broker.ask("hang")[2] == "hanging"  # the worker closed its listener and still runs
    broker.signal(signal.SIGTERM)
    broker.wait_log("stopping")
    with pytest.raises(ConnectionRefusedError):
        broker.connect()
    assert len(broker.workers()) == 1


def test_a_worker_that_does_not_end_in_time_is_killed_and_the_exit_code_says_so(start):
    broker = start(server__workers=1, server__shutdown_timeout_s=1).wait_ready()
    [pid] = broker.workers()
    assert broker.ask("hang")[2] == "hanging"
    broker.signal(signal.SIGTERM)
    assert broker.wait() == 1
    assert f"worker 0, pid {pid}, is killed: it did not end within 1 s" in broker.log


def test_the_time_to_finish_does_not_run_while_the_broker_is_paused(start):
    """As the freezer of a control group pauses it, or a suspended machine."""
    broker = start(server__workers=1, server__shutdown_timeout_s=2).wait_ready()
    broker.ask("hang")
    broker.signal(signal.SIGTERM)
    broker.wait_log("stopping")
    broker.signal(signal.SIGSTOP)
    time.sleep(4)  # longer than the workers have, which is what this test is about
    broker.signal(signal.SIGINT)  # read first when it runs again, and then the deadline is looked at
    broker.signal(signal.SIGCONT)
    assert broker.wait() == 1
    assert "is killed: a second SIGINT came while stopping" in broker.log
    assert "did not end within" not in broker.log


def test_a_second_signal_ends_it_at_once(start):
    broker = start(server__workers=1).wait_ready()
    broker.ask("hang")
    broker.signal(signal.SIGINT)
    broker.wait_log("stopping")
    broker.signal(signal.SIGINT)
    assert broker.wait() == 1
    assert "is killed: a second SIGINT came while stopping" in broker.log


def test_sigterm_twice_at_once_is_one_request(start):
    """So timeout(1) sends it: to the process, and then to its group."""
    broker = start(server__workers=1).wait_ready()
    broker.signal(signal.SIGTERM)
    broker.signal(signal.SIGTERM)
    assert broker.wait() == 0
    assert "is killed" not in broker.log


def test_sighup_applies_the_log_level_to_running_and_new_workers(start):
    broker = start(server__workers=1).wait_ready()
    assert broker.ask("level")[2] == "INFO"
    assert "this is debug" not in broker.log
    broker.write_config(server__workers=1, server__log_level="debug")
    broker.signal(signal.SIGHUP)
    broker.wait_log("SIGHUP: log level is debug")
    wait_until(lambda: broker.ask("level")[2] == "DEBUG", "the worker's level")
    with broker.connect() as connection:
        connection.sendall(b"exit 0\n")
        broker.wait_log("this is debug")


def test_sighup_names_what_waits_for_a_restart(start):
    broker = start().wait_ready()
    broker.write_config(store__durability="disk", server__workers=4)
    broker.signal(signal.SIGHUP)
    broker.wait_log("take effect only at the next start: server.workers, store.durability")


def test_sighup_with_a_bad_file_keeps_everything(start):
    broker = start().wait_ready()
    broker.write_config(server__log_level="loud")
    broker.signal(signal.SIGHUP)
    broker.wait_log("SIGHUP: the configuration is kept as it was")
    assert broker.ask()[1] in broker.workers()
