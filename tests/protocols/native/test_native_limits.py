# SPDX-License-Identifier: Apache-2.0
"""What is too large, too often, too slow or no frame at all, and that nobody else notices."""

import json

import pytest
from peers.native import BODY_BYTES_MAX, FRESH_ID, NativePeer, connected
from running import broker, wait_until

from vibemq.protocols.native.codec import encode_body, encode_frame, frame_of
from vibemq.protocols.native.spec import LOGIN_FRAME_BYTES_MAX, Command

# ---- no frames ----

PING = encode_frame(Command.PING, b"ping_123")


def body(*parts):
    return frame_of(b"".join(parts))


GARBAGE = {
    "a length of 0": (b"\0\0\0\0\0", FRESH_ID),
    "a length of 1": (b"\0\0\0\1\0\1", FRESH_ID),
    "one byte more than the maximum": ((BODY_BYTES_MAX + 1).to_bytes(4, "big"), FRESH_ID),
    "a length with the top bit": (b"\x80\0\0\0\0", FRESH_ID),
    "flags 3, which nobody agreed on": (b"\0\0\0\x0e\3" + PING[5:], FRESH_ID),
    "flags 255": (b"\0\0\0\x0e\xff" + PING[5:], FRESH_ID),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", FRESH_ID),
    "a TLS ClientHello": (bytes.fromhex("160301020001000001fc0303"), FRESH_ID),
    "version 1.0, without the flags byte": (PING[:4] + PING[5:] + PING[:4] + PING[5:], FRESH_ID),
    "only version and type": (body(b"\1\x14"), FRESH_ID),
    "an empty id": (body(b"\1\x0a", b"\0\0", b"\0\0", b"\0\0\0\0", b"\0\0"), FRESH_ID),
    "a cut id": (body(b"\1\x0a\0\5ab"), FRESH_ID),
    "a cut queue": (body(b"\1\x14\0\2id", b"\0\5q"), b"id"),
    "a payload longer than the frame": (body(b"\1\x14\0\2id", b"\0\1q", b"\xff\xff\xff\xff"), b"id"),
    "no count of headers": (body(b"\1\x14\0\2id", b"\0\1q", b"\0\0\0\0"), b"id"),
    "fewer headers than said": (body(b"\1\x14\0\2id", b"\0\1q", b"\0\0\0\0", b"\0\2", b"\0\1k\0\1v"), b"id"),
    "an Error without its strings": (body(b"\1\x63\0\2id", b"\0\0", b"\0\0\0\0", b"\0\0"), b"id"),
    "a gzip body that is none": (b"\0\0\0\x0e\1" + PING[5:], FRESH_ID),
    "a brotli body that is none": (b"\0\0\0\x0e\2" + PING[5:], FRESH_ID),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("data", "id"), GARBAGE.values(), ids=GARBAGE.keys())
def test_what_is_no_frame_gets_an_error_and_the_connection_closes(served, peer, data, id, when):
    with NativePeer(served) as raw:
        if when == "after":
            raw.connect()
        raw.write(PING, data)
        pong, error = raw.rest()
        assert (pong.type, pong.id) == (Command.PONG, b"ping_123"), "frames before it are answered"
        assert (error.error_code, error.id) == ("INVALID_MESSAGE", id)
        assert error.error_message
    peer.ping()


def test_a_stranger_may_not_send_a_large_frame(served):
    with NativePeer(served) as raw:
        raw.write((LOGIN_FRAME_BYTES_MAX + 1).to_bytes(4, "big") + b"\0")
        (error,) = raw.rest()
        assert error.error_code == "INVALID_MESSAGE"
        assert f"had {LOGIN_FRAME_BYTES_MAX + 1}" in error.error_message


def test_nothing_behind_a_fault_is_acted_upon(peer, other, name):
    other.create(name)
    publish = peer.frame(Command.PUBLISH, queue=name, payload=b"1")
    peer.write(publish, b"\0\0\0\0\0", publish)
    answers = peer.rest()
    assert [answer.error_code for answer in answers].count("INVALID_MESSAGE") == 1
    assert other.info(name)["messageCount"] == 1
    assert [answer.type for answer in answers].count(Command.PUBLISH_ACK) == 1, "what was published before is confirmed"


def test_a_whole_session_byte_by_byte(raw, name):
    raw.drip(raw.frame(Command.PING, b"p") + raw.frame(Command.CONNECT, b"c", headers={"clientVersion": "1"}))
    assert [raw.next().id, raw.next().id] == [b"p", b"c"]
    raw.drip(raw.frame(Command.SUBSCRIBE, b"s", queue=name))
    raw.drip(raw.frame(Command.PUBLISH, b"m", queue=name, payload=b'{"a":1}', headers={"priority": "High"}))
    raw.drip(raw.frame(Command.ACK, b"m") + raw.frame(Command.QUEUE_INFO, b"i", queue=name))
    got = {}
    while sum(map(len, got.values())) < 4:  # an answer may come before the acknowledgement of an earlier Publish
        message = raw.next()
        got.setdefault(message.id, []).append(message.type)
    assert got[b"s"] == [Command.SUBSCRIBE_ACK]
    assert sorted(got[b"m"]) == [Command.PUBLISH_ACK, Command.DELIVER]
    raw.drip(raw.frame(Command.DISCONNECT))
    assert raw.rest() == []


@pytest.mark.parametrize("piece", [3, 7919, 65_536, 600_000])
def test_frames_cut_anywhere_are_read_whole(peer, other, name, piece):
    payloads = [b'"' + bytes([65 + at]) * (at * 40_000) + b'"' for at in range(1 if piece < 10 else 20)]
    data = b"".join(peer.frame(Command.PUBLISH, b"m%d" % at, queue=name, payload=p) for at, p in enumerate(payloads))
    for at in range(0, len(data), piece):
        peer.write(data[at : at + piece])
    for _ in payloads:
        peer.expect(Command.PUBLISH_ACK)
    other.subscribe(name)
    assert [other.deliver().payload for _ in payloads] == payloads


# ---- sizes ----

DELIVER_ADDS_BYTES = (
    4 + len("deliveryAttempts") + 4
) + 4  # the header with four digits, the strings of the text layout


def publish_of(peer, name, body_bytes):
    """A Publish whose body has that size."""
    rest = len(encode_body(Command.PUBLISH, b"m", queue=name, payload=b'""', text_layout=peer.text))
    return peer.frame(Command.PUBLISH, b"m", queue=name, payload=b'"' + b"x" * (body_bytes - rest) + b'"')


@pytest.mark.parametrize("readers", ["dotnet", "text"])
def test_the_largest_message_fits_into_every_clients_frame(served, peer, text, name, readers):
    reader = text if readers == "text" else peer
    reader.subscribe(name)
    with connected(served) as publisher:
        publisher.write(publish_of(publisher, name, BODY_BYTES_MAX - DELIVER_ADDS_BYTES))
        assert publisher.next().type == Command.PUBLISH_ACK
    reader.deliver()
    assert BODY_BYTES_MAX - 7 <= reader.wire_bytes <= BODY_BYTES_MAX  # one digit of four, and perhaps no strings


@pytest.mark.parametrize("body_bytes", [BODY_BYTES_MAX - DELIVER_ADDS_BYTES + 1, BODY_BYTES_MAX - 1, BODY_BYTES_MAX])
def test_a_message_that_would_not_is_refused_and_the_connection_goes_on(peer, name, body_bytes):
    peer.create(name)
    peer.write(publish_of(peer, name, body_bytes))
    answer = peer.next()
    assert (answer.id, answer.error_code) == (b"m", "INVALID_MESSAGE")
    peer.publish(name)
    assert peer.info(name)["messageCount"] == 1


def test_a_message_that_may_become_a_dead_letter_must_fit_as_one(served, other, name):
    def accepted(size):
        other.write(publish_of(other, name, size))
        return other.next().error_code is None

    letters = "l" * 256
    other.create(name, maxRetryAttempts=1, enableDeadLetterQueue=True, deadLetterQueueName=letters)
    low, high = BODY_BYTES_MAX // 2, BODY_BYTES_MAX
    assert accepted(low) and not accepted(high)
    while high - low > 1:  # the largest that is accepted
        middle = (low + high) // 2
        low, high = (middle, high) if accepted(middle) else (low, middle)
    assert high > BODY_BYTES_MAX - 1024
    count = other.info(name)["messageCount"]
    with connected(served, features="nack") as refusing:
        refusing.subscribe(name)
        for _ in range(count):
            refusing.deliver(ack=False)
            refusing.send(Command.NACK, b"m")
        refusing.ping()
    other.subscribe(letters)
    assert other.delivers(count) == [b"m"] * count


def test_a_body_of_one_byte_more_than_the_maximum_closes_as_soon_as_its_length_is_known(peer, name):
    peer.write((BODY_BYTES_MAX + 1).to_bytes(4, "big"))
    assert [error.error_code for error in peer.rest()] == ["INVALID_MESSAGE"]


def test_an_answer_that_clients_could_not_read_is_an_error(tmp_path):
    with broker(tmp_path, "--set", "native.frame_max_bytes=1024", workers=1) as running, connected(running) as peer:
        queues = [peer.create(f"{at:02}-{'x' * 20}") for at in range(60)]
        assert peer.refused(Command.LIST_QUEUES) == "SERVER_ERROR"
        for queue in queues[10:]:
            peer.ask(Command.DELETE_QUEUE, queue=queue)
        assert json.loads(peer.ask(Command.LIST_QUEUES).payload) == queues[:10]


# ---- rates ----


def test_a_connection_that_sends_too_much_is_told_for_each_frame_and_kept(tmp_path):
    count, rate = 200, 20
    limit = ("--set", f"native.messages_per_second_per_connection={rate}")
    with broker(tmp_path, *limit, workers=1) as running, connected(running) as peer, connected(running) as calm:
        frames = [peer.frame(Command.PUBLISH, b"m%d" % at, queue="q", payload=b"1") for at in range(count)]
        peer.write(*frames)
        answers = [peer.next() for _ in frames]
        assert {answer.id for answer in answers} == {b"m%d" % at for at in range(count)}
        assert {answer.error_code for answer in answers} == {None, "RATE_LIMITED"}
        kept = [answer for answer in answers if answer.type == Command.PUBLISH_ACK]
        assert len(kept) >= rate - 1  # Connect was one
        calm.ping()
        assert calm.info("q")["messageCount"] == len(kept), "what was limited was not published"


def test_acks_pings_and_disconnect_are_never_counted(tmp_path):
    with broker(tmp_path, "--set", "native.messages_per_second_per_connection=2", workers=1) as running:
        with connected(running) as peer:
            while peer.ask(Command.LIST_QUEUES).type != Command.ERROR:
                pass  # until there is no token left
            for _ in range(100):
                peer.send(Command.ACK, b"m")
                peer.ping()
            peer.write(*(peer.frame(Command.LIST_QUEUES) for _ in range(20)), peer.frame(Command.DISCONNECT))
            assert "RATE_LIMITED" in [answer.error_code for answer in peer.rest()]
        with NativePeer(running) as raw:
            for _ in range(50):
                raw.ping()
            raw.connect()


def test_an_address_that_connects_too_often_is_told_and_turned_away(tmp_path):
    with broker(tmp_path, "--set", "native.connections_per_address_per_minute=3", workers=1) as running:
        peers = [connected(running) for _ in range(3)]
        with NativePeer(running) as one_too_many:
            (error,) = one_too_many.rest()
            assert (error.id, error.error_code) == (FRESH_ID, "RATE_LIMITED")
        for peer in peers:
            peer.ping()
            peer.socket.close()


# ---- silence ----


def test_a_silent_connection_is_let_go_and_one_that_pings_is_kept(tmp_path):
    limit = ("--set", "native.keepalive_timeout_s=2")
    with broker(tmp_path, *limit, workers=1) as running, connected(running) as silent, connected(running) as pinging:
        silent.subscribe("q")
        pinging.publish("q")
        silent.deliver(ack=False)
        silent.socket.setblocking(False)
        while not silent_has_ended(silent):
            pinging.ping()
        # The count is written at the end of a turn, so the answer of the turn that follows may still be without it.
        wait_until(lambda: pinging.info("q")["messageCount"] == 1, "what it had is given back")


def silent_has_ended(peer):
    try:
        return peer.socket.recv(1) == b""
    except BlockingIOError:
        return False
