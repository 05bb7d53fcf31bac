# SPDX-License-Identifier: Apache-2.0
"""Patterns for the names of queues: in permissions, and where a list is asked for.

``*`` stands for any run of characters, dots and the empty run included; everything else stands for itself, without
regard to case unless its maker says otherwise; the whole name must match.  The literal parts are searched one after
another, never by a regular expression: no pattern makes that slow.
"""

from collections.abc import Callable


class Glob:
    """One pattern, ready to be compared with names that went through ``fold``."""

    __slots__ = ("_first", "_last", "_least", "_middle", "_only")

    def __init__(self, pattern: str, literal: Callable[[str], str] | None = None) -> None:
        """``literal``: what a part of the pattern between stars stands for, in place of ``fold``."""
        self._first, *rest = map(literal or fold, pattern.split("*"))
        self._only = not rest  # no star: the name must be equal
        self._last = rest.pop() if rest else ""
        self._middle = [part for part in rest if part]
        # A shorter name would let the parts overlap: "a*a" is not "a".
        self._least = len(self._first) + len(self._last) + sum(map(len, self._middle))

    def matches(self, folded: str) -> bool:
        if self._only:
            return folded == self._first
        if len(folded) < self._least or not folded.startswith(self._first) or not folded.endswith(self._last):
            return False
        # The earliest place for each part leaves the most room for the next ones, so none is tried twice.
        at, end = len(self._first), len(folded) - len(self._last)
        for part in self._middle:
            at = folded.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True


def fold(text: str) -> str:
    """Without case, character by character: what surrounds a letter must not matter, nor its length change."""
    if text.isascii():
        return text.lower()
    return "".join(low if len(low := character.lower()) == 1 else character for character in text)
