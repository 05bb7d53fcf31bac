# SPDX-License-Identifier: Apache-2.0
"""A publisher as the broker sees it, whatever door it came through.

A door lays a message into its stream's batch (of a queue with ``add``) and writes beside it, with ``note``, what it will
need to answer it.  When the batch is persisted or, with durability `disk`, when a sync covers it, the notes come back to
``confirm``; if that fails, to ``refuse_notes``.

A full queue answers by its overflow strategy, which ``room_for`` knows.  BlockPublisher parks messages, in order, until
the home has made room or `queues.block_timeout_ms` is over; the rest of the connection is read meanwhile, because the
acknowledgements that make room may be among it.

Whoever buries a message settles it, or answers it, only after ``letters_kept`` has said that its copy in the
dead-letter queue is kept, so a crash in between leaves two copies and never none.
"""

import logging
from collections import deque
from datetime import UTC, datetime
from functools import partial

from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memset

from vibemq.broker.queue cimport NOBODY_MAY_PUBLISH
from vibemq.grow cimport grow
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    AMQP_BODY_DATA, AMQP_BODY_VALUE, AMQP_CONTENT_TYPE, AMQP_GROUP_ID, AMQP_STRING, AMQP_SYMBOL, ERR_FULL, OK,
    amqp_map, amqp_pair, amqp_pairs, amqp_properties, amqp_value, bytes_store32, writer_bytes,
)

from vibemq.broker.hops import one_more
from vibemq.broker.options import FailureReason, Overflow
from vibemq.errors import LimitExceeded, StreamNotFound

logger = logging.getLogger(__name__)

cdef enum:
    NOTES_BYTES_KEPT = 1 << 20  # a larger burst's buffer is given back after use
    PARKED_OVERHEAD_BYTES = 256  # the objects that hold one parked message: many times what a small one has itself
    ADDED_BYTES_MAX = 1024       # of a dead letter's headers; the queue's name, at most 1 KiB of UTF-8, counts apart
    ADDED_PAIRS = 5

cdef int OVERFLOW_DROP_OLDEST = int(Overflow.DROP_OLDEST)
cdef int OVERFLOW_BLOCK = int(Overflow.BLOCK_PUBLISHER)
cdef int OVERFLOW_REDIRECT = int(Overflow.REDIRECT_TO_DLQ)
QUEUE_FULL = b"QUEUE_FULL"
QUEUE_NOT_FOUND = b"QUEUE_NOT_FOUND"
SERVER_ERROR = b"SERVER_ERROR"
PARKED_TOO_MUCH = b"The queue is full, and as much as may wait for room waits already: acknowledge first, or publish on a " \
                  b"connection without subscriptions."
cdef bytes DISK_TOO_SLOW = b"The disk is slow, and as much as may wait for it waits already: publish on a connection without " \
                           b"subscriptions."
cdef bytes WAS_DELETED = b"The queue was deleted."
cdef bytes NOT_STORED = b"The message could not be stored."
cdef bytes NOT_IN_STORE = b"The object store did not take the message in time; it may come there later."
cdef bytes NOT_REDIRECTED = b"The message could not be redirected to the dead-letter queue."
cdef bytes REDIRECTED = FailureReason.QUEUE_FULL.value.encode()
cdef list ADDED = [b"x-original-queue", b"x-failure-reason", b"x-failed-at", b"x-attempts", b"x-death"]


cdef class Publisher(StreamUser):
    def __dealloc__(self):
        free(self.notes)

    cdef int reserve(self, size_t size) except -1:
        grow(&self.notes, &self.notes_capacity, self.notes_size + size, 1)
        return 0

    cdef uint8_t *note(self, size_t size) except NULL:
        if self.notes_size + size > self.notes_capacity:
            self.reserve(size)
        self.notes_size += size
        return self.notes + self.notes_size - size

    cdef int join_batch(self) except -1:
        self.interned = False
        return self.stream.add_waiting(self)

    cdef int declare(self, bytes reference) except -1:
        self.stream.declare(reference)
        self.declared = reference
        return 0

    cdef int intern(self, bytes reference) except -1:
        if core.batch_reference_add(self.stream.batch, reference, <uint32_t> len(reference),
                                    &self.reference_index) != OK:
            raise MemoryError
        self.interned = True
        return 0

    def close(self):
        """Nobody publishes through it any more.  What is in this turn's batch is still persisted, and confirmed to nobody."""
        if self.closed:
            return
        self.closed = True
        batches, self.unsynced = self.unsynced, None
        if batches:
            self.client.count_unconfirmed(-sum([what[1] for what, _, _, _ in batches]))
        handed, self.handed = self.handed, None
        for _, count, size, _ in handed or ():
            self.client.count_unconfirmed(-<Py_ssize_t> count)
            self.client.count_parked(-<Py_ssize_t> size)
        declared, self.declared = self.declared, None
        if self.stream.log.raw != NULL:
            try:
                if declared is not None:
                    self.stream.undeclare(declared)
            finally:
                self.stream.detach(self)
        if self.queue is not None:
            self.queue.release(self)

    @property
    def is_idle(self) -> bool:
        """Is everything answered that it was given?"""
        return not self.count and not self.handed and not self.unsynced

    cdef int on_persisted(self, bint ok, uint64_t first_offset, uint64_t next_offset) except -1:
        cdef size_t size = self.notes_size, count = self.count
        self.notes_size = self.count = 0
        if self.closed:
            return 0
        self.answered_index = self.reference_index
        self.answer(self.notes, size, count, ok, first_offset, next_offset)
        if self.notes_capacity > NOTES_BYTES_KEPT:
            free(self.notes)
            self.notes, self.notes_capacity = NULL, 0
        return 0

    cdef int on_handed(self, size_t size) except -1:
        cdef size_t count = self.count
        cdef bytes notes = (<char *> self.notes)[:self.notes_size] if self.notes_size else b""
        self.notes_size = self.count = 0
        if self.closed:
            return 0
        if self.handed is None:
            self.handed = deque()
        self.handed.append((notes, count, size, self.reference_index))
        self.client.count_unconfirmed(count)
        return self.client.count_parked(size)

    cdef int on_appended(self, bint ok, uint64_t first_offset, uint64_t next_offset) except -1:
        cdef bytes notes
        if self.closed or not self.handed:
            return 0
        notes, count, size, self.answered_index = self.handed.popleft()
        self.client.count_unconfirmed(-<Py_ssize_t> count)
        self.client.count_parked(-<Py_ssize_t> size)
        return self.answer(<const uint8_t *> <char *> notes, len(notes), count, ok, first_offset, next_offset)

    cdef int answer(self, const uint8_t *notes, size_t size, size_t count, bint ok, uint64_t first_offset,
                    uint64_t next_offset) except -1:
        cdef bint offsets_known = not self.stream.duplicates
        if not ok:
            if core.control_is_deleted(self.stream.log.control):
                return self.refuse_notes(notes, size, QUEUE_NOT_FOUND, WAS_DELETED)
            return self.refuse_notes(notes, size, SERVER_ERROR, NOT_STORED)
        if not self.stream.confirms_later:
            return self.confirm(notes, size, first_offset, offsets_known)
        self.stream.await_sync(self, ((<char *> notes)[:size], count, first_offset, offsets_known), first_offset,
                               next_offset)
        return self.client.count_unconfirmed(count)

    cdef int on_synced(self, object what, bint ok) except -1:
        cdef bytes notes
        notes, count, first_offset, offsets_known = what
        if ok:
            self.confirm(<const uint8_t *> <char *> notes, len(notes), first_offset, offsets_known)
        else:
            self.refuse_notes(<const uint8_t *> <char *> notes, len(notes), SERVER_ERROR,
                              NOT_IN_STORE if self.stream.is_remote else b"The disk refused a sync.")
        return self.client.count_unconfirmed(-<Py_ssize_t> count)

    cdef int on_deleted(self) except -1:
        self.deleted = True
        try:
            self.refuse_waiting()
        finally:  # though its peer does not read its errors: the log is closed next, and nobody may look at it again
            self.close()
            self.forget()
        return 0

    cdef int refuse_waiting(self) except -1:
        cdef bytes notes
        for (notes, _, _, _), _, _, _ in self.unsynced or ():
            self.refuse_notes(<const uint8_t *> <char *> notes, len(notes), QUEUE_NOT_FOUND, WAS_DELETED)
        for notes, _, _, _ in self.handed or ():
            self.refuse_notes(<const uint8_t *> <char *> notes, len(notes), QUEUE_NOT_FOUND, WAS_DELETED)
        return 0

    cdef int failed(self, object problem) except -1:
        self.client.owner.fail(problem)
        return 0

    # ---- the door's ----

    cdef int confirm(self, const uint8_t *notes, size_t size, uint64_t first_offset, bint offsets_known) except -1:
        return 0

    cdef int refuse_notes(self, const uint8_t *notes, size_t size, bytes code, bytes text) except -1:
        return 0

    cdef int forget(self) except -1:
        return 0


cdef class QueuePublisher(Publisher):
    def __cinit__(self):
        self.parked, self.unburied = deque(), []

    cdef int begin(self, Stream stream, Queue queue, bytes name) except -1:
        self.queue, self.name = queue, name
        stream.attach(self)
        if queue is not None:
            queue.hold(self)
        return 0

    def close(self):
        if not self.closed:
            self._stop_parking()
            self.unburied = []
            if self.burials is not None:
                self.burials.close()
            Publisher.close(self)

    @property
    def is_idle(self) -> bool:
        """Is everything answered that it was given, and is not parked?"""
        return not self.count and not self.handed and not self.unsynced and not self.redirected and not self.unburied

    cdef int refuse_waiting(self) except -1:
        Publisher.refuse_waiting(self)
        unburied, self.unburied = self.unburied, []
        for what in unburied:
            self.refuse_parked(what, QUEUE_NOT_FOUND, WAS_DELETED)
        while self.parked:
            self.refuse_parked(self._unpark(), QUEUE_NOT_FOUND, WAS_DELETED)
        if self.burials is not None and self.redirected:
            self.burials.retire()
        return 0

    # ---- in ----

    cdef int room_for(self, uint64_t count) except -1:
        cdef Queue queue = self.queue
        if queue is None:
            return ROOM
        if self.handed and self.client.parks_no_more():  # the disk stalls, and as much as may wait for it waits already
            return ROOM_LATER
        if not queue.max_messages or queue.overflow == OVERFLOW_DROP_OLDEST:
            # What was parked before the queue's options changed goes first: with a lower number, it would be a duplicate.
            return ROOM_LATER if self.has_parked else ROOM
        if not self.parked:
            if queue.waiting() + count <= queue.max_messages:
                return ROOM
            if queue.make_room() and queue.waiting() + count <= queue.max_messages:
                return ROOM
        if queue.overflow == OVERFLOW_BLOCK:
            return ROOM_LATER
        if queue.overflow == OVERFLOW_REDIRECT and queue.options.dead_letter:
            return ROOM_ELSEWHERE
        self.count_refused(count)
        return ROOM_NONE

    cdef int count_refused(self, uint64_t count) except -1:
        """For operators, who are told at the end of the turn; the publisher is told by its door."""
        core.word_add(&self.queue.control.refused, count)
        self.queue.refused += count
        return self.queue.mark()

    cdef err add(self, const uint8_t *entry, uint32_t size, uint32_t records, bytes reference,
                 uint64_t number) except *:
        cdef err e
        while True:
            if self.count == 0:
                self.join_batch()
            if reference is None:
                e = core.batch_add(self.stream.batch, entry, size, records)
            else:
                if not self.interned:
                    self.intern(reference)
                e = core.batch_add_tracked(self.stream.batch, entry, size, records, self.reference_index, number)
            if e != ERR_FULL:
                break
            self.stream.next_batch()
        if e == OK:
            self.count += records
            if self.client.meters:
                self.client.spend(records)
        return e

    # ---- a full queue ----

    cdef int put_off(self, object what, size_t size, int room) except -1:
        if room == ROOM_ELSEWHERE:
            return self.bury(what)
        if room == ROOM_LATER and not self.client.parks_no_more():
            return self.park(what, size)
        if room == ROOM_LATER:
            self.count_refused(self.records_of(what))
            return self.refuse_parked(what, QUEUE_FULL, DISK_TOO_SLOW if self.handed else PARKED_TOO_MUCH)
        return self.refuse_parked(what, QUEUE_FULL,
                                  b"The queue holds its maximum of %d messages." % self.queue.max_messages)

    cdef int park(self, object what, size_t size) except -1:
        """Keep a message until there is room; its answer waits with it."""
        if not self.parked:
            self.queue.wait_for_room(self)
            if self.timer is None:
                self.timer = self.queue.table.deadlines.timer(self._parked_too_long)
            self.timer.at_most(self.queue.table.now_ms + self.queue.table.defaults.block_timeout_ms)
        size += PARKED_OVERHEAD_BYTES
        self.parked.append((what, size, self.queue.table.now_ms))
        self.has_parked = True
        self.client.count_parked(size)
        return 0

    def retry(self) -> bool:
        """There may be room: publish what was parked.  False while some of it still waits."""
        if self.queue.closed:  # deleted: on_deleted refuses them
            return True
        while self.parked and self._has_room(self.records_of(self.parked[0][0])):
            self.publish_parked(self._unpark())
        return not self.parked

    cdef uint64_t records_of(self, object what) except? 0:
        """How many messages this is, of what was parked."""
        return 1

    def _has_room(self, uint64_t count) -> bool:
        """For what was parked: its limit and what it does then may be others than before."""
        cdef Queue queue = self.queue
        return not queue.max_messages or queue.overflow == OVERFLOW_DROP_OLDEST \
            or queue.waiting() + count <= queue.max_messages

    def altered(self):
        """The options of the queue are others now."""
        if self.burials is not None:
            self.burials.altered()

    def _unpark(self):
        what, size, _ = self.parked.popleft()
        self.has_parked = bool(self.parked)
        self.client.count_parked(-<Py_ssize_t> size)
        return what

    def _parked_too_long(self, now_ms):
        timeout_ms = self.queue.table.defaults.block_timeout_ms
        while self.parked:
            came_ms = self.parked[0][2]
            if came_ms + timeout_ms > now_ms:
                self.timer.set(came_ms + timeout_ms)
                return
            if self.queue.table.access_generation == NOBODY_MAY_PUBLISH:
                why = b"For %d ms no messages were taken (disk or memory alarm)." % timeout_ms
            else:
                self.count_refused(self.records_of(self.parked[0][0]))
                why = b"The queue stayed full for %d ms." % timeout_ms
            try:
                self.refuse_parked(self._unpark(), QUEUE_FULL, why)
            except LimitExceeded as problem:  # a peer that does not read its errors
                self.failed(problem)
                return
        self.queue.stop_waiting(self)

    def _stop_parking(self):
        while self.parked:
            self._unpark()
        if self.timer is not None:
            self.timer.cancel()
        if self.queue is not None:
            self.queue.stop_waiting(self)

    # ---- the dead-letter queue ----

    cdef int bury(self, object what) except -1:
        if self.burials is None:
            self.burials = Burials(self, self.queue)
        if not self.unburied and self.burials.open():
            return self.redirect_parked(what)
        self.unburied.append(what)
        if len(self.unburied) == 1:
            # Nothing more is read until it is made: answers keep their order, and nobody fills the memory meanwhile.
            self.client.count_burying(1)
            self.burials.make(self._letters_made)
        return 0

    def _letters_made(self, problem):
        self.client.count_burying(-1)
        if self.closed and not self.deleted:
            return  # the connection is gone
        waiting, self.unburied = self.unburied, []
        try:
            if waiting and problem is None and not self.burials.open():
                problem = "it was deleted"
            if problem is not None:
                logger.error("%s: dead-letter queue %s cannot be made: %s", self.client.owner.peer, self.burials.name(),
                             problem)
            for what in waiting:
                if problem is None:
                    self.redirect_parked(what)
                else:
                    self.refuse_parked(what, SERVER_ERROR, NOT_REDIRECTED)
        except Exception as later:
            self.failed(later)

    cdef int redirect(self, const uint8_t *entry, size_t size, object token) except -1:
        cdef message_view m
        memset(&m, 0, sizeof(m))
        m.data, m.size = entry + 4, <uint32_t> (size - 4)
        m.is_amqp = core.amqp_parse(m.data, m.size, &m.amqp) == OK
        self.burials.letters.add(&m, token, self.name, FailureReason.QUEUE_FULL.value.encode(), 0)
        self.redirected += 1
        return 0

    def letters_kept(self, tokens, bint ok):
        """Redirected messages are in the dead-letter queue (or, not `ok`, are not)."""
        self.redirected -= len(tokens)
        if ok and not self.queue.closed:
            core.word_add(&self.queue.control.dead_lettered, len(tokens))
        if not self.closed or self.deleted:
            self.answer_redirected(tokens, ok)

    def letters_failed(self, problem):
        self.failed(problem)

    # ---- the door's ----

    cdef int redirect_parked(self, object what) except -1:
        return 0

    cdef int publish_parked(self, object what) except -1:
        return 0

    cdef int refuse_parked(self, object what, bytes code, bytes text) except -1:
        return 0


# ---- dead-letter queues ----

cdef class Burials:
    def __init__(self, owner, Queue source):
        self.owner, self.source = owner, source

    cdef str name(self):
        return self.source.options.dead_letter_name(self.source.name)

    cdef bint open(self) except -1:
        if self.letters is None or self.letters.closed:
            self.letters = None
            try:
                found = self.source.table.find(self.source.stream.virtual_host, self.name())
            except StreamNotFound:
                return False
            self.letters = DeadLetters(self.owner, found)
        return True

    cdef int make(self, object then) except -1:
        def made(_, problem):
            self.making = False
            then(problem)

        self.making = True
        make = self.source.table.make_dead_letter_queue
        self.source.table.helpers.submit(partial(make, self.source.stream.virtual_host, self.name()), made)
        return 0

    cdef int altered(self) except -1:
        if self.letters is not None and self.letters.name != self.name():
            self.retire()
        return 0

    cdef int retire(self) except -1:
        letters, self.letters = self.letters, None
        if letters is not None:
            letters.retire()
        return 0

    cdef int close(self) except -1:
        if self.letters is not None:
            self.letters.close()
        self.letters = self.owner = None  # a deleted queue's mappings do not wait for the collector
        return 0


cdef bint is_added(const uint8_t *key, uint32_t size) noexcept:
    cdef bytes name
    for name in ADDED:
        if size == <uint32_t> len(name) and memcmp(key, <char *> name, size) == 0:
            return True
    return False


cdef bytes text_of(const amqp_value *value):
    """A text, or nothing if the value is None."""
    return <bytes> value.data[:value.bytes] if value.kind == AMQP_STRING or value.kind == AMQP_SYMBOL else b""


cdef class DeadLetters(StreamUser):
    """Copies of messages in a dead-letter queue, which it keeps open: its bounds hold, whoever uses it.

    Id, content type, key, headers and body are the original's; x-failure-reason, x-failed-at, x-death (hops.py),
    x-original-queue and x-attempts are added.  The last two stay those of the message's first queue.
    """

    def __init__(self, owner, queue):
        self.owner, self.queue, self.name = owner, queue, queue.name
        self.tokens, self.handed = [], deque()
        (<Queue> queue).stream.attach(self)
        queue.hold(self)

    def close(self):
        if not self.closed:
            self.closed = True
            if self.stream.log.raw != NULL:
                self.stream.detach(self)
            self.queue.release(self)

    def retire(self):
        """Nothing more is added; it closes when all that was added is answered."""
        self.timer = self.queue.table.timers.timer(self._close_if_done)
        self._look_if_done()

    cdef int _look_if_done(self) except -1:
        if self.timer is not None and not self.tokens and not self.handed and not self.unsynced:
            self.timer.at_most(0)  # not from within the stream's own turn, which goes on with its log
        return 0

    def _close_if_done(self, now_ms):
        if not self.tokens and not self.handed and not self.unsynced:
            self.close()

    cdef int add(self, message_view *m, object token, bytes queue, bytes reason, uint32_t attempts) except -1:
        """Add a copy of the message to this turn's batch; with m NULL its body is unreadable.

        1: there is no copy, because the message is in a cycle of queues and no consumer has rejected it.
        """
        cdef amqp_pairs it
        cdef amqp_pair pair
        cdef amqp_value id, field
        cdef amqp_map map
        cdef amqp_properties properties
        cdef writer_bytes w
        cdef uint32_t count = ADDED_PAIRS
        cdef uint64_t room
        cdef uint8_t *out
        cdef err e
        cdef bint has_id = False
        cdef dict had = {}
        cdef bytes tried = b"%d" % attempts
        cdef bytes first = queue
        if m != NULL and m.is_amqp:
            core.amqp_pairs_begin(&it, m.amqp.application_properties, m.amqp.application_properties_size)
            while core.amqp_pairs_next(&it, &pair):
                if is_added(pair.key, pair.key_bytes):
                    had[<bytes> pair.key[:pair.key_bytes]] = text_of(&pair.value)
            core.amqp_pairs_begin(&it, m.amqp.application_properties, m.amqp.application_properties_size)
            count += it.left
            has_id = core.amqp_message_id(&m.amqp, &id)
        death, leads_here = one_more(had.get(b"x-death", b""), queue.decode("utf-8", "replace"), reason.decode(), self.name,
                                     is_published=reason == REDIRECTED)
        if death is None:
            return 1
        if leads_here:
            first, tried = had.get(b"x-original-queue") or queue, had.get(b"x-attempts") or tried
        room = 4 + core.amqp_size_max(count, <uint64_t> (m.size if m != NULL else 0) + <uint64_t> len(first)
                                      + <uint64_t> len(tried) + <uint64_t> len(death) + ADDED_BYTES_MAX)
        if room > core.CHUNK_DATA_MAX_BYTES:
            raise LimitExceeded("message for a dead-letter queue", room, core.CHUNK_DATA_MAX_BYTES)
        out = <uint8_t *> malloc(room)
        if out == NULL:
            raise MemoryError
        try:
            w = core.bytes_writer(out + 4, room - 4)
            memset(&properties, 0, sizeof(properties))
            if has_id:
                properties.id_value = &id
            if m != NULL and m.is_amqp and core.amqp_property(&m.amqp, AMQP_CONTENT_TYPE, &field) \
                    and (field.kind == AMQP_SYMBOL or field.kind == AMQP_STRING):
                properties.content_type, properties.content_type_bytes = <const char *> field.data, field.bytes
            if m != NULL and m.is_amqp and core.amqp_property(&m.amqp, AMQP_GROUP_ID, &field) and field.kind == AMQP_STRING:
                properties.key, properties.key_bytes = field.data, field.bytes
            core.amqp_write_properties(&w, &properties)
            core.amqp_map_begin(&w, &map)
            if m != NULL and m.is_amqp:
                while core.amqp_pairs_next(&it, &pair):
                    if is_added(pair.key, pair.key_bytes):
                        continue
                    core.amqp_map_add_value(&w, &map, pair.key, pair.key_bytes, &pair.value)
            failed_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()
            for name, value in zip(ADDED, (first, reason, failed_at, tried, death), strict=True):
                core.amqp_map_add(&w, &map, <const uint8_t *> <char *> name, <uint32_t> len(name),
                                  <const uint8_t *> <char *> value, <uint32_t> len(value))
            core.amqp_map_end(&w, &map)
            if m == NULL:
                core.amqp_write_null(&w)
            elif not m.is_amqp:
                core.amqp_write_data(&w, m.data, m.size)
            elif m.amqp.body_kind == AMQP_BODY_DATA:
                core.amqp_write_data(&w, m.amqp.body, m.amqp.body_size)
            elif m.amqp.body_kind == AMQP_BODY_VALUE and m.amqp.body_size:
                core.amqp_write_value(&w, m.amqp.body, m.amqp.body_size)
            else:
                core.amqp_write_null(&w)
            if w.failed:
                raise LimitExceeded("message for a dead-letter queue: its headers", count, ADDED_PAIRS)
            size = w.at - out
            bytes_store32(out, <uint32_t> (size - 4))
            while True:
                if not self.tokens:
                    self.stream.add_waiting(self)
                e = core.batch_add(self.stream.batch, out, <uint32_t> size, 1)
                if e != ERR_FULL:
                    break
                self.stream.next_batch()
            if e != OK:
                raise MemoryError
        finally:
            free(out)
        self.tokens.append(token)
        return 0

    cdef int on_persisted(self, bint ok, uint64_t first_offset, uint64_t next_offset) except -1:
        tokens, self.tokens = self.tokens, []
        return self._kept(tokens, ok, first_offset, next_offset)

    cdef int on_handed(self, size_t size) except -1:
        self.handed.append(self.tokens)
        self.tokens = []
        return 0

    cdef int on_appended(self, bint ok, uint64_t first_offset, uint64_t next_offset) except -1:
        if not self.handed:  # the queue was deleted meanwhile
            return 0
        return self._kept(self.handed.popleft(), ok, first_offset, next_offset)

    cdef int _kept(self, list tokens, bint ok, uint64_t first_offset, uint64_t next_offset) except -1:
        if ok and self.stream.confirms_later:
            self.stream.await_sync(self, tokens, first_offset, next_offset)
        else:
            self.owner.letters_kept(tokens, ok)
        return self._look_if_done()

    cdef int on_synced(self, object what, bint ok) except -1:
        self.owner.letters_kept(what, ok)
        return self._look_if_done()

    cdef int on_deleted(self) except -1:
        self.closed = True
        batches, self.unsynced = self.unsynced, None
        for tokens, _, _, _ in batches or ():
            self.owner.letters_kept(tokens, False)
        while self.handed:
            self.owner.letters_kept(self.handed.popleft(), False)
        return 0

    cdef int failed(self, object problem) except -1:
        self.owner.letters_failed(problem)
        return 0
