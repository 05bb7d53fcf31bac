# SPDX-License-Identifier: Apache-2.0
"""DATA/lease: which broker uses the directory, and whether the unsynced writes of the last one may be believed.

The lock of the directory (datadir.acquire) excludes another broker on the same mount.  Through another mount of the
same files (FUSE, an overlay beside its upper layer) the kernel gives the lock twice.  So the supervisor names itself
here and renews the record every RENEW_S.  A start whose lock proves nothing waits for a renewal before it takes the
directory.

The record also names the last start: its generation, boot, device and mount, and whether it stopped in order.  Control
pages of streams have the same generation.  A start believes only pages that the record vouches for.  All other logs, as
in a snapshot, are recovered as after a restart of the machine (csrc/log/recovery.c).
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import secrets
import signal
import socket
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from vibemq.errors import AlreadyRunning, SetupError
from vibemq.storage.shm import mount_id

FILE = "lease"
RENEW_S = 2.0
#: A start waits so long for a renewal if it cannot see whether the owner lives: the owner misses two renewals then.
FOREIGN_WAIT_S = 2 * RENEW_S + 1.0
#: Workers of a supervisor that has died end within this time (processes.ORPHAN_LOOK_S).
ORPHANS_WAIT_S = 2.0
LOOK_S = 0.1
SAID_EACH_S = 60.0  # between two warnings about failed renewals
#: A stop waits so long for a renewal that has begun: the disk may stall.
LAST_RENEWAL_S = 5.0
#: After two starts at the same instant through two mounts, the one whose record was overwritten sees that after this.
SETTLE_S = 0.25
_RECORD_BYTES = 1024  # one write of one block
_FORMAT = 1
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
#: File systems that only one machine mounts: the owner of a lease of another boot is dead.
LOCAL = frozenset(
    ("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2", "overlay", "ramfs", "tmpfs", "xfs", "zfs")
)

log = logging.getLogger("vibemq.server")


@dataclass(frozen=True)
class Owner:
    """A supervisor, and the lock file by which it holds the directory."""

    token: str
    host: str
    boot: str
    pid: int
    pid_began: str
    pid_namespace: int
    device: int
    inode: int  # of DATA/lock

    def is_alive(self, boot: str) -> bool:
        """Return whether the owner runs as a process that this one can see."""
        if self.boot != boot or self.pid_namespace != _pid_namespace():
            return False
        return _began(self.pid) == self.pid_began != ""


@dataclass(frozen=True)
class Written:
    """The last start that wrote streams here."""

    generation: int
    boot: str
    device: int
    inode: int
    mount: int
    is_stopped: bool  # all was synced, and nobody has written since


@dataclass(frozen=True)
class Record:
    owner: Owner | None = None
    renewals: int = 0
    written: Written | None = None


def read(path: str) -> Record | None:
    """Return the record of a directory; None: there is none, or it is damaged.

    Raises SetupError if a newer version wrote it, or it cannot be read.
    """
    try:
        # Opened each time: FUSE asks its file system then.
        fd = os.open(f"{path}/{FILE}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise _failed(path, "read", problem) from None
    try:
        data = os.pread(fd, _RECORD_BYTES, 0)
    except OSError as problem:
        raise _failed(path, "read", problem) from None
    finally:
        os.close(fd)
    text, _, check = data.strip().rpartition(b" ")
    if check != b"%08x" % zlib.crc32(text):
        return None
    found = json.loads(text)
    if found["format"] > _FORMAT:
        raise SetupError(
            f"{path}/{FILE} is of version {found['format']}, and this `vibemq` knows {_FORMAT}",
            hint="start the version that wrote it",
        )
    owner, written = found["owner"], found["written"]
    return Record(Owner(**owner) if owner else None, found["renewals"], Written(**written) if written else None)


def _write(path: str, record: Record, *, sync: bool) -> None:
    text = json.dumps({"format": _FORMAT, **asdict(record)}).encode()
    data = (text + b" %08x" % zlib.crc32(text)).ljust(_RECORD_BYTES - 1) + b"\n"
    fd = os.open(f"{path}/{FILE}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.pwrite(fd, data, 0)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


class Lease:
    """The lease of this start, from ``take`` to ``give_back``."""

    def __init__(
        self, path: str, owner: Owner, believed: int, mount: int, *, is_orderly: bool, is_moved: bool = False
    ) -> None:
        self.path, self.owner, self.mount = path, owner, mount
        #: The generation of control pages that are believed; 0: none.
        self.believed = believed
        self.is_orderly = is_orderly  # the last broker stopped in order
        self.is_moved = is_moved  # the directory was written in this boot, through another mount
        self.generation = secrets.randbits(63) | 1
        self.lost = ""  # the message about the broker that took it
        self._record = Record(owner)
        self._writes = threading.Lock()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def vouches(self) -> bool:
        return self.believed != 0

    def begin(self) -> None:
        """Record this start's generation, before any write into streams.  Raises SetupError.

        Without room a renewal records it.  Until then a next start believes no stream.
        """
        owner = self.owner
        written = Written(self.generation, owner.boot, owner.device, owner.inode, self.mount, is_stopped=False)
        self._store(written)

    def require(self) -> None:
        """Raise AlreadyRunning if another broker has taken the lease since."""
        found = read(self.path)
        if found is not None and found.owner != self.owner:
            raise _is_used(self.path, found.owner)

    def keep(self, on_lost: Callable[[], None]) -> None:
        """Renew it in a thread of its own until ``give_back``; ``on_lost`` runs there, once."""
        self._thread = threading.Thread(target=self._renew, args=(on_lost,), name="lease", daemon=True)
        # The new thread takes no signal: a signal must interrupt the wait of the main thread.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread.start()
        except RuntimeError as problem:
            self._thread = None
            raise SetupError(
                f"the thread that renews {self.path}/{FILE} cannot be started: {problem}",
                hint="raise the limit of processes and threads (`pids.max`, `ulimit -u`)",
            ) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)

    def _renew(self, on_lost: Callable[[], None]) -> None:
        said_s = -math.inf
        while not self._ends.wait(RENEW_S):
            try:
                self.require()
                with self._writes:
                    self._record = replace(self._record, renewals=self._record.renewals + 1)
                    _write(self.path, self._record, sync=False)
            except AlreadyRunning as problem:
                self.lost = str(problem)
                on_lost()
                return
            except (OSError, SetupError) as problem:
                if time.monotonic() >= said_s + SAID_EACH_S:
                    said_s = time.monotonic()
                    log.warning("the lease in %s is not renewed: %s", self.path, problem)

    def drop(self) -> None:
        """Give the lease back after a failed start.  Unless streams were written, it vouches as before for them."""
        written = self._record.written
        self.give_back(is_stopped=written is not None and written.is_stopped)

    def give_back(self, *, is_stopped: bool) -> None:
        """Give the lease back at the end of the broker; ``is_stopped``: every stream is synced."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join(LAST_RENEWAL_S)
            if self._thread.is_alive():
                said = "the lease in %s is not given back: its renewal has waited for the disk for %g s"
                log.warning(said, self.path, LAST_RENEWAL_S)
                return
        written = self._record.written
        if self.lost:
            return
        try:
            self.require()
            self._record = Record(None, 0, written and replace(written, is_stopped=is_stopped))
            _write(self.path, self._record, sync=True)
        except AlreadyRunning as problem:
            log.error("the lease is not given back: %s", problem)
        except (OSError, SetupError) as problem:
            log.warning("the lease in %s is not given back: %s", self.path, problem)

    def _store(self, written: Written | None) -> bool:
        """Write the record; False: there is no room, so no record is left, and the next start believes no stream."""
        try:
            with self._writes:
                self._record = replace(self._record, written=written)
                _write(self.path, self._record, sync=True)
            return True
        except OSError as problem:
            if problem.errno not in _NO_ROOM:
                raise _failed(self.path, "write", problem) from None
            said = "%s cannot be written: %s; the start goes on, since consuming makes room"
            log.warning(said, f"{self.path}/{FILE}", problem.strerror)
        try:
            os.unlink(f"{self.path}/{FILE}")
        except FileNotFoundError:
            pass
        except OSError as problem:
            raise _failed(self.path, "write", problem) from None
        return False


def take(path: str, lock_fd: int, boot: str) -> Lease:
    """Take the lease of a directory whose lock is held.  Raises AlreadyRunning, SetupError.

    Waits if another broker may have the directory through another mount.
    """
    at = os.fstat(lock_fd)
    mine = Owner(
        secrets.token_hex(8), socket.gethostname(), boot, os.getpid(), _began(os.getpid()), _pid_namespace(),
        at.st_dev, at.st_ino,
    )  # fmt: skip
    mount = mount_id(lock_fd)
    found = read(path) or Record()
    waited_s, found = _wait_for_owner(path, found, mine, lock_fd)
    written, believed = found.written, 0
    if written is not None and written.boot == boot:
        here = written.device, written.inode, written.mount
        if written.is_stopped or (mount and here == (mine.device, mine.inode, mount)):
            believed = written.generation
    is_orderly = written is not None and written.is_stopped
    is_moved = written is not None and written.boot == boot and not believed
    lease = Lease(path, mine, believed, mount, is_orderly=is_orderly, is_moved=is_moved)
    if not lease._store(written):
        lease.believed, lease.is_orderly = 0, False
    if waited_s:
        time.sleep(SETTLE_S)
    lease.require()
    return lease


def _wait_for_owner(path: str, found: Record, mine: Owner, lock_fd: int) -> tuple[float, Record]:
    """Wait for a renewal or the end of the owner; return the seconds to wait, and the record that is there then.

    Raises AlreadyRunning after a renewal.
    """
    owner = found.owner
    if owner is None or (wait_s := _wait_s(owner, mine, lock_fd)) == 0.0:
        return 0.0, found
    said = (
        "%s: the broker with pid %d on %s did not give its lease back, and the lock does not tell whether it has the "
        "directory through another mount; waiting %g s for it to renew the lease"
    )
    log.warning(said, path, owner.pid, owner.host, wait_s)
    deadline_s = time.monotonic() + wait_s
    while time.monotonic() < deadline_s:
        time.sleep(LOOK_S)
        now = read(path)
        if now is None:
            continue
        if now.owner is None:
            return wait_s, now  # given back meanwhile
        if (now.owner, now.renewals) != (owner, found.renewals):
            raise _is_used(path, now.owner)
    return wait_s, found


def _wait_s(owner: Owner, mine: Owner, lock_fd: int) -> float:
    if owner.is_alive(mine.boot):  # it uses this directory, or the original of this copy
        return 0.0 if owner.pid == mine.pid else FOREIGN_WAIT_S
    if owner.boot == mine.boot:
        if (owner.device, owner.inode) == (mine.device, mine.inode):
            return 0.0  # the owner had the lock that this process holds now
        return ORPHANS_WAIT_S if owner.pid_namespace == mine.pid_namespace else FOREIGN_WAIT_S
    return 0.0 if _file_system(lock_fd) in LOCAL else FOREIGN_WAIT_S


def _is_used(path: str, owner: Owner | None) -> AlreadyRunning:
    whose = f"the broker with pid {owner.pid} on {owner.host}" if owner is not None else "another broker"
    return AlreadyRunning(
        f"the data directory {path} is in use by {whose}, which reaches it through another mount",
        hint="stop that broker first, or give this one its own --data-dir",
    )


def _failed(path: str, what: str, problem: OSError) -> SetupError:
    return SetupError(f"cannot {what} {path}/{FILE}: {problem.strerror}", hint="make room on its disk, or check it")


def _began(pid: int) -> str:
    """Return the start time of a process in clock ticks since the boot; empty: there is none."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        return fields[19].decode() if fields[0] not in (b"Z", b"X") else ""
    return ""


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _file_system(fd: int) -> str:
    """Return the type of the file system of an open file; empty: unknown."""
    with contextlib.suppress(OSError):
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
            mount = next((line.split()[1] for line in file if line.startswith("mnt_id:")), "")
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                if line.split(" ", 1)[0] == mount:
                    return line.partition(" - ")[2].split(" ", 1)[0]
    return ""
