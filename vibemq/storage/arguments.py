# SPDX-License-Identifier: Apache-2.0
"""What the arguments of a stream mean for its log: sizes, ages and durability.

Stream clients send arguments as text (max-age = "12h"); the log wants numbers.  The rules
are those of RabbitMQ Streams, so that a client's set-up code works unchanged.
"""

import re
from collections.abc import Mapping
from typing import TypedDict

from vibemq.errors import LimitExceeded

MAX_LENGTH_BYTES = "max-length-bytes"
MAX_AGE = "max-age"
LOCAL_MAX_LENGTH_BYTES = "local-max-length-bytes"  # of what the object store has as well
LOCAL_MAX_AGE = "local-max-age"
SEGMENT_SIZE_BYTES = "stream-max-segment-size-bytes"
FILTER_SIZE_BYTES = "stream-filter-size-bytes"
CHUNK_MESSAGES = "stream-max-chunk-messages"
READ_UNCONFIRMED = "read-unconfirmed"  # consumers do not wait until publishers could be confirmed

SEGMENT_SIZE_BYTES_MAX = 3_000_000_000  # positions fit 32 bits with one chunk to spare
FILTER_SIZE_BYTES_MIN, FILTER_SIZE_BYTES_MAX = 16, 255
FILTER_SIZE_BYTES_DEFAULT = 16
CHUNK_MESSAGES_MAX = 2048  # CHUNK_MESSAGES_MAX of csrc/log/chunk.h
_UNITS_MS = {
    "Y": 365 * 86_400_000,
    "M": 30 * 86_400_000,
    "D": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
}
_MAX_AGE = re.compile(r"([0-9]{1,9})([YMDhms])")
_AGE_MS_MAX = 2**63 - 1  # the log's clock has no later time; a longer age keeps everything just as well
LENGTH_BYTES_MAX = 2**64 - 1  # .NET clients have an unsigned type for it
_BYTES = re.compile(r"[0-9]{1,20}")


class LogOptions(TypedDict):
    """The keyword arguments of storage.log.create and storage.log.recover; 0 means default or no limit."""

    segment_bytes_max: int
    retention_bytes_max: int
    retention_age_ms_max: int
    local_bytes_max: int
    local_age_ms_max: int
    durability: str
    filter_size_bytes: int
    chunk_messages_max: int
    read_unconfirmed: bool


def max_age_ms(text: str, name: str = MAX_AGE) -> int:
    """`12h` is 43200000.  Raises LimitExceeded for anything but a positive number and one unit."""
    match = _MAX_AGE.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise LimitExceeded(f"{name} must be a positive integer and one of {' '.join(_UNITS_MS)}, but is {text!r}")
    return min(int(match[1]) * _UNITS_MS[match[2]], _AGE_MS_MAX)


def size_bytes(name: str, text: str, most: int, least: int = 0) -> int:
    """A size in bytes, or a count, ``least`` to ``most``.  Raises LimitExceeded."""
    if _BYTES.fullmatch(text) is None or not least <= int(text) <= most:
        raise LimitExceeded(f"{name} must be an integer from {least} to {most}, but is {text!r}")
    return int(text)


def flag(name: str, text: str) -> bool:
    """``true`` or ``false``.  Raises LimitExceeded."""
    if text not in ("true", "false"):
        raise LimitExceeded(f"{name} must be true or false, but is {text!r}")
    return text == "true"


def log_options(
    arguments: Mapping[str, str], durability: str, segment_size_bytes: int,
    chunk_messages_max: int = CHUNK_MESSAGES_MAX, local_bytes_max: int = 0, local_age_ms_max: int = 0,
) -> LogOptions:  # fmt: skip
    """How a stream with these arguments is kept; all from ``segment_size_bytes`` on are for those that do not say."""
    segment = size_bytes(SEGMENT_SIZE_BYTES, arguments.get(SEGMENT_SIZE_BYTES, "0"), SEGMENT_SIZE_BYTES_MAX)
    return {
        "segment_bytes_max": segment or segment_size_bytes,
        "retention_bytes_max": size_bytes(MAX_LENGTH_BYTES, arguments.get(MAX_LENGTH_BYTES, "0"), LENGTH_BYTES_MAX),
        "retention_age_ms_max": max_age_ms(arguments[MAX_AGE]) if MAX_AGE in arguments else 0,
        "local_bytes_max": size_bytes(
            LOCAL_MAX_LENGTH_BYTES, arguments.get(LOCAL_MAX_LENGTH_BYTES, str(local_bytes_max)), LENGTH_BYTES_MAX
        ),
        "local_age_ms_max": max_age_ms(arguments[LOCAL_MAX_AGE], LOCAL_MAX_AGE)
        if LOCAL_MAX_AGE in arguments
        else local_age_ms_max,
        "durability": durability,
        "filter_size_bytes": size_bytes(
            FILTER_SIZE_BYTES,
            arguments.get(FILTER_SIZE_BYTES, str(FILTER_SIZE_BYTES_DEFAULT)),
            FILTER_SIZE_BYTES_MAX,
            FILTER_SIZE_BYTES_MIN,
        ),
        "chunk_messages_max": size_bytes(
            CHUNK_MESSAGES, arguments.get(CHUNK_MESSAGES, str(chunk_messages_max)), CHUNK_MESSAGES_MAX, 1
        ),
        "read_unconfirmed": flag(READ_UNCONFIRMED, arguments.get(READ_UNCONFIRMED, "false")),
    }


def has_retention(arguments: Mapping[str, str], local_bytes_max: int = 0, local_age_ms_max: int = 0) -> bool:
    """Whether anything of such a stream is ever dropped, or (by the last two, where it does not say) goes from here."""
    return (
        MAX_AGE in arguments
        or arguments.get(MAX_LENGTH_BYTES, "0") != "0"
        or LOCAL_MAX_AGE in arguments
        or local_age_ms_max > 0
        or arguments.get(LOCAL_MAX_LENGTH_BYTES, str(local_bytes_max)) != "0"
    )
