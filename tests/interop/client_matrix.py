# SPDX-License-Identifier: Apache-2.0
"""The matrix of a door's README: a line for each test of a capability, a column for each client.

A run of the tests collects the outcomes: a test with the marker `line` is one of a line, its parameter `client` the
column.  `make interop` writes them between two markers of the README, and a full run compares.  What falls short has a
note with the reason: why the test was skipped, or its failure.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from foreign_clients import Client

BEGIN = "<!-- begin: written by `make interop` -->"
END = "<!-- end: written by `make interop` -->"
PASSED = "yes"
WRITE = os.environ.get("VIBEMQ_INTEROP_WRITE") == "1"  # the README's matrix, before it is compared


class Matrix:
    """Outcomes by line and client: PASSED, or why not; a line of several tests shows the first that falls short."""

    def __init__(self, readme: Path, clients: Sequence[Client]) -> None:
        self.readme, self.clients = readme, clients
        self.lines: dict[str, dict[str, list[str]]] = {}

    def record(self, line: str, client: str, outcome: str) -> None:
        self.lines.setdefault(line, {}).setdefault(client, []).append(outcome)

    def complete(self) -> bool:
        """Has every client run, so that the README can be judged by it?"""
        ran = {client for cells in self.lines.values() for client, outcomes in cells.items() if PASSED in outcomes}
        return ran == {client.name for client in self.clients}

    def markdown(self) -> str:
        notes: list[str] = []
        columns = len(self.clients) + 1
        rows = ["| | " + " | ".join(client.name for client in self.clients) + " |", "|---" * columns + "|"]
        for line, cells in self.lines.items():
            row = [line]
            for client in self.clients:
                outcomes = cells.get(client.name, ["not run"])
                falls_short = next((outcome for outcome in outcomes if outcome != PASSED), None)
                if falls_short is None:
                    row.append(PASSED)
                    continue
                if falls_short not in notes:
                    notes.append(falls_short)
                row.append(f"{'in part' if PASSED in outcomes else 'no'} ({notes.index(falls_short) + 1})")
            rows.append("| " + " | ".join(row) + " |")
        packages = [f"- {client.name}: {client.package}" for client in self.clients]
        reasons = [f"{number}. {note}" for number, note in enumerate(notes, 1)]
        return "\n".join([*packages, "", *rows, "", *reasons]).rstrip() + "\n"

    def section(self) -> str:
        """What the README has now."""
        return self.readme.read_text().partition(BEGIN)[2].partition(END)[0].strip() + "\n"

    def write(self) -> None:
        before, _, rest = self.readme.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        self.readme.write_text(f"{before}{BEGIN}\n\n{self.markdown()}\n{END}{after}")

    def check(self) -> None:
        """The last test of a full run: the README shows what was shown here."""
        if not self.complete():
            pytest.skip("not all clients could be had, or not all lines were run")
        if WRITE:
            self.write()
        assert self.markdown() == self.section(), "run `make interop`"


class Collector:
    """The pytest plugin that fills the matrix from the tests in ``folder``."""

    def __init__(self, matrix: Matrix, folder: Path) -> None:
        self.matrix, self.folder = matrix, folder
        self.deselected = False  # not every line was to be run

    def _is_ours(self, item: pytest.Item) -> bool:
        return self.folder in item.path.parents

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.deselected |= any(self._is_ours(item) for item in items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        line = item.get_closest_marker("line")
        if line is not None and self._is_ours(item) and (report.when == "call" or not report.passed):
            parameters = item.callspec.params  # type: ignore[attr-defined]
            outcome = PASSED if report.passed else _reason(report)
            self.matrix.record(line.args[0].format(**parameters), str(parameters["client"]), outcome)
        return report


COLLECTORS = pytest.StashKey[list[Collector]]()


def _reason(report: pytest.TestReport) -> str:
    if report.skipped:
        return str(report.longrepr[2]).removeprefix("Skipped: ")  # type: ignore[index]
    return "the test failed"


def collect(config: pytest.Config, matrix: Matrix, folder: Path) -> None:
    collector = Collector(matrix, folder)
    config.pluginmanager.register(collector, f"matrix of {folder.name}")
    config.stash.setdefault(COLLECTORS, []).append(collector)


def collector_of(config: pytest.Config, test: Path) -> Collector:
    """Of the folder that the file of tests lies in."""
    return next(collector for collector in config.stash[COLLECTORS] if collector.folder == test.parent)
