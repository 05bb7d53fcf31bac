# SPDX-License-Identifier: Apache-2.0
"""Streams, super streams, exchanges and bindings over HTTP behave as the protocol's own commands do."""

import struct
import time
import zlib

import pytest
from http_caller import STREAM, wait_until
from peers.streams import connected

from vibemq.protocols.streams.codec import encode_request
from vibemq.protocols.streams.spec import Code, Key
from vibemq.storage.metadata import Metadata

RESTART_SECONDS_MAX = 2.0


@pytest.fixture
def peer(managed):
    with connected(managed) as peer:
        yield peer


# ---- streams ----


def test_a_stream_made_over_http_is_the_protocols(http, peer, name):
    body = {**STREAM, "arguments": {"x-queue-type": "stream", "x-max-age": "12h", "x-max-length-bytes": 1_000_000}}
    assert [http.status("PUT", "queues", "/", name, body=body) for _ in range(2)] == [201, 204]
    assert (
        peer.code(Key.CREATE, stream=name, arguments={"max-age": "12h", "max-length-bytes": "1000000"})
        == Code.STREAM_ALREADY_EXISTS
    )
    found = http.get("queues", "/", name)
    assert found["arguments"] == body["arguments"]
    assert (found["type"], found["durable"], found["auto_delete"], found["exclusive"]) == ("stream", True, False, False)
    other = {**STREAM, "arguments": {"x-queue-type": "stream", "x-max-age": "1h", "x-max-length-bytes": 1_000_000}}
    reply = http.call("PUT", "queues", "/", name, body=other)
    assert (reply.status, reply.json["error"]) == (400, "bad_request")
    assert "received '1h' but current is '12h'" in reply.json["reason"]
    assert http.status("DELETE", "queues", "/", name) == 204
    assert http.status("DELETE", "queues", "/", name) == http.status("GET", "queues", "/", name) == 404


@pytest.mark.parametrize(
    "body",
    [
        {"arguments": {"x-queue-type": "mqtt"}},
        {"durable": False},
        {"auto_delete": True},
        {"exclusive": True},
        {**STREAM, "durable": False},
        {"arguments": {"x-queue-type": "stream", "x-max-age": "never"}},
        {"arguments": {"x-queue-type": "stream", "x-max-age": ["1h"]}},
        {"arguments": {"x-queue-type": "stream", "x-max-lenght-bytes": 1000}},
        {"arguments": {"x-max-age": "1h"}},
        {"arguments": {"x-max-length": 0}},
        {"arguments": {"x-overflow": "sometimes"}},
        {"arguments": 5},
    ],
)
def test_what_no_stream_or_queue_can_be_is_400(http, name, body):
    assert http.status("PUT", "queues", "/", name, body=body) == 400
    assert http.status("GET", "queues", "/", name) == 404


def test_booleans_may_be_text_as_rabbitmqadmin_sends_them(http, name):
    body = {"durable": "true", "auto_delete": "false", "arguments": {}}
    assert http.status("PUT", "queues", "/", name, body=body) == 201
    assert http.status("PUT", "queues", "/", name, body={**body, "durable": "false"}) == 400
    assert "'perhaps'" in http.call("PUT", "queues", "/", name, body={"durable": "perhaps"}).json["reason"]
    assert http.status("DELETE", "queues", "/", name) == 204


def test_what_tools_ask_of_messages_is_refused_with_a_reason(http, stream):
    for method, *path in (
        ("POST", "queues", "/", stream, "get"),
        ("DELETE", "queues", "/", stream, "contents"),
        ("POST", "exchanges", "/", "amq.default", "publish"),
    ):
        reply = http.call(method, *path, body={})
        assert (reply.status, reply.json["error"]) == (400, "bad_request") and reply.json["reason"]
    assert http.status("POST", "queues", "/", "none", "get", body={}) == 404


def test_a_stream_needs_a_vhost_that_exists(http, name):
    assert http.call("PUT", "queues", "nowhere", name, body=STREAM).json["reason"] == "vhost_not_found"


def test_names_with_every_kind_of_character_come_through(http, peer, name):
    odd = f"{name} /%2F?#ü+"
    assert http.status("PUT", "queues", "/", odd, body=STREAM) == 201
    assert http.get("queues", "/", odd)["name"] == odd
    assert peer.ask(Key.METADATA, streams=[odd]).streams[0].code == Code.OK
    assert http.status("DELETE", "queues", "/", odd) == 204


def test_messages_are_counted_within_a_second(http, peer, stream):
    peer.store(stream, [b"x"] * 10)
    found = wait_until(lambda: [q for q in http.get("queues", "/") if (q["name"], q["messages"]) == (stream, 10)], "10")
    assert found[0]["messages_ready"] == 10 and found[0]["messages_unacknowledged"] == 0


def test_deleting_over_http_tells_every_worker_as_the_protocol_does(http, peers, stream):
    for peer in peers:
        peer.declare(stream)
        peer.subscribe(stream)
    assert http.status("DELETE", "queues", "/", stream) == 204
    for peer in peers:
        update = peer.expect(Key.METADATA_UPDATE)
        assert (update.stream, update.code) == (stream, Code.STREAM_NOT_AVAILABLE)
        assert peer.code(Key.UNSUBSCRIBE, subscription_id=0) == Code.SUBSCRIPTION_ID_DOES_NOT_EXIST


def test_a_stream_in_use_or_not_empty_is_spared_when_asked(http, peer, stream):
    peer.store(stream, [b"x"])
    assert http.status("DELETE", "queues", "/", stream, query="?if-empty=true") == 400
    peer.subscribe(stream)
    wait_until(lambda: http.get("stream", "consumers"), "a consumer")
    assert http.status("DELETE", "queues", "/", stream, query="?if-unused=true") == 400
    assert http.status("DELETE", "queues", "/", stream) == 204


def test_columns_pages_and_order_are_the_callers(http, name):
    names = [f"{name}-{letter}" for letter in "cab"]
    for each in names:
        http.status("PUT", "queues", "/", each, body=STREAM)
    shown = http.get(
        "queues", "/", query=f"?page=1&page_size=2&name={name}&sort=name&columns=name,arguments.x-queue-type"
    )
    assert shown["items"] == [{"name": each, "arguments": {"x-queue-type": "stream"}} for each in sorted(names)[:2]]
    assert (shown["filtered_count"], shown["page_count"]) == (3, 2)
    assert http.status("GET", "queues", "/", query=f"?page=3&page_size=2&name={name}") == 400
    assert http.status("GET", "queues", "/", query="?page=x") == 400
    for each in names:
        http.status("DELETE", "queues", "/", each)


def test_tracking_shows_stored_offsets_and_publishing_ids(http, peer, stream):
    peer.declare(stream, reference="writer")
    peer.publish([(7, b"x")])
    peer.confirmed(1)
    peer.send(encode_request(Key.STORE_OFFSET, reference="reader", stream=stream, offset=5))
    wait_until(lambda: http.get("stream", "/", stream, "tracking")["offsets"] == {"reader": 5}, "the stored offset")
    assert http.get("stream", "/", stream, "tracking") == {"offsets": {"reader": 5}, "writers": {"writer": 7}}
    assert http.get("stream", "/", stream, "tracking", query="?type=writer") == {"writers": {"writer": 7}}
    assert http.get("stream", "/", stream, "tracking", query="?type=offset") == {"offsets": {"reader": 5}}
    assert http.status("GET", "stream", "/", stream, "tracking", query="?type=x") == 400
    assert http.status("GET", "stream", "/", "nothing", "tracking") == 404


def test_metrics_show_how_far_stored_offsets_lag(http, peer, stream):
    peer.declare(stream)
    peer.publish([(number, b"x") for number in range(9)])
    peer.confirmed(9)
    peer.send(encode_request(Key.STORE_OFFSET, reference="slow", stream=stream, offset=2))
    peer.send(encode_request(Key.STORE_OFFSET, reference="done", stream=stream, offset=8))
    wait_until(lambda: len(http.get("stream", "/", stream, "tracking")["offsets"]) == 2, "both stored offsets")
    lines = http.raw("GET", "/metrics").text.splitlines()
    lag = {line for line in lines if line.startswith("vibemq_stored_offset_lag{") and f'"{stream}"' in line}
    labels = f'{{vhost="/",stream="{stream}",reference='
    assert lag == {f'vibemq_stored_offset_lag{labels}"slow"}} 6', f'vibemq_stored_offset_lag{labels}"done"}} 0'}
    assert f'vibemq_stored_offset{labels}"slow"}} 2' in lines


def test_stored_offsets_that_cannot_be_read_hide_nothing_else_of_their_stream(http, peer, stream):
    peer.send(encode_request(Key.STORE_OFFSET, reference="slow", stream=stream, offset=2))
    assert peer.ask(Key.QUERY_OFFSET, reference="slow", stream=stream).offset == 2
    metadata = Metadata(f"{http.get('nodes')[0]['db_dir']}/meta.db")
    with open(f"{metadata.find_stream('/', stream).directory}/offsets", "r+b") as file:
        header = bytearray(file.read(16))
        struct.pack_into(">I", header, 4, 99)  # the version
        file.seek(0)
        file.write(header + struct.pack(">I", zlib.crc32(header)))
    metadata.close()
    text = http.raw("GET", "/metrics").text
    labels = f'{{vhost="/",stream="{stream}"'
    assert f"vibemq_stored_offset{labels}" not in text
    assert f"vibemq_stream_messages{labels}" in text


# ---- restarting ----


def test_a_restarted_stream_is_lost_to_all_and_back_within_two_seconds(http, peers, stream):
    for peer in peers:
        peer.declare(stream)
        peer.subscribe(stream)
    began = time.monotonic()
    assert http.status("POST", "stream", "/", stream, "restart") == 204
    for peer in peers:
        assert peer.expect(Key.METADATA_UPDATE).stream == stream
        peer.declare(stream)
        peer.publish([(1, b"again")])
        assert peer.confirmed(1) == [1]
    assert time.monotonic() - began < RESTART_SECONDS_MAX
    for peer in peers:
        peer.subscribe(stream, credit=9)
        assert peer.chunk().chunk_id == 0


def test_restarting_what_is_not_there_is_404(http, name):
    assert http.status("POST", "stream", "/", name, "restart") == 404


# ---- super streams ----


def test_a_super_stream_made_over_http_is_the_protocols(http, peer, name):
    assert [http.status("PUT", "stream", "super-streams", "/", name, body={"partitions": 3}) for _ in range(2)] == [
        201,
        204,
    ]
    partitions = [f"{name}-{number}" for number in range(3)]
    assert peer.ask(Key.PARTITIONS, super_stream=name).streams == partitions
    assert peer.ask(Key.ROUTE, routing_key="1", super_stream=name).streams == [f"{name}-1"]
    assert http.get("exchanges", "/", name)["arguments"] == {"x-super-stream": True}
    assert http.status("DELETE", "stream", "super-streams", "/", name) == 204
    assert http.status("DELETE", "stream", "super-streams", "/", name) == 404
    assert [http.status("GET", "queues", "/", each) for each in partitions] == [404] * 3


def test_a_super_stream_by_binding_keys_and_arguments(http, peer, name):
    body = {"binding-keys": "amer, emea", "arguments": {"x-max-age": "1h"}}
    assert http.status("PUT", "stream", "super-streams", "/", name, body=body) == 201
    assert peer.ask(Key.PARTITIONS, super_stream=name).streams == [f"{name}-amer", f"{name}-emea"]
    assert http.get("queues", "/", f"{name}-emea")["arguments"]["x-max-age"] == "1h"
    for bad in ({}, {"partitions": 0}, {"partitions": "3"}, {"partitions": 1_000_000}, {"binding-keys": ""}):
        assert http.status("PUT", "stream", "super-streams", "/", f"{name}x", body=bad) == 400, bad
    http.status("DELETE", "stream", "super-streams", "/", name)


def test_exchange_and_bindings_put_together_are_a_super_stream(http, peer, name):
    partitions = [f"{name}-{number}" for number in range(2)]
    exchange = {"type": "direct", "durable": True, "arguments": {"x-super-stream": True}}
    assert [http.status("PUT", "exchanges", "/", name, body=exchange) for _ in range(2)] == [201, 204]
    for number, stream in reversed(list(enumerate(partitions))):
        http.status("PUT", "queues", "/", stream, body=STREAM)
        order = {"x-stream-partition-order": str(number) if number else number}  # tools send either
        body = {"routing_key": f"key-{number}", "arguments": order}
        assert http.status("POST", "bindings", "/", "e", name, "q", stream, body=body) == 201
    assert peer.ask(Key.PARTITIONS, super_stream=name).streams == partitions
    assert peer.ask(Key.ROUTE, routing_key="key-1", super_stream=name).streams == [partitions[1]]
    (binding,) = http.get("bindings", "/", "e", name, "q", partitions[0])
    assert (binding["source"], binding["destination"], binding["routing_key"]) == (name, partitions[0], "key-0")
    assert len(http.get("exchanges", "/", name, "bindings", "source")) == 2
    where = ("bindings", "/", "e", name, "q", partitions[0], binding["properties_key"])
    assert [http.status("DELETE", *where) for _ in range(2)] == [204, 404]
    assert http.status("POST", "bindings", "/", "e", name, "q", "nothing", body={"routing_key": "0"}) == 404
    assert http.status("POST", "bindings", "/", "e", "nothing", "q", partitions[0], body={"routing_key": "0"}) == 404
    assert [http.status("DELETE", "exchanges", "/", name) for _ in range(2)] == [204, 404]
    assert peer.ask(Key.PARTITIONS, super_stream=name).code == Code.STREAM_DOES_NOT_EXIST
    for stream in partitions:
        assert http.status("DELETE", "queues", "/", stream) == 204


def test_only_direct_exchanges_are_made(http, name):
    assert http.status("PUT", "exchanges", "/", name, body={"type": "topic"}) == 400
