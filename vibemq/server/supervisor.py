# SPDX-License-Identifier: Apache-2.0
"""The supervisor: makes the world that workers share, starts them, and keeps them running.

It reads like this.  **prepare**: take the data directory, bind the doors, give up root, recover
what the last run left.  **share**: the board of doorbells and one eventfd for each worker.
**run**: fork the workers, then one loop that waits for signals, for workers that become ready
or die.  **stop**: tell the workers, wait, and kill only who does not end in time.

It has a main thread and a thread that renews the lease (lease.py).  The loop uses no file in the data directory,
because the disk may stall.  So the loop sees a dead worker and a signal at once.
No message ever passes through this process.
"""

import contextlib
import gc
import importlib
import logging
import math
import mmap
import os
import resource
import selectors
import shlex
import signal
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import vibemq.storage.clock as clock
import vibemq.storage.log as logs_of_streams
from vibemq.addresses import host_port
from vibemq.broker.alarms import Conditions
from vibemq.broker.disk import Reserve
from vibemq.broker.limits import ROWS
from vibemq.config import WORKERS_MAX, Config, OAuth, Tls
from vibemq.errors import ConfigError, StorageError, VibeMQError
from vibemq.once_a_minute import say_due, say_rest
from vibemq.server import datadir, handover, lease, listeners, logs
from vibemq.server.clock import ClockWatch
from vibemq.server.context import DEPOSED, Context, Run, World, seats
from vibemq.server.hangs import Beats, HangWatch
from vibemq.server.memory import MemoryWatch, be_killed_first, may_set_oom_score
from vibemq.server.notify import ServiceManager
from vibemq.server.opening import open_bucket
from vibemq.server.processes import OUR_SIGNALS, Process, paused_s, reap_strangers, require_calls
from vibemq.server.recovery import BEFORE_SERVING_S, END_SIGNAL, Recovery, sync_at_stop
from vibemq.server.rolling import RollingRestart
from vibemq.server.slow_calls import SlowCallWatch
from vibemq.storage.calls import Calls
from vibemq.storage.calls import shared as shared_calls
from vibemq.storage.metadata import Metadata
from vibemq.storage.meters import Meters, shared

if TYPE_CHECKING:
    from vibemq.net.certificates import Certificates

#: Descriptors that a worker needs besides its connections: logs, indexes, control blocks.
FILES_RESERVED = 4096
#: The largest files besides segments must fit: the mail of 64 workers, and the reserve.
FILE_BYTES_MIN = 192 << 20
CERTIFICATES_SAID_EACH_S = 86400.0  # that they end soon: a line a day is seen and does not bury others
STDOUT = 1
ADMIN = "admin"
ADMIN_BACKLOG = 128
#: How long workers may let clients go when what these wait for cannot be confirmed any more.
DEPOSED_END_S = 3.0
#: How long the archiver may send up what the workers have taken last.
ARCHIVER_END_S = 15.0
#: How long the admin process may finish answers after the last worker has ended.
ADMIN_END_S = 2.0
#: timeout(1) and service managers send SIGTERM to a process and then to its group: that is one request.
ONE_REQUEST_S = 1.0
LEVELS = ("debug", "info", "warning", "error")

log = logging.getLogger("vibemq.server")


def serve(config: Config, *, run: Run | None = None, reload: Callable[[], Config] | None = None) -> int:
    """Run the broker until SIGTERM or SIGINT; returns the exit code.

    ``run`` is what each worker does (the product's own unless a test says otherwise, and then there is no admin
    process); ``reload`` reads the configuration again, for SIGHUP.  Raises VibeMQError when it cannot start.
    """
    logs.set_process("supervisor")
    logs.setup(config.server.log_level, config.log.format)
    os.umask(0o077)  # logs and metadata are nobody else's business
    if run:
        return Supervisor(config, run, None, reload).serve()
    # Imported before the fork, so that a new process starts in milliseconds, and from before root is given
    # up; by name, because a test that brings its own worker needs none of it.
    worker, admin = (importlib.import_module(f"vibemq.server.{module}").run for module in ("worker", "admin"))
    return Supervisor(config, worker, admin, reload).serve()


def _archiver_run(context: Context) -> int:
    # Imported in its own process: few brokers have an object store, and its client makes threads.
    run: Run = importlib.import_module("vibemq.server.archiver").run
    return run(context)


class Supervisor:
    def __init__(self, config: Config, run: Run, admin_run: Run | None, reload: Callable[[], Config] | None) -> None:
        self.config = config
        self.data_dir = config.data_path
        self.pid = os.getpid()
        self.reload = reload
        self.stop_deadline_s: float | None = None
        self.stop_began_s = 0.0
        self.stop_timeout_s = 0.0
        self.announced = False
        self.without_workers = False  # stopping, and only the admin process is left
        self.failed = self.deposed = False
        self.epoch = 0  # in the object store: for the first archiver, who takes another one on each later start
        self.addresses: dict[str, str] = {}
        self.certificates: Certificates | None = None
        self.certificates_said_s = 0.0
        self.selector = selectors.DefaultSelector()
        self.signals_read, self.signals_write = socket.socketpair()
        # One byte that workers look at on SIGHUP: the log level that holds now.
        self.level = mmap.mmap(-1, 1)
        self.level[0] = LEVELS.index(config.server.log_level)
        self.beats = Beats(config.worker_count)
        self.seats = seats(config.worker_count)
        self.meters, self.calls = shared(len(self.seats)), shared_calls(len(self.seats))
        self.run, self.admin_run = run, admin_run
        self.workers: list[Process] = []
        self.admin: Process | None = None
        self.archiver: Process | None = None
        self.recoverer: Process | None = None  # where logs are left for it
        self.processes: list[Process] = []  # all of these
        self.killed = 0  # workers that had to be killed at shutdown
        self.manager = ServiceManager()
        self.conditions = Conditions()
        store = config.store
        watermarks = store.memory_high_watermark_percent, store.memory_high_watermark_bytes
        self.memory = MemoryWatch(self.conditions, *watermarks, config.data_path)
        self.started_ms = clock.boot_ms()

    def serve(self) -> int:
        _set_title(f"vibemq: supervisor, {self.data_dir}")
        self._sit("supervisor")
        if not self._doors():
            raise ConfigError(
                "no door is open: streams.enabled, native.enabled, signalr.enabled and micromsg2.enabled are false",
                hint="set one of them to true",
            )
        self._require_bucket()
        if self.config.server.user:
            datadir.account_of(self.config.server.user)  # before the bucket is opened, as below
        if self.config.oauth != OAuth():
            from vibemq.access.oauth import check_options  # loads what checks tokens, which few brokers need

            check_options(self.config.oauth)
        datadir.require_proc()
        require_calls()
        self._raise_file_size()
        datadir.prepare(self.data_dir, self.config.server.user)
        self.lock_fd = datadir.acquire(self.data_dir)  # closed by the end of the last process only
        boot = datadir.boot_id()
        self.lease = lease.take(self.data_dir, self.lock_fd, boot)
        try:
            return self._serve(boot)
        except BaseException:
            self.lease.drop()
            raise

    def _serve(self, boot: str) -> int:
        self.lease.keep(self._wake)
        datadir.identify(self.data_dir, has_bucket=bool(self.config.remote.url))
        clock.share()
        self.clock = ClockWatch(self.data_dir, self.config.retention.clock_grace_s)
        if self.config.tls != Tls():
            from vibemq.net.certificates import Certificates  # loads OpenSSL, which few brokers need

            with_http = self.admin_run is not None and self.config.admin.enabled
            self.certificates = Certificates(self.config.tls, with_http=with_http)  # while root may read the key
            self.certificates_said_s = time.monotonic()
        metadata = Metadata(datadir.metadata_path(self.data_dir))
        metadata.require_whole(boot if self.lease.vouches else "", is_restorable=bool(self.config.remote.url))
        metadata.begin_serving(boot)
        self._bind()  # before the bucket is opened, which deposes whoever has these ports and the same bucket
        if self.config.remote.url:  # which looks at the users as soon as it knows which, and then deposes others
            self.epoch = open_bucket(self.config, self._require_users, self._make_superuser)
        else:
            self._require_users(metadata)
            self._make_superuser(metadata)
        if self.config.server.user:
            metadata.close()
            datadir.drop_privileges(self.config.server.user, self.data_dir)
        elif os.geteuid() == 0:
            log.warning("running as root; server.user (--user) names an account to continue as")
        reserve = self._keep_reserve()
        self.lease.begin()
        self._recover(metadata, reserve)
        self._raise_file_limit()
        if not may_set_oom_score():
            log.info("if memory runs out, the kernel may end the supervisor before a worker: /proc is read-only for it")
        self._share()
        self._watch_signals()
        self.lease.require()
        try:
            code = self._run()
        finally:
            signal.set_wakeup_fd(-1)  # a signal that comes now finds nobody at the other end
        if self.admin is not None:
            with contextlib.suppress(OSError):
                os.unlink(f"{self.data_dir}/{datadir.CTL_SOCKET}")
        names = None if self.lease.lost else self._rest(metadata)
        is_synced = names is not None and not self.deposed and sync_at_stop(names)
        self.lease.give_back(is_stopped=is_synced)
        log.info("stopped")
        return code

    def _rest(self, metadata: Metadata) -> dict[str, str] | None:
        """Empty the write-ahead log, now that all processes have ended; return the streams' names by directory.

        None: they cannot be read.
        """
        names = None
        try:
            names = {record.directory: record.name for record in metadata.logs()}
            if not metadata.rest():
                log.info("%s is open in another process: no digest of it is kept", metadata.path)
        except StorageError as problem:
            log.error("the write-ahead log of the metadata is not emptied: %s", problem)
        return names

    # ---- prepare ----

    def _doors(self) -> dict[str, int]:
        """Name and port of each door that is open."""
        config = self.config
        doors = {name: getattr(config, name) for name in ("streams", "native", "signalr", "micromsg2")}
        ports = {name: door.port for name, door in doors.items() if door.enabled}
        if config.tls.certificate:
            ports |= {name + listeners.TLS: doors[name].tls_port for name in ports}
        return ports

    def _require_users(self, metadata: Metadata) -> None:
        """Raises StorageError if stored users differ from the acknowledged ones; ConfigError if other machines could
        log in as guest, or the configured superuser cannot be made."""
        from vibemq.access.users import lacks_superuser

        metadata.require_access()
        name, password = self.config.native.superuser_name, self.config.native.superuser_password
        makes_one, is_bound = password and lacks_superuser(metadata, name, password), metadata.binding() is not None
        if makes_one and is_bound and not self.config.remote.url:
            raise ConfigError(
                f"superuser {name!r} of the configuration cannot be made: {self.data_dir} belongs to a bucket, where "
                "users are made first, and remote.url does not say which",
                hint="set remote.url as it was, or leave native.superuser_password out",
            )
        hosts = [self.config.server.host, *([self.config.admin.host] if self.config.admin.enabled else [])]
        for host in hosts:
            _, address = listeners.resolve(host)
            has_users = makes_one or metadata.users() or self.config.oauth.jwks
            if not listeners.is_loopback(address) and not has_users:
                add = f"make one with `vibemq users add NAME --data-dir {shlex.quote(self.data_dir)}`"
                raise ConfigError(
                    f"refusing to listen on {host}: other machines can reach it, "
                    "and no user with a password of its own exists",
                    # Of a bucket's broker users are made through the archiver.
                    hint=f"set native.superuser_password; or listen on 127.0.0.1, {add} while it runs, and start again"
                    if is_bound
                    else f"{add}, or listen on 127.0.0.1",
                )

    def _make_superuser(self, metadata: Metadata) -> None:
        from vibemq.access.users import ensure_superuser

        name, password = self.config.native.superuser_name, self.config.native.superuser_password
        if password and ensure_superuser(metadata, name, password):
            log.info("user %r is the superuser, with the password of the configuration", name)

    def _require_bucket(self) -> None:
        """Raises ConfigError where options ask for more of an object store than there is."""
        config = self.config
        if config.store.durability == "remote" and not config.remote.url:
            raise ConfigError(
                "store.durability is remote, and there is no object store", hint="remote.url says where one is"
            )
        if config.remote.url and config.worker_count >= WORKERS_MAX:
            raise ConfigError(
                f"{config.worker_count} workers and an archiver: they have {WORKERS_MAX} seats together",
                hint=f"set server.workers to {WORKERS_MAX - 1} at most",
            )

    def _bind(self) -> None:
        ports = [port for port in self._doors().values() if port]
        if len(set(ports)) < len(ports):
            raise ConfigError(f"two doors have the same port: {self._doors()}", hint="give each its own, or 0")
        calls = self.selector, self._in_child, self._live, self._announce
        for index in range(self.config.worker_count):
            name = f"worker {index}"
            self.workers.append(Process(name, name, index, *calls, self._on_broken))
        host, admin = self.config.server.host, self.config.admin
        of_workers = {door: listeners.Place(host, port, len(self.workers)) for door, port in self._doors().items()}
        of_admin: dict[str, listeners.Place] = {}
        if self.admin_run is not None and admin.enabled:
            of_admin[ADMIN] = listeners.Place(admin.host, admin.port, 1)
            if self.config.tls.certificate:
                of_admin[ADMIN + listeners.TLS] = listeners.Place(admin.host, admin.tls_port, 1)
        bound = listeners.bind(of_workers | of_admin)
        self.addresses |= {door: listeners.shown(each[0]) for door, each in bound.items()}
        for index, worker in enumerate(self.workers):
            worker.listeners |= {door: bound[door][index] for door in of_workers}
        self.processes = [*self.workers]
        if self.admin_run is not None:
            self.admin = Process(ADMIN, "the admin process", -1, *calls, lambda _: None)
            self.processes.append(self.admin)
            self.admin.listeners |= {door: bound[door][0] for door in of_admin}
            self.admin.listeners["ctl"] = listeners.bind_ctl(self.data_dir)
        if self.config.remote.url:
            # Until the workers have ended they wait for what it confirms.
            end_signal = signal.SIGUSR1
            self.archiver = Process("archiver", "the archiver", -1, *calls, lambda _: None, end_signal=end_signal)
            self.archiver.final[DEPOSED] = self._on_deposed
            self.processes.append(self.archiver)

    def _keep_reserve(self) -> Reserve:
        """Before recovery, which writes, too: where the disk is full it gets what was kept for it."""
        reserve = Reserve(self.data_dir, self.config.store.disk_free_min_bytes)
        reserve.make_room()
        try:
            if not reserve.fill():
                log.warning("%s is nearly full: there is no room for the reserve now", self.data_dir)
        except OSError as problem:
            log.warning("the reserve in %s cannot be made: %s", self.data_dir, problem.strerror)
        return reserve

    def _recover(self, metadata: Metadata, reserve: Reserve) -> None:
        store, of_queues = self.config.store, self.config.queues.segment_size_bytes
        sizes = store.segment_size_bytes, of_queues, store.chunk_messages_max, self.config.local_limits
        if self.lease.is_moved:
            said = "%s was written through another mount, or is a copy: all streams are recovered as after a power cut"
            log.warning(said, self.data_dir)
        logs_of_streams.set_generation(self.lease.generation)
        believed, is_orderly = self.lease.believed, self.lease.is_orderly
        self.recovery = Recovery(metadata, *sizes, reserve=reserve, believed=believed, is_orderly=is_orderly)
        self.recovery.before_serving(BEFORE_SERVING_S)
        if self.recovery.left:
            calls = self.selector, self._in_child, self._live, self._announce
            self.recoverer = Process("recovery", "recovery", -1, *calls, lambda _: None, end_signal=END_SIGNAL)
            self.recoverer.ends_by_itself = True
            self.processes.append(self.recoverer)
        metadata.close()  # a connection must not cross a fork

    def _raise_file_size(self) -> None:
        """Check the limit of file sizes.  Raises ConfigError if the shared memory does not fit."""
        segment = max(self.config.store.segment_size_bytes, self.config.queues.segment_size_bytes)
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        if most == resource.RLIM_INFINITY or most >= segment:
            return
        if most < FILE_BYTES_MIN:
            raise ConfigError(
                f"a file may have at most {most} bytes here (RLIMIT_FSIZE), and the broker needs {FILE_BYTES_MIN}",
                hint="raise the limit: `ulimit -Hf`, LimitFSIZE= of systemd, or --ulimit fsize= of Docker",
            )
        log.warning(
            "a file may have at most %d bytes here, and segments have up to %d: at that size messages are "
            "refused; raise the limit (`ulimit -Hf`, LimitFSIZE=) or lower the sizes of segments",
            most,
            segment,
        )

    def _raise_file_limit(self) -> None:
        needed = self.config.server.connections_max + FILES_RESERVED
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = hard if hard != resource.RLIM_INFINITY else max(needed, soft)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        if wanted < needed:
            log.warning(
                "only %d files may be open in each process: not enough for %d connections and their streams; "
                "raise the limit (`ulimit -Hn`, LimitNOFILE=) or lower server.connections_max",
                wanted,
                self.config.server.connections_max,
            )

    # ---- share ----

    def _share(self) -> None:
        import vibemq.storage.shm as shm

        count, seats = len(self.workers), len(self.workers) + (self.archiver is not None)
        kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK
        board, mail, groups = (
            os.memfd_create(f"vibemq-{name}", os.MFD_CLOEXEC) for name in ("board", "mail", "groups")
        )
        shm.board_init(board, seats)
        shm.mail_init(mail, count)
        shm.groups_init(groups)
        self.world = World(
            config=self.config,
            data_dir=self.data_dir,
            board_fd=board,
            mail_fd=mail,
            groups_fd=groups,
            doorbell_fds=[os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(seats)],
            archiver_seat=count if self.archiver else -1,
            supervisor_pid=self.pid,
            beats=self.beats,
            meters=self.meters,
            calls=self.calls,
            handovers=handover.channels(count),
            inquiries=[socket.socketpair(socket.AF_UNIX, kind) for _ in range(count if self.admin else 0)],
            conditions=self.conditions,
            usage=shm.Usage(ROWS, count),
            certificates=self.certificates,
            addresses=self.addresses,
            started_ms=self.started_ms,
        )
        for process in self.processes:
            for listener in process.listeners.values():
                listener.listen(ADMIN_BACKLOG if process is self.admin else listeners.BACKLOG)

    def _live(self, process: Process, ready_fd: int) -> int:
        """The whole life of a process."""
        if process is self.recoverer:
            return self.recovery.beside_the_work(self.pid)
        run = self.admin_run if process is self.admin else _archiver_run if process is self.archiver else self.run
        assert run is not None
        own: dict[str, Any] = {"listeners": process.listeners, "ready_fd": ready_fd, "epoch": self.epoch}
        return run(Context(**vars(self.world), index=process.index, **own))

    def _in_child(self, process: Process) -> None:
        """In a new process: let go of what is the supervisor's, and others'.  The lock stays held."""
        signal.set_wakeup_fd(-1)
        be_killed_first()
        signal.signal(signal.SIGTERM, signal.SIG_DFL if process is not self.archiver else signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor decides
        signal.signal(signal.SIGHUP, lambda *_: self._hung_up())
        self.selector.close()
        self.signals_read.close()
        self.signals_write.close()
        for other in self.processes:
            if other is not process:
                other.let_go()
        for pairs, used_by_admin in ((self.world.handovers, False), (self.world.inquiries, True)):
            for index, (theirs, ours) in enumerate(pairs):
                if index != process.index:
                    theirs.close()
                if used_by_admin != (process is self.admin):
                    ours.close()
        logs.set_level(LEVELS[self.level[0]])
        self._sit(process.name)
        _set_title(f"vibemq: {process.name}, {self.data_dir}")

    def _sit(self, name: str) -> None:
        """This process counts what it does, and the lines that it logs, at its own seat from now on."""
        meters = Meters(self.meters, self.seats[name])
        meters.sit()
        Calls(self.calls, self.seats[name]).sit()
        logs.count(meters.tell)

    def _hung_up(self) -> None:
        """In a worker, at any moment: SIGHUP."""
        logs.set_level(LEVELS[self.level[0]])
        if self.certificates is not None:
            self.certificates.stale = True

    # ---- run ----

    def _watch_signals(self) -> None:
        # Whoever started us may have left SIGCHLD ignored, and then nobody's exit code is kept.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.signals_read.setblocking(False)
        self.signals_write.setblocking(False)
        signal.set_wakeup_fd(self.signals_write.fileno(), warn_on_full_buffer=False)
        for number in OUR_SIGNALS:
            signal.signal(number, lambda *_: None)  # the wake-up socket carries it into the loop
        self.selector.register(self.signals_read, selectors.EVENT_READ, self._on_signals)

    def _run(self) -> int:
        gc.collect()
        gc.freeze()  # what exists now is shared with the workers: collecting it would copy its pages
        for process in self.processes:
            process.start()
        self.epoch = 0
        self.rolling = RollingRestart(self.conditions, self.workers, self.config.server.shutdown_timeout_s)
        hang_s, is_asked = self.config.server.worker_hang_s, self.manager.due is not None
        self.slow_calls = SlowCallWatch(
            {name: Calls(self.calls, seat) for name, seat in self.seats.items()}, time.monotonic()
        )
        self.hangs = HangWatch(
            self.beats, hang_s, time.monotonic(), is_asked=is_asked,
            waits_for_disk=lambda index: self.slow_calls.waits_for_disk(self.workers[index].name),
        )  # fmt: skip
        turned_s = time.monotonic()
        while self.stop_deadline_s is None or any(process.alive for process in self.processes):
            timeout_s = self._timeout_s()
            events = self.selector.select(timeout_s)
            now_s = time.monotonic()
            if self.stop_deadline_s is not None:  # in a frozen control group workers cannot end either
                self.stop_deadline_s += paused_s(now_s - turned_s, timeout_s)
            turned_s = now_s
            for key, _ in events:
                key.data()
            self._due(time.monotonic())
            say_due()
            logs.write_pending()
        say_rest()
        if self.deposed:
            return DEPOSED
        return 1 if self.killed or self.failed else 0

    def _timeout_s(self) -> float:
        times = [
            self.stop_deadline_s,
            self.memory.due,
            self.clock.due,
            self.slow_calls.due,
            self.manager.due,
            self.hangs.due if self.stop_deadline_s is None else None,
            self.rolling.due if self.stop_deadline_s is None else None,
            *(process.restart_at_s for process in self.processes),
        ]
        return max(0.0, min(due for due in times if due is not None) - time.monotonic())

    def _due(self, now_s: float) -> None:
        if self.manager.due is not None and now_s >= self.manager.due:
            is_over = self.stop_deadline_s is not None  # which has a time of its own
            self.manager.feed(now_s, is_well=is_over or self.hangs.is_any_well(self.manager.interval_s / 2))
        if self.lease.lost and not self.deposed:
            self._on_lease_lost()
        if now_s >= self.clock.due:
            self.clock.look()
        if now_s >= self.slow_calls.due:
            self.slow_calls.look(now_s)
        if now_s >= self.memory.due:
            pids = [process.pid for process in self.processes if process.alive]
            self.memory.look([self.pid, *pids])
            reap_strangers(pids)
        if self.stop_deadline_s is not None:
            if not self.without_workers and not any(worker.alive for worker in self.workers):
                self.without_workers = True
                if self.archiver is not None:
                    self.archiver.stop()
                    self.stop_deadline_s = now_s + ARCHIVER_END_S
                else:
                    self.stop_deadline_s = min(self.stop_deadline_s, now_s + ADMIN_END_S)
            if now_s >= self.stop_deadline_s:
                self._kill(f"it did not end within {self.stop_timeout_s:g} s")
                self.stop_deadline_s = now_s + 3600.0  # SIGKILL cannot be refused, only be slow to take effect
            return
        for process in self.processes:
            if process.restart_at_s is not None and process.restart_at_s <= now_s:
                process.start()
        self.rolling.look(now_s)
        if self.hangs.due is not None and now_s >= self.hangs.due:
            alive = [(worker.index, worker.pid) for worker in self.workers if worker.alive]
            if (found := self.hangs.look(now_s, alive)) is not None:
                worker, why = self.workers[found[0]], f"it has done nothing for {found[1]:.0f} s"
                log.error("%s, pid %d, is killed and replaced: %s", worker.label, worker.pid, why)
                worker.tell(signal.SIGKILL)  # its death brings another
        if self.certificates is not None and now_s >= self.certificates_said_s + CERTIFICATES_SAID_EACH_S:
            self.certificates_said_s = now_s
            self.certificates.say_ends(time.time())

    def _announce(self) -> None:
        needed = [*self.workers, *([self.archiver] if self.archiver else [])]
        if self.announced or not all(process.ready for process in needed):
            return
        self.announced = True
        doors = " ".join(f"{door}={address}" for door, address in self.addresses.items())
        log.info("ready: %d workers, %s, data in %s", len(self.workers), doors, self.data_dir)
        self.manager.ready(f"{len(self.workers)} workers, {doors}")
        streams = self.config.streams
        if streams.advertised_host or streams.advertised_port:  # the most frequent reason why clients cannot connect
            told = host_port(
                streams.advertised_host or "the host they reached", streams.advertised_port or "the port above"
            )
            log.info("stream clients are told to connect to %s", told)
        try:
            # Not by print(): the interpreter would write failed bytes again at its end, and change the exit code.
            os.write(STDOUT, f"vibemq ready pid={os.getpid()} workers={len(self.workers)} {doors}\n".encode())
        except OSError as problem:  # the reader is gone; the broker serves all the same
            log.warning("the ready line could not be written to standard output: %s", problem.strerror)

    def _on_broken(self, worker: Process) -> None:
        """Once the broker has served, it keeps trying for ever; a start that fails is reported as such."""
        if not self.announced and self.stop_deadline_s is None:
            self.failed = True
            self._stop(f"worker {worker.index} cannot start (the lines above say why)")

    def _on_deposed(self) -> None:
        """Another broker was started under this one's name: whatever is taken now could not be confirmed."""
        self.deposed = True
        log.error(
            "another broker has this one's place in %s: this one ends with exit code %d and must not be started again "
            "as it is; end the other one, and start with an empty data directory: all that was confirmed comes back",
            self.config.remote.url,
            DEPOSED,
        )
        if self.stop_deadline_s is None:
            self._stop("another broker has this one's place in the object store",
                       min(DEPOSED_END_S, self.config.remote.deposed_after_s / 2))  # fmt: skip

    def _on_lease_lost(self) -> None:
        """End at once: another broker writes into the directory, and both could confirm messages."""
        self.deposed = True
        log.error("%s: this one ends at once with exit code %d, and syncs nothing", self.lease.lost, DEPOSED)
        if self.stop_deadline_s is None:
            self._stop("another broker has the data directory", 0.0)
        self._kill("another broker has the data directory")

    def _wake(self) -> None:
        """Wake the loop, from another thread."""
        with contextlib.suppress(BlockingIOError):  # full: the loop wakes in any case
            self.signals_write.send(b"\0")

    # ---- signals ----

    def _on_signals(self) -> None:
        for number in self.signals_read.recv(64):
            if number == 0:  # _wake
                continue
            if number == signal.SIGHUP:
                self._reload()
            elif self.stop_deadline_s is None:
                self._stop(signal.Signals(number).name)
            elif number == signal.SIGTERM and time.monotonic() < self.stop_began_s + ONE_REQUEST_S:
                continue
            else:
                self._kill(f"a second {signal.Signals(number).name} came while stopping")

    def _stop(self, why: str, most_s: float = math.inf) -> None:
        self.stop_timeout_s = min(most_s, self.config.server.shutdown_timeout_s)
        log.info("%s: stopping; workers have %g s to finish", why, self.stop_timeout_s)
        self.manager.stopping(why)
        self.stop_began_s = time.monotonic()
        self.stop_deadline_s = self.stop_began_s + self.stop_timeout_s
        for process in self.processes:
            if process is not self.archiver:
                process.stop()

    def _kill(self, why: str) -> None:
        for process in self.processes:
            if process.alive and process in (self.admin, self.archiver):  # nothing is lost with it
                log.warning("%s, pid %d, is killed: it has not ended yet", process.label, process.pid)
            elif process.alive:
                log.error("%s, pid %d, is killed: %s", process.label, process.pid, why)
                self.killed += 1
            process.tell(signal.SIGKILL)

    def _reload(self) -> None:
        if self.announced:
            self.manager.reloading()
        self._reload_options()
        if self.certificates is not None:
            self.certificates.refresh()  # for workers that are started later, and to say what is wrong once
        for process in (*self.workers, *([self.admin] if self.admin else [])):
            process.tell(signal.SIGHUP)
        if self.announced:
            self.manager.ready(f"{len(self.workers)} workers")

    def _reload_options(self) -> None:
        if self.reload is None:
            log.warning("SIGHUP: nothing to read again")
            return
        try:
            new = self.reload()
        except VibeMQError as problem:
            log.error("SIGHUP: the configuration is kept as it was: %s", problem)
            return
        self.level[0] = LEVELS.index(new.server.log_level)
        logs.set_level(new.server.log_level)
        waiting = sorted(_changes(self.config, new) - {"server.log_level"})
        log.info("SIGHUP: log level is %s", new.server.log_level)
        if waiting:
            log.warning("SIGHUP: these options changed and take effect only at the next start: %s", ", ".join(waiting))


def _changes(old: Config, new: Config) -> set[str]:
    from vibemq.config import OPTIONS

    return {
        f"{section}.{option}"
        for section, options in OPTIONS.items()
        for option in options
        if getattr(getattr(old, section), option) != getattr(getattr(new, section), option)
    }


def _set_title(title: str) -> None:
    from setproctitle import setproctitle

    setproctitle(title)
