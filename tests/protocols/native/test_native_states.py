# SPDX-License-Identifier: Apache-2.0
"""The state table itself, each state with each number that a frame can bear: what it lacks is refused."""

from types import SimpleNamespace

import pytest

from vibemq.access.permissions import EVERYTHING
from vibemq.protocols.native import commands
from vibemq.protocols.native.codec import encode_body
from vibemq.protocols.native.spec import COMMAND_BY_TYPE, COMMANDS, FEATURES, Command

# Published, settled or answered in place by session.pyx, where the table is not asked.
IN_PLACE = {Command.PUBLISH, Command.ACK, Command.NACK, Command.HOLDING, Command.PING}


class Recorder:
    """A session that remembers what it was told; `answered` is set by the table's own functions."""

    def __init__(self, state, features=(), has_users=False):
        self.state, self.features, self.text_layout = state, frozenset(features), False
        self.ending, self.compression = False, None
        self.errors, self.answered = [], []
        accesses = SimpleNamespace(has_users=has_users, of=lambda user: EVERYTHING)
        authenticator = SimpleNamespace(takes_tokens=False)
        broker = SimpleNamespace(accesses=accesses, authenticator=authenticator, is_public=False)
        self.door = SimpleNamespace(broker=broker)
        self.client = SimpleNamespace(user="guest" if has_users else "", access=EVERYTHING, broker=broker, owner=self)

    def refuse_frame(self, id, code, text):
        self.errors.append((id, code, text))


@pytest.fixture
def table(monkeypatch):
    """The product's table, where each answer only says that it was called."""
    replaced = {
        state: {command: lambda session, request: session.answered.append(request.type) for command in answers}
        for state, answers in commands.STATES.items()
    }
    monkeypatch.setattr(commands, "STATES", replaced)
    return replaced


def told(state, command, **session):
    recorder = Recorder(state, **session)
    fields = {"error_code": "x"} if command == Command.ERROR else {}
    commands.handle(recorder, encode_body(command, b"id", queue="q", **fields))
    return recorder


@pytest.mark.parametrize("state", list(commands.STATES))
@pytest.mark.parametrize("number", range(256))
def test_what_a_state_does_not_allow_is_refused_by_name(table, state, number):
    features = FEATURES.keys()
    recorder = told(state, number, features=features, has_users=True)
    if number in table[state]:
        assert (recorder.answered, recorder.errors) == ([number], [])
        return
    assert recorder.answered == []
    codes = [code for _, code, _ in recorder.errors]
    assert codes == {"connecting": ["NOT_AUTHENTICATED"], "open": ["UNKNOWN_COMMAND"]}.get(state, [])
    assert all(id == b"id" for id, _, _ in recorder.errors)


def test_the_table_allows_what_the_protocol_allows():
    before = {rule.command for rule in COMMANDS if rule.before_connect}
    assert set(commands.STATES["connecting"]) == before - IN_PLACE
    from_clients = {rule.command for rule in COMMANDS if "client" in rule.sent_by}
    assert set(commands.STATES["open"]) == from_clients - IN_PLACE
    assert all(not commands.STATES[state] for state in ("refused", "leaving", "closed"))


@pytest.mark.parametrize("feature", FEATURES)
def test_an_addition_is_unknown_to_who_has_not_asked_for_it(table, feature):
    command = FEATURES[feature]
    recorder = told("open", command)
    assert [code for _, code, _ in recorder.errors] == ["UNKNOWN_COMMAND"]
    if command in table["open"]:
        assert told("open", command, features=[feature]).answered == [command]


@pytest.mark.parametrize("command", [rule.command for rule in COMMANDS if rule.admin])
def test_users_are_unknown_while_nobody_has_to_log_in(table, command):
    assert [code for _, code, _ in told("open", command).errors] == ["UNKNOWN_COMMAND"]
    assert told("open", command, has_users=True).answered == [command]


def test_every_command_of_the_table_is_described():
    assert all(command in COMMAND_BY_TYPE for answers in commands.STATES.values() for command in answers)
