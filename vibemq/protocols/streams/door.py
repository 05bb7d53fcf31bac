# SPDX-License-Identifier: Apache-2.0
"""What all sessions of the streams door on one worker share, and the blocking half of its commands.

``create_stream`` and ``delete_stream`` run in helper threads: they commit to the metadata and
make or remove directories.  Everything else here is called in the worker's loop.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import vibemq
from vibemq.config import Config
from vibemq.errors import StorageError, StreamNotFound
from vibemq.protocols.streams.commands import PRODUCT
from vibemq.protocols.streams.session import StreamsSession
from vibemq.storage import log as logs

if TYPE_CHECKING:
    from vibemq.broker.arguments import StreamArguments
    from vibemq.broker.stream import StreamTable
    from vibemq.storage.metadata import StreamRecord


class Deleted(NamedTuple):
    """A stream that is gone, and which workers have it open."""

    slot: int
    holders: int
    directory: str


class StreamsDoor:
    name = "streams"

    def __init__(self, config: Config, table: StreamTable, authenticator: Any, helpers: Any) -> None:
        self.config = config.streams
        self.store = config.store
        self.table = table
        self.authenticator = authenticator
        self.helpers = helpers
        self.unconfirmed_max = config.streams.unconfirmed_max
        self.sub_batch_uncompressed_max = config.streams.sub_batch_uncompressed_max_bytes
        self.properties = {
            "product": PRODUCT,
            "version": config.streams.product_version,
            "platform": "Erlang/OTP 27",  # some tools parse a number here
            "cluster_name": "vibemq",
            "copyright": "The VibeMQ developers",
            "information": f"VibeMQ {vibemq.__version__}, speaking RabbitMQ Streams",
        }

    def accept(self, connection: Any) -> StreamsSession:
        """The session of a new connection."""
        return StreamsSession(connection, self)

    def now_ms(self) -> int:
        """The loop's clock: monotonic ms."""
        return time.monotonic_ns() // 1_000_000

    def create_stream(self, virtual_host: str, name: str, wanted: StreamArguments) -> StreamRecord:
        """Blocks.  Raises StreamExists, LimitExceeded, StorageError."""
        return self.table.metadata.create_stream(  # type: ignore[no-any-return]
            virtual_host,
            name,
            wanted.given,
            wanted.durability,
            self.store.streams_max,
            prepare=lambda record: logs.create(record.directory, **wanted.options),
        )

    def delete_stream(self, virtual_host: str, name: str) -> Deleted:
        """Blocks.  From its return on nobody can publish to the stream.  Raises StreamNotFound, StorageError."""
        record = self.table.metadata.find_stream(virtual_host, name)
        if record is None:
            raise StreamNotFound(name)
        try:
            # First, because what cannot be opened cannot be marked, and publishers would go on.
            log = logs.Log(record.directory)
        except StorageError as problem:
            if problem.code not in ("ERR_NOT_FOUND", "ERR_DELETED"):
                raise
            self.table.metadata.delete_stream(virtual_host, name)
            return Deleted(record.slot, 0, record.directory)
        try:
            gone = self.table.metadata.delete_stream(virtual_host, name)
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

    def stream_deleted(self, deleted: Deleted) -> None:
        """Tell every worker that has it open, and let a helper remove its files."""
        self.table.tell(deleted.holders, deleted.slot)
        self.helpers.submit(lambda: logs.remove(deleted.directory), self._removed)

    def _removed(self, _: Any, error: BaseException | None) -> None:
        if error is not None:
            raise error
