# SPDX-License-Identifier: Apache-2.0
"""Logs as a start of the machine finds them: each control page names the boot that wrote it."""

from pathlib import Path

BOOT_ID_AT = slice(8, 24)  # in the control page
OTHER_BOOT = b"another boot...."


def boot_of(directory: Path | str) -> bytes:
    return Path(directory, "control").read_bytes()[BOOT_ID_AT]


def write_in_another_boot(directory: Path | str, boot: bytes = OTHER_BOOT) -> None:
    """As if this log was last written in that boot."""
    with open(Path(directory, "control"), "r+b") as file:
        file.seek(BOOT_ID_AT.start)
        file.write(boot)
