# SPDX-License-Identifier: Apache-2.0
"""WebSocket, server-sent events and long polling: records in whole messages, ends that are told, and their quirks."""

from __future__ import annotations

import json
import select
from collections.abc import Iterator

import pytest
from peers.http import (
    BINARY,
    CLOSE,
    DEADLINE_S,
    HANDSHAKE_ANSWER,
    JSON_HANDSHAKE,
    MESSAGE_BYTES_MAX,
    PING,
    PONG,
    RS,
    TEXT,
    HttpPeer,
    Response,
    answer,
    call,
    frame,
)
from running import broker

CLOSE_RECORD = b'{"type":7}' + RS


@pytest.fixture
def socket(peer: HttpPeer) -> HttpPeer:
    return peer.upgrade().handshake()


# ---- WebSocket ----


def test_the_answers_of_a_turn_leave_together(socket):
    socket.put(b"".join(call(str(number)) for number in range(100)))
    records: list[dict] = []
    while len(records) < 100:
        found = socket.next_frame()
        assert found.opcode == TEXT
        records += found.records
    assert records == [answer(str(number)) for number in range(100)]


def test_answers_of_every_size_are_framed_right(socket):
    """Around 125 bytes a frame's header changes its size, and the payload its place."""
    for size in (1, 50, 55, 60, 61, 62, 63, 64, 65, 66, 70, 200, 1000):
        name = "m" * size
        socket.put(call("1", name))
        assert socket.next_frame().records == [answer("1", name)]


def test_a_message_has_at_most_65535_bytes_in_whole_records(socket):
    name = "m" * 900
    for _ in range(7):
        socket.put(b"".join(call(str(number), name) for number in range(16)))
    seen = 0
    while seen < 7 * 16:
        found = socket.next_frame()
        assert len(found.payload) <= 65535
        seen += len(found.records)


def test_a_ping_is_answered_between_records(socket):
    socket.write(frame(TEXT, call("1")) + frame(PING, b"are you there") + frame(TEXT, call("2")))
    assert socket.next_frame().records == [answer("1")]
    assert socket.next_frame() == (PONG, b"are you there")
    assert socket.next_frame().records == [answer("2")]


def test_a_fragmented_message_is_one_message(socket):
    record = call("1")
    first, second, third = (
        bytearray(frame(opcode, part)) for opcode, part in ((1, record[:5]), (0, record[5:9]), (0, record[9:]))
    )
    first[0] &= 0x7F
    second[0] &= 0x7F
    socket.write(bytes(first) + frame(PING, b"!") + bytes(second) + bytes(third))
    assert socket.next_frame() == (PONG, b"!")
    assert socket.next_frame().records == [answer("1")]


def test_frames_that_come_byte_by_byte_are_read(socket):
    socket.drip(frame(TEXT, call("1")) + frame(BINARY, call("2")))
    records: list[dict] = []
    while len(records) < 2:
        records += socket.next_frame().records
    assert records == [answer("1"), answer("2")]


@pytest.mark.parametrize(
    ("payload", "told"), [(b"", b"\x03\xe8"), (b"\x03\xe8bye", b"\x03\xe8"), (b"\x0f\xa0", b"\x0f\xa0")]
)
def test_the_code_of_a_close_is_told_back_and_the_socket_closed(socket, payload, told):
    socket.write(frame(CLOSE, payload))
    assert socket.next_frame() == (CLOSE, told)
    assert socket.is_closed()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (bytes([0x81, 5]) + b"plain", 1002),  # not masked
        (bytes([0xC1, 0x80, 1, 2, 3, 4]), 1002),  # a reserved bit: nobody agreed on compression
        (frame(3), 1002),  # an opcode that there is not
        (frame(TEXT, b"\xff\xff"), 1007),
    ],
)
def test_a_peer_that_breaks_the_rules_is_told_which_and_closed(socket, data, code):
    socket.write(data)
    found = socket.next_frame()
    assert (found.opcode, int.from_bytes(found.payload[:2], "big")) == (CLOSE, code)
    assert len(found.payload) > 2
    assert socket.is_closed()


def test_a_client_that_says_goodbye_by_a_record_is_closed_normally(socket):
    socket.put(CLOSE_RECORD)
    found = socket.next_frame()
    while found.opcode != CLOSE:
        assert found.records == [{"type": 7}]
        found = socket.next_frame()
    assert found.payload[:2] == b"\x03\xe8"
    socket.write(frame(CLOSE, found.payload[:2]))
    assert socket.is_closed()


def test_a_token_is_worth_nothing_after_its_socket(peer, connect):
    token = peer.token()
    with connect().upgrade(f"/hub?id={token}").handshake() as first:
        first.write(frame(CLOSE, b"\x03\xe8"))
        assert first.next_frame().opcode == CLOSE and first.is_closed()
    peer.write(peer.upgrade_request(f"/hub?id={token}"))
    assert peer.response().status == 404


# ---- server-sent events ----


class Events:
    """An event stream, read as a browser reads it."""

    def __init__(self, peer: HttpPeer, token: str, **headers: str) -> None:
        self.peer = peer
        peer.send("GET", f"/hub?id={token}", Accept="text/event-stream", **headers)
        self.head = peer.head()
        self.text = b""

    def chunk(self) -> bytes:
        """b"" at the end of the response."""
        size = int(self.peer.until(b"\r\n"), 16)
        data = self.peer.exactly(size)
        assert self.peer.exactly(2) == b"\r\n"
        return data

    def event(self) -> bytes:
        while b"\r\n\r\n" not in self.text:
            more = self.chunk()
            assert more, "the stream has ended"
            self.text += more
        event, _, self.text = self.text.partition(b"\r\n\r\n")
        lines = event.split(b"\r\n")
        return b"\n".join(line.removeprefix(b"data: ") for line in lines if not line.startswith(b":"))


@pytest.fixture
def token(peer: HttpPeer) -> str:
    return peer.token()


@pytest.fixture
def events(connect, token: str) -> Events:
    return Events(connect(), token)


def test_an_event_stream_opens_at_once(events):
    assert events.head.status == 200
    wanted = {
        "content-type": "text/event-stream",
        "cache-control": "no-cache, no-store",
        "pragma": "no-cache",
        "content-encoding": "identity",
        "transfer-encoding": "chunked",
    }
    assert wanted.items() <= events.head.headers.items()
    assert events.chunk() == b":\r\n"


def test_what_is_posted_is_answered_by_events(peer, events, token):
    assert peer.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE).status == 200
    assert events.event() == HANDSHAKE_ANSWER
    assert peer.ask("POST", f"/hub?id={token}", call("1") + call("2")).status == 200
    records = events.event()
    while records.count(RS) < 2:
        records += events.event()
    assert [json.loads(record) for record in records.split(RS)[:-1]] == [answer("1"), answer("2")]


def test_the_stream_ends_with_its_hub_connection(peer, events, token):
    peer.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE)
    assert events.event() == HANDSHAKE_ANSWER
    peer.ask("POST", f"/hub?id={token}", CLOSE_RECORD)
    while events.chunk():
        pass
    assert events.peer.is_closed()
    assert peer.ask("POST", f"/hub?id={token}", CLOSE_RECORD).status == 404


def test_a_handshake_may_be_posted_before_the_stream_is_there(peer, connect, token):
    assert peer.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE).status == 200
    assert Events(connect(), token).event() == HANDSHAKE_ANSWER


def test_who_leaves_a_stream_is_gone(peer, events, token):
    events.peer.socket.close()
    while peer.ask("POST", f"/hub?id={token}", b"").status != 404:
        pass  # the broker reads of it in its own time


def test_a_stream_for_http_1_0_ends_with_its_connection(connect, token):
    old = connect()
    old.write(f"GET /hub?id={token} HTTP/1.0\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
    head = old.head()
    assert "transfer-encoding" not in head.headers and head.headers["connection"] == "close"
    assert old.exactly(3) == b":\r\n"


# ---- long polling ----


class Polls:
    def __init__(self, peer: HttpPeer, token: str) -> None:
        self.peer, self.target = peer, f"/hub?id={token}&_=1700000000000"

    def send(self, **headers: str) -> None:
        self.peer.send("GET", self.target, **headers)

    def poll(self, **headers: str) -> Response:
        self.send(**headers)
        return self.peer.response()


@pytest.fixture
def polls(connect, token: str) -> Iterator[Polls]:
    yield Polls(connect(), token)


def test_the_first_poll_is_answered_at_once_with_nothing(polls):
    found = polls.poll()
    assert (found.status, found.body, found.headers["content-length"]) == (200, b"", "0")
    assert found.headers["content-type"] == "application/octet-stream"
    assert found.headers["cache-control"] == "no-cache, no-store"


def test_a_poll_brings_all_that_waits(peer, polls, token):
    assert polls.poll().body == b""
    peer.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE)
    peer.ask("POST", f"/hub?id={token}", call("1") + call("2"))
    records = polls.poll().body.split(RS)
    assert [json.loads(record) for record in records[:-1]] == [{}, answer("1"), answer("2")]


def test_a_poll_waits_for_what_comes(peer, polls, token):
    polls.poll()
    polls.send()
    peer.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE)
    assert polls.peer.response().body == HANDSHAKE_ANSWER
    polls.send()
    peer.ask("POST", f"/hub?id={token}", call("1"))
    assert json.loads(polls.peer.response().body[:-1]) == answer("1")


def test_a_poll_that_nothing_comes_for_ends_empty_and_the_next_one_waits(tmp_path):
    with broker(tmp_path, "--set", "signalr.poll_timeout_s=1", workers=1) as running, HttpPeer(running) as peer:
        polls = Polls(peer, peer.token())
        polls.poll()
        for _ in range(2):
            found = polls.poll()
            assert (found.status, found.body) == (200, b"")


def test_a_handshake_may_be_posted_before_the_first_poll(peer, polls, token):
    assert peer.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE).status == 200
    assert polls.poll().body == b""
    assert polls.poll().body == HANDSHAKE_ANSWER


def test_a_second_poll_takes_over_and_the_first_is_told_so(peer, connect, polls, token):
    polls.poll()
    polls.send()
    polls.peer.socket.settimeout(30)
    other = Polls(connect(), token)
    other.send()
    assert polls.peer.response().status == 204
    peer.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE)
    assert other.peer.response().body == HANDSHAKE_ANSWER


def test_delete_ends_the_poll_and_a_late_close_finds_nothing(peer, polls, token):
    polls.poll()
    polls.send()
    found = peer.ask("DELETE", f"/hub?id={token}")
    assert (found.status, found.body) == (202, b"")
    assert polls.peer.response().status == 204
    found = peer.ask("POST", f"/hub?id={token}", CLOSE_RECORD)
    assert (found.status, found.body) == (404, b"No Connection with that ID")
    assert polls.poll().status == 404


def test_what_a_hub_connection_said_last_is_still_fetched(peer, polls, token):
    polls.poll()
    peer.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE + CLOSE_RECORD)
    assert polls.poll().body.startswith(HANDSHAKE_ANSWER)
    assert polls.poll().status == 204
    assert polls.poll().status == 404


def test_a_client_that_takes_one_record_of_a_response_gets_one(peer, polls, token):
    assert polls.poll(Accept="Text").body == b""
    peer.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE + call("1") + call("2"))
    assert polls.poll(Accept="Text").body == HANDSHAKE_ANSWER
    assert json.loads(polls.poll(Accept="Text").body[:-1]) == answer("1")
    assert json.loads(polls.poll(Accept="Text").body[:-1]) == answer("2")


def test_a_poll_whose_socket_goes_loses_nothing(peer, connect, polls, token):
    polls.poll()
    polls.send()
    polls.peer.socket.close()
    peer.negotiate()  # the loop has been round since
    peer.negotiate()
    peer.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE)
    assert Polls(connect(), token).poll().body == HANDSHAKE_ANSWER


def test_polls_may_each_have_a_connection_of_their_own(peer, connect, token):
    assert Polls(connect(), token).poll(Connection="close").body == b""
    peer.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE)
    last = Polls(connect(), token)
    assert last.poll(Connection="close").body == HANDSHAKE_ANSWER
    assert last.peer.is_closed()


# ---- connections that nobody comes for ----


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    settings = ("signalr.disconnect_timeout_s=1", "signalr.waiting_max=3", "server.connections_max=20")
    flags = [word for setting in settings for word in ("--set", setting)]
    with broker(tmp_path_factory.mktemp("impatient") / "data", *flags, workers=1) as running:
        yield running


def test_only_so_many_negotiated_connections_wait_and_not_for_long(impatient):
    with HttpPeer(impatient) as peer:
        tokens = [peer.token() for _ in range(3)]
        found = peer.ask("POST", "/hub/negotiate", b"")
        assert found.status == 503 and found.headers["retry-after"]
        found = peer.ask("POST", "/hub/negotiate", b"", Connection="Upgrade", Upgrade="websocket")
        assert found.status == 503
        with HttpPeer(impatient) as socket:
            socket.upgrade().handshake()  # who does not negotiate does not wait
        while peer.ask("POST", "/hub/negotiate", b"").status == 503:
            pass  # they expire within a second
        assert peer.ask("GET", f"/hub?id={tokens[0]}").status == 404


def test_only_so_many_connections_are_between_two_polls(impatient):
    with HttpPeer(impatient) as peer:
        for _ in range(1000):
            found = peer.ask("POST", "/hub/negotiate?negotiateVersion=1", b"")
            if found.status == 503:
                return
            peer.ask("GET", f"/hub?id={found.json['connectionToken']}")
    raise AssertionError("1000 connections without a socket, and one more may come")


def test_a_connection_that_polls_no_more_ends(impatient):
    with HttpPeer(impatient) as peer:
        while (found := peer.ask("POST", "/hub/negotiate?negotiateVersion=1", b"")).status == 503:
            pass
        token = found.json["connectionToken"]
        assert peer.ask("GET", f"/hub?id={token}").status == 200
        while peer.ask("POST", f"/hub?id={token}", b"").status != 404:
            pass


def test_only_so_much_is_taken_before_a_transport_is_there(peer, token):
    ping = b'{"type":6}' + RS
    assert peer.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE).status == 200
    assert peer.ask("POST", f"/hub?id={token}", ping * (MESSAGE_BYTES_MAX // len(ping))).status == 413


def test_only_so_much_is_answered_before_a_transport_is_there(peer, token):
    calls = call("1", "ServerInfo")
    assert peer.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE).status == 200
    peer.ask("POST", f"/hub?id={token}", calls * ((MESSAGE_BYTES_MAX - len(JSON_HANDSHAKE)) // len(calls)))
    assert peer.ask("GET", f"/hub?id={token}").status == 404, "it has ended"


@pytest.mark.parametrize("is_closed", [True, False])
def test_an_answer_that_a_socket_has_not_taken_comes_by_the_next_poll(served, peer, polls, token, is_closed):
    """More than fits into the kernel's buffers, which are small where segments are; its peer reads none of it."""
    assert polls.poll().body == b""
    ids = [str(number) for number in range(12 * 60)]
    assert peer.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE).status == 200
    for at in range(0, len(ids), 60):
        body = b"".join(call(id, "m" * 900) for id in ids[at : at + 60])
        assert peer.ask("POST", f"/hub?id={token}", body).status == 200
    with HttpPeer(served, segment_bytes=536) as slow:
        Polls(slow, token).send()
        slow.until(b"HTTP/1.1 200 OK\r\n")
        if is_closed:
            slow.socket.close()
        body = polls.poll().body
        while body.count(RS) < 1 + len(ids):  # the last calls may have their turn later
            body += polls.poll().body
        assert [json.loads(record) for record in body.split(RS)[:-1]] == [
            {},
            *(answer(id, "m" * 900) for id in ids),
        ]
        peer.ask("POST", f"/hub?id={token}", call("2"))
        assert json.loads(polls.poll().body.rstrip(RS)) == answer("2")


def first_refusal(posts: list[HttpPeer]) -> int:
    """The first status that is not 200, of posts that are answered in any order."""
    unanswered = {post.socket: post for post in posts}
    while True:
        readable, _, _ = select.select(list(unanswered), [], [], DEADLINE_S)
        assert readable, f"{len(unanswered)} posts wait"
        for waiting in readable:
            status = unanswered.pop(waiting).response().status
            if status != 200:
                return status


def test_only_so_many_posts_wait_for_a_peer_that_does_not_fetch_the_answers(peer, connect, polls, token):
    assert polls.poll().body == b""
    assert peer.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE).status == 200
    posts: list[HttpPeer] = []
    for post in range(90):
        body = b"".join(call(f"{post}-{number}", "m" * 900) for number in range(60))
        posts.append(connect())
        posts[-1].send("POST", f"/hub?id={token}", body)
    assert first_refusal(posts) == 503  # some twenty are answered, some wait, and the others are refused


def test_posts_wait_while_a_peer_does_not_fetch_the_answers(peer, connect, polls, token):
    """About two mebibytes of answers; whoever asks for more waits until some are fetched."""
    assert polls.poll().body == b""
    assert peer.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE).status == 200
    calls = call("1", "m" * 900)
    body = calls * (4 * MESSAGE_BYTES_MAX // len(calls))
    posts = 30
    peer.socket.settimeout(30)
    peer.write(peer.request("POST", f"/hub?id={token}", body) * posts)
    fetched = b""
    while fetched.count(RS) < 1 + posts * body.count(RS):
        fetched += polls.poll().body
        assert len(fetched) < posts * len(body) * 2
    assert [peer.response().status for _ in range(posts)] == [200] * posts
