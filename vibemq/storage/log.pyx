# SPDX-License-Identifier: Apache-2.0
"""The C log as Python sees it: handles, errors, and the operations done once per stream.

Data never passes through this module; the worker calls the C functions of
``storage.core`` on ``Log.raw`` directly.  Here is what is done once for each stream or
each start: create, open, recover, apply retention, remove, dump.
"""

import logging
import os
import threading
from collections.abc import Callable, Collection
from typing import NamedTuple

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from vibemq.storage cimport core
from vibemq.storage.core cimport OK, ERR_END, ERR_INVALID, ERR_NOT_FOUND, boolean
from vibemq.storage.meters cimport now_us

from vibemq.errors import StorageError, UserError
from vibemq.storage.arguments import LogOptions

logger = logging.getLogger(__name__)

cdef extern from "log/log.h":
    enum:
        _PUBLISHERS_MAX "LOG_PUBLISHERS_MAX"
    struct log_publisher:
        uint64_t sequence
        uint8_t bytes
        char *reference
    err log_publishers(core.log *l, log_publisher *out, uint32_t *count, fault *f)

cdef extern from "log/segment.h":
    enum:
        _SEGMENT_HEADER_BYTES "SEGMENT_HEADER_BYTES"

#: Size in bytes of a segment that holds no chunk.
SEGMENT_HEADER_BYTES = _SEGMENT_HEADER_BYTES
#: The level of durability that a name in the configuration stands for.
DURABILITIES = {"os": core.DURABILITY_OS, "disk": core.DURABILITY_DISK, "remote": core.DURABILITY_REMOTE}
OPTIONS = LogOptions.__annotations__.keys()

cdef enum:
    AGE_OF_ALL_MS = -(1 << 30)  # whatever is there is older, by any clock
    HEAD_BYTES = 512  # a chunk's header and the longest filter behind it
    AGE_PARTS = 8  # segments in which what age keeps lies, at least: it goes on time but for one part


class LedgerDamage(NamedTuple):
    """Damage of a queue's ledger that recovery found and corrected."""

    is_anew: bool  # the settled messages are no longer known
    is_page: bool  # words of the page were wrong, and were corrected from their copies
    entries: int  # messages that are delivered again, because their entries were damaged
    offset: int  # of the first of these
    blocks: int  # files that were missing and are made anew; their messages are among ``entries``
    block: int  # first offset of the first of these


class Cut(NamedTuple):
    """What recovery took out of a log: a file from ``position`` on, or (0) all of it; ``kept`` is the file it is in now."""

    path: str
    position: int
    size_bytes: int
    kept: str


class Skip(NamedTuple):
    """Damaged chunks from ``position`` on that recovery left in a segment, because the log continues behind them."""

    path: str
    position: int
    size_bytes: int
    first_offset: int
    next_offset: int


class RecoveryReport(NamedTuple):
    """What recovery found; ``ran`` is False where the log was written in this boot.

    ``cuts`` names the first of ``cut_count`` cuts, ``cut_bytes`` is the sum of them all; ``given_back``: segments that
    were not whole here any more, and are read from the object store.  ``skips`` names the first of ``skip_count`` places
    with damaged chunks.  ``unfit`` is the damaged file that made recovery run although this boot wrote the log.
    """

    ran: bool
    chunks_checked: int
    bytes_checked: int
    cuts: tuple[Cut, ...] = ()
    cut_count: int = 0
    cut_bytes: int = 0
    given_back: int = 0
    skips: tuple[Skip, ...] = ()
    skip_count: int = 0
    unfit: str = ""
    first_offset: int = 0  # of the log as it is now
    next_offset: int = 0


class LogStats(NamedTuple):
    """Offsets and sizes at one instant: of written messages, and of confirmed ones, at which every reader ends.

    ``last_chunk`` is -1 while no message is confirmed, or if it is unknown.
    """

    first_offset: int
    next_offset: int  # of written messages
    confirmed_offset: int  # at most next_offset: messages between wait for a sync, or for the object store
    last_chunk: int  # the newest confirmed chunk
    segment_count: int
    size_bytes: int


cdef object storage_error(err code, const fault *f):
    cdef char line[1024]
    core.fault_format(f, line, sizeof(line))
    return StorageError(core.error_name(code).decode(), line.decode(errors="replace"))


cdef int check(err code, const fault *f) except -1:
    """Raises StorageError unless it is OK."""
    if code != OK:
        raise storage_error(code, f)
    return 0


cdef core.log_options _options(dict given) except *:
    """`given`: storage.arguments.LogOptions, of which any may be left out."""
    cdef core.log_options o
    if unknown := given.keys() - OPTIONS:
        raise TypeError(f"a log has no option {', '.join(sorted(unknown))}")
    o.segment_bytes_max = given.get("segment_bytes_max", 0)
    o.segment_chunks_max = 0
    o.retention_bytes_max = given.get("retention_bytes_max", 0)
    o.retention_age_ms_max = given.get("retention_age_ms_max", 0)
    o.local_bytes_max = given.get("local_bytes_max", 0)
    o.local_age_ms_max = given.get("local_age_ms_max", 0)
    o.durability = DURABILITIES[given.get("durability", "os")]
    o.filter_bytes = given.get("filter_size_bytes", 0)
    o.chunk_messages_max = given.get("chunk_messages_max", 0)
    o.read_unconfirmed = given.get("read_unconfirmed", False)
    return o


def create(str directory, **options):
    """Make an empty log; sizes in bytes, age in ms, 0 means the default or no limit.

    Raises StorageError (ERR_EXISTS, ERR_DISK_FULL, ERR_IO, ERR_INVALID).
    """
    cdef core.log_options o = _options(options)
    cdef fault f
    cdef err e
    cdef bytes path = os.fsencode(directory)
    cdef const char *p = path
    with nogil:
        e = core.log_create(p, &o, &f)
    check(e, &f)


cdef class SyncOnce:
    """For the recoveries of one start, in any number of threads: what they find is synced once, not for each of them."""
    cdef core.recovery_once once

    def __cinit__(self, generation=None):
        """Believe control pages of this boot only with this generation; 0: none of them; None: any."""
        core.recovery_once_init(&self.once)
        if generation is not None:
            core.recovery_once_believe(&self.once, generation)

    def settle(self):
        """Before the fork: where none of them has synced all by now, each that comes syncs its own."""
        core.recovery_once_settle(&self.once)


def recover(str directory, SyncOnce once=None, **options) -> RecoveryReport:
    """Make a log usable that another boot wrote; in the same boot only its limits are set (DESIGN: recovery).

    Raises StorageError; where it is ERR_VERSION, of the log or its ledger, nothing was written.
    """
    cdef core.log_options o = _options(options)
    cdef core.recovery_report r
    cdef fault f
    cdef err e
    cdef bytes path = os.fsencode(directory)
    cdef const char *p = path
    cdef core.recovery_once *shared = &once.once if once is not None else NULL
    with nogil:
        e = core.ledger_version_check(p, &f)  # of the log's own files recovery_run sees to it
        if e == OK:
            e = core.recovery_run(p, &o, shared, &r, &f)
    check(e, &f)
    cuts = [Cut(os.fsdecode(<bytes> r.cuts[i].path), r.cuts[i].position, r.cuts[i].bytes, os.fsdecode(<bytes> r.cuts[i].kept))
            for i in range(min(r.cut_count, <uint32_t> core.RECOVERY_CUTS_MAX))]
    skips = [Skip(os.fsdecode(<bytes> r.skips[i].path), r.skips[i].position, r.skips[i].bytes, r.skips[i].first_offset,
                  r.skips[i].next_offset)
             for i in range(min(r.skip_count, <uint32_t> core.RECOVERY_CUTS_MAX))]
    return RecoveryReport(r.ran, r.chunks_checked, r.bytes_checked, tuple(cuts), r.cut_count, r.cut_bytes,
                          r.given_back, tuple(skips), r.skip_count, os.fsdecode(<bytes> r.unfit), r.first_offset,
                          r.next_offset)


def set_generation(uint64_t generation):
    """Name the generation of this start of the broker in every control page made or reset from now on; before a fork."""
    core.control_generation_set(generation)


def sync_rest(str directory):
    """fdatasync all committed chunks of a log, and record them as durable.  Raises StorageError if the disk fails."""
    cdef fault f
    cdef err e
    cdef bytes path = os.fsencode(directory)
    cdef const char *p = path
    with nogil:
        e = core.log_sync_rest(p, &f)
    check(e, &f)


def confirm_stored(str directory, uint64_t segment, uint64_t position, uint64_t next_offset):
    """Confirm a log of another boot up to this end of a chunk, which the object store has, before its recovery.

    So readers need not wait until the archiver has sent it again.  Raises StorageError.
    """
    cdef core.commit record
    cdef fault f
    cdef bytes path = os.fsencode(directory)
    record.segment, record.batch_position, record.position = segment, position, position
    record.next_offset, record.last_chunk, record.chunks = next_offset, <uint64_t> -1, <uint64_t> -1
    record.timestamp_ms = 0
    check(core.control_old_confirm(path, &record, &f), &f)


def recovery_ahead(str directory, SyncOnce once=None) -> int:
    """How much work recovery has ahead of it there, in bytes to be checked; 0: none.  Raises StorageError."""
    cdef fault f
    cdef err e
    cdef uint64_t size = 0
    cdef bytes path = os.fsencode(directory)
    cdef const char *p = path
    cdef const core.recovery_once *shared = &once.once if once is not None else NULL
    with nogil:
        e = core.recovery_ahead(p, shared, &size, &f)
    check(e, &f)
    return size


def check_versions(str directory):
    """Is every file of a log, and of its ledger, in a format that we know?  Writes nothing.

    Raises StorageError: ERR_VERSION names the file, its version and ours.
    """
    cdef fault f
    cdef bytes path = os.fsencode(directory)
    cdef err e = core.version_check(path, &f)
    if e == OK:
        e = core.ledger_version_check(path, &f)
    check(e, &f)


#: Logs that the start found unusable, with the reason: nobody in this process or forked from it opens them.
_refused: dict[str, StorageError] = {}


def refuse(str directory, problem: StorageError):
    """Keep everybody from a log until the next start: who opens it gets ``problem``.  Before the fork."""
    _refused[directory] = problem


def is_refused(str directory) -> bool:
    return directory in _refused


#: Logs that the start has left for later, and what looks at one (leave).
_left: set[str] = set()
_look = None
_here = threading.local()


def leave(directories: Collection[str], look: Callable[[str], object]):
    """Whoever uses one of these first, in this process or one forked from it, calls ``look(directory)`` before.

    It sees to it that the log is usable, once for all processes, or raises StorageError.  It may use the log itself.
    """
    global _left, _look
    _left, _look = set(directories), look


def require_usable(str directory):
    """Raises StorageError where the start refused this log, or what it has left cannot be done now."""
    problem = _refused.get(directory)
    if problem is not None:
        raise StorageError(problem.code, problem.message)  # a new one: its traceback is its own
    if directory not in _left or getattr(_here, "is_looking", False):
        return
    _here.is_looking = True
    try:
        _look(directory)
    finally:
        _here.is_looking = False
    _left.discard(directory)


def remove(str directory):
    """Delete a log's files.  Only after mark_deleted; raises StorageError."""
    cdef fault f
    cdef err e
    cdef bytes path = os.fsencode(directory)
    cdef const char *p = path
    with nogil:
        e = core.log_remove(p, &f)
    if e != OK and e != ERR_NOT_FOUND:
        raise storage_error(e, &f)


def housekeep(str directory) -> tuple[int, int]:
    """Apply a log's retention now; returns (segments dropped, bytes dropped)."""
    cdef Log held = Log(directory)
    return held.apply_retention()


def age_ms(str directory) -> int | None:
    """How long ago this log was begun, while it has its first segment.  None: not known now."""
    cdef int64_t ms
    cdef bytes path = os.fsencode(directory)
    return ms if core.retention_age(path, 0, &ms) else None


def set_limits(str directory, **options):
    """Log.set_limits for a log that need not be open here, as when a policy has changed."""
    cdef Log held = Log(directory)
    held.set_limits(**options)


cdef int _dump_line(void *context, const char *text) noexcept with gil:
    try:
        (<object> context)(text.decode(errors="replace"))
        return 0
    except BaseException as problem:  # carried over the C frames, raised again by dump()
        (<object> context).problem = problem
        return 1


class _Lines:
    def __init__(self, line):
        self.line, self.problem = line, None

    def __call__(self, text):
        self.line(text)


def dump(str path, bint entries, uint64_t limit, line):
    """Print any file of a log or ledger through ``line(text)``; StorageError where it is damaged, UserError if not ours.

    A ledger's files are known by their names, because a block has no magic.
    """
    cdef core.dump_options o
    o.entries = entries
    o.limit = limit
    cdef fault f
    cdef err e
    cdef bytes raw = os.fsencode(path)
    lines = _Lines(line)
    if os.path.basename(path) == "ledger" or path.endswith((".ledger", ".settled")):
        e = core.ledger_print(raw, limit, _dump_line, <void *> lines, &f)
    else:
        e = core.dump_file(raw, &o, _dump_line, <void *> lines, &f)
    if lines.problem is not None:
        raise lines.problem
    if e == ERR_INVALID:
        raise UserError(
            f"{path} is none of VibeMQ's files",
            hint="segments, indexes, tracking, control and ledger files can be printed; `vibemq log list` says where "
                 "they lie")
    check(e, &f)


cdef class Log:
    """One process's handle on one stream's log (csrc/log/log.h).  Open it after fork."""

    def __cinit__(self, str directory):
        cdef fault f
        require_usable(directory)
        cdef bytes path = os.fsencode(directory)
        cdef err e = core.log_open(path, &self.raw, &f)
        if e != OK:
            self.raw = NULL
            raise storage_error(e, &f)
        self.directory = directory
        self.control = core.log_control(self.raw)

    def say_rebuilt(self):
        """Log that the table of publishing ids was damaged, and was rebuilt through this handle."""
        logger.error("%s was damaged, and its publishing ids were rebuilt from the log: nothing is lost; check the disk "
                     "and the memory of this machine", os.path.join(self.directory, "tracking"))

    def close(self):
        if self.raw != NULL:
            if core.log_tracking_rebuilt(self.raw):
                self.say_rebuilt()
            core.log_close(self.raw)
            self.raw = NULL

    def __dealloc__(self):
        if self.raw != NULL:
            core.log_close(self.raw)

    @property
    def is_deleted(self) -> bool:
        return core.control_is_deleted(self.control)

    @property
    def is_disk_durable(self) -> bool:
        return self.control.durability == core.DURABILITY_DISK

    @property
    def is_remote(self) -> bool:
        return self.control.durability == core.DURABILITY_REMOTE

    @property
    def remote_offset(self) -> int:
        """Of a remote log: what is below it lies in the object store."""
        return core.word_load(&self.control.remote_offset)

    @property
    def confirmed_offset(self) -> int:
        """The end for every reader (csrc/log/control.h control_confirmed): publishers below it could be confirmed."""
        return core.control_confirmed_offset(self.control)

    @property
    def filter_size_bytes(self) -> int:
        """Of the Bloom filters that new chunks get."""
        return core.log_filter_bytes(self.raw)

    @property
    def chunk_messages_max(self) -> int:
        """How many messages a new chunk may have."""
        return core.log_chunk_messages(self.raw)

    def set_limits(self, **options):
        """Change the limits for every process, from its next append or retention on; the durability stays."""
        cdef core.log_options o = _options(options)
        cdef fault f
        check(core.log_set_limits(self.raw, &o, &f), &f)

    def mark_deleted(self):
        """From now on appends fail with ERR_DELETED, in every process."""
        with nogil:
            core.log_mark_deleted(self.raw)

    def holders(self) -> int:
        """Mask of the workers that have this stream open."""
        return core.word_bits(&self.control.holders)

    def readers(self) -> int:
        """Mask of the workers where somebody waits for what is appended."""
        return core.word_bits(&self.control.readers)

    def stats(self) -> LogStats:
        cdef core.log_stats_t s
        cdef fault f
        check(core.log_stats(self.raw, &s, &f), &f)
        return LogStats(s.first_offset, s.next_offset, s.confirmed_offset,
                        -1 if s.last_chunk == <uint64_t> -1 else s.last_chunk, s.segment_count, s.bytes)

    def publisher_sequence(self, str reference) -> int:
        """Highest publishing id accepted from ``reference``; 0 when it is unknown.  It may not be confirmed yet."""
        return self.publisher_last(reference)[0]

    def publisher_last(self, str reference) -> tuple[int, int]:
        """The same, and the id of the chunk that holds its message; (0, -1) when the reference is unknown."""
        cdef bytes text = reference.encode()
        cdef uint64_t value = 0, chunk = 0
        cdef fault f
        cdef err e = core.log_publisher_last(self.raw, text, <uint32_t> len(text), &value, &chunk, &f)
        if e == ERR_NOT_FOUND:
            return 0, -1
        check(e, &f)
        return value, chunk

    def publisher_sequences(self) -> dict[str, int]:
        """Highest publishing id accepted from each reference that is remembered."""
        cdef log_publisher *found = <log_publisher *> malloc(_PUBLISHERS_MAX * sizeof(log_publisher))
        cdef uint32_t count, i
        cdef fault f
        cdef err e
        if found == NULL:
            raise MemoryError
        try:
            e = log_publishers(self.raw, found, &count, &f)
            check(e, &f)
            return {(<bytes> found[i].reference[:found[i].bytes]).decode(errors="replace"): found[i].sequence
                    for i in range(count)}
        finally:
            free(found)

    def attach_offset(self, int offset_type, long long value, bint may_block=False) -> int:
        """First offset a reader with this specification would be given (the RabbitMQ Streams protocol).

        In a segment that lies in the object store, with its index, that is the segment's first unless it ``may_block``.
        """
        cdef core.reader r
        cdef fault f
        cdef err e = core.reader_open(&r, self.raw, <core.reader_from> offset_type, value, &f)
        if e == OK and may_block:
            with nogil:
                e = core.reader_settle(&r, False, &f)
        cdef uint64_t at = r.next_offset
        core.reader_close(&r)
        check(e, &f)
        return at

    def older_end(self, uint64_t start, long long age_ms) -> int:
        """The end of the messages from `start` on that are known to be older than `age_ms` now (csrc/log/upkeep.h)."""
        cdef fault f
        cdef uint64_t end
        check(core.retention_older(self.raw, start, age_ms, &end, &f), &f)
        return end

    def time_at(self, uint64_t offset) -> int | None:
        """When the message at `offset` was appended, in ms since 1970; None: it is not there yet, or not to be had now.

        Reads a chunk's header, perhaps from the disk, and never from the object store.
        """
        cdef uint8_t head[HEAD_BYTES]
        cdef core.reader r
        cdef core.chunk header
        cdef uint64_t got = 0
        cdef fault f
        cdef err e = core.reader_open(&r, self.raw, core.READER_OFFSET, <int64_t> offset, &f)
        if e != OK:
            return None
        with nogil:
            e = core.reader_fetch(&r, head, HEAD_BYTES, r.cold, &got, &f)
            if e == OK:
                e = core.reader_header(&r, head, got, &header, &f)
        core.reader_close(&r)
        return header.timestamp_ms if e == OK else None

    def sync(self) -> int:
        """fdatasync all that is committed; returns the durable offset.  May block: helper threads only."""
        cdef uint64_t durable = 0
        cdef fault f
        cdef err e
        cdef int64_t began_us = now_us()
        with nogil:
            e = core.log_sync(self.raw, &durable, &f)
        self.sync_us = now_us() - began_us
        check(e, &f)
        return durable

    def sync_failed(self, uint64_t end) -> bool:
        """Was an fdatasync refused for anything below the offset `end`?  For good."""
        return core.log_sync_failed(self.raw, 0, end)

    def begin_segment(self):
        """Close the active segment, unless nothing is in it.  May block."""
        cdef fault f
        cdef err e
        with nogil:
            e = roll(self, AGE_OF_ALL_MS, &f)
        check(e, &f)

    def apply_retention(self) -> tuple[int, int]:
        """Drop segments by size and age; returns (segments, bytes).  May block."""
        cdef core.retention_report report
        cdef uint64_t age_ms = core.word_load(&self.control.retention_age_ms_max)
        cdef fault f
        cdef err e = OK
        with nogil:
            # Segments go whole, and the active one never: so none may cover more than a part of the age.
            if age_ms:
                e = roll(self, <int64_t> (age_ms // AGE_PARTS), &f)
            if e == OK:
                e = core.retention_run(self.raw, &report, &f)
        if e != OK and e != ERR_END:
            raise storage_error(e, &f)
        if report.local_segments:
            logger.info("%s: %d segments, %d bytes, are in the object store only now", self.directory,
                        report.local_segments, report.local_bytes)
        return report.segments_dropped, report.bytes_dropped


cdef err roll(Log held, int64_t age_ms, fault *f) noexcept nogil:
    """Begin a new segment if the active one is that old."""
    cdef boolean rolled = False
    cdef uint64_t durable
    cdef err e = core.retention_roll_aged(held.raw, age_ms, &rolled, f)
    # What is not durable does not go, nor what the new segment goes on from before that is durable.
    if e == OK and rolled and held.control.durability == core.DURABILITY_DISK:
        e = core.log_sync(held.raw, &durable, f)
    return e


def segments(str directory) -> list[int]:
    """First offsets of a log's segments, also of those in the object store, rising; never empty.  Raises StorageError."""
    try:
        names = os.listdir(directory)
    except OSError as problem:
        raise StorageError("ERR_IO", f"{directory} cannot be listed: {problem.strerror}") from None
    found = sorted({int(name[:20]) for name in names if name[20:] in (".segment", ".remote") and name[:20].isdigit()})
    return found or [0]


def wait_for_locks(int64_t ms):
    """The calling thread waits at most so long for the lock of a log, and its functions then raise ERR_BUSY."""
    core.log_lock_patience(ms)


def release_publisher(str directory, uint32_t seat, bytes reference):
    """As a worker on `seat` without a publisher of that name.  May block: helper threads only."""
    cdef Log held = Log(directory)
    cdef uint32_t size = <uint32_t> len(reference)
    cdef const char *name = reference
    cdef fault f
    cdef err e
    with nogil:
        e = core.log_publisher_release(held.raw, seat, name, size, &f)
    held.close()
    check(e, &f)


def drop_before(str directory, uint64_t offset) -> int:
    """Drop closed segments that hold nothing at or above `offset`; returns how many.  May block."""
    cdef Log held = Log(directory)
    cdef core.retention_report report
    cdef fault f
    cdef err e
    with nogil:
        e = core.retention_drop_before(held.raw, offset, &report, &f)
    if e != OK and e != ERR_END:
        raise storage_error(e, &f)
    return report.segments_dropped


def drop_settled(str directory, uint64_t offset) -> int:
    """As drop_before; a log that ends at `offset` begins a new segment first, so that nothing of it stays.  May block."""
    cdef Log held = Log(directory)
    cdef core.commit committed
    cdef fault f
    cdef err e
    core.control_committed(held.control, &committed)
    if committed.next_offset == offset:
        with nogil:
            e = roll(held, AGE_OF_ALL_MS, &f)
        check(e, &f)
    return drop_before(directory, offset)


def ledger_create(str directory, uint64_t base, bint sync):
    """Make the ledger that turns a log into a queue's; raises StorageError."""
    cdef fault f
    cdef bytes path = os.fsencode(directory)
    cdef const char *p = path
    cdef err e
    with nogil:
        e = core.ledger_create(p, base, sync, &f)
    check(e, &f)


def ledger_sync(str directory):
    """Make what is settled survive power loss.  Blocks: helper threads only; raises StorageError."""
    cdef fault f
    cdef bytes path = os.fsencode(directory)
    cdef const char *p = path
    cdef err e
    with nogil:
        e = core.ledger_sync(p, &f)
    if e != OK and e != ERR_NOT_FOUND:
        raise storage_error(e, &f)


def ledger_recover(str directory, uint64_t first, uint64_t next_offset, *, bint is_same_boot = False) -> LedgerDamage:
    """Repair a queue's ledger before the first worker starts, after the recovery of its log.  Raises StorageError.

    ``first`` and ``next_offset`` are the log's.  ``is_same_boot``: this boot wrote it.  Then only damage is repaired, and
    the former home and consumers are removed.
    """
    cdef fault f
    cdef core.ledger_damage found
    cdef bytes path = os.fsencode(directory)
    cdef const char *where = path
    cdef err e
    with nogil:
        e = core.ledger_recover(where, first, next_offset, is_same_boot, &found, &f)
    check(e, &f)
    return LedgerDamage(found.anew, found.page, found.entries, found.offset, found.blocks, found.block)
