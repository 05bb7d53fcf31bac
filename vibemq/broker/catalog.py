# SPDX-License-Identifier: Apache-2.0
"""Making and deleting streams and queues: what every door offers, in one place.

``create_*`` and ``delete`` commit to the metadata and make or remove files, so they block and
run in helper threads; ``deleted``, afterwards, and ``restart`` are for the worker's loop.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import vibemq.storage.log as logs
from vibemq.broker.arguments import BadArgument, require_store, stream_arguments
from vibemq.broker.audit import BROKER, AuditLog, Author
from vibemq.broker.options import NAME_SIZE_MAX_BYTES as NAME_SIZE_MAX_BYTES
from vibemq.broker.options import OF_DEAD_LETTERS, altered
from vibemq.config import Config
from vibemq.errors import (
    ExchangeNotFound,
    LimitExceeded,
    MetadataUnsure,
    StorageError,
    StreamExists,
    StreamNotFound,
    UserError,
    VibeMQError,
)
from vibemq.storage.arguments import has_retention, log_options
from vibemq.storage.database import again_when_raced
from vibemq.storage.names import require_address
from vibemq.storage.vhosts import DEFAULT_VHOST

if TYPE_CHECKING:
    from vibemq.broker.arguments import StreamArguments
    from vibemq.broker.stream import StreamTable
    from vibemq.storage.arguments import LogOptions
    from vibemq.storage.policies import HeldPolicies
    from vibemq.storage.records import StreamRecord

logger = logging.getLogger(__name__)

RESERVED_PREFIX = "amq."
#: Of a log: it is gone, or no broker has run since the last boot; the next one sets all limits as it starts.
_NOT_IN_USE = ("ERR_NOT_FOUND", "ERR_DELETED", "ERR_STALE")
_DELETE_VHOST_TRIES = 3  # somebody who makes streams all the time keeps the vhost


class Deleted(NamedTuple):
    """A stream that is gone, and which workers have it open."""

    slot: int
    holders: int
    directory: str


def checked_name(given: str) -> str:
    """The name under which a stream or super stream is made.  Raises BadArgument."""
    name = given.replace("\r", "").replace("\n", "")
    size = len(name.encode(errors="surrogatepass"))
    if not 1 <= size <= NAME_SIZE_MAX_BYTES or name.startswith(RESERVED_PREFIX):
        raise BadArgument(
            f"name {name!r} is empty, begins with {RESERVED_PREFIX} or is over {NAME_SIZE_MAX_BYTES} bytes"
        )
    return name


def queue_name_fits(name: str) -> bool:
    """May a queue be made under this name at every door?  The native one takes letters, digits and "-_." only."""
    return all(char in "-_." or unicodedata.category(char)[0] == "L" or char.isdecimal() for char in name)


class Catalog:
    def __init__(self, config: Config, table: StreamTable, audit: AuditLog | None = None) -> None:
        """``audit``: None where whoever asks says itself who has changed what."""
        self.config, self.audit = config, audit
        self.table = table
        self.metadata = table.metadata
        self.helpers = table.helpers
        self._limits = {
            "streams_max": config.store.streams_max,
            "vhost_streams_max": config.store.streams_per_virtual_host_max,
        }

    def create_stream(
        self, virtual_host: str, name: str, wanted: StreamArguments, *, by: Author = BROKER
    ) -> StreamRecord:
        """The limits of the user ``by`` whom it is made hold.  Blocks.

        Raises BadArgument, StreamExists, LimitExceeded, VhostNotFound, StorageError.
        """
        require_store(wanted.durability, self.config.remote)
        self._require_addresses(virtual_host, [name])

        def create() -> StreamRecord:
            with self._making_logs(self._make_log) as make:
                return self.metadata.create_stream(
                    virtual_host, name, wanted.given, wanted.durability, prepare=make, user=by.user, **self._limits
                )

        record = again_when_raced(create)
        self._say(by, "stream.created", record, arguments=wanted.given)
        return record

    def create_super_stream(
        self,
        virtual_host: str,
        name: str,
        partitions: Sequence[str],
        binding_keys: Sequence[str],
        arguments: Mapping[str, str],
        *,
        by: Author = BROKER,
    ) -> list[StreamRecord]:
        """Make a super stream with these partitions, bound in this order: all of it or nothing.  Blocks.

        ``arguments`` are for every partition.  Raises BadArgument, StreamExists (the super stream or a partition),
        LimitExceeded, VhostNotFound, StorageError.
        """
        wanted = stream_arguments(dict(arguments), self.config.store)
        require_store(wanted.durability, self.config.remote)
        name = checked_name(name)
        names = [checked_name(partition) for partition in partitions]
        if not names or len(names) != len(binding_keys):
            raise BadArgument(f"super stream {name!r}: {len(names)} partitions and {len(binding_keys)} binding keys")
        if len(set(names)) < len(names):
            raise BadArgument(f"super stream {name!r}: two partitions have the same name")
        most = self.config.streams.super_stream_partitions_max
        if len(names) > most:
            raise LimitExceeded(f"super stream {name!r}: partitions", len(names), most)
        self._require_addresses(virtual_host, [name, *names])
        policies = self.metadata.policy_changes()

        def create() -> list[StreamRecord]:
            with self._making_logs(self._make_log) as make:
                return self.metadata.create_super_stream(
                    virtual_host,
                    name,
                    list(zip(names, binding_keys, strict=True)),
                    wanted.given,
                    wanted.durability,
                    self._limits["streams_max"],
                    make,
                    self._limits["vhost_streams_max"],
                    by.user,
                )

        records = again_when_raced(create)
        if self.audit is not None:
            self.audit.say(by, "super_stream.created", name, vhost=virtual_host, partitions=names, arguments=arguments)
        if self.metadata.policy_changes() != policies:  # while nobody could see the new streams
            for record in records:
                logs.set_limits(record.directory, **self._options(record))
        return records

    def _require_addresses(self, virtual_host: str, names: Iterable[str]) -> None:
        """Raises BadArgument where there is no such stream yet and its name may be no new one's."""
        for name in names:
            try:
                require_address("stream or queue", name)
            except UserError as problem:
                if self.metadata.find_stream(virtual_host, name) is None:
                    raise BadArgument(str(problem)) from None

    @contextmanager
    def _making_logs(self, make_log: Callable[[StreamRecord], None]) -> Iterator[Callable[[StreamRecord], None]]:
        """What makes the logs of new streams; they go again where the metadata refuses the streams.

        Only then: after any other error nobody knows whether the streams exist, and the next start finds out.
        """
        made: list[str] = []

        def make(record: StreamRecord) -> None:
            made.append(record.directory)
            make_log(record)

        try:
            yield make
        except MetadataUnsure:
            raise
        except VibeMQError:
            for directory in made:
                with suppress(StorageError):
                    logs.remove(directory)
            raise

    def _make_log(self, record: StreamRecord) -> None:
        logs.create(record.directory, **self._options(record))

    def _options(self, record: StreamRecord) -> LogOptions:
        arguments = self.metadata.effective_arguments(record)
        store = self.config.store
        sizes = store.segment_size_bytes, store.chunk_messages_max, *self.config.local_limits
        return log_options(arguments, record.durability, *sizes)

    def apply_policies(self, before: HeldPolicies) -> None:
        """Set the limits of every stream to which other arguments apply than with the policies ``before``.  Blocks.

        What fails is logged and left to housekeeping, which does it again for all streams.
        """
        now = self.metadata.held_policies()
        for record in self.metadata.streams():
            arguments = now.arguments(record)
            if record.queue is not None or arguments == before.arguments(record):
                continue
            try:
                logs.set_limits(record.directory, **self._options(record))
                if has_retention(arguments, *self.config.local_limits):
                    logs.housekeep(record.directory)
            except VibeMQError as problem:
                if getattr(problem, "code", "") not in _NOT_IN_USE:
                    logger.warning("stream %r: a policy is not applied yet: %s", record.name, problem)

    def create_queue(
        self, virtual_host: str, name: str, options: Mapping[str, Any], *, by: Author = BROKER, may_convert: bool = True
    ) -> StreamRecord:
        """Make a queue, or with ``may_convert`` make one of a stream that is there already.  Blocks.

        ``options`` are kept as given (vibemq.broker.options), ``durability`` among them.  Raises StreamExists when
        there is such a queue or may be no other, BadArgument where its durability or a name cannot be had,
        LimitExceeded, StorageError.
        """
        durability = options.get("durability") or self.config.store.durability
        require_store(durability, self.config.remote)
        there = self.metadata.find_stream(virtual_host, name)
        if by != BROKER and (there is None or there.queue is None):  # which makes what an older queue's options name
            self._require_addresses(virtual_host, [name, options.get("dead_letter_queue") or ""])
        kept = {key: value for key, value in options.items() if value is not None}

        def make_log(record: StreamRecord) -> None:
            segment, messages = self.config.queues.segment_size_bytes, self.config.store.chunk_messages_max
            logs.create(record.directory, **log_options({}, durability, segment, messages, *self.config.local_limits))
            logs.ledger_create(record.directory, 0, durability != "os")

        def create() -> StreamRecord:
            with self._making_logs(make_log) as make:
                return self.metadata.create_stream(
                    virtual_host, name, {}, durability, prepare=make, queue=kept, user=by.user, **self._limits
                )

        try:
            record = again_when_raced(create)
            self._say(by, "queue.created", record, options=kept)
            return record
        except StreamExists as problem:
            if not may_convert or problem.record is None or problem.record.queue is not None:  # type: ignore[attr-defined]
                raise
        # A stream of its own: its retention goes on to say what is kept, and the queue begins with what is there. By
        # default nothing limits it, which would drop from what nobody has yet had the time to take.
        options = {"max_messages": 0, **kept, "keep": True}
        record = again_when_raced(
            lambda: self.metadata.set_queue(virtual_host, name, options, prepare=self._add_ledger)
        )
        self._say(by, "queue.made_of_stream", record, options=options)
        return record

    def alter_queue(
        self, virtual_host: str, name: str, changes: Mapping[str, Any], *, by: Author = BROKER
    ) -> StreamRecord:
        """Change options of a queue that is there (vibemq.broker.options CHANGEABLE); its messages stay.  Blocks.

        What is not named stays as it is, and None gives an option back to the configuration.  Once this has returned
        the change is kept; workers learn of it within half a second, or at once when they are told: in a worker by
        ``Broker.tell_access_changed``, in the management API by ``Api.accounts_changed``.

        Raises StreamNotFound (also for a stream that is no queue), BadArgument, StorageError.
        """
        self._require_addresses(virtual_host, [changes.get("dead_letter_queue") or ""])
        record = self.metadata.alter_queue(virtual_host, name, lambda stored: altered(name, stored, changes))
        self._say(by, "queue.altered", record, options=changes)
        return record

    def _add_ledger(self, record: StreamRecord) -> None:
        log = logs.Log(record.directory)
        try:
            first = log.stats().first_offset
        finally:
            log.close()
        try:
            logs.ledger_create(record.directory, first, record.durability != "os")
        except StorageError as problem:
            if problem.code != "ERR_EXISTS":  # left from a commit that failed: as good as new
                raise

    def create_dead_letter_queue(self, virtual_host: str, name: str) -> None:
        """Blocks.  Also fine when somebody was quicker."""
        with suppress(StreamExists):
            self.create_queue(virtual_host, name, OF_DEAD_LETTERS)

    def delete(self, virtual_host: str, name: str, *, by: Author = BROKER) -> Deleted:
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
            self._say(by, "stream.deleted", self.metadata.delete_stream(virtual_host, name))
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
        self._say(by, "stream.deleted" if gone.queue is None else "queue.deleted", gone)
        return Deleted(record.slot, holders, record.directory)

    def delete_queue(self, virtual_host: str, name: str, *, by: Author = BROKER) -> Deleted:
        """The same for doors to queues, of whose streams that are none they know nothing."""
        record = self.metadata.find_stream(virtual_host, name)
        if record is None or record.queue is None:
            raise StreamNotFound(name)
        return self.delete(virtual_host, name, by=by)

    def say_purged(self, virtual_host: str, name: str, count: int, *, by: Author) -> None:
        """A worker's loop has purged a queue of so many messages; the audit log may block."""
        if self.audit is not None:
            self.audit.say(by, "queue.purged", name, vhost=virtual_host, messages=count)

    def _say(self, by: Author, what: str, record: StreamRecord, **details: Any) -> None:
        if self.audit is not None:
            self.audit.say(by, what, record.name, vhost=record.vhost, **details)

    def restart(self, virtual_host: str, name: str) -> None:
        """Tell all who publish to or read from a stream that they have lost it; it can be used again at once.

        For a worker's loop, as `deleted` is.  Raises StreamNotFound, StorageError, UserError.
        """
        record = self.metadata.find_stream(virtual_host, name)
        if record is None:
            raise StreamNotFound(name)
        if record.queue is not None:
            raise UserError(f"{name} is a queue", hint="only streams are restarted: a queue finds itself a new home")
        self.table.restart(virtual_host, name)

    def delete_super_stream(self, virtual_host: str, name: str, *, by: Author = BROKER) -> list[Deleted]:
        """Delete its partitions, then itself: what a crash interrupts can be asked for again.  Blocks.

        Raises ExchangeNotFound, StorageError; those that it deleted before an error are told here.
        """
        partitions = self.metadata.partitions(virtual_host, name)
        if partitions is None:
            raise ExchangeNotFound(f"there is no super stream {name!r} in vhost {virtual_host!r}")
        gone = self._delete_all(virtual_host, partitions, by)
        if self.audit is not None:
            self.audit.say(by, "super_stream.deleted", name, vhost=virtual_host)
        with suppress(ExchangeNotFound):  # somebody else was at it too
            self.metadata.delete_exchange(virtual_host, name)
        return gone

    def delete_vhost(self, name: str) -> list[Deleted]:
        """Delete a vhost with its streams, queues and everything else.  Blocks.

        Raises VhostNotFound, UserError, StorageError; those that it deleted before an error are told here.
        """
        gone: list[Deleted] = []
        try:
            for turn in range(_DELETE_VHOST_TRIES):
                if name != DEFAULT_VHOST:
                    streams = [record.name for record in self.metadata.streams() if record.vhost == name]
                    gone += self._delete_all(name, streams)
                try:
                    self.metadata.delete_vhost(name)
                    break
                except UserError:
                    # A stream was made meanwhile; anything else is the same the next time.
                    if turn + 1 == _DELETE_VHOST_TRIES or not self.metadata.has_vhost(name):
                        raise
        except BaseException:
            self._tell_all(gone)
            raise
        return gone

    def _delete_all(self, virtual_host: str, names: Sequence[str], by: Author = BROKER) -> list[Deleted]:
        gone = []
        try:
            for name in names:
                try:
                    gone.append(self.delete(virtual_host, name, by=by))
                except StreamNotFound:
                    continue
        except BaseException:
            self._tell_all(gone)
            raise
        return gone

    def _tell_all(self, gone: Sequence[Deleted]) -> None:
        """As ``deleted``, in a helper thread."""
        for one in gone:
            self.table.tell(one.holders, one.slot)
            logs.remove(one.directory)

    def deleted(self, gone: Deleted) -> None:
        """Tell every worker that has it open, and let a helper remove its files."""
        self.table.tell(gone.holders, gone.slot)
        self.helpers.submit_remove(lambda: logs.remove(gone.directory), self._removed)

    def _removed(self, _: Any, error: BaseException | None) -> None:
        if error is not None:
            raise error
