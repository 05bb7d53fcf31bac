# SPDX-License-Identifier: Apache-2.0
"""Queues by command: made, described, listed, emptied and deleted, for both kinds of peer."""

import base64
import json
import os
import subprocess
import sys
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from peers.native import NativePeer, connected
from running import ENVIRONMENT, broker, wait_until

from vibemq.client import connect
from vibemq.client.streams import StreamsConnection
from vibemq.protocols.native.spec import Command

# ---- making ----


@pytest.mark.parametrize("text", [False, True], ids=["dotnet", "text"])
def test_a_queue_is_made_once(served, name, text):
    with connected(served, text=text) as peer:
        answer = peer.ask(Command.CREATE_QUEUE, queue=name)
        assert (answer.type, answer.queue, answer.payload) == (Command.CREATE_QUEUE, name, None)
        again = {"queue": name, "headers": {"maxQueueSize": "5"}}
        if text:
            assert peer.refused(Command.CREATE_QUEUE, **again) == "QUEUE_EXISTS"
        else:
            assert peer.ask(Command.CREATE_QUEUE, **again).type == Command.CREATE_QUEUE
        assert peer.info(name)["maxSize"] == 0, "the options of the second one are ignored"


@pytest.mark.parametrize("odd", ["orders/eu", "new orders", "50 % #ü?"])
def test_a_queue_that_another_protocol_made_is_used_whatever_its_name_is(served, odd):
    name = f"{odd}-{os.getpid()}"
    address = f"http://{served.host}:{served.admin_port}/api/queues/%2F/{quote(name, safe='')}"
    headers = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    with connected(served) as peer:
        assert peer.refused(Command.PUBLISH, queue=name, payload=b"1") == "INVALID_MESSAGE"
        assert peer.refused(Command.CREATE_QUEUE, queue=name) == "INVALID_MESSAGE"
        with urlopen(Request(address, b"{}", headers, method="PUT"), timeout=30) as made:
            assert made.status == 201
        assert name in json.loads(peer.ask(Command.LIST_QUEUES).payload)
        assert peer.ask(Command.PUBLISH, queue=name, payload=b'"one"').type == Command.PUBLISH_ACK
        assert peer.ask(Command.PUBLISH, queue=name, payload=b'"two"').type == Command.PUBLISH_ACK
        assert peer.refused(Command.PUBLISH, queue=name, payload=b"no JSON") == "INVALID_MESSAGE"
        assert peer.info(name)["messageCount"] == 2
    with connect(f"vibemq://{served.host}:{served.native_port}") as client, client.consume(name) as consumer:
        message = next(consumer)
        assert message.payload == "one"
        message.ack()
    url = f"vibemq://{served.host}:{served.native_port}"
    command = [sys.executable, "-m", "vibemq.cli", "consume", name, "--drain", "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert (done.returncode, '"two"' in done.stdout) == (0, True), done
    with urlopen(Request(address, headers=headers, method="DELETE"), timeout=30) as gone:
        assert gone.status == 204


DECLARED = {
    "mode": 3,
    "maxQueueSize": 77,
    "messageTtl": "1.02:03:04.5000000",
    "enableDeadLetterQueue": True,
    "deadLetterQueueName": "letters",
    "overflowStrategy": 1,
    "maxRetryAttempts": 9,
}


def test_options_come_back_as_declared_in_both_layouts(peer, text, name):
    peer.create(name, **DECLARED, ackTimeoutMs=5000, backoffMs=10, backoffMaxMs=20, prefetch=7, durability="disk")
    numbers, names = peer.info(name), text.info(name)
    declared = {**DECLARED, "deliveryMode": 3, "maxSize": 77}
    del declared["mode"], declared["maxQueueSize"]
    assert numbers | declared == numbers
    assert (numbers["deliveryModeName"], numbers["overflowStrategyName"]) == ("PriorityBased", "DropNewest")
    assert names == {**numbers, "deliveryMode": "PriorityBased", "overflowStrategy": "DropNewest"}
    ours = {"ackTimeoutMs": 5000, "backoffMs": 10, "backoffMaxMs": 20, "prefetch": 7, "durability": "disk"}
    assert numbers | ours == numbers
    assert numbers["effectiveDeadLetterQueueName"] == "letters"


def test_options_in_headers_are_names_and_milliseconds(text, name):
    headers = {
        "deliveryMode": "fanoutWithAck",
        "maxQueueSize": "5",
        "messageTtl": "3600000",
        "enableDeadLetterQueue": "true",
        "overflowStrategy": "RedirectToDlq",
        "maxRetryAttempts": "2",
    }
    assert text.ask(Command.CREATE_QUEUE, queue=name, headers=headers).type == Command.CREATE_QUEUE
    info = text.info(name)
    assert (info["deliveryMode"], info["overflowStrategy"]) == ("FanOutWithAck", "RedirectToDlq")
    assert (info["maxSize"], info["messageTtl"], info["maxRetryAttempts"]) == (5, "01:00:00", 2)
    assert info["enableDeadLetterQueue"] is True
    assert "deadLetterQueueName" not in info, "a name that was not declared would be a conflict to .NET clients"
    assert info["effectiveDeadLetterQueueName"] == name + ".dlq"


def test_a_payload_member_wins_over_a_header(peer, name):
    answer = peer.ask(Command.CREATE_QUEUE, queue=name, headers={"maxQueueSize": "5"}, payload=b'{"maxQueueSize":6}')
    assert answer.type == Command.CREATE_QUEUE
    assert peer.info(name)["maxSize"] == 6


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"payload": b'{"mode":4}'}, "INVALID_PAYLOAD"),
        ({"payload": b'{"mode":"Best"}'}, "INVALID_PAYLOAD"),
        ({"payload": b'{"messageTtl":"24:00:00"}'}, "INVALID_PAYLOAD"),
        ({"payload": b'{"maxQueueSize":-1}'}, "INVALID_PAYLOAD"),
        ({"payload": b"[1]"}, "INVALID_PAYLOAD"),
        ({"payload": b'{"mode":'}, "INVALID_PAYLOAD"),
        ({"payload": b"[" * 5000}, "INVALID_PAYLOAD"),
        ({"payload": b'{"deadLetterQueueName":"a b"}'}, "INVALID_PAYLOAD"),
        ({"headers": {"deliveryMode": "Best"}}, "INVALID_MESSAGE"),
        ({"headers": {"messageTtl": "soon"}}, "INVALID_MESSAGE"),
        ({"headers": {"enableDeadLetterQueue": "yes"}}, "INVALID_MESSAGE"),
    ],
)
def test_options_that_cannot_be_are_refused_by_their_place_and_the_connection_goes_on(peer, name, fields, code):
    assert peer.refused(Command.CREATE_QUEUE, queue=name, **fields) == code
    assert peer.ask(Command.QUEUE_INFO, queue=name).payload is None


def test_a_queue_is_not_its_own_dead_letter_queue(peer, name):
    payload = json.dumps({"enableDeadLetterQueue": True, "deadLetterQueueName": name}).encode()
    assert peer.refused(Command.CREATE_QUEUE, queue=name, payload=payload) == "INVALID_PAYLOAD"
    headers = {"enableDeadLetterQueue": "true", "deadLetterQueueName": name}
    assert peer.refused(Command.CREATE_QUEUE, queue=name, headers=headers) == "INVALID_MESSAGE"


def test_an_acknowledgement_timeout_of_zero_is_no_storm_of_deliveries(peer, other, name):
    answer = peer.ask(Command.CREATE_QUEUE, queue=name, headers={"ackTimeoutMs": "0", "maxRetryAttempts": "1000"})
    assert (answer.type, answer.error_code) == (Command.ERROR, "INVALID_MESSAGE")
    answer = peer.ask(Command.CREATE_QUEUE, queue=name, payload=b'{"ackTimeoutMs":0}')
    assert (answer.type, answer.error_code) == (Command.ERROR, "INVALID_PAYLOAD")


def test_many_make_the_same_queue_at_once_and_all_are_told_that_it_is_there(served, name):
    peers = [connected(served) for _ in range(8)]
    try:
        for peer in peers:
            peer.send(Command.CREATE_QUEUE, queue=name)
        assert {peer.next().type for peer in peers} == {Command.CREATE_QUEUE}
    finally:
        for peer in peers:
            peer.socket.close()


# ---- describing ----


def test_info_of_a_missing_queue_is_empty_for_dotnet_and_an_error_for_text(peer, text, name):
    answer = peer.ask(Command.QUEUE_INFO, queue=name)
    assert (answer.type, answer.queue, answer.payload) == (Command.QUEUE_INFO, name, None)
    assert text.refused(Command.QUEUE_INFO, queue=name) == "QUEUE_NOT_FOUND"


def test_info_counts_what_waits_and_what_is_in_flight_on_every_worker(peer, other, text, name):
    for at in range(5):
        peer.publish(name, b"1", b"m%d" % at)
    other.subscribe(name, prefetch="2")
    other.delivers(2, ack=False)
    for asking in (peer, other, text):
        info = asking.info(name)
        assert (info["name"], info["messageCount"], info["inFlightCount"], info["subscriberCount"]) == (name, 3, 2, 1)
        assert info["createdAt"].endswith("Z")


# ---- listing ----


def test_queues_are_listed_by_name(peer, name):
    queues = [f"{name}-{suffix}" for suffix in ("b", "Z", "a", "ä", "10", "9")]
    for queue in queues:
        peer.create(queue)
    answer = peer.ask(Command.LIST_QUEUES)
    assert (answer.type, answer.queue) == (Command.LIST_QUEUES, None)
    names = json.loads(answer.payload)
    assert names == sorted(names)
    assert set(queues) <= set(names)


def test_a_stream_is_no_queue_until_somebody_makes_it_one(served, peer, text, name):
    with StreamsConnection.connect(served.host, served.port) as streams:
        streams.create(name)
        with streams.publisher(name) as publisher:
            publisher.publish([b"from a stream client"])
        assert name not in json.loads(peer.ask(Command.LIST_QUEUES).payload)
        assert peer.ask(Command.QUEUE_INFO, queue=name).payload is None
        assert peer.ask(Command.DELETE_QUEUE, queue=name).type == Command.DELETE_QUEUE
        assert text.refused(Command.DELETE_QUEUE, queue=name) == "QUEUE_NOT_FOUND"
        assert sum(chunk.records for chunk in streams.read_chunks(name, 0)) == 1, "the stream is untouched"
        peer.create(name)
        peer.subscribe(name)
        assert peer.deliver().payload == b'"from a stream client"'
        assert sum(chunk.records for chunk in streams.read_chunks(name, 0)) == 1


# ---- what stream clients wrote ----


def test_payloads_that_are_no_json_are_delivered_as_json_strings(served, peer, name):
    bodies = [b'{"a": 1}', b"plain \xc3\xa9\n", b"\xff\x00\xfe", b"[" * 65 + b"]" * 65, b""]
    peer.create(name)
    peer.subscribe(name)
    with StreamsConnection.connect(served.host, served.port) as streams, streams.publisher(name) as publisher:
        publisher.publish(bodies)
    got = [peer.deliver() for _ in bodies]
    assert [message.payload for message in got] == [
        b'{"a": 1}', b'"plain \xc3\xa9\\n"', b'"/wD+"', b'"' + b"[" * 65 + b"]" * 65 + b'"', None
    ]  # fmt: skip
    assert [message.headers.get("payload-encoding") for message in got] == [None, None, "base64", None, None]
    assert len({message.id for message in got}) == len(bodies), "each has an id that can be acknowledged"


def test_a_stream_clients_text_is_still_there_when_it_is_a_dead_letter(served, name):
    with connected(served, features="nack") as peer:
        peer.create(name, maxRetryAttempts=1, enableDeadLetterQueue=True)
        with StreamsConnection.connect(served.host, served.port) as streams, streams.publisher(name) as publisher:
            publisher.publish([b"\0Sw\xa1\5hello"])  # an amqp-value section with a string
        peer.subscribe(name)
        message = peer.deliver(ack=False)
        assert message.payload == b'"hello"'
        peer.send(Command.NACK, message.id)
        peer.subscribe(name + ".dlq")
        assert peer.deliver().payload == b'"hello"'


# ---- deleting, emptying ----


def test_deleting_a_queue_drops_its_messages(peer, text, name):
    peer.publish(name)
    answer = peer.ask(Command.DELETE_QUEUE, queue=name)
    assert (answer.type, answer.queue) == (Command.DELETE_QUEUE, name)
    assert peer.ask(Command.DELETE_QUEUE, queue=name).type == Command.DELETE_QUEUE
    assert text.refused(Command.DELETE_QUEUE, queue=name) == "QUEUE_NOT_FOUND"
    peer.create(name)
    assert peer.info(name)["messageCount"] == 0


def test_purge_drops_what_waits_and_says_how_much_it_was(served, other, name):
    with connected(served, features="purge") as peer:
        assert peer.refused(Command.PURGE_QUEUE, queue=name) == "QUEUE_NOT_FOUND"
        for _ in range(7):
            peer.publish(name)
        other.subscribe(name, prefetch="2")
        other.delivers(2, ack=False)
        answer = peer.ask(Command.PURGE_QUEUE, queue=name)
        assert (answer.type, answer.queue) == (Command.PURGE_QUEUE, name)
        assert json.loads(answer.payload) == {"purged": 5}
        wait_until(lambda: peer.info(name)["messageCount"] == 0, "nothing waits any more")
        assert peer.info(name)["inFlightCount"] == 2, "what is in flight belongs to its consumer"
        assert other.refused(Command.PURGE_QUEUE, queue=name) == "UNKNOWN_COMMAND"


# ---- full queues ----


def test_a_full_queue_that_drops_the_newest_says_so(peer, name):
    peer.create(name, maxQueueSize=2, overflowStrategy=1)
    for _ in range(2):
        peer.publish(name)
    assert peer.refused(Command.PUBLISH, queue=name, payload=b"1") == "QUEUE_FULL"


def test_a_full_queue_that_drops_the_oldest_takes_everything(peer, other, name):
    peer.create(name, maxQueueSize=2)
    for at in range(5):
        peer.publish(name, b"1", b"m%d" % at)
    wait_until(lambda: peer.info(name)["messageCount"] == 2, "the oldest are dropped")
    other.subscribe(name)
    assert other.delivers(2) == [b"m3", b"m4"]


def test_a_full_queue_that_blocks_acknowledges_when_there_is_room_and_reads_on_meanwhile(peer, name):
    peer.create(name, maxQueueSize=1, overflowStrategy=2)
    peer.publish(name, b"1", b"m0")
    peer.send(Command.PUBLISH, b"m1", queue=name, payload=b"2")
    peer.ping()  # the acknowledgement is held back, nothing else
    peer.subscribe(name)  # its own consumer makes the room
    got = [peer.next() for _ in range(3)]
    assert {(message.type, message.id) for message in got} == {
        (Command.DELIVER, b"m0"), (Command.PUBLISH_ACK, b"m1"), (Command.DELIVER, b"m1")
    }  # fmt: skip


def test_a_publisher_is_not_blocked_for_ever(peer, name):
    peer.create(name, maxQueueSize=1, overflowStrategy=2)
    peer.publish(name)
    frames = [peer.frame(Command.PUBLISH, b"m%d" % at, queue=name, payload=b"1") for at in range(3)]
    peer.write(*frames)
    got = [peer.next() for _ in frames]
    assert [(m.id, m.error_code) for m in got] == [(b"m%d" % at, "QUEUE_FULL") for at in range(3)]


def test_publishes_that_wait_for_room_are_refused_when_the_queue_is_deleted(peer, other, name):
    peer.create(name, maxQueueSize=1, overflowStrategy=2)
    peer.publish(name)
    frames = [peer.frame(Command.PUBLISH, b"m%d" % at, queue=name, payload=b"1") for at in range(3)]
    peer.write(*frames)
    peer.ping()
    other.ask(Command.DELETE_QUEUE, queue=name)
    got = [peer.next() for _ in frames]
    assert [(m.id, m.error_code) for m in got] == [(b"m%d" % at, "QUEUE_NOT_FOUND") for at in range(3)]
    peer.publish(name)


def test_more_than_a_connection_may_park_stops_its_reading_until_the_queue_is_gone(peer, other, name):
    """17 MiB wait: the connection is read no further, and must be again when they have been refused."""
    peer.create(name, maxQueueSize=1, overflowStrategy=2)
    peer.publish(name)
    payload = b'"' + b"x" * 1_000_000 + b'"'
    frames = [peer.frame(Command.PUBLISH, b"m%d" % at, queue=name, payload=payload) for at in range(17)]
    peer.write(*frames)
    other.ask(Command.DELETE_QUEUE, queue=name)
    codes = {peer.next().error_code for _ in frames}
    assert codes <= {"QUEUE_NOT_FOUND", "QUEUE_FULL", None}
    peer.ping()


def test_a_full_queue_redirects_to_a_dead_letter_queue_that_is_made_on_demand(peer, other, name):
    peer.create(name, maxQueueSize=4, overflowStrategy=3, enableDeadLetterQueue=True)
    frames = [peer.frame(Command.PUBLISH, b"m%d" % at, queue=name, payload=b"%d" % at) for at in range(8)]
    peer.write(*frames)
    assert {(m.type, m.id) for m in (peer.next() for _ in frames)} == {
        (Command.PUBLISH_ACK, b"m%d" % at) for at in range(8)
    }
    other.subscribe(name + ".dlq")
    letters = [other.deliver() for _ in range(4)]
    assert [letter.id for letter in letters] == [b"m4", b"m5", b"m6", b"m7"]
    assert letters[0].payload == b"4"
    assert letters[0].headers["x-original-queue"] == name
    assert letters[0].headers["x-failure-reason"] == "QueueFull"


def test_without_a_dead_letter_queue_redirecting_is_refusing(peer, name):
    peer.create(name, maxQueueSize=1, overflowStrategy=3)
    peer.publish(name)
    assert peer.refused(Command.PUBLISH, queue=name, payload=b"1") == "QUEUE_FULL"


# ---- brokers that make no queue by themselves ----


def test_without_auto_create_a_missing_queue_is_not_found(tmp_path):
    with (
        broker(tmp_path, "--set", "queues.auto_create=false", workers=1) as running,
        connected(running) as peer,
        NativePeer(running, text=True) as text,
    ):
        text.connect()
        for asking in (peer, text):
            assert asking.refused(Command.PUBLISH, queue="missing", payload=b"1") == "QUEUE_NOT_FOUND"
            assert asking.refused(Command.SUBSCRIBE, queue="missing") == "QUEUE_NOT_FOUND"
        peer.create("made")
        peer.publish("made")
        peer.subscribe("made")
        peer.deliver()


def test_a_queue_that_said_nothing_follows_the_configuration_and_one_that_did_does_not(tmp_path):
    first = ("--set", "queues.max_messages=11", "--set", "queues.attempts_max=4")
    with broker(tmp_path, *first, workers=1) as running, connected(running) as peer:
        peer.create("silent")
        assert peer.ask(Command.CREATE_QUEUE, queue="null", payload=b"null").type == Command.CREATE_QUEUE
        headers = {"maxQueueSize": "11"}
        assert peer.ask(Command.CREATE_QUEUE, queue="said", headers=headers).type == Command.CREATE_QUEUE
        peer.create("dotnet", mode=0, maxQueueSize=10_000, maxRetryAttempts=3)
        peer.create("ours", mode=0)
        expected = {"silent": (11, 4), "null": (11, 4), "said": (11, 4), "dotnet": (10_000, 3), "ours": (11, 4)}
        assert sizes(peer) == expected
    second = ("--set", "queues.max_messages=12", "--set", "queues.attempts_max=5")
    with broker(tmp_path, *second, workers=1) as running, connected(running) as peer:
        assert sizes(peer) == {
            "silent": (12, 5),
            "null": (12, 5),
            "said": (11, 5),
            "dotnet": (10_000, 3),
            "ours": (12, 5),
        }


def sizes(peer):
    infos = [peer.info(queue) for queue in json.loads(peer.ask(Command.LIST_QUEUES).payload)]
    return {info["name"]: (info["maxSize"], info["maxRetryAttempts"]) for info in infos}
