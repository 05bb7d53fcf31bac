# SPDX-License-Identifier: Apache-2.0
"""Logins by challenge and proof: the password is not sent, and what is kept of it lets nobody in.

The arithmetic is that of SCRAM-SHA-256 (RFC 5802 and 7677):

    client_key = HMAC(PBKDF2-HMAC-SHA256(password, salt, rounds), "Client Key")
    stored_key = SHA256(client_key)
    proof      = client_key XOR HMAC(stored_key, user "," nonce)

A user's verifier is rounds, salt and stored_key.  Who knows stored_key gets client_key out of a proof and checks
it, but makes no proof of it.  Unlike SCRAM the nonce is the server's alone, of one size, so that the message can
be read in one way only; the server proves nothing; and the password is taken as it comes, as for argon2.

What this does not give: who steals verifiers can guess passwords, with less memory than argon2id would take, and
who also overhears a proof on an open line has that user's client_key, until the password is changed.
"""

import hmac
import re
import secrets
from dataclasses import dataclass
from hashlib import pbkdf2_hmac, sha256

# OWASP's choice for PBKDF2-HMAC-SHA256: some 130 ms where argon2id as in access.passwords takes 25.  The server spends
# them when a password is set, never at a login; the client at each login.
ROUNDS = 600_000
SALT_BYTES = 16
NONCE_BYTES = 24
KEY_BYTES = sha256().digest_size

_KEPT = re.compile(
    rf"scram-sha-256\$([1-9][0-9]{{0,8}})\$([0-9a-f]{{{2 * SALT_BYTES}}})\$([0-9a-f]{{{2 * KEY_BYTES}}})"
)
_DECOY_PURPOSE = b"vibemq salt of nobody 1"


@dataclass(frozen=True, slots=True)
class Challenge:
    """What a client is told and makes its proof of; good for one proof, so whoever asks for it forgets it after."""

    salt: bytes
    rounds: int
    nonce: bytes


@dataclass(frozen=True, slots=True, repr=False)
class Verifier:
    """What is kept of a password; as secret as a hash of it, so ``repr`` shows nothing."""

    rounds: int
    salt: bytes
    stored_key: bytes

    def encode(self) -> str:
        """As it lies in the database."""
        return f"scram-sha-256${self.rounds}${self.salt.hex()}${self.stored_key.hex()}"

    @classmethod
    def decode(cls, kept: str) -> "Verifier | None":
        """None: there is none."""
        found = _KEPT.fullmatch(kept)
        if found is None:
            return None
        return cls(int(found[1]), bytes.fromhex(found[2]), bytes.fromhex(found[3]))

    def challenge(self) -> Challenge:
        """With a new nonce."""
        return Challenge(self.salt, self.rounds, secrets.token_bytes(NONCE_BYTES))

    def accepts(self, user: str, challenge: Challenge, proof: bytes) -> bool:
        """Was this proof made with the password, for this user and nonce?  Some microseconds."""
        if len(proof) != KEY_BYTES:
            return False
        client_key = _masked(proof, self.stored_key, user, challenge)
        return hmac.compare_digest(sha256(client_key).digest(), self.stored_key)


def make_verifier(password: str, salt: bytes | None = None, rounds: int | None = None) -> Verifier:
    """With a random salt and ROUNDS unless others are given.  Blocks for as long as the rounds take."""
    salt, rounds = salt or secrets.token_bytes(SALT_BYTES), rounds or ROUNDS
    client_key = hmac.digest(pbkdf2_hmac("sha256", _bytes(password), salt, rounds), b"Client Key", sha256)
    return Verifier(rounds, salt, sha256(client_key).digest())


def decoy(key: bytes, user: str) -> Verifier:
    """For who has no verifier: always the same for a name and key, so that it looks like a user's, and without a proof.

    No client_key is known that hashes to nothing but zeros.
    """
    salt = hmac.digest(key, _DECOY_PURPOSE + _bytes(user), sha256)[:SALT_BYTES]
    return Verifier(ROUNDS, salt, bytes(KEY_BYTES))


def _masked(key: bytes, stored_key: bytes, user: str, challenge: Challenge) -> bytes:
    """Turns client_key into the proof and the proof into client_key."""
    mask = hmac.digest(stored_key, _bytes(user) + b"," + challenge.nonce, sha256)
    return bytes(a ^ b for a, b in zip(key, mask, strict=True))


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")  # what a peer sent need not have been UTF-8
