# SPDX-License-Identifier: Apache-2.0
"""What stands in the files beside a segment, as far as it can be told without the segment (csrc/log/FORMAT.md)."""

import struct

from vibemq.remote.objects import Place
from vibemq.storage.tail import crc32

_INDEX_HEADER = struct.Struct(">4sIQI8xI")
_INDEX_RECORD_BYTES = 32
_TRACKING_HEADER = struct.Struct(">4sIQI")
_TRACKING_VERSIONS = (1, 2)
_CHECK = struct.Struct(">I")
_INDEX_RECORD = struct.Struct(">QqIII")
_SEED = struct.Struct(">I")
INDEX_HEADER_BYTES = _INDEX_HEADER.size
SEGMENT_HEADER_BYTES = 64
#: A chunk's header (csrc/log/FORMAT.md).
_CHUNK = struct.Struct(">BBHIqIIQIIIB3s")
_CHUNK_MAGIC = 0x50


def index_fault(place: Place, body: memoryview) -> tuple[str, int]:
    """What is wrong with a segment's index, or ""; and how many chunks it knows."""
    if len(body) < _INDEX_HEADER.size:
        return f"it has {len(body)} bytes, which is no header", 0
    magic, version, first, seed, check = _INDEX_HEADER.unpack_from(body)
    records, rest = divmod(len(body) - _INDEX_HEADER.size, _INDEX_RECORD_BYTES)
    if magic != b"VMQI" or crc32(body[: _INDEX_HEADER.size - _CHECK.size]) != check:
        return "its header is not that of an index", records
    if version != 1:
        return f"it is of version {version}, known is version 1", records
    if (first, seed) != (place.first, place.seed):
        return f"it belongs to another segment: that of offset {first}, seed {seed:08x}", records
    return (f"it ends within a record: {rest} bytes are too many" if rest else ""), records


def tracking_fault(place: Place, body: memoryview) -> str:
    """What is wrong with the table behind a segment, or ""; an empty one says that none was kept."""
    if not len(body):
        return ""
    if len(body) < _TRACKING_HEADER.size + _CHECK.size:
        return f"it has {len(body)} bytes, which is no table"
    magic, version, segment, _ = _TRACKING_HEADER.unpack_from(body)
    if magic != b"VMQP" or crc32(body[: -_CHECK.size]) != _CHECK.unpack(body[-_CHECK.size :])[0]:
        return "it is no table of publishing ids, or not the one that was written (CRC)"
    if version not in _TRACKING_VERSIONS:
        return f"it is of version {version}, known is version {_TRACKING_VERSIONS[-1]}"
    return f"it belongs before offset {segment}, and its name says {place.next}" if segment != place.next else ""


class IndexMaker:
    """Builds a segment's index from its bytes, which are given in order."""

    def __init__(self, place: Place) -> None:
        self._seed = _SEED.pack(place.seed)
        self._next = SEGMENT_HEADER_BYTES  # position of the next chunk
        self._rest = b""  # the beginning of a header from the piece before
        head = _INDEX_HEADER.pack(b"VMQI", 1, place.first, place.seed, 0)[: -_CHECK.size]
        self.body = bytearray(head + _CHECK.pack(crc32(head)))

    def take(self, at: int, piece: memoryview) -> bool:
        """Take the bytes from position ``at`` on; return False at the first damaged chunk header."""
        data = self._rest + bytes(piece)
        at -= len(self._rest)
        while self._next + _CHUNK.size <= at + len(data):
            found = _CHUNK.unpack_from(data, self._next - at)
            magic, _, _, records, timestamp_ms, _, _, chunk_id, _, size, trailer, filtered, check = found
            header = data[self._next - at : self._next - at + _CHUNK.size - len(check)] + bytes(len(check))
            if magic != _CHUNK_MAGIC or crc32(self._seed + header) >> 8 != int.from_bytes(check):
                return False
            whole = _CHUNK.size + filtered + size + trailer
            record = _INDEX_RECORD.pack(chunk_id, timestamp_ms, self._next, whole, records)
            self.body += record + _CHECK.pack(crc32(self._seed + record))
            self._next += whole
        self._rest = data[max(0, self._next - at) :]
        return True
