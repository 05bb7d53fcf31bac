# SPDX-License-Identifier: Apache-2.0
"""The reserve: at most half of the floor, given back in pieces to who meets a full disk, filled when there is room."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vibemq.broker import disk
from vibemq.broker.disk import PIECE_BYTES, RESERVE_BYTES, TRANSACTION_BYTES, Reserve
from vibemq.errors import StorageError
from vibemq.storage.metadata import Metadata

FLOOR_BYTES = 8 * PIECE_BYTES
SMALL_PIECE_BYTES = 4096  # so many of them that those who take them meet


class Disk:
    """What is said to be free, less what the reserve takes, as on a real one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = 100 * PIECE_BYTES
        self.reserve = Reserve(str(folder), FLOOR_BYTES)
        monkeypatch.setattr(disk, "free_bytes", lambda _: self.free - self.reserve.size_bytes)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


def full() -> StorageError:
    return StorageError("ERR_DISK_FULL", "no space left on the device")


def test_it_is_half_of_the_floor_and_never_more_than_16_mib(tmp_path: Path, small: Disk) -> None:
    assert small.reserve.fill()
    assert small.reserve.size_bytes == FLOOR_BYTES // 2
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= FLOOR_BYTES // 2, "its room is taken"
    assert Reserve(str(tmp_path), 1 << 40).bytes_max == RESERVE_BYTES
    assert Reserve(str(tmp_path), 0).fill(), "without a floor there is none"


def test_it_is_not_filled_where_the_disk_would_be_below_the_floor_then(small: Disk) -> None:
    small.free = FLOOR_BYTES + FLOOR_BYTES // 2
    assert not small.reserve.fill()
    assert small.reserve.size_bytes == 0
    small.free += 1
    assert small.reserve.fill()


def test_a_write_that_meets_a_full_disk_is_tried_again_with_a_piece_more_each_time(small: Disk) -> None:
    small.reserve.fill()
    before, tries = small.reserve.size_bytes, []

    def write() -> str:
        tries.append(small.reserve.size_bytes)
        if len(tries) < 3:
            raise full() if len(tries) == 1 else OSError(errno.ENOSPC, "full")
        return "written"

    assert small.reserve.retry(write) == "written"
    assert tries == [before, before - PIECE_BYTES, before - 2 * PIECE_BYTES]
    assert small.reserve.fill()
    assert small.reserve.size_bytes == before


def test_when_it_is_used_up_the_error_is_the_writers(small: Disk) -> None:
    small.reserve.fill()

    def write() -> None:
        raise full()

    with pytest.raises(StorageError, match="no space left"):
        small.reserve.retry(write)
    assert small.reserve.size_bytes == 0
    assert not small.reserve.release()


def test_other_errors_cost_none_of_it(small: Disk) -> None:
    small.reserve.fill()

    def write() -> None:
        raise StorageError("ERR_IO", "the disk is broken")

    with pytest.raises(StorageError):
        small.reserve.retry(write)
    assert small.reserve.size_bytes == FLOOR_BYTES // 2


def test_a_transaction_gets_what_it_may_need(small: Disk) -> None:
    small.reserve.fill()
    small.reserve.make_room()
    assert small.reserve.size_bytes == FLOOR_BYTES // 2, "there is room without it"
    small.free = small.reserve.size_bytes + TRANSACTION_BYTES - 1
    small.reserve.make_room()
    assert small.reserve.size_bytes == FLOOR_BYTES // 2 - PIECE_BYTES


def test_a_transaction_costs_one_piece_though_nothing_becomes_free_by_it(
    small: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.reserve.fill()
    monkeypatch.setattr(disk, "free_bytes", lambda _: 0)
    small.reserve.make_room()
    assert small.reserve.size_bytes == FLOOR_BYTES // 2 - PIECE_BYTES


def test_many_who_release_at_once_get_each_piece_once(
    tmp_path: Path, small: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.reserve.fill()
    monkeypatch.setattr(disk, "PIECE_BYTES", SMALL_PIECE_BYTES)

    def release_all(_: int) -> int:
        reserve, pieces = Reserve(str(tmp_path), FLOOR_BYTES), 0
        while reserve.release():
            pieces += 1
        return pieces

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(release_all, range(4))) == FLOOR_BYTES // 2 // SMALL_PIECE_BYTES


def test_a_transaction_of_the_metadata_that_meets_a_full_disk_is_done_again(
    tmp_path: Path, small: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.reserve.fill()
    metadata = Metadata(str(tmp_path / "meta.db"))
    metadata.retry = small.reserve.retry
    metadata.create_stream("/", "s", {}, "os", 10)
    pages = metadata._connection().execute("PRAGMA page_count").fetchone()[0]
    metadata._connection().execute(f"PRAGMA max_page_count = {pages}")  # SQLITE_FULL from here on

    def release() -> bool:
        metadata._connection().execute("PRAGMA max_page_count = 100000")
        return Reserve.release(small.reserve)

    monkeypatch.setattr(small.reserve, "release", release)
    name = "p" * 20_000  # more than the pages that there are hold
    assert metadata.set_policy("/", name, "x", {"max-age": "1h"})
    assert [policy.name for policy in metadata.policies()] == [name]
    assert small.reserve.size_bytes == FLOOR_BYTES // 2 - PIECE_BYTES
    metadata.close()
