# SPDX-License-Identifier: Apache-2.0
"""Log file system calls that do not return.  The supervisor does it, because a process in such a call cannot.

Each process notes its calls in shared memory (csrc/base/calls.h).  The supervisor looks at these notes every LOOK_S.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vibemq.once_a_minute import MINUTE_S, OnceAMinute

if TYPE_CHECKING:
    from vibemq.storage.calls import Call, Calls

LOOK_S = 1.0
#: Calls that take longer are logged: a healthy disk answers within a tenth of that.
LOGGED_S = 1.0

log = logging.getLogger("vibemq.server")


class SlowCallWatch:
    def __init__(self, calls: Mapping[str, Calls], now_s: float) -> None:
        """``calls``: the noted calls of each process, by its name."""
        self._calls = calls
        self._running_said_s = now_s - MINUTE_S
        self._ended = OnceAMinute(log)
        self.due = now_s + LOOK_S

    def look(self, now_s: float) -> None:
        self.due = now_s + LOOK_S
        running: list[tuple[float, str, Call]] = []
        for name, calls in self._calls.items():
            running += [(call.seconds, name, call) for call in calls.running(LOGGED_S)]
            ended = calls.take_ended()
            if ended is not None and ended.seconds >= LOGGED_S:
                self._ended.say("ended", "%s: %s took %.1f s", name, ended, ended.seconds)
        if running and now_s >= self._running_said_s + MINUTE_S:
            self._running_said_s = now_s
            seconds, name, call = max(running)
            log.warning("%s: %s has taken %.1f s and goes on; %d such calls wait", name, call, seconds, len(running))

    def waits_for_disk(self, name: str) -> bool:
        """Return whether the loop of that process is in a slow call.  It does not hang; a successor would wait too."""
        return any(call.is_loops for call in self._calls[name].running(LOOK_S / 2))
