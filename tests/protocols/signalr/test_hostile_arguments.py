# SPDX-License-Identifier: Apache-2.0
"""What a peer may put where arguments are read, at every place of every method in both encodings, is the peer's
mistake: its call is refused by a code of its own (or done), the connection stays, and our log shows no traceback."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from peers.hub_messages import Message, decode
from peers.signalr import HubPeer, fresh
from running import Running, broker

from vibemq.protocols.signalr.commands import Method, raw
from vibemq.protocols.signalr.door import METHODS
from vibemq.protocols.signalr.records import MalformedFrame
from vibemq.protocols.signalr.spec import Encoding, MessageType

DEEP = 50
JSON_VALUES = (
    *(
        b'"\\ud83d"',
        b'"cut \\ud83d off"',
        b'"\\udc00\\ud83d"',
        b'"\\u0000"',
        b'""',
        b'"' + b"x" * 70_000 + b'"',
        b'"a/b"',
    ),
    *(
        b"1e400",
        b"-1e400",
        b"9" * 20,
        b"9" * 400,
        b"-1",
        b"0",
        b"1.5",
        b"-0.0",
        b"1e-400",
        b"9007199254740993",
        b"1e18",
    ),
    *(
        b"null",
        b"true",
        b"false",
        b"[]",
        b"{}",
        b"[[]]",
        b"[" * DEEP + b"]" * DEEP,
        b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    ),
    *(b'{"\\ud83d":1}', b'{"a":"\\ud83d"}', b'{"a":1e400}', b'{"a":1,"a":2}', b'["\\ud83d"]', b"[1e400]", b"[null]"),
    *(b'{"body":"\\ud83d"}', b'{"body":1e400}', b'{"body":1,"key":"\\ud83d"}', b'{"queue":"\\ud83d","body":1}'),
    *(b'{"queue":"hostile","body":1e400}', b'{"queue":"hostile","body":1,"headers":{"\\ud83d":1e400}}'),
    *(
        b'{"timestamp":1e400}',
        b'{"timestamp":"\\ud83d"}',
        b'{"timestamp":-1}',
        b'"9999-12-31T23:59:59Z"',
        b'"0001-01-01"',
    ),
)
MESSAGEPACK_VALUES = (
    *(b"\xa2\xff\xfe", b"\xa3\xed\xa0\xbd", b"\xa1\x00", b"\xa0", b"\xc4\x02\xff\xfe", b"\xc4\x00", b"\xa3a/b"),
    *(b"\xcb\x7f\xf8" + bytes(6), b"\xcb\x7f\xf0" + bytes(6), b"\xca\x7f\xc0\x00\x00", b"\xcb\x7f\xef" + b"\xff" * 6),
    *(b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7), b"\xff", b"\x00", b"\xcb\xbf\xf8" + bytes(6), b"\xc0", b"\xc3"),
    *(
        b"\x90",
        b"\x80",
        b"\x91" * DEEP + b"\x90",
        b"\x81\xa1a" * DEEP + b"\x80",
        b"\x81\xa2\xff\xfe\x01",
        b"\x81\x01\x02",
    ),
    *(
        b"\x81\x90\x01",
        b"\x81\x80\x01",
        b"\x81\xc0\x01",
        b"\x81\xa1a\xa1\xff",
        b"\x91\xa1\xff",
        b"\x82\xa1a\x01\xa1a\x02",
    ),
    *(
        b"\xd4\x05\x00",
        b"\xc7\x00\x05",
        b"\xd6\xff" + bytes(4),
        b"\xd7\xff" + b"\xff" * 8,
        b"\xc7\x0c\xff" + b"\xff" * 12,
    ),
    *(b"\xd4\xff\x00", b"\x81\xd6\xff" + bytes(4) + b"\x01", b"\x81\xa4body\xa1\xff", b"\x81\xa4body\xd4\x05\x00"),
    *(b"\x81\xa4body\xcb\x7f\xf8" + bytes(6), b"\x82\xa5queue\xa1\xff\xa4body\x01", b"\x82\xa4body\x01\xa3key\xa1\xff"),
    *(b"\x82\xa5queue\xa7hostile\xa4body\xd7\xff" + b"\xff" * 8, b"\x81\xa9timestamp\xcb\x7f\xf0" + bytes(6)),
)
VALUES = {Encoding.JSON: JSON_VALUES, Encoding.MESSAGEPACK: MESSAGEPACK_VALUES}
CODE = re.compile(r"HubException: ([A-Z_]+): ")


class Hostile:
    """Calls made of raw values."""

    def __init__(self, peer: HubPeer) -> None:
        self.peer, self.encoding = peer, peer.encoding
        self.numbers = itertools.count(1)

    def pack(self, value: object) -> bytes:
        return json.dumps(value).encode() if self.encoding == Encoding.JSON else msgspec.msgpack.encode(value)

    def array(self, values: list[bytes]) -> bytes:
        return (
            b"[" + b",".join(values) + b"]"
            if self.encoding == Encoding.JSON
            else bytes([0x90 + len(values)]) + b"".join(values)
        )

    def object(self, members: dict[str, bytes]) -> bytes:
        if self.encoding == Encoding.JSON:
            return b"{" + b",".join(self.pack(name) + b":" + value for name, value in members.items()) + b"}"
        return bytes([0x80 + len(members)]) + b"".join(self.pack(name) + value for name, value in members.items())

    def record(self, type: MessageType, id: str, target: str, arguments: list[bytes], uploads: list[str]) -> bytes:
        if self.encoding == Encoding.JSON:
            head = f'{{"type":{int(type)},"invocationId":"{id}","target":"{target}","streamIds":{json.dumps(uploads)},'
            return head.encode() + b'"arguments":' + self.array(arguments) + b"}\x1e"
        body = b"\x96" + bytes([type]) + b"\x80" + self.pack(id) + self.pack(target)
        return framed(body + self.array(arguments) + self.pack(uploads))

    def item(self, id: str, value: bytes) -> bytes:
        if self.encoding == Encoding.JSON:
            return f'{{"type":2,"invocationId":"{id}","item":'.encode() + value + b"}\x1e"
        return framed(b"\x94\x02\x80" + self.pack(id) + value)

    def call(self, method: Method, *arguments: bytes, items: tuple[bytes, ...] = ()) -> Message:
        """How it ends; a stream that is begun is cancelled."""
        id = str(next(self.numbers))
        uploads = [f"u{id}"] if method.takes_upload else []
        type = MessageType.STREAM_INVOCATION if method.is_stream else MessageType.INVOCATION
        records = self.record(type, id, method.name, list(arguments), uploads)
        for upload in uploads:
            records += b"".join(self.item(upload, value) for value in items)
            records += self.peer.record(MessageType.COMPLETION, id=upload)
        if method.is_stream:
            records += self.peer.call_record("ServerInfo", id=f"after {id}")
        self.peer.raw(records)
        while True:
            message = self.next()
            if message.type == MessageType.COMPLETION:
                if message.id == id:
                    return message
                if message.id == f"after {id}":  # the stream has begun
                    self.peer.send(MessageType.CANCEL_INVOCATION, id=id)
                continue
            assert message.type in (MessageType.STREAM_ITEM, MessageType.INVOCATION, MessageType.PING), message

    def next(self) -> Message:
        while True:
            record = self.peer.next_raw()
            try:
                message = decode(record, self.encoding, self.peer.dialect)
            except MalformedFrame:  # JSON has numbers that Python's reader refuses, and they come as they were sent
                assert b"1e400" in record, record
                continue
            assert message is not None
            return message

    # ---- what there is to call ----

    def plain(self, method: Method) -> list[bytes]:
        """Arguments that the method takes, options not among them."""
        plain = {"messages": ["a"], "tags": [1], "intervalMs": 1000}
        return [self.pack(plain.get(one.name, "hostile")) for one in method.parameters if one.name != "options"]

    def options(self, method: Method) -> list[str]:
        """The names that it knows, which it says itself."""
        if method.parameters[-1:] == () or method.parameters[-1].name != "options":
            return []
        found: list[str] = []
        for base in ({}, {"type": self.pack("stream")} if method.name == "CreateQueue" else {}):
            refused = self.call(method, *self.plain(method), self.object(base | {"zz": self.pack(1)})).error
            assert refused is not None, method.name
            found += re.split(", ?", refused.partition("; ")[2].partition(" are ")[2].rstrip("."))
        return sorted({*found})

    def calls(self, method: Method) -> Iterator[tuple[list[bytes], tuple[bytes, ...]]]:
        """(arguments, items of the upload) with each of the values at each of the places."""
        values, plain = VALUES[self.encoding], self.plain(method)
        has_options = len(plain) < len(method.parameters)
        for value in values:
            for at in range(len(plain)):
                yield [*plain[:at], value, *plain[at + 1 :]], ()
            for at, parameter in enumerate(method.parameters[: len(plain)]):
                if parameter.read is raw or parameter.name == "tags":
                    yield [*plain[:at], self.array([value, value]), *plain[at + 1 :]], ()
            if has_options:
                yield [*plain, value], ()
            if method.takes_upload:
                yield plain, (value,)
                yield [], (value, self.array([value]))
        for option in self.options(method):
            for value in values:
                inner = [value, self.object({"a": value})] if option == "headers" else [value]
                for one in inner:
                    yield [*plain, self.object({option: one})], ()
                if method.name == "CreateQueue":
                    yield [*plain, self.object({"type": self.pack("stream"), option: value})], ()


def framed(body: bytes) -> bytes:
    length, size = b"", len(body)
    while size > 0x7F:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    return length + bytes([size]) + body


@pytest.mark.parametrize("encoding", list(Encoding))
def test_no_argument_is_an_error_of_ours(tmp_path: Path, capfd: pytest.CaptureFixture[str], encoding: Encoding) -> None:
    wrong: list[tuple[str, list[bytes], tuple[bytes, ...], str]] = []
    with broker(tmp_path / "data", workers=1) as running, HubPeer(running, encoding=encoding) as peer:
        hostile = Hostile(peer)
        for method in METHODS.values():
            for arguments, items in hostile.calls(method):
                found = hostile.call(method, *arguments, items=items)
                code = CODE.search(found.error or "")
                if code is not None and code[1] == "SERVER_ERROR":
                    wrong.append((method.name, [one[:60] for one in arguments], items, str(found.error)))
        assert peer.ask("ServerInfo")["name"] == "VibeMQ"
    assert wrong == []
    log = capfd.readouterr().err
    assert "Traceback" not in log and " ERROR " not in log, log[:5000]


HALF = b'"cut \\ud83d"'
AS_JSON = b"\x81\xabcontentType\xb0application/json"
NAN, INFINITE = b"\xcb\x7f\xf8" + bytes(6), b"\xca\x7f\x80\x00\x00"


@pytest.mark.parametrize(
    ("encoding", "method", "arguments", "code"),
    [
        (Encoding.JSON, "Publish", (b'"halves"', HALF), "INVALID_BODY"),
        (Encoding.JSON, "Publish", (b'"halves"', b'{"a":["\\\\\\ud83d\\ude00\\udc00"]}'), "INVALID_BODY"),
        (Encoding.JSON, "PublishBatch", (b'"halves"', b"[1," + HALF + b"]"), "INVALID_BODY"),
        (Encoding.JSON, "Publish", (b'"halves"', b"1", b'{"headers":{"a":1e400}}'), "INVALID_ARGUMENT"),
        (Encoding.JSON, "QueueInfo", (HALF,), "INVALID_ARGUMENT"),
        (Encoding.JSON, "Ack", (HALF,), "INVALID_ARGUMENT"),
        (Encoding.JSON, "Ack", (b"1e400",), "INVALID_ARGUMENT"),
        (Encoding.MESSAGEPACK, "QueueInfo", (b"\xa2\xff\xfe",), "INVALID_ARGUMENT"),
        (Encoding.MESSAGEPACK, "Publish", (b"\xa6halves", b"\xa2\xff\xfe"), "INVALID_BODY"),
        (Encoding.MESSAGEPACK, "Publish", (b"\xa6halves", NAN, AS_JSON), "INVALID_BODY"),
        (Encoding.MESSAGEPACK, "Publish", (b"\xa6halves", b"\x81\xa1a\x92\x01" + INFINITE, AS_JSON), "INVALID_BODY"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    served: Running, encoding: Encoding, method: str, arguments: tuple[bytes, ...], code: str
) -> None:
    """The first message for a queue, and those that come when its way is open."""
    with HubPeer(served, encoding=encoding) as peer:
        hostile = Hostile(peer)
        for _ in range(2):
            found = CODE.search(hostile.call(METHODS.find(method), *arguments).error or "")
            assert found is not None and found[1] == code
            peer.ask("Publish", "halves", "whole \U0001f600")


def test_whole_pairs_and_what_only_looks_like_half_of_one_are_bodies(served: Running) -> None:
    with HubPeer(served) as peer:
        hostile, name = Hostile(peer), fresh()
        publish = METHODS.find("Publish")
        texts = [b'"\\ud83d\\ude00"', b'"\\\\ud83d"', b'{"\\uD83D\\uDE00\\n":"\\u0041\\""}']
        for text in texts:
            assert hostile.call(publish, hostile.pack(name), text).error is None
        assert [one["body"] for one in peer.ask("Receive", name, {"max": 3})] == [json.loads(text) for text in texts]
