# SPDX-License-Identifier: Apache-2.0
"""The streams client against a server in memory that does what a test wants, mistakes included."""

import contextlib
import gc
import gzip
import shutil
import socket
import ssl
import subprocess
import threading
import warnings
import zlib

import pytest
from peers.streams_server import MemoryServer, chunk_of

from vibemq.client import _flows
from vibemq.client._streams import Inbox, confirm_count, encode_publish, open_chunk
from vibemq.client.streams import StreamLocation, StreamsConnection
from vibemq.errors import (
    AuthenticationFailed,
    ConnectionClosed,
    LimitExceeded,
    ProtocolError,
    PublishTimeout,
    RequestFailed,
    StreamExists,
    StreamNotFound,
    TimeoutExceeded,
)
from vibemq.protocols.streams import codec
from vibemq.protocols.streams.spec import RESPONSE_BIT, Code, Key, OffsetType


@pytest.fixture
def server():
    with MemoryServer() as running:
        yield running


def connect(server, **options):
    return StreamsConnection.connect("127.0.0.1", server.port, **{"timeout_s": 5.0, **options})


def fill(server, stream, *sizes, first=0):
    """Chunks of the given numbers of messages, whose bodies are their offsets."""
    offset, chunks = first, []
    for size in sizes:
        chunks.append(chunk_of(offset, [b"%d" % i for i in range(offset, offset + size)]))
        offset += size
    server.streams[stream] = chunks


# ---- opening and closing ----


def test_the_handshake_says_who_we_are_and_agrees_on_limits(server):
    server.tune = (70_000, 30)
    with connect(server, client_properties={"connection_name": "me"}, heartbeat_s=20, frame_max=100_000) as connection:
        assert connection.frame_max == 70_000
        assert connection.server_properties["product"] == "memory"
        assert connection.open_properties["advertised_host"] == "localhost"
        assert connection.commands[Key.STREAM_STATS] == 1
    assert server.requests(Key.PEER_PROPERTIES)[0].properties["connection_name"] == "me"
    assert server.requests(Key.TUNE | RESPONSE_BIT) == [(70_000, 20)]
    assert server.requests(Key.CLOSE)[0].code == Code.OK
    assert connection.closed


def test_zero_in_tune_means_no_wish(server):
    server.tune = (0, 0)
    with connect(server, heartbeat_s=60) as connection:
        assert connection.frame_max == 1_048_576
    assert server.requests(Key.TUNE | RESPONSE_BIT) == [(1_048_576, 60)]


def test_an_older_server_is_not_asked_for_versions():
    with MemoryServer(version="3.10.8") as server, connect(server) as connection:
        assert connection.commands == {}
        with pytest.raises(RequestFailed, match=r"had version 3\.10\.8"):
            connection.stats("s")
        assert not server.requests(Key.EXCHANGE_COMMAND_VERSIONS)


def test_a_wrong_password_is_said_so(server):
    with pytest.raises(AuthenticationFailed, match=r"logging in as 'guest'.*AUTHENTICATION_FAILURE") as caught:
        connect(server, password="wrong")
    assert caught.value.hint


def test_a_virtual_host_that_is_not_there(server):
    with pytest.raises(RequestFailed) as caught:
        connect(server, virtual_host="nowhere")
    assert caught.value.code == Code.VIRTUAL_HOST_ACCESS_FAILURE


def test_nobody_listens():
    with MemoryServer() as server:
        port = server.port
    with pytest.raises(ConnectionClosed) as caught:
        StreamsConnection.connect("127.0.0.1", port, timeout_s=2)
    assert str(caught.value) == f"127.0.0.1:{port}: could not connect: Connection refused"


def test_somebody_listens_who_never_accepts():
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(2):  # a backlog of 0 holds one, and one more is on its way
            other = waiting.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(("127.0.0.1", port))
        with pytest.raises(ConnectionClosed) as caught:
            StreamsConnection.connect("127.0.0.1", port, timeout_s=0.2)
    assert str(caught.value) == f"127.0.0.1:{port}: could not connect: no answer within 0.2 s"


def test_a_silent_server_costs_no_more_than_the_timeout(server):
    server.replies[Key.PEER_PROPERTIES] = lambda connection, request: []
    with pytest.raises(TimeoutExceeded, match=r"PeerProperties: nothing came within 0\.3 s"):
        connect(server, timeout_s=0.3)


def test_every_byte_in_a_packet_of_its_own():
    with MemoryServer(dribble=True) as server, connect(server) as connection:
        connection.create("s")
        with connection.publisher("s") as publisher:
            publisher.publish([b"%d" % i for i in range(250)])
        assert [m for chunk in connection.read_chunks("s", 0) for _, m in chunk.messages()] == [
            b"%d" % i for i in range(250)
        ]


def test_tls(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, and the test needs a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 "
        f"-keyout {key} -out {certificate}",
        shell=True,
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))
    with MemoryServer(tls=context) as server:
        with connect(server, tls=trusting, heartbeat_s=1) as connection:
            connection.create("s")
            with connection.publisher("s") as publisher:
                publisher.publish([bytes(5_000)] * 2_000)
            assert sum(chunk.records for chunk in connection.read_chunks("s", 0)) == 2_000
            server.await_request(Key.HEARTBEAT)
        with pytest.raises(ConnectionClosed, match="TLS handshake failed"):
            connect(server, tls=True)


def test_an_idle_connection_sends_heartbeats(server):
    with connect(server, heartbeat_s=1) as connection:
        server.await_request(Key.HEARTBEAT)
        connection.create("s")  # and is as good as before


def test_a_forgotten_connection_ends_its_helper_thread(server):
    before = set(threading.enumerate())
    connection = connect(server, heartbeat_s=1)
    # Threads of connections that earlier tests closed may end meanwhile.
    (helper,) = (thread for thread in set(threading.enumerate()) - before if thread.name == "vibemq heartbeat")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # a socket nobody closed: that is the point
        del connection
        gc.collect()
    helper.join(timeout=5)
    assert not helper.is_alive()


# ---- what a broker may say at any time ----


def test_the_brokers_close_is_answered_and_explained(server):
    close = codec.encode_server_frame(Key.CLOSE, correlation_id=1, code=Code.UNKNOWN_FRAME, reason="unknown frame")
    server.replies[Key.CREATE] = lambda connection, request: [close]
    with connect(server) as connection:
        with pytest.raises(ConnectionClosed, match=r"UNKNOWN_FRAME \(13\), 'unknown frame'"):
            connection.create("s")
        assert server.await_request(Key.CLOSE | RESPONSE_BIT).code == Code.OK
        with pytest.raises(ConnectionClosed, match="UNKNOWN_FRAME"):
            connection.create("s")


def test_the_end_of_the_socket_is_noticed(server):
    server.replies[Key.CREATE] = lambda connection, request: connection.end() or []
    with connect(server) as connection, pytest.raises(ConnectionClosed, match="closed the connection"):
        connection.create("s")


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes.fromhex("00000003 000000"),  # too small to be a frame
        bytes.fromhex("00000004 00990001"),  # a key that nobody knows
        bytes.fromhex("00000009 0003 0001 00 00000005"),  # five ids are said to follow
    ],
)
def test_nonsense_breaks_the_connection_with_an_explanation(server, garbage):
    server.replies[Key.CREATE] = lambda connection, request: [garbage]
    with connect(server) as connection:
        with pytest.raises(ProtocolError):
            connection.create("s")
        with pytest.raises(ProtocolError):  # nothing after it can be trusted
            connection.create("t")


def test_an_http_server_at_the_place_of_a_broker_is_told_apart_with_its_address(server):
    server.replies[Key.PEER_PROPERTIES] = lambda connection, request: [b"HTTP/1.1 400 Bad Request\r\n\r\n"]
    with pytest.raises(ProtocolError, match="an HTTP server answers there, not a broker's streams door") as caught:
        connect(server)
    assert str(caught.value).startswith(f"127.0.0.1:{server.port}: ")
    assert "HTTP is spoken by the management API" in caught.value.hint


def test_a_consumer_update_is_answered(server):
    update = codec.encode_server_frame(Key.CONSUMER_UPDATE, correlation_id=7, subscription_id=0, active=1)
    server.replies[Key.CREATE] = lambda connection, request: [
        update,
        codec.encode_response(Key.CREATE, request.correlation_id, Code.OK),
    ]
    with connect(server) as connection:
        connection.create("s")
        assert server.await_request(Key.CONSUMER_UPDATE | RESPONSE_BIT) == (7, Code.OK, OffsetType.NONE, None)


def test_a_deleted_stream_ends_publisher_and_subscription(server):
    gone = codec.encode_server_frame(Key.METADATA_UPDATE, code=Code.STREAM_NOT_AVAILABLE, stream="s")
    with connect(server) as connection:
        connection.create("s")
        publisher, subscription = connection.publisher("s"), connection.subscribe("s")
        other = connection.publisher("s")
        server.replies[Key.DELETE] = lambda peer, request: [
            codec.encode_response(Key.DELETE, request.correlation_id, Code.OK),
            gone,
        ]
        connection.delete("s")
        connection.create("t", exist_ok=True)
        with pytest.raises(StreamNotFound, match="STREAM_NOT_AVAILABLE"):
            subscription.next_chunk(1)
        with pytest.raises(StreamNotFound):
            publisher.flush()
        with pytest.raises(StreamNotFound):
            other.publish([b"x"])


def test_answers_that_nobody_awaits_are_dropped(server):
    stray = codec.encode_response(Key.CREATE, 999, Code.OK)
    server.replies[Key.DELETE] = lambda peer, request: [
        stray,
        codec.encode_response(Key.DELETE, request.correlation_id, Code.STREAM_DOES_NOT_EXIST),
    ]
    with connect(server) as connection:
        connection.delete("s", missing_ok=True)
        assert connection._answers == {}


# ---- requests ----


def test_create_and_delete_and_where_streams_are(server):
    with connect(server) as connection:
        connection.create("s", {"max-length-bytes": 1_000, "max-age": "1h"})
        assert server.requests(Key.CREATE)[0].arguments == {"max-length-bytes": "1000", "max-age": "1h"}
        connection.create("s", exist_ok=True)
        with pytest.raises(StreamExists):
            connection.create("s")
        here = ("localhost", server.port)
        assert connection.metadata(["s", "t"]) == {
            "s": StreamLocation(Code.OK, here, (here,)),
            "t": StreamLocation(Code.STREAM_DOES_NOT_EXIST, None, ()),
        }
        assert connection.exists("s") and not connection.exists("t")
        connection.delete("s")
        connection.delete("s", missing_ok=True)
        with pytest.raises(StreamNotFound, match=r"^127\.0\.0\.1:\d+: Delete s: .*STREAM_DOES_NOT_EXIST \(2\)"):
            connection.delete("s")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (Code.ACCESS_REFUSED, RequestFailed),
        (Code.PRECONDITION_FAILED, RequestFailed),
        (Code.STREAM_NOT_AVAILABLE, StreamNotFound),
        (99, RequestFailed),
    ],
)
def test_codes_become_errors_that_say_what_was_asked(server, code, error):
    server.replies[Key.CREATE] = lambda peer, request: [codec.encode_response(Key.CREATE, request.correlation_id, code)]
    with connect(server) as connection, pytest.raises(error, match=rf"Create s: .*\({code}\)"):
        connection.create("s")


def test_offsets_are_stored_and_asked_for(server):
    with connect(server) as connection:
        assert connection.query_offset("me", "s") is None
        connection.store_offset("me", "s", 41)
        assert connection.query_offset("me", "s") == 41


# ---- where a stream begins and ends ----


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("4.3.0", {"committed_offset": 114}),  # three records of RabbitMQ's own, which nobody is given
        ("4.3.0", {"committed_offset": 111, "incarnation": 7}),  # VibeMQ's, which has no such records
        ("3.12.0", {}),  # has StreamStats, but not yet committed_offset
        ("3.10.8", {}),
    ],
)
def test_ends_of_a_stream_whatever_the_server_can_tell(version, said):
    with MemoryServer(version=version) as server, connect(server) as connection:
        connection.create("s")
        assert (connection.first_offset("s"), connection.next_offset("s")) == (0, 0)
        server.replies[Key.STREAM_STATS] = lambda peer, request: [
            codec.encode_response(
                Key.STREAM_STATS,
                request.correlation_id,
                Code.OK if request.stream in server.streams else Code.STREAM_DOES_NOT_EXIST,
                statistics={"first_chunk_id": 100, "committed_chunk_id": 107, **said},
            )
        ]
        fill(server, "s", 7, 5, first=100)
        asked = len(server.requests(Key.SUBSCRIBE))
        assert (connection.first_offset("s"), connection.next_offset("s")) == (100, 112)
        assert (len(server.requests(Key.SUBSCRIBE)) > asked) == ("incarnation" not in said)
        with pytest.raises(StreamNotFound):
            connection.next_offset("t")


# ---- publishing ----


def test_published_is_confirmed_and_counted(server):
    with connect(server) as connection:
        connection.create("s")
        publisher = connection.publisher("s")
        assert publisher.publish([b"a", bytearray(b"b"), memoryview(b"c")]) == 1
        assert publisher.publish(iter([b"d"])) == 4
        publisher.flush()
        assert (publisher.published, publisher.confirmed, publisher.errored, publisher.unconfirmed) == (4, 4, 0, 0)
        publisher.close()
        publisher.close()
        assert [m for chunk in server.streams["s"] for m in codec_messages(chunk)] == [b"a", b"b", b"c", b"d"]


def codec_messages(chunk):
    data, messages = chunk.data, []
    while data:
        size = int.from_bytes(data[:4], "big")
        messages.append(data[4 : 4 + size])
        data = data[4 + size :]
    return messages


def test_a_reference_goes_on_where_it_was(server):
    with connect(server) as connection:
        connection.create("s")
        with connection.publisher("s", "me") as publisher:
            publisher.publish([b"a", b"b"])
        with connection.publisher("s", "me") as publisher:
            assert publisher.publish([b"c"]) == 3
        assert connection.query_publisher_sequence("me", "s") == 3


def test_frames_keep_to_frame_max(server):
    server.tune = (2_000, 0)
    with connect(server) as connection:
        connection.create("s")
        with connection.publisher("s") as publisher:
            publisher.publish([bytes(300)] * 50)
            with pytest.raises(LimitExceeded, match="message size"):
                publisher.publish([bytes(2_000)])
        assert {len(request.messages) for request in server.requests(Key.PUBLISH)} <= {6, 2}
        assert sum(len(request.messages) for request in server.requests(Key.PUBLISH)) == 50


def test_the_window_is_never_exceeded(server):
    held = []
    server.replies[Key.PUBLISH] = lambda peer, request: held.append(request) or []
    with connect(server) as connection:
        connection.create("s")
        publisher = connection.publisher("s", unconfirmed_max=10)
        with pytest.raises(PublishTimeout, match="publishing to stream s") as raised:
            publisher.publish([b"x"] * 30, timeout_s=0.1)
        assert (raised.value.unsent, raised.value.unanswered) == (20, 10)
        assert connection.exists("s"), "the server has read so far"
        assert publisher.unconfirmed == sum(len(request.messages) for request in held) == 10
        with pytest.raises(TimeoutExceeded, match="waiting for 10 confirms"):
            publisher.flush(0.1)


def test_what_is_refused_is_raised(server):
    server.replies[Key.PUBLISH] = lambda peer, request: [
        codec.encode_server_frame(
            Key.PUBLISH_ERROR,
            publisher_id=request.publisher_id,
            errors=[(message.publishing_id, Code.PRECONDITION_FAILED) for message in request.messages],
        )
    ]
    with connect(server) as connection:
        connection.create("s")
        publisher = connection.publisher("s")
        publisher.publish([b"a", b"b"])
        with pytest.raises(RequestFailed, match=r"2 messages refused, the first with id 1: PRECONDITION") as caught:
            publisher.flush()
        assert caught.value.code == Code.PRECONDITION_FAILED
        assert (publisher.confirmed, publisher.errored) == (0, 2)


def test_it_reads_while_it_cannot_write(server):
    """A server that does not read until its own bytes are taken: a client that only writes would hang."""
    heartbeats = codec.encode_server_frame(Key.HEARTBEAT) * 1_000_000

    def flood_once(peer, request):
        del server.replies[Key.PUBLISH]
        peer.send(heartbeats)

    server.replies[Key.PUBLISH] = flood_once
    with connect(server) as connection:
        connection.create("s")
        with connection.publisher("s") as publisher:
            publisher.publish([bytes(10_000)] * 1_500)
        assert server.next_offset("s") == 1_500


def test_ids_of_publishers_run_out_with_an_explanation(server):
    with connect(server) as connection:
        connection.create("s")
        publishers = [connection.publisher("s") for _ in range(256)]
        with pytest.raises(LimitExceeded, match="publishers"):
            connection.publisher("s")
        publishers[17].close()
        assert connection.publisher("s").publisher_id == 17


# ---- reading ----


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, None, [0, 10, 20]),
        (0, 30, [0, 10, 20]),
        (0, 10, [0]),
        (9, 11, [0, 10]),
        (10, 20, [10]),
        (29, 30, [20]),
        (5, 5, []),
        (30, None, []),
        (7, 3, []),
    ],
)
def test_ranges(server, start, end, expected):
    fill(server, "s", 10, 10, 10)
    with connect(server) as connection:
        assert [chunk.chunk_id for chunk in connection.read_chunks("s", start, end)] == expected
        connection.create("alive")
        assert not server.connections[0].subscriptions


def test_what_retention_removed_is_visible_in_the_first_chunk(server):
    fill(server, "s", 10, 10, first=50)
    with connect(server) as connection:
        assert [chunk.chunk_id for chunk in connection.read_chunks("s", 5)] == [50, 60]
        assert list(connection.read_chunks("s", 5, 20)) == []


def test_an_end_that_does_not_come_is_a_timeout(server):
    fill(server, "s", 10)
    with connect(server) as connection:
        chunks = connection.read_chunks("s", 0, 11)
        assert next(chunks).chunk_id == 0
        connection.timeout_s = 0.1  # from here on nothing is needed of the server
        with pytest.raises(TimeoutExceeded, match="waiting for a chunk of stream s"):
            next(chunks)


def test_a_clean_up_that_fails_does_not_hide_what_went_wrong_before(server):
    server.replies[Key.PUBLISH] = server.replies[Key.UNSUBSCRIBE] = server.replies[Key.DELETE_PUBLISHER] = (
        lambda peer, request: []
    )
    fill(server, "s", 10)
    with connect(server) as connection:
        chunks = connection.read_chunks("s", 0, 11)
        publisher = connection.publisher("s")
        publisher.publish([b"a"])
        next(chunks)
        connection.timeout_s = 0.1
        with pytest.raises(TimeoutExceeded, match="waiting for a chunk of stream s") as caught:
            next(chunks)
        assert ["Unsubscribe: nothing came" in note for note in caught.value.__notes__] == [True]
        with pytest.raises(PublishTimeout, match="waiting for 1 confirms") as caught:
            publisher.close()
        assert ["DeletePublisher: nothing came" in note for note in caught.value.__notes__] == [True]


def test_a_clean_up_that_fails_is_told_where_nothing_went_wrong_before(server):
    server.replies[Key.UNSUBSCRIBE] = lambda peer, request: []
    fill(server, "s", 10, 10)
    with connect(server) as connection:
        chunks = connection.read_chunks("s", 0, 20)
        next(chunks)
        connection.timeout_s = 0.1
        with pytest.raises(TimeoutExceeded, match="Unsubscribe: nothing came"):
            chunks.close()


def test_a_reader_that_stops_early_unsubscribes_and_drops_the_rest(server):
    fill(server, "s", *[10] * 200)
    with connect(server) as connection:
        for chunk in connection.read_chunks("s", 0):
            assert chunk.records == 10
            break
        assert [c.chunk_id for c in connection.read_chunks("s", 500, 510)] == [500]
        assert len(server.requests(Key.UNSUBSCRIBE)) == len(server.requests(Key.SUBSCRIBE)) == 3  # one to find the end


def test_credit_ramps_up_to_its_limit_and_ends_with_the_range(server):
    fill(server, "s", *[10] * 200)
    with connect(server) as connection:
        assert sum(1 for _ in connection.read_chunks("s", 0, 1_000, credit=8)) == 100
    given = server.requests(Key.SUBSCRIBE)[0].credit + sum(r.credit for r in server.requests(Key.CREDIT))
    assert server.requests(Key.SUBSCRIBE)[0].credit == _flows.CREDIT_FIRST_COUNT
    assert 100 <= given <= 108
    assert max(request.credit for request in server.requests(Key.CREDIT)) <= 3


def test_a_chunk_shows_its_messages_with_their_offsets(server):
    fill(server, "s", 3, first=40)
    with connect(server) as connection:
        (chunk,) = connection.read_chunks("s", 0)
    assert list(chunk.messages()) == [(40, b"40"), (41, b"41"), (42, b"42")]
    assert (chunk.records, chunk.entries, chunk.timestamp_ms, chunk.epoch) == (3, 3, 1_700_000_000_000, 1)
    assert isinstance(chunk.data, memoryview) and chunk.data.readonly
    assert chunk.next_offset == 43


def test_sub_batches_are_opened():
    inner = b"".join(len(m).to_bytes(4, "big") + m for m in (b"x", b"yy"))

    def entry(compression, body):
        flags = bytes([0x80 | compression << 4])
        sizes = (2).to_bytes(2, "big") + len(inner).to_bytes(4, "big") + len(body).to_bytes(4, "big")
        return flags + sizes + body

    def delivered(data, entries, records):
        chunk = chunk_of(7, [], data=data, data_size=len(data), entries=entries, records=records)
        chunk = chunk._replace(crc=zlib.crc32(data))
        frame = codec.encode_server_frame(Key.DELIVER, subscription_id=1, chunk=chunk)
        return open_chunk(frame[8:], 1, "here")

    simple = b"\0\0\0\1a"
    chunk = delivered(simple + entry(0, inner) + entry(1, gzip.compress(inner)) + simple, 4, 6)
    assert list(chunk.messages()) == [(7, b"a"), (8, b"x"), (9, b"yy"), (10, b"x"), (11, b"yy"), (12, b"a")]
    with pytest.raises(ProtocolError, match="needed compression NONE or GZIP, had 4"):
        list(delivered(entry(4, inner), 1, 2).messages())
    with pytest.raises(ProtocolError, match="gzip data"):
        list(delivered(entry(1, b"nonsense"), 1, 2).messages())
    with pytest.raises(ProtocolError, match="uncompressed"):
        list(delivered(entry(1, gzip.compress(inner * 2)), 1, 2).messages())
    with pytest.raises(ProtocolError, match="a known compression"):
        list(delivered(entry(7, inner), 1, 2).messages())
    with pytest.raises(ProtocolError, match="needed messages, had a sub-batch"):
        list(delivered(entry(1, gzip.compress(b"\x80\0\1" + bytes(8))), 1, 2).messages())
    for last in (simple, entry(0, inner)):
        for cut in range(len(last)):
            with pytest.raises(ProtocolError):
                list(delivered(simple + last[:cut], 2, 2).messages())


def test_version_2_of_deliver_is_understood():
    frame = codec.encode_server_frame(
        Key.DELIVER, version=2, subscription_id=200, committed_chunk_id=9, chunk=chunk_of(5, [b"a"])
    )
    chunk = open_chunk(frame[8:], 2, "here")
    assert (chunk.subscription_id, chunk.chunk_id, list(chunk.messages())) == (200, 5, [(5, b"a")])


def test_a_damaged_chunk_is_never_handed_out(server):
    fill(server, "s", 3)
    chunk = server.streams["s"][0]
    server.streams["s"] = [chunk._replace(data=chunk.data[:-1] + b"?")]
    with connect(server) as connection, pytest.raises(ProtocolError, match=r"stream s, chunk 0: needed CRC"):
        list(connection.read_chunks("s", 0))


@pytest.mark.parametrize("size", range(0, 60, 3))
def test_a_cut_chunk_is_malformed(size):
    frame = codec.encode_server_frame(Key.DELIVER, subscription_id=1, chunk=chunk_of(0, [b"message"]))
    assert len(frame[8:]) == 60
    with pytest.raises(codec.MalformedFrame):
        open_chunk(frame[8 : 8 + size], 1, "here")


def test_a_credit_error_ends_the_subscription(server):
    server.replies[Key.CREDIT] = lambda peer, request: [
        codec.encode_server_frame(Key.CREDIT, code=4, subscription_id=request.subscription_id)
    ]
    fill(server, "s", 1)
    with connect(server) as connection, connection.subscribe("s", OffsetType.FIRST, credit=1) as subscription:
        assert subscription.next_chunk(1).chunk_id == 0
        with pytest.raises(RequestFailed, match="SUBSCRIPTION_ID_DOES_NOT_EXIST"):
            subscription.next_chunk(1)


def test_a_subscription_follows_the_stream(server):
    fill(server, "s", 1)
    with connect(server) as connection, connection.subscribe("s", OffsetType.NEXT) as subscription:
        assert subscription.next_chunk(0.05, default=None) is None
        with connection.publisher("s") as publisher:
            publisher.publish([b"later"])
        assert list(next(iter(subscription)).messages()) == [(1, b"later")]


# ---- the compiled half ----


def test_an_inbox_finds_frames_however_they_come():
    frames = [codec.encode_request(Key.CREATE, i, stream="s" * (i % 50)) for i in range(200)]
    frames.insert(100, codec.encode_request(Key.SASL_AUTHENTICATE, 5, mechanism="PLAIN", data=bytes(3_000_000)))
    stream = memoryview(b"".join(frames))
    for step in (1_000, 65_536, 10_000_000):
        inbox, found, at = Inbox(), [], 0

        def receive(room, step=step):
            nonlocal at
            part = stream[at : at + min(step, len(room))]
            room[: len(part)] = part
            at += len(part)
            return len(part)

        while at < len(stream):
            inbox.receive(receive)
            while (frame := inbox.next_frame()) is not None:
                key, version, body = frame
                found.append(
                    (len(body) + 4).to_bytes(4, "big") + key.to_bytes(2, "big") + version.to_bytes(2, "big") + body
                )
        assert found == frames


def test_publish_frames_are_those_of_the_codec():
    messages = [b"a", b"", b"ccc"]
    frame, count = encode_publish(3, messages, 1, 9, 1_000, 100)
    assert count == 2
    assert frame == codec.encode_request(Key.PUBLISH, publisher_id=3, messages=[(9, b""), (10, b"ccc")])


def test_confirms_are_counted_only_when_they_are_all_there():
    frame = codec.encode_server_frame(Key.PUBLISH_CONFIRM, publisher_id=1, publishing_ids=[5, 6])
    assert confirm_count(frame[8:]) == 2
    for wrong in (frame[8:-1], frame[8:] + b"\0", b"\1\0\0\0"):
        with pytest.raises(codec.MalformedFrame):
            confirm_count(wrong)
