# SPDX-License-Identifier: Apache-2.0
"""The archiver's process: with an epoch in the bucket it works as long as the supervisor lives (vibemq/remote).

The first one of a start has the epoch that the start has taken; every later one takes the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable

from vibemq.broker.disk import Reserve
from vibemq.errors import RemoteError
from vibemq.once_a_minute import say_rest
from vibemq.remote.archiver import Archiver
from vibemq.remote.bucket import Bucket
from vibemq.remote.epochs import Epochs, Outdated
from vibemq.remote.write_ahead import Deposed
from vibemq.server.context import DEPOSED, Context
from vibemq.server.processes import ends_with
from vibemq.storage.metadata import Metadata
from vibemq.storage.shm import Board

RETRY_S = 2.0
#: What waits for the store when the supervisor dies has this long; who starts the broker again waits for longer.
ORPHAN_END_S = 2.0
#: Where cores are few, workers and clients go first; confirms by the store wait for its answers, not for a core.
NICENESS = 10

log = logging.getLogger("vibemq.remote")


def run(context: Context) -> int:
    """Returns the exit code."""
    os.nice(NICENESS)
    try:
        return asyncio.run(_run(context))
    finally:
        say_rest()


async def _run(context: Context) -> int:
    config = context.config.remote
    bucket = Bucket(config)
    epochs = Epochs(bucket, config.name, context.data_dir)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stop.set)  # which the supervisor sends last

    def is_over() -> bool:
        return stop.is_set() or os.getppid() != context.supervisor_pid

    def ready() -> None:
        os.write(context.ready_fd, b"R")
        os.close(context.ready_fd)

    watch = asyncio.create_task(ends_with(context.supervisor_pid, ORPHAN_END_S))
    watch.add_done_callback(lambda _: None)  # it is held here, and ends with the loop
    metadata = Metadata(context.metadata_path)
    try:
        epoch = await _take_epoch(context.epoch, bucket, metadata, epochs, is_over, stop)
    except Outdated as problem:
        log.error("the archiver ends: %s", problem)
        return DEPOSED
    if epoch is None:
        return 0
    reserve = Reserve(context.data_dir, context.config.store.disk_free_min_bytes)
    metadata.make_room, metadata.retry = reserve.make_room, reserve.retry
    board = Board(context.board_fd, context.archiver_seat, context.doorbell_fds)
    try:
        await Archiver(config, metadata, board, bucket, epochs, epoch).serve(is_over, ready)
    except Deposed as problem:
        if problem.by.get("data") == epochs.identity:
            log.info("another archiver of this broker has taken over: %s", problem)
            return 0
        log.error("another broker has taken this one's place in %s: %s", config.url, problem)
        return DEPOSED
    return 0


async def _take_epoch(
    taken: int, bucket: Bucket, metadata: Metadata, epochs: Epochs, is_over: Callable[[], bool], stop: asyncio.Event
) -> int | None:
    """``taken``: the one that the start has taken for the first archiver, or 0.  None: it is over before."""
    bound = metadata.binding()
    assert bound is not None  # by who opened the bucket
    while not is_over():
        try:
            await bucket.bind(bound[0])
            return taken or await epochs.take()
        except Outdated:
            raise
        except RemoteError as problem:
            log.error("no epoch can be taken, so nothing of durability remote is confirmed: %s", problem)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), RETRY_S)
    return None
