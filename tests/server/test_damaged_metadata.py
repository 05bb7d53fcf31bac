# SPDX-License-Identifier: Apache-2.0
"""A broker with a damaged meta.db does not start, and names the file and the remedy."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys

import pytest
from running import ENVIRONMENT, SERVE, broker, wait_until

import vibemq.client
from vibemq.errors import VibeMQError

PASSWORD = "correct horse"


def command(data, *words: str, says: str = "") -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "vibemq.cli", *words, "--data-dir", str(data)]
    return subprocess.run(run, input=says, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)


def refused(data) -> str:
    """Return the message of a refused start."""
    done = subprocess.run(
        [*SERVE, "--data-dir", str(data)], capture_output=True, text=True, env=ENVIRONMENT, timeout=60
    )
    assert done.returncode == 1 and not done.stdout and "Traceback" not in done.stderr, done.stderr
    return done.stderr


def url(served, user: str = "ada") -> str:
    return f"vibemq://{user}:{PASSWORD.replace(' ', '%20')}@{served.host}:{served.native_port}"


def killed(data) -> None:
    """Serve, change users and queues, and end by SIGKILL in the same boot."""
    data.mkdir(mode=0o700)
    added = command(data, "users", "add", "ada", "--password-stdin", says=PASSWORD)
    assert added.returncode == 0, added.stderr
    with pytest.raises(AssertionError, match="did not stop cleanly"), broker(data) as served:
        with vibemq.client.connect(url(served)) as client:
            client.create_queue("orders", durability="disk")
            client.create_user("eve", PASSWORD)
            client.grant("eve", "orders", "Subscribe")
            client.revoke("eve", "orders")
        pids = [*served.worker_pids(), served.admin_pid()]
        for pid in [served.process.pid, *pids]:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "their end")


def flip(path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_one_bit_of_the_log_refuses_the_start_and_the_commands_and_the_loss_can_be_accepted(tmp_path):
    data = tmp_path / "data"
    killed(data)
    kept = tmp_path / "kept"
    shutil.copytree(data, kept, ignore=shutil.ignore_patterns("*.sock"))
    flip(data / "meta.db-wal", 1000)
    said = refused(data)
    assert f"vibemq: {data}/meta.db-wal is damaged: its frame 1, at byte 32, does not fit its checksum" in said
    assert "frames were committed" in said and "hint: restore" in said
    listed = command(data, "users", "list")
    assert listed.returncode == 1 and "meta.db-wal is damaged" in listed.stderr
    for name in ("meta.db-wal", "meta.db-shm"):
        os.rename(data / name, tmp_path / name)
    assert "changes of users and permissions were answered, and only" in refused(data)
    os.unlink(data / "meta.check")
    with broker(data) as served, vibemq.client.connect(url(served)) as client:
        assert "eve" not in {user.name for user in client.list_users()}
    with broker(kept) as served, vibemq.client.connect(url(served)) as client:  # as it was
        assert {user.name for user in client.list_users()} >= {"ada", "eve"}
        assert not client.permissions("eve") and client.queue_info("orders")


def test_a_lost_user_table_opens_the_native_port_to_no_client(tmp_path):
    data = tmp_path / "data"
    killed(data)
    for name in ("meta.db", "meta.db-wal", "meta.db-shm"):
        os.unlink(data / name)
    assert f"{data}/meta.db is missing, and {data}/meta.check says that users or streams were in it" in refused(data)
    assert command(data, "users", "add", "mallory", "--password-stdin", says=PASSWORD).returncode == 1
    assert not (data / "meta.db").exists()


@pytest.mark.parametrize("harm", ["missing", "empty"])
def test_lost_metadata_beside_logs_of_streams_opens_the_native_port_to_no_client(tmp_path, harm):
    data = tmp_path / "data"
    killed(data)
    for path in data.glob("meta.*"):
        os.unlink(path)
    if harm == "empty":
        (data / "meta.db").touch()
    assert f"{data}/meta.db is {harm}, and {data}/streams has logs of streams" in refused(data)
    assert command(data, "users", "add", "mallory", "--password-stdin", says=PASSWORD).returncode == 1
    os.rename(data / "streams", tmp_path / "streams")
    with broker(data) as served, vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}") as client:
        assert not client.list_queues()


def test_an_orderly_stop_leaves_no_log_and_any_change_of_the_file_since_is_refused(tmp_path):
    data = tmp_path / "data"
    with broker(data) as served, vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}") as client:
        client.create_queue("orders", durability="disk")
    assert not list(data.glob("meta.db-*"))
    flip(data / "meta.db", (data / "meta.db").read_bytes().index(b"orders") + 1)
    assert f"{data}/meta.db is damaged: since the broker was stopped its content has changed" in refused(data)
    flip(data / "meta.db", (data / "meta.db").read_bytes().index(b"ders") - 1)
    with broker(data) as served, vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}") as client:
        assert client.queue_info("orders")


def test_users_are_changed_by_commands_between_two_runs_and_the_broker_starts_again(tmp_path):
    data = tmp_path / "data"
    killed(data)
    with broker(data):
        pass
    for words in (("users", "remove", "eve"), ("users", "passwd", "ada", "--password-stdin")):
        done = command(data, *words, says=PASSWORD)
        assert done.returncode == 0, done.stderr
    with broker(data) as served, vibemq.client.connect(url(served)) as client:
        assert "eve" not in {user.name for user in client.list_users()}
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    assert command(data, "backup", str(backup)).returncode == 0
    assert command(restored, "restore", str(backup)).returncode == 0
    with broker(restored) as served, vibemq.client.connect(url(served)) as client:
        assert client.queue_info("orders")
        with pytest.raises(VibeMQError), vibemq.client.connect(url(served, "eve")):
            pass


def test_a_row_that_another_program_changed_is_refused_until_the_operator_accepts_it(tmp_path):
    data = tmp_path / "data"
    killed(data)
    with sqlite3.connect(data / "meta.db") as db:  # the log is carried over, and no digest of the file is kept
        db.execute("UPDATE users SET is_superuser = 1 WHERE name = 'eve'")
    db.close()
    said = refused(data)
    assert "users, permissions or virtual hosts are not as they were written; nobody is let in" in said
    assert f"move {data}/meta.check to another folder and start again" in said
    with sqlite3.connect(data / "meta.db") as db:
        db.execute("UPDATE users SET is_superuser = 0 WHERE name = 'eve'")
        db.execute("UPDATE streams SET queue = json_set(queue, '$.max_messages', 7) WHERE name = 'orders'")
    db.close()
    said = refused(data)
    assert "rows of streams are not as they were written" in said
    assert f"to accept all rows as they are now, move {data}/meta.check to another folder and start again" in said
    assert "rows of streams" in command(data, "users", "list").stderr
    os.unlink(data / "meta.check")
    with broker(data) as served, vibemq.client.connect(url(served)) as client:
        assert client.queue_info("orders")
    assert command(data, "users", "list").returncode == 0
