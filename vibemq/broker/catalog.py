# SPDX-License-Identifier: Apache-2.0
"""Making and deleting streams and queues: what every door offers, in one place.

``create_*`` and ``delete`` commit to the metadata and make or remove files, so they block and
run in helper threads; ``deleted`` is for the worker's loop, afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from vibemq.broker.policy import QueuePolicy, dead_letter_options
from vibemq.config import Config
from vibemq.errors import StorageError, StreamExists, StreamNotFound
from vibemq.storage import log as logs
from vibemq.storage.arguments import log_options

if TYPE_CHECKING:
    from vibemq.broker.arguments import StreamArguments
    from vibemq.broker.stream import StreamTable
    from vibemq.storage.metadata import StreamRecord


class Deleted(NamedTuple):
    """A stream that is gone, and which workers have it open."""

    slot: int
    holders: int
    directory: str


class Catalog:
    def __init__(self, config: Config, table: StreamTable) -> None:
        self.config = config
        self.table = table
        self.metadata = table.metadata
        self.helpers = table.helpers

    def create_stream(self, virtual_host: str, name: str, wanted: StreamArguments) -> StreamRecord:
        """Blocks.  Raises StreamExists, LimitExceeded, StorageError."""
        return self.metadata.create_stream(
            virtual_host,
            name,
            wanted.given,
            wanted.durability,
            self.config.store.streams_max,
            prepare=lambda record: logs.create(record.directory, **wanted.options),
        )

    def create_queue(self, virtual_host: str, name: str, options: Mapping[str, Any]) -> StreamRecord:
        """Make a queue, or make one of a stream that is there already.  Blocks.

        ``options`` are kept as given (vibemq.broker.policy), ``durability`` among them.  Raises StreamExists when
        there is such a queue, LimitExceeded, StorageError.
        """
        durability = options.get("durability") or self.config.store.durability
        kept = {key: value for key, value in options.items() if value is not None}

        def prepare(record: StreamRecord) -> None:
            segment = self.config.queues.segment_size_bytes
            logs.create(record.directory, **log_options({}, durability, segment))
            logs.ledger_create(record.directory, 0, durability == "disk")

        try:
            return self.metadata.create_stream(
                virtual_host, name, {}, durability, self.config.store.streams_max, prepare=prepare, queue=kept
            )
        except StreamExists as problem:
            if problem.record is None or problem.record.queue is not None:  # type: ignore[attr-defined]
                raise
        # A stream of its own: its retention goes on to say what is kept, and the queue begins with what is there.
        return self.metadata.set_queue(virtual_host, name, {**kept, "keep": True}, prepare=self._add_ledger)

    def _add_ledger(self, record: StreamRecord) -> None:
        log = logs.Log(record.directory)
        try:
            first = log.stats().first_offset
        finally:
            log.close()
        try:
            logs.ledger_create(record.directory, first, record.durability == "disk")
        except StorageError as problem:
            if problem.code != "ERR_EXISTS":  # left from a commit that failed: as good as new
                raise

    def create_dead_letter_queue(self, virtual_host: str, name: str, source: QueuePolicy) -> None:
        """Blocks.  Also fine when somebody was quicker."""
        try:
            self.create_queue(virtual_host, name, dead_letter_options(source))
        except StreamExists:
            return

    def delete(self, virtual_host: str, name: str) -> Deleted:
        """Blocks.  From its return on nobody can publish to the stream.  Raises StreamNotFound, StorageError."""
        record = self.metadata.find_stream(virtual_host, name)
        if record is None:
            raise StreamNotFound(name)
        try:
            # First, because what cannot be opened cannot be marked, and publishers would go on.
            log = logs.Log(record.directory)
        except StorageError as problem:
            if problem.code not in ("ERR_NOT_FOUND", "ERR_DELETED"):
                raise
            self.metadata.delete_stream(virtual_host, name)
            return Deleted(record.slot, 0, record.directory)
        try:
            gone = self.metadata.delete_stream(virtual_host, name)
        except BaseException:
            log.close()
            raise
        if gone.incarnation != record.incarnation:  # deleted and made anew by others in between
            log.close()
            log, record = logs.Log(gone.directory), gone
        log.mark_deleted()
        holders = log.holders()
        log.close()
        return Deleted(record.slot, holders, record.directory)

    def deleted(self, gone: Deleted) -> None:
        """Tell every worker that has it open, and let a helper remove its files."""
        self.table.tell(gone.holders, gone.slot)
        self.helpers.submit(lambda: logs.remove(gone.directory), self._removed)

    def _removed(self, _: Any, error: BaseException | None) -> None:
        if error is not None:
            raise error
