# SPDX-License-Identifier: Apache-2.0
"""Loads of streams, and the streams protocol under them, over TLS where that is asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from vibemq.bench._ends import STAMP_SIZE_BYTES, StreamsConsumer, StreamsPublisher, publish_frame
from vibemq.bench._flow import Consumer, Flow, Publisher
from vibemq.bench.load import Load, Peer, TunnelContext, option
from vibemq.client.streams import StreamsConnection
from vibemq.errors import RequestFailed, UserError
from vibemq.protocols.streams import codec
from vibemq.protocols.streams.spec import PORT_DEFAULT, PORT_TLS_DEFAULT, Key, OffsetType, code_name

SETTLE_S = 0.3  # a stream that was created this moment gets its time to elect a leader and open its files
SUB_BATCH_MESSAGES_COUNT_MAX = 65_535  # the count is a u16
WINDOW_FRAMES_COUNT_MAX = 200_000
INBOX_SIZE_BYTES = 1 << 22  # some chunks of a broker that makes large ones


@dataclass(frozen=True)
class StreamsLoad(Load):
    """Each consumer gets all messages of its stream. `size_bytes` is a message's body."""

    user: str = "guest"
    password: str = field(default="guest", repr=False)
    window: int = 100_000
    protocol: str = "streams"
    virtual_host: str = option("/")
    stream: str = option("bench", "Deleted before and after a run.")
    batch: int = option(100, "Messages in a frame.")
    credit: int = option(20, "Chunks on the way per consumer.")
    spread: bool = option(False, "One stream for each producer and consumer.")
    sub_batch: int = option(0, "Messages in a sub-entry batch; 0: none.")
    reference: str = option("", "Publishers have names, so they are deduplicated.")
    filter_value: str = option("", "Of each message, and wanted by each consumer.")
    append: bool = option(False, "Publish to the streams that an earlier run left (--keep).")
    arguments: tuple[tuple[str, str], ...] = option((), "For Create; repeatable.", "--argument")

    counts = (*Load.counts, "batch", "credit")

    def settings(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "producers": self.publishers if self.publishes else 0,
            "consumers": self.consumers if self.consumes else 0,
        }

    def check(self) -> None:
        super().check()
        if (self.timed or self.verify) and self.size_bytes < STAMP_SIZE_BYTES:
            raise UserError(
                f"size: needed {STAMP_SIZE_BYTES} bytes to time or verify messages, had {self.size_bytes}",
                hint="Each message carries its sending time, its number and its producer.",
            )
        if self.sub_batch < 0:
            raise UserError(f"sub-batch: needed 0 or more, had {self.sub_batch}")
        if self.sub_batch:
            entries = (self.batch % self.sub_batch, self.messages // self.publishers % self.sub_batch)
            if any(entries) or self.sub_batch > SUB_BATCH_MESSAGES_COUNT_MAX or self.filter_value:
                raise UserError(
                    f"sub-batch: needed a divisor of the frame ({self.batch}) and of each producer's messages, at most "
                    f"{SUB_BATCH_MESSAGES_COUNT_MAX}, and no filter value, had {self.sub_batch}"
                )
        if self.window // self.batch > WINDOW_FRAMES_COUNT_MAX:
            raise UserError(f"window: needed at most {WINDOW_FRAMES_COUNT_MAX} frames, had {self.window // self.batch}")
        frames = 1 if self.rate else self.group
        if self.window < self.batch * frames:
            raise UserError(
                f"window: needed at least one send of {self.batch * frames} messages, had {self.window}",
                hint="A send waits until its last message fits, so a smaller window would never open.",
            )

    def streams(self) -> list[str]:
        count = (self.publishers if self.publishes else self.consumers) if self.spread else 1
        return [f"{self.stream}-{i}" for i in range(count)] if self.spread else [self.stream]

    @property
    def messages_in_a_stream(self) -> int:
        if not self.publishes:
            return self.messages // (self.consumers if self.spread else 1)
        each = self.messages // self.publishers
        return each if self.spread else each * self.publishers


def connect(load: StreamsLoad) -> StreamsConnection:
    return StreamsConnection.connect(
        load.host,
        load.port,
        user=load.user,
        password=load.password,
        virtual_host=load.virtual_host,
        tls=TunnelContext(load.tls_ca) if load.tls_ca else None,
        heartbeat_s=0,  # the load threads send none
        client_properties={"connection_name": "vibemq bench"},
    )


class Streams(Peer):
    """This broker's streams, or those of any other server of the protocol."""

    port_default, port_tls_default = PORT_DEFAULT, PORT_TLS_DEFAULT
    shares = False
    load: StreamsLoad
    control: StreamsConnection

    def __init__(self, load: StreamsLoad) -> None:
        super().__init__(load)
        self.control = connect(self.load)

    def create(self) -> None:
        for stream in self.load.streams():
            if not self.load.append:
                self.control.delete(stream, missing_ok=True)
            self.control.create(stream, dict(self.load.arguments), exist_ok=self.load.append)
        time.sleep(SETTLE_S)

    def delete(self) -> None:
        if self.load.publishes and not self.control.closed:
            for stream in self.load.streams():
                self.control.delete(stream, missing_ok=True)

    def publisher(self, number: int) -> Publisher:
        load, connection = self.load, connect(self.load)
        stream = load.streams()[number % len(load.streams())]
        reference = f"{load.reference}-{number}" if load.reference else ""
        connection.request(Key.DECLARE_PUBLISHER, publisher_id=0, reference=reference, stream=stream)
        kind: dict[str, Any] = {
            "size": load.size_bytes,
            "sub_batch": load.sub_batch,
            "filter_value": load.filter_value.encode(),
        }
        return StreamsPublisher(
            connection=connection.detach(),
            frame=publish_frame(load.batch, **kind),
            number=number,
            batch=load.batch,
            **kind | self.publishing(number) | ({"group": 1} if load.rate else {}),
        )

    def consumer(self, number: int) -> Consumer:
        load = self.load
        subscribe = codec.encode_request(
            Key.SUBSCRIBE,
            1,
            subscription_id=0,
            stream=load.streams()[number % len(load.streams())],
            offset_type=OffsetType.FIRST,
            credit=load.credit,
            properties={"filter.0": load.filter_value} if load.filter_value else {},
        )
        return StreamsConsumer(
            connection=connect(load).detach(),
            opening=subscribe,
            credit=codec.encode_request(Key.CREDIT, subscription_id=0, credit=1),
            producers=load.publishers,
            verify=load.verify,
            inbox_size=INBOX_SIZE_BYTES,
            **self.consuming() | {"wanted": load.messages_in_a_stream},
        )

    def check(self, flows: list[Flow]) -> None:
        for flow in flows:
            if isinstance(flow, Publisher) and flow.refused:
                raise RequestFailed(f"publishing: {flow.refused} refused with {code_name(flow.code)}", code=flow.code)
            if flow.code:
                raise RequestFailed(f"{flow.fault} with {code_name(flow.code)}", code=flow.code)
