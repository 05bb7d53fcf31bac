# SPDX-License-Identifier: Apache-2.0
"""What a client asks of a list besides its rows: which columns, which page, in which order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vibemq.admin.api.calls import bad_request

PAGE_ROWS_DEFAULT = 100
PAGE_ROWS_MAX = 500


class Columns:
    """The parameters ``columns``, ``sort``, ``sort_reverse``, ``page``, ``page_size``, ``name`` and ``use_regex``."""

    def __init__(self, query: Mapping[str, str]) -> None:
        self._query = query
        self._columns = [column for column in query.get("columns", "").split(",") if column]

    def of(self, body: Any) -> Any:
        """Raises Refused."""
        if isinstance(body, dict):
            return self._cut(body)
        if not isinstance(body, list) or not all(isinstance(row, dict) for row in body):
            return body
        rows = body
        if sort := self._query.get("sort"):
            rows = sorted(rows, key=lambda row: _key(_at(row, sort)), reverse=self._query.get("sort_reverse") == "true")
        if "page" in self._query:
            return self._page(rows)
        return [self._cut(row) for row in rows]

    def _cut(self, row: dict[str, Any]) -> dict[str, Any]:
        if not self._columns:
            return row
        cut: dict[str, Any] = {}
        for column in self._columns:
            inside, *outside = reversed(column.split("."))
            if (value := _at(row, column)) is not None:
                target = cut
                for part in reversed(outside):
                    target = target.setdefault(part, {})
                target[inside] = value
        return cut

    def _page(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        number, size = self._number("page", 1), self._number("page_size", PAGE_ROWS_DEFAULT)
        if size > PAGE_ROWS_MAX:
            raise bad_request(f"page_size is {size}: at most {PAGE_ROWS_MAX}")
        found = [row for row in rows if self._named(str(row.get("name", "")))]
        pages = max(1, -(-len(found) // size))
        if number > pages:
            raise bad_request(f"page_out_of_range: page is {number}, but there are {pages}")
        items = [self._cut(row) for row in found[(number - 1) * size : number * size]]
        return {
            "filtered_count": len(found),
            "item_count": len(items),
            "items": items,
            "page": number,
            "page_count": pages,
            "page_size": size,
            "total_count": len(rows),
        }

    def _number(self, name: str, otherwise: int) -> int:
        text = self._query.get(name, str(otherwise))
        if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
            raise bad_request(f"{name} is {text!r}: a whole number from 1 on is needed")
        return int(text)

    def _named(self, name: str) -> bool:
        wanted = self._query.get("name", "")
        if self._query.get("use_regex") == "true":
            from vibemq.storage.patterns import pattern  # safe with what a caller may write

            return pattern(wanted).matches(name)
        return wanted.lower() in name.lower()


def _at(row: Any, column: str) -> Any:
    for part in column.split("."):
        row = row.get(part) if isinstance(row, dict) else None
    return row


def _key(value: Any) -> tuple[str, Any]:
    """Values of one kind are compared with each other, others by kind."""
    return ("number", value) if isinstance(value, int | float) else ("text", str(value))
