# SPDX-License-Identifier: Apache-2.0
"""What hub clients publish is stored so that every door reads it, and what any door has stored is delivered to them."""

import json
import random
from typing import Any

import msgspec
import pytest

from vibemq.protocols.signalr.deliveries import encode_delivery
from vibemq.protocols.signalr.entries import encode_message
from vibemq.protocols.signalr.spec import Encoding, HubError

HEADERS = {"text": 'é\n"x"', "minus": -7, "large": 2**63, "yes": True, "no": False, "half": 0.5, "empty": ""}
TINY_JSON = [b"{}", b"[]", b"0", b"-1.5e3", b"true", b"null", b'"\\u00e9"', b'{"a":[1,{"b":null}]}', b" [1 , 2] "]


def stored(value: Any, encoding: Encoding, options: dict[str, Any] | None = None) -> bytes:
    encode = msgspec.json.encode if encoding is Encoding.JSON else msgspec.msgpack.encode
    return encode_message(encode(value), encoding, options)


def to_json(message: bytes, **about: Any) -> dict[str, Any]:
    return json.loads(encode_delivery(message, Encoding.JSON, **about))


def to_messagepack(message: bytes, **about: Any) -> dict[str, Any]:
    return msgspec.msgpack.decode(encode_delivery(message, Encoding.MESSAGEPACK, **about))


# ---- what is stored ----


@pytest.mark.parametrize("raw", TINY_JSON)
def test_json_is_stored_and_delivered_as_the_text_that_it_came_as(raw: bytes) -> None:
    message = encode_message(raw, Encoding.JSON)
    assert raw in message and b"application/json" in message
    assert b'"body":' + raw + b"," in encode_delivery(message, Encoding.JSON)
    assert to_messagepack(message)["body"] == json.loads(raw)


def test_a_message_that_says_nothing_is_spelled_like_the_native_doors() -> None:
    assert encode_message(b"1", Encoding.JSON) == bytes.fromhex(
        "005373c0190740404040404" + "0a310" + b"application/json".hex() + "005375a00131"
    )


def test_with_another_content_type_a_string_is_its_text() -> None:
    message = stored('two\nlines "é"', Encoding.JSON, {"contentType": "text/plain"})
    assert 'two\nlines "é"'.encode() in message
    for got in (to_json(message), to_messagepack(message)):
        assert got["body"] == 'two\nlines "é"' and got["contentType"] == "text/plain"


@pytest.mark.parametrize(
    "type", ["application/json", "application/json; charset=utf-8", "application/cloudevents+json", "model/gltf2+json"]
)
def test_with_a_content_type_of_json_any_value_is_json(type: str) -> None:
    message = stored({"a": 1}, Encoding.JSON, {"contentType": type})
    assert to_json(message)["body"] == {"a": 1} and to_messagepack(message)["body"] == {"a": 1}


@pytest.mark.parametrize("data", [b"", b"\x00\xff", bytes(range(256)), b"plain"])
def test_bytes_are_base64_in_json_and_bin_in_messagepack_both_ways(data: bytes) -> None:
    text = msgspec.json.decode(msgspec.json.encode(data))
    from_json = stored(text, Encoding.JSON, {"encoding": "base64"})
    from_messagepack = stored(data, Encoding.MESSAGEPACK)
    assert from_json == from_messagepack
    got = to_json(from_json)
    assert (got["body"], got["encoding"], got["contentType"]) == (text, "base64", "application/octet-stream")
    assert to_messagepack(from_json)["body"] == data


def test_text_and_values_of_messagepack_are_text_and_json() -> None:
    text = stored("héllo", Encoding.MESSAGEPACK)
    assert to_json(text)["body"] == to_messagepack(text)["body"] == "héllo"
    assert to_json(text)["contentType"] == "text/plain; charset=utf-8"
    value = {"a": [1, 2.5, None, True, "x"]}
    message = stored(value, Encoding.MESSAGEPACK)
    assert msgspec.json.encode(value) in message
    assert to_json(message)["body"] == to_messagepack(message)["body"] == value


def test_a_date_of_messagepack_becomes_text() -> None:
    moment = msgspec.msgpack.Ext(-1, bytes.fromhex("65539780"))
    assert to_json(stored([moment], Encoding.MESSAGEPACK))["body"] == ["2023-11-14T15:51:28Z"]


TICKS = bytes.fromhex("d7ff0000019065539780")  # 2023-11-14T15:51:28.0000001Z
DATE_MAX = bytes.fromhex("c70cff3b9ac99c0000003afff4417f")  # DateTime.MaxValue
ONLY_MESSAGEPACK = {
    "bin in a map": (msgspec.msgpack.encode({"a": b"\0\xff"}), {"a": "AP8="}),
    "bin in an array": (msgspec.msgpack.encode([b""]), [""]),
    "a date": (bytes.fromhex("d6ff65539780"), "2023-11-14T15:51:28Z"),
    "a date in a map": (b"\x81\xa2at" + TICKS, {"at": "2023-11-14T15:51:28.0000001Z"}),
    "the last date of .NET": (DATE_MAX, "9999-12-31T23:59:59.9999999Z"),
    "nanoseconds": (bytes.fromhex("d7ff0000000465539780"), "2023-11-14T15:51:28.000000001Z"),
    "a date beyond ISO 8601": (bytes.fromhex("c70cff000000007fffffffffffffff"), [-1, "AAAAAH//////////"]),
    "numbers as keys": (msgspec.msgpack.encode({1: "a", -2: "b"}), {"1": "a", "-2": "b"}),
    "keys of every other kind": (
        b"\x86\xc0\x01\xc3\x02\xcb\x3f\xe0\0\0\0\0\0\0\x03\xc4\x01\xff\x04" + TICKS + b"\x05\x91\x01\x06",
        {"null": 1, "true": 2, "0.5": 3, "/w==": 4, "2023-11-14T15:51:28.0000001Z": 5, "kQE=": 6},
    ),
    "NaN": (msgspec.msgpack.encode(float("nan")), "NaN"),
    "infinities": (msgspec.msgpack.encode([float("inf"), {"a": float("-inf")}]), ["Infinity", {"a": "-Infinity"}]),
    "another ext": (msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"x")), [5, "eA=="]),
    "60 levels": (b"\x91" * 60 + b"\xc0", None),
}


@pytest.mark.parametrize(("raw", "in_json"), ONLY_MESSAGEPACK.values(), ids=ONLY_MESSAGEPACK)
def test_values_beyond_json_are_the_same_bytes_in_messagepack_and_converted_in_json(raw: bytes, in_json: Any) -> None:
    message = encode_message(raw, Encoding.MESSAGEPACK)
    assert b"\xa4body" + raw + b"\xa6offset" in encode_delivery(message, Encoding.MESSAGEPACK)
    if in_json is None:
        return
    assert raw in message and b"application/msgpack" in message
    got = to_json(message)
    assert (got["body"], got["contentType"], "encoding" in got) == (in_json, "application/msgpack", False)


@pytest.mark.parametrize("value", [{"a": 1}, "text", 7, None, [1.5]])
def test_a_client_may_declare_a_value_as_messagepack(value: Any) -> None:
    raw = msgspec.msgpack.encode(value)
    options = {"contentType": "application/msgpack"}
    message = stored(value, Encoding.MESSAGEPACK, options)
    assert message == stored(raw, Encoding.MESSAGEPACK, options), "its bytes in a bin say the same"
    base64 = msgspec.json.decode(msgspec.json.encode(raw))
    assert message == stored(base64, Encoding.JSON, options | {"encoding": "base64"})
    assert b"\xa4body" + raw + b"\xa6offset" in encode_delivery(message, Encoding.MESSAGEPACK)
    assert to_json(message)["body"] == value


@pytest.mark.parametrize("raw", [b"", b"\x81", b"\xc1", b"\x01\x02", b"\xa1\xff", b"\x91" * 61 + b"\xc0"])
def test_invalid_messagepack_is_delivered_as_bytes(raw: bytes) -> None:
    message = stored(raw, Encoding.MESSAGEPACK, {"contentType": "application/msgpack"})
    got = to_json(message)
    assert (got["body"], got["encoding"]) == (msgspec.json.decode(msgspec.json.encode(raw)), "base64")
    assert to_messagepack(message)["body"] == raw


def test_numbers_that_json_carries_are_stored_as_json() -> None:
    for number in (2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 1.7976931348623157e308, 5e-324, -0.0):
        message = stored([number], Encoding.MESSAGEPACK)
        assert b"application/json" in message
        [body] = to_messagepack(message)["body"]
        assert (type(body), body, str(body)) == (type(number), number, str(number))
    half = b"\xca\x3d\xcc\xcc\xcd"  # 0.1 as a float of 32 bits: the same number comes back in 64
    assert to_messagepack(encode_message(half, Encoding.MESSAGEPACK))["body"] == 0.10000000149011612


@pytest.mark.parametrize("text", [b"18446744073709551616", b"1e400", b'["\\ud83d"]', b"[" * 61 + b"]" * 61])
def test_json_beyond_messagepack_is_a_text_with_the_content_type_of_json(text: bytes) -> None:
    got = to_messagepack(
        bytes.fromhex("005373c0190740404040404" + "0a310" + b"application/json".hex() + "005375a0")
        + bytes([len(text)])
        + text
    )
    assert (got["body"], got["contentType"]) == (text.decode(), "application/json")


@pytest.mark.parametrize("from_encoding", Encoding)
def test_options_come_back_with_their_types(from_encoding: Encoding) -> None:
    options = {"headers": HEADERS, "key": "customer 7", "messageId": "m-1", "priority": 3}
    message = stored("x", from_encoding, options)
    for got in (to_json(message), to_messagepack(message)):
        assert (got["headers"], got["key"], got["id"]) == (HEADERS, "customer 7", "m-1")


def test_a_delivery_says_where_it_is_from() -> None:
    message = stored(1, Encoding.JSON)
    for deliver in (to_json, to_messagepack):
        got = deliver(
            message, tag=2**53 - 1, queue=b"q\xc3\xa9", offset=2**40, timestamp_ms=1_700_000_000_123, attempts=2
        )
        assert got == {
            "tag": 2**53 - 1,
            "id": str(2**40),
            "queue": "qé",
            "body": 1,
            "offset": 2**40,
            "timestamp": 1_700_000_000_123,
            "redelivered": True,
        }
        assert deliver(message)["redelivered"] is False


# ---- what others have stored ----


@pytest.mark.parametrize(
    ("stored_bytes", "body", "is_base64"),
    [
        (b"no AMQP at all", "no AMQP at all", False),
        (b'{"json": true}', {"json": True}, False),
        (b"\xff\x00", "/wA=", True),
        (b"", None, False),
        (bytes.fromhex("005375a0026869"), "hi", False),
        (bytes.fromhex("005377a1026869"), "hi", False),
        (bytes.fromhex("00537740"), None, False),
        (bytes.fromhex("005377a10131"), 1, False),
    ],
)
def test_bodies_of_other_doors_are_delivered(stored_bytes: bytes, body: Any, is_base64: bool) -> None:
    got = to_json(stored_bytes)
    assert got["body"] == body and got.get("encoding") == ("base64" if is_base64 else None)
    if not is_base64:
        assert to_messagepack(stored_bytes)["body"] == body


def test_an_id_that_is_no_text_is_shown_as_base64() -> None:
    message = bytes.fromhex("005373c00501a002ff00005375a00131")
    assert to_json(message)["id"] == "/wA="


@pytest.mark.parametrize("depth", [60, 61])
def test_json_that_is_deeper_than_peers_read_is_delivered_as_text(depth: int) -> None:
    body = b"[" * depth + b"]" * depth
    assert to_json(body)["body"] == (json.loads(body) if depth == 60 else body.decode())


def test_any_bytes_are_delivered_as_what_a_peer_can_read() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    good = stored("x", Encoding.JSON, {"headers": HEADERS, "key": "k", "messageId": "m"})
    for _ in range(3000):
        message = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            message[chance.randrange(len(message))] = chance.randrange(256)
        encode_delivery(bytes(message), Encoding.JSON).decode()
        assert to_json(bytes(message))["offset"] == 0
        assert to_messagepack(bytes(message))["offset"] == 0


# ---- what is refused ----


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"header": {}}, "header"),
        ({"headers": []}, "headers"),
        ({"headers": {"a": None}}, "headers.a"),
        ({"headers": {"a": 2**64}}, "headers.a"),
        ({"headers": {"": "x"}}, "headers"),
        ({"key": ""}, "key"),
        ({"messageId": "x" * 1025}, "messageId"),
        ({"messageId": 7}, "messageId"),
        ({"priority": 256}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"priority": True}, "priority"),
        ({"ttlMs": -1}, "ttlMs"),
        ({"contentType": "text/é"}, "contentType"),
        ({"encoding": "utf-8"}, "encoding"),
    ],
)
def test_a_bad_option_is_refused_by_its_name(options: dict[str, Any], names: str) -> None:
    with pytest.raises(HubError, match=f"Option '{names}' ") as refused:
        encode_message(b"1", Encoding.JSON, options)
    assert refused.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("body", "encoding", "options"),
    [
        (b"1", Encoding.JSON, {"encoding": "base64"}),
        (b'"not base64!"', Encoding.JSON, {"encoding": "base64"}),
        (b"{}", Encoding.JSON, {"contentType": "text/plain"}),
        (msgspec.msgpack.encode("{"), Encoding.MESSAGEPACK, {"contentType": "application/json"}),
        (msgspec.msgpack.encode({1: "x"}), Encoding.MESSAGEPACK, {"contentType": "application/json"}),
        (msgspec.msgpack.encode({"a": b"x"}), Encoding.MESSAGEPACK, {"contentType": "text/plain"}),
        (b'"gQEC"', Encoding.JSON, {"contentType": "application/msgpack"}),
        (b"\x81\x01\xa1\xff", Encoding.MESSAGEPACK, None),
        (b"\xa1\xff", Encoding.MESSAGEPACK, None),
        (b"\x91" * 61 + b"\xc4\x00", Encoding.MESSAGEPACK, None),
    ],
)
def test_a_body_that_is_not_what_its_options_say_is_refused(
    body: bytes, encoding: Encoding, options: dict[str, Any] | None
) -> None:
    with pytest.raises(HubError) as refused:
        encode_message(body, encoding, options)
    assert refused.value.code == "INVALID_BODY"
