# SPDX-License-Identifier: Apache-2.0
"""Objects of the bucket: what is written is read again, and what was touched meanwhile is named and never used."""

import random
import zlib

import pytest

from vibemq.errors import RemoteError
from vibemq.remote import objects
from vibemq.remote.objects import Chunks, Kind, LedgerState, Offsets, Place, Seal, SegmentBegins

KEY = "wal/vibemq/00000001/0000000000000007"
INCARNATION = "00ff00ff00ff00ff"


def test_a_sealed_object_is_read_again():
    for body in (b"", b"x", bytes(range(256)) * 1000):
        assert bytes(objects.opened(KEY, Kind.CHANGE, objects.sealed(KEY, Kind.CHANGE, body))) == body


def test_every_flipped_bit_and_every_cut_is_noticed():
    whole = objects.sealed(KEY, Kind.CHANGE, b"what was promised")
    for at in range(len(whole)):
        touched = bytearray(whole)
        touched[at] ^= 1 << at % 8
        if at in range(len(whole) - 24, len(whole) - 20):  # reserved
            continue
        with pytest.raises(RemoteError):
            objects.opened(KEY, Kind.CHANGE, touched)
    for size in range(len(whole)):
        with pytest.raises(RemoteError, match="damaged"):
            objects.opened(KEY, Kind.CHANGE, whole[:size])
    with pytest.raises(RemoteError, match="damaged"):
        objects.opened(KEY, Kind.CHANGE, whole + b"\0")


def test_an_object_under_another_name_or_of_another_kind_is_not_used():
    whole = objects.sealed(KEY, Kind.CHANGE, b"body")
    with pytest.raises(RemoteError, match="renamed"):
        objects.opened(KEY[:-1] + "8", Kind.CHANGE, whole)
    with pytest.raises(RemoteError, match="kind"):
        objects.opened(KEY, Kind.SNAPSHOT, whole)


def test_a_newer_version_is_refused_in_words():
    whole = bytearray(objects.sealed(KEY, Kind.CHANGE, b"body"))
    whole[-12:-8] = (2).to_bytes(4, "big")
    with pytest.raises(objects.Damaged, match="its trailer is not what was written"):
        objects.opened(KEY, Kind.CHANGE, whole)
    checked = KEY.encode() + whole[-objects.TRAILER_BYTES : -4]
    whole[-4:] = zlib.crc32(checked).to_bytes(4, "big")
    with pytest.raises(RemoteError, match="is of version 2, known is version 1"):
        objects.opened(KEY, Kind.CHANGE, whole)


def test_random_bytes_are_never_an_object():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(2000):
        with pytest.raises(RemoteError):
            objects.opened(KEY, Kind.CHANGE, chance.randbytes(chance.randrange(200)))


def test_a_place_is_read_from_its_key():
    for times in ((1_700_000_000_000, 1_700_000_000_001), (0, 9_999_999_999_999)):
        place = Place(INCARNATION, 5, 17, 3, 0xFEED, *times)
        assert objects.read_place(place.key("index")) == (place, "index")
    for key in ("streams/x/1-2-3.segment", "meta/0000000000000001", place.key() + "x", "a/" + place.key()):
        assert objects.read_place(key) is None


def test_sections_of_a_write_ahead_object_come_back_in_their_order():
    data = b"chunks" * 10
    begins = objects.segment_section(INCARNATION, 5, b"h" * 64, b"table")
    body = b"".join(
        [
            begins,
            objects.chunks_head(INCARNATION, 5, 64, 5, 9, len(data)) + data,
            objects.offsets_section(INCARNATION, {b"reader": 7, b"": 0}),
            objects.ledger_section(INCARNATION, 6, [(8, 9), (12, 20)]),
            objects.seal_section(broker="b", epoch=2),
        ]
    )
    found = list(objects.sections(KEY, memoryview(body)))
    assert found == [
        SegmentBegins(INCARNATION, 5, memoryview(b"h" * 64), memoryview(b"table")),
        Chunks(INCARNATION, 5, 64, 5, 9, memoryview(data), len(begins) + objects.CHUNKS_HEAD_BYTES),
        Offsets(INCARNATION, {b"reader": 7, b"": 0}),
        LedgerState(INCARNATION, 6, ((8, 9), (12, 20))),
        Seal({"broker": "b", "epoch": 2}),
    ]


def test_sections_that_cannot_be_are_refused_wherever_they_are_cut():
    whole = objects.offsets_section(INCARNATION, {b"reader": 7}) + objects.ledger_section(INCARNATION, 6, [(8, 9)])
    whole_sections = {0, len(objects.offsets_section(INCARNATION, {b"reader": 7})), len(whole)}
    for size in set(range(len(whole))) - whole_sections:
        with pytest.raises(RemoteError, match="section"):
            list(objects.sections(KEY, memoryview(whole[:size])))
    with pytest.raises(RemoteError, match="section"):
        list(objects.sections(KEY, memoryview(b"\0\0\0\x63" + bytes(8))))
