# SPDX-License-Identifier: Apache-2.0
"""Connect, who may say what before it, which layout a connection speaks, and how it ends; nobody has to log in here."""

import pytest
from fixtures import impatient_broker
from peers.native import FRESH_ID, NativePeer, connected

import vibemq
from vibemq.protocols.native.codec import encode_frame
from vibemq.protocols.native.spec import COMMAND_BY_TYPE, COMMANDS, Command

impatient = impatient_broker("native.handshake_timeout_s")

# ---- the reply ----


def test_connect_ack_echoes_the_id_and_says_who_serves(raw):
    answer = raw.ask(Command.CONNECT, b"conn_123", headers={"clientVersion": "1.0.0"})
    assert answer.type == Command.CONNECT_ACK
    assert answer.headers.keys() == {"connectionId", "serverVersion"}
    assert answer.headers["serverVersion"] == vibemq.__version__


def test_connections_are_told_apart_by_their_ids(served):
    with NativePeer(served) as one, NativePeer(served) as two:
        assert one.connect().headers["connectionId"] != two.connect().headers["connectionId"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authUsername": "anybody"},
        {"authPassword": "anything"},
        {"authUsername": "guest", "authPassword": "wrong"},
        {"authUsername": "vibemq", "authPassword": "x", "authToken": "of a release before 1.8"},
    ],
)
def test_while_nobody_has_to_log_in_every_connect_succeeds(raw, headers):
    assert raw.ask(Command.CONNECT, headers=headers).type == Command.CONNECT_ACK


def test_features_are_given_when_asked_for_and_unknown_ones_are_skipped(raw):
    assert raw.connect(features=" Purge ,teleport,nack").headers["features"] == "nack,purge"


# ---- before it ----


@pytest.mark.parametrize("text", [False, True], ids=["dotnet", "text"])
def test_before_connect_only_ping_and_disconnect_are_legal(served, text):
    with NativePeer(served, text=text) as raw:
        for command in range(256):
            if command not in (Command.CONNECT, Command.PING, Command.DISCONNECT):
                fields = {"error_code": "x"} if command == Command.ERROR else {}
                assert raw.refused(command, queue="q", payload=b"1", **fields) == "NOT_AUTHENTICATED"
        raw.ping()
        raw.connect()


def test_disconnect_before_connect_closes_without_a_word(raw):
    raw.send(Command.DISCONNECT)
    assert raw.rest() == []


def test_a_peer_that_does_not_connect_in_time_is_told_and_let_go(impatient):
    with NativePeer(impatient) as silent, NativePeer(impatient) as half, connected(impatient) as patient:
        half.write(half.frame(Command.CONNECT)[:9])
        for peer in (silent, half):
            (error,) = peer.rest()
            assert (error.type, error.error_code, error.id) == (Command.ERROR, "AUTH_REQUIRED", FRESH_ID)
        patient.ping()


def test_pings_do_not_prolong_the_handshake(impatient):
    with NativePeer(impatient) as raw:
        commands = set()
        try:
            while True:
                raw.send(Command.PING)
                commands.add(raw.next().type)
        except ConnectionError:
            assert commands == {Command.PONG, Command.ERROR}


# ---- layouts ----


def test_the_text_layout_of_connect_holds_for_every_reply_and_later_frames_do_not_change_it(served, name):
    with connected(served, text=True) as peer:  # the peer checks each frame that comes
        for text in (False, True, False):
            peer.ask(Command.SUBSCRIBE, queue=name, text_layout=text)
            peer.ask(Command.PUBLISH, b"m", queue=name, text_layout=text)
            peer.deliver()
            peer.ask(Command.PING, text_layout=text)
            peer.ask(Command.QUEUE_INFO, queue=name, text_layout=text)
            peer.ask(Command.UNSUBSCRIBE, queue=name, text_layout=text)


def test_the_dotnet_layout_of_connect_holds_as_well(served, name):
    with connected(served) as peer:
        for text in (True, False):
            peer.ask(Command.SUBSCRIBE, queue=name, text_layout=text)
            peer.ask(Command.PUBLISH, b"m", queue=name, text_layout=text)
            peer.deliver()
            peer.ask(Command.PING, text_layout=text)
            peer.ask(Command.LIST_QUEUES, text_layout=text)
            peer.ask(Command.UNSUBSCRIBE, queue=name, text_layout=text)


def test_a_ping_before_connect_is_answered_in_its_own_layout_and_connect_decides(served):
    with NativePeer(served) as peer:
        for peer.text in (True, False, True):
            peer.ping()
        peer.text = False
        peer.connect()
        peer.ping()


def test_an_error_tells_nothing_about_the_layout(served):
    with NativePeer(served, text=True) as peer:
        peer.ping()
        assert peer.refused(Command.ERROR, error_code="x") == "NOT_AUTHENTICATED"
        peer.connect()
        peer.ping()


@pytest.mark.parametrize("tail", [b"\0", b"\0\0\0\0\0", b"\0\1", b"anything else"], ids=len)
def test_bytes_behind_the_headers_that_are_no_two_strings_are_ignored(raw, tail):
    frame = encode_frame(Command.CONNECT, b"c")
    raw.write((len(frame) - 5 + len(tail)).to_bytes(4, "big") + frame[4:] + tail)
    assert raw.expect(Command.CONNECT_ACK).id == b"c"


@pytest.mark.parametrize("layout", ["dotnet", "text"])
def test_a_layout_in_the_configuration_overrides_the_detection(layout, tmp_path):
    from running import broker

    with broker(tmp_path, "--set", f"native.layout={layout}", workers=1) as running:
        for speaks_text in (False, True):
            with NativePeer(running, text=layout == "text") as peer:
                answer = peer.ask(Command.CONNECT, text_layout=speaks_text)
                assert answer.type == Command.CONNECT_ACK
                peer.ask(Command.PING, text_layout=speaks_text)


# ---- a second Connect, Disconnect ----


def test_a_second_connect_replaces_what_the_first_one_agreed_on(peer, name):
    peer.send(Command.CONNECT, headers={"supported-compression": "gzip", "features": "nack"})
    answer = peer.expect(Command.CONNECT_ACK)
    assert (answer.headers["negotiated-compression"], answer.headers["features"]) == ("gzip", "nack")
    peer.subscribe(name)
    peer.text = True
    answer = peer.connect()
    assert answer.headers.keys() == {"connectionId", "serverVersion"}
    assert peer.refused(Command.NACK, b"m") == "UNKNOWN_COMMAND"
    peer.publish(name, b'"' + b"x" * 5000 + b'"', b"m")
    assert peer.deliver().id == b"m", "the subscription has stayed"
    assert peer.flags == 0


def test_disconnect_sends_what_is_queued_and_closes(peer, name):
    frames = [peer.frame(Command.PUBLISH, b"m%d" % at, queue=name, payload=b"1") for at in range(500)]
    peer.write(*frames, peer.frame(Command.DISCONNECT, b"d"))
    peer.socket.settimeout(30)
    assert [message.id for message in peer.rest()] == [b"m%d" % at for at in range(500)]


def test_frames_behind_disconnect_are_not_acted_upon(peer, other, name):
    other.create(name)
    peer.write(peer.frame(Command.DISCONNECT), peer.frame(Command.PUBLISH, queue=name, payload=b"1"))
    assert peer.rest() == []
    assert other.info(name)["messageCount"] == 0


# ---- every number in every state ----

ANSWERED = {rule.command for rule in COMMANDS if "client" in rule.sent_by} - {Command.CONNECT, Command.DISCONNECT}
WITHOUT_LOGIN = {command for command in ANSWERED if not COMMAND_BY_TYPE[command].admin}


@pytest.mark.parametrize("features", ["", "nack,purge"])
def test_every_number_that_is_no_command_is_unknown(served, name, features):
    known = {
        c
        for c in WITHOUT_LOGIN
        if (COMMAND_BY_TYPE[c].feature or "purge") in features or not COMMAND_BY_TYPE[c].feature
    }
    with connected(served, features=features) as peer:
        for command in range(256):
            if command in (Command.CONNECT, Command.DISCONNECT):
                continue
            if command == Command.PURGE_QUEUE:
                peer.create(name)  # 41 has deleted it
            id = b"n%d" % command
            fields = {"error_code": "x"} if command == Command.ERROR else {}
            peer.send(command, id, queue=name, payload=b"{}", **fields)
            if command in (Command.ACK, Command.NACK) and command in known:
                peer.ping()  # not answered: unknown ids are ignored
                continue
            answer = peer.next()
            while answer.type == Command.DELIVER:
                answer = peer.next()
            assert answer.id == id
            if command in known:
                expected = COMMAND_BY_TYPE[command].reply
                assert answer.type == expected, f"{command}: {answer}"
            else:
                assert answer.error_code == "UNKNOWN_COMMAND", f"{command}: {answer}"
                assert answer.error_message.startswith("Unknown command type: ")


@pytest.mark.parametrize("command", [rule.command for rule in COMMANDS if rule.needs_queue])
def test_a_command_on_a_queue_needs_the_queue_field(served, command):
    with connected(served, features="nack,purge,stored,alter") as peer:
        assert peer.refused(command, payload=b"{}") == "INVALID_QUEUE"
