# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from vibemq.broker.client cimport Client
from vibemq.broker.messages cimport message_view
from vibemq.broker.queue cimport Queue
from vibemq.broker.stream cimport Stream, StreamUser
from vibemq.storage.core cimport err

cdef enum:
    ROOM = 0            # lay it into the batch
    ROOM_LATER          # park it
    ROOM_ELSEWHERE      # redirect it
    ROOM_NONE           # refuse it

cdef class Burials
cdef class DeadLetters

cdef bytes QUEUE_FULL, QUEUE_NOT_FOUND, SERVER_ERROR, PARKED_TOO_MUCH


# One client's way into one stream.  The last methods are the door's.
cdef class Publisher(StreamUser):
    cdef Client client
    cdef readonly Queue queue         # that the stream is the log of; None: of none
    cdef uint8_t *notes               # what the door needs to answer this turn's messages, in its own form
    cdef size_t notes_size, notes_capacity
    cdef size_t count                 # messages in this turn's batch
    cdef uint32_t reference_index     # in this turn's batch, once interned
    cdef uint32_t answered_index      # in the batch whose messages are answered
    cdef bint interned
    cdef object handed                # deque of (notes, messages, bytes, reference_index): of batches that a helper thread appends; None: of none
    cdef bytes declared               # the reference that its stream keeps for it; None: it has none
    cdef bint closed
    cdef bint deleted                 # its stream was

    # Room for so many bytes of notes more, which is not taken yet.
    cdef int reserve(self, size_t size) except -1
    cdef uint8_t *note(self, size_t size) except NULL
    # Before its first entry in a batch.
    cdef int join_batch(self) except -1
    # Have its stream keep the highest number of this reference while this publisher is connected.
    cdef int declare(self, bytes reference) except -1
    # Its duplicates are dropped, by the numbers that it gives as this publisher.
    cdef int intern(self, bytes reference) except -1
    # The messages of these notes are in the log, or (not `ok`) are not: answer them, after a sync if that is needed.
    cdef int answer(self, const uint8_t *notes, size_t size, size_t count, bint ok, uint64_t first_offset,
                    uint64_t next_offset) except -1
    # The stream was deleted: refuse whatever still waits.
    cdef int refuse_waiting(self) except -1

    # The messages of these notes are kept.  `offsets_known`: the first lies at first_offset, and so on.
    cdef int confirm(self, const uint8_t *notes, size_t size, uint64_t first_offset, bint offsets_known) except -1
    cdef int refuse_notes(self, const uint8_t *notes, size_t size, bytes code, bytes text) except -1
    # The stream was deleted: the connection has this publisher no more.
    cdef int forget(self) except -1


# The same into a queue with its bounds, or into a stream that is none.  The last methods, and
# ``answer_redirected(tokens, ok)`` are the door's.
cdef class QueuePublisher(Publisher):
    cdef readonly bytes name          # of the queue, as its dead letters bear it
    cdef int64_t generation           # of the permissions that allowed it
    cdef bint has_parked
    cdef object parked                # deque of (what, its bytes, when it came): messages that a full queue holds back
    cdef object timer
    cdef Burials burials              # once something was redirected
    cdef list unburied                # what waits until its dead-letter queue is made
    cdef size_t redirected            # on their way into the dead-letter queue

    cdef int begin(self, Stream stream, Queue queue, bytes name) except -1
    # What is to become of `count` messages.
    cdef int room_for(self, uint64_t count) except -1
    # For operators: so many got QUEUE_FULL.
    cdef int count_refused(self, uint64_t count) except -1
    # Lay an entry into this turn's batch; `reference`: of a publisher whose duplicates are dropped, or None.
    cdef err add(self, const uint8_t *entry, uint32_t size, uint32_t records, bytes reference, uint64_t number) except *
    # What is not laid into the batch now: parked, redirected or refused, as room_for has said.
    cdef int put_off(self, object what, size_t size, int room) except -1
    cdef int park(self, object what, size_t size) except -1
    # To the dead-letter queue with it, which is made if need be.
    cdef int bury(self, object what) except -1
    # Copy an entry into the dead-letter queue.
    cdef int redirect(self, const uint8_t *entry, size_t size, object token) except -1

    # What bury() was given: redirect() for each entry of it.
    cdef int redirect_parked(self, object what) except -1
    cdef int publish_parked(self, object what) except -1
    cdef int refuse_parked(self, object what, bytes code, bytes text) except -1
    cdef uint64_t records_of(self, object what) except? 0


# One burier's way into the dead-letter queue that its queue has now.  The owner has ``letters_kept(tokens, ok)`` and
# ``letters_failed(problem)``.
cdef class Burials:
    cdef object owner
    cdef Queue source
    cdef DeadLetters letters          # None: not open
    cdef bint making                  # the queue is being made

    cdef str name(self)
    # Is the way open?  False: there is no such queue.  Raises StorageError.
    cdef bint open(self) except -1
    # Have the queue made by a helper; then(problem) is called in the loop.
    cdef int make(self, object then) except -1
    # The options are others now, perhaps with another queue.
    cdef int altered(self) except -1
    # Nothing more is buried; what was is still answered.
    cdef int retire(self) except -1
    cdef int close(self) except -1


cdef class DeadLetters(StreamUser):
    cdef Queue queue
    cdef object owner                 # of the Burials
    cdef readonly str name
    cdef list tokens                  # of this turn's batch
    cdef object handed                # deque of such lists: of batches that a helper thread appends
    cdef readonly bint closed
    cdef object timer                 # of one that is retired

    cdef int _look_if_done(self) except -1
    cdef int _kept(self, list tokens, bint ok, uint64_t first_offset, uint64_t next_offset) except -1
    cdef int add(self, message_view *m, object token, bytes queue, bytes reason, uint32_t attempts) except -1
