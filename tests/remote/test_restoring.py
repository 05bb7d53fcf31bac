# SPDX-License-Identifier: Apache-2.0
"""What is put together of a bucket that a broker was killed over, without a broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

import vibemq.storage.cold as cold
from vibemq.remote.objects import LedgerState, Place
from vibemq.remote.restoring import Restored

INCARNATION = "00112233445566ff"


class Segments:
    """A bucket of these, all of a size, without publishing ids."""

    async def plain_size(self, *_: object) -> int:
        return 1000

    async def read(self, *_: object) -> memoryview:
        return memoryview(b"")


def restored(directory: str, is_queue: bool, *ranges: tuple[int, int]) -> Restored:
    record = SimpleNamespace(
        name="tasks",
        incarnation=INCARNATION,
        directory=directory,
        durability="remote",
        queue=SimpleNamespace() if is_queue else None,
    )
    made = Restored(record, is_whole=True)
    places = {Place(INCARNATION, first, after, 1, 7, 0, 0): 1000 for first, after in ranges}
    asyncio.run(made.take_places(Segments(), places, asyncio.Semaphore(1)))
    return made


@pytest.mark.parametrize("base", [300, 350, 400])
def test_segments_of_a_queue_that_were_settled_are_not_missed_and_those_left_of_them_are_not_brought_back(
    tmp_path, caplog, base
):
    """As a broker leaves them that was killed while it deleted some of the first three."""
    directory = tmp_path / "log"
    made = restored(str(directory), True, (0, 100), (300, 400), (400, 500))
    made.lay(LedgerState(INCARNATION, base, ()))
    made.finish()
    assert "missing" not in caplog.text
    assert [stub.first for stub in cold.stubs(str(directory))] == ([400] if base == 400 else [300, 400])


@pytest.mark.parametrize("is_queue", [True, False])
def test_segments_that_somebody_may_need_are_missed_by_name(tmp_path, caplog, is_queue):
    made = restored(str(tmp_path / "log"), is_queue, (0, 100), (300, 400))
    made.lay(LedgerState(INCARNATION, 120, ()))
    made.finish()
    since = 120 if is_queue else 100
    assert f"segments with offsets {since} to 299 are missing in the bucket" in caplog.text
