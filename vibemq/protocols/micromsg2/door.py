# SPDX-License-Identifier: Apache-2.0
"""What all sessions of the MicroMsg2 door on one worker share."""

from __future__ import annotations

from typing import Any

import vibemq
from vibemq.broker.parts import Broker
from vibemq.config import Config
from vibemq.protocols.micromsg2.session import Micromsg2Session


class Micromsg2Door:
    name = "micromsg2"

    def __init__(self, config: Config, broker: Broker) -> None:
        self.config = config.micromsg2
        self.broker = broker
        self.queues = broker.queues
        self.catalog = broker.catalog
        self.helpers = broker.helpers
        self.identity = f"vibemq/{vibemq.__version__}".encode()

    def accept(self, connection: Any) -> Micromsg2Session:
        """The session of a new connection."""
        return Micromsg2Session(connection, self)
