# SPDX-License-Identifier: Apache-2.0
"""Tell the broker how far a streaming query has come, so that its lag shows there like any consumer's.

    spark.streams.addListener(LagListener(endpoints="localhost:5552"))

After each batch the offsets that Spark has committed are stored under a consumer's name. They are for people and their
alarms (`vibemq ctl list_stream_tracking`, `vibemq streams offsets`, `/metrics`): where a query goes on, its
checkpoint says. So whatever keeps one from being stored is a warning and nothing more.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from vibemq.client.plans import WantedRange
from vibemq.errors import ConfigError, StreamNotFound, VibeMQError
from vibemq.once_a_minute import OnceAMinute
from vibemq.spark import offsets
from vibemq.spark.client import BrokerAway, ask, connection
from vibemq.spark.offsets import Positions
from vibemq.spark.options import ACCESS, parse

logger = logging.getLogger("vibemq.spark")
not_stored = OnceAMinute(logger)

TIMEOUT_MS = 5000  # Spark tells its listeners one after the other
NAME_BYTES_MAX = 255  # of a reference at the broker


class LagListener(StreamingQueryListener):
    """Of every query of a session that reads streams of this broker.

    `consumer_name`: under which the offsets are stored; without it each query has its own, `spark-` and its name,
    or its id where it has none. `options`: where the broker is and who comes, as for reading.
    """

    def __init__(self, consumer_name: str = "", **options: str) -> None:
        if unknown := options.keys() - {*ACCESS}:
            raise ConfigError(f"LagListener: there is no option {', '.join(sorted(unknown))}; {', '.join(ACCESS)} are")
        self.consumer_name = consumer_name
        self.options = parse({**options, "stream": "any", "fetchTimeoutMs": str(TIMEOUT_MS)})

    def onQueryStarted(self, event: Any) -> None:
        """Nothing is committed yet."""

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        name = self.consumer_name or f"spark-{progress.name or progress.id}"
        name = name.encode()[:NAME_BYTES_MAX].decode(errors="ignore")
        for source in progress.sources:
            committed = _positions(source.endOffset)
            if committed:
                self._store(name, committed)

    def onQueryIdle(self, event: Any) -> None:
        """What was committed is stored already."""

    def onQueryTerminated(self, event: Any) -> None:
        """Its lag is still worth showing."""

    def _store(self, name: str, committed: Positions) -> None:
        try:
            with connection(self.options) as taken:
                for stream, position in committed.items():
                    try:
                        has = ask(taken, [WantedRange(stream)], {stream: position.offset})[stream]
                    except StreamNotFound:
                        continue  # of another broker, or gone
                    if has.incarnation == position.incarnation and position.offset:
                        taken.store_offset(name, stream, position.offset - 1)  # the last that was processed
        except (BrokerAway, VibeMQError) as problem:
            not_stored.say(name, "offsets of %s are not stored: %s", name, problem)


def _positions(written: Any) -> Positions:
    """The offsets of a source of ours; of any other nothing."""
    try:
        return offsets.from_dict(json.loads(written))
    except (TypeError, ValueError, ConfigError):
        return {}
