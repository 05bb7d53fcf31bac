# SPDX-License-Identifier: Apache-2.0
"""The numbers of the table "Fixed limits" of ARCHITECTURE.md are those of the code."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: File -> its constants, in the order in which the table's size names their numbers; several are multiplied.
CONSTANTS = {
    "csrc/log/tracking.h": ["TRACKING_REFERENCES_MAX"],
    "csrc/log/offsets.h": ["OFFSETS_REFERENCES_MAX"],
    "csrc/shm/groups.h": ["GROUPS_ROWS"],
    "csrc/log/control.h": ["CONTROL_FAILED_MAX"],
    "csrc/ledger/ledger.h": ["LEDGER_BLOCKS_MAX", "LEDGER_BLOCK_ENTRIES"],
    "csrc/ledger/words.h": ["LEDGER_ATTEMPTS_MAX"],
    "broker/ingest.pyx": ["RANGES_MAX"],
    "server/inquiry.py": ["JOBS_MAX"],
    "admin/api/service.py": ["UNPACKED_BODIES"],
    "broker/departed.pyx": ["AWAY_MAX"],
    "broker/rotation.pyx": ["ASIDE_MAX"],
    "broker/transactions.py": ["APPLICATIONS_MAX"],
    "broker/staged.py": ["OPEN_MAX"],
    "storage/limits.py": ["LIMITED_MAX"],
    "storage/members.pyx": ["MEMBERS_MAX"],
    "protocols/streams/session.pyx": ["TRACKED_MAX"],
    "admin/page/logins.py": ["ENDED_MAX"],
    "admin/failures.py": ["ADDRESSES_MAX"],
    "storage/shm.pyx": ["CELLS_FEW_WORKERS"],
    "access/users.py": ["_REMEMBERED_MAX"],
    "access/permissions.py": ["_SNAPSHOTS_MAX"],
}
#: Of two rows with one file, by the row's first words; and of a constant that its declaration file has.
ELSEWHERE = {
    "streams and queues": ("csrc/shm/doorbell.h", ["DOORBELL_SLOTS_MAX"]),
    "questions for a publisher's sequence without an answer": ("protocols/streams/session.pyx", ["QUESTIONS_MAX"]),
    "workers": ("csrc/shm/doorbell.h", ["DOORBELL_WORKERS_MAX"]),
    "marks of settled blocks of a ledger, behind a message that stays unsettled": (
        "csrc/ledger/ledger.h",
        ["LEDGER_BLOCKS_MAX"],
    ),
    "dead letters in transfer": ("broker/backlog.pxd", ["DEAD_MAX"]),
}


def rows() -> list[tuple[str, str, str]]:
    """Each row's first cell, its first file, and its size."""
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## Fixed limits")[2].partition("\n## ")[0]
    found = []
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("| table"):
            what, size, *_ = line.strip("| ").split(" | ")
            match = re.search(r"`([^`]+)`", what)
            assert match, line
            found.append((what, match[1], size))
    return found


def constant(file: str, name: str) -> int:
    path = ROOT / file if file.startswith("csrc/") else ROOT / "vibemq" / file
    match = re.search(rf"^\s*(?:#define )?{name}\s*=?\s*([\d_]+)u?\b", path.read_text(), re.MULTILINE)
    assert match, (file, name)
    return int(match[1].replace("_", ""))


@pytest.mark.parametrize(("what", "file", "size"), rows(), ids=[file for _, file, _ in rows()])
def test_the_table_of_fixed_limits_has_the_numbers_of_the_code(what, file, size):
    named = next((known for key, known in ELSEWHERE.items() if what.startswith(f"{key} (")), None)
    file, names = named or (file, CONSTANTS[file])
    number = 1
    for name in names:
        number *= constant(file, name)
    said = re.match(r"2\^(\d+)|([\d,]+)", size)
    assert said, size
    assert number == (2 ** int(said[1]) if said[1] else int(said[2].replace(",", ""))), (what, names)
