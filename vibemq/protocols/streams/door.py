# SPDX-License-Identifier: Apache-2.0
"""What all sessions of the streams door on one worker share."""

from __future__ import annotations

from typing import Any

import vibemq
from vibemq.broker.parts import Broker, Door
from vibemq.config import Config
from vibemq.errors import StorageError, StreamNotFound
from vibemq.protocols.streams.session import StreamsSession
from vibemq.storage.offsets import OffsetFiles

PRODUCT = "RabbitMQ"  # tools check it; `information` says who this is


class StreamsDoor(Door):
    name = "streams"
    session = StreamsSession

    def __init__(self, config: Config, broker: Broker) -> None:
        super().__init__(config.streams, broker)
        self.store = config.store
        self.table = broker.streams
        self.opened = 0  # connections that have a virtual host
        self.guest_allowed = config.guest.allow_loopback
        self.offsets = OffsetFiles(meters=broker.streams.meters)
        self.publishing: set[StreamsSession] = set()  # sessions with publishers
        self.broker.alarms.listen(self._alarms_changed)
        self.sub_batch_uncompressed_max = config.streams.sub_batch_uncompressed_max_bytes
        self.properties = {
            "product": PRODUCT,
            "version": config.streams.product_version,
            "platform": "Erlang/OTP 27",  # some tools parse a number here
            "cluster_name": "vibemq",
            "copyright": "The VibeMQ developers",
            "information": f"VibeMQ {vibemq.__version__}, speaking RabbitMQ Streams",
        }

    def enter(self) -> bool:
        """Count a connection that opens a virtual host; False: there are too many."""
        self.opened += 1
        most = self.config.connections_max
        if self.broker.board.connections(self.opened) <= most or not most:
            return True
        self.leave()
        return False

    def leave(self) -> None:
        self.opened -= 1
        self.broker.board.connections(self.opened)

    def _alarms_changed(self) -> None:
        """Who publishes is not read while an alarm is in effect; who only consumes goes on."""
        for session in self.publishing:
            session.set_alarmed(bool(self.broker.alarms.in_effect))

    def queue_of(self, stream: Any) -> Any:
        """The queue that this stream is the log of; None when it is a plain stream."""
        try:
            return self.queues.find(stream.virtual_host, stream.name)
        except (StreamNotFound, StorageError):
            return None
