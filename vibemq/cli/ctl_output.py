# SPDX-License-Identifier: Apache-2.0
"""Rows on the terminal in the forms of RabbitMQ's tools: columns with tabs, boxes, JSON, CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

FORMATTERS = ("table", "pretty_table", "json", "csv")
Rows = Sequence[dict[str, Any]]


def lines(rows: Rows, columns: Sequence[str], formatter: str, headers: bool) -> Iterator[str]:
    """``columns`` in their order; ``headers``: with their names above."""
    if formatter == "json":
        yield from _json(rows, columns)
    elif formatter == "csv":
        yield from _csv(rows, columns, headers)
    elif formatter == "pretty_table":
        yield from _boxes(rows, columns)
    else:
        if headers:
            yield "\t".join(columns)
        for row in rows:
            yield "\t".join(_cell(row.get(column)) for column in columns)


def _json(rows: Rows, columns: Sequence[str]) -> Iterator[str]:
    yield "["
    for number, row in enumerate(rows):
        text = json.dumps({column: row.get(column) for column in columns}, separators=(",", ":"))
        yield f",{text}" if number else text
    yield "]"


def _csv(rows: Rows, columns: Sequence[str], headers: bool) -> Iterator[str]:
    for values in [list(columns)] * headers + [[_cell(row.get(column)) for column in columns] for row in rows]:
        page = io.StringIO()
        csv.writer(page, quoting=csv.QUOTE_ALL, lineterminator="").writerow(values)
        yield page.getvalue()


def _boxes(rows: Rows, columns: Sequence[str]) -> Iterator[str]:
    if not rows:  # as RabbitMQ's: no box around nothing
        return
    cells = [list(columns), *([_cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rules = ["─" * (width + 2) for width in widths]
    yield f"┌{'┬'.join(rules)}┐"
    for number, row in enumerate(cells):
        if number:
            yield f"├{'┼'.join(rules)}┤"
        yield "│" + "│".join(f" {cell:<{width}} " for cell, width in zip(row, widths, strict=True)) + "│"
    yield f"└{'┴'.join(rules)}┘"


def _terms(pairs: dict[str, Any]) -> str:
    """A map as RabbitMQ's tools print one, which others parse: [{"key","value"},...]; other values as JSON."""
    texts = (f"{{{json.dumps(key)},{json.dumps(value, separators=(',', ':'))}}}" for key, value in pairs.items())
    return f"[{','.join(texts)}]"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_cell, value))}]"
    if isinstance(value, dict):
        return _terms(value)
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in str(value))
