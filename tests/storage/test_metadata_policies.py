# SPDX-License-Identifier: Apache-2.0
"""Policies: which one holds for a stream, what it overrides, and how others notice."""

import pytest

from vibemq.errors import UserError, VhostNotFound
from vibemq.storage.metadata import Metadata, PolicyRecord

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
        ({"definition": {"message-ttl": 5}}, "cannot be set by a policy"),
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
