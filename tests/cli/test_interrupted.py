# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends each command that waits with exit code 130 and without a traceback."""

import fcntl
import os
import pty
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from running import ENVIRONMENT, wait_until

from vibemq.cli.commands import main
from vibemq.cli.shell import contexts

PATIENCE_S = 60
QUEUES, STREAMS, BENCH, DATA, STORE = (
    "--url vibemq://127.0.0.1:{port}",
    "--url rabbitmq-stream://127.0.0.1:{port}",
    "--port {port}",
    "--data-dir {folder}",
    "--url s3://bucket --set remote.options=endpoint=http://127.0.0.1:{port},allow_http=true,region=x,"
    "access_key_id=a,secret_access_key=b",
)
#: command -> words behind it with which it waits for a server that never answers
WAIT = {
    "bench run": BENCH,
    "bench queues run": BENCH,
    "consume": f"q {QUEUES}",
    "ctl": f"list_queues {DATA}",
    "publish": f"q x {QUEUES}",
    "queues alter": f"q --ack-timeout 10 {QUEUES}",
    "queues create": f"q {QUEUES}",
    "queues delete": f"q --yes {QUEUES}",
    "queues info": f"q {QUEUES}",
    "queues list": QUEUES,
    "queues move": f"q r {QUEUES}",
    "queues purge": f"q --yes {QUEUES}",
    "queues replay": f"q {QUEUES}",
    "remote check": STORE.removeprefix("--url "),
    "remote list": STORE,
    "remote prune": STORE,
    "remote verify": STORE,
    "streams create": f"s {STREAMS}",
    "streams delete": f"s --yes {STREAMS}",
    "streams info": f"s {STREAMS}",
    "streams list": STREAMS,
    "streams offsets": f"s {STREAMS}",
    "streams publish": f"s x {STREAMS}",
    "streams tail": f"s {STREAMS}",
    "users add": f"v --password-stdin {DATA}",
    "users grant": f"u q publish {DATA}",
    "users passwd": f"u --password-stdin {DATA}",
    "users remove": f"u {DATA}",
    "users revoke": f"u q {DATA}",
}
#: command -> why it is not among these
OTHERS = {
    "backup": "below: it waits for a lock",
    "completion": "waits for nothing",
    "config": "waits for nothing",
    "ingest": "tests/spark/test_spark_commands.py",
    "install-service": "waits for systemctl only",
    "log dump": "waits for nothing",
    "log list": "waits for nothing",
    "log verify": "waits for nothing",
    "man": "waits for nothing",
    "restore": "waits for nothing",
    "serve": "Ctrl-C is its orderly end: tests/server/test_supervisor_stop.py",
    "spark-check": "Spark's Java ends with it",
    "users list": "reads the database",
    "users permissions": "reads the database",
    "users token": "reads the database",
}


def test_every_command_is_listed_here():
    leaves = {
        context.command_path.removeprefix("vibemq ")
        for context in contexts(main, "vibemq")
        if not isinstance(context.command, click.Group)
    }
    assert leaves == WAIT.keys() | OTHERS.keys()


class Silent:
    """A server at a TCP port, and at a data directory's socket, that takes connections and never answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tcp, self.unix = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
        words = ["users", "add", "u", "--password-stdin", "--data-dir", str(folder)]
        assert CliRunner().invoke(main, words, input="a long secret\n").exit_code == 0
        assert CliRunner().invoke(main, ["users", "grant", "u", "q", "publish", *words[-2:]]).exit_code == 0
        at = os.getcwd()
        os.chdir(folder)  # an address has room for 107 bytes
        self.unix.bind("ctl.sock")
        os.chdir(at)
        self.unix.listen()

    def words(self, text: str) -> list[str]:
        return text.format(port=self.tcp.getsockname()[1], folder=self.folder).split()


@pytest.fixture
def silent(tmp_path) -> Iterator[Silent]:
    made = Silent(tmp_path / "data")
    with made.tcp, made.unix:
        yield made


def heed() -> None:
    """Tests that run in the background of a shell ignore the signal, and their children would with them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def link(fd: Path) -> str:
    try:
        return os.readlink(fd)
    except FileNotFoundError:  # closed meanwhile
        return ""


def start(*words: str, **streams: int) -> subprocess.Popen:
    command = [sys.executable, "-m", "vibemq.cli", *words]
    pipe = subprocess.PIPE
    how = {"stdin": pipe, "stdout": pipe, "stderr": pipe, **streams}
    return subprocess.Popen(command, **how, env=ENVIRONMENT, text=True, preexec_fn=heed)


def interrupted(process: subprocess.Popen) -> tuple[int, str]:
    process.send_signal(signal.SIGINT)
    try:
        _, said = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    return process.returncode, said


@pytest.mark.parametrize("command", WAIT)
def test_ctrl_c_while_the_server_does_not_answer_is_130(silent, command):
    with start(*command.split(), *silent.words(WAIT[command])) as process:
        if "--password-stdin" in WAIT[command]:
            process.stdin.write("a long secret\n")
            process.stdin.flush()
        server = silent.unix if DATA in WAIT[command] else silent.tcp
        wait_until(lambda: process.poll() is not None or select.select([server], [], [], 0)[0], "a request")
        assert process.poll() is None, process.communicate()
        taken, _ = server.accept()
        with taken:
            code, said = interrupted(process)
    assert (code, "Traceback" in said) == (130, False), said


@pytest.mark.parametrize("words", [["users", "passwd", "u"], ["publish", "q", "--user", "u"]])
def test_ctrl_c_at_the_question_for_a_password_is_130(silent, words):
    ours, theirs = pty.openpty()
    where = silent.words(DATA if "users" in words else QUEUES)
    process = start(*words, *where, stdin=theirs, stderr=theirs)
    with process, os.fdopen(ours, "rb", buffering=0) as terminal:
        os.close(theirs)
        shown = b""
        while b"Password of u: " not in shown:
            shown += terminal.read(1000)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130


def test_ctrl_c_while_a_backup_waits_for_commits_is_130(tmp_path):
    data = tmp_path / "data"
    words = ["--data-dir", str(data)]
    assert CliRunner().invoke(main, ["ctl", "add_vhost", "v", *words]).exit_code == 0
    with open(data / "transactions.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with start("backup", str(tmp_path / "copy"), *words) as process:
            opened = Path(f"/proc/{process.pid}/fd")
            wait_until(lambda: str(data / "transactions.lock") in map(link, opened.iterdir()), "a backup that waits")
            code, said = interrupted(process)
    assert (code, "Traceback" in said) == (130, False), said
