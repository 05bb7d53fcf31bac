# SPDX-License-Identifier: Apache-2.0
"""Brokers for the Spark tests, each in folders and on ports of its own: VibeMQ, and Debian's RabbitMQ."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.servers import free_port
from vibemq.client.streams import StreamsConnection
from vibemq.errors import VibeMQError

RABBITMQ_HOME = Path("/usr/lib/rabbitmq")
START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 30.0


def end_group(process: subprocess.Popen, number: int = signal.SIGTERM) -> None:
    """End a process that leads its own group, and whatever it has started; never anything else."""
    for each in (number, signal.SIGKILL):
        try:
            os.killpg(process.pid, each)
        except ProcessLookupError:
            break
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            continue
    process.wait(STOP_SECONDS_MAX)


class Broker:
    """What the tests ask of either."""

    name: str
    port: int

    @property
    def endpoints(self) -> str:
        return f"127.0.0.1:{self.port}"

    def connect(self) -> StreamsConnection:
        return StreamsConnection.connect("127.0.0.1", self.port, timeout_s=20)

    def publish(self, stream: str, messages: list[bytes], arguments: dict | None = None) -> None:
        """Create the stream if need be; come back when every message is confirmed."""
        with self.connect() as connection:
            connection.create(stream, arguments, exist_ok=True)
            with connection.publisher(stream) as publisher:
                publisher.publish(messages)
                publisher.flush()

    def delete(self, stream: str) -> None:
        with self.connect() as connection:
            connection.delete(stream)


class VibeMQ(Broker):
    name = "vibemq"

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.workers = workers
        self.port = self.native_port = 0
        self.process: subprocess.Popen | None = None

    def start(self) -> VibeMQ:
        command = [sys.executable, "-m", "vibemq.cli", "serve", "--workers", str(self.workers)]
        command += ["--streams-port", str(self.port), "--native-port", str(self.native_port)]
        command += [
            "--signalr-port",
            "0",
            "--micromsg2-port",
            "0",
            "--admin-port",
            "0",
            "--data-dir",
            str(self.folder / "data"),
        ]
        with open(self.folder / "broker.log", "ab") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        doors = dict(each.split("=", 1) for each in line.split() if "=" in each)
        if "streams" not in doors:
            self.kill()
            raise RuntimeError(f"no ready line but {line!r}: {(self.folder / 'broker.log').read_text()[-2000:]}")
        self.port = int(doors["streams"].rpartition(":")[2])
        self.native_port = int(doors["native"].rpartition(":")[2])
        return self

    def kill(self) -> None:
        """kill -9 of the supervisor and all workers at once."""
        if self.process is not None:
            end_group(self.process, signal.SIGKILL)
            self.process = None

    def stop(self) -> None:
        if self.process is not None:
            end_group(self.process)
            self.process = None


class RabbitMQ(Broker):
    name = "rabbitmq"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen | None = None
        self.names: subprocess.Popen | None = None

    @staticmethod
    def missing() -> str:
        """Why it cannot be used here, or nothing."""
        if not (RABBITMQ_HOME / "bin" / "rabbitmq-server").exists():
            return "Debian's rabbitmq-server is not installed"
        return "" if shutil.which("epmd") else "erlang's epmd is not installed"

    def start(self) -> RabbitMQ:
        names_port = free_port()
        (self.folder / "enabled_plugins").write_text("[rabbitmq_stream].\n")
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{free_port()}\nstream.listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            "loopback_users.guest = true\n"
        )
        environment = {
            **os.environ,
            "HOME": str(self.folder),  # the cookie lies here
            "ERL_EPMD_PORT": str(names_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"spark{os.getpid()}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
        }
        for name in ("mnesia", "log"):
            (self.folder / name).mkdir(exist_ok=True)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        # A name server of our own, in the foreground, so that none is left running.
        self.names = subprocess.Popen(["epmd", "-port", str(names_port)], env=environment, **quiet)
        self.process = subprocess.Popen([RABBITMQ_HOME / "bin" / "rabbitmq-server"], env=environment, **quiet)
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                self.connect().close()
                return self
            except VibeMQError as failed:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    self.stop()
                    raise RuntimeError(f"RabbitMQ did not come up: {failed}") from failed
                time.sleep(0.3)

    def stop(self) -> None:
        for process in (self.process, self.names):
            if process is not None:
                end_group(process)
        self.process = self.names = None
