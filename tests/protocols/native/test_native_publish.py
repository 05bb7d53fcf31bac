# SPDX-License-Identifier: Apache-2.0
"""Publish: what the acknowledgement says, which payloads and headers pass, and that they pass unchanged."""

import json
from pathlib import Path

import pytest
from peers.native import connected

from vibemq.protocols.native.codec import encode_body, frame_of
from vibemq.protocols.native.spec import Command


def raw_publish(id, queue, payload, headers, count=None):
    """A Publish whose headers are bytes in an order of ours, as the codec would not write them."""
    body = bytearray(encode_body(Command.PUBLISH, id, queue=queue, payload=payload))
    del body[-2:]
    body += (len(headers) if count is None else count).to_bytes(2, "big")
    for text in (text for header in headers for text in header):
        body += len(text).to_bytes(2, "big") + text
    return frame_of(bytes(body))


def header_pairs(message_wire):
    """Keys and values of a Deliver's headers as bytes, in their order, from the body on the wire."""
    at = 2
    at += 2 + int.from_bytes(message_wire[at : at + 2], "big")
    at += 2 + int.from_bytes(message_wire[at : at + 2], "big")
    at += 4 + int.from_bytes(message_wire[at : at + 4], "big")
    count, at = int.from_bytes(message_wire[at : at + 2], "big"), at + 2
    texts = []
    for _ in range(2 * count):
        size = int.from_bytes(message_wire[at : at + 2], "big")
        texts.append(message_wire[at + 2 : at + 2 + size])
        at += 2 + size
    return list(zip(texts[::2], texts[1::2], strict=True))


def next_wire(peer):
    """The next frame's body as it came."""
    while len(peer.inbox) < 5 or len(peer.inbox) < 5 + int.from_bytes(peer.inbox[:4], "big"):
        peer.inbox += peer.socket.recv(1 << 16)
    size = 5 + int.from_bytes(peer.inbox[:4], "big")
    body, peer.inbox = peer.inbox[5:size], peer.inbox[size:]
    return body


# ---- the acknowledgement ----


@pytest.mark.parametrize("text", [False, True], ids=["dotnet", "text"])
def test_publish_ack_names_message_and_queue_in_field_and_headers(served, name, text):
    with connected(served, text=text) as peer:
        for _ in range(2):  # the first one also makes the queue
            answer = peer.publish(name, b'{"title":"Hello"}', b"msg_123")
            assert (answer.type, answer.id, answer.queue) == (Command.PUBLISH_ACK, b"msg_123", name)
            assert answer.headers == {"messageId": "msg_123", "queueName": name}


@pytest.mark.parametrize("text", [False, True], ids=["dotnet", "text"])
def test_the_brokers_frames_are_the_golden_ones_to_the_byte(served, text):
    vectors = json.loads((Path(__file__).parent / "vectors.json").read_text())["broker_frames"]
    golden = {v["name"]: bytes.fromhex(v["frame_hex"]) for v in vectors}
    with connected(served, text=text) as peer:
        peer.send(Command.PUBLISH, b"m1", queue="q", payload=b'{"a":1}', headers={"priority": "High"})
        assert (
            next_wire(peer)
            == golden[f"PublishAck as this broker sends it to a {'text' if text else '.NET'}-layout peer"][5:]
        )
        peer.subscribe("q")
        assert next_wire(peer) == golden["Deliver, first attempt, as this broker sends it"][5:] + bytes(4 * text)
        peer.send(Command.ACK, b"m1")
        peer.send(Command.PING, b"p1")
        assert next_wire(peer) == peer.frame(Command.PONG, b"p1")[5:]
        peer.send(Command.NACK, b"m1")
        assert (
            next_wire(peer)
            == peer.frame(
                Command.ERROR, b"m1", error_code="UNKNOWN_COMMAND", error_message="Unknown command type: Nack"
            )[5:]
        )


def test_any_number_of_publishes_may_be_outstanding_and_none_stays_unanswered(peer, name):
    ids = [b"m%d" % at for at in range(3000)]
    peer.write(*(peer.frame(Command.PUBLISH, id, queue=name, payload=b"[1]") for id in ids))
    assert [peer.expect(Command.PUBLISH_ACK).id for _ in ids] == ids
    assert peer.info(name)["messageCount"] == len(ids)


def test_publishes_into_many_queues_at_once_are_told_apart(peer, name):
    queues = [f"{name}-{at}" for at in range(20)]
    frames = [
        peer.frame(Command.PUBLISH, f"{at}/{q}".encode(), queue=q, payload=b"1") for at in range(5) for q in queues
    ]
    peer.write(*frames)
    answers = [peer.expect(Command.PUBLISH_ACK) for _ in frames]
    assert all(answer.id.decode().partition("/")[2] == answer.queue for answer in answers)
    assert all(peer.info(q)["messageCount"] == 5 for q in queues)


@pytest.mark.parametrize("id", [b"\xff\xfe\x00\x01", b"x" * 65_535, "größe".encode(), b" ", b"\0"], ids=len)
def test_ids_are_opaque_bytes(peer, other, name, id):
    answer = peer.publish(name, b"1", id)
    assert answer.id == id and answer.headers["messageId"].encode(errors="surrogateescape") == id
    other.subscribe(name)
    assert other.deliver(ack=False).id == id
    other.send(Command.ACK, b"some other id", headers={"messageId": id.decode(errors="surrogateescape")})
    other.ping()
    assert other.info(name)["inFlightCount"] == 0


# ---- payloads ----

PAYLOADS = {
    "an object": b'{"a":1}',
    "the literal null is four bytes": b"null",
    "a number whose text must stay": b"1.50e+0300",
    "whitespace around and inside": b' \n{ "b" :\t[ 1 , 2 ] , "a":"x" }\r ',
    "characters that .NET would escape": '{"text":"<a&b\'+`> é 😀"}'.encode(),
    "duplicate members": b'{"a":1,"a":2}',
    "an empty string": b'""',
    "a lone half of a pair, escaped": b'"\\ud800"',
    "64 levels": b"[" * 64 + b"]" * 64,
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
def test_payloads_come_out_as_they_went_in(peer, other, name, payload):
    other.subscribe(name)
    peer.publish(name, payload, b"m")
    message = other.deliver()
    assert (message.id, message.queue, message.payload) == (b"m", name, payload)


def test_a_message_without_payload_has_none_at_the_other_end(peer, other, name):
    other.subscribe(name)
    for payload in (None, b"null", b'""', None):
        peer.publish(name, payload)
        assert other.deliver().payload == payload


NOT_JSON = {
    "a cut object": b'{"a":',
    "two values": b"1 2",
    "a comment": b"/**/1",
    "a trailing comma": b"[1,]",
    "a byte order mark": b"\xef\xbb\xbf1",
    "bytes that are no UTF-8": b'"\xff"',
    "half of a pair in UTF-8": b'"\xed\xa0\x80"',
    "65 levels": b"[" * 65 + b"]" * 65,
    "a single quote": b"'a'",
    "only spaces": b"  ",
    "a number with a leading zero": b"01",
    "NaN": b"NaN",
    "a control character in a string": b'"\n"',
    "a zero byte": b"\0",
}


@pytest.mark.parametrize("payload", NOT_JSON.values(), ids=NOT_JSON.keys())
def test_what_is_no_json_is_refused_and_the_connection_goes_on(peer, name, payload):
    peer.create(name)
    assert peer.refused(Command.PUBLISH, b"bad", queue=name, payload=payload) == "INVALID_MESSAGE"
    peer.publish(name, b"1")
    assert peer.info(name)["messageCount"] == 1


# ---- headers ----


def test_headers_pass_verbatim_and_the_number_of_sends_is_added(peer, other, name):
    headers = {
        "priority": "high",
        "correlationId": "corr_456",
        "timestamp": "2026-02-18T10:30:00Z",
        "Priority": "another key",
        "größe": "ü" * 4096,
        "messageId": "not the id",
        " ": " ",
    }
    other.subscribe(name)
    peer.publish(name, headers=headers)
    assert other.deliver().headers == {**headers, "deliveryAttempts": "1"}


def test_our_header_replaces_the_publishers_and_appears_once(peer, other, name):
    other.subscribe(name)
    peer.write(
        raw_publish(b"m", name, b"1", [(b"deliveryAttempts", b"77"), (b"a", b"b"), (b"deliveryAttempts", b"78")])
    )
    peer.expect(Command.PUBLISH_ACK)
    assert header_pairs(next_wire(other)) == [(b"a", b"b"), (b"deliveryAttempts", b"1")]


def test_of_headers_with_one_key_the_last_one_counts(peer, other, name):
    other.subscribe(name)
    peer.write(
        raw_publish(b"m", name, b"1", [(b"k", b"first"), (b"x", b"y"), (b"k", b""), (b"k", b"last"), (b"", b"z")])
    )
    peer.expect(Command.PUBLISH_ACK)
    assert sorted(header_pairs(next_wire(other))) == [(b"deliveryAttempts", b"1"), (b"k", b"last"), (b"x", b"y")]


def test_thousands_of_headers_with_one_key_are_one_header_and_hold_nobody_up(peer, other, name):
    count = 65_535
    peer.write(raw_publish(b"m", name, b"1", [(b"k", b"%d" % at) for at in range(count)]))
    other.ping()
    peer.expect(Command.PUBLISH_ACK)
    other.subscribe(name)
    assert header_pairs(next_wire(other)) == [(b"k", b"%d" % (count - 1)), (b"deliveryAttempts", b"1")]


def test_header_bytes_that_are_no_utf8_pass_as_they_are(peer, other, name):
    other.subscribe(name)
    headers = [(b"bin\xff\xfe", b"\xc3\x28\x00"), (b"k", b"\x80")]
    peer.write(raw_publish(b"m", name, b"1", headers))
    peer.expect(Command.PUBLISH_ACK)
    assert sorted(header_pairs(next_wire(other))) == sorted([*headers, (b"deliveryAttempts", b"1")])


def test_the_header_with_which_our_client_repeats_itself_is_no_part_of_the_message(peer, other, name):
    other.subscribe(name)
    peer.publish(name, headers={"vibemq-resend": "1", "a": "b"})
    assert other.deliver().headers == {"a": "b", "deliveryAttempts": "1"}


def test_fifty_headers_pass_and_fifty_one_do_not(peer, other, name):
    other.subscribe(name)
    headers = {f"h{at}": "v" for at in range(50)}
    peer.publish(name, headers=headers)
    assert other.deliver().headers == {**headers, "deliveryAttempts": "1"}
    assert peer.refused(Command.PUBLISH, queue=name, headers={**headers, "h": "v"}) == "INVALID_MESSAGE"


@pytest.mark.parametrize(("value", "passes"), [("x" * 4096, True), ("x" * 4097, False), ("😀" * 2049, False)])
def test_a_header_value_has_4096_utf16_units_at_most(peer, name, value, passes):
    answer = peer.ask(Command.PUBLISH, queue=name, payload=b"1", headers={"h": value})
    assert (answer.type == Command.PUBLISH_ACK) == passes
    assert passes or answer.error_code == "INVALID_MESSAGE"


# ---- names ----


@pytest.mark.parametrize("name", ["größe", "очередь.новая", "キュー", "q_1-2.3", "9", "x" * 256, "é" * 256])
def test_names_of_letters_and_digits_of_any_script(peer, other, name):
    other.subscribe(name)
    answer = peer.publish(name, b"1", b"m")
    assert (answer.queue, answer.headers["queueName"]) == (name, name)
    assert other.deliver().queue == name
    assert peer.info(name)["name"] == name
    assert name in json.loads(peer.ask(Command.LIST_QUEUES).payload)


BAD_NAMES = ["a b", "a/b", "*", "a\0b", "a\n", "😀", "x" * 257, "é" * 257, "a,b", "½"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=range(len(BAD_NAMES)))
@pytest.mark.parametrize("command", [Command.PUBLISH, Command.SUBSCRIBE, Command.CREATE_QUEUE, Command.QUEUE_INFO])
def test_other_names_are_refused(peer, command, name):
    assert peer.refused(command, queue=name) == "INVALID_MESSAGE"


@pytest.mark.parametrize("command", [Command.PUBLISH, Command.SUBSCRIBE, Command.CREATE_QUEUE, Command.DELETE_QUEUE])
def test_a_name_that_is_no_utf8_is_refused_and_the_connection_goes_on(peer, command):
    assert peer.refused(command, queue=b"q\xff") == "INVALID_MESSAGE"
    peer.ping()


@pytest.mark.parametrize("command", [Command.PUBLISH, Command.SUBSCRIBE])
def test_without_a_queue_the_answer_is_invalid_queue(peer, command):
    assert peer.refused(command) == "INVALID_QUEUE"
