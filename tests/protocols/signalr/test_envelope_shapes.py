# SPDX-License-Identifier: Apache-2.0
"""Which odd shapes of hub messages are tolerated, and which close a connection: one line each.

What is tolerated was seen from real clients, or costs nothing to understand; a closed connection names the field.
"""

import msgspec
import pytest
from peers import hub_messages as messages
from peers.hub_messages import Message

from vibemq.protocols.signalr import spec
from vibemq.protocols.signalr.records import MalformedFrame
from vibemq.protocols.signalr.spec import Dialect, Encoding

JSON, MESSAGEPACK = Encoding


def packed(value) -> bytes:
    return msgspec.msgpack.encode(value)


def fault(body: bytes, encoding: Encoding, dialect: Dialect = Dialect.V1) -> str:
    """Where the record is wrong."""
    with pytest.raises(MalformedFrame) as error:
        messages.decode(body, encoding, dialect)
    return error.value.where


# ---- JSON: what is tolerated, what is not ----


@pytest.mark.parametrize(
    "record, wanted",
    [
        (b'{"type":6}', Message(6)),
        (b' \t\r\n{ "type" : 6 } \n', Message(6)),
        (b'{"\\u0074ype":6}', Message(6)),
        (b'{"type":3,"type":6}', Message(6)),
        (b'{"type":6,"target":5,"headers":null}', Message(6)),
        (b'{"type":6,"Type":3,"":1,"typ":3,"types":3,"' + b"\\u0061" * 20 + b'":3}', Message(6)),
        (b'{"type":8,"sequenceId":999999999999999999}', Message(8, sequence=999999999999999999)),
        (b'{"type":7,"error":null,"allowReconnect":null}', Message(7)),
        (
            b'{"type":1,"target":"\\u00e9\\ud83d\\ude00\\"\\\\\\/\\b\\f\\n\\r\\t","invocationId":"\\u0031","arguments":[]}',
            Message(1, "1", 'é😀"\\/\b\f\n\r\t'),
        ),
        (b'{"type":1,"target":"T","invocationId":null,"arguments":[ ]}', Message(1, None, "T", nonblocking=True)),
        (b'{"type":1,"target":"T","invocationId":"","arguments":[]}', Message(1, None, "T", nonblocking=True)),
        (
            b'{"type":1,"invocationId":"1","target":"T",'
            b'"arguments":[ 1 , [2,[3,"],"]],{"a":",","b":{"c":"\\\\"}} , "\\\\\\"" , null , -0.5e2 ]}',
            Message(1, "1", "T", [1, [2, [3, "],"]], {"a": ",", "b": {"c": "\\"}}, '\\"', None, -50.0]),
        ),
        (
            b'{"type":4,"invocationId":"1","target":"T","arguments":[],"streamIds":[ "a\\u0062" , "c" ]}',
            Message(4, "1", "T", stream_ids=["ab", "c"]),
        ),
        (
            b'{"type":1,"target":"T","arguments":[],"nonblocking":5,"streamIds":null}',
            Message(1, None, "T", nonblocking=True),
        ),
        (b'{"type":3,"invocationId":"1","result":null}', Message(3, "1", payload=None)),
        (b'{"type":3,"invocationId":"1","result":null,"error":"x"}', Message(3, "1", error="x")),
        (b'{"type":3,"invocationId":"1","result":1,"error":null}', Message(3, "1", payload=1)),
        (b'{"type":2,"invocationId":"1","item":{"type":6}}', Message(2, "1", payload={"type": 6})),
        (b'{"type":5,"invocationId":"1","target":"T","arguments":[1,2,3,4,5,6,7]}', Message(5, "1")),
        (
            b'{"type":1,"invocationId":"1","target":"T","arguments":[1,2,3,4,5],"arguments":[7]}',
            Message(1, "1", "T", [7]),
        ),
        (b'{"type":10,"target":5}', None),
        (b'{"type":0}', None),
        (b'{"type":-7}', None),
        (b'{"type":123456789012345678}', None),
    ],
)
def test_json_that_is_tolerated(record, wanted):
    assert messages.decode(record, JSON) == wanted


@pytest.mark.parametrize(
    "record, where",
    [
        (b"", "record"),
        (b"{", "record"),
        (b"[]", "record"),
        (b"null", "record"),
        (b'"x"', "record"),
        (b'{"type":6}{"type":6}', "record"),
        (b'{"type":6,}', "record"),
        (b'{"type":6,"x":"\xff"}', "record"),
        (b'{"type":6,"x":"\x01"}', "record"),
        (b'{"type":6,"x":' + b"[" * 64 + b"]" * 64 + b"}", "record"),
        (b"{}", "type"),
        (b'{"type":null}', "type"),
        (b'{"type":"1"}', "type"),
        (b'{"type":6.0}', "type"),
        (b'{"type":6e0}', "type"),
        (b'{"type":{}}', "type"),
        (b'{"type":1,"arguments":[]}', "target"),
        (b'{"type":1,"target":null,"arguments":[]}', "target"),
        (b'{"type":1,"target":5,"arguments":[]}', "target"),
        (b'{"type":1,"target":"\\ud800","arguments":[]}', "target"),
        (b'{"type":1,"target":"\\udc00\\ud800","arguments":[]}', "target"),
        (b'{"type":1,"target":"\\ud800\\u0041","arguments":[]}', "target"),
        (b'{"type":1,"target":"' + b"T" * 1025 + b'","arguments":[]}', "target"),
        (b'{"type":1,"target":"T"}', "arguments"),
        (b'{"type":1,"target":"T","arguments":{}}', "arguments"),
        (b'{"type":1,"target":"T","arguments":[],"invocationId":1}', "invocationId"),
        (b'{"type":1,"target":"T","arguments":[],"invocationId":"' + b"i" * 257 + b'"}', "invocationId"),
        (b'{"type":4,"target":"T","arguments":[]}', "invocationId"),
        (b'{"type":1,"target":"T","arguments":[],"headers":[]}', "headers"),
        (b'{"type":1,"target":"T","arguments":[],"streamIds":{}}', "streamIds"),
        (b'{"type":1,"target":"T","arguments":[],"streamIds":[1]}', "streamIds"),
        (b'{"type":1,"target":"T","arguments":[],"streamIds":["' + b"i" * 257 + b'"]}', "streamIds"),
        (b'{"type":1,"target":"T","arguments":[],"streamIds":["a"' + b',"a"' * 64 + b"]}", "streamIds"),
        (b'{"type":2,"invocationId":"1"}', "item"),
        (b'{"type":2,"item":1}', "invocationId"),
        (b'{"type":3}', "invocationId"),
        (b'{"type":3,"invocationId":""}', "invocationId"),
        (b'{"type":3,"invocationId":"1","error":{}}', "error"),
        (b'{"type":3,"invocationId":"1","error":"x","result":false}', "error"),
        (b'{"type":5}', "invocationId"),
        (b'{"type":7,"error":1}', "error"),
        (b'{"type":7,"allowReconnect":1}', "allowReconnect"),
        (b'{"type":8}', "sequenceId"),
        (b'{"type":8,"sequenceId":-1}', "sequenceId"),
        (b'{"type":9,"sequenceId":"1"}', "sequenceId"),
        (b'{"type":9,"sequenceId":1234567890123456789}', "sequenceId"),
    ],
)
def test_json_that_closes_a_connection(record, where):
    assert fault(record, JSON) == where


def test_json_is_read_as_deep_as_the_limit():
    inner = spec.RECORD_DEPTH_MAX - 2
    record = b'{"type":1,"target":"T","arguments":[' + b"[" * inner + b"]" * inner + b"]}"
    assert len(messages.decode(record, JSON).arguments) == 1
    assert fault(record.replace(b"[]", b"[[]]"), JSON) == "record"


# ---- MessagePack: what is tolerated, what is not ----


@pytest.mark.parametrize(
    "record, wanted",
    [
        (packed([6, "ignored", {}]), Message(6)),
        (b"\x91\xcc\x06", Message(6)),
        (b"\x91\xcd\0\x06", Message(6)),
        (b"\x91\xce\0\0\0\x06", Message(6)),
        (b"\x91\xcf\0\0\0\0\0\0\0\x06", Message(6)),
        (b"\x91\xd0\x06", Message(6)),
        (b"\x91\xd1\0\x06", Message(6)),
        (b"\x91\xd2\0\0\0\x06", Message(6)),
        (b"\x91\xd3\0\0\0\0\0\0\0\x06", Message(6)),
        (b"\xdc\0\x01\x06", Message(6)),
        (b"\xdd\0\0\0\x01\x06", Message(6)),
        (b"\x91\xff", None),
        (b"\x91\xcf" + b"\xff" * 8, None),
        (packed([99, [1, {"a": b"x"}]]), None),
        (packed([8, 2**40]), Message(8, sequence=2**40)),
        (packed([7, None, True, "ignored"]), Message(7, allow_reconnect=True)),
        (packed([7, "x", False]), Message(7, error="x")),
        (packed([1, {1: [2]}, "", "T", []]), Message(1, None, "T", nonblocking=True)),
        (
            packed([1, {}, "1", "T", [1, [2, {}], {"a": [3]}, "x", 1.5, None], None]),
            Message(1, "1", "T", [1, [2, {}], {"a": [3]}, "x", 1.5, None]),
        ),
        (packed([1, {}, "1", "T", [], ["s"], "ignored"]), Message(1, "1", "T", stream_ids=["s"])),
        (packed([1, {}, "T", [5], ["s"]]), Message(1, None, "T", [5], ["s"], nonblocking=True)),
        (packed([3, {}, "1"]), Message(3, "1")),
        (packed([3, {}, "1", 2, "ignored"]), Message(3, "1")),
        (b"\x95\x03\xde\0\x01\x01\x02\xd9\x011\xd0\x03\xcb" + bytes(8), Message(3, "1", payload=0.0)),
        (b"\x94\x02\xdf\0\0\0\0\xda\0\x011\xda\0\x01x", Message(2, "1", payload="x")),
        (b"\x94\x02\x80\xdb\0\0\0\x011\xc6\0\0\0\x01x", Message(2, "1", payload=b"x")),
        (b"\x94\x02\x80\xa11\xc5\0\x01x", Message(2, "1", payload=b"x")),
        (b"\x94\x02\x80\xa11\xc7\x02\x05ab", Message(2, "1", payload=msgspec.msgpack.Ext(5, b"ab"))),
        (b"\x94\x02\x80\xa11\xd8\x05" + bytes(16), Message(2, "1", payload=msgspec.msgpack.Ext(5, bytes(16)))),
    ],
)
def test_messagepack_that_is_tolerated(record, wanted):
    assert messages.decode(record, MESSAGEPACK) == wanted


@pytest.mark.parametrize(
    "record, where",
    [
        (b"", "record"),
        (packed({}), "record"),
        (b"\xc1", "record"),
        (b"\x92\x06\xc1", "record"),
        (b"\xdd\xff\xff\xff\xff\x06", "record"),
        (b"\x94\x02\x80\xa11\xdb\xff\xff\xff\xff", "record"),
        (b"\x94\x02\x80\xa11\xdf\xff\xff\xff\xff", "record"),
        (b"\x94\x02\x80\xa11\xc9\xff\xff\xff\xff\0", "record"),
        (packed([]), "type"),
        (packed(["1"]), "type"),
        (packed([1.0]), "type"),
        (packed([1]), "record"),
        (packed([1, None, "1", "T", []]), "headers"),
        (packed([1, {}, "1", "T"]), "record"),
        (packed([1, {}, "T", []]), "target"),
        (packed([1, {}, 1, "T", []]), "invocationId"),
        (packed([1, {}, b"1", "T", []]), "invocationId"),
        (packed([1, {}, "i" * 257, "T", []]), "invocationId"),
        (packed([1, {}, "1", None, []]), "target"),
        (packed([1, {}, "1", "T" * 1025, []]), "target"),
        (b"\x95\x01\x80\xa11\xa1\xff\x90", "target"),
        (packed([1, {}, "1", "T", {}]), "arguments"),
        (packed([1, {}, "1", "T", [], "s"]), "streamIds"),
        (packed([1, {}, "1", "T", [], [5]]), "streamIds"),
        (packed([1, {}, "1", "T", [], ["i" * 257]]), "streamIds"),
        (packed([1, {}, "1", "T", [], ["s"] * 65]), "streamIds"),
        (packed([2, {}, "1"]), "record"),
        (packed([2, {}, None, 1]), "invocationId"),
        (packed([3, {}, ""]), "invocationId"),
        (packed([3, {}, "1", 0]), "result kind"),
        (packed([3, {}, "1", "2"]), "result kind"),
        (packed([3, {}, "1", 3]), "record"),
        (packed([3, {}, "1", 1, None]), "error"),
        (packed([4, {}, None, "T", []]), "invocationId"),
        (packed([4, {}, "T", [], ["s"]]), "target"),
        (packed([5, {}]), "record"),
        (packed([7]), "record"),
        (packed([7, 1]), "error"),
        (packed([7, None, 1]), "allowReconnect"),
        (packed([8]), "record"),
        (packed([8, -1]), "sequenceId"),
        (packed([8, 2**63]), "sequenceId"),
        (packed([9, 1.0]), "sequenceId"),
    ],
)
def test_messagepack_that_closes_a_connection(record, where):
    assert fault(record, MESSAGEPACK) == where


def test_messagepack_is_read_as_deep_as_the_limit():
    for inner, good in ((spec.RECORD_DEPTH_MAX - 2, True), (spec.RECORD_DEPTH_MAX - 1, False)):
        value = b"\x91" * inner + b"\x01"
        for record in (b"\x95\x01\x80\xa11\xa1T\x91" + value, b"\x94\x02\x80\xa11\x91" + value):
            if good:
                assert messages.decode(record, MESSAGEPACK)
            else:
                assert fault(record, MESSAGEPACK) == "record"


# ---- the early dialect ----


@pytest.mark.parametrize("dialect", [Dialect.EARLY, Dialect.ALPHA2])
@pytest.mark.parametrize(
    "record, encoding, wanted",
    [
        (packed([1, "1", "T", [5]]), MESSAGEPACK, Message(1, "1", "T", [5])),
        (packed([1, None, "T", [5]]), MESSAGEPACK, Message(1, None, "T", [5], nonblocking=True)),
        (packed([1, None, False, "T", []]), MESSAGEPACK, Message(1, None, "T", nonblocking=True)),
        (packed([1, "", False, "T", [], "ignored"]), MESSAGEPACK, Message(1, "", "T")),
        (packed([4, "1", None]), MESSAGEPACK, Message(10, "1")),
        (packed([3, "1", 3, None]), MESSAGEPACK, Message(3, "1", payload=None)),
        (packed([6]), MESSAGEPACK, Message(6)),
        (b'{"type":1,"invocationId":"","target":"T","arguments":[]}', JSON, Message(1, "", "T")),
        (b'{"type":4,"invocationId":"1","target":null}', JSON, Message(10, "1")),
        (
            b'{"type":1,"invocationId":"1","target":"T","arguments":[],"streamIds":["s"],"headers":5}',
            JSON,
            Message(1, "1", "T"),
        ),
        (b'{"type":1,"invocationId":"1","target":"T","arguments":[],"nonblocking":null}', JSON, Message(1, "1", "T")),
    ],
)
def test_early_shapes_that_are_tolerated(record, encoding, wanted, dialect):
    assert messages.decode(record, encoding, dialect) == wanted


@pytest.mark.parametrize(
    "record, encoding, where",
    [
        (packed([1, {}, "1", "T", [], []]), MESSAGEPACK, "invocationId"),
        (packed([1, "1", 1, "T", []]), MESSAGEPACK, "nonblocking"),
        (packed([1, "1", None, "T", []]), MESSAGEPACK, "nonblocking"),
        (packed([4, "1", 5]), MESSAGEPACK, "error"),
        (packed([4, "1", "T", 5]), MESSAGEPACK, "arguments"),
        (b'{"type":1,"invocationId":"1","target":"T","arguments":[],"nonblocking":"yes"}', JSON, "nonblocking"),
        (b'{"type":4}', JSON, "invocationId"),
        (b'{"type":4,"target":"T","arguments":[]}', JSON, "invocationId"),
    ],
)
def test_early_shapes_that_close_a_connection(record, encoding, where):
    assert fault(record, encoding, Dialect.EARLY) == where
