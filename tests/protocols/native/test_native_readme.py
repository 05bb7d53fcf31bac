# SPDX-License-Identifier: Apache-2.0
"""The door's README says what the code does: its table of commands, its states, its features, codes and headers."""

from pathlib import Path

import pytest

from vibemq.protocols import native
from vibemq.protocols.native import commands, options, spec

README = (Path(native.__file__).parent / "README.md").read_text()


def table_of_commands() -> str:
    """COMMANDS as the README shows it; print it to renew the README."""
    lines = ["| type | command | from | answer | permission | legal |", "|---|---|---|---|---|---|"]
    for rule in spec.COMMANDS:
        legal = ["before Connect too"] if rule.before_connect else []
        legal += ["with a queue"] if rule.needs_queue else []
        legal += ["while users exist"] if rule.admin else []
        legal += [f"with feature `{rule.feature}`"] if rule.feature else []
        cells = (
            str(int(rule.command)),
            rule.name,
            " and ".join(sorted(rule.sent_by)),
            "" if rule.reply is None else str(int(rule.reply)),
            "" if rule.operation is None else spec.wire_name(rule.operation),
            ", ".join(legal),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(line.replace("|  |", "| |").replace("|  |", "| |") for line in lines)


def test_the_table_of_commands_is_the_one_that_the_codec_and_the_session_are_made_from():
    assert table_of_commands() in README, f"renew it:\n{table_of_commands()}"


def test_the_diagram_names_every_state():
    assert not [state for state in commands.STATES if state not in README]


@pytest.mark.parametrize("code", [code for code in spec.ErrorCode if code != spec.ErrorCode.CONNECTION_LIMIT])
def test_every_code_has_its_reason(code):
    assert f"| `{code}` |" in README


def test_every_addition_is_described():
    assert not [feature for feature in spec.FEATURE_NAMES if f"`{feature}`" not in README]
    names = [options.READERS[field][0][0] for field in options.ADDITIONS]
    assert not [name for name in names if f"`{name}`" not in README]
    assert all(f"`{header}`" in README for header in (spec.Header.FEATURES, commands.PREFETCH_HEADER, "vibemq-resend"))
