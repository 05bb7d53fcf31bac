# SPDX-License-Identifier: Apache-2.0
"""Every line that the broker may log has the name of its event, and every warning and error what to do about it."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from vibemq.once_a_minute import OnceAMinute
from vibemq.server.events import EVENTS, NAMED_BY_LOGGERS, NAMED_BY_REPORTERS, OTHER, event_of
from vibemq.server.logs import LINE_CHARACTERS_MAX, OneObject

ROOT = Path(__file__).resolve().parents[2]
OPERATORS = ROOT / "examples/monitoring/README.md"
#: Where the broker's code lies; the clients, Spark and the command line log into other programs' logs.
PACKAGES = ("access", "admin", "broker", "net", "protocols", "remote", "server", "storage")
CALL = re.compile(r"(?<![\w.])(?:(log|logger)\.(debug|info|warning|error|exception|log)|([\w.]+)\.say(?:_fault)?)\(")
REPORTER = re.compile(r"(\w+)(?:, \w*\.?(\w+))? = OnceAMinute\((.*)\)")
#: What else has a `say`: the audit log, whose lines are events by themselves.
AUDIT = ("audit", "log")
#: Wrappers: the file, and what they put before the words that they are given.
PREFIXES = {"broker/backlog.pyx": "queue %s: "}
LEVEL = re.compile(r"logging\.([A-Z]+)")
NEAR_CHARACTERS = 500  # before a call, where its level is given to a variable


class Line(NamedTuple):
    where: str
    level: str
    words: str


def call_at(text: str, begin: int) -> str:
    """The arguments of a call, as Python: what only Cython has is left out."""
    depth, quote, at = 1, "", begin
    while depth:
        if quote:
            at += text[at] == "\\"
            quote = "" if text[at] == quote else quote
        elif text[at] in "\"'":
            quote = text[at]
        else:
            depth += (text[at] in "([{") - (text[at] in ")]}")
        at += 1
    return re.sub(r"<\w+(?: \*)?>|&(?=\w)", "", text[begin : at - 1])


def words_of(node: ast.expr, before: str) -> list[str]:
    """What a message may be: text, one of two, or what the variable was given last, before the call."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.BinOp):
        return [left + right for left in words_of(node.left, before) for right in words_of(node.right, before)]
    if isinstance(node, ast.IfExp):
        return words_of(node.body, before) + words_of(node.orelse, before)
    if isinstance(node, ast.Name):
        *_, given = re.finditer(rf"^ *{node.id} = (\((?:[^()]|\([^()]*\))*\)|[^\n]+)", before, re.M)
        return words_of(ast.parse(given[1], mode="eval").body, before)
    raise AssertionError(f"the name of an event is found by its words, which are no text: {ast.unparse(node)}")


def reporters(text: str) -> dict[str, tuple[str, bool]]:
    """By their last name: the level, and whether they name their events themselves."""
    found = {}
    for first, second, arguments in REPORTER.findall(text):
        level = match[1].lower() if (match := LEVEL.search(arguments)) else "warning"
        levels = ("warning", level) if second else (level,)  # of two in one line the first has the default
        found |= {name: (each, "event=" in arguments) for name, each in zip((first, second), levels, strict=False)}
    return found


def lines_of(path: Path) -> Iterator[Line]:
    text, relative = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT / "vibemq"))
    known = reporters(text)
    for call in CALL.finditer(text):
        arguments = ast.parse(f"f({call_at(text, call.end())})", mode="eval").body
        assert isinstance(arguments, ast.Call)
        where = f"{relative}:{text.count(chr(10), 0, call.start()) + 1}"
        name = (call[3] or "").rpartition(".")[2]
        if call[3] is None:
            at = 1 if call[2] == "log" else 0
            levels, prefix = {"error" if call[2] == "exception" else call[2]}, ""
            if call[2] == "log":
                given = arguments.args[0]
                near = text[call.start() - NEAR_CHARACTERS : call.start()]
                said = near if isinstance(given, ast.Name) else ast.unparse(given)
                levels = {one.lower() for one in LEVEL.findall(said)}
        elif name in known:
            (level, names_itself), at, prefix = known[name], 1, ""
            levels = {level}
            if names_itself:
                continue
        elif name in AUDIT:
            continue
        elif name == "self" and relative in PREFIXES:
            levels, at, prefix = {"warning"}, 1, PREFIXES[relative]
        else:
            raise AssertionError(f"{where}: which reporter is {call[3]}?")
        if relative in PREFIXES and isinstance(arguments.args[at], ast.BinOp):  # the wrapper itself
            continue
        for words in words_of(arguments.args[at], text[: call.start()]):
            yield from (Line(where, level, prefix + words) for level in levels)


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    sources = (path for name in PACKAGES for path in (ROOT / "vibemq" / name).rglob("*.py*"))
    return [line for path in sorted(sources) if path.suffix in (".py", ".pyx") for line in lines_of(path)]


def name_of(words: str) -> str:
    return event_of(logging.LogRecord("x", logging.INFO, "", 0, words, (), None))


def test_every_line_has_the_name_of_its_event_and_every_name_a_line(lines):
    assert len(lines) > 200, "the reader sees them"
    assert [line for line in lines if name_of(line.words) == OTHER] == []
    said = {line.words for line in lines}
    assert {words for all_words in EVENTS.values() for words in all_words} - said == set()


def test_no_words_stand_for_two_events():
    every = [words for all_words in EVENTS.values() for words in all_words]
    assert sorted(every) == sorted(set(every))


def test_the_operators_page_says_what_to_do_about_each_warning_and_error_and_about_no_other(lines):
    needed = {name_of(line.words) for line in lines if line.level in ("warning", "error")}
    rows = re.findall(r"^\| `(\w+)` \| (warning|error|both) \| (.+?) \| (.+?) \|$", OPERATORS.read_text(), re.M)
    told = {name: (level, what, do) for name, level, what, do in rows}
    assert len(told) == len(rows), "each event has one row"
    assert needed | set(NAMED_BY_LOGGERS.values()) == told.keys()
    levels: dict[str, set[str]] = {}
    for line in lines:
        levels.setdefault(name_of(line.words), set()).add(line.level)
    for name, (level, _, _) in told.items():
        shown = levels.get(name, {"warning"}) & {"warning", "error"}
        assert level == ("both" if len(shown) == 2 else next(iter(shown))), name


def test_what_a_reporter_says_again_has_the_same_name(caplog):
    now_s = 0.0
    logger = logging.getLogger("vibemq.test")
    full, named = OnceAMinute(logger, clock=lambda: now_s), OnceAMinute(logger, event="peer_refused")
    words = "%d connections, no more are accepted for now: %s"
    for _ in range(3):
        full.say("x", words, 1, "why")
    now_s = 61.0
    full.say_due()
    named.say("y", "whatever it is")
    assert "2 more in the last" in caplog.records[1].getMessage()
    assert [event_of(record) for record in caplog.records] == ["connections_full"] * 2 + list(NAMED_BY_REPORTERS)


def test_a_line_of_json_is_one_line_whatever_peers_say():
    here = test_a_line_of_json_is_one_line_whatever_peers_say
    try:
        raise ValueError("a\nb")
    except ValueError as problem:
        caught = (type(problem), problem, problem.__traceback__)
    record = logging.LogRecord("vibemq.server", logging.ERROR, "", 1, "%s failed", ("a\n\x1b\u2028\x9b",), caught)
    record.created, record.msecs = 0.0, 7.0
    text = OneObject().format(record)
    assert text.isascii() and text.isprintable()
    shown = json.loads(text)
    assert shown["traceback"].startswith("ValueError at ") and shown["traceback"].endswith(" in " + here.__name__)
    assert "a\\nb" not in text, "the text of an exception may be a peer's"
    assert shown["message"] == "a\n\x1b\u2028\x9b failed"
    rest = {"time": "1970-01-01T00:00:00.007Z", "level": "error", "event": "process_failed"}
    assert rest.items() <= shown.items() and shown["logger"] == "vibemq.server"


def test_a_line_of_json_is_whole_however_long_its_message():
    record = logging.LogRecord("vibemq", logging.INFO, "", 1, "x" * 3 * LINE_CHARACTERS_MAX, (), None)
    shown = json.loads(OneObject().format(record))
    assert shown["event"] == OTHER and len(shown["message"]) < LINE_CHARACTERS_MAX + 100
