# SPDX-License-Identifier: Apache-2.0
"""Disk and memory alarms: when no more messages may come in, at any door, until there is room again.

On a disk that is full not even retention could do its work, and a machine without memory ends processes; so publishers
stop while some is left, and whoever makes room goes on: consumers, retention, whoever deletes.  ``refusal`` is what
each door asks (admission.py), ``listen`` tells it of a change.

The disk is looked at by every worker for itself, in a helper thread, because a file system may hang: all see the same
disk.  The nearer the floor, the more often, because the space below it is reserved.  The
supervisor adds up the memory of all processes (server/memory.py) and publishes the sum in a page that all share
(Conditions).  The admin process looks for itself (``in_effect``), so what it says holds while workers hang.
"""

from __future__ import annotations

import enum
import logging
import mmap
import resource
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vibemq.broker.disk import FILES_FREE_MIN, Reserve, free_bytes, lacks_files
from vibemq.once_a_minute import OnceAMinute

if TYPE_CHECKING:
    from vibemq.broker.timers import Timers

logger = logging.getLogger(__name__)

#: Between two looks.  An idle worker wakes up for nothing else as often as the first.
LOOK_MS_MAX = 1000
LOOK_MS_MIN = 20
LOOK_FULL_MS = 250  # publishers wait for it
#: What a disk may fill by, by all who write to it: what the page cache takes on a good machine.
FILL_BYTES_PER_MS = 4_000_000
#: As bytes that are free: a write has failed for want of room, whatever the file system says of itself.
NO_ROOM = -1
#: Likewise: there are bytes, but too few files can be made.
NO_FILES = -2
#: Likewise: a file has reached the size that this process may give it (RLIMIT_FSIZE).
NO_SIZE = -3
#: So long no messages are taken after a write has met that limit; then one write tries again.
SIZE_HOLD_S = 60.0
#: The broker's own copies, of dead letters, stop at this part of the floor: the rest is for those who empty the disk.
COPIES_PART = 2

# Each is written by one process only.
_IS_DRAINED, _HAS_MEMORY_ALARM, _MEMORY_AT, _RESTARTS_WANTED_AT, _RESTARTS_DONE_AT = 0, 1, 8, 24, 32
_SIZE_UNTIL_AT = 40  # written by every worker; the last write counts
_MEMORY, _RESTARTS, _SECONDS = struct.Struct("=QQ"), struct.Struct("=Q"), struct.Struct("=d")


class Alarm(enum.StrEnum):
    """By RabbitMQ's names."""

    DISK = "disk"
    MEMORY = "memory"


class Conditions:
    """What holds for the whole broker, in a page that its processes share; it must be made before they are forked."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, _SIZE_UNTIL_AT + _SECONDS.size)

    @property
    def is_drained(self) -> bool:
        """Maintenance: nobody is let in, and who is here is asked to leave.  The admin process says so."""
        return self._page[_IS_DRAINED] != 0

    @is_drained.setter
    def is_drained(self, drained: bool) -> None:
        self._page[_IS_DRAINED] = drained

    @property
    def restarts_wanted(self) -> int:
        """Rolling restarts that were asked for since the start.  The admin process counts."""
        return int(_RESTARTS.unpack_from(self._page, _RESTARTS_WANTED_AT)[0])

    @restarts_wanted.setter
    def restarts_wanted(self, count: int) -> None:
        _RESTARTS.pack_into(self._page, _RESTARTS_WANTED_AT, count)

    @property
    def restarts_done(self) -> int:
        """Of those; one may answer several that came while another went on.  The supervisor counts."""
        return int(_RESTARTS.unpack_from(self._page, _RESTARTS_DONE_AT)[0])

    @restarts_done.setter
    def restarts_done(self, count: int) -> None:
        _RESTARTS.pack_into(self._page, _RESTARTS_DONE_AT, count)

    @property
    def has_memory_alarm(self) -> bool:
        return self._page[_HAS_MEMORY_ALARM] != 0

    @property
    def has_file_limit(self) -> bool:
        """Return whether a write has met the limit of a file's size within SIZE_HOLD_S."""
        return bool(time.monotonic() < _SECONDS.unpack_from(self._page, _SIZE_UNTIL_AT)[0])

    def note_file_limit(self) -> None:
        _SECONDS.pack_into(self._page, _SIZE_UNTIL_AT, time.monotonic() + SIZE_HOLD_S)

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes that are used, and the high watermark; 0: there is none."""
        used, watermark = _MEMORY.unpack_from(self._page, _MEMORY_AT)
        return used, watermark

    def set_memory(self, used: int, watermark: int, *, is_alarm: bool) -> None:
        """The supervisor has looked."""
        _MEMORY.pack_into(self._page, _MEMORY_AT, used, watermark)
        self._page[_HAS_MEMORY_ALARM] = is_alarm


def in_effect(data_dir: str, free_min_bytes: int, conditions: Conditions | None) -> list[Alarm]:
    """As the admin process sees it, without asking anybody; a disk that cannot be asked counts as full."""
    found = []
    if free_min_bytes:
        try:
            is_full = free_bytes(data_dir) < free_min_bytes or lacks_files(data_dir)
            is_full = is_full or (conditions is not None and conditions.has_file_limit)
        except OSError:
            is_full = True
        if is_full:
            found.append(Alarm.DISK)
    if conditions is not None and conditions.has_memory_alarm:
        found.append(Alarm.MEMORY)
    return found


class Alarms:
    """One worker's view of them."""

    def __init__(
        self,
        data_dir: str,
        free_min_bytes: int,
        conditions: Conditions,
        timers: Timers,
        helpers: Any,
        *,
        fills_reserve: bool = False,
    ) -> None:
        """``fills_reserve``: one worker does for all."""
        self.in_effect: frozenset[Alarm] = frozenset()
        self.holds_copies = False  # no dead letter may be written either
        self.reserve = Reserve(data_dir, free_min_bytes)
        self._data_dir, self._free_min_bytes, self._conditions = data_dir, free_min_bytes, conditions
        self._helpers, self._fills_reserve = helpers, fills_reserve
        self._listeners: list[Callable[[], None]] = []
        self._says = OnceAMinute(logger, logging.WARNING)
        self._free: int | None = None  # at the last look
        self._is_asking = False  # a file system may hang
        self._timer = timers.timer(self._look)
        self._timer.set(0)

    def listen(self, changed: Callable[[], None]) -> None:
        """Call ``changed()`` in the worker's loop whenever ``in_effect`` or ``holds_copies`` has changed."""
        self._listeners.append(changed)

    @property
    def refusal(self) -> str:
        """Why no message may come in now, for a peer; "" when it may."""
        if Alarm.DISK in self.in_effect and self._free == NO_FILES:
            return (
                f"fewer than {FILES_FREE_MIN} files can be made on the broker's disk (disk alarm); "
                "publish again when files were removed"
            )
        if Alarm.DISK in self.in_effect and self._free == NO_SIZE:
            return (
                "a file of the broker has reached the size that its process may write (disk alarm, ulimit -f); "
                "publish again when the limit was raised"
            )
        if Alarm.DISK in self.in_effect:
            return (
                f"the broker's disk has less than {self._free_min_bytes} bytes free (disk alarm); "
                "publish again when consumers or retention have made room"
            )
        if Alarm.MEMORY in self.in_effect:
            return "the broker uses more memory than its high watermark (memory alarm); publish again later"
        return ""

    def met_full_disk(self) -> None:
        """A write of a publisher's found no room: nobody needs to look whether there is."""
        if self._free_min_bytes:
            self._free = NO_ROOM
            self._found(NO_ROOM)

    def met_file_limit(self) -> None:
        """Raise the alarm in all workers after a publisher's write was refused with EFBIG."""
        if self._free_min_bytes:
            self._conditions.note_file_limit()
            self._free = NO_SIZE
            self._found(NO_SIZE)

    # ---- looking ----

    def _look(self, now_ms: int) -> None:
        self._timer.set(now_ms + LOOK_MS_MAX)  # memory is looked at also while the disk does not answer
        if not self._free_min_bytes or self._is_asking:
            self._found(self._free)
            return

        def back(free: int | None, error: BaseException | None) -> None:
            self._is_asking = False
            if error is not None:  # what was known of it holds on
                self._says.say("unknown", "free space at %s cannot be asked: %s", self._data_dir, error)
            else:
                self._free = free
            self._found(self._free)
            self._timer.set(now_ms + self._next_look_ms(self._free))

        self._is_asking = True
        self._helpers.submit_sync(self._work, back)

    def _work(self) -> int:
        if self._fills_reserve:
            try:
                self.reserve.fill()
            except OSError as problem:
                self._says.say("reserve", "the reserve in %s cannot be filled: %s", self._data_dir, problem.strerror)
        if self._conditions.has_file_limit:
            return NO_SIZE
        return NO_FILES if lacks_files(self._data_dir) else free_bytes(self._data_dir)

    def _next_look_ms(self, free: int | None) -> int:
        if free is None:
            return LOOK_MS_MAX
        if free < self._free_min_bytes:
            return LOOK_FULL_MS
        return min(max((free - self._free_min_bytes) // FILL_BYTES_PER_MS, LOOK_MS_MIN), LOOK_MS_MAX)

    def _found(self, free: int | None) -> None:
        now = set()
        if free is not None and free < self._free_min_bytes:
            now.add(Alarm.DISK)
        if self._conditions.has_memory_alarm:
            now.add(Alarm.MEMORY)
        holds_copies = free is not None and free < self._free_min_bytes // COPIES_PART
        if now == self.in_effect and holds_copies == self.holds_copies:
            return
        self._say(now, free)
        self.in_effect, self.holds_copies = frozenset(now), holds_copies
        for changed in self._listeners:
            changed()

    def _say(self, now: set[Alarm], free: int | None) -> None:
        if Alarm.DISK in now - self.in_effect and free == NO_ROOM:
            self._says.say("no room", "disk alarm: a write found no room at %s: no messages are taken", self._data_dir)
        elif Alarm.DISK in now - self.in_effect and free == NO_SIZE:
            self._says.say(
                "no size",
                "disk alarm: a file at %s has reached the size of %d bytes that this process may write (RLIMIT_FSIZE): "
                "no messages are taken for %g s",
                self._data_dir,
                resource.getrlimit(resource.RLIMIT_FSIZE)[0],
                SIZE_HOLD_S,
            )
        elif Alarm.DISK in now - self.in_effect and free == NO_FILES:
            self._says.say(
                "no files",
                "disk alarm: fewer than %d files can be made at %s, whose inodes are used up: no messages are taken",
                FILES_FREE_MIN,
                self._data_dir,
            )
        elif Alarm.DISK in now - self.in_effect:
            self._says.say(
                "disk alarm",
                "disk alarm: %d bytes are free at %s, %d are needed: no messages are taken (store.disk_free_min_bytes)",
                free,
                self._data_dir,
                self._free_min_bytes,
            )
        elif Alarm.DISK in self.in_effect - now:
            self._says.say(
                "no disk alarm",
                "the disk alarm is over: %d bytes are free at %s, publishers go on",
                free,
                self._data_dir,
            )
        used, watermark = self._conditions.memory
        if Alarm.MEMORY in now - self.in_effect:
            self._says.say("memory alarm", "memory alarm: %d bytes are used, at most %d may be", used, watermark)
        elif Alarm.MEMORY in self.in_effect - now:
            self._says.say("no memory alarm", "the memory alarm is over: %d bytes are used, publishers go on", used)
