# SPDX-License-Identifier: Apache-2.0
"""The MicroMsg2 codec against frames as peers send them, every cut of them, itself, and garbage.

Every decoder is fed three ways: whole, cut at every length, and with a tail. Rules that settle a contradiction of the
published text are tested in the form that is tolerated and in the form that is written.
"""

import json
import random
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibemq.protocols.micromsg2 import codec, extensions, spec
from vibemq.protocols.micromsg2.codec import (
    BadCommand,
    Command,
    ErrorFrame,
    ExtensionFrame,
    Handshake,
    MalformedFrame,
    MalformedHandshake,
    Message,
    UnencodableValue,
    UnsupportedVersion,
    Untyped,
)
from vibemq.protocols.micromsg2.spec import ErrorCode, Flag

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
WIRE = (Path(codec.__file__).parent / "wire.pxd").read_text()
X70000 = bytes.fromhex("08000103626967000000011170") + b"x" * 70_000


def octets(vector) -> bytes:
    return bytes.fromhex(vector["hex"]) if "hex" in vector else X70000


def is_handshake(vector) -> bool:
    return vector["name"][:2] in ("C1", "S1", "C2")


def of_groups(*groups: str, handshakes: bool) -> list:
    vectors = [v for group in groups for v in VECTORS[group] if is_handshake(v) is handshakes]
    return [pytest.param(octets(v), id=v["name"]) for v in vectors]


GROUPS = ("observed_frames", "text_frames", "rule_frames")
HANDSHAKES = of_groups(*GROUPS, handshakes=True)
FRAMES = of_groups(*GROUPS, handshakes=False)
CONVERSATIONS = [pytest.param(v, id=v["name"]) for v in VECTORS["observed_conversations"]]


def written(value) -> bytes:
    """The strict form of whatever a decoder gave."""
    match value:
        case Handshake():
            return codec.encode_handshake(value)
        case Message(sequence, destination, properties, payload, continued):
            return codec.encode_message(sequence, destination, payload, properties, continued)
        case Command(name, pairs):
            return codec.encode_command(name, pairs)
        case ExtensionFrame(number, payload):
            return codec.encode_extension(number, payload)
        case ErrorFrame(text):
            return codec.encode_error(text)
    raise AssertionError(value)


def read_whole(decode, data: bytes):
    value, used = decode(data)
    assert used == len(data)
    return value


# ---- vectors ----


def test_no_vector_is_left_out():
    for group in GROUPS:
        for vector in VECTORS[group]:
            data = octets(vector)
            assert len(data) == vector["length"]
            assert "hex" in vector or data.hex().startswith(vector["header_hex"])
    assert len(HANDSHAKES) + len(FRAMES) == sum(len(VECTORS[group]) for group in GROUPS)


@pytest.mark.parametrize("data", HANDSHAKES)
def test_a_handshake_is_read_and_written_to_the_byte(data):
    assert written(read_whole(codec.decode_handshake, data)) == data


@pytest.mark.parametrize("data", FRAMES)
def test_a_frame_is_read_and_written_to_the_byte(data):
    value = read_whole(codec.decode_frame, data)
    if data == bytes.fromhex("08000308636f6d6d616e6473000000000003616263"):  # LARGE_PAYLOAD that nobody needed
        assert written(value) == bytes.fromhex("00000308636f6d6d616e6473000003616263")
    else:
        assert written(value) == data


@pytest.mark.parametrize("data", HANDSHAKES)
def test_a_handshake_that_is_cut_short_waits_for_more_and_leaves_what_follows(data):
    whole = codec.decode_handshake(data)
    assert [codec.decode_handshake(data[:size]) for size in range(len(data))] == [None] * len(data)
    for tail in (b"\x00", data, b"\xff" * 9):
        assert codec.decode_handshake(data + tail) == whole


@pytest.mark.parametrize("data", FRAMES)
def test_a_frame_that_is_cut_short_waits_for_more_and_leaves_what_follows(data):
    whole = codec.decode_frame(data)
    cuts = range(len(data)) if len(data) < 1000 else [*range(20), len(data) - 1]
    assert all(codec.decode_frame(data[:size]) is None for size in cuts)
    for tail in (b"\x00", data, b"\xff" * 9):
        assert codec.decode_frame(data + tail) == whole


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_a_conversation_is_read_and_written_to_the_byte(conversation):
    steps = [s for s in conversation["steps"] if "hex" in s]
    values = []
    for index, step in enumerate(steps):
        data = bytes.fromhex(step["hex"])
        values.append(read_whole(codec.decode_handshake if index < 3 else codec.decode_frame, data))
        assert written(values[-1]) == data
    if "extension_order" not in conversation:
        assert len(values) == 2, "no C2 follows"
        return
    agreed = extensions.agree(values[2])
    assert list(agreed.ids) == conversation["extension_order"]
    sent = {"C->S": [], "S->C": [1, 2, 3, 4]}
    for step, value in zip(steps[3:], values[3:], strict=True):
        if isinstance(value, Message):
            sent[step["direction"]].append(value.sequence)
            assert value.sequence == len(sent[step["direction"]])
        elif value.id == agreed.dotnet_id:
            assert value.payload.startswith(b"Order, peer")
        else:
            assert value.id == agreed.ack_id
            other = "S->C" if step["direction"] == "C->S" else "C->S"
            assert codec.ack_sequence(value.payload) in sent[other]


def test_what_the_rule_frames_say():
    frames = {v["name"]: octets(v) for v in VECTORS["rule_frames"]}

    def read(name):
        return codec.decode_frame(frames[name])[0]

    topic = ("destination", "topic/domain-events")
    assert read("SUBSCRIBE without filter") == Command("subscribe", [topic])
    assert read("SUBSCRIBE with filter age>=N18;first_name<Tto") == Command(
        "subscribe", [topic, ("filter", "age>=N18;first_name<Tto")]
    )
    assert read("UNSUBSCRIBE") == Command("unsubscribe", [topic])
    message = read("MESSAGE with number, date and text properties")
    assert message == Message(65535, b"topic/domain-events", message.properties, b"\x00\x01")
    assert codec.parse_properties(message.properties) == [
        ("age", 42),
        ("at", datetime(2014, 10, 13, 11, tzinfo=UTC)),
        ("say", 'Hello "world"'),
    ]
    assert read("fragment 1 of 2 (CONTINUED)") == Message(10, b"commands", b"k:Tv;", b"first-", True)
    assert read("fragment 2 of 2, empty destination") == Message(11, b"", b"", b"second")
    assert read("ERROR in the recommended form") == ErrorFrame("QUEUE_NOT_FOUND: no such queue: orders")


@pytest.mark.parametrize("vector", [pytest.param(v, id=v["name"]) for v in VECTORS["must_reject"]])
def test_what_must_be_rejected_is(vector):
    data = octets(vector)
    assert len(data) == vector["length"]
    if "EXTENSION id" in vector["name"]:  # whether there is such an id is known to the session
        assert read_whole(codec.decode_frame, data).id in (0, 9)
    elif "major version" in vector["name"]:
        with pytest.raises(UnsupportedVersion) as caught:
            codec.decode_handshake(data)
        assert caught.value.error_code == ErrorCode.UNSUPPORTED_VERSION
    elif "unknown extension" in vector["name"]:
        handshake = read_whole(codec.decode_handshake, data)
        with pytest.raises(extensions.Refusal) as refused:
            extensions.negotiate_server(handshake, supported=["json"])
        assert f'ERROR "{refused.value.text}" + close' == vector["action"]
    elif "the text prints" in vector["name"]:
        assert codec.decode_frame(data) == (ErrorFrame("\x02\x00"), len(data) - 1)
    else:
        with pytest.raises(MalformedFrame, match=r"^flags: needed one frame kind at most and no reserved bit, had 0x"):
            codec.decode_frame(data)
        with pytest.raises(MalformedFrame):  # told by the first octet
            codec.decode_frame(data[:1])


# ---- contradictions of the published text: what is tolerated, what is written ----


def test_only_2_is_an_extension_and_4_is_an_error():
    assert codec.decode_frame(bytes.fromhex("0202020004"))[0] == ExtensionFrame(2, b"\x00\x04")
    assert isinstance(codec.decode_frame(bytes.fromhex("040202000402"))[0], ErrorFrame)
    assert codec.encode_ack(2, 4) == codec.encode_extension(2, b"\x00\x04") == bytes.fromhex("0202020004")


@pytest.mark.parametrize(
    ("payload", "number"),
    [("0004", 4), ("ffff", 65535), ("00000004", 4), ("ffffffff", 2**32 - 1), ("04", 4), ("", -1), ("000004", -1)],
)
def test_an_ack_is_read_with_2_4_or_1_octets(payload, number):
    assert codec.ack_sequence(bytes.fromhex(payload)) == number


def test_sequence_0_behind_65535_is_read_and_1_is_written():
    assert codec.decode_frame(bytes.fromhex("00000001710000" + "0178"))[0].sequence == 0
    assert codec.encode_message(65535, b"q", b"") == bytes.fromhex("00ffff0171000000")
    with pytest.raises(UnencodableValue):
        codec.encode_message(65536, b"q", b"")


def test_large_payload_is_value_8_and_written_above_255_octets_only():
    assert Flag.LARGE_PAYLOAD == 8
    assert codec.encode_message(1, b"q", b"x" * 255)[0] == 0
    assert codec.encode_message(1, b"q", b"x" * 256)[:11] == bytes.fromhex("08000101710000" + "00000100")
    assert codec.encode_extension(1, b"x" * 256)[:6] == bytes.fromhex("0a0100000100")
    for kind in (1, 2, 4):
        head = bytes([kind | 8]) + (b"\x07" if kind == 2 else b"")
        frame, used = codec.decode_frame(head + b"\x00\x00\x00\x03a-b")
        assert used == len(head) + 7 and "a-b" in str(frame)


def test_continued_is_value_16_and_may_come_with_large_payload():
    fragment = codec.encode_message(1, b"q", b"x" * 300, b"", True)
    assert fragment[0] == 24
    assert codec.decode_frame(fragment)[0].continued
    assert codec.encode_message(1, b"q", b"x", b"", True)[0] == 16


@pytest.mark.parametrize("flags", [0x20, 0x40, 0x80, 0xFF, 3, 5, 6, 7, 0x09 | 2])
def test_reserved_bits_and_two_kinds_are_no_frame_but_handshake_flags_are_ignored(flags):
    with pytest.raises(MalformedFrame) as caught:
        codec.decode_frame(bytes([flags]))
    assert caught.value.error_code == ErrorCode.PROTOCOL_ERROR
    assert codec.decode_handshake(bytes([1, 0, flags, 0, 0, 0, 0, 0]))[0].flags == flags


@pytest.mark.parametrize("minor", [0, 1, 2, 255])
def test_any_minor_of_major_1_is_read(minor):
    assert codec.decode_handshake(bytes([1, minor, 0, 0, 0, 0, 0, 0]))[0].minor == minor


@pytest.mark.parametrize("major", [0, 2, 3, 8, 0xFB, ord("H")])
def test_another_major_is_told_by_its_first_octet(major):
    with pytest.raises(UnsupportedVersion, match=f"^major version: needed 1, had {major}$"):
        codec.decode_handshake(bytes([major]))
    assert issubclass(UnsupportedVersion, MalformedHandshake)
    with pytest.raises(MalformedHandshake, match="had 0x47"):  # the bit of an ERROR, and others
        codec.decode_handshake(b"GET / HTTP/1.1")


def test_lengths_are_trusted_not_the_number_that_the_text_prints():
    c1 = Handshake(1, 0, 0, b"hulk", b"json;dotnet")
    assert codec.encode_handshake(c1)[8:10] == b"\x00\x0b"
    short = codec.encode_handshake(c1).replace(b"\x00\x0b", b"\x00\x0a")
    assert codec.decode_handshake(short) is None  # what follows is a list of 0x7400 octets then
    assert codec.decode_handshake(short + bytes(0x7400))[0].required == b"json;dotne"


def test_an_error_in_place_of_a_handshake_is_read():
    data = codec.encode_error("Server to not support the following extensions: batch-ack")
    assert read_whole(codec.decode_handshake, data).text.endswith("batch-ack")
    assert [codec.decode_handshake(data[:size]) for size in range(1, len(data))] == [None] * (len(data) - 1)


def test_an_error_of_an_early_release_is_read_when_the_connection_has_ended():
    text = b"Server to not support the following extensions: batch-ack"
    data = b"\x0c" + bytes([len(text)]) + text
    assert codec.last_error(data) == ErrorFrame(text.decode())
    for other in (data[:-1], data + b"x", b"\x0c", b"", b"\x04\x01x", codec.encode_error("x" * 300)):
        assert codec.last_error(other) is None


# ---- errors ----


def test_an_error_is_cut_at_a_character_and_read_though_it_is_no_utf8():
    frame = codec.encode_error("é" * 200)
    assert frame[:2] == b"\x04\xfe"  # 254: a half character is none
    assert codec.decode_frame(frame)[0].text == "é" * 127
    assert codec.decode_frame(b"\x04\x02a\xff")[0] == ErrorFrame("a\ufffd")
    assert len(codec.encode_error("x" * 999)) == 2 + spec.ERROR_BYTES_MAX


# ---- commands ----


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("list", Command("list", [])),
        ("list;", Command("list", [])),
        ("CommandName;key=value,KEY=v%2C%3B;", Command("commandname", [("key", "value"), ("key", "v,;")])),
        ("SUBSCRIBE;first_name=a=b", Command("subscribe", [("first_name", "a=b")])),
        ("x-y_z;k=", Command("x-y_z", [("k", "")])),
        ("c;k=%zz%2", Command("c", [("k", "%zz%2")])),
        ("c;k=%C3%A9+é", Command("c", [("k", "é+é")])),
    ],
)
def test_a_command_is_read(text, command):
    assert codec.parse_command(text.encode()) == command
    assert codec.decode_frame(codec.encode_command(command.name, command.pairs))[0] == command


@pytest.mark.parametrize(
    "text", [b"", b";", b";k=v", b"a b", b"sub.scribe", b"c;k", b"c;=v", b"c;k=v,,l=w", b"c;k=v,", b"c;k=v;l=w",
             b"c;k=v;;", b"c;k.k=v", b"c\xff", b"c;k=%ff", b"c;k=\xc3", b"c;,"]
)  # fmt: skip
def test_what_is_no_command_is_told(text):
    with pytest.raises(BadCommand, match=r"needed .*, had ") as caught:
        codec.parse_command(text)
    assert caught.value.error_code == ErrorCode.BAD_COMMAND
    frame = b"\x01" + bytes([len(text)]) + text
    with pytest.raises(BadCommand):
        codec.decode_frame(frame)


def test_a_command_has_255_pairs_at_most():
    assert len(codec.parse_command(b"c;" + b",".join([b"k=v"] * 255)).pairs) == 255
    with pytest.raises(BadCommand, match=r"^command: needed at most 255 pairs, had 256$"):
        codec.parse_command(b"c;" + b",".join([b"k=v"] * 256))


def test_a_command_is_written_with_everything_encoded_that_may_be():
    frame = codec.encode_command("Subscribe", {"destination": "topic/domain-events", "filter": "age>=N18;a,b~T~"})
    assert frame[2:] == b"subscribe;destination=topic%2Fdomain-events,filter=age%3E%3DN18%3Ba%2Cb~T~"
    for name, pairs in (("a b", {}), ("c", {"k k": "v"}), ("c", {"": "v"}), ("c", {"k": "x" * 70_000})):
        with pytest.raises(UnencodableValue):
            codec.encode_command(name, pairs)


# ---- properties ----


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        (b"first_name:alice;twitter:somebody;", [("first_name", Untyped("alice")), ("twitter", Untyped("somebody"))]),
        (b"a:Tx;b=Ty", [("a", "x"), ("b", "y")]),
        (b"a:T=:;;;b=N1", [("a", "=:"), ("b", 1)]),
        (b"k;:Tv;e:;t:T", [("k", Untyped("")), ("", "v"), ("e", Untyped("")), ("t", "")]),
        (b"a:N-5;b:N+5;c:N007;d:N18446744073709551615", [("a", -5), ("b", 5), ("c", 7), ("d", 2**64 - 1)]),
        (b"a:N1.5;b:N1e%2B20;c:N.5;d:N18446744073709551616", [("a", 1.5), ("b", 1e20), ("c", 0.5), ("d", 2.0**64)]),
        (b"a:N;b:Nike;c:N1_0;d:N1e999;e:D;f:Dx;g:D1.x", [
            ("a", Untyped("N")), ("b", Untyped("Nike")), ("c", Untyped("N1_0")), ("d", Untyped("N1e999")),
            ("e", Untyped("D")), ("f", Untyped("Dx")), ("g", Untyped("D1.x")),
        ]),
        (b"a:D-1.5", [("a", datetime(1969, 12, 31, 23, 59, 58, 500_000, tzinfo=UTC))]),
        (b"a:D1413198000", [("a", datetime(2014, 10, 13, 11, tzinfo=UTC))]),
        (b"a:D999999999999", [("a", Untyped("D999999999999"))]),
        (b"a:T%ff;b:x%ff;c%2Fd:T", [("a", b"\xff"), ("b", b"x\xff"), ("c/d", "")]),
        (b"a:%54om", [("a", Untyped("Tom"))]),
    ],
)  # fmt: skip
def test_properties_are_read(text, pairs):
    read = codec.parse_properties(text)
    assert read == pairs
    assert [type(value) for _, value in read] == [type(value) for _, value in pairs]


def test_properties_are_written_with_types_and_a_semicolon_behind_each():
    east = timezone(timedelta(hours=1))
    properties = {
        "age": 42,
        "at": datetime(2014, 10, 13, 12, tzinfo=east),
        "say": 'Hello "world"',
        "left out": None,
        "half": datetime(1969, 12, 31, 23, 59, 58, 500_000, tzinfo=UTC),
        "bytes/": b"\xff",
        "low": -0.5,
        "high": 1e20,
        "yes": True,
        "nan": float("nan"),
        "raw": Untyped("blue"),
        "name": Untyped("Tom"),
    }
    assert codec.encode_properties(properties) == (
        b"age:N42;at:D1413198000.0;say:THello%20%22world%22;half:D-1.5;bytes%2F:T%FF;low:N-0.5;high:N1e%2B20;"
        b"yes:true;nan:nan;raw:blue;name:%54om;"
    )
    for wrong in ({"": 1}, {"k": 2**64}, {"k": []}, {"k": datetime(2014, 1, 1)}, {"k": "x" * 65_536}):
        with pytest.raises(UnencodableValue):
            codec.encode_properties(wrong)


values = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",))),
    st.text(st.characters(exclude_categories=("Cs",))).map(Untyped),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),
)
keys = st.text(st.characters(exclude_categories=("Cs",)), min_size=1)


@given(st.lists(st.tuples(keys, values), max_size=8))
def test_properties_come_back_as_they_were_written(pairs):
    read = codec.parse_properties(codec.encode_properties(pairs))
    assert read == pairs
    assert [type(v) for _, v in read] == [type(v) for _, v in pairs]


@given(st.binary())
def test_percent_encoding_is_undone_by_decoding_and_uses_unreserved_characters_only(data):
    text = codec.percent_encode(data)
    assert re.fullmatch(r"([A-Za-z0-9._~-]|%[0-9A-F]{2})*", text)
    assert codec.percent_decode(text) == data


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("a+b", b"a+b"),
        ("%", b"%"),
        ("%4", b"%4"),
        ("%4G", b"%4G"),
        ("%%41", b"%A"),
        ("%2f%2F", b"//"),
        ("é", b"\xc3\xa9"),
    ],
)
def test_a_plus_stays_and_a_percent_that_encodes_nothing_does_too(text, data):
    assert codec.percent_decode(text) == data
    assert codec.percent_decode(text.encode()) == data


# ---- limits ----


def test_a_payload_beyond_the_limit_is_told_as_soon_as_its_length_is_there():
    head = codec.encode_message(1, b"q", b"x" * 1000, b"k:Tv;")[:-1000]
    assert codec.decode_frame(head, 1000) is None
    with pytest.raises(MalformedFrame, match=r"^payload: needed at most 999 bytes, had 1000$"):
        codec.decode_frame(head, 999)
    assert codec.decode_frame(head[:-1], 999) is None


@pytest.mark.parametrize("kind", [1, 2, 4])
def test_frames_without_data_have_their_own_limit(kind):
    head = bytes([kind | 8]) + (b"\x01" if kind == 2 else b"")
    assert codec.decode_frame(head + spec.CONTROL_BYTES_MAX.to_bytes(4, "big"), 10) is None
    with pytest.raises(MalformedFrame, match=f"^payload: needed at most {spec.CONTROL_BYTES_MAX} bytes, had 65537$"):
        codec.decode_frame(head + (spec.CONTROL_BYTES_MAX + 1).to_bytes(4, "big"), 2**32 - 1)


def test_the_largest_payload_of_all_is_only_waited_for():
    assert codec.decode_frame(bytes.fromhex("08000101710000ffffffff"), 2**32 - 1) is None


@pytest.mark.parametrize(
    "write",
    [
        lambda: codec.encode_message(1, b"d" * 256, b""),
        lambda: codec.encode_message(1, b"d", b"", b"p" * 65_536),
        lambda: codec.encode_extension(1, b"x" * (spec.CONTROL_BYTES_MAX + 1)),
        lambda: codec.encode_handshake(Handshake(identity=b"i" * 256)),
        lambda: codec.encode_handshake(Handshake(required=b"x" * 65_536)),
        lambda: codec.encode_handshake(Handshake(optional=b"x" * 65_536)),
    ],
)
def test_what_does_not_fit_is_not_written(write):
    with pytest.raises(UnencodableValue, match="needed at most"):
        write()


def test_the_largest_of_everything_is_read_back():
    largest = Handshake(1, 255, 255, b"i" * 255, b"r" * 65_535, b"o" * 65_535)
    assert read_whole(codec.decode_handshake, codec.encode_handshake(largest)) == largest
    message = Message(65535, b"d" * 255, b"p" * 65_535, b"x" * 1_000_000)
    assert read_whole(codec.decode_frame, written(message)) == message


def test_wire_and_spec_have_the_same_numbers():
    numbers = {name: int(value, 0) for name, value in re.findall(r"^ {4}([A-Z_]+) = (-?\w+)", WIRE, re.M)}
    names = {
        "FRAME_MESSAGE": 0,
        **{f"FRAME_{kind.name}": kind for kind in (Flag.COMMAND, Flag.EXTENSION, Flag.ERROR)},
        **{f"FLAG_{flag.name}": flag for flag in (Flag.LARGE_PAYLOAD, Flag.CONTINUED)},
        **{name: getattr(spec, name) for name in ("FLAGS_RESERVED", "SHORT_LENGTH_MAX", "CONTROL_BYTES_MAX")},
        **{name: getattr(spec, name) for name in ("FRAGMENT_BYTES", "SEQUENCE_MAX", "PROPERTIES_BYTES_MAX")},
    }
    assert {name: numbers[name] for name in names} == names
    assert {value for name, value in numbers.items() if name.startswith("PARSE_") and value < 0} == set(
        spec.FRAME_FAULTS
    )
    assert numbers["FRAME_KIND_BITS"] == Flag.COMMAND | Flag.EXTENSION | Flag.ERROR


# ---- garbage ----


def test_whatever_the_bytes_a_decoder_gives_a_value_or_waits_or_says_malformed():
    random_ = random.Random(2928)
    seeds = [*FRAMES, *HANDSHAKES]
    seen = {"value": 0, "waits": 0, "malformed": 0}
    for _ in range(4000):
        data = bytearray(random_.choice(seeds).values[0][:400])
        for _ in range(random_.randint(1, 4)):
            data[random_.randrange(len(data))] = random_.randrange(256)
        for decode in (codec.decode_frame, codec.decode_handshake):
            try:
                found = decode(bytes(data))
                seen["value" if found else "waits"] += 1
            except MalformedFrame:
                seen["malformed"] += 1
    assert all(seen.values())
