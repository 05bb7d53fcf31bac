# SPDX-License-Identifier: Apache-2.0
"""What the SignalR door answers over HTTP: every status, who may ask, and what a peer that misbehaves can reach."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import urllib.request

import pytest
from fixtures import impatient_broker
from peers.http import (
    CLOSE,
    HANDSHAKE_ANSWER,
    JSON_HANDSHAKE,
    MESSAGE_BYTES_MAX,
    ORIGIN,
    PASSWORDS,
    PING,
    PONG,
    HttpPeer,
    answer,
    call,
    frame,
)
from running import wait_until

HEAD_BYTES_MAX = 32 * 1024
BODY_BYTES_MAX = 4 * MESSAGE_BYTES_MAX
LOCAL = "localhost:2927"
NO_SUCH_ID = "AAAAAAAAAAAAAAAAAAAAAAAAAAAA"
EVENTS = {"Accept": "text/event-stream"}


def basic(user: str, password: str | None = None) -> str:
    secret = PASSWORDS.get(user, "wrong") if password is None else password
    return "Basic " + base64.b64encode(f"{user}:{secret}".encode()).decode()


# ---- the table of answers ----


@pytest.mark.parametrize(
    ("method", "target", "body", "headers", "status", "text"),
    [
        ("GET", "/", None, {}, 404, "There is nothing here; the hub is at /hub."),
        ("GET", "/hubs", None, {}, 404, "There is nothing here; the hub is at /hub."),
        ("GET", "/hub/negotiate/x", None, {}, 404, "There is nothing here; the hub is at /hub."),
        ("GET", "/hub/negotiate", None, {}, 405, "GET is not known here."),
        ("PUT", "/hub", b"", {}, 405, "PUT is not known here."),
        ("PATCH", "/hub", b"x", {}, 405, "PATCH is not known here."),
        ("GET", "/hub", None, {}, 400, "Connection ID required"),
        ("GET", "/hub", None, EVENTS, 400, "Connection ID required"),
        ("POST", "/hub", b"x", {}, 400, "Connection ID required"),
        ("DELETE", "/hub", None, {}, 400, "Connection ID required"),
        ("GET", f"/hub?id={NO_SUCH_ID}", None, {}, 404, "No Connection with that ID"),
        ("GET", f"/hub?id={NO_SUCH_ID}", None, EVENTS, 404, "No Connection with that ID"),
        ("GET", f"/hub?connectionId={NO_SUCH_ID}", None, {}, 404, "No Connection with that ID"),
        ("POST", f"/hub?id={NO_SUCH_ID}", b"x", {}, 404, "No Connection with that ID"),
        ("POST", "/hub?id=%00%ff", b"x", {}, 404, "No Connection with that ID"),
        ("DELETE", f"/hub?id={NO_SUCH_ID}", None, {}, 404, "No Connection with that ID"),
        ("POST", "/hub/token", b"", {}, 401, ""),
    ],
)
def test_a_request_that_is_refused_says_why_and_the_connection_goes_on(
    peer, method, target, body, headers, status, text
):
    found = peer.ask(method, target, body, **headers)
    assert (found.status, found.body.decode()) == (status, text)
    assert found.headers["cache-control"] == "no-cache, no-store" and found.headers["pragma"] == "no-cache"
    assert "connection" not in found.headers
    assert peer.negotiate()["negotiateVersion"] == 1


def test_head_is_told_that_it_is_not_known_without_a_body(peer):
    found = peer.ask("HEAD", "/hub")
    assert found.status == 405 and found.headers["allow"] == "OPTIONS, GET, POST, DELETE"
    assert peer.negotiate()


CHUNKED = b"POST /hub/negotiate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS
        (b"\x00\x00\x00\x1c\x00\x11\x00\x01", 400),  # the streams door
        (b"get / HTTP/1.1\r\n\r\n", 405),
        (b"GET /hub HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /hub HTTP/1.1\r\nHost: localhost\r\nHost: other\r\n\r\n", 400),
        (b"GET /hub HTTP/1.1\r\nHost: localhost\r\nbroken\r\n\r\n", 400),
        (b"GET /hub HTTP/1.1\r\nHost : localhost\r\n\r\n", 400),
        (b"GET /hub HTTP/1.1\r\nHost: localhost\r\nX: a\nb\r\n\r\n", 400),
        (b"GET /hub HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n", 400),
        (b"FETCH /hub HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET /hub HTTP/0.9\r\nHost: localhost\r\n\r\n", 505),
        (b"GET /hub HTTP/3.7\r\nHost: localhost\r\n\r\n", 400),
        (CHUNKED + b"Content-Length: 1\r\n\r\n1\r\nx\r\n0\r\n\r\n", 400),
        (CHUNKED.replace(b"chunked", b"gzip, chunked") + b"\r\n0\r\n\r\n", 501),
        (CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (CHUNKED.replace(b"1.1", b"1.0") + b"\r\n0\r\n\r\n", 400),
        (CHUNKED + b"\r\n\r\n", 400),
        (CHUNKED + b"\r\n-1\r\n", 400),
        (CHUNKED + b"\r\n0x1\r\nx\r\n", 400),
        (CHUNKED + b"\r\n1_0\r\n", 400),
        (CHUNKED + b"\r\n1\nx\r\n0\r\n\r\n", 400),
        (CHUNKED + b"\r\n1\r\nxy\r\n", 400),
        (CHUNKED + b"\r\n000000001\r\nx\r\n", 400),
        (CHUNKED + b"\r\n1;" + b"a" * 254, 400),
        (CHUNKED + b"\r\n4001\r\n", 413),  # 16 KiB and a byte, of a body that nobody reads
        (CHUNKED + b"\r\n0\r\n" + b"X: y\r\n" * 700, 431),
        (b"POST /hub HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: x\r\nContent-Length: 1\r\n\r\nx", 400),
        (b"POST /hub HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /hub HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /hub HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400),
        (b"POST /hub/negotiate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999\r\n\r\n", 413),
        (b"POST /hub?id=x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999\r\n\r\n", 404),
        (b"GET /hub HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 101 + b"\r\n", 431),
        (b"GET /hub?" + b"a=b&" * 40 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_ends(peer, request_, status):
    peer.write(request_)
    found = peer.response()
    assert found.status == status, found
    assert found.headers["connection"] == "close"
    with contextlib.suppress(ConnectionResetError):
        assert peer.is_closed()


def test_a_head_without_an_end_is_refused_at_its_limit(peer):
    peer.write(b"GET /hub HTTP/1.1\r\nX: " + b"a" * (HEAD_BYTES_MAX - 22))
    found = peer.response()
    assert (found.status, found.headers["connection"]) == (431, "close")


def test_a_head_of_the_largest_size_is_read(peer):
    head = peer.request("GET", "/hub", None, X="")[:-2] + b"X: "
    peer.write(head + b"a" * (HEAD_BYTES_MAX - len(head) - 4) + b"\r\n\r\n")
    assert peer.response().status == 400  # for want of an id


# ---- bytes as they come ----


def test_requests_that_come_byte_by_byte_are_answered_as_others(peer):
    token = peer.token()
    peer.drip(peer.request("POST", f"/hub?id={token}", JSON_HANDSHAKE))
    assert peer.response().status == 200
    peer.drip(b"\r\n" + peer.request("GET", f"/hub?id={token}"))
    assert peer.response().body == b""
    peer.drip(peer.request("GET", f"/hub?id={token}"))
    assert peer.response().body == HANDSHAKE_ANSWER


def chunks(*parts: bytes, extension: bytes = b"", trailers: bytes = b"") -> bytes:
    framed = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
    return framed + b"0%b\r\n%b\r\n" % (extension, trailers)


def in_chunks(peer: HttpPeer, method: str, target: str, body: bytes, **headers: str) -> bytes:
    return peer.request(method, target, None, Transfer_Encoding="chunked", **headers) + body


@pytest.mark.parametrize("drips", [False, True])
def test_bodies_in_chunks_are_read_as_others(peer, drips):
    """Proxies send them, and a GET without a body as one that has none."""
    write = peer.drip if drips else peer.write
    token = peer.token()
    write(in_chunks(peer, "GET", f"/hub?id={token}", chunks()))
    assert peer.response().body == b""
    body = JSON_HANDSHAKE + call("1")
    parts = chunks(body[:5], body[5:40], body[40:], extension=b' ;a="b"', trailers=b"X-Sum: 1\r\n")
    write(in_chunks(peer, "POST", f"/hub?id={token}", parts) + in_chunks(peer, "GET", f"/hub?id={token}", chunks()))
    assert peer.response().status == 200
    assert peer.response().body == HANDSHAKE_ANSWER + answer_bytes("1")
    write(in_chunks(peer, "POST", "/hub/negotiate", chunks()) + in_chunks(peer, "GET", "/nothing", chunks(b"ignored")))
    assert peer.response().json["negotiateVersion"] == 0
    assert peer.response().status == 404


def test_a_body_in_chunks_is_asked_for_and_bounded_as_others(peer, connect):
    token = peer.token()
    assert peer.ask("GET", f"/hub?id={token}").status == 200
    peer.write(in_chunks(peer, "POST", f"/hub?id={token}", b"", Expect="100-continue"))
    assert peer.head().status == 100
    ping = b'{"type":6}\x1e'
    parts = [JSON_HANDSHAKE, *[ping * 90] * 60]
    peer.write(chunks(*parts))
    assert peer.response().status == 200
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        peer.write(in_chunks(peer, "POST", f"/hub?id={token}", chunks(*[ping * 90] * 100)))
    found = peer.response()
    assert (found.status, found.headers["connection"]) == (413, "close")
    other = connect()
    other.write(in_chunks(other, "POST", "/hub?id=x", b"", Expect="100-continue"))
    found = other.response()
    assert (found.status, found.headers["connection"]) == (404, "close")


def test_a_body_in_chunks_waits_until_answers_are_fetched(peer, connect):
    token = peer.token()
    assert peer.ask("GET", f"/hub?id={token}").status == 200
    assert peer.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE).status == 200
    # Of answers that nobody fetches no more than 1 MiB is made.
    posters = [connect() for _ in range(6)]
    for number, poster in enumerate(posters):
        calls = b"".join(call(f"{number}-{count}", "x" * 900) for count in range(60))
        for _ in range(4):
            poster.write(in_chunks(poster, "POST", f"/hub?id={token}", chunks(calls[:30_000], calls[30_000:])))
    answered = 0
    while answered < 6 * 4 * 60:
        answered += peer.ask("GET", f"/hub?id={token}").body.count(b'"type":3')
    for poster in posters:
        assert [poster.response().status for _ in range(4)] == [200] * 4


def test_pipelined_requests_are_answered_in_their_order(peer):
    token = peer.token()
    polls = peer.request("GET", f"/hub?id={token}") * 2
    posts = b"".join(peer.request("POST", f"/hub?id={token}", part) for part in (JSON_HANDSHAKE, call("1")))
    many = b"".join(peer.request("GET", f"/{number}") for number in range(100))
    peer.write(posts + polls + many + peer.request("POST", "/hub/negotiate", b""))
    assert [peer.response().status for _ in range(3)] == [200, 200, 200]
    assert peer.response().body == HANDSHAKE_ANSWER + answer_bytes("1")
    assert {peer.response().status for _ in range(100)} == {404}
    assert peer.response().json["negotiateVersion"] == 0


def answer_bytes(id: str) -> bytes:
    return b'{"type":3,"invocationId":"%s","error":"Unknown hub method \'NoSuchMethod\'"}\x1e' % id.encode()


def test_requests_behind_a_pending_poll_wait_for_it(peer, connect):
    token = peer.token()
    assert peer.ask("GET", f"/hub?id={token}").body == b""
    peer.write(peer.request("GET", f"/hub?id={token}") + peer.request("POST", "/hub/negotiate", b""))
    assert connect().ask("POST", f"/hub?id={token}", JSON_HANDSHAKE).status == 200
    assert peer.response().body == HANDSHAKE_ANSWER
    assert peer.response().json["negotiateVersion"] == 0


def test_a_body_is_asked_for_when_its_peer_wants_that(peer):
    token = peer.token()
    whole = peer.request("POST", f"/hub?id={token}", JSON_HANDSHAKE, Expect="100-continue")
    head, _, body = whole.partition(b"\r\n\r\n")
    peer.write(head + b"\r\n\r\n")
    assert peer.head().status == 100
    peer.write(body)
    assert peer.response().status == 200


def test_nobody_is_asked_for_a_body_that_is_refused(peer):
    peer.send("POST", "/hub?id=x", b"", Expect="100-continue", Content_Length="5")
    found = peer.response()
    assert (found.status, found.headers["connection"]) == (404, "close")


def test_a_body_may_have_several_messages_up_to_its_limit(peer):
    token = peer.token()
    assert peer.ask("GET", f"/hub?id={token}").status == 200
    body = JSON_HANDSHAKE + b'{"type":6}\x1e' * ((BODY_BYTES_MAX - len(JSON_HANDSHAKE)) // 11)
    assert peer.ask("POST", f"/hub?id={token}", body).status == 200
    peer.send("POST", f"/hub?id={token}", b"x" * (BODY_BYTES_MAX + 1))
    assert peer.response().status == 413


def test_who_says_close_is_closed_after_the_answer(peer):
    found = peer.ask("GET", "/hub", Connection="close")
    assert found.headers["connection"] == "close"
    assert peer.is_closed()


def test_http_1_0_is_answered_and_kept_only_where_asked(connect):
    old = connect()
    old.write(b"GET /hub HTTP/1.0\r\nHost: localhost\r\n\r\n")
    assert old.response().headers["connection"] == "close" and old.is_closed()
    kept = connect()
    for _ in range(2):
        kept.write(b"GET /hub HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n")
        assert kept.response().headers["connection"] == "keep-alive"


def test_the_absolute_form_of_a_target_and_other_spellings_of_the_path_are_the_same(peer):
    assert peer.ask("POST", f"http://{LOCAL}/hub/negotiate?negotiateVersion=1", b"").status == 200
    assert peer.ask("POST", "/Hub/Negotiate?NEGOTIATEVERSION=1", b"").json["negotiateVersion"] == 1
    assert peer.ask("POST", "/hub/negotiate/", b"").status == 200


# ---- slow peers ----

impatient = impatient_broker("signalr.request_timeout_s")


@pytest.fixture
def slow(impatient):
    with HttpPeer(impatient) as slow:
        yield slow


def test_a_peer_that_says_nothing_is_closed_without_a_word(slow):
    assert slow.is_closed()


@pytest.mark.parametrize("part", [b"GET", b"GET /hub HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_head_that_does_not_end_in_time_is_refused(slow, part):
    slow.write(part)
    assert slow.response().status == 408
    assert slow.is_closed()


def test_a_body_that_does_not_end_in_time_is_refused(slow):
    token = slow.token()
    slow.send("POST", f"/hub?id={token}", b"abc", Content_Length="4")
    assert slow.response().status == 408
    assert slow.is_closed()


# ---- negotiating ----


def test_negotiating_gives_a_public_id_and_a_secret_token(peer):
    found = peer.negotiate("?negotiateVersion=1")
    assert found["negotiateVersion"] == 1
    assert found["connectionId"] != found["connectionToken"]
    assert [each["transport"] for each in found["availableTransports"]] == [
        "WebSockets",
        "ServerSentEvents",
        "LongPolling",
    ]
    assert found["availableTransports"][1]["transferFormats"] == ["Text"]
    assert set(found) == {"negotiateVersion", "connectionId", "connectionToken", "availableTransports"}
    assert peer.negotiate()["connectionToken"] != found["connectionToken"]


@pytest.mark.parametrize(("asked", "told"), [("", 0), ("?negotiateVersion=0", 0), ("?negotiateVersion=7", 1)])
def test_the_version_is_the_highest_that_both_know(peer, asked, told):
    assert peer.negotiate(asked)["negotiateVersion"] == told


def test_in_version_0_the_id_is_the_token(peer, connect):
    found = peer.negotiate("")
    assert "connectionToken" not in found
    assert connect().ask("GET", f"/hub?id={found['connectionId']}").status == 200


@pytest.mark.parametrize("version", ["x", "--5", "1.0", "-"])
def test_a_version_that_is_no_integer_is_an_error_of_negotiating(peer, version):
    assert peer.negotiate(f"?negotiateVersion={version}") == {
        "error": "The client requested a non-integer protocol version."
    }


def test_a_stateful_reconnect_is_promised_only_to_who_asks(peer):
    assert peer.negotiate("?negotiateVersion=1&useStatefulReconnect=true")["useStatefulReconnect"] is True
    assert "useStatefulReconnect" not in peer.negotiate("?negotiateVersion=1&useStatefulReconnect=false")


def test_clients_of_2017_negotiate_by_options(peer):
    found = peer.ask("OPTIONS", "/hub", X_Requested_With="XMLHttpRequest")
    assert found.status == 200 and found.headers["allow"] == "GET, POST, OPTIONS"
    assert found.headers["content-type"] == "application/json"
    assert found.json["availableTransports"] == ["WebSockets", "ServerSentEvents", "LongPolling"]
    assert peer.ask("GET", f"/hub?connectionId={found.json['connectionId']}").status == 200


# ---- the WebSocket upgrade ----


def test_an_upgrade_is_accepted_with_the_hash_of_its_key(peer):
    key = base64.b64encode(bytes(16)).decode()
    peer.write(peer.upgrade_request(Sec_WebSocket_Key=key))
    found = peer.head()
    wanted = base64.b64encode(hashlib.sha1(key.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()).decode()
    assert (found.status, found.headers["sec-websocket-accept"]) == (101, wanted)
    assert found.headers["upgrade"] == "websocket" and found.headers["connection"] == "Upgrade"
    assert "sec-websocket-extensions" not in found.headers and "content-length" not in found.headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec_WebSocket_Version": "8"}, 426),
        ({"Sec_WebSocket_Version": ""}, 426),
        ({"Sec_WebSocket_Key": ""}, 400),
        ({"Sec_WebSocket_Key": "c2hvcnQ="}, 400),
        ({"Sec_WebSocket_Key": "!" * 24}, 400),
        ({"Upgrade": "h2c"}, 400),  # an ordinary GET then, for want of an id
        ({"Connection": "keep-alive"}, 400),
    ],
)
def test_an_upgrade_that_cannot_be_is_refused(peer, headers, status):
    peer.write(peer.upgrade_request(**headers))
    found = peer.response()
    assert found.status == status
    assert (found.headers.get("sec-websocket-version") == "13") is (status == 426)


def test_an_unknown_id_has_no_socket_but_an_invented_connection_id_gets_a_new_one(connect):
    one = connect()
    one.write(one.upgrade_request(f"/hub?id={NO_SUCH_ID}"))
    assert one.response().status == 404
    connect().upgrade("/hub?connectionId=0123456789").handshake()


def test_an_id_has_one_socket(peer, connect):
    token = peer.token()
    peer.upgrade(f"/hub?id={token}").handshake()
    other = connect()
    other.write(other.upgrade_request(f"/hub?id={token}"))
    assert other.response().status == 409
    peer.put(call("1"))
    assert peer.next_frame().records == [answer("1")]


def test_the_transport_of_a_connection_cannot_be_changed(peer, connect):
    token = peer.token()
    socket = connect().upgrade(f"/hub?id={token}")
    assert peer.ask("GET", f"/hub?id={token}").body == b"Cannot change transports mid-connection"
    assert peer.ask("GET", f"/hub?id={token}", **EVENTS).status == 400
    found = peer.ask("POST", f"/hub?id={token}", JSON_HANDSHAKE)
    assert (found.status, found.body) == (405, b"POST requests are not allowed for WebSocket connections.")
    assert peer.ask("DELETE", f"/hub?id={token}").status == 400
    socket.handshake()
    polled = peer.token()
    assert peer.ask("GET", f"/hub?id={polled}").status == 200
    peer.write(peer.upgrade_request(f"/hub?id={polled}"))
    assert peer.response().body == b"Cannot change transports mid-connection"


def test_frames_right_behind_the_upgrade_are_read(peer):
    peer.write(peer.upgrade_request() + frame(1, JSON_HANDSHAKE + call("1")) + frame(PING, b"?"))
    assert peer.head().status == 101
    assert peer.next_frame().records == [{}, answer("1")]
    assert peer.next_frame() == (PONG, b"?")
    peer.write(frame(CLOSE, b"\x03\xe8"))
    assert peer.next_frame() == (CLOSE, b"\x03\xe8") and peer.is_closed()


# ---- pages ----


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost:1", "null", "https://shop.example.evil"])
def test_a_page_of_a_foreign_origin_reaches_nothing(peer, connect, origin):
    token = peer.token()
    for method, target in [
        ("POST", "/hub/negotiate"),
        ("POST", f"/hub?id={token}"),
        ("GET", f"/hub?id={token}"),
        ("DELETE", f"/hub?id={token}"),
        ("OPTIONS", "/hub"),
    ]:
        found = peer.ask(method, target, b"" if method == "POST" else None, Origin=origin)
        assert found.status == 403 and "access-control-allow-origin" not in found.headers, (method, target)
    peer.write(peer.upgrade_request(Origin=origin))
    assert peer.response().status == 403


def test_a_page_of_a_configured_origin_may_use_everything(peer, connect):
    for origin in (ORIGIN, "http://app.example:3000"):
        found = peer.ask("POST", "/hub/negotiate?negotiateVersion=1", b"", Origin=origin)
        assert found.status == 200
        assert found.headers["access-control-allow-origin"] == origin
        assert found.headers["access-control-allow-credentials"] == "true" and found.headers["vary"] == "Origin"
    connect().upgrade(Origin=ORIGIN).handshake()


def test_a_page_of_our_own_may_use_everything(peer, connect):
    assert peer.ask("POST", "/hub/negotiate", b"", Origin=f"http://{peer.host}").status == 200
    connect().upgrade(Origin=f"http://{peer.host}").handshake()


def test_a_browser_that_asks_first_is_told_only_of_configured_origins(peer):
    asking = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization"}
    found = peer.ask("OPTIONS", "/hub/negotiate", Origin=ORIGIN, **asking)
    assert found.status == 204 and found.headers["access-control-allow-origin"] == ORIGIN
    assert found.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    assert "authorization" in found.headers["access-control-allow-headers"]
    found = peer.ask("OPTIONS", "/hub/negotiate", Origin="https://evil.example", **asking)
    assert found.status == 204 and not any(name.startswith("access-control") for name in found.headers)


@pytest.mark.parametrize("host", ["evil.example:2927", "127.0.0.1.evil.example", "localhost.evil.example", ""])
def test_where_nobody_logs_in_no_name_of_a_stranger_reaches_the_broker(peer, host):
    """A page may have its own name lead to 127.0.0.1, and is of our origin then."""
    headers = {"Host": host} if host else {"Host": "evil.example", "Origin": "http://evil.example"}
    assert peer.ask("POST", "/hub/negotiate", b"", **headers).status == 403
    peer.write(peer.upgrade_request(**headers))
    assert peer.response().status == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:2927", "[::1]", "a.localhost"])
def test_names_that_only_this_machine_gives_are_ours(peer, host):
    assert peer.ask("POST", "/hub/negotiate", b"", Host=host).status == 200


# ---- users ----


@pytest.fixture
def guest(guarded):
    with HttpPeer(guarded) as found:
        yield found


@pytest.mark.parametrize(
    "authorization", ["", "Basic", "Basic !!!", "Basic YWRh", "Bearer", "Bearer nonsense", "Digest x"]
)
def test_who_does_not_log_in_gets_nothing(guest, authorization):
    for method, target in [
        ("POST", "/hub/negotiate"),
        ("OPTIONS", "/hub"),
        ("GET", "/hub?id=x"),
        ("POST", "/hub?id=x"),
    ]:
        found = guest.ask(method, target, b"" if method == "POST" else None, Authorization=authorization)
        assert (found.status, found.body, found.reason) == (401, b"", "Unauthorized")
        assert found.headers["www-authenticate"] == 'Basic realm="VibeMQ", Bearer'
    guest.write(guest.upgrade_request(Authorization=authorization))
    assert guest.response().status == 401


@pytest.mark.parametrize(
    "header",
    ["Origin: " + ORIGIN, "Sec-Fetch-Mode: cors", "X-Requested-With: XMLHttpRequest", "User-Agent: Mozilla/5.0"],
)
def test_a_browser_is_not_made_to_ask_its_user_for_a_password(guest, header):
    name, _, value = header.partition(": ")
    found = guest.ask("POST", "/hub/negotiate", b"", Authorization=basic("ada", "wrong"), **{name: value})
    assert (found.status, found.headers["www-authenticate"]) == (401, "Bearer")


def test_a_password_lets_in_and_a_wrong_one_does_not(guest):
    assert guest.negotiate(Authorization=basic("ada"))["negotiateVersion"] == 1
    for wrong in (basic("ada", "wrong"), basic("nobody")):
        assert guest.ask("POST", "/hub/negotiate", b"", Authorization=wrong).status == 401
    assert guest.negotiate(Authorization=basic("ada"))["negotiateVersion"] == 1


def test_requests_behind_a_login_wait_for_it(guest):
    request = guest.request("POST", "/hub/negotiate", b"", Authorization=basic("ada"))
    wrong = guest.request("POST", "/hub/negotiate", b"x" * 100, Authorization=basic("ada", "wrong"))
    guest.write(wrong + request)
    assert [guest.response().status, guest.response().status] == [401, 200]


def test_guest_comes_in_from_this_machine(guest):
    assert guest.negotiate(Authorization=basic("guest", "guest"))


def test_a_token_for_a_password_opens_all_transports(guest, guarded):
    found = guest.ask("POST", "/hub/token", b"", Authorization=basic("ada"))
    assert found.status == 200 and found.json["expiresIn"] == 3600
    token = found.json["accessToken"]
    assert guest.negotiate(Authorization=f"Bearer {token}")
    id = guest.negotiate(f"?negotiateVersion=1&access_token={token}")["connectionToken"]
    with HttpPeer(guarded) as socket:
        socket.upgrade(f"/hub?id={id}&access_token={token}").handshake()
    with HttpPeer(guarded) as socket:
        socket.upgrade(f"/hub?access_token={token}").handshake()


def test_a_token_is_not_given_for_a_token(guest):
    token = guest.ask("POST", "/hub/token", b"", Authorization=basic("ada")).json["accessToken"]
    assert guest.ask("POST", "/hub/token", b"", Authorization=f"Bearer {token}").status == 401


def test_a_connection_belongs_to_who_began_it(guest):
    token = guest.token(Authorization=basic("ada"))
    for method in ("GET", "POST", "DELETE"):
        found = guest.ask(method, f"/hub?id={token}", b"" if method == "POST" else None, Authorization=basic("bob"))
        assert found.status == 403, method
    assert guest.ask("GET", f"/hub?id={token}", Authorization=basic("ada")).status == 200


def test_where_users_log_in_the_broker_may_have_any_name_but_pages_need_their_entry(guest):
    assert guest.ask("POST", "/hub/negotiate", b"", Host="broker.example", Authorization=basic("ada")).status == 200
    found = guest.ask("POST", "/hub/negotiate", b"", Origin="https://evil.example", Authorization=basic("ada"))
    assert found.status == 403


# ---- operators ----


def test_the_admin_side_lists_the_connections(peer, served):
    peer.upgrade().handshake()
    request = urllib.request.Request(f"http://127.0.0.1:{served.admin_port}/api/connections")
    request.add_header("Authorization", basic("guest", "guest"))

    ours = peer.socket.getsockname()

    def found() -> list[dict]:
        with urllib.request.urlopen(request) as answered:
            return [each for each in json.load(answered) if each["name"].startswith(f"{ours[0]}:{ours[1]} ->")]

    wait_until(lambda: bool(found()), "the connection is listed")
    (shown,) = found()
    assert (shown["protocol"], shown["vhost"], shown["peer_host"]) == ("SignalR", "/", "127.0.0.1")
    assert shown["client_properties"]["transport"] == "WebSockets"
