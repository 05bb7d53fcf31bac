# SPDX-License-Identifier: Apache-2.0
"""The admin process: the management API beside the workers, so that no question of it can slow a message.

The supervisor makes everything before the first fork and keeps it: the two listening sockets (HTTP,
and a Unix socket in the data directory for `vibemq ctl`), and for each worker a pair of sockets for questions
(server/inquiry.py).  So nobody who connects while this process is being replaced is refused, and a worker
that dies is asked again through the same socket.  It is never waited for and never stops the
broker: when it keeps dying, it is started again ever later.  It also applies retention (server/housekeeping.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket

from vibemq.access.users import Authenticator, token_checker
from vibemq.admin.api.service import Api
from vibemq.admin.http import Server
from vibemq.admin.page.sampler import Sampler
from vibemq.admin.workers import Workers
from vibemq.broker.audit import AuditLog
from vibemq.broker.disk import Reserve
from vibemq.config import Config
from vibemq.once_a_minute import say_due, say_rest
from vibemq.remote.asking import publisher
from vibemq.server import listeners, logs
from vibemq.server.context import Context, seats
from vibemq.server.housekeeping import Housekeeper
from vibemq.storage.calls import Call, Calls
from vibemq.storage.metadata import Metadata
from vibemq.storage.meters import Meters

# The next supervisor waits for the lock on the data directory, which this process shares.
ORPHAN_CHECK_S = 0.2
#: A worker whose loop has been in one file system call for so long is not asked: it cannot answer before that ends.
STALLED_S = 0.5

log = logging.getLogger("vibemq.admin")


def run(context: Context) -> int:
    """Returns the exit code."""
    asyncio.run(_serve(context))
    return 0


async def _serve(context: Context) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    metadata = Metadata(context.metadata_path)
    metadata.publish = publisher(context.data_dir)
    # Deleting a stream is a way to empty a full disk.
    reserve = Reserve(context.data_dir, context.config.store.disk_free_min_bytes)
    metadata.make_room, metadata.retry = reserve.make_room, reserve.retry
    calls = {name: Calls(context.calls, seat) for name, seat in seats(context.worker_count).items()}
    api = Api(
        context.config,
        metadata,
        Workers([ours for _, ours in context.inquiries], lambda worker: stalled_in(calls[f"worker {worker}"])),
        node_name(context.config, context.addresses),
        context.addresses,
        context.started_ms,
        context.conditions,
        {name: Meters(context.meters, seat) for name, seat in seats(context.worker_count).items()},
        calls,
    )
    api.audit = AuditLog(context.config.audit, context.data_dir)
    api.sampler = Sampler(api)
    api.sampler.start()
    store = context.config.store
    Housekeeper(
        Metadata(context.metadata_path), store.retention_interval_s, store.segment_size_bytes, store.chunk_messages_max,
        context.config.local_limits, is_first=api.meters["admin"].counter("starts") == 1,
    ).start()  # fmt: skip
    tokens = token_checker(context.config.oauth)
    server = Server(api, Authenticator(metadata, context.config.guest.allow_loopback, tokens))
    certificates, doors = context.certificates, context.listeners
    await server.listen(doors.get("admin"), doors["ctl"], doors.get(f"admin{listeners.TLS}"), certificates)
    address = context.addresses.get("admin", "").replace("%", "%25")  # before the scope of an IPv6 address, in a URL
    log.info("the management API is ready%s", f", and its page is at http://{address}/" if address else "")
    while not stop.is_set() and os.getppid() == context.supervisor_pid:
        say_due()
        logs.write_pending()
        if certificates is not None and certificates.stale:
            await asyncio.to_thread(certificates.refresh)
        try:
            await asyncio.wait_for(stop.wait(), ORPHAN_CHECK_S)
        except TimeoutError:
            continue
    await server.close()
    api.sampler.close()
    say_rest()


def stalled_in(calls: Calls) -> Call | None:
    """The slow call that a worker's loop is in."""
    return next((call for call in calls.running(STALLED_S) if call.is_loops), None)


def node_name(config: Config, addresses: dict[str, str]) -> str:
    """RabbitMQ's form; tools take what comes after the @ as the broker's host."""
    host = config.streams.advertised_host
    if not host:
        bound = next(iter(addresses.values()), "127.0.0.1:0").rpartition(":")[0].strip("[]")
        _, address = listeners.resolve(bound)
        if listeners.is_loopback(address):
            host = "localhost"
        else:
            host = socket.gethostname() if address in ("0.0.0.0", "::") else bound
    return f"rabbit@{host}"
