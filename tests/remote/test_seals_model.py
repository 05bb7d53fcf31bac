# SPDX-License-Identifier: Apache-2.0
"""Write-ahead objects and seals as a model: brokers of one name over a store whose requests come late or twice.

The store is obstore's four functions over a dict. Each request waits until the model lets it take effect, loses its
answer, or lets it come once more later; Bucket, Epochs and WriteAhead are the product's own, on a loop that never
waits for a clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

pytest.importorskip("obstore", reason="needs the extra remote")

import obstore

from vibemq.config import Remote
from vibemq.errors import RemoteError
from vibemq.remote import write_ahead as module
from vibemq.remote.bucket import Bucket, Counts
from vibemq.remote.epochs import Epochs, Outdated
from vibemq.remote.objects import Offsets, offsets_section
from vibemq.remote.write_ahead import Deposed, WriteAhead

INCARNATION = "00ff00ff00ff00ff"
PUTS_MAX = 4
TURNS_MAX = 10_000
EXAMPLES = int(os.environ.get("VIBEMQ_MODEL_EXAMPLES", "60"))
STEPS = 40
#: Of an epoch's objects, one of so many needs none before it.
FULL_EACH = 2
DIRECTORIES = ("a", "b")


class Waiting:
    """A request that has not taken effect yet."""

    def __init__(self, key: str, effect: Any) -> None:
        self.key, self.effect = key, effect
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class Store:
    """What obstore has of functions, over a dict; a request of who is not patient waits for the model."""

    exceptions = obstore.exceptions

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.waiting: list[Waiting] = []
        self.late: list[Waiting] = []  # copies of requests that were answered: they may still arrive

    async def put_async(self, store: bool, key: str, body: Any, mode: str = "", **_: object) -> None:
        content = bytes(body)

        def effect() -> None:
            if mode == "create" and key in self.objects:
                raise self.exceptions.AlreadyExistsError(key)
            self.objects[key] = content

        await self._ask(store, key, effect)

    async def get_async(self, store: bool, key: str) -> Any:
        def effect() -> bytes:
            if key not in self.objects:
                raise self.exceptions.NotFoundError(key)
            return self.objects[key]

        content = effect()

        async def bytes_async() -> bytes:
            return content

        return SimpleNamespace(bytes_async=bytes_async)

    async def delete_async(self, store: bool, keys: list[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    async def list(self, store: bool, prefix: str, **_: object) -> Any:
        now = datetime.now(UTC)
        there = [(key, len(body)) for key, body in self.objects.items() if key.startswith(prefix)]
        yield [{"path": key, "size": size, "last_modified": now} for key, size in there]

    async def _ask(self, store: bool, key: str, effect: Any) -> None:
        if not key.startswith("wal/") or not store:
            return effect()
        one = Waiting(key, effect)
        self.waiting.append(one)
        return await one.answer


class Broker:
    """One data directory as it serves: an epoch, and what it was told is confirmed."""

    def __init__(self, model: Model, name: str) -> None:
        self.model, self.name = model, name
        self.config = Remote(url="file:///nowhere", name="x", puts_max=PUTS_MAX, batch_size_bytes=65_536)
        self.impatient = bucket(model.store, self.config, waits=True)
        self.patient = bucket(model.store, self.config, waits=False)
        self.known: set[int] = set()  # what its data directory has that counts
        self.ahead: WriteAhead | None = None

    def epochs(self) -> Epochs:
        made = Epochs.__new__(Epochs)
        made.bucket, made.name, made.identity, made.writer = self.patient, "x", self.name, f"{self.name} {id(made)}"
        return made


def bucket(store: Store, config: Remote, waits: bool) -> Bucket:
    made = Bucket.__new__(Bucket)
    made._obstore, made._store, made.url, made.keys = store, waits, config.url, None
    made.counts, made._trailers, made._cluster = Counts(), {}, None
    return made


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.store = Store()
        self.brokers: dict[str, Broker] = {}
        self.newest: Broker | None = None  # who has taken the last epoch
        self.confirmed: set[int] = set()
        self.next = 0

    def teardown(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.settle()
        self.loop.close()

    def settle(self) -> None:
        """Let everything run that can without an answer."""
        for _ in range(30):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def do(self, work: Any) -> Any:
        task = self.loop.create_task(work)
        for _ in range(TURNS_MAX):
            if task.done():
                return task.result()
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        raise AssertionError("it never ends")

    # ---- what may happen ----

    @precondition(lambda self: not self.serving() or self.store.waiting or self.store.late)
    @rule(name=st.sampled_from(DIRECTORIES), is_empty=st.booleans())
    def start(self, name: str, is_empty: bool) -> None:
        """A broker starts on a data directory, or on an empty one; whoever runs is not asked."""
        before = self.brokers.get(name)
        goes_on = before is not None and not is_empty
        if before is not None and not goes_on:
            name = f"{name}{len(self.brokers)}"
        broker = Broker(self, name)
        if goes_on and before.ahead is not None:
            self.kill(before)  # it held the lock
        try:
            epoch = self.do(broker.epochs().take(goes_on))
        except Outdated:
            assert goes_on and before is not self.newest, "who was here last may go on"
            return
        broker.known = before.known if goes_on else self.do(self.read_all(broker))
        broker.ahead = self.do(self.sequence(broker, epoch))
        self.brokers[name] = self.newest = broker

    async def sequence(self, broker: Broker, epoch: int) -> WriteAhead:
        return WriteAhead(broker.impatient, broker.config, epoch)

    def kill(self, broker: Broker) -> None:
        assert broker.ahead is not None
        for task in list(broker.ahead._tasks):
            task.cancel()
        broker.ahead = None
        self.settle()

    async def read_all(self, broker: Broker) -> set[int]:
        """As a restore does: everything that lies there."""
        epochs, found = broker.epochs(), set()
        for one in await epochs.objects():
            for section in await epochs.read(one):
                if isinstance(section, Offsets):
                    found |= set(section.stored.values())
        return found

    def serving(self) -> list[Broker]:
        return [one for one in self.brokers.values() if one.ahead is not None]

    @precondition(lambda self: self.serving())
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        broker = data.draw(st.sampled_from(self.serving()))
        assert broker.ahead is not None
        if broker.ahead.waiting >= PUTS_MAX or broker.ahead.failure.done():
            return
        number, self.next = self.next, self.next + 1
        broker.known = broker.known | {number}  # its log has it
        self.do(self.send(broker, broker.ahead, number))
        self.settle()

    async def send(self, broker: Broker, ahead: WriteAhead, number: int) -> None:
        made = await ahead.begin()
        # Now and then one has all there is, as a stream's chunks come again so that older objects can be deleted.
        is_full = made.number % FULL_EACH == 0
        made.put(offsets_section(INCARNATION, {b"%d" % one: one for one in (broker.known if is_full else {number})}))
        made.marks.append(lambda: self.confirmed.add(number))
        ahead.send(made)

    @precondition(lambda self: self.store.waiting)
    @rule(data=st.data(), how=st.sampled_from(["answered", "answered", "lost", "repeated"]))
    def arrive(self, data: st.DataObject, how: str) -> None:
        """A request takes effect, in any order."""
        at = data.draw(st.integers(0, len(self.store.waiting) - 1))
        one = self.store.waiting.pop(at)
        if how == "repeated":
            self.store.late.append(one)
        try:
            one.effect()
            problem: Exception | None = None
        except Exception as refused:
            problem = refused
        if not one.answer.done():
            if how == "lost":
                one.answer.set_exception(obstore.exceptions.GenericError("its answer was lost"))
            elif problem is not None:
                one.answer.set_exception(problem)
            else:
                one.answer.set_result(None)
        self.settle()

    @precondition(lambda self: self.store.late)
    @rule(data=st.data())
    def arrive_again(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.store.late) - 1))
        with contextlib.suppress(Exception):
            self.store.late.pop(at).effect()

    @precondition(lambda self: self.serving())
    @rule(data=st.data())
    def prune(self, data: st.DataObject) -> None:
        broker = data.draw(st.sampled_from(self.serving()))
        assert broker.ahead is not None
        newest_full = (broker.ahead.confirmed - 1) // FULL_EACH * FULL_EACH
        self.do(broker.ahead.prune(newest_full))

    @precondition(lambda self: self.serving())
    @rule(data=st.data())
    def forget_earlier(self, data: st.DataObject) -> None:
        broker = data.draw(st.sampled_from(self.serving()))
        assert broker.ahead is not None
        if broker.ahead.confirmed and not broker.ahead.waiting and self.is_newest(broker):
            self.do(broker.epochs().forget_before(broker.ahead.epoch))

    def is_newest(self, broker: Broker) -> bool:
        return all(one.ahead is None or one.ahead.epoch <= broker.ahead.epoch for one in self.serving())  # type: ignore[union-attr]

    # ---- what always holds ----

    @invariant()
    def what_was_confirmed_is_readable(self) -> None:
        there = self.do(self.read_all(Broker(self, "reader")))
        assert self.confirmed <= there, f"{self.confirmed - there} were confirmed and are not there"

    @invariant()
    def whoever_was_here_last_has_it(self) -> None:
        if self.newest is not None:
            missing = self.confirmed - self.newest.known
            assert not missing, f"{missing} were confirmed by others after this one had sealed them out"

    @invariant()
    def who_was_sealed_out_ends(self) -> None:
        for broker in self.serving():
            assert broker.ahead is not None
            if broker.ahead.failure.done():
                problem = broker.ahead.failure.exception()
                assert isinstance(problem, Deposed | RemoteError), problem
                self.kill(broker)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(module, "RETRY_S_MIN", 0.0)
    monkeypatch.setattr(module, "RETRY_S_MAX", 0.0)
    monkeypatch.setattr(logging.getLogger("vibemq.remote"), "disabled", True)


def test_what_was_confirmed_stays_one_history_whatever_comes_late_or_twice():
    how_long = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, print_blob=True, database=None)
    run_state_machine_as_test(Model, settings=how_long)
