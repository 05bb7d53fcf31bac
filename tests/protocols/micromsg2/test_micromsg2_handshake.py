# SPDX-License-Identifier: Apache-2.0
"""The three steps before the first frame, on a broker where nobody has to log in."""

import pytest
from fixtures import impatient_broker
from peers.micromsg2 import USUAL, Micromsg2Peer, code, connected

import vibemq
from vibemq.protocols.micromsg2.codec import ErrorFrame, Handshake, encode_error, encode_handshake
from vibemq.protocols.micromsg2.extensions import parse_list

impatient = impatient_broker("micromsg2.handshake_timeout_s")


def names(text):
    return [item.name for item in parse_list(text)]


def c1(required="", optional="", **more):
    return encode_handshake(Handshake(required=required.encode(), optional=optional.encode(), **more))


# ---- what is agreed ----


def test_the_answer_says_who_serves_and_echoes_what_is_required(raw):
    s1 = raw.hello("json;dotnet;batch-ack:max-count=7")
    assert (s1.major, s1.minor, s1.flags) == (1, 0, 0)
    assert s1.identity == f"vibemq/{vibemq.__version__}".encode()
    assert (s1.required, s1.optional) == (b"json;dotnet;batch-ack:max-count=7", b"")


def test_who_speaks_of_no_acknowledgements_is_offered_them_and_may_decline(served, name):
    with Micromsg2Peer(served) as peer:
        s1 = peer.hello("json", "xml")
        assert s1.required == b"json"
        assert names(s1.optional) == ["xml", "batch-ack"]
        peer.write(peer.c2(s1))
        assert peer.agreed.window == 0
        peer.send(name)
    with connected(served) as reader:
        reader.subscribe(name)
        assert reader.delivers(1) == [b"1"]


@pytest.mark.parametrize("minor", [0, 2, 7, 255])
def test_any_minor_version_is_answered_with_ours(served, minor):
    with Micromsg2Peer(served) as peer:
        assert peer.hello("json", minor=minor).minor == 0


@pytest.mark.parametrize("flags", [1, 255])
def test_reserved_flags_of_a_handshake_are_ignored(raw, flags):
    raw.write(c1(flags=flags))
    assert isinstance(raw.answered(), Handshake)


@pytest.mark.parametrize(
    ("serializers", "first"),
    [("json;xml;protobuf", "json"), ("msgpack;xml;json", None), ("protobuf;xml", "protobuf")],
)
def test_of_several_required_serializers_one_is_enough(raw, serializers, first):
    answer = raw.hello(serializers)
    if first is None:  # a name that nobody knows is none of the group
        assert answer == ErrorFrame("Server does not support the following extensions: msgpack")
    else:
        assert answer.required.decode() == first


@pytest.mark.parametrize("spelling", ["pub-sub", "pubsub", "pub/sub", "publish-subscribe", "PUB/SUB"])
def test_every_spelling_of_pub_sub_means_it(served, name, spelling):
    with connected(served, f"batch-ack;x-reply;{spelling}") as peer:
        peer.subscribe(f"topic/{name}")


@pytest.mark.parametrize("count", ["max-count=3", "count=3", "batch-max=3", "batch-count=3", "MessagesPerAck=3"])
def test_every_key_of_a_count_is_read_and_echoed_as_it_was_written(served, name, count):
    with Micromsg2Peer(served) as peer:
        s1 = peer.hello(f"batch-ack:{count.replace('=', ':')};x-reply")
        assert s1.required.decode() == f"batch-ack:{count};x-reply"
        peer.write(peer.c2(s1))
        peer.create(name)
        peer.write(*(peer.message(name) for _ in range(4)))
        assert "4 came while 3 are unacknowledged" in peer.ended()


def test_a_window_above_ours_is_reduced_to_ours_and_a_larger_one_in_c2_is_not_used(served, peer, name):
    peer.create(name, max_messages=1, overflow="block-publisher")  # so that nothing is acknowledged
    peer.publish(name)
    with Micromsg2Peer(served) as greedy:
        assert greedy.hello("batch-ack:max-count=60000").required == b"batch-ack:max-count=10000"
        greedy.write(greedy.decide("batch-ack:max-count=60000"))
        greedy.write(*(greedy.message(name) for _ in range(10_001)))
        assert "10001 came while 10000 are unacknowledged" in greedy.ended()


def test_what_c2_says_counts_and_not_what_was_offered(served, other, name):
    other.create(name)
    with Micromsg2Peer(served) as peer:
        peer.hello("batch-ack:max-count=50", "json;x-reply;pub-sub")
        peer.write(peer.decide("batch-ack:max-count=2", "x-reply"))
        assert peer.denied("subscribe", destination=name) == "NOT_SUPPORTED"
        peer.write(*(peer.message(name) for _ in range(3)))
        assert code(peer.ended()) == "WINDOW_OVERRUN"


def test_ids_are_places_in_c2_required_first(served, name):
    with Micromsg2Peer(served) as peer:
        peer.hello("json", "dotnet;x-heartbeat;batch-ack")
        peer.write(peer.decide("batch-ack;json", "dotnet"))
        assert (peer.agreed.ack_id, peer.agreed.dotnet_id) == (1, 3)
        peer.publish(name)
        peer.write(peer.dotnet(b"T"))
        peer.publish(name)


def test_of_two_kinds_of_acknowledgement_the_first_in_c2_is_used(served, name):
    with Micromsg2Peer(served) as peer:
        s1 = peer.hello("ack;batch-ack;x-reply")
        assert names(s1.required) == ["ack", "batch-ack", "x-reply"]
        peer.write(peer.decide("ack;batch-ack;x-reply"))
        assert peer.agreed.window == 1
        peer.create(name)
        peer.publish(name)
        peer.write(peer.message(name), peer.message(name))
        assert code(peer.ended()) == "WINDOW_OVERRUN"


def test_unknown_vendor_extensions_are_ignored_where_optional_and_refused_where_required(served):
    with Micromsg2Peer(served) as peer:
        s1 = peer.hello("json", "x-telepathy;x-reply;teleport")
        assert names(s1.optional) == ["x-reply", "batch-ack"]
    with Micromsg2Peer(served) as peer:
        assert peer.hello("json;x-telepathy;teleport").text == (
            "Server does not support the following extensions: x-telepathy, teleport"
        )
        assert peer.rest() == []


@pytest.mark.parametrize(
    ("c2", "text"),
    [
        ("json", "Server requires the following extensions: batch-ack"),
        ("json;batch-ack;x-telepathy", "Server does not support the following extensions: x-telepathy"),
        ("json;batch-ack;dotnet", "PROTOCOL_ERROR: C2: needed extensions of C1 and S1 only, had dotnet"),
        ("json;batch-ack;?", "PROTOCOL_ERROR: extension name: needed letters, digits, '-', '_' and '.', had '?'"),
        ("json;batch-ack:max-count=0", "PROTOCOL_ERROR: count of batch-ack: needed a whole number from 1 up, had '0'"),
    ],
)
def test_a_c2_that_cannot_be_is_refused(raw, c2, text):
    raw.hello("json;batch-ack")
    raw.write(c1(c2))
    assert raw.ended() == text


# ---- how it arrives ----


def test_a_whole_conversation_byte_by_byte(raw, name):
    raw.drip(c1(USUAL))
    assert isinstance(raw.answered(), Handshake)
    raw.drip(raw.decide(USUAL))
    raw.drip(raw.message(name, b"hello", b"k:Tv;"))
    raw.acked()
    raw.subscribe(name)
    message = raw.deliver()
    assert (message.destination.decode(), message.properties, message.payload) == (name, b"k:Tv;", b"hello")


def test_the_first_frames_may_come_with_c2(raw, name):
    s1 = raw.hello(USUAL)
    c2 = raw.c2(s1)
    raw.write(c2, raw.message(name, b"early"))
    raw.acked()
    raw.subscribe(name)
    assert raw.delivers(1) == [b"early"]


def test_who_knows_the_answer_already_may_send_everything_at_once(raw, name):
    c2 = raw.decide(USUAL)
    raw.write(c1(USUAL), c2, raw.message(name, b"early"))
    assert isinstance(raw.answered(), Handshake)
    raw.acked()


def test_a_handshake_that_never_ends_is_told_and_let_go(impatient):
    with connected(impatient) as peer, Micromsg2Peer(impatient) as silent:
        with Micromsg2Peer(impatient) as half, Micromsg2Peer(impatient) as undecided:
            half.write(c1("json")[:9])
            undecided.hello("json")
            for one in (silent, half, undecided):
                assert one.ended().startswith("HANDSHAKE_TIMEOUT: ")
        peer.ping()


def test_one_byte_after_the_other_does_not_prolong_it(impatient):
    with Micromsg2Peer(impatient) as slow:
        slow.socket.settimeout(0.01)  # of each byte; how many there are is the broker's to say
        data = iter(c1("json;" * 10_000))
        text = b""
        while not text:
            try:
                slow.write(bytes([next(data)]))
                text = slow.socket.recv(1 << 16)
            except TimeoutError:
                continue
        assert text[2:].startswith(b"HANDSHAKE_TIMEOUT: ")


def test_an_error_from_the_peer_ends_the_handshake(served, peer):
    for steps in range(2):
        with Micromsg2Peer(served) as raw:
            if steps:
                raw.hello("json")
            raw.write(encode_error("I do not like you"))
            assert raw.rest() == []
    peer.ping()


# ---- what is no handshake, and what is too much ----

GARBAGE = {
    "major 0": b"\0\0\0\0",
    "major 2": b"\2\0\0\0",
    "a letter": b"*",
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a TLS ClientHello": bytes.fromhex("160301020001000001fc0303"),
    "an ERROR with a reserved bit": b"\x24\1x",
    "an ERROR that is a COMMAND too": b"\5\1x",
    "an ERROR of 4 GB": b"\x0c\xff\xff\xff\xff",
}


@pytest.mark.parametrize("step", ["C1", "C2"])
@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_what_is_no_handshake_gets_an_error_and_the_connection_closes(served, peer, data, step):
    with Micromsg2Peer(served) as raw:
        if step == "C2":
            raw.hello("json")
        raw.write(data)
        assert code(raw.ended()) in ("PROTOCOL_ERROR", "UNSUPPORTED_VERSION", "MESSAGE_TOO_LARGE")
    peer.ping()


def test_another_major_version_is_named(raw):
    raw.write(b"\2")
    assert raw.ended() == "UNSUPPORTED_VERSION: major version: needed 1, had 2"


@pytest.mark.parametrize("step", ["C1", "C2"])
@pytest.mark.parametrize(
    "text",
    [
        "a" * 65_535,
        "a;" * 32_767,
        "json;" * 13_107,
        "a:" + "b," * 32_766,
        "json:" + ",".join(f"k{at}=%41" for at in range(6_000)),
    ],
    ids=["one name", "names", "one name often", "keys", "properties"],
)
def test_extension_lists_of_64_kib_are_refused(served, peer, text, step):
    text = text[:65_535]
    with Micromsg2Peer(served) as raw:
        if step == "C2":
            raw.hello("")
        raw.write(c1(text, text))
        assert raw.ended()
    peer.ping()


@pytest.mark.parametrize(("count", "accepted"), [(255, True), (256, False)])
def test_more_than_255_extensions_are_refused(served, count, accepted):
    with Micromsg2Peer(served) as raw:
        answer = raw.hello("", ";".join(f"x-{at}" for at in range(count)))
        assert isinstance(answer, Handshake) is accepted
        assert accepted or "at most 255 extensions, had 256" in answer.text


def test_a_list_that_would_be_too_long_when_it_is_repeated_is_refused(raw):
    answer = raw.hello("x-reply:a=" + "é" * 30_000)
    assert answer.text.startswith("PROTOCOL_ERROR: repeated to you, required extensions: needed at most 65535 bytes")
    assert raw.rest() == []


@pytest.mark.parametrize("text", ["x-reply:a=%ff", "microauth:user=%ff,password=%ff", "x-subscribe:destination=%ff"])
def test_values_that_are_no_utf8_do_no_harm(served, peer, text):
    with Micromsg2Peer(served) as raw:
        s1 = raw.hello(f"{text};batch-ack")
        assert isinstance(s1, Handshake)
        raw.write(raw.decide(f"{text};batch-ack"))
        if "subscribe" in text:
            assert code(raw.error()) == "INVALID_NAME"
        raw.publish("no-utf8")
    peer.ping()
