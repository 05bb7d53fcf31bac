# SPDX-License-Identifier: Apache-2.0
"""Virtual hosts and the permissions in them: what is kept, what goes with what, and what a migration grants."""

import json
import sqlite3

import pytest

from vibemq.errors import UserError, UserNotFound, VhostNotFound
from vibemq.storage import metadata as module
from vibemq.storage.metadata import Metadata
from vibemq.storage.records import KeptRights, VhostPermission


@pytest.fixture
def metadata(tmp_path):
    found = Metadata(str(tmp_path / "meta.db"))
    found.add_user("root", "hash", is_superuser=True)
    found.add_user("bob", "hash", is_superuser=False)
    yield found
    found.close()


def names(metadata):
    return [vhost.name for vhost in metadata.vhosts()]


def test_the_default_vhost_is_always_there(metadata):
    assert names(metadata) == ["/"]
    assert metadata.has_vhost("/")
    with pytest.raises(UserError, match="always there"):
        metadata.delete_vhost("/")


def test_a_vhost_is_made_once_and_changed_afterwards(metadata):
    assert metadata.add_vhost("shop", "everything that is sold", ["eu"])
    assert not metadata.add_vhost("shop", "sold and returned")
    (_, shop) = metadata.vhosts()
    assert (shop.name, shop.description, shop.tags) == ("shop", "sold and returned", ())
    metadata.delete_vhost("shop")
    assert not metadata.has_vhost("shop")
    with pytest.raises(VhostNotFound):
        metadata.delete_vhost("shop")


@pytest.mark.parametrize("name", ["", "a\nb", "\udcff", "ü" * 128])
def test_names_that_no_vhost_can_have(metadata, name):
    with pytest.raises(UserError, match="virtual host name"):
        metadata.add_vhost(name)


def test_streams_of_the_same_name_in_two_vhosts_are_two(metadata):
    metadata.add_vhost("shop")
    made = [metadata.create_stream(vhost, "orders", {}, "os", 10) for vhost in ("/", "shop")]
    assert [metadata.find_stream(vhost, "orders") for vhost in ("/", "shop")] == made
    assert made[0].directory != made[1].directory


def test_no_stream_is_made_where_there_is_no_vhost(metadata):
    with pytest.raises(VhostNotFound):
        metadata.create_stream("shop", "orders", {}, "os", 10)


def test_a_vhost_with_streams_is_not_forgotten(metadata):
    metadata.add_vhost("shop")
    metadata.create_stream("shop", "orders", {}, "os", 10)
    with pytest.raises(UserError, match="has streams"):
        metadata.delete_vhost("shop")
    metadata.delete_stream("shop", "orders")
    metadata.delete_vhost("shop")


def test_permissions_are_set_listed_and_cleared(metadata):
    metadata.add_vhost("shop")
    assert metadata.set_permissions("/", "bob", "^bob", "", ".*")
    assert not metadata.set_permissions("/", "bob", "^bob", "^bob", ".*")
    metadata.set_permissions("shop", "bob", "", "", "^")
    metadata.set_permissions("/", "root", ".*", ".*", ".*")
    mine = [VhostPermission("/", "bob", "^bob", "^bob", ".*"), VhostPermission("shop", "bob", "", "", "^")]
    assert metadata.vhost_permissions(user="bob") == mine
    assert [found.user for found in metadata.vhost_permissions("/")] == ["bob", "root"]
    assert metadata.vhost_permissions("shop", "root") == []
    assert len(metadata.vhost_permissions()) == 3
    assert metadata.clear_permissions("/", "bob")
    assert not metadata.clear_permissions("/", "bob")
    assert metadata.vhost_permissions(user="bob") == mine[1:]


def test_permissions_go_with_their_user_and_with_their_vhost(metadata):
    for name in ("shop", "lab"):
        metadata.add_vhost(name)
        metadata.set_permissions(name, "bob", "", "", "")
        metadata.set_permissions(name, "root", "", "", "")
    metadata.delete_vhost("lab")
    assert [found.vhost for found in metadata.vhost_permissions()] == ["shop", "shop"]
    metadata.delete_user("bob")
    assert [found.user for found in metadata.vhost_permissions()] == ["root"]


def test_what_a_permission_needs(metadata):
    with pytest.raises(VhostNotFound):
        metadata.set_permissions("shop", "bob", "", "", "")
    with pytest.raises(UserNotFound):
        metadata.set_permissions("/", "carol", "", "", "")
    with pytest.raises(UserError, match="regular expression"):
        metadata.set_permissions("/", "bob", "", "[", "")
    assert metadata.vhost_permissions() == []


def test_rights_tell_no_user_from_no_permission(metadata):
    kept = metadata.vhost_rights("bob", "/")
    assert kept == KeptRights(metadata.find_user("bob").created_ms, False, None)
    metadata.set_permissions("/", "bob", "a", "b", "c")
    assert metadata.vhost_rights("bob", "/").patterns == ("a", "b", "c")
    assert metadata.vhost_rights("root", "/").is_superuser
    assert metadata.vhost_rights("carol", "/") is None
    assert metadata.vhost_rights("bob", "shop") is None


def test_every_change_counts_once(metadata):
    changes = [
        lambda: metadata.add_vhost("shop"),
        lambda: metadata.set_permissions("shop", "bob", "", "", ""),
        lambda: metadata.clear_permissions("shop", "bob"),
        lambda: metadata.delete_vhost("shop"),
        lambda: metadata.put_user("bob", ("monitoring",), None),
        lambda: metadata.set_guest_removed(True),
    ]
    for change in changes:
        before = metadata.account_changes()
        change()
        assert metadata.account_changes() == before + 1


def test_a_database_from_before_vhosts_keeps_what_its_users_could_do(tmp_path, monkeypatch):
    path = str(tmp_path / "meta.db")
    with monkeypatch.context() as older:
        older.setattr(module, "MIGRATIONS", module.MIGRATIONS[:2])
        old = Metadata(path)
        old.has_superuser()
        old.close()
    db = sqlite3.connect(path)
    db.executemany("INSERT INTO users VALUES (?, 'hash', '[]', 1, 0, 1)", [("root",), ("bob",)])
    db.execute("INSERT INTO streams VALUES (0, '/', 'orders', 'ab', 'os', '{}', 1, NULL)")
    sizes = ["16", "255", "", "8", "256", "20x", "-20", "99999999999999999999"]
    for slot, size in enumerate(sizes, 1):
        given = json.dumps({"max-age": "1h", "stream-filter-size-bytes": size})
        db.execute("INSERT INTO streams VALUES (?, '/', ?, ?, 'os', ?, 1, NULL)", (slot, size, f"{slot}", given))
    db.commit()
    db.close()
    new = Metadata(path)
    assert new.vhost_permissions() == [VhostPermission("/", name, ".*", ".*", ".*") for name in ("bob", "root")]
    assert names(new) == ["/"]
    assert new.find_stream("/", "orders").slot == 0
    kept = [new.find_stream("/", size).arguments for size in sizes]
    assert [given.get("stream-filter-size-bytes") for given in kept] == ["16", "255"] + [None] * 6
    assert {given["max-age"] for given in kept} == {"1h"}
    new.add_user("carol", "hash")
    assert new.vhost_permissions(user="carol") == []
    new.close()
