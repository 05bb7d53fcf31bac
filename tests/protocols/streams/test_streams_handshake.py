# SPDX-License-Identifier: Apache-2.0
"""Before Open: the order of the steps, every refusal with its code, and silence for who does not speak the protocol."""

import time

import pytest
from fixtures import impatient_broker
from peers.streams import GUEST, Peer, connected

from vibemq.protocols.streams import codec, spec
from vibemq.protocols.streams.spec import Code, Key

HELLO = codec.encode_request(Key.PEER_PROPERTIES, 1, properties={"product": "raw", "connection_name": "drip"})
TUNE = codec.encode_request(Key.TUNE, frame_max=0, heartbeat=0)
OPEN = codec.encode_request(Key.OPEN, 9, virtual_host="/")
HEARTBEAT = bytes.fromhex("0000000400170001")
LOGIN_DELAY_S_MIN = 2.0  # the promise is "never below"; the default is 3
SLOW_S_MAX = 15.0  # generous: a step's two seconds, and a machine that is busy

impatient = impatient_broker("streams.handshake_timeout_s")


@pytest.fixture
def raw(served):
    with Peer(served) as peer:
        yield peer


def test_each_step_answers_as_clients_expect(raw, served):
    properties = raw.ask(Key.PEER_PROPERTIES, properties={"product": "raw"}).properties
    assert properties["product"] == "RabbitMQ"
    assert tuple(map(int, properties["version"].split("."))) >= (4, 3, 0)
    assert {"cluster_name", "platform", "copyright", "information"} <= properties.keys()
    assert raw.ask(Key.SASL_HANDSHAKE).mechanisms == ["PLAIN", "AMQPLAIN", "ANONYMOUS"]
    raw.send(codec.encode_request(Key.SASL_AUTHENTICATE, 7, mechanism="PLAIN", data=GUEST))
    answer, tune = raw.next_frame(), raw.next_frame()
    assert (answer.key, answer.body) == (0x8013, b"\0\0\0\x07\0\x01")
    assert (tune.key, len(tune.body)) == (Key.TUNE, 8), "Tune is the very next frame, 16 bytes with its size"
    assert (tune.decoded().frame_max, tune.decoded().heartbeat) == (8_388_608, 60)
    raw.send(TUNE)
    opened = raw.ask(Key.OPEN, virtual_host="/")
    assert opened.properties == {"advertised_host": "localhost", "advertised_port": str(served.port)}


@pytest.mark.parametrize("key", [Key.TUNE, Key.TUNE | spec.RESPONSE_BIT])
def test_tune_is_answered_with_either_key_and_open_may_share_its_segment(raw, key):
    raw.log_in()
    raw.send(TUNE[:4] + key.to_bytes(2, "big") + TUNE[6:] + OPEN)
    assert raw.expect(Key.OPEN | spec.RESPONSE_BIT).code == Code.OK


def test_a_handshake_byte_by_byte_works_as_well(raw):
    raw.drip(HELLO)
    raw.expect(Key.PEER_PROPERTIES | spec.RESPONSE_BIT)
    raw.drip(codec.encode_request(Key.SASL_HANDSHAKE, 2))
    raw.expect(Key.SASL_HANDSHAKE | spec.RESPONSE_BIT)
    raw.drip(codec.encode_request(Key.SASL_AUTHENTICATE, 3, mechanism="PLAIN", data=GUEST))
    raw.expect(Key.SASL_AUTHENTICATE | spec.RESPONSE_BIT)
    raw.expect(Key.TUNE)
    raw.drip(TUNE + OPEN)
    assert raw.expect(Key.OPEN | spec.RESPONSE_BIT).code == Code.OK


def test_heartbeats_are_legal_at_every_step(raw):
    raw.send(HEARTBEAT)
    raw.ask(Key.PEER_PROPERTIES, properties={})
    raw.send(HEARTBEAT)
    raw.ask(Key.SASL_HANDSHAKE)
    raw.send(HEARTBEAT)
    assert raw.code(Key.SASL_AUTHENTICATE, mechanism="PLAIN", data=GUEST) == Code.OK
    raw.expect(Key.TUNE)
    raw.send(HEARTBEAT, TUNE, HEARTBEAT)
    assert raw.code(Key.OPEN, virtual_host="/") == Code.OK


WRONG = {
    "unknown command": bytes.fromhex("0000000412340001"),
    "unknown version of a known command": bytes.fromhex("0000000800110009") + b"\0\0\0\1",
    "size below 4": bytes.fromhex("0000000300"),
    "truncated body": bytes.fromhex("0000000a00110001000000010000"),
    "bytes after a complete body": bytes.fromhex("0000000d00110001") + b"\0\0\0\1\0\0\0\0!",
    "a property without a value": bytes.fromhex("0000000f001100010000000100000001000161"),
    "text that is not UTF-8": bytes.fromhex("0000001200110001000000010000000100 02fffe0000".replace(" ", "")),
    "above 8,192 bytes": (8193).to_bytes(4, "big"),
    "a size with the top bit": b"\xff\xff\xff\xff",
    "the wrong step": OPEN,
    "an open session's command": codec.encode_request(Key.CREATE, 1, stream="early", arguments={}),
    "Publish": codec.encode_request(Key.PUBLISH, publisher_id=0, messages=[(1, None, b"early")]),
    "a TLS ClientHello": bytes.fromhex("160301020001000001fc0303"),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG.keys())
def test_before_open_the_socket_closes_without_a_word_over(raw, data):
    raw.send(data)
    assert raw.rest() == b""


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG.keys())
def test_the_same_in_the_middle_of_the_handshake_over(raw, data):
    raw.send(HELLO)
    raw.expect(Key.PEER_PROPERTIES | spec.RESPONSE_BIT)
    if data == HELLO:
        data = OPEN
    raw.send(data)
    assert raw.rest() == b""


def test_before_open_exactly_8192_bytes_are_read(raw):
    properties = {f"{at:02}": "x" * 500 for at in range(15)}
    frame = codec.encode_request(Key.PEER_PROPERTIES, 1, properties=properties)
    missing = 8192 - (len(frame) - 4)
    frame = codec.encode_request(Key.PEER_PROPERTIES, 1, properties={**properties, "": "y" * (missing - 4)})
    assert len(frame) == 4 + 8192
    raw.send(frame)
    assert raw.expect(Key.PEER_PROPERTIES | spec.RESPONSE_BIT).code == Code.OK


def test_a_step_that_takes_too_long_closes_the_socket(impatient):
    with Peer(impatient) as nothing, Peer(impatient) as half, connected(impatient) as patient:
        half.send(HELLO[:10])
        assert nothing.rest() == half.rest() == b""
        assert patient.ask(Key.METADATA, streams=[]).streams == [], "an open connection may be idle"


def test_a_peer_that_drips_forever_gets_no_more_time_than_a_silent_one(impatient):
    with Peer(impatient) as raw:
        raw.socket.settimeout(0.05)
        began = time.monotonic()
        frame = iter(codec.encode_request(Key.PEER_PROPERTIES, 1, properties={"x": "y" * 8000}))
        while True:
            try:
                raw.socket.sendall(bytes([next(frame)]))
                if raw.socket.recv(1) == b"":
                    break
            except TimeoutError:
                assert time.monotonic() - began < SLOW_S_MAX, "still connected"
            except ConnectionError:
                break


# ---- logins ----


def step_to_login(peer):
    peer.ask(Key.PEER_PROPERTIES, properties={})
    peer.ask(Key.SASL_HANDSHAKE)


@pytest.mark.parametrize("data", [b"\0guest\0wrong", b"\0nobody\0guest", b"\0\0"], ids=["password", "user", "empty"])
def test_a_failed_login_is_answered_late_while_others_are_served(raw, peer, data):
    step_to_login(raw)
    began = time.monotonic()
    raw.send(codec.encode_request(Key.SASL_AUTHENTICATE, 5, mechanism="PLAIN", data=data))
    raw.send(codec.encode_request(Key.SASL_AUTHENTICATE, 6, mechanism="PLAIN", data=GUEST))  # is not even looked at
    for _ in range(20):
        peer.ask(Key.METADATA, streams=[])
    assert time.monotonic() - began < LOGIN_DELAY_S_MIN, "another connection had to wait for the failed login"
    assert raw.rest() == bytes.fromhex("0000000a8013000100000005") + b"\0\x08"
    assert time.monotonic() - began >= LOGIN_DELAY_S_MIN


@pytest.mark.parametrize(
    ("mechanism", "data", "code"),
    [
        ("PLAIN", b"guest\0guest", Code.SASL_ERROR),
        ("PLAIN", b"", Code.SASL_ERROR),
        ("PLAIN", b"admin\0guest\0guest", Code.SASL_ERROR),
        ("PLAIN", b"\0guest\0guest\0more", Code.SASL_ERROR),
        ("PLAIN", b"\0\xff\xfe\0guest", Code.SASL_ERROR),
        ("EXTERNAL", b"", Code.SASL_MECHANISM_NOT_SUPPORTED),
        ("plain", GUEST, Code.SASL_MECHANISM_NOT_SUPPORTED),
    ],
)
def test_a_login_that_is_no_guess_is_refused_at_once(raw, mechanism, data, code):
    step_to_login(raw)
    assert raw.code(Key.SASL_AUTHENTICATE, mechanism=mechanism, data=data) == code
    assert raw.rest() == b""


def test_an_unknown_virtual_host_gets_code_12_without_a_map_and_late(raw):
    raw.log_in()
    began = time.monotonic()
    raw.send(TUNE, codec.encode_request(Key.OPEN, 4, virtual_host="/elsewhere"))
    assert raw.rest() == bytes.fromhex("0000000a8015000100000004000c")
    assert time.monotonic() - began >= LOGIN_DELAY_S_MIN


def test_the_broker_on_loopback_takes_guest_over_ipv4(served):
    assert served.host == "127.0.0.1"
    connected(served).__exit__()
