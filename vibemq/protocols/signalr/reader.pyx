# SPDX-License-Identifier: Apache-2.0
"""ReadStream, and Subscribe where the stream is no queue.  Nothing is acknowledged: every delivery has the tag 0."""

from datetime import datetime

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from vibemq.broker.messages cimport message_view
from vibemq.broker.stream cimport Stream

from vibemq.broker.reader import NO_MAX, offset_of_time, offset_of_word
from vibemq.errors import StreamNotFound
from vibemq.protocols.signalr.errors import HubError
from vibemq.protocols.signalr.spec import ErrorCode


def offset_from(Stream stream, place) -> int:
    """The offset that `from` means: "first", "last", "next", an offset, or a time.  Raises HubError, StorageError."""
    if place is None:
        place = "next"
    if isinstance(place, dict) and set(place) == {"timestamp"}:
        time = place["timestamp"]
        if isinstance(time, (int, float)) and not isinstance(time, bool) and 0 <= time < 2**53:
            return offset_of_time(stream, int(time))
    elif isinstance(place, str):
        offset = offset_of_word(stream, place)
        if offset is not None:
            return offset
        try:
            return offset_of_time(stream, int(datetime.fromisoformat(place).astimezone().timestamp() * 1000))
        except (ValueError, OverflowError, OSError):
            pass
    elif isinstance(place, (int, float)) and not isinstance(place, bool) and 0 <= place < 2**63 and place == int(place):
        return int(place)
    raise HubError(ErrorCode.INVALID_ARGUMENT,
                   "Option 'from' must be \"first\", \"last\", \"next\", an offset, an ISO 8601 time, or {timestamp: "
                   f"milliseconds since 1970}}, had {place!r:.60}.")


cdef class HubReader(LogReader):
    def __init__(self, HubConnection hub, Stream stream not None, Outlet outlet not None, uint64_t offset,
                 uint64_t most=NO_MAX, bint follows=True, when_over=None):
        """``when_over(code, text)`` is called once when it ends by itself: None, None after the last message."""
        self.hub, self.outlet, self.when_over = hub, outlet, when_over
        super().__init__(hub.queues, stream, offset, most, follows)

    def __str__(self):
        return self.hub.peer

    cdef bint room(self) noexcept:
        return self.hub.room()

    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size) except -1:
        return self.outlet.write(m, self.key, id, id_size, False, 0)

    def ended(self, problem):
        if self.when_over is None:
            return
        if problem is None:
            self.when_over(None, None)
        elif isinstance(problem, StreamNotFound):
            self.when_over(ErrorCode.QUEUE_NOT_FOUND, f"'{self.stream.name}' was deleted.")
        else:
            self.when_over(ErrorCode.SERVER_ERROR, "The stream cannot be read here; the broker's log says why.")

    cdef int failed(self, object problem) except -1:
        self.hub.fail(problem)
        return 0
