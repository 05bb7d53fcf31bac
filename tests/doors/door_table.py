# SPDX-License-Identifier: Apache-2.0
"""The tables of values as a document: `python tests/doors/door_table.py` writes docs/conversions.md.

test_doors.py sends every row through every pair of ways, and compares the document with the tables.  So a conversion
that changes by mistake fails a test, and an intended change shows in the document.
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

A message of each kind as each protocol sends it, and as each protocol delivers it. `python tests/doors/door_table.py`
generates this document from the tables that `tests/doors` checks. The tests send each row through each pair of
protocols, and fail if a value differs from this document.

- A cell has the part of the message that its table is about: the body with its content type in parentheses, the id,
  the key or the headers.
- **same**: a reader gets the value that a publisher of its own protocol sends. Other cells show a conversion's result.
- **sent by** lists the protocols that can carry the value. The result does not depend on the publisher's protocol.
- Values are in Python's notation; `0x` marks bytes. A MessagePack body is shown as its bytes.
- Spark reads bodies as bytes (`value`), and ids, content types, keys and headers as texts. A Spark query writes the
  same messages as a streams client where its columns can carry them.
- The management API shows messages as `GET /api/stream/VHOST/NAME/messages` does: at most 16 KiB of a body, as
  text or base64, and no content type and key.

The rules of conversion are in [ARCHITECTURE.md](../ARCHITECTURE.md#what-maps-to-what).
"""


def shown(value: Any) -> str:
    if value is OFFSET:
        return "its offset"
    if value is NOTHING:
        return "nothing"
    if isinstance(value, Stored):
        return f"stored unchanged: `0x{value.hex()}`"
    if isinstance(value, Unread):
        return f"`{value.decode()}`, in the Python client only as `raw`"
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
    """Return the part in which the message differs from a plain one."""
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
        lines += [
            f"## {title}",
            "",
            f"| | sent by | {' | '.join(COLUMNS.values())} |",
            "|---" * (len(COLUMNS) + 2) + "|",
        ]
        lines += [row_of(name, row) for name, row in rows.items()]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")
