# SPDX-License-Identifier: Apache-2.0
"""Access tokens: whose they are, and all that makes them nobody's."""

import base64
import json

import pytest
from click.testing import CliRunner

from vibemq.access.tokens import TOKEN_CHARACTERS_MAX, Tokens
from vibemq.access.users import Authenticator, add_user, change_password
from vibemq.cli.commands import main
from vibemq.errors import UserNotFound
from vibemq.storage.metadata import Metadata

NOW_S = 1_000_000_000.0


class Clock:
    now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def metadata(tmp_path):
    found = Metadata(str(tmp_path / "meta.db"))
    add_user(found, "ada", "a password of hers")
    yield found
    found.close()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def tokens(metadata, clock):
    return Tokens(metadata, Authenticator(metadata, guest_allowed=True), clock)


def test_a_token_is_its_user_until_it_ends(tokens, clock):
    token = tokens.issue("ada", 60)
    assert tokens.user_of(token, loopback=False) == "ada"
    clock.now_s += 59
    assert tokens.user_of(token, loopback=False) == "ada"
    clock.now_s += 1
    assert tokens.user_of(token, loopback=False) is None


def test_every_process_of_a_broker_knows_the_token_and_no_other_broker_does(tokens, metadata, clock, tmp_path):
    token = tokens.issue("ada", 60)
    assert Tokens(Metadata(metadata.path), None, clock).user_of(token, loopback=True) == "ada"
    (tmp_path / "other").mkdir()
    other = Metadata(str(tmp_path / "other" / "meta.db"))
    add_user(other, "ada", "a password of hers")
    assert Tokens(other, None, clock).user_of(token, loopback=True) is None


def test_another_password_ends_all_tokens(tokens, metadata):
    token = tokens.issue("ada", 60)
    change_password(metadata, "ada", "another password")
    assert tokens.user_of(token, loopback=True) is None
    assert tokens.user_of(tokens.issue("ada", 60), loopback=True) == "ada"


def test_a_user_that_was_deleted_and_made_again_is_another(tokens, metadata):
    token = tokens.issue("ada", 60)
    metadata.delete_user("ada")
    assert tokens.user_of(token, loopback=True) is None
    add_user(metadata, "ada", "a password of hers")
    assert tokens.user_of(token, loopback=True) is None


def test_no_byte_of_a_token_can_be_another(tokens):
    token = tokens.issue("ada", 60)
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    for at in range(len(raw)):
        for bit in (1, 128):
            forged = raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :]
            assert tokens.user_of(base64.urlsafe_b64encode(forged).decode().rstrip("="), loopback=True) is None, at


@pytest.mark.parametrize(
    "text", ["", "ada", "A", "====", "!" * 60, "é" * 60, "A" * 60, "A" * (TOKEN_CHARACTERS_MAX + 1)]
)
def test_what_is_no_token_is_nobody(tokens, text):
    assert tokens.user_of(text, loopback=True) is None


def test_guest_has_tokens_for_this_machine_as_long_as_there_is_a_guest(tokens, metadata):
    token = tokens.issue("guest", 60)
    assert tokens.user_of(token, loopback=True) == "guest"
    assert tokens.user_of(token, loopback=False) is None
    metadata.set_guest_removed(True)
    assert tokens.user_of(token, loopback=True) is None


def test_nobody_gets_a_token_for_a_user_that_is_not_there(tokens):
    with pytest.raises(UserNotFound, match="'bob'"):
        tokens.issue("bob", 60)


def test_the_command_prints_a_token_that_is_its_user(metadata, tmp_path):
    ran = CliRunner().invoke(main, ["users", "token", "ada", "--for", "60", "--data-dir", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    assert Tokens(metadata, None).user_of(ran.stdout.strip(), loopback=True) == "ada"


def test_the_command_prints_json_for_programs(metadata, tmp_path):
    ran = CliRunner().invoke(main, ["users", "token", "ada", "--json", "--data-dir", str(tmp_path)])
    printed = json.loads(ran.stdout)
    assert printed["expiresIn"] == 3600
    assert Tokens(metadata, None).user_of(printed["accessToken"], loopback=True) == "ada"


def test_the_command_says_that_there_is_no_such_user(metadata, tmp_path):
    ran = CliRunner().invoke(main, ["users", "token", "bob", "--data-dir", str(tmp_path)])
    assert ran.exit_code == 1 and "there is no user 'bob'" in ran.stderr
