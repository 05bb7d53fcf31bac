# SPDX-License-Identifier: Apache-2.0
"""Logins and permissions, on a broker where everybody has a password, and what changes do to open connections."""

import itertools
import time

import pytest
from peers.micromsg2 import PASSWORD, ROOT, USUAL, Micromsg2Peer, code
from running import broker, wait_until

from vibemq.access.permissions import Operation
from vibemq.access.proofs import Challenge
from vibemq.access.users import add_user, change_password
from vibemq.client.micromsg2 import client_proof
from vibemq.protocols.micromsg2.codec import ErrorFrame, Handshake, encode_handshake, percent_encode
from vibemq.protocols.micromsg2.extensions import lists_of
from vibemq.server.datadir import metadata_path
from vibemq.storage.metadata import Metadata

LOGIN_DELAY_S_MIN = 2.0  # the promise is "never below"
WRONG = "a password of nobody's"
USERS_PASSWORD = "the user's password"
users = (f"user-{number}" for number in itertools.count())


def logged_in(running, user=ROOT, password=PASSWORD, extensions=USUAL, **more):
    """By password, which loopback and TLS allow."""
    peer = Micromsg2Peer(running, **more)
    peer.handshake(f"{extensions};microauth", answers={"microauth": {"user": user, "password": password}})
    return peer


def ask_challenge(peer, user):
    s1 = peer.hello(f"{USUAL};microauth:user={percent_encode(user)}")
    item = next(item for item in lists_of(s1).required if item.name == "microauth")
    assert item.property("mechanism") == "hmac-sha256"
    salt, nonce = (bytes.fromhex(item.property(key)) for key in ("salt", "nonce"))
    return s1, Challenge(salt, int(item.property("rounds")), nonce)


def prove(peer, user, password, as_user=None):
    s1, challenge = ask_challenge(peer, user)
    proof = client_proof(as_user or user, password, challenge.salt, challenge.rounds, challenge.nonce).hex()
    peer.write(peer.c2(s1, {"microauth": {"user": as_user or user, "proof": proof}}))


@pytest.fixture
def root(guarded):
    with logged_in(guarded.running) as peer:
        yield peer


@pytest.fixture(scope="module")
def user(guarded):
    """A user who may do nothing yet."""
    name = next(users)
    add_user(guarded.metadata, name, USERS_PASSWORD)
    return name


@pytest.fixture
def peer(guarded, user):
    with logged_in(guarded.running, user, USERS_PASSWORD) as peer:
        yield peer


# ---- logging in ----


def test_a_password_from_this_machine_lets_in(guarded, root, name):
    root.publish(name)
    root.ping()


def test_a_proof_lets_in_and_the_password_is_not_sent(guarded, user):
    for who, password in ((ROOT, PASSWORD), (user, USERS_PASSWORD)):
        with Micromsg2Peer(guarded.running) as peer:
            prove(peer, who, password)
            peer.ping()


def test_over_tls_the_password_may_be_sent(guarded, name):
    with logged_in(guarded.running, tls=guarded.authority.client_context()) as peer:
        peer.publish(name, b"x" * 3_000_000)
        peer.subscribe(name)
        payload = b""
        while len(payload) < 3_000_000:
            payload += peer.deliver().payload
        assert payload == b"x" * 3_000_000


def test_a_client_that_did_not_name_microauth_is_refused_in_the_handshake(guarded):
    for minor in (0, 1):
        with Micromsg2Peer(guarded.running) as peer:
            assert peer.hello("json", minor=minor) == ErrorFrame("Server requires the following extensions: microauth")
            assert peer.rest() == []


@pytest.mark.parametrize(
    "answer",
    [{}, {"user": ROOT}, {"password": PASSWORD}, {"proof": "00" * 32}, {"user": ROOT, "proof": "00" * 32}],
    ids=lambda answer: "+".join(answer) or "nothing",
)
def test_without_user_and_password_or_a_challenge_the_answer_is_auth_required(guarded, answer):
    with Micromsg2Peer(guarded.running) as peer:
        s1 = peer.hello("json;microauth")
        peer.write(peer.c2(s1, {"microauth": answer}))
        assert code(peer.ended()) == "AUTH_REQUIRED"


@pytest.mark.parametrize(
    ("user", "password"),
    [
        (ROOT, WRONG),
        ("nobody", PASSWORD),
        (ROOT.upper(), PASSWORD),
        ("\udcff\udcfe", "\udcff"),
        ("", ""),
        ("guest", WRONG),
    ],
    ids=["password", "user", "case", "no UTF-8", "empty", "guest"],
)
def test_a_wrong_password_is_answered_late_and_nobody_else_waits(guarded, root, user, password):
    with Micromsg2Peer(guarded.running) as raw:
        s1 = raw.hello("json;microauth")
        data = raw.c2(s1, {"microauth": {"user": user, "password": password}})
        began = time.monotonic()
        raw.write(data, raw.message("never"))
        for _ in range(20):
            root.ping()
        assert time.monotonic() - began < LOGIN_DELAY_S_MIN, "another connection had to wait for the failed login"
        assert raw.ended() == "AUTH_FAILED: wrong user or password"
        assert time.monotonic() - began >= LOGIN_DELAY_S_MIN
    assert root.denied("info", destination="never") == "QUEUE_NOT_FOUND"


@pytest.mark.parametrize("wrong", ["password", "unknown user", "another user", "no hex", "short", "empty"])
def test_a_wrong_proof_is_answered_late(guarded, user, wrong):
    with Micromsg2Peer(guarded.running) as raw:
        began = time.monotonic()
        if wrong == "password":
            prove(raw, ROOT, WRONG)
        elif wrong == "unknown user":
            prove(raw, "nobody", PASSWORD)
        elif wrong == "another user":
            prove(raw, user, USERS_PASSWORD, as_user=ROOT)
        else:
            s1, _ = ask_challenge(raw, ROOT)
            proof = {"no hex": "zz", "short": "00", "empty": ""}[wrong]
            raw.write(raw.c2(s1, {"microauth": {"user": ROOT, "proof": proof}}))
        assert raw.ended() == "AUTH_FAILED: wrong user or password"
        assert time.monotonic() - began >= LOGIN_DELAY_S_MIN


def test_an_overheard_proof_is_of_no_use_to_others(guarded):
    with Micromsg2Peer(guarded.running) as peer, Micromsg2Peer(guarded.running) as thief:
        s1, challenge = ask_challenge(peer, ROOT)
        proof = client_proof(ROOT, PASSWORD, challenge.salt, challenge.rounds, challenge.nonce).hex()
        theirs, other = ask_challenge(thief, ROOT)
        assert (challenge.salt, challenge.rounds) == (other.salt, other.rounds)
        assert challenge.nonce != other.nonce
        thief.write(thief.c2(theirs, {"microauth": {"user": ROOT, "proof": proof}}))
        peer.write(peer.c2(s1, {"microauth": {"user": ROOT, "proof": proof}}))
        peer.ping()
        assert code(thief.ended()) == "AUTH_FAILED"


def test_users_whom_nobody_knows_get_challenges_too_and_always_the_same_salt(guarded):
    seen = set()
    for _ in range(2):
        with Micromsg2Peer(guarded.running) as peer:
            challenge = ask_challenge(peer, "whoever-this-is")[1]
            seen.add((challenge.salt, challenge.rounds))
    assert len(seen) == 1


def test_the_challenge_and_the_proof_are_not_echoed_to_anybody(guarded):
    with Micromsg2Peer(guarded.running) as peer:
        s1 = peer.hello(f"json;microauth:user={ROOT},password=secret,proof=00")
        assert b"secret" not in s1.required + s1.optional
        assert b"proof" not in s1.required + s1.optional


def test_guest_may_come_from_this_machine(guarded):
    with logged_in(guarded.running, "guest", "guest") as peer:
        peer.ping()
    with Micromsg2Peer(guarded.running) as peer:
        prove(peer, "guest", "guest")
        peer.ping()


def test_where_nobody_has_to_log_in_microauth_is_not_looked_at(served, name):
    for answer in ({}, {"user": "whoever", "password": WRONG}, {"user": "whoever", "proof": "00"}):
        with Micromsg2Peer(served) as peer:
            s1 = peer.hello("batch-ack;microauth:user=whoever")
            assert isinstance(s1, Handshake)
            peer.write(peer.c2(s1, {"microauth": answer}))
            peer.publish(name)


# ---- what permissions allow ----

NEEDED = {"subscribe": "Subscribe", "create": "CreateQueue", "delete": "DeleteQueue", "info": "GetQueueInfo"}


def grant(guarded, user, pattern, *operations):
    guarded.metadata.grant(user, pattern, operations)


@pytest.mark.parametrize("command", NEEDED)
def test_each_command_needs_its_operation_and_no_other(guarded, root, peer, user, name, command):
    queue = f"{name}.q"
    root.create(queue)
    wanted = Operation[NEEDED[command]]
    grant(guarded, user, f"{name}.*", *(operation for operation in Operation if operation is not wanted))
    wait_until(lambda: queue in peer.tell("list")["names"].split("\n"), "the grant is seen")
    assert peer.denied(command, destination=queue) == "NOT_AUTHORIZED"
    grant(guarded, user, f"{name}.*", wanted)
    wait_until(lambda: peer.ask(command, destination=queue)["reply"] == "ok", "the grant is seen")
    for missing in (name, f"x{name}.q"):
        answer = peer.ask(command, destination=missing)
        assert answer["code"] == "NOT_AUTHORIZED"
        assert f"user '{user}' lacks the permission {wanted.name} for '{missing}'" in answer["text"]
    guarded.metadata.revoke(user, f"{name}.*")


def test_sending_needs_publish_and_makes_the_queue(guarded, root, peer, user, name):
    assert peer.refused(name) == peer.refused(f"topic/{name}") == "NOT_AUTHORIZED"
    grant(guarded, user, name, Operation.Publish)

    def published():
        peer.send(name)
        frame = peer.next()
        return not isinstance(frame, ErrorFrame)

    wait_until(published, "the grant counts")
    assert root.info(name)["messages"] == 1
    guarded.metadata.revoke(user, name)

    def refused():
        peer.send(name)
        return isinstance(peer.next(), ErrorFrame)

    wait_until(refused, "the revocation counts for a publisher that is open")
    kept = root.info(name)["messages"]
    assert peer.refused(name) == "NOT_AUTHORIZED"
    assert root.info(name)["messages"] == kept


def test_who_makes_dead_letters_must_be_allowed_to_publish_there(guarded, peer, user, name):
    grant(guarded, user, name, *Operation)
    wait_until(lambda: peer.ask("create", destination=name)["reply"] == "ok", "the grant counts")
    peer.tell("delete", destination=name)
    answer = peer.ask("create", destination=name, dead_letter=1)
    assert (answer["code"], f"Publish for '{name}.dlq'" in answer["text"]) == ("NOT_AUTHORIZED", True)
    guarded.metadata.revoke(user, name)


def test_a_list_holds_what_any_pattern_matches(guarded, root, peer, user, name):
    for queue in (f"{name}.a", f"{name}.b", f"{name}-other"):
        root.create(queue)
    grant(guarded, user, f"{name}.*", Operation.Publish)
    wait_until(lambda: peer.tell("list")["names"] == f"{name}.a\n{name}.b", "the grant counts")
    guarded.metadata.revoke(user, f"{name}.*")
    wait_until(lambda: peer.tell("list") == {"count": "0", "names": ""}, "the revocation counts")


# ---- changes while connections are open ----


def test_who_may_not_subscribe_any_more_gets_nothing_more_and_keeps_nothing(guarded, root, user, name):
    grant(guarded, user, name, Operation.Subscribe)
    root.create(name)
    peers = [logged_in(guarded.running, user, USERS_PASSWORD) for _ in range(4)]
    try:
        for peer in peers:
            wait_until(lambda peer=peer: peer.ask("subscribe", destination=name)["reply"] == "ok", "the grant counts")
        for _ in peers:
            root.publish(name)
        guarded.metadata.revoke(user, name)
        for peer in peers:
            frame = peer.next()
            while not isinstance(frame, ErrorFrame):
                frame = peer.next()
            assert code(frame.text) == "NOT_AUTHORIZED"
            peer.ack()  # late
        wait_until(lambda: root.info(name) == {"messages": 4, "in-flight": 0, "consumers": 0}, "all are given back")
        for peer in peers:
            peer.ping()
    finally:
        for peer in peers:
            peer.socket.close()


def test_a_deleted_user_is_let_go_and_a_changed_password_is_not(guarded, root):
    name = next(users)
    add_user(guarded.metadata, name, USERS_PASSWORD)
    peers = [logged_in(guarded.running, name, USERS_PASSWORD) for _ in range(4)]
    change_password(guarded.metadata, name, "another password")
    for peer in peers:
        peer.ping()
    guarded.metadata.delete_user(name)
    add_user(guarded.metadata, name, USERS_PASSWORD)  # another one of the same name
    for peer in peers:
        with peer:
            assert peer.ended() == "AUTH_FAILED: this user was deleted"
    root.ping()


def test_the_first_user_ends_connections_that_had_not_to_log_in(tmp_path):
    with broker(tmp_path, workers=1) as running:
        with Micromsg2Peer(running) as anybody, logged_in(running, ROOT, WRONG) as pretender:
            anybody.handshake(USUAL)
            pretender.ping()  # nobody has looked at the password
            with logged_in(running, "guest", "guest") as guest:
                guest.ping()
                metadata = Metadata(metadata_path(str(tmp_path)))
                add_user(metadata, "somebody", USERS_PASSWORD)
                metadata.close()
                for peer in (anybody, pretender):
                    assert code(peer.ended()) == "AUTH_REQUIRED"
                guest.ping()
        with Micromsg2Peer(running) as raw:
            assert isinstance(raw.hello("json"), ErrorFrame)


# ---- the log ----


FIRST_USER = ("--set", f"native.superuser_name={ROOT}", "--set", f"native.superuser_password={PASSWORD}")


@pytest.mark.parametrize("rest", [",rest of it", ";rest-of-it", ";rest of it"])
def test_what_follows_a_comma_or_semicolon_in_a_password_is_not_logged(tmp_path, capfd, rest):
    """Who forgets to encode a password has it read as more than one thing."""
    spoilt = encode_handshake(Handshake(required=f"json;microauth:user={ROOT},password=begins{rest}".encode()))
    with broker(tmp_path, *FIRST_USER, workers=1) as running:
        for before in (b"", encode_handshake(Handshake(required=b"json;microauth"))):
            with Micromsg2Peer(running) as raw:
                raw.write(before + spoilt)
                while raw.socket.recv(1 << 16):
                    pass
    log = capfd.readouterr().err
    assert log.count("refused in the handshake") == 2
    assert "rest" not in log.lower()


def test_of_an_endless_user_name_the_log_has_the_beginning(tmp_path, capfd):
    with broker(tmp_path, *FIRST_USER, workers=1) as running, Micromsg2Peer(running) as raw:
        s1 = raw.hello("json;microauth")
        raw.write(raw.c2(s1, {"microauth": {"user": "n" * 60_000, "password": WRONG}}))
        assert code(raw.ended()) == "AUTH_FAILED"
    log = capfd.readouterr().err
    assert "login refused for user 'nnn" in log
    assert max(map(len, log.splitlines())) < 1000
