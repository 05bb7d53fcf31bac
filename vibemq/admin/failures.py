# SPDX-License-Identifier: Apache-2.0
"""How often logins over HTTP have failed, by where they come from, so that nobody can go on guessing.

Behind one address may be many: a machine with all its tools, or a proxy.  So who logged in rightly from there before is
let in with that same password while others fail.  Any other password has to wait there, be it right or wrong: the
answer must not tell.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from hashlib import blake2b

from vibemq.admin.where import network_of

FAILURES_MAX = 10  # failed logins of one address
FAILURES_WITHIN_S = 60.0
ADDRESSES_MAX = 4096  # with failures; the one whose last failure is oldest is forgotten for another
RIGHT_MAX = 4096  # right logins that are remembered, by address, user and password; 100 bytes each


class Failures:
    """For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._at_s: dict[str, list[float]] = {}
        self._right: dict[bytes, None] = {}

    def wait_s(self, address: str, user: str, password: str) -> float:
        """For how long this address may not try this; 0: it may."""
        now_s = self._clock()
        recent = [at for at in self._at_s.get(network_of(address), ()) if now_s - at < FAILURES_WITHIN_S]
        if len(recent) < FAILURES_MAX or self._digest(address, user, password) in self._right:
            return 0.0
        return recent[0] + FAILURES_WITHIN_S - now_s

    def failed(self, address: str, user: str, password: str) -> None:
        self._right.pop(self._digest(address, user, password), None)
        key = network_of(address)
        recent = self._at_s.pop(key, [])
        if len(self._at_s) >= ADDRESSES_MAX:
            del self._at_s[next(iter(self._at_s))]
        self._at_s[key] = [*recent[-FAILURES_MAX + 1 :], self._clock()]

    def was_right(self, address: str, user: str, password: str) -> None:
        digest = self._digest(address, user, password)
        self._right.pop(digest, None)  # the one that was not used for longest is first
        if len(self._right) >= RIGHT_MAX:
            del self._right[next(iter(self._right))]
        self._right[digest] = None

    def _digest(self, address: str, user: str, password: str) -> bytes:
        words = [word.encode(errors="surrogatepass") for word in (network_of(address), user, password)]
        told = b"".join(len(word).to_bytes(4, "big") + word for word in words)
        return blake2b(told, key=self._key, digest_size=16).digest()
