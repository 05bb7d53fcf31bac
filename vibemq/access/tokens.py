# SPDX-License-Identifier: Apache-2.0
"""Access tokens: who has one is a user for a while, without a password.

Browsers can give a WebSocket no header, only its address, and addresses end up in the logs of proxies.  A token is the
time when it ends and the user's name, and a keyed hash (HMAC-SHA256) of these and of the user's password hash, with the
database's key: nothing has to be kept for it, and it is worth nothing once the user is deleted, made again or has
another password.
"""

import base64
import hmac
import struct
import time
from collections.abc import Callable
from hashlib import sha256

from vibemq.access.users import GUEST, Authenticator, Verdict
from vibemq.storage.metadata import Metadata
from vibemq.storage.users import no_user

TOKEN_CHARACTERS_MAX = 1024  # a name of 255 characters and 40 bytes, in base64
ACCESS = b"vibemq access token 1"  # what a token is for: of another purpose it is worth nothing
_HEAD = struct.Struct(">Q")  # when it ends, in seconds since 1970
_DIGEST_BYTES = 32


class Tokens:
    """Makes and checks access tokens for one process, after fork."""

    def __init__(
        self, metadata: Metadata, authenticator: Authenticator | None, clock: Callable[[], float] = time.time,
        purpose: bytes = ACCESS,
    ) -> None:  # fmt: skip
        """``authenticator`` knows whether there is a guest; without it there is none."""
        self._metadata, self._authenticator, self._clock, self._purpose = metadata, authenticator, clock, purpose

    def issue(self, user: str, lifetime_s: int) -> str:
        """A token that is this user for so many seconds.  Raises UserNotFound."""
        secret = self._secret_of(user, loopback=True)
        if secret is None:
            raise no_user(user)
        said = _HEAD.pack(int(self._clock()) + lifetime_s) + user.encode()
        return base64.urlsafe_b64encode(said + self._digest(said, secret)).decode().rstrip("=")

    def user_of(self, token: str, loopback: bool) -> str | None:
        """Whose token this is; None: nobody's, or not any more."""
        try:
            raw = _bytes(token)
            said, digest = raw[:-_DIGEST_BYTES], raw[-_DIGEST_BYTES:]
            user = said[_HEAD.size :].decode()
        except ValueError:  # no base64, or no UTF-8
            return None
        if not user:
            return None
        secret = self._secret_of(user, loopback) if user.isprintable() else None
        # Compared in any case, so that nobody learns from the time which users there are.
        is_ours = hmac.compare_digest(digest, self._digest(said, secret or ""))
        if not is_ours or secret is None or _HEAD.unpack_from(said)[0] <= self._clock():
            return None
        return user

    def _secret_of(self, user: str, loopback: bool) -> str | None:
        """What changes when the user becomes another one."""
        if user == GUEST:
            known = self._authenticator and self._authenticator.check_cached(GUEST, GUEST, loopback)
            return GUEST if known is Verdict.OK else None
        row = self._metadata.find_user(user)
        return None if row is None else row.password_hash

    def _digest(self, said: bytes, secret: str) -> bytes:
        content = b"".join(len(part).to_bytes(4, "big") + part for part in (self._purpose, said, secret.encode()))
        return hmac.digest(self._metadata.token_key(), content, sha256)


def ends_at_s(token: str) -> int:
    """Return the end of a token that ``Tokens.user_of`` accepts, in seconds since 1970."""
    ends_s: int = _HEAD.unpack_from(_bytes(token))[0]
    return ends_s


def _bytes(text: str) -> bytes:
    """Raises ValueError."""
    if len(text) > TOKEN_CHARACTERS_MAX or not text.isascii():
        raise ValueError("no token of ours")
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
