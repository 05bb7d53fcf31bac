# SPDX-License-Identifier: Apache-2.0
"""How a hub connection begins and ends: handshakes of both dialects, what is no handshake, protocol errors, leaving."""

import json
import threading
from collections.abc import Iterator

import pytest
from peers.http import TEXT
from peers.signalr import RS, HubPeer, fresh
from running import Running, broker

from vibemq.protocols.signalr.spec import Dialect, Encoding, MessageType

BOTH = pytest.mark.parametrize("encoding", list(Encoding))
SHORT = (
    *("--set", "signalr.handshake_timeout_s=2"),
    *("--set", "signalr.keepalive_interval_s=1"),
    *("--set", "signalr.client_timeout_s=1"),
)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Its patience is a second or two long."""
    with broker(tmp_path_factory.mktemp("slow") / "data", *SHORT, workers=1) as running:
        yield running


@pytest.fixture
def served_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with broker(tmp_path_factory.mktemp("once") / "data", workers=1) as running:
        yield running


@BOTH
def test_a_handshake_with_a_version_is_answered(served: Running, encoding: Encoding) -> None:
    with HubPeer(served, encoding=encoding) as peer:
        assert peer.ask("ServerInfo")["name"] == "VibeMQ"


@BOTH
@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_known_version_is_taken(served: Running, encoding: Encoding, version: int) -> None:
    with HubPeer(served, encoding=encoding, version=version) as peer:
        assert peer.ask("ServerInfo")["name"] == "VibeMQ"


@BOTH
def test_an_early_handshake_is_not_answered(served: Running, encoding: Encoding) -> None:
    with HubPeer(served, encoding=encoding, dialect=Dialect.EARLY) as peer:
        id = peer.begin("ServerInfo")
        first = peer.next()
        assert (first.type, first.id) == (MessageType.COMPLETION, id)


@BOTH
@pytest.mark.parametrize("dialect", [Dialect.V1, Dialect.EARLY])
def test_what_follows_a_handshake_at_once_is_taken(served: Running, encoding: Encoding, dialect: Dialect) -> None:
    with HubPeer(served, encoding=encoding, dialect=dialect, shake=False) as peer:
        peer.raw(peer.handshake_record + peer.call_record("ServerInfo", id="1"))
        if dialect == Dialect.V1:
            assert peer.http.next_frame().payload.startswith(b"{}" + RS)
        else:
            assert peer.next().id == "1"


@BOTH
def test_a_handshake_may_come_in_pieces(served: Running, encoding: Encoding) -> None:
    with HubPeer(served, encoding=encoding, shake=False) as peer:
        for byte in peer.handshake_record:
            peer.raw(bytes([byte]), TEXT)
        assert peer.http.next_frame().payload == b"{}" + RS
        record = peer.call_record("ServerInfo", id="1")
        for byte in record:
            peer.raw(bytes([byte]))
        assert peer.next().id == "1"


@pytest.mark.parametrize(
    ("shake", "error"),
    [
        ({"protocol": "protobuf", "version": 1}, "The protocol 'protobuf' is not supported."),
        ({"protocol": "json", "version": 3}, "The server does not support version 3 of the 'json' protocol."),
    ],
)
def test_a_handshake_that_cannot_be_is_answered_with_its_reason(served: Running, shake: object, error: str) -> None:
    with HubPeer(served, shake=False) as peer:
        peer.raw(json.dumps(shake).encode() + RS)
        assert json.loads(peer.http.next_frame().payload.rstrip(RS)) == {"error": error}
        assert peer.closed() is None


@pytest.mark.parametrize("first", [b'{"protocol":"protobuf"}' + RS, b"{}" + RS, b"nonsense" + RS, b"x" * 5000])
def test_what_is_no_handshake_closes(served: Running, first: bytes) -> None:
    with HubPeer(served, shake=False) as peer:
        peer.raw(first)
        assert peer.closed() is None
        assert peer.close_code not in (None, 1000)


def test_a_handshake_that_does_not_come_is_waited_for_only_so_long(slow: Running) -> None:
    with HubPeer(slow, shake=False) as peer:
        assert json.loads(peer.http.next_frame().payload.rstrip(RS)) == {"error": "Handshake was canceled."}
        assert peer.closed() is None


@BOTH
def test_a_client_that_pings_and_then_keeps_silent_is_closed(slow: Running, encoding: Encoding) -> None:
    with HubPeer(slow, encoding=encoding) as peer:
        peer.send(MessageType.PING)
        end = peer.closed()
        assert end is not None and end.error is not None and end.allow_reconnect


@BOTH
def test_a_client_that_never_pinged_may_be_silent_and_gets_pings(slow: Running, encoding: Encoding) -> None:
    with HubPeer(slow, encoding=encoding) as peer:
        assert [peer.next_raw() for _ in range(4)] == [b'{"type":6}' if encoding == Encoding.JSON else b"\x91\x06"] * 4
        assert peer.ask("ServerInfo")


def test_early_clients_get_no_pings_but_control_frames(slow: Running) -> None:
    with HubPeer(slow, dialect=Dialect.EARLY) as peer:
        assert peer.http.next_frame().opcode == 9


@BOTH
@pytest.mark.parametrize("dialect", [Dialect.V1, Dialect.EARLY])
@pytest.mark.parametrize("record", [b'{"type":1}', b'{"type":"one"}', b"\x91", b"[1,2", b"\xc1"])
def test_a_record_that_is_no_message_closes(
    served: Running, encoding: Encoding, dialect: Dialect, record: bytes
) -> None:
    with HubPeer(served, encoding=encoding, dialect=dialect) as peer:
        peer.raw(record + RS if encoding == Encoding.JSON else bytes([len(record)]) + record)
        end = peer.closed()
        if peer.close_code == 1007:  # text that is not UTF-8
            return
        assert peer.close_code == (1000 if dialect == Dialect.V1 else 1011)
        if dialect == Dialect.V1:
            assert end is not None
            assert end.allow_reconnect
            assert str(end.error).startswith("Connection closed with an error. InvalidDataException: ")
        else:
            assert end is None


def test_unknown_types_and_members_are_ignored(served: Running) -> None:
    with HubPeer(served) as peer:
        peer.raw(
            b'{"type":99,"x":1}'
            + RS
            + b'{"type":1,"extra":[{}],"invocationId":"1","target":"ServerInfo","arguments":[]}'
            + RS
        )
        assert peer.next().id == "1"


@pytest.mark.parametrize("parts", [1, 2])
def test_a_message_that_is_too_large_closes_and_its_client_may_come_again(served: Running, parts: int) -> None:
    with HubPeer(served) as peer:
        whole = b'{"type":1,"arguments":["' + b"x" * 20_000
        for part in range(parts):
            peer.raw(whole[part * len(whole) // parts : (part + 1) * len(whole) // parts])
        end = peer.closed()
        assert end is not None
        assert str(end.error).startswith("Connection closed with an error. InvalidDataException: ")
        assert (end.allow_reconnect, peer.close_code) == (True, 1000)


def test_a_message_that_is_too_large_for_an_early_client_closes_with_a_code(served: Running) -> None:
    with HubPeer(served, dialect=Dialect.EARLY) as peer:
        peer.raw(b'{"type":1,"arguments":["' + b"x" * 20_000)
        assert peer.closed() is None
        assert peer.close_code == 1009


@BOTH
def test_a_client_that_says_goodbye_is_let_go(served: Running, encoding: Encoding) -> None:
    with HubPeer(served, encoding=encoding) as peer:
        peer.send(MessageType.CLOSE)
        peer.closed()
        assert peer.close_code == 1000


def test_a_shutdown_tells_clients_to_come_again(served_once: Running) -> None:
    with HubPeer(served_once) as peer, HubPeer(served_once, dialect=Dialect.EARLY) as early:
        peer.ask("ServerInfo")
        early.ask("ServerInfo")
        ending = threading.Thread(target=served_once.process.terminate)
        ending.start()
        end = peer.closed()
        assert end is not None
        assert (end.error, end.allow_reconnect, peer.close_code) == (None, True, 1000)
        assert early.closed() is None
        assert early.close_code == 1000
        ending.join()


@BOTH
@pytest.mark.parametrize("dialect", [Dialect.V1, Dialect.EARLY])
def test_an_unknown_method_is_named(served: Running, encoding: Encoding, dialect: Dialect) -> None:
    with HubPeer(served, encoding=encoding, dialect=dialect) as peer:
        assert peer.refusal("NoSuchMethod", 1) == "Unknown hub method 'NoSuchMethod'"
        peer.notify("NoSuchMethod")  # is never answered
        assert peer.ask("ServerInfo")["name"] == "VibeMQ"


def test_methods_are_found_whatever_their_case(served: Running) -> None:
    with HubPeer(served) as peer:
        assert peer.ask("serverinfo") == peer.ask("SERVERINFO")
        name = fresh()
        assert peer.ask("publish", name, 1) == {"id": "0", "offset": 0}


def test_arguments_are_checked_in_the_words_of_the_reference_server(served: Running) -> None:
    with HubPeer(served) as peer:
        prefix = "Failed to invoke 'QueueInfo' due to an error on the server. InvalidDataException: "
        assert peer.refusal("QueueInfo") == prefix + "Invocation provides 0 argument(s) but target expects 1."
        assert peer.refusal("QueueInfo", "a", 1) == prefix + "Invocation provides 2 argument(s) but target expects 1."
        assert peer.refusal("QueueInfo", 1) == prefix + "Argument 'name' must be a string."
    with HubPeer(served, dialect=Dialect.EARLY) as early:
        assert early.refusal("QueueInfo") == "Invocation provides 0 argument(s) but target expects 1."


def test_the_wrong_kind_of_call_is_refused(served: Running) -> None:
    with HubPeer(served) as peer:
        id = peer.stream("ServerInfo")
        assert peer.stream_end(id).error == (
            "The client attempted to invoke the non-streaming 'ServerInfo' method with a streaming invocation."
        )
        assert peer.refusal("Subscribe", "q") == (
            "The client attempted to invoke the streaming 'Subscribe' method with a non-streaming invocation."
        )


def test_an_id_that_is_in_use_is_refused_and_closes_early_connections(served: Running) -> None:
    name = fresh()
    with HubPeer(served) as peer:
        id = peer.stream("Subscribe", name)
        peer.begin("ServerInfo", id=id)
        assert peer.next().error == f"Invocation ID '{id}' is already in use."
    with HubPeer(served, dialect=Dialect.EARLY) as early:
        id = early.stream("Subscribe", name)
        early.begin("ServerInfo", id=id)
        assert early.closed() is None
        assert early.close_code == 1011
