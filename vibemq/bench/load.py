# SPDX-License-Identifier: Apache-2.0
"""One run of the load generator: connections, threads, figures.

It knows nothing of the server behind the port, so the same run measures this broker and any other server of the
streams protocol. Counts and, on request, the order of every message are verified: a fast run that lost something is
an error and no figure.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from vibemq.bench._load import STAMP_SIZE_BYTES, Consumer, Producer
from vibemq.bench._tunnel import Tunnel
from vibemq.bench.running import Outcome, Run, check_load
from vibemq.client.streams import StreamsConnection
from vibemq.errors import RequestFailed, UserError, VibeMQError
from vibemq.protocols.streams import codec
from vibemq.protocols.streams.spec import Code, Key, OffsetType, code_name

MODES = {
    "pub": "publish, and wait for every confirm",
    "con": "consume what an earlier run left (--keep)",
    "pubsub": "publish and consume at the same time",
    "lat": "publish at --rate and measure each message from its scheduled sending to its arrival",
}
SETTLE_S = 0.3  # a stream that was created this moment gets its time to elect a leader and open its files
PERCENTILES = {"p50": 50.0, "p99": 99.0, "p999": 99.9, "p9999": 99.99}
SUB_BATCH_MESSAGES_COUNT_MAX = 65_535  # the count is a u16
WINDOW_FRAMES_COUNT_MAX = 200_000  # below the load threads' ring of sending times


@dataclass(frozen=True, slots=True)
class Load:
    """What a run does. size_bytes is a message's body; `rate` is of all producers together, 0: as fast as can be."""

    host: str = "127.0.0.1"
    port: int = 5552
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    virtual_host: str = "/"
    tls_ca: str = ""
    stream: str = "bench"
    mode: str = "pub"
    messages: int = 1_000_000
    size_bytes: int = 100
    batch: int = 100
    group: int = 1
    producers: int = 1
    consumers: int = 1
    window: int = 100_000
    credit: int = 20
    rate: float = 0.0
    spread: bool = False
    sub_batch: int = 0
    reference: str = ""
    filter_value: str = ""
    append: bool = False
    verify: bool = False
    timeout_s: float = 60.0
    keep: bool = False
    arguments: tuple[tuple[str, str], ...] = ()
    broker_pid: int = 0

    @property
    def publishes(self) -> bool:
        return self.mode != "con"

    @property
    def consumes(self) -> bool:
        return self.mode != "pub"

    def check(self) -> None:
        """Refuses what would not measure what it says."""
        counts = ("messages", "size_bytes", "batch", "group", "producers", "consumers", "window", "credit")
        check_load(self, MODES, counts)
        if self.mode == "lat" and not self.rate:
            raise UserError("mode lat: needed a rate, had none", hint="Give --rate, for example 50000.")
        if (self.mode == "lat" or self.verify) and self.size_bytes < STAMP_SIZE_BYTES:
            raise UserError(
                f"size: needed {STAMP_SIZE_BYTES} bytes to time or verify messages, had {self.size_bytes}",
                hint="Each message carries its sending time, its number and its producer.",
            )
        if self.sub_batch:
            entries = (self.batch % self.sub_batch, self.messages // self.producers % self.sub_batch)
            if any(entries) or self.sub_batch > SUB_BATCH_MESSAGES_COUNT_MAX or self.filter_value:
                raise UserError(
                    f"sub-batch: needed a divisor of the frame ({self.batch}) and of each producer's messages, at most "
                    f"{SUB_BATCH_MESSAGES_COUNT_MAX}, and no filter value, had {self.sub_batch}"
                )
        if self.window // self.batch > WINDOW_FRAMES_COUNT_MAX:
            raise UserError(f"window: needed at most {WINDOW_FRAMES_COUNT_MAX} frames, had {self.window // self.batch}")
        if not self.rate and self.window < self.batch * self.group:
            raise UserError(
                f"window: needed at least one send of {self.batch * self.group} messages, had {self.window}",
                hint="A send waits until its last message fits, so a smaller window would never open.",
            )

    def streams(self) -> list[str]:
        count = (self.producers if self.publishes else self.consumers) if self.spread else 1
        return [f"{self.stream}-{i}" for i in range(count)] if self.spread else [self.stream]


@dataclass(slots=True)
class Result(Outcome):
    """Rates are from the common start to the last confirm or chunk."""

    load: Load
    chunks: int = 0
    disordered: int = 0

    def figures(self) -> dict[str, Any]:
        """Flat, named with units: the JSON line."""
        load = self.load
        published_per_s = self.confirmed / self.publish_s if self.publish_s else 0.0
        consumed_per_s = self.consumed / self.consume_s if self.consume_s else 0.0
        figures: dict[str, Any] = {
            "mode": load.mode,
            "size_bytes": load.size_bytes,
            "batch": load.batch,
            "group": load.group,
            "producers": load.producers if load.publishes else 0,
            "consumers": load.consumers if load.consumes else 0,
            "rate_msg_s": load.rate,
            "sent": self.sent,
            "confirmed": self.confirmed,
            "consumed": self.consumed,
            "chunks": self.chunks,
            "disordered": self.disordered,
            "wall_s": round(self.wall_s, 3),
            "publish_msg_s": round(published_per_s),
            "publish_mb_s": round(published_per_s * load.size_bytes / 1e6, 1),
            "consume_msg_s": round(consumed_per_s),
            "consume_mb_s": round(consumed_per_s * load.size_bytes / 1e6, 1),
            "client_cpu_s": round(self.client_cpu_s, 2),
        }
        if load.broker_pid:
            figures["broker_cpu_s"] = round(self.broker_cpu_s, 2)
            figures["broker_cpu_us_per_msg"] = round(self.broker_cpu_s * 1e6 / self.handled, 4)
        return figures | self.percentiles(PERCENTILES)


def connect(load: Load) -> StreamsConnection:
    context = None
    if load.tls_ca:
        from vibemq.bench.tunnel import TunnelContext  # loads OpenSSL, which few loads need

        context = TunnelContext(load.tls_ca)
    return StreamsConnection.connect(
        load.host,
        load.port,
        user=load.user,
        password=load.password,
        virtual_host=load.virtual_host,
        tls=context,
        heartbeat_s=0,  # the load threads send none
        client_properties={"connection_name": "vibemq bench"},
    )


def _tunnel(socket: Any) -> Tunnel | None:
    return socket if isinstance(socket, Tunnel) else None


def run(load: Load) -> Result:
    """Creates the streams, runs the load, deletes them, and gives the figures; raises if anything was lost."""
    load.check()
    admin = connect(load)
    with admin:
        if load.publishes:
            for stream in load.streams():
                if not load.append:
                    admin.delete(stream, missing_ok=True)
                admin.create(stream, dict(load.arguments), exist_ok=load.append)
            time.sleep(SETTLE_S)
        try:
            return _Run(load).go()
        finally:
            if load.publishes and not load.keep and not admin.closed:
                for stream in load.streams():
                    admin.delete(stream, missing_ok=True)


class _Run(Run):
    """A connection for each producer and consumer."""

    load: Load

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []

    def go(self) -> Result:
        load = self.load
        try:
            if load.publishes:
                for number in range(load.producers):
                    self._add_producer(number)
            if load.consumes:
                for number in range(load.consumers):
                    self._add_consumer(number)
            return self._measure()
        finally:
            self.stop(self.producers)

    def _add_producer(self, number: int) -> None:
        load = self.load
        connection = connect(load)
        stream = load.streams()[number % len(load.streams())]
        reference = f"{load.reference}-{number}" if load.reference else ""
        connection.request(Key.DECLARE_PUBLISHER, publisher_id=0, reference=reference, stream=stream)
        self.sockets.append(connection.detach())
        producer = Producer(
            fd=self.sockets[-1].fileno(),
            number=number,
            total=load.messages // load.producers,
            batch=load.batch,
            size=load.size_bytes,
            group=load.group,
            window=load.window,
            rate=load.rate / load.producers,
            timed=load.mode == "lat",
            sub_batch=load.sub_batch,
            filter_value=load.filter_value.encode(),
            tunnel=_tunnel(self.sockets[-1]),
        )
        self.producers.append(producer)
        self.add_thread(producer.read_confirms, f"confirms {number}")
        self.add_thread(producer.send, f"send {number}")

    def _add_consumer(self, number: int) -> None:
        load = self.load
        connection = connect(load)
        stream = load.streams()[number % len(load.streams())]
        self.sockets.append(connection.detach())
        consumer = Consumer(
            fd=self.sockets[-1].fileno(),
            subscribe=codec.encode_request(
                Key.SUBSCRIBE,
                1,
                subscription_id=0,
                stream=stream,
                offset_type=OffsetType.FIRST,
                credit=load.credit,
                properties={"filter.0": load.filter_value} if load.filter_value else {},
            ),
            credit=codec.encode_request(Key.CREDIT, subscription_id=0, credit=1),
            wanted=self._messages_in_a_stream(),
            producers=load.producers,
            verify=load.verify,
            timed=load.mode == "lat",
            tunnel=_tunnel(self.sockets[-1]),
        )
        self.consumers.append(consumer)
        self.add_thread(consumer.read, f"consume {number}")

    def _messages_in_a_stream(self) -> int:
        load = self.load
        if not load.publishes:
            return load.messages // (load.consumers if load.spread else 1)
        each = load.messages // load.producers
        return each if load.spread else each * load.producers

    def _measure(self) -> Result:
        result = Result(self.load)
        start_ns = self.measure(result)
        for producer in self.producers:
            result.add_publisher(producer, producer.last_confirm_ns - start_ns)
        for consumer in self.consumers:
            result.add_consumer(consumer, consumer.last_chunk_ns - start_ns)
            result.chunks += consumer.chunks
            result.disordered += consumer.disordered
        self._verify(result)
        return result

    def state(self) -> str:
        return (
            f"sent {sum(p.sent for p in self.producers)}, confirmed {sum(p.confirmed for p in self.producers)}, "
            f"refused {sum(p.refused for p in self.producers)}, consumed {sum(c.received for c in self.consumers)}"
        )

    def _verify(self, result: Result) -> None:
        """A run in which anything was refused, lost or out of order raises."""
        load = self.load
        for producer in self.producers:
            if producer.refused:
                code = producer.refused_code
                raise RequestFailed(f"publishing: {producer.refused} refused with {code_name(code)}", code=code)
        for consumer in self.consumers:
            code = consumer.subscribe_code
            if code not in (0, Code.OK):
                raise RequestFailed(f"Subscribe {load.stream}: the broker answered {code_name(code)}", code=code)
        ends: list[Producer | Consumer] = [*self.producers, *self.consumers]
        for code in filter(None, (end.close_code for end in ends)):
            raise RequestFailed(f"the broker closed the connection with {code_name(code)}", code=code)
        short = load.publishes and result.confirmed < load.messages // load.producers * load.producers
        if short or any(c.received < self._messages_in_a_stream() for c in self.consumers):
            raise VibeMQError(f"{load.mode} run: a connection ended before all was done: {self.state()}")
        if result.disordered:
            raise VibeMQError(f"{load.mode} run: {result.disordered} messages were not what their producer sent next")
