# SPDX-License-Identifier: Apache-2.0
"""The cost of damage to each kind of file and object, as docs/damage.md promises it and tests check it.

`python tests/server/damage_table.py` generates the tables of that document.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs/damage.md"

#: The cost of a case. `nothing`: no message is lost, and no start is refused.
NOTHING, CHUNK, BEHIND_CUT, SEGMENT, REFUSED, OFFSETS, AGAIN, COPIES = (
    "nothing",
    "chunk",
    "behind the cut",
    "segment",
    "refused",
    "offsets",
    "again",
    "copies",
)
WORDS = {
    NOTHING: "nothing",
    CHUNK: "the messages of its chunk",
    BEHIND_CUT: "the messages behind the cut in this file",
    SEGMENT: "the messages of this file",
    REFUSED: "the start is refused",
    OFFSETS: "the stored offsets in it",
    AGAIN: "nothing: settled messages are delivered again",
    COPIES: "copies that absent fan-out members were owed",
}


@dataclass(frozen=True)
class Kind:
    """One row: the pattern of its files in the data directory, and the highest cost of each kind of damage."""

    name: str
    pattern: str
    flip: str
    cut: str
    missing: str
    remedy: str
    which: int = 0  # index among the files that match the pattern
    killed: bool = False  # the data directory is left by kill -9, not by an orderly stop
    names: bool = False  # the log names a missing file whose messages are delivered again


FILES = (
    Kind(
        "`*.segment`, closed",
        "streams/{events}/*.segment",
        CHUNK,
        BEHIND_CUT,
        SEGMENT,
        "restore the file from a backup",
        which=2,
    ),
    Kind(
        "`*.segment`, written",
        "streams/{events}/*.segment",
        CHUNK,
        BEHIND_CUT,
        SEGMENT,
        "restore the file from a backup",
        which=-1,
    ),
    Kind(
        "`*.index`, closed",
        "streams/{events}/*.index",
        NOTHING,
        NOTHING,
        NOTHING,
        "none: it is rebuilt from the segment",
    ),
    Kind(
        "`*.index`, written",
        "streams/{events}/*.index",
        NOTHING,
        NOTHING,
        NOTHING,
        "none: it is rebuilt from the segment",
        which=-1,
    ),
    Kind(
        "`*.tracking`",
        "streams/{events}/*.tracking",
        NOTHING,
        NOTHING,
        NOTHING,
        "none: older snapshots and segments have the same content",
        which=-1,
    ),
    Kind(
        "`*.remote`",
        "streams/{events}/*.remote",
        NOTHING,
        NOTHING,
        NOTHING,
        "none: it is rebuilt from the names in the bucket",
    ),
    Kind("`*.cold`", "streams/{events}/*.cold", NOTHING, NOTHING, NOTHING, "none: it is downloaded again"),
    Kind("`control`", "streams/{events}/control", NOTHING, NOTHING, NOTHING, "none: it is rebuilt from the segments"),
    Kind(
        "`tracking`",
        "streams/{events}/tracking",
        NOTHING,
        NOTHING,
        NOTHING,
        "none: it is rebuilt from the snapshots and segments",
    ),
    Kind(
        "`offsets`",
        "streams/{events}/offsets",
        OFFSETS,
        OFFSETS,
        OFFSETS,
        "restore the file from a backup, or let the consumers store their offsets again",
    ),
    Kind("`ledger`", "streams/{orders}/ledger", AGAIN, AGAIN, AGAIN, "none"),
    Kind("`*.ledger`", "streams/{orders}/*.ledger", AGAIN, AGAIN, AGAIN, "none"),
    Kind("`*.ledger`, in the middle", "streams/{many}/*.ledger", AGAIN, AGAIN, AGAIN, "none", which=1, names=True),
    Kind("`*.settled`, empty", "streams/{many}/*.settled", NOTHING, NOTHING, AGAIN, "none", names=True),
    Kind(
        "`members`",
        "streams/{news}/members",
        AGAIN,
        COPIES,
        COPIES,
        "none: messages that no member has acknowledged stay",
    ),
    Kind(
        "`identity`",
        "identity",
        NOTHING,
        NOTHING,
        NOTHING,
        "none; with `[remote]` the start is refused: start with an empty data directory, which the bucket fills",
    ),
    Kind("`lease`", "lease", NOTHING, NOTHING, NOTHING, "none: all streams are recovered as after a power cut"),
    Kind("`meta.db`", "meta.db", REFUSED, REFUSED, REFUSED, "restore it from a backup, or from the bucket"),
    Kind(
        "`meta.check`",
        "meta.check",
        REFUSED,
        REFUSED,
        NOTHING,
        "remove it to accept `meta.db` as it is, or restore a backup",
    ),
    Kind(
        "`meta.db-wal`",
        "meta.db-wal",
        REFUSED,
        REFUSED,
        REFUSED,
        "restore it from a backup, or accept the loss as the message describes",
        killed=True,
    ),
)


def file_table() -> list[str]:
    lines = ["| file | a flipped bit costs at most | a cut file | a missing file | remedy |", "|---|---|---|---|---|"]
    for kind in FILES:
        costs = " | ".join(WORDS[cost] for cost in (kind.flip, kind.cut, kind.missing))
        after = " (after kill -9)" if kind.killed else ""
        lines.append(f"| {kind.name}{after} | {costs} | {kind.remedy} |")
    return lines


#: For each kind of object: its name in the test, its pattern, the cost of a flipped bit or a cut, the cost of a missing
#: object, the remedy.
OBJECTS = (
    (
        "FORMAT",
        "`format`",
        "the start is refused",
        "the start is refused, unless the bucket is empty",
        "restore it from an object version or a copy of the bucket",
    ),
    (
        "CHANGE",
        "`meta/N`",
        "the start is refused if it is needed",
        "the same",
        "restore it from an object version or a copy of the bucket",
    ),
    (
        "SNAPSHOT",
        "`meta/snapshot-N`",
        "an older snapshot and the changes behind it are used, else the restore is refused",
        "the same",
        "restore it, or start the broker that has its data directory",
    ),
    (
        "EPOCH",
        "`brokers/NAME/EPOCH`",
        "the start is refused",
        "the number is not reused",
        "restore it from an object version or a copy of the bucket",
    ),
    (
        "RETIRED",
        "`retired/...`",
        "nothing: objects that retention was deleting may remain",
        "nothing: the same",
        "`vibemq remote prune`",
    ),
    (
        "WRITE_AHEAD",
        "`wal/...`",
        "after a lost machine: its messages, and later messages of the same streams",
        "the same",
        "restore it before the broker is restored; `harmed-objects` names it",
    ),
    (
        "SEGMENT",
        "`*.segment`",
        "the messages of the damaged chunks; if encrypted, of the damaged pieces",
        "its messages, or the log begins behind it",
        "restore it from an object version or a copy of the bucket",
    ),
    (
        "INDEX",
        "`*.index`",
        "nothing: it is rebuilt from the segment",
        "nothing: it is rebuilt from the segment",
        "none",
    ),
    (
        "TRACKING",
        "`*.tracking`",
        "publishing ids of publishers that wrote only before it",
        "the same",
        "restore it from an object version or a copy of the bucket",
    ),
)


def object_table() -> list[str]:
    lines = ["| object | a flipped bit or a cut costs at most | a missing object | remedy |", "|---|---|---|---|"]
    return lines + [f"| {name} | {harmed} | {missing} | {remedy} |" for _, name, harmed, missing, remedy in OBJECTS]


def document(before: str) -> str:
    """Return the document with its tables replaced by those of this module."""
    for title, lines in (("## Files", file_table()), ("## Objects in a bucket", object_table())):
        head, _, rest = before.partition(f"{title}\n")
        text, _, behind = rest.partition("\n## ")
        prose = text.partition("\n| ")[0].strip("\n")
        before = f"{head}{title}\n\n{prose}\n\n" + "\n".join(lines) + "\n" + (f"\n## {behind}" if behind else "")
    return before


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text()))
