# SPDX-License-Identifier: Apache-2.0
"""One worker process: put the parts together, run the loop, end cleanly.

A worker ends itself in three cases: SIGTERM (finish what is in flight, within
server.shutdown_timeout_s), the supervisor's death (the same, but soon), and an error nobody
expected (the supervisor starts another).
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

from vibemq.access.permissions import Accesses
from vibemq.access.rights import Rights
from vibemq.access.tokens import Tokens
from vibemq.access.users import Authenticator, token_checker
from vibemq.broker.alarms import Alarm, Alarms
from vibemq.broker.audit import AuditLog
from vibemq.broker.catalog import Catalog
from vibemq.broker.fanout import FanOut
from vibemq.broker.groups import Groups
from vibemq.broker.limits import WorkerLimits
from vibemq.broker.messages import Messages
from vibemq.broker.options import FAN_OUTS, DeliveryMode, options_of
from vibemq.broker.parts import Broker
from vibemq.broker.queue_table import QueueTable
from vibemq.broker.rotation import Rotation
from vibemq.broker.staged import Upkeep
from vibemq.broker.stream import StreamTable
from vibemq.broker.timers import Timers
from vibemq.broker.transactions import Transactions
from vibemq.errors import StorageError, VibeMQError
from vibemq.net.hosts import ConnectionRate
from vibemq.net.sockets import Poller
from vibemq.once_a_minute import say_rest
from vibemq.protocols.micromsg2.door import Micromsg2Door
from vibemq.protocols.native.door import NativeDoor
from vibemq.protocols.signalr.door import SignalRDoor
from vibemq.protocols.streams.door import StreamsDoor
from vibemq.remote.asking import publisher
from vibemq.server import listeners
from vibemq.server.clock import KnownTime
from vibemq.server.context import Context
from vibemq.server.handover import Handovers
from vibemq.server.hangs import BEATS_PER_S
from vibemq.server.helpers import Helpers
from vibemq.server.inquiry import Inquiries
from vibemq.server.processes import paused_s
from vibemq.server.substitute import Substitute
from vibemq.server.turn import Loop
from vibemq.storage.ledger import has_consumers_of
from vibemq.storage.log import wait_for_locks
from vibemq.storage.members import FILE_NAME as MEMBERS_FILE
from vibemq.storage.metadata import Metadata
from vibemq.storage.meters import Meters
from vibemq.storage.records import StreamRecord
from vibemq.storage.shm import Board, GroupTable, Mail
from vibemq.storage.vhosts import DEFAULT_VHOST

logger = logging.getLogger(__name__)

ORPHAN_TIMEOUT_S = 1.5  # the supervisor is dead: its successor waits for us
PEERS_NAMED_MAX = 8  # of those that keep a worker from ending, in the log
END_MARGIN_S = 1.5  # the supervisor kills who is still there at the timeout: end on our own before it
#: How long the loop waits for the lock of a log; a process that holds it longer is in a slow file system call.
LOCK_WAIT_MS = 200
TICK_S = 0.5  # the longest wait of a turn
ADOPTED_PER_TURN = 20  # some tens of microseconds each
DOORS = {"streams": StreamsDoor, "native": NativeDoor, "signalr": SignalRDoor, "micromsg2": Micromsg2Door}
MODES = {mode: FanOut if mode in FAN_OUTS else Rotation for mode in DeliveryMode}


class Worker:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.stopping = False
        board = self.board = Board(context.board_fd, context.index, context.doorbell_fds)
        helpers = self.helpers = Helpers(board.work_done)
        metadata = Metadata(context.metadata_path)
        metadata.publish = publisher(context.data_dir)
        config = context.config
        meters = Meters(context.meters, context.index)
        streams_dir = partial(os.path.join, metadata.streams_dir)
        waits_s = config.remote.timeout_s
        streams = StreamTable(metadata, board, helpers, streams_dir, context.archiver_seat, waits_s, meters)
        audit = AuditLog(config.audit, config.data_path)
        self.catalog = Catalog(config, streams, audit)
        self.mail = Mail(context.mail_fd, board, context.worker_count)
        self.groups = Groups(GroupTable(context.groups_fd, board))
        timers = Timers()
        self.beat_timer = timers.timer(self._beat)
        self.queues = QueueTable(
            streams, self.mail, Messages(helpers), timers, config.queues, MODES, self.catalog.create_dead_letter_queue
        )
        free_min = config.store.disk_free_min_bytes
        self.alarms = Alarms(
            config.data_path, free_min, context.conditions, timers, helpers, fills_reserve=context.index == 0
        )
        streams.alarms, self.queues.reserve = self.alarms, self.alarms.reserve
        if context.index == 0:
            self.known_time = KnownTime(context.data_dir, timers, helpers)
        metadata.make_room, metadata.retry = self.alarms.reserve.make_room, self.alarms.reserve.retry
        self.alarms.listen(self._set_alarms)
        self.accesses = Accesses(metadata)
        self.rights = Rights(metadata, config.guest.allow_loopback)
        self.limits = WorkerLimits(metadata, context.usage, context.index, timers)
        self.adopting: list[tuple[str, str, bool]] = []  # virtual host, queue, are its options others
        self.adopt_timer = timers.timer(self._adopt_some)
        poller = selectors.DefaultSelector() if os.environ.get("VIBEMQ_POLLER") == "selectors" else Poller()
        self.loop = Loop(poller, board, self.queues, self.groups, helpers, timers, self._look_at_access, config.server)
        self.substitute = Substitute(streams.disk, self.loop.turn, board.work_done, LOCK_WAIT_MS)
        self.doors: dict[str, Any] = {}
        handovers = Handovers(self.loop, context.index, context.handovers, self.doors)
        authenticator = Authenticator(metadata, config.guest.allow_loopback, token_checker(config.oauth))
        transactions = Transactions(config, streams, self.queues.adopt)
        self.upkeep = Upkeep(transactions.staged, timers, helpers.submit_commit) if context.index == 0 else None
        broker = Broker(
            streams=streams,
            queues=self.queues,
            groups=self.groups,
            catalog=self.catalog,
            transactions=transactions,
            board=board,
            alarms=self.alarms,
            helpers=helpers,
            timers=timers,
            authenticator=authenticator,
            accesses=self.accesses,
            rights=self.rights,
            limits=self.limits,
            tokens=Tokens(metadata, authenticator),
            connection_rate=ConnectionRate(config.native.connections_per_address_per_minute),
            is_public=not listeners.is_loopback(listeners.resolve(config.server.host)[1]),
            tell_access_changed=self._tell_access_changed,
            handovers=handovers,
            worker=context.index,
            worker_count=context.worker_count,
        )
        names = {name.removesuffix(listeners.TLS) for name in context.listeners}
        self.doors.update({name: DOORS[name](config, broker) for name in names})
        self.inquiries: Inquiries | None = None
        if context.inquiries:
            channel, _ = context.inquiries[context.index]
            self.inquiries = Inquiries(channel, self.loop, broker, context.certificates)
            self.loop.attend(channel.fileno(), self.inquiries.answer_one)

    def _needs_home(self) -> Callable[[StreamRecord], bool]:
        """Queues whose messages expire have a home as long as the broker runs, used or not.

        And if this worker's predecessor was home to a queue when it died, somebody says what is true of it now.
        """
        policies = self.queues.metadata.held_policies()

        def needs_home(record: StreamRecord) -> bool:
            try:
                has_ttl = bool(policies.options(record).get("message_ttl_ms"))
                # Members of a fan-out keep their copies until a home ends their time.
                has_members = os.path.exists(os.path.join(record.directory, MEMBERS_FILE))
                return has_ttl or has_members or has_consumers_of(record.directory, self.context.index)
            except StorageError:
                return True  # opening it says what is wrong

        return needs_home

    def _adopt_those(self, needs_home: Callable[[StreamRecord], bool], altered: bool = False) -> None:
        def look() -> list[tuple[str, str, bool]]:
            queues = self.queues.metadata.queues(DEFAULT_VHOST)
            return [(record.vhost, record.name, altered) for record in queues if needs_home(record)]

        def found(names: list[tuple[str, str, bool]] | None, error: BaseException | None) -> None:
            if error is not None:
                logger.error("queues that need a home cannot be listed: %s", error)
            self.adopting += names or []
            self._adopt_some(0)

        self.helpers.submit(look, found)

    def _adopt_some(self, now_ms: int) -> None:
        for virtual_host, name, altered in self.adopting[:ADOPTED_PER_TURN]:
            try:
                self.queues.adopt(virtual_host, name, altered)
            except VibeMQError as problem:
                said = "queue %s: has no home now, so no message that is too old or too many leaves it: %s"
                logger.error(said, name, problem)
        del self.adopting[:ADOPTED_PER_TURN]
        if self.adopting:
            self.adopt_timer.set(self.queues.now_ms + 1)

    def _look_at_access(self) -> None:
        """Twice a second, and when another worker says so: users, permissions or queues' options may have changed."""
        self._look_at_maintenance()
        try:
            self.accesses.refresh()
            self.rights.refresh()
            self.limits.refresh()
        except StorageError as problem:
            logger.error("users and permissions cannot be looked at: %s", problem)
            return
        self._set_alarms()
        before = self.queues.look_at_options()
        if before is not None:
            after = self.queues.metadata.held_policies()

            def drops_more(record: StreamRecord) -> bool:
                options = after.options(record)
                return options != before.options(record) and options_of(options, self.queues.defaults).drops_waiting

            self._adopt_those(drops_more, altered=True)

    def _look_at_maintenance(self) -> None:
        drained = self.context.conditions.is_drained
        if drained == self.loop.suspended or self.stopping:
            return
        if drained:
            logger.info("maintenance: newcomers are refused, and %d connections sent away", len(self.loop.connections))
            self.loop.suspend(self.context.config.server.shutdown_timeout_s * 1000)
        else:
            logger.info("the end of maintenance: newcomers are let in")
            self.loop.revive()

    def _set_alarms(self) -> None:
        """Publishers were let in with a generation of rights: while an alarm is in effect, no such one holds."""
        self.queues.set_alarms(
            None if self.alarms.in_effect else self.accesses.generation,
            Alarm.DISK in self.alarms.in_effect,
            self.alarms.holds_copies,
        )

    def _tell_access_changed(self) -> None:
        self._look_at_access()
        self.board.access_changed()

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._stop)
        self.mail.sit()  # before the seat is taken: who sees it taken may write to us at once
        self.board.sit()
        self.mail.seated()
        self.groups.seats_changed()  # with a single worker nobody else looks after its predecessor's members
        self.board.seat_taken()
        self._adopt_those(self._needs_home())
        if self.upkeep is not None:
            self.upkeep.start()
        self._beat(time.monotonic_ns() // 1_000_000)
        wait_for_locks(LOCK_WAIT_MS)
        for name, listener in self.context.listeners.items():
            certificates = self.context.certificates if name.endswith(listeners.TLS) else None
            self.loop.listen(listener, self.doors[name.removesuffix(listeners.TLS)], certificates)
        self._look_at_maintenance()  # before anybody is let in
        if not self.loop.suspended:
            self.loop.listen_again()
        os.write(self.context.ready_fd, b"R")
        os.close(self.context.ready_fd)
        self.substitute.start()
        while not self.stopping and os.getppid() == self.context.supervisor_pid:
            self.substitute.turn()
            if self.context.certificates is not None and self.context.certificates.stale:
                self.context.certificates.refresh_by(self.helpers)
        return self._drain()

    def _beat(self, now_ms: int) -> None:
        self.context.beats.beat(self.context.index)
        self.beat_timer.set(now_ms + 1000 // BEATS_PER_S)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _has_jobs(self) -> bool:
        return self.inquiries is not None and self.inquiries.has_jobs

    def _drain(self) -> int:
        orphan = not self.stopping
        if orphan:
            logger.warning("the supervisor is gone: finishing and ending")
        until_killed_s = self.context.config.server.shutdown_timeout_s
        timeout_s = ORPHAN_TIMEOUT_S if orphan else until_killed_s - min(END_MARGIN_S, until_killed_s / 2)
        deadline = time.monotonic() + timeout_s
        self.queues.ending = True
        self.loop.drain()
        if self.inquiries is not None:
            self.inquiries.end_jobs()
        turned_s = time.monotonic()
        while (self.loop.connections or self.helpers.running or self._has_jobs()) and turned_s < deadline:
            self.substitute.turn()
            now_s = time.monotonic()
            deadline += paused_s(now_s - turned_s, TICK_S)
            turned_s = now_s
        if self.loop.connections:
            peers = ", ".join(connection.peer for connection in islice(self.loop.connections.values(), PEERS_NAMED_MAX))
            count = len(self.loop.connections)
            more = f" and {count - PEERS_NAMED_MAX} more" if count > PEERS_NAMED_MAX else ""
            logger.warning("%d connections did not end within %.1f s: %s%s", count, timeout_s, peers, more)
        for connection in list(self.loop.connections.values()):
            self.loop.close(connection)
        say_rest()
        return 0


def run(context: Context) -> int:
    """A worker's life; returns its exit code."""
    return Worker(context).run()
