# SPDX-License-Identifier: Apache-2.0
"""Logins, users and permissions, on a broker where somebody has a password, and what changes do to open connections."""

import json
import subprocess
import sys
import time

import pytest
from peers.native import FRESH_ID, NativePeer
from running import ENVIRONMENT, SERVE, broker, wait_until

from vibemq.protocols.native.spec import COMMANDS, Command

ROOT, PASSWORD = "vibemq", "the superuser's password"
LOGIN_DELAY_S_MIN = 2.0  # the promise is "never below"
NONE_OF_OURS = "a password of nobody's"
CREATE, DELETE, CHANGE, GRANT, REVOKE, LIST, PERMISSIONS = range(50, 57)
ADMIN_COMMANDS = [rule.command for rule in COMMANDS if rule.admin]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("guarded") / "data"


@pytest.fixture(scope="module")
def guarded(folder):
    """The superuser comes from the configuration; nobody else is there."""
    with broker(folder, "--set", f"native.superuser_password={PASSWORD}") as running:
        yield running


def logged_in(running, user=ROOT, password=PASSWORD, **headers):
    peer = NativePeer(running)
    peer.connect(authUsername=user, authPassword=password, **headers)
    return peer


@pytest.fixture
def root(guarded):
    with logged_in(guarded) as peer:
        yield peer


users = iter(f"user-{number}" for number in range(1000))


@pytest.fixture
def user(root):
    """A user who may do nothing yet."""
    name = next(users)
    assert root.admin(CREATE, username=name, password="pw") == {"username": name}
    return name


@pytest.fixture
def peer(guarded, user):
    """Connected as that user."""
    with logged_in(guarded, user, "pw") as peer:
        yield peer


def grant(root, user, pattern, *operations):
    answer = root.admin(GRANT, username=user, queuePattern=pattern, operations=list(operations))
    assert answer == {"username": user, "queuePattern": pattern, "operations": sorted(operations, key=ORDER.index)}


ORDER = ["Publish", "Subscribe", "CreateQueue", "DeleteQueue", "PurgeQueue", "GetQueueInfo", "ListQueues"]

# ---- logging in ----


@pytest.mark.parametrize("headers", [{}, {"authUsername": ROOT}, {"clientVersion": "1.0"}, {"authPassword": ""}])
def test_without_a_password_the_answer_is_auth_required(guarded, headers):
    with NativePeer(guarded) as raw:
        assert raw.refused(Command.CONNECT, headers=headers) == "AUTH_REQUIRED"
        raw.connect(authUsername=ROOT, authPassword=PASSWORD)


def test_a_password_alone_is_the_superusers(guarded):
    with NativePeer(guarded) as raw:
        raw.connect(authPassword=PASSWORD)
        assert raw.admin(LIST)[0]["username"] <= ROOT


@pytest.mark.parametrize(
    "headers",
    [
        {"authUsername": ROOT, "authPassword": NONE_OF_OURS},
        {"authUsername": "nobody", "authPassword": PASSWORD},
        {"authUsername": "VibeMQ", "authPassword": PASSWORD},
        {"authUsername": "\udcff\udcfe", "authPassword": "\udcff"},
        {"authPassword": NONE_OF_OURS},
    ],
    ids=["password", "user", "case", "no UTF-8", "password alone"],
)
def test_a_failed_login_costs_its_peer_two_seconds_and_nobody_else_any(guarded, root, headers):
    with NativePeer(guarded) as raw:
        began = time.monotonic()
        raw.send(Command.CONNECT, b"c", headers=headers)
        raw.send(Command.PING, b"p")  # waits with it
        for _ in range(20):
            root.ping()
        assert time.monotonic() - began < LOGIN_DELAY_S_MIN, "another connection had to wait for the failed login"
        answer = raw.next()
        assert (answer.id, answer.error_code) == (b"c", "AUTH_FAILED")
        assert time.monotonic() - began >= LOGIN_DELAY_S_MIN
        assert raw.next().id == b"p"
        raw.connect(authUsername=ROOT, authPassword=PASSWORD)  # the same socket may try again
        raw.ping()


def test_logins_that_were_sent_together_are_all_answered_in_their_order(guarded):
    with NativePeer(guarded) as raw:
        wrong = {"authUsername": ROOT, "authPassword": NONE_OF_OURS}
        raw.send(Command.CONNECT, b"c1", headers=wrong)
        raw.send(Command.CONNECT, b"c2", headers={"authUsername": ROOT, "authPassword": PASSWORD})
        raw.send(Command.LIST_QUEUES, b"l")
        answers = [raw.next() for _ in range(3)]
        assert [answer.id for answer in answers] == [b"c1", b"c2", b"l"]
        assert [answer.error_code for answer in answers] == ["AUTH_FAILED", None, None]


def test_a_second_connect_that_fails_leaves_the_first_one_as_it_was(root):
    wrong = {"authUsername": ROOT, "authPassword": NONE_OF_OURS}
    assert root.refused(Command.CONNECT, headers=wrong) == "AUTH_FAILED"
    assert root.admin(LIST)


def test_a_second_connect_takes_the_first_ones_rights_away(guarded, root, user):
    queue = f"{user}-q"
    root.publish(queue)
    root.subscribe(queue)
    root.deliver(ack=False)
    root.connect(authUsername=user, authPassword="pw")
    error = root.expect(Command.ERROR)
    assert (error.id, error.error_code) == (FRESH_ID, "NOT_AUTHORIZED"), "the subscription has ended"
    assert root.refused(Command.PUBLISH, queue=queue, payload=b"1") == "NOT_AUTHORIZED"
    assert root.refused(Command.SUBSCRIBE, queue=queue) == "NOT_AUTHORIZED"
    assert root.admin(LIST) == "NOT_AUTHORIZED"
    with logged_in(guarded) as again:
        again.subscribe(queue)
        assert again.deliver().headers["deliveryAttempts"] == "2"


def test_everything_else_before_connect_is_not_authenticated(guarded):
    with NativePeer(guarded) as raw:
        for rule in COMMANDS:
            if not rule.before_connect:
                fields = {"error_code": "x"} if rule.command == Command.ERROR else {}
                assert raw.refused(rule.command, queue="q", **fields) == "NOT_AUTHENTICATED"
        raw.ping()


def test_guest_may_do_everything_from_this_machine(guarded):
    with logged_in(guarded, "guest", "guest") as guest:
        assert guest.admin(LIST)
        guest.ping()


def test_a_user_has_the_password_that_it_was_given(guarded, root, user):
    with logged_in(guarded, user, "pw") as peer:
        assert peer.admin(CHANGE, username=user, newPassword="2nd") == {"username": user}
    with logged_in(guarded, user, "2nd"), NativePeer(guarded) as raw:
        old = {"authUsername": user, "authPassword": "pw"}
        assert raw.refused(Command.CONNECT, headers=old) == "AUTH_FAILED"


# ---- the commands ----


def test_users_are_made_listed_and_deleted(root, user):
    assert root.admin(CREATE, username=user, password="x") == "USER_EXISTS"
    listed = root.admin(LIST)
    assert [row["username"] for row in listed] == sorted(row["username"] for row in listed)
    by_name = {row["username"]: row for row in listed}
    assert (by_name[ROOT]["isSuperuser"], by_name[user]["isSuperuser"]) == (True, False)
    assert abs(by_name[user]["createdAt"] - time.time()) < 600, "seconds since 1970"
    assert root.admin(DELETE, username=user) == {"username": user}
    assert root.admin(DELETE, username=user) == "USER_NOT_FOUND"
    assert user not in [row["username"] for row in root.admin(LIST)]


def test_a_superuser_cannot_be_deleted(root):
    assert root.admin(DELETE, username=ROOT) == "FORBIDDEN"
    assert root.admin(LIST)


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "größe", "a/b", "guest", 5, None])
def test_a_name_that_no_user_can_have_is_refused(root, name):
    assert root.admin(CREATE, username=name, password="pw") == "INVALID_PAYLOAD"


def test_permissions_are_granted_replaced_shown_and_revoked(root, user):
    request = {"username": user, "queuePattern": "orders.*"}
    answer = root.admin(GRANT, **request, operations=["SUBSCRIBE", "publish", "Fly", "Publish"])
    assert answer == {**request, "operations": ["Publish", "Subscribe"]}
    assert root.admin(PERMISSIONS, username=user) == [
        {"queuePattern": "orders.*", "operations": ["Publish", "Subscribe"]}
    ]
    root.admin(GRANT, **request, operations=["GetQueueInfo"])
    assert root.admin(PERMISSIONS, username=user) == [{"queuePattern": "orders.*", "operations": ["GetQueueInfo"]}]
    for _ in range(2):
        assert root.admin(REVOKE, **request) == request
    assert root.admin(PERMISSIONS, username=user) == []
    assert root.admin(PERMISSIONS, username="nobody") == []
    assert root.admin(GRANT, **request, operations=["Fly"]) == "INVALID_PAYLOAD"
    assert root.admin(GRANT, **{**request, "username": "nobody"}, operations=["Publish"]) == "USER_NOT_FOUND"
    assert root.admin(CHANGE, username="nobody", newPassword="pw") == "USER_NOT_FOUND"
    long = {"username": user, "queuePattern": "x" * 257}
    assert root.admin(GRANT, **long, operations=["Publish"]) == "INVALID_PAYLOAD"


def test_fields_may_come_as_headers(root):
    name = next(users)

    def ask(command, **headers):
        answer = root.ask(command, headers=headers)
        return answer.error_code or json.loads(answer.payload)

    assert ask(CREATE, username=name, password="pw") == {"username": name}
    wanted = {"username": name, "queuePattern": "a*"}
    assert ask(GRANT, **wanted, operations="Publish, subscribe,Fly") == {
        **wanted, "operations": ["Publish", "Subscribe"]
    }  # fmt: skip
    assert ask(PERMISSIONS, username=name) == [{"queuePattern": "a*", "operations": ["Publish", "Subscribe"]}]
    assert ask(REVOKE, **wanted) == wanted
    assert ask(CHANGE, username=name, newPassword="pw2") == {"username": name}
    assert ask(DELETE, username=name) == {"username": name}
    assert ask(CREATE, username=name) == "INVALID_PAYLOAD"


@pytest.mark.parametrize("command", [c for c in ADMIN_COMMANDS if c != LIST])
@pytest.mark.parametrize(
    "payload",
    [None, b"{}", b"[]", b"null", b'"text"', b'{"username":', b"\xff", b"[" * 100_000, b'{"username":1e999}',
     b'{"username":"\\ud800","password":"\\udfff","newPassword":"x","queuePattern":"\\ud800","operations":["Publish"]}'],
    ids=range(10),
)  # fmt: skip
def test_a_payload_that_says_too_little_is_refused_and_the_connection_goes_on(root, command, payload):
    assert root.refused(command, payload=payload) == "INVALID_PAYLOAD"
    root.ping()


@pytest.mark.parametrize("command", [CREATE, DELETE, GRANT, REVOKE, LIST])
def test_only_a_superuser_may_and_is_asked_before_the_payload(peer, command):
    assert peer.refused(command, payload=b"{}") == "NOT_AUTHORIZED"


def test_a_user_may_change_and_see_what_is_its_own(peer, root, user):
    grant(root, user, "a*", "Publish")
    assert peer.admin(PERMISSIONS, username=user) == [{"queuePattern": "a*", "operations": ["Publish"]}]
    for name in (ROOT, user.upper(), "nobody"):
        assert peer.admin(PERMISSIONS, username=name) == "NOT_AUTHORIZED"
        assert peer.admin(CHANGE, username=name, newPassword="pw") == "NOT_AUTHORIZED"
    assert peer.admin(PERMISSIONS) == peer.admin(CHANGE) == "INVALID_PAYLOAD"


# ---- what permissions allow ----

NEEDED = {
    Command.PUBLISH: "Publish",
    Command.SUBSCRIBE: "Subscribe",
    Command.CREATE_QUEUE: "CreateQueue",
    Command.DELETE_QUEUE: "DeleteQueue",
    Command.QUEUE_INFO: "GetQueueInfo",
    Command.PURGE_QUEUE: "PurgeQueue",
}


@pytest.mark.parametrize("command", NEEDED)
def test_each_command_needs_its_operation_and_no_other(guarded, root, user, command):
    with logged_in(guarded, user, "pw", features="purge") as peer:
        queue = f"{user}.q"
        root.create(queue)
        others = [operation for operation in ORDER if operation != NEEDED[command]]
        grant(root, user, f"{user}.*", *others)
        assert peer.refused(command, queue=queue, payload=b"{}") == "NOT_AUTHORIZED"
        grant(root, user, f"{user}.*", NEEDED[command])
        assert peer.ask(command, queue=queue, payload=b"{}").error_code is None
        for missing in (f"{user}", f"x{user}.q"):
            assert peer.refused(command, queue=missing, payload=b"{}") == "NOT_AUTHORIZED"
        assert peer.ask(command, queue=queue.upper(), payload=b"{}").error_code in (None, "QUEUE_NOT_FOUND")


@pytest.mark.parametrize("command", NEEDED)
def test_a_denial_names_the_user_the_operation_and_the_queue_whether_there_is_one_or_not(guarded, root, user, command):
    root.create(f"{user}-there")
    with logged_in(guarded, user, "pw", features="purge") as peer:
        for queue in (f"{user}-there", f"{user}-missing"):
            error = peer.ask(command, queue=queue, payload=b"{}")
            wanted = f"Access denied. User '{user}' lacks the permission {NEEDED[command]} for queue '{queue}'."
            assert error.error_message == wanted


def test_who_may_not_publish_to_the_dead_letter_queue_is_told_that_it_is_about_this_one(root, peer, user):
    grant(root, user, f"{user}-q", "CreateQueue")
    error = peer.ask(Command.CREATE_QUEUE, queue=f"{user}-q", headers={"enableDeadLetterQueue": "true"})
    assert error.error_message.endswith(f"lacks the permission Publish for queue '{user}-q.dlq'.")


def test_who_is_no_superuser_is_told_as_whom_it_asks(peer, user):
    assert peer.ask(LIST).error_message == f"Superuser access required. You are user '{user}'."


def test_the_rest_needs_no_permission(peer):
    peer.ping()
    peer.send(Command.ACK, b"m")
    assert peer.ask(Command.UNSUBSCRIBE, queue="q").type == Command.UNSUBSCRIBE_ACK
    assert json.loads(peer.ask(Command.LIST_QUEUES).payload) == []
    peer.send(Command.DISCONNECT)
    assert peer.rest() == []


def test_a_list_holds_what_any_pattern_matches_whatever_it_allows(root, peer, user):
    for queue in (f"{user}.a", f"{user}.b", f"{user}-other"):
        root.create(queue)
    grant(root, user, f"{user}.*", "Publish")
    assert json.loads(peer.ask(Command.LIST_QUEUES).payload) == [f"{user}.a", f"{user}.b"]
    assert f"{user}-other" in json.loads(root.ask(Command.LIST_QUEUES).payload)


def test_publishing_makes_a_queue_with_the_permission_to_publish_alone(root, peer, user):
    grant(root, user, f"{user}*", "Publish")
    peer.publish(f"{user}-new")
    assert root.info(f"{user}-new")["messageCount"] == 1


# ---- changes while connections are open ----


def soon(refused, what):
    """For another worker and for the command line: within a second, and then for good."""
    began = time.monotonic()
    wait_until(refused, what)
    assert time.monotonic() - began < 5.0  # a second is promised; the machine may be busy
    assert refused()


def peers_everywhere(running, user, password, count=8):
    """Enough connections that every worker has one of them, for all practical purposes."""
    return [logged_in(running, user, password) for _ in range(count)]


def code_of(peer, command, queue):
    return peer.ask(command, queue=queue, payload=b"{}").error_code


def test_grant_and_revoke_count_at_once_for_connections_of_every_worker(guarded, root, user):
    queue = f"{user}-q"
    root.create(queue)
    peers = peers_everywhere(guarded, user, "pw")
    try:
        for _ in range(3):
            for command in (Command.PUBLISH, Command.QUEUE_INFO):
                assert [code_of(peer, command, queue) for peer in peers] == ["NOT_AUTHORIZED"] * len(peers)
            grant(root, user, queue, "Publish", "GetQueueInfo")
            for peer in peers:
                soon(lambda peer=peer: code_of(peer, Command.PUBLISH, queue) is None, "the grant counts")
                assert code_of(peer, Command.QUEUE_INFO, queue) is None
            root.admin(REVOKE, username=user, queuePattern=queue)
            for peer in peers:
                refused = "NOT_AUTHORIZED"
                soon(lambda peer=peer: code_of(peer, Command.PUBLISH, queue) == refused, "the revocation counts")  # noqa: B023
                assert code_of(peer, Command.QUEUE_INFO, queue) == refused
    finally:
        for peer in peers:
            peer.socket.close()


def test_who_may_not_subscribe_any_more_gets_nothing_more_and_keeps_nothing(guarded, root, user):
    queue = f"{user}-q"
    grant(root, user, queue, "Subscribe")
    peers = peers_everywhere(guarded, user, "pw", 4)
    try:
        for peer in peers:
            peer.subscribe(queue)
        for _ in peers:
            root.publish(queue)
        root.admin(REVOKE, username=user, queuePattern=queue)
        for peer in peers:
            message = peer.next()
            while message.type == Command.DELIVER:
                message = peer.next()
            assert (message.id, message.error_code) == (FRESH_ID, "NOT_AUTHORIZED")
        wait_until(lambda: root.info(queue)["messageCount"] == len(peers), "they are given back")
        root.publish(queue)
        for peer in peers:
            peer.ping()
    finally:
        for peer in peers:
            peer.socket.close()


def test_a_deleted_user_is_let_go_everywhere(guarded, root, user):
    peers = peers_everywhere(guarded, user, "pw")
    root.admin(DELETE, username=user)
    root.admin(CREATE, username=user, password="pw")  # another one of the same name
    for peer in peers:
        with peer:
            (error,) = peer.rest()
            assert (error.id, error.error_code) == (FRESH_ID, "AUTH_FAILED")
    root.ping()


def users_command(folder, *arguments):
    command = [sys.executable, "-m", "vibemq.cli", "users", *arguments, "--data-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, input="12345678\n")
    assert done.returncode == 0, done.stderr


def test_the_command_line_changes_open_connections_as_well(guarded, folder, root, user):
    queue = f"{user}-q"
    root.create(queue)
    with logged_in(guarded, user, "pw") as peer:
        users_command(folder, "grant", user, queue, "Publish")
        soon(lambda: code_of(peer, Command.PUBLISH, queue) is None, "the grant counts")
        users_command(folder, "revoke", user, queue)
        soon(lambda: code_of(peer, Command.PUBLISH, queue) == "NOT_AUTHORIZED", "the revocation counts")
        users_command(folder, "remove", user)
        assert [error.error_code for error in peer.rest()] == ["AUTH_FAILED"]


# ---- the first user ----


def test_the_first_user_ends_connections_that_had_not_to_log_in(tmp_path):
    with broker(tmp_path, workers=1) as running:
        with NativePeer(running) as anybody, NativePeer(running) as pretender, NativePeer(running) as guest:
            anybody.connect()
            pretender.connect(authUsername=ROOT, authPassword=NONE_OF_OURS)  # nobody has looked at it
            guest.connect(authUsername="guest", authPassword="guest")
            assert anybody.refused(LIST) == "UNKNOWN_COMMAND"
            users_command(tmp_path, "add", ROOT, "--password-stdin")
            for peer in (anybody, pretender):
                assert [error.error_code for error in peer.rest()] == ["AUTH_REQUIRED"]
            guest.ping()
        with NativePeer(running) as raw:
            assert raw.refused(Command.CONNECT) == "AUTH_REQUIRED"


def test_the_superuser_of_the_configuration_is_made_once(tmp_path):
    first = ("--set", "native.superuser_name=boss", "--set", "native.superuser_password=the first one")
    with broker(tmp_path, *first, workers=1) as running, logged_in(running, "boss", "the first one") as boss:
        assert [row["username"] for row in boss.admin(LIST)] == ["boss"]
    later = ("--set", "native.superuser_name=other", "--set", "native.superuser_password=the second one")
    with broker(tmp_path, *later, workers=1) as running, logged_in(running, "boss", "the first one") as boss:
        assert [row["username"] for row in boss.admin(LIST)] == ["boss"]


def test_a_superusers_password_that_is_too_short_is_no_start(tmp_path):
    done = subprocess.run(
        [*SERVE, "--data-dir", str(tmp_path), "--set", "native.superuser_password=short"],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert "superuser" in done.stderr


def test_altering_a_queue_needs_what_deleting_it_and_making_it_anew_needs(guarded, root, user):
    queue = f"{user}.q"
    root.create(queue)
    with logged_in(guarded, user, "pw", features="alter") as peer:

        def altered(payload):
            return peer.ask(Command.ALTER_QUEUE, queue=queue, payload=payload).error_message

        for operation, missing in (("CreateQueue", "DeleteQueue"), ("DeleteQueue", "CreateQueue")):
            grant(root, user, queue, operation)
            assert altered(b'{"maxQueueSize":5}').endswith(f"lacks the permission {missing} for queue '{queue}'.")
        grant(root, user, queue, "CreateQueue", "DeleteQueue")
        assert not altered(b'{"maxQueueSize":5}')
        assert altered(b'{"enableDeadLetterQueue":true}').endswith(f"permission Publish for queue '{queue}.dlq'.")
    assert root.info(queue)["maxSize"] == 5
