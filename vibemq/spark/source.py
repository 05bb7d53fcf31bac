# SPDX-License-Identifier: Apache-2.0
"""The data source that Spark knows as `format("vibemq")`, its batch reader and its streaming reader.

What makes each record of a stream enter a query exactly once: Spark logs (start, end) before it runs a batch and
replays exactly that after a crash; `read` yields exactly its range or raises, counted by records; a position carries
the stream's incarnation, which is checked when a batch is planned and again when it is read. A broker that is away
costs time, not the query: planning goes on with what is known and tasks connect again and continue at their next
record.
"""

from __future__ import annotations

import functools
import gc
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql import types
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from vibemq.client.plans import NOT_SAID, WantedRange
from vibemq.errors import StreamNotFound
from vibemq.spark import offsets, plans, pushdown, ranges, remote
from vibemq.spark.client import BrokerAway, Facts, Patience, ask, close_all, connection, names, patiently
from vibemq.spark.columns import arrow_schema, spark_schema
from vibemq.spark.offsets import Position, Positions
from vibemq.spark.options import JSON, STRING, Options, parse
from vibemq.spark.places import LATEST
from vibemq.spark.pushdown import Bounds
from vibemq.spark.ranges import Range
from vibemq.spark.sink import JobWriter, QueryWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

# Spark before 4.2 has neither read limits nor AvailableNow for Python sources.
try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    ReadAllAvailable = ReadLimit = ReadMaxBytes = ReadMaxRows = ReadMinRows = None  # type: ignore[assignment,misc]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in where Spark has none."""


T = TypeVar("T")

log = logging.getLogger("vibemq.spark")

#: Spark runs a plan in this worker where filters are pushed down, and in another one where they are not.
PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
LOOK_UP_SECONDS = 10.0  # how long a stream that is made now may wait for a running query: each look is a listing


def tasks(options: Options, parts: Iterable[Range]) -> list[InputPartition]:
    """A task for each part; with filter values for what there may be of them in it."""
    if options.remote:
        from vibemq.spark import remote_reading

        parts = remote_reading.planned(options, parts)
    if options.filter_values:
        return [InputPartition(spans) for spans in patiently(options, partial(plans.filtered, options, some=parts))]
    return [InputPartition(each) for each in parts]


def _ends(tail: dict[str, Facts]) -> Positions:
    return {name: Position(there.incarnation, there.next) for name, there in tail.items()}


@functools.cache
def _spare_the_collector() -> None:
    """Once in a process: what it has imported by now is not looked at again.

    Spark's workers collect garbage after each task, which takes 8 ms of all that lies there, and there is a task in
    each micro-batch.
    """
    gc.collect()
    gc.freeze()


class Reader:
    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self.options = options
        self.arrow_schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition is None or partition.value is None:  # what Spark makes of an empty list; the former before 4.2
            return iter(())
        _spare_the_collector()
        spans = (partition.value,) if isinstance(partition.value, Range) else partition.value
        return chain.from_iterable(map(self._read, spans))

    def _read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        if self.options.value_format in (STRING, JSON) and "value" in self.arrow_schema.names:
            from vibemq.spark import values  # compiled, and needs pyarrow: only tasks do

            return values.read(self.options, self.arrow_schema, wanted)
        return ranges.read(self.options, self.arrow_schema, wanted)


class BatchReader(Reader, DataSourceReader):
    """Reads a fixed range of each stream once."""

    bounds: Bounds | None = None

    def partitions(self) -> list[InputPartition]:  # type: ignore[override]
        parts = patiently(self.options, lambda taken: plans.batch(self.options, taken, self.bounds))
        return tasks(self.options, parts)


class FilteredReader(BatchReader):
    """The same, for a Spark that pushes conditions down. With that switched off, to have the method is an error.

    Only where the user asks for it, too: Spark 4.3 keeps the tasks of a filtered read for whatever else reads the same
    DataFrame, so a second query on it would miss records without a word.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.bounds = pushdown.bounds(filters)
        return filters  # Spark goes by all of them again: they only made ranges smaller


class StreamReader(Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches. One object lives as long as its query, in a process of its own; tasks use copies."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        self.initial: dict[str, Any] | None = None  # Spark asks twice and must hear the same
        self.here: Positions | None = None  # where the next batch begins; Spark before 4.2 does not say
        self.seen: dict[str, Facts] | None = None  # the newest answer of the broker
        self.is_available_now = False
        self.frozen: dict[str, Facts] | None = None  # where that run ends, once it is known
        self.asked_from: dict[str, int] = {}  # from where on `seen` has limits in bytes
        self.names: list[str] = []  # that are read, when this was looked up
        self.missing: set[str] = set()
        self.planned: set[str] = set()  # streams of the batches that this process has planned
        self.named_at = float("-inf")
        self.now_ms = time.time_ns() // 1_000_000  # what times before now count from
        self.patience = Patience(options)
        self.idle_since = float("-inf")
        self.planned_at = float("-inf")

    def initialOffset(self) -> dict[str, Any]:
        if self.initial is None:
            starts = patiently(self.options, self._starts)
            self.initial = offsets.to_dict(starts)
            self.here = starts
            self.planned.update(starts)
        return self.initial

    def _starts(self, taken: Any) -> Positions:
        return plans.starts(self.options, taken, self.frozen or self._ask(taken), LATEST, self.now_ms)

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of the limits, for there is none that holds several; `latestOffset` goes by all of them."""
        options = self.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.bytes_per_trigger:
            return ReadMaxBytes(options.bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.is_available_now = True
        try:
            self.frozen = patiently(self.options, self._ask)
        except StreamNotFound as gone:  # whether that is data loss, or an error, is told once the start is known
            log.debug("%s", gone)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """The end of the next batch, or `start` itself when there is nothing new: Spark compares them as strings."""
        if start is not None:
            self.here = ranges.read_positions(self.options, offsets.from_dict(start))
        elif self.here is None:
            return self._unsaid()
        here = self.here
        nothing_new = start if start is not None else offsets.to_dict(here)
        if self.is_available_now and self.frozen is None:
            self.frozen = patiently(self.options, self._ask)
        tail = self._tail() if self.frozen is None else self.frozen
        if tail is None:
            return nothing_new
        if self.frozen and any(name in here and there.next < here[name].offset for name, there in tail.items()):
            # Asked before the start was known, so make sure before anyone speaks of lost data.
            tail = self.frozen = patiently(self.options, self._ask)
        begin, end = ranges.advance(self.options, here, tail)
        if limit is None or not isinstance(limit, ReadAllAvailable):
            end = self._limited(begin, end) or begin
        if {name: there for name, there in end.items() if name in here or there != begin[name]} == here:
            self.idle_since = time.monotonic()
            return nothing_new
        self.idle_since = float("-inf")
        self.planned_at = time.monotonic()
        self.planned.update(end)
        is_first = self.initial is not None and here == offsets.from_dict(self.initial)
        return offsets.to_dict(end, here if is_first else None)

    def _unsaid(self) -> dict[str, Any]:
        """The end of the first batch for Spark before 4.2, which does not say where it begins, and asks afterwards.

        It may be new or go on from a checkpoint, so no limit can be counted.
        """
        began = offsets.from_dict(self.initialOffset())
        return offsets.to_dict(_ends(self.frozen or self.seen or {}), began)

    def _limited(self, begin: Positions, end: Positions) -> Positions | None:
        """The end of a batch that obeys every limit; None: there shall be none yet, or the broker is away."""
        options = self.options
        least, waiting = options.min_offsets_per_trigger, sum(offsets.backlog(begin, end).values())
        delayed_s = time.monotonic() - self.planned_at
        if waiting < (least or 0) and not self.is_available_now and delayed_s < options.max_trigger_delay_ms / 1000:
            return None
        if options.max_offsets_per_trigger is not None:
            end = offsets.limited(begin, end, options.max_offsets_per_trigger)
        if not options.bytes_per_trigger:
            return end
        is_told = self.frozen is None and all(self.asked_from.get(name) == at.offset for name, at in begin.items())
        has = self.seen if is_told else None
        call = partial(plans.within_bytes, options, begin=begin, end=end, has=has)
        if self.is_available_now:  # nothing new would be the end of the query
            return patiently(options, call)
        return self._try(call)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The tail as last heard, without asking again: Spark calls this as often as latestOffset."""
        if self.seen is None:
            return None
        return offsets.to_dict(_ends(self.seen))

    def _ask(self, taken: Any) -> dict[str, Facts]:
        here, options = self.here, self.options
        if here is None:
            self.seen = ask(taken, plans.questions_at(options, self._names(taken, anew=True), LATEST, self.now_ms), {})
            return self.seen
        self.asked_from = {stream: position.offset for stream, position in here.items()}
        at_least, most = self.asked_from, options.bytes_per_trigger

        def questions(streams: Iterable[str]) -> list[WantedRange]:
            return [WantedRange(stream, at_least.get(stream, NOT_SAID), bytes_max=most) for stream in streams]

        if options.super_stream:
            self.seen = ask(taken, questions(here), at_least, options.super_stream)
            return self.seen
        try:
            self.seen = ask(taken, questions(self._names(taken)), at_least)
        except StreamNotFound:
            if options.streams and options.fail_on_data_loss:
                for name, at in here.items():
                    if not taken.exists(name):
                        ranges.deleted(options, Range(name, at.incarnation, at.offset, at.offset))
                raise
            self.seen = ask(taken, questions(self._names(taken, anew=True)), at_least)
        return self.seen

    def _names(self, taken: Any, anew: bool = False) -> list[str]:
        """The streams that are read; which there are is looked up again after a while."""
        if anew or time.monotonic() - self.named_at > LOOK_UP_SECONDS:
            self.names, self.named_at = names(taken, self.options), time.monotonic()
            if self.options.streams and not self.options.fail_on_data_loss:
                self._leave_out_missing(taken)
        return self.names

    def _leave_out_missing(self, taken: Any) -> None:
        """Go on without what was deleted, and with it again once it is there."""
        missing = {name for name in self.names if not taken.exists(name)}
        self.names = [name for name in self.names if name not in missing]
        if not self.names and self.here is None:
            raise StreamNotFound(
                f"none of the streams exists that option stream or subscribe names: {', '.join(sorted(missing))}"
            )
        if missing - self.missing:
            log.warning("streams that do not exist are read once they do: %s", ", ".join(sorted(missing)))
        self.missing = missing

    def _tail(self) -> dict[str, Facts] | None:
        """What the broker has, or None while it is away. Slows down a query that has nothing to do."""
        pause = self.idle_since + self.options.poll_ms / 1000 - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        return self._try(self._ask)

    def _try(self, call: Callable[[Any], T]) -> T | None:
        """The result, or None while the broker is away."""
        try:
            with connection(self.options) as taken:
                result = call(taken)
        except BrokerAway as failed:
            self.patience.wait(failed)
            return None
        self.patience.well()
        return result

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # type: ignore[override]
        ends = offsets.from_dict(end)
        # Only in the first batch is the start what initialOffset has just said, in this life of the query.
        starts = (start == self.initial and offsets.began(end)) or offsets.from_dict(start)
        if self.options.fail_on_data_loss:
            ranges.read_positions(self.options, starts | ends)
            self._require_partitions(starts | ends)
        self.here = ends
        wanted = [ranges.between(self.options, stream, starts.get(stream), ends[stream]) for stream in sorted(ends)]
        has = self._facts([each for each in wanted if each.start < each.end])
        found = []
        for each in wanted:
            if each.stream in has:
                there = has[each.stream]
                first, _ = ranges.check(self.options, each, each.start, there)
                part = each._replace(store=there.store, directory=there.directory)
                # From here on its first record is a place like any other: tasks tell what retention takes behind it.
                found.append(part._replace(start=first, from_first=False) if each.from_first else part)
        return tasks(self.options, plans.parts(found, has))

    def _require_partitions(self, replayed: Positions) -> None:
        """Raise OtherStreams if a batch of the checkpoint has streams outside of the super stream.

        Spark replays such a batch before it plans the next one. A deleted partition counts as lost data instead.
        """
        new = replayed.keys() - self.planned
        if not self.options.super_stream or not new:
            return

        def others(taken: Any) -> list[str]:
            return sorted(name for name in new.difference(names(taken, self.options)) if taken.exists(name))

        if found := patiently(self.options, others):
            raise ranges.OtherStreams(self.options, found)
        self.planned |= new

    def _facts(self, wanted: list[Range]) -> dict[str, Facts]:
        """What the broker says about these ranges and where they may be cut; without those whose stream is gone."""
        while wanted:
            questions = plans.with_cuts(self.options, wanted)
            ends = {each.stream: each.end for each in wanted}
            try:
                return patiently(self.options, partial(ask, wanted=questions, at_least=ends), tuple(ends))
            except StreamNotFound:
                there = patiently(self.options, lambda taken: {name for name in ends if taken.exists(name)})  # noqa: B023
                for each in wanted:
                    if each.stream not in there:
                        ranges.deleted(self.options, each)
                wanted = [each for each in wanted if each.stream in there]
        return {}

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept at the broker: the checkpoint is the truth."""

    def stop(self) -> None:
        close_all()
        remote.close_all()


class VibeMQDataSource(DataSource):
    """Streams of VibeMQ, or of any broker that speaks the RabbitMQ Streams protocol."""

    @classmethod
    def name(cls) -> str:
        return "vibemq"

    def schema(self) -> types.StructType:
        """The columns asked for. Spark calls this in `.load()`, so bad options are told there."""
        return spark_schema(self._options())

    def reader(self, schema: types.StructType) -> BatchReader:
        options = self._options().for_batch()
        kind = FilteredReader if options.filter_pushdown and PUSHDOWN_WORKER in sys.modules else BatchReader
        return kind(options, arrow_schema(schema, options))

    def streamReader(self, schema: types.StructType) -> StreamReader:
        options = self._options().for_stream()
        return StreamReader(options, arrow_schema(schema, options))

    def writer(self, schema: types.StructType, overwrite: bool) -> JobWriter:
        return JobWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: types.StructType, overwrite: bool) -> QueryWriter:
        return QueryWriter(self.options, schema, overwrite)

    def _options(self) -> Options:
        return parse(self.options)
