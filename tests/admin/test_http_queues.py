# SPDX-License-Identifier: Apache-2.0
"""Queues over the management API: what waits, is in flight and has been settled, as their ledgers have it."""

import pytest
from http_caller import STREAM, wait_until

from vibemq.client import connect
from vibemq.errors import QueueFull


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


@pytest.mark.parametrize("arguments", [{}, {"x-queue-type": "classic"}, {"x-queue-type": "quorum"}])
def test_what_is_declared_without_a_type_or_as_a_queue_is_one(http, client, name, arguments):
    assert [http.status("PUT", "queues", "/", name, body={"arguments": arguments}) for _ in range(2)] == [201, 204]
    assert http.get("queues", "/", name)["type"] == "classic"
    client.publish(name, "taken")
    with client.consume(name) as consumer:
        next(consumer).ack()
    wait_until(lambda: counts(http, name)[0] == 0, "it has left the queue")
    assert http.status("PUT", "queues", "/", name, body={"arguments": {"x-queue-type": "stream"}}) == 400
    assert http.status("DELETE", "queues", "/", name) == 204


def test_arguments_of_rabbitmqs_queues_are_options_of_the_queue(http, name):
    arguments = {"x-max-length": 10, "x-message-ttl": 60_000, "x-overflow": "reject-publish", "x-delivery-limit": 4}
    assert http.status("PUT", "queues", "/", name, body={"arguments": arguments}) == 201
    options = http.get("queues", "/", name)["options"]
    assert {key: options[key] for key in ("max_messages", "message_ttl_ms", "attempts_max")} == {
        "max_messages": 10, "message_ttl_ms": 60_000, "attempts_max": 5,
    }  # fmt: skip
    assert http.status("PUT", "queues", "/", name, body={"arguments": arguments}) == 204
    reply = http.call("PUT", "queues", "/", name, body={"arguments": {"x-max-length": 11}})
    assert (reply.status, "another max_messages" in reply.json["reason"]) == (400, True)
    assert http.status("DELETE", "queues", "/", name) == 204


def test_a_message_with_rabbitmqs_properties_is_given_to_clients(http, client, queue):
    properties = {"message_id": "m", "priority": 5, "delivery_mode": 2, "type": "order", "headers": {"shop": "7"}}
    body = {"properties": properties, "routing_key": queue, "payload": '"paid"', "payload_encoding": "string"}
    assert http.call("POST", "exchanges", "/", "amq.default", "publish", body=body).json == {"routed": True}
    with client.consume(queue) as consumer:
        message = next(consumer)
        assert (message.payload, message.headers["shop"]) == ("paid", "7")
        message.ack()


def test_a_queue_does_not_take_the_name_of_a_stream(http, name):
    assert http.status("PUT", "queues", "/", name, body=STREAM) == 201
    reply = http.call("PUT", "queues", "/", name, body={})
    assert (reply.status, "is there as a stream" in reply.json["reason"]) == (400, True)
    assert http.status("DELETE", "queues", "/", name) == 204


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
        found = {metric.removeprefix("vibemq_queue_"): float(number) for metric, number in named}
        assert found.pop("oldest_message_age_seconds") >= 0
        return found

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
            "refused_total": 0,
            "purged_total": 0,
            "failing_messages": 0,
            "members_away": 0,
        }
        wait_until(lambda: metrics() == expected, "all of it counted")
    client.delete_queue(name)
    client.delete_queue(f"{name}.dlq")


def test_what_a_queue_drops_is_in_its_row_and_in_the_metrics(http, client, name):
    client.create_queue(name, max_messages=2)
    for number in range(5):
        client.publish(name, number)
    wait_until(lambda: http.get("queues", "/", name)["messages_dropped"] == 3, "three are dropped")
    assert http.get("queues", "/", name)["messages_refused"] == 0
    line = f'vibemq_queue_dropped_total{{vhost="/",queue="{name}"}} 3'
    assert line in http.raw("GET", "/metrics").text.splitlines()
    client.delete_queue(name)


def test_a_failing_message_of_a_queue_without_a_limit_is_named(http, client, name):
    client.create_queue(name, backoff_ms=1)
    client.publish_many(name, ["good", "poison"])
    with client.consume(name) as consumer:
        good, poison = next(consumer), next(consumer)
        for _ in range(4):
            poison.nack()
            poison = next(consumer)
        names = f'{{vhost="/",queue="{name}"}}'
        wanted = {f"vibemq_queue_failing_{what}{names} {number}"
                  for what, number in (("messages", 1), ("message_offset", 1), ("message_deliveries", 4))}  # fmt: skip
        wait_until(lambda: wanted <= set(http.raw("GET", "/metrics").text.splitlines()), "the metrics name it")

        def shown():
            live = http.get("live", "streams", "/", name)["counts"] or {}
            return [live.get(field) for field in ("failing", "failing_offset", "failing_deliveries")] == [1, 1, 4]

        wait_until(shown, "the page names it")
        good.ack()
        poison.ack()
        wait_until(lambda: f"vibemq_queue_failing_messages{names} 0" in http.raw("GET", "/metrics").text, "it is done")
    client.delete_queue(name)


def test_an_undeclared_limit_is_shown_as_none_and_a_declared_one_can_be_reset(http, client, queue):
    def limit():
        return http.get("queues", "/", queue)["options"]["attempts_max"]

    where = ("queues", "/", queue, "options")
    assert limit() is None
    assert http.status("PUT", *where, body={"attempts_max": 7}) == 204
    assert limit() == 7
    assert http.status("PUT", *where, body={"attempts_max": None}) == 204
    assert limit() is None
    assert http.status("PUT", *where, body={"dead_letter": True}) == 204
    assert limit() == 3


def test_options_of_a_queue_are_put_and_count_at_once(http, client, queue):
    where = ("queues", "/", queue, "options")
    assert http.status("PUT", *where, body={"max_messages": 2, "overflow": "drop-oldest", "attempts_max": 7}) == 204
    for number in range(4):
        client.publish(queue, number)
    wait_until(lambda: http.get("queues", "/", queue)["messages_dropped"] == 2, "two are dropped")
    options = http.get("queues", "/", queue)["options"]
    assert (options["max_messages"], options["overflow"], options["attempts_max"]) == (2, "drop_oldest", 7)
    assert http.status("PUT", *where, body={"max_messages": None}) == 204
    assert http.get("queues", "/", queue)["options"]["max_messages"] == 0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "no option to change was given"),
        ({"mode": "priority_based"}, "mode: it cannot change while queue"),
        ({"overflow": "drop"}, "overflow: needed one of 0 (drop_oldest), 1 (drop_newest)"),
        ({"max_messages": -1}, "max_messages: needed a number from 0"),
        ({"size": 1}, "there is no option 'size'; known are"),
    ],
    ids=str,
)
def test_options_that_cannot_be_are_refused_with_what_can(http, queue, body, said):
    reply = http.call("PUT", "queues", "/", queue, "options", body=body)
    assert reply.status == 400
    assert said in reply.json["reason"]


@pytest.fixture
def policies(http, name):
    """Set a policy for the queues whose names begin with this test's."""

    def set_policy(**definition):
        keys = {key.replace("_", "-"): value for key, value in definition.items()}
        body = {"pattern": f"^{name}", "definition": keys, "apply-to": "queues"}
        return http.call("PUT", "policies", "/", name, body=body)

    yield set_policy
    http.status("DELETE", "policies", "/", name)


def test_a_policy_holds_at_once_for_a_queue_with_consumers_and_gives_its_own_options_back(http, client, policies, name):
    client.create_queue(name, max_messages=100)
    declared = http.get("queues", "/", name)["options"]
    with client.consume(name, prefetch=1) as consumer:
        held = next_of(client, consumer, name)
        for number in range(5):
            client.publish(name, number)
        assert policies(max_length=2).status == 201
        wait_until(lambda: counts(http, name) == [3, 2, 1, 1], "the oldest three are dropped")
        row = http.get("queues", "/", name)
        assert (row["messages_dropped"], row["policy"], row["options"]["max_messages"]) == (3, name, 2)
        assert row["effective_policy_definition"] == {"max-length": 2}
        assert policies(message_ttl=1).status == 204
        wait_until(lambda: counts(http, name) == [1, 0, 1, 1], "what waits has expired")
        assert http.get("queues", "/", name)["options"]["max_messages"] == 100
        assert policies(max_length=1, overflow="reject-publish").status == 204
        wait_until(lambda: not is_taken(client, name), "publishes are refused")
        wait_until(lambda: counts(http, name)[1] >= 1, "it is full")
        assert http.status("DELETE", "policies", "/", name) == 204
        assert http.get("queues", "/", name)["options"] == declared
        wait_until(lambda: is_taken(client, name), "its worker has the change")
        waiting = counts(http, name)[1]
        client.publish(name, "and another")
        wait_until(lambda: counts(http, name)[1] == waiting + 1, "both are there")
        held.ack()
    client.delete_queue(name)


def is_taken(client, name):
    try:
        client.publish(name, "more")
    except QueueFull:
        return False
    return True


def next_of(client, consumer, name):
    client.publish(name, "held")
    return next(consumer)


def test_a_policy_holds_for_queues_made_later_and_for_those_that_nobody_has_open(http, client, policies, name):
    client.create_queue(name + "-old")
    client.publish(name + "-old", 1)
    assert policies(message_ttl=1, delivery_limit=0, dead_letter_exchange="").status == 201
    wait_until(lambda: counts(http, name + "-old")[0] == 0, "expired without a consumer")
    client.create_queue(name + "-new")
    options = http.get("queues", "/", name + "-new")["options"]
    assert (options["message_ttl_ms"], options["attempts_max"], options["dead_letter"]) == (1, 1, True)
    exported = {queue["name"]: queue for queue in http.get("definitions")["queues"]}[name + "-new"]
    assert "message_ttl_ms" not in exported["queue_options"]


def test_a_key_that_no_policy_has_is_refused_with_those_that_there_are(policies):
    refused = policies(expires=5)
    assert refused.status == 400
    assert "'expires' cannot be set by a policy" in refused.json["reason"]
    assert "dead-letter-routing-key" in refused.json["reason"]


def test_messages_that_a_full_queue_redirects_count_as_dead_lettered(http, client, name):
    client.create_queue(name, max_messages=2, overflow="redirect_to_dlq", dead_letter=True)
    client.publish_many(name, range(6))

    def counted():
        lines = http.raw("GET", "/metrics").text.splitlines()
        begin = f'vibemq_queue_dead_lettered_total{{vhost="/",queue="{name}"'
        line = next(one for one in lines if one.startswith(begin))
        return float(line.split()[-1])

    wait_until(lambda: counted() == 4, "four are counted")


# ---- what tools of RabbitMQ ask for ----


def test_a_queue_tells_what_was_published_delivered_and_acknowledged_and_at_what_rate(http, client, queue):
    def stats():
        return http.get("queues", "/", queue)["message_stats"]

    assert stats()["publish_details"] == {"rate": 0.0}
    client.publish_many(queue, range(500))
    with client.consume(queue, prefetch=100) as consumer:
        for _ in range(300):
            next(consumer).ack()
    wait_until(lambda: stats()["ack"] == 300, "all acknowledgements are counted")
    assert stats()["publish"] == 500 and stats()["deliver_get"] == stats()["deliver"] >= 300
    for name in ("publish", "deliver_get", "ack"):
        wait_until(lambda name=name: is_moving(http, client, queue, name), f"a rate of {name}")


def is_moving(http, client, queue, name):
    """Whether a rate is told, while a message goes through the queue between two looks."""
    client.publish(queue, "one")
    with client.consume(queue) as consumer:
        next(consumer).ack()
    return http.get("queues", "/", queue)["message_stats"][f"{name}_details"]["rate"] > 0


def test_rates_of_all_are_in_the_overview(http):
    assert {"publish_details", "deliver_get_details", "ack_details"} <= http.get("overview")["message_stats"].keys()


@pytest.mark.parametrize(
    "path",
    [
        "channels", "vhosts/%2F/channels", "operator-policies", "operator-policies/%2F", "shovels", "shovels/%2F",
        "federation-links", "parameters", "parameters/shovel", "parameters/shovel/%2F", "global-parameters",
        "feature-flags", "deprecated-features", "topic-permissions", "topic-permissions/%2F/guest",
        "users/guest/topic-permissions", "vhosts/%2F/topic-permissions",
    ],
)  # fmt: skip
def test_of_what_there_is_none_the_list_is_empty(http, path):
    reply = http.raw("GET", f"/api/{path}")
    assert (reply.status, reply.json) == (200, [])


@pytest.mark.parametrize(
    "path",
    ["vhosts/none/channels", "connections/none/channels", "shovels/none", "users/none/topic-permissions"],
)
def test_a_list_that_is_always_empty_is_not_found_of_what_is_not_there(http, path):
    assert http.raw("GET", f"/api/{path}").status == 404


def test_a_node_tells_descriptors_sockets_and_processes(http, client):
    (node,) = http.get("nodes")
    for name in ("fd", "sockets", "proc"):
        assert 0 < node[f"{name}_used"] < node[f"{name}_total"]
    assert node["run_queue"] == 0
