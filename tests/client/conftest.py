# SPDX-License-Identifier: Apache-2.0
"""Real brokers for the client's tests: ours, and RabbitMQ where Debian's package is installed."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vibemq.client.streams import StreamsConnection
from vibemq.errors import VibeMQError

RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_TIMEOUT_S = 90
END_TIMEOUT_S = 30


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(command, environment=None, **options):
    """A process that leads a group of its own; the group, and nothing else, is ended."""
    process = subprocess.Popen(
        command, env={**os.environ, **(environment or {})}, start_new_session=True, stderr=subprocess.DEVNULL, **options
    )
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_TIMEOUT_S)


def await_port(port: int, process: subprocess.Popen) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            StreamsConnection.connect("127.0.0.1", port).close()
            return
        except VibeMQError:
            assert process.poll() is None, "the broker ended while it was starting"
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


@pytest.fixture(scope="session")
def rabbitmq_port(tmp_path_factory):
    if not RABBITMQ.exists() or shutil.which("epmd") is None:
        pytest.skip("Debian's rabbitmq-server is not installed")
    folder, port, names_port = tmp_path_factory.mktemp("rabbitmq"), free_port(), free_port()
    (folder / "enabled_plugins").write_text("[rabbitmq_stream].\n")
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{free_port()}\nstream.listeners.tcp.1 = 127.0.0.1:{port}\n"
    )
    for name in ("mnesia", "log"):
        (folder / name).mkdir()
    environment = {
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(names_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"client{os.getpid()}@localhost",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
    }
    quiet = {"stdout": subprocess.DEVNULL}
    with (
        running(["epmd", "-port", str(names_port)], environment, **quiet),
        running([str(RABBITMQ)], environment, **quiet) as process,
    ):
        await_port(port, process)
        yield port


@pytest.fixture(scope="session")
def own_port(tmp_path_factory):
    command = [
        sys.executable,
        "-m",
        "vibemq.cli",
        "serve",
        "--workers",
        "2",
        "--streams-port",
        "0",
        "--native-port",
        "0",
    ]
    command += ["--data-dir", str(tmp_path_factory.mktemp("vibemq") / "data")]
    with running(command, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        doors = dict(word.split("=", 1) for word in line.split() if "=" in word)
        assert "streams" in doors, f"needed a line with the ports, had {line!r}"
        port = int(doors["streams"].rpartition(":")[2])
        await_port(port, process)
        yield port


@pytest.fixture(params=["vibemq", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def broker_port(request):
    """Each test with this runs against both."""
    return request.getfixturevalue("own_port" if request.param == "vibemq" else "rabbitmq_port")
