# SPDX-License-Identifier: Apache-2.0
"""What goes in by any door comes out of every door, and of Spark: the same body, id and headers.

Each pair of doors exchanges every row of the tables that the publisher can say, by clients that people use.
"""

from __future__ import annotations

import pytest
from door_exchange import PAIRS, READERS, Exchange, comparable, expected, sent
from door_headers import HEADERS
from door_limits import LIMITS
from door_table import PATH, document
from door_values import BODIES, EMPTY, IDS, VALUES, Row

pytestmark = pytest.mark.timeout(180)  # the first pair with Spark starts a Java runtime


def check(exchange: Exchange, publisher: str, consumer: str, rows: dict[str, Row]) -> None:
    said = {name: row for name, row in rows.items() if sent(row, publisher) is not None}
    if not said:
        pytest.skip(f"{publisher} can say none of these")
    found = exchange(publisher, consumer, [sent(row, publisher) for row in said.values()])
    wrong = []
    for offset, (name, row) in enumerate(said.items()):
        got, needed = comparable(found[offset], offset), expected(row, consumer, offset)
        if got != needed:
            wrong.append(f"{name}:\n  got    {got!r:.1000}\n  needed {needed!r:.1000}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("publisher", "consumer"), PAIRS)
def test_a_body_is_what_it_was(exchange: Exchange, publisher: str, consumer: str) -> None:
    check(exchange, publisher, consumer, BODIES | EMPTY | LIMITS)


@pytest.mark.parametrize("consumer", READERS)
def test_a_body_that_is_a_value_is_what_is_in_it(exchange: Exchange, consumer: str) -> None:
    check(exchange, "streams", consumer, VALUES)


@pytest.mark.parametrize(("publisher", "consumer"), PAIRS)
def test_ids_and_keys_are_what_they_were(exchange: Exchange, publisher: str, consumer: str) -> None:
    check(exchange, publisher, consumer, IDS)


@pytest.mark.parametrize(("publisher", "consumer"), PAIRS)
def test_headers_are_what_they_were(exchange: Exchange, publisher: str, consumer: str) -> None:
    check(exchange, publisher, consumer, HEADERS)


def test_the_document_has_the_tables_that_these_tests_check() -> None:
    assert PATH.read_text(encoding="utf-8") == document(), "python tests/doors/door_table.py writes it again"
