# SPDX-License-Identifier: Apache-2.0
"""Random bytes against the MicroMsg2 codec, as tests/fuzzing.py says.

The invariant in one sentence: whatever a peer sends, each layer (frames, handshakes, extension lists, negotiation,
commands, properties, filters) gives a value or one of the errors that it names, the value says the same when it is
written and read again, and nothing is taken for whole before its last byte is there. Properties come out of a stored
message as they went in, and a filter selects what its negation does not.
"""

import json
import random
from pathlib import Path

import pytest
from fuzzing import LIMIT_S, seeded, steps

from vibemq.protocols.micromsg2 import codec, extensions, properties, spec
from vibemq.protocols.micromsg2.codec import Command, ErrorFrame, ExtensionFrame, Handshake, MalformedFrame, Message
from vibemq.protocols.micromsg2.extensions import Refusal
from vibemq.protocols.micromsg2.filters import BadFilter, compile_filter

pytestmark = [pytest.mark.fuzz]

PAYLOAD_BYTES_MAX = 1 << 16
SUPPORTED = [name.value for name in spec.ExtensionName]
OFFERS = extensions.parse_list("batch-ack:max-count=1000")

VECTORS = json.loads((Path(__file__).parent.parent / "protocols" / "micromsg2" / "vectors.json").read_text())
STEPS = [step for conversation in VECTORS["observed_conversations"] for step in conversation["steps"]]
SEEDS = [
    bytes.fromhex(vector["hex"])
    for vectors in (*(VECTORS[g] for g in ("observed_frames", "text_frames", "rule_frames", "must_reject")), STEPS)
    for vector in vectors
    if "hex" in vector
]
PROPERTIES = VECTORS["filter_cases"]["properties"].encode()
FILTERS = [case["filter"].encode() for case in VECTORS["filter_cases"]["cases"]]
NEGATIONS = ((b"!=", b"="), (b"~", b"&"))
PIECES = (
    b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0" * 4, b"\xff\xff", b"\0\1", b"\0\0", b"%", b"%2", b"%zz", b"%ff", b"%3B",
    b";", b",", b":", b"=", b"json;", b"ack:count=", b"batch-ack:max-count:0;", b"pub/sub;", b"x-foo", b"T", b"N1e999",
    b"D99999999999", b"k:T", b"N18446744073709551616;", b"\xc3\xa9", b"subscribe;",
)  # fmt: skip


def mutated(data: bytes, random_: random.Random) -> bytes:
    """What a broken or hostile peer may send in its place."""
    out = bytearray(data)
    for _ in range(random_.randrange(5)):
        at = random_.randrange(len(out) + 1)
        match random_.randrange(6):
            case 0 if out:
                out[at % len(out)] ^= 1 << random_.randrange(8)
            case 1:
                piece = random_.choice(PIECES)
                out[at : at + len(piece)] = piece
            case 2:
                del out[at : at + random_.randint(1, 9)]
            case 3:
                out[at:at] = random_.choice(PIECES)
            case 4:
                out[at:at] = random_.randbytes(random_.randint(1, 300))
            case _:
                out[at:at] = out[at : at + random_.randint(1, 60)]
    return bytes(out)


def waits_until_whole(decode, data: bytes, used: int, random_: random.Random) -> None:
    for _ in range(3):
        assert decode(data[: random_.randrange(used)]) is None
    assert decode(data[:used])[1] == used


def written(frame: Message | Command | ExtensionFrame | ErrorFrame) -> bytes:
    match frame:
        case Message(sequence, destination, properties, payload, continued):
            return codec.encode_message(sequence, destination, payload, properties, continued)
        case Command(name, pairs):
            return codec.encode_command(name, pairs)
        case ExtensionFrame(number, payload):
            return codec.encode_extension(number, payload)
        case ErrorFrame(text):
            return codec.encode_error(text)


def read_frame(data: bytes, random_: random.Random) -> bytes | None:
    """What is behind the first frame, or None at the end."""

    def decode(part: bytes):
        return codec.decode_frame(part, PAYLOAD_BYTES_MAX)

    found = decode(data)
    if found is None:
        return None
    frame, used = found
    waits_until_whole(decode, data, used, random_)
    again = codec.decode_frame(written(frame))[0]
    if isinstance(frame, ErrorFrame):
        assert frame.text.startswith(again.text)
    else:
        assert again == frame
    if isinstance(frame, Message):
        assert len(frame.payload) <= PAYLOAD_BYTES_MAX
        read_properties(frame.properties)
    if isinstance(frame, ExtensionFrame):
        assert -1 <= codec.ack_sequence(frame.payload) < 2**32
    return data[used:]


def read_properties(data: bytes) -> None:
    pairs = codec.parse_properties(data)
    kept = [(key, value) for key, value in pairs if key]
    # Untyped text that is no UTF-8 is bytes, which are written with a type; the value stays.
    assert codec.parse_properties(codec.encode_properties(kept)) == kept


def store(data: bytes) -> bytes:
    """The message with these properties, as it is stored."""
    stored = properties.write(data, b"x")
    # The one of the message's own fields that is written behind what came is the id, where it did not come so.
    assert (properties.read(stored) or b"").startswith(data)
    return stored


def select(condition: bytes, stored: bytes) -> None:
    """One condition or several, and where it is one that can be negated, the contrary."""
    selected = compile_filter(condition.decode("utf-8", "surrogateescape")).matches_bytes(stored)
    if b";" in condition:
        return
    for no, yes in NEGATIONS:
        if condition.count(no) == 1 and not set(b"<>=~&") & set(condition.replace(no, b"", 1)):
            contrary = condition.replace(no, yes).decode("utf-8", "surrogateescape")
            assert compile_filter(contrary).matches_bytes(stored) is not selected


def read_handshake(data: bytes, random_: random.Random) -> None:
    found = codec.decode_handshake(data)
    if found is None:
        return
    handshake, used = found
    waits_until_whole(codec.decode_handshake, data, used, random_)
    if isinstance(handshake, ErrorFrame):
        return
    assert codec.decode_handshake(codec.encode_handshake(handshake)) == (handshake, used)
    negotiate(handshake, random_)


def negotiate(c1: Handshake, random_: random.Random) -> None:
    """With a client of this C1: what the server answers, the client can answer and the server then takes."""
    lists = extensions.lists_of(c1)
    for part in (lists.required, lists.optional):
        assert extensions.parse_list(extensions.format_list(part)) == part
    window_max = random_.choice((1, 3, 1000, spec.WINDOW_MAX))
    s1 = extensions.negotiate_server(c1, supported=SUPPORTED, offers=OFFERS, window_max=window_max)
    c2 = extensions.handshake_of(extensions.answer(lists, extensions.handshake_of(s1), also=SUPPORTED))
    agreed = extensions.check_c2(c1, s1, c2, supported=SUPPORTED, window_max=window_max)
    assert agreed == extensions.agree(c2)
    assert agreed.window <= window_max
    assert {name for name in agreed.ids if name not in SUPPORTED} == set()


@pytest.mark.timeout(LIMIT_S)
def test_whatever_a_peer_sends_is_a_value_or_a_named_error():
    random_ = seeded()
    read = refused = 0
    for _ in steps(15_000):
        data: bytes | None = b"".join(mutated(random_.choice(SEEDS), random_) for _ in range(random_.randint(1, 3)))
        try:
            read_handshake(data, random_)
        except (MalformedFrame, Refusal):
            refused += 1
        try:
            while data:
                data = read_frame(data, random_)
                read += 1
        except MalformedFrame:
            refused += 1
        codec.last_error(data or b"")
        sent = mutated(PROPERTIES, random_)
        read_properties(sent)
        stored = store(sent)
        try:
            select(mutated(random_.choice(FILTERS), random_), stored)
        except BadFilter:
            refused += 1
    assert read > 10 and refused > 10
