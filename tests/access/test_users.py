# SPDX-License-Identifier: Apache-2.0
"""Logins: who gets in, how long the answer takes, and what is never shown."""

import logging
import statistics
import time

import pytest

from vibemq.access import users
from vibemq.access.users import Authenticator, Verdict
from vibemq.errors import ConfigError, UserError, UserExists
from vibemq.storage.metadata import Metadata

PASSWORD = "correct horse"


@pytest.fixture
def metadata(tmp_path):
    found = Metadata(str(tmp_path / "meta.db"))
    users.add_user(found, "alice", PASSWORD)
    yield found
    found.close()


@pytest.fixture
def door(metadata):
    return Authenticator(metadata, guest_allowed=True)


def test_the_right_password_from_anywhere(door):
    assert door.check("alice", PASSWORD, loopback=False) is Verdict.OK
    assert door.check("alice", PASSWORD, loopback=True) is Verdict.OK


@pytest.mark.parametrize(
    ("user", "password"),
    [
        ("alice", "wrong horse"),
        ("alice", ""),
        ("alice", PASSWORD + "\0"),
        ("Alice", PASSWORD),
        ("bob", PASSWORD),
        ("", ""),
        ("alice\0", PASSWORD),
        ("\udcff", "\udcff"),
        ("guest", ""),
        ("GUEST", "guest"),
    ],
)
def test_everything_else_is_refused(door, user, password):
    assert door.check(user, password, loopback=True) is Verdict.REFUSED


def test_guest_comes_in_from_this_machine_only(door):
    assert door.check_cached("guest", "guest", loopback=True) is Verdict.OK
    assert door.check_cached("guest", "guest", loopback=False) is Verdict.LOOPBACK_ONLY
    assert door.check_cached("guest", "wrong", loopback=False) is Verdict.REFUSED


def test_guest_can_be_turned_off(metadata):
    door = Authenticator(metadata, guest_allowed=False)
    assert door.check_cached("guest", "guest", loopback=True) is None
    assert door.check("guest", "guest", loopback=True) is Verdict.REFUSED


def test_a_right_password_is_remembered_a_wrong_one_never(door):
    assert door.check_cached("alice", PASSWORD, loopback=False) is None
    door.check("alice", "wrong horse", loopback=False)
    assert door.check_cached("alice", "wrong horse", loopback=False) is None
    door.check("alice", PASSWORD, loopback=False)
    assert door.check_cached("alice", PASSWORD, loopback=False) is Verdict.OK
    assert door.check_cached("alice", "wrong horse", loopback=False) is None


def test_a_changed_password_counts_at_once(door, metadata):
    door.check("alice", PASSWORD, loopback=False)
    users.change_password(metadata, "alice", "battery staple")
    assert door.check_cached("alice", PASSWORD, loopback=False) is None
    assert door.check("alice", PASSWORD, loopback=False) is Verdict.REFUSED
    assert door.check("alice", "battery staple", loopback=False) is Verdict.OK


def test_a_removed_user_is_out_at_once_even_when_made_again(door, metadata):
    door.check("alice", PASSWORD, loopback=False)
    metadata.delete_user("alice")
    assert door.check("alice", PASSWORD, loopback=False) is Verdict.REFUSED
    users.add_user(metadata, "alice", PASSWORD)  # the same password, another salt
    assert door.check_cached("alice", PASSWORD, loopback=False) is None


def test_an_unknown_user_takes_as_long_as_a_wrong_password(door):
    def median_ms(user):
        took = []
        for _ in range(7):
            began = time.process_time()  # of the processors: the time on the clock depends on who else is at work
            door.check(user, "some password", loopback=False)
            took.append((time.process_time() - began) * 1000)
        return statistics.median(took)

    door.check("warm-up", "", loopback=False)
    known, unknown = median_ms("alice"), median_ms("nobody-here")
    assert 0.5 < known / unknown < 2.0
    assert unknown > 2.0  # a hash that is not one would be refused at once


def test_the_quick_answer_is_quick(door):
    door.check("alice", PASSWORD, loopback=False)
    took = []
    for _ in range(50):
        began = time.process_time()
        door.check_cached("alice", PASSWORD, loopback=False)
        took.append(time.process_time() - began)
    assert statistics.median(took) < 0.001


def test_nothing_shows_a_password(door, metadata, caplog):
    with caplog.at_level(logging.DEBUG):
        door.check("alice", PASSWORD, loopback=False)
        door.check("alice", "wrong horse", loopback=False)
    shown = caplog.text + repr(door) + repr(metadata.users())
    assert "horse" not in shown
    assert "argon2" not in shown
    assert PASSWORD.encode() not in repr(door._remembered).encode()


def test_remembered_logins_are_bounded(metadata, monkeypatch):
    monkeypatch.setattr(users, "_REMEMBERED_MAX", 1)
    users.add_user(metadata, "bob", PASSWORD)
    door = Authenticator(metadata, guest_allowed=True)
    door.check("alice", PASSWORD, loopback=False)
    door.check("bob", PASSWORD, loopback=False)
    assert door.check_cached("alice", PASSWORD, loopback=False) is None
    assert door.check_cached("bob", PASSWORD, loopback=False) is Verdict.OK


@pytest.mark.parametrize("name", ["guest", "Guest", "", "a b", "a/b", "ü", "x" * 256, "a\n"])
def test_names_that_cannot_be(metadata, name):
    with pytest.raises(UserError):
        users.add_user(metadata, name, PASSWORD)


@pytest.mark.parametrize("password", ["", "short", "x" * 1025])
def test_passwords_that_cannot_be(metadata, password):
    with pytest.raises(UserError, match="8 to 1024 are needed") as raised:
        users.add_user(metadata, "bob", password)
    assert password == "" or password not in str(raised.value)


def test_a_user_is_made_once(metadata):
    with pytest.raises(UserExists) as raised:
        users.add_user(metadata, "alice", PASSWORD)
    assert "vibemq users passwd alice" in raised.value.hint


def test_one_character_is_not_characters(metadata):
    with pytest.raises(UserError, match=r"the password has 1 character; 8 to 1024 are needed"):
        users.add_user(metadata, "bob", "x")


def test_any_bytes_of_a_peer_can_be_a_password(metadata, door):
    users.change_password(metadata, "alice", "\ud800 battery")
    assert door.check("alice", "\ud800 battery", loopback=False) is Verdict.OK


# ---- the superuser of the configuration ----


def ordinary(metadata):
    metadata.set_superuser("alice", False)


def test_the_configured_superuser_is_made_at_the_first_start_only(metadata, door):
    ordinary(metadata)
    assert users.ensure_superuser(metadata, "vibemq", PASSWORD)
    assert metadata.find_user("vibemq").is_superuser
    assert not users.ensure_superuser(metadata, "vibemq", "battery staple")
    assert not users.ensure_superuser(metadata, "other", "battery staple")
    assert not users.ensure_superuser(metadata, "vibemq", "")
    assert door.check("vibemq", PASSWORD, loopback=False) is Verdict.OK
    assert metadata.find_user("other") is None


def test_a_superuser_made_by_hand_is_enough(metadata):
    assert metadata.find_user("alice").is_superuser  # the first user of all
    assert not users.ensure_superuser(metadata, "vibemq", "")
    assert metadata.find_user("vibemq") is None


def test_a_user_of_the_configured_name_becomes_the_superuser_with_the_configured_password(metadata, door):
    ordinary(metadata)
    assert users.ensure_superuser(metadata, "alice", "battery staple")
    assert metadata.find_user("alice").is_superuser
    assert door.check("alice", PASSWORD, loopback=False) is Verdict.REFUSED
    assert door.check("alice", "battery staple", loopback=False) is Verdict.OK


def test_no_superuser_and_no_password_is_a_mistake_of_the_configuration(metadata):
    ordinary(metadata)
    with pytest.raises(ConfigError, match=r"no superuser.*no password for 'vibemq'") as raised:
        users.ensure_superuser(metadata, "vibemq", "")
    assert "vibemq users add NAME --superuser" in raised.value.hint


@pytest.mark.parametrize(
    ("name", "password"), [("guest", PASSWORD), ("a b", PASSWORD), ("..", PASSWORD), ("vibemq", "short")]
)
def test_a_superuser_that_cannot_be_is_a_mistake_of_the_configuration(metadata, name, password):
    ordinary(metadata)
    with pytest.raises(ConfigError, match="the superuser of the configuration: ") as raised:
        users.lacks_superuser(metadata, name, password)
    assert "horse" not in str(raised.value)
    assert not metadata.has_superuser()
