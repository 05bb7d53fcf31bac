# SPDX-License-Identifier: Apache-2.0
"""One epoch's sequence of write-ahead objects: filled in turn, several on their way, confirmed in order.

An object is a buffer that sections are put into; buffers are used again, because memory that was never touched costs
ten times as much to fill.  Whatever goes wrong with a request, it is made again until it succeeds: what it holds was
promised to nobody yet, and nothing behind it is confirmed before it.  Only a seal ends the sequence.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from vibemq.config import Remote
from vibemq.errors import RemoteError
from vibemq.remote.bucket import Bucket, Taken
from vibemq.remote.epochs import Epochs
from vibemq.remote.objects import Buffer, Kind, Seal, sections, tail_bytes, write_ahead_key

log = logging.getLogger("vibemq.remote")

RETRY_S_MIN, RETRY_S_MAX = 0.1, 5.0
#: A store that is slow is given larger objects instead of more of them: so many times `batch_size_bytes`.
GROWTH = 4
#: Behind the sections, for the object's key and trailer.
TAIL_BYTES = 512


class Deposed(RemoteError):
    """A newer epoch was taken: no further message can be confirmed under this one."""

    def __init__(self, why: str, by: dict[str, object]) -> None:
        super().__init__(why, hint="another broker has this one's place in the bucket: repeat the request there")
        self.by = by


class Tenure:
    """One epoch of a broker.  Once it is over, ``over`` fails with Deposed for good.

    A create-only object proves nothing about an answer: a newer broker may have listed the bucket before it existed.
    So each answer that rests on the bucket follows a `check` that began after its object existed. A newer broker
    takes its epoch first and lists second, so its listing has every acknowledged object.
    """

    def __init__(self, epochs: Epochs, epoch: int, over: asyncio.Future[None] | None = None) -> None:
        self.epochs, self.epoch, self.name, self.over = epochs, epoch, epochs.name, over

    def require(self) -> None:
        """Raise Deposed if a newer epoch is known."""
        if self.over is not None and self.over.done():
            self.over.result()

    async def check(self) -> None:
        """Raise Deposed if a newer epoch was taken; RemoteError."""
        self.require()
        self._end(await self.epochs.newer_than(self.epoch))

    async def check_next(self) -> None:
        """Check the next epoch's object alone, which is cheaper; it may be deleted if many epochs were taken since."""
        self.require()
        self._end(await self.epochs.next_of(self.epoch))

    def _end(self, by: dict[str, object] | None) -> None:
        self.require()
        if by is None:
            return
        why = f"epoch {self.epoch} of broker {self.name!r} is over: {by['key']} was taken on {by.get('host')}"
        deposed = Deposed(why, by)
        if self.over is not None:
            self.over.set_exception(deposed)
        raise deposed


@dataclass(eq=False)
class Object:
    """What is being filled, or on its way."""

    number: int
    room: bytearray
    size: int = 0
    marks: list[Callable[[], None]] = field(default_factory=list)  # called once it, and all before it, are there
    created: bool = False

    @property
    def left(self) -> memoryview:
        return memoryview(self.room)[self.size : len(self.room) - TAIL_BYTES]

    def put(self, section: Buffer) -> None:
        if len(section) > len(self.left):
            self.grow(len(section))
        self.room[self.size : self.size + len(section)] = section
        self.size += len(section)

    def grow(self, more: int) -> None:
        """Make room for a section of so many bytes: messages may be larger than objects."""
        self.room = self.room + bytearray(max(0, self.size + more + TAIL_BYTES - len(self.room)))


class WriteAhead:
    """Invariant: objects are confirmed (their marks called) in the order of their numbers."""

    def __init__(self, bucket: Bucket, config: Remote, epoch: int) -> None:
        self.bucket, self.config, self.epoch = bucket, config, epoch
        self.first = 0  # of those that are there
        self.confirmed = 0  # below it all are there
        self._spare: list[bytearray] = []
        self._sent: deque[Object] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(config.puts_max)
        self._size = config.batch_size_bytes * GROWTH + TAIL_BYTES
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failure.add_done_callback(
            lambda done: done.cancelled() or done.exception()  # who ends meanwhile has no use for it: no traceback
        )
        self._next = 0

    @property
    def waiting(self) -> int:
        return len(self._sent)

    async def begin(self) -> Object:
        """The next object, to be filled; waits while too many are on their way.  Raises what ended the sequence."""
        await self._places.acquire()
        if self.failure.done():
            self.failure.result()
        room = self._spare.pop() if self._spare else bytearray(self._size)
        made = Object(self._next, room)
        assert tail_bytes(self._key(made.number)) <= TAIL_BYTES
        return made

    def give_up(self, made: Object) -> None:
        """Nothing was put into it."""
        self._spare.append(made.room)
        self._places.release()

    def send(self, made: Object) -> None:
        self._next = made.number + 1
        self._sent.append(made)
        task = asyncio.get_running_loop().create_task(self._create(made))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _key(self, number: int) -> str:
        return write_ahead_key(self.config.name, self.epoch, number)

    async def _create(self, made: Object) -> None:
        pause_s, key = RETRY_S_MIN, self._key(made.number)
        try:
            while not await self._tried(key, made):
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_S_MAX)
        except asyncio.CancelledError:
            raise
        except BaseException as problem:
            if not self.failure.done():
                self.failure.set_exception(problem)
            self._places.release()  # for who waits, to hear of it
            return
        if self.failure.done():
            return  # a newer epoch is known: no message is confirmed
        made.created = True
        while self._sent and self._sent[0].created:
            done = self._sent.popleft()
            self.confirmed = done.number + 1
            for mark in done.marks:
                mark()
            if len(done.room) == self._size:
                self._spare.append(done.room)
            self._places.release()

    async def _tried(self, key: str, made: Object) -> bool:
        """Was it created?  Raises Deposed."""
        try:
            try:
                await self.bucket.create_parts(key, Kind.WRITE_AHEAD, made.room, made.size)
                return True
            except Taken:
                await self._look_at_who(key)
        except Deposed:
            raise
        except RemoteError as problem:  # the bucket counts it, and the archiver says so
            log.debug("a write-ahead object was not created: %s", problem)
        return False

    async def _look_at_who(self, key: str) -> None:
        """Raises Deposed where the object there is a seal; RemoteError where it cannot be read, to be asked again."""
        for found in sections(key, await self.bucket.read(key, Kind.WRITE_AHEAD)):
            if isinstance(found, Seal):
                by = found.by
                raise Deposed(f"object {key} is a seal of broker {by.get('broker')!r}, epoch {by.get('epoch')}", by)
        raise Deposed(f"object {key} does not belong to this epoch", {"broker": "(unknown)", "epoch": self.epoch})

    async def prune(self, below: int) -> None:
        """Delete the objects below that number: nothing needs them any more.

        But the newest: by it a listing shows how far the sequence is, for whoever puts a seal behind it.
        """
        below = min(below, self.confirmed - 1)
        while self.first < below:
            upto = min(below, self.first + 1000)
            await self.bucket.delete([self._key(number) for number in range(self.first, upto)])
            self.first = upto

    async def close(self, timeout_s: float) -> None:
        """Wait for objects on their way; not where the sequence is over, which confirms none of them."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=0 if self.failure.done() else timeout_s)
        for task in self._tasks:
            task.cancel()
