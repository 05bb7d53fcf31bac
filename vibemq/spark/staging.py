# SPDX-License-Identifier: Apache-2.0
"""What tasks and the driver say to the broker so that a batch is in its streams once.

A task stages its rows in a transaction of its own, out of everybody's sight. The driver's commit decides which
transactions are the batch: the broker does that once for each version of an application, and whoever asks again, after
whatever crash, hears that it is done. So rows of a task that failed, or ran twice, or was replayed in another order
never show.

A connection that is lost is made again, and staging goes on behind the last block that the broker has.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vibemq.client.streams import Committed, Staging, StreamsConnection, TransactionState
from vibemq.errors import PublishTimeout, RequestFailed, SetupError, StreamNotFound, VibeMQError
from vibemq.spark.client import BrokerAway, Patience, connection, partitions, patiently
from vibemq.spark.sink_options import SinkOptions

log = logging.getLogger("vibemq.spark")

Block = tuple[int, "bytes | memoryview"]

RUN_WAIT_SECONDS_MAX = 30.0  # a driver that was killed and started again comes through: the old connections are gone
ASK_AGAIN_SECONDS = 0.5
CODE_FULL = 17  # PRECONDITION_FAILED ends the staging of one who staged too much in all
UNCONFIRMED_BYTES_MAX = 16 << 20  # of a task: the memory that slow confirms may cost
BLOCK_HEAD_BYTES = 64  # of the frame that a block is sent in, with room to spare
COMMIT_BYTES_MAX = 250_000  # of names in a commit, which the broker decodes in one go: some 6,000 tasks
COMMIT_BLOCK_SECONDS = 0.02  # 256 KiB copied: a hundred times what it takes


@dataclass(frozen=True)
class Batch:
    """What is decided at once. Every task of it has the same one."""

    application: str
    version: int
    run: str
    targets: tuple[str, ...]
    ephemeral: bool = False  # the application has no other version
    keeps_targets: bool = False  # every batch of the application goes to the same targets, or to more


@dataclass(frozen=True)
class Targets:
    """Where rows may go: names, sorted; the index of each partition of a super stream; and how large a block may be."""

    names: tuple[str, ...]
    partitions: tuple[int, ...]
    block_max: int


class InputFailed(Exception):
    """The rows themselves could not be had; nothing of the broker's."""


def prepare(options: SinkOptions) -> Targets:
    """Look at the targets, on the driver, so that all tasks have the same. Makes them where that is wanted."""

    def ask(taken: StreamsConnection) -> Targets:
        if not taken.has_transactions:
            product = taken.server_properties.get("product", "the broker")
            raise SetupError(
                f"{product} {taken.server_properties.get('version', '')} cannot stage transactions, which writing with "
                "Spark needs; a newer VibeMQ can"
            )
        super_stream = options.access.super_stream
        cannot = ", and createStream=true cannot make one: it does not know how many partitions"
        listed = partitions(taken, options.access, cannot) if super_stream else list(options.access.streams)
        names = tuple(sorted(listed))
        for name in names:
            if options.create_stream and not super_stream:
                taken.create(name, exist_ok=True)
            elif not taken.exists(name):
                raise StreamNotFound(f"stream {name!r} does not exist; createStream=true makes it")
        indexes = tuple(names.index(name) for name in listed) if super_stream else ()
        return Targets(names, indexes, taken.frame_max - BLOCK_HEAD_BYTES)

    return patiently(options.access, ask)


class Waiting:
    """What the broker answers where nothing is wrong but the time, and what it means when that does not end."""

    def __init__(self, options: SinkOptions, batch: Batch) -> None:
        self.confirm_seconds = options.confirm_timeout_ms / 1000
        self.batch = batch
        self.since: float | None = None

    def wait(self, state: int, holder: str) -> None:
        """Sleep a little, or raise what the state means: always for those that do not end by themselves."""
        batch = self.batch
        if state == TransactionState.SUPERSEDED:
            raise VibeMQError(
                f"another driver has taken over {batch.application}: {holder}. Two queries must not use one checkpoint "
                "(or one txnAppId) at a time; this one is the older and ends here"
            )
        if state == TransactionState.CHANGED:
            raise VibeMQError(f"batch {batch.version} of {batch.application} cannot be written: {holder}")
        now = time.monotonic()
        self.since = now if self.since is None else self.since
        waited = now - self.since
        if state == TransactionState.BUSY and waited >= RUN_WAIT_SECONDS_MAX:
            raise VibeMQError(
                f"two drivers use one checkpoint (or one txnAppId): {batch.application} is being written by {holder}, "
                f"which still was there after {waited:.0f} s. Stop one of the two"
            )
        if state == TransactionState.FULL and waited >= self.confirm_seconds:
            raise VibeMQError(f"the broker had no room for {waited:.0f} s, confirmTimeoutMs allows no more: {holder}")
        time.sleep(ASK_AGAIN_SECONDS)

    def well(self) -> None:
        self.since = None


# ---- tasks ----


class Task:
    """One attempt's transaction while it is staged.

    Invariant: `kept` are the blocks that have been taken from the rows and of which the broker has not said that it
    keeps them, `safe` is the number of those before them.
    """

    def __init__(self, options: SinkOptions, batch: Batch, name: str) -> None:
        self.options, self.batch, self.name = options, batch, name
        self.kept: deque[Block] = deque()
        self.kept_bytes = 0
        self.safe = 0
        self.patience = Patience(options.access)
        self.waiting = Waiting(options, batch)
        self.timeout_s = options.confirm_timeout_ms / 1000

    def stage(self, blocks: Iterator[Block]) -> int | None:
        """How many blocks there were, all kept by the broker; None where the batch is decided already."""
        blocks = _guarded(blocks)
        while True:
            staging = None
            try:
                with connection(self.options.access) as taken:
                    staging = self._begin(taken)
                    if staging.state == TransactionState.OK:
                        return self._stage(staging, blocks)
                if staging.state == TransactionState.ALREADY:
                    return None
                self.waiting.wait(staging.state, staging.holder)
            except BrokerAway as failed:
                self.patience.wait(failed)
            except RequestFailed as failed:
                if failed.code == CODE_FULL and staging is None:
                    raise VibeMQError(
                        f"the broker does not let {self.batch.application:.100} begin: {failed} "
                        "A txnAppId that another user has, or that is too long, is refused so"
                    ) from failed
                if failed.code != CODE_FULL:
                    raise
                self.waiting.wait(TransactionState.FULL, str(failed))

    def _begin(self, taken: StreamsConnection) -> Staging:
        batch = self.batch
        return taken.begin_transaction(
            self.name, batch.application, batch.version, batch.run, batch.targets,
            ephemeral=batch.ephemeral, keeps_targets=batch.keeps_targets,
        )  # fmt: skip

    def _stage(self, staging: Staging, blocks: Iterator[Block]) -> int:
        if staging.sequence < self.safe:
            raise VibeMQError(
                f"transaction {self.name}: the broker had {self.safe} blocks of it and now has {staging.sequence}; "
                "this attempt fails, and the next one stages everything again"
            )
        self._forget(staging.sequence)
        try:
            for target, block in list(self.kept):
                staging.stage(target, block, self.timeout_s)
            for target, block in blocks:
                self.kept.append((target, block))
                self.kept_bytes += len(block)
                staging.stage(target, block, self.timeout_s)
                self._forget(staging.sequence + staging.confirmed)
                if self.kept_bytes > UNCONFIRMED_BYTES_MAX:
                    staging.flush(self.timeout_s)
                    self._forget(staging.sequence + staging.confirmed)
            staging.flush(self.timeout_s)
        except PublishTimeout as late:
            raise VibeMQError(
                f"the broker confirmed nothing for {self.timeout_s:.0f} s, confirmTimeoutMs allows no more: {late}"
            ) from late
        staging.close()
        return staging.blocks

    def _forget(self, safe: int) -> None:
        """The first `safe` blocks are the broker's now."""
        if safe > self.safe:
            self.patience.well()
            self.waiting.well()
        for _ in range(safe - self.safe):
            self.kept_bytes -= len(self.kept.popleft()[1])
        self.safe = max(self.safe, safe)


def _guarded(blocks: Iterator[Block]) -> Iterator[Block]:
    """The same; what goes wrong with the rows is not mistaken for a lost connection, which is an OSError, too."""
    try:
        yield from blocks
    except Exception as failed:
        raise InputFailed(str(failed)) from failed


def stage(options: SinkOptions, batch: Batch, name: str, blocks: Iterator[Block]) -> int | None:
    """Stage a task's blocks as the transaction `name`: how many there are; None where the batch is decided already."""
    try:
        return Task(options, batch, name).stage(blocks)
    except InputFailed as failed:
        cause = failed.__cause__
        assert cause is not None
        raise cause from None


# ---- the driver ----


def decide(options: SinkOptions, batch: Batch, staged: Sequence[tuple[str, int]], *, last: bool = False) -> Committed:
    """Make the transactions, (name, blocks), the batch. Asked again, by any life of the driver, it is done already."""
    size = sum(len(name) + 10 for name, _ in staged) + sum(len(target.encode()) + 2 for target in batch.targets)
    if size > COMMIT_BYTES_MAX:
        raise VibeMQError(
            f"batch {batch.version} of {batch.application}: {len(staged)} tasks with rows for {len(batch.targets)} "
            "streams are more than one commit can name; write with fewer tasks (coalesce)"
        )
    timeout_s = options.confirm_timeout_ms / 1000 + COMMIT_BLOCK_SECONDS * sum(blocks for _, blocks in staged)

    def ask(taken: StreamsConnection) -> Committed:
        return taken.commit_transactions(
            batch.application, batch.version, batch.run, batch.targets, staged,
            ephemeral=batch.ephemeral, keeps_targets=batch.keeps_targets, last=last, timeout_s=timeout_s,
        )  # fmt: skip

    waiting = Waiting(options, batch)
    while True:
        committed = patiently(options.access, ask)
        if committed.state in (TransactionState.OK, TransactionState.ALREADY):
            return committed
        waiting.wait(committed.state, committed.holder)


def give_up(options: SinkOptions, batch: Batch, *, last: bool = False) -> None:
    """Throw away what the run has staged. A broker that is away does it by itself, later."""
    try:
        with connection(options.access) as taken:
            taken.abort_transactions(batch.application, batch.run, last=last)
    except (BrokerAway, VibeMQError) as failed:
        log.warning("what was staged for %s is left to the broker to throw away: %s", batch.application, failed)
