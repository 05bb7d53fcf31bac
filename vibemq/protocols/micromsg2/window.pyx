# SPDX-License-Identifier: Apache-2.0
"""The windows of one connection: what was sent and is not acknowledged, in either direction.

Each direction numbers its messages 1 to 65535 and then begins at 1 again; an acknowledgement settles everything up to
its number.  Our own numbers have no gaps, so where one stands follows from the number sent last.  A peer's numbers are
only tags: some go from 65535 to 0, so theirs are kept, and what counts here is the order of arrival.

Rings grow by doubling as far as the window is used, so an idle connection has none, whatever window it agreed.
"""

from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from vibemq.protocols.micromsg2.wire cimport SEQUENCE_MAX

from vibemq.protocols.micromsg2.spec import WINDOW_MAX

cdef enum:
    SEEN_WORDS = (SEQUENCE_MAX + 1) // 64
    CAPACITY_FIRST = 16

cdef enum:  # states of a received message
    WAITING
    ACCEPTED
    REFUSED

cdef uint32_t window_max = WINDOW_MAX


cdef int check_size(uint32_t size) except -1:
    if size > window_max:
        raise ValueError(f"A window of {size} messages is above {window_max}, beyond which numbers would be ambiguous.")
    return 0


cdef void *doubled(void *ring, uint32_t *capacity, size_t item_bytes, uint64_t first) except NULL:
    """A ring of twice the capacity instead of a full one, whose oldest item is `first`; each keeps its count."""
    cdef uint32_t larger = capacity[0] * 2 if capacity[0] else CAPACITY_FIRST
    cdef char *items = <char *> malloc(larger * item_bytes)
    cdef uint64_t at
    if items == NULL:
        raise MemoryError
    for at in range(first, first + capacity[0]):
        memcpy(items + (at & (larger - 1)) * item_bytes,
               <char *> ring + (at & (capacity[0] - 1)) * item_bytes, item_bytes)
    free(ring)
    capacity[0] = larger
    return items


cdef class SendWindow:
    def __cinit__(self, uint32_t size):
        check_size(size)
        self.size = size

    def __dealloc__(self):
        free(self.ring)

    def __sizeof__(self):
        return sizeof(SendWindow) + self.capacity * sizeof(sent_message)

    cpdef bint has_room(self) noexcept:
        return self.count < self.size or self.size == 0

    cpdef uint16_t next(self) noexcept:
        self.last = 1 if self.last == SEQUENCE_MAX else self.last + 1
        return self.last

    cpdef int push(self, int32_t consumer, int32_t slot, uint32_t slot_sequence) except -1:
        cdef sent_message *message
        if self.size == 0:
            return 0
        if self.count == self.capacity:
            self.ring = <sent_message *> doubled(self.ring, &self.capacity, sizeof(sent_message), self.first)
        message = &self.ring[(self.first + self.count) & (self.capacity - 1)]
        message.consumer, message.slot, message.slot_sequence = consumer, slot, slot_sequence
        self.count += 1
        return 0

    cpdef uint32_t covered(self, int64_t number) noexcept:
        cdef int64_t younger = self.last - number
        if number < 1 or number > SEQUENCE_MAX:
            return 0
        if younger < 0:
            younger += SEQUENCE_MAX
        return self.count - <uint32_t> younger if younger < self.count else 0

    cdef sent_message *oldest(self) noexcept:
        return &self.ring[self.first & (self.capacity - 1)]

    cpdef void pop(self) noexcept:
        self.first += 1
        self.count -= 1

    def peek(self):
        """The oldest message as (consumer, slot, slot_sequence); None: there is none."""
        cdef sent_message *message
        if self.count == 0:
            return None
        message = self.oldest()
        return message.consumer, message.slot, message.slot_sequence


cdef class ReceiveWindow:
    def __cinit__(self, uint32_t size, bint lenient=False):
        check_size(size)
        self.size, self.lenient = size, lenient
        self.acknowledged_number = -1

    def __dealloc__(self):
        free(self.ring)
        free(self.seen)

    def __sizeof__(self):
        return (sizeof(ReceiveWindow) + self.capacity * sizeof(received_message)
                + (SEEN_WORDS * sizeof(uint64_t) if self.seen != NULL else 0))

    cpdef int take(self, uint16_t number) except -1:
        if self.size:
            if self.seen != NULL and self.seen[number >> 6] >> (number & 63) & 1:
                self.waits = self._is_behind(number)
                return DUPLICATE
            if self.index - self.answered >= (window_max if self.lenient else self.size):
                return OVERRUN
            self._remember(number)
        self.index += 1
        self.last = number
        return TAKEN

    cdef bint _is_behind(self, uint16_t number) noexcept:
        """Is this duplicate one of those behind the last acknowledgement?

        Then that one is no answer: SharpMessaging takes a number that it does not wait for as settling everything."""
        cdef uint64_t at = self.index
        while at > self.acknowledged and at > self.forgotten:
            if self.ring[at & (self.capacity - 1)].number == number:
                return True
            at -= 1
        return False

    cdef int _remember(self, uint16_t number) except -1:
        """As many numbers as the window has, and all that are not answered."""
        cdef received_message *message
        cdef uint16_t old
        while self.index - self.forgotten >= self.size and self.forgotten < self.answered:
            self.forgotten += 1
            old = self.ring[self.forgotten & (self.capacity - 1)].number
            self.seen[old >> 6] &= ~(<uint64_t> 1 << (old & 63))
        if self.seen == NULL:
            self.seen = <uint64_t *> calloc(SEEN_WORDS, sizeof(uint64_t))
            if self.seen == NULL:
                raise MemoryError
        if self.index - self.forgotten == self.capacity:
            self.ring = <received_message *> doubled(self.ring, &self.capacity, sizeof(received_message),
                                                     self.forgotten + 1)
        message = &self.ring[(self.index + 1) & (self.capacity - 1)]
        message.number, message.state = number, WAITING
        self.seen[number >> 6] |= <uint64_t> 1 << (number & 63)
        return 0

    cpdef void accepted(self, uint64_t index) noexcept:
        self._decide(index, ACCEPTED)

    cpdef void refused(self, uint64_t index) noexcept:
        self._decide(index, REFUSED)

    cdef void _decide(self, uint64_t index, uint8_t state) noexcept:
        cdef received_message *message
        if self.size == 0 or index <= self.decided or index > self.index:
            return
        self.ring[index & (self.capacity - 1)].state = state
        while self.decided < self.index:
            message = &self.ring[(self.decided + 1) & (self.capacity - 1)]
            if message.state == WAITING:
                break
            self.decided += 1
            if message.state == ACCEPTED:
                self.due = self.decided
        if self.due == 0:
            self.answered = self.decided

    cpdef int64_t acknowledge(self) noexcept:
        if self.due == 0:
            return -1
        self.acknowledged_number = self.ring[self.due & (self.capacity - 1)].number
        self.acknowledged, self.due, self.answered = self.due, 0, self.decided
        return self.acknowledged_number

    cpdef int64_t again(self) noexcept:
        return -1 if self.waits else self.acknowledged_number

    cpdef uint16_t number_of(self, uint64_t index) noexcept:
        return self.ring[index & (self.capacity - 1)].number if self.forgotten < index <= self.index else 0

    @property
    def unacknowledged(self) -> int:
        """How many messages were taken for which the peer still waits."""
        return self.index - self.answered if self.size else 0

    cpdef bint is_full(self) noexcept:
        return self.size != 0 and self.index - self.answered >= self.size

    cpdef bint is_decided(self) noexcept:
        return self.size == 0 or self.decided == self.index
