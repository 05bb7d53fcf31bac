# SPDX-License-Identifier: Apache-2.0
"""Messages over the management API: looked at as they lie in the log, published like any door's."""

import base64
import gzip
import time
from contextlib import contextmanager

import pytest
from http_caller import STREAM, Http, wait_until
from peers.streams import connected

from vibemq.client._streams import write_message
from vibemq.client.streams import StreamsConnection
from vibemq.protocols.streams.codec import SubBatch


def look(http, name, query=""):
    return http.get("stream", "/", name, "messages", query=query)


def publish(http, name, body="x", **more):
    return http.call("POST", "stream", "/", name, "messages", body={"body": body, **more})


@contextmanager
def publishing(managed, stream):
    with (
        StreamsConnection.connect(managed.host, managed.port, user="guest", password="guest") as client,
        client.publisher(stream) as publisher,  # whose end waits for the confirms
    ):
        yield publisher


def test_what_is_published_is_looked_at_with_all_its_parts(http, stream):
    sent = {"headers": {"kind": "test", "ü": "ö"}, "content_type": "application/json"}
    assert publish(http, stream, '{"n": 1}', **sent).json == {"offset": 0}
    assert publish(http, stream, base64.b64encode(b"\0\xff").decode(), encoding="base64").json == {"offset": 1}
    first, second = look(http, stream)["messages"]
    assert (first["body"], first["encoding"], first["headers"]) == ('{"n": 1}', "string", sent["headers"])
    assert (base64.b64decode(second["body"]), second["encoding"], second["size_bytes"]) == (b"\0\xff", "base64", 2)
    assert abs(first["timestamp"] - time.time() * 1000) < 60_000


def test_looking_begins_where_it_is_told_to_and_says_where_to_go_on(http, managed, stream):
    with publishing(managed, stream) as publisher:
        for start in range(0, 300, 50):
            publisher.publish([write_message(b"%d" % (start + one)) for one in range(50)])
    between_ms = int(time.time() * 1000) + 2
    wait_until(lambda: time.time() * 1000 > between_ms, "a later millisecond")
    with publishing(managed, stream) as publisher:
        publisher.publish([write_message(b"late")])

    def bodies(query):
        return [message["body"] for message in look(http, stream, query)["messages"]]

    assert bodies("?offset=first&count=2") == ["0", "1"]
    assert bodies("?offset=120&count=3") == ["120", "121", "122"]
    assert bodies("?offset=last&count=2") == ["299", "late"]
    assert bodies(f"?time={between_ms}") == ["late"]
    found = look(http, stream, "?offset=0&count=100")
    assert (found["next"], found["first_offset"], found["next_offset"]) == (100, 0, 301)
    assert look(http, stream, "?offset=301") == {"first_offset": 0, "next_offset": 301, "messages": [], "next": 301}
    for query in ("?count=101", "?count=0", "?offset=soon", "?offset=-1", "?time=x"):
        assert http.status("GET", "stream", "/", stream, "messages", query=query) == 400


def test_sub_batches_are_opened_and_those_of_another_compression_are_named(http, managed, stream):
    entries = b"".join(len(body).to_bytes(4, "big") + body for body in (write_message(b"one"), write_message(b"two")))
    with connected(managed) as peer:
        peer.declare(stream)
        packed, snappy = gzip.compress(entries), b"not to be opened here"
        peer.publish([(1, SubBatch(1, 2, len(entries), packed)), (2, SubBatch(2, 2, len(entries), snappy))])
        peer.confirmed(2)
    one, two, closed = look(http, stream)["messages"]
    assert (one["body"], two["body"]) == ("one", "two")
    assert (closed["offset"], closed["records"]) == (2, 2) and "compression" in closed["problem"]


def test_a_long_body_is_cut_and_its_size_said(http, managed, stream):
    body = ("ä" * 20_000).encode()
    with publishing(managed, stream) as publisher:
        publisher.publish([write_message(body)])
    (message,) = look(http, stream)["messages"]
    assert message["size_bytes"] == len(body) and 16_000 < len(message["body"].encode()) <= 16 * 1024
    assert set(message["body"]) == {"ä"}


def test_a_full_queue_refuses_or_redirects_and_says_so(http, queue):
    name = queue(max_messages=1, overflow=1)
    assert publish(http, name).json == {"offset": 0}
    refused = publish(http, name)
    assert refused.status == 400 and "holds its maximum of 1 messages" in refused.json["reason"]
    redirects = {"overflow": "redirect_to_dlq", "dead_letter": True}
    assert http.status("PUT", "queues", "/", name, "options", body=redirects) == 204
    wait_until(lambda: publish(http, name).json == {"offset": None}, "it goes to the dead-letter queue")
    letters = look(http, f"{name}.dlq")["messages"]
    assert letters[0]["headers"]["x-original-queue"] == name


def test_a_confirm_that_waits_for_the_disk_is_waited_for(http, name):
    arguments = {**STREAM["arguments"], "x-durability": "disk"}
    assert http.status("PUT", "queues", "/", name, body={**STREAM, "arguments": arguments}) == 201
    assert [publish(http, name).json["offset"] for _ in range(3)] == [0, 1, 2]
    http.status("DELETE", "queues", "/", name)


def test_what_rights_do_not_allow_is_neither_published_nor_shown_nor_purged(http, managed, queue):
    name = queue()
    user = f"frank-{name}"
    assert http.status("PUT", "users", user, body={"password": "a-password", "tags": "management"}) == 201
    assert http.status("PUT", "permissions", "/", user, body={"configure": ".*", "write": "", "read": ""}) == 201
    frank = Http(managed, user, "a-password")
    assert publish(frank, name).status == 401
    assert frank.status("GET", "stream", "/", name, "messages") == 401
    assert frank.status("DELETE", "queues", "/", name, "contents") == 401
    assert look(http, name)["messages"] == []
    assert http.status("DELETE", "users", user) == 204


def test_a_queue_is_purged_and_a_stream_is_not(http, queue):
    name = queue()
    assert http.status("PUT", "queues", "/", f"{name}-stream", body=STREAM) == 201
    for _ in range(3):
        assert publish(http, name).status == 201
    assert http.status("DELETE", "queues", "/", name, "contents") == 204
    wait_until(lambda: http.get("queues", "/", name)["messages"] == 0, "it is empty")
    assert len(look(http, name)["messages"]) == 3  # the log still has them
    assert http.status("DELETE", "queues", "/", f"{name}-stream", "contents") == 400
    assert http.status("DELETE", "queues", "/", f"{name}-stream") == 204


def test_tools_publish_to_the_default_exchange(http, stream):
    body = {"properties": {}, "routing_key": stream, "payload": "by a tool", "payload_encoding": "string"}
    assert http.call("POST", "exchanges", "/", "amq.default", "publish", body=body).json == {"routed": True}
    assert look(http, stream)["messages"][0]["body"] == "by a tool"
    nowhere = {**body, "routing_key": "nowhere-at-all"}
    assert http.call("POST", "exchanges", "/", "amq.default", "publish", body=nowhere).json == {"routed": False}
    assert http.status("POST", "exchanges", "/", "other", "publish", body=body) == 400
    assert http.status("POST", "queues", "/", stream, "get", body={"count": 1}) == 400


def test_tools_publish_with_every_property_that_amqp_0_9_1_has(http, managed, stream):
    """As RabbitMQ converts them; AMQP 1.0 by hand."""

    def sized(kind, data):
        return kind + len(data).to_bytes(4, "big") + data

    def several(section, kind, count, data):
        return b"\0\x53" + section + kind + (len(data) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + data

    texts = ("message_id", "reply_to", "correlation_id", "content_type", "content_encoding", "type", "app_id")
    properties = {name: f"the {name}" for name in texts} | {"user_id": "guest", "headers": {"shop": "7"}}
    properties |= {"delivery_mode": 2, "priority": 5, "timestamp": 1_700_000_000, "expiration": "60000"}
    body = {"properties": properties, "routing_key": stream, "payload": "paid", "payload_encoding": "string"}
    assert http.call("POST", "exchanges", "/", "amq.default", "publish", body=body).json == {"routed": True}
    header = b"\x41\x50\x05\x70" + (60_000).to_bytes(4, "big")
    annotations = [b"x-exchange", b"", b"x-routing-key", stream.encode(), b"x-basic-type", b"the type"]
    fields = [
        sized(b"\xb1", b"the message_id"), sized(b"\xb0", b"guest"), b"\x40\x40", sized(b"\xb1", b"the reply_to"),
        sized(b"\xb1", b"the correlation_id"), sized(b"\xb3", b"the content_type"),
        sized(b"\xb3", b"the content_encoding"), b"\x40\x83", (1_700_000_000_000).to_bytes(8, "big"),
        sized(b"\xb1", b"the app_id"),
    ]  # fmt: skip
    expected = several(b"\x70", b"\xd0", 3, header)
    pairs = b"".join(sized(b"\xb1" if at % 2 else b"\xb3", word) for at, word in enumerate(annotations))
    expected += several(b"\x72", b"\xd1", 6, pairs)
    expected += several(b"\x73", b"\xd0", 11, b"".join(fields))
    with connected(managed) as peer:
        peer.subscribe(stream)
        assert peer.chunk().data[4 : 4 + len(expected)] == expected
    (message,) = look(http, stream)["messages"]
    assert (message["id"], message["headers"], message["body"]) == ("the message_id", {"shop": "7"}, "paid")


@pytest.mark.parametrize(
    "bad",
    [
        {"cluster_id": "c"},
        {"mesage_id": "misspelt"},
        {"message_id": 5},
        {"user_id": "somebody"},
        {"delivery_mode": 3},
        {"priority": True},
        {"priority": 256},
        {"timestamp": -1},
        {"expiration": 60_000},
        {"expiration": "4294967296"},
        {"content_encoding": "gzip\u00fc"},
    ],
)
def test_a_property_that_cannot_be_kept_is_refused(http, stream, bad):
    body = {"properties": bad, "routing_key": stream, "payload": "x", "payload_encoding": "string"}
    assert http.status("POST", "exchanges", "/", "amq.default", "publish", body=body) == 400
    assert look(http, stream)["messages"] == []


@pytest.mark.parametrize(
    "bad",
    [
        {"body": 1},
        {"body": "x" * 40_000},
        {"body": "!", "encoding": "base64"},
        {"body": "x", "encoding": "rot13"},
        {"body": "x", "headers": {"a": 1}},
        {"body": "x", "headers": {"a": "b" * 5_000}},
        {"body": "x", "headers": {"a": "\n"}},
        {"body": "x", "headers": {str(number): "" for number in range(65)}},
        {"body": "x", "content_type": "ä"},
    ],
)
def test_what_cannot_be_a_message_is_refused(http, stream, bad):
    assert http.status("POST", "stream", "/", stream, "messages", body=bad) == 400
    assert look(http, stream)["messages"] == []
