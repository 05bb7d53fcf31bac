# SPDX-License-Identifier: Apache-2.0
"""What lies in the bucket, to bytes and back: FORMAT.md beside this file.  No I/O."""

import json
import re
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from vibemq.errors import RemoteError
from vibemq.storage.tail import crc32

VERSION = 1
TRAILER_BYTES = 48
KEY_MAX_BYTES = 1024  # what S3 allows
MAGIC = b"VMQR"
_TRAILER = struct.Struct(">QIHHI4x12sI4s")
_CHECK = struct.Struct(">I")
Buffer = bytes | bytearray | memoryview


class Kind(IntEnum):
    """What an object is."""

    FORMAT = 1
    CHANGE = 2
    SNAPSHOT = 3
    EPOCH = 4
    WRITE_AHEAD = 5
    SEGMENT = 6
    INDEX = 7
    TRACKING = 8
    PROBE = 9
    RETIRED = 10


class Trailer(NamedTuple):
    """What stands behind a body; ``key_number`` 0: it is not encrypted."""

    size: int
    crc: int
    kind: Kind
    key_number: int
    nonce: bytes


def seal(key: str, kind: Kind, size: int, crc: int, key_number: int = 0, nonce: bytes = bytes(12)) -> bytes:
    """What follows a body of ``size`` bytes: the object's key and its trailer."""
    name = key.encode()
    head = _TRAILER.pack(size, crc, len(name), kind, key_number, nonce, VERSION, MAGIC)
    return name + head + _CHECK.pack(crc32(name + head))


def sealed(key: str, kind: Kind, body: Buffer) -> bytes:
    """A small object, whole."""
    return bytes(body) + seal(key, kind, len(body), crc32(body) if body else 0)


def tail_bytes(key: str) -> int:
    """How long what follows the body is."""
    return len(key.encode()) + TRAILER_BYTES


def read_trailer(key: str, kind: Kind, tail: Buffer, size: int) -> Trailer:
    """Of an object of ``size`` bytes; ``tail``: its last ``tail_bytes(key)``.  Raises RemoteError."""
    name = key.encode()
    if len(tail) < TRAILER_BYTES or size < len(name) + TRAILER_BYTES:
        raise damaged(key, f"it has {size} bytes, which is too few")
    trailer = bytes(tail[-TRAILER_BYTES:])
    body, crc, key_size, found, number, nonce, version, magic = _TRAILER.unpack(trailer[: -_CHECK.size])
    if magic != MAGIC:
        raise damaged(key, "it does not end as an object of VibeMQ does: it was cut, or is somebody else's")
    if bytes(tail[-TRAILER_BYTES - len(name) : -TRAILER_BYTES]) != name or key_size != len(name):
        raise damaged(key, "it says that it is another object: it was renamed or copied")
    if crc32(name + trailer[: -_CHECK.size]) != _CHECK.unpack(trailer[-_CHECK.size :])[0]:
        raise damaged(key, "its trailer is not what was written")
    if version != VERSION:  # the check covers it, so it is not damage
        raise RemoteError(
            f"object {key} is of version {version}, known is version {VERSION}",
            hint="a newer VibeMQ wrote it: start that one",
        )
    if body != size - len(name) - TRAILER_BYTES or found != kind:
        raise damaged(key, f"its body should have {body} bytes and be of kind {found}")
    return Trailer(body, crc, kind, number, nonce)


def opened(key: str, kind: Kind, whole: Buffer) -> memoryview:
    """The body of an object that is not encrypted, or was decrypted.  Raises RemoteError where anything is wrong."""
    view = memoryview(whole)
    trailer = read_trailer(key, kind, view[-tail_bytes(key) :], len(view))
    body = view[: trailer.size]
    if (crc32(body) if trailer.size else 0) != trailer.crc:
        raise damaged(key, "its bytes are not those that were written (CRC)")
    return body


class Damaged(RemoteError):
    """An object is not what was written."""


def damaged(key: str, why: str) -> Damaged:
    return Damaged(
        f"object {key} in the bucket is damaged: {why}",
        hint="it is not used; `vibemq remote verify` lists all such objects",
    )


def from_json(key: str, body: Buffer) -> dict[str, Any]:
    """Raises RemoteError."""
    try:
        found = json.loads(bytes(body))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise damaged(key, "its body is no JSON object")
    return found


def to_json(**fields: object) -> bytes:
    return json.dumps(fields, sort_keys=True).encode()


# ---- names ----

FORMAT_KEY = "format"
#: So many write-ahead objects may be on their way at a time (remote.puts_max), and arrive in any order.
ON_THEIR_WAY_MAX = 64
RETIRED_PREFIX = "retired/"  # lists of objects that a broker is deleting
PROBE_PREFIX = "probe/"  # objects with which a start tests the store, and which it deletes
_PLACE = re.compile(
    r"streams/([0-9a-f]{16})/([0-9]{20})-([0-9]{20})-([0-9]{8})-([0-9a-f]{8})-([0-9]{13})-([0-9]{13})"
    r"(?:-([0-9]{8}))?"
    r"\.(segment|index|tracking)"
)


def change_key(number: int) -> str:
    return f"meta/{number:016}"


def snapshot_key(number: int) -> str:
    return f"meta/snapshot-{number:016}"


def epoch_key(name: str, epoch: int) -> str:
    return f"brokers/{name}/{epoch:08}"


def write_ahead_prefix(name: str, epoch: int) -> str:
    return f"wal/{name}/{epoch:08}/"


def write_ahead_key(name: str, epoch: int, number: int) -> str:
    return f"{write_ahead_prefix(name, epoch)}{number:016}"


class Place(NamedTuple):
    """A segment in the store; times in ms since 1970, never negative.

    If two have the same offsets, the one of the higher ``broker_epoch`` counts.
    """

    incarnation: str
    first: int
    next: int
    epoch: int
    seed: int  # of its checks
    oldest_ms: int
    newest_ms: int
    broker_epoch: int = 0  # of the broker that uploaded it; 0: an older version, without it in names

    def key(self, suffix: str = "segment") -> str:
        times = f"{max(0, self.oldest_ms):013}-{max(0, self.newest_ms):013}"
        times += f"-{self.broker_epoch:08}" if self.broker_epoch else ""
        place = f"{self.first:020}-{self.next:020}-{self.epoch:08}-{self.seed:08x}-{times}"
        return f"streams/{self.incarnation}/{place}.{suffix}"


def read_place(key: str) -> tuple[Place, str] | None:
    """The place that a key names, and its suffix; None where it names none."""
    match = _PLACE.fullmatch(key)
    if match is None:
        return None
    incarnation, first, after, epoch, seed, oldest_ms, newest_ms, broker_epoch, suffix = match.groups()
    numbers = int(first), int(after), int(epoch), int(seed, 16), int(oldest_ms), int(newest_ms), int(broker_epoch or 0)
    return Place(incarnation, *numbers), suffix


# ---- write-ahead objects ----


class Section(IntEnum):
    SEGMENT = 1
    CHUNKS = 2
    OFFSETS = 3
    LEDGER = 4
    SEAL = 5
    MEMBERS = 6


_SECTION = struct.Struct(">IQ")
_SEGMENT = struct.Struct(">8sQI")
_CHUNKS = struct.Struct(">8sQQQQ")
_OFFSET = struct.Struct(">Q")
_LEDGER = struct.Struct(">8sQ")
_RANGE = struct.Struct(">QQ")
CHUNKS_HEAD_BYTES = _SECTION.size + _CHUNKS.size


class SegmentBegins(NamedTuple):
    incarnation: str
    first: int
    header: memoryview
    tracking: memoryview


class Chunks(NamedTuple):
    incarnation: str
    segment: int
    position: int
    first: int
    next: int
    data: memoryview
    at: int = 0  # where the bytes begin in the object's body


class Offsets(NamedTuple):
    incarnation: str
    stored: dict[bytes, int]


class LedgerState(NamedTuple):
    """What of a queue is settled: all below ``base``, and these ranges."""

    incarnation: str
    base: int
    ranges: tuple[tuple[int, int], ...]


#: Of a queue's option `mode` (vibemq/broker/options.py).
FAN_OUTS = (1, 2)


class Members(NamedTuple):
    """The members of a fan-out queue, as `vibemq.storage.members.packed` has them."""

    incarnation: str
    packed: bytes


class Seal(NamedTuple):
    by: dict[str, Any]


Sections = SegmentBegins | Chunks | Offsets | LedgerState | Members | Seal


def _section(kind: Section, *parts: Buffer) -> bytes:
    return b"".join((_SECTION.pack(kind, sum(map(len, parts))), *parts))


def segment_section(incarnation: str, first: int, header: bytes, tracking: bytes) -> bytes:
    return _section(
        Section.SEGMENT, _SEGMENT.pack(bytes.fromhex(incarnation), first, len(header)), header, tracking
    )  # fmt: skip


def chunks_head(incarnation: str, segment: int, position: int, first: int, next_offset: int, size: int) -> bytes:
    """What stands before the ``size`` bytes of chunks."""
    place = _CHUNKS.pack(bytes.fromhex(incarnation), segment, position, first, next_offset)
    return _SECTION.pack(Section.CHUNKS, len(place) + size) + place


def offsets_section(incarnation: str, stored: dict[bytes, int]) -> bytes:
    records = [bytes([len(reference)]) + reference + _OFFSET.pack(offset) for reference, offset in stored.items()]
    return _section(Section.OFFSETS, bytes.fromhex(incarnation), *records)


def ledger_section(incarnation: str, base: int, ranges: Sequence[tuple[int, int]]) -> bytes:
    return _section(
        Section.LEDGER, _LEDGER.pack(bytes.fromhex(incarnation), base), *(_RANGE.pack(*pair) for pair in ranges)
    )


def members_section(incarnation: str, packed: bytes) -> bytes:
    return _section(Section.MEMBERS, bytes.fromhex(incarnation), packed)


def seal_section(**by: object) -> bytes:
    return _section(Section.SEAL, to_json(**by))


def sections(key: str, body: memoryview) -> Iterator[Sections]:
    """Of a write-ahead object whose CRC is right.  Raises RemoteError for what cannot be."""
    at = 0
    try:
        while at < len(body):
            kind, size = _SECTION.unpack_from(body, at)
            at += _SECTION.size
            rest = body[at : at + size]
            if len(rest) < size:
                raise damaged(key, f"a section at {at} is longer than the object")
            yield _read_section(Section(kind), rest, at)
            at += size
    except (struct.error, ValueError, IndexError) as problem:
        raise damaged(key, f"the section at {at} cannot be read: {problem}") from None


def _read_section(kind: Section, rest: memoryview, at: int) -> Sections:
    if kind == Section.SEAL:
        return Seal(json.loads(bytes(rest)))
    if kind == Section.SEGMENT:
        raw, first, size = _SEGMENT.unpack_from(rest)
        header = rest[_SEGMENT.size : _SEGMENT.size + size]
        return SegmentBegins(raw.hex(), first, header, rest[_SEGMENT.size + size :])
    if kind == Section.CHUNKS:
        raw, *numbers = _CHUNKS.unpack_from(rest)
        segment, position, first, after = numbers
        return Chunks(raw.hex(), segment, position, first, after, rest[_CHUNKS.size :], at + _CHUNKS.size)
    if kind == Section.LEDGER:
        raw, base = _LEDGER.unpack_from(rest)
        return LedgerState(raw.hex(), base, tuple(_RANGE.iter_unpack(rest[_LEDGER.size :])))  # type: ignore[arg-type]
    if kind == Section.MEMBERS:
        return Members(bytes(rest[:8]).hex(), bytes(rest[8:]))
    incarnation, stored, at = bytes(rest[:8]).hex(), {}, 8
    while at < len(rest):
        size = rest[at]
        reference = bytes(rest[at + 1 : at + 1 + size])
        stored[reference] = _OFFSET.unpack_from(rest, at + 1 + size)[0]
        at += 1 + size + _OFFSET.size
    return Offsets(incarnation, stored)
