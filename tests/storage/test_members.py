# SPDX-License-Identifier: Apache-2.0
"""The file of a fan-out's members, damaged, and many ranges in a record."""

from __future__ import annotations

import logging
import os
import random
import struct
import zlib

import pytest

from vibemq.errors import StorageError
from vibemq.storage.members import AWAY, FREE, LEFT, RANGES_MAX, SUBSCRIBED, VERSION, MemberTable, prepare

RECORD_BYTES = 1024
NONE = (1 << 64) - 1
SEED = int(os.environ.get("VIBEMQ_DAMAGE_SEED") or random.randrange(1 << 32))
#: Bytes of a record with its words, its name and its ranges; the bytes behind are zeros.
USED = (*range(128), *range(128, 140), *range(384, 384 + 3 * 16))


@pytest.fixture
def path(tmp_path):
    """The file with a member that is away, one that is subscribed, and one that no coordinator has admitted."""
    table = MemberTable(str(tmp_path), True)
    for name, is_away in (("audit", True), ("there", False)):
        number = table.add(1, 7, name, 600)
        table.keep(number, 500, 480, [(100, 110), (200, 201)], [(300, 400)], is_away)
    table.add(1, 7, "", 0)
    found = tmp_path / "members"
    data = bytearray(found.read_bytes())
    for number in (1, 2):  # as the coordinator stores positions
        struct.pack_into("=QQQQ", data, number * RECORD_BYTES + 72, 100, ~100 & NONE, 700, ~700 & NONE)
    found.write_bytes(data)
    return found


def records(path):
    return MemberTable(str(path.parent), False).all()


def flipped(path, at, bit):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def test_each_flipped_bit_of_the_header_keeps_all_members(path):
    whole, before = path.read_bytes(), records(path)
    for at in range(12):
        for bit in range(8):
            flipped(path, at, bit)
            assert records(path) == before, (at, bit)
            assert path.read_bytes() == whole, "the header is written again"


def test_a_newer_version_is_refused_and_the_file_stays_as_it_is(path):
    magic = struct.unpack("=I", path.read_bytes()[:4])[0]
    check = zlib.crc32(struct.pack(">II", magic, VERSION + 1))
    newer = struct.pack("=III", magic, VERSION + 1, check) + path.read_bytes()[12:]
    path.write_bytes(newer)
    with pytest.raises(StorageError, match=f"is of version {VERSION + 1}"):
        records(path)
    assert path.read_bytes() == newer


@pytest.mark.parametrize("number", [1, 2], ids=["away", "subscribed"])
def test_each_flipped_bit_of_a_record_leaves_the_member_what_it_is_owed(path, number):
    chance = random.Random(SEED)
    whole, before = path.read_bytes(), records(path)
    low_and_cursor = range(9 * 8, 13 * 8)
    for at in (*USED, *chance.sample(range(RECORD_BYTES), 40)):
        flipped(path, number * RECORD_BYTES + at, chance.randrange(8))
        prepare(str(path.parent), None)
        found = records(path)[number - 1]
        if at in low_and_cursor:
            assert found.low <= before[number - 1].low and found.cursor <= before[number - 1].cursor, (SEED, at)
            found = found._replace(low=before[number - 1].low, cursor=before[number - 1].cursor)
        assert found == before[number - 1], f"byte {at}, seed {SEED}"
        path.write_bytes(whole)


def test_a_flipped_bit_makes_no_member_of_a_free_record(path):
    whole, before = path.read_bytes(), records(path)
    for at in range(8):
        flipped(path, 4 * RECORD_BYTES + at, at)
        assert records(path) == before
        path.write_bytes(whole)


@pytest.mark.parametrize("state", [FREE, SUBSCRIBED, AWAY, LEFT, 6])
@pytest.mark.parametrize("word", [0, 4, 7, 13], ids=["state", "skip below", "since", "admitted"])
def test_a_record_with_more_damage_is_a_member_that_is_owed_all(path, word, state):
    data = bytearray(path.read_bytes())
    struct.pack_into("=Q", data, RECORD_BYTES + word * 8, state * 0x1100 + 0x300030)
    path.write_bytes(data)
    prepare(str(path.parent), None)
    found = records(path)[0]
    assert (found.index, found.state, found.is_admitted, found.is_whole) == (1, AWAY, True, False)
    assert (found.start, found.skip_below, found.low) == (0, 0, 0)


def test_only_records_without_a_place_and_those_that_unsubscribed_are_freed(path, caplog):
    caplog.set_level(logging.WARNING)
    MemberTable(str(path.parent), False).leave(2)
    assert [found.state for found in records(path)] == [AWAY, LEFT, SUBSCRIBED]
    prepare(str(path.parent), None)
    assert [(found.index, found.state) for found in records(path)] == [(1, AWAY)]
    assert caplog.text == ""


def joined_one_by_one(ranges, most):
    ranges = list(ranges)
    while len(ranges) > most:
        _, at = min((ranges[i + 1][0] - ranges[i][1], i) for i in range(len(ranges) - 1))
        kind = min(ranges[at][2], ranges[at + 1][2])
        ranges[at : at + 2] = [(ranges[at][0], ranges[at + 1][1], kind)]
    return ranges


def test_of_more_ranges_than_fit_the_nearest_are_joined(tmp_path):
    chance = random.Random(SEED)
    table = MemberTable(str(tmp_path), True)
    number = table.add(1, 7, "audit", 600)
    ends = sorted(chance.sample(range(100_000), 400))
    ranges = [(first, end, chance.randrange(2)) for first, end in zip(ends[::2], ends[1::2], strict=True)]
    table.keep(
        number,
        0,
        0,
        [(first, end) for first, end, kind in ranges if not kind],
        [(first, end) for first, end, kind in ranges if kind],
    )
    found = table.read(number)
    assert sorted([(*each, 0) for each in found.copies] + [(*each, 1) for each in found.shared]) == joined_one_by_one(
        ranges, RANGES_MAX
    ), f"seed {SEED}"


def test_a_record_of_thirty_thousand_ranges_is_stored_in_one_pass(tmp_path):
    table = MemberTable(str(tmp_path), True)
    number = table.add(1, 7, "audit", 600)
    table.keep(number, 0, 0, [(at, at + 1) for at in range(0, 60_000, 2)], [])
    assert len(table.read(number).copies) == RANGES_MAX
