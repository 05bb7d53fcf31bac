# SPDX-License-Identifier: Apache-2.0
"""MicroMsg2 messages are stored so that every door reads them, and peers get the property bytes that were sent."""

import json
import random
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from amqp_by_hand import (
    FALSE,
    LIST,
    NULL,
    TRUE,
    binary,
    double,
    long,
    message,
    number,
    single,
    string,
    symbol,
    take_apart,
    timestamp,
    ulong,
)  # fmt: skip
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vibemq.protocols.micromsg2 import spec
from vibemq.protocols.micromsg2.codec import Untyped, encode_properties, parse_properties
from vibemq.protocols.micromsg2.properties import dotnet_type, read, write
from vibemq.protocols.signalr.deliveries import encode_delivery
from vibemq.protocols.signalr.spec import Encoding

JSON = b"application/json"
ANNOTATION = "x-micromsg2-properties"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def headers(properties: bytes, **options: Any) -> dict[str, tuple[str, Any]]:
    return take_apart(write(properties, b"x", **options)).headers


def kept(stored: bytes) -> bytes | None:
    """The sender's bytes, where they stand beside the message."""
    found = take_apart(stored).annotations
    assert not found or (found[0] == ("symbol", ANNOTATION) and found[1][0] == "binary" and len(found) == 2)
    return found[1][1] if found else None


# ---- what is stored ----


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"Ttomas", ("string", "tomas")),
        (b"T", ("string", "")),
        (b"THello%20%22world%22", ("string", 'Hello "world"')),
        (b"Tj%C3%B6rg", ("string", "jörg")),
        (b"Tj\xc3\xb6rg", ("string", "jörg")),
        (b"Ta+b", ("string", "a+b")),
        (b"T%FF%00", ("binary", b"\xff\x00")),
        (b"T%4", ("string", "%4")),
        (b"T100%", ("string", "100%")),
        (b"T%zz", ("string", "%zz")),
        (b"tomas", ("string", "tomas")),
        (b"", ("string", "")),
        (b"%54omas", ("string", "Tomas")),
        (b"%4E1", ("string", "N1")),
        (b"a:b=c", ("string", "a:b=c")),
        (b"N0", ("long", 0)),
        (b"N-0", ("long", 0)),
        (b"N42", ("long", 42)),
        (b"N+42", ("long", 42)),
        (b"N-42", ("long", -42)),
        (b"N007", ("long", 7)),
        (b"N%34%32", ("long", 42)),
        (b"N9223372036854775807", ("long", 2**63 - 1)),
        (b"N-9223372036854775808", ("long", -(2**63))),
        (b"N9223372036854775808", ("ulong", 2**63)),
        (b"N18446744073709551615", ("ulong", 2**64 - 1)),
        (b"N18446744073709551616", ("double", 2.0**64)),
        (b"N-9223372036854775809", ("double", -(2.0**63))),
        (b"N1.5", ("double", 1.5)),
        (b"N-.5", ("double", -0.5)),
        (b"N5.", ("double", 5.0)),
        (b"N1e3", ("double", 1000.0)),
        (b"N1E-3", ("double", 0.001)),
        (b"N1e%2B3", ("double", 1000.0)),
        (b"N", ("string", "N")),
        (b"N-", ("string", "N-")),
        (b"N.", ("string", "N.")),
        (b"N1e", ("string", "N1e")),
        (b"N1e+", ("string", "N1e+")),
        (b"N1 ", ("string", "N1 ")),
        (b"N0x10", ("string", "N0x10")),
        (b"N1_000", ("string", "N1_000")),
        (b"Ninf", ("string", "Ninf")),
        (b"Nnan", ("string", "Nnan")),
        (b"N1e999", ("string", "N1e999")),
        (b"Nathan%21", ("string", "Nathan!")),
        (b"N1." + b"0" * 62, ("double", 1.0)),
        (b"N1." + b"0" * 63, ("string", "N1." + "0" * 63)),
        (b"D1413198000.0", ("timestamp", 1413198000000)),
        (b"D1413198000", ("timestamp", 1413198000000)),
        (b"D1413198000.", ("timestamp", 1413198000000)),
        (b"D1413198000.5", ("timestamp", 1413198000500)),
        (b"D1413198000.0059999", ("timestamp", 1413198000005)),
        (b"D0.0", ("timestamp", 0)),
        (b"D-0.25", ("timestamp", -250)),
        (b"D-1.9999", ("timestamp", -1999)),
        (b"D9223372036854774.999", ("timestamp", 9223372036854774999)),
        (b"D9223372036854775.0", ("string", "D9223372036854775.0")),
        (b"D", ("string", "D")),
        (b"D.5", ("string", "D.5")),
        (b"D1e3", ("string", "D1e3")),
        (b"D1.5.5", ("string", "D1.5.5")),
        (b"D2014-10-13", ("string", "D2014-10-13")),
        (b"Dora", ("string", "Dora")),
    ],
)
def test_a_value_is_stored_with_its_type_and_its_bytes_go_out_as_they_came(text: bytes, value: tuple[str, Any]) -> None:
    properties = b"key:%b;" % text
    stored = write(properties, b"x")
    assert take_apart(stored).headers == {"key": value}
    assert read(stored) == properties


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"first_name:Ttomas;age:N20;at:D1413198000.5;",
        b"a:T;b:T%20%FF;c:N-1;d:N18446744073709551615;e:N0.5;f:N1e20;g:N-2.5e-07;h:N5.0;i:D0.0;j:D-1.005;",
        b"a%20b:T1;%C3%A4:T2;~:T3;%FF:T4;",
        b"a:T1;message-id:Tm%201;",
        b"message-id:Tm;",
        b"dotnet-type:TOrder;",
    ],
)
def test_what_is_in_the_strict_form_is_stored_only_once(properties: bytes) -> None:
    stored = write(properties, b"x", JSON)
    assert kept(stored) is None
    assert read(stored, JSON) == properties


@pytest.mark.parametrize(
    "properties",
    [
        b"first_name:alice;twitter:somebody;",
        b"a:T1",
        b"a=T1;",
        b"a:T1;;",
        b";a:T1;",
        b"a:T1;;b:T2;",
        b"flag;",
        b"flag",
        b";",
        b":;",
        b":T1;",
        b"=",
        b"a:T%2f;",
        b"a:T%41;",
        b"a:T ;",
        b"a:T%;",
        b"a b:T1;",
        b"%61:T1;",
        b"a:N+1;",
        b"a:N1.50;",
        b"a:N1e%2B20;",
        b"a:D1.0000;",
        b"a:D1;",
        b"a:T1;a:T2;",
        b"message-id:Tm;a:T1;",
        b"message-id:Tm;message-id:Tn;",
        b"message-id:N1;",
        b"message-id:T;",
        b"content-type:Ttext%2Fplain;",
        b"a:T1;content-type:Tapplication%2Fjson;",
        b"\x00\xff:\xff\x00;",
    ],
)
def test_other_bytes_are_kept_beside_the_message(properties: bytes) -> None:
    stored = write(properties, b"x", JSON)
    assert kept(stored) == properties
    assert read(stored, JSON if b"content-type" not in properties else None) == properties


def test_of_a_property_twice_the_last_counts() -> None:
    assert headers(b"a:T1;b:T2;a:N3;a:T4;b:T5;") == {"a": ("string", "4"), "b": ("string", "5")}
    assert headers(b"a%62:T1;ab:T2;") == {"ab": ("string", "2")}


def test_of_thousands_of_properties_the_last_of_each_counts() -> None:
    pairs = [(b"%d" % (i % 900), b"%d" % i) for i in range(6000)]
    properties = b"".join(b"%b:N%b;" % pair for pair in pairs)
    stored = write(properties, b"x")
    assert take_apart(stored).headers == {key.decode(): ("long", int(value)) for key, value in dict(pairs).items()}
    assert read(stored) == properties


@pytest.mark.parametrize("count", [1, 31, 32, 33, 1000])
def test_many_different_properties_keep_their_order(count: int) -> None:
    properties = b"".join(b"key%d:N%d;" % (i, i) for i in range(count))
    stored = write(properties, b"x")
    assert [key for (_, key), _ in take_apart(stored).application] == [f"key{i}" for i in range(count)]
    assert kept(stored) is None and read(stored) == properties


def test_a_property_without_a_key_does_not_count_and_one_without_a_value_is_empty() -> None:
    assert headers(b":T1;=N2;flag;a:;:") == {"flag": ("string", ""), "a": ("string", "")}


def test_the_message_id_is_that_of_the_message_whatever_its_type() -> None:
    for text, id in ((b"Tm-1", "m-1"), (b"m-1", "m-1"), (b"N42", "42"), (b"D1.5", "1.5"), (b"T%C3%A4", "ä")):
        found = take_apart(write(b"message-id:%b;a:T1;" % text, b"x"))
        assert found.id == id and found.headers == {"a": ("string", "1")}
    assert take_apart(write(b"message-id:Tm;message-id:Tn;", b"x")).id == "n"
    assert take_apart(write(b"message-id:T%FF;", b"x")).properties[0] == ("binary", b"\xff")
    assert not take_apart(write(b"message-id:;", b"x")).properties


def test_the_content_type_is_that_of_the_serializer_unless_the_sender_says_another() -> None:
    assert not take_apart(write(b"a:T1;", b"x")).properties
    assert take_apart(write(b"a:T1;", b"x", JSON)).content_type == "application/json"
    for text in (b"Ttext%2Fplain", b"text/plain"):
        found = take_apart(write(b"content-type:%b;" % text, b"x", JSON))
        assert found.properties[6] == ("symbol", "text/plain") and not found.application
    assert take_apart(write(b"content-type:Ttext%2Fplain;", b"x")).content_type == "text/plain"


@pytest.mark.parametrize("text", [b"", b"T", b"T%C3%A4", b"Ta%0Ab", b"N1", b"T" + b"x" * 256])
def test_what_cannot_be_a_content_type_is_none(text: bytes) -> None:
    stored = write(b"content-type:%b;" % text, b"x", JSON)
    assert take_apart(stored).content_type == "application/json"
    assert read(stored, JSON) == b"content-type:%b;" % text


def test_a_payload_is_stored_as_it_came() -> None:
    for payload in (b"", b"{}", b"\x00\xff" * 1000):
        assert take_apart(write(b"a:T1;", payload)).body == payload


def test_sections_stand_in_the_order_of_the_standard() -> None:
    stored = write(b"a:1;message-id:Tm;", b"x", JSON, b"Order")
    assert take_apart(stored).sections == [0x72, 0x73, 0x74, 0x75]
    assert take_apart(write(b"", b"x")).sections == [0x75]


def test_other_doors_see_headers_with_their_types_and_nothing_else() -> None:
    stored = write(b"name:Tanna;age:N42;half:N0.5;at:D1413198000.5;raw:blue;message-id:Tm;", b"{}", JSON, b"Order")
    seen = json.loads(encode_delivery(stored, Encoding.JSON))
    assert seen["headers"] == {
        "name": "anna", "age": 42, "half": 0.5, "at": 1413198000500, "raw": "blue", "dotnet-type": "Order",
    }  # fmt: skip
    assert seen["id"] == "m" and seen["body"] == {} and "contentType" not in seen
    assert ANNOTATION not in json.dumps(seen)


# ---- what goes out ----


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (string("anna b/ä"), b"Tanna%20b%2F%C3%A4"),
        (string("-._~"), b"T-._~"),
        (string(""), b"T"),
        (symbol("sym"), b"Tsym"),
        (binary(b"\x00\xffa"), b"T%00%FFa"),
        (long(-5), b"N-5"),
        (long(-(2**63)), b"N-9223372036854775808"),
        (ulong(2**64 - 1), b"N18446744073709551615"),
        (number(0x50, ">B", 200), b"N200"),
        (number(0x51, ">b", -3), b"N-3"),
        (number(0x60, ">H", 60000), b"N60000"),
        (number(0x70, ">I", 2**32 - 1), b"N4294967295"),
        (b"\x43", b"N0"),
        (b"\x44", b"N0"),
        (double(0.1), b"N0.1"),
        (double(5), b"N5.0"),
        (double(-0.0), b"N-0.0"),
        (double(1e20), b"N1e20"),
        (double(1e-7), b"N1e-07"),
        (double(1.7976931348623157e308), b"N1.7976931348623157e308"),
        (single(0.1), b"N0.1"),
        (single(3), b"N3.0"),
        (double(float("nan")), b"nan"),
        (double(float("inf")), b"inf"),
        (single(float("-inf")), b"-inf"),
        (TRUE, b"true"),
        (FALSE, b"false"),
        (b"\x56\x01", b"true"),
        (timestamp(0), b"D0.0"),
        (timestamp(1413198000500), b"D1413198000.5"),
        (timestamp(1413198000050), b"D1413198000.05"),
        (timestamp(1413198000005), b"D1413198000.005"),
        (timestamp(-1), b"D-0.001"),
        (timestamp(-1500), b"D-1.5"),
        (timestamp(-(2**63)), b"D-9223372036854775.808"),
        (timestamp(2**63 - 1), b"D9223372036854775.807"),
        (b"\x98" + uuid.UUID(int=0x1234).bytes, b"T00000000-0000-0000-0000-000000001234"),
    ],
)
def test_headers_of_other_doors_go_out_with_their_types(value: bytes, text: bytes) -> None:
    assert read(message([("before", string("1")), ("key", value)])) == b"before:T1;key:%b;" % text


@pytest.mark.parametrize("value", [NULL, LIST, b"\xc1\x01\x00", b"\xe0\x02\x00\x41", b"\x73\x00\x00\x00a"])
def test_headers_that_have_no_word_in_micromsg2_do_not_go_out(value: bytes) -> None:
    assert read(message([("a", string("1")), ("key", value), ("b", long(2))])) == b"a:T1;b:N2;"


def test_keys_of_other_doors_are_percent_encoded_and_empty_ones_do_not_go_out() -> None:
    assert read(message([("a b:c;d=ä", long(1)), ("", long(2)), ("~-._", long(3))])) == (
        b"a%20b%3Ac%3Bd%3D%C3%A4:N1;~-._:N3;"
    )


def test_what_is_no_amqp_has_no_properties() -> None:
    for stored in (b"opaque bytes", b"{}", b"\x00", b"\x00\x53\x75"):
        assert read(stored) == b"" and read(stored, JSON, single=True) == b"" and dotnet_type(stored) is None


@pytest.mark.parametrize(
    ("id", "text"),
    [
        (string("m 1"), b"Tm%201"),
        (binary(b"\xff"), b"T%FF"),
        (ulong(7), b"T7"),
        (b"\x98" + uuid.UUID(int=7).bytes, b"T00000000-0000-0000-0000-000000000007"),
    ],
)
def test_a_message_id_of_any_kind_goes_out_as_text_behind_the_rest(id: bytes, text: bytes) -> None:
    assert read(message([("a", long(1))], id=id)) == b"a:N1;message-id:%b;" % text
    assert read(message(id=id)) == b"message-id:%b;" % text


def test_a_content_type_goes_out_unless_it_is_that_of_the_receivers_serializer() -> None:
    stored = message([("a", long(1))], id=string("m"), content_type=symbol("application/json"))
    assert read(stored, JSON) == b"a:N1;message-id:Tm;"
    assert read(stored) == b"a:N1;message-id:Tm;content-type:Tapplication%2Fjson;"
    assert read(stored, b"application/jsom") == read(stored, b"application/xml") == read(stored)
    assert read(write(b"", b"x", JSON)) == b"content-type:Tapplication%2Fjson;"


def test_what_a_sender_did_not_say_itself_goes_out_behind_its_own_bytes() -> None:
    stored = write(b"a:1", b"x", JSON, b"Order")
    assert read(stored, JSON, without_dotnet_type=True) == b"a:1"
    assert read(stored, JSON) == b"a:1;dotnet-type:TOrder;"
    assert read(stored, without_dotnet_type=True) == b"a:1;content-type:Tapplication%2Fjson;"
    assert read(stored) == b"a:1;dotnet-type:TOrder;content-type:Tapplication%2Fjson;"


def test_what_a_sender_said_itself_goes_out_once() -> None:
    properties = b"content-type:text/plain;dotnet-type:Order;message-id:m;a:1;"
    stored = write(properties, b"x", JSON)
    assert dotnet_type(stored) == b"Order" and take_apart(stored).content_type == "text/plain"
    assert read(stored, JSON) == read(stored) == read(stored, without_dotnet_type=True) == properties


def test_a_dotnet_type_goes_out_beside_the_message_or_as_a_property() -> None:
    stored = write(b"a:T1;message-id:Tm;", b"x", None, b"My.Order, Assembly")
    assert take_apart(stored).headers["dotnet-type"] == ("string", "My.Order, Assembly")
    assert dotnet_type(stored) == b"My.Order, Assembly"
    assert read(stored, without_dotnet_type=True) == b"a:T1;message-id:Tm;"
    assert read(stored) == b"a:T1;dotnet-type:TMy.Order%2C%20Assembly;message-id:Tm;"
    assert dotnet_type(write(b"a:T1;", b"x")) is None
    assert dotnet_type(message([("dotnet-type", long(1))])) is None


def test_of_two_dotnet_types_that_of_the_extension_counts() -> None:
    stored = write(b"dotnet-type:TFirst;a:T1;", b"x", None, b"Second")
    assert headers(b"dotnet-type:TFirst;a:T1;", dotnet_type=b"Second")["dotnet-type"] == ("string", "Second")
    assert dotnet_type(stored) == b"Second" and read(stored) == b"dotnet-type:TFirst;a:T1;"


def test_an_annotation_of_another_kind_or_size_is_nobodys_properties() -> None:
    key = symbol(ANNOTATION)
    for value in (string("a:T1;"), binary(b""), binary(b"x" * 65536), long(1)):
        assert read(message([("b", long(2))], annotations=[(key, value)])) == b"b:N2;"
    both = [(symbol("x-other"), binary(b"no")), (key, binary(b"a:1;"))]
    assert read(message([("b", long(2))], annotations=both)) == b"a:1;"


# ---- limits ----


@pytest.mark.parametrize("filling", [b"k:T%b;", b"k:%b;", b"%b", b"%b:T;"])
def test_as_many_bytes_as_a_frame_can_hold_come_back_as_they_came(filling: bytes) -> None:
    properties = filling % (b"x" * (spec.PROPERTIES_BYTES_MAX - len(filling % b"")))
    assert len(properties) == spec.PROPERTIES_BYTES_MAX
    stored = write(properties, b"x", JSON, b"Order")
    assert read(stored, JSON, without_dotnet_type=True) == properties
    if kept(stored) is not None:
        assert read(stored) == properties  # what is not the sender's has no room


def test_what_encoded_needs_more_than_a_frame_can_hold_is_too_large() -> None:
    for value, fits in (("x" * 65531, True), ("x" * 65532, False), ("ä" * 10921, True), ("ä" * 10922, False)):
        assert (read(message([("k", string(value))])) is not None) == fits
    assert read(message([("k", string("x" * (1 << 20)))])) is None
    assert read(message([("k" * 40000, string("x" * 40000))])) is None
    assert read(message([(f"key{i}", binary(b"\xff" * 10000)) for i in range(3)])) is None


def test_an_id_or_content_type_for_which_there_is_no_room_does_not_go_out() -> None:
    large = [("k", string("x" * 65520))]
    expected = b"k:T" + b"x" * 65520 + b";"
    assert read(message(large, id=string("an-id"), content_type=symbol("text/plain"))) == expected
    assert read(message(large, id=string("y" * 70000))) == expected


def test_a_peer_that_reads_only_one_property_gets_the_first_that_fits() -> None:
    assert read(write(b"a:T1;b:T2;", b"x"), single=True) == b"a:T1;"
    assert read(write(b"a:1;b:2;", b"x"), single=True) == b"a:1;"
    assert read(write(b"message-id:m;content-type:text/plain;a:1;", b"x"), single=True) == b"a:1;"
    assert read(write(b"message-id:Tm;a:T1;", b"x"), single=True) == b"a:T1;"
    assert read(write(b":1;message-id:m", b"x"), single=True) == b"message-id:m;"
    assert read(write(b"message-id:Tm;", b"x"), single=True) == b"message-id:Tm;"
    assert read(write(b"", b"x", JSON), single=True) == b"content-type:Tapplication%2Fjson;"
    assert read(write(b"", b"x"), single=True) == b""
    assert read(message([("n", NULL), ("a", long(1)), ("b", long(2))], id=string("m")), single=True) == b"a:N1;"
    assert read(write(b"", b"x", None, b"Order"), single=True, without_dotnet_type=True) == b""


@pytest.mark.parametrize("letter", [b"T", b""])
def test_a_peer_that_reads_only_one_property_gets_none_that_is_too_long(letter: bytes) -> None:
    for size, fits in ((256, True), (257, False)):
        long_one = b"k:" + letter + b"x" * (size - 3 - len(letter)) + b";"
        assert len(long_one) == size and fits == (size <= spec.SHARP_PROPERTIES_BYTES_MAX)
        assert read(write(long_one + b"a:%b1;" % letter, b"x"), single=True) == (
            long_one if fits else b"a:%b1;" % letter
        )
        assert read(write(long_one, b"x"), single=True) == (long_one if fits else b"")


# ---- any bytes ----

PIECES = [b":", b"=", b";", b"%", b"%20", b"%C3%A4", b"%2f", b"T", b"N", b"D", b"-", b".", b"e", b"1", b"42", b"\xff",
          b"message-id", b"content-type", b"dotnet-type", b"key", b" "]  # fmt: skip
any_properties = st.binary(max_size=40) | st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join)


@settings(deadline=None, max_examples=1000)
@given(any_properties, st.sampled_from([None, JSON]), st.sampled_from([None, b"Order"]))
@example(b"a:T1;message-id", None, None)
def test_whatever_is_sent_comes_back_as_it_was(properties: bytes, type: bytes | None, dotnet: bytes | None) -> None:
    stored = write(properties, b"payload", type, dotnet)
    found = take_apart(stored)
    assert found.body == b"payload" and found.headers is not None
    # A receiver that shares the sender's serializer; with another content type of its own it is kept.
    if found.content_type is None or found.content_type == (type or b"").decode() or b"content-type" in properties:
        assert read(stored, type, without_dotnet_type=True) == properties
    for single_one in (False, True):
        assert read(stored, single=single_one) is not None


def in_python(value: Any) -> tuple[str, Any]:
    """What parse_properties makes of a value, as it is stored."""
    if isinstance(value, datetime):
        micros = (value - EPOCH) // (datetime(1970, 1, 1, 0, 0, 0, 1, UTC) - EPOCH)
        return "timestamp", (abs(micros) // 1000) * (-1 if micros < 0 else 1)
    if isinstance(value, int):
        return "long" if value < 2**63 else "ulong", value
    if isinstance(value, float):
        return "double", value
    return "binary" if isinstance(value, bytes) else "string", str(value) if isinstance(value, str) else value


@settings(deadline=None, max_examples=1000)
@given(st.lists(st.sampled_from([piece for piece in PIECES if b"-" not in piece[1:]]), max_size=30).map(b"".join))
def test_what_is_stored_is_what_the_codec_reads(properties: bytes) -> None:
    pairs = parse_properties(properties)
    expected = {
        key: in_python(value)
        for key, value in pairs
        if key and not key.encode("utf-8", "surrogateescape").decode("utf-8", "replace").count("\ufffd")
    }
    found = {key: value for (kind, key), value in take_apart(write(properties, b"x")).application if kind == "string"}
    assert found == expected


values = st.one_of(
    st.text(max_size=20), st.binary(max_size=5), st.booleans(), st.floats(), st.text(max_size=5).map(Untyped),
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-(10**12), 10**13).map(lambda ms: datetime.fromtimestamp(ms // 1000, UTC).replace(
        microsecond=ms % 1000 * 1000)),
)  # fmt: skip


@settings(deadline=None, max_examples=500)
@given(st.dictionaries(st.text(min_size=1, max_size=10), values, max_size=6))
def test_what_our_client_writes_is_stored_with_its_types(sent: dict[str, Any]) -> None:
    sent = {key: value for key, value in sent.items() if key not in ("message-id", "content-type")}
    properties = encode_properties(sent)
    stored = write(properties, b"x")
    found = take_apart(stored).headers
    assert list(found) == list(sent) and read(stored) == properties
    for key, value in sent.items():
        if isinstance(value, bool) or (isinstance(value, float) and value - value != 0):
            assert found[key][0] == "string"
        elif isinstance(value, bytes):
            assert found[key] in (("binary", value), ("string", value.decode("utf-8", "replace")))
        else:
            assert found[key] == in_python(value)


def test_what_our_client_writes_is_in_the_strict_form() -> None:
    sent = {"a": "text with ä", "b": b"\xff", "c": -1, "d": 2**64 - 1, "e": 0.5, "f": 5.0,
            "g": datetime(2014, 10, 13, 11, 0, 0, 500_000, UTC),
            "h": datetime(2014, 10, 13, 11, tzinfo=UTC)}  # fmt: skip
    assert kept(write(encode_properties(sent), b"x")) is None


def test_random_bytes_of_any_size_come_back_as_they_were() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    source = random.Random(seed)
    for size in (100, 1000, 20000, 65535):
        properties = bytes(source.choices(b":;=%TND0123456789abcdef\xff", k=size))
        assert read(write(properties, b"x")) == properties
