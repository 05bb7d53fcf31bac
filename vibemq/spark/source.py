# SPDX-License-Identifier: Apache-2.0
"""The data source that Spark knows as `format("vibemq")`, its batch reader and its streaming reader.

What makes each record of a stream enter a query exactly once: Spark logs (start, end) before it runs a batch and
replays exactly that after a crash; `read` yields exactly its range or raises, counted by records; a position carries
the stream's incarnation, which is checked when a batch is planned and again when it is read. A broker that is away
costs time, not the query: planning goes on with what is known and tasks connect again and continue at their next
record.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import types
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from vibemq.errors import ConfigError
from vibemq.spark import offsets, ranges
from vibemq.spark.client import BrokerAway, Facts, Patience, close_all, connection, facts, patiently
from vibemq.spark.offsets import Position, Positions
from vibemq.spark.options import COLUMNS, LATEST, Options, parse
from vibemq.spark.ranges import Range

if TYPE_CHECKING:
    import pyarrow as pa

# Spark before 4.2 has neither read limits nor AvailableNow for Python sources.
try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:
    ReadAllAvailable = ReadLimit = ReadMaxRows = None  # type: ignore[assignment,misc]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in where Spark has none."""


def plan(wanted: Iterable[Range]) -> list[InputPartition]:
    """A task for each range that is not empty; always in the same order, so that a replayed batch is cut alike."""
    return [InputPartition(each) for each in sorted(wanted) if each.start < each.end]


def _ends(tail: dict[str, Facts]) -> Positions:
    return {name: Position(there.incarnation, there.next) for name, there in tail.items()}


class Reader:
    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self.options = options
        self.arrow_schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # what Spark makes of an empty list of partitions
            return iter(())
        return ranges.read(self.options, self.arrow_schema, partition.value)


class BatchReader(Reader, DataSourceReader):
    """Reads a fixed range of each stream once."""

    def partitions(self) -> list[InputPartition]:  # type: ignore[override]
        return plan([self._range(stream) for stream in self.options.streams])

    def _range(self, stream: str) -> Range:
        return patiently(
            self.options, lambda taken: ranges.batch_range(self.options, taken, stream, facts(taken, stream, 1))
        )


class StreamReader(Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches. One object lives as long as its query, in a process of its own; tasks use copies."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        self.initial: dict[str, Any] | None = None  # Spark asks twice and must hear the same
        self.here: Positions | None = None  # where the next batch begins; Spark before 4.2 does not say
        self.seen: dict[str, Facts] | None = None  # the newest answer of the broker
        self.frozen: dict[str, Facts] | None = None  # where an AvailableNow run ends
        self.patience = Patience(options)
        self.idle_since = float("-inf")

    def initialOffset(self) -> dict[str, Any]:
        if self.initial is None:
            starts = {stream: self._initial(stream) for stream in self.options.streams}
            self.initial = offsets.to_dict(starts)
            self.here = starts
        return self.initial

    def _initial(self, stream: str) -> Position:
        frozen = (self.frozen or {}).get(stream)
        return patiently(
            self.options,
            lambda taken: ranges.start_position(self.options, taken, stream, frozen or facts(taken, stream, 1), LATEST),
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.frozen = patiently(self.options, self._ask)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """The end of the next batch, or `start` itself when there is nothing new: Spark compares them as strings."""
        if start is not None:
            self.here = self._known(offsets.from_dict(start))
        here = self.here
        nothing_new = start if start is not None else offsets.to_dict(here or {})
        tail = self.frozen or self._tail()
        if tail is None and here is not None:
            return nothing_new
        tail = tail or patiently(self.options, self._ask)
        if here is None:  # Spark before 4.2, restarted after a finished batch
            here = _ends(tail)
        if self.frozen and any(tail[name].next < here[name].offset for name in tail):
            # Asked before the start was known, so make sure before anyone speaks of lost data.
            tail = self.frozen = patiently(self.options, self._ask)
        begin, end = ranges.advance(self.options, here, tail)
        rows_max = self.options.max_offsets_per_trigger
        if rows_max is not None and (limit is None or not isinstance(limit, ReadAllAvailable)):
            end = offsets.limited(begin, end, rows_max)
        if end == here:
            self.idle_since = time.monotonic()
            return nothing_new
        self.idle_since = float("-inf")
        return offsets.to_dict(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The tail as last heard, without asking again: Spark calls this as often as latestOffset."""
        if self.seen is None:
            return None
        return offsets.to_dict(_ends(self.seen))

    def _known(self, start: Positions) -> Positions:
        """The checkpoint's position of every stream that is read; one that it does not know begins at its first."""
        return {stream: start.get(stream, Position("", 0)) for stream in self.options.streams}

    def _ask(self, taken: Any) -> dict[str, Facts]:
        had = self.here or {}
        self.seen = {
            stream: facts(taken, stream, had[stream].offset if stream in had else 1) for stream in self.options.streams
        }
        return self.seen

    def _tail(self) -> dict[str, Facts] | None:
        """What the broker has, or None while it is away. Slows down a query that has nothing to do."""
        pause = self.idle_since + self.options.latest_offset_poll_ms / 1000 - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        try:
            with connection(self.options) as taken:
                tail = self._ask(taken)
        except BrokerAway as failed:
            self.patience.wait(failed)
            return None
        self.patience.well()
        return tail

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # type: ignore[override]
        ends = offsets.from_dict(end)
        starts = offsets.from_dict(start)
        self.here = ends
        wanted = [
            ranges.between(self.options, stream, starts.get(stream, Position("", 0)), ends[stream])
            for stream in sorted(ends)
        ]
        try:
            with connection(self.options) as taken:
                for each in wanted:
                    if each.start < each.end:
                        ranges.check(self.options, each, each.start, facts(taken, each.stream, each.end))
        except BrokerAway as failed:
            self.patience.away(failed)  # the tasks check again, and wait for the broker
        return plan(wanted)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept at the broker: the checkpoint is the truth."""

    def stop(self) -> None:
        close_all()


TYPES: dict[str, types.DataType] = {
    "value": types.BinaryType(),
    "offset": types.LongType(),
    "timestamp": types.TimestampType(),
    "stream": types.StringType(),
    "message_id": types.StringType(),
    "headers": types.MapType(types.StringType(), types.StringType()),
}
assert tuple(TYPES) == COLUMNS
NULLABLE = {"message_id"}


class VibeMQDataSource(DataSource):
    """Streams of VibeMQ, or of any broker that speaks the RabbitMQ Streams protocol."""

    @classmethod
    def name(cls) -> str:
        return "vibemq"

    def schema(self) -> types.StructType:
        """The columns asked for. Spark calls this in `.load()`, so bad options are told there."""
        columns = self._options().columns
        return types.StructType([types.StructField(name, TYPES[name], nullable=name in NULLABLE) for name in columns])

    def reader(self, schema: types.StructType) -> BatchReader:
        return BatchReader(self._options().for_batch(), arrow_schema(schema))

    def streamReader(self, schema: types.StructType) -> StreamReader:
        return StreamReader(self._options().for_stream(), arrow_schema(schema))

    def _options(self) -> Options:
        return parse(self.options)


def arrow_schema(schema: types.StructType) -> pa.Schema:
    """What the batches must look like: a user's `.schema(…)` picks and orders columns by name."""
    for field in schema.fields:
        wanted = TYPES.get(field.name)
        if wanted is None:
            raise ConfigError(f"schema: there is no column {field.name!r}; there are {', '.join(COLUMNS)}")
        if field.dataType != wanted:
            raise ConfigError(
                f"schema: column {field.name} is {wanted.simpleString()}, not {field.dataType.simpleString()}"
            )
    if not schema.fields or len(set(schema.names)) < len(schema.names):
        raise ConfigError(f"schema: each column at most once, and at least one of {', '.join(COLUMNS)}")
    from pyspark.sql.pandas.types import to_arrow_schema  # imports pyarrow, which `import vibemq.spark` must not need

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # Spark 4.0 and 4.1 have no such argument
        return to_arrow_schema(schema)
