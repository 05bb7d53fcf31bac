# SPDX-License-Identifier: Apache-2.0
"""Queues that a client declares: what is compared with a queue that is there, and what a difference leads to."""

import pytest
from peers.native_server import NativeServer

from vibemq.client import OnConflict, QueueDeclaration, QueueOptions, connect
from vibemq.client.queues import SETTINGS
from vibemq.errors import NotAuthorized, QueueConflict
from vibemq.protocols.native.spec import Command, DeliveryMode, ErrorCode


def test_declaring_ignores_fails_or_overrides(server, client):
    client.declare_queue("q", max_messages=10)
    client.declare_queue("q", mode="fan_out_with_ack")
    with pytest.raises(QueueConflict, match=r"mode is RoundRobin, declared FanOutWithAck$") as caught:
        client.declare_queue("q", mode="fan_out_with_ack", on_conflict=OnConflict.FAIL)
    assert [difference.setting for difference in caught.value.differences] == ["mode"]
    assert len(server.of(Command.CREATE_QUEUE)) == 1
    assert server.of(Command.DELETE_QUEUE) == []
    client.declare_queue("q", mode="fan_out_with_ack", on_conflict="override")
    assert server.queues["q"].options.mode == DeliveryMode.FAN_OUT_WITH_ACK


EACH_OPTION = {
    "mode": "priority_based",
    "max_messages": 3,
    "message_ttl_ms": 1500,
    "dead_letter": True,
    "dead_letter_queue": "letters",
    "overflow": "drop_newest",
    "attempts_max": 9,
    "ack_timeout_ms": 5000,
    "backoff_ms": 100,
    "backoff_max_ms": 900,
    "prefetch": 7,
    "durability": "disk",
}


@pytest.mark.parametrize("option", EACH_OPTION)
def test_a_difference_in_any_declared_option_is_a_conflict_and_can_be_overridden(server, client, option):
    client.create_queue("q")
    declared = {option: EACH_OPTION[option]}
    with pytest.raises(QueueConflict) as caught:
        client.declare_queue("q", on_conflict="fail", **declared)
    assert [difference.setting for difference in caught.value.differences] == [option]
    client.declare_queue("q", on_conflict="override", **declared)
    assert len(server.of(Command.DELETE_QUEUE)) == 1
    client.declare_queue("q", on_conflict="fail", **declared)


def test_all_options_are_covered_by_the_test_above():
    assert list(EACH_OPTION) == list(SETTINGS)


def test_what_is_not_declared_is_not_compared(server, client):
    client.create_queue("q", mode="priority_based", max_messages=2, attempts_max=9, dead_letter=True, prefetch=7)
    client.declare_queue("q", on_conflict="fail")
    client.declare_queue("q", max_messages=2, on_conflict="fail")
    client.declare_queue("q", QueueOptions(max_messages=2), on_conflict="fail")
    with pytest.raises(QueueConflict, match=r"as declared: mode is PriorityBased, declared RoundRobin$"):
        client.declare_queue("q", mode="round_robin", on_conflict="fail")  # the default, but it was said


def test_a_broker_that_does_not_know_our_own_options_is_no_reason_to_delete_a_queue():
    with NativeServer(features="") as server, connect(server.url) as client:
        client.create_queue("q")
        client.declare_queue("q", prefetch=7, durability="disk", on_conflict="override")
        assert server.of(Command.DELETE_QUEUE) == []


def test_options_are_compared_as_a_broker_reads_them(server, client):
    client.create_queue("q", dead_letter=True, durability="disk")
    client.declare_queue("q", dead_letter=True, dead_letter_queue="q.dlq", durability="DISK", on_conflict="override")
    assert server.of(Command.DELETE_QUEUE) == []


def test_a_difference_that_is_ignored_is_in_the_log(client, caplog):
    client.create_queue("q", max_messages=2)
    client.declare_queue("q", max_messages=3)
    assert "queue q is not as declared: max_messages is 2, declared 3" in caplog.text


def test_queues_can_be_declared_by_connecting(server):
    declared = QueueDeclaration("a", QueueOptions(max_messages=3))
    with connect(f"{server.url}/?queues=b,c", declare=[declared]):
        assert server.queues["a"].options.max_messages == 3
        assert sorted(server.queues) == ["a", "b", "c"]


def test_a_declaration_that_fails_ends_connecting_unless_told_otherwise(server):
    server.replies[Command.CREATE_QUEUE] = lambda connection, frame: connection.refuse(frame, ErrorCode.NOT_AUTHORIZED)
    with pytest.raises(NotAuthorized):
        connect(f"{server.url}?queues=b")
    with connect(f"{server.url}?queues=b", fail_on_provisioning_error=False) as client:
        assert client.list_queues() == []
