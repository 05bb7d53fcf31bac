# SPDX-License-Identifier: Apache-2.0
"""Logins by OAuth 2: a JSON Web Token in a password's place, as RabbitMQ's rabbitmq_auth_backend_oauth2 takes it.

A token is believed when a key of the provider (access.jwks) has signed it by an algorithm of the configuration, it is
from the issuer and for this broker, and it is in its time.  PyJWT checks the signature, issuer and audience; time is
compared here, by a clock that is given.  What it may do are its scopes (access.scopes); its account is made of it
alone, and nothing is kept.  Neither a token nor a claim that nobody has signed for gets into a text of ours.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vibemq.access.jwks import Keys, check_source
from vibemq.access.scopes import TokenAccess, scopes_of
from vibemq.access.users import TokenRefused
from vibemq.config import OAuth
from vibemq.errors import ConfigError, SetupError
from vibemq.extras import install

#: Longer ones could not come in by most doors anyway, and are only work.
TOKEN_CHARACTERS_MAX = 16_384
SCOPES_MAX = 1000
USER_BYTES_MAX = 255
#: Claims that name the user, after those of the configuration.
_NAMES = ("sub", "client_id")
#: Of `oauth.scope_prefix`: none.
NO_PREFIX = "none"


class TokenChecker:
    """For any thread of one process, after fork."""

    def __init__(self, options: OAuth, clock: Callable[[], float] = time.time, keys: Keys | None = None) -> None:
        self._options, self._clock = options, clock
        self._keys = keys or Keys(options)
        self._algorithms = options.algorithms.split(",")
        own = options.scope_prefix or f"{options.resource_server_id}."
        self._prefix = "" if own == NO_PREFIX else own
        self._names = (*filter(None, options.preferred_username_claims.split(",")), *_NAMES)
        self._aliases = aliases_in(options.scope_aliases)

    def check(self, token: str) -> TokenAccess:
        """Whose it is and what it may do.  Blocks while keys are fetched (access.jwks).  Raises TokenRefused."""
        claims = self._claims(token)
        over_s = _time(claims, "exp")
        leeway_s = self._options.leeway_s
        now_s = self._clock()
        if not now_s < over_s + leeway_s:
            raise TokenRefused("it has expired")
        for name in ("nbf", "iat"):
            if name in claims and not _time(claims, name) - leeway_s <= now_s:
                raise TokenRefused(f"its time has not come yet ({name})")
        texts = list(self._scopes(claims))
        if len(texts) > SCOPES_MAX:
            raise TokenRefused(f"it has more than {SCOPES_MAX} scopes")
        return TokenAccess(self._user(claims), scopes_of(texts, self._prefix), over_s + leeway_s, self._clock)

    def _claims(self, token: str) -> Mapping[str, Any]:
        import jwt

        if len(token) > TOKEN_CHARACTERS_MAX:
            raise TokenRefused(f"it has more than {TOKEN_CHARACTERS_MAX} characters")
        try:
            header = jwt.get_unverified_header(token)
            algorithm, kid = header.get("alg"), header.get("kid")
            if algorithm not in self._algorithms:
                raise TokenRefused("its algorithm is not one of oauth.algorithms")
            if "crit" in header or "b64" in header:
                raise TokenRefused("it asks for extensions")
            key = self._keys.find(kid, algorithm)
            if key is None:
                raise TokenRefused("no key that is known has signed it")
            claims: Mapping[str, Any] = jwt.decode(
                token, key, [algorithm], audience=self._options.resource_server_id, issuer=self._options.issuer,
                options={
                    "require": ["exp", "iss", "aud"], "verify_exp": False, "verify_nbf": False, "verify_iat": False,
                },
            )  # fmt: skip
            return claims
        except jwt.InvalidIssuerError:
            raise TokenRefused("it is from another issuer than oauth.issuer") from None
        except jwt.InvalidAudienceError:
            raise TokenRefused("it is for others: its audience lacks oauth.resource_server_id") from None
        except jwt.MissingRequiredClaimError as problem:
            raise TokenRefused(f"it has no {problem.claim}") from None
        except jwt.InvalidSignatureError:
            raise TokenRefused("its signature is wrong") from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise TokenRefused("it is malformed") from None

    def _user(self, claims: Mapping[str, Any]) -> str:
        for claim in self._names:
            name = claims.get(claim)
            if isinstance(name, str) and name.isprintable() and 1 <= len(name.encode()) <= USER_BYTES_MAX:
                return name
        raise TokenRefused(f"none of its claims {', '.join(self._names)} can be a user's name")

    def _scopes(self, claims: Mapping[str, Any]) -> Iterator[str]:
        said = list(_texts(claims.get("scope")))
        if path := self._options.additional_scopes_key:
            found: Any = claims
            for part in path.split("."):
                found = found.get(part) if isinstance(found, dict) else None
            said += _texts(found)
        for text in said:
            yield text
            yield from self._aliases.get(text, ())


def check_options(options: OAuth) -> None:
    """Raises ConfigError for what does not fit together, SetupError without the library that checks signatures."""
    if not options.jwks:
        if options != OAuth():
            raise ConfigError("[oauth] has options, but oauth.jwks is empty: no token could be checked")
        return
    for name in ("issuer", "resource_server_id"):
        if not getattr(options, name):
            raise ConfigError(
                f"oauth.jwks is set, and oauth.{name} is empty: a token that is meant for others would be taken",
                hint="oauth.issuer is a token's `iss`, oauth.resource_server_id is in its `aud`",
            )
    aliases_in(options.scope_aliases)
    if options.jwks_age_max_s < options.jwks_refresh_s:
        raise ConfigError("oauth.jwks_age_max_s must not be less than oauth.jwks_refresh_s")
    try:
        importlib.import_module("jwt")
        importlib.import_module("cryptography")
    except ImportError:
        raise SetupError(
            "oauth.jwks is set, but the Python packages PyJWT and cryptography are not installed",
            hint=f"`{install('oauth')}`",
        ) from None
    check_source(options)


def aliases_in(text: str) -> dict[str, tuple[str, ...]]:
    """``ALIAS=SCOPE SCOPE,ALIAS=SCOPE`` as alias -> scopes.  Raises ConfigError."""
    found = {}
    for entry in filter(None, text.split(",")):
        alias, equals, scopes = entry.partition("=")
        if not alias.strip() or not equals or not scopes.split():
            raise ConfigError("oauth.scope_aliases must be ALIAS=SCOPE SCOPE,ALIAS=SCOPE")
        found[alias.strip()] = tuple(scopes.split())
    return found


def _texts(found: Any) -> Iterator[str]:
    """Scopes, as providers write them: one text with spaces, or a list of texts."""
    for text in found if isinstance(found, list) else [found]:
        if isinstance(text, str):
            yield from text.split()


def _time(claims: Mapping[str, Any], name: str) -> float:
    """Raises TokenRefused for what is no time."""
    given = claims[name]
    if isinstance(given, bool) or not isinstance(given, int | float) or abs(given) > 2**53 or math.isnan(given):
        raise TokenRefused(f"its {name} is no time")
    return float(given)
