# SPDX-License-Identifier: Apache-2.0
"""Is the broker ready?  Everybody may ask, as often as they like, so workers are asked once for all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from vibemq.admin.api.calls import Answer

KNOWN_S = 0.5  # orchestrators ask every second or more rarely


class Readiness:
    """May be used from several threads; who asks while somebody finds out gets what that one has found."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known_until_s = clock()
        self._answer: Answer  # there once somebody has asked: nothing is known before

    def forget(self) -> None:
        """Something has changed: who asks next finds out anew."""
        with self._lock:
            self._known_until_s = self._clock()

    def of(self, find: Callable[[], Answer]) -> Answer:
        with self._lock:
            if self._clock() >= self._known_until_s:
                self._answer = find()
                self._known_until_s = self._clock() + KNOWN_S
            return self._answer
