# SPDX-License-Identifier: Apache-2.0
"""DATA/identity: which data directory this is, for whoever is told of one by a broker and finds one on its own disk."""

import contextlib
import os
import secrets
from functools import cache

FILE = "identity"
RANDOM_BYTES = 16


def make(data_dir: str) -> None:
    """Give the directory its identity for good, if it has none; by whoever holds its lock.  OSError."""
    path = os.path.join(data_dir, FILE)
    if os.path.exists(path):
        return
    half_made = path + ".tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(half_made)
    with open(os.open(half_made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(secrets.token_hex(RANDOM_BYTES) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(half_made, path)


@cache
def read(data_dir: str) -> str:
    """What `make` gave it.  OSError."""
    with open(os.path.join(data_dir, FILE), encoding="ascii") as file:
        return file.read().strip()
