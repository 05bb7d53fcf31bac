# SPDX-License-Identifier: Apache-2.0
"""`vibemq remote verify` reports no fault after any history of chunks, starts, kills, prunes and restores.

A model of one remote stream: chunks go into write-ahead objects as the archiver puts them, several at once and in any
order; epochs are taken, sealed and forgotten by the product's own code, over a folder.  And histories of real brokers.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from running import ENVIRONMENT, broker
from test_deposed import options
from test_failures import Lost, connected, event, kill, whole

pytest.importorskip("obstore", reason="needs the extra remote")

from vibemq.config import Config, Remote, Server
from vibemq.remote import opening, pruning, verifying
from vibemq.remote.asking import change_body
from vibemq.remote.bucket import Bucket
from vibemq.remote.coverage import Coverage
from vibemq.remote.epochs import Epochs
from vibemq.remote.objects import (
    Chunks,
    Kind,
    SegmentBegins,
    change_key,
    chunks_head,
    segment_section,
    write_ahead_key,
)
from vibemq.remote.verifying import verify
from vibemq.storage import identity
from vibemq.storage.log import SEGMENT_HEADER_BYTES
from vibemq.storage.metadata import Metadata

INCARNATION = "00ff00ff00ff00ff"
RECORD: dict[str, Any] = {
    "slot": 0, "vhost": "/", "name": "events", "incarnation": INCARNATION, "durability": "remote",
    "arguments": "{}", "created_ms": 1, "queue": None,
}  # fmt: skip
CHUNK_BYTES = 10
EXAMPLES = int(os.environ.get("VIBEMQ_MODEL_EXAMPLES", "60")) // 6
STEPS = 12
SEEDS = (1, 2)
TURNS = 7


class History(RuleBasedStateMachine):
    """`self.upto`: below it the stream has offsets, one for each chunk; `self.stored`: below it segments have them."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = TemporaryDirectory()
        self.root = Path(self.temporary.name)
        self.url = f"file://{self.root}/bucket"
        self.directories = 0
        self.upto = self.stored = self.epoch = self.next = self.first = 0
        self.begun: dict[int, int] = {}  # segment -> the object in which its chunks begin
        self.segment = 0
        self.start(is_empty=True)
        asyncio.run(self._create_stream())

    async def _create_stream(self) -> None:
        bucket = Bucket(Remote(url=self.url))
        metadata = Metadata(str(self.folder / "meta.db"))
        number = metadata.binding().number + 1  # type: ignore[union-attr]
        changes = [["insert", "streams", RECORD]]
        body = change_body(changes, broker="vibemq", epoch=self.epoch)
        await bucket.create(change_key(number), Kind.CHANGE, body.encode())
        metadata.apply(number, changes, self.epoch)
        metadata.close()

    def teardown(self) -> None:
        self.temporary.cleanup()

    # ---- starts and ends ----

    @rule(is_empty=st.booleans())
    def start(self, is_empty: bool) -> None:
        """Start with the same data directory or, as after a lost machine, with an empty one."""
        if is_empty:
            self.directories += 1
            self.folder = self.root / f"data-{self.directories}"
            self.folder.mkdir()
            identity.make(str(self.folder))
        config = Config(server=Server(data_dir=str(self.folder)), remote=Remote(url=self.url))
        asyncio.run(self._start(config))
        self.next = self.first = 0
        self.begun = {}

    async def _start(self, config: Config) -> None:
        """Restore without logs, because the objects' bytes are no log."""
        self.epoch = await opening.open_bucket(config, lambda metadata: None, lambda metadata: None)

    @precondition(lambda self: self.next)
    @rule()
    def forget_earlier(self) -> None:
        """Put all messages of earlier epochs into this one's objects, or into segments."""
        self.put([])
        asyncio.run(Epochs(Bucket(Remote(url=self.url)), "vibemq", str(self.folder)).forget_before(self.epoch))

    # ---- publishing ----

    def sections(self, count: int) -> bytes:
        """Publish the next chunks; an epoch begins with the part of the segment that is not in the store."""
        made = b""
        if self.segment not in self.begun:
            made += segment_section(INCARNATION, self.segment, b"h" * SEGMENT_HEADER_BYTES, b"")
            self.begun[self.segment] = self.next
            first = self.segment
        else:
            first = self.upto
        self.upto += count
        if self.upto > first:
            at, size = SEGMENT_HEADER_BYTES + (first - self.segment) * CHUNK_BYTES, (self.upto - first) * CHUNK_BYTES
            made += chunks_head(INCARNATION, self.segment, at, first, self.upto, size) + b"c" * size
        return made

    def put(self, counts: list[int]) -> None:
        """Create an object for each, in the order of their numbers."""
        asyncio.run(self._put([self.sections(count) for count in counts or [0]]))

    async def _put(self, bodies: list[bytes]) -> None:
        bucket = Bucket(Remote(url=self.url))
        for body in bodies:
            await bucket.create(write_ahead_key("vibemq", self.epoch, self.next), Kind.WRITE_AHEAD, body)
            self.next += 1

    @rule(counts=st.lists(st.integers(1, 5), min_size=1, max_size=4))
    def publish(self, counts: list[int]) -> None:
        self.put(counts)

    @precondition(lambda self: self.next)
    @rule(counts=st.lists(st.integers(1, 5), min_size=2, max_size=3), is_empty=st.booleans())
    def killed_with_a_gap(self, counts: list[int], is_empty: bool) -> None:
        """Create an object behind a missing one: its messages were never confirmed.  The next start follows."""
        before = self.upto
        bodies = [self.sections(count) for count in counts]
        self.next += 1
        asyncio.run(self._put(bodies[1:]))
        if is_empty:  # else the log on its disk has them
            self.upto = before
        self.start(is_empty)

    # ---- deleting ----

    @precondition(lambda self: self.upto > self.segment and self.segment in self.begun)
    @rule()
    def close_segment(self) -> None:
        """Upload the segment, and begin the next one."""
        self.segment = self.stored = self.upto
        self.put([1])

    @rule()
    def prune(self) -> None:
        """Delete objects from the front, except the newest, as the archiver does."""
        needed = min(self.begun.get(self.segment, self.next), self.next - 1)
        gone = [write_ahead_key("vibemq", self.epoch, number) for number in range(self.first, needed)]
        if gone:
            asyncio.run(Bucket(Remote(url=self.url)).delete(gone))
            self.first = needed

    @rule(count=st.integers(1, 4))
    def change_metadata(self, count: int) -> None:
        metadata = Metadata(str(self.folder / "meta.db"))
        bound = metadata.binding()
        assert bound is not None
        asyncio.run(self._change(bound.number, count))
        for number in range(bound.number + 1, bound.number + count + 1):
            metadata.apply(number, [], self.epoch)
        metadata.close()

    async def _change(self, number: int, count: int) -> None:
        """Create empty changes of different sizes, so that not all of them count as fences."""
        bucket = Bucket(Remote(url=self.url))
        for one in range(number + 1, number + count + 1):
            body = change_body([], broker="vibemq", epoch=self.epoch, more="x" * 600 * (one % 2))
            await bucket.create(change_key(one), Kind.CHANGE, body.encode())

    @rule()
    def prune_command(self) -> None:
        async def prune() -> None:
            bucket = Bucket(Remote(url=self.url))
            await pruning.delete(bucket, (await pruning.superfluous(bucket)).keys)

        asyncio.run(prune())

    # ---- invariants ----

    @invariant()
    def nothing_is_wrong(self) -> None:
        verdict = asyncio.run(verify(Bucket(Remote(url=self.url)), is_quick=False))
        problems = [finding.line() for finding in verdict.findings if finding.is_problem]
        assert not problems, "\n".join(problems)


async def bring_back_none(*_: Any) -> list[str]:
    return []


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> None:
    async def prove(_: Bucket) -> None:
        """The proof of the store has tests of its own."""

    monkeypatch.setattr(opening, "prove_create_only", prove)
    monkeypatch.setattr(opening, "restore_logs", bring_back_none)
    monkeypatch.setattr(opening, "SNAPSHOT_EACH", 3)
    monkeypatch.setattr(opening, "SNAPSHOTS_KEPT", 2)
    monkeypatch.setattr(verifying, "LOOK_AGAIN_S", 0.0)


def test_verify_finds_nothing_wrong_after_any_history_of_starts_prunes_and_restores(model):
    how_long = settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, print_blob=True, database=None,
        phases=[Phase.generate],
    )  # fmt: skip
    run_state_machine_as_test(History, settings=how_long)


def test_verify_finds_nothing_wrong_after_a_kill_where_earlier_objects_were_deleted(model):
    """The new broker's first seal goes before them, and only the second tells that a gap behind them is one."""
    history = History()
    for counts in ([4, 1], [3]):
        history.publish(counts)
        history.close_segment()
        history.prune()
    history.killed_with_a_gap([2, 2], is_empty=True)
    history.nothing_is_wrong()
    history.teardown()


@pytest.mark.parametrize(
    "version, at, size, is_suspect",
    [(1, 48, 8, True), (2, 44, 4, True), (2, 48, 8, False)],
    ids=["version 1", "version 2", "version 2, where times went back"],
)
def test_only_a_segment_behind_one_that_was_given_up_may_leave_a_gap(version, at, size, is_suspect):
    header = bytearray(b"VMQS" + version.to_bytes(4) + bytes(SEGMENT_HEADER_BYTES - 8))
    header[at : at + size] = (64).to_bytes(size)
    covered = Coverage()
    for first, begins_with in ((0, bytes(SEGMENT_HEADER_BYTES)), (20, header)):
        covered.add(SegmentBegins(INCARNATION, first, memoryview(begins_with), memoryview(b"")))
        covered.add(Chunks(INCARNATION, first, SEGMENT_HEADER_BYTES, first, first + 10, memoryview(b"chunk")))
    assert (covered.hole(INCARNATION, 0) == "") == is_suspect


def verified(bucket: Path) -> None:
    command = [sys.executable, "-m", "vibemq.cli", "remote", "verify", "--url", f"file://{bucket}"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip().splitlines()[-1].startswith("all is well"), done.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_verify_finds_nothing_wrong_between_real_starts_kills_and_restores(tmp_path, seed):
    print("seed", seed)
    chance, bucket, machine, count = random.Random(seed), tmp_path / "bucket", 0, 0
    for _ in range(TURNS):
        end = chance.choice(["stopped", "stopped", "killed", "lost"])
        folder = tmp_path / f"data-{machine}"
        more = ["--set", "remote.segment_age_s=10"]
        try:
            with broker(folder, *options(bucket), *more, workers=1) as running:
                with connected(running) as connection:
                    connection.create("events", exist_ok=True)
                    with connection.publisher("events", "ref") as publisher:
                        for _ in range(chance.randrange(4)):
                            publisher.publish([event(number) for number in range(count, count + 50)])
                            publisher.flush()
                            count += 50
                    whole(connection, count)
                if end != "stopped":
                    kill(running)
                    raise Lost
        except Lost:
            if end == "lost":
                shutil.rmtree(folder)
                machine += 1
        print(end, count)
        verified(bucket)
