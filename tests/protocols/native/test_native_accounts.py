# SPDX-License-Identifier: Apache-2.0
"""The native protocol's commands for users: what they answer, whom they refuse, and in which order they look."""

import itertools

import pytest

from vibemq.access import users
from vibemq.access.permissions import Access, Accesses
from vibemq.access.users import Authenticator, Verdict
from vibemq.errors import Refused
from vibemq.protocols.native import accounts
from vibemq.storage.metadata import Metadata

ROOT = Access("root", is_superuser=True)
BOB = Access("bob")
EVERY = (
    accounts.create_user,
    accounts.delete_user,
    accounts.change_password,
    accounts.grant,
    accounts.revoke,
    accounts.list_users,
    accounts.user_permissions,
)


@pytest.fixture
def metadata(tmp_path):
    found = Metadata(str(tmp_path / "meta.db"))
    found.add_user("root", "hash")
    found.add_user("bob", "hash")
    yield found
    found.close()


def refused(call, metadata, acting, fields):
    with pytest.raises(Refused) as raised:
        call(metadata, acting, fields)
    return raised.value.code, str(raised.value)


def test_a_user_is_made_and_comes_in(metadata):
    assert accounts.create_user(metadata, ROOT, {"username": "eve", "password": "short"}) == {"username": "eve"}
    assert Authenticator(metadata, guest_allowed=False).check("eve", "short", loopback=False) is Verdict.OK
    assert not metadata.find_user("eve").is_superuser


def test_even_the_first_user_made_by_a_command_is_an_ordinary_one(metadata):
    metadata.delete_user("bob")
    metadata.delete_user("root")
    accounts.create_user(metadata, ROOT, {"username": "eve", "password": "sesame"})
    assert not metadata.has_superuser()


def test_a_user_is_deleted_with_the_permissions(metadata):
    metadata.grant("bob", "*", [0])
    assert accounts.delete_user(metadata, ROOT, {"username": "bob"}) == {"username": "bob"}
    assert metadata.find_user("bob") is None


def test_a_superuser_cannot_be_deleted(metadata):
    answer = refused(accounts.delete_user, metadata, ROOT, {"username": "root"})
    assert answer == ("FORBIDDEN", "Cannot delete a superuser account.")
    assert metadata.find_user("root")


@pytest.mark.parametrize("acting", [ROOT, BOB])
def test_a_password_is_changed_by_its_owner_or_a_superuser(metadata, acting):
    reply = accounts.change_password(metadata, acting, {"username": "bob", "newPassword": "sesame"})
    assert reply == {"username": "bob"}
    assert Authenticator(metadata, guest_allowed=False).check("bob", "sesame", loopback=False) is Verdict.OK


@pytest.mark.parametrize("name", ["root", "Bob", "nobody"])
def test_nobody_else_changes_a_password_or_looks_at_permissions(metadata, name):
    fields = {"username": name, "newPassword": "sesame"}
    assert refused(accounts.change_password, metadata, BOB, fields) == (
        "NOT_AUTHORIZED",
        "You may only change your own password. You are user 'bob'.",
    )
    assert refused(accounts.user_permissions, metadata, BOB, fields) == (
        "NOT_AUTHORIZED",
        "You may only view your own permissions. You are user 'bob'.",
    )


def test_a_grant_keeps_the_operations_it_knows_once_each(metadata):
    fields = {
        "username": "bob",
        "queuePattern": "orders.*",
        "operations": ["subscribe", "PUBLISH", "Fly", "Publish", 7],
    }
    reply = accounts.grant(metadata, ROOT, fields)
    assert reply == {"username": "bob", "queuePattern": "orders.*", "operations": ["Publish", "Subscribe"]}
    wanted = [{"queuePattern": "orders.*", "operations": ["Publish", "Subscribe"]}]
    for acting in (ROOT, BOB):
        assert accounts.user_permissions(metadata, acting, {"username": "bob"}) == wanted


def test_operations_may_come_as_a_header_with_commas(metadata):
    fields = {"username": "bob", "queuePattern": "q", "operations": "publish, ListQueues,nothing"}
    assert accounts.grant(metadata, ROOT, fields)["operations"] == ["Publish", "ListQueues"]


def test_a_grant_counts_at_once_and_replaces_the_one_before(metadata):
    accesses = Accesses(metadata)
    for operations, allowed in ((["Publish"], [0]), (["Subscribe"], [1])):
        accounts.grant(metadata, ROOT, {"username": "bob", "queuePattern": "q", "operations": operations})
        assert [number for number in range(7) if accesses.of("bob").may(number, "q")] == allowed


def test_what_is_not_there_is_revoked(metadata):
    metadata.grant("bob", "q", [0])
    for name, pattern in (("bob", "q"), ("bob", "q"), ("bob", "x" * 300), ("nobody", "q")):
        fields = {"username": name, "queuePattern": pattern}
        assert accounts.revoke(metadata, ROOT, fields) == fields
    assert metadata.permissions("bob") == []


def test_users_are_listed_by_name_with_seconds(metadata):
    listed = accounts.list_users(metadata, ROOT)
    created = [metadata.find_user(name).created_ms // 1000 for name in ("bob", "root")]
    assert listed == [
        {"username": "bob", "isSuperuser": False, "createdAt": created[0]},
        {"username": "root", "isSuperuser": True, "createdAt": created[1]},
    ]


def test_a_user_that_does_not_exist_has_no_permissions(metadata):
    assert accounts.user_permissions(metadata, ROOT, {"username": "nobody"}) == []


@pytest.mark.parametrize("call", [call for call in EVERY if call is not accounts.user_permissions])
def test_a_superusers_command_is_refused_before_anything_else_is_looked_at(metadata, call):
    if call is accounts.change_password:  # the payload comes first: it says whose password
        assert refused(call, metadata, BOB, None)[0] == "INVALID_PAYLOAD"
        return
    for fields in (None, {}, {"username": "nobody"}):
        assert refused(call, metadata, BOB, fields) == (
            "NOT_AUTHORIZED",
            "Superuser access required. You are user 'bob'.",
        )


GOOD = {
    accounts.create_user: {"username": "eve", "password": "sesame"},
    accounts.delete_user: {"username": "nobody"},
    accounts.change_password: {"username": "nobody", "newPassword": "sesame"},
    accounts.grant: {"username": "nobody", "queuePattern": "q", "operations": ["Publish"]},
    accounts.revoke: {"username": "nobody", "queuePattern": "q"},
    accounts.user_permissions: {"username": "nobody"},
}


@pytest.mark.parametrize(
    ("call", "name"),
    [(call, name) for call, fields in GOOD.items() for name in fields],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_a_member_that_is_missing_empty_or_no_text_is_an_invalid_payload(metadata, call, name):
    rest = {key: value for key, value in GOOD[call].items() if key != name}
    for fields in (rest, *({**rest, name: wrong} for wrong in (None, "", 7, [], {}, "\ud800"))):
        code, text = refused(call, metadata, ROOT, fields)
        assert code == "INVALID_PAYLOAD"
        text.encode()


@pytest.mark.parametrize(("call", "fields"), list(itertools.product(GOOD, [None, [], "text", 7])))
def test_a_payload_that_is_no_object_is_invalid(metadata, call, fields):
    assert refused(call, metadata, ROOT, fields)[0] == "INVALID_PAYLOAD"


@pytest.mark.parametrize("call", [accounts.delete_user, accounts.change_password, accounts.grant])
def test_existence_is_looked_at_last(metadata, call):
    assert refused(call, metadata, ROOT, GOOD[call]) == ("USER_NOT_FOUND", "User 'nobody' not found.")


def test_a_user_is_made_once(metadata):
    fields = {"username": "bob", "password": "sesame"}
    assert refused(accounts.create_user, metadata, ROOT, fields) == ("USER_EXISTS", "User 'bob' already exists.")


@pytest.mark.parametrize("name", ["a b", "a@b", "ü", "x" * 65, "guest", "Guest", "a\n"])
def test_names_that_the_protocol_cannot_make(metadata, name):
    assert refused(accounts.create_user, metadata, ROOT, {"username": name, "password": "sesame"})[0] == (
        "INVALID_PAYLOAD"
    )


@pytest.mark.parametrize("name", ["x", "x" * 64, "A-b_c.9"])
def test_names_that_it_can(metadata, name):
    users.check_native_name(name)
    assert accounts.create_user(metadata, ROOT, {"username": name, "password": "sesame"}) == {"username": name}


def test_no_valid_operation_is_said_in_the_protocols_words(metadata):
    fields = {"username": "bob", "queuePattern": "q", "operations": ["Fly"]}
    assert refused(accounts.grant, metadata, ROOT, fields) == ("INVALID_PAYLOAD", "No valid operations specified.")


def test_a_pattern_that_is_too_long_is_refused_when_granted(metadata):
    fields = {"username": "bob", "queuePattern": "x" * 257, "operations": ["Publish"]}
    code, text = refused(accounts.grant, metadata, ROOT, fields)
    assert (code, text) == ("INVALID_PAYLOAD", "The pattern has 257 characters; 1 to 256 are needed.")


@pytest.mark.parametrize("call", list(GOOD))
def test_no_answer_is_longer_than_a_header_may_be(metadata, call):
    for name in GOOD[call]:
        for text in ("x" * 100_000, "\x01" * 1024):
            fields = {**GOOD[call], name: [text] if name == "operations" else text}
            try:
                call(metadata, ROOT, fields)
            except Refused as problem:
                assert len(str(problem)) <= 4096
