# SPDX-License-Identifier: Apache-2.0
"""What all sessions of the native door on one worker share."""

from __future__ import annotations

import itertools

from vibemq.broker.parts import Broker, Door
from vibemq.config import Config
from vibemq.protocols.native.options import QueueOptions
from vibemq.protocols.native.session import NativeSession


class NativeDoor(Door):
    name = "native"
    session = NativeSession

    def __init__(self, config: Config, broker: Broker) -> None:
        super().__init__(config.native, broker)
        self.compressions = [name for name in config.native.compressions.split(",") if name]
        self.text_layout = config.native.layout == "text"
        self.layout_fixed = config.native.layout != "auto"
        # A queue that says nothing is stored as such, so it follows the configuration.
        self.option_defaults = QueueOptions(max_messages=config.queues.max_messages)
        self._numbers = itertools.count(1)

    def next_connection_id(self) -> str:
        return f"srv_{self.broker.worker}_{next(self._numbers)}"
