# SPDX-License-Identifier: Apache-2.0
"""The service manager is told how the broker is: systemd's protocol (sd_notify), a datagram to the socket it names.

Ready means that every worker accepts.  The watchdog is fed while at least one worker does its work: who hangs alone is
replaced by the supervisor (hangs.py), and only when that helps no more does the whole broker begin anew.  Where nobody
has named a socket, nothing is told.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping

from vibemq.once_a_minute import OnceAMinute

FEEDS_PER_INTERVAL = 3  # of the watchdog's: one may come late

log = logging.getLogger("vibemq.server")
not_told = OnceAMinute(log)


class ServiceManager:
    """``interval_s``: in which it wants to hear that all is well; 0: never.  ``due``: when to feed it, if ever."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self.interval_s = 0.0
        microseconds, for_whom = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
        if self._address and microseconds.isdecimal() and for_whom in ("", str(os.getpid())):
            self.interval_s = int(microseconds) / 1e6
        self.due: float | None = time.monotonic() if self.interval_s else None

    def ready(self, status: str) -> None:
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """``ready`` says when it is done."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, why: str) -> None:
        self._tell("STOPPING=1", f"STATUS=stopping: {why}")

    def feed(self, now_s: float, *, is_well: bool) -> None:
        """When it is ``due``."""
        self.due = now_s + self.interval_s / FEEDS_PER_INTERVAL
        if is_well:
            self._tell("WATCHDOG=1")

    def _tell(self, *states: str) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as link:
            try:
                link.sendto("\n".join(states).encode(), address)
            except OSError as problem:
                not_told.say("told", "the service manager at %s cannot be told: %s", self._address, problem.strerror)
