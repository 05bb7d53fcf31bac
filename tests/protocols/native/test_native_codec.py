# SPDX-License-Identifier: Apache-2.0
"""The native codec against golden frames in both layouts, every cut of them, itself, and garbage.

Every decoder is fed three ways: whole, cut at every length, and with a tail. The invariant of the last part is one
sentence: whatever the bytes, a decoder gives a value or raises MalformedFrame.
"""

import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers.native import publish_ack_frame

from vibemq.protocols.native import codec, spec
from vibemq.protocols.native.codec import MalformedFrame, Message, UnencodableValue
from vibemq.protocols.native.session import NativeSession
from vibemq.protocols.native.spec import Command

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
FRAMES = [v for group in ("golden_frames", "text_example_frames", "broker_frames") for v in VECTORS[group]]
PLAIN_BODIES = [bytes.fromhex(v["frame_hex"])[5:] for v in FRAMES]


def by_name(vectors):
    return [pytest.param(v, id=v["name"]) for v in vectors]


def logical(vector) -> Message:
    m = vector["message"]
    return Message(
        m["type"],
        m["id"].encode(),
        m["queue"],
        None if m["payload"] is None else m["payload"].encode(),
        m["headers"] or {},
        m["errorCode"],
        m["errorMessage"],
        vector["layout"] == "text" and m["type"] != Command.ERROR,
    )


def encode(message: Message, encoder=codec.encode_frame) -> bytes:
    return encoder(message.type, message.id, **{k: v for k, v in message._asdict().items() if k not in ("type", "id")})


# ---- golden frames ----


@pytest.mark.parametrize("vector", by_name(FRAMES))
def test_a_golden_frame_is_read_and_written_to_the_byte(vector):
    frame = bytes.fromhex(vector["frame_hex"])
    assert len(frame) == vector["frame_length"]
    assert codec.split_frames(frame) == ([(0, frame[5:])], len(frame))
    assert codec.decode_body(frame[5:]) == logical(vector)
    assert encode(logical(vector)) == frame


@pytest.mark.parametrize("vector", by_name(FRAMES))
def test_a_golden_frame_that_is_cut_short_waits_for_more(vector):
    frame = bytes.fromhex(vector["frame_hex"])
    for size in range(len(frame)):
        assert codec.split_frames(frame[:size]) == ([], 0)
        assert codec.split_frames(frame + frame[:size]) == ([(0, frame[5:])], len(frame))


@pytest.mark.parametrize("vector", by_name(FRAMES))
def test_a_body_that_is_cut_short_says_where(vector):
    body = bytes.fromhex(vector["frame_hex"])[5:]
    whole = codec.decode_body(body)
    for size in range(len(body)):
        if whole.text_layout and size >= len(body) - 4:  # what is cut off is the tail that may be missing
            assert codec.decode_body(body[:size]) == whole._replace(text_layout=False)
            continue
        with pytest.raises(MalformedFrame) as caught:
            codec.decode_body(body[:size])
        assert caught.value.where in {where for where, _ in spec.FRAME_FAULTS.values()}
        assert re.fullmatch(r".+: needed .+, had \d+", str(caught.value))


@pytest.mark.parametrize("tail", [b"\x00", b"\xde\xad", b"\x00\x00\x00", b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00"])
@pytest.mark.parametrize("vector", by_name(VECTORS["golden_frames"]))
def test_bytes_behind_the_last_field_are_ignored(vector, tail):
    body = bytes.fromhex(vector["frame_hex"])[5:]
    assert codec.decode_body(body + tail) == logical(vector)


@pytest.mark.parametrize("vector", by_name(VECTORS["golden_frames"]))
def test_the_text_layout_is_two_empty_strings_longer_except_for_an_error(vector):
    message, frame = logical(vector), bytes.fromhex(vector["frame_hex"])
    text = encode(message._replace(text_layout=True))
    if message.type == Command.ERROR:
        assert text == frame
    else:
        assert text[5:] == frame[5:] + bytes(4)
        assert codec.decode_body(text[5:]) == message._replace(text_layout=True)


def test_the_text_layout_carries_error_strings_on_any_command():
    body = codec.encode_body(Command.PONG, b"p", error_code="X", error_message="y", text_layout=True)
    assert codec.decode_body(body) == Message(Command.PONG, b"p", None, None, {}, "X", "y", True)


# ---- frames that a broker must refuse, and others that it must not ----


@pytest.mark.parametrize("vector", by_name(VECTORS["must_reject"]))
def test_a_frame_that_must_be_rejected_is(vector):
    data = bytes.fromhex(vector["hex"])
    if vector["action"] == "error_keep_open":
        ((_, body),), _ = codec.split_frames(data)
        assert codec.decode_body(body).id == b"m"
        assert "JSON" in codec.validate(body)
        return
    if "flag GZip" in vector["name"]:  # the codec hands it on; test_native_compression.py has the rest
        assert codec.split_frames(data)[0][0][0] == spec.Compression.GZIP
        return
    with pytest.raises(MalformedFrame):
        for _, body in codec.split_frames(data)[0]:
            codec.decode_body(body)


@pytest.mark.parametrize("vector", by_name(VECTORS["must_accept"]))
def test_a_frame_that_must_be_accepted_is(vector):
    ((_, body),), _ = codec.split_frames(bytes.fromhex(vector["hex"]))
    message = codec.decode_body(body)
    assert codec.validate(body) is None
    if "decoded_headers" in vector:
        assert message.headers == vector["decoded_headers"]
    if "decoded_payload" in vector:
        assert message.payload == vector["decoded_payload"].encode()
    if "text layout" in vector["name"]:
        assert message.text_layout


@pytest.mark.parametrize(
    ("start", "fault"),
    [
        ("00000001", "body size: needed 2 bytes or more, had 1"),
        ("80000000", "body size: needed at most 1048576 bytes, had 2147483648"),
        ("0000000e03", "compression flags: needed a known and negotiated compression, had 3"),
    ],
)
def test_a_wrong_frame_header_is_told_before_its_body_has_come(start, fault):
    with pytest.raises(MalformedFrame, match=f"^{re.escape(fault)}$"):
        codec.split_frames(bytes.fromhex(start))


def test_limits_of_the_frame_header_are_the_connections_own():
    frame = codec.encode_frame(Command.PING, b"p")
    assert codec.split_frames(frame, body_max=len(frame) - 5)[1] == len(frame)
    with pytest.raises(MalformedFrame, match="body size"):
        codec.split_frames(frame, body_max=len(frame) - 6)
    zstd = codec.frame_of(frame[5:], spec.Compression.ZSTD)
    assert codec.split_frames(zstd, flags_max=3)[0] == [(3, frame[5:])]


@pytest.mark.parametrize("size", VECTORS["frame_sizes"], ids=lambda v: v["what"])
def test_frame_sizes_are_as_published(size):
    id_, queue = b"0" * 32, "load-queue"
    frames = {
        "Ping": lambda: codec.encode_frame(Command.PING, id_),
        "Publish,": lambda: codec.encode_frame(Command.PUBLISH, id_, queue=queue, payload=b'"%s"' % (b"x" * 128)),
        "PublishAck,": lambda: codec.encode_frame(Command.PUBLISH_ACK, id_, queue=queue),
        "PublishAck": lambda: publish_ack_frame(id_, queue.encode()),
        "Ack,": lambda: codec.encode_frame(Command.ACK, id_),
    }
    frame = frames[size["what"].split(" ")[0]]()
    assert (len(frame) - 5, len(frame)) == (size["body"], size["frame"])


# ---- validation ----


def check(queue: bytes = b"q", payload: bytes | None = None, headers=None, type_=Command.PUBLISH) -> str | None:
    return codec.validate(codec.encode_body(type_, b"i", queue=queue, payload=payload, headers=headers))


@pytest.mark.parametrize("name", ["q", "A-z_0.9", "x" * 256, "é" * 256, "заказы", "注文", "٣", "ǅ", "ʰ"])
def test_a_queue_may_be_named_by_letters_and_digits_of_any_script(name):
    assert check(name.encode()) is None
    assert codec.is_queue_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "a/b",
        "a\0",
        "a*",
        "²",
        "Ⅳ",
        "\N{COMBINING ACUTE ACCENT}",
        "\N{MATHEMATICAL SCRIPT CAPITAL A}",
        "\N{MATHEMATICAL DOUBLE-STRUCK DIGIT ONE}",
        "😀",
        "é😀",
    ],
)
def test_a_queue_may_not_be_named_by_anything_else(name):
    assert "letters, digits" in check(name.encode())
    assert not codec.is_queue_name(name)


@pytest.mark.parametrize("name", [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\xaf"])
def test_a_queue_name_that_is_no_utf8_is_refused_without_losing_the_request(name):
    body = codec.encode_body(Command.SUBSCRIBE, b"i", queue=name)
    assert "letters, digits" in codec.validate(body)
    assert not codec.is_queue_name(name)
    with pytest.raises(MalformedFrame, match="queue: needed UTF-8"):
        codec.decode_body(body)


def test_a_queue_name_is_as_long_as_utf16_says():
    assert "256" in check(b"x" * 257)
    assert "256" in check("é".encode() * 257)
    assert "maximum length" in check("😀".encode() * 129)
    assert check(b"") is None  # whether one is needed depends on the command
    assert not codec.is_queue_name("")


def test_headers_are_limited_in_number_and_value():
    assert check(headers={f"h{i}": "1" for i in range(50)}) is None
    assert "50" in check(headers={f"h{i}": "1" for i in range(51)})
    assert check(headers={"k": "x" * 4096}) is None
    assert check(headers={"k": "é" * 4096}) is None
    assert "4096" in check(headers={"k": "x" * 4097})
    for text, units in (("a", 1), ("é", 1), ("注", 1), ("😀", 2), ("a😀bc", 5)):
        assert check(headers={"k": text * (4096 // units)}) is None
        assert "4096" in check(headers={"k": text * (4096 // units + 1)})
    assert check(headers={"k" * 60000: "1"}) is None


def test_headers_that_do_not_count_are_not_counted():
    repeated = b"\x00\x01k\x00\x011" * 60
    body = codec.encode_body(Command.PING, b"i")[:-2] + (60).to_bytes(2, "big") + repeated
    assert codec.decode_body(body).headers == {"k": "1"}
    assert codec.validate(body) is None
    empty = b"\x00\x01k\x00\x00" * 60
    assert codec.validate(codec.encode_body(Command.PING, b"i")[:-2] + (60).to_bytes(2, "big") + empty) is None


def test_only_a_publish_must_carry_json():
    assert check(payload=b"{oops") is not None
    assert check(payload=b"{oops", type_=Command.CREATE_QUEUE) is None  # answered with INVALID_PAYLOAD, elsewhere
    assert check(payload=None) is None


JSON_GOOD = [
    "null", "true", "false", "0", "-0", "1.5e+10", "-12E-3", '""', '"a"', "[]", "{}", " [ 1 , 2 ]\r\n\t",
    '{"a":{"b":[]}}',
    '[{},[],{"":0}]', '"\\u00e9\\n\\"\\\\\\/"', '"\\ud800"', '"é注😀"', "123456789012345678901234567890", '"12345678"',
    '"1234567\\n"', '{"a":1,"a":2}', '"\x7f"',
]  # fmt: skip
JSON_BAD = [
    "", " ", "nul", "nulll", "True", "01", "-", "1.", ".5", "1e", "1e+", "+1", "0x1", "NaN", '"', '"a', '"\\x"',
    '"\\u12g4"', '"\\u123', '"a\nb"', '"1234567\n"', "[", "]", "[1", "[1,]", "[,1]", "[1 2]", "[}", "{]", "{", '{"a"}',
    '{"a":}', '{"a":1,}', "{1:2}", "{a:1}", '{"a":1]', "1 2", "[] []", "// c\n1", "\ufeff1", "'a'", '{"a" 1}', "{,}",
    '{"a":1"b":2}',
]  # fmt: skip


@pytest.mark.parametrize("text", JSON_GOOD)
def test_json_is_accepted(text):
    assert codec.is_json(text.encode())


@pytest.mark.parametrize("text", JSON_BAD)
def test_what_is_no_json_is_refused(text):
    assert not codec.is_json(text.encode())


@pytest.mark.parametrize(
    "bad", ["80", "c080", "c3", "e08080", "eda080", "f0808080", "f4908080", "f5808080", "ff", "e282"]
)
def test_json_must_be_utf8(bad):
    assert not codec.is_json(b'"' + bytes.fromhex(bad) + b'"')
    assert not codec.is_json(b'"12345678' + bytes.fromhex(bad) + b'12345678"')


@pytest.mark.parametrize(("opening", "closing"), ["[]", ('{"a":', "}")])
def test_json_may_be_nested_64_levels_deep(opening, closing):
    assert codec.is_json((opening * 64 + "1" + closing * 64).encode())
    assert not codec.is_json((opening * 65 + "1" + closing * 65).encode())
    assert not codec.is_json((opening * 100_000).encode())
    assert codec.is_json(("[" + opening * 63 + "1" + closing * 63 + ',{"a":[]}]').encode())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values, st.booleans(), st.sampled_from([None, 2]), st.randoms())
def test_json_is_what_pythons_own_parser_takes(value, ascii_only, indent, random_):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    assert codec.is_json(text) is not (not ascii_only and b"\xed" in text and not is_utf8(text))
    mutant = bytearray(text)
    mutant[random_.randrange(len(mutant))] = random_.choice(b'{}[]",:0e-\\ \x00\x80tn')
    assert codec.is_json(bytes(mutant)) is python_takes(bytes(mutant))


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def python_takes(text: bytes) -> bool:
    def refuse(word):
        raise ValueError(word)

    try:
        json.loads(text.decode(), parse_constant=refuse)
    except ValueError:
        return False
    return True


# ---- round trips ----

strings = st.text(max_size=40).filter(lambda text: all(not "\ud800" <= c <= "\udfff" for c in text))
raw = st.binary(max_size=40).map(lambda b: b.decode("utf-8", "surrogateescape"))
messages = st.builds(
    Message,
    type=st.integers(0, 255).filter(lambda t: t != Command.ERROR),
    id=st.binary(min_size=1, max_size=40),
    queue=st.none() | strings.filter(bool),
    payload=st.none() | st.binary(min_size=1, max_size=200),
    headers=st.dictionaries(raw.filter(bool), raw.filter(bool), max_size=8),
    text_layout=st.just(True),
    error_code=st.none() | raw.filter(bool),
    error_message=st.none() | raw.filter(bool),
)


@given(messages)
def test_a_message_in_the_text_layout_comes_back_as_it_was(message):
    assert codec.decode_body(encode(message, codec.encode_body)) == message


@given(messages)
def test_a_message_in_the_dotnet_layout_comes_back_as_it_was(message):
    message = message._replace(text_layout=False, error_code=None, error_message=None)
    assert codec.decode_body(encode(message, codec.encode_body)) == message


@given(messages)
def test_an_error_comes_back_as_it_was(message):
    message = message._replace(type=Command.ERROR, text_layout=False)
    assert codec.decode_body(encode(message, codec.encode_body)) == message


@given(st.lists(messages, max_size=5), st.integers(0, 400))
def test_frames_are_split_wherever_the_stream_was_cut(wanted, cut):
    stream = b"".join(encode(message) for message in wanted)
    first, used = codec.split_frames(stream[:cut])
    second, rest = codec.split_frames(stream[used:])
    assert used + rest == len(stream)
    assert [codec.decode_body(body) for _, body in first + second] == wanted


def test_empty_strings_are_absent():
    message = Message(Command.PING, b"p", "", b"", {"": "v", "k": ""})
    assert encode(message) == codec.encode_frame(Command.PING, "p")


@pytest.mark.parametrize("field", ["id", "queue", "error_code", "error_message", "header name", "header 'k'"])
def test_what_the_wire_cannot_carry_is_refused_by_name(field):
    long = "x" * 65536
    fields = {"id": b"i", "queue": "q", "headers": {}, "text_layout": True}
    if field == "header name":
        fields["headers"] = {long: "v"}
    elif field == "header 'k'":
        fields["headers"] = {"k": long}
    else:
        fields[field] = long
    with pytest.raises(ValueError, match=f"{field}: needed at most 65535 bytes, had 65536"):
        codec.encode_frame(Command.PUBLISH, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"id": b""},
        {"id": None},
        {"id": 7},
        {"id": b"i", "queue": 7},
        {"id": b"i", "error_code": "X"},
        {"id": b"i", "headers": {"k": 7}},
        {"id": b"i", "headers": {"k": "\ud800"}},
        {"id": b"i", "headers": {str(i): "v" for i in range(65536)}},
    ],
)
def test_other_impossible_values_are_refused(fields):
    with pytest.raises(UnencodableValue):
        codec.encode_frame(Command.PUBLISH, **fields)
    with pytest.raises(UnencodableValue):
        codec.encode_frame(300, b"i")


# ---- the table ----


def test_every_number_of_wire_pxd_is_that_of_spec():
    text = (Path(codec.__file__).parent / "wire.pxd").read_text()
    numbers = {name: int(value) for name, value in re.findall(r"^    ([A-Z_\d]+) = (-?\d+)", text, re.M)}
    types = {k.removeprefix("TYPE_"): v for k, v in numbers.items() if k.startswith("TYPE_")}
    assert {"PUBLISH", "DELIVER", "ACK"} <= types.keys()
    assert types == {name: Command[name] for name in types}
    for name in ("QUEUE_NAME_UNITS_MAX", "HEADERS_MAX", "HEADER_VALUE_UNITS_MAX", "JSON_DEPTH_MAX", "WIRE_VERSION"):
        assert numbers[name] == getattr(spec, name)
    faults = {v for k, v in numbers.items() if k.startswith("FRAME_") and v < 0}
    assert faults == set(spec.FRAME_FAULTS)
    assert {v for k, v in numbers.items() if k.startswith("CHECK_") and v > 0} == set(spec.CHECK_FAULTS)


def test_every_command_has_a_rule_and_every_reply_comes_from_the_server():
    assert set(spec.COMMAND_BY_TYPE) == set(Command)
    for rule in spec.COMMANDS:
        assert rule.reply is None or "server" in spec.COMMAND_BY_TYPE[rule.reply].sent_by
        assert (rule.feature is None) == (rule.command not in spec.FEATURES.values())
    for vector in FRAMES:
        message = vector["message"]
        assert spec.COMMAND_BY_TYPE[message["type"]].name == message["typeName"]
        sender = {"C->S": "client", "S->C": "server"}[vector["direction"]]
        assert sender in spec.COMMAND_BY_TYPE[message["type"]].sent_by
    assert spec.command_name(20) == "PUBLISH (20)"
    assert spec.command_name(77) == "unknown command (77)"


# ---- garbage ----


@given(st.binary(max_size=300))
def test_garbage_is_a_message_or_a_malformed_frame(data):
    read_anything(data)


def test_damaged_frames_are_a_message_or_a_malformed_frame():
    random_ = random.Random(20250301)
    for _ in range(20_000):
        body = bytearray(random_.choice(PLAIN_BODIES))
        for _ in range(random_.randint(1, 3)):
            at = random_.randrange(len(body))
            if random_.random() < 0.5:
                body[at] = random_.choice((0, 1, 0x7F, 0x80, 0xFF, random_.randrange(256)))
            else:
                del body[at : at + random_.randint(1, 4)]
                body = body or bytearray(1)
        read_anything(bytes(body))


def read_anything(body: bytes) -> None:
    try:
        message = codec.decode_body(body)
    except MalformedFrame:
        return
    assert message.id
    codec.validate(body)
    assert encode(message, codec.encode_body)
    if message.payload is not None:
        assert codec.is_json(message.payload) is python_takes(message.payload)


def test_a_frame_that_cannot_be_read_a_second_time_is_no_message_that_is_passed_over():
    with pytest.raises(AssertionError, match="cannot be read again"):
        NativeSession.__new__(NativeSession).publish_body(b"no frame")
