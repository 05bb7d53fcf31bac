# SPDX-License-Identifier: Apache-2.0
"""The public keys by which tokens are checked: a JSON Web Key Set in a file or behind a URL, kept for a while.

Keys older than ``oauth.jwks_refresh_s`` are fetched again before they are used; where that fails they are good until
``oauth.jwks_age_max_s``, so that a provider of identities that is away for an hour locks nobody out, and a key that it
has withdrawn is not good for ever.  A token that names a key which is not there makes them be fetched, too, because
providers change their keys without a word.  No fetch begins within ``RETRY_S`` of the one before, whatever tokens come,
so nobody makes this broker flood the provider.  One fetch runs at a time, in a thread of its own, bounded in time and
size; a login waits for it for WAIT_S at most.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from vibemq.config import OAuth
from vibemq.errors import ConfigError
from vibemq.once_a_minute import OnceAMinute

RETRY_S = 30.0
FETCH_S = 5.0  # from the name's look-up to the last byte
WAIT_S = FETCH_S + 1  # of a login: the fetch, and its thread's turn
SIZE_BYTES_MAX = 1 << 20
KEYS_MAX = 100  # providers have two to ten
#: Keys that are too weak to be believed, whoever publishes them (RFC 7518, 3.3).
RSA_BITS_MIN = 2048
#: By an algorithm's first letters: the kind of its keys, and for each curve the only algorithm of it.
_KINDS = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_CURVES = {"ES256": ("P-256",), "ES384": ("P-384",), "ES512": ("P-521",), "EdDSA": ("Ed25519", "Ed448")}

log = logging.getLogger("vibemq.access")
failing = OnceAMinute(log, logging.ERROR)


class KeysUnavailable(Exception):
    """They cannot be fetched, or what came is no set of keys; the text says why."""


class Keys:
    """For any thread of one process, after fork."""

    def __init__(
        self, options: OAuth, clock: Callable[[], float] = time.monotonic, fetch: Callable[[OAuth], bytes] | None = None
    ) -> None:
        self._options, self._clock, self._fetch = options, clock, fetch or fetched
        self._changed = threading.Condition()
        self._kept: list[Mapping[str, Any]] = []
        self._kept_s: float | None = None  # when they came
        self._tried_s: float | None = None  # when the last fetch began
        self._is_fetching = False
        self._ready: dict[tuple[str | None, str], Any] = {}  # of the keys kept: (kid, algorithm) -> for PyJWT

    def find(self, kid: str | None, algorithm: str) -> Any:
        """The key of this name for this algorithm, as PyJWT takes it; None: there is none, or none that is good.

        Without a name: the only key that suits the algorithm.  Blocks for WAIT_S at most.
        """
        with self._changed:
            if self._is_old(self._options.jwks_refresh_s):
                self._refresh()
            found = self._look_up(kid, algorithm)
            if found is None and self._refresh():
                found = self._look_up(kid, algorithm)
            return found

    def _is_old(self, age_s: float) -> bool:
        return self._kept_s is None or self._clock() - self._kept_s >= age_s

    def _refresh(self) -> bool:
        """With the lock, which is let go meanwhile: fetch, or wait for who does; False: it is too soon."""
        if not self._is_fetching:
            if self._tried_s is not None and self._clock() - self._tried_s < RETRY_S:
                return False
            self._is_fetching, self._tried_s = True, self._clock()
            try:
                threading.Thread(target=self._run, name="jwks", daemon=True).start()
            except RuntimeError as problem:  # pids.max, or the memory for it: the next login tries again
                self._is_fetching = False
                failing.say("jwks", "the keys for tokens cannot be had from %s: %s", self._options.jwks, problem)
                return False
        self._changed.wait_for(lambda: not self._is_fetching, WAIT_S)
        return True

    def _run(self) -> None:
        keys = None
        try:
            keys = keys_in(self._fetch(self._options))
        except KeysUnavailable as problem:
            failing.say("jwks", "the keys for tokens cannot be had from %s: %s", self._options.jwks, problem)
        finally:
            with self._changed:
                if keys is not None:
                    self._kept, self._kept_s = keys, self._clock()
                    self._ready.clear()
                self._is_fetching = False
                self._changed.notify_all()

    def _look_up(self, kid: str | None, algorithm: str) -> Any:
        if self._is_old(self._options.jwks_age_max_s):
            return None
        wanted = kid, algorithm
        if wanted not in self._ready:
            suiting = [key for key in self._kept if _suits(key, algorithm) and kid in (None, key.get("kid"))]
            made = _made(suiting[0], algorithm) if len(suiting) == 1 else None
            if made is None:
                return None  # not remembered: names come from peers
            self._ready[wanted] = made
        return self._ready[wanted]


def _suits(key: Mapping[str, Any], algorithm: str) -> bool:
    """Is this key meant for signatures by this algorithm?  Never a secret one."""
    return (
        key.get("kty") == _KINDS.get(algorithm[:2])
        and key.get("alg") in (None, algorithm)
        and key.get("use") in (None, "sig")
        and key.get("crv") in _CURVES.get(algorithm, (None,))
    )


def _made(key: Mapping[str, Any], algorithm: str) -> Any:
    import jwt

    public = {name: value for name, value in key.items() if name in ("kty", "n", "e", "crv", "x", "y")}
    try:
        made = jwt.PyJWK(public, algorithm)
    except (jwt.PyJWTError, ValueError):
        return None
    return made if getattr(made.key, "key_size", RSA_BITS_MIN) >= RSA_BITS_MIN or public["kty"] != "RSA" else None


def keys_in(text: bytes) -> list[Mapping[str, Any]]:
    """The keys of a set.  Raises KeysUnavailable."""
    try:
        found = json.loads(text)
        keys = found["keys"]
    except (ValueError, RecursionError, KeyError, TypeError):
        keys = None
    if not isinstance(keys, list) or len(keys) > KEYS_MAX:
        raise KeysUnavailable(f"it is no JSON Web Key Set of at most {KEYS_MAX} keys")
    return [key for key in keys if isinstance(key, dict)]


def check_source(options: OAuth) -> None:
    """Raises ConfigError for a place that keys must not come from, or a file that cannot be used."""
    if "://" not in options.jwks:
        try:
            keys_in(fetched(options))
        except KeysUnavailable as problem:
            raise ConfigError(f"oauth.jwks: {options.jwks}: {problem}") from None
        return
    try:
        url = urlsplit(options.jwks)
        host, named_user, _ = url.hostname or "", url.username, url.port
    except ValueError:
        raise ConfigError("oauth.jwks is neither a file nor a URL") from None
    if url.scheme != "https" and not (url.scheme == "http" and _is_loopback(host)):
        raise ConfigError(
            "oauth.jwks must be https: whoever answers it decides who may come in",
            hint="http is for an address of this machine only",
        )
    if not host or named_user is not None:
        raise ConfigError("oauth.jwks needs a host, and no user in the URL: it would be in the log")
    _tls(options)


def fetched(options: OAuth) -> bytes:
    """The text of the set, of SIZE_BYTES_MAX at most.  Blocks for FETCH_S.  Raises KeysUnavailable."""
    try:
        if "://" in options.jwks:
            text = asyncio.run(_downloaded(options))
        else:
            with open(os.path.expanduser(options.jwks), "rb") as file:
                text = file.read(SIZE_BYTES_MAX + 1)
    except TimeoutError:
        raise KeysUnavailable(f"no answer within {FETCH_S:g} s") from None
    except (OSError, ConfigError) as problem:
        raise KeysUnavailable(str(problem)) from None
    if len(text) > SIZE_BYTES_MAX:
        raise KeysUnavailable(f"it has more than {SIZE_BYTES_MAX} bytes")
    return text


async def _downloaded(options: OAuth) -> bytes:
    import aiohttp

    limit = aiohttp.ClientTimeout(total=FETCH_S)
    context = _tls(options) if options.jwks.startswith("https:") else False
    try:
        # Redirected nowhere: what was asked for is what the configuration says, by HTTPS to the end.
        async with (
            aiohttp.ClientSession(timeout=limit, trust_env=False) as session,
            session.get(options.jwks, ssl=context, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise KeysUnavailable(f"the answer is {response.status}")
            text = b""
            while len(text) <= SIZE_BYTES_MAX and (more := await response.content.readany()):
                text += more
            return text
    except aiohttp.ClientError as problem:
        raise KeysUnavailable(str(problem) or type(problem).__name__) from None


def _tls(options: OAuth) -> ssl.SSLContext:
    """Raises ConfigError."""
    try:
        return ssl.create_default_context(cafile=os.path.expanduser(options.jwks_ca) or None)
    except (OSError, ValueError) as problem:
        raise ConfigError(f"oauth.jwks_ca: {options.jwks_ca}: {problem}") from None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
