# SPDX-License-Identifier: Apache-2.0
"""What a run does, what every server under it has, and what the run gave.

A Peer holds one connection for commands and makes the connections whose sockets the load threads then own.
"""

from __future__ import annotations

import os
import socket
import struct
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from vibemq import openssl
from vibemq.addresses import host_port, parse_host
from vibemq.bench._flow import Consumer, Flow, Histogram, Publisher, Tally, Tunnel
from vibemq.errors import UserError, VibeMQError

BOTH = "publish and consume at the same time"
MODES = {
    "pub": "publish, and wait for every confirm",
    "con": "consume what an earlier run left (--keep)",
    "both": BOTH,
    "pubsub": BOTH,
    "rtt": "publish one message at a time and measure the way to its confirm and back",
    "lat": "publish at --rate and measure each message from its scheduled sending to its arrival",
}
READ_SIZE = 1 << 16
COUNTS = ("sent", "confirmed", "consumed", "chunks", "disordered", "repeated")
PERCENTILES = {"p50": 50.0, "p99": 99.0, "p999": 99.9, "p9999": 99.99}


def option(default: Any, help: str = "", flags: str = "", repr: bool = True) -> Any:
    """A field that is an option of `vibemq bench`; flags: --name-of-the-field. A subclass may give another default."""
    return field(default=default, repr=repr, metadata={"flags": flags, "help": help})


@dataclass(frozen=True)
class Load:
    """What every protocol's loads have. `rate` is of all publishers together, 0: as fast as can be.

    apart: the server runs on the last core and the load threads on the first. Left alone, the kernel sometimes puts
    both ends of a round trip on one core, where it takes a quarter of the time, and sometimes not.
    """

    host: str = option("127.0.0.1")
    port: int = option(0, "0: the protocol's own.")
    user: str = option("")
    password: str = option("", "Or in VIBEMQ_PASSWORD.", repr=False)
    tls_ca: str = option("", "Speak TLS with a server that this file vouches for.")
    mode: str = option("pub", "; ".join(f"{mode}: {meaning}" for mode, meaning in MODES.items()) + ".")
    messages: int = option(1_000_000, "In all.", "-n --messages")
    size_bytes: int = option(100, "Of a body, bytes.", "--size")
    publishers: int = option(1, "Connections that publish.", "--publishers --producers")
    consumers: int = option(1, "Connections that consume.")
    window: int = option(10_000, "Unconfirmed per publisher; 1 for --mode rtt.")
    group: int = option(1, "Frames in a send (closed loop).")
    rate: float = option(0.0, "Messages/s of all publishers, scheduled: open loop.")
    verify: bool = option(False, "Check that messages come in order, all of them.")
    keep: bool = option(False, "Leave what was published, for a later --mode con.")
    timeout_s: float = option(60.0, "s", "--timeout")
    broker_pid: int = option(0, "Also report the CPU of this process and its descendants.")
    apart: bool = option(False, "That process on the last core, the load on the first.")
    protocol: str = ""

    counts: ClassVar[tuple[str, ...]] = ("messages", "size_bytes", "publishers", "consumers", "window", "group")
    modes: ClassVar[dict[str, str]] = MODES

    @property
    def publishes(self) -> bool:
        return self.mode != "con"

    @property
    def consumes(self) -> bool:
        return self.mode not in ("pub", "rtt")

    @property
    def timed(self) -> bool:
        return self.mode in ("rtt", "lat")

    def settings(self) -> dict[str, Any]:
        """What stands beside the figures."""
        return {}

    def check(self) -> None:
        """Refuses what would not measure what it says."""
        if self.mode not in self.modes:
            raise UserError(f"mode: needed one of {', '.join(self.modes)}, had {self.mode}")
        for name in self.counts:
            if getattr(self, name) < 1:
                raise UserError(f"{name}: needed 1 or more, had {getattr(self, name)}")
        if self.mode == "lat" and not self.rate:
            raise UserError("mode lat: needed a rate, had none", hint="Give --rate, for example 20000.")
        if self.apart and (not self.broker_pid or len(os.sched_getaffinity(0)) < 2):
            raise UserError("apart: needed two cores and the server's process id")


@dataclass(slots=True)
class Result:
    """Rates are from the common start to the last that was heard of either: an ack, a delivery."""

    load: Load
    sent: int = 0
    confirmed: int = 0
    consumed: int = 0
    chunks: int = 0
    disordered: int = 0
    repeated: int = 0
    wall_s: float = 0.0
    publish_s: float = 0.0
    consume_s: float = 0.0
    broker_cpu_s: float = 0.0
    client_cpu_s: float = 0.0
    latencies: Histogram = field(default_factory=Histogram)
    confirms: Histogram = field(default_factory=Histogram)

    def add(self, publishers: Iterable[Publisher], consumers: Iterable[Consumer], start_ns: int) -> None:
        for publisher in publishers:
            self.sent += publisher.sent
            self.confirmed += publisher.confirmed
            self.publish_s = max(self.publish_s, (publisher.last_ns - start_ns) / 1e9)
            self.confirms.merge(publisher.confirms)
        for consumer in consumers:
            self.consumed += consumer.received
            self.disordered += consumer.disordered
            self.chunks += getattr(consumer, "chunks", 0)
            self.consume_s = max(self.consume_s, (consumer.last_ns - start_ns) / 1e9)
            self.latencies.merge(consumer.latencies)

    @property
    def handled(self) -> int:
        """How many messages the CPU time is shared among."""
        return max(self.confirmed, self.consumed, 1)

    def figures(self) -> dict[str, Any]:
        """Named with units: the JSON line."""
        load = self.load
        published_per_s = self.confirmed / self.publish_s if self.publish_s > 0 else 0.0
        consumed_per_s = self.consumed / self.consume_s if self.consume_s > 0 else 0.0
        figures: dict[str, Any] = {
            "protocol": load.protocol,
            "mode": load.mode,
            "size_bytes": load.size_bytes,
            "window": load.window,
            "group": load.group,
            **load.settings(),
            "rate_msg_s": load.rate,
            **{name: getattr(self, name) for name in COUNTS},
            "wall_s": round(self.wall_s, 3),
            "publish_msg_s": round(published_per_s),
            "publish_mb_s": round(published_per_s * load.size_bytes / 1e6, 1),
            "consume_msg_s": round(consumed_per_s),
            "consume_mb_s": round(consumed_per_s * load.size_bytes / 1e6, 1),
            "client_cpu_s": round(self.client_cpu_s, 2),
            "client_cpu_us_per_msg": round(self.client_cpu_s * 1e6 / self.handled, 4),
        }
        if load.broker_pid:
            figures["broker_cpu_s"] = round(self.broker_cpu_s, 2)
            figures["broker_cpu_us_per_msg"] = round(self.broker_cpu_s * 1e6 / self.handled, 4)
        for name, histogram in (("latency_us", self.latencies), ("confirm_us", self.confirms)):
            if histogram.total:
                figures[name] = {key: histogram.percentile_us(percent) for key, percent in PERCENTILES.items()}
                figures[name]["max"] = histogram.max_us
        return figures

    def encoded(self) -> dict[str, str]:
        """The histograms in the form that HdrHistogram's tools read, where its package is there."""
        histograms = {"latency_hdr": self.latencies, "confirm_hdr": self.confirms}
        return {name: text for name, each in histograms.items() if each.total and (text := each.encode())}


# ---- the server ----


class TunnelContext:
    """What a client needs of an ssl.SSLContext. Servers are those that `authorities`, a PEM file, vouches for."""

    def __init__(self, authorities: str) -> None:
        from OpenSSL import SSL  # few loads have TLS

        self._context = SSL.Context(SSL.TLS_CLIENT_METHOD)
        self._context.set_min_proto_version(SSL.TLS1_2_VERSION)
        self._context.set_verify(SSL.VERIFY_PEER)
        self._connection = SSL.Connection
        try:
            self._context.load_verify_locations(authorities)
        except SSL.Error as problem:
            raise UserError(f"{authorities}: needed a PEM file with certificates of authorities: {problem}") from None

    def wrap_socket(self, sock: socket.socket, *, server_hostname: str) -> Tunnel:
        connection = self._connection(self._context, None)
        connection.set_connect_state()
        openssl.expect(connection, server_hostname)
        return Tunnel(sock, connection)


class Wire:
    """A connected socket, a Tunnel where authorities are named, and what was read beyond what was asked for."""

    def __init__(self, host: str, port: int, timeout_s: float, tls_ca: str = "") -> None:
        context = TunnelContext(tls_ca) if tls_ca else None
        host = parse_host(host)
        try:
            plain = socket.create_connection((host, port), timeout=timeout_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket: socket.socket | Tunnel = plain
            if context is not None:
                self.socket = context.wrap_socket(plain, server_hostname=host)
                plain.setblocking(True)  # Python's patience is not the Tunnel's
                patience = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        except OSError as error:
            raise VibeMQError(f"{host_port(host, port)}: needed a server, had {error}") from error
        self.held = bytearray()

    def send(self, data: bytes) -> None:
        try:
            if isinstance(self.socket, Tunnel):
                self.socket.send(data)  # all of it
            else:
                self.socket.sendall(data)
        except OSError as error:
            raise VibeMQError(f"the server took no command: {error}") from error

    def exactly(self, size: int) -> bytes:
        while len(self.held) < size:
            self.more()
        taken = bytes(self.held[:size])
        del self.held[:size]
        return taken

    def line(self) -> bytes:
        """Up to CR LF, which is left out."""
        while (at := self.held.find(b"\r\n")) < 0:
            self.more()
        return self.exactly(at + 2)[:-2]

    def more(self) -> None:
        """Receives once."""
        try:
            room = bytearray(READ_SIZE)
            more = room[: self.socket.recv_into(room)]
        except (TimeoutError, BlockingIOError) as error:
            raise VibeMQError("the server did not answer in time") from error
        except OSError as error:
            raise VibeMQError(f"the server ended the connection during a command: {error}") from error
        if not more:
            raise VibeMQError("the server ended the connection during a command")
        self.held += more

    def handed_on(self) -> dict[str, Any]:
        """What a load thread is told of it."""
        return {"connection": self.socket, "early": bytes(self.held)}

    def close(self) -> None:
        self.socket.close()


class Peer:
    """One server's protocol."""

    port_default = port_tls_default = 0
    shares = True  # consumers do: what one has had, no other gets
    tally: Tally | None = None  # of what came, where they share
    control: Any = None  # the connection for commands

    def __init__(self, load: Any) -> None:
        port = self.port_tls_default if load.tls_ca else self.port_default
        if load.tls_ca and not self.port_tls_default:
            raise UserError(f"tls-ca: there is no load over TLS with {load.protocol}")
        self.load = load if load.port else replace(load, port=port)

    def publishing(self, number: int) -> dict[str, Any]:
        """What every publisher is told."""
        load = self.load
        total = load.messages // load.publishers
        return {
            "total": total,
            "first": number * total,
            "window": load.window,
            "group": load.group,
            "rate": load.rate / load.publishers,
            "timed": load.timed,
            "verify": load.verify,
        }

    def consuming(self) -> dict[str, Any]:
        """What every consumer is told."""
        return {"wanted": self.load.messages, "timed": self.load.mode == "lat", "tally": self.tally}

    def create(self) -> None:
        """New and empty."""

    def delete(self) -> None:
        """What need not exist."""

    def left(self) -> int:
        """Messages that are not settled yet."""
        return 0

    @abstractmethod
    def publisher(self, number: int) -> Publisher:
        """A connection that publishes."""

    @abstractmethod
    def consumer(self, number: int) -> Consumer:
        """One that consumes."""

    def check(self, flows: list[Flow]) -> None:
        """Raises what only this protocol can say of a run that is over."""

    def close(self) -> None:
        """Ends the connection for commands."""
        if self.control is not None:
            self.control.close()
