# SPDX-License-Identifier: Apache-2.0
"""``vibemq users``: what it prints, what it makes, to whom that belongs, and what it never makes."""

import json
import os

import pytest
from click.testing import CliRunner

from vibemq.cli.commands import main
from vibemq.storage.metadata import Metadata

PASSWORD = "sesame open\n"
STRANGER = 54321  # an account that is not root's; it needs no name


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("VIBEMQ_SERVER_DATA_DIR", str(tmp_path / "data"))

    def call(*arguments, **options):
        return CliRunner().invoke(main, ["users", *arguments], prog_name="vibemq", **options)

    return call


@pytest.fixture
def where(tmp_path):
    """The end of each line that says that something was done."""
    return f" (data directory {tmp_path / 'data'})\n"


@pytest.fixture
def add(run):
    return lambda *arguments: run("add", *arguments, "--password-stdin", input=PASSWORD)


@pytest.fixture
def metadata(tmp_path):
    return Metadata(str(tmp_path / "data" / "meta.db"))


def test_users_are_added_listed_changed_and_removed(run, add, metadata, where):
    add("alice")
    assert add("bob").stdout == f"user bob added{where}"
    before = metadata.find_user("bob")
    listed = json.loads(run("list", "--json").stdout)
    assert [user["user"] for user in listed] == ["alice", "bob"]
    assert "bob" in run("list").stdout
    result = run("passwd", "bob", "--password-stdin", "--json", input="other words\n")
    assert json.loads(result.stdout) == {"user": "bob", "result": "has a new password"}
    assert metadata.find_user("bob").password_hash != before.password_hash
    assert run("passwd", "bob", "--password-stdin", input=PASSWORD).stdout == f"user bob has a new password{where}"
    for name in ("bob", "alice"):
        assert run("remove", name).stdout == f"user {name} removed{where}"
    assert metadata.users() == []
    assert "there are no users" in run("list").stdout


def test_expected_errors_are_one_line_with_a_hint_and_exit_code_1(run, add):
    add("alice")
    result = run("remove", "bob")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "vibemq: there is no user 'bob'\n  hint: `vibemq users list` shows all\n"


def test_a_password_is_never_read_from_where_it_could_be_echoed(run, tmp_path):
    result = run("add", "bob", input=PASSWORD)
    assert result.exit_code == 1
    assert "--password-stdin" in result.stderr
    assert not (tmp_path / "data").exists()


def test_guest_cannot_be_added_and_no_password_is_asked_for(run):
    result = run("add", "guest")
    assert result.exit_code == 1
    assert "built in" in result.stderr


@pytest.mark.parametrize("password", ["x\n", "\n"])
def test_a_short_password_is_refused_with_its_length(run, password):
    result = run("add", "bob", "--password-stdin", input=password)
    assert result.exit_code == 1
    length = "1 character" if password.strip() else "0 characters"
    assert f"vibemq: the password has {length}; 8 to 1024 are needed" in result.stderr


# ---- superusers ----


def test_the_first_user_is_a_superuser_and_is_told(run, add, metadata, where):
    assert add("alice").stdout == f"user alice added as a superuser, because it is the first user{where}"
    add("bob")
    assert add("carol", "--superuser").stdout == f"user carol added as a superuser{where}"
    assert [user.is_superuser for user in metadata.users()] == [True, False, True]
    assert [user["superuser"] for user in json.loads(run("list", "--json").stdout)] == [True, False, True]
    assert "superuser" in run("list").stdout


def test_who_is_no_superuser_may_do_nothing_and_the_hint_says_what_changes_that(add, metadata):
    assert add("alice").stderr.find("vibemq ctl set_permissions") == -1
    hint = add("bob").stderr
    assert "`vibemq ctl set_permissions bob CONFIGURE WRITE READ`" in hint
    assert "`vibemq ctl set_user_tags bob monitoring`" in hint
    assert metadata.vhost_permissions() == []


def test_the_first_user_is_told_in_json_too(add):
    assert json.loads(add("alice", "--json").stdout) == {"user": "alice", "result": "added", "superuser": True}
    assert json.loads(add("bob", "--json").stdout) == {"user": "bob", "result": "added", "superuser": False}


@pytest.mark.parametrize("how", [[], ["--json"]], ids=["words", "json"])
def test_who_removes_the_last_superuser_or_user_is_told_what_follows(run, add, how):
    for name in ("alice", "bob", "carol"):
        add(name)
    assert run("remove", "bob", *how).stderr == ""
    assert "that was the last superuser: through the broker nobody but guest" in run("remove", "alice", *how).stderr
    assert "the last user: on 127.0.0.1 the native door now lets everybody in" in run("remove", "carol", *how).stderr


def test_who_had_no_superuser_before_is_not_told_of_losing_one(run, add, metadata):
    for name in ("alice", "bob", "carol"):
        add(name)
    metadata.set_superuser("alice", False)
    assert run("remove", "bob").stderr == ""


# ---- permissions ----


def test_permissions_are_granted_shown_and_revoked(run, add, where):
    add("alice")
    add("bob")
    assert "bob has no permission" in run("permissions", "bob").stdout
    granted = run("grant", "bob", "[a].*", "subscribe", "PUBLISH")
    assert granted.stdout == f"user bob may Publish, Subscribe where the queue is [a].*{where}"
    run("grant", "bob", "jobs", "ListQueues", "--json")
    table = run("permissions", "bob").stdout
    assert "[a].*" in table
    assert "Publish, Subscribe" in table
    assert json.loads(run("permissions", "bob", "--json").stdout) == {
        "user": "bob",
        "superuser": False,
        "permissions": [
            {"pattern": "[a].*", "operations": ["Publish", "Subscribe"]},
            {"pattern": "jobs", "operations": ["ListQueues"]},
        ],
    }
    assert [user["permissions"] for user in json.loads(run("list", "--json").stdout)] == [0, 2]
    assert json.loads(run("revoke", "bob", "jobs", "--json").stdout) == {
        "user": "bob",
        "result": "revoked",
        "pattern": "jobs",
    }
    assert run("revoke", "bob", "[a].*").exit_code == 0
    again = run("revoke", "bob", "[a].*")
    assert again.exit_code == 1
    assert "`vibemq users permissions bob` shows all" in again.stderr


def test_a_grant_says_what_it_replaces(run, add, where):
    add("alice")
    add("bob")
    run("grant", "bob", "a*", "Publish", "Subscribe")
    assert run("grant", "bob", "a*", "Subscribe", "Publish").stdout == (
        f"user bob may Publish, Subscribe where the queue is a*{where}"
    )
    assert run("grant", "bob", "a*", "PurgeQueue").stdout == (
        f"user bob may PurgeQueue where the queue is a*, instead of Publish, Subscribe{where}"
    )
    granted = json.loads(run("grant", "bob", "a*", "Publish", "--json").stdout)
    assert (granted["operations"], granted["replaced"]) == (["Publish"], ["PurgeQueue"])
    assert json.loads(run("grant", "bob", "b*", "Publish", "--json").stdout)["replaced"] == []


def test_a_superuser_needs_no_permission(run, add):
    add("alice")
    assert run("permissions", "alice").stdout == "user alice is a superuser and may do everything\n"


def test_an_operation_that_does_not_exist_is_wrong_usage_with_those_that_do(run, add):
    add("alice")
    result = run("grant", "alice", "*", "Fly")
    assert result.exit_code == 2
    assert "'Fly'" in result.stderr
    assert "PurgeQueue" in result.stderr
    assert run("grant", "alice", "*").exit_code == 2


def test_a_pattern_that_is_too_long_is_refused(run, add, metadata):
    add("alice")
    result = run("grant", "alice", "x" * 257, "Publish")
    assert result.exit_code == 1
    assert "257 characters; 1 to 256 are needed" in result.stderr


@pytest.mark.parametrize("command", [["grant", "bob", "*", "Publish"], ["revoke", "bob", "*"], ["permissions", "bob"]])
def test_permissions_of_nobody_are_an_error(run, add, command):
    add("alice")
    result = run(*command)
    assert result.exit_code == 1
    assert "there is no user 'bob'" in result.stderr


# ---- the data directory ----

ALL_BUT_ADD = [
    ["list"],
    ["remove", "bob"],
    ["passwd", "bob", "--password-stdin"],
    ["grant", "bob", "*", "Publish"],
    ["revoke", "bob", "*"],
    ["permissions", "bob"],
]


@pytest.mark.parametrize("command", ALL_BUT_ADD, ids=lambda command: command[0])
def test_a_misspelt_data_directory_is_an_error_and_is_not_made(run, tmp_path, command):
    (tmp_path / "empty").mkdir()
    for name in ("typo", "empty"):
        result = run(*command, "--data-dir", str(tmp_path / name), input=PASSWORD)
        assert result.exit_code == 1
        wanted = f"vibemq: cannot use the data directory {tmp_path / name}: there is no meta.db in it\n"
        assert result.stderr.startswith(wanted)
        assert "--data-dir" in result.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_a_data_directory_that_cannot_be_made_is_a_sentence(run):
    result = run("add", "bob", "--password-stdin", "--data-dir", "/proc/vibemq", input=PASSWORD)
    assert result.exit_code == 1
    assert "vibemq: cannot use the data directory /proc/vibemq" in result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("opened", [False, True], ids=["alone", "while another has it open"])
def test_what_root_makes_belongs_to_the_directorys_owner(add, tmp_path, metadata, opened):
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    os.chown(data, STRANGER, STRANGER)
    (data / "roots").write_text("made by somebody else")
    assert add("alice").stderr == ""
    if opened:
        metadata.users()  # its write-ahead log stays while this is open
        add("bob")
        assert (data / "meta.db-wal").exists()
    owners = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in data.iterdir()}
    assert owners.pop("roots") == (0, 0)
    assert {"meta.db", "streams"} <= set(owners)
    assert set(owners.values()) == {(STRANGER, STRANGER)}
    metadata.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_who_makes_the_directory_is_told_who_may_serve(add, tmp_path):
    hint = add("alice").stderr
    assert f"{tmp_path / 'data'} is new and belongs to root" in hint
    assert "--user NAME" in hint
    assert "chown -R NAME" in hint
    assert "root" not in add("bob").stderr
