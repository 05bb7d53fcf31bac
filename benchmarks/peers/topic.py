# SPDX-License-Identifier: Apache-2.0
"""What a protocol with topics has besides, for a fan-out."""

from abc import abstractmethod
from typing import Any

from benchmarks.peers._audience import Audience
from vibemq.bench.load import Wire
from vibemq.bench.queues import QueuePeer


class TopicPeer(QueuePeer):
    """One whose protocol also has topics, for a fan-out."""

    @abstractmethod
    def create_topic(self) -> None:
        """Each message goes to all that are subscribed."""

    @abstractmethod
    def subscriber(self, filter: str = "") -> Wire:
        """A connection that gets the topic's messages, and need not acknowledge them."""

    @abstractmethod
    def subscribers(self) -> int:
        """How many the topic has."""

    @abstractmethod
    def audience(self, **options: Any) -> Audience:
        """One thread's subscribers."""
