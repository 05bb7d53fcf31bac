# SPDX-License-Identifier: Apache-2.0
"""Logins by challenge: what a proof is good for, what nobody learns from a challenge, and when there is a verifier."""

import base64
import hashlib
import hmac
import logging
import secrets

import pytest

from vibemq.access import proofs, tool_users, users
from vibemq.access.permissions import Access
from vibemq.access.proofs import Challenge, Verifier, make_verifier
from vibemq.access.users import Authenticator, Verdict
from vibemq.protocols.native import accounts
from vibemq.storage import metadata as module
from vibemq.storage.metadata import Metadata

PASSWORD = "correct horse"


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    """They are there to take long, which shows nothing here."""
    assert proofs.ROUNDS >= 210_000  # what OWASP recommended at the least
    monkeypatch.setattr(proofs, "ROUNDS", 1000)


@pytest.fixture
def metadata(tmp_path):
    found = Metadata(str(tmp_path / "meta.db"))
    users.add_user(found, "alice", PASSWORD)
    yield found
    found.close()


@pytest.fixture
def door(metadata):
    return Authenticator(metadata, guest_allowed=True)


def client_proof(user, password, challenge):
    """The client's side, with any text."""
    user, password = (text.encode(errors="surrogatepass") for text in (user, password))
    salted = hashlib.pbkdf2_hmac("sha256", password, challenge.salt, challenge.rounds)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    mask = hmac.digest(stored_key, user + b"," + challenge.nonce, "sha256")
    return bytes(a ^ b for a, b in zip(client_key, mask, strict=True))


def login(door, user, password, loopback=False):
    challenge = door.challenge(user)
    return door.check_proof(user, challenge, client_proof(user, password, challenge), loopback)


def verifier_of(metadata, user):
    return Verifier.decode(metadata.find_user(user).verifier)


# ---- the arithmetic ----

# The example of RFC 7677, section 3: a user "user" with the password "pencil".
RFC_SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
RFC_NONCE = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
# SCRAM's message starts with "n=user,": taking that for our user makes the rest what our nonce is.
RFC_USER = "n=user"
RFC_REST = f"r=rOprNGfwEbeRWgbNEkqO,r={RFC_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={RFC_NONCE}"
RFC_CHALLENGE = Challenge(RFC_SALT, 4096, RFC_REST.encode())
RFC_PROOF = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")


def test_the_proof_of_the_standard_s_example_comes_out_and_is_accepted():
    assert client_proof(RFC_USER, "pencil", RFC_CHALLENGE) == RFC_PROOF
    assert make_verifier("pencil", RFC_SALT, 4096).accepts(RFC_USER, RFC_CHALLENGE, RFC_PROOF)


def test_what_is_kept_is_salt_rounds_and_a_key_that_makes_no_proof():
    kept = make_verifier("pencil", RFC_SALT, 4096)
    assert (kept.salt, kept.rounds) == (RFC_SALT, 4096)
    # A thief masks what he has, stored_key, as the client does with client_key.
    forged = proofs._masked(kept.stored_key, kept.stored_key, RFC_USER, RFC_CHALLENGE)
    assert not kept.accepts(RFC_USER, RFC_CHALLENGE, forged)


def test_each_verifier_has_a_salt_of_its_own_and_survives_the_database():
    one, other = make_verifier(PASSWORD), make_verifier(PASSWORD)
    assert len(one.salt) == proofs.SALT_BYTES
    assert one.salt != other.salt
    assert one.stored_key != other.stored_key
    assert Verifier.decode(one.encode()) == one


@pytest.mark.parametrize(
    "change", [lambda kept: kept[:-1], lambda kept: kept + "0", lambda kept: "x" + kept, str.upper]
)
def test_what_is_no_verifier_is_none(change):
    assert Verifier.decode(change(make_verifier(PASSWORD).encode())) is None
    assert Verifier.decode("") is None


# ---- proofs ----


def test_a_right_proof_lets_in_from_anywhere_and_a_wrong_one_from_nowhere(door):
    for loopback in (True, False):
        assert login(door, "alice", PASSWORD, loopback) is Verdict.OK
        for wrong in ("wrong horse", "", PASSWORD + " "):
            assert login(door, "alice", wrong, loopback) is Verdict.REFUSED


def test_each_bit_of_a_proof_counts(door):
    challenge = door.challenge("alice")
    proof = client_proof("alice", PASSWORD, challenge)
    for bit in range(8 * len(proof)):
        changed = bytearray(proof)
        changed[bit // 8] ^= 1 << bit % 8
        assert door.check_proof("alice", challenge, bytes(changed), False) is Verdict.REFUSED
    for cut in (b"", proof[:-1], proof + b"\0", proof * 2):
        assert door.check_proof("alice", challenge, cut, False) is Verdict.REFUSED


def test_a_proof_is_good_for_its_nonce_only(door):
    heard = client_proof("alice", PASSWORD, door.challenge("alice"))
    assert door.check_proof("alice", door.challenge("alice"), heard, False) is Verdict.REFUSED


def test_nonces_are_long_and_never_the_same(door):
    nonces = [door.challenge(user).nonce for user in ("alice", "nobody", "guest") for _ in range(100)]
    assert {len(nonce) for nonce in nonces} == {24}
    assert len(set(nonces)) == len(nonces)


def test_a_proof_is_good_for_its_user_only(door, metadata):
    metadata.add_user("bob", "hash", verifier=metadata.find_user("alice").verifier)
    challenge = door.challenge("alice")
    proof = client_proof("alice", PASSWORD, challenge)
    assert door.check_proof("bob", challenge, proof, False) is Verdict.REFUSED


@pytest.mark.parametrize("user", ["jürgen müller", "CN=host,O=client", ","])
def test_names_and_passwords_are_any_text(metadata, door, user):
    tool_users.put_user(metadata, user, password="sesame ü \ud800")
    assert login(door, user, "sesame ü \ud800") is Verdict.OK
    assert login(door, user, "sesame u") is Verdict.REFUSED


# ---- who has no verifier ----


@pytest.mark.parametrize("user", ["nobody", "Alice", "", "alice\0", "\udcff", "x" * 300])
def test_who_is_unknown_gets_challenges_like_a_user_s(metadata, door, user):
    first, again = door.challenge(user), door.challenge(user)
    known = door.challenge("alice")
    assert (len(first.salt), len(first.nonce)) == (len(known.salt), len(known.nonce))
    assert first.rounds == known.rounds
    assert first.salt == again.salt != door.challenge(user + "x").salt
    assert first.nonce != again.nonce
    restarted = Metadata(metadata.path)
    assert Authenticator(restarted, guest_allowed=False).challenge(user).salt == first.salt
    restarted.close()


def test_who_is_unknown_has_another_salt_at_another_broker(metadata, door, tmp_path):
    other = Metadata(str(tmp_path / "other.db"))
    assert Authenticator(other, guest_allowed=True).challenge("nobody").salt != door.challenge("nobody").salt
    other.close()


def test_no_proof_is_good_for_who_is_unknown(door):
    challenge = door.challenge("nobody")
    guesses = [
        *(client_proof("nobody", password, challenge) for password in ("", PASSWORD)),
        bytes(32),
        secrets.token_bytes(32),
        proofs._masked(bytes(32), bytes(32), "nobody", challenge),
    ]
    for proof in guesses:
        assert door.check_proof("nobody", challenge, proof, True) is Verdict.REFUSED


def test_who_is_removed_or_made_again_needs_a_new_challenge(metadata, door):
    challenge = door.challenge("alice")
    proof = client_proof("alice", PASSWORD, challenge)
    metadata.delete_user("alice")
    assert door.check_proof("alice", challenge, proof, False) is Verdict.REFUSED
    users.add_user(metadata, "alice", PASSWORD)
    assert door.check_proof("alice", challenge, proof, False) is Verdict.REFUSED


# ---- guest ----


def test_guest_proves_its_password_from_this_machine_only(door):
    assert login(door, "guest", "guest", loopback=True) is Verdict.OK
    assert login(door, "guest", "guest", loopback=False) is Verdict.LOOPBACK_ONLY
    assert login(door, "guest", "wrong", loopback=False) is Verdict.REFUSED


def test_guest_has_the_same_salt_on_every_worker(metadata, door):
    assert Authenticator(metadata, guest_allowed=True).challenge("guest").salt == door.challenge("guest").salt


@pytest.mark.parametrize("how", ["configured", "removed"])
def test_guest_who_may_not_come_has_no_proof(metadata, how):
    if how == "removed":
        tool_users.delete_user(metadata, "guest")
    door = Authenticator(metadata, guest_allowed=how == "removed")
    assert login(door, "guest", "guest", loopback=True) is Verdict.REFUSED


# ---- the verifier goes with the password ----

ROOT = Access("alice", True, ())


def imported(metadata, user):
    salted = b"salt" + hashlib.sha256(b"salt" + PASSWORD.encode()).digest()
    tool_users.put_user(metadata, user, password_hash=base64.b64encode(salted).decode())


@pytest.mark.parametrize(
    "change",
    [
        lambda metadata: users.change_password(metadata, "alice", "battery staple"),
        lambda metadata: tool_users.change_password(metadata, "alice", "battery staple"),
        lambda metadata: tool_users.put_user(metadata, "alice", password="battery staple"),
        lambda metadata: accounts.change_password(
            metadata, ROOT, {"username": "alice", "newPassword": "battery staple"}
        ),
        lambda metadata: (
            metadata.set_superuser("alice", False),
            users.ensure_superuser(metadata, "alice", "battery staple"),
        ),
    ],
    ids=["users", "tools", "put", "native", "superuser"],
)
def test_another_password_has_another_verifier(metadata, door, change):
    old = verifier_of(metadata, "alice")
    challenge = door.challenge("alice")
    change(metadata)
    assert verifier_of(metadata, "alice").salt != old.salt
    assert door.check_proof("alice", challenge, client_proof("alice", PASSWORD, challenge), False) is Verdict.REFUSED
    assert login(door, "alice", PASSWORD) is Verdict.REFUSED
    assert login(door, "alice", "battery staple") is Verdict.OK


@pytest.mark.parametrize(
    "make",
    [
        lambda metadata: users.add_user(metadata, "bob", PASSWORD),
        lambda metadata: tool_users.put_user(metadata, "bob", password=PASSWORD),
        lambda metadata: accounts.create_user(metadata, ROOT, {"username": "bob", "password": PASSWORD}),
        lambda metadata: (
            metadata.set_superuser("alice", False),
            users.ensure_superuser(metadata, "bob", PASSWORD),
        ),
    ],
    ids=["users", "tools", "native", "superuser"],
)
def test_who_is_made_with_a_password_can_prove_it(metadata, door, make):
    make(metadata)
    assert login(door, "bob", PASSWORD) is Verdict.OK


@pytest.mark.parametrize(
    "change",
    [
        lambda metadata: tool_users.put_user(metadata, "alice", ("monitoring",)),
        lambda metadata: tool_users.set_tags(metadata, "alice", ("monitoring",)),
        lambda metadata: metadata.set_superuser("alice", False),
    ],
    ids=["put", "tags", "superuser"],
)
def test_what_leaves_the_password_leaves_the_verifier(metadata, door, change):
    before = metadata.find_user("alice").verifier
    change(metadata)
    assert metadata.find_user("alice").verifier == before
    assert login(door, "alice", PASSWORD) is Verdict.OK


@pytest.mark.parametrize("user", ["alice", "bob"])
def test_an_imported_hash_has_no_verifier_until_the_password_is_set(metadata, door, user):
    imported(metadata, user)
    assert metadata.find_user(user).verifier == ""
    assert login(door, user, PASSWORD) is Verdict.REFUSED
    assert door.check(user, PASSWORD, loopback=False) is Verdict.OK
    users.change_password(metadata, user, PASSWORD)
    assert login(door, user, PASSWORD) is Verdict.OK


def test_who_has_no_password_has_no_proof(metadata, door, caplog):
    tool_users.put_user(metadata, "CN=host", password_hash="")
    assert login(door, "CN=host", "") is Verdict.REFUSED
    assert caplog.text == ""


def test_the_log_says_once_who_cannot_log_in_by_challenge(metadata, door, caplog):
    imported(metadata, "bob")
    with caplog.at_level(logging.DEBUG):
        for user in ("bob", "alice", "nobody", "guest", "bob"):
            challenge = door.challenge(user)
            door.check_proof(user, challenge, bytes(32), False)
    (said,) = caplog.messages
    assert "user 'bob' cannot log in by challenge" in said
    assert "until the password is set anew" in said


def test_a_database_from_before_verifiers_keeps_its_users_who_send_their_passwords(tmp_path, monkeypatch):
    path = str(tmp_path / "old.db")
    with monkeypatch.context() as older:
        older.setattr(module, "MIGRATIONS", module.MIGRATIONS[:4])
        old = Metadata(path)
        with old._transaction(synced=False) as db:  # it knows nothing of buckets
            hashed = users.hash_password(PASSWORD).password_hash
            db.execute("INSERT INTO users VALUES ('bob', ?, '[]', 1, 0, 1)", (hashed,))
        key = old.token_key()
        old.close()
    new = Metadata(path)
    door = Authenticator(new, guest_allowed=False)
    assert new.find_user("bob").verifier == ""
    assert new.token_key() == key
    assert login(door, "bob", PASSWORD) is Verdict.REFUSED
    assert door.check("bob", PASSWORD, loopback=False) is Verdict.OK
    users.change_password(new, "bob", PASSWORD)
    assert login(door, "bob", PASSWORD) is Verdict.OK
    new.close()


# ---- what is shown ----


def test_nothing_shows_a_verifier(metadata, door, caplog):
    kept = verifier_of(metadata, "alice")
    with caplog.at_level(logging.DEBUG):
        login(door, "alice", PASSWORD)
        login(door, "alice", "wrong horse")
    listed = [
        repr(metadata.users()),
        repr(kept),
        repr(tool_users.list_users(metadata, True)),
        repr(accounts.list_users(metadata, ROOT)),
        repr(door),
        caplog.text,
    ]
    for shown in listed:
        for secret in (kept.stored_key.hex(), repr(kept.stored_key), kept.salt.hex(), "scram-sha", "horse"):
            assert secret not in shown
