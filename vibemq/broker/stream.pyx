# SPDX-License-Identifier: Apache-2.0
"""Streams as one worker holds them: who writes, who reads, and the batch of this turn.

A stream's log belongs to all workers; a ``Stream`` is one worker's hold on it.  Doors add entries to ``Stream.batch`` while
they parse; at the end of the turn (or when the batch is large) ``persist`` appends it once and tells the users what became
of it.  Other workers with readers learn of it through the board of doorbells.

With durability ``disk`` a confirm also waits for an fdatasync.  One is in flight for each stream; whatever was persisted
while it ran is covered by the next, so group commit needs no timer.

Readers end at the confirmed record (csrc/log/control.h ``control_confirmed``), so they are notified when it moves: with
durability ``os`` and ``read-unconfirmed`` by an append, with ``disk`` by a sync, with ``remote`` by the archiver.  If the
publisher's worker was killed, a worker that reads the log starts the sync.
"""

import logging
import time
from functools import partial

from libc.errno cimport EFBIG
from libc.stdlib cimport free

from vibemq.broker.appends cimport Disk, HandedBatch, SpareBatches
from vibemq.broker.publisher_names cimport PublisherNames
from vibemq.storage cimport core
from vibemq.storage.core cimport ERR_BUSY, ERR_DISK_FULL, OK, commit, err, fault, log_appended
from vibemq.storage.log cimport check, storage_error
from vibemq.storage.meters cimport (
    METER_CONFIRM_DISK, METER_CONFIRM_OS, METER_CONFIRM_REMOTE, METER_NOT_APPENDED,
    METER_SYNC, METER_TABLES_REBUILT, Meters, now_us,
)

from vibemq.errors import StorageError, StreamNotFound
from vibemq.once_a_minute import OnceAMinute
from vibemq.storage.log import housekeep

logger = logging.getLogger(__name__)
faults = OnceAMinute(logger, logging.ERROR)

GONE = ("ERR_NOT_FOUND", "ERR_DELETED")  # errors of a log that was deleted meanwhile

cdef extern from "log/chunk.h" nogil:
    enum:
        CHUNK_MESSAGES_FIRST

cdef enum:
    # The kernel writes dirty pages back by itself after about 30 s; syncing a closed segment later
    # than that is nearly free.  It only shortens the scan after a power cut.
    SYNC_CLOSED_AFTER_MS = 60_000
    # Streams whose files stay open for the next append: two descriptors each, of those that a worker has
    # besides its connections (server/supervisor.py).
    APPENDING_MAX = 1024
    # Streams that one tick looks at: under a millisecond.
    LOOKS_PER_TICK = 1000


cdef class StreamUser:
    cdef int on_news(self) except -1:
        return 0

    cdef int on_persisted(self, bint ok, uint64_t first_offset, uint64_t next_offset) except -1:
        return 0

    cdef int on_handed(self, size_t size) except -1:
        return 0

    cdef int on_appended(self, bint ok, uint64_t first_offset, uint64_t next_offset) except -1:
        return 0

    cdef int on_synced(self, object what, bint ok) except -1:
        return 0

    cdef int on_deleted(self) except -1:
        return 0

    cdef int failed(self, object problem) except -1:
        raise problem


cdef class Stream:
    def __init__(self, StreamTable table, record, str directory):
        self.virtual_host, self.name = record.vhost, record.name
        self.incarnation, self.slot = record.incarnation, record.slot
        self.table, self.disk = table, table.disk
        self.waiting, self.readers, self.holders, self.unsynced = [], [], set(), {}
        self.log = Log(directory)
        self.is_disk_durable = self.log.is_disk_durable
        self.is_remote = self.log.control.durability == core.DURABILITY_REMOTE
        self.confirms_later = self.is_disk_durable or self.is_remote
        self.chunk_messages = CHUNK_MESSAGES_FIRST
        self.durable_seen = <uint64_t> -1
        core.word_bit_set(&self.log.control.holders, table.worker)
        self.restarts = core.doorbell_restarts(table.board.raw, self.slot)  # who restarts it now sees us holding it
        if core.log_closed_is_unsynced(self.log.raw):  # after the end of another worker or of the broker
            self.rolled_ms = time.monotonic_ns() // 1_000_000
        if self.log.is_deleted:  # whoever deleted it may have read the mask before we were in it
            self.close()
            raise StreamNotFound(self.name)

    def __dealloc__(self):
        if self.batch != NULL:
            core.batch_free(self.batch)
            free(self.batch)

    def __repr__(self):
        return f"<Stream {self.virtual_host}{self.name} {self.incarnation}>"

    cdef int _count_rebuilt(self) except -1:
        if self.log.raw != NULL and core.log_tracking_rebuilt(self.log.raw):
            self.log.say_rebuilt()
            self.table.meters.count(METER_TABLES_REBUILT, 1)
        return 0

    def close(self):
        self._count_rebuilt()
        self.table.appending.pop(self, None)
        core.word_bit_clear(&self.log.control.readers, self.table.worker)
        core.word_bit_clear(&self.log.control.holders, self.table.worker)
        self.log.close()

    # ---- users ----

    cdef int attach(self, StreamUser user) except -1:
        user.stream = self
        self.holders.add(user)
        return 0

    cdef int detach(self, StreamUser user) except -1:
        """Forget a user; a stream that nobody uses is closed (its log stays, of course)."""
        if user not in self.holders:
            return 0  # it has lost the stream, or will hear so in a moment: others of its users may still read
        self.holders.remove(user)
        self.detach_reader(user)
        self.unsynced.pop(user, None)
        self.table.release_if_unused(self)
        return 0

    cdef int declare(self, bytes reference) except -1:
        if self.names is None:
            self.names = PublisherNames(self.name, self.log, self.table.board, self.table.meters, self.table.helpers)
        return self.names.declare(reference)

    cdef int undeclare(self, bytes reference) except -1:
        return self.names.undeclare(reference)

    cdef int attach_reader(self, StreamUser user) except -1:
        self.readers.append(user)
        # Before the reader loads the confirmed record: a later confirm then sees the bit.
        core.word_bit_set(&self.log.control.readers, self.table.worker)
        if self._sync_due():
            self._start_sync()
        return 0

    cdef int detach_reader(self, StreamUser user) except -1:
        if user in self.readers:
            self.readers.remove(user)
            if not self.readers and self.log.raw != NULL:
                core.word_bit_clear(&self.log.control.readers, self.table.worker)
        return 0

    # ---- the turn ----

    cdef int add_waiting(self, StreamUser user) except -1:
        """`user` is about to add its first entry to this batch."""
        if self.log.raw == NULL:
            raise StreamNotFound(self.name)
        if self.batch == NULL:
            self.batch = self.table.spares.take()
            core.batch_limit(self.batch, self.log.control.segment_bytes_max)
            core.batch_filter_size(self.batch, core.log_filter_bytes(self.log.raw))
            core.batch_chunk_messages(self.batch, self.chunk_messages, core.log_chunk_messages(self.log.raw))
        self.waiting.append(user)
        if not self.dirty:
            self.dirty = True
            self.table.dirty.append(self)
        return 0

    cdef int persist(self) except -1:
        """Append the batch, tell its users, ring the workers that read."""
        cdef log_appended done
        cdef fault f
        cdef err e
        cdef HandedBatch taken
        if self.handed:
            self.appends.append_here()
        if not self.waiting:
            return 0
        self.chunk_messages = core.batch_chunk_messages_next(self.batch)
        if self.disk.is_slow():
            return self.later().add(False, False)
        if self.disk.may_yield:
            self.disk.may_yield, self.disk.appending, self.disk.is_kept = False, self, False
        with nogil:
            e = core.batch_seal(self.batch, &f)
            if e == OK:
                e = core.log_append(self.log.raw, self.batch, &done, &f)
        if self.disk.taken is not None:
            taken = self.disk.taken
            taken.e, taken.f, taken.appended = e, f, done
            return self.disk.displaced()
        self.disk.appending = None
        if e == ERR_BUSY:
            return self.later().add(True, True)
        appended_batch, self.batch = self.batch, NULL
        waiting, self.waiting = self.waiting, []
        return self.appended(appended_batch, waiting, False, e, &f, &done, self.table.meters.turn_us)

    cdef int hand(self, list users, size_t share) except -1:
        cdef StreamUser user
        for user in users:
            user.on_handed(share)
        return 0

    def has_pending(self, str reference) -> bool:
        """Return whether messages of a publisher of that name are not appended yet, by this worker."""
        cdef list users = self.waiting[:]
        if self.appends is not None:
            users += self.appends.users()
        return any(getattr(user, "reference", None) == reference.encode() for user in users)

    cdef int next_batch(self) except -1:
        if self.disk.is_slow():
            return self.later().add(True, False)
        self.chunk_messages = core.batch_chunk_messages_next(self.batch)
        return self.later().keep()

    cdef int finish_batch(self) except -1:
        return self.later().add(True, False) if self.waiting and self.disk.is_slow() else self.persist()

    cdef int appended(self, batch *appended_batch, list users, bint handed, err e, fault *f, log_appended *done,
                      int64_t began_us) except -1:
        cdef uint64_t others
        # The batch is kept while its users ask which of their entries were dropped from it.
        if e != OK or not done.duplicates:
            self.table.spares.give(appended_batch)
            appended_batch = NULL
        if e != OK:
            self.table.meters.count(METER_NOT_APPENDED, 1)
            problem = storage_error(e, f)
            if problem.code in GONE:
                logger.info("stream %s: not persisted, because it was deleted meanwhile", self.name)
            else:
                self.table.says.say((self.name, problem.code), "stream %s: not persisted: %s", self.name, problem)
                if self.table.alarms is not None and e == ERR_DISK_FULL:
                    self.table.alarms.met_full_disk()
                elif self.table.alarms is not None and f.sys_errno == EFBIG:
                    self.table.alarms.met_file_limit()
            self._tell(users, handed, False, 0, 0)
            if handed:
                self.table.release_if_unused(self)
            return 0
        self.has_appended = True
        if not self.confirms_later:
            self.table.meters.add(METER_CONFIRM_OS, now_us() - began_us, done.next_offset - done.first_offset)
        self.duplicates = done.duplicates
        if not self.appending:
            self.table.note_appending(self)
        if done.duplicates and self.is_disk_durable and core.log_sync_failed(self.log.raw, 0, <uint64_t> -1):
            # The first copy of a duplicate may lie where a sync failed: it is not ours to confirm.
            self._tell(users, handed, False, 0, 0)
        else:
            self.deduplicated = appended_batch
            self._tell(users, handed, True, done.first_offset, done.next_offset)
            self.deduplicated = NULL
            if self.is_disk_durable:
                self._start_sync()
        if appended_batch != NULL:
            self.table.spares.give(appended_batch)
        if done.rolled:
            self._segment_closed()
        others = self.table.archiver if self.is_remote or done.rolled else 0
        if core.control_readers_wait(self.log.control):
            if others:
                self.table.board.mark(others, self.slot)
        else:
            self._ring_readers(others)
            self.news()
        self.table.release_if_unused(self)  # its publisher may have left while the batch was open
        return 0

    cdef int _ring_readers(self, uint64_t others) except -1:
        """Ring the other workers that read, and those in the mask `others`."""
        others |= core.word_bits(&self.log.control.readers) & ~(<uint64_t> 1 << self.table.worker)
        if others:
            self.table.board.mark(others, self.slot)
        return 0

    cdef int _tell(self, list users, bint handed, bint ok, uint64_t first_offset, uint64_t next_offset) except -1:
        cdef StreamUser user
        for user in users:
            try:
                if handed:
                    user.on_appended(ok, first_offset, next_offset)
                else:
                    user.on_persisted(ok, first_offset, next_offset)
            except Exception as problem:
                user.failed(problem)
        return 0

    cdef int news(self) except -1:
        cdef StreamUser user
        for user in self.readers[:]:
            if user not in self.holders:
                continue  # another one's news were the end of it
            try:
                user.on_news()
            except Exception as problem:
                user.failed(problem)
        return 0

    # ---- durability ----

    cdef int await_sync(self, StreamUser user, object what, uint64_t first_offset, uint64_t next_offset) except -1:
        cdef int64_t began_us = self.table.meters.turn_us
        if self.duplicates:
            # The first copy of a duplicate may lie anywhere in the log that is not durable yet: it shares that sync's fate.
            first_offset, began_us = min(first_offset, self.kept_below()), 0
        return self._await(user, (what, first_offset, next_offset, began_us))

    cdef int _await(self, StreamUser user, tuple batch) except -1:
        if user.unsynced is None:
            user.unsynced = []
        user.unsynced.append(batch)
        self.unsynced[user] = None
        return 0

    cdef uint64_t kept_below(self) noexcept:
        if self.is_remote:
            return core.word_load(&self.log.control.remote_offset)
        return core.log_durable_offset(self.log.raw)

    cdef bint await_chunk(self, StreamUser user, object what, uint64_t chunk) except -1:
        if not self.confirms_later or chunk < self.kept_below():  # which lies between chunks
            return False
        self._await(user, (what, chunk, chunk + 1, 0))
        if self.is_disk_durable:
            self._start_sync()
        return True

    cdef int _tell_synced(self, StreamUser user, uint64_t durable) except -1:
        """Tell it what this sync has settled.  What it waits for after that, perhaps since just now, is for the next one."""
        cdef list waiting = []
        cdef bint failed
        cdef int kind = METER_CONFIRM_REMOTE if self.is_remote else METER_CONFIRM_DISK
        cdef int64_t began_us
        batches, user.unsynced = user.unsynced, []
        for batch in batches or ():
            what, first_offset, next_offset, began_us = batch
            failed = core.log_sync_failed(self.log.raw, first_offset, next_offset)
            if not failed and next_offset > durable:
                waiting.append(batch)
                continue
            if not failed and began_us:
                self.table.meters.add(kind, now_us() - began_us, next_offset - first_offset)
            try:
                user.on_synced(what, not failed)
            except Exception as problem:  # its other batches are answered all the same
                user.failed(problem)
        if user.unsynced is None:  # it was closed by what it was told
            return 0
        user.unsynced = waiting + user.unsynced
        if user.unsynced:
            self.unsynced[user] = None
        return 0

    cdef int _settle_remote(self) except -1:
        """Tell those who wait what the object store has by now."""
        cdef StreamUser user
        cdef uint64_t upto = core.word_load(&self.log.control.remote_offset)
        users, self.unsynced = self.unsynced, {}
        for user in users:
            self._tell_synced(user, upto)
        if not self.unsynced:
            self.table.release_if_unused(self)
        return 0

    cdef int _look_at_store(self, int64_t now_ms) except -1:
        """With each tick: tell those whose doorbell was not heard; and, where nothing has come there for too long, no."""
        cdef StreamUser user
        cdef uint64_t upto = core.word_load(&self.log.control.remote_offset)
        if not self.unsynced or upto != self.remote_seen:
            self.remote_seen, self.remote_moved_ms = upto, now_ms
        if self.unsynced:
            self._settle_remote()
        if (self.unsynced and self.table.remote_timeout_ms
                and now_ms - self.remote_moved_ms > self.table.remote_timeout_ms):
            users, self.unsynced = self.unsynced, {}
            for user in users:
                batches, user.unsynced = user.unsynced, []
                for what, _, _, _ in batches or ():
                    try:
                        user.on_synced(what, False)
                    except Exception as problem:
                        user.failed(problem)
            self.table.release_if_unused(self)
        return self.log.raw == NULL

    cdef bint _sync_due(self) noexcept:
        """True if messages are written that no sync has covered yet and one can still cover, or that are synced and not
        confirmed: the worker that synced them was killed just then."""
        cdef commit committed
        cdef uint64_t durable
        if not self.is_disk_durable:
            return False
        core.control_committed(self.log.control, &committed)
        durable = core.log_durable_offset(self.log.raw)
        if core.control_confirmed_offset(self.log.control) < durable:
            return True
        return (durable < committed.next_offset
                and not core.log_sync_failed(self.log.raw, committed.next_offset - 1, committed.next_offset))

    cdef int _look_after_sync(self) except -1:
        """Start a due sync with each tick if none has ended since the last tick: the worker for it was killed."""
        cdef uint64_t durable
        if not self._sync_due():
            return 0
        durable = core.log_durable_offset(self.log.raw)
        if durable == self.durable_seen:
            self._start_sync()
        self.durable_seen = durable
        return 0

    cdef int _start_sync(self) except -1:
        if self.syncing:
            return 0
        self.syncing, self.sync_again = True, False
        self.table.helpers.submit_sync(self.log.sync, self._synced)
        return 0

    def _synced(self, durable, error):
        cdef StreamUser user
        cdef uint64_t upto
        self.syncing = False
        self.table.meters.add(METER_SYNC, self.log.sync_us, 1)
        if error is None:
            upto = durable
        else:
            logger.error("stream %s: fdatasync failed, its segment is closed: %s", self.name, error)
            upto = core.log_durable_offset(self.log.raw)
        if self.is_disk_durable:
            self._ring_readers(0)
        users, self.unsynced = self.unsynced, {}
        for user in users:
            self._tell_synced(user, upto)
        if self.is_disk_durable:
            self.news()
        if self.log.raw == NULL:
            return  # its last user has left it
        if self.unsynced or (self._sync_due() and not core.control_is_deleted(self.log.control)):
            if error is None:
                self._start_sync()  # also without publishers, because readers wait
                return
            self.sync_again = True
        if not self.unsynced:
            self.table.release_if_unused(self)

    def _segment_closed(self):
        self.rolled_ms = time.monotonic_ns() // 1_000_000
        # With a handle of its own: ours may be closed, or list segments, while the helper does.
        self.table.helpers.submit_remove(partial(housekeep, self.log.directory), self._retention_applied)

    def _retention_applied(self, dropped, error):
        if error is not None:
            if getattr(error, "code", "") not in GONE:
                logger.error("stream %s: retention failed: %s", self.name, error)
        elif dropped[0]:
            logger.info("stream %s: retention dropped %d segments, %d bytes", self.name, *dropped)

    def rest(self):
        """Give back the descriptors that appending holds; the next append opens them again."""
        self.table.appending.pop(self, None)
        self.appending = False
        if self.log.raw != NULL and not self.handed:  # a helper thread uses them
            core.log_rest(self.log.raw)

    def tick(self, int64_t now_ms):
        """What nobody rings for: a failed sync, a doorbell whose ringer was killed, closed segments."""
        # It is closed if another stream's tick ended the connection of its last user.
        if self.log.raw == NULL or self.table._look(self):
            return
        self.news()
        if self.log.raw == NULL:
            return  # they were the end of its last user
        self._count_rebuilt()
        if not self.has_appended and self.appending:
            self.rest()  # nothing since the last look
            self.chunk_messages = CHUNK_MESSAGES_FIRST
        self.has_appended = False
        if self.sync_again:
            self._start_sync()
        else:
            self._look_after_sync()
        if self.is_remote and self._look_at_store(now_ms):
            return
        # A closed segment of an `os` stream, once the kernel has written it back anyway.
        if self.rolled_ms and now_ms - self.rolled_ms > SYNC_CLOSED_AFTER_MS and not self.syncing:
            self.rolled_ms = 0
            self._start_sync()


cdef class StreamTable:
    """The streams this worker has open, by (virtual host, name) and by slot."""

    def __init__(self, metadata, Board board, helpers, log_directory, int archiver_seat=-1, int64_t remote_timeout_s=0,
                 Meters meters=None):
        self.metadata = metadata
        self.meters = Meters() if meters is None else meters
        self.board = board
        self.worker = board.index
        self.remote_timeout_ms = remote_timeout_s * 1000
        self.archiver = 0 if archiver_seat < 0 else <uint64_t> 1 << archiver_seat
        self.helpers, self.log_directory = helpers, log_directory
        self.by_name = {}
        self.by_slot = [None] * core.DOORBELL_SLOTS_MAX
        self.dirty, self.persisting = [], []
        self.disk, self.spares = Disk(helpers, self.meters, self.resume_persist), SpareBatches()
        self.appending = {}
        self.says = OnceAMinute(logger, logging.ERROR)

    def note_appending(self, Stream stream):
        """It holds descriptors now; the one that has held its own for longest gives them back for it."""
        if len(self.appending) >= APPENDING_MAX:
            next(iter(self.appending)).rest()
        self.appending[stream] = None
        stream.appending = True

    def find(self, str virtual_host, str name) -> Stream:
        """The live stream of that name, opened if need be; StreamNotFound.

        An open stream that has been deleted (perhaps made anew by another worker) or restarted
        meanwhile is let go first, whose doorbell has not been heard yet.
        """
        stream = self.by_name.get((virtual_host, name))
        if stream is not None:
            self._look(stream)
            if self.by_name.get((virtual_host, name)) is stream:
                return stream
        record = self.metadata.find_stream(virtual_host, name)
        if record is None:
            raise StreamNotFound(name)
        try:
            stream = Stream(self, record, self.log_directory(record.incarnation))
        except StorageError as problem:
            if problem.code in GONE:
                raise StreamNotFound(name) from problem
            raise
        old = self.by_slot[stream.slot]
        if old is not None:  # deleted, its slot given to this one, and its doorbell not heard yet
            self.forget_deleted(old)
        self.by_name[virtual_host, name] = stream
        self.by_slot[stream.slot] = stream
        return stream

    def release(self, Stream stream):
        """Close a stream that nobody on this worker uses."""
        self._forget_name(stream)
        if stream.log.raw != NULL:
            stream.close()

    def _forget_name(self, Stream stream):
        if self.by_name.get((stream.virtual_host, stream.name)) is stream:
            del self.by_name[stream.virtual_host, stream.name]
        if self.by_slot[stream.slot] is stream:
            self.by_slot[stream.slot] = None

    cpdef int release_if_unused(self, Stream stream) except -1:
        if stream.handed:
            return 0
        if stream.rolled_ms and not stream.holders and not stream.waiting and not stream.syncing and stream.log.raw != NULL:
            stream.rolled_ms = 0
            if not core.control_is_deleted(stream.log.control):
                stream._start_sync()  # no later tick would; the stream is released after it
                return 0
        if not stream.holders and not stream.waiting and not stream.syncing:
            self.release(stream)
        return 0

    def forget_deleted(self, Stream stream):
        """Tell every user of a deleted stream on this worker, once, and let it go."""
        self._forget_name(stream)
        self._let_go(stream)
        if not stream.syncing and not stream.handed:
            self.release(stream)

    cdef int _look(self, Stream stream) except -1:
        """1 when the stream was deleted or restarted, and is let go now."""
        cdef uint32_t restarts
        if core.control_is_deleted(stream.log.control):
            self.forget_deleted(stream)
            return 1
        restarts = core.doorbell_restarts(self.board.raw, stream.slot)
        if restarts == stream.restarts:
            return 0
        stream.restarts = restarts
        self._let_go(stream)
        self.release_if_unused(stream)
        return 1

    cdef int _let_go(self, Stream stream) except -1:
        """Tell all users on this worker that they have lost it."""
        cdef StreamUser user
        if stream.waiting or stream.handed:
            stream.finish_batch()  # a deleted log refuses it: publishers get their errors
        users = list(stream.holders)
        stream.holders.clear()
        stream.readers.clear()
        stream.unsynced.clear()
        for user in users:
            try:
                user.on_deleted()  # may have to read once more: the rest of a chunk that is half sent
            except Exception as problem:
                user.failed(problem)
        return 0

    def restart(self, virtual_host, name):
        """Every publisher and consumer of it, on any worker, is told as if it were gone; it is there again at once."""
        cdef Stream stream = self.find(virtual_host, name)
        core.doorbell_restart(self.board.raw, stream.slot)
        self.board.mark(core.word_bits(&stream.log.control.holders), stream.slot)

    cdef int persist(self) except -1:
        """Append every batch of this turn."""
        cdef Stream stream
        if not self.dirty:
            return 0
        self.persisting, self.dirty = self.dirty, []
        self.persisting.reverse()
        while self.persisting:
            stream = self.persisting.pop()
            stream.dirty, self.disk.may_yield = False, True
            try:
                stream.persist()
            except Exception as problem:
                faults.say_fault(problem, "stream %s: while persisting", stream.name)
            self.disk.may_yield = False
        return 0

    cdef int persist_full(self) except -1:
        """Append the full batches, between the inputs of two connections."""
        cdef Stream stream
        while self.disk.full:
            stream = self.disk.full.pop()
            if not stream.handed:
                continue
            self.disk.may_yield = True
            try:
                stream.appends.append_here()
            except Exception as problem:
                faults.say_fault(problem, "stream %s: while persisting", stream.name)
            self.disk.may_yield = False
        return 0

    def resume_persist(self):  # by a thread that has taken the loop over meanwhile
        self.dirty, self.persisting = self.persisting + self.dirty, []

    cdef int take_news(self) except -1:
        """Look at the streams that other workers have marked for this one."""
        cdef uint32_t slots[64]
        cdef uint32_t i, count = 64
        cdef Stream stream
        while count == 64:
            count = core.doorbell_take(self.board.raw, self.worker, slots, 64)
            for i in range(count):
                found = self.by_slot[slots[i]]
                if found is None:
                    continue
                stream = <Stream> found
                if not self._look(stream):
                    stream.news()
                    if stream.is_remote and stream.unsynced and stream.log.raw != NULL:
                        stream._settle_remote()
        return 0

    def readers_after(self, int slot):
        """(slot, virtual host, stream, how many read it on this worker), by slot from behind `slot` on."""
        cdef Stream stream
        cdef int at
        for at in range(slot + 1, len(self.by_slot)):
            stream = self.by_slot[at]
            if stream is not None and stream.readers:
                yield at, stream.virtual_host, stream.name, len(stream.readers)

    def tell(self, uint64_t workers, uint32_t slot):
        """Ring the workers in the mask for the stream in `slot`, this one included, and the archiver."""
        self.board.mark(workers | self.archiver, slot)

    def tick(self, int64_t now_ms):
        """A look at each stream in its turn: at all of them twice a second while they are few."""
        cdef list streams = list(self.by_name.values())
        self.ticked = self.ticked if self.ticked < len(streams) else 0
        part = streams[self.ticked:self.ticked + LOOKS_PER_TICK]
        self.ticked += LOOKS_PER_TICK
        for stream in part:
            try:
                stream.tick(now_ms)
            except Exception as problem:
                faults.say_fault(problem, "stream %s: while looking after it", stream.name)
