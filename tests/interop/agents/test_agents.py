# SPDX-License-Identifier: Apache-2.0
"""Agents of Debian that speak HTTP write lines to a stream, through a restart of the broker: every line is there once.

Debian has them as syslog-ng-core, syslog-ng-mod-http, collectd-core and libyajl2; without them the test is skipped.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from running import Restartable, restartable, wait_until

from vibemq.client._streams import read_message
from vibemq.client.streams import StreamsConnection

STREAM = "agents"
LINES = 3000
BEGAN_S = 1_700_000_000

SYSLOG_NG = """\
@version: {version}
options {{ stats-freq(0); time-reopen(1); }};
source lines {{ file("{folder}/in.log" follow-freq(0.1) flags(no-parse)); }};
destination broker {{
    http(url("http://127.0.0.1:{port}/api/stream/%2F/{stream}/lines") method("POST")
         user("guest") password("guest") headers("Content-Type: text/plain") body("${{MESSAGE}}")
         batch-lines(100) batch-timeout(50) workers(1) timeout(60) retries(1000));
}};
log {{ source(lines); destination(broker); flags(flow-control); }};
"""
COLLECTD = """\
BaseDir "{folder}"
PIDFile "{folder}/pid"
Hostname "machine"
FQDNLookup false
Interval 3600
LoadPlugin unixsock
LoadPlugin write_http
<Plugin unixsock>
    SocketFile "{folder}/socket"
    DeleteSocket true
</Plugin>
<Plugin write_http>
    <Node "broker">
        URL "http://127.0.0.1:{port}/api/stream/%2F/{stream}/lines"
        User "guest"
        Password "guest"
        Format "JSON"
    </Node>
</Plugin>
"""


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Restartable]:
    with restartable(tmp_path / "data") as made:
        with connected(made) as client:
            client.create(STREAM)
        yield made


def connected(made: Restartable) -> StreamsConnection:
    return StreamsConnection.connect(made.running.host, made.running.port, user="guest", password="guest")


def stored(made: Restartable) -> list[bytes]:
    """The bodies of all messages."""
    found: list[bytes] = []
    with connected(made) as client:
        if end := client.next_offset(STREAM):
            for chunk in client.read_chunks(STREAM, 0):
                found += [read_message(message)[0] for _, message in chunk.messages()]
                if chunk.next_offset >= end:
                    break
    return found


def wait_for(made: Restartable, count: int) -> None:
    def is_there() -> bool:
        with connected(made) as client:
            return client.next_offset(STREAM) >= count

    wait_until(is_there, f"{count} messages", 120)


def asked(path: Path, commands: list[str]) -> None:
    """Have collectd do these, one after the other."""
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(str(path))
        with control.makefile("rw") as said:
            for command in commands:
                print(command, file=said, flush=True)
                assert said.readline().startswith("0 "), command


def program(name: str, packages: str) -> str:
    path = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if path is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install {packages})")
    return path


@contextmanager
def agent(command: list[str], log: Path) -> Iterator[None]:
    """Runs in the foreground; it ends in an orderly way."""
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            yield
            assert process.poll() is None, log.read_text()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text()
        finally:
            process.kill()


def test_syslog_ng_writes_every_line_once_through_restarts(made: Restartable, tmp_path: Path) -> None:
    syslog_ng = program("syslog-ng", "syslog-ng-core syslog-ng-mod-http")
    said = subprocess.run([syslog_ng, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"^Config version: (\S+)", said, re.MULTILINE)
    assert version, said
    if not re.search(r"^Available-Modules:.*\bhttp\b", said, re.MULTILINE):
        pytest.skip("syslog-ng has no http destination (Debian: apt-get install syslog-ng-mod-http)")
    port = made.running.admin_port
    config = SYSLOG_NG.format(version=version[1], folder=tmp_path, port=port, stream=STREAM)
    (tmp_path / "agent.conf").write_text(config)
    lines = tmp_path / "in.log"
    lines.write_text("")
    files = {"cfgfile": "agent.conf", "persist-file": "persist", "control": "control", "pidfile": "pid"}
    command = [syslog_ng, "--foreground", "--no-caps", *(f"--{name}={tmp_path / file}" for name, file in files.items())]
    with agent(command, tmp_path / "agent.log"):
        for part in range(3):
            with lines.open("a") as out:
                out.writelines(f"line {number}\n" for number in range(part * LINES, (part + 1) * LINES))
            wait_for(made, part * LINES + 1)  # it is in the middle of it
            made.restart()
            wait_for(made, (part + 1) * LINES)
    assert stored(made) == [b"line %d" % number for number in range(3 * LINES)]


def test_collectd_writes_every_value_once_before_and_after_a_restart(made: Restartable, tmp_path: Path) -> None:
    collectd = program("collectd", "collectd-core libyajl2")
    (tmp_path / "agent.conf").write_text(COLLECTD.format(folder=tmp_path, port=made.running.admin_port, stream=STREAM))
    with agent([collectd, "-f", "-C", str(tmp_path / "agent.conf")], tmp_path / "agent.log"):
        wait_until((tmp_path / "socket").exists, "its socket", 30)
        for part in range(2):
            values = range(part * 500, (part + 1) * 500)
            asked(
                tmp_path / "socket", [f"PUTVAL machine/test/gauge-count interval=1 {BEGAN_S + n}:{n}" for n in values]
            )

            def is_there(count: int = len(values) * (part + 1)) -> bool:
                asked(tmp_path / "socket", ["FLUSH plugin=write_http/broker"])  # values that its threads have written
                with connected(made) as client:
                    return client.next_offset(STREAM) >= count

            wait_until(is_there, "all values", 60)  # collectd drops values while nobody listens
            made.restart()
    found = [json.loads(body) for body in stored(made)]
    assert sorted(int(value["values"][0]) for value in found) == list(range(1000))  # by several threads of its own
