# SPDX-License-Identifier: Apache-2.0
"""What the MicroMsg2 client says and understands, against a peer whose every byte the test decides."""

import inspect
import threading
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from peers.micromsg2_server import playing

from vibemq.access import proofs
from vibemq.client import _micromsg2, _transport, micromsg2
from vibemq.client.micromsg2 import Micromsg2Client, Refused, client_proof
from vibemq.errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionClosed,
    LimitExceeded,
    ProtocolError,
    PublishTimeout,
    TimeoutExceeded,
)
from vibemq.protocols.micromsg2 import codec
from vibemq.protocols.micromsg2.codec import ErrorFrame, ExtensionFrame, Handshake, Message, Untyped
from vibemq.protocols.micromsg2.extensions import Refusal

MIB = 1 << 20
ACKED = "batch-ack:max-count=4"


def client(port, *offer, **more):
    return Micromsg2Client(port=port, offer=offer, **{"timeout_s": 20.0, **more})


def delivery(number, payload=b"x", destination=b"q", **more):
    return codec.encode_message(number, destination, payload, **more)


# ---- the handshake ----


def test_c1_says_what_is_required_and_offered_and_c2_what_was_taken_up():
    def script(server):
        server.handshake("json", "batch-ack:max-count=50;dotnet;x-else")
        c1, c2 = server.c1, server.c2
        assert c1 == Handshake(1, 0, 0, b"me", b"json;xml", b"batch-ack:max-count=1000;pub-sub")
        assert c2 == Handshake(1, 0, 0, b"me", b"json", b"batch-ack:max-count=50")

    with playing(script) as port:
        offer = ("batch-ack:max-count=1000", "pub-sub")
        peer = Micromsg2Client(port=port, identity="me", require=["json", "xml"], offer=offer)
        assert (peer.server, peer.agreed.window, peer.agreed.serializer) == ("server", 50, "json")
        peer.close()


def test_the_usual_offer_needs_no_other_word():
    assert inspect.signature(Micromsg2Client).parameters["port"].default == 2928
    for item in micromsg2.OFFERS:
        assert item.partition(":")[0] in _micromsg2.SUPPORTED


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (codec.encode_error("AUTH_REQUIRED: log in"), "AUTH_REQUIRED", "log in"),
        (codec.encode_error("Server to not support: xml"), "", "Server to not support: xml"),
        (b"\x0c\x08too late", "", "too late"),  # as an early release of the .NET implementation writes it
    ],
)
def test_an_error_in_place_of_s1_is_raised(error, code, text):
    with playing(lambda server: (server.read_handshake(), server.write(error))) as port:
        with pytest.raises(Refused) as caught:
            client(port, "json")
        assert (caught.value.code, caught.value.text) == (code, text)


def test_another_version_is_answered_with_an_error():
    def script(server):
        server.read_handshake()
        server.write(bytes([2, 0, 0, 0, 0, 0, 0, 0]))
        assert server.ended() == [ErrorFrame("UNSUPPORTED_VERSION: major version: needed 1, had 2")]

    with playing(script) as port, pytest.raises(codec.UnsupportedVersion):
        client(port)


def test_a_server_that_requires_what_we_lack_is_told():
    def script(server):
        server.answer("x-magic")
        assert server.ended() == [ErrorFrame("Client does not support the following extensions: x-magic")]

    with playing(script) as port, pytest.raises(Refusal):
        client(port, "json")


def test_a_server_that_says_nothing_is_not_waited_for_longer_than_asked():
    with (
        playing(lambda server: (server.read_handshake(), server.ended())) as port,
        pytest.raises(TimeoutExceeded, match="the handshake"),
    ):
        Micromsg2Client(port=port, timeout_s=0.05)


def test_what_the_client_does_not_know_is_not_offered():
    with pytest.raises(ConfigError, match="x-heartbeat"):
        client(1, "x-heartbeat:interval=1000")
    with pytest.raises(ConnectionClosed, match="could not connect"):
        client(1, "json")


def test_of_a_sharp_messaging_server_only_what_it_knows_is_taken_and_its_window_acknowledged_whole():
    def script(server):
        server.handshake("json", "ack:MessagesPerAck=3;pub-sub", minor=1)
        assert server.c2.required + b"|" + server.c2.optional == b"json|ack:MessagesPerAck=3"
        server.write(*(delivery(n) for n in (1, 2, 3)))
        assert server.acknowledged() == 3
        server.ended()

    with playing(script) as port, client(port, "json", "ack", "pub-sub") as peer:
        assert [peer.receive(20).sequence for _ in range(3)] == [1, 2, 3]


# ---- login ----

CHALLENGE = proofs.Challenge(bytes(range(16)), 1000, bytes(range(24)))
ASKED = f"microauth:mechanism=hmac-sha256,salt={CHALLENGE.salt.hex()},rounds=1000,nonce={CHALLENGE.nonce.hex()}"


@pytest.fixture
def far_away(monkeypatch):
    """The network between client and server is everybody's."""

    class FarTransport(_micromsg2.Transport):
        def __init__(self, *where):
            super().__init__(*where)
            self.is_private = False

    monkeypatch.setattr(_micromsg2, "Transport", FarTransport)


@pytest.mark.parametrize(("user", "password"), [("bob", "secret"), ("zoë", "pässword, and more")])
def test_the_proof_is_the_one_that_the_broker_expects(user, password):
    proof = client_proof(user, password, CHALLENGE.salt, CHALLENGE.rounds, CHALLENGE.nonce)
    assert proofs.make_verifier(password, CHALLENGE.salt, 1000).accepts(user, CHALLENGE, proof)


def test_a_password_goes_to_this_machine_only(far_away):
    def script(server):
        server.handshake(f"json;{ASKED}")
        assert server.c1.required == b"json;microauth:user=bob"
        proof = client_proof("bob", "secret", CHALLENGE.salt, CHALLENGE.rounds, CHALLENGE.nonce).hex()
        assert server.c2.required == f"json;microauth:user=bob,proof={proof}".encode()

    with playing(script) as port:
        client(port, require=["json"], user="bob", password="secret").close()


def test_to_this_machine_the_password_itself_goes():
    def script(server):
        server.handshake(f"{ASKED}")
        assert server.c2.required == b"microauth:user=bob,password=se%2Ccret"

    with playing(script) as port:
        client(port, user="bob", password="se,cret").close()


@pytest.mark.parametrize(
    "asked",
    [
        "microauth",
        ASKED.replace("hmac-sha256", "md5"),
        ASKED.replace("1000", "99999999999"),
        ASKED.replace("salt=", "salt=x"),
    ],
)
def test_without_a_challenge_that_we_know_nothing_of_the_password_is_said(far_away, asked):
    def script(server):
        server.answer(asked)
        assert server.ended() == []

    with playing(script) as port, pytest.raises(AuthenticationFailed, match="needed a challenge of hmac-sha256"):
        client(port, user="bob", password="secret")


# ---- sending ----


def test_a_message_has_typed_properties_and_its_number():
    def script(server):
        server.handshake("json")
        assert server.message() == Message(1, "topic/ä".encode(), b"n:N1;at:D1413198000.0;raw:x;t:Ta%20b;", b"{}")
        assert server.message() == Message(2, b"q", b"", "é".encode())

    with playing(script) as port, client(port, require=["json"]) as peer:
        at = datetime(2014, 10, 13, 11, tzinfo=UTC)
        assert peer.send("topic/ä", b"{}", {"n": 1, "at": at, "raw": Untyped("x"), "none": None, "t": "a b"}) == 1
        assert peer.send("q", "é") == 2
        for destination, properties in (("d" * 256, {}), ("q", {"k": "x" * 70_000}), ("q", {"k": object()})):
            with pytest.raises((LimitExceeded, codec.UnencodableValue)):
                peer.send(destination, b"", properties)


def test_never_more_messages_are_unacknowledged_than_agreed():
    def script(server):
        server.handshake("", ACKED)
        for first in range(1, 41, 4):
            assert server.messages(4) == [first, first + 1, first + 2, first + 3]
            server.socket.setblocking(False)
            with pytest.raises(BlockingIOError):  # what is more has not been sent before the acknowledgement
                server.socket.recv(1)
            server.socket.settimeout(30)
            server.ack(first + 3)

    with playing(script) as port, client(port, ACKED) as peer:
        for _ in range(40):
            peer.send("q", b"x")
        peer.flush()


def test_an_acknowledgement_covers_all_before_it_and_a_late_one_means_nothing():
    def script(server):
        server.handshake("", ACKED)
        assert server.messages(3) == [1, 2, 3]
        server.ack(2)
        server.ack(1)
        server.ack(0)
        server.ack(4)
        assert server.messages(3) == [4, 5, 6]
        server.write(codec.encode_extension(server.agreed.ack_id, b"\0\0\0\6"))

    with playing(script) as port, client(port, ACKED) as peer:
        for _ in range(6):
            peer.send("q", b"x")
        peer.flush()


def test_1_follows_65535_and_is_acknowledged_with_what_came_before_it():
    def script(server):
        server.handshake("", "batch-ack:max-count=10000")
        for at in range(0, 65530, 10):
            server.messages(10)
            server.ack(at + 10)
        assert server.messages(8) == [65531, 65532, 65533, 65534, 65535, 1, 2, 3]
        server.ack(3)

    with playing(script) as port, client(port, "batch-ack:max-count=10000") as peer:
        for _ in range(65538):
            peer.send("q", b"")
        peer.flush()


@pytest.mark.parametrize("window", [1, 4])
def test_a_large_payload_goes_in_fragments_that_are_acknowledged_one_by_one(window):
    payload = bytes(range(256)) * (MIB // 256 * 5 // 2)

    def script(server):
        server.handshake("", f"batch-ack:max-count={window}")
        parts = []
        for number in (1, 2, 3):
            parts.append(server.message())
            server.ack(number)
        assert [(p.sequence, p.destination, p.properties, p.continued) for p in parts] == [
            (1, b"q", b"k:Tv;", True),
            (2, b"", b"", True),
            (3, b"", b"", False),
        ]
        assert [len(p.payload) for p in parts] == [MIB, MIB, MIB // 2]
        assert b"".join(p.payload for p in parts) == payload
        assert len(server.message().payload) == MIB
        server.ack(4)

    with playing(script) as port, client(port, "batch-ack") as peer:
        assert peer.send("q", payload, {"k": "v"}) == 3
        peer.send("q", memoryview(payload)[:MIB])
        peer.flush()


def test_a_type_goes_before_the_first_message_that_has_it_and_on_change():
    def script(server):
        server.handshake("dotnet")
        said = [server.next() for _ in range(9)]
        assert [f.payload if isinstance(f, ExtensionFrame) else f.sequence for f in said] == [
            1, b"A, a", 2, 3, b"B, b", 4, b"System.Object, mscorlib", 5, 6,
        ]  # fmt: skip

    with playing(script) as port, client(port, require=["dotnet"]) as peer:
        for dotnet_type in (None, "A, a", "A, a", "B, b", None, None):
            peer.send("q", b"", dotnet_type=dotnet_type)


def test_a_type_needs_its_extension():
    with playing(lambda server: server.handshake()) as port, client(port) as peer, pytest.raises(ConfigError):
        peer.send("q", b"", dotnet_type="A")


def test_both_sides_may_write_more_than_sockets_hold_before_they_read():
    count, payload = 64, bytes(MIB // 4)

    def script(server):
        server.handshake()
        server.write(*(delivery(n + 1, payload) for n in range(count)))
        assert server.messages(count) == list(range(1, count + 1))

    with playing(script) as port, client(port) as peer:
        for _ in range(count):
            peer.send("q", payload)
        assert sum(len(peer.receive(20).payload) for _ in range(count)) == count * len(payload)


class Endless:
    """A socket that always has another message to read."""

    def __init__(self, inner):
        self.inner = inner
        self.frames = b"".join(delivery(1, bytes(1_000)) for _ in range(200))
        self.left = b""
        self.read_bytes = 0

    def recv_into(self, room):
        self.read_bytes += len(room)
        assert self.read_bytes < 16 * MIB, "it takes whatever there is"
        room[:] = (self.left + self.frames)[: len(room)]
        self.left = (self.left + self.frames)[len(room) :]
        return len(room)

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_no_more_is_taken_than_the_program_keeps_up_with(monkeypatch):
    with playing(lambda server: server.handshake().ended()) as port, client(port) as peer:
        endless = Endless(peer._link._socket)
        monkeypatch.setattr(peer._link, "_socket", endless)
        for _ in range(1_000):
            assert len(peer.receive(20).payload) == 1_000
        assert endless.read_bytes <= 4 * MIB
        peer._link.close()


def test_closing_ends_though_the_broker_goes_on_sending(monkeypatch):
    clock = iter(range(100))
    with playing(lambda server: server.handshake().ended()) as port:
        peer = client(port)
        monkeypatch.setattr(peer._link, "_socket", Endless(peer._link._socket))
        monkeypatch.setattr(_transport, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        peer.close()


# ---- refusals ----


def test_a_refused_message_is_told_by_flush_though_its_number_is_never_acknowledged():
    def script(server):
        server.handshake("", ACKED)
        server.messages(3)
        server.write(codec.encode_error("QUEUE_FULL: message 3: q: no room"))
        server.ack(2)
        server.messages(4)
        server.ack(7)

    with playing(script) as port, client(port, ACKED) as peer:
        for _ in range(3):
            peer.send("q", b"x")
        with pytest.raises(Refused) as caught:
            peer.flush()
        assert (caught.value.code, caught.value.text, caught.value.others) == (
            "QUEUE_FULL",
            "message 3: q: no room",
            (),
        )
        for _ in range(4):
            peer.send("q", b"x")
        peer.flush()
        assert peer.refused == []


def test_a_window_of_refused_messages_does_not_stop_the_next_one():
    def script(server):
        server.handshake("", "ack")
        for number in (1, 2):
            assert server.messages(1) == [number]
            server.write(codec.encode_error(f"NOT_AUTHORIZED: message {number}: q"))
        assert server.messages(1) == [3]
        server.ack(3)

    with playing(script) as port, client(port, "ack") as peer:
        for _ in range(3):
            peer.send("q", b"x")
        with pytest.raises(Refused) as caught:
            peer.flush()
        assert [caught.value.text, *(other.text for other in caught.value.others)] == ["message 1: q", "message 2: q"]


def test_a_refusal_without_a_number_is_raised_when_no_acknowledgement_comes():
    def script(server):
        server.handshake("", ACKED)
        server.messages(1)
        server.write(codec.encode_error("QUEUE_FULL: no room"))
        refused.set()
        server.ended()

    refused = threading.Event()
    with playing(script) as port:
        peer = client(port, ACKED)
        peer.send("q", b"x")
        assert refused.wait(30)
        with pytest.raises(Refused, match="QUEUE_FULL: no room"):
            peer.flush(timeout_s=0.1)
        peer.close()


def test_what_is_not_acknowledged_and_not_refused_is_an_error_too():
    def script(server):
        server.handshake("", ACKED)
        server.ended()

    with playing(script) as port:
        peer = client(port, ACKED)
        peer.send("q", b"x")
        with pytest.raises(PublishTimeout, match="acknowledgement of 1 messages") as raised:
            peer.flush(timeout_s=0.1)
        assert raised.value.may_be_stored
        peer.close()


def test_a_large_message_that_was_not_finished_in_time_ends_the_connection():
    """Else the broker would take the next one for the rest of it."""

    def script(server):
        server.handshake("", "batch-ack:max-count=1")
        first = server.message()
        assert first.continued and len(first.payload) == MIB
        assert server.ended() == []

    with playing(script) as port:
        peer = client(port, "batch-ack:max-count=1")
        peer.timeout_s = 0.1
        with pytest.raises(TimeoutExceeded):
            peer.send("q", bytes(MIB + 1))
        with pytest.raises(ConnectionClosed, match="a message was not finished in time"):
            peer.send("q", b"next")
        peer.close()


def test_after_its_end_every_call_says_why():
    with playing(lambda server: server.handshake("", "batch-ack;pub-sub;x-reply").ended()) as port:
        peer = client(port, "batch-ack", "pub-sub", "x-reply")
        peer.close()
    for call in (peer.receive, lambda: peer.send("q", b"x"), peer.flush, lambda: peer.subscribe("q")):
        with pytest.raises(ConnectionClosed, match=f"127.0.0.1:{port}: this client was closed"):
            call()


def test_a_subscription_that_has_ended_is_not_taken_for_the_refusal_of_a_message():
    def script(server):
        server.handshake("", ACKED)
        server.write(codec.encode_error("QUEUE_NOT_FOUND: the subscription to 'q' has ended: it was deleted"))
        server.ended()

    with playing(script) as port:
        peer = client(port, ACKED)
        peer.timeout_s = 0.1
        peer.send("q", b"x")
        with pytest.raises(TimeoutExceeded):
            peer.flush()
        with pytest.raises(Refused, match="the subscription to 'q' has ended"):
            peer.receive(20)
        peer.close()


def test_the_last_error_before_the_end_is_what_is_raised():
    def script(server):
        server.handshake("", ACKED)
        server.write(codec.encode_error("SHUTTING_DOWN: later"))

    with playing(script) as port:
        peer = client(port, ACKED)
        with pytest.raises(Refused, match="SHUTTING_DOWN: later"):
            peer.receive(20)
        with pytest.raises(ConnectionClosed):
            peer.send("q", b"x")
        peer.close()


# ---- receiving ----


def test_a_message_is_given_with_its_properties_and_the_type_that_holds():
    def script(server):
        server.handshake("dotnet")
        typed = codec.encode_extension(1, b"A, a"), codec.encode_extension(1, b"System.Object, mscorlib")
        server.write(delivery(1, b"0"), typed[0], delivery(2, b"1", properties=b"a:N1;a:N2;b:Tx;c:y;"))
        server.write(delivery(3, b"2"), typed[1], delivery(4, b"", b""))
        server.ended()

    with playing(script) as port, client(port, require=["dotnet"]) as peer:
        assert [peer.receive(20) for _ in range(4)] == [
            ("q", b"0", {}, None, 1),
            ("q", b"1", {"a": 2, "b": "x", "c": "y"}, "A, a", 2),
            ("q", b"2", {}, "A, a", 3),
            ("", b"", {}, None, 4),
        ]
        assert peer.receive(0.01) is None


def test_messages_are_acknowledged_when_half_the_window_is_done_or_nothing_else_waits():
    def script(server):
        server.handshake("", ACKED)
        server.write(*(delivery(n) for n in (1, 2, 3)))
        assert server.acknowledged() == 2
        assert server.acknowledged() == 3
        server.write(delivery(4))
        assert server.ended() == [ExtensionFrame(1, b"\0\4")]

    with playing(script) as port, client(port, ACKED) as peer:
        assert [message.sequence for message in (peer.receive(20) for _ in range(4))] == [1, 2, 3, 4]


def test_without_automatic_acknowledgement_the_program_says_what_is_done():
    def script(server):
        server.handshake("", ACKED)
        server.write(*(delivery(n) for n in (65534, 65535, 1, 2)))
        assert server.acknowledged() == 65535
        assert server.acknowledged() == 1
        assert server.ended() == []

    with playing(script) as port, client(port, ACKED, auto_ack=False) as peer:
        messages = [peer.receive(20) for _ in range(3)]
        peer.ack(messages[1])
        peer.ack(messages[0])
        peer.ack()
        peer.ack()
        assert peer.receive(20).sequence == 2


def test_a_message_that_was_being_worked_on_when_a_program_failed_is_not_acknowledged():
    def script(server):
        server.handshake("", ACKED)
        server.write(delivery(1))
        assert server.ended() == []

    with playing(script) as port, pytest.raises(ZeroDivisionError), client(port, ACKED) as peer:
        assert peer.receive(20).sequence // 0


def test_fragments_are_one_message_and_acknowledged_before_its_end_where_the_window_asks_for_it():
    def script(server):
        server.handshake("", "batch-ack:max-count=2")
        server.write(delivery(1, b"a", continued=True, properties=b"k:Tv;"))
        assert server.acknowledged() == 1
        server.write(delivery(2, b"b", b"q", continued=True, properties=b"k:Tother;"))
        assert server.acknowledged() == 2
        server.write(codec.encode_ack(1, 9), delivery(3, b"c", b""))
        assert server.acknowledged() == 3
        server.ended()

    with playing(script) as port, client(port, "batch-ack") as peer:
        assert peer.receive(20) == ("q", b"abc", {"k": "v"}, None, 3)
        assert peer.receive(0.01) is None


def test_without_acknowledgements_nothing_is_said():
    def script(server):
        server.handshake("json")
        server.write(delivery(1), delivery(2))
        assert server.ended() == []

    with playing(script) as port, client(port, require=["json"]) as peer:
        assert [peer.receive(20).sequence, peer.receive(20).sequence] == [1, 2]
        peer.flush()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x20", "PROTOCOL_ERROR: flags: needed one frame kind at most and no reserved bit, had 0x20"),
        (codec.encode_extension(0), "PROTOCOL_ERROR: extension id: needed 1 to 1, had 0"),
        (codec.encode_extension(2), "PROTOCOL_ERROR: extension id: needed 1 to 1, had 2"),
        (b"\x01\x01;", "BAD_COMMAND: name of the command: needed letters, digits, '-' and '_', had ''"),
        (
            delivery(1, continued=True) + delivery(2, destination=b"other"),
            "PROTOCOL_ERROR: a message to another destination in the middle of a continued one",
        ),
    ],
)
def test_what_is_no_frame_is_answered_with_an_error_and_the_end(data, text):
    def script(server):
        server.handshake("json")
        server.write(data)
        assert server.ended() == [ErrorFrame(text)]

    with playing(script) as port:
        peer = client(port, require=["json"])
        with pytest.raises(ProtocolError):
            peer.receive(20)
        with pytest.raises(ConnectionClosed):
            peer.receive(20)
        peer.close()


def test_frames_may_come_byte_by_byte():
    def script(server):
        server.handshake("json")
        data = delivery(1, b"x" * 300, properties=b"k:Tv;") + delivery(2)
        for at in range(len(data)):
            server.write(data[at : at + 1])
        server.ended()

    with playing(script) as port, client(port, require=["json"]) as peer:
        assert [len(peer.receive(20).payload), len(peer.receive(20).payload)] == [300, 1]


# ---- commands ----


def test_an_answer_is_that_of_its_command_whatever_comes_before_it():
    def script(server):
        server.handshake("", "x-reply;pub-sub;dotnet")
        name, pairs, number = server.command()
        assert (name, pairs) == ("create", {"destination": "queue/a", "max-messages": "5", "dead-letter": "true"})
        server.write(delivery(1))
        server.reply("ok", "other")
        server.reply("ok", number, created="true")
        name, pairs, number = server.command()
        assert (name, pairs) == ("subscribe", {"destination": "topic/a", "filter": "age>=N18;n<Tto", "prefetch": "2"})
        server.reply("ok", number)
        name, pairs, number = server.command()
        assert (name, pairs) == ("unsubscribe", {"destination": "topic/a"})
        server.reply("error", number, code="QUEUE_NOT_FOUND", text="there is none, or not here")

    with playing(script) as port, client(port, "x-reply", "pub-sub") as peer:
        assert peer.command("create", destination="queue/a", max_messages=5, dead_letter=True) == {"created": "true"}
        peer.subscribe("topic/a", "age>=N18;n<Tto", prefetch=2)
        with pytest.raises(Refused) as caught:
            peer.unsubscribe("topic/a")
        assert (caught.value.code, caught.value.text) == ("QUEUE_NOT_FOUND", "there is none, or not here")
        assert peer.receive(20).sequence == 1


def test_a_key_may_repeat_and_be_a_word_of_python():
    def script(server):
        server.handshake("", "x-reply")
        frame = server.next()
        assert frame.pairs == [("filter", "a=N1"), ("filter", "b=N2"), ("from", "first"), ("id", "1")]
        server.reply("ok", "1")

    with playing(script) as port, client(port, "x-reply") as peer:
        assert peer.command("subscribe", filter=["a=N1", "b=N2"], from_="first") == {}


def test_without_answers_subscribe_only_speaks_and_other_commands_are_not_for_this_peer():
    def script(server):
        server.handshake("", "pub-sub")
        assert server.command() == ("subscribe", {"destination": "q"}, "")

    with playing(script) as port, client(port, "x-reply", "pub-sub") as peer:
        peer.subscribe("q")
        with pytest.raises(ConfigError, match="x-reply"):
            peer.command("list")


def test_without_pub_sub_there_is_no_subscribing():
    with playing(lambda server: server.handshake("json")) as port, client(port, "json") as peer:
        for use in (peer.subscribe, peer.unsubscribe):
            with pytest.raises(ConfigError, match="pub-sub"):
                use("q")
