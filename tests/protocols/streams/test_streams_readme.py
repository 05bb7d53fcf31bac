# SPDX-License-Identifier: Apache-2.0
"""The door's README says what the code does: its table of frames is the codec's own."""

import re
from pathlib import Path

from vibemq.protocols import streams
from vibemq.protocols.streams import commands
from vibemq.protocols.streams.layout import Layout
from vibemq.protocols.streams.spec import COMMANDS, EXTENSIONS, RESPONSE_BIT, Command

README = (Path(streams.__file__).parent / "README.md").read_text()


def markdown_table(commands: tuple[Command, ...]) -> str:
    """For the README: one row for each frame."""
    rows = ["| key | frame | from | versions | fields |", "|---|---|---|---|---|"]
    for command in commands:
        versions = "1" if command.version_max == 1 else f"1 to {command.version_max}"
        rows.append(row(int(command.key), command.request, command.sent_by, versions))
        if command.response is not None:
            rows.append(row(command.key | RESPONSE_BIT, command.response, command.answered_by, "1"))
    return "\n".join(rows)


def row(key: int, layout: Layout, sent_by: frozenset[str], versions: str) -> str:
    text = re.sub(r" = [^ ;,]+|(?<=array<)\w+(?=\{)", "", layout.text)
    fields = re.sub(r"(^|; )(\w+)", r"\1`\2`", text) or "none"
    return f"| {key:#06x} | {layout.name} | {' and '.join(sorted(sent_by))} | {versions} | {fields} |"


def test_the_table_of_frames_is_the_one_the_codec_is_made_from():
    assert markdown_table(COMMANDS) in README
    assert markdown_table(EXTENSIONS) in README


def test_the_diagram_names_every_state():
    missing = [state for state in commands.STATES if state not in README]
    assert not missing


def test_the_readme_table_has_a_row_for_each_frame():
    table = markdown_table(COMMANDS).splitlines()[2:]
    assert len(table) == len(COMMANDS) + sum(command.response is not None for command in COMMANDS)
    assert "| 0x000d | Create | client | 1 | `correlation_id` u32; `stream` string; `arguments` map |" in table
    assert "| 0x8009 | CreditResponse | server | 1 | `code` u16; `subscription_id` u8 |" in table
    assert "| 0x0017 | Heartbeat | client and server | 1 | none |" in table
