# SPDX-License-Identifier: Apache-2.0
"""Users by the rules of RabbitMQ's tools: what is looser than ours, imported passwords, and what guest is to them."""

import base64
import hashlib

import pytest

from vibemq.access import tool_users
from vibemq.access.rights import Rights
from vibemq.access.users import Authenticator, Verdict
from vibemq.errors import UserError, UserNotFound, VhostNotFound
from vibemq.storage.metadata import Metadata
from vibemq.storage.records import VhostPermission


@pytest.fixture
def metadata(tmp_path):
    found = Metadata(str(tmp_path / "meta.db"))
    yield found
    found.close()


def login(metadata, name, password):
    return Authenticator(metadata, guest_allowed=True).check(name, password, loopback=True)


def exported(password, algorithm):
    salt = b"\x90\x8d\xc6\x0a"
    return base64.b64encode(salt + hashlib.new(algorithm, salt + password.encode()).digest()).decode()


def test_any_name_and_password_will_do_and_the_first_user_is_no_superuser(metadata):
    for name in ("o", "CN=host,O=client", "jürgen müller"):
        assert tool_users.put_user(metadata, name, ("monitoring",), password="p")
        assert login(metadata, name, "p") is Verdict.OK
        assert metadata.find_user(name).tags == ("monitoring",)
    assert not metadata.has_superuser()


@pytest.mark.parametrize("name", ["", "a\nb", "\udcff", "ü" * 128])
def test_names_that_cannot_be(metadata, name):
    with pytest.raises(UserError, match="user name"):
        tool_users.put_user(metadata, name, password="p")


def test_a_user_is_changed_by_being_put_again(metadata):
    tool_users.put_user(metadata, "bob", password="one")
    assert not tool_users.put_user(metadata, "bob", ("administrator",))
    assert login(metadata, "bob", "one") is Verdict.OK
    tool_users.put_user(metadata, "bob", password="two")
    assert login(metadata, "bob", "one") is Verdict.REFUSED
    assert login(metadata, "bob", "two") is Verdict.OK
    assert metadata.find_user("bob").tags == ()
    tool_users.change_password(metadata, "bob", "three")
    assert login(metadata, "bob", "three") is Verdict.OK
    tool_users.set_tags(metadata, "bob", ("policymaker",))
    assert tool_users.list_users(metadata, False) == [("bob", ("policymaker",))]
    tool_users.delete_user(metadata, "bob")
    assert login(metadata, "bob", "three") is Verdict.REFUSED


def test_a_new_user_needs_a_password_or_a_hash_of_one(metadata):
    with pytest.raises(UserNotFound):
        tool_users.put_user(metadata, "bob")
    with pytest.raises(UserError, match="0 characters"):
        tool_users.put_user(metadata, "bob", password="")
    assert tool_users.put_user(metadata, "bob", password_hash="")  # comes by a certificate only
    assert login(metadata, "bob", "") is Verdict.REFUSED


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_an_exported_hash_lets_its_password_in_and_no_other(metadata, algorithm):
    hashed = exported("sesame ü", algorithm)
    tool_users.put_user(metadata, "bob", password_hash=hashed, hashing=f"rabbit_password_hashing_{algorithm}")
    assert login(metadata, "bob", "sesame ü") is Verdict.OK
    for wrong in ("sesame", "", hashed):
        assert login(metadata, "bob", wrong) is Verdict.REFUSED
    tool_users.change_password(metadata, "bob", "new")
    assert login(metadata, "bob", "sesame ü") is Verdict.REFUSED
    assert login(metadata, "bob", "new") is Verdict.OK


@pytest.mark.parametrize(
    ("password_hash", "hashing"),
    [
        ("no base64!", ""),
        (base64.b64encode(b"short").decode(), ""),
        (exported("p", "sha512"), "rabbit_password_hashing_sha256"),
        (exported("p", "md5"), "rabbit_password_hashing_md5"),
    ],
)
def test_hashes_that_cannot_be_imported(metadata, password_hash, hashing):
    with pytest.raises(UserError, match="hash"):
        tool_users.put_user(metadata, "bob", password_hash=password_hash, hashing=hashing)


def test_a_superuser_shows_as_an_administrator(metadata):
    metadata.add_user("root", "hash", ("monitoring",), is_superuser=True)
    assert tool_users.list_users(metadata, True) == [
        ("guest", ("administrator",)),
        ("root", ("administrator", "monitoring")),
    ]


# ---- guest ----


def test_guest_is_deleted_for_good_until_it_is_added_again(metadata):
    rights = Rights(metadata, guest_allowed=True)
    assert login(metadata, "guest", "guest") is Verdict.OK
    tool_users.delete_user(metadata, "guest")
    assert login(metadata, "guest", "guest") is Verdict.REFUSED
    assert rights.of("guest", "/") is None
    assert tool_users.list_users(metadata, True) == tool_users.list_permissions(metadata, True) == []
    assert tool_users.put_user(metadata, "guest", password="guest")
    assert not tool_users.put_user(metadata, "guest", ("administrator",))
    assert login(metadata, "guest", "guest") is Verdict.OK
    assert rights.of("guest", "/").is_superuser
    assert metadata.users() == []


def test_guest_may_be_given_only_what_it_has(metadata):
    metadata.add_vhost("shop")
    tool_users.set_permissions(metadata, "shop", "guest", ".*", ".*", ".*")
    tool_users.set_tags(metadata, "guest", ("administrator",))
    for change in (
        lambda: tool_users.set_permissions(metadata, "shop", "guest", "", "", ""),
        lambda: tool_users.clear_permissions(metadata, "shop", "guest"),
        lambda: tool_users.change_password(metadata, "guest", "secret"),
        lambda: tool_users.put_user(metadata, "guest", password="secret"),
        lambda: tool_users.set_tags(metadata, "guest", ()),
    ):
        with pytest.raises(UserError, match="built in"):
            change()
    with pytest.raises(VhostNotFound):
        tool_users.set_permissions(metadata, "lab", "guest", ".*", ".*", ".*")


def test_guests_permissions_are_listed_among_the_others(metadata):
    metadata.add_vhost("shop")
    tool_users.put_user(metadata, "zoe", password="p")
    tool_users.set_permissions(metadata, "/", "zoe", "a", "b", "c")
    guest = [VhostPermission(vhost, "guest", ".*", ".*", ".*") for vhost in ("/", "shop")]
    zoe = VhostPermission("/", "zoe", "a", "b", "c")
    assert tool_users.list_permissions(metadata, True) == [guest[0], zoe, guest[1]]
    assert tool_users.list_permissions(metadata, True, "/") == [guest[0], zoe]
    assert tool_users.list_permissions(metadata, True, name="guest") == guest
    assert tool_users.list_permissions(metadata, False) == [zoe]
    assert tool_users.clear_permissions(metadata, "/", "zoe")
