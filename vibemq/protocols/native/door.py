# SPDX-License-Identifier: Apache-2.0
"""What all sessions of the native door on one worker share."""

from __future__ import annotations

import itertools
import time
from typing import Any

import vibemq
from vibemq.broker.parts import Broker
from vibemq.config import Config
from vibemq.protocols.native.options import QueueOptions
from vibemq.protocols.native.session import NativeSession


class NativeDoor:
    name = "native"

    def __init__(self, config: Config, broker: Broker) -> None:
        self.config = config.native
        self.broker = broker
        self.queues = broker.queues
        self.catalog = broker.catalog
        self.helpers = broker.helpers
        self.compressions = [name for name in config.native.compressions.split(",") if name]
        self.text_layout = config.native.layout == "text"
        self.layout_fixed = config.native.layout != "auto"
        # A queue that says nothing is stored as such, so it follows the configuration.
        self.option_defaults = QueueOptions(
            max_messages=config.queues.max_messages, attempts_max=config.queues.attempts_max
        )
        self.server_version = vibemq.__version__
        self._numbers = itertools.count(1)

    def next_connection_id(self) -> str:
        return f"srv_{self.broker.worker}_{next(self._numbers)}"

    def accept(self, connection: Any) -> NativeSession:
        """The session of a new connection."""
        return NativeSession(connection, self)

    def admits(self, address: str) -> bool:
        """May this address connect now, or has it done so too often?"""
        admitted: bool = self.broker.connection_rate.admit(address, time.monotonic())
        return admitted

    def now_ms(self) -> int:
        """The loop's clock: monotonic ms."""
        return time.monotonic_ns() // 1_000_000
