# SPDX-License-Identifier: Apache-2.0
"""The archiver: the one process that talks to the object store.

It sits on a seat of the board of doorbells, behind the workers'. Who appends to a stream of durability `remote` marks
it there; what has come goes up in one object, whatever the number of streams, `remote.interval_ms` after the last one,
or as soon as `remote.batch_size_bytes` are there. When the store has it, and all before it, `remote_offset` of each
stream moves on and its workers are told. Closed segments
follow in the background (tier.py); who needs something of the store asks through a socket (service.py).

Killed at any moment it loses nothing: the next one takes a new epoch, ends the sequence of this one with a seal, and
begins again with what is not in a segment of the store yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from itertools import islice

from vibemq.config import Remote
from vibemq.errors import RemoteError, StorageError
from vibemq.once_a_minute import OnceAMinute, say_due
from vibemq.remote.bucket import Bucket
from vibemq.remote.epochs import Epochs
from vibemq.remote.followed import Followed
from vibemq.remote.restoring import HARMED
from vibemq.remote.service import Service
from vibemq.remote.tier import GONE, Tier, why_not
from vibemq.remote.write_ahead import Deposed, Object, Tenure, WriteAhead
from vibemq.storage.metadata import Metadata
from vibemq.storage.records import StreamRecord
from vibemq.storage.shm import Board

#: Streams whose stored offsets and ledgers are looked at in one interval: some microseconds each.
STATES_PER_LOOK = 500
STATE_LOOK_S = 1.0
TROUBLE_SAID_EACH_S = 60.0
#: A store that has taken nothing for so long is said to be away.
TROUBLE_AFTER_S = 5.0
END_TIMEOUT_S = 10.0
IDLE_S = 0.2
#: Looks for a whole batch within an interval, and the streams that a look goes over: a microsecond each.
LOOKS_PER_INTERVAL = 10
STREAMS_PER_LOOK = 200
EARLIER_LOOK_S = 10.0
HARMED_SAID_EACH_S = 3600.0
#: A listing each: a dollar a month.
NEWER_LOOK_S = 20.0
#: The part of `remote.deposed_after_s` between two checks for the next epoch; the rest is for the end of this broker.
NEWER_LOOK_SHARE = 0.4
FOLLOW_AGAIN_S = 0.5
SHOWN_MAX = 10  # streams, in the status

log = logging.getLogger("vibemq.remote")


class Archiver:
    """For one epoch.  ``board``: from its own seat."""

    def __init__(self, config: Remote, metadata: Metadata, board: Board, bucket: Bucket, epochs: Epochs, epoch: int):
        self.config, self.metadata, self.board, self.bucket, self.epochs = config, metadata, board, bucket, epochs
        self.write_ahead = WriteAhead(bucket, config, epoch)
        self.tenure = Tenure(epochs, epoch, self.write_ahead.failure)
        self.tier = Tier(config, self.tenure, metadata, self._uploaded)
        self.service = Service(os.path.dirname(metadata.path), bucket, self.tier, self.tenure, self.status)
        self.by_slot: dict[int, Followed] = {}
        self._dirty: dict[int, None] = {}  # slots with chunks to send, in order
        self._unfollowed: dict[int, tuple[StreamRecord, str]] = {}  # by slot, with the reason: they are tried again
        #: The first object that a stream needs which could not be sent, until it was sent again; by its incarnation.
        self._needed_from: dict[str, int] = {}
        self._follow_due_s = 0.0
        self._rung = asyncio.Event()
        self._sent_s = 0.0  # when the last object was
        self._states_at = 0
        self._state_due_s = 0.0
        self._earlier_due_s = time.monotonic() + EARLIER_LOOK_S
        self._again_due_s = time.monotonic() + self.config.segment_age_s
        self._again_below = 0
        self._has_earlier = True  # objects of earlier epochs
        self._away_since_s: float | None = None  # once that is said
        self._say_away_s = 0.0  # not before
        self._began_s = time.monotonic()
        self._says = OnceAMinute(log, logging.ERROR)

    # ---- the loop ----

    async def serve(self, is_over: Callable[[], bool], ready: Callable[[], None]) -> None:
        """Until ``is_over()``, which is asked some times a second.  Raises Deposed."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self.board.doorbell_fd, self._on_doorbell)
        self.board.sit()
        self._follow_all()
        await self.service.listen()
        self.tier.start()
        self.tier.in_background(self._look_for_newer())
        ready()
        log.info("epoch %d of broker %r in %s", self.write_ahead.epoch, self.config.name, self.config.url)
        try:
            while not is_over():
                await self._wait_for_news(is_over)
                await self._turn(is_over)
            deadline_s = time.monotonic() + END_TIMEOUT_S

            def is_late() -> bool:
                return time.monotonic() >= deadline_s

            while self._take_news() and not is_late():  # what workers have taken before they ended
                await self._turn(is_late)
        finally:
            await self.tier.close()
            await self.service.close()
            await self.write_ahead.close(END_TIMEOUT_S)

    def _on_doorbell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.board.doorbell_fd, 8)
        self._rung.set()

    async def _wait_for_news(self, is_over: Callable[[], bool]) -> None:
        """Sleep until somebody appends; who comes within an interval of the last object waits for its end."""
        self._check()
        if not self._take_news():
            self._rung.clear()
            if self.board.sleep():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._rung.wait(), IDLE_S)
            else:
                await asyncio.sleep(0)  # what came is looked at below; others have their turn all the same
            self.board.wake()  # even if it did not sleep: what workers ask of each other would keep it awake for ever
        interval_s = self.config.interval_ms / 1000
        while self._take_news() and not (self._has_batch() or is_over()):
            left_s = self._sent_s + interval_s - time.monotonic()
            if left_s <= 0:
                break
            await asyncio.sleep(min(left_s, interval_s / LOOKS_PER_INTERVAL, IDLE_S))

    def _has_batch(self) -> bool:
        """Do the streams that have waited longest fill an object?"""
        left = self.config.batch_size_bytes
        for slot in islice(self._dirty, STREAMS_PER_LOOK):
            followed = self.by_slot.get(slot)
            left -= followed.waiting_bytes if followed is not None else 0
            if left <= 0:
                return True
        return False

    def _take_news(self) -> bool:
        for slot in self.board.take():
            self._note(slot)
        return bool(self._dirty)

    def _note(self, slot: int) -> None:
        """The stream in that slot has news: chunks, or a closed segment."""
        known = self.by_slot.get(slot)
        if known is not None and known.tail.log.is_deleted:
            self._forget(known)
            known = None
        if known is None:
            record = self.metadata.stream_at(slot)
            if record is None:
                return
            if record.durability != "remote":
                self.tier.look_at(record)
                return
            self._follow(record)
        self._dirty[slot] = None

    async def _turn(self, is_over: Callable[[], bool]) -> None:
        """One object: chunks of every stream that has some, and states that have changed."""
        self._due()
        if not self._dirty and not self._has_state_news():
            return
        made = await self._begin(is_over)
        if made is None:
            return
        self._take_news()  # what came while there was no room on the way
        try:
            self._fill(made)
        finally:
            if made.size or made.marks:  # an empty one, too: what retention took before it was sent waits for its turn
                self._sent_s = time.monotonic()
                self.write_ahead.send(made)
            else:
                self.write_ahead.give_up(made)

    async def _begin(self, is_over: Callable[[], bool]) -> Object | None:
        """The next object; None: it is over, and the store has made no room on the way."""
        while True:
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self.write_ahead.begin(), IDLE_S)
            self._check()
            if is_over():
                return None

    def _fill(self, made: Object) -> None:
        most = len(made.left)
        for slot in list(self._dirty):
            followed = self.by_slot.get(slot)
            del self._dirty[slot]
            if followed is None:
                continue
            try:
                if not followed.put_chunks(made, most, self._created):
                    self._dirty[slot] = None  # at the end: every stream in its turn
                if followed.take_closed():
                    self.tier.look_at(followed.record)
            except (StorageError, OSError) as problem:
                self._failed(followed, problem)
            if made.size >= most - made.size // 8 and self._dirty:
                break
        self._put_states(made)

    def _created(self, followed: Followed) -> None:
        self.board.tell(followed.tail.log.holders(), followed.slot)

    # ---- which streams ----

    def _follow_all(self) -> None:
        for record in self.metadata.logs():
            if record.durability == "remote":
                self._follow(record)
            self.tier.look_at(record, is_aged=True)

    def _follow(self, record: StreamRecord) -> None:
        """What cannot be followed now is tried again: of a queue a segment may go while it is opened."""
        try:
            made = self.by_slot[record.slot] = Followed(record)
        except (StorageError, OSError) as problem:
            if getattr(problem, "code", "") not in GONE or self.metadata.stream_of(record.incarnation) is not None:
                self._says.say(record.name, "stream %r cannot be sent to the object store: %s", record.name, problem)
            self._unfollowed[record.slot] = record, why_not(problem)
            return
        if made.has_chunks:
            self._dirty[record.slot] = None

    def _forget(self, followed: Followed) -> None:
        self.by_slot.pop(followed.slot, None)
        self._needed_from.pop(followed.incarnation, None)
        followed.close()

    def _failed(self, followed: Followed, problem: Exception) -> None:
        numbers = [followed.needs_from(), self._needed_from.get(followed.incarnation)]
        self._forget(followed)
        if needed := [number for number in numbers if number is not None]:
            self._needed_from[followed.incarnation] = min(needed)
        if getattr(problem, "code", "") not in GONE:
            name = followed.record.name
            self._says.say(name, "stream %r cannot be sent to the object store: %s", name, problem)
        self._unfollowed[followed.slot] = followed.record, why_not(problem)

    def _follow_again(self) -> None:
        waiting, self._unfollowed = self._unfollowed, {}
        for slot, (known, _) in waiting.items():
            record = self.metadata.stream_at(slot)
            if record is None or record.incarnation != known.incarnation:
                self._needed_from.pop(known.incarnation, None)
            elif slot not in self.by_slot:
                self._follow(record)
                self.tier.look_at(record, is_aged=True)  # what was closed before it failed

    def _uploaded(self, incarnation: str, next_offset: int) -> None:
        """By the tier: the store has closed segments of that stream up to there."""
        for followed in self.by_slot.values():
            if followed.incarnation == incarnation:
                followed.uploaded(next_offset)
                return

    # ---- states, and what objects need not hold any more ----

    def _has_state_news(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._state_due_s:
            return False
        self._state_due_s = now_s + STATE_LOOK_S
        return any(followed.has_state_news for followed in self._states())

    def _states(self) -> list[Followed]:
        """Those whose turn it is."""
        all_of_them = list(self.by_slot.values())
        self._states_at = self._states_at if self._states_at < len(all_of_them) else 0
        return all_of_them[self._states_at : self._states_at + STATES_PER_LOOK]

    def _put_states(self, made: Object) -> None:
        for followed in self._states():
            try:
                followed.put_state(made)
            except (StorageError, OSError) as problem:
                self._failed(followed, problem)
        self._states_at += STATES_PER_LOOK

    def _due(self) -> None:
        now_s = time.monotonic()
        say_due()
        if self._unfollowed and now_s >= self._follow_due_s:
            self._follow_due_s = now_s + FOLLOW_AGAIN_S
            self._follow_again()
        self._need_no_more()
        if self._has_earlier and now_s >= self._earlier_due_s:
            self._earlier_due_s = now_s + EARLIER_LOOK_S
            self._forget_earlier()
        if now_s >= self._again_due_s:
            self._again_due_s = now_s + self.config.segment_age_s
            for followed in list(self.by_slot.values()):
                self._bring_together(followed)
            self._again_below = self.write_ahead.confirmed
            self._prune()

    def _bring_together(self, followed: Followed) -> None:
        """So that old objects hold nothing of it that is not elsewhere too."""
        if followed.tail.log.is_deleted:
            self._forget(followed)
            return
        try:
            followed.uploaded(followed.tail.first_offset)  # what retention has taken
            followed.again(self._again_below)
        except (StorageError, OSError) as problem:
            self._failed(followed, problem)
            return
        self.tier.look_at(followed.record, is_aged=True)
        if followed.has_chunks:
            self._dirty[followed.slot] = None

    def _forget_earlier(self) -> None:
        """Once this epoch, or segments of the store, have all that earlier ones did."""
        harmed = os.path.join(os.path.dirname(self.metadata.path), HARMED)
        if os.path.exists(harmed):
            said = (
                "objects of earlier epochs stay in the bucket: some were not whole at a start, as %s says; move that "
            )
            self._says.say(harmed, said + "file away once nobody wants to put them back", harmed)
            self._earlier_due_s += HARMED_SAID_EACH_S
            return
        of_remote = [record for record in self.metadata.logs() if record.durability == "remote"]
        if self.tier.is_busy or any(
            (followed := self.by_slot.get(record.slot)) is None or not followed.is_sent for record in of_remote
        ):
            return
        self.tier.in_background(self._delete_earlier())

    async def _delete_earlier(self) -> None:
        await self.epochs.forget_before(self.write_ahead.epoch)
        self._has_earlier = False

    def _need_no_more(self) -> None:
        """Of streams that had failed: once this epoch's later objects, or segments of the store, have all of it."""
        if self._needed_from and not self.tier.is_busy:
            for followed in self.by_slot.values():
                if followed.is_sent:
                    self._needed_from.pop(followed.incarnation, None)

    def _prune(self) -> None:
        numbers = [number for followed in self.by_slot.values() if (number := followed.needs_from()) is not None]
        below = min([self.write_ahead.confirmed, *numbers, *self._needed_from.values()])
        self.tier.in_background(self.write_ahead.prune(below))

    async def _look_for_newer(self) -> None:
        """Check for a newer epoch: without traffic of durability `remote` this broker would meet no seal.

        Each check reads the next epoch's object. A check now and then, and one after a pause of this process, lists.
        """
        bound = self.metadata.binding()
        assert bound is not None
        interval_s = self.config.deposed_after_s * NEWER_LOOK_SHARE
        listed_s = looked_s = -NEWER_LOOK_S
        while True:
            now_s = time.monotonic()
            has_slept, looked_s = now_s - looked_s > 2 * interval_s, now_s
            try:
                if has_slept or now_s - listed_s >= NEWER_LOOK_S:
                    listed_s = now_s
                    await self.bucket.bind(bound[0])
                    await self.tenure.check()
                else:
                    await self.tenure.check_next()
            except Deposed:
                return
            except RemoteError as problem:  # the bucket counts it, and `_check` says so
                log.debug("the check for a newer epoch failed: %s", problem)
            await asyncio.sleep(interval_s)

    def _check(self) -> None:
        """Raises what ended the sequence; says that the store is away, and when it is back."""
        if self.write_ahead.failure.done():
            self.write_ahead.failure.result()
        counts, now_s = self.bucket.counts, time.monotonic()
        if counts.trouble_since_s is None:
            if self._away_since_s is not None:
                said = "the object store answers again, after %.0f s; what waited is confirmed as it arrives there"
                log.warning(said, now_s - self._away_since_s)
                self._away_since_s, self._say_away_s = None, 0.0
            return
        away_s = now_s - counts.trouble_since_s
        if away_s < TROUBLE_AFTER_S or now_s < self._say_away_s:
            return
        self._away_since_s, self._say_away_s = counts.trouble_since_s, now_s + TROUBLE_SAID_EACH_S
        log.error(
            "the object store has taken nothing for %.0f s: %s; publishers to streams of durability remote wait, with "
            "%d objects on their way, and it is tried again until it succeeds: %s",
            away_s,
            counts.last_error,
            self.write_ahead.waiting,
            counts.advice,
        )

    def status(self) -> dict[str, object]:
        counts = self.bucket.counts
        lags = [(f.tail.committed[2] - f.tail.remote_offset, f.record.name) for f in self.by_slot.values()]
        since_s = counts.trouble_since_s
        unsent = {record.name: why for record, why in self._unfollowed.values() if why} | self.tier.unsent
        return {
            "url": self.config.url,
            "broker": self.config.name,
            "epoch": self.write_ahead.epoch,
            "up_s": round(time.monotonic() - self._began_s, 1),
            "streams": len(self.by_slot),
            "streams_not_followed": len(self._unfollowed),
            "streams_that_cannot_be_sent": dict(list(unsent.items())[:SHOWN_MAX]),
            "messages_waiting": sum(lag for lag, _ in lags),
            "waiting_most": {name: lag for lag, name in sorted(lags, reverse=True)[:SHOWN_MAX] if lag},
            "objects_on_their_way": self.write_ahead.waiting,
            "write_ahead_objects": self.write_ahead.confirmed - self.write_ahead.first,
            "away_s": 0.0 if since_s is None else round(time.monotonic() - since_s, 1),
            "last_error": counts.last_error,
            "advice": counts.advice,
            "requests": {"put": counts.puts, "get": counts.gets, "list": counts.lists, "delete": counts.deletes},
            "errors": counts.errors,
            "sent_bytes": counts.sent_bytes,
            "received_bytes": counts.received_bytes,
            **self.tier.status(),
        }
