# SPDX-License-Identifier: Apache-2.0
"""`vibemq remote verify` after random histories of starts, kills, deletions, prunes and restores: no object is missing.

The bucket is a folder, and the steps are those of the broker's own code, in this process. Write-ahead objects hold
stored offsets only, so that any of them may be deleted as the archiver deletes them: from the front.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vibemq import config
from vibemq.remote import opening, pruning, verifying
from vibemq.remote.bucket import Bucket
from vibemq.remote.epochs import Epochs
from vibemq.remote.objects import ON_THEIR_WAY_MAX, Kind, offsets_section, write_ahead_key
from vibemq.remote.verifying import verify
from vibemq.storage import identity
from vibemq.storage.metadata import Metadata

pytest.importorskip("obstore", reason="needs the extra remote")
pytestmark = pytest.mark.timeout(300)

EXAMPLES = 25
STEPS = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 5)),
    st.tuples(st.just("delete_front"), st.integers(1, 5)),
    st.tuples(st.sampled_from(["start", "forget", "prune", "restore"]), st.just(0)),
)


class History:
    """One broker's bucket, from its first start on."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lives, self.next, self.starts = folder, 0, 0, itertools.count()
        (folder / "bucket").mkdir()
        self.remote = config.Remote(url=f"file://{folder}/bucket")
        self.bucket = Bucket(self.remote)
        self.restore(0)

    @property
    def data(self) -> Path:
        return self.folder / f"data-{self.lives}"

    @property
    def epochs(self) -> Epochs:
        return Epochs(self.bucket, self.remote.name, str(self.data))

    def restore(self, _: int) -> None:
        """Lose the machine, and start with an empty data directory."""
        self.lives += 1
        self.data.mkdir()
        identity.make(str(self.data))
        self.start(0)

    def start(self, _: int) -> None:
        def change(metadata: Metadata) -> None:
            metadata.add_vhost(f"start-{next(self.starts)}")

        options = {("remote", "url"): (self.remote.url, "test"), ("server", "data_dir"): (str(self.data), "test")}
        configuration = config.load(environ={}, overrides=options)
        self.epoch = asyncio.run(opening.open_bucket(configuration, lambda _: None, change))
        self.next = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            self._create(self.next)
            self.next += 1

    def _create(self, number: int) -> None:
        key = write_ahead_key(self.remote.name, self.epoch, number)
        body = offsets_section("ab" * 8, {b"reader": number})
        asyncio.run(self.bucket.create(key, Kind.WRITE_AHEAD, body))

    def delete_front(self, count: int) -> None:
        async def delete() -> None:
            there = [one.key for one in await self.epochs.objects() if one.epoch == self.epoch]
            await self.bucket.delete(there[:-1][:count])

        asyncio.run(delete())

    def forget(self, _: int) -> None:
        if self.next:
            asyncio.run(self.epochs.forget_before(self.epoch))

    def prune(self, _: int) -> None:
        async def prune() -> None:
            await pruning.delete(self.bucket, (await pruning.superfluous(self.bucket)).keys)

        asyncio.run(prune())


@settings(max_examples=EXAMPLES, deadline=None, print_blob=True)
@given(steps=st.lists(STEPS, max_size=12))
def test_verify_reports_no_missing_object_in_an_undamaged_bucket(steps: list[tuple[str, int]]) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        history = History(folder)
        for step, count in steps:
            getattr(history, step)(count)
        for is_quick in (True, False):
            verdict = asyncio.run(verify(history.bucket, is_quick))
            assert [finding.line() for finding in verdict.findings if finding.is_problem] == []
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("is_started_again", [False, True])
def test_verify_names_an_object_that_was_deleted_from_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_started_again: bool
) -> None:
    monkeypatch.setattr(verifying, "LOOK_AGAIN_S", 0.0)
    history = History(tmp_path)
    history.write(9 + ON_THEIR_WAY_MAX)  # with fewer behind it, it may never have been created
    history.delete_front(3)
    key = write_ahead_key("vibemq", history.epoch, 6)
    asyncio.run(history.bucket.delete([key]))
    if is_started_again:
        history.start(0)
    verdict = asyncio.run(verify(history.bucket, is_quick=False))
    assert [finding.key for finding in verdict.findings if finding.is_problem] == [key]
