# SPDX-License-Identifier: Apache-2.0
"""Encryption of objects on this side of the store (FORMAT.md, Encryption): AES-256-GCM in pieces, by keys of a file.

The file has a line for each key: a number from 1 on, a blank, 64 hex digits. The last line's key encrypts; to rotate,
add a line, and take an old one away when no object needs it any more (`vibemq remote verify` says which numbers are
used).
"""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from vibemq.errors import ConfigError, RemoteError
from vibemq.remote.objects import Buffer, Trailer, damaged

PIECE_BYTES = 1 << 20
TAG_BYTES = 16
#: What the option begins with where the keys come from a program, such as that of a vault.
COMMAND = "command:"
COMMAND_TIMEOUT_S = 30
_SEALED_BYTES = PIECE_BYTES + TAG_BYTES
_LINE = re.compile(r"([1-9][0-9]{0,8})[ \t]+([0-9a-fA-F]{64})")


def read_keys(where: str) -> "Keys":
    """Of a file, or of what a command prints (``command:PROGRAM ARGUMENT ...``).

    Raises ConfigError; no message has a key in it, nor what the command said.
    """
    text = _printed(where.removeprefix(COMMAND)) if where.startswith(COMMAND) else _written(where)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found: dict[int, bytes] = {}
    for at, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match is None or int(match[1]) in found:
            raise ConfigError(
                f"remote.encryption_keys: line {at} of {where} is no key, or has a number that was there",
                hint="a line is a number from 1 on, a blank and 64 hex digits (`openssl rand -hex 32`)",
            )
        found[int(match[1])] = bytes.fromhex(match[2])
    if not found:
        raise ConfigError(f"remote.encryption_keys: {where} has no key", hint="`openssl rand -hex 32` makes one")
    return Keys(found)


def _written(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise ConfigError(
                    f"remote.encryption_keys: other accounts may use {path}",
                    hint="keep keys in a file of their own, of mode 600 and of the account that starts the broker; "
                    "mind who has read this one",
                )
            return file.read()
    except (OSError, UnicodeDecodeError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else "it is no text"
        raise ConfigError(f"remote.encryption_keys: {path} cannot be read: {why}") from None


def _printed(command: str) -> str:
    try:
        ran = subprocess.run(
            shlex.split(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=COMMAND_TIMEOUT_S, text=True
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as problem:
        raise ConfigError(f"remote.encryption_keys: {command!r} cannot be run: {type(problem).__name__}") from None
    if ran.returncode:
        raise ConfigError(f"remote.encryption_keys: {command!r} ended with exit code {ran.returncode}")
    return ran.stdout


class Keys:
    """What objects are encrypted with: the last one; all of them decrypt."""

    def __init__(self, keys: dict[int, bytes]) -> None:
        self._ciphers = {number: AESGCM(key) for number, key in keys.items()}
        self.current = list(keys)[-1]

    def __contains__(self, number: int) -> bool:
        return number in self._ciphers

    def encrypt(self, key: str, body: Buffer) -> tuple[int, bytes, bytes]:
        """The number of the encryption key, the nonce, and what takes the place of the body."""
        number, nonce, pieces = self.encrypt_pieces(key, iter([body]))
        return number, nonce, b"".join(pieces)

    def encrypt_pieces(self, key: str, body: Iterator[Buffer]) -> tuple[int, bytes, Iterator[bytes]]:
        nonce = os.urandom(12)
        cipher, name = self._ciphers[self.current], key.encode()

        def pieces() -> Iterator[bytes]:
            for number, piece in enumerate(_cut(body)):
                yield cipher.encrypt(_nonce(nonce, number), piece, name)

        return self.current, nonce, pieces()

    def decrypt(self, key: str, trailer: Trailer, position: int, sealed: Buffer) -> bytes:
        """Of the pieces that begin at ``position`` of the encrypted body.  Raises RemoteError."""
        cipher = self._ciphers.get(trailer.key_number)
        if cipher is None:
            raise RemoteError(
                f"object {key} is encrypted with key {trailer.key_number}",
                hint="the file that remote.encryption_keys names has no key of this number: put it back",
            )
        view, number, plain = memoryview(sealed), position // _SEALED_BYTES, []
        try:
            for at in range(0, len(view), _SEALED_BYTES):
                piece = view[at : at + _SEALED_BYTES]
                plain.append(cipher.decrypt(_nonce(trailer.nonce, number), piece, key.encode()))
                number += 1
        except InvalidTag:
            raise damaged(key, f"piece {number} does not decrypt with key {trailer.key_number}") from None
        return b"".join(plain)


def span(start: int, end: int, sealed_size: int) -> tuple[int, int]:
    """Of a body's bytes [start, end): where the pieces that hold them begin and end in what is encrypted."""
    return start // PIECE_BYTES * _SEALED_BYTES, min(-(-end // PIECE_BYTES) * _SEALED_BYTES, sealed_size)


def plain_size(sealed_size: int) -> int:
    """Of a whole encrypted body."""
    return sealed_size - -(-sealed_size // _SEALED_BYTES) * TAG_BYTES


def plain_position(sealed_position: int) -> int:
    """Of a piece's beginning."""
    return sealed_position // _SEALED_BYTES * PIECE_BYTES


def _nonce(base: bytes, number: int) -> bytes:
    return base[:8] + (int.from_bytes(base[8:], "big") ^ number).to_bytes(4, "big")


def _cut(body: Iterator[Buffer]) -> Iterator[bytes]:
    """The same bytes in pieces of PIECE_BYTES, of which only the last may be shorter."""
    kept = bytearray()
    for more in body:
        view = memoryview(more)
        while len(kept) + len(view) >= PIECE_BYTES:
            taken = PIECE_BYTES - len(kept)
            yield bytes(kept) + bytes(view[:taken])
            kept.clear()
            view = view[taken:]
        kept += view
    if kept:
        yield bytes(kept)
