# SPDX-License-Identifier: Apache-2.0
"""Who may come in: users with passwords, and the built-in guest for this machine only.

Checking a password (access.passwords) takes tens of milliseconds on purpose, so it belongs on a helper thread; a
worker's loop asks ``check_cached`` first, which knows the passwords that were right before, as a keyed hash whose key
never leaves the process.  A user's row is read again each time, so a changed or deleted password counts at once.

Who would rather not send the password asks for a challenge and proves to know it (access.proofs), at no price here.
That takes a verifier, which is made when a password is set; imported users, and those whose password is older
than verifiers, have none, and get challenges like users whom nobody knows.

guest/guest is accepted from loopback only, and only while the configuration allows it and nobody has removed guest.  No
user named guest can be made.  The first user of all is a superuser: somebody must be able to let the others do
something.

Where the configuration says so, a token may come in the password's place (access.oauth), whatever the user's name with
it.  A token that names one of the users here, or guest, is refused: nobody is mistaken for somebody else.
"""

import base64
import enum
import hmac
import logging
import re
import secrets
import threading
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING

from vibemq.access import proofs
from vibemq.access.passwords import (
    NO_PASSWORD,
    NOBODY,
    PASSWORD_CHARACTERS_MIN,
    check_password,
    hash_password,
    verified,
)
from vibemq.errors import ConfigError, UserError
from vibemq.once_a_minute import OnceAMinute
from vibemq.storage.metadata import Metadata
from vibemq.storage.names import require_address
from vibemq.storage.records import UserRecord
from vibemq.storage.users import GUEST as GUEST

if TYPE_CHECKING:
    from vibemq.access.oauth import TokenChecker
    from vibemq.access.scopes import TokenAccess
    from vibemq.config import OAuth

log = logging.getLogger("vibemq.access")
refusing = OnceAMinute(log)

EVERYTHING = (".*", ".*", ".*")  # patterns of who may do all with streams
# As few as clients accept (RFC 7677): there is nothing to protect in a password that everybody knows.
_GUEST_ROUNDS = 4096
_REMEMBERED_MAX = 4096  # users; the oldest success is forgotten first
_NAME = re.compile(r"[A-Za-z0-9_.@+-]{1,255}")
# What the native protocol allows for the users that are made through it.
_NATIVE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Verdict(enum.Enum):
    """The answer to a login by password; that to a good token is its TokenAccess."""

    OK = "ok"
    REFUSED = "refused"  # unknown user or wrong password: which of the two is nobody's business
    LOOPBACK_ONLY = "loopback only"  # right, but this account may not come from another machine


def basic_login(header: str) -> tuple[str, str] | None:
    """User and password of an HTTP request's Authorization; None: it is not what Basic is."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except ValueError:
        return None
    return (user, password) if colon else None


class TokenRefused(Exception):
    """Why a token is not believed, in words for the log: not of the token but of what is wrong with it."""


def token_checker(options: "OAuth") -> "TokenChecker | None":
    """Of the provider in the configuration; None: there is none, and nothing of it is loaded."""
    if not options.jwks:
        return None
    from vibemq.access.oauth import TokenChecker

    return TokenChecker(options)


def bearer_token(header: str) -> str | None:
    """The token of an HTTP request's Authorization; None: it has none."""
    scheme, _, token = header.partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


class Authenticator:
    """Checks logins for one process; make it after fork.  May be used from several threads."""

    def __init__(self, metadata: Metadata, guest_allowed: bool, tokens: "TokenChecker | None" = None) -> None:
        """``tokens`` checks those of an OAuth 2 provider; None: there is none."""
        self._metadata = metadata
        self._guest_allowed = guest_allowed
        self._tokens = tokens
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        # user -> (hash in the user's row when the password was right, keyed hash of that password)
        self._remembered: dict[str, tuple[str, bytes]] = {}
        self._told_of: set[str] = set()  # users without a verifier whom the log has named

    @property
    def takes_tokens(self) -> bool:
        return self._tokens is not None

    def is_token(self, password: str) -> bool:
        """Is this a token, to be checked as one, and no password?"""
        # A header is a JSON object, which begins like this in base64.
        return self._tokens is not None and password.startswith("eyJ") and password.count(".") == 2

    def check_cached(self, user: str, password: str, loopback: bool) -> Verdict | None:
        """The verdict if it can be given within a millisecond; None: ask ``check`` on a helper thread."""
        if self.is_token(password):
            return None
        if self._is_guest(user):
            if not hmac.compare_digest(password.encode(errors="surrogatepass"), GUEST.encode()):
                return Verdict.REFUSED
            return Verdict.OK if loopback else Verdict.LOOPBACK_ONLY
        with self._lock:
            remembered = self._remembered.get(user)
        if remembered is None:
            return None
        password_hash, digest = remembered
        row = self._find(user)
        if row is None or row.password_hash != password_hash:
            with self._lock:
                self._remembered.pop(user, None)
            return None
        # A wrong password is not remembered: each guess pays the full price in check().
        return Verdict.OK if hmac.compare_digest(digest, self._digest(user, password)) else None

    def check(self, user: str, password: str, loopback: bool) -> "Verdict | TokenAccess":
        """The verdict.  By argon2 it blocks for tens of milliseconds, no less for unknown users.

        By a token: while keys are fetched (access.jwks).
        """
        if self._tokens is not None and self.is_token(password):
            return self._check_token(self._tokens, password)
        known = self.check_cached(user, password, loopback)
        if known is not None:
            return known
        row = self._find(user)
        if not verified(NOBODY if row is None else row.password_hash, password) or row is None:
            return Verdict.REFUSED
        with self._lock:
            self._remembered.pop(user, None)
            if len(self._remembered) >= _REMEMBERED_MAX:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[user] = (row.password_hash, self._digest(user, password))
        return Verdict.OK

    def _check_token(self, tokens: "TokenChecker", token: str) -> "Verdict | TokenAccess":
        try:
            access = tokens.check(token)
            if access.user.lower() == GUEST or self._find(access.user) is not None:
                raise TokenRefused("it names a user that this broker has itself")
        except TokenRefused as why:
            refusing.say(str(why), "a token was refused: %s", why)
            return Verdict.REFUSED
        return access

    def challenge(self, user: str) -> proofs.Challenge:
        """What ``user`` needs for a proof, whoever that is; about a millisecond for the first guest, or much less."""
        return self._verifier(user).challenge()

    def check_proof(self, user: str, challenge: proofs.Challenge, proof: bytes, loopback: bool) -> Verdict:
        """The verdict on a proof for a challenge that ``challenge(user)`` gave; as quick, and for one proof only."""
        if not self._verifier(user).accepts(user, challenge, proof):
            return Verdict.REFUSED
        return Verdict.OK if loopback or user != GUEST else Verdict.LOOPBACK_ONLY

    def _verifier(self, user: str) -> proofs.Verifier:
        # Made in any case, or it would show in the time which users there are.
        decoy = proofs.decoy(self._metadata.token_key(), user)
        if self._is_guest(user):
            return _guest_verifier(decoy.salt)
        row = self._find(user)
        if row is None:
            return decoy
        verifier = proofs.Verifier.decode(row.verifier)
        if verifier is None and row.password_hash != NO_PASSWORD and user not in self._told_of:
            self._told_of.add(user)
            log.warning(
                "user %r cannot log in by challenge, only with the password, over TLS or from this machine, "
                "until the password is set anew: it was imported, or set by an older version",
                user,
            )
        return verifier or decoy

    def _is_guest(self, user: str) -> bool:
        return user == GUEST and has_guest(self._metadata, self._guest_allowed)

    def _find(self, user: str) -> UserRecord | None:
        # A peer's name comes as bytes; what was no UTF-8 carries surrogates and names nobody.
        return self._metadata.find_user(user) if user.isprintable() else None

    def _digest(self, user: str, password: str) -> bytes:
        name = user.encode(errors="surrogatepass")
        secret = password.encode(errors="surrogatepass")
        return blake2b(len(name).to_bytes(4, "big") + name + secret, key=self._key, digest_size=32).digest()


def has_guest(metadata: Metadata, guest_allowed: bool) -> bool:
    """Can guest come in?  ``guest_allowed`` is what the configuration says."""
    return guest_allowed and not metadata.guest_removed()


def add_user(
    metadata: Metadata, name: str, password: str, is_superuser: bool | None = None,
    password_min: int = PASSWORD_CHARACTERS_MIN,
) -> bool:  # fmt: skip
    """Make a user; the result is whether it is a superuser.  None: only if it is the first user of all.

    Raises UserError (also UserExists) with what is wrong.
    """
    check_name(name)
    password_hash, verifier = hash_password(password, password_min)
    return metadata.add_user(name, password_hash, is_superuser=is_superuser, verifier=verifier)


def change_password(metadata: Metadata, name: str, password: str, password_min: int = PASSWORD_CHARACTERS_MIN) -> None:
    """Raises UserError (also UserNotFound)."""
    metadata.change_password(name, *hash_password(password, password_min))


def ensure_superuser(metadata: Metadata, name: str, password: str) -> bool:
    """Make the superuser of the configuration if there is none at all; was one made?

    The password counts this once: a superuser's own later change must not be undone by an old
    setting.  A user of that name becomes the superuser, with this password.  Raises ConfigError.
    """
    return lacks_superuser(metadata, name, password) and metadata.add_first_superuser(name, *hash_password(password))


def lacks_superuser(metadata: Metadata, name: str, password: str) -> bool:
    """Would ``ensure_superuser`` make one?  Raises ConfigError where it could not."""
    if metadata.has_superuser():
        return False
    if not password:
        raise ConfigError(
            f"authorization is on, but there is no superuser, and the configuration has no password for {name!r}",
            hint="set native.superuser_password for the first start, or make one: `vibemq users add NAME --superuser`",
        )
    try:
        check_name(name)
        if not metadata.has_user(name):
            require_address("user", name)
        check_password(password)
    except UserError as problem:
        raise ConfigError(f"the superuser of the configuration: {problem}", hint=problem.hint) from None
    return True


def check_native_name(name: str) -> None:
    """Raises UserError when the native protocol cannot make a user of this name."""
    if _NATIVE_NAME.fullmatch(name) is None:
        raise UserError("a user name needs 1 to 64 of the characters A-Z a-z 0-9 . - _")


@cache
def _guest_verifier(salt: bytes) -> proofs.Verifier:
    return proofs.make_verifier(GUEST, salt, _GUEST_ROUNDS)


def check_name(name: str) -> None:
    """Raises UserError when there can be no user of this name."""
    if name.lower() == GUEST:
        raise UserError(
            "user 'guest' is built in, for connections from this machine only, and cannot be added",
            hint="choose another name; guest.allow_loopback = false in the configuration turns guest off",
        )
    if _NAME.fullmatch(name) is None:
        raise UserError(f"user name {name!r}: 1 to 255 of the characters A-Z a-z 0-9 _ . @ + - are needed")
