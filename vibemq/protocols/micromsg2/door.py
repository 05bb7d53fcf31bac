# SPDX-License-Identifier: Apache-2.0
"""What all sessions of the MicroMsg2 door on one worker share."""

from __future__ import annotations

from vibemq.broker.parts import Broker, Door
from vibemq.config import Config
from vibemq.protocols.micromsg2.session import Micromsg2Session


class Micromsg2Door(Door):
    name = "micromsg2"
    session = Micromsg2Session

    def __init__(self, config: Config, broker: Broker) -> None:
        super().__init__(config.micromsg2, broker)
