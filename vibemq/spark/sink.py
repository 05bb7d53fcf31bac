# SPDX-License-Identifier: Apache-2.0
"""The writers of `format("vibemq")`: rows of a query or a job into streams and queues, each once.

A writer is made on the driver and travels to the tasks. A task makes blocks of messages of its rows and stages them
(staging.py); what it returns names its transaction. Spark gives those of the attempts that count to `commit`, on the
driver, which has them decided. A batch is known by a query's id and the batch's number, which Spark keeps in the
checkpoint, or by what a job's author says with txnAppId and txnVersion.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql import types
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from vibemq.errors import ConfigError, VibeMQError
from vibemq.spark import staging
from vibemq.spark.client import with_remedy
from vibemq.spark.sink_options import Columns, SinkOptions, columns, parse
from vibemq.spark.staging import Batch, Block, Targets

if TYPE_CHECKING:
    import pyarrow as pa

# Spark 4.0 has no Arrow writer for streams: rows come one by one, twelve times as slow.
try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriter
except ImportError:
    from pyspark.sql.datasource import DataSourceStreamWriter as StreamWriter  # type: ignore[assignment]
GIVES_ROWS = StreamWriter is DataSourceStreamWriter

log = logging.getLogger("vibemq.spark")

JSON = "application/json"
ROWS_AT_ONCE = 10_000  # as many as Spark puts into an Arrow batch
BYTES_AT_ONCE = 8 << 20  # of texts in as many rows as make an Arrow batch here: they are held three times


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task has done. A task without rows has no transaction: its name is empty."""

    batch: Batch
    name: str = ""
    blocks: int = 0
    rows: int = 0


class Writer:
    """What the writers of jobs and of queries have in common."""

    def __init__(self, given: Mapping[str, str], schema: types.StructType) -> None:
        self.options: SinkOptions = parse(given)
        self.columns: Columns = columns(self.options, schema)
        self.schema = schema
        self.targets: Targets = staging.prepare(self.options)

    def stage(self, batch: Batch, batches: Iterator[pa.RecordBatch]) -> Staged:
        """One task's rows. Where the batch is decided they are read and left, as Spark wants it."""
        from vibemq.spark._rows import Encoder  # compiled, and needs pyarrow: only tasks do

        options = self.options
        encoder = Encoder(
            self.targets.names,
            partitions=self.targets.partitions,
            by_name="stream" in self.columns.attributes,
            content_type=JSON if options.is_json else "",
            compression=options.compression,
            block_max=self.targets.block_max,
        )
        blocks = self._blocks(encoder, batches)
        first = next(blocks, None)
        if first is None:
            return Staged(batch)
        name = uuid.uuid4().hex
        count = staging.stage(options, batch, name, chain((first,), blocks))
        if count is None:
            for _ in batches:
                pass
            log.info("batch %d of %s is decided already: nothing is written", batch.version, batch.application)
            return Staged(batch)
        return Staged(batch, name, count, encoder.rows)

    def _blocks(self, encoder: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[Block]:
        try:
            for each in batches:
                columns, rows = self._chosen(each), each.num_rows
                del each  # or it would still be there while the next one is read: with large rows 64 MiB
                yield from encoder.encode(columns, rows)
                del columns
            yield from encoder.finish()
        except VibeMQError as failed:
            raise with_remedy(failed) from None

    def _chosen(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        by_name = dict(zip(self.schema.names, batch.columns, strict=True))
        chosen = {name: by_name[name] for name in self.columns.attributes}
        if self.columns.fields:
            from vibemq.spark._json import objects

            chosen["value"] = objects({name: by_name[name] for name in self.columns.fields}, batch.num_rows)
        return chosen

    def decide(self, messages: Sequence[WriterCommitMessage | None], *, last: bool = False) -> None:
        done = [each for each in messages if isinstance(each, Staged)]
        if not done:
            return
        batch = done[0].batch
        if any(each.batch != batch for each in done):
            raise VibeMQError(
                f"the tasks of batch {batch.version} of {batch.application} wrote to different streams or for "
                "different runs: were partitions added just now? The batch is to be run again"
            )
        # Always in the same order, so that the streams have the rows in the order of the tasks.
        found = staging.decide(self.options, batch, [(each.name, each.blocks) for each in done if each.name], last=last)
        log.info("batch %d of %s: %s, %d rows", batch.version, batch.application, found.state.name, found.rows)


class JobWriter(Writer, DataSourceArrowWriter):
    """Writes what a job has, at once when it ends."""

    def __init__(self, given: Mapping[str, str], schema: types.StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("a stream cannot be overwritten: write with mode('append')")
        super().__init__(given, schema)
        run = uuid.uuid4().hex
        named = self.options.txn_app_id
        application = f"app:{named}" if named else f"job:{run}"
        self.batch = Batch(application, self.options.txn_version, run, self.targets.names, ephemeral=not named)
        if not named:
            _say_once(
                "a job without txnAppId and txnVersion writes its rows again when you or a scheduler run it again"
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return self.stage(self.batch, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # type: ignore[override]
        self.decide(messages, last=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # type: ignore[override]
        staging.give_up(self.options, self.batch, last=True)


class QueryWriter(Writer, StreamWriter):
    """Writes the batches of a streaming query. Tasks, `commit` and `abort` each have another copy."""

    def __init__(self, given: Mapping[str, str], schema: types.StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("a stream cannot be written anew with each batch: use outputMode('append') or 'update'")
        if parse(given).txn_app_id:  # before the broker is asked
            raise ConfigError(
                "options txnAppId and txnVersion: they are for jobs; a query is known by its checkpoint. Leave them out"
            )
        super().__init__(given, schema)

    def write(self, iterator: Iterator[Any]) -> Staged:
        batches = record_batches(iterator, self.schema) if GIVES_ROWS else iterator
        return self.stage(query_batch(self.targets.names), batches)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # type: ignore[override]
        self.decide(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # type: ignore[override]
        for each in messages:
            if isinstance(each, Staged):
                staging.give_up(self.options, each.batch)
                return


def query_batch(targets: tuple[str, ...]) -> Batch:
    """Which batch of which query this task works for. The run's id is a query's from its start to its end."""
    from pyspark import TaskContext

    context = TaskContext.get()
    names = ("sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id")
    query, number, run = [context.getLocalProperty(name) if context else None for name in names]
    if query is None or number is None or run is None:
        raise VibeMQError(
            "Spark does not say which query and batch this task is of, so its rows cannot be written once"
        )
    return Batch(f"query:{query}", int(number), run, targets, keeps_targets=True)


def record_batches(rows: Iterator[Any], schema: types.StructType) -> Iterator[pa.RecordBatch]:
    """What Spark 4.0 gives as rows, as the batches that later ones give."""
    for place in ("pyspark.sql.conversion", "pyspark.sql.connect.conversion"):  # Spark 4.0 has it in the second
        with contextlib.suppress(ImportError):
            convert = importlib.import_module(place).LocalDataToArrowConversion.convert
            break
    for some in _bounded(rows):
        yield from convert(some, schema, False).to_batches()


def _bounded(rows: Iterator[Any]) -> Iterator[list[Any]]:
    some, size = [], 0
    for row in rows:
        some.append(row)
        size += sum(len(value) for value in row if isinstance(value, (str, bytes, bytearray)))
        if len(some) >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some


@functools.cache
def _say_once(text: str) -> None:
    """In the life of this process."""
    log.warning("%s", text)
