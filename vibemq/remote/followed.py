# SPDX-License-Identifier: Apache-2.0
"""A stream as the archiver follows it: how far it has come with its chunks, its stored offsets and its ledger.

What one object holds of a stream, a later one may have to hold again, so that the earlier can be deleted: `again`
says so.
"""

import os
import time
from collections import deque
from collections.abc import Callable

import vibemq.storage.cold as cold
from vibemq.errors import StorageError
from vibemq.remote.objects import (
    CHUNKS_HEAD_BYTES,
    FAN_OUTS,
    chunks_head,
    ledger_section,
    members_section,
    offsets_section,
    segment_section,
)
from vibemq.remote.write_ahead import Object
from vibemq.storage import ledger, members
from vibemq.storage.offsets import StoredOffsets
from vibemq.storage.records import StreamRecord
from vibemq.storage.tail import Tail, local_segments
from vibemq.storage.walk import Walk

#: Of a segment that is sent again instead of being closed: what is small costs a copy, and not three requests.
CARRIED_BYTES_MAX = 4 << 20
#: A look at a long ledger may take this part of the archiver's time.
LEDGER_SHARE = 0.05
TICK_NS = 20_000_000


class Followed:
    """A stream of durability `remote`.  Raises StorageError as its log does.

    Invariant: every chunk below `remote_offset` lies in a segment of the store or in an object that is not deleted.
    """

    def __init__(self, record: StreamRecord) -> None:
        self.record = record
        self.incarnation, self.slot, self.directory = record.incarnation, record.slot, record.directory
        self.tail = Tail(record.directory)
        self.is_closed = False
        #: Segments whose chunks are in objects: [first offset, number of the object where they begin, when].
        self.begun: deque[tuple[int, int, float]] = deque()
        self._begin_with: int | None = None
        self._has_closed = False
        self._offsets_seen: tuple[int, int] | None = None
        self._ledger_seen: int | None = None
        self._ledger_due_s = 0.0
        self._members_seen, self._members_due_s = 0, 0.0
        # The objects that have them: the newest of those that are created.
        self._offsets_in: int | None = None
        self._ledger_in: int | None = None
        #: What is being sent again lies in objects from that number on until all below the offset is in others.
        self._carried: tuple[int, int] | None = None
        self._go_back()
        self._behind = self.tail.committed[2]  # below it lies what earlier epochs may have had
        self._sent = self.tail.next  # below it all is in this epoch's objects, or in segments

    def close(self) -> None:
        self.is_closed = True
        self.tail.close()

    def _go_back(self) -> None:
        """To the segment from which on not everything is known to be in the store, or else the active one."""
        _, position, next_offset = self.tail.committed
        known = local_segments(self.directory)
        self.tail.confirm_segments(known[0])  # retention deleted messages before it, or they were settled
        done = self.tail.remote_offset
        there = {stub.first: stub.next for stub in cold.stubs(self.directory)}  # and perhaps no more here
        while (after := there.get(max(first for first in known if first <= done), 0)) > done:
            done = after
        if done in known:
            self.tail.confirm_segments(done)
        else:
            self.tail.set_remote_offset(done)
        if done < next_offset:
            self._begin(max(first for first in known if first <= done))
            return
        # All of it is there, in objects of an earlier epoch: what is large goes up as a segment.
        if position > CARRIED_BYTES_MAX or not self._is_whole():
            self.tail.log.begin_segment()
        self._begin(self.tail.committed[0])

    def _is_whole(self) -> bool:
        """Has the active segment what was written?  Damage must not take the place of what objects have: a segment that
        is closed is repaired from them before it goes up (tier.py)."""
        segment, position, next_offset = self.tail.committed
        path = os.path.join(self.directory, f"{segment:020}.segment")
        walk = Walk(segment, path)
        try:
            with open(path, "rb", buffering=0) as file:
                data = file.read(position)
            walk.take(data)
        except StorageError:
            return False
        return len(data) == position and walk.next == next_offset and not walk.damaged

    def _begin(self, segment: int) -> None:
        self.tail.begin(segment)
        self._begin_with = segment

    @property
    def has_chunks(self) -> bool:
        return self.tail.committed[2] > self.tail.next

    @property
    def waiting_bytes(self) -> int:
        """Of chunks that no object has: in the segment that is read now, and in the active one."""
        segment, position, _ = self.tail.committed
        return self.tail.waiting_bytes() + (position if segment != self.tail.segment else 0)

    @property
    def is_sent(self) -> bool:
        """Does this epoch's sequence have all that earlier ones had, but for what lies in closed segments?"""
        has_offsets = self._offsets_in is not None or self._look_at_offsets() is None
        return self._sent >= self._behind and has_offsets and (self.record.queue is None or self._ledger_in is not None)

    def take_closed(self) -> bool:
        """Has it come to the end of a segment since this was asked last?"""
        had, self._has_closed = self._has_closed, False
        return had

    def put_chunks(self, made: Object, most_bytes: int, created: Callable[["Followed"], None]) -> bool:
        """Copy what was committed since the last time, up to the object's size; is all of it there now?"""
        before = self.tail.next
        while True:
            if self.tail.waiting_bytes() == 0:
                after = self.tail.ended_by()
                if after is None:
                    break
                self._begin(after)
                self._has_closed = True
                continue
            if not self._put_piece(made, most_bytes):
                break
        if self.tail.next > before:
            upto, carried = self.tail.place, self._carried
            is_over = carried is not None and upto[2] >= carried[1]
            made.marks.append(lambda: self._created(upto, created, carried if is_over else None))
            if self._is_fan_out:
                self._put_members(made, again=False)
        return not self.has_chunks

    def _put_piece(self, made: Object, most_bytes: int) -> bool:
        head = None
        if self._begin_with is not None:
            head = segment_section(self.incarnation, self._begin_with, self.tail.header(), self.tail.tracking())
        overhead = CHUNKS_HEAD_BYTES + len(head or b"")
        room = min(len(made.left), most_bytes - made.size) - overhead
        needed = self.tail.next_bytes()
        if needed > room:
            if made.size:
                return False  # the next object has room
            made.grow(needed + overhead)
            room = needed
        if head is not None:
            made.put(head)
            self.begun.append((self.tail.segment, made.number, time.monotonic()))
            self._begin_with = None
        piece = self.tail.take(made.left[CHUNKS_HEAD_BYTES : CHUNKS_HEAD_BYTES + room])
        if piece is None:
            return False
        size = made.size
        made.put(
            chunks_head(self.incarnation, piece.segment, piece.position, piece.first, piece.next, piece.size)
        )  # fmt: skip
        made.size = size + CHUNKS_HEAD_BYTES + piece.size
        return True

    def _created(
        self, upto: tuple[int, int, int, int], created: Callable[["Followed"], None], carried: tuple[int, int] | None
    ) -> None:  # fmt: skip
        if self.is_closed:  # whoever follows it now sends the same again
            return
        self._sent = max(self._sent, upto[2])
        if carried is not None and carried == self._carried:
            self._carried = None
        self.tail.confirm(upto)
        created(self)

    # ---- what objects need not keep any more ----

    def uploaded(self, next_offset: int) -> None:
        """Segments of the store reach up to there."""
        while self.begun and (self._first_end() or next_offset + 1) <= next_offset:
            self.begun.popleft()

    def _first_end(self) -> int | None:
        """Where the oldest segment that objects have ends; None: it is the active one."""
        if len(self.begun) > 1:
            return self.begun[1][0]
        return self.tail.segment if self.tail.segment > self.begun[0][0] else self.tail.ended_by()

    def needs_from(self) -> int | None:
        """The first object that somebody who restores this stream needs; None: none."""
        numbers = [self.begun[0][1]] if self.begun else []
        numbers += [self._carried[0]] if self._carried else []
        numbers += [number for number in (self._offsets_in, self._ledger_in) if number is not None]
        return min(numbers, default=None)

    def again(self, below: int) -> None:
        """Let the next object hold what lies in those below that number.

        Where that is much, a new segment begins instead, and the one that is closed is sent up.
        """
        if self._offsets_in is not None and self._offsets_in < below:
            self._offsets_seen = None
        if self._ledger_in is not None and self._ledger_in < below:
            self._ledger_seen, self._ledger_due_s = None, 0.0
        if not self.begun or self.begun[0][1] >= below or self._first_end() is not None:
            return
        if self.tail.committed[1] > CARRIED_BYTES_MAX or not self._is_whole():
            self.tail.log.begin_segment()
        elif self._carried is None:
            segment, number, _ = self.begun.popleft()
            self._carried = number, self.tail.committed[2]
            self._begin(segment)

    # ---- offsets and ledger ----

    def put_state(self, made: Object) -> None:
        """Stored offsets and what is settled, where they are others than last time."""
        seen = self._look_at_offsets()
        if seen is not None and seen != self._offsets_seen:
            held = StoredOffsets(self.directory)
            try:
                made.put(offsets_section(self.incarnation, held.all()))
            finally:
                held.close()
            self._offsets_seen = seen
            made.marks.append(lambda: setattr(self, "_offsets_in", made.number))
        if self.record.queue is not None:
            has_ledger = time.monotonic() >= self._ledger_due_s and self._put_ledger(made)
            if self._is_fan_out:
                self._put_members(made, again=has_ledger)

    def _look_at_offsets(self) -> tuple[int, int] | None:
        try:
            found = os.stat(os.path.join(self.directory, "offsets"))
        except FileNotFoundError:
            return None
        # A clock's tick may hold several stores: what was written just now is looked at once more.
        is_fresh = abs(time.time_ns() - found.st_mtime_ns) < TICK_NS
        return found.st_mtime_ns + is_fresh, found.st_size

    def _put_ledger(self, made: Object) -> bool:
        began_s = time.monotonic()
        try:
            count = ledger.settled_count(self.directory)
            if count == self._ledger_seen:
                return False
            base, ranges = ledger.settled(self.directory)
        except StorageError as problem:
            if problem.code == "ERR_NOT_FOUND":  # it is becoming a queue
                return False
            raise
        made.put(ledger_section(self.incarnation, base, ranges))
        self._ledger_seen = count
        made.marks.append(lambda: setattr(self, "_ledger_in", made.number))
        now_s = time.monotonic()
        self._ledger_due_s = now_s + (now_s - began_s) / LEDGER_SHARE
        return True

    def _put_members(self, made: Object, *, again: bool) -> None:
        """Put the members of a fan-out into the object if they have changed, or `again` with the ledger.

        Behind the chunks: a confirmed message is owed to all members that subscribed before it.  Behind the ledger:
        each member that is owed a copy of a settled message is among them.
        """
        number, packed = members.packed(self.directory)
        if packed and (again or number != self._members_seen):
            made.put(members_section(self.incarnation, packed))
            self._members_seen = number

    @property
    def _is_fan_out(self) -> bool:
        return self.record.queue is not None and self.record.queue.get("mode") in FAN_OUTS

    @property
    def has_state_news(self) -> bool:
        """Would `put_state` put anything?  Some microseconds."""
        seen = self._look_at_offsets()
        if seen is not None and seen != self._offsets_seen:
            return True
        if self.record.queue is None or time.monotonic() < self._ledger_due_s:
            return False
        try:
            return self._has_ledger_news()
        except StorageError:
            return False

    def _has_ledger_news(self) -> bool:
        """Return whether settled messages or members of a fan-out differ from the last object.  Raises StorageError."""
        if ledger.settled_count(self.directory) != self._ledger_seen:
            return True
        began_s = time.monotonic()
        if not self._is_fan_out or began_s < self._members_due_s:
            return False
        number, _ = members.packed(self.directory)
        now_s = time.monotonic()
        self._members_due_s = now_s + (now_s - began_s) / LEDGER_SHARE
        return number != self._members_seen
