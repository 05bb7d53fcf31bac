# SPDX-License-Identifier: Apache-2.0
"""A backup is a data directory of its own, copied from one that a broker may be serving from.

Its state is that of a machine which lost its power: recovery, at the start of whoever serves from it, does the rest.
What was confirmed before the backup began is in it; of a queue, what was settled since is delivered again.  Closed
segments do not grow any more and so are linked where that is possible; all else is copied.  A damaged one is repaired
in place from the object store (vibemq/remote/repairing.py): a linked backup then has the repaired bytes, too.  What a
transaction has appended is there whole or not at all: all logs are cut while none is decided, and copied up to there
afterwards, so that sinks wait for the cuts alone.  What is staged and not decided is not copied: it would be staged
again.
"""

import contextlib
import errno
import fcntl
import json
import os
import resource
import shlex
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata as packages
from typing import NamedTuple

import vibemq.storage.log as logs
from vibemq.broker.decisions import LOCK
from vibemq.errors import SetupError, StorageError
from vibemq.server import datadir
from vibemq.storage import identity
from vibemq.storage.metadata import Metadata
from vibemq.storage.records import StreamRecord
from vibemq.storage.tail import Tail
from vibemq.storage.transactions import STAGING

#: Marks a backup, and is written last.
ABOUT = datadir.BACKUP
FORMAT = 1
#: How long a decision that is being appended is waited for.
DECISION_S_MAX, DECISION_LOOK_S = 600.0, 0.05
#: Descriptors that are left for anything but the segments that are held open.
FILES_LEFT = 64
#: Of a log, in this order: what says that messages are settled must not be newer than the messages.
BEFORE_SEGMENTS = ("ledger", ".ledger", ".settled", "offsets", "members")
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

    def file(self, source: str, target: str, *, is_final: bool) -> None:
        """OSError."""
        if self.links and is_final:
            try:
                os.link(source, target, follow_symlinks=False)
            except OSError as problem:
                if problem.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
                    raise
                self.links = problem.errno == errno.EMLINK  # the others hold for all of them
            else:
                os.close(_no_link(target, os.O_RDONLY))  # what was linked may be a link itself
                return
        with open(source, "rb", opener=_no_link) as read:
            self.opened(read.fileno(), target, os.fstat(read.fileno()).st_size)

    def opened(self, source: int, target: str, size: int) -> None:
        """The first bytes of an open file.  OSError."""
        at = 0
        with open(target, "xb", opener=_private) as write:
            while at < size and (copied := os.sendfile(write.fileno(), source, at, size - at)):
                at += copied


class _Cut(NamedTuple):
    """A log up to where it was committed in one moment."""

    record: StreamRecord  # of the copy
    source: str
    segment: int  # the active one, or the newest where no broker has served in this boot
    size: int  # of that
    file: int | None  # that, held open: retention may take it before it is copied; None: it is closed
    is_recovered: bool  # else a broker may yet cut older ones where they are, and go on in one


def back_up(metadata: Metadata, source: str, target: str, *, links: bool = True) -> About:
    """Copy the data directory ``source`` to ``target``, which is made.  Raises SetupError."""
    _require_empty(source, target, "choose a new folder; one in use belongs to a broker")
    copy = Copy(links)
    with _ours(source, target), contextlib.ExitStack() as held:
        for record in metadata.logs():  # most of what is to be synced, before anybody waits for it
            with contextlib.suppress(FileNotFoundError):
                _make_durable(f"{metadata.streams_dir}/{record.incarnation}")
        with _no_decisions(source):
            _make(target)
            metadata.snapshot_to(datadir.metadata_path(target))
            count, cuts = _cut_all(metadata.streams_dir, datadir.metadata_path(target), copy, held)
        for cut in cuts:
            _copy_segments(cut, copy)
        about = About(FORMAT, _version(), time.time_ns() // 1_000_000, count, _sync_all(target))
        _write_about(target, about)
    return about


def _cut_all(streams_dir: str, copied_path: str, copy: Copy, held: contextlib.ExitStack) -> tuple[int, list[_Cut]]:
    """Cut each log of the copied database: how many there are, and those whose segments are to be copied yet.

    Here sinks wait, so no more is done than must be.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files_max = soft if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, hard))
    count = 0
    cuts: list[_Cut] = []
    with contextlib.closing(Metadata(copied_path)) as copied:
        decided = {incarnation for decision in copied.decisions() for _, incarnation, _ in decision.staged}
        for record in copied.logs():
            is_staged = record.vhost == STAGING
            if is_staged and record.incarnation not in decided:
                continue
            with contextlib.suppress(FileNotFoundError):  # it is deleted just now
                cut = _cut(record, f"{streams_dir}/{record.incarnation}", copy)
                count += 1
                is_now = is_staged or len(cuts) >= files_max - FILES_LEFT  # gone once it is appended; too many to hold
                with contextlib.ExitStack() as here:
                    if cut.file is not None:
                        (here if is_now else held).callback(os.close, cut.file)
                    if is_now:
                        _copy_segments(cut, copy)
                    else:
                        cuts.append(cut)
    return count, cuts


def _cut(record: StreamRecord, source: str, copy: Copy) -> _Cut:
    """Copy what changes, and hold what is not closed.  FileNotFoundError: it has no directory any more."""
    os.listdir(source)
    os.mkdir(record.directory, 0o700)
    for name in sorted(os.listdir(source), reverse=True):  # its page, and then its blocks
        if name.endswith(BEFORE_SEGMENTS):
            try:
                copy.file(f"{source}/{name}", f"{record.directory}/{name}", is_final=False)
            except FileNotFoundError:
                if name[0].isdigit():  # all of that block is settled, which the copy's recovery would not know
                    open(f"{record.directory}/{name.partition('.')[0]}.settled", "ab", opener=_private).close()
    segment, size, file, is_recovered = _hold_active(source)
    # It says up to where all is on disk, which recovery does not look for damage in; the file is another, so its locks
    # are nobody's.
    with contextlib.suppress(FileNotFoundError):  # lost before: recovery makes one
        copy.file(f"{source}/control", f"{record.directory}/control", is_final=False)
    return _Cut(record, source, segment, size, file, is_recovered)


def _hold_active(directory: str) -> tuple[int, int, int | None, bool]:
    """What `_Cut` has of the active segment, and of the log.  FileNotFoundError as `_make_durable`."""
    missed = None
    while True:
        segment, size = _make_durable(directory)
        if size is None and os.path.lexists(f"{directory}/{segment:020}.remote"):
            return segment, 0, None, False  # whole in the object store, and so maybe not here
        try:
            file = _no_link(f"{directory}/{segment:020}.segment", os.O_RDONLY)
        except FileNotFoundError:
            if segment == missed:
                return segment, 0, None, size is not None
            missed = segment  # where retention has just taken it there is another now
        else:
            return segment, os.fstat(file).st_size if size is None else size, file, size is not None


def _copy_segments(cut: _Cut, copy: Copy) -> None:
    """To where the record is."""
    target, names = cut.record.directory, []
    if cut.file is not None:
        copy.opened(cut.file, f"{target}/{cut.segment:020}.segment", cut.size)
    with contextlib.suppress(FileNotFoundError):  # it is deleted since
        names = os.listdir(cut.source)
    for name in sorted(names, reverse=True):  # the newest first: what retention takes meanwhile leaves no hole
        first = name.partition(".")[0]
        if not (name.endswith(WITH_SEGMENTS) and first.isdigit()):
            continue
        if cut.file is None:  # the log goes on with the table behind its last stub
            is_cut_off = int(first) > cut.segment and not name.endswith(".tracking")
        else:  # a stub would be for more than was cut
            is_active = int(first) == cut.segment and name.endswith((".segment", ".remote"))
            is_cut_off = int(first) > cut.segment or is_active
        if is_cut_off:
            continue
        try:
            is_final = cut.is_recovered and int(first) < cut.segment
            copy.file(f"{cut.source}/{name}", f"{target}/{name}", is_final=is_final)
        except FileNotFoundError:  # retention has taken it
            stub = f"{first}.remote"
            if name.endswith(".segment") and stub not in names:  # it went to the object store since we looked
                with contextlib.suppress(FileNotFoundError):
                    copy.file(f"{cut.source}/{stub}", f"{target}/{stub}", is_final=True)


def _make_durable(directory: str) -> tuple[int, int | None]:
    """The active segment, and how far it is committed; the newest one and None: nobody has written in this boot.

    FileNotFoundError: the log is deleted.
    """
    try:
        tail = Tail(directory)
    except StorageError as problem:
        if problem.code in ("ERR_NOT_FOUND", "ERR_DELETED"):
            raise FileNotFoundError(errno.ENOENT, str(problem), directory) from problem
        if problem.code != "ERR_STALE":
            raise
        found = (name.partition(".") for name in os.listdir(directory))
        here = (int(first) for first, _, kind in found if first.isdigit() and kind in ("segment", "remote"))
        return max(here, default=0), None
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
    again = f"`vibemq restore {shlex.quote(source)} --data-dir {shlex.quote(f'{target}-restored')}`"
    _require_empty(source, target, f"choose a new folder, as in {again}; what is there may belong to a broker")
    copy = Copy(links)
    with _ours(source, target):
        _make(target)
        # A new one: it is not the directory of which the backup was made, and it is older than that one's bucket.
        identity.make(target)
        for folder in sorted(os.listdir(f"{source}/streams")):
            os.mkdir(f"{target}/streams/{folder}", 0o700)
            names = sorted(os.listdir(f"{source}/streams/{folder}"))
            last = max((name for name in names if name.endswith(".segment")), default="").partition(".")[0]
            for name in names:
                # The last segment goes on, and the broker writes the others of these files.
                is_final = name.endswith(WITH_SEGMENTS) and not name.startswith(last or name)
                path = f"streams/{folder}/{name}"
                copy.file(f"{source}/{path}", f"{target}/{path}", is_final=is_final)
        _sync_all(target)
        # Last: without it nobody takes it for a data directory that has something in it.
        copy.file(datadir.metadata_path(source), datadir.metadata_path(target), is_final=False)
        _sync(datadir.metadata_path(target))
        _sync(target)
    return about


# ---- both ----


def _require_empty(source: str, target: str, hint: str) -> None:
    if os.path.realpath(target).startswith(os.path.realpath(source) + os.sep):
        raise SetupError(f"{target} lies in {source}", hint="choose a folder outside of it, best on another disk")
    if os.path.lexists(target) and (not os.path.isdir(target) or os.listdir(target)):
        raise SetupError(f"{target} exists and is not empty", hint=hint)


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
            hint="begin again in another folder, with room, as the account that serves or as root",
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


def _sync_all(target: str) -> int:
    """How many bytes there are."""
    size_bytes = 0
    for folder, _, names in os.walk(target):
        for name in names:
            size_bytes += _sync(f"{folder}/{name}")
        _sync(folder)
    return size_bytes


def _sync(path: str) -> int:
    fd = _no_link(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def _version() -> str:
    try:
        return packages.version("vibemq")
    except packages.PackageNotFoundError:
        return "unknown"
