# SPDX-License-Identifier: Apache-2.0
"""Queues over the management API: what waits, is in flight and has been settled, as their ledgers have it."""

import contextlib

import pytest
from http_caller import wait_until

from vibemq.broker.operations import Operation
from vibemq.client import connect
from vibemq.storage.metadata import Metadata


@pytest.fixture
def client(managed):
    with connect(f"vibemq://{managed.host}:{managed.native_port}") as client:
        yield client


@pytest.fixture
def queue(client, name):
    client.create_queue(name)
    yield name
    client.delete_queue(name)


def counts(http, name):
    found = http.get("queues", "/", name)
    return [found[column] for column in ("messages", "messages_ready", "messages_unacknowledged", "consumers")]


def test_what_is_settled_is_no_message_of_the_queue(http, client, queue):
    for number in range(5):
        client.publish(queue, number)
    wait_until(lambda: counts(http, queue) == [5, 5, 0, 0], "five wait")
    with client.consume(queue, prefetch=3) as consumer:
        held = [next(consumer) for _ in range(3)]
        wait_until(lambda: counts(http, queue) == [5, 2, 3, 1], "three are in flight")
        for message in held:
            message.ack()
        wait_until(lambda: counts(http, queue) == [2, 0, 2, 1], "three are settled")
        assert http.status("DELETE", "queues", "/", queue, query="?if-unused=true") == 400
    assert http.status("DELETE", "queues", "/", queue, query="?if-empty=true") == 400


def test_metrics_say_what_became_of_the_messages_of_each_queue(http, client, name):
    client.create_queue(name, attempts_max=1, dead_letter=True)
    for number in range(4):
        client.publish(name, number)

    def metrics():
        lines = http.raw("GET", "/metrics").text.splitlines()
        end = f'{{vhost="/",queue="{name}"}}'
        named = (line.split(end) for line in lines if end in line)
        return {metric.removeprefix("vibemq_queue_"): int(number) for metric, number in named}

    with client.consume(name, prefetch=3) as consumer:
        first, second, _third = (next(consumer) for _ in range(3))
        first.ack()
        second.nack()
        expected = {
            "messages_ready": 0,
            "messages_unacknowledged": 2,
            "consumers": 1,
            "delivered_total": 4,
            "redelivered_total": 0,
            "acked_total": 1,
            "dead_lettered_total": 1,
            "expired_total": 0,
            "dropped_total": 0,
        }
        wait_until(lambda: metrics() == expected, "all of it counted")
    client.delete_queue(name)
    client.delete_queue(f"{name}.dlq")


def test_definitions_name_what_they_leave_out(http, client, queue):
    assert http.status("PUT", "users", queue, body={"password": "a password", "tags": ""}) == 201
    with contextlib.closing(Metadata(f"{http.get('nodes')[0]['db_dir']}/meta.db")) as metadata:
        metadata.grant(queue, "orders", [Operation.Publish])
    document = http.get("definitions")
    assert queue not in [each["name"] for each in document["queues"]]
    assert {"vhost": "/", "name": queue} in document["left_out"]["queues"]
    assert queue in document["left_out"]["queue_grants_of"]
    assert queue in document["left_out"]["passwords_of"]
    assert len(document["information"]) == 3
    assert {"vhost": "/", "name": queue} in http.get("definitions", "/")["left_out"]["queues"]
    assert http.status("POST", "definitions", body=document) == 204
    assert http.status("DELETE", "users", queue) == 204
