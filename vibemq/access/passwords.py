# SPDX-License-Identifier: Apache-2.0
"""Passwords as they are kept: argon2id hashes and verifiers, and RabbitMQ's hashes that an import brings.

Checking argon2 takes tens of milliseconds on purpose.  RabbitMQ's salted SHA-2 hash can be guessed at far more quickly
by whoever steals it; it is taken so that a definitions file can be imported without everybody's password being set
anew, and goes when the password is changed.  There is no verifier to it: that (access.proofs) takes the password
itself.
"""

import base64
import hashlib
import hmac
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from vibemq.access.proofs import make_verifier
from vibemq.errors import UserError

if TYPE_CHECKING:
    from argon2 import PasswordHasher

# OWASP's choice for argon2id: 19 MiB and two passes.  Little enough for a worker to spend now and
# then, dear enough for who has stolen the hashes.
ARGON2_MEMORY_KIB = 19_456
ARGON2_PASSES = 2
# Of hashes that others made: dearer ones would let a login take seconds, or the memory of a small machine.
IMPORTED_MEMORY_KIB_MAX = 65_536
IMPORTED_PASSES_MAX = 8
IMPORTED_LANES_MAX = 4
IMPORTED_CHARACTERS_MAX = 512
#: The name of our own algorithm beside those of RabbitMQ's.
OWN_HASHING = "argon2id"
PASSWORD_CHARACTERS_MIN = 8
PASSWORD_CHARACTERS_MAX = 1024
#: Verified against when the user does not exist, so that the answer takes as long as for one who
#: does.  Salt and hash are constants: no password leads to them that anybody knows.
NOBODY = "$argon2id$v=19$m=19456,t=2,p=1$dmliZW1xLW5vYm9keS0xNg$bm9ib2R5IGhhcyB0aGlzIHBhc3N3b3JkLCByZWFsbHk"
#: The hash of a user who cannot come in by a password.
NO_PASSWORD = ""

_IMPORTED = {"rabbit_password_hashing_sha256": "sha256", "rabbit_password_hashing_sha512": "sha512"}
_SALT_SIZE_BYTES = 4


class Hashes(NamedTuple):
    """What is stored of a password, always both at once."""

    password_hash: str  # by argon2id, for who sends the password
    verifier: str  # of access.proofs, for who proves to know it


def check_password(password: str, password_min: int = PASSWORD_CHARACTERS_MIN) -> None:
    """Raises UserError when a new password is too short or too long."""
    if not password_min <= len(password) <= PASSWORD_CHARACTERS_MAX:
        characters = "1 character" if len(password) == 1 else f"{len(password)} characters"
        raise UserError(f"the password has {characters}; {password_min} to {PASSWORD_CHARACTERS_MAX} are needed")


def hash_password(password: str, password_min: int = PASSWORD_CHARACTERS_MIN) -> Hashes:
    """Blocks for some 150 ms.  Raises UserError, as check_password."""
    check_password(password, password_min)
    return Hashes(_hasher().hash(password.encode(errors="surrogatepass")), make_verifier(password).encode())


def exported_hash(password_hash: str) -> tuple[str, str]:
    """A hash and its algorithm, as imported_hash takes them; one of RabbitMQ's as RabbitMQ has it."""
    algorithm, _, encoded = password_hash.partition("$")
    named = [name for name, known in _IMPORTED.items() if known == algorithm]
    return (encoded, named[0]) if named else (password_hash, OWN_HASHING if password_hash else "")


def imported_hash(password_hash: str, hashing: str) -> str:
    """What to store for a hash as RabbitMQ or VibeMQ exports it; the empty one means no password.  Raises UserError."""
    if not password_hash:
        return NO_PASSWORD
    if hashing == OWN_HASHING:
        return _own_hash(password_hash)
    algorithm = _IMPORTED.get(hashing or "rabbit_password_hashing_sha256")
    if algorithm is None:
        known = ", ".join((*_IMPORTED, OWN_HASHING))
        raise UserError(f"password hashes by {hashing} cannot be imported", hint=f"known are {known}")
    try:
        size = len(base64.b64decode(password_hash, validate=True))
    except ValueError:
        size = 0
    if size != _SALT_SIZE_BYTES + hashlib.new(algorithm).digest_size:
        raise UserError(f"the password hash is not one by {algorithm}: base64 of a salt of 4 bytes and the hash")
    return f"{algorithm}${password_hash}"


def _own_hash(password_hash: str) -> str:
    """One by argon2id, no dearer to check than a login may be.  Raises UserError."""
    from argon2 import Type, extract_parameters

    try:
        found = extract_parameters(password_hash)
    except ValueError:
        raise UserError("the password hash is not one by argon2id") from None
    if (
        found.type is not Type.ID
        or found.memory_cost > IMPORTED_MEMORY_KIB_MAX
        or found.time_cost * found.memory_cost > IMPORTED_PASSES_MAX * ARGON2_MEMORY_KIB
        or found.parallelism > IMPORTED_LANES_MAX
        or len(password_hash) > IMPORTED_CHARACTERS_MAX
    ):
        raise UserError(
            f"the password hash is not one by argon2id with at most {IMPORTED_MEMORY_KIB_MAX} KiB of memory, "
            f"{IMPORTED_LANES_MAX} lanes and the work of {IMPORTED_PASSES_MAX} passes over {ARGON2_MEMORY_KIB} KiB",
            hint="set the password anew instead",
        )
    return password_hash


def verified(password_hash: str, password: str) -> bool:
    """Blocks for tens of milliseconds, whatever the hash is."""
    from argon2.exceptions import InvalidHashError, VerificationError

    secret = password.encode(errors="surrogatepass")
    algorithm, _, encoded = password_hash.partition("$")
    imported = algorithm in _IMPORTED.values()
    found = False
    with suppress(VerificationError, InvalidHashError):  # wrong, or not a hash: either way nobody gets in
        found = _hasher().verify(NOBODY if imported or password_hash == NO_PASSWORD else password_hash, secret)
    if imported:
        kept = base64.b64decode(encoded)
        salt, digest = kept[:_SALT_SIZE_BYTES], kept[_SALT_SIZE_BYTES:]
        found = hmac.compare_digest(hashlib.new(algorithm, salt + secret).digest(), digest)
    return found


def _hasher() -> "PasswordHasher":
    from argon2 import PasswordHasher  # late: a worker whose users never log in does not pay for loading it

    return PasswordHasher(time_cost=ARGON2_PASSES, memory_cost=ARGON2_MEMORY_KIB, parallelism=1)
