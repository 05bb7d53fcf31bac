# SPDX-License-Identifier: Apache-2.0
"""To wait until what a log has is as safe as its durability promises, where no publisher's confirm does that."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from vibemq.errors import StorageError

if TYPE_CHECKING:
    from vibemq.storage.log import Log

REMOTE_WAIT_S = 10.0  # an interval and a PUT, with room: who waits holds a helper thread, and can ask again
REMOTE_LOOK_S = 0.01  # between two looks at how far the object store has it


def remote_deadline() -> float:
    """Of one wait, which may be for several logs, by the monotonic clock."""
    return time.monotonic() + REMOTE_WAIT_S


def wait_durable(log: Log, until: float | None = None) -> int:
    """Wait for what is committed now; the offset below which everything is safe.  Blocks: helper threads only.

    ``until``: a remote_deadline() begun before.  Raises StorageError: the disk refused, or the object store did not
    take it in time.
    """
    if log.is_disk_durable:
        return log.sync()
    end: int = log.stats().next_offset
    if not log.is_remote:
        return end
    if until is None:
        until = remote_deadline()
    while log.remote_offset < end:
        if log.is_deleted:
            raise StorageError("ERR_DELETED", f"{log.directory}: it was deleted")
        if time.monotonic() > until:
            raise StorageError(
                "ERR_IO",
                f"{log.directory}: after {REMOTE_WAIT_S:.0f} s the object store has what is below offset "
                f"{log.remote_offset}, and what is below {end} is needed",
                hint="the broker's log says what the store answers; it is tried again",
            )
        time.sleep(REMOTE_LOOK_S)
    return end
