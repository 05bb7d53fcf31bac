# SPDX-License-Identifier: Apache-2.0
"""Logins of people at the management page: what their cookie holds, and how often somebody may try.

The cookie is an access token of its own kind (access/tokens.py): nothing is kept for it, it outlives this process, and
it is worth nothing once its user is deleted or has another password. A CSRF token is made from it, so a page of another
site, which a browser would send the cookie for but never show it to, cannot have it. Who logs out ends the token too,
for as long as this process lives; the browser has forgotten it then.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from hashlib import sha256

from vibemq.access.tokens import Tokens
from vibemq.access.users import Authenticator
from vibemq.admin.where import network_of
from vibemq.storage.metadata import Metadata

LIFETIME_S = 8 * 3600  # a working day, as RabbitMQ's page
ENDED_MAX = 4096  # logins that were ended before their time, and are remembered; 100 bytes each
FAILURES_MAX = 10  # failed logins of one address
FAILURES_WITHIN_S = 60.0
ADDRESSES_MAX = 4096  # with failures; the one whose last failure is oldest is forgotten for another
_PURPOSE = b"vibemq management page login 1"
_CSRF = b"vibemq management page csrf 1"


class Logins:
    def __init__(self, metadata: Metadata, authenticator: Authenticator) -> None:
        self._metadata = metadata
        self._tokens = Tokens(metadata, authenticator, purpose=_PURPOSE)
        self._ended: dict[str, None] = {}

    def begin(self, user: str) -> str:
        """A token for this user, whose password was right.  Raises UserNotFound."""
        lifetime_s = LIFETIME_S
        while (token := self._tokens.issue(user, lifetime_s)) in self._ended:
            lifetime_s -= 1  # logged out within this second
        return token

    def end(self, token: str) -> None:
        self._ended[token] = None
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def user_of(self, token: str, loopback: bool) -> str | None:
        return None if token in self._ended else self._tokens.user_of(token, loopback)

    def csrf_of(self, token: str) -> str:
        return hmac.new(self._metadata.token_key(), _CSRF + token.encode(), sha256).hexdigest()


class Failures:
    """How often logins have failed, by where they come from."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at_s: dict[str, list[float]] = {}

    def wait_s(self, address: str) -> float:
        """For how long this address may not try; 0: it may."""
        now_s = self._clock()
        recent = [at for at in self._at_s.get(network_of(address), ()) if now_s - at < FAILURES_WITHIN_S]
        return 0.0 if len(recent) < FAILURES_MAX else recent[0] + FAILURES_WITHIN_S - now_s

    def begin(self, address: str) -> float:
        """A login that has not failed yet counts as one, or many at once would all be let try: see ``take_back``."""
        key, now_s = network_of(address), self._clock()
        recent = self._at_s.pop(key, [])
        if len(self._at_s) >= ADDRESSES_MAX:
            del self._at_s[next(iter(self._at_s))]
        self._at_s[key] = [*recent[-FAILURES_MAX + 1 :], now_s]
        return now_s

    def take_back(self, address: str, begun_s: float) -> None:
        """The login that began then was right."""
        recent = self._at_s.get(network_of(address), [])
        if begun_s in recent:
            recent.remove(begun_s)
