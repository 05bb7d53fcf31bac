# SPDX-License-Identifier: Apache-2.0
"""Regular expressions of users: what they match, which are refused, and that none can stop a worker."""

import pytest

from vibemq.errors import UserError
from vibemq.storage import patterns
from vibemq.storage.patterns import Pattern, pattern


@pytest.mark.parametrize(
    ("text", "matching", "other"),
    [
        (".*", ["", "orders", "a\nb", "\udcff"], []),
        ("", [""], ["orders"]),
        ("^$", [""], ["orders"]),
        ("orders", ["orders", "my-orders-eu"], ["Orders", "order", "\udcff"]),
        ("^orders-(eu|us)$", ["orders-eu", "orders-us"], ["orders-eu-1", "x-orders-eu"]),
        (r"^app\.", ["app.x"], ["appx"]),
        ("^[äö]$", ["ä", "ö"], ["a"]),
        ("^.$", ["ü", "日"], ["ab"]),
    ],
)
def test_a_pattern_is_found_anywhere_in_the_name(text, matching, other):
    assert [name for name in matching if not Pattern(text).matches(name)] == []
    assert [name for name in other if Pattern(text).matches(name)] == []


@pytest.mark.parametrize(
    "text", ["[", "(", "*", "(?!amq)", r"(a)\1", "(x{1000}){1000}", r"\pL{50}", "\udcff", "a" * 1025]
)
def test_what_cannot_be_matched_in_bounded_time_is_refused_with_a_reason(text):
    with pytest.raises(UserError, match=r"pattern|regular expression"):
        pattern(text)


def test_a_pattern_that_would_take_for_ever_by_backtracking_does_not():
    assert not pattern("^(a+)+$").matches("a" * 254 + "b")


def test_a_name_longer_than_any_is_matched_by_nothing_but_everything():
    """Peers may ask for names of 32 KiB; `x.{900}y` took a worker over a tenth of a second on each."""
    assert [pattern(text).matches("a" * 256) for text in (".*", "^.*$", "a", ".", "")] == [True, True] + [False] * 3
    assert pattern("^a{255}$").matches("a" * 255)


def test_equal_patterns_are_compiled_once_and_those_kept_are_bounded():
    assert pattern("^shared$") is pattern("^shared$")
    for number in range(patterns._PATTERNS_REMEMBERED_MAX + 10):
        pattern(f"^{number}$")
    assert pattern.cache_info().currsize == patterns._PATTERNS_REMEMBERED_MAX
