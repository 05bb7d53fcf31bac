# SPDX-License-Identifier: Apache-2.0
"""The native client's two faces against a server in memory: publishing, consuming, queues, users."""

import asyncio
import json
import logging
import shutil
import ssl
import subprocess
import threading
import traceback
from dataclasses import asdict, dataclass

import pytest
from peers.native import publish_ack_frame
from peers.native_server import NativeServer, Queue

from vibemq.client import QueueOptions, aconnect, connect
from vibemq.errors import (
    AccountRefused,
    AuthenticationFailed,
    ConfigError,
    ConnectionClosed,
    InvalidRequest,
    LimitExceeded,
    NotAuthorized,
    ProtocolError,
    QueueFull,
    QueueNotFound,
    RateLimited,
    RequestFailed,
    ServerFailed,
    TimeoutExceeded,
    UserError,
)
from vibemq.protocols.native import codec
from vibemq.protocols.native.codec import UnencodableValue
from vibemq.protocols.native.spec import Command, DeliveryMode, ErrorCode, OverflowStrategy


def payloads(server, queue):
    return [json.loads(payload) for _, payload, _, _ in server.queues[queue].waiting]


# ---- connecting ----


def test_connect_says_who_we_are_and_what_we_know(server):
    with connect(f"vibemq://ada:s%20cret@127.0.0.1:{server.port}") as client:
        assert client.state.value == "connected"
        assert client.server_version == "memory"
    (frame,) = server.of(Command.CONNECT)
    assert frame.headers["authUsername"] == "ada"
    assert frame.headers["authPassword"] == "s cret"
    assert frame.headers["supported-compression"] == "brotli,gzip"
    assert frame.headers["features"] == "nack,holding,purge,stored,alter,dedup"
    assert frame.headers["vibemq-client"] == client._engine.core.prefix.decode()
    assert frame.headers["clientVersion"].startswith("vibemq-python/")
    assert server.await_frames(Command.DISCONNECT)


def test_a_wrong_password_is_an_error_at_once():
    with NativeServer(password="right") as server:
        with pytest.raises(AuthenticationFailed, match="Invalid username or password"):
            connect(f"vibemq://ada:wrong@127.0.0.1:{server.port}")
        assert len(server.of(Command.CONNECT)) == 1


def test_a_port_where_nobody_listens_is_an_error_with_its_place(server):
    port = server.port
    server.do(server._close())
    with pytest.raises(ConnectionClosed, match=f"127.0.0.1:{port}: could not connect") as raised:
        connect(f"vibemq://127.0.0.1:{port}")
    assert "".join(traceback.format_exception(raised.value)).count("Traceback") == 1, "no chain of causes"


def test_a_server_that_ends_the_connection_instead_of_answering_is_an_error(server):
    server.replies[Command.CONNECT] = lambda connection, frame: connection.transport.close() or []
    with pytest.raises(ConnectionClosed, match="the broker closed the connection"):
        connect(server.url)


def test_a_server_that_never_answers_is_given_up(server):
    server.replies[Command.CONNECT] = lambda connection, frame: []
    with pytest.raises(TimeoutExceeded, match="logging in"):
        connect(server.url, connect_timeout_s=0.5)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP server answers there, not a broker's native door"),
        (b"AMQP\x00\x00\x09\x01", "something else answers there, not a broker's native door: body size"),
    ],
    ids=["http", "amqp"],
)
def test_who_speaks_another_protocol_is_named(server, answer, told):
    server.replies[Command.CONNECT] = lambda connection, frame: [answer]
    with pytest.raises(ProtocolError, match=f"^127.0.0.1:{server.port}: {told}") as caught:
        connect(server.url)
    assert "2925" in caught.value.hint


def test_bytes_that_are_no_frame_end_the_connection_with_what_was_wrong(server):
    server.replies[Command.LIST_QUEUES] = lambda connection, frame: [b"HTTP/1.1 400 Bad Request\r\n\r\n"]
    with (
        connect(server.url, reconnect=False) as client,
        pytest.raises(ProtocolError, match=f"127.0.0.1:{server.port}: body size"),
    ):
        client.list_queues()


def test_frames_may_come_byte_by_byte():
    with NativeServer(dribble=True) as server, connect(server.url) as client:
        assert client.publish_many("q", range(50)).published == 50
        consumer = client.consume("q")
        assert [next(consumer).payload for _ in range(50)] == list(range(50))


@pytest.fixture
def certificate(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(chain)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    return context


def test_tls_wants_a_certificate_that_it_can_trust_unless_told_otherwise(certificate):
    with NativeServer(tls=certificate) as server:
        with connect(f"{server.url}?tls=true&skipCertValidation=true") as client:
            assert client.publish_many("q", range(100)).published == 100
        with pytest.raises(ConnectionClosed, match="certificate verify failed") as refused:
            connect(f"{server.url}?tls=true")
        assert "--ca-file" in refused.value.hint and "tlsCa" in refused.value.hint


def test_a_closed_client_says_so(server):
    client = connect(server.url)
    client.close()
    client.close()
    with pytest.raises(ConnectionClosed, match="the client is closed"):
        client.publish("q", 1)


def test_the_client_may_not_be_used_in_its_own_thread(server):
    problems, told, box = [], threading.Event(), []

    def on_connection(state, error):
        if box and state.value == "closed":
            try:
                box[0].publish("q", 1)
            except UserError as problem:
                problems.append(problem)
            told.set()

    box.append(connect(server.url, on_connection=on_connection))
    box[0].close()
    assert told.wait(10)
    assert len(problems) == 1


# ---- publishing ----


def test_publish_waits_for_the_ack_and_gives_the_id(server, client):
    id = client.publish("q", {"a": 1}, headers={"h": "ü"}, priority="high")
    (frame,) = server.of(Command.PUBLISH)
    assert frame.id.decode() == id
    assert len(id) == 32
    assert (frame.queue, frame.payload) == ("q", b'{"a":1}')
    assert frame.headers == {"h": "ü", "priority": "High"}


def test_an_id_may_be_chosen_and_be_chosen_twice(server, client):
    assert client.publish("q", 1, id="mine") == "mine"
    assert client.publish("q", 2, id="mine") == "mine"
    with client.publisher("q") as publisher:
        for _ in range(5):
            publisher.publish(3, id="mine")
        assert publisher.flush().published == 5
    assert [frame.id for frame in server.of(Command.PUBLISH)] == [b"mine"] * 7


def test_an_id_that_looks_like_ours_is_not_taken_for_ours(client):
    ours = client.publish("q", 1)
    assert client.publish("q", 2, id=ours) == ours
    assert client.publish("q", 3, id=ours[:16] + "f" * 16) == ours[:16] + "f" * 16


@pytest.mark.parametrize("payload", [b"\x00\xff", bytearray(b"abc"), b""])
def test_bytes_come_out_as_bytes(client, payload):
    client.publish("q", payload)
    assert next(client.consume("q")).payload == bytes(payload)


def test_raw_json_is_sent_as_it_is(server, client):
    client.publish("q", b'{"a" : 1}', raw=True)
    client.publish("q", "[2]", raw=True)
    assert [frame.payload for frame in server.of(Command.PUBLISH)] == [b'{"a" : 1}', b"[2]"]


def test_what_json_cannot_say_is_the_callers_error_and_nothing_is_sent(server, client):
    with pytest.raises(TypeError):
        client.publish("q", object())
    with pytest.raises(TypeError, match="headers are texts"):
        client.publish("q", 1, headers={"n": 1})
    with pytest.raises(UnencodableValue, match="queue"):
        client.publish("no spaces", 1)
    with pytest.raises(LimitExceeded):
        client.publish("q", "x" * 1_048_576)
    with pytest.raises(UnencodableValue, match="id"):
        client.publish("q", 1, id="")
    assert server.of(Command.PUBLISH) == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.QUEUE_FULL, QueueFull),
        (ErrorCode.QUEUE_NOT_FOUND, QueueNotFound),
        (ErrorCode.NOT_AUTHORIZED, NotAuthorized),
        (ErrorCode.INVALID_MESSAGE, InvalidRequest),
        (ErrorCode.RATE_LIMITED, RateLimited),
        (ErrorCode.SERVER_ERROR, ServerFailed),
        (ErrorCode.NOT_AUTHENTICATED, AuthenticationFailed),
    ],
)
def test_what_the_broker_refuses_is_an_error_of_its_own_kind(server, client, code, kind):
    server.replies[Command.PUBLISH] = lambda connection, frame: connection.refuse(frame, code, "Because.")
    with pytest.raises(kind, match=f"queue q.*Because. \\({code}\\)") as caught:
        client.publish("q", 1)
    if isinstance(caught.value, RequestFailed):
        assert caught.value.code == code


def test_an_error_code_that_nobody_knows_is_a_failed_request(server, client):
    server.replies[Command.PUBLISH] = lambda connection, frame: [
        codec.encode_frame(Command.ERROR, frame.id, error_code="NEW", error_message="?")
    ]
    with pytest.raises(RequestFailed) as caught:
        client.publish("q", 1)
    assert (type(caught.value), caught.value.code) == (RequestFailed, "NEW")


def test_a_publish_without_an_answer_is_given_up_and_forgotten(server):
    server.replies[Command.PUBLISH] = lambda connection, frame: []
    with connect(server.url, command_timeout_s=0.05) as client:
        with pytest.raises(TimeoutExceeded, match="1 message was sent, and not acknowledged"):
            client.publish("q", 1, id="x")
        assert client._engine.core.unacknowledged() == b""


@pytest.mark.parametrize("window", [1, 3, 1000])
def test_publish_many_keeps_order_and_counts(server, client, window):
    summary = client.publish_many("q", ({"n": n} for n in range(500)), window=window, headers={"k": "v"})
    assert (summary.published, summary.failed) == (500, [])
    assert payloads(server, "q") == [{"n": n} for n in range(500)]
    assert {json.dumps(frame.headers) for frame in server.of(Command.PUBLISH)} == {'{"k": "v"}'}


def test_no_more_than_the_window_is_on_its_way(server, client):
    held = []

    def hold(connection, frame):
        held.append((connection, frame))
        if len(held) < 40:
            return []
        answers = [publish_ack_frame(f.id, b"q") for _, f in held]
        peak.append(len(held))
        held.clear()
        return answers

    peak = []
    server.replies[Command.PUBLISH] = hold
    assert client.publish_many("q", range(400), window=40).published == 400
    assert peak == [40] * 10  # the 41st would have come before the 40th was answered


def test_acks_may_come_in_any_order_and_twice(server, client):
    held = []

    def shuffle(connection, frame):
        held.append(publish_ack_frame(frame.id, b"q"))
        return held[::-1] + held if len(held) == 100 else []

    server.replies[Command.PUBLISH] = shuffle
    assert client.publish_many("q", range(100)).published == 100


def test_publish_many_says_which_failed(server, client):
    def odd(connection, frame):
        return connection.refuse(frame, ErrorCode.QUEUE_FULL) if json.loads(frame.payload) % 10 == 3 else None

    server.replies[Command.PUBLISH] = odd
    summary = client.publish_many("q", range(30))
    assert summary.published == 27
    assert [refused.index for refused in summary.failed] == [3, 13, 23]
    assert all(isinstance(refused.error, QueueFull) for refused in summary.failed)
    assert summary.failed[0].id == server.of(Command.PUBLISH)[3].id.decode()
    with pytest.raises(QueueFull):
        summary.raise_failed()


def test_a_payload_that_fails_ends_publish_many_with_its_error(client):
    def bad():
        yield 1
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        client.publish_many("q", bad())


def test_a_table_of_many_in_flight_grows(server, client):
    held = []

    def hold(connection, frame):
        held.append(publish_ack_frame(frame.id, b"q"))
        return held if len(held) == 20_000 else []

    server.replies[Command.PUBLISH] = hold
    assert client.publish_many("q", range(20_000), window=20_000).published == 20_000


def test_a_publisher_sends_what_it_has_without_being_flushed(server, client):
    publisher = client.publisher("q")
    publisher.publish(1)
    assert server.await_frames(Command.PUBLISH)
    assert publisher.flush().published == 1
    assert publisher.flush().published == 0


def test_threads_may_share_a_publisher(server, client):
    with client.publisher("q", window=50) as publisher:
        threads = [threading.Thread(target=lambda: [publisher.publish(n) for n in range(300)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert publisher.flush().published == 1200
    assert sorted(payloads(server, "q")) == sorted(list(range(300)) * 4)


def test_leaving_a_publisher_raises_what_nobody_has_looked_at(server, client):
    server.replies[Command.PUBLISH] = lambda connection, frame: connection.refuse(frame, ErrorCode.QUEUE_FULL)
    with pytest.raises(QueueFull), client.publisher("q") as publisher:
        publisher.publish(1)


# ---- compression ----


@pytest.mark.parametrize("name", ["brotli", "gzip", "zstd"])
def test_large_bodies_are_compressed_with_what_was_agreed(name):
    with NativeServer(compression=(name,)) as server, connect(server.url, compression=("zstd", "brotli", "gzip")) as c:
        c.publish("q", "x" * 5000)
        c.publish("q", "small")
        flags = [flag for frame, flag in zip(server.frames, server.flags, strict=True) if frame.type == Command.PUBLISH]
        assert [flag != 0 for flag in flags] == [True, False]
        consumer = c.consume("q")
        assert [next(consumer).payload for _ in range(2)] == ["x" * 5000, "small"]


def test_compression_none_offers_nothing():
    with NativeServer(compression=("gzip",)) as server, connect(f"{server.url}?compression=none") as client:
        client.publish("q", "x" * 5000)
        assert "supported-compression" not in server.of(Command.CONNECT)[0].headers
        assert set(server.flags) == {0}


# ---- consuming ----


def test_messages_are_handed_out_and_acknowledged(server, client):
    client.publish("q", {"a": 1}, headers={"h": "v"}, id="m1")
    message = next(client.consume("q", prefetch=7))
    assert (message.id, message.queue, message.payload, message.raw) == ("m1", "q", {"a": 1}, b'{"a":1}')
    assert (message.headers, message.attempts) == ({"h": "v"}, 1)
    message.ack()
    message.ack()
    message.nack()
    (ack,) = server.await_frames(Command.ACK)
    assert (ack.id, ack.queue) == (b"m1", "q")
    assert server.of(Command.SUBSCRIBE)[0].headers == {"prefetch": "7", "vibemq-create": "false"}
    client.list_queues()
    assert len(server.of(Command.ACK)) == 1
    assert server.of(Command.NACK) == []


def test_a_payload_can_be_decoded_as_a_type(client):
    @dataclass
    class Order:
        number: int

    client.publish("q", {"number": 3})
    assert next(client.consume("q")).decode(Order) == Order(3)


def test_a_printed_message_shows_how_its_payload_begins(client):
    client.publish_many("q", [{"number": 3}, "x" * 1000])
    consumer = client.consume("q")
    assert """payload='{"number":3}')""" in repr(next(consumer))
    assert "xxx'... of 1002 bytes" in (long := repr(next(consumer))) and len(long) < 250


def test_a_message_without_a_payload_is_none(server, client):
    server.queues["q"] = Queue()
    server.queues["q"].waiting.append((b"m", None, {}, 0))
    message = next(client.consume("q"))
    assert (message.payload, message.raw) == (None, b"")


def test_nack_gives_the_message_back(server, client):
    client.publish("q", 1)
    consumer = client.consume("q")
    next(consumer).nack()
    assert next(consumer).attempts == 2


def test_without_the_feature_nothing_is_said_about_a_nack():
    with NativeServer(features="") as server, connect(server.url) as client:
        client.publish("q", 1)
        message = next(client.consume("q"))
        message.nack()
        client.list_queues()
        assert not message.settled
        assert server.of(Command.NACK) == []
        with pytest.raises(InvalidRequest, match="cannot purge"):
            client.purge_queue("q")
        assert server.of(Command.PURGE_QUEUE) == []


def test_auto_ack_acknowledges_when_the_next_is_asked_for(server, client):
    client.publish_many("q", range(3))
    with client.consume("q", auto_ack=True) as consumer:
        assert next(consumer).payload == 0
        assert next(consumer).payload == 1
    server.await_frames(Command.UNSUBSCRIBE)
    assert len(server.of(Command.ACK)) == 2
    assert payloads(server, "q") == [2]


def test_auto_ack_gives_back_what_an_error_interrupted(server, client):
    client.publish("q", 1)
    with pytest.raises(KeyError), client.consume("q", auto_ack=True) as consumer:
        next(consumer)
        raise KeyError
    server.await_frames(Command.UNSUBSCRIBE)
    assert len(server.of(Command.NACK)) == 1
    assert payloads(server, "q") == [1]


def test_breaking_out_of_a_loop_unsubscribes(server, client):
    client.publish_many("q", range(3))
    for message in client.consume("q"):
        message.ack()
        break
    server.await_frames(Command.UNSUBSCRIBE)
    assert payloads(server, "q") == [1, 2]


def test_iteration_ends_when_nothing_came_for_long_enough(client):
    client.publish_many("q", range(3))
    consumer, seen = client.consume("q", timeout_s=0.1), []
    for _ in range(100):  # of a slow server it may end sooner; it can be asked again
        seen += [message.payload for message in consumer]
        if len(seen) >= 3:
            break
    assert seen == [0, 1, 2]


def test_iteration_ends_when_the_client_is_closed(server):
    client = connect(server.url)
    consumer = client.consume("q")
    consumer.open()
    client.close()
    assert list(consumer) == []


def test_a_further_consumer_of_a_queue_has_a_connection_of_its_own_while_the_first_is_there(server, client):
    first, second = client.consume("q"), client.consume("q")
    first.open()
    second.open()
    assert len(server.connections) == 2
    second.close()
    assert len(server.await_frames(Command.DISCONNECT)) == 1
    first.close()
    client.consume("q").open()
    assert len(server.of(Command.CONNECT)) == 2


def test_a_refused_subscription_is_an_error(server, client):
    server.replies[Command.SUBSCRIBE] = lambda connection, frame: connection.refuse(frame, ErrorCode.NOT_AUTHORIZED)
    with pytest.raises(NotAuthorized, match=r"SUBSCRIBE \(22\) q"):
        next(client.consume("q"))


def test_a_handler_that_returns_acks_and_one_that_raises_nacks(server, client, caplog):
    done = threading.Event()
    seen = []

    def handler(message):
        seen.append((message.payload, message.attempts))
        client.publish("log", message.payload)  # a handler may use the client
        if message.attempts == 1:
            raise ValueError("first time")
        done.set()

    with caplog.at_level(logging.CRITICAL, "vibemq.client"):
        subscription = client.subscribe("q", handler)
        client.publish("q", 5)
        assert done.wait(10)
        subscription.close()
    assert seen == [(5, 1), (5, 2)]
    assert len(server.of(Command.NACK)) == 1
    assert len(server.of(Command.ACK)) == 1
    assert server.of(Command.UNSUBSCRIBE)
    assert payloads(server, "q") == []


def test_a_handler_may_close_its_own_subscription(server, client):
    box = []

    def handler(message):
        box[0].close()

    box.append(client.subscribe("q", handler))
    client.publish("q", 1)
    server.await_frames(Command.UNSUBSCRIBE)


def test_deliveries_of_a_queue_that_nobody_reads_are_dropped(server, client):
    server.send(codec.encode_frame(Command.DELIVER, "m", queue="other", payload=b"1"))
    assert client.list_queues() == []


# ---- queues ----


def test_queues_are_made_described_listed_purged_and_deleted(server, client):
    client.create_queue("q", mode="priority_based", max_messages=5, message_ttl_ms=1500, overflow="drop_newest")
    options = QueueOptions(DeliveryMode.PRIORITY_BASED, 5, 1500, overflow=OverflowStrategy.DROP_NEWEST)
    assert server.queues["q"].options == options
    client.publish("q", 1)
    info = client.queue_info("q")
    assert (info.name, info.messages, info.in_flight, info.subscribers) == ("q", 1, 0, 0)
    assert info.options == options
    assert info.created.year == 2023
    assert client.list_queues() == ["q"]
    client.purge_queue("q")
    assert client.queue_info("q").messages == 0
    client.delete_queue("q")
    with pytest.raises(QueueNotFound, match="there is no queue q"):
        client.queue_info("q")


def test_a_queue_that_is_not_there_cannot_be_deleted_unless_it_need_not_be_there(server, client):
    with pytest.raises(QueueNotFound, match="there is no queue typo to delete") as raised:
        client.delete_queue("typo")
    assert "missing_ok=True" in raised.value.hint
    client.delete_queue("typo", missing_ok=True)
    server.replies[Command.DELETE_QUEUE] = lambda connection, frame: connection.refuse(frame, ErrorCode.QUEUE_NOT_FOUND)
    client.delete_queue("typo", missing_ok=True)
    with pytest.raises(QueueNotFound):
        client.delete_queue("typo")


def test_who_may_not_ask_for_a_queue_sees_in_the_list_whether_it_is_there(server, client):
    client.create_queue("q")
    server.replies[Command.QUEUE_INFO] = lambda connection, frame: connection.refuse(frame, ErrorCode.NOT_AUTHORIZED)
    with pytest.raises(NotAuthorized):
        client.queue_info("q")
    client.delete_queue("q")
    with pytest.raises(QueueNotFound):
        client.delete_queue("q")


def test_an_error_for_a_missing_queue_is_understood_too(server, client):
    server.replies[Command.QUEUE_INFO] = lambda connection, frame: connection.refuse(frame, ErrorCode.QUEUE_NOT_FOUND)
    with pytest.raises(QueueNotFound):
        client.queue_info("q")


@pytest.mark.parametrize(
    "changes", [{"mode": "fast"}, {"colour": "red"}, {"overflow": "redirect_to_dlq"}, {"mode": 9}], ids=str
)
def test_options_that_cannot_be_are_refused_before_anything_is_sent(server, client, changes):
    with pytest.raises(ConfigError):
        client.create_queue("q", **changes)
    assert server.of(Command.CREATE_QUEUE) == []


def test_a_request_without_an_answer_is_given_up(server):
    server.replies[Command.LIST_QUEUES] = lambda connection, frame: []
    with connect(server.url, command_timeout_s=0.05) as client, pytest.raises(TimeoutExceeded, match="LIST_QUEUES"):
        client.list_queues()


# ---- users ----


def test_users_and_permissions_go_over_the_wire_as_other_clients_write_them(server, client):
    answers = {
        Command.ADMIN_LIST_USERS: b'[{"username":"ada","isSuperuser":true,"createdAt":86400}]',
        Command.ADMIN_GET_USER_PERMISSIONS: b'[{"queuePattern":"a.*","operations":["Publish"]}]',
    }
    for command in Command:
        if command.name.startswith("ADMIN_"):
            server.replies[command] = lambda connection, frame: connection.reply(
                frame, Command(frame.type), answers.get(frame.type, b"{}")
            )
    client.create_user("ada", "secret")
    client.change_password("ada", "other")
    client.grant("ada", "a.*", "Publish", "Subscribe")
    client.revoke("ada", "a.*")
    client.delete_user("ada")
    (user,) = client.list_users()
    assert (user.name, user.is_superuser, user.created.isoformat()) == ("ada", True, "1970-01-02T00:00:00+00:00")
    (permission,) = client.permissions("ada")
    assert (permission.pattern, permission.operations) == ("a.*", ("Publish",))
    assert asdict(permission) == {"pattern": "a.*", "operations": ("Publish",)}
    sent = {frame.type: frame.payload and json.loads(frame.payload) for frame in server.frames if frame.type >= 50}
    assert sent == {
        Command.ADMIN_CREATE_USER: {"username": "ada", "password": "secret"},
        Command.ADMIN_CHANGE_PASSWORD: {"username": "ada", "newPassword": "other"},
        Command.ADMIN_GRANT_PERMISSION: {
            "username": "ada",
            "queuePattern": "a.*",
            "operations": ["Publish", "Subscribe"],
        },
        Command.ADMIN_REVOKE_PERMISSION: {"username": "ada", "queuePattern": "a.*"},
        Command.ADMIN_DELETE_USER: {"username": "ada"},
        Command.ADMIN_LIST_USERS: None,
        Command.ADMIN_GET_USER_PERMISSIONS: {"username": "ada"},
    }


def test_a_refused_account_command_says_which(server, client):
    server.replies[Command.ADMIN_CREATE_USER] = lambda connection, frame: connection.refuse(
        frame, ErrorCode.USER_EXISTS
    )
    with pytest.raises(AccountRefused) as caught:
        client.create_user("ada", "secret")
    assert caught.value.code == "USER_EXISTS"


# ---- asyncio ----


def test_the_same_with_asyncio(server):
    async def main():
        async with aconnect(server.url) as client:
            assert len(await client.publish("q", {"a": 1})) == 32
            assert (await client.publish_many("q", range(100), window=10)).published == 100

            async def numbers():
                for number in range(100):
                    yield number

            assert (await client.publish_many("q", numbers(), window=10)).published == 100
            async with client.publisher("q") as publisher:
                await publisher.publish("last")
            got = []
            async for message in client.consume("q", auto_ack=True):
                got.append(message.payload)
                if message.payload == "last":
                    break
            assert got == [{"a": 1}, *range(100), *range(100), "last"]
            assert len(await asyncio.gather(*(client.publish("r", n) for n in range(50)))) == 50
            handled = asyncio.Queue()

            async def handler(message):
                await handled.put(message.payload)

            subscription = await client.subscribe("r", handler)
            assert sorted([await handled.get() for _ in range(50)]) == list(range(50))
            await subscription.close()
            await client.declare_queue("d")
            assert "d" in await client.list_queues()

    asyncio.run(main())


def test_cancelling_a_publish_forgets_the_message(server):
    server.replies[Command.PUBLISH] = lambda connection, frame: []

    async def main():
        async with aconnect(server.url) as client:
            task = asyncio.create_task(client.publish("q", 1))
            await asyncio.to_thread(server.await_frames, Command.PUBLISH)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert client._engine.core.unacknowledged() == b""

    asyncio.run(main())
