# SPDX-License-Identifier: Apache-2.0
"""What a client asks of a list besides its rows: which columns, which page, in which order.

The parameters are ``columns``, ``sort``, ``sort_reverse``, ``page``, ``page_size``, ``name`` and ``use_regex``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vibemq.admin.api.calls import bad_request

PAGE_ROWS_DEFAULT = 100
PAGE_ROWS_MAX = 500


def shown(body: Any, query: Mapping[str, str]) -> Any:
    """Raises Refused."""
    columns = [column for column in query.get("columns", "").split(",") if column]
    if isinstance(body, dict):
        return _cut(body, columns)
    if not isinstance(body, list) or not all(isinstance(row, dict) for row in body):
        return body
    rows = body
    if sort := query.get("sort"):
        rows = sorted(rows, key=lambda row: _key(at(row, sort)), reverse=query.get("sort_reverse") == "true")
    return _page(rows, columns, query) if "page" in query else [_cut(row, columns) for row in rows]


def _cut(row: dict[str, Any], columns: list[str]) -> dict[str, Any]:
    if not columns:
        return row
    cut: dict[str, Any] = {}
    for column in columns:
        *outside, inside = column.split(".")
        if (value := at(row, column)) is not None:
            target = cut
            for part in outside:
                target = target.setdefault(part, {})
            target[inside] = value
    return cut


def _page(rows: list[dict[str, Any]], columns: list[str], query: Mapping[str, str]) -> dict[str, Any]:
    number, size = _number(query, "page", 1), _number(query, "page_size", PAGE_ROWS_DEFAULT)
    if size > PAGE_ROWS_MAX:
        raise bad_request(f"page_size is {size}: at most {PAGE_ROWS_MAX}")
    found = [row for row in rows if _is_named(str(row.get("name", "")), query)]
    pages = max(1, -(-len(found) // size))
    if number > pages:
        raise bad_request(f"page_out_of_range: page is {number}, but there are {pages}")
    items = [_cut(row, columns) for row in found[(number - 1) * size : number * size]]
    return {
        "filtered_count": len(found),
        "item_count": len(items),
        "items": items,
        "page": number,
        "page_count": pages,
        "page_size": size,
        "total_count": len(rows),
    }


def _number(query: Mapping[str, str], name: str, otherwise: int) -> int:
    text = query.get(name, str(otherwise))
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise bad_request(f"{name} is {text!r}: a whole number from 1 on is needed")
    return int(text)


def _is_named(name: str, query: Mapping[str, str]) -> bool:
    wanted = query.get("name", "")
    if query.get("use_regex") == "true":
        from vibemq.storage.patterns import pattern  # safe with what a caller may write

        return pattern(wanted).matches(name)
    return wanted.lower() in name.lower()


def at(row: Any, column: str) -> Any:
    for part in column.split("."):
        row = row.get(part) if isinstance(row, dict) else None
    return row


def _key(value: Any) -> tuple[str, Any]:
    """Values of one kind are compared with each other, others by kind."""
    return ("number", value) if isinstance(value, int | float) else ("text", str(value))
