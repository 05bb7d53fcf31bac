# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint32_t, uint64_t
from vibemq.broker.appends cimport Appender, Disk, SpareBatches
from vibemq.broker.publisher_names cimport PublisherNames
from vibemq.storage.core cimport batch, err, fault, log_appended
from vibemq.storage.log cimport Log
from vibemq.storage.meters cimport Meters
from vibemq.storage.shm cimport Board


# Somebody on this worker who writes to or reads from a stream.  All methods are
# called by the stream, in the worker's loop; none may block.
cdef class StreamUser:
    cdef readonly Stream stream
    # Of await_sync: (what, first offset, next offset, when its turn began, or 0: not measured); None: it never waited.
    cdef list unsynced

    # More of the log is confirmed, perhaps beyond this user's position.  Readers only.
    cdef int on_news(self) except -1
    # What this user put into the batch is in the log within [first_offset, next_offset), or (not `ok`) is not.
    cdef int on_persisted(self, bint ok, uint64_t first_offset, uint64_t next_offset) except -1
    # The batch is appended later (appends.pyx); messages that follow belong to another batch.  `size`: this user's part of it
    # in bytes.
    cdef int on_handed(self, size_t size) except -1
    # As on_persisted, of the oldest batch for which on_handed was called.
    cdef int on_appended(self, bint ok, uint64_t first_offset, uint64_t next_offset) except -1
    # What it gave to await_sync survives power loss, or (not `ok`) a sync of it has failed.
    cdef int on_synced(self, object what, bint ok) except -1
    # The stream was deleted or restarted; this user is already detached from it.
    cdef int on_deleted(self) except -1
    # One of the above raised: end this user's connection, later, and nobody else's.
    cdef int failed(self, object problem) except -1


cdef class Stream(Appender):
    cdef readonly str virtual_host, incarnation
    cdef readonly uint32_t slot
    cdef batch *deduplicated        # while its users are told: the batch of which duplicates were dropped; NULL: of none
    cdef StreamTable table
    cdef readonly uint64_t duplicates  # dropped from the batch that was persisted last: offsets do not follow from places
    cdef uint32_t chunk_messages    # with what the next batch's chunks begin: they double while much is published
    cdef list readers               # users to tell of news
    cdef set holders                # all users
    cdef dict unsynced              # users waiting for a sync (durability `disk`), in order
    cdef PublisherNames names       # of connected publishers; None: there was none yet
    cdef bint dirty                 # in the table's list of streams to persist
    cdef bint syncing               # a helper thread is in fdatasync for this stream
    cdef bint sync_again            # the last one failed: not at once, but with the next tick
    cdef readonly bint is_disk_durable
    cdef readonly bint is_remote    # a confirm waits for the object store
    cdef readonly bint confirms_later  # one of the two
    cdef bint has_appended          # since the last tick
    cdef bint appending             # its log holds descriptors, and stands in the table's list of those
    cdef uint64_t durable_seen      # the durable end at the last tick with a due sync
    cdef uint32_t restarts          # of the board, when its users came
    cdef uint64_t remote_seen       # how far the object store had it with the last tick,
    cdef int64_t remote_moved_ms    # and when that was less, or nobody waited
    cdef int64_t rolled_ms          # when this worker closed a segment that is not synced yet; 0: none

    cdef int attach(self, StreamUser user) except -1
    cdef int detach(self, StreamUser user) except -1
    # Declare a publisher of that reference: its highest publishing id is kept until `undeclare`.
    cdef int declare(self, bytes reference) except -1
    cdef int undeclare(self, bytes reference) except -1
    cdef int _count_rebuilt(self) except -1
    cdef int attach_reader(self, StreamUser user) except -1
    cdef int detach_reader(self, StreamUser user) except -1
    cdef int add_waiting(self, StreamUser user) except -1
    # With durability `disk`: on_synced(what, ok) follows, once no sync of [first_offset, next_offset) is to come.
    cdef int await_sync(self, StreamUser user, object what, uint64_t first_offset, uint64_t next_offset) except -1
    # The offset below which everything is durable, in the sense of this stream's durability.
    cdef uint64_t kept_below(self) noexcept
    # on_synced(what, ok) follows once the chunk is durable.  False: it is durable now, and on_synced is not called.
    cdef bint await_chunk(self, StreamUser user, object what, uint64_t chunk) except -1
    # The batch is full: the next entry finds another one.
    cdef int next_batch(self) except -1
    # No batch stays open.
    cdef int finish_batch(self) except -1
    cdef int news(self) except -1
    cdef int _ring_readers(self, uint64_t others) except -1
    cdef bint _sync_due(self) noexcept
    cdef int _look_after_sync(self) except -1
    cdef int _start_sync(self) except -1
    cdef int _settle_remote(self) except -1
    cdef int _look_at_store(self, int64_t now_ms) except -1
    cdef int _await(self, StreamUser user, tuple batch) except -1
    cdef int _tell_synced(self, StreamUser user, uint64_t durable) except -1
    cdef int _tell(self, list users, bint handed, bint ok, uint64_t first_offset, uint64_t next_offset) except -1


cdef class StreamTable:
    cdef readonly object metadata, helpers, log_directory
    cdef public object alarms       # broker.alarms.Alarms; None where nobody looks
    cdef object says                # OnceAMinute
    cdef Board board
    cdef readonly Disk disk
    cdef readonly Meters meters
    cdef uint32_t worker
    cdef int64_t remote_timeout_ms  # how long publishers wait for a store that takes nothing; 0: for ever
    cdef public uint64_t delivered  # messages that went to who reads streams here, of all streams, since this worker began
    cdef uint64_t archiver          # its bit in masks of workers; 0: there is no object store
    cdef dict by_name
    cdef list by_slot
    cdef list dirty
    cdef list persisting            # streams whose turn comes in `persist`, the next one last
    cdef Py_ssize_t ticked          # how far the round of ticks has come
    cdef dict appending             # streams whose logs hold descriptors, longest first
    cdef SpareBatches spares

    cdef int persist(self) except -1
    cdef int persist_full(self) except -1
    cpdef int release_if_unused(self, Stream stream) except -1
    cdef int _let_go(self, Stream stream) except -1
    cdef int _look(self, Stream stream) except -1
    cdef int take_news(self) except -1
