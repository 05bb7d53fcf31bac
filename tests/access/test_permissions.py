# SPDX-License-Identifier: Apache-2.0
"""Patterns, what they allow, and how a process notices that somebody's rights changed."""

import random
import re

import pytest

from vibemq.access import permissions
from vibemq.access.glob import Glob, fold
from vibemq.access.permissions import Access, Accesses, Operation, check_pattern, operation_named
from vibemq.errors import UserError
from vibemq.storage.metadata import Metadata
from vibemq.storage.records import Permission

ALL = tuple(Operation)


@pytest.fixture
def metadata(tmp_path):
    found = Metadata(str(tmp_path / "meta.db"))
    found.add_user("root", "hash")
    found.add_user("bob", "hash")
    yield found
    found.close()


def matches(pattern, queue):
    return Glob(pattern).matches(fold(queue))


# ---- patterns ----


@pytest.mark.parametrize(
    ("pattern", "queue", "match"),
    [
        ("orders.*", "orders.new", True),
        ("orders.*", "orders.a.b", True),
        ("orders.*", "orders.", True),
        ("orders.*", "orders", False),
        ("*", "anything.at-all", True),
        ("*.events", "payments.events", True),
        ("Invoices", "invoices", True),
        ("invoices", "invoices2", False),
        ("a*c*e", "a.b.c.d.e", True),
        ("a*c*e", "ace", True),
        ("a.b", "axb", False),
        ("a*", "A.b", True),
        ("q?", "q1", False),
    ],
)
def test_the_protocols_published_cases(pattern, queue, match):
    assert matches(pattern, queue) is match


@pytest.mark.parametrize(
    ("pattern", "queue", "match"),
    [
        ("a*a", "a", False),  # the ends must not share a letter
        ("ab*ba", "aba", False),
        ("a*b*b", "ab", False),
        ("a*b*b", "abb", True),
        ("*b*", "b", True),
        ("**", "", True),
        ("a**b", "ab", True),
        ("*ab", "aab", True),
        ("*ab*ab", "abab", True),
        ("*ab*ab", "ab", False),
        ("q+", "qq", False),
        ("q+", "q+", True),
        ("[a-z]", "b", False),
        ("^q$", "q", False),
        ("q\\*", "q\\anything", True),
        ("ЗАКАЗЫ.*", "заказы.новые", True),
        ("οδος*", "ΟΔΟΣ", False),  # letter by letter: the last sigma is another letter
        ("ΟΔΟΣ*", "οδοσα", True),
        ("strasse", "straße", False),
        ("admin", "adm\u0131n", False),  # dotless i
        ("\u0130*", "i\u0307x", False),  # lower case of one letter that is two
    ],
)
def test_a_star_is_any_run_and_the_rest_is_itself_in_any_case(pattern, queue, match):
    assert matches(pattern, queue) is match


def test_patterns_agree_with_a_regular_expression_on_short_random_words():
    seed = random.randrange(2**32)
    print("seed", seed)
    source = random.Random(seed)
    for _ in range(20_000):
        pattern = "".join(source.choices("ab.*", k=source.randint(1, 7)))
        queue = "".join(source.choices("ab.A", k=source.randint(0, 8)))
        expression = ".*".join(re.escape(part) for part in pattern.split("*"))
        wanted = re.fullmatch(expression, queue, re.IGNORECASE | re.DOTALL) is not None
        assert matches(pattern, queue) is wanted, (pattern, queue)


def test_the_pattern_that_ruins_regular_expressions_is_answered():
    assert not matches("a*" * 127 + "b", "a" * 256)
    assert matches("a*" * 127 + "b", "a" * 255 + "b")


@pytest.mark.parametrize("pattern", ["", "x" * 257, "a\nb", "\ud800"])
def test_patterns_that_cannot_be(pattern):
    with pytest.raises(UserError, match="pattern"):
        check_pattern(pattern)


def test_the_longest_pattern_can_be():
    check_pattern("x" * 256)


# ---- operations ----


def test_operations_have_the_protocols_numbers_and_names_in_any_case():
    names = ["Publish", "Subscribe", "CreateQueue", "DeleteQueue", "PurgeQueue", "GetQueueInfo", "ListQueues"]
    assert [operation.name for operation in Operation] == names
    assert [int(operation) for operation in Operation] == list(range(7))
    assert operation_named(" createQUEUE ") is Operation.CreateQueue
    assert operation_named("Create") is None


# ---- one user's rights ----


def test_any_permission_that_matches_and_has_the_operation_allows_it():
    access = Access("bob", permissions=[Permission("orders.*", (0, 5)), Permission("*.new", (1,))])
    allowed = {operation.name for operation in ALL if access.may(operation, "orders.new")}
    assert allowed == {"Publish", "Subscribe", "GetQueueInfo"}
    assert access.may(Operation.Publish, "ORDERS.old")
    assert not access.may(Operation.Subscribe, "orders.old")
    assert not any(access.may(operation, "jobs") for operation in ALL)


def test_a_queue_is_seen_if_any_pattern_matches_whatever_it_allows():
    access = Access("bob", permissions=[Permission("orders.*", (4,))])
    assert access.sees("orders.new")
    assert not access.sees("jobs")


def test_nothing_is_allowed_without_permissions_and_everything_to_superusers():
    nobody, root = Access("bob"), Access("root", is_superuser=True)
    assert not any(nobody.may(operation, "q") for operation in ALL)
    assert not nobody.sees("q")
    assert all(root.may(operation, "q") for operation in ALL)
    assert root.sees("q")
    assert permissions.EVERYTHING.may(Operation.DeleteQueue, "q")


def test_remembered_answers_are_bounded_and_stay_right(monkeypatch):
    monkeypatch.setattr(permissions, "_NAMES_REMEMBERED_MAX", 8)
    access = Access("bob", permissions=[Permission("q1*", (0,))])
    for _ in range(2):
        for n in range(100):
            assert access.may(Operation.Publish, f"q{n}") is f"q{n}".startswith("q1")
            assert len(access._remembered) <= 8


# ---- noticing changes ----


def test_rights_are_read_once_until_something_changes(metadata):
    accesses = Accesses(metadata)
    bob = accesses.of("bob")
    generation = accesses.generation
    metadata.create_stream("/", "orders", {}, "os", 10)
    assert accesses.refresh() == frozenset()
    assert accesses.generation == generation
    assert accesses.of("bob") is bob


def test_a_grant_and_a_revoke_from_another_process_are_noticed(metadata, tmp_path):
    other = Metadata(str(tmp_path / "meta.db"))
    accesses = Accesses(metadata)
    assert not accesses.of("bob").may(Operation.Publish, "q")
    for change, may in ((lambda: other.grant("bob", "*", [0]), True), (lambda: other.revoke("bob", "*"), False)):
        before = accesses.generation
        change()
        assert accesses.refresh() == frozenset()
        assert accesses.generation != before
        assert accesses.of("bob").may(Operation.Publish, "q") is may
    other.close()


def test_rights_are_never_older_than_the_question(metadata, tmp_path):
    other = Metadata(str(tmp_path / "meta.db"))
    accesses = Accesses(metadata)
    accesses.of("bob")
    other.set_superuser("bob", True)
    assert accesses.of("bob").is_superuser
    other.close()


def test_deleted_users_are_told_once_if_they_were_asked_for(metadata):
    metadata.add_user("carol", "hash")
    accesses = Accesses(metadata)
    accesses.of("bob")
    for name in ("bob", "carol"):
        metadata.delete_user(name)
    assert accesses.of("bob") is None
    assert accesses.refresh() == {"bob"}
    assert accesses.refresh() == frozenset()


def test_a_user_made_again_counts_as_deleted(metadata, monkeypatch):
    accesses = Accesses(metadata)
    before = accesses.of("bob")
    metadata.delete_user("bob")
    monkeypatch.setattr("vibemq.storage.users._now_ms", lambda: before.created_ms + 1)
    metadata.add_user("bob", "hash")
    assert accesses.of("bob").created_ms != before.created_ms
    assert accesses.refresh() == {"bob"}
    assert accesses.refresh() == frozenset()


@pytest.mark.parametrize("name", ["nobody", "Bob", "guest", "", "\udcff", "bob\0"])
def test_who_is_not_there_has_no_rights(metadata, name):
    assert Accesses(metadata).of(name) is None
