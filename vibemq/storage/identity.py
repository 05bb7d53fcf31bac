# SPDX-License-Identifier: Apache-2.0
"""DATA/identity: identifies a data directory, so that a process can tell whether the one on its disk is the broker's.

It is 24 random hex digits, a hyphen, and the CRC-32 of those digits. An older broker's is 32 hex digits without a
check.
"""

import contextlib
import os
import re
import secrets
import zlib
from functools import cache

FILE = "identity"
RANDOM_BYTES = 12
_CHECKED = re.compile(r"([0-9a-f]{24})-([0-9a-f]{8})")
_UNCHECKED = re.compile(r"[0-9a-f]{32}")


def make(data_dir: str) -> bool:
    """Give the directory its identity for good, if it has none; return whether it had none.

    The caller holds the lock of the directory.  Raises OSError.
    """
    path = os.path.join(data_dir, FILE)
    if os.path.exists(path):
        return False
    half_made = path + ".tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(half_made)
    digits = secrets.token_hex(RANDOM_BYTES)
    with open(os.open(half_made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(f"{digits}-{_check(digits)}\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(half_made, path)
    read.cache_clear()
    return True


def is_whole(data_dir: str) -> bool:
    """Return whether the file holds an identity.  Raises OSError."""
    with open(os.path.join(data_dir, FILE), "rb") as file:
        said = file.read().decode("ascii", errors="replace").removesuffix("\n")
    found = _CHECKED.fullmatch(said)
    return found[2] == _check(found[1]) if found else _UNCHECKED.fullmatch(said) is not None


@cache
def read(data_dir: str) -> str:
    """Return the identity that `make` gave the directory.  Raises OSError."""
    with open(os.path.join(data_dir, FILE), encoding="ascii") as file:
        return file.read().strip()


def _check(digits: str) -> str:
    return f"{zlib.crc32(digits.encode()):08x}"
