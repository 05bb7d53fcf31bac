# SPDX-License-Identifier: Apache-2.0
"""Signals: ending cleanly, ending those who do not, and reading the configuration again."""

import errno
import os
import signal
import socket
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from other_boot import OTHER_BOOT, boot_of, write_in_another_boot
from supervisor_harness import wait_until

import vibemq
import vibemq.storage.log as logs
from vibemq.config import Config, Server
from vibemq.errors import SetupError, StorageError
from vibemq.server import datadir, stopping
from vibemq.server.processes import fork
from vibemq.server.stopping import NOTED_STREAMS_MIN
from vibemq.storage.metadata import Metadata


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


def test_a_stop_with_very_many_streams_is_noted_and_a_new_boot_starts_without_a_look_at_them(start):
    broker = start().wait_ready()
    broker.end()
    with closing(Metadata(str(broker.data_dir / "meta.db"))) as metadata:
        names = [(f"s{n}", str(n)) for n in range(NOTED_STREAMS_MIN)]
        metadata.create_super_stream("/", "many", names, {}, "os", len(names), lambda of: logs.create(of.directory))
        directories = [Path(record.directory) for record in metadata.streams()]
    lock = broker.data_dir / "lock"

    def reboot() -> None:
        for directory in directories:
            write_in_another_boot(directory)
        lock.write_text(lock.read_text().replace(this_boot.hex(), OTHER_BOOT.hex()))

    this_boot = boot_of(directories[0])
    for _ in range(2):
        broker = start().wait_ready()
        assert lock.read_text() == f"{broker.process.pid}\n"
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
        assert "recovered" not in broker.log
        assert lock.read_text() == f"stopped {this_boot.hex()} {vibemq.__version__}\n"
        reboot()
    broker = start().wait_ready()
    broker.end()  # killed: nothing is noted
    reboot()
    broker = start().wait_ready()
    assert f"recovered {len(directories)} streams" in broker.log


def test_a_stop_that_another_version_noted_is_not_believed(tmp_path):
    datadir.prepare(str(tmp_path))
    fd, stopped = datadir.acquire(str(tmp_path))
    assert stopped == b""
    datadir.note_stop(fd)
    noted = (tmp_path / "lock").read_text()
    os.close(fd)
    fd, stopped = datadir.acquire(str(tmp_path))
    assert f"stopped {stopped.hex()} {vibemq.__version__}\n" == noted
    os.close(fd)
    (tmp_path / "lock").write_text(noted.replace(vibemq.__version__, "0.0.1"))
    fd, stopped = datadir.acquire(str(tmp_path))
    assert stopped == b""
    os.close(fd)


def test_a_start_that_is_killed_right_after_it_took_the_note_away_leaves_none_to_believe(tmp_path, monkeypatch):
    datadir.prepare(str(tmp_path))
    fd, _ = datadir.acquire(str(tmp_path))
    datadir.note_stop(fd)
    os.close(fd)
    synced = []

    def fails(fd):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(datadir.os, "fsync", fails)
    with pytest.raises(SetupError, match=f"cannot write {tmp_path}/lock: Input/output error"):
        datadir.acquire(str(tmp_path))
    monkeypatch.setattr(datadir.os, "fsync", synced.append)
    fd, stopped = datadir.acquire(str(tmp_path))
    assert stopped == b""
    assert synced == [fd], "the page cache says that the note is gone, and the disk may not"
    os.close(fd)


def test_all_file_systems_that_streams_lie_on_are_put_on_the_disk(tmp_path, monkeypatch):
    datadir.prepare(str(tmp_path))
    synced = set()
    monkeypatch.setattr(datadir.logs, "sync_all", lambda path: synced.add(os.stat(path).st_dev))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        assert os.stat(elsewhere).st_dev != os.stat(tmp_path).st_dev
        (tmp_path / "streams" / "0123456789abcdef").symlink_to(elsewhere)
        datadir.put_on_disk(str(tmp_path))
        assert synced == {os.stat(elsewhere).st_dev, os.stat(tmp_path).st_dev}


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """Of a broker that has just stopped: its configuration, the lock's descriptor, and where its signals come."""
    monkeypatch.setattr(stopping, "NOTED_STREAMS_MIN", 0)
    monkeypatch.setattr(logs, "_refused", {})
    datadir.prepare(str(tmp_path))
    fd, _ = datadir.acquire(str(tmp_path))
    signals, sender = socket.socketpair()
    with signals, sender:
        yield Config(server=Server(data_dir=str(tmp_path))), fd, signals, sender
    os.close(fd)


def test_a_disk_that_takes_not_all_leaves_the_stop_unnoted(stopped, tmp_path, monkeypatch, caplog):
    def fails(path):
        raise StorageError("ERR_IO", f"{path}: input/output error")

    config, fd, signals, _ = stopped
    monkeypatch.setattr(datadir.logs, "sync_all", fails)
    with caplog.at_level("INFO"):
        stopping.note_stop(config, fd, signals)
    assert "the next start will look at every stream" in caplog.text
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_another_signal_to_end_is_not_kept_waiting_by_a_slow_disk(stopped, tmp_path, monkeypatch):
    config, fd, signals, sender = stopped
    ours, theirs = os.pipe()
    pids = []

    def forked(*how):
        pids.append(fork(*how))
        return pids[0]

    def until_we_end_it(path):
        os.close(theirs)
        os.read(ours, 1)

    monkeypatch.setattr(stopping, "fork", forked)
    monkeypatch.setattr(datadir.logs, "sync_all", until_we_end_it)
    sender.send(bytes([signal.SIGTERM]))
    stopping.note_stop(config, fd, signals)
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    os.close(theirs)
    os.close(ours)
    assert os.waitpid(pids[0], 0)[1] == 0
