# SPDX-License-Identifier: Apache-2.0
"""Hints are pasted, also by root: no command in them deletes, loosens rights, or runs a name as a part of itself."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "vibemq"
SOURCES = sorted([*ROOT.rglob("*.py"), *ROOT.rglob("*.pyx")])
#: Commands that change rights, each about a directory whose files are all the broker's.
KNOWN = {
    ("storage/ownership.py", "chmod u+rw {}"),
    ("storage/ownership.py", "chown -R {} {}"),
    ("server/datadir.py", "chmod 700 %s"),
    ("server/events.py", "chmod 700 %s"),
    ("cli/data.py", "chown -R NAME {}"),
}
HARMS = re.compile(
    r"(^|[ ;|&])(rm|mv|dd|mkfs|truncate|chmod|chown|setfacl|kill|pkill|killall|mount .*remount)\b|"
    r"--on-conflict override|--yes\b|vibemq (queues|streams|users|ctl) (delete|purge|remove|clear)\w* \S|"
    r"'\.\*'|--superuser \S"
)
#: Prose that tells to destroy, of which another way says more.
DESTROYS = re.compile(r"\b(delete|remove) (it|this|that|them)\b|\b(delete|remove) \{|which deletes its messages")
COMMANDS = ("vibemq ", "openssl ", "ch", "install ", "sudo ", "useradd ", "pip ", "mount ", "python")


def commands_in(text: str) -> list[str]:
    return [found for found in re.findall(r"`([^`]+)`", text) if found.startswith(COMMANDS)]


def written(node: ast.AST) -> str:
    """The text of a string, with {} in place of what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return ""


def strings() -> Iterator[tuple[str, ast.AST, bool]]:
    """Each string of the program: its file, itself, and whether it is a hint."""
    for path in SOURCES:
        if path.suffix != ".py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        hints, inner = set(), set()
        for node in ast.walk(tree):
            if (isinstance(node, ast.keyword) and node.arg == "hint") or (
                isinstance(node, ast.Assign) and "hint" in ast.unparse(node.targets[0]).lower()
            ):
                hints.update(map(id, ast.walk(node.value)))
            elif isinstance(node, ast.JoinedStr):
                inner.update(id(part) for part in node.values)
        for node in ast.walk(tree):
            if id(node) not in inner and written(node):
                yield str(path.relative_to(ROOT)), node, id(node) in hints


def test_no_command_in_a_message_destroys_or_opens():
    found = {(file, command) for file, node, _ in strings() for command in commands_in(written(node))}
    assert len(found) > 50, "the messages were not found"
    assert {one for one in found if HARMS.search(one[1])} == KNOWN


def test_no_hint_tells_to_delete_what_may_be_needed():
    found = [(file, written(node)) for file, node, is_hint in strings() if is_hint and DESTROYS.search(written(node))]
    assert not found


def test_what_is_filled_into_a_command_is_quoted():
    """A queue called "x; reboot" is a word of the command, and not a second command."""
    bare = []
    for file, node, _ in strings():
        if not isinstance(node, ast.JoinedStr):
            continue
        is_open, text = False, ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                pieces = str(part.value).split("`")
                is_open, text = is_open ^ (len(pieces) % 2 == 0), pieces[-1] if len(pieces) > 1 else text + pieces[0]
            elif is_open and text.startswith(COMMANDS) and not _is_quoted(part.value):
                bare.append((file, ast.unparse(part.value), text))
    assert not bare


def _is_quoted(value: ast.expr) -> bool:
    """Is it quoted, a number, or one of the program's own words?"""
    shown = ast.unparse(value)
    return "quote" in shown or shown in {"shown", "account", "kind", "given", "option", "self._left"}


@pytest.mark.parametrize("text", ["chown -R me /", "rm -rf /x", "vibemq queues delete orders", "mount -o remount,rw /"])
def test_these_would_be_found(text):
    assert HARMS.search(text)
