# SPDX-License-Identifier: Apache-2.0
"""A backup is a data directory of its own, copied from one that a broker may be serving from.

Its state is that of a machine which lost its power: recovery, at the start of whoever serves from it, does the rest.
What was confirmed before the backup began is in it; of a queue, what was settled since is delivered again.  Closed
segments are never written again and so are linked where that is possible; all else is copied.  What a transaction has
appended is there whole or not at all, because none is decided meanwhile.
"""

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata as packages

import vibemq.storage.log as logs
from vibemq.broker.decisions import LOCK
from vibemq.errors import SetupError, StorageError
from vibemq.server import datadir
from vibemq.storage.metadata import Metadata
from vibemq.storage.records import StreamRecord
from vibemq.storage.tail import Tail

#: Marks a backup, and is written last.
ABOUT = datadir.BACKUP
FORMAT = 1
#: How long a decision that is being appended is waited for.
DECISION_S_MAX, DECISION_LOOK_S = 600.0, 0.05
#: Of a log, in this order: what says that messages are settled must not be newer than the messages.
BEFORE_SEGMENTS = ("ledger", ".ledger", "offsets")
WITH_SEGMENTS = (".segment", ".index", ".tracking", ".remote")


@dataclass(frozen=True)
class About:
    """What a backup says of itself."""

    format: int
    version: str  # of VibeMQ
    made_ms: int  # since 1970
    streams: int
    size_bytes: int


class Copy:
    """Files of one directory into another; ``links``: where they will not change any more."""

    def __init__(self, links: bool) -> None:
        self.links = links
        self.size_bytes = 0

    def file(self, source: str, target: str, *, is_final: bool, size: int | None = None) -> None:
        """``size``: of what is copied; None: all.  OSError."""
        if self.links and is_final:
            try:
                os.link(source, target, follow_symlinks=False)
            except OSError as problem:
                if problem.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
                    raise
                self.links = problem.errno == errno.EMLINK  # the others hold for all of them
            else:
                self._synced(target)
                return
        with open(source, "rb", opener=_no_link) as read, open(target, "xb", opener=_private) as write:
            left = os.fstat(read.fileno()).st_size if size is None else size
            while left and (copied := os.sendfile(write.fileno(), read.fileno(), None, left)):
                left -= copied
        self._synced(target)

    def _synced(self, path: str) -> None:
        with open(path, "rb", opener=_no_link) as file:
            os.fsync(file.fileno())
            self.size_bytes += os.fstat(file.fileno()).st_size


def back_up(metadata: Metadata, source: str, target: str, *, links: bool = True) -> About:
    """Copy the data directory ``source`` to ``target``, which is made.  Raises SetupError."""
    _require_empty(source, target)
    copy = Copy(links)
    with _ours(source, target), _no_decisions(source):
        _make(target)
        metadata.snapshot_to(datadir.metadata_path(target))
        copied = Metadata(datadir.metadata_path(target))
        count = 0
        for record in copied.logs():
            with contextlib.suppress(FileNotFoundError):  # it is deleted just now
                _copy_log(record, f"{metadata.streams_dir}/{record.incarnation}", copy)
                count += 1
        copied.close()
        size = copy.size_bytes + os.path.getsize(datadir.metadata_path(target))
        about = About(FORMAT, _version(), time.time_ns() // 1_000_000, count, size)
        _sync_folders(target)
        _write_about(target, about)
    return about


def _copy_log(record: StreamRecord, source: str, copy: Copy) -> None:
    """To where the record is.  FileNotFoundError: there is no such log any more."""
    os.listdir(source)
    os.mkdir(record.directory, 0o700)
    for name in sorted(os.listdir(source), reverse=True):  # its page, and then its blocks
        if name.endswith(BEFORE_SEGMENTS):
            with contextlib.suppress(FileNotFoundError):  # all of that block is settled
                copy.file(f"{source}/{name}", f"{record.directory}/{name}", is_final=False)
    active, position = _make_durable(source)
    # It says up to where all is on disk, which recovery does not look for damage in; the file is another, so its locks
    # are nobody's.
    copy.file(f"{source}/control", f"{record.directory}/control", is_final=False)
    names = sorted(os.listdir(source))
    for name in names:
        first = name.partition(".")[0]
        if not (name.endswith(WITH_SEGMENTS) and first.isdigit()) or (active is not None and int(first) > active):
            continue
        is_active = active is None or int(first) == active
        size = position if is_active and name.endswith(".segment") else None
        try:
            copy.file(f"{source}/{name}", f"{record.directory}/{name}", is_final=not is_active, size=size)
        except FileNotFoundError:  # retention has taken it
            stub = f"{first}.remote"
            if name.endswith(".segment") and stub not in names:  # it went to the object store since we looked
                with contextlib.suppress(FileNotFoundError):
                    copy.file(f"{source}/{stub}", f"{record.directory}/{stub}", is_final=True)


def _make_durable(directory: str) -> tuple[int | None, int | None]:
    """The active segment, and how far it is committed; None: all there is, as nobody has written in this boot."""
    try:
        tail = Tail(directory)
    except StorageError as problem:
        if problem.code in ("ERR_NOT_FOUND", "ERR_DELETED"):
            raise FileNotFoundError(errno.ENOENT, str(problem), directory) from problem
        if problem.code != "ERR_STALE":
            raise
        return None, None
    try:
        tail.log.sync()
        segment, position, _ = tail.committed
        return segment, position
    finally:
        tail.close()


# ---- back ----


def read_about(source: str) -> About:
    """Raises SetupError."""
    try:
        with open(f"{source}/{ABOUT}", encoding="utf-8") as file:
            found = json.load(file)
        if found["format"] > FORMAT:
            raise SetupError(
                f"{source} is a backup of format {found['format']}, known is format {FORMAT}",
                hint=f"restore it with VibeMQ {found.get('version', '')} or newer",
            )
        return About(**found)
    except FileNotFoundError:
        raise SetupError(
            f"{source} is no backup: there is no {ABOUT} in it",
            hint="`vibemq backup FOLDER` makes one; one that was not finished has none",
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise SetupError(f"{source}/{ABOUT} cannot be read: {problem}") from None


def damage(source: str) -> Iterator[str]:
    """What is wrong with chunks of the backup: every one is read, and its checksum compared."""
    for folder, _, names in os.walk(f"{source}/streams"):
        for name in sorted(names):
            if name.endswith(".segment"):
                try:
                    logs.dump(os.path.join(folder, name), False, 0, lambda _: None)
                except StorageError as problem:
                    yield str(problem)


def restore(source: str, target: str, *, links: bool = True) -> About:
    """Make the data directory ``target`` of a backup, which stays as it is.  Raises SetupError."""
    about = read_about(source)
    _require_empty(source, target)
    copy = Copy(links)
    with _ours(source, target):
        _make(target)
        for folder in sorted(os.listdir(f"{source}/streams")):
            os.mkdir(f"{target}/streams/{folder}", 0o700)
            names = sorted(os.listdir(f"{source}/streams/{folder}"))
            last = max((name for name in names if name.endswith(".segment")), default="").partition(".")[0]
            for name in names:
                # The last segment goes on, and the broker writes the others of these files.
                is_final = name.endswith(WITH_SEGMENTS) and not name.startswith(last or name)
                path = f"streams/{folder}/{name}"
                copy.file(f"{source}/{path}", f"{target}/{path}", is_final=is_final)
        _sync_folders(target)
        # Last: without it nobody takes it for a data directory that has something in it.
        copy.file(datadir.metadata_path(source), datadir.metadata_path(target), is_final=False)
        _sync(target)
    return about


# ---- both ----


def _require_empty(source: str, target: str) -> None:
    if os.path.realpath(target).startswith(os.path.realpath(source) + os.sep):
        raise SetupError(f"{target} lies in {source}", hint="choose a folder outside of it, best on another disk")
    if os.path.lexists(target) and (not os.path.isdir(target) or os.listdir(target)):
        raise SetupError(f"{target} exists and is not empty", hint="choose a new folder, or remove that one first")


def _make(target: str) -> None:
    os.makedirs(target, exist_ok=True)
    os.chmod(target, 0o700)
    os.mkdir(f"{target}/streams", 0o700)


@contextlib.contextmanager
def _ours(source: str, target: str) -> Iterator[None]:
    """What goes wrong is said in words; whose the source is, his is the target."""
    try:
        yield
        owner = os.stat(source)
        if os.geteuid() == 0 and owner.st_uid != 0:
            # From the leaves up: whose a folder is, he may put a link in it, and root would follow that.
            for folder, _, names in os.walk(target, topdown=False):
                for path in (*(os.path.join(folder, name) for name in names), folder):
                    os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    except OSError as problem:
        raise SetupError(
            f"{problem.filename2 or problem.filename or target}: {problem.strerror}; {target} is not complete",
            hint="remove it, and begin again with more room, as the account that serves or as root",
        ) from None


@contextlib.contextmanager
def _no_decisions(data_dir: str) -> Iterator[None]:
    """No transaction is decided or appended meanwhile: sinks wait.  SetupError where one takes for ever."""
    fd = os.open(f"{data_dir}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.geteuid() == 0:  # made by root, it would be closed to the account that serves
            owner = os.stat(data_dir)
            os.fchown(fd, owner.st_uid, owner.st_gid)
        deadline_s = time.monotonic() + DECISION_S_MAX
        while not _is_locked(fd):
            if time.monotonic() >= deadline_s:
                raise SetupError(
                    f"a transaction has been appended for {DECISION_S_MAX:.0f} s, and no backup can be made meanwhile",
                    hint="the broker's log says what it waits for",
                )
            time.sleep(DECISION_LOOK_S)
        yield
    finally:
        os.close(fd)


def _is_locked(fd: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _no_link(path: str, flags: int) -> int:
    """Root copies for an account that could name any file by a link."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _write_about(target: str, about: About) -> None:
    with open(f"{target}/{ABOUT}.tmp", "x", encoding="utf-8", opener=_private) as file:
        json.dump(asdict(about), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{target}/{ABOUT}.tmp", f"{target}/{ABOUT}")
    _sync(target)


def _sync_folders(target: str) -> None:
    for folder, _, _ in os.walk(target):
        _sync(folder)


def _sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _version() -> str:
    try:
        return packages.version("vibemq")
    except packages.PackageNotFoundError:
        return "unknown"
