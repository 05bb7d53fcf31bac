# SPDX-License-Identifier: Apache-2.0
"""What users may configure, write and read in a virtual host, and how quickly a change is noticed."""

import random

import pytest

from vibemq.access import permissions
from vibemq.access.rights import Rights, VhostRights
from vibemq.storage.metadata import Metadata


@pytest.fixture
def metadata(tmp_path):
    found = Metadata(str(tmp_path / "meta.db"))
    found.add_vhost("shop")
    found.add_user("root", "hash", is_superuser=True)
    found.add_user("bob", "hash", is_superuser=False)
    yield found
    found.close()


@pytest.fixture
def rights(metadata):
    return Rights(metadata, guest_allowed=True)


def may(rights, name):
    return rights.configure(name), rights.write(name), rights.read(name)


def test_each_pattern_is_for_its_own_purpose(metadata, rights):
    metadata.set_permissions("/", "bob", "^bob-", "", "orders")
    bob = rights.of("bob", "/")
    assert may(bob, "bob-orders") == (True, False, True)
    assert may(bob, "my-bob-1") == (False, False, False)
    assert may(bob, "orders-eu") == (False, False, True)
    assert may(bob, "\udcff") == (False, False, False)


def test_a_permission_ends_at_its_vhost(metadata, rights):
    metadata.set_permissions("shop", "bob", ".*", ".*", ".*")
    assert rights.of("bob", "/") is None
    assert may(rights.of("bob", "shop"), "x") == (True, True, True)
    assert rights.of("bob", "lab") is None


def test_a_permission_that_allows_nothing_still_opens_the_vhost(metadata, rights):
    metadata.set_permissions("/", "bob", "", "", "")
    assert may(rights.of("bob", "/"), "orders") == (False, False, False)


@pytest.mark.parametrize("user", ["root", "guest"])
def test_superusers_and_guest_may_do_everything_in_every_vhost(rights, user):
    for vhost in ("/", "shop"):
        assert may(rights.of(user, vhost), "x") == (True, True, True)
        assert rights.of(user, vhost).is_superuser
    assert rights.of(user, "lab") is None


@pytest.mark.parametrize("user", ["carol", "", "Guest", "bob\0", "\udcff"])
def test_nobody_else_has_any(rights, user):
    assert rights.of(user, "/") is None


def test_guest_has_none_where_the_configuration_or_somebody_removed_it(metadata, rights):
    assert Rights(metadata, guest_allowed=False).of("guest", "/") is None
    metadata.set_guest_removed(True)
    assert rights.of("guest", "/") is None
    metadata.set_guest_removed(False)
    assert rights.of("guest", "/") is not None


def test_a_snapshot_is_kept_until_something_changes_anywhere(metadata, rights, tmp_path):
    other = Metadata(str(tmp_path / "meta.db"))
    other.set_permissions("/", "bob", "a", "a", "a")
    before = rights.of("bob", "/")
    generation = rights.generation
    metadata.create_stream("/", "orders", {}, "os", 10)
    rights.refresh()
    assert rights.generation == generation
    assert rights.of("bob", "/") is before
    other.set_permissions("/", "bob", "b", "b", "b")
    rights.refresh()
    assert rights.generation != generation
    assert may(rights.of("bob", "/"), "b") == (True, True, True)
    assert may(before, "b") == (False, False, False)
    other.delete_user("bob")
    assert rights.of("bob", "/") is None
    other.close()


def test_a_user_made_again_is_told_by_its_creation(metadata, rights, monkeypatch):
    metadata.set_permissions("/", "bob", "", "", "")
    before = rights.of("bob", "/")
    metadata.delete_user("bob")
    monkeypatch.setattr("vibemq.storage.users._now_ms", lambda: before.created_ms + 1)
    metadata.add_user("bob", "hash", is_superuser=False)
    metadata.set_permissions("/", "bob", "", "", "")
    assert rights.of("bob", "/").created_ms == before.created_ms + 1


def test_what_is_remembered_is_bounded_and_stays_right(metadata, rights, monkeypatch):
    monkeypatch.setattr(permissions, "_NAMES_REMEMBERED_MAX", 8)
    monkeypatch.setattr(permissions, "_SNAPSHOTS_MAX", 1)
    names = [f"q{number}" for number in range(30)]
    random.Random(7).shuffle(names)
    bob = VhostRights("bob", "/", ("^q1", "5$", ""))
    for name in names * 2:
        assert may(bob, name) == (name.startswith("q1"), name.endswith("5"), False)
        assert len(bob._remembered) <= 8
        assert rights.of("root", "/").vhost == "/"
        assert rights.of("guest", "shop").vhost == "shop"
        assert len(rights._current) == 1


def test_names_longer_than_any_are_allowed_to_who_may_do_everything_and_not_remembered(metadata, rights):
    """The streams protocol carries names of 32 KiB: remembered, they are over 100 MiB for one user."""
    metadata.set_permissions("/", "bob", "^a+$", "", ".*")
    bob = rights.of("bob", "/")
    assert may(bob, "a" * 255) == (True, False, True)
    for size in (256, 32_000):
        assert may(bob, "a" * size) == (False, False, True)
    assert list(bob._remembered) == ["a" * 255]
