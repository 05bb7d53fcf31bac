# SPDX-License-Identifier: Apache-2.0
"""Random bytes against the envelopes of hub messages, as tests/fuzzing.py says.

The invariant in one sentence: whatever a peer sends, framing, parsing and the handshake each give a value or one of the
errors that they name, JSON is taken only where Python's own reader takes it too, and a message that can be written says
the same when it is read again.
"""

import json
import random
from pathlib import Path

import pytest
from fuzzing import seeded, steps
from peers import hub_messages as messages
from peers.hub_messages import UnencodableValue

from vibemq.errors import LimitExceeded
from vibemq.protocols.signalr import spec
from vibemq.protocols.signalr.records import MalformedFrame, group_decode, group_encode, parse_handshake
from vibemq.protocols.signalr.spec import NOTHING, Dialect, Encoding, MessageType

pytestmark = [pytest.mark.fuzz]

RECORD_BYTES_MAX = 1 << 12

VECTORS = json.loads((Path(__file__).parent.parent / "protocols" / "signalr" / "vectors.json").read_text())
SECTIONS = [VECTORS["early"], VECTORS["v1"], VECTORS["v2_stateful"]]
JSON_RECORDS = [v["wire"][:-1].encode() for s in SECTIONS for k in ("json", "json_reject") for v in s.get(k, ())]
MESSAGEPACK_RECORDS = [
    bytes.fromhex(v["body_hex"]) for s in SECTIONS for k in ("msgpack", "msgpack_reject") for v in s.get(k, ())
]
HANDSHAKES = [v["wire"][:-1].encode() for s in SECTIONS[:2] for v in s["handshake"]]
GROUPS = [v["text"].encode() for v in VECTORS["base64_over_text"]["valid"]]
JSON_PARTS = (
    b'"', b"\\", b"\\ud83d\\ude00", b"\\ud800", b"\\u0000", b"\xed\xa0\x80", b"\xc3\xa9", b"[" * 70, b"]" * 70, b"{}",
    b",", b":", b"null", b"-0", b"1e5", b'"type":', b'"invocationId":', b'"target":"T"', b'"arguments":[1,"x"]',
    b'"streamIds":["s"]', b'"result":', b'"error":"x"', b" \n", b"\x1e",
)  # fmt: skip
MESSAGEPACK_PARTS = (
    b"\xc0", b"\xc1", b"\xc3", b"\x80", b"\x90", b"\x91" * 70, b"\xa1x", b"\xa1\xff", b"\xd9\xff", b"\xda\xff\xff",
    b"\xdb\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xc9\xff\xff\xff\xff",
    b"\xcf" + b"\xff" * 8, b"\xd3" + b"\x80" + bytes(7), b"\xd6\xff\0\0\0\1", b"\xcb" + bytes(8),
)  # fmt: skip


def mutated(record: bytes, parts: tuple[bytes, ...], random_: random.Random) -> bytes:
    """A record as a broken or hostile peer may send it."""
    body = bytearray(record)
    for _ in range(random_.randrange(5)):
        at = random_.randrange(len(body) + 1)
        match random_.randrange(6):
            case 0 if body:
                body[at % len(body)] ^= 1 << random_.randrange(8)
            case 1:
                body[at : at + random_.randrange(3)] = random_.choice(parts)
            case 2:
                del body[at : at + random_.randint(1, 9)]
            case 3:
                body[at:at] = random_.randbytes(random_.randint(1, 20))
            case 4:
                body[at:at] = body[at : at + random_.randint(1, 60)]
            case _:
                del body[at:]
    return bytes(body)


def check_record(body: bytes, encoding: Encoding, dialect: Dialect) -> None:
    try:
        kind = messages.type_of(body, encoding, dialect)
    except MalformedFrame as error:
        assert error.where and error.needed
        return
    if encoding == Encoding.JSON:
        assert isinstance(json.loads(body), dict)
    try:
        message = messages.decode(body, encoding, dialect)
    except MalformedFrame as error:
        assert error.where == "value", "a value that Python does not hold, in an envelope that is good"
        return
    if kind == 0:
        assert message is None
        return
    try:
        record = messages.encode(message, encoding, dialect)
    except (UnencodableValue, OverflowError):  # what peers may say and we never do, as numbers beyond 64 bits
        return
    if message.type == MessageType.COMPLETION and message.error == "":
        message = message._replace(error=spec.UNSPECIFIED_ERROR)
    if message.error == "":
        message = message._replace(error=None)
    if dialect != Dialect.V1 and encoding == Encoding.JSON and message.payload is None:
        message = message._replace(payload=NOTHING if message.type == MessageType.COMPLETION else None)
    if dialect == Dialect.ALPHA2 and message.type == MessageType.STREAM_COMPLETION:
        message = message._replace(type=MessageType.COMPLETION)
    if dialect != Dialect.V1 and encoding == Encoding.MESSAGEPACK and message.type == MessageType.STREAM_INVOCATION:
        return  # preview1's, which we read and never write
    records, used = messages.split_records(record, encoding)
    assert used == len(record) and len(records) == 1
    again = messages.decode(records[0], encoding, dialect)
    assert again == message or str(again) == str(message)  # a NaN is not itself


def check_stream(data: bytes, encoding: Encoding) -> None:
    """The same records and the same error however the bytes come."""

    def read(pieces: list[bytes]) -> list[bytes | type[Exception]]:
        found: list[bytes | type[Exception]] = []
        kept = b""
        for piece in pieces:
            kept += piece
            while True:
                try:
                    # One at a time: records before a bad one are not lost to it.
                    records, used = messages.split_records(
                        kept[: first_end(kept, encoding)], encoding, RECORD_BYTES_MAX
                    )
                except (MalformedFrame, LimitExceeded) as error:
                    return [*found, type(error)]
                if not records:
                    break
                found += records
                kept = kept[used:]
        return found

    assert read([data]) == read([data[i : i + 1] for i in range(len(data))])


def first_end(data: bytes, encoding: Encoding) -> int:
    """Where the first record ends, by a reader that is as simple as can be."""
    if encoding == Encoding.JSON:
        return data.index(b"\x1e") + 1 if b"\x1e" in data else len(data)
    for at, byte in enumerate(data[:5]):
        if byte < 0x80:
            return at + 1 + sum((b & 0x7F) << 7 * i for i, b in enumerate(data[: at + 1]))
    return len(data)


def test_whatever_a_peer_sends_is_a_message_or_refused():
    random_ = seeded()
    for _ in steps(70_000):
        dialect = random_.choice(list(Dialect))
        encoding = random_.choice(list(Encoding))
        is_json = encoding == Encoding.JSON
        golden, parts = (JSON_RECORDS, JSON_PARTS) if is_json else (MESSAGEPACK_RECORDS, MESSAGEPACK_PARTS)
        body = mutated(random_.choice(golden), parts, random_)
        try:
            check_record(body, encoding, dialect)
            if random_.random() < 0.1:
                tail = mutated(random_.choice(golden), parts, random_)
                length = bytes([random_.choice((len(body) & 0x7F, random_.randrange(256)))])
                check_stream((body + b"\x1e" + tail if is_json else length + body + tail)[:400], encoding)
        except BaseException:
            print(f"{encoding.name} {dialect.name} {body!r}")
            raise


def test_whatever_a_peer_says_first_is_a_handshake_or_refused():
    random_ = seeded()
    for _ in steps(50_000):
        record = mutated(random_.choice(HANDSHAKES), JSON_PARTS, random_)
        try:
            shake = parse_handshake(record)
        except (MalformedFrame, LimitExceeded):
            continue
        members = json.loads(record)
        assert (shake.protocol, shake.version) == (members["protocol"], members.get("version")), record


def test_whatever_a_peer_sends_as_text_groups_is_taken_or_refused():
    random_ = seeded()
    for _ in steps(50_000):
        text = mutated(b"".join(random_.choices(GROUPS, k=2)), (b";", b":", b"0", b"9" * 12, b"=", b"-1"), random_)
        try:
            records, used = group_decode(text, RECORD_BYTES_MAX)
        except (MalformedFrame, LimitExceeded):
            continue
        assert used <= len(text) and len(records) <= used, text
        assert group_decode(group_encode(records), 2 * RECORD_BYTES_MAX)[0] == records, text
