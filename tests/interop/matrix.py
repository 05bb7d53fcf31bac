# SPDX-License-Identifier: Apache-2.0
"""The matrix of the door's README: a line for each test of a capability, a column for each client.

A run of the tests collects the outcomes (conftest.py); `make interop` writes them between two markers of the README,
and a full run compares.  What falls short has a note with the reason: why the test was skipped, or its failure.
"""

from __future__ import annotations

from pathlib import Path

from programs import CLIENTS

import vibemq.protocols.streams as door

README = Path(door.__file__).parent / "README.md"
BEGIN = "<!-- begin: written by `make interop` -->"
END = "<!-- end: written by `make interop` -->"
PASSED = "yes"


class Matrix:
    """Outcomes by line and client: PASSED, or why not."""

    def __init__(self) -> None:
        self.lines: dict[str, dict[str, str]] = {}

    def record(self, line: str, client: str, outcome: str) -> None:
        """A line of several tests shows the first that falls short."""
        cells = self.lines.setdefault(line, {})
        if cells.get(client, PASSED) == PASSED:
            cells[client] = outcome

    def complete(self) -> bool:
        """Has every client run, so that the README can be judged by it?"""
        ran = {client for cells in self.lines.values() for client, outcome in cells.items() if outcome == PASSED}
        return ran == {client.name for client in CLIENTS}

    def markdown(self) -> str:
        notes: list[str] = []
        rows = ["| | " + " | ".join(client.name for client in CLIENTS) + " |", "|---" * (len(CLIENTS) + 1) + "|"]
        for line, cells in self.lines.items():
            row = [line]
            for client in CLIENTS:
                outcome = cells.get(client.name, "not run")
                if outcome != PASSED:
                    if outcome not in notes:
                        notes.append(outcome)
                    outcome = f"no ({notes.index(outcome) + 1})"
                row.append(outcome)
            rows.append("| " + " | ".join(row) + " |")
        packages = [f"- {client.name}: {client.package}" for client in CLIENTS]
        reasons = [f"{number}. {note}" for number, note in enumerate(notes, 1)]
        return "\n".join([*packages, "", *rows, "", *reasons]).rstrip() + "\n"


def section() -> str:
    """What the README has now."""
    return README.read_text().partition(BEGIN)[2].partition(END)[0].strip() + "\n"


def write(text: str) -> None:
    before, _, rest = README.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    README.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")
