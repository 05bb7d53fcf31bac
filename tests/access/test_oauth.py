# SPDX-License-Identifier: Apache-2.0
"""Tokens: which are believed, what their scopes allow, and how often a provider is asked for its keys."""

import base64
import hmac
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from peers.provider import AUDIENCE, ISSUER, KEYS, RSA_KEY, Provider, published, signed

from vibemq.access.jwks import RETRY_S, SIZE_BYTES_MAX, Keys, KeysUnavailable, fetched
from vibemq.access.oauth import SCOPES_MAX, TokenChecker, check_options
from vibemq.access.permissions import Operation
from vibemq.access.scopes import TokenAccess, scopes_of
from vibemq.access.users import Authenticator, TokenRefused, Verdict, add_user
from vibemq.config import OAuth
from vibemq.errors import ConfigError
from vibemq.storage.metadata import Metadata

NOW_S = 1_900_000_000.0


class Clock:
    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.close()


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "keys.json"
    path.write_bytes(published("rsa", "ec", "ed"))
    return str(path)


def options(jwks: str, **others: Any) -> OAuth:
    return OAuth(jwks=jwks, issuer=ISSUER, resource_server_id=AUDIENCE, **others)


def checker(jwks: str, clock: Clock | None = None, **others: Any) -> TokenChecker:
    return TokenChecker(options(jwks, **others), clock or Clock(time.time()))


@pytest.mark.parametrize("key", KEYS)
def test_a_token_of_each_kind_of_key_lets_its_subject_in(file: str, key: str) -> None:
    access = checker(file).check(signed({"scope": "rabbitmq.read:*/* rabbitmq.tag:monitoring other.write:*/*"}, key))
    assert (access.user, access.tags, access.is_superuser) == ("ada", ("monitoring",), False)
    rights = access.rights_in("/")
    assert rights is not None and rights.read("x") and not rights.write("x")


def headed(header: dict[str, Any]) -> str:
    """One that no library would make."""
    return f"{base64.urlsafe_b64encode(json.dumps(header).encode()).decode().rstrip('=')}.e30.AAAA"


def unsigned() -> str:
    return jwt.encode({"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": NOW_S}, None, "none")  # type: ignore[arg-type]


def signed_by_the_public_key() -> str:
    """By HMAC, with what everybody knows for a secret, which PyJWT itself would not do."""
    public = RSA_KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    said = ".".join((headed({"alg": "HS256", "kid": "rsa"}).split(".")[0], signed().split(".")[1]))
    proof = base64.urlsafe_b64encode(hmac.digest(public, said.encode(), "sha256")).decode().rstrip("=")
    return f"{said}.{proof}"


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (lambda: signed({"exp": time.time() - 60}), "expired"),
        (lambda: signed({"exp": None}), "no exp"),
        (lambda: signed({"exp": float("nan")}), "exp is no time"),
        (lambda: signed({"exp": float("inf")}), "exp is no time"),
        (lambda: signed({"exp": 10**400}), "exp is no time"),
        (lambda: signed({"exp": True}), "exp is no time"),
        (lambda: signed({"exp": "9999999999"}), "exp is no time"),
        (lambda: signed({"nbf": time.time() + 60}), "not come yet"),
        (lambda: signed({"iat": time.time() + 60}), "not come yet"),
        (lambda: signed({"iss": "https://idp.test/other"}), "another issuer"),
        (lambda: signed({"iss": None}), "no iss"),
        (lambda: signed({"aud": "others"}), "for others"),
        (lambda: signed({"aud": None}), "no aud"),
        (lambda: signed({"sub": None}), "user's name"),
        (lambda: signed({"sub": "a\nb"}), "user's name"),
        (lambda: signed({"scope": "x " * (SCOPES_MAX + 1)}), "scopes"),
        (lambda: signed(headers={"kid": "ec"}), "no key"),  # that of another algorithm
        (lambda: signed(headers={"kid": "unknown"}), "no key"),
        (lambda: headed({"alg": "RS256", "kid": 7}), "malformed"),
        (lambda: headed({"alg": ["RS256"]}), "."),
        (lambda: headed({"alg": "RS256", "kid": "rsa", "crit": ["exp"]}), "extensions|malformed"),
        (lambda: signed()[:-6] + "AAAAAA", "signature"),
        (lambda: ".".join(("eyJhbGciOiJSUzI1NiJ9", "W" * 8000, "")), "."),
        (lambda: "eyJ..", "malformed"),
        (lambda: "eyJ" + "W1tb" * 4000 + "..", "."),
        (unsigned, "algorithm"),
        (signed_by_the_public_key, "algorithm"),
    ],
)
def test_every_other_token_is_refused_with_a_reason_that_quotes_nothing_of_it(file: str, token: Any, why: str) -> None:
    text = token()
    with pytest.raises(TokenRefused, match=why) as refused:
        checker(file).check(text)
    assert not any(part and part in str(refused.value) for part in text.split("."))


def test_the_leeway_counts_at_both_ends_and_when_rights_end(file: str) -> None:
    clock = Clock(NOW_S)
    tokens = checker(file, clock, leeway_s=10)
    access = tokens.check(signed({"exp": NOW_S + 60, "nbf": NOW_S + 10, "scope": "rabbitmq.read:*/*"}))
    clock.now_s = NOW_S + 69.9
    assert not access.is_over and access.rights_in("/") is not None
    clock.now_s = NOW_S + 70
    assert access.is_over and access.rights_in("/") is None
    with pytest.raises(TokenRefused, match="expired"):
        tokens.check(signed({"exp": NOW_S + 60}))


def test_the_user_is_named_by_the_first_claim_that_there_is(file: str) -> None:
    tokens = checker(file, preferred_username_claims="email,user_name")
    assert tokens.check(signed({"user_name": "u", "client_id": "c"})).user == "u"
    assert tokens.check(signed({"client_id": "c"})).user == "ada"
    assert tokens.check(signed({"sub": None, "client_id": "c"})).user == "c"


def test_scopes_come_from_lists_other_claims_and_aliases(file: str) -> None:
    tokens = checker(
        file, additional_scopes_key="realm.roles", scope_aliases="reader=rabbitmq.read:*/* rabbitmq.tag:management"
    )
    access = tokens.check(signed({"scope": ["rabbitmq.write:a/b"], "realm": {"roles": ["reader"]}}))
    assert access.tags == ("management",)
    both = access.rights_in("a")
    assert both is not None and both.read("x") and both.write("b") and not both.write("x")
    bare = checker(file, scope_prefix="none").check(signed({"scope": "configure:v/*"})).rights_in("v")
    assert bare is not None and bare.configure("x")


def scoped(*scopes: str) -> TokenAccess:
    return TokenAccess("ada", scopes_of(scopes, "r."), NOW_S + 60, Clock(NOW_S))


@pytest.mark.parametrize(
    ("scope", "vhost", "name", "allowed"),
    [
        ("r.read:*/*", "/", "x", True),
        ("r.read:%2F/orders.*", "/", "orders.eu", True),
        ("r.read:%2F/orders.*", "/", "Orders.eu", False),
        ("r.read:%2F/orders.*", "v", "orders.eu", False),
        ("r.read:v*1/*b*", "v-1", "abc", True),
        ("r.read:v/%2A", "v", "*", True),
        ("r.read:v/%2A", "v", "x", False),
        ("r.read:v/x/*", "v", "x", True),
        ("r.read:v/x/key", "v", "x", False),
        ("r.read:v", "v", "x", False),
        ("r.read:v/x/*/y", "v", "x", False),
        ("r.read:v/%FF", "v", "\ufffd", False),
        ("r.write:v/x", "v", "x", False),
        ("R.read:v/x", "v", "x", False),
        ("read:v/x", "v", "x", False),
    ],
)
def test_a_scope_is_a_right_to_names_and_virtual_hosts_by_wildcards(
    scope: str, vhost: str, name: str, allowed: bool
) -> None:
    rights = scoped(scope).rights_in(vhost)
    assert (rights is not None and rights.read(name)) is allowed


def test_rights_in_the_default_virtual_host_are_rights_to_queues() -> None:
    access = scoped("r.read:%2F/in", "r.write:%2F/out", "r.configure:other/made")
    assert access.may(Operation.Subscribe, "in") and not access.may(Operation.Publish, "in")
    assert access.may(Operation.Publish, "out") and not access.may(Operation.Subscribe, "out")
    assert not access.may(Operation.CreateQueue, "made") and access.sees("in") and not access.sees("made")


def test_no_user_of_the_broker_is_named_by_a_token(file: str, tmp_path: Path, caplog: Any) -> None:
    metadata = Metadata(str(tmp_path / "meta.db"))
    add_user(metadata, "bob", "a password of bob's")
    door = Authenticator(metadata, True, checker(file))
    token = signed()
    with caplog.at_level(logging.WARNING):
        for name in ("bob", "guest", "Guest"):
            assert door.check("", signed({"sub": name}), loopback=True) is Verdict.REFUSED
        assert door.check("", token[:-6] + "AAAAAA", loopback=True) is Verdict.REFUSED
    assert door.check_cached("guest", token, loopback=True) is None
    found = door.check("guest", token, loopback=False)
    assert isinstance(found, TokenAccess) and found.user == "ada"
    assert door.check("bob", "a password of bob's", loopback=True) is Verdict.OK
    assert "token was refused" in caplog.text and token[:40] not in caplog.text
    metadata.close()


# ---- keys ----


def test_unknown_keys_make_the_provider_be_asked_once_in_an_interval(provider: Provider) -> None:
    clock = Clock(NOW_S)
    provider.answer = published("rsa")
    keys = Keys(options(provider.url), clock)
    assert keys.find("rsa", "RS256") is not None and provider.asked == 1
    for n in range(50):
        assert keys.find(f"unknown-{n}", "RS256") is None
    assert provider.asked == 1
    provider.answer = published("rsa", "ec")
    assert keys.find("ec", "ES256") is None
    clock.now_s += RETRY_S
    assert keys.find("ec", "ES256") is not None and provider.asked == 2


def test_keys_are_fetched_again_and_outlive_a_provider_that_is_away_for_a_while(provider: Provider) -> None:
    clock = Clock(NOW_S)
    keys = Keys(options(provider.url, jwks_refresh_s=300, jwks_age_max_s=3600), clock)
    assert keys.find("rsa", "RS256") is not None
    clock.now_s += 300
    provider.status = 503
    assert keys.find("rsa", "RS256") is not None and provider.asked == 2
    clock.now_s += 3300
    assert keys.find("rsa", "RS256") is None
    provider.status, provider.answer = 200, published("ec")
    clock.now_s += RETRY_S
    assert keys.find("rsa", "RS256") is None, "it was withdrawn"
    assert keys.find("ec", "ES256") is not None and keys.find(None, "ES256") is not None


@pytest.mark.parametrize(
    ("status", "answer", "why"),
    [(302, published("rsa"), "302"), (200, b"x" * (SIZE_BYTES_MAX + 1), "bytes"), (404, b"{}", "404")],
)
def test_what_a_provider_must_not_answer(provider: Provider, status: int, answer: bytes, why: str) -> None:
    provider.status, provider.answer = status, answer
    with pytest.raises(KeysUnavailable, match=why):
        fetched(options(provider.url))
    assert provider.asked == 1, "nobody follows it elsewhere"


def test_weak_secret_and_foreign_keys_are_no_keys() -> None:
    rsa = json.loads(published("rsa"))["keys"][0]
    odd = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"},
        rsa | {"kid": "encrypts", "use": "enc"},
        rsa | {"kid": "weak", "n": rsa["n"][:100]},
        rsa | {"kid": "other", "alg": "RS512"},
        rsa | {"kid": "twice"},
        rsa | {"kid": "twice"},
        7,
    ]
    keys = Keys(options("unused"), fetch=lambda _: json.dumps({"keys": odd}).encode())
    for kid in ("secret", "encrypts", "weak", "other", "twice", None):
        assert keys.find(kid, "RS256") is None
    assert keys.find("other", "RS512") is not None


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (OAuth(issuer="x"), "jwks is empty"),
        (OAuth(jwks="https://a/b", issuer="x"), "resource_server_id"),
        (OAuth(jwks="https://a/b", resource_server_id="x"), "issuer"),
        (options("http://idp.test/keys"), "https"),
        (options("http://127.0.0.1.idp.test/keys"), "https"),
        (options("ftp://127.0.0.1/keys"), "https"),
        (options("https://user@idp.test/keys"), "no user"),
        (options("https://a/b", jwks_ca="/does/not/exist"), "jwks_ca"),
        (options("/does/not/exist"), "No such file"),
        (options("https://a/b", scope_aliases="x"), "ALIAS"),
        (options("https://a/b", jwks_age_max_s=100), "jwks_age_max_s"),
    ],
)
def test_options_that_would_let_strangers_in_stop_the_start(wrong: OAuth, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_options(wrong)
