# SPDX-License-Identifier: Apache-2.0
"""The tables of values as a document: `python tests/doors/door_table.py` writes docs/conversions.md.

test_doors.py sends every row through every pair of ways, and compares the document with the tables.  So a conversion
that changes fails a test, and one that is meant to change shows in the document.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from door_clients import HTTP, MESSAGEPACK, NOTHING, SPARK, Message, Packed, Stored, Unread
from door_exchange import WAYS
from door_headers import HEADERS
from door_limits import LIMITS
from door_values import BODIES, EMPTY, IDS, OFFSET, PLAIN, VALUES, Row, got, sent_in_messagepack

PATH = Path(__file__).parents[2] / "docs" / "conversions.md"
SHOWN_MAX = 48  # characters of a value; more are counted
COLUMNS = {
    "native": "native",
    "streams": "streams",
    "signalr": "SignalR JSON",
    MESSAGEPACK: "SignalR MessagePack",
    "micromsg2": "MicroMsg2",
    SPARK: "Spark",
    HTTP: "management API",
}
TABLES: Mapping[str, Mapping[str, Row]] = {
    "Bodies": BODIES | VALUES | EMPTY,
    "Bodies at the limits of their types": LIMITS,
    "Ids and keys": IDS,
    "Headers": HEADERS,
}
HEAD = """\
# Conversions

What goes in by each protocol, and what comes out by each. `python tests/doors/door_table.py` writes this document from
the tables that `tests/doors` checks: the tests send each row through each pair of protocols, and fail where a value
differs from this document.

- A cell has the part that the row is about: the body with its content type in parentheses, the id, key or headers.
- **same**: a reader gets what a publisher of its own protocol says. Other cells show a conversion's result.
- **in by** names the protocols that can say the value. What comes out does not depend on which of these it came by.
- Values are written as Python has them. `0x` are bytes. A MessagePack body is shown as its bytes.
- Spark reads bodies as bytes (`value`), and ids, content types, keys and headers as texts. A Spark query writes what a
  streams client writes where a row of columns can say it.
- The management API shows messages as `GET /api/stream/VHOST/NAME/messages` does: at most 16 KiB of a body, as
  text or base64, and no content type and key.

The rules behind the table stand in [ARCHITECTURE.md](../ARCHITECTURE.md#what-maps-to-what).
"""


def shown(value: Any) -> str:
    if value is OFFSET:
        return "its offset"
    if value is NOTHING:
        return "nothing"
    if isinstance(value, Stored):
        return f"stored as it is: `0x{value.hex()}`"
    if isinstance(value, Unread):
        return f"`{value.decode()}`, of which the Python client has only `raw`"
    if isinstance(value, dict) and set(value) == {"TYPE", "VALUE"}:
        return f"{value['TYPE']} {shown(value['VALUE'])}"
    text = f"0x{value.hex()}" if isinstance(value, Packed) or is_binary(value) else repr(value)
    if len(text) > SHOWN_MAX:
        text = f"{text[:SHOWN_MAX]}..."
        size = len(value) if isinstance(value, str | bytes) else None
        return f"{code(text)}" + (f" ({size:,})" if size else "")
    return code(text)


def is_binary(value: Any) -> bool:
    return isinstance(value, bytes) and not (value.isascii() and value.decode().isprintable())


def code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return fence + text.replace("|", "\\|") + fence


def part(message: Message, plain: Message) -> str:
    """What a row is about: that which is not as in a plain message."""
    if message.body != plain.body or type(message.body) is not type(plain.body):
        words = shown(message.body)
        words += f" ({message.content_type})" if message.content_type is not None else ""
        if message.id != plain.id:
            words += f", id {shown(message.id)}"
        return words + "".join(f", header `{name}: {value}`" for name, value in message.headers.items())
    if message.id != plain.id:
        return "none" if message.id is None else shown(message.id)
    if message.key is not None:
        return shown(message.key)
    return ", ".join(shown(value) for value in message.headers.values()) or "none"


def row_of(name: str, row: Row) -> str:
    sent = {door: row.sent.get(door) for door in COLUMNS} | {MESSAGEPACK: sent_in_messagepack(row)}
    ways = [COLUMNS[door] for door, message in sent.items() if message is not None]
    by = "all" if len(ways) == len(WAYS) else ", ".join(ways)
    cells = []
    for door in COLUMNS:
        message = got(row, door)
        is_same = sent[door] is not None and repr(sent[door]) == repr(message)
        cells.append("same" if is_same else part(message, got(Row({}, PLAIN), door)))
    return f"| {name} | {by} | " + " | ".join(cells) + " |"


def document() -> str:
    lines = [HEAD]
    for title, rows in TABLES.items():
        lines += [f"## {title}", "", f"| | in by | {' | '.join(COLUMNS.values())} |", "|---" * (len(COLUMNS) + 2) + "|"]
        lines += [row_of(name, row) for name, row in rows.items()]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")
