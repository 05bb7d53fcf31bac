# SPDX-License-Identifier: Apache-2.0
"""Before the workers start: make every stream's log usable, and clear away what nobody owns.

One stream that cannot be recovered, or of which a newer version wrote any file, never keeps the others from starting:
it is logged with file and position, and opening it fails with that reason until the next start.  A directory that the
metadata does not know is what a crash left of a creation or a deletion, or what is left when the metadata was lost: it
is removed only if that can lose nothing (marked as deleted, or empty), and else stays and is named.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

import vibemq.storage.log as logs
from vibemq.broker.disk import Reserve
from vibemq.errors import StorageError, VibeMQError
from vibemq.storage.arguments import CHUNK_MESSAGES_MAX, log_options
from vibemq.storage.ledger import disown
from vibemq.storage.metadata import Metadata
from vibemq.storage.offsets import StoredOffsets
from vibemq.storage.records import StreamRecord
from vibemq.storage.transactions import STAGING

#: Each waits for the disk some ten times to have written little, and those waits can be shared.
RECOVERIES_AT_A_TIME = 8
#: Logs that one of them takes at once, at most: with one each, handing them out costs as much as looking at them.
LOGS_AT_ONCE = 32
_INCARNATION = re.compile(r"[0-9a-f]{16}")

log = logging.getLogger("vibemq.server")
Outcome = TypeVar("Outcome")


def recover_all(
    metadata: Metadata, segment_size_bytes: int, queue_segment_size_bytes: int,
    chunk_messages_max: int = CHUNK_MESSAGES_MAX, local_limits: tuple[int, int] = (0, 0), *, reserve: Reserve,
    stopped: bytes = b"",
) -> int:  # fmt: skip
    """Recover every stream, and set its limits as they are now; returns how many were usable.

    ``stopped``: the boot in which the last broker noted that it had put all on the disk (datadir.acquire); logs that
    were last open in it need no more than their limits.
    What recovery writes (copies of what it cuts, indexes) gets the reserve where the disk is full.
    """
    began = time.monotonic()
    usable = checked = checked_bytes = 0
    known: set[str] = set()
    policies = metadata.held_policies()
    told = began
    once = logs.SyncOnce()

    def recover(record: StreamRecord) -> "logs.RecoveryReport | VibeMQError | None":
        # A queue that was a stream before keeps the size of one.
        is_queue = record.queue is not None and not record.queue.get("keep")
        segment = queue_segment_size_bytes if is_queue else segment_size_bytes
        sizes = segment, chunk_messages_max, *local_limits
        try:
            options = log_options(policies.arguments(record), record.durability, *sizes)
            return reserve.retry(partial(_recover, record, options, once, stopped))
        except VibeMQError as problem:
            return problem

    for record, report in _at_a_time(recover, list(metadata.logs())):
        known.add(record.incarnation)
        if isinstance(report, VibeMQError):
            problem = report
            if record.vhost == STAGING and getattr(problem, "code", "") in ("ERR_NOT_FOUND", "ERR_DELETED"):
                continue  # thrown away, all but the record
            log.error("stream %r (%s) cannot be used: %s", record.name, record.directory, problem)
            if isinstance(problem, StorageError):
                logs.refuse(record.directory, problem)
            continue
        usable += 1
        if report is None or not report.ran:
            continue
        checked += 1
        checked_bytes += report.bytes_checked
        _tell_cuts(record.name, report)
        if time.monotonic() - told > 5:
            told = time.monotonic()
            log.info("recovery: %d streams so far, %d bytes checked", checked, checked_bytes)
    _clear_orphans(metadata.streams_dir, known)
    if checked:
        log.info("recovered %d streams in %.2f s, %d bytes checked", checked, time.monotonic() - began, checked_bytes)
    return usable


def _at_a_time(
    recover: Callable[[StreamRecord], Outcome], records: list[StreamRecord]
) -> Iterator[tuple[StreamRecord, Outcome]]:
    """In the order of the records.  No thread is left behind: workers are forked from here."""
    count = max(1, min(LOGS_AT_ONCE, len(records) // (4 * RECOVERIES_AT_A_TIME)))
    taken = [records[at : at + count] for at in range(0, len(records), count)]
    with ThreadPoolExecutor(RECOVERIES_AT_A_TIME, thread_name_prefix="recovery") as pool:
        try:
            for some, outcomes in zip(taken, pool.map(lambda some: [*map(recover, some)], taken), strict=True):
                yield from zip(some, outcomes, strict=True)
        finally:
            pool.shutdown(cancel_futures=True)


def _recover(
    record: StreamRecord, options: Mapping[str, Any], once: "logs.SyncOnce", stopped: bytes
) -> "logs.RecoveryReport | None":
    # What a queue has settled is no part of its log, the store may have more of one than the disk, and what a
    # transaction has staged is few.
    is_plain = record.queue is None and record.vhost != STAGING and record.durability != "remote"
    if stopped and is_plain and logs.resume(record.directory, stopped, **options):
        return None
    if record.vhost == STAGING:
        return logs.recover(record.directory, once=once, **options)
    if not os.path.isdir(record.directory):
        log.error("stream %r: its directory %s is missing; an empty one is made", record.name, record.directory)
        logs.create(record.directory, **options)
        return None
    report = logs.recover(record.directory, once=once, **options)
    if report.ran:
        _pull_back_offsets(record)
    has_ledger = os.path.exists(os.path.join(record.directory, "ledger"))
    if record.queue is None:
        return report
    if not report.ran and has_ledger:
        disown(record.directory)
    elif logs.ledger_recover(record.directory):
        log.warning("queue %r: what was settled is not known any more; what is kept is delivered again", record.name)
    return report


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
    if report.given_back:
        said = "stream %r: %d segments were not completely written here; they are read from the object store"
        log.warning(said, name, report.given_back)
    if report.cut_count > len(report.cuts):
        log.warning("stream %r: %d cuts in all, %d bytes", name, report.cut_count, report.cut_bytes)


def _pull_back_offsets(record: StreamRecord) -> None:
    """Of stored offsets that survived a power cut which their messages did not, make that of the last message.

    Other messages get those numbers next, and whoever went on behind the old ones would miss them.
    """
    if not os.path.exists(os.path.join(record.directory, "offsets")):
        return
    with closing(logs.Log(record.directory)) as held:
        end = held.stats().next_offset
    offsets = StoredOffsets(record.directory)
    try:
        ahead = {reference: offset for reference, offset in offsets.all().items() if offset >= end}
        for reference in ahead if end else ():
            offsets.store(reference, end - 1)
        if ahead and not end:
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
        if problem.code in ("ERR_NOT_FOUND", "ERR_STALE"):
            first = os.path.join(directory, f"{0:020}")
            held_bytes = os.path.getsize(f"{first}.segment") if os.path.exists(f"{first}.segment") else 0
            is_first = logs.segments(directory) == [0] and not os.path.exists(f"{first}.remote")
            return is_first and held_bytes <= logs.SEGMENT_HEADER_BYTES
        return problem.code == "ERR_DELETED"
    with closing(held):
        return held.stats().next_offset == 0
