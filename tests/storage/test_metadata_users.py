# SPDX-License-Identifier: Apache-2.0
"""Users and permissions in the metadata: what is unique, what is replaced, what goes with what, who notices."""

import pytest

from vibemq.errors import UserExists, UserNotFound
from vibemq.storage import users as module
from vibemq.storage.metadata import Metadata
from vibemq.storage.records import Permission


@pytest.fixture
def metadata(tmp_path):
    found = Metadata(str(tmp_path / "meta.db"))
    yield found
    found.close()


def test_users_come_and_go(metadata):
    metadata.add_user("bob", "hash-1")
    metadata.add_user("alice", "hash-2", ("administrator",))
    assert [(user.name, user.tags) for user in metadata.users()] == [("alice", ("administrator",)), ("bob", ())]
    metadata.change_password("bob", "hash-3")
    assert metadata.find_user("bob").password_hash == "hash-3"
    with pytest.raises(UserExists):
        metadata.add_user("bob", "hash")
    assert metadata.delete_user("bob")
    assert metadata.find_user("bob") is None


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.delete_user("bob"),
        lambda m: m.change_password("bob", "hash"),
        lambda m: m.set_superuser("bob", True),
        lambda m: m.grant("bob", "*", [0]),
        lambda m: m.revoke("bob", "*"),
        lambda m: m.permissions("bob"),
    ],
)
def test_a_user_that_is_not_there_is_an_error_and_changes_nothing(metadata, call):
    metadata.add_user("Bob", "hash")
    before = metadata.account_changes()
    with pytest.raises(UserNotFound, match="no user 'bob'"):
        call(metadata)
    assert metadata.account_changes() == before


def test_no_hash_is_shown(metadata):
    metadata.add_user("bob", "secret-hash", verifier="secret-verifier")
    assert "secret" not in repr(metadata.users())


# ---- hash and verifier ----


@pytest.mark.parametrize(
    "set_hash",
    [
        lambda m, *hashes: m.change_password("bob", *hashes),
        lambda m, *hashes: m.put_user("bob", (), *hashes),
        lambda m, *hashes: m.add_first_superuser("bob", *hashes),
    ],
)
def test_a_hash_takes_its_own_verifier_along_and_never_leaves_an_older_one(metadata, set_hash):
    for hashes, kept in ((("new", "v-new"), ("new", "v-new")), (("imported",), ("imported", ""))):
        metadata.add_user("bob", "old", is_superuser=False, verifier="v-old")
        assert metadata.find_user("bob").verifier == "v-old"
        set_hash(metadata, *hashes)
        bob = metadata.find_user("bob")
        assert (bob.password_hash, bob.verifier) == kept
        metadata.delete_user("bob")


def test_who_is_put_without_a_hash_keeps_hash_and_verifier(metadata):
    assert metadata.put_user("bob", (), "hash", "verifier")
    assert not metadata.put_user("bob", ("monitoring",), None)
    bob = metadata.find_user("bob")
    assert (bob.password_hash, bob.verifier, bob.tags) == ("hash", "verifier", ("monitoring",))


# ---- superusers ----


def test_the_first_user_of_all_is_a_superuser_and_later_ones_are_not(metadata):
    assert metadata.add_user("alice", "hash") is True
    assert metadata.add_user("bob", "hash") is False
    assert metadata.add_user("carol", "hash", is_superuser=True) is True
    assert [user.is_superuser for user in metadata.users()] == [True, False, True]


def test_a_first_user_can_be_made_an_ordinary_one(metadata):
    assert metadata.add_user("alice", "hash", is_superuser=False) is False
    assert not metadata.has_superuser()


def test_a_user_is_made_a_superuser_and_an_ordinary_one_again(metadata, monkeypatch):
    metadata.add_user("alice", "hash", is_superuser=False)
    monkeypatch.setattr(module, "_now_ms", lambda: 4_000_000_000_000)
    metadata.set_superuser("alice", True)
    alice = metadata.find_user("alice")
    assert alice.is_superuser
    assert alice.updated_ms == 4_000_000_000_000 > alice.created_ms
    metadata.set_superuser("alice", False)
    assert not metadata.has_superuser()


def test_a_superuser_can_be_spared(metadata):
    metadata.add_user("alice", "hash", is_superuser=True)
    assert not metadata.delete_user("alice", superusers_too=False)
    assert metadata.find_user("alice")
    assert metadata.delete_user("alice")


def test_the_first_superuser_is_made_once(metadata):
    assert metadata.add_first_superuser("root", "hash-1")
    assert not metadata.add_first_superuser("root", "hash-2")
    assert not metadata.add_first_superuser("other", "hash-3")
    assert [(user.name, user.password_hash) for user in metadata.users()] == [("root", "hash-1")]


def test_the_first_superuser_may_be_a_user_who_exists(metadata):
    metadata.add_user("root", "old", is_superuser=False)
    assert metadata.add_first_superuser("root", "new")
    assert metadata.find_user("root").is_superuser
    assert metadata.find_user("root").password_hash == "new"


# ---- permissions ----


def test_a_grant_by_the_same_pattern_replaces_and_others_are_kept(metadata):
    metadata.add_user("bob", "hash")
    metadata.grant("bob", "orders.*", [3, 0, 3])
    metadata.grant("bob", "jobs", [1])
    metadata.grant("bob", "orders.*", [2])
    assert metadata.permissions("bob") == [Permission("jobs", (1,)), Permission("orders.*", (2,))]
    assert metadata.permission_counts() == {"bob": 2}


def test_a_permission_is_revoked_by_exactly_its_pattern(metadata):
    metadata.add_user("bob", "hash")
    metadata.grant("bob", "orders.*", [0])
    assert not metadata.revoke("bob", "orders.a")
    assert not metadata.revoke("bob", "Orders.*")
    assert metadata.revoke("bob", "orders.*")
    assert not metadata.revoke("bob", "orders.*")
    assert metadata.permissions("bob") == []


def test_permissions_go_with_their_user(metadata):
    metadata.add_user("bob", "hash")
    metadata.grant("bob", "*", [0])
    metadata.delete_user("bob")
    metadata.add_user("bob", "hash")
    assert metadata.permissions("bob") == []


def test_rights_are_everything_about_one_user(metadata):
    metadata.add_user("alice", "hash")
    metadata.add_user("bob", "hash")
    metadata.grant("bob", "*", [0, 6])
    rights = metadata.rights("bob")
    assert rights.created_ms == metadata.find_user("bob").created_ms == metadata.user_creations()["bob"]
    assert not rights.is_superuser
    assert rights.permissions == (Permission("*", (0, 6)),)
    assert metadata.rights("alice").is_superuser
    assert metadata.rights("nobody") is None


# ---- noticing changes ----


def test_each_change_of_users_or_permissions_is_counted_for_all_processes(metadata, tmp_path):
    other = Metadata(str(tmp_path / "meta.db"))
    seen = [metadata.account_changes()]
    for change in (
        lambda: other.add_user("bob", "hash"),
        lambda: metadata.change_password("bob", "other"),
        lambda: other.set_superuser("bob", False),
        lambda: other.grant("bob", "*", [0]),
        lambda: metadata.revoke("bob", "*"),
        lambda: other.delete_user("bob"),
    ):
        change()
        seen.append(metadata.account_changes())
    assert seen == sorted(set(seen))
    other.close()


def test_streams_are_not_counted_as_changes_of_users(metadata):
    before = metadata.account_changes()
    metadata.create_stream("/", "orders", {}, "os", 10, queue={})
    assert metadata.account_changes() == before
