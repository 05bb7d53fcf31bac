# SPDX-License-Identifier: Apache-2.0
"""Logs as a start of the machine finds them: each control page names the boot that wrote it."""

import struct
import zlib
from pathlib import Path

BOOT_ID_AT = slice(8, 24)  # in the control page
OTHER_BOOT = b"another boot...."


SEGMENT_HEADER_BYTES = 64


def begin_in_another_boot(directory: Path | str, created_ms: int | None = None) -> None:
    """As if the log's segments were begun in another boot; ``created_ms``: at this time."""
    for path in Path(directory).glob("*.segment"):
        with open(path, "r+b") as file:
            header = bytearray(file.read(SEGMENT_HEADER_BYTES))
            struct.pack_into(">I", header, 28, 1)
            if created_ms is not None:
                struct.pack_into(">q", header, 16, created_ms)
            struct.pack_into(">I", header, SEGMENT_HEADER_BYTES - 4, zlib.crc32(header[:-4]))
            file.seek(0)
            file.write(header)


def boot_of(directory: Path | str) -> bytes:
    return Path(directory, "control").read_bytes()[BOOT_ID_AT]


def write_in_another_boot(directory: Path | str, boot: bytes = OTHER_BOOT) -> None:
    """As if this log was last written in that boot."""
    with open(Path(directory, "control"), "r+b") as file:
        file.seek(BOOT_ID_AT.start)
        file.write(boot)
