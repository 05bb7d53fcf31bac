# SPDX-License-Identifier: Apache-2.0
"""The style rules that a machine can keep, so that people need not."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = 700  # a longer file swallows its control flow: cut it
# Spelled in halves, so that this file keeps its own rules.
LEFTOVERS = re.compile(
    r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "NotImplemented" + "Error"]) + r")\b"
)
MACHINE_PATHS = re.compile("|".join(["/wo" + "rk/", "/ho" + "me/[a-z]", "/Us" + "ers/[A-Za-z]"]))
NOT_BARE = re.compile(r"^\s*except\s*:", re.M)
FENCE = re.compile(r"^ *```.*?^ *```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")
ASSERT = re.compile(r"(?<![\w])assert\s*\(")
SOURCE_SUFFIXES = {".c", ".h", ".py", ".pyx", ".pxd", ".sh", ".yml"}
TEXT_SUFFIXES = SOURCE_SUFFIXES | {".md", ".toml", ".in", ".cfg"}
FOLDERS = ("csrc", "vibemq", "pyspark_vibemq", "examples", "tests", "benchmarks", "docs", ".github", ".ci")
SKIPPED = {"build", "corpus", "__pycache__", "dist"}


def files(suffixes: set[str]) -> Iterator[Path]:
    yield from (p for p in sorted(ROOT.iterdir()) if p.is_file() and (p.suffix in suffixes or p.name == "Makefile"))
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            wanted = path.suffix in suffixes or path.name in ("Makefile", "run")
            if wanted and path.is_file() and not SKIPPED & set(path.relative_to(ROOT).parts):
                yield path


def offending(suffixes: set[str], wrong: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files(suffixes)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if wrong.search(line)
    ]


def test_no_file_is_too_long():
    long = {str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines()) for p in files(SOURCE_SUFFIXES)}
    assert {name: lines for name, lines in long.items() if lines > LINES_MAX} == {}


def test_nothing_is_left_over():
    assert offending(TEXT_SUFFIXES, LEFTOVERS) == []


def test_no_path_of_somebodys_machine():
    assert offending(TEXT_SUFFIXES, MACHINE_PATHS) == []


def test_no_exception_is_caught_without_saying_which():
    assert offending({".py", ".pyx"}, NOT_BARE) == []


def test_every_source_says_its_licence_first():
    without = []
    for path in files(SOURCE_SUFFIXES):
        head = path.read_text(encoding="utf-8").splitlines()[:2]
        if head and "SPDX-License-Identifier: Apache-2.0" not in " ".join(head):
            without.append(str(path.relative_to(ROOT)))
    assert without == []


def test_the_c_core_checks_in_release_builds_too():
    """assert() vanishes with -DNDEBUG, which setuptools gives; CHECK does not."""
    core = [line for line in offending({".c", ".h"}, ASSERT) if not re.match(r"csrc/(tests|fuzz)/", line)]
    assert [line for line in core if "_Static_assert" not in line and "static_assert" not in line] == []


def test_links_of_markdown_lead_to_files_and_headings_that_are_there():
    lost = []
    for path in files({".md"}):
        for target in LINK.findall(FENCE.sub("", path.read_text(encoding="utf-8"))):
            name, _, heading = target.partition("#")
            to = (path.parent / name) if name else path
            if re.match(r"[a-z]+:", target) is None and not (to.exists() and (not heading or heading in anchors(to))):
                lost.append(f"{path.relative_to(ROOT)}: {target}")
    assert lost == []


def anchors(path: Path) -> set[str]:
    """What a # may name in a Markdown file, by GitHub's rule."""
    headings = re.findall(r"^#+ +(.+)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_no_generated_c_lies_beside_its_source():
    assert [str(p) for p in (ROOT / "vibemq").rglob("*.c")] == []


def test_lines_end_cleanly():
    assert offending(TEXT_SUFFIXES - {".md"}, re.compile(r"[ \t]+$|\r")) == []


def test_the_rules_catch_what_they_should():
    assert LEFTOVERS.search("# TO" + "DO: later")
    assert MACHINE_PATHS.search("see /ho" + "me/someone/notes")
    assert NOT_BARE.search("    except:\n")
    assert not NOT_BARE.search("    except ValueError:\n")
    assert LINK.findall("see [that](FORMAT.md#quarantine), [this](https://x.org)") == [
        "FORMAT.md#quarantine",
        "https://x.org",
    ]
    assert ASSERT.search("    assert (x);")
    assert not ASSERT.search("    _Static_assert(x);")
