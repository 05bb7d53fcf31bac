# SPDX-License-Identifier: Apache-2.0
"""What stands in the files beside a segment, as far as it can be told without the segment (csrc/log/FORMAT.md)."""

import struct

from vibemq.remote.objects import Place
from vibemq.storage.tail import crc32

_INDEX_HEADER = struct.Struct(">4sIQI8xI")
_INDEX_RECORD_BYTES = 32
_TRACKING_HEADER = struct.Struct(">4sIQI")
_CHECK = struct.Struct(">I")


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
    if version != 1:
        return f"it is of version {version}, known is version 1"
    return f"it belongs before offset {segment}, and its name says {place.next}" if segment != place.next else ""
