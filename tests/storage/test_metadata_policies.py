# SPDX-License-Identifier: Apache-2.0
"""Policies: which one holds for a stream, what it overrides, and how others notice."""

import pytest

from vibemq.broker.options import Overflow, options_of
from vibemq.config import Queues
from vibemq.errors import UserError, VhostNotFound
from vibemq.storage import policies
from vibemq.storage.metadata import Metadata
from vibemq.storage.records import PolicyRecord

HOUR = {"max-age": "1h"}


@pytest.fixture
def metadata(tmp_path):
    found = Metadata(str(tmp_path / "meta.db"))
    yield found
    found.close()


def holds(metadata, stream, vhost="/"):
    found = metadata.policy_of(vhost, stream)
    return None if found is None else found.name


def test_a_policy_is_made_changed_listed_and_cleared(metadata):
    assert metadata.set_policy("/", "short", "^logs", HOUR)
    assert not metadata.set_policy("/", "short", "^log", {"max-length-bytes": 5}, 3, "streams")
    kept = PolicyRecord("/", "short", "^log", {"max-length-bytes": 5}, 3, "streams")
    assert metadata.policies() == metadata.policies("/") == [kept]
    assert metadata.find_policy("/", "short") == kept
    assert metadata.clear_policy("/", "short")
    assert not metadata.clear_policy("/", "short")
    assert metadata.find_policy("/", "short") is None


def test_the_highest_priority_holds_alone(metadata):
    metadata.set_policy("/", "all", "", HOUR, 9)
    metadata.set_policy("/", "low", ".*", HOUR)
    metadata.set_policy("/", "logs", "^logs", {"max-length-bytes": 1000}, 1)
    assert holds(metadata, "orders") == "low"
    assert holds(metadata, "logs-eu") == "logs"
    given = {"max-age": "7D", "durability": "disk"}
    orders, logs = (metadata.create_stream("/", name, given, "disk", 10) for name in ("orders", "logs-eu"))
    assert metadata.effective_arguments(orders) == {"max-age": "1h", "durability": "disk"}
    assert metadata.effective_arguments(logs) == {**given, "max-length-bytes": "1000"}
    metadata.clear_policy("/", "logs")
    metadata.clear_policy("/", "low")
    assert holds(metadata, "logs-eu") is None
    assert metadata.effective_arguments(logs) == given


@pytest.mark.parametrize(
    ("apply_to", "does"),
    [
        ("all", True),
        ("queues", True),
        ("streams", True),
        ("exchanges", False),
        ("classic_queues", False),
        ("quorum_queues", False),
    ],
)
def test_what_a_policy_applies_to(metadata, apply_to, does):
    metadata.set_policy("/", "short", ".*", HOUR, apply_to=apply_to)
    assert (holds(metadata, "orders") == "short") is does


def test_a_policy_ends_at_its_vhost_and_goes_with_it(metadata):
    metadata.add_vhost("shop")
    metadata.set_policy("shop", "short", ".*", HOUR)
    assert holds(metadata, "orders") is None
    assert holds(metadata, "orders", "shop") == "short"
    metadata.delete_vhost("shop")
    assert metadata.policies() == []
    assert holds(metadata, "orders", "shop") is None
    with pytest.raises(VhostNotFound):
        metadata.set_policy("shop", "short", ".*", HOUR)


def test_a_queues_retention_is_its_own_business(metadata):
    metadata.set_policy("/", "short", ".*", HOUR)
    stream = metadata.create_stream("/", "orders", {"max-age": "7D"}, "os", 10)
    queue = metadata.create_stream("/", "jobs", {}, "os", 10, queue={})
    assert metadata.effective_arguments(stream) == HOUR
    assert stream.arguments == {"max-age": "7D"}
    assert metadata.effective_arguments(queue) == {}


def test_a_change_from_another_process_holds_at_once_and_is_counted(metadata, tmp_path):
    other = Metadata(str(tmp_path / "meta.db"))
    assert holds(metadata, "orders") is None
    before = metadata.policy_changes()
    other.set_policy("/", "short", ".*", HOUR)
    assert holds(metadata, "orders") == "short"
    other.clear_policy("/", "short")
    other.clear_policy("/", "short")
    assert holds(metadata, "orders") is None
    assert metadata.policy_changes() == before + 2
    other.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": ""}, "name"),
        ({"wanted": "["}, "regular expression"),
        ({"definition": {}}, "empty"),
        ({"definition": {"max-age": "1"}}, "max-age"),
        ({"definition": {"max-age": 1}}, "max-age"),
        ({"definition": {"max-length-bytes": -1}}, "whole number"),
        ({"definition": {"max-length-bytes": True}}, "whole number"),
        ({"definition": {"max-length-bytes": "5"}}, "whole number"),
        ({"definition": {"stream-filter-size-bytes": 15}}, "from 16 to 255"),
        ({"definition": {"expires": 5}}, "'expires' cannot be set by a policy"),
        ({"definition": {"max-length": 0}}, "max-length is 0: a whole number from 1"),
        ({"definition": {"message-ttl": "5"}}, "message-ttl is '5': a whole number"),
        ({"definition": {"delivery-limit": 1000}}, "from 0 to 999"),
        ({"definition": {"consumer-timeout": 9}}, "from 10 to"),
        ({"definition": {"overflow": "drop"}}, "drop-head, reject-publish, reject-publish-dlx"),
        ({"definition": {"overflow": []}}, "overflow is"),
        ({"definition": {"dead-letter-exchange": "x"}}, "queues have no exchanges"),
        ({"definition": {"dead-letter-routing-key": ""}}, "name of a queue"),
        ({"priority": "1"}, "priority"),
        ({"priority": True}, "priority"),
        ({"apply_to": "topics"}, "apply to"),
    ],
)
def test_what_no_policy_can_say(metadata, changes, said):
    wanted = {"vhost": "/", "name": "short", "wanted": ".*", "definition": HOUR, **changes}
    with pytest.raises(UserError, match=said):
        metadata.set_policy(**wanted)
    assert metadata.policies() == []


def test_a_dead_letter_queue_that_no_address_can_hold_may_stay_in_a_policy_but_not_come_into_one(metadata, monkeypatch):
    letters = {"dead-letter-routing-key": ".."}
    with monkeypatch.context() as older:
        older.setattr("vibemq.storage.names.NO_ADDRESS", ())
        metadata.set_policy("/", "old", "^jobs", letters)
    assert not metadata.set_policy("/", "old", "^jobs", letters)
    assert not metadata.set_policy("/", "old", "^tasks", {**letters, "max-length": 5}, 3)
    kept = PolicyRecord("/", "old", "^tasks", {**letters, "max-length": 5}, 3, "all")
    for name, other in (("old", "."), ("new", "..")):
        with pytest.raises(UserError, match="take it for a folder"):
            metadata.set_policy("/", name, "^jobs", {"dead-letter-routing-key": other})
    assert metadata.policies() == [kept]


def test_a_queues_options_are_those_of_the_policy_over_its_own(metadata):
    own = {"max_messages": 9, "overflow": 2, "message_ttl_ms": 7}
    queue = metadata.create_stream("/", "jobs", {}, "os", 10, queue=own)
    definition = {
        "max-length": 5,
        "message-ttl": 60_000,
        "delivery-limit": 0,
        "consumer-timeout": 1000,
        "overflow": "reject-publish",
        "dead-letter-exchange": "",
        "dead-letter-routing-key": "dead",
    }
    metadata.set_policy("/", "strict", "^jobs|^dead", definition, 1)
    metadata.set_policy("/", "lower", ".*", {"max-length": 3, "max-age": "1h"})
    assert metadata.effective_options(queue) == {
        "max_messages": 5,
        "message_ttl_ms": 60_000,
        "attempts_max": 1,  # the first delivery is no redelivery
        "ack_timeout_ms": 1000,
        "overflow": Overflow.DROP_NEWEST,
        "dead_letter": True,
        "dead_letter_queue": "dead",
    }
    metadata.clear_policy("/", "strict")
    assert metadata.effective_options(queue) == {**own, "max_messages": 3}
    metadata.clear_policy("/", "lower")
    assert metadata.effective_options(queue) == queue.queue == own


def test_a_policy_that_names_no_dead_letter_queue_means_the_usual_one_whatever_the_queues_own_is(metadata):
    queue = metadata.create_stream("/", "jobs", {}, "os", 10, queue={"dead_letter": True, "dead_letter_queue": "mine"})
    metadata.set_policy("/", "usual", "^jobs$", {"dead-letter-exchange": ""})
    assert options_of(metadata.effective_options(queue), Queues()).dead_letter_name("jobs") == "jobs.dlq"


def test_a_policy_that_says_nothing_of_a_kind_hides_none_that_does(metadata):
    stream = metadata.create_stream("/", "orders", {}, "os", 10)
    queue = metadata.create_stream("/", "jobs", {}, "os", 10, queue={})
    metadata.set_policy("/", "ages", ".*", HOUR, 2)
    metadata.set_policy("/", "lengths", ".*", {"max-length": 3}, 1, "classic_queues")
    assert metadata.effective_options(queue) == {"max_messages": 3}
    assert metadata.effective_arguments(stream) == HOUR


@pytest.mark.parametrize(("queue", "letters"), [("dead", "dead"), ("jobs.dlq", "dead"), ("jobs.dlq", None)])
def test_a_policy_gives_dead_letter_queues_no_dead_letter_queue(queue, letters):
    definition = {"dead-letter-exchange": ""} | ({} if letters is None else {"dead-letter-routing-key": letters})
    assert policies.options_said(queue, definition) == {}
    assert policies.options_said("jobs", definition)["dead_letter"]


def test_overflow_is_named_as_rabbitmq_does():
    assert {name: Overflow(number).name for name, number in policies.OVERFLOWS.items()} == {
        "drop-head": "DROP_OLDEST",
        "reject-publish": "DROP_NEWEST",
        "reject-publish-dlx": "REDIRECT_TO_DLQ",
    }
