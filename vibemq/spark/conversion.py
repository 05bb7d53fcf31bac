# SPDX-License-Identifier: Apache-2.0
"""One JSON value to one of a schema by the rules of Spark's `from_json`: slow, and right about what does not fit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa

EXCERPT_CHARACTERS = 200

#: Gives the value, or None; appends what does not fit to the list.
Convert = Callable[[Any, list[str]], Any]


class _Real(float):
    """A number with a fraction or an exponent, and how it was written."""

    text: str


def _real(written: str) -> _Real:
    number = _Real(written)
    number.text = written
    return number


class _Object(list[tuple[str, Any]]):
    """The pairs of an object: a key may be there twice, and then the last that fits counts."""


DECODER = json.JSONDecoder(object_pairs_hook=_Object, parse_float=_real)
_NUMBERS = {
    "NaN": float("nan"),
    **dict.fromkeys(("Infinity", "+Infinity", "INF", "+INF"), float("inf")),
    **dict.fromkeys(("-Infinity", "-INF"), float("-inf")),
}


def _unfit(needed: str, bad: list[str], value: Any) -> Any:
    bad.append(f"needed {needed}, had {_written(value)[:EXCERPT_CHARACTERS]}")
    return None


def _written(value: Any) -> str:
    """As JSON without white space."""
    if isinstance(value, _Object):
        return "{" + ",".join(f"{json.dumps(key, ensure_ascii=False)}:{_written(each)}" for key, each in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return value.text if isinstance(value, _Real) else json.dumps(value, ensure_ascii=False)


def converter(kind: pa.DataType) -> Convert:
    if pa.types.is_struct(kind):
        return _struct(kind)
    if pa.types.is_list(kind):
        return _list(kind)
    simple = {pa.string(): _string, pa.bool_(): _boolean, pa.float64(): _double}
    return simple.get(kind) or _integer(kind.bit_width)


def _struct(kind: pa.StructType) -> Convert:
    fields = {field.name: converter(field.type) for field in kind}

    def convert(value: Any, bad: list[str]) -> dict[str, Any] | None:
        if not isinstance(value, _Object):
            return _unfit("an object", bad, value)
        row: dict[str, Any] = {}
        for key, each in value:
            if (field := fields.get(key)) is None:
                continue
            wrong: list[str] = []
            found = None if each is None else field(each, wrong)
            if not wrong or found is not None or key not in row:
                row[key] = found
            bad += wrong
        return row

    return convert


def _list(kind: pa.ListType) -> Convert:
    element = converter(kind.value_type)

    def convert(value: Any, bad: list[str]) -> list[Any] | None:
        if isinstance(value, _Object) or not isinstance(value, list):
            return _unfit("a list", bad, value)
        wrong: list[str] = []
        found = [None if each is None else element(each, wrong) for each in value]
        bad += wrong
        return None if wrong else found

    return convert


def _string(value: Any, bad: list[str]) -> str:
    found = value if isinstance(value, str) else _written(value)
    return found.encode(errors="replace").decode()  # half a surrogate pair is no character


def _boolean(value: Any, bad: list[str]) -> bool | None:
    return value if isinstance(value, bool) else _unfit("true or false", bad, value)


def _double(value: Any, bad: list[str]) -> float | None:
    if isinstance(value, str) and value in _NUMBERS:
        return _NUMBERS[value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:  # a whole number beyond every double
            return math.inf if value > 0 else -math.inf
    return _unfit("a number", bad, value)


def _integer(bits: int) -> Convert:
    most = 1 << (bits - 1)

    def convert(value: Any, bad: list[str]) -> int | None:
        if isinstance(value, int) and not isinstance(value, bool) and -most <= value < most:
            return value
        return _unfit(f"a whole number of {bits} bits", bad, value)

    return convert
