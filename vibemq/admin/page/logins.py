# SPDX-License-Identifier: Apache-2.0
"""Logins of people at the management page: what their cookie holds.

The cookie is an access token of its own kind (access/tokens.py): nothing is kept for it, it outlives this process, and
it is worth nothing once its user is deleted or has another password. A CSRF token is made from it, so a page of another
site, which a browser would send the cookie for but never show it to, cannot have it. Who logs out ends the token too,
for as long as this process lives; the browser has forgotten it then.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

import vibemq.storage.clock as clock
from vibemq.access.tokens import Tokens, ends_at_s
from vibemq.access.users import Authenticator
from vibemq.storage.metadata import Metadata

LIFETIME_S = 8 * 3600  # a working day, as RabbitMQ's page
#: Ended logins that are kept until they expire; 100 bytes each. Beyond that, all logins of the same age end too.
ENDED_MAX = 4096
_PURPOSE = b"vibemq management page login 1"
_CSRF = b"vibemq management page csrf 1"


class Logins:
    def __init__(self, metadata: Metadata, authenticator: Authenticator) -> None:
        self._metadata = metadata
        self._tokens = Tokens(metadata, authenticator, purpose=_PURPOSE)
        self._ended: dict[str, None] = {}
        self._all_ended_s = 0  # each login that expires by then has ended

    def begin(self, user: str) -> str:
        """A token for this user, whose password was right.  Raises UserNotFound."""
        lifetime_s = LIFETIME_S
        while self._is_ended(token := self._tokens.issue(user, lifetime_s)):
            lifetime_s += 1  # logged out within this second
        return token

    def end(self, token: str) -> None:
        self._ended[token] = None
        if len(self._ended) > ENDED_MAX:
            self._forget()

    def _forget(self) -> None:
        """Remove the login that expires first. It stays ended, and so does each login that expires no later."""
        first = min(self._ended, key=ends_at_s)
        self._all_ended_s = max(self._all_ended_s, ends_at_s(first))
        self._ended = {token: None for token in self._ended if ends_at_s(token) > self._all_ended_s}

    def user_of(self, token: str, loopback: bool) -> str | None:
        user = self._tokens.user_of(token, loopback)
        is_over = user is None or self._is_ended(token) or self._is_too_late(ends_at_s(token))
        return None if is_over else user

    def _is_ended(self, token: str) -> bool:
        if self._is_too_late(self._all_ended_s):
            self._all_ended_s = 0
        return token in self._ended or ends_at_s(token) <= self._all_ended_s

    def _is_too_late(self, ends_s: float) -> bool:
        """Return True if the login ends later than a login of now can: the clock was ahead when it began."""
        return ends_s > clock.wall_ms() / 1000 + 2 * LIFETIME_S

    def csrf_of(self, token: str) -> str:
        return hmac.new(self._metadata.token_key(), _CSRF + token.encode(), sha256).hexdigest()
