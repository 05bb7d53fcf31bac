# SPDX-License-Identifier: Apache-2.0
"""A filter passes exactly those messages whose properties meet all of its conditions."""

import json
import math
import struct
import uuid
from pathlib import Path
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
    timestamp,
    ulong,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vibemq.protocols.micromsg2.filters import (
    CONDITIONS_MAX,
    FILTER_BYTES_MAX,
    BadFilter,
    Filter,
    compile_filter,
)
from vibemq.protocols.micromsg2.properties import read, write

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())["filter_cases"]
OPERATORS = ["=", "!=", "<", "<=", ">", ">=", "&", "~"]


def matches(text: str, stored: bytes) -> bool:
    return compile_filter(text).matches_bytes(stored)


# ---- what the reference says ----


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["filter"])
def test_a_vector_matches_as_it_says(case: dict[str, Any]) -> None:
    assert matches(case["filter"], write(VECTORS["properties"].encode(), b"x")) is case["match"]


@pytest.mark.parametrize("text", VECTORS["rejected"])
def test_a_vector_that_must_be_rejected_is(text: str) -> None:
    with pytest.raises(BadFilter):
        compile_filter(text)


# ---- every operator on every type ----


@pytest.mark.parametrize(
    ("value", "less", "equal", "greater"),
    [
        (long(20), "N19", "N20", "N21"),
        (long(20), "N19.5", "N20.0", "N20.5"),
        (long(-1), "N-2", "N-1", "N0"),
        (long(-1), "N-1.5", "N-1", "N18446744073709551615"),
        (long(2**63 - 1), "N9223372036854775806", "N9223372036854775807", "N9223372036854775808"),
        (long(-(2**63)), "N-1e19", "N-9223372036854775808", "N-9223372036854775807"),
        (long(2**53 + 1), "N9007199254740992.0", "N9007199254740993", "N9007199254740994.0"),
        (ulong(5), "N4", "N5", "N6"),
        (ulong(5), "N-1", "N5.0", "N5.5"),
        (ulong(2**64 - 1), "N9223372036854775807", "N18446744073709551615", "N18446744073709551616"),
        (ulong(2**63), "N-0.5", "N9223372036854775808.0", "N1e300"),
        (number(0x50, ">B", 200), "N199", "N200", "N201"),
        (number(0x55, ">b", -7), "N-8", "N-7", "N-6"),
        (double(0.1), "N0.09", "N0.1", "N0.11"),
        (double(5), "N4", "N5", "N6"),
        (double(-0.5), "N-1", "N-.5", "N0"),
        (double(0.5), "N0", "N5e-1", "N1"),
        (double(2.0**53), "N9007199254740991", "N9007199254740992", "N9007199254740993"),
        (double(2.0**64), "N18446744073709551615", "N18446744073709551616", "N1e20"),
        (double(-(2.0**63)), "N-1e19", "N-9223372036854775808", "N-9223372036854775807"),
        (single(0.1), "N0.09", "N0.1", "N0.11"),
        (single(3), "N2", "N3", "N4"),
        (timestamp(1413198000500), "D1413198000.0", "D1413198000.5", "D1413198000.501"),
        (timestamp(0), "D-0.001", "D0", "D1"),
        (timestamp(-1500), "D-2", "D-1.5", "D0.0"),
    ],
)
def test_numbers_and_dates_are_compared_by_their_order(value: bytes, less: str, equal: str, greater: str) -> None:
    stored = message([("before", string("x")), ("key", value), ("after", string("x"))])
    for other, order in ((less, 1), (equal, 0), (greater, -1)):
        expected = {
            "=": order == 0,
            "!=": order != 0,
            "<": order < 0,
            "<=": order <= 0,
            ">": order > 0,
            ">=": order >= 0,
        }
        assert {operator: matches(f"key{operator}{other}", stored) for operator in expected} == expected, other


@pytest.mark.parametrize(
    "value",
    [string("hello world"), symbol("hello world"), binary(b"hello world")],
    ids=["string", "symbol", "binary"],
)
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("=Thello%20world", True),
        ("=hello%20world", True),
        ("=THello%20world", False),
        ("=Thello", False),
        ("=Thello%20world!", False),
        ("!=Thello%20world", False),
        ("!=Thello%20worle", True),
        ("<Thello", True),
        ("<Thello%20world", True),
        ("<Tello", False),
        ("<Thello%20worlds", False),
        ("<T", True),
        (">Tworld", True),
        (">Tworl", False),
        (">Tahello%20world", False),
        (">T", True),
        ("&To%20w", True),
        ("&TO", False),
        ("&T", True),
        ("&Thello%20world%20", False),
        ("~To%20w", False),
        ("~TO", True),
        ("~T", False),
    ],
)
def test_texts_are_compared_by_their_bytes(value: bytes, condition: str, expected: bool) -> None:
    assert matches(f"key{condition}", message([("key", value)])) is expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (TRUE, "true"),
        (FALSE, "false"),
        (double(math.nan), "nan"),
        (double(-math.inf), "-inf"),
        (single(math.inf), "inf"),
        (b"\x98" + uuid.UUID(int=5).bytes, "00000000-0000-0000-0000-000000000005"),
    ],
)
def test_what_goes_out_as_a_text_is_compared_as_one(value: bytes, text: str) -> None:
    stored = message([("key", value)])
    assert matches(f"key=T{text};key<T{text[:2]};key>T{text[-2:]};key&T{text[1:3]};key~Txyz;key!=Tother", stored)
    assert not matches("key=Tother", stored) and not matches("key>=N0", stored) and matches("key!=N0", stored)


@pytest.mark.parametrize("value", [None, NULL, LIST, b"\xc1\x01\x00"], ids=["none", "null", "list", "map"])
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("wanted", ["N1", "D1.0", "Ta"])
def test_without_the_property_only_the_negative_conditions_hold(
    value: bytes | None, operator: str, wanted: str
) -> None:
    if (operator in ("<=", ">=")) if wanted == "Ta" else (operator in ("&", "~")):
        return  # there is no such condition
    stored = message([("other", long(1))] + ([("key", value)] if value else []))
    assert matches(f"key{operator}{wanted}", stored) is (operator in ("!=", "~"))


@pytest.mark.parametrize(
    ("value", "condition"),
    [
        (long(1), "D1.0"),
        (long(1), "T1"),
        (double(1), "D1.0"),
        (timestamp(1000), "N1"),
        (timestamp(1000), "T1.0"),
        (string("1"), "N1"),
        (string("1.0"), "D1.0"),
    ],
)
def test_a_property_of_another_type_is_as_none(value: bytes, condition: str) -> None:
    stored = message([("key", value)])
    for operator in "=<>":
        assert not matches(f"key{operator}{condition}", stored)
    assert matches(f"key!={condition}", stored)


def test_untyped_properties_and_values_are_texts() -> None:
    stored = write(b"raw:blue;person:Nathan;date:Dora;", b"x")
    assert matches("raw=Tblue;raw=blue;person=Nathan;person<Nat;date=Dora;person=%4Eathan;person=TNathan", stored)
    assert not matches("person=N1", stored)


# ---- the message's own ----


def test_the_message_id_and_the_content_type_are_compared_as_texts() -> None:
    stored = message(id=string("m-1"), content_type=symbol("application/json"))
    assert matches("message-id=Tm-1;message-id<Tm;content-type&Tjson;content-type~Txml", stored)
    for text in ("message-id=Tm-2", "message-id!=Tm-1", "message-id=N1", "content-type>Txml"):
        assert not matches(text, stored)
    assert matches("message-id=T7;message-id!=N7", message(id=ulong(7)))
    assert matches("message-id>T0005", message(id=b"\x98" + uuid.UUID(int=5).bytes))
    assert not matches("message-id&T", message()) and matches("message-id!=Tm;content-type~Tjson", message())


def test_where_a_message_has_no_id_a_header_of_that_name_is_compared() -> None:
    header = [("message-id", string("header")), ("content-type", string("text"))]
    assert matches("message-id=Theader;content-type=Ttext", message(header))
    both = message(header, id=string("own"), content_type=symbol("a/b"))
    assert matches("message-id=Town;content-type=Ta%2Fb", both) and not matches("message-id=Theader", both)


def test_the_dotnet_type_is_a_property() -> None:
    stored = write(b"", b"x", None, b"My.Order, Assembly")
    assert matches("dotnet-type<TMy.Order", stored) and not matches("dotnet-type=TMy", stored)


def test_of_what_is_no_amqp_every_property_is_missing() -> None:
    for stored in (b"", b"opaque", b"\x00\x53\x75"):
        assert matches("", stored) and matches("a!=N1;b~Tx;message-id!=Tm", stored) and not matches("a=N1", stored)


# ---- the text of a filter ----


def test_an_empty_filter_passes_everything() -> None:
    for text in ("", ";", ";;;"):
        made = compile_filter(text)
        assert made.count == 0 and made.text == text
        assert made.matches_bytes(message()) and made.matches_bytes(b"opaque")


def test_all_conditions_must_hold() -> None:
    stored = message([("a", long(1)), ("b", long(2)), ("c", string("x"))])
    assert matches("a=N1;b=N2;c=Tx", stored) and matches(";a=N1;;c=Tx;", stored)
    for wrong in ("a=N2;b=N2;c=Tx", "a=N1;b=N1;c=Tx", "a=N1;b=N2;c=Ty", "a=N1;b=N2;c=Tx;d=N1"):
        assert not matches(wrong, stored)
    assert matches("a>N0;a<N2;a!=N3;a>=N1;a<=N1", stored) and not matches("a>N0;a<N1", stored)


def test_of_a_header_twice_the_first_counts() -> None:
    stored = message([("a", long(1)), ("a", long(2))])
    assert matches("a=N1", stored) and not matches("a=N2", stored)


def test_keys_and_values_are_percent_decoded() -> None:
    stored = message([("a b=c", string("x;y=z ä")), ("ä", long(1))])
    assert matches("a%20b%3Dc=Tx%3By%3Dz%20%C3%A4;%C3%A4=N1;ä=N%31;a%20b%3dc>Tä", stored)
    assert matches("k=T%FF%00", message([("k", binary(b"\xff\x00"))]))


def test_the_longest_operator_is_taken() -> None:
    stored = message([("a", long(5))])
    assert matches("a>=N5", stored) and not matches("a>N5", stored) and matches("a!=N4", stored)


def test_a_value_may_hold_operators_but_for_its_first_character() -> None:
    stored = message([("url", string("http://x/?a=b&c<d>e~f!g"))])
    assert matches("url=Thttp://x/?a=b&c<d>e~f!g", stored)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("age", "has no operator"),
        ("age!5", "has no operator"),
        ("=N1", "names no property"),
        ("!=N1", "names no property"),
        ("age=", "has no value"),
        ("age>=", "has no value"),
        ("age==N1", "the operator '=='"),
        ("age<>N1", "the operator '<>'"),
        ("age=<N1", "the operator '=<'"),
        ("age=~Tx", "the operator '=~'"),
        ("age = N1", "a space as %20"),
        ("a=Tx\n", "a space as %20"),
        ("\x00=N1", "a space as %20"),
        ("name<=Tx", "compares a text by <="),
        ("name>=x", "compares a text by >="),
        ("age>=Nx", "compares a text by >="),
        ("age&N1", "compares a number or a date by &"),
        ("age~N1.5", "compares a number or a date by ~"),
        ("at&D1.0", "compares a number or a date by &"),
        ("at~D1", "compares a number or a date by ~"),
    ],
)
def test_a_bad_filter_says_where_and_what(text: str, what: str) -> None:
    with pytest.raises(BadFilter) as raised:
        compile_filter(f"a=N1;;{text};b=N2")
    assert str(raised.value).startswith(f"Condition 2 of the filter, '{text}', ") and what in str(raised.value)


def test_what_is_said_about_a_long_condition_is_short() -> None:
    with pytest.raises(BadFilter) as raised:
        compile_filter("x" * 10000)
    assert len(str(raised.value)) < 200


def test_a_filter_that_cannot_be_utf8_is_refused() -> None:
    with pytest.raises(BadFilter, match="UTF-8"):
        compile_filter("a=T\ud800")


def test_a_filter_is_made_only_by_compiling_it() -> None:
    with pytest.raises(TypeError):
        Filter()


# ---- limits ----


def test_as_many_conditions_as_allowed_are_all_compared() -> None:
    stored = message([(f"key{i}", long(i)) for i in range(CONDITIONS_MAX)])
    conditions = [f"key{i}=N{i}" for i in range(CONDITIONS_MAX)]
    assert matches(";".join(conditions), stored)
    for i in (0, 31, 32, CONDITIONS_MAX - 1):
        assert not matches(";".join([*conditions[:i], f"key{i}=N100", *conditions[i + 1 :]]), stored)
        assert not matches(";".join([*conditions[:i], "missing=N1", *conditions[i + 1 :]]), stored)
    with pytest.raises(BadFilter, match="at most 64 conditions, had 65"):
        compile_filter(";".join([*conditions, "a=N1"]))


def test_a_filter_of_as_many_bytes_as_allowed_is_compared_to_its_end() -> None:
    long_text = "x" * (FILTER_BYTES_MAX - 3)
    assert matches(f"a=T{long_text}", message([("a", string(long_text))]))
    assert not matches(f"a=T{long_text}", message([("a", string(long_text[:-1] + "y"))]))
    with pytest.raises(BadFilter, match="at most 16384 bytes, had 16385"):
        compile_filter(f"a=T{long_text}x")
    with pytest.raises(BadFilter, match="at most 16384 bytes"):
        compile_filter("a=T" + "ä" * (FILTER_BYTES_MAX // 2))


# ---- against plain Python ----

texts = st.text("ab", max_size=4)
wholes = st.integers(-3, 3) | st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1])
reals = st.sampled_from([-2.5, -1.0, 0.0, 0.5, 1.0, 2.0**53, 2.0**63, -(2.0**63), 2.0**64, 1e300, math.nan, math.inf])
dates = st.integers(-3000, 3000).map(lambda ms: ("date", ms))
stored_values = st.one_of(texts, wholes, reals, dates, st.booleans(), st.none())
wanted_values = st.one_of(texts, wholes, reals.filter(math.isfinite), dates)
keys = st.sampled_from(["a", "b", "c", "message-id", "content-type"])


def encoded(value: Any) -> bytes:
    if value is None or isinstance(value, bool):
        return NULL if value is None else TRUE if value else FALSE
    if isinstance(value, tuple):
        return timestamp(value[1])
    if isinstance(value, int):
        return long(value) if value < 2**63 else ulong(value)
    return double(value) if isinstance(value, float) else string(value)


def spelled(value: Any) -> str:
    if isinstance(value, tuple):
        return f"D{'-' if value[1] < 0 else ''}{abs(value[1]) // 1000}.{abs(value[1]) % 1000:03}"
    return f"T{value}" if isinstance(value, str) else f"N{value}"


def kind_of(value: Any) -> str:
    if isinstance(value, (bool, str)) or (isinstance(value, float) and not math.isfinite(value)):
        return "text"
    return "none" if value is None else "date" if isinstance(value, tuple) else "number"


def in_python(has: Any, operator: str, wanted: Any) -> bool:
    if kind_of(has) != kind_of(wanted):
        return operator in ("!=", "~")
    if kind_of(has) == "text":
        text = has if isinstance(has, str) else str(has).lower()
        return {
            "=": text == wanted,
            "!=": text != wanted,
            "<": text.startswith(wanted),
            ">": text.endswith(wanted),
            "&": wanted in text,
            "~": wanted not in text,
        }[operator]
    return {
        "=": has == wanted,
        "!=": has != wanted,
        "<": has < wanted,
        "<=": has <= wanted,
        ">": has > wanted,
        ">=": has >= wanted,
    }[operator]


@st.composite
def conditions(draw: st.DrawFn) -> tuple[str, str, Any]:
    wanted = draw(wanted_values)
    allowed = [*"=<>&~", "!="] if isinstance(wanted, str) else OPERATORS[:6]
    return draw(keys), draw(st.sampled_from(allowed)), wanted


@settings(deadline=None, max_examples=2000)
@given(
    st.dictionaries(keys, stored_values, max_size=5),
    st.lists(conditions(), max_size=4),
    texts | st.none(),
    texts | st.none(),
)
@example({"a": 2**53 + 1}, [("a", "=", 2.0**53)], None, None)
@example({"a": 2.0**64}, [("a", ">", 2**64 - 1)], None, None)
def test_a_filter_decides_as_plain_python_does(
    properties: dict[str, Any], wanted: list[tuple[str, str, Any]], id: str | None, content_type: str | None
) -> None:
    stored = message(
        [(key, encoded(value)) for key, value in properties.items()],
        id=string(id) if id else NULL,
        content_type=symbol(content_type) if content_type else NULL,
    )
    seen = {
        **properties,
        **({"message-id": id} if id else {}),
        **({"content-type": content_type} if content_type else {}),
    }
    text = ";".join(f"{key}{operator}{spelled(value)}" for key, operator, value in wanted)
    expected = all(in_python(seen.get(key), operator, value) for key, operator, value in wanted)
    assert matches(text, stored) is expected
    if not properties.keys() & {"message-id", "content-type"}:  # which a MicroMsg2 peer has only as the message's own
        again = write(read(stored) or b"", b"x")
        assert matches(text, again) is expected


@settings(deadline=None, max_examples=500)
@given(st.floats(allow_nan=False, allow_infinity=False), wholes | st.integers(-(2**63), 2**64 - 1))
def test_a_whole_number_and_another_are_compared_exactly(real: float, whole: int) -> None:
    real_stored, whole_stored = message([("a", double(real))]), message([("a", encoded(whole))])
    assert len(f"{real}") <= 64
    for operator in OPERATORS[:6]:
        assert matches(f"a{operator}N{whole}", real_stored) is in_python(real, operator, whole)
        assert matches(f"a{operator}N{real!r}", whole_stored) is in_python(whole, operator, real)


@settings(deadline=None, max_examples=500)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float_equals_what_it_goes_out_as(real: float) -> None:
    stored = message([("a", b"\x72" + struct.pack(">f", real))])
    text = (read(stored) or b"").decode()
    assert matches(text.replace(":", "="), stored)


@settings(deadline=None, max_examples=500)
@given(st.text(st.sampled_from("ab=!<>&~;%20TND1.- ä"), max_size=30), st.binary(max_size=30))
def test_whatever_text_is_a_filter_or_is_refused(text: str, garbage: bytes) -> None:
    try:
        made = compile_filter(text)
    except BadFilter as problem:
        assert str(problem)
    else:
        assert made.matches_bytes(garbage) in (True, False)
        made.matches_bytes(message([("a", garbage[:1] and string("b"))] if garbage else None))
