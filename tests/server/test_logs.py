# SPDX-License-Identifier: Apache-2.0
"""What peers say comes into the log as text on one line, and no more of it than a line holds."""

import logging

import pytest

from vibemq.server.logs import LINE_CHARACTERS_MAX, OneLine


def line(text: str) -> str:
    record = logging.LogRecord("vibemq", logging.INFO, __file__, 1, "user %s", (text,), None)
    record.created = record.msecs = 0  # lines are compared
    return OneLine().format(record)


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("a\r\nERROR forged", "a\\r\\nERROR forged"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("\x9b2J\x85", "\\x9b2J\\x85"),
        ("a\u2028b", "a\\u2028b"),
        ("żółw", "żółw"),
    ],
)
def test_what_a_terminal_or_a_collector_would_obey_is_written_as_text(said: str, written: str) -> None:
    assert line(said).endswith(f"vibemq: user {written}")


def test_a_line_is_cut_where_it_gets_too_long() -> None:
    whole = line("")
    fits = "x" * (LINE_CHARACTERS_MAX - len(whole))
    assert line(fits) == whole + fits
    assert line(fits + "yy") == whole + fits + "... and 2 characters more"
