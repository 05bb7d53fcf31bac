# SPDX-License-Identifier: Apache-2.0
"""Make every stream's log usable after a new boot, and clear away what nobody owns.

All of it before the workers start, unless that takes longer than BEFORE_SERVING_S, as with tens of thousands of
streams: the logs that are left then are looked at by a process of their own, and each by whoever uses it sooner.

One stream that cannot be recovered, or of which a newer version wrote any file, never keeps the others from starting:
it is logged with file and position, and opening it fails with that reason until the next start.  A directory that the
metadata does not know is what a crash left of a creation or a deletion, or what is left when the metadata was lost: it
is removed only if that can lose nothing (marked as deleted, or empty), and else stays and is named.
"""

import errno
import fcntl
import logging
import math
import mmap
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar, Union

import vibemq.storage.log as logs
from vibemq.broker.disk import Reserve
from vibemq.errors import StorageError, VibeMQError
from vibemq.once_a_minute import OnceAMinute
from vibemq.storage.arguments import CHUNK_MESSAGES_MAX, log_options
from vibemq.storage.members import FILE_NAME as MEMBERS_FILE
from vibemq.storage.members import prepare as prepare_members
from vibemq.storage.metadata import Metadata
from vibemq.storage.offsets import KEPT, StoredOffsets
from vibemq.storage.records import StreamRecord
from vibemq.storage.transactions import STAGING

#: For so long a start looks at logs before it serves.
BEFORE_SERVING_S = 4.0
#: Who uses a log that is left waits until so much of it is checked, some hundredths of a second even from a disk.  A
#: log with more cannot be used until the process of its own has been there.
CHECKED_ON_USE_BYTES_MAX = 8 << 20
#: So long it waits for another one that looks at the same log.
OTHER_LOOKS_MAX_S, OTHER_LOOKS_EACH_S = 0.25, 0.001
#: Each waits for the disk some ten times to have written little, and those waits can be shared.
RECOVERIES_AT_A_TIME = 8
#: Logs that one of them takes at once, at most: with one each, handing them out costs as much as looking at them.
LOGS_AT_ONCE = 32
#: So many are looked at before the clock is.
STEP = RECOVERIES_AT_A_TIME * LOGS_AT_ONCE
#: Beside the work, the work comes first.
NICENESS = 10
SUPERVISOR_LOOK_S = 0.5
#: A stop begins no sync after this time: a container is killed 10 s after it was asked to end.
STOP_SYNC_MAX_S = 4.0
#: Of a log that is left, in a byte that all processes share.
TO_DO, DONE, FAILED = range(3)
#: Asks the process to end.
END_SIGNAL = signal.SIGUSR1
ENDS_WITHIN_S = 3.0
_INCARNATION = re.compile(r"[0-9a-f]{16}")

log = logging.getLogger("vibemq.server")
unsynced = OnceAMinute(log)
rebuilding = OnceAMinute(log)
#: So many streams with rebuilt files get a line each; all others share one line, as all streams are after an upgrade.
REBUILT_NAMED_MAX = 3
Given = TypeVar("Given")
Outcome = TypeVar("Outcome")
Report = Union["logs.RecoveryReport", VibeMQError, None]


class Recovery:
    """Of one start."""

    def __init__(
        self, metadata: Metadata, segment_size_bytes: int, queue_segment_size_bytes: int,
        chunk_messages_max: int = CHUNK_MESSAGES_MAX, local_limits: tuple[int, int] = (0, 0), *, reserve: Reserve,
        believed: int | None = None, is_orderly: bool = True,
    ) -> None:  # fmt: skip
        """Writes of recovery (copies of cut chunks, indexes) use the reserve if the disk is full.

        ``believed``: the generation of control pages that are believed, 0: none, None: all of this boot.
        ``is_orderly``: the last broker stopped in order (lease.py).
        """
        self._metadata, self._reserve = metadata, reserve
        self._segment_sizes = segment_size_bytes, queue_segment_size_bytes
        self._more_sizes = chunk_messages_max, *local_limits
        self._policies = metadata.held_policies()
        self._once = logs.SyncOnce(believed)
        self._is_orderly = is_orderly
        self._usable = self._checked = self._checked_bytes = self._rebuilt = 0
        #: Logs that ``before_serving`` did not come to, by their directories, and where the state of each is.
        self.left: dict[str, tuple[int, StreamRecord]] = {}
        self._states: mmap.mmap | None = None

    def before_serving(self, most_s: float = math.inf) -> int:
        """Recover streams, and set their limits as they are now; how many are known to be usable.  Before the fork.

        What has not been begun after ``most_s`` is left.
        """
        began = told = time.monotonic()
        there = set(os.listdir(self._metadata.streams_dir))
        at_once: list[StreamRecord] = []
        can_wait: list[StreamRecord] = []
        for record in self._metadata.logs():
            (can_wait if _can_wait(record) and record.incarnation in there else at_once).append(record)
        known = {record.incarnation for record in (*at_once, *can_wait)}
        steps = [at_once, *(can_wait[at : at + STEP] for at in range(0, len(can_wait), STEP))]
        for number, step in enumerate(steps):
            if number and time.monotonic() > began + most_s:
                for record in step:
                    self.left[record.directory] = len(self.left), record
                continue
            for record, report in _at_a_time(self._try, step):
                self._note(record, report)
                if time.monotonic() > told + 5:
                    told = time.monotonic()
                    log.info("recovery: %d streams so far, %d bytes checked", self._checked, self._checked_bytes)
        _clear_orphans(self._metadata.streams_dir, known)
        rebuilding.say_rest()
        if self._checked:
            said = "recovered %d streams in %.2f s, %d bytes checked"
            log.info(said, self._checked, time.monotonic() - began, self._checked_bytes)
        if self.left:
            self._once.settle()
            self._states = mmap.mmap(-1, len(self.left))  # shared with whoever is forked
            logs.leave(self.left, self._look)
            log.info("%d streams more are looked at beside the work, and each when it is first used", len(self.left))
        return self._usable

    def beside_the_work(self, supervisor_pid: int) -> int:
        """The life of a process: all that is left; its exit code."""
        # Service managers send SIGTERM to every process at once; the supervisor says when this one is to end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ends = threading.Event()
        signal.signal(END_SIGNAL, lambda *_: _end(ends))
        threading.Thread(target=_end_with, args=(supervisor_pid,), daemon=True).start()
        os.nice(NICENESS)
        logs.leave((), self._look)  # here it is done in their order
        began = time.monotonic()
        self._checked = self._checked_bytes = 0

        def unless_it_ends(directory: str) -> tuple[StreamRecord, Report] | None:
            return None if ends.is_set() else self._try_left(directory)

        for _, done in _at_a_time(unless_it_ends, list(self.left)):
            if done is not None:
                self._note(*done)
        rebuilding.say_rest()
        if ends.is_set():
            return 0
        said = "recovered %d streams beside the work in %.2f s, %d bytes checked"
        log.info(said, self._checked, time.monotonic() - began, self._checked_bytes)
        return 0

    def _look(self, directory: str) -> None:
        """At a log that was left and is used now.  Raises StorageError."""
        state = self._state(directory)
        if state == DONE:
            return
        if logs.recovery_ahead(directory, self._once) > CHECKED_ON_USE_BYTES_MAX:
            raise _busy(directory) if state == TO_DO else _failed(directory)
        record, report = self._try_left(directory, OTHER_LOOKS_MAX_S)
        if isinstance(report, VibeMQError):
            raise report if isinstance(report, StorageError) else StorageError("ERR_INVALID", str(report))
        self._note(record, report)

    def _state(self, directory: str) -> int:
        assert self._states is not None
        return self._states[self.left[directory][0]]

    def _try_left(self, directory: str, wait_s: float = math.inf) -> tuple[StreamRecord, Report]:
        """Unless another process has done it."""
        assert self._states is not None
        place, record = self.left[directory]
        try:
            with _locked(directory, wait_s):
                if self._states[place] == DONE:
                    return record, None
                report = self._try(record, is_left=True)
                self._states[place] = FAILED if isinstance(report, VibeMQError) else DONE
                return record, report
        except StorageError as problem:
            return record, problem

    def _try(self, record: StreamRecord, *, is_left: bool = False) -> Report:
        # A queue that was a stream before keeps the size of one.
        is_queue = record.queue is not None and not record.queue.get("keep")
        sizes = self._segment_sizes[is_queue], *self._more_sizes
        try:
            options = log_options(self._policies.arguments(record), record.durability, *sizes)
            recover = partial(_recover, record, options, self._once, is_left=is_left, is_orderly=self._is_orderly)
            return self._reserve.retry(recover)
        except VibeMQError as problem:
            return problem

    def _note(self, record: StreamRecord, report: Report) -> None:
        is_left = record.directory in self.left
        if isinstance(report, VibeMQError):
            may_be_gone = record.vhost == STAGING or is_left
            if may_be_gone and getattr(report, "code", "") in ("ERR_NOT_FOUND", "ERR_DELETED"):
                return  # thrown away, all but the record, or deleted meanwhile
            log.error("stream %r (%s) cannot be used: %s", record.name, record.directory, report)
            if isinstance(report, StorageError) and not is_left:  # one that is left is tried again by who uses it
                logs.refuse(record.directory, report)
            return
        self._usable += 1
        if report is None:
            return
        if not report.ran:
            _tell_cuts(record.name, report)  # missing segments
            return
        if report.unfit and not report.unfit.endswith(".segment"):  # damage of a segment is logged below
            self._rebuilt += 1
            rebuilding.say(
                min(self._rebuilt, REBUILT_NAMED_MAX + 1),
                "stream %r: %s is damaged, missing or of an older version; it is rebuilt from the segments, and "
                "no message is lost",
                record.name, report.unfit,
            )  # fmt: skip
        self._checked += 1
        self._checked_bytes += report.bytes_checked
        _tell_cuts(record.name, report)


def sync_at_stop(names: Mapping[str, str], most_s: float = STOP_SYNC_MAX_S) -> bool:
    """Sync every log that has unsynced chunks and record it as durable, once no process appends any more.

    ``names`` are the streams' names by their directories.  The next boot then knows each log to be durable, so damage
    costs only the chunk that it hits.  No sync begins after ``most_s``; a running one is completed.  Return whether
    every log is synced.
    """
    deadline = time.monotonic() + most_s

    def sync(directory: str) -> StorageError | bool:
        if time.monotonic() > deadline:
            return False
        try:
            logs.sync_rest(directory)
        except StorageError as problem:
            return problem
        return True

    late = failed = 0
    for directory, outcome in _at_a_time(sync, list(names)):
        if isinstance(outcome, StorageError):
            failed += 1
            unsynced.say(outcome.code, "stream %r could not be synced at the stop: %s", names[directory], outcome)
        late += outcome is False
    unsynced.say_rest()
    if late:
        log.warning("%d streams were not synced within %g s at the stop", late, most_s)
    return not late and not failed


def _end(ends: threading.Event) -> None:
    """What has been begun is finished, unless that takes long: a walk that is broken off is done again."""
    ends.set()
    timer = threading.Timer(ENDS_WITHIN_S, os._exit, (0,))
    timer.daemon = True
    timer.start()


def _can_wait(record: StreamRecord) -> bool:
    """A queue's home, a transaction's decision and the archiver need theirs before anybody opens them."""
    return record.queue is None and record.vhost != STAGING and record.durability != "remote"


def _busy(directory: str) -> StorageError:
    said = f"{directory}: what was written before the machine was started anew is being checked"
    return StorageError("ERR_STALE", said, hint="try again in some seconds; the broker's log says when all is done")


def _failed(directory: str) -> StorageError:
    said = f"{directory}: what was written before the machine was started anew could not be checked"
    return StorageError("ERR_STALE", said, hint="the broker's log says why; mend that, and start the broker again")


def _end_with(supervisor_pid: int) -> None:
    """Who has outlived its supervisor must not keep the next broker from the data directory."""
    while os.getppid() == supervisor_pid:
        time.sleep(SUPERVISOR_LOOK_S)
    os._exit(1)


@contextmanager
def _locked(directory: str, wait_s: float) -> Iterator[None]:
    """Raises StorageError: the stream was deleted, or another process looks at it for longer than that."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as problem:
        code = "ERR_NOT_FOUND" if problem.errno == errno.ENOENT else "ERR_IO"
        raise StorageError(code, f"{directory}: {problem.strerror}") from None
    try:
        deadline_s = time.monotonic() + wait_s
        while not _took(fd):
            if time.monotonic() > deadline_s:
                raise _busy(directory)
            time.sleep(OTHER_LOOKS_EACH_S)  # flock has no timeout
        yield
    finally:
        os.close(fd)


def _took(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _at_a_time(recover: Callable[[Given], Outcome], all_given: list[Given]) -> Iterator[tuple[Given, Outcome]]:
    """In that order.  No thread is left behind: workers are forked from here."""
    count = max(1, min(LOGS_AT_ONCE, len(all_given) // (4 * RECOVERIES_AT_A_TIME)))
    taken = [all_given[at : at + count] for at in range(0, len(all_given), count)]
    with ThreadPoolExecutor(RECOVERIES_AT_A_TIME, thread_name_prefix="recovery") as pool:
        try:
            for some, outcomes in zip(taken, pool.map(lambda some: [*map(recover, some)], taken), strict=True):
                yield from zip(some, outcomes, strict=True)
        finally:
            pool.shutdown(cancel_futures=True)


def _recover(
    record: StreamRecord, options: Mapping[str, Any], once: "logs.SyncOnce", *, is_left: bool, is_orderly: bool
) -> "logs.RecoveryReport | None":
    if record.vhost == STAGING:
        return logs.recover(record.directory, once=once, **options)
    if not is_left and not os.path.isdir(record.directory):  # of one that is left it was there
        log.error("stream %r: its directory %s is missing; an empty one is made", record.name, record.directory)
        logs.create(record.directory, **options)
        return None
    report = logs.recover(record.directory, once=once, **options)
    _tell_missing_offsets(record)
    if report.ran or not is_orderly:
        _pull_back_offsets(record, report.next_offset)
    has_ledger = os.path.exists(os.path.join(record.directory, "ledger"))
    if record.queue is None:
        return report
    if os.path.exists(os.path.join(record.directory, MEMBERS_FILE)):
        prepare_members(record.directory, report.next_offset if report.ran else None)
    is_same_boot, span = not report.ran and has_ledger, (report.first_offset, report.next_offset)
    _tell_ledger(record, logs.ledger_recover(record.directory, *span, is_same_boot=is_same_boot))
    return report


def _tell_ledger(record: StreamRecord, damage: "logs.LedgerDamage") -> None:
    if damage.is_anew:
        log.warning("queue %r: its settled messages are unknown; all kept ones are delivered again", record.name)
    if damage.is_page:
        said = "queue %r: %s/ledger is damaged; its words are restored or begin anew, and no message is lost"
        log.error(said, record.name, record.directory)
    if damage.blocks:
        said = "queue %r: %d files of its ledger are missing, the first is %s/%020d.ledger"
        log.error(said, record.name, damage.blocks, record.directory, damage.block)
    if damage.entries:
        said = "queue %r: its ledger in %s is damaged: %d messages, the first at offset %d, are delivered again"
        log.error(said, record.name, record.directory, damage.entries, damage.offset)


def _tell_cuts(name: str, report: "logs.RecoveryReport") -> None:
    for cut in report.cuts:
        if cut.position:
            said = (
                "stream %r: %s was cut at byte %d, because from there on it was not completely written; "
                "the %d bytes cut off are kept in %s"
            )
            log.warning(said, name, cut.path, cut.position, cut.size_bytes, cut.kept)
        else:
            said = "stream %r: %s, %d bytes, cannot be read or lies behind what was lost; it is kept as %s"
            log.warning(said, name, cut.path, cut.size_bytes, cut.kept)
    for skip in report.skips:
        if not skip.size_bytes:
            said = "stream %r: %s is missing: its messages %d to %d are lost, unless it is restored from a backup"
            log.error(said, name, skip.path, skip.first_offset, skip.next_offset - 1)
            continue
        log.warning(
            "stream %r: %s is damaged from byte %d on, for %d bytes: its messages %d to %d cannot be read, and all "
            "others are kept; to have them again, stop the broker and restore this file from a backup",
            name, skip.path, skip.position, skip.size_bytes, skip.first_offset, skip.next_offset - 1,
        )  # fmt: skip
    if report.skip_count > len(report.skips):
        log.warning("stream %r: damaged chunks in %d places in all", name, report.skip_count)
    if report.given_back:
        said = "stream %r: %d segments were not completely written here; they are read from the object store"
        log.warning(said, name, report.given_back)
    if report.cut_count > len(report.cuts):
        log.warning("stream %r: %d cuts in all, %d bytes", name, report.cut_count, report.cut_bytes)


def _tell_missing_offsets(record: StreamRecord) -> None:
    kept, path = (os.path.join(record.directory, name) for name in (KEPT, "offsets"))
    if os.path.exists(kept) and not os.path.exists(path):
        log.error(
            "stream %r: %s is missing: consumers find no stored offset; to have these offsets again, stop the broker "
            "and restore this file from a backup", record.name, path,
        )  # fmt: skip
        os.unlink(kept)


def _pull_back_offsets(record: StreamRecord, end: int) -> None:
    """Of stored offsets that survived a power cut which their messages did not, make that of the last message.

    Other messages get those numbers next, and whoever went on behind the old ones would miss them.
    """
    if not os.path.exists(os.path.join(record.directory, "offsets")):
        return
    offsets = StoredOffsets(record.directory)
    try:
        ahead = {reference: offset for reference, offset in offsets.all().items() if offset >= end}
        for reference in ahead if end else ():
            offsets.store(reference, end - 1)
        if ahead and not end:
            with suppress(FileNotFoundError):  # no older version made it
                os.unlink(os.path.join(record.directory, KEPT))
            os.unlink(os.path.join(record.directory, "offsets"))
    except (StorageError, OSError) as problem:
        log.warning("stream %r: its stored offsets cannot be compared with its messages: %s", record.name, problem)
        return
    finally:
        offsets.close()
    for reference, offset in ahead.items():
        said = "stream %r: %r had stored offset %d, and messages end before %d: it is set back"
        log.warning(said, record.name, reference.decode(errors="replace"), offset, end)


def _clear_orphans(streams_dir: str, known: set[str]) -> None:
    for name in sorted(os.listdir(streams_dir)):
        if name in known or _INCARNATION.fullmatch(name) is None:
            continue
        directory = os.path.join(streams_dir, name)
        if _holds_nothing(directory):
            logs.remove(directory)
            log.info("removed %s, left over from an interrupted creation or deletion", directory)
        else:
            log.warning("%s belongs to no stream; it is kept, because it may hold messages", directory)


def _holds_nothing(directory: str) -> bool:
    try:
        logs.check_versions(directory)
        held = logs.Log(directory)
    except StorageError as problem:
        # A creation ends with the control page, and so does a removal; that of another boot cannot be believed.
        is_unfinished = problem.code in ("ERR_NOT_FOUND", "ERR_STALE")
        return problem.code == "ERR_DELETED" or (is_unfinished and _has_no_bytes(directory))
    with closing(held):  # in a copy the page may be older than the segments
        return held.stats().next_offset == 0 and _has_no_bytes(directory)


def _has_no_bytes(directory: str) -> bool:
    """Return whether the first segment alone is there, and has only its header."""
    first = os.path.join(directory, f"{0:020}")
    held_bytes = os.path.getsize(f"{first}.segment") if os.path.exists(f"{first}.segment") else 0
    is_first = logs.segments(directory) == [0] and not os.path.exists(f"{first}.remote")
    return is_first and held_bytes <= logs.SEGMENT_HEADER_BYTES
