# SPDX-License-Identifier: Apache-2.0
"""The data directory: made for its owner only, used by one broker at a time.

``DATA/lock`` is held with flock by the supervisor and, through the inherited descriptor, by every worker: a supervisor
that was killed cannot be followed by a new one while its workers still finish.
"""

import contextlib
import fcntl
import logging
import os
import pwd
import shlex
import time

from vibemq.errors import AlreadyRunning, ConfigError, SetupError
from vibemq.storage import identity, ownership

WAIT_S = 5.0  # workers notice their supervisor's death within a second and then finish what is in flight
_POLL_S = 0.02
#: In the directory: through which `vibemq ctl` asks the broker.
CTL_SOCKET = "ctl.sock"
#: In a backup, which no broker serves from (backup.py).
BACKUP = "backup.json"
BOOT_ID, OWN_FILES = "/proc/sys/kernel/random/boot_id", "/proc/self/fd"

log = logging.getLogger("vibemq.server")


def metadata_path(path: str) -> str:
    """Where streams and users are recorded (vibemq.storage.metadata)."""
    return f"{path}/meta.db"


def require_proc() -> None:
    """What the broker reads below /proc is there.  Raises SetupError."""
    try:
        with open(BOOT_ID, "rb") as file:
            is_there = bool(file.read(1)) and os.path.isdir(OWN_FILES)
    except OSError:
        is_there = False
    if not is_there:
        raise SetupError(
            f"/proc is not there as the kernel has it: needed are {BOOT_ID}, which tells a log whether the machine was "
            f"started anew, and {OWN_FILES}, through which the socket of `vibemq ctl` is made",
            hint="mount it (`mount -t proc proc /proc`), and let a container see it",
        )


def boot_id() -> str:
    """Return the kernel's ID of this boot of the machine.  Raises SetupError."""
    require_proc()
    with open(BOOT_ID, encoding="ascii") as file:
        return file.read().strip()


def is_served(path: str) -> bool:
    """Return whether a broker serves from this directory."""
    try:
        fd = os.open(f"{path}/lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False  # no broker ever has, or this account has no access
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def prepare(path: str, user: str = "") -> None:
    """Make the directory and its folder of streams, mode 0700; `user` is the account that it is given to later.

    Raises SetupError.
    """
    if os.path.exists(f"{path}/{BACKUP}"):
        raise SetupError(
            f"{path} is a backup, which stays as it is",
            hint=f"`vibemq restore {shlex.quote(path)} --data-dir FOLDER` makes a data directory of it",
        )
    if user and os.path.isdir(path):
        _require_ours(path, user)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        for folder in (path, f"{path}/streams"):
            if not os.path.isdir(folder):
                os.mkdir(folder, 0o700)
        if refused := ownership.refusal(path, directory=True):
            raise SetupError(f"cannot use the data directory {path}: {refused.why}", hint=refused.hint)
        if os.stat(path).st_mode & 0o077 and ownership.is_ours(path):
            said = "%s may be entered by other accounts; `chmod 700 %s` keeps messages private"
            log.warning(said, path, shlex.quote(path))
        elif os.stat(path).st_mode & 0o077:
            said = "%s is open to other accounts and has other files; give messages a directory of their own"
            log.warning(said, path)
    except OSError as problem:
        refused = ownership.of_error(problem, str(problem.filename or path), directory=True, data_dir=path)
        raise SetupError(
            f"cannot use the data directory {path}: "
            + (refused.why if refused else f"{_why(problem)} ({problem.filename})"),
            hint=refused.hint if refused else "choose another with --data-dir, or make this one writable",
        ) from None


def _require_ours(path: str, user: str) -> None:
    """Raises SetupError if an account would be given files that are not a broker's."""
    if os.geteuid() != 0 or os.stat(path).st_uid == account_of(user).pw_uid or ownership.is_ours(path):
        return
    others = ", ".join((ownership.others_in(path) or [])[:3])
    raise SetupError(
        f"cannot use the data directory {path}: account {user} would be given it and other files than a broker's"
        + (f" ({others})" if others else ""),
        hint=f"name a directory of its own: --data-dir {shlex.quote(os.path.join(path, 'vibemq'))}",
    )


def _why(problem: OSError) -> str:
    return "it is a file" if isinstance(problem, FileExistsError) else str(problem.strerror)


def acquire(path: str) -> int:
    """Take DATA/lock and return its descriptor, to be kept open.  Raises AlreadyRunning, SetupError.

    Waits a moment for the workers of a supervisor that has just died.
    """
    try:
        fd = os.open(f"{path}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        refused = ownership.of_error(problem, f"{path}/lock")
        raise SetupError(
            f"cannot open {path}/lock: {refused.why if refused else problem.strerror}",
            hint=refused.hint if refused else "",
        ) from None
    deadline = None
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        if deadline is None:
            deadline = time.monotonic() + WAIT_S
            said = "%s is in use by pid %s or its workers; waiting up to %g s for them to end"
            log.warning(said, path, holder, WAIT_S)
        if time.monotonic() > deadline:
            os.close(fd)
            gone = "" if os.path.exists(f"/proc/{holder}") else " (which has ended, but a worker of it has not)"
            raise AlreadyRunning(
                f"the data directory {path} is in use by the broker with pid {holder}{gone}",
                hint="stop that broker first, or give this one its own --data-dir",
            )
        time.sleep(_POLL_S)  # flock has no timeout, and a signal must still be able to end us
    try:
        os.ftruncate(fd, os.pwrite(fd, f"{os.getpid()}\n".encode(), 0))  # in this order a full disk has the room
    except OSError as problem:
        os.close(fd)
        raise SetupError(
            f"cannot write {path}/lock: {problem.strerror}", hint="make room on its disk, or check it"
        ) from None
    return fd


def require_unserved(path: str) -> None:
    """Before a tool changes the schema of the database.  Raises SetupError: an older broker serves from it."""
    if is_served(path):
        raise SetupError(
            f"{metadata_path(path)} is of an older version than this `vibemq`, and a broker serves from it; "
            "nothing was changed",
            hint="use the commands of the version that serves, or start the broker again with this one",
        )


def identify(path: str, *, has_bucket: bool) -> None:
    """Give the directory its identity where it has none yet.  Raises SetupError.

    Without a bucket a damaged one is created again. With one the start is refused, because the bucket identifies the
    directory by it.
    """
    file = f"{path}/{identity.FILE}"
    is_used = os.path.exists(metadata_path(path))
    remedy = (
        "restore it from a backup, or write into it the value of `data` in the newest object brokers/NAME/EPOCH.sealed "
        "of the bucket; or start with an empty data directory, which is restored from the bucket"
    )
    try:
        if os.path.exists(file) and not identity.is_whole(path):
            if has_bucket:
                raise SetupError(f"{file} is damaged: the identity of this data directory is unknown", hint=remedy)
            os.unlink(file)
            said = "%s was damaged and is created again; Spark on this machine reads over TCP until it plans again"
            log.warning(said, file)
        elif is_used and not os.path.exists(file):
            log.warning("%s was missing and is created again; a bucket with the old identity refuses it", file)
        identity.make(path)
    except OSError as problem:
        raise SetupError(
            f"cannot make {path}/{identity.FILE}: {problem.strerror}", hint="make the directory writable, or room in it"
        ) from None


def account_of(user: str) -> pwd.struct_passwd:
    """Raises ConfigError when there is no such account, or we cannot become it."""
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        raise ConfigError(
            f"server.user: there is no account {user!r} on this machine",
            hint=f"`useradd --system {shlex.quote(user)}` makes one",
        ) from None
    if os.geteuid() not in (0, account.pw_uid):
        raise ConfigError(
            f"server.user: only root can become {user!r}, and this is uid {os.geteuid()}",
            hint="leave server.user empty and start the broker from that account",
        )
    return account


def drop_privileges(user: str, path: str) -> None:
    """Continue as ``user`` for good, with the data directory given to that account.  Raises ConfigError."""
    account = account_of(user)
    if os.geteuid() == account.pw_uid:
        return
    if os.stat(path).st_uid != account.pw_uid:
        _give(path, account.pw_uid, account.pw_gid)
    else:
        for name in filter(ownership.OURS.fullmatch, os.listdir(path)):  # made as root by this start: lock, meta.db
            os.chown(f"{path}/{name}", account.pw_uid, account.pw_gid, follow_symlinks=False)
    os.initgroups(user, account.pw_gid)
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(
            f"server.user: account {user!r} cannot reach the data directory {path}",
            hint="choose one outside of root's home: --data-dir /var/lib/vibemq",
        )


def _give(path: str, uid: int, gid: int) -> None:
    os.chown(path, uid, gid)
    for folder, folders, files in os.walk(path):
        for name in folders + files:
            os.chown(os.path.join(folder, name), uid, gid, follow_symlinks=False)
