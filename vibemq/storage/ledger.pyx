# SPDX-License-Identifier: Apache-2.0
"""A queue's numbers as its ledger's page shows them, for whoever is no worker.

The page is read as a file and never mapped, so a reader cannot change it.  Each word is of some instant during the
read, and words of different instants may stand side by side.  What is in flight, and how many consumers there are, is
what the last home wrote: where it was killed, they are right again once another worker has come home.
"""

import os
from typing import NamedTuple

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from vibemq.errors import StorageError

cdef extern from "ledger/ledger.h" nogil:
    enum:
        _MAGIC "LEDGER_MAGIC"
        _VERSION "LEDGER_VERSION"
    struct ledger_control:
        uint32_t magic, version
        uint64_t departed, consumers, in_flight
        uint64_t delivered, redelivered, acked, expired, dropped, dead_lettered


class QueueStats(NamedTuple):
    """How many messages wait and are in flight, and what has become of others since the queue was made."""

    waiting: int
    in_flight: int
    consumers: int
    delivered: int
    redelivered: int
    acked: int
    expired: int
    dropped: int
    dead_lettered: int


def queue_stats(str directory, uint64_t next_offset) -> QueueStats:
    """``next_offset``: the log's.  Raises StorageError, with ERR_NOT_FOUND where there is no ledger (any more)."""
    cdef ledger_control page
    cdef Py_ssize_t needed = sizeof(page)
    cdef bytes read
    path = os.path.join(directory, "ledger")
    try:
        with open(path, "rb", buffering=0) as file:
            read = file.read(needed)
    except OSError as problem:
        raise StorageError("ERR_NOT_FOUND" if isinstance(problem, FileNotFoundError) else "ERR_IO",
                           f"{path}: {problem.strerror}") from problem
    if len(read) == needed:
        memcpy(&page, <const char *> read, sizeof(page))
    if len(read) < needed or page.magic != _MAGIC or page.version != _VERSION:
        raise StorageError("ERR_CORRUPT", f"{path} is no ledger's page of version {_VERSION}")
    waiting = next_offset - page.departed if next_offset > page.departed else 0
    return QueueStats(waiting, page.in_flight, page.consumers, page.delivered, page.redelivered, page.acked,
                      page.expired, page.dropped, page.dead_lettered)
