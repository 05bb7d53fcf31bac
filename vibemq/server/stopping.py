# SPDX-License-Identifier: Apache-2.0
"""The last thing that a broker with very many streams does: put all on the disk, and note it for the next start.

That one then reads the control page of each log and no other file (recovery.py).
"""

import logging
import os
import select
import signal
import socket
import time
from functools import partial

import vibemq.storage.log as log_files
from vibemq.config import Config
from vibemq.errors import StorageError
from vibemq.server import datadir
from vibemq.server.processes import fork

#: So many streams are looked at in a second or two, also by a machine that was started anew.
NOTED_STREAMS_MIN = 4096
#: How long a stop waits until all is on the disk.
SYNC_MAX_S = 20.0

log = logging.getLogger("vibemq.server")


def note_stop(config: Config, lock_fd: int, signals: socket.socket) -> None:
    """When no other process of the broker is left; ``signals`` has a byte for each that came to this one.

    The disk is written to by a process of its own, so that a slow one is not waited for when another signal says that
    the end must be now.  With an object store there is more to do with each log than this would spare.
    """
    try:
        count = len(os.listdir(f"{config.data_path}/streams"))
        if count < NOTED_STREAMS_MIN or log_files.are_refused() or config.remote.url:
            return
        log.info("%d streams: all is put on the disk, for the next start not to look at each", count)
        pid = fork("sync", partial(_let_go, lock_fd), partial(_put_on_disk, config.data_path))
        if _ends_well(pid, signals):
            datadir.note_stop(lock_fd)
        else:
            log.info("the next start will look at every stream: not all could be put on the disk now")
    except OSError as problem:
        log.warning("the next start will look at every stream: the stop cannot be noted: %s", problem)


def _let_go(lock_fd: int) -> None:
    """Who is not waited for any more must not keep the next broker from the directory."""
    signal.set_wakeup_fd(-1)
    os.close(lock_fd)


def _put_on_disk(path: str) -> int:
    try:
        datadir.put_on_disk(path)
    except (OSError, StorageError) as problem:
        log.info("%s cannot be put on the disk as a whole: %s", path, problem)
        return 1
    return 0


def _ends_well(pid: int, signals: socket.socket) -> bool:
    """Within SYNC_MAX_S, and before another signal to end."""
    pidfd, deadline_s = os.pidfd_open(pid), time.monotonic() + SYNC_MAX_S
    try:
        while (left_s := deadline_s - time.monotonic()) > 0:
            ready, _, _ = select.select([pidfd, signals.fileno()], [], [], left_s)
            if pidfd in ready:
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            if ready and {signal.SIGTERM, signal.SIGINT} & set(signals.recv(64)):
                break
        return False
    finally:
        os.close(pidfd)
